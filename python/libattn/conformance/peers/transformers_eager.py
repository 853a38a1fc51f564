# SPDX-License-Identifier: MIT
"""transformers' eager attention: that of Gemma 2 (with softcap) or of gpt-oss (with sinks), and the masks of masking_utils;
and that of continuous batching ("paged|eager"), with its mask, and a cache that only reads.

https://huggingface.co/docs/transformers/main/en/attention_interface
"""

from types import SimpleNamespace

import numpy as np
import torch
import transformers
from transformers.generation.continuous_batching.utils import build_attention_mask
from transformers.integrations.eager_paged import eager_paged_attention_forward
from transformers.masking_utils import and_masks, causal_mask_function, sdpa_mask, sliding_window_overlay
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as forward_with_sinks

from ..verdicts import Refused
from . import only
from .packing import pack, tokens_of
from .torch_sdpa import tensor, with_gradients

NAME, PAGED = "eager_attention_forward", "eager_paged_attention_forward"


def version():
    return transformers.__version__


def eager(q, k, v, *, dtype="float32", mask=None, bias=None, causal=False, align="top_left", window=None, scale=None,
          softcap=None, sinks=None, kv_len=None, do=None, **others):
    only(others, NAME)
    if softcap and sinks is not None:
        raise Refused("no model has a softcap and sinks")
    batch, heads, queries, dim = q.shape
    keys = k.shape[2]
    numbers = getattr(torch, dtype)
    added = 0 if bias is None else tensor(bias, dtype)
    seen = True if mask is None else tensor(mask, "bool")
    if causal or window or kv_len is not None:
        seen = seen & mask_of(batch, queries, keys, causal, align, window, kv_len)
    if seen is not True:
        added = added + torch.where(seen, torch.zeros((), dtype=numbers), torch.finfo(numbers).min)  # see eager_mask()
    module = SimpleNamespace(num_key_value_groups=heads // k.shape[1], head_dim=dim, training=False)
    options = {"scaling": dim**-0.5 if scale is None else scale, "dropout": 0.0}
    forward = eager_attention_forward
    if sinks is not None:
        module.sinks, forward = tensor(sinks, dtype), forward_with_sinks
    else:
        options["softcap"] = softcap
    return with_gradients(lambda *inputs: forward(module, *inputs, None if isinstance(added, int) else added,
        **options)[0].transpose(1, 2), q, k, v, do, dtype)


def mask_of(batch, queries, keys, causal, align, window, kv_len):
    """The boolean mask that a model makes: for a causal flag alone that of a prompt, whose query 0 stands at key 0."""
    offset = {"top_left": 0, "bottom_right": keys - queries}.get(align) if isinstance(align, str) else align
    if not isinstance(offset, int) or kv_len is not None and align == "bottom_right" and (causal or window):
        raise Refused("masking_utils has one q_offset for all sequences")
    if offset < 0:
        raise Refused("masking_utils has no queries before key 0")
    if window and (window[0] is None or window[1] not in (0, None) or window[1] is None and not causal):
        raise Refused("masking_utils has windows to the left")
    function = causal_mask_function if causal or window else lambda b, h, i, j: j >= 0
    if window:
        function = and_masks(sliding_window_overlay(window[0] + 1), function)
    padding = None if kv_len is None else torch.arange(keys) < torch.from_numpy(kv_len)[:, None]
    return sdpa_mask(batch, queries, keys, q_offset=offset, mask_function=function, attention_mask=padding,
                     allow_is_causal_skip=False)


def paged(q, k, v, *, dtype="float32", scale=None, softcap=None, sinks=None, **others):
    given = pack(PAGED, q, k, v, others, always_causal=True)
    if given.window == 1:
        raise Refused("build_attention_mask takes a window of 1 for none")
    keys, values = (tensor(tokens_of(x, given.table, given.lengths).swapaxes(0, 1)[None], dtype) for x in (given.k, given.v))
    query = tensor(given.q.swapaxes(0, 1)[None], dtype)
    ends = np.cumsum([0, *given.lengths])
    mask = torch.full((1, 1, query.shape[2], keys.shape[2]), torch.finfo(query.dtype).min, dtype=query.dtype)
    build_attention_mask(mask, given.cu.tolist(), ends.tolist(), given.window or 1)
    module = SimpleNamespace(num_key_value_groups=query.shape[1] // keys.shape[1], layer_idx=0)
    if sinks is not None:
        module.sinks = tensor(sinks, dtype)
    cache = SimpleNamespace(update=lambda **_: (keys, values))
    o, _ = eager_paged_attention_forward(module, query, keys, values, mask, q.shape[-1]**-0.5 if scale is None else scale,
                                         cache=cache, **({} if softcap is None else {"softcap": softcap}))
    return given.unpack(o[0].float().numpy())
