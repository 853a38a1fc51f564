#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time of PyTorch's scaled_dot_product_attention over libattn's, forward and backward: tables of docs/python.md.

    python3 python/tools/compare_training.py [--dtype bfloat16] [--threads 2] [--write docs/python.md]

A call is F.scaled_dot_product_attention, PyTorch's own or replace_sdpa()'s, and torch.autograd.grad() by q, k and v. By
libattn.bench, as compare_torch.py; dk must agree.
"""

import re

import tables
import torch

import libattn.torch
from libattn import bench

ORIGINAL = torch.nn.functional.scaled_dot_product_attention
CASES = {"1 x 1 x 2048 x 64": ((1, 1, 2048, 64), False), "1 x 12 x 512 x 64 causal": ((1, 12, 512, 64), True),
         "4 x 12 x 128 x 64": ((4, 12, 128, 64), False), "48 x 64 x 64 causal": ((1, 48, 64, 64), True)}


def step(attention):
    def gradients(q, k, v, do, causal):
        return torch.autograd.grad(attention(q, k, v, is_causal=causal), (q, k, v), do)[1]

    return gradients


def inputs(shape, causal, options):
    torch.manual_seed(1)
    tensors = [torch.randn(shape).to(tables.DTYPES[options.dtype]) for _ in range(4)]
    return *(x.requires_grad_() for x in tensors[:3]), tensors[3], causal


def table(options):
    yield from (tables.caption(options) + ";\nµs of forward and backward by libattn, and PyTorch's time over it:", "",
                "| batch x heads x tokens x dim | µs | PyTorch / libattn (95 %) | PyTorch / itself |", "|---|---|---|---|")
    with libattn.torch.replace_sdpa():
        functions = {"torch": step(ORIGINAL), "libattn": step(torch.nn.functional.scaled_dot_product_attention)}
    for name, case in CASES.items():
        if not re.search(options.only, name):
            continue
        found = bench.compare(functions, {name: inputs(*case, options)}, rounds=options.rounds, sample_ms=options.sample_ms,
                              threads=options.threads)
        row = next(row for row in found.rows if row.function == "libattn")
        if row.ratio is None:
            raise SystemExit(f"{name}: " + "; ".join(f"{row.function} {row.status} {row.reason}" for row in found.rows))
        yield f"| {name} | {row.time.median / 1000:.1f} | {tables.ratio_text(row)} | {found.noise(name):.3f} |"


def main():
    options, lines = tables.read_options(__doc__), []
    for line in table(options):
        print(line, flush=True)
        lines.append(line)
    tables.write("compare_training", lines, options)


if __name__ == "__main__":
    main()
