# SPDX-License-Identifier: MIT
"""vLLM's paged cache and the arguments of its operators, as libattn takes them. Needs no vLLM."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .._native import C, S
from .._sdpa import FUNCTIONS
from ..layers import CACHE_DTYPES, DTYPES

FLOAT8 = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def typed(cache: torch.Tensor, kv_cache_dtype: str) -> torch.Tensor:
    """vLLM keeps values of 8 bits as bytes, and names their type apart."""
    return cache.view(FLOAT8[kv_cache_dtype]) if kv_cache_dtype in FLOAT8 else cache


def split(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [blocks, kv_heads, block_tokens, dim] of a cache [blocks, kv_heads, block_tokens, 2 dim], where the
    keys of a block stand before its values."""
    blocks, heads, tokens, width = kv_cache.shape
    return kv_cache.view(blocks, heads, 2 * tokens, width // 2).chunk(2, dim=2)


def layer_options(*, scale: float, alibi_slopes: torch.Tensor | None = None, sliding_window: int | tuple[int, int] = -1,
                  softcap: float = 0.0, sinks: torch.Tensor | None = None, k_scale: float = 1.0,
                  v_scale: float = 1.0) -> dict[str, Any]:
    """The options of sdpa() that a layer says in all its calls. sliding_window: (left, right), or how many keys a query
    sees on each side, its own among them; -1 for all of them."""
    if isinstance(sliding_window, int):
        sliding_window = (max(sliding_window - 1, -1),) * 2
    options: dict[str, Any] = {"scale": scale}
    if sliding_window != (-1, -1):
        options["window"] = sliding_window
    if alibi_slopes is not None:
        options["alibi"] = alibi_slopes.detach()
    if softcap:
        options["softcap"] = softcap
    if sinks is not None:
        options["sinks"] = sinks.detach().float()
    if k_scale != 1 or v_scale != 1:
        options.update(k_scale=k_scale, v_scale=v_scale)
    return options


def step_calls(query_start_loc: torch.Tensor, seq_lens: torch.Tensor, block_table: torch.Tensor,
               causal: bool | torch.Tensor) -> list[dict[str, Any]]:
    """The options of sdpa() that a step says to all its layers: packed queries, each sequence aligned with the end of
    its keys. One call, or one for each sequence where causal is a tensor that says it of each."""
    if isinstance(causal, torch.Tensor):
        return [call for i, flag in enumerate(causal.tolist()) for call in
                step_calls(query_start_loc[i:i + 2], seq_lens[i:i + 1], block_table[i:i + 1], bool(flag))]
    return [{"cu_seqlens_q": query_start_loc, "kv_len": seq_lens, "page_table": block_table, "causal": causal,
             "align": "bottom_right"}]


def packed_call(query_start_loc: torch.Tensor, causal: bool) -> dict[str, Any]:
    """The same where keys and values are those of the step, without a cache."""
    return {"cu_seqlens_q": query_start_loc, "cu_seqlens_k": query_start_loc, "causal": causal}


class Writer:
    """Writes tokens into the keys and values of one cache, as split() gives them. All that its calls share is prepared, so
    that a call takes a microsecond.

    write(key, value, slots): token i of key and value [tokens, kv_heads, dim] goes to slots[i], int64: page * page_tokens +
    token, or -1 for nowhere. Tokens behind the slots go nowhere.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, dtype: torch.dtype, k_scale: float = 1.0,
                 v_scale: float = 1.0) -> None:
        pages, heads, tokens, dim = keys.shape
        args = S.attn_kv_append_args(
            batch=1, heads_kv=heads, dim_qk=dim, dim_v=values.shape[3], page_tokens=tokens, pages=pages,
            dtype=getattr(C, DTYPES[_name(dtype)]), cache_dtype=getattr(C, CACHE_DTYPES[_name(keys.dtype)]),
            k_cache=keys.data_ptr(), v_cache=values.data_ptr(), k_cache_stride=_strides(keys),
            v_cache_stride=_strides(values))
        scales = (ctypes.c_float * 2)(k_scale, v_scale)
        if k_scale != 1 or v_scale != 1:
            args.k_scale = ctypes.addressof(scales)
            args.v_scale = args.k_scale + ctypes.sizeof(ctypes.c_float)
        self.write = FUNCTIONS["append"](ctypes.addressof(args))
        self._caches = keys, values


def _name(dtype):
    return str(dtype).removeprefix("torch.")


def _strides(cache):
    return S.attn_strides(**dict(zip("bhsd", cache.stride())))
