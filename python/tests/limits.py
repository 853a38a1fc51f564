# SPDX-License-Identifier: MIT
"""How wrong an output may be: the proven limit of docs/numerics.md for dense dot-product attention, in NumPy."""

import numpy as np

from reference import allowed_keys

UNIT = 2.0**-24
ROUNDING = {"float32": (2.0**-24, 2.0**-149), "float16": (2.0**-11, 2.0**-24), "bfloat16": (2.0**-8, 2.0**-133)}


def worst_kernel(kernels):
    """The largest exp_error, p_rounding and input_flush of the kernels that this CPU can run."""
    usable = [kernel for kernel in kernels if kernel.unusable is None]
    return [max(getattr(kernel, name) for kernel in usable) for name in ("exp_error", "p_rounding", "input_flush")]


def proven_limit(*arguments, **options):
    """The largest error that each element of o may have: see proven_limits()."""
    return proven_limits(*arguments, **options)[0]


def proven_limits(o, q, k, v, arithmetic, *, dtype="float32", scale=None, softcap=0, bias=None, alibi=None, sinks=None,
                  p=None, input_rounding=0.0, **masks):
    """(the largest error of each element of o, a_proven of each row: the LSE errs by that and 4u (1 + |lse|)); all arrays as
    float64 [batch, heads, tokens, dim]. p: the probabilities. input_rounding: a relative error that q, k and v have besides,
    because they were rounded before."""
    eps, p_rounding, flush = arithmetic
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    dim, shape = q.shape[3], (*q.shape[:3], k.shape[2])
    scale = 1 / np.sqrt(dim) if scale is None else scale
    allowed, position = allowed_keys(shape, bias=bias, **masks)
    n = allowed.sum(-1)

    def largest(x):  # over the allowed keys of each row
        return np.where(allowed, x, 0).max(-1, initial=0)

    terms = abs(scale) * np.einsum("bhid,bhjd->bhij", abs(q), abs(k))
    if bias is not None:
        terms = terms + abs(np.where(np.isneginf(bias), 0, bias))
    if alibi is not None:
        terms = terms + np.asarray(alibi, float).reshape(-1, 1, 1) * abs(position - np.arange(shape[3]))
    s = largest(terms)
    if sinks is not None:
        s = np.maximum(s, abs(np.asarray(sinks, float)).reshape(-1, 1))
    max_q, max_k, max_v = abs(q).max(-1), largest(abs(k).max(-1)[:, :, None]), largest(abs(v).max(-1)[:, :, None])
    u_p = 0 if dtype == "float32" else min(p_rounding, ROUNDING[dtype][0])
    bend = (softcap > 0) * (2 * eps + 4 * UNIT)
    vanish = dim * (abs(scale) * flush * (max_q + max_k) + 2.0**-126 * (abs(scale) + max_k))
    r = 1 + n // 16
    a = ((UNIT * (dim + 16) + bend + 2 * input_rounding) * s + vanish + eps * (1 + r) + u_p + UNIT * (n + r + 4))[..., None]
    m = np.einsum("bhij,bhjd->bhid", p, abs(v))
    tiny = 2.0**-126 if flush else 2.0**-149
    lost = (n * 2.0**-125 * max_v + (2 * n + 4) * tiny + flush)[..., None]
    with np.errstate(over="ignore"):
        e = np.where(2 * a < 1, np.expm1(2 * a) * m, 2 * (max_v[..., None] + abs(o))) + lost + input_rounding * m
    u_o, step = ROUNDING[dtype]
    return e + u_o * (abs(o) + e) + step / 2, a[..., 0]


def gradient_limits(do, q, k, v, *, dtype="float32", eps=2.0**-21, causal=False, mask=True, factors=1.0, narrowed=0.0):
    """The largest errors that dq, dk and dv may have, of dense dot-product attention; all arrays as float64, of any
    dimensions in front that broadcast. `out` and `lse` are rounded before they are used, and scores are computed twice.
    mask: bool, as of sdpa(). factors: those of dropout, which multiply P and dP. narrowed: by how much P and dS
    are rounded before their products, relative to them."""
    dim, dim_v, keys = q.shape[-1], v.shape[-1], k.shape[-2]
    scale, (u_o, step) = 1 / np.sqrt(dim), ROUNDING[dtype]

    def turn(x):
        return np.swapaxes(x, -1, -2)

    seen = mask & (np.tri(q.shape[-2], keys, dtype=bool) if causal else np.ones((q.shape[-2], keys), bool))
    s = np.where(seen, scale * (q @ turn(k)), -np.inf)
    some = seen.any(-1, keepdims=True)
    p = np.exp(s - np.where(some, s.max(-1, keepdims=True), 0))
    p /= np.where(some, p.sum(-1, keepdims=True), 1)
    kept = p * factors
    o, dp = kept @ v, factors * (do @ turn(v))
    delta, terms = (do * o).sum(-1, keepdims=True), factors * (abs(do) @ turn(abs(v)))
    largest = scale * np.where(seen, abs(q) @ turn(abs(k)), 0).max(-1, keepdims=True)
    u_p = 0 if dtype == "float32" else u_o  # kernels of 16 bits round P
    e_p = 2 * (UNIT * ((dim + 16) * largest + keys + 18) + eps)
    e_o = (e_p + u_p) * (kept @ abs(v)) + u_o * abs(o) + step / 2
    e_delta = (abs(do) * e_o).sum(-1, keepdims=True) + UNIT * (dim_v + 4) * (abs(do) * abs(o)).sum(-1, keepdims=True)
    ds = p * (dp - delta)
    e_ds = p * (e_p * (abs(dp) + abs(delta)) + UNIT * (dim_v + 4) * terms + e_delta) + (4 * UNIT + narrowed) * abs(ds)
    errors = (scale * ((e_ds + UNIT * (keys + 4) * abs(ds)) @ abs(k)),
              scale * (turn(e_ds + UNIT * (q.shape[-2] + 4) * abs(ds)) @ abs(q)),
              turn((e_p + narrowed + UNIT * (q.shape[-2] + 4)) * kept) @ abs(do))
    results = scale * (ds @ k), scale * (turn(ds) @ q), turn(kept) @ do
    lost = 2.0**-120 * (1 + abs(do).max(initial=0)) * max(keys, q.shape[-2])  # P that is too small for float32
    return [2 * e + u_o * (abs(x) + 2 * e) + step + lost for e, x in zip(errors, results)]
