#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time of PyTorch's scaled_dot_product_attention over libattn's, forward and backward: tables of docs/python.md.

    python3 python/tools/compare_training.py [--dtype bfloat16] [--threads 2] [--write docs/python.md]

A call is F.scaled_dot_product_attention, PyTorch's own or replace_sdpa()'s, and torch.autograd.grad() by q, k and v; or a
step of an encoder of two layers without its optimiser. By libattn.bench, as compare_torch.py; dk and the gradient of the
model's input must agree, but for those with dropout, which drop other weights.
"""

import functools
import re

import tables
import torch

import libattn.torch
from libattn import bench

ORIGINAL = torch.nn.functional.scaled_dot_product_attention
CASES = {"1 x 1 x 2048 x 64": ((1, 1, 2048, 64), False), "1 x 12 x 512 x 64 causal": ((1, 12, 512, 64), True),
         "4 x 12 x 128 x 64": ((4, 12, 128, 64), False), "48 x 64 x 64 causal": ((1, 48, 64, 64), True),
         "1 x 12 x 512 x 64 causal, dropout": ((1, 12, 512, 64), True, 0.1),
         "encoder, 8 x 4 x 256 x 64": ((8, 256, 256), False),
         "encoder, 8 x 4 x 256 x 64, dropout": ((8, 256, 256), False, 0.1)}


@functools.lru_cache(maxsize=None)
def encoder(dtype, dropout):
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=dropout, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(dtype).train()


def step(attention):
    def of_model(x, do, dropout):
        torch.nn.functional.scaled_dot_product_attention = attention
        model = encoder(x.dtype, dropout)
        return torch.autograd.grad(model(x), (x, *model.parameters()), do)[0]

    def gradients(q, k, v, do, causal, dropout=0.0):
        if q.ndim == 3:
            found = of_model(q, do, dropout)
        else:
            found = torch.autograd.grad(attention(q, k, v, is_causal=causal, dropout_p=dropout), (q, k, v), do)[1]
        return found * (dropout == 0)

    return gradients


def inputs(shape, causal, dropout, options):
    torch.manual_seed(1)
    tensors = [torch.randn(shape).to(tables.DTYPES[options.dtype]) for _ in range(4)]
    return *(x.requires_grad_() for x in tensors[:3]), tensors[3], causal, dropout


def table(options):
    yield from (tables.caption(options) + ";\nµs of forward and backward by libattn, and PyTorch's time over it:", "",
                "| batch x heads x tokens x dim | µs | PyTorch / libattn (95 %) | PyTorch / itself |", "|---|---|---|---|")
    with libattn.torch.replace_sdpa():
        functions = {"torch": step(ORIGINAL), "libattn": step(torch.nn.functional.scaled_dot_product_attention)}
    for name, case in CASES.items():
        if not re.search(options.only, name):
            continue
        given = inputs(*case[:2], *case[2:] or [0.0], options)
        found = bench.compare(functions, {name: given}, rounds=options.rounds, sample_ms=options.sample_ms,
                              threads=options.threads)
        row = next(row for row in found.rows if row.function == "libattn")
        if row.ratio is None:
            raise SystemExit(f"{name}: " + "; ".join(f"{row.function} {row.status} {row.reason}" for row in found.rows))
        yield f"| {name} | {row.time.median / 1000:.1f} | {tables.ratio_text(row)} | {found.noise(name):.3f} |"


def main():
    options = tables.read_options(__doc__)
    tables.write("compare_training", tables.printed(table(options)), options)


if __name__ == "__main__":
    main()
