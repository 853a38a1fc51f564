#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Time of jax.nn.dot_product_attention over libattn.jax's, forward and gradients, under jit: tables of docs/python.md.

    python3 python/tools/compare_jax.py [--dtype bfloat16] [--threads 2] [--write docs/python.md]

By libattn.bench, as compare_torch.py; "callback": libattn called by way of Python. All threads are XLA's, which starts one
for each CPU that it may use. Gradients are those by q, k and v; the one by k is compared.
"""

import functools
import os
import re
import sys

import tables

# JAX starts its threads when it is imported, or soon after.
OPTIONS = tables.read_options(__doc__)
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:OPTIONS.threads])

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import libattn.jax  # noqa: E402
from libattn import bench  # noqa: E402

CASES = {  # batch, tokens, heads, dim, causal, gradients
    "1 x 1 x 2048 x 64": (1, 2048, 1, 64, False, False), "1 x 8 x 2048 x 64 causal": (1, 2048, 8, 64, True, False),
    "1 x 8 x 512 x 64": (1, 512, 8, 64, False, False), "8 x 12 x 128 x 64": (8, 128, 12, 64, False, False),
    "1 x 8 x 16 x 64": (1, 16, 8, 64, False, False), "1 x 1 x 4 x 16": (1, 4, 1, 16, False, False),
    "1 x 1 x 2048 x 64, gradients": (1, 2048, 1, 64, False, True),
    "1 x 8 x 512 x 64 causal, gradients": (1, 512, 8, 64, True, True),
    "8 x 12 x 128 x 64, gradients": (8, 128, 12, 64, False, True)}


@functools.lru_cache(maxsize=None)
def compiled(name, causal, gradients):
    ours = name != "jax.nn"
    attention = functools.partial(libattn.jax.dot_product_attention if ours else jax.nn.dot_product_attention,
                                  is_causal=causal)
    if not gradients:
        return jax.jit(attention)
    return jax.jit(lambda q, k, v, do: jax.vjp(attention, q, k, v)[1](do))


def function(name):
    def call(q, k, v, do, causal, gradients):
        libattn.jax.uses_ffi = name != "callback"  # read when a call is traced
        run = compiled(name, causal, gradients)
        return jax.block_until_ready(run(q, k, v, do)[1] if gradients else run(q, k, v))

    return call


def table(options):
    yield from (tables.caption(options, f"JAX {jax.__version__}") + ";",
                "µs of a compiled call of libattn, and the others' time over it:", "",
                "| batch x heads x tokens x dim | µs | jax.nn / libattn (95 %) | callback / libattn | jax.nn / itself |",
                "|---|---|---|---|---|")
    functions = {name: function(name) for name in ("jax.nn", "callback", "libattn")}
    for name, (batch, tokens, heads, dim, causal, gradients) in CASES.items():
        if not re.search(options.only, name):
            continue
        r = np.random.default_rng(1)
        arrays = [jnp.asarray(r.standard_normal((batch, tokens, heads, dim)), options.dtype) for _ in range(4)]
        found = bench.compare(functions, {name: (*arrays, causal, gradients)}, rounds=options.rounds,
                              sample_ms=options.sample_ms, threads=options.threads)
        rows = {row.function: row for row in found.rows}
        if any(row.ratio is None for row in found.rows if row.function != "jax.nn"):
            sys.exit(f"{name}: " + "; ".join(f"{row.function} {row.status} {row.reason}" for row in found.rows))
        beside = rows["callback"].time.median / rows["libattn"].time.median
        yield (f"| {name} | {rows['libattn'].time.median / 1000:.1f} | {tables.ratio_text(rows['libattn'])} | "
               f"{beside:.2f} | {found.noise(name):.3f} |")


def main():
    tables.write("compare_jax", tables.printed(table(OPTIONS)), OPTIONS)


if __name__ == "__main__":
    main()
