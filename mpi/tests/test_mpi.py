# SPDX-License-Identifier: MIT
"""libattn.mpi under mpirun: bits of one process, gradients of one rank, and errors in words."""
import sys

try:
    import numpy as np
    from mpi4py import MPI
except ImportError as missing:
    print(f"skipped: no {missing.name} (python3 -m pip install {missing.name})")
    sys.exit(77)

import libattn
import libattn.mpi as ranks

comm = MPI.COMM_WORLD
rng = np.random.default_rng(3)
tokens, heads, kv, dim = 700, 4, 2, 32
q = rng.standard_normal((1, heads, tokens, dim), np.float32)
k, v = (rng.standard_normal((1, kv, tokens, dim), np.float32) for _ in range(2))
unit = ranks.border(q.shape, k.shape, comm)
mine = ranks.zigzag(tokens, unit, comm)


def own(array, ranges=None):
    ranges = mine if ranges is None else ranges
    return np.concatenate([array[:, :, :0], *(array[:, :, begin:end] for begin, end in ranges)], 2)


parts = own(q), own(k), own(v)
for mode, group in (("auto", 0), ("pass_kv", 0), ("pass_q", 0), ("exchange", 0), ("exchange", 2)):
    if group and comm.size % group:
        continue
    plan = ranks.Plan(comm, *parts, rows=mine, keys=mine, tokens=(tokens, tokens), causal=True, mode=mode, lse=True,
                      threads=1, group_ranks=group)
    out, lse = plan.run(*parts)
    whole = libattn.sdpa(q, k, v, causal=True, kernel=plan.kernel)
    assert np.array_equal(out, own(whole)), mode
    assert "kernel" in plan.describe() and plan.mode in ranks.MODES
    assert group in (0, comm.size) or f"in groups of {group}" in plan.describe(), plan.describe()
    kernel = plan.kernel
    plan.close()

grid = 64
grid_ranges = ranks.zigzag(tokens, grid, comm)
parts = [own(array, grid_ranges) for array in (q, k, v)]
whole, lse = libattn.sdpa(q, k, v, causal=True, return_lse=True, kernel=kernel)  # others might choose another
grad_out = rng.standard_normal(whole.shape, np.float32)
results = []
kernel = None
for group, ranges in ((comm, grid_ranges), (MPI.COMM_SELF, [(0, tokens)])):
    a, b, c, o, s, d = (own(array, ranges) for array in (q, k, v, whole, lse[..., None], grad_out))
    plan = ranks.Plan(group, a, b, c, rows=ranges, keys=ranges, tokens=(tokens, tokens), causal=True, backward=True,
                      piece_keys=grid, threads=1, kernel=kernel)
    kernel = plan.kernel
    results.append(plan.grad(a, b, c, o, s[..., 0], d))
    plan.close()
for several, one in zip(*results):
    assert np.array_equal(own(one, grid_ranges), several)
for expected, one in zip(libattn.sdpa_grad(grad_out, q, k, v, whole, lse, causal=True), results[1]):
    assert np.allclose(expected, one, atol=1e-4)

for wrong, words in (({"rows": [(0, 1)]}, "rows"), ({"mode": "ring"}, "mode"), ({"tokens": (tokens, 900)}, "key"),
                     ({"mode": "exchange", "group_ranks": -1}, "group_ranks is -1"),
                     ({"mode": "exchange", "group_ranks": 2**32 + 1}, "group_ranks is 4294967297"),
                     ({"mode": "exchange", "group_ranks": comm.size - 1 if comm.size > 2 else 2}, "group_ranks is")):
    try:
        ranks.Plan(comm, own(q), own(k), own(v), **{"rows": mine, "keys": mine, "tokens": (tokens, tokens), **wrong})
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{wrong} passed")
print(f"rank {comm.rank} of {comm.size}: bits agree")
