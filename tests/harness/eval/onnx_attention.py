#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every kernel of `attnbench eval` must agree with ONNX's own reference evaluator of the Attention operator within our error
limits, on seeded cases of opsets 23, 24 and 25.

tests/harness/eval/onnx_attention.py path/to/attnbench     exit 0: all as it should be; 77: no onnx of 1.23 or later

Every kernel must also FAIL a wrong answer (one value moved a little). Where the operator and docs/semantics.md differ, the
difference is tested ("ONNX" in that file).

The evaluator gets float64 values of the float32 or float16 inputs, so that its own rounding does not matter.
"""

import os
import sys
import tempfile

try:
    import numpy as np
    import onnx
    from onnx.reference import ReferenceEvaluator
except ImportError as error:
    print(f"skipped: no {error.name} (.venv/bin/pip install -r scripts/requirements-tests.txt)")
    sys.exit(77)

OLDEST = (1, 23)  # has opset 25, and gives empty rows as 0 instead of NaN
if tuple(int(part) for part in onnx.__version__.split(".")[:2]) < OLDEST:
    print(f"skipped: onnx {onnx.__version__} is older than 1.23 (.venv/bin/pip install -r scripts/requirements-tests.txt)")
    sys.exit(77)

from eval_runs import Evals, moved  # noqa: E402

OPSETS = (23, 24, 25)
LONG = bool(os.environ.get("ATTN_TEST_LONG"))
DRAWN = 28 if LONG else 6  # drawn cases per opset, beside the named ones
RNG = np.random.default_rng(20250823)
PLACES = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]


# ---- ONNX ------------------------------------------------------------------------------------------------------------


def queries_of(tensors):
    return tensors["Q"].shape[-2]  # seq of [batch, heads, seq, dim] and of [batch, seq, heads * dim]


def evaluate(opset, tensors, attributes, outputs=("Y",)):
    """Outputs of one Attention node by the reference evaluator, with float64 inputs.

    onnx 1.23.2 takes the number of queries for a causal mask from the shape of attn_mask, so a mask that broadcasts over
    queries must be expanded first (see check_differences)."""
    mask = tensors.get("attn_mask")
    if attributes.get("is_causal") and mask is not None and mask.shape[-2] == 1:
        shape = (*mask.shape[:-2], queries_of(tensors), mask.shape[-1])
        tensors = {**tensors, "attn_mask": np.ascontiguousarray(np.broadcast_to(mask, shape))}
    return evaluate_as_it_is(opset, tensors, attributes, outputs)


def evaluate_as_it_is(opset, tensors, attributes, outputs=("Y",)):
    wide = {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in tensors.items()}
    last = max(i for i, name in enumerate(PLACES) if name in wide)
    names = [name if name in wide else "" for name in PLACES[: last + 1]]
    node = onnx.helper.make_node("Attention", names, list(outputs), **attributes)
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in wide.items()
    ]
    results = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, None) for name in outputs if name]
    graph = onnx.helper.make_graph([node], "attention", inputs, results)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    with np.errstate(invalid="ignore"):
        return ReferenceEvaluator(model).run(None, wide)


# ---- From an Attention node to options of `attnbench eval` ---------------------------------------------------------------


def split_heads(x, heads):
    """[batch, seq, heads * dim] -> [batch, seq, heads, dim]"""
    return x.reshape(x.shape[0], x.shape[1], heads, -1)


def pad_mask(mask, seq_k):
    """A mask with fewer keys than K masks the others."""
    pad = [(0, 0)] * (mask.ndim - 1) + [(0, seq_k - mask.shape[-1])]
    return np.pad(mask, pad, constant_values=False if mask.dtype == bool else -np.inf)


def translate(tensors, attributes):
    """The same problem as options and arrays of `eval`, and a function that gives Y the layout of our output."""
    p = {x.lower(): tensors[x] for x in "QKV"}
    turn = lambda y: y
    if tensors["Q"].ndim == 3:
        heads, heads_kv = attributes["q_num_heads"], attributes["kv_num_heads"]
        p = {"q": split_heads(p["q"], heads), "k": split_heads(p["k"], heads_kv), "v": split_heads(p["v"], heads_kv)}
        p["layout"] = "bshd"
        turn = lambda y: split_heads(y, heads)
    axis = 1 if "layout" in p else 2
    past = 0
    if "past_key" in tensors:  # [batch, heads, past, dim] whatever Q is
        past = tensors["past_key"].shape[2]
        for name, cache in (("k", "past_key"), ("v", "past_value")):
            old = tensors[cache].swapaxes(1, 2) if axis == 1 else tensors[cache]
            p[name] = np.concatenate((old, p[name]), axis=axis)
    seq_q, seq_k = p["q"].shape[axis], p["k"].shape[axis]
    if "attn_mask" in tensors:
        mask = pad_mask(tensors["attn_mask"], seq_k)
        p["mask" if mask.dtype == bool else "bias"] = mask
    if "nonpad_kv_seqlen" in tensors:
        p["kv_len"] = tensors["nonpad_kv_seqlen"]
    for name in ("scale", "softcap"):
        if name in attributes:
            p[name] = attributes[name]
    left, right = attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)
    causal = attributes.get("is_causal", 0)
    if "kv_len" in p and (causal or left >= 0 or right >= 0):
        p["offset"] = (p["kv_len"] - seq_q).astype(np.int32)  # bottom-right, as --causal bottom-right would say
    elif past and (causal or left >= 0 or right >= 0):
        p["offset"] = past
    if causal:
        p["causal"] = "offset" if "offset" in p else "top-left"
    elif right >= 0:
        p["window_right"] = right
    if left >= 0:
        p["window_left"] = left
    return p, turn


def check(evals, name, opset, tensors, attributes, also_wrong):
    """Checks one case with the right answer, and if also_wrong with a wrong one. Returns how many kernels ran."""
    p, turn = translate(tensors, attributes)
    y = turn(evaluate(opset, tensors, attributes)[0])
    evals.expect(np.isfinite(y).all(), name, "ONNX gives non-finite values")
    found = evals.check(name, {**p, "expect": y}, allowed=["PASS", "DEGENERATE"])
    evals.expect(len(found) > 1, name, "no kernel ran")
    if not also_wrong:
        return len(found) - 1
    wrong = moved(y, 0.03 if tensors["Q"].dtype == np.float16 else 0.01)  # beyond any limit, but less than one key would do
    kernels = evals.check(f"{name}, wrong answer", {**p, "expect": wrong}, code=1)
    kernels.pop("--expect", None)
    evals.expect(set(kernels.values()) == {"FAIL"}, name, f"a wrong answer gives {kernels}")
    return len(found) - 1


# ---- Cases -------------------------------------------------------------------------------------------------------------


def normal(dtype, *shape):
    return RNG.standard_normal(shape).astype(dtype)


def tensors_of(dtype=np.float32, batch=2, heads=4, heads_kv=2, seq_q=9, seq_k=21, dim=16, dim_v=24, rank=4):
    if rank == 3:
        shapes = {"Q": (seq_q, heads * dim), "K": (seq_k, heads_kv * dim), "V": (seq_k, heads_kv * dim_v)}
    else:
        shapes = {"Q": (heads, seq_q, dim), "K": (heads_kv, seq_k, dim), "V": (heads_kv, seq_k, dim_v)}
    return {name: normal(dtype, batch, *shape) for name, shape in shapes.items()}


def head_attributes(rank, heads, heads_kv):
    return {"q_num_heads": heads, "kv_num_heads": heads_kv} if rank == 3 else {}


def random_mask(kind, dtype, shape):
    """bool, or float with -inf for a third of the keys. If there are several queries, the last one sees no key."""
    mask = RNG.random(shape) < 0.65
    if shape[-2] > 1:
        mask[..., -1, :] = False
    if kind == "bool":
        return mask
    return np.where(mask, RNG.standard_normal(shape), -np.inf).astype(dtype)


def named_cases(opset):
    """(name, tensors, attributes), one feature at a time."""
    f32, f16 = np.float32, np.float16
    yield "plain", tensors_of(), {}
    yield "float16", tensors_of(f16), {}
    yield "as many KV heads", tensors_of(heads_kv=4), {}
    yield "multi-query", tensors_of(heads_kv=1), {}
    yield "scale", tensors_of(), {"scale": 0.31}
    yield "scale 0", tensors_of(), {"scale": 0.0}
    yield "softcap", tensors_of(), {"softcap": 1.5}
    yield "softcap and bias", {**tensors_of(), "attn_mask": random_mask("float", f32, (9, 21))}, {"softcap": 1.5}
    for shape in ((9, 21), (1, 21), (4, 9, 21), (1, 9, 21), (2, 4, 9, 21), (2, 1, 1, 21)):
        for kind in ("bool", "float"):
            yield f"{kind} mask {shape}", {**tensors_of(), "attn_mask": random_mask(kind, f32, shape)}, {}
    yield "mask of fewer keys", {**tensors_of(), "attn_mask": random_mask("bool", f32, (9, 17))}, {}
    yield "bias of fewer keys", {**tensors_of(), "attn_mask": random_mask("float", f32, (2, 4, 9, 17))}, {}
    yield "bias in float16", {**tensors_of(f16), "attn_mask": random_mask("float", f16, (4, 9, 21))}, {}
    yield "nothing to see", {**tensors_of(), "attn_mask": np.zeros((9, 21), bool)}, {}
    yield "bias of -inf alone", {**tensors_of(), "attn_mask": np.full((2, 1, 9, 21), -np.inf, f32)}, {}
    yield "causal, square", tensors_of(seq_q=21), {"is_causal": 1}
    yield "causal, more keys", tensors_of(), {"is_causal": 1}
    yield "causal, more queries", tensors_of(seq_q=30), {"is_causal": 1}
    yield "causal and mask", {**tensors_of(), "attn_mask": random_mask("bool", f32, (9, 21))}, {"is_causal": 1}
    yield "causal and bias by key", {**tensors_of(), "attn_mask": random_mask("float", f32, (2, 1, 1, 21))}, {"is_causal": 1}
    yield "causal and bias", {**tensors_of(), "attn_mask": random_mask("float", f32, (4, 9, 21))}, {"is_causal": 1}
    past = {"past_key": normal(f32, 2, 2, 13, 16), "past_value": normal(f32, 2, 2, 13, 24)}
    yield "past", {**tensors_of(), **past}, {}
    yield "causal with past", {**tensors_of(), **past}, {"is_causal": 1}
    yield "one query with past", {**tensors_of(seq_q=1, seq_k=1), **past}, {"is_causal": 1}
    yield "past and mask", {**tensors_of(), **past, "attn_mask": random_mask("bool", f32, (2, 1, 9, 34))}, {"is_causal": 1}
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    yield "three dimensions", tensors_of(rank=3), heads
    yield "three dimensions, float16", tensors_of(f16, rank=3), heads
    yield "three dimensions, causal with past", {**tensors_of(rank=3), **past}, {**heads, "is_causal": 1}
    window = np.abs(np.arange(9)[:, None] - np.arange(21)[None] + 2) <= 4
    yield "a window as a mask", {**tensors_of(), "attn_mask": window}, {}
    if opset < 24:
        return
    lengths = np.array([13, 21])
    yield "padded keys", {**tensors_of(), "nonpad_kv_seqlen": lengths}, {}
    yield "padded keys, causal", {**tensors_of(), "nonpad_kv_seqlen": lengths}, {"is_causal": 1}
    yield "a sequence without keys", {**tensors_of(), "nonpad_kv_seqlen": np.array([0, 5])}, {}
    yield "fewer keys than queries", {**tensors_of(), "nonpad_kv_seqlen": np.array([4, 21])}, {"is_causal": 1}
    mask = random_mask("float", f32, (2, 1, 9, 21))
    yield "padded keys and bias", {**tensors_of(), "nonpad_kv_seqlen": lengths, "attn_mask": mask}, {"softcap": 3.0}
    if opset < 25:
        return
    for left, right in ((3, 2), (0, 0), (5, -1), (-1, 4)):
        yield f"window {left}..{right}", tensors_of(), {"left_window_size": left, "right_window_size": right}
    yield "causal window", tensors_of(seq_q=21), {"is_causal": 1, "left_window_size": 6}
    both_sides = {"left_window_size": 6, "right_window_size": 2}
    yield "causal window with right side", tensors_of(seq_q=21), {"is_causal": 1, **both_sides}
    yield "window with past", {**tensors_of(), **past}, both_sides
    yield "window, padded keys", {**tensors_of(), "nonpad_kv_seqlen": lengths}, both_sides


def pick(*values):
    return values[RNG.integers(len(values))]


def drawn_case(opset):
    """A random combination of features."""
    dtype, rank, batch = pick(np.float32, np.float32, np.float16), pick(3, 4), pick(1, 2, 3)
    heads, heads_kv = pick((1, 1), (4, 4), (4, 2), (6, 2), (8, 1))
    seq_q, seq_k, dim, dim_v = pick(1, 2, 7, 17, 33), pick(1, 5, 16, 31, 67), pick(4, 8, 24, 64), pick(3, 8, 16, 65)
    tensors = tensors_of(dtype, batch, heads, heads_kv, seq_q, seq_k, dim, dim_v, rank)
    attributes = head_attributes(rank, heads, heads_kv)
    attributes.update(pick({}, {"scale": float(RNG.uniform(0, 0.5))}), **pick({}, {"softcap": float(RNG.uniform(0.5, 9))}))
    attributes.update(pick({}, {"is_causal": 1}))
    total = seq_k
    cache = pick("none", "past", "padded") if opset >= 24 else pick("none", "past")
    if cache == "past":
        past = pick(1, 6, 40)
        tensors["past_key"] = normal(dtype, batch, heads_kv, past, dim)
        tensors["past_value"] = normal(dtype, batch, heads_kv, past, dim_v)
        total += past
    if cache == "padded":
        tensors["nonpad_kv_seqlen"] = RNG.integers(0, seq_k + 1, batch)
    kind = pick("none", "bool", "float")
    if kind != "none":
        shape = pick((seq_q, total), (heads, seq_q, total), (batch, heads, seq_q, total), (batch, 1, 1, total), (1, total))
        tensors["attn_mask"] = random_mask(kind, dtype, shape)
    if opset >= 25 and pick(True, False):
        attributes.update(left_window_size=pick(-1, 0, 3, 20), right_window_size=pick(-1, 0, 3, 20))
    what = [np.dtype(dtype).name, f"rank {rank}", str(heads) + "/" + str(heads_kv), f"{seq_q} x {total}", cache,
            f"mask {kind}"]
    return "drawn: " + ", ".join(what + [f"{key} {value}" for key, value in attributes.items()]), tensors, attributes


# ---- Where the two differ ------------------------------------------------------------------------------------------------


def check_differences(evals):
    """The differences that docs/semantics.md lists under "ONNX"."""
    # ONNX adds -inf to the score of a masked key and multiplies its value by 0; we skip the key.
    for name in "KV":
        tensors = {**tensors_of(), "attn_mask": np.arange(21)[None] < np.full((9, 1), 15)}
        clean = evaluate(25, tensors, {})[0]
        tensors[name] = tensors[name].copy()
        tensors[name][:, :, 15:] = np.nan
        evals.expect(np.isnan(evaluate(25, tensors, {})[0]).all(), "NaN behind a mask", f"ONNX hides the NaN in {name}")
        evals.check(f"NaN behind a mask, in {name}", {**translate(tensors, {})[0], "expect": clean})

    # ONNX takes the square root of the scale.
    tensors = tensors_of()
    evals.expect(np.isnan(evaluate(25, tensors, {"scale": -0.5})[0]).all(), "negative scale", "ONNX gives numbers")
    turned = {**tensors, "Q": -tensors["Q"]}
    plain = translate(tensors, {})[0]
    evals.check("negative scale", {**plain, "scale": -0.5, "expect": evaluate(25, turned, {"scale": 0.5})[0]})

    # ONNX pads a short mask; we refuse it.
    evals.check("short mask", {**plain, "mask": random_mask("bool", np.float32, (9, 17))}, code=2, words="broadcast")

    # Without a cache is_causal is our top-left, not the bottom-right of FlashAttention.
    y = evaluate(25, tensors, {"is_causal": 1})[0]
    evals.check("causal without a cache", {**plain, "causal": "bottom-right", "expect": y}, code=1)

    # A causal mask and a mask that broadcasts over queries: by the operator's text they are independent.
    one_row = {**tensors, "attn_mask": normal(np.float32, 1, 21)}
    y = evaluate(25, one_row, {"is_causal": 1})[0]
    evals.check("causal and a mask of one row", {**translate(one_row, {"is_causal": 1})[0], "expect": y})
    if np.abs(evaluate_as_it_is(25, one_row, {"is_causal": 1})[0] - y).max() == 0:
        print(f"note: onnx {onnx.__version__} has fixed causal masks beside a mask of one row")

    # Both apply the softcap before the bias; earlier versions of onnx applied it to the sum.
    bias = normal(np.float32, 9, 21) * 3
    y = evaluate(25, {**tensors, "attn_mask": bias}, {"softcap": 1.0})[0]
    s = np.einsum("bhid,bhjd->bhij", *(x.astype(np.float64) for x in (tensors["Q"], tensors["K"].repeat(2, 1)))) / 4
    e = np.exp(np.tanh(s + bias))
    after = e / e.sum(-1, keepdims=True) @ tensors["V"].repeat(2, 1).astype(np.float64)
    for expected, code in ((y, 0), (after, 1)):
        p = {**translate({**tensors, "attn_mask": bias}, {"softcap": 1.0})[0], "expect": expected}
        evals.check("softcap and bias", p, code)

    # qk_matmul_output has no counterpart; its mode 3, the weights, is our output for V = identity.
    tensors["V"] = np.broadcast_to(np.eye(21, dtype=np.float32), (2, 2, 21, 21))
    outputs = ("Y", "", "", "qk_matmul_output")
    weights = evaluate(25, tensors, {"qk_matmul_output_mode": 3, "is_causal": 1}, outputs)[1]
    evals.check("weights", {**translate(tensors, {"is_causal": 1})[0], "expect": weights})


def cases(opset):
    """Every named case at the newest opset; a third of them at each other one, unless ATTN_TEST_LONG; and drawn ones."""
    named = list(named_cases(opset))
    if not LONG and opset != OPSETS[-1]:
        named = named[opset % 3::3]
    return named + [drawn_case(opset) for _ in range(DRAWN)]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: onnx_attention.py path/to/attnbench")
    kernels = []  # how many kernels ran, for each case
    with tempfile.TemporaryDirectory() as folder:
        evals = Evals(sys.argv[1], folder, "--kernel", "all")
        for opset in OPSETS:
            for n, (what, tensors, attributes) in enumerate(cases(opset)):
                kernels.append(check(evals, f"opset {opset}: {what}", opset, tensors, attributes, LONG or n % 2 == 0))
        check_differences(evals)
    print(f"onnx {onnx.__version__}: {len(kernels)} cases, {sum(kernels)} kernels checked, {evals.checks} checks, "
          f"{evals.failures} failed")
    return 1 if evals.failures or len(kernels) < 90 else 0


if __name__ == "__main__":
    sys.exit(main())
