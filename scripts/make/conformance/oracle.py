# SPDX-License-Identifier: MIT
"""Expected values of a conformance case, their limits, and what a peer of another convention would give.

The formulas are those of the tests: python/tests/reference.py (docs/semantics.md in float64) and python/tests/limits.py
(docs/numerics.md).
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python" / "tests"))

import limits
import reference

# exp_error, p_rounding and input_flush (docs/numerics.md) that every peer is allowed: the largest error of exp that any peer
# states (PyTorch: 20 ulp, Vectorized::exp_u20); for 16 bits P in that type, and for bfloat16 a unit that flushes denormals.
ARITHMETIC = {"float32": (20 * 2.0**-23, 0.0, 0.0), "float16": (20 * 2.0**-23, 2.0**-11, 0.0),
              "bfloat16": (2.0**-15, 2.0**-8, 2.0**-126)}

CONVENTIONS = {  # name -> what the peer does
    "bottom_right": "aligns a causal mask or window so that the last query meets the last key",
    "empty_nan": "gives NaN in rows that see no key",
    "empty_mean": "gives the mean of all values in rows that see no key: its mask is a finite number that absorbs scores",
    "empty_unmasked": "gives rows that see no key as if nothing were masked: the mask is a moderate number that is added",
    "inverted_mask": "takes true in a boolean mask for masked",
    "window_exclusive": "counts a key at exactly the window's distance as outside",
    "interleaved_heads": "reads KV head h mod kv_heads",
    "softcap_after_bias": "caps the score with its bias",
    "softcap_before_scale": "caps q k before it is scaled",
    "alibi_signed": "multiplies the slope by key minus query, without taking the absolute value",
    "masked_nan_spreads": "multiplies masked values by 0, so that NaN and infinities in masked places reach the output",
    "padding_computed": "computes the rows of padding queries too",
    "denormals_flushed": "takes numbers below 2**-126 for 0",
    "quantised_query": "rounds queries to 8 bits beside quantised keys",
    "lse_base_2": "gives the logarithm to base 2",
    "lse_with_sink": "adds the sink to the logarithm of the sum",
}
PARTIAL = ("masked_nan_spreads",)  # followed where it occurs: other elements are as expected


def solve(q, k, v, options):
    """{"o": (expected, limit), "lse": ...} of dense q, k, v without NaN."""
    options = dict(options)
    dtype, rounded = options.pop("dtype", "float32"), options.pop("input_rounding", 0.0)
    q, k, v = (np.asarray(x, float) for x in (q, k, v))
    o, lse, p = reference.attention_and_weights(q, k, v, **options)
    bounds = dict(options)
    if bounds.get("bias") is not None:  # finite masks: their weights vanish, whatever the error of such a score
        bias = np.asarray(bounds["bias"], float)
        bounds["bias"] = np.where(bias < -1000, -np.inf, bias)
    row_options = {name: bounds.pop(name) for name in ("scores", "score") if name in bounds}
    assert not row_options or row_options["score"] == "precomputed"
    limit, a = limits.proven_limits(o, q, k, v, ARITHMETIC[dtype], dtype=dtype, p=p, input_rounding=rounded, **bounds)
    empty = np.isneginf(lse)
    limit[empty] = 0  # exactly
    with np.errstate(invalid="ignore"):
        lse_limit = np.where(empty, 0, a + 4 * limits.UNIT * (1 + abs(np.where(empty, 0, lse))))
    return {"o": (o, limit), "lse": (lse, lse_limit)}


def with_gradients(q, k, v, options, do):
    """{"dq": (expected, limit), ...}"""
    options = dict(options)
    dtype = options.pop("dtype", "float32")
    q, k, v, do = (np.asarray(x, float) for x in (q, k, v, do))
    found = reference.gradients(do, q, k, v, **options)
    group = q.shape[1] // k.shape[1]
    errors = limits.gradient_limits(do, q, *(np.repeat(x, group, 1) for x in (k, v)), dtype=dtype, eps=ARITHMETIC[dtype][0],
                                    causal=options.get("causal", False), mask=options.get("mask", True),
                                    narrowed=ARITHMETIC[dtype][1])
    unit = limits.ROUNDING[dtype][0]
    for i in (1, 2):  # a sum over the group, which may be rounded each time
        shape = (k.shape[0], k.shape[1], group, *k.shape[2:])
        errors[i] = errors[i].reshape(*shape[:3], k.shape[2], -1).sum(2) * (1 + group * unit)
    errors[1] += group * (group > 1) * unit * abs(found["dk"])
    errors[2] += group * (group > 1) * unit * abs(found["dv"])
    return {name: (found[name], error) for name, error in zip(("dq", "dk", "dv"), errors)}


def empty_gradients(q, k, v, options, do):
    """Gradients where rows that see no key have the mean of all values: with and without those of their scores."""
    rows = is_empty((*q.shape[:3], k.shape[2]), options)[0][..., None]
    q, k, v, do = (np.asarray(x, float) for x in (q, k, v, do))
    found = with_gradients(q, k, v, options, do)
    plain = {"dtype": options.get("dtype", "float32")}
    by_q = with_gradients(0 * q, k, v, plain, do * rows)["dq"]  # scores of 0, so that weights are equal
    by_k = with_gradients(q, 0 * k, v, plain, do * rows)
    more = {"dq": by_q, "dk": by_k["dk"], "dv": by_k["dv"]}
    for flows in (("dq", "dk", "dv"), ("dv",)):
        yield "empty_mean", {name: tuple(a + b for a, b in zip(found[name], more[name])) if name in flows else found[name]
                             for name in found}


def is_empty(shape, options):
    names = ("mask", "bias", "causal", "align", "window", "kv_len", "q_len", "row_len")
    allowed, _ = reference.allowed_keys(shape, **{name: options[name] for name in names if name in options})
    rows = np.broadcast_to(np.arange(shape[2]), shape[:3])
    padding = rows >= np.asarray(options.get("q_len", [shape[2]] * shape[0])).reshape(-1, 1, 1)
    return ~allowed.any(-1), padding


def alternatives(q, k, v, options, poisoned=False):
    """(name, outputs) of every convention that has a meaning here."""
    for name, changed in alignments(q, k, options):
        found = solve(q, k, v, changed)
        if name:
            yield name, found
        yield from empty_rows(name, q, k, v, changed, found)
        if poisoned:
            spread = {"o": q[..., :1] * v[..., :1, :], "dq": q, "dk": k, "dv": v}
            yield joined(name, "masked_nan_spreads"), {output: nan_like(x) for output, x in spread.items()}
    for name, arrays, changed in changes(q, k, v, options):
        yield name, solve(*arrays, changed)
    lse, limit = solve(q, k, v, options)["lse"]
    yield "lse_base_2", {"lse": (lse / np.log(2), limit / np.log(2))}
    if "sinks" in options:
        yield "lse_with_sink", {"lse": (np.logaddexp(lse, np.asarray(options["sinks"], float).reshape(-1, 1)), limit)}
    if np.abs(v).max(initial=0) < 2.0**-126:
        yield "denormals_flushed", {"o": (np.zeros((*q.shape[:3], v.shape[3])), np.zeros((*q.shape[:3], v.shape[3])))}


def nan_like(x):
    return np.full(x.shape, np.nan), np.zeros(x.shape)


def joined(*names):
    return "+".join(name for name in names if name)


def alignments(q, k, options):
    yield "", options
    if "align" not in options and (options.get("causal") or "window" in options):
        yield "bottom_right", {**options, "align": "bottom_right"}


def empty_rows(name, q, k, v, options, found):
    shape = (*q.shape[:3], k.shape[2])
    empty, padding = is_empty(shape, options)
    rows = empty & ~padding
    o, limit = found["o"]

    def filled(other, other_limit):
        return {"o": (np.where(rows[..., None], other, o), np.where(rows[..., None], other_limit, limit))}

    if rows.any():
        yield joined(name, "empty_nan"), filled(np.nan, 0)
        mean = solve(np.zeros_like(q), k, v, {"dtype": options.get("dtype", "float32")})["o"]
        yield joined(name, "empty_mean"), filled(*mean)
        shift = {"bias": np.full((1, 1, 1, 1), -999.0)}  # scores lose the bits that -10000 takes from them
        kept = {key: options[key] for key in ("dtype", "scale", "softcap") if key in options}
        for more in ((), ("causal", "align", "window")):
            seen = {key: options[key] for key in more if key in options}
            other, other_limit = solve(q, k, v, {**kept, **shift, **seen})["o"]
            yield joined(name, "empty_unmasked"), filled(other, 10 * other_limit)
    if padding.any() and "q_len" in options:
        all_rows = {key: value for key, value in options.items() if key != "q_len"}
        if options.get("align") == "bottom_right":
            kv_len = np.asarray(options.get("kv_len", [k.shape[2]] * len(q)))
            all_rows["align"] = kv_len - np.asarray(options["q_len"])
        yield joined(name, "padding_computed"), solve(q, k, v, all_rows)


def changes(q, k, v, options):
    """(name, (q, k, v), options) of conventions that change one thing."""
    heads, kv_heads = q.shape[1], k.shape[1]
    scale = options.get("scale")
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    if options.get("mask") is not None:
        yield "inverted_mask", (q, k, v), {**options, "mask": ~options["mask"]}
    if "window" in options:
        left, right = options["window"]  # no key at all if left is 0
        less = None if left is None else left - 1, None if right is None else max(right - 1, 0)
        yield "window_exclusive", (q, k, v), {**options, "window": less}
    if 1 < kv_heads < heads:
        order = np.arange(heads) % kv_heads
        yield "interleaved_heads", (q, k[:, order], v[:, order]), options
    if options.get("alibi") is not None:
        shape = (*q.shape[:3], k.shape[2])
        places = {name: options[name] for name in ("causal", "align", "window", "kv_len", "q_len") if name in options}
        _, position = reference.allowed_keys(shape, **places)
        signed = np.asarray(options["alibi"], float).reshape(-1, 1, 1) * (np.arange(k.shape[2]) - position)
        changed = {name: value for name, value in options.items() if name != "alibi"}
        yield "alibi_signed", (q, k, v), {**changed, "bias": options.get("bias", 0) + np.broadcast_to(signed, shape)}
    if options.get("softcap"):
        raw = reference.raw_scores(*(np.asarray(x, float) for x in (q, np.repeat(k, heads // kv_heads, 1))), "dot", 1, None)
        cap = options["softcap"]
        given = {name: value for name, value in options.items() if name not in ("softcap", "scale")}
        yield ("softcap_before_scale", (q, k, v),
               {**given, "score": "precomputed", "scores": cap * np.tanh(raw / cap) * scale})
        if options.get("bias") is not None:
            bias = np.asarray(options["bias"], float)
            finite = np.where(np.isneginf(bias), 0, bias)
            given.update(score="precomputed", scores=cap * np.tanh((raw * scale + finite) / cap),
                         bias=np.where(np.isneginf(bias), -np.inf, 0))
            yield "softcap_after_bias", (q, k, v), given


# ---- Numbers for files -------------------------------------------------------------------------------------------------

def stored(value, limit):
    """The two as files have them: the value as float32, and the limit, wider by what that moves the value, as the upper half
    of a float32, rounded up.

    Exponentials in double differ in their last bit between CPUs; rounded so, files are the same on all of them.
    """
    finite = np.isfinite(value)
    with np.errstate(over="ignore"):
        rounded = value.astype(np.float32)
    moved = np.where(finite, abs(np.where(finite, rounded.astype(float) - np.where(finite, value, 0), 0)), 0)
    wide = np.where(finite & (limit > 0), limit + np.maximum(moved, 2.0**-25 * abs(np.where(finite, value, 0))), 0)
    bits = wide.astype(np.float32).view(np.uint32)
    half = (bits >> 16).astype(np.uint16)
    return rounded, half + (half_as_float(half) < wide).astype(np.uint16)


def half_as_float(half):
    return (half.astype(np.uint32) << 16).view(np.float32)


def fits(value, given, half):
    """Would `value` pass as `given`?"""
    with np.errstate(invalid="ignore"):
        near = abs(value - given) <= half_as_float(half)
    return bool((near | (np.isnan(value) & np.isnan(given)) | (value == given)).all())
