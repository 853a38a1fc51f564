# SPDX-License-Identifier: MIT
"""libattn for Hugging Face transformers: importing this module registers attn_implementation="libattn".

    import libattn.transformers
    model = AutoModel.from_pretrained(name, attn_implementation="libattn")

It takes the masks that "sdpa" takes, and besides what that does not: logit softcapping (Gemma 2), sinks (gpt-oss),
position biases beside a boolean mask (T5). It trains, with dropout (libattn.torch.sdpa) and without scores in memory;
output_attentions=True gives the weights, computed by PyTorch's operations (libattn.torch.stats() counts these). Outputs are
written in the order that models want, without a copy.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from .torch import _USUAL, _attend, _count, _draw_seed, _reference


def _masks(attention_mask, position_bias, keys):
    """(mask, bias): boolean masks select; the others are added, in float32."""
    mask, bias = None, None if position_bias is None else position_bias[..., :keys].float()
    if attention_mask is not None:
        attention_mask = attention_mask[..., :keys]
        if attention_mask.dtype == torch.bool:
            mask = attention_mask
        else:
            bias = attention_mask.float() if bias is None else bias + attention_mask
    return mask, bias


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None,
                      is_causal: bool | None = None, position_bias: torch.Tensor | None = None,
                      softcap: float | None = None, s_aux: torch.Tensor | None = None, **kwargs: Any):
    """Attention of query [batch, heads, queries, dim] to key and value [batch, kv_heads, keys, dim], as transformers calls
    it. Returns ([batch, queries, heads, dim], None), or with output_attentions the weights [batch, heads, queries, keys] in
    place of None."""
    mask, bias = _masks(attention_mask, position_bias, key.shape[2])
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    options = {"mask": mask, "bias": bias, "causal": causal, "scale": scaling, "softcap": softcap or 0.0,
               "sinks": None if s_aux is None else s_aux.float(), **_draw_seed(dropout)}
    if kwargs.get("output_attentions"):
        _count("weights")
        out, weights = _reference(query, key, value, {**_USUAL, **options})
        return out.transpose(1, 2).contiguous(), weights
    return _attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), layout="bshd", **options), None


AttentionInterface.register("libattn", attention_forward)
AttentionMaskInterface.register("libattn", sdpa_mask)
