#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One encoder layer over a sequence that no rank could hold: x + attention(norm(x)), then + feed-forward, out of files.

    mpirun -n 4 python3 examples/long_context/long_context.py --tokens 65536 --width 256 --heads 8 -o layer

Each rank reads its rows of layer/x.npy (made if it is missing), projects them, and writes its rows of layer/y.npy. Attention
runs head by head, so a rank holds K and V of its own tokens for one head at a time, and some pieces of other ranks' ones.
The file is the same to the bit for any number of ranks: projections take rows in blocks of 256, and libattn.mpi has the bits
of one process. Needs numpy, mpi4py, and libattn_mpi built with mpi4py's MPI.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import libattn.mpi

BLOCK = 256


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0, help="of each rank; 0 = libattn's choice")
    parser.add_argument("-o", "--output", type=Path, default=Path("layer"))
    return parser.parse_args()


def progress(comm, begin, text):
    if comm.rank == 0:
        print(f"\r{time.monotonic() - begin:7.1f} s  {text:<40}", end="", file=sys.stderr, flush=True)


def norm(x):
    return x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-6)


def make_input(path, tokens, width):
    x = np.lib.format.open_memmap(path, "w+", np.float32, (tokens, width))
    for first in range(0, tokens, BLOCK):
        x[first:first + BLOCK] = np.random.default_rng(first).standard_normal(x[first:first + BLOCK].shape, np.float32)
    x.flush()


def main():
    args, comm, begin = parse(), MPI.COMM_WORLD, time.monotonic()
    width, dim, path = args.width, args.width // args.heads, args.output / "x.npy"
    if comm.rank == 0:
        args.output.mkdir(exist_ok=True)
        if not path.exists():
            make_input(path, args.tokens, width)
        np.lib.format.open_memmap(args.output / "y.npy", "w+", np.float32, (args.tokens, width)).flush()
    comm.Barrier()
    x, y = np.load(path, "r"), np.load(args.output / "y.npy", "r+")
    weights = np.random.default_rng(1)
    wq, wk, wv, wo = (weights.standard_normal((width, width), np.float32) / np.float32(width) ** 0.5 for _ in range(4))
    w1, w2 = (weights.standard_normal(shape, np.float32) / np.float32(width) ** 0.5
              for shape in ((width, 4 * width), (4 * width, width)))

    unit = max(BLOCK, libattn.mpi.border((1, 1, args.tokens, dim), (1, 1, args.tokens, dim), comm, causal=False))
    units = -(-args.tokens // unit)
    first, end = (min(units * n // comm.size * unit, args.tokens) for n in (comm.rank, comm.rank + 1))
    blocks = [(n, min(n + BLOCK, end)) for n in range(first, end, BLOCK)]
    mixed = np.zeros((end - first, width), np.float32)
    plan = None
    for head in range(args.heads):
        columns = slice(head * dim, (head + 1) * dim)
        q, k, v = (np.concatenate([norm(x[a:b]) @ w[:, columns] for a, b in blocks] or [np.empty((0, dim), np.float32)])
                   [None, None] for w in (wq, wk, wv))
        if plan is None:
            plan = libattn.mpi.Plan(comm, q, k, v, rows=[(first, end)], keys=[(first, end)], mode="pass_kv",
                                    tokens=(args.tokens, args.tokens), threads=args.threads)
        mixed[:, columns] = plan.run(q, k, v)[0, 0]
        progress(comm, begin, f"attention: {head + 1} of {args.heads} heads")
    for n, (a, b) in enumerate(blocks):
        row = x[a:b] + mixed[a - first:b - first] @ wo
        y[a:b] = row + np.maximum(norm(row) @ w1, 0) @ w2
        progress(comm, begin, f"feed-forward: {n + 1} of {len(blocks)} blocks")
    y.flush()
    comm.Barrier()
    progress(comm, begin, f"{args.tokens} tokens, {comm.size} ranks, {plan.mode}, {plan.kernel}\n")
    plan.close()


if __name__ == "__main__":
    main()
