#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time of PyTorch's scaled_dot_product_attention over libattn's, both called from Python: tables of docs/python.md.

    python3 python/tools/compare_torch.py [--dtype bfloat16] [--threads 2] [--write docs/python.md]

By libattn.bench: outputs are checked against the float64 oracle, functions are timed in rounds of changing order, the peak
loop beside every sample; ratios are medians over the rounds with 95 % intervals. Both return new tensors.
"""

import re
import statistics

import tables
import torch

import libattn.torch
from libattn import bench

# Cases of the table of peers (scripts/peers, preset limits), and shapes of models.
CASES = {"prefill d64 s2048": "heads=1 seq=2048", "prefill d64 s2048 causal": "heads=1 seq=2048 causal=top-left",
         "prefill d128 s2048": "heads=1 seq=2048 head_dim=128", "prefill d64 s512": "heads=1 seq=512",
         "prefill d64 s128 x 8 heads": "heads=8 seq=128", "prefill d64 s128": "heads=1 seq=128",
         "prefill d64 s8192": "heads=1 seq=8192", "prefill 8 x 12 x 384 d64": "batch=8 heads=12 seq=384",
         "decode 8 x 4096 d64": "heads=8 seq_q=1 seq_k=4096",
         "decode GQA 32/8 x 8192 d128": "heads=32 heads_kv=8 seq_q=1 seq_k=8192 head_dim=128",
         "one query, 16 keys": "heads=8 seq_q=1 seq_k=16"}


def to_torch(array):
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def theirs(q, k, v, causal=False, align=None):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def ours(q, k, v, causal=False, align=None):
    return libattn.torch.sdpa(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def table(options):
    yield from (tables.caption(options) + ";\nµs of a call of libattn, and PyTorch's time over it:", "",
                "| case | µs | % of peak | PyTorch / libattn (95 %) | PyTorch / itself |", "|---|---|---|---|---|")
    prefill, dtype = [], {"float32": "f32", "bfloat16": "bf16"}[options.dtype]
    for name, axes in CASES.items():
        if not re.search(options.only, name):
            continue
        found = bench.compare({"torch": theirs, "libattn": ours}, {name: f"dtype={dtype} {axes}"}, rounds=options.rounds,
                              sample_ms=options.sample_ms, threads=options.threads, convert=to_torch)
        rows = {row.function: row for row in found.rows}
        if rows["libattn"].ratio is None:
            raise SystemExit(f"{name}: " + "; ".join(f"{row.function} {row.status} {row.reason}" for row in found.rows))
        if name.startswith("prefill"):
            prefill.append(rows["libattn"].ratio.median)
        yield (f"| {name} | {rows['libattn'].time.median / 1000:.1f} | {rows['libattn'].peak_pct or 0:.0f} | "
               f"{tables.ratio_text(rows['libattn'])} | {found.noise(name):.3f} |")
    if prefill:
        yield f"| geometric mean of prefill | | | **{statistics.geometric_mean(prefill):.2f}** | |"


def main():
    options = tables.read_options(__doc__)
    tables.write("compare_torch", tables.printed(table(options)), options)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
