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


def proven_limit(o, q, k, v, arithmetic, *, dtype="float32", scale=None, softcap=0, bias=None, alibi=None, sinks=None,
                 p=None, input_rounding=0.0, **masks):
    """The largest error that each element of o may have; all arrays as float64 [batch, heads, tokens, dim]. p: the
    probabilities. input_rounding: a relative error that q, k and v have besides, because they were rounded before."""
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
    return e + u_o * (abs(o) + e) + step / 2
