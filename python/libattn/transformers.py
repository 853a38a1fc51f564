# SPDX-License-Identifier: MIT
"""libattn for Hugging Face transformers: importing this module registers attn_implementation="libattn".

    import libattn.transformers
    model = AutoModel.from_pretrained(name, attn_implementation="libattn")

It takes the masks that "sdpa" takes, and besides what that does not: logit softcapping (Gemma 2), sinks (gpt-oss),
position biases beside a boolean mask (T5). It trains, with dropout (libattn.torch.sdpa) and without scores in memory;
output_attentions=True gives the weights, computed by PyTorch's operations (libattn.torch.stats() counts these). Outputs are
written in the order that models want, without a copy.

Padding behind the tokens is a length, which skips keys, and no mask. Packed sequences (cu_seq_lens_q, as data collators
without padding give it) need no mask either. model.generate_batch(), continuous batching, takes "libattn" as it takes flash
attention, and reads keys and values where its pages lie; "paged|libattn" is the same.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, modeling_flash_attention_utils
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from .torch import (_USUAL, _attend, _count, _draw_seed, _reference, flash_attn_func, flash_attn_varlen_func,
                    flash_attn_with_kvcache)

NAMES = ("libattn", "paged|libattn")

# ---- Masks -----------------------------------------------------------------------------------------------------------


def _lengths(padding):
    """Tokens of each sequence [batch], int32, of a mask [batch, tokens]; None where some padding is before a token."""
    if (padding[:, 1:] > padding[:, :-1]).any():
        return None
    return padding.sum(-1, dtype=torch.int32)


def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: Any = 0,
                   mask_function: Any = causal_mask_function, attention_mask: torch.Tensor | None = None,
                   **options: Any) -> torch.Tensor | None:
    """The mask of "sdpa", [batch, 1, queries, keys] of bool or None. Where it is nothing but lengths, and causal or not, it
    has them as `libattn_options`, which attention_forward() takes instead."""
    found = sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, **options)
    causal = mask_function is causal_mask_function
    if found is None or attention_mask is None or not (causal or mask_function is bidirectional_mask_function):
        return found
    begins = isinstance(q_offset, int) and q_offset == kv_offset == 0 and (q_length == kv_length or not causal)
    if begins and attention_mask.shape[-1] == kv_length and not torch.compiler.is_compiling():
        lengths = _lengths(attention_mask)
        if lengths is not None:
            found.libattn_options = {"kv_len": lengths, "causal": causal}
    return found


def _masks(mask, position_bias, keys):
    """Options of a mask: booleans select; the others are added, in float32."""
    found = {} if position_bias is None else {"bias": position_bias[..., :keys].float()}
    if mask is None or hasattr(mask, "libattn_options"):
        return {**found, **getattr(mask, "libattn_options", {})}
    mask = mask[..., :keys]
    if mask.dtype == torch.bool:
        return {**found, "mask": mask}
    return {"bias": mask.float() if position_bias is None else found["bias"] + mask}


# ---- Packed sequences ------------------------------------------------------------------------------------------------


def _pages(cache, layer, key, value, kwargs):
    """Writes new tokens into transformers' PagedAttentionCache. (keys, values, options that say where they lie), or None
    where the cache itself has to join them: windows, pages that libattn does not take, prompts without a past."""
    allocator = cache.layer_to_allocator[layer]
    read, write = (kwargs[name][allocator.index] for name in ("read_index", "write_index"))
    tokens = allocator.tokens_per_page
    if not allocator.supports_block_table or not read.numel() or tokens % 16 or tokens > 1024:
        return None
    pages = allocator.get_cache_for_block_table(layer)
    for all_pages, new in zip(pages, (key, value)):
        all_pages.flatten(0, 1).index_copy_(0, write, new[0].transpose(0, 1))
    ends = kwargs["cu_seq_lens_k"][allocator.layer_type]
    first = ends[:-1, None] + torch.arange(0, kwargs["max_length_k"][allocator.layer_type], tokens)
    table = read[first.clamp(max=len(read) - 1)] // tokens  # the first token of each page; behind a length anything
    return *(x.transpose(1, 2) for x in pages), {"kv_len": ends.diff(), "page_table": table}


def _attend_packed(module, query, key, value, options, cache=None, sliding_window=None, **kwargs):
    """[1, heads, tokens, dim], sequences one behind the other: [1, tokens, heads, dim]."""
    found = None
    if cache is not None:
        found = _pages(cache, module.layer_idx, key, value, kwargs)
        if found is None:
            key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs)
    if found is None:
        found = *(x.transpose(1, 2).flatten(0, 1) for x in (key, value)), {
            "cu_seqlens_k": kwargs["cu_seq_lens_k"], "max_seqlen_k": kwargs.get("max_length_k") or 0}
    keys, values, places = found
    if sliding_window is not None:
        options = {**options, "window_left": sliding_window - 1, "window_right": sliding_window - 1}
    out = _attend(query.transpose(1, 2).flatten(0, 1), keys, values, layout="thd", align="bottom_right",
                  cu_seqlens_q=kwargs["cu_seq_lens_q"], max_seqlen_q=kwargs.get("max_length_q") or 0, **places, **options)
    return out.view(query.shape[0], -1, *out.shape[1:])


# ---- Attention -------------------------------------------------------------------------------------------------------


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None,
                      is_causal: bool | None = None, position_bias: torch.Tensor | None = None,
                      softcap: float | None = None, s_aux: torch.Tensor | None = None, **kwargs: Any):
    """Attention of query [batch, heads, queries, dim] to key and value [batch, kv_heads, keys, dim], as transformers calls
    it. Returns ([batch, queries, heads, dim], None), or with output_attentions the weights [batch, heads, queries, keys] in
    place of None. cu_seq_lens_q: packed sequences, whatever attention_mask says."""
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    options = {"scale": scaling, "softcap": softcap or 0.0, "sinks": None if s_aux is None else s_aux.float(),
               **_draw_seed(dropout)}
    if kwargs.get("cu_seq_lens_q") is not None:
        return _attend_packed(module, query, key, value, {**options, "causal": causal}, **kwargs), None
    options.update({"causal": causal and attention_mask is None and query.shape[2] > 1,
                    **_masks(attention_mask, position_bias, key.shape[2])})
    if kwargs.get("output_attentions"):
        _count("weights")
        out, weights = _reference(query, key, value, {**_USUAL, **options})
        return out.transpose(1, 2).contiguous(), weights
    return _attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), layout="bshd", **options), None


# ---- Registration ----------------------------------------------------------------------------------------------------


def _packs(original):
    """transformers' question whether an attention takes packed sequences, where continuous batching asks it."""
    @functools.wraps(original)
    def requested(config=None, requested_attention_implementation=None, version=None):
        name = requested_attention_implementation or getattr(config, "_attn_implementation", None)
        return version is None and name in NAMES or original(config, requested_attention_implementation, version)

    return requested


def _functions(original):
    """transformers' search for the functions of a flash attention, with ours."""
    @functools.wraps(original)
    def imports(implementation, *args, **options):
        if implementation not in NAMES:
            return original(implementation, *args, **options)
        return (flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, modeling_flash_attention_utils._pad_input,
                modeling_flash_attention_utils._unpad_input)

    return imports


def _register():
    for name in NAMES:
        AttentionInterface.register(name, attention_forward)
        AttentionMaskInterface.register(name, attention_mask)
    modeling_flash_attention_utils._lazy_imports = _functions(modeling_flash_attention_utils._lazy_imports)
    for name in ("cache", "continuous_api", "initialization"):
        module = importlib.import_module(f"transformers.generation.continuous_batching.{name}")
        module.is_flash_attention_requested = _packs(module.is_flash_attention_requested)


_register()
