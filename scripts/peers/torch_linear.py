#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's nn.functional.linear against libattn's dense layers: one process, rounds in random order, outputs compared.

    scripts/peers/setup.sh torch
    cmake --build build --target attn_shared attn_python attnbench_shared
    .venv-peers/torch/bin/python scripts/peers/torch_linear.py --dtype bfloat16 --rows 1,8,128

x, weights and y are of the dtype, and there is no bias. A ratio is PyTorch's time over ours, so that more than 1 is quicker.
With --int8-weights the weights are integers / 32, which PyTorch has in the dtype and we as int8.
Exit code 77: PyTorch or NumPy is missing; 1: an output differs.
"""

import argparse
import math
import sys

from pairing.machine import need_numpy, prepare_environment

prepare_environment()  # before NumPy starts its threads
need_numpy()
try:
    import torch  # before libattn, so that both use PyTorch's OpenMP runtime
except ImportError as error:
    print(f"skipped: PyTorch cannot be imported ({error}): scripts/peers/setup.sh torch installs it")
    sys.exit(77)

from libattn import bench, layers  # noqa: E402
from libattn._plan import read_dense  # noqa: E402


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,4,8,32,128,512,1024,2048", help="default: %(default)s")
    parser.add_argument("--sizes", default="384x1536,768x768,768x3072,1024x1024,4096x4096", help="in x out; %(default)s")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--int8-weights", action="store_true")
    parser.add_argument("--product", help="default: the one that is chosen by itself")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=11, help="default: %(default)s")
    return parser.parse_args()


class Ours:
    """Weights are packed once for each copy of them."""

    def __init__(self, o):
        self.o, self.packed = o, {}

    def __call__(self, x, w, y):
        key, *_ = read_dense(w, "w", (self.o.dtype,))  # the address
        if key not in self.packed:
            self.packed[key] = layers.Linear(w, dtype=self.o.dtype, out_dtype=self.o.dtype, threads=self.o.threads,
                                             product=self.o.product, int8_weights=self.o.int8_weights)
        return self.packed[key](x, y)


def main():
    o = read_options()
    torch.set_num_threads(o.threads)
    dtype, ratios, wrong = getattr(torch, o.dtype), [], 0
    with torch.inference_mode():
        for rows in map(int, o.rows.split(",")):
            for width, out in (map(int, size.split("x")) for size in o.sizes.split(",")):
                x, w, y = (torch.randn(*shape, dtype=dtype) for shape in ((rows, width), (out, width), (rows, out)))
                if o.int8_weights:  # exact in bfloat16 too: integers times a power of two
                    w = (w * 32).round().clamp(-127, 127)
                    w[:, 0] = 127
                    w /= 32
                fns = {"torch": lambda x, w, y: torch.nn.functional.linear(x, w), "libattn": Ours(o)}
                found = bench.compare(fns, {f"{rows} x {width} x {out}": (x, w, y)}, rounds=o.rounds, threads=o.threads)
                wrong += any(row.status != "PASS" for row in found.rows)
                ratios += [row.ratio.median for row in found.rows if row.ratio and row.function == "libattn"]
                print(found, flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{o.dtype}, {o.threads} threads, {len(ratios)} shapes: geometric mean {mean:.2f}, least {min(ratios):.2f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
