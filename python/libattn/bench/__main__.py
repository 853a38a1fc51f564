# SPDX-License-Identifier: MIT
"""Compares libattn with PyTorch and NumPy on this machine: python -m libattn.bench ["heads=8 seq=512" ...]"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

import libattn
from libattn import bench

CASES = ["heads=8 seq=128", "heads=8 seq=512 causal=top-left", "heads=8 seq_q=1 seq_k=4096"]


def numpy_attention(q, k, v, causal=False, align="top_left"):
    """Textbook attention in float32: the matrix of scores and three passes over it."""
    dtype = q.dtype
    q, k, v = (x.astype(np.float32, copy=False) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.swapaxes(2, 3) / np.float32(np.sqrt(q.shape[3]))
    if causal:
        offset = s.shape[3] - s.shape[2] if align == "bottom_right" else 0
        s[:, :, ~np.tri(*s.shape[2:], offset, dtype=bool)] = -np.inf
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True) @ v).astype(dtype, copy=False)


def torch_attention():
    """PyTorch's own function on the memory of NumPy's arrays, or None."""
    try:
        import torch
    except ImportError:
        return None
    if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
        return None

    def wrap(x):
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if str(x.dtype) == "bfloat16" else torch.from_numpy(x)

    def attention(q, k, v, causal=False, align="top_left"):
        mask = None
        if causal and align == "bottom_right" and q.shape[2] != k.shape[2]:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        options = {"attn_mask": mask, "is_causal": causal and mask is None, "enable_gqa": q.shape[1] != k.shape[1]}
        with torch.inference_mode():
            return torch.nn.functional.scaled_dot_product_attention(*map(wrap, (q, k, v)), **options)

    return attention


def set_threads(threads):
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def read_options():
    cpus = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(prog="python -m libattn.bench", description=__doc__.partition(":")[0] + ".",
                                     epilog="Exit code: 0; 1 if one fails, 2 for a wrong argument, 130 if interrupted.")
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE",
                        help='axes of attnbench, such as "heads=8 seq=128"; without any, three such cases')
    parser.add_argument("--rounds", type=int, default=21, help="samples of each function (default: 21; at least 6)")
    parser.add_argument("--sample-ms", type=float, default=20, metavar="MS", help="length of a sample (default: 20)")
    parser.add_argument("--threads", type=int, default=1, help="of libattn and PyTorch (default: 1)")
    parser.add_argument("--output", metavar="FOLDER", help="results.csv and samples.csv, as attnbench run writes them")
    parser.add_argument("--figure", metavar="FILE", help="a picture of the ratios, by matplotlib")
    options = parser.parse_args()
    if not 1 <= options.threads <= cpus:
        parser.error(f"threads is {options.threads}; it must be in 1..{cpus}: this process has {cpus} CPUs")
    try:
        if options.output:
            Path(options.output).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"output: {error}")
    return parser, options


def main():
    parser, options = read_options()

    def ours(q, k, v, **given):
        return libattn.sdpa(q, k, v, threads=options.threads, **given)

    functions = {"libattn": ours, "torch": torch_attention(), "numpy": numpy_attention}
    set_threads(options.threads)
    try:
        found = bench.compare({name: function for name, function in functions.items() if function}, options.cases,
                              rounds=options.rounds, sample_ms=options.sample_ms, threads=options.threads)
    except (bench.CaseError, ValueError) as error:
        parser.error(str(error))
    print(found)
    if options.output:
        found.write(options.output)
    if options.figure:
        found.plot(options.figure)
    if found.interrupted:
        return 130
    return int(any(row.status != "PASS" for row in found.rows))


if __name__ == "__main__":
    sys.exit(main())
