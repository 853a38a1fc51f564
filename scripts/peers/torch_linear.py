#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch, oneDNN and OpenBLAS beside libattn's dense layers: one process, rounds in random order, outputs compared.

    scripts/peers/setup.sh torch
    cmake --build build --target attn_shared attn_python attnbench_shared
    .venv-peers/torch/bin/python scripts/peers/torch_linear.py --dtype bfloat16 --rows 1,8,128

torch is nn.functional.linear (MKL in float32, oneDNN in bfloat16), onednn PyTorch's operators of oneDNN on packed weights,
openblas NumPy's matmul, in float32 alone and on OPENBLAS_NUM_THREADS threads. x, weights and y are of the dtype, and there
is no bias. The last lines give each peer's time over ours, so that more than 1 means that ours is quicker.
With --int8-weights the weights are integers / 32, which PyTorch has in the dtype and we as int8.
Exit code 77: PyTorch or NumPy is missing; 1: an output differs.
"""

import argparse
import math
import sys

from pairing import mkl
from pairing.machine import need_numpy, prepare_environment

prepare_environment()  # before NumPy starts its threads
need_numpy()
import numpy as np  # noqa: E402

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
    parser.add_argument("--peers", default="torch,onednn,openblas", help="the first is the baseline; default: %(default)s")
    parser.add_argument("--int8-weights", action="store_true")
    parser.add_argument("--product", help="default: the one that is chosen by itself")
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=11, help="default: %(default)s")
    mkl.add_option(parser.add_argument, "PyTorch")
    return parser.parse_args()


class Packed:
    """A function of x, w, y whose weights are packed once for each copy of them."""

    def __init__(self, o, pack, run):
        self.o, self.pack, self.run, self.packed = o, pack, run, {}

    def __call__(self, x, w, y):
        key, *_ = read_dense(w, "w", (self.o.dtype,))  # the address
        if key not in self.packed:
            self.packed[key] = self.pack(x, w)
        return self.run(x, self.packed[key], y)


def ours(o):
    return Packed(o, lambda x, w: layers.Linear(w, dtype=o.dtype, out_dtype=o.dtype, threads=o.threads, product=o.product,
                                                int8_weights=o.int8_weights), lambda x, layer, y: layer(x, y))


def onednn(o):
    operators = getattr(getattr(torch, "ops", None), "mkldnn", None)
    if not hasattr(operators, "_linear_pointwise"):
        return None
    return Packed(o, lambda x, w: operators._reorder_linear_weight(w, len(x)),
                  lambda x, w, y: operators._linear_pointwise(x, w, None, "none", [], ""))


def openblas(o):
    return (lambda x, w, y: np.matmul(x, np.asarray(w).T, out=np.asarray(y))) if o.dtype == "float32" else None


PEERS = {"torch": lambda o: lambda x, w, y: torch.nn.functional.linear(x, w),
         "onednn": onednn,
         "openblas": openblas}


def peers_of(o):
    """The functions that this PyTorch and this dtype have."""
    unknown = set(o.peers.split(",")) - set(PEERS)
    if unknown:
        sys.exit(f"--peers has {', '.join(sorted(unknown))}; peers are {', '.join(PEERS)}")
    return {name: function for name in o.peers.split(",") if (function := PEERS[name](o))}


def main():
    o = read_options()
    if o.mkl == "intel":
        mkl.restart_preloaded()
    print(f"MKL kernels of PyTorch: {mkl.kernels_of(torch)}")
    torch.set_num_threads(o.threads)
    dtype, ratios, wrong = getattr(torch, o.dtype), {name: [] for name in peers_of(o)}, 0
    with torch.inference_mode():
        for rows in map(int, o.rows.split(",")):
            for width, out in (map(int, size.split("x")) for size in o.sizes.split(",")):
                x, w, y = (torch.randn(*shape, dtype=dtype) for shape in ((rows, width), (out, width), (rows, out)))
                if o.int8_weights:  # exact in bfloat16 too: integers times a power of two
                    w = (w * 32).round().clamp(-127, 127)
                    w[:, 0] = 127
                    w /= 32
                fns = peers_of(o)  # anew: packed weights are found by the address of w
                found = bench.compare({**fns, "libattn": ours(o)}, {f"{rows} x {width} x {out}": (x, w, y)},
                                      rounds=o.rounds, threads=o.threads)
                wrong += any(row.status != "PASS" for row in found.rows)
                quick = {row.function: row.ratio.median if row.ratio else 1.0 for row in found.rows if row.status == "PASS"}
                for name in fns.keys() & quick.keys() if "libattn" in quick else ():
                    ratios[name].append(quick["libattn"] / quick[name])
                print(found, flush=True)
    for name, all_of in ratios.items():
        if all_of:
            mean = math.exp(sum(map(math.log, all_of)) / len(all_of))
            print(f"{o.dtype}, {o.threads} threads, {len(all_of)} shapes, {name}: geometric mean {mean:.2f}, least "
                  f"{min(all_of):.2f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
