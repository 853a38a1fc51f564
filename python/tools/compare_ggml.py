#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time of ggml's own attention on the CPU over libggml-attn.so's: the table of docs/library.md.

    scripts/peers/setup.sh ggml && cmake --preset release && cmake --build build --target attn_ggml
    .venv-peers/ggml/bin/python python/tools/compare_ggml.py [--threads 2]

Both backends compute the same graph of one operation, as llama.cpp has it: heads of K and V in a cache, a float16 mask that
is causal for prompts. Samples alternate, in an order that changes from round to round; ratios are medians of the rounds'
with 95 % intervals (order statistics), and outputs are compared.
"""

import argparse
import ctypes
import math
import random
import statistics
import time
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
CASES = [  # queries, keys, heads, kv_heads, dim
    (512, 512, 8, 2, 128), (512, 2048, 8, 2, 128), (32, 1024, 8, 8, 64), (1, 512, 32, 8, 128), (1, 4096, 32, 8, 128),
    (1, 16384, 32, 8, 128)]


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


FUNCTIONS = {
    "ggml_init": (c_void_p, [InitParams]), "ggml_free": (None, [c_void_p]),
    "ggml_new_tensor_4d": (c_void_p, [c_void_p, c_int, *[c_int64] * 4]),
    "ggml_flash_attn_ext": (c_void_p, [*[c_void_p] * 5, *[c_float] * 3]),
    "ggml_new_graph": (c_void_p, [c_void_p]), "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
    "ggml_nbytes": (c_size_t, [c_void_p]), "ggml_get_data": (c_void_p, [c_void_p]),
    "ggml_quantize_chunk": (c_size_t, [c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p]),
    "ggml_backend_cpu_buffer_type": (c_void_p, []),
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, [c_void_p, c_void_p]),
    "ggml_backend_buffer_free": (None, [c_void_p]), "ggml_backend_load_all_from_path": (None, [c_char_p]),
    "ggml_backend_load": (c_void_p, [c_char_p]), "ggml_backend_init_by_name": (c_void_p, [c_char_p, c_char_p]),
    "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
    "ggml_backend_reg_by_name": (c_void_p, [c_char_p]),
    "ggml_backend_reg_get_proc_address": (c_void_p, [c_void_p, c_char_p])}


def load(folder, plugin, threads):
    """(ggml's functions, the backends by name)"""
    for name in ("libggml-base.so", "libggml.so"):
        library = ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    for name, (result, arguments) in FUNCTIONS.items():
        getattr(library, name).restype, getattr(library, name).argtypes = result, arguments
    library.ggml_backend_load_all_from_path(str(folder).encode())
    if not library.ggml_backend_load(str(plugin).encode()):
        raise SystemExit(f"{plugin} is no backend of {folder}/libggml.so")
    backends = {}
    for name in ("CPU", "libattn"):
        backends[name] = library.ggml_backend_init_by_name(name.encode(), None)
        registry = library.ggml_backend_reg_by_name(name.encode())
        set_threads = library.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_set_n_threads")
        ctypes.CFUNCTYPE(None, c_void_p, c_int)(set_threads)(backends[name], threads)
    return library, backends


def fill(ggml, tensor, kind, values):
    if kind == 0:
        data = values.astype(np.float32)
    elif kind == 1:
        data = values.astype(np.float16)
    else:
        flat = np.ascontiguousarray(values, np.float32).reshape(-1, values.shape[-1])
        data = np.empty(ggml.ggml_nbytes(tensor), np.uint8)
        ggml.ggml_quantize_chunk(kind, flat.ctypes.data, data.ctypes.data, 0, *flat.shape, None)
    ctypes.memmove(ggml.ggml_get_data(tensor), data.ctypes.data, ggml.ggml_nbytes(tensor))


class Graph:
    def __init__(self, ggml, kind, queries, keys, heads, kv_heads, dim):
        r = np.random.default_rng(1)
        self.ggml, self.context = ggml, ggml.ggml_init(InitParams(2**20, None, True))
        q = ggml.ggml_new_tensor_4d(self.context, 0, dim, queries, heads, 1)
        k, v = (ggml.ggml_new_tensor_4d(self.context, kind, dim, keys, kv_heads, 1) for _ in range(2))
        mask = ggml.ggml_new_tensor_4d(self.context, 1, keys, queries, 1, 1)
        self.out = ggml.ggml_flash_attn_ext(self.context, q, k, v, mask, 1 / math.sqrt(dim), 0, 0)
        self.graph = ggml.ggml_new_graph(self.context)
        ggml.ggml_build_forward_expand(self.graph, self.out)
        self.buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(self.context, ggml.ggml_backend_cpu_buffer_type())
        fill(ggml, q, 0, r.standard_normal((heads, queries, dim)))
        for tensor in (k, v):
            fill(ggml, tensor, kind, r.standard_normal((kv_heads, keys, dim), np.float32))
        fill(ggml, mask, 1, np.triu(np.full((queries, keys), -np.inf), keys - queries + 1))
        self.shape = (queries, heads, dim)

    def run(self, backend):
        if self.ggml.ggml_backend_graph_compute(backend, self.graph) != 0:
            raise SystemExit("the graph failed")

    def result(self):
        size = math.prod(self.shape)
        return np.ctypeslib.as_array((c_float * size).from_address(self.ggml.ggml_get_data(self.out))).copy()

    def free(self):
        self.ggml.ggml_backend_buffer_free(self.buffer)
        self.ggml.ggml_free(self.context)


def sample(graph, backend, runs):
    start = time.perf_counter()
    for _ in range(runs):
        graph.run(backend)
    return (time.perf_counter() - start) / runs


def interval(values):
    """Median and a 95 % interval by order statistics (binomial)."""
    values, n = sorted(values), len(values)
    low = 0
    while sum(math.comb(n, i) for i in range(low + 1)) / 2**n < 0.025:
        low += 1
    low = max(low - 1, 0)
    return statistics.median(values), values[low], values[n - 1 - low]


def compare(ggml, backends, kind, case, rounds):
    graph, outs, times = Graph(ggml, kind, *case), {}, {name: [] for name in backends}
    for name, backend in backends.items():
        graph.run(backend)
        outs[name] = graph.result()
    error = np.square(outs["CPU"] - outs["libattn"]).sum() / np.square(outs["CPU"]).sum()
    if not error < 5e-4:  # test-backend-ops' limit
        raise SystemExit(f"outputs differ by {error:.2g}")
    runs = max(1, int(0.01 / sample(graph, backends["CPU"], 2)))
    for _ in range(rounds):
        for name in random.sample(list(backends), len(backends)):
            times[name].append(sample(graph, backends[name], runs))
    graph.free()
    return statistics.median(times["libattn"]), interval([a / b for a, b in zip(times["CPU"], times["libattn"])])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ggml", type=Path, default=ROOT / ".venv-peers/ggml/build/bin", help="folder of libggml.so")
    parser.add_argument("--backend", type=Path, default=ROOT / "build/libggml-attn.so")
    options = parser.parse_args()
    ggml, backends = load(options.ggml, options.backend, options.threads)
    columns = " | ".join(f"{kind}: µs | ggml / libattn (95 %)" for kind in TYPES)
    print(f"| queries x keys, heads / KV heads, dim | {columns} |\n|" + "---|" * (1 + 2 * len(TYPES)))
    for case in CASES:
        cells = []
        for kind in TYPES.values():
            ours, (ratio, low, high) = compare(ggml, backends, kind, case, options.rounds)
            cells.append(f"{1e6 * ours:.0f} | **{ratio:.2f}** ({low:.2f} … {high:.2f})")
        print("| {} x {}, {} / {}, {} | ".format(*case) + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
