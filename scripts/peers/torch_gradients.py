#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Gradients of attention by PyTorch and JAX against libattn's: one process, rounds in random order, outputs compared.

    scripts/peers/setup.sh torch
    cmake --build build --target attn_shared attn_python attnbench_shared
    .venv-peers/torch/bin/python scripts/peers/torch_gradients.py --dtype bfloat16 --pass both

backward: gradients by q, k and v, from what the forward pass of each has kept. both: forward pass and gradients, as training
pays for them. torch_flash: the two operators that autograd runs; torch_math and jax: by autograd and jax.vjp, compiled by
jax.jit; JAX has arrays in its own layout. Every line of the summary has the time of the best peer over ours: more than 1 is
quicker. Exit code 77: PyTorch, JAX or NumPy is missing; 1: an output differs.
"""

import argparse
import contextlib
import functools
import os
import sys

from pairing import mkl
from pairing.machine import need_numpy, prepare_environment

SHAPES = {"2048 x 64": (1, 1, 2048, 64), "2048 x 64 causal": (1, 1, 2048, 64), "2048 x 128": (1, 1, 2048, 128),
          "8 x 128 x 64": (1, 8, 128, 64), "48 x 64 x 64 causal": (4, 12, 64, 64), "96 x 384 x 64": (8, 12, 384, 64)}


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this: " + ", ".join(SHAPES))
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--pass", dest="passes", default="backward", choices=["backward", "both"])
    parser.add_argument("--threads", type=int, default=1, help="and so many CPUs (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=21, help="default: %(default)s")
    mkl.add_option(parser.add_argument, "PyTorch")
    return parser.parse_args()


OPTIONS = read_options()
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:OPTIONS.threads])  # JAX starts a thread for each CPU
prepare_environment()  # before NumPy starts its threads
if OPTIONS.mkl == "intel":
    mkl.restart_preloaded()
need_numpy()
try:
    import torch  # before libattn, so that both use PyTorch's OpenMP runtime
    import torch.nn.attention
    import jax
except ImportError as missing:
    print(f"skipped: PyTorch or JAX cannot be imported ({missing}): scripts/peers/setup.sh torch installs them")
    sys.exit(77)

import libattn  # noqa: E402
import numpy as np  # noqa: E402
from libattn import bench  # noqa: E402
from libattn.bench.rounds import Prepared  # noqa: E402

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # pylint: disable=protected-access
FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # pylint: disable=protected-access


class Gradients:
    """dq, dk and dv, which become one array when they are compared."""

    def __init__(self, parts, heads_first=True):
        self.parts, self.heads_first = parts, heads_first

    def __array__(self, dtype=None, copy=None):
        parts = [part.float().numpy() if hasattr(part, "float") else np.asarray(part, np.float32) for part in self.parts]
        found = np.stack(parts if self.heads_first else [part.transpose(0, 2, 1, 3) for part in parts])
        return found.astype(dtype or OPTIONS.dtype if OPTIONS.dtype == "float32" else jax.numpy.bfloat16)


class Peer:
    """keep(q, k, v, causal): what gradients need of the forward pass, which `differentiate` takes behind d_o."""

    def __init__(self, keep, differentiate, both=None, convert=lambda x: x):
        self.keep, self.differentiate, self.convert = keep, differentiate, convert
        self.both = both or (lambda do, q, k, v, causal: differentiate(do, keep(q, k, v, causal)))

    @contextlib.contextmanager
    def start(self, _problem, copies):
        yield Prepared([self.bind(*arrays) for arrays in copies])

    def bind(self, q, k, v, do, causal):
        q, k, v, do = map(self.convert, (q, k, v, do))
        if OPTIONS.passes == "both":
            return functools.partial(self.both, do, q, k, v, causal)
        return functools.partial(self.differentiate, do, self.keep(q, k, v, causal))


def keep_ours(q, k, v, causal):
    given = {"causal": causal, "threads": OPTIONS.threads}
    return q, k, v, *libattn.sdpa(q, k, v, return_lse=True, **given), given


def ours(do, kept):
    return Gradients(libattn.sdpa_grad(do, *kept[:-1], **kept[-1])[:3])


def keep_flash(q, k, v, causal):
    return q, k, v, *FLASH(q, k, v, 0.0, causal)[:2], causal


def flash(do, kept):
    return Gradients(FLASH_BACKWARD(do, *kept[:-1], 0.0, kept[-1]))


def keep_math(q, k, v, causal):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return (q, k, v), torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def math(do, kept):
    return Gradients(torch.autograd.grad(kept[1], kept[0], do, retain_graph=True))


def with_gradient(x):
    return x.detach().requires_grad_()


def jax_array(x):
    found = jax.numpy.asarray(x.float().transpose(1, 2).contiguous().numpy())
    return found.astype(OPTIONS.dtype).block_until_ready()


@functools.partial(jax.jit, static_argnames="causal")
def jax_forward(q, k, v, causal):
    return jax.vjp(functools.partial(jax.nn.dot_product_attention, is_causal=causal), q, k, v)


@jax.jit
def jax_backward(vjp, do):
    return vjp(do)


@functools.partial(jax.jit, static_argnames="causal")
def jax_both(do, q, k, v, causal):
    out, vjp = jax.vjp(functools.partial(jax.nn.dot_product_attention, is_causal=causal), q, k, v)
    return out, vjp(do)


def gradients_of_jax(do, vjp):
    return Gradients(jax.block_until_ready(jax_backward(vjp, do)), heads_first=False)


def both_of_jax(do, q, k, v, causal):
    return Gradients(jax.block_until_ready(jax_both(do, q, k, v, causal))[1], heads_first=False)


PEERS = {"libattn": Peer(keep_ours, ours), "torch_flash": Peer(keep_flash, flash),
         "torch_math": Peer(keep_math, math, convert=with_gradient),
         "jax": Peer(lambda *given: jax_forward(*given)[1], gradients_of_jax, both_of_jax, jax_array)}


def main():
    torch.set_num_threads(OPTIONS.threads)
    lines, wrong = [], 0
    for name, shape in SHAPES.items():
        if OPTIONS.only not in name:
            continue
        torch.manual_seed(1)
        tensors = [torch.randn(*shape, dtype=getattr(torch, OPTIONS.dtype)) for _ in range(4)]
        found = bench.compare(PEERS, {name: (*tensors, name.endswith("causal"))}, rounds=OPTIONS.rounds,
                              threads=OPTIONS.threads)
        wrong += any(row.status != "PASS" for row in found.rows)
        print(found, flush=True)
        slower = {row.function: row.ratio for row in found.rows if row.ratio and row.function in PEERS}
        if slower:  # ours over theirs
            best = max(slower, key=lambda peer: slower[peer].median)
            ratio = slower[best]
            lines.append(f"{name:20} {1 / ratio.median:5.2f} x, {1 / ratio.high:.2f} .. {1 / ratio.low:.2f} ({best})")
    print(f"time of the best peer over ours, {OPTIONS.dtype}, {OPTIONS.passes}, {OPTIONS.threads} threads; PyTorch "
          f"{torch.__version__}, JAX {jax.__version__}", *lines, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
