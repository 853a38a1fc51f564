#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time of PyTorch's scaled_dot_product_attention over libattn's, both called from Python: the table of docs/python.md.

    python3 python/tools/compare_torch.py [--seconds 60] [--threads 1] [--write docs/python.md]

Each case is called in turn by PyTorch, libattn and libattn again, in an order that changes from round to round. A sample is
as many calls as take 3 ms. The ratio is the median of the rounds' ratios with the 95 % interval of the median (order
statistics); the ratio of libattn to itself is the noise. Both return new tensors. Outputs are compared before anything is
timed.
"""

import argparse
import math
import random
import re
import statistics
import time
from pathlib import Path

import torch

import libattn.torch

# batch, heads_q, heads_kv, seq_q, seq_k, head_dim, causal; those of the table of peers, and shapes of models
CASES = {"prefill d64 s2048": (1, 2, 2, 2048, 2048, 64, False), "prefill d64 s2048 causal": (1, 2, 2, 2048, 2048, 64, True),
         "prefill d128 s2048": (1, 1, 1, 2048, 2048, 128, False), "prefill d64 s512": (1, 8, 8, 512, 512, 64, False),
         "prefill d64 s128 x 8 heads": (1, 8, 8, 128, 128, 64, False), "prefill d64 s128": (1, 1, 1, 128, 128, 64, False),
         "prefill 8 x 12 x 384 d64": (8, 12, 12, 384, 384, 64, False),
         "decode 8 x 4096 d64": (1, 8, 8, 1, 4096, 64, False),
         "decode GQA 32/8 x 8192 d128": (1, 32, 8, 1, 8192, 128, False),
         "one query, 16 keys": (1, 8, 8, 1, 16, 64, False)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SAMPLE_NS = 3e6


def make(case, dtype):
    b, hq, hkv, sq, sk, d, causal = CASES[case]
    q, k, v = (torch.randn(shape).to(DTYPES[dtype]) for shape in ((b, hq, sq, d), (b, hkv, sk, d), (b, hkv, sk, d)))
    options = {"is_causal": causal, "enable_gqa": hq != hkv}
    functions = {"torch": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options),
                 "libattn": lambda: libattn.torch.sdpa(q, k, v, **options)}
    functions["again"] = functions["libattn"]
    error = (functions["torch"]().float() - functions["libattn"]().float()).abs().max().item()
    if error > (2e-5 if dtype == "float32" else 5e-2):
        raise SystemExit(f"{case} {dtype}: the results differ by {error}")
    return functions


def sample(function, calls):
    begun = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return (time.perf_counter_ns() - begun) / calls


def interval(ratios):
    """The median, and the order statistics that hold it with a probability of at least 95 %."""
    ratios, n, k = sorted(ratios), len(ratios), 0
    below = 0.0
    while True:
        below += math.comb(n, k) / 2**n
        if 2 * below > 0.05:
            break
        k += 1
    return statistics.median(ratios), ratios[max(k - 1, 0)], ratios[n - max(k, 1)]


def measure(case, dtype, seconds):
    functions = make(case, dtype)
    calls = {name: max(1, round(SAMPLE_NS / sample(function, 3))) for name, function in functions.items()}
    times, end = {name: [] for name in functions}, time.monotonic() + seconds
    while time.monotonic() < end or len(times["torch"]) < 7:
        for name in random.sample(list(functions), len(functions)):
            times[name].append(sample(functions[name], calls[name]))
    ratios = [interval([a / b for a, b in zip(times[peer], times["libattn"])]) for peer in ("torch", "again")]
    return statistics.median(times["libattn"]), *ratios


def rows(seconds):
    each = seconds / (len(CASES) * len(DTYPES))
    for dtype in DTYPES:
        prefill = []
        for case in CASES:
            ours, (ratio, low, high), (same, *_) = measure(case, dtype, each)
            if case.startswith("prefill"):
                prefill.append(ratio)
            yield f"| {case} | {dtype} | {ours / 1000:.1f} | **{ratio:.2f}** ({low:.2f} … {high:.2f}) | {same:.3f} |"
        yield f"| geometric mean of prefill | {dtype} | | **{statistics.geometric_mean(prefill):.2f}** | |"


def cpu():
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"model name\s*: (.*)", text)
    return found[1] if found else "unknown CPU"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", help="replace the table between the marks of this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = [f"{cpu()}, {options.threads} thread{'s' * (options.threads > 1)}, PyTorch {torch.__version__}, libattn "
             f"{libattn.version()}; µs of a call of libattn, and PyTorch's time over it:", "",
             "| case | dtype | µs | PyTorch / libattn (95 %) | libattn / itself |", "|---|---|---|---|---|"]
    for row in rows(options.seconds):
        print(row, flush=True)
        lines.append(row)
    if options.write:
        path, mark = Path(options.write), f"compare_torch {options.threads}"
        text = re.sub(rf"(<!-- {mark} -->\n).*?(\n<!-- end -->)", lambda m: m[1] + "\n".join(lines) + m[2],
                      path.read_text(encoding="utf-8"), flags=re.S)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
