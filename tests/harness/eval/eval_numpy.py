#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every option of `attnbench eval` against attention in NumPy, with which the oracle and all kernels must agree.

tests/harness/eval/eval_numpy.py path/to/attnbench     exit 0: all as it should be; 77: no NumPy

Each problem is written to .npy files with NumPy's float64 answer (--expect, --expect-lse) and must PASS for every kernel
that takes it. Then one option is changed, and the same answer must FAIL.
"""

import os
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: no NumPy")
    sys.exit(77)

from eval_runs import Evals, moved

RNG = np.random.default_rng(1)
WRONG_BY = "*" if os.environ.get("ATTN_TEST_LONG") else "naive_c"  # kernels that see wrong answers


# ---- Attention in NumPy, by docs/semantics.md ----------------------------------------------------------------------


def scores_of(p, q, k, w):
    """[seq_q, seq_k] before softcap and bias; w: the head's score weight."""
    kind = p.get("score", "dot")
    if kind == "additive":
        return (np.tanh(q[:, None] + k[None]) * w).sum(-1)
    if kind == "gaussian":
        return -0.5 * ((w * (q[:, None] - k[None])) ** 2).sum(-1)
    return q @ k.T * p.get("scale", 1 / np.sqrt(q.shape[-1]))


def attend(p, s, v, i, j, allowed, slope, bias, sink):
    """Rows of o and lse from scores s [seq_q, seq_k]; i, j: positions of queries and keys."""
    if p.get("softcap"):
        s = p["softcap"] * np.tanh(s / p["softcap"])
    s = s + bias - slope * np.abs(i - j)
    s = np.where(allowed & (bias > -np.inf), s, -np.inf)
    o, lse = np.zeros((s.shape[0], v.shape[-1])), np.full(s.shape[0], -np.inf)
    for row in range(s.shape[0]):
        keys = s[row] > -np.inf
        if not keys.any():
            continue
        top = s[row, keys].max()
        e = np.exp(s[row, keys] - top)
        lse[row] = top + np.log(e.sum())
        o[row] = e @ v[keys] / (e.sum() + (np.exp(sink - top) if sink is not None else 0))
    return o, lse


def listed(p, kind, b, head, pairs):
    """Whether the list of a query's block names the key's block, [seq_q, seq_k]. pairs: [heads_kv, seq_q, seq_k]."""
    names, heads_kv = np.zeros(pairs[1:], bool), pairs[0]
    rows, keys = p.get("block_queries", 128), p.get("block_keys", 128)
    if kind + "kv_indices" not in p:
        return names
    entries = p[kind + "kv_indices"]
    entries = np.broadcast_to(entries, (p["q"].shape[0], heads_kv, *entries.shape[-2:]))[b, head]
    counts = np.broadcast_to(p[kind + "kv_num_blocks"], (p["q"].shape[0], heads_kv, len(entries)))[b, head]
    for n, (count, blocks) in enumerate(zip(counts, entries)):
        for block in blocks[:count]:
            names[n * rows : (n + 1) * rows, block * keys : (block + 1) * keys] = True
    return names


def reference(p):
    """o and lse of [batch, heads, seq, dim] tensors p["q"], p["k"], p["v"] in float64."""
    factors = (np.broadcast_to(p.get(f"{name}_scale", np.ones(1)), p[name].shape[:3]) for name in "kv")
    k, v = (p[name].astype(np.float64) * factor[..., None] for name, factor in zip("kv", factors))
    q = p["q"].astype(np.float64)
    batch, heads, seq_q, _ = q.shape
    seq_k, group = k.shape[2], heads // k.shape[1]
    pairs = (batch, heads, seq_q, seq_k)
    bias = np.broadcast_to(p.get("bias", np.zeros(1)), pairs).astype(np.float64)
    mask = np.broadcast_to(p.get("mask", np.ones(1)), pairs) != 0
    weight = np.broadcast_to(p.get("score_weight", np.ones(1)), (heads, q.shape[-1])).astype(np.float64)
    o, lse = np.zeros((batch, heads, seq_q, v.shape[-1])), np.zeros((batch, heads, seq_q))
    for b in range(batch):
        lengths = np.broadcast_to(p["kv_len"][b] if "kv_len" in p else seq_k, seq_q)
        q_len = p["q_len"][b] if "q_len" in p else seq_q
        align = p.get("causal", "none")
        offset = {"bottom-right": int(lengths[0]) - q_len if seq_q else 0}.get(align, 0)
        if "offset" in p:
            offset = np.broadcast_to(p["offset"], batch)[b]
        i, j = np.arange(seq_q)[:, None] + offset, np.arange(seq_k)[None]
        right = 0 if align != "none" else p.get("window_right", -1)
        left = p.get("window_left", -1)
        seen = (j < lengths[:, None]) & ((right < 0) | (j <= i + right)) & ((left < 0) | (j >= i - left))
        seen &= np.arange(seq_q)[:, None] < q_len
        for h in range(heads):
            allowed = seen & mask[b, h]
            if "kv_indices" in p:
                part, full = (listed(p, kind, b, h // group, (k.shape[1], seq_q, seq_k)) for kind in ("", "full_"))
                allowed = seen & (full | (part & mask[b, h]))
            s = np.broadcast_to(p["scores"], pairs)[b, h] if "scores" in p else \
                scores_of(p, q[b, h], k[b, h // group], weight[h])
            slope = p["alibi"][h] if "alibi" in p else 0
            sink = p["sinks"][h] if "sinks" in p else None
            o[b, h], lse[b, h] = attend(p, s, v[b, h // group], i, j, allowed, slope, bias[b, h], sink)
    return o, lse


# ---- Problems ------------------------------------------------------------------------------------------------------


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def tensors(batch=2, heads=4, heads_kv=2, seq_q=19, seq_k=37, dim=24, dim_v=17):
    k, v = normal(batch, heads_kv, seq_k, dim), normal(batch, heads_kv, seq_k, dim_v)
    return {"q": normal(batch, heads, seq_q, dim), "k": k, "v": v}


def masked_bias(*shape):
    bias = normal(*shape)
    bias[RNG.random(shape) < 0.3] = -np.inf
    return bias


DRAWN = 70  # problems with random combinations of options


def key_lists():
    """Two problems of 300 keys in blocks of 64, and 40 queries in three blocks of 16."""
    counts, entries = np.array([[2, 5, 0], [1, 0, 3]]), np.array([RNG.permutation(5) for _ in range(6)]).reshape(2, 3, 5)
    lists = {"kv_num_blocks": counts, "kv_indices": entries.astype(np.int32), "block_queries": 16, "block_keys": 64}
    full = {"full_kv_num_blocks": np.array([[1, 1, 1], [2, 0, 0]]), "full_kv_indices": np.roll(entries, 1, -1)}
    yield "lists", {**tensors(seq_q=40, seq_k=300), **lists}, {"kv_indices": np.roll(entries, 2, -1)}
    yield "lists of two kinds", {**tensors(seq_q=40, seq_k=300), **lists, **full, "mask": RNG.random((40, 300)) < 0.5}, \
        {"full_kv_indices": entries}


def problems():
    """name, problem, change that must make its answer wrong."""
    f64 = {name: x.astype(np.float64) for name, x in tensors().items()}
    lengths = np.array([31, 6], np.int64)
    yield "gqa", tensors(), {"scale": 0.21}
    yield "scale", {**tensors(), "scale": -0.3}, {"scale": -0.303}
    none = np.array([0, 5], np.int32)
    yield "a sequence without keys", {**tensors(), "kv_len": none}, {"kv_len": none + np.array([1, 0], np.int32)}
    yield "kv_len", {**tensors(), "kv_len": lengths}, {"kv_len": lengths - 1}
    yield "kv_len by row", {**tensors(), "kv_len": RNG.integers(0, 38, (2, 19)).astype(np.int32)}, {"softcap": 9.0}
    yield "q_len", {**tensors(), "q_len": np.array([5, 19], np.int32)}, {"q_len": np.array([6, 19], np.int32)}
    yield "top-left", {**tensors(), "causal": "top-left"}, {"causal": "bottom-right"}
    yield "bottom-right", {**tensors(), "causal": "bottom-right", "kv_len": lengths}, {"causal": "top-left"}
    yield "offset", {**tensors(), "causal": "offset", "offset": 7}, {"offset": 8}
    yield "offset by batch", {**tensors(), "causal": "offset", "offset": np.array([3, -4], np.int32)}, {"offset": 3}
    yield "window", {**tensors(), "window_left": 3, "window_right": 5}, {"window_right": 4}
    yield "window and offset", {**tensors(), "window_left": 4, "offset": 11}, {"offset": 12}
    yield "softcap", {**tensors(), "softcap": 2.5}, {"softcap": 2.6}
    yield "bias", {**tensors(), "bias": masked_bias(2, 4, 19, 37)}, {"bias": masked_bias(2, 4, 19, 37)}
    yield "bias by head", {**tensors(), "bias": normal(4, 1, 37).astype(np.float64)}, {"bias": normal(4, 1, 37)}
    yield "bias by key", {**tensors(), "bias": normal(37)}, {"bias": normal(37)}
    mask = RNG.random((2, 1, 19, 37)) < 0.5
    mask[0, 0, 3] = False
    yield "mask", {**tensors(), "mask": mask}, {"mask": ~mask}
    yield "mask by row", {**tensors(), "mask": np.asfortranarray(RNG.random((19, 37)) < 0.5)}, {"mask": mask}
    alibi = np.float32(2.0) ** -np.arange(1, 5, dtype=np.float32)
    yield "alibi", {**tensors(), "alibi": alibi, "causal": "bottom-right"}, {"alibi": alibi * np.float32(1.01)}
    yield "sinks", {**tensors(), "sinks": normal(4)}, {"sinks": normal(4)}
    weight = normal(4, 24) * np.float32(0.4)
    yield "additive", {**tensors(), "score": "additive", "score_weight": weight}, {"score_weight": weight[0]}
    yield "gaussian", {**tensors(), "score": "gaussian", "score_weight": weight[1]}, {"score_weight": weight[0]}
    yield "precomputed", {**tensors(), "scores": normal(4, 19, 37), "score": "precomputed"}, {"scores": normal(19, 37)}
    yield "f64", {**f64, "v": f64["v"].astype(np.float32).astype(">f8")}, {"scale": 0.21}
    bytes_of = {name: RNG.integers(-128, 128, tensors()[name].shape).astype(np.int8) for name in "kv"}
    factors = {"k_scale": RNG.uniform(0.5, 1.5, (2, 2, 37)).astype(np.float32) / 64, "v_scale": normal(2, 1)}
    yield "int8", {**tensors(), **bytes_of, **factors}, {"k_scale": factors["k_scale"][..., ::-1]}
    yield "int8, factors of V", {**tensors(), **bytes_of, "k": bytes_of["k"] // 32, "v_scale": normal(37)}, {"scale": 0.21}
    yield "factors of K", {**tensors(), "k_scale": normal(2, 37)}, {"k_scale": normal(2, 1)}
    yield "fortran", {name: np.asfortranarray(x) for name, x in tensors().items()}, {"scale": 0.21}
    yield "no queries", tensors(seq_q=0), {}
    yield "no keys", tensors(seq_k=0), {}
    everything = {**tensors(), "causal": "bottom-right", "kv_len": lengths, "window_left": 20, "softcap": 3.0}
    everything.update(sinks=normal(4), bias=masked_bias(2, 1, 19, 37), mask=mask, alibi=alibi)
    yield "everything", everything, {"window_left": 19}
    yield from key_lists()


def check_problems(evals):
    for name, p, change in problems():
        o, lse = reference({**p, **{x: p[x].astype(np.float32) for x in "qkv"}})
        p = {**p, "expect": o, "expect_lse": lse}
        status = "PASS" if o.size and p["v"].size else "DEGENERATE"  # without values every answer is right
        evals.check(name, p, allowed=[status])
        if change:
            evals.check(f"{name}, changed", {**p, **change}, code=1, allowed=["FAIL"])


def pick(*values):
    return values[RNG.integers(len(values))]


def bf16_bits(x):
    """The values, rounded to nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widened(bits):
    """float32 of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def as_stored(p, dtype):
    """The problem with q, k, v stored in a type, and the problem with the values that the type holds."""
    if dtype == "bf16":
        stored = {x: bf16_bits(p[x]) for x in "qkv"}
        return {**p, **stored, "dtype": "bf16"}, {**p, **{x: widened(stored[x]) for x in "qkv"}}
    halves = {"f16": "qkv", "f32+f16": "kv"}.get(dtype, "")
    stored = {**p, **{x: p[x].astype(np.float16) for x in halves}}
    return stored, dict(stored)


def drawn_score(p, pairs, dim):
    """Score function, softcap, bias, ALiBi, sinks."""
    heads = pairs[1]
    score = pick("dot", "dot", "dot", "additive", "gaussian", "precomputed")
    if score == "dot":
        p.update(pick({}, {"scale": float(RNG.uniform(-0.5, 0.5))}))
    else:
        p["score"] = score
    if score in ("additive", "gaussian"):
        p["score_weight"] = normal(*pick((dim,), (heads, dim))) * np.float32(dim**-0.25)
    if score == "precomputed":
        p["scores"] = normal(*pick(pairs, (heads, *pairs[2:]), pairs[2:]))
    p.update(pick({}, {"softcap": float(RNG.uniform(0.5, 8))}), **pick({}, {"sinks": normal(heads)}))
    shape = pick(None, pairs, (pairs[0], 1, *pairs[2:]), (heads, 1, pairs[3]), (pairs[2], 1))
    if shape:
        p["bias"] = pick(masked_bias, normal)(*shape)
    p.update(pick({}, {"alibi": np.exp2(-RNG.uniform(0, 8, heads)).astype(np.float32)}))


def drawn_masks(p, pairs, packed):
    """Position, window, mask, lengths."""
    batch, _, seq_q, seq_k = pairs
    p["causal"] = causal = pick("none", "top-left", "bottom-right", "offset")
    if causal == "offset" or (causal == "none" and pick(True, False)):
        p["offset"] = pick(int(RNG.integers(-5, 40)), RNG.integers(-9, 60, batch).astype(np.int32))
    p.update(pick({}, {"window_left": int(pick(0, 3, 17, 100))}))
    if causal == "none":
        p.update(pick({}, {"window_right": int(pick(0, 2, 20))}))
    shape = pick(None, pairs, (batch, 1, 1, seq_k), (seq_q, seq_k))
    if shape:
        p["mask"] = RNG.random(shape) < 0.6
    if packed:
        return
    kind = pick("full", "batch", "rows")
    if kind == "batch":
        p["kv_len"] = RNG.integers(0, seq_k + 1, batch).astype(np.int32)
    if kind == "rows" and causal != "bottom-right":
        p["kv_len"] = RNG.integers(0, seq_k + 1, (batch, seq_q)).astype(np.int32)
    p.update(pick({}, {"q_len": RNG.integers(0, seq_q + 1, batch).astype(np.int32)}))


def drawn_problem():
    batch, (heads, heads_kv) = pick(1, 2, 3), pick((1, 1), (2, 2), (4, 2), (6, 1), (8, 2))
    seq_q, seq_k, dim, dim_v = pick(1, 3, 16, 41), pick(1, 7, 32, 65, 130), pick(1, 8, 17, 64), pick(1, 8, 33, 64)
    p = tensors(batch, heads, heads_kv, seq_q, seq_k, dim, dim_v)
    pairs, packed = (batch, heads, seq_q, seq_k), pick(True, False, False)
    drawn_score(p, pairs, dim)
    drawn_masks(p, pairs, packed)
    return p, packed, pick("f32", "f32", "f16", "bf16", "f32+f16")


def sequence(p, b, len_q, len_k):
    """Sequence b of a batch as a problem of its own, cut to its lengths."""
    one = {name: value for name, value in p.items() if name not in ("q", "k", "v", "bias", "mask", "scores", "offset")}
    one.update(q=p["q"][b : b + 1, :, :len_q], k=p["k"][b : b + 1, :, :len_k], v=p["v"][b : b + 1, :, :len_k])
    batch, heads, seq_q, _ = p["q"].shape
    for name in ("bias", "mask", "scores"):
        if name in p:
            full = np.broadcast_to(p[name], (batch, heads, seq_q, p["k"].shape[2]))
            one[name] = full[b : b + 1, :, :len_q, :len_k]
    if "offset" in p:
        one["offset"] = int(np.broadcast_to(p["offset"], batch)[b])
    return one


def pack(p, values):
    """The problem p with its sequences cut to random lengths and packed, and its answer, computed from `values`. The first
    sequence stays whole, because bias, mask and scores must fit the longest."""
    batch, _, seq_q, _ = p["q"].shape
    len_q, len_k = (RNG.integers(0, seq + 1, batch) for seq in (seq_q, p["k"].shape[2]))
    len_q[0], len_k[0] = seq_q, p["k"].shape[2]
    parts = [reference(sequence(values, b, len_q[b], len_k[b])) for b in range(batch)]
    lengths = {"q": len_q, "k": len_k, "v": len_k}
    packed = {x: np.concatenate([p[x][b, :, : lengths[x][b]].swapaxes(0, 1) for b in range(batch)]) for x in "qkv"}
    packed.update(cu_seqlens_q=np.append(0, len_q.cumsum()), cu_seqlens_k=np.append(0, len_k.cumsum()))
    o = np.concatenate([part[0][0].swapaxes(0, 1) for part in parts])
    return {**p, **packed}, o, np.concatenate([part[1][0] for part in parts], axis=-1)


def check_drawn(evals):
    """Random combinations of positions, windows, masks, lengths, packed sequences, score functions and 16-bit types."""
    for n in range(DRAWN):
        p, packed, dtype = drawn_problem()
        stored, values = as_stored(p, dtype)
        if packed:
            stored, o, lse = pack(stored, values)
        else:
            o, lse = reference(values)
        words = [f"{key} {value.shape if isinstance(value, np.ndarray) else value}" for key, value in stored.items()]
        name = f"drawn {n}, {dtype}: {', '.join(words)}"
        evals.check(name, {**stored, "expect": o, "expect_lse": lse}, allowed=["PASS", "DEGENERATE"])
        wrong = {**stored, "expect": moved(o, 0.05), "expect_lse": lse, "kernel": WRONG_BY}  # beyond any limit
        evals.check(f"{name}, wrong answer", wrong, code=1, allowed=["FAIL"])


def check_layouts(evals):
    """Fewer dimensions, another order of them, and packed sequences."""
    p = tensors(batch=1)
    o, lse = reference(p)
    evals.check("three dimensions", {**{x: p[x][0] for x in "qkv"}, "expect": o[0], "expect_lse": lse[0]})
    one = tensors(batch=1, heads=1, heads_kv=1)
    o, lse = reference(one)
    evals.check("two dimensions", {**{x: one[x][0, 0] for x in "qkv"}, "expect": o[0, 0], "expect_lse": lse[0, 0]})

    p, file = tensors(), evals.folder / "o.npy"
    o, lse = reference(p)
    turned = {x: p[x].swapaxes(1, 2) for x in "qkv"}  # not contiguous, but np.save() writes in C order
    evals.check("bshd", {**turned, "layout": "bshd", "expect": o.swapaxes(1, 2), "expect_lse": lse, "save_o": file})
    saved = np.load(file)
    evals.expect(saved.shape == (2, 19, 4, 17) and np.abs(saved - o.swapaxes(1, 2)).max() < 1e-5, "bshd", "saved o")

    p = tensors(batch=3)
    cu_q, cu_k = np.array([1, 20, 20, 31], np.int32), np.array([0, 5, 9, 46], np.int32)
    packed = {"q": normal(33, 4, 24), "k": normal(46, 2, 24), "v": normal(46, 2, 17), "causal": "bottom-right"}
    o, lse = np.zeros((33, 4, 17)), np.full((4, 33), -np.inf)
    for b in range(3):
        own = [packed[x][None, c[b] : c[b + 1]].swapaxes(1, 2) for x, c in (("q", cu_q), ("k", cu_k), ("v", cu_k))]
        part_o, part_lse = reference({"q": own[0], "k": own[1], "v": own[2], "causal": "bottom-right"})
        o[cu_q[b] : cu_q[b + 1]], lse[:, cu_q[b] : cu_q[b + 1]] = part_o[0].swapaxes(0, 1), part_lse[0]
    packed.update(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, expect=o, expect_lse=lse, save_o=file)
    evals.check("packed", packed)
    evals.expect(np.abs(np.load(file) - o).max() < 1e-5, "packed", "saved o")
    evals.check("packed, changed", {**packed, "cu_seqlens_k": np.array([0, 6, 9, 46], np.int32)}, code=1)


def check_types(evals):
    """16-bit inputs give the answer of the rounded values."""
    p = tensors()
    half = {x: p[x].astype(np.float16) for x in "qkv"}
    o, _ = reference(half)
    evals.check("f16", {**half, "expect": o})
    evals.check("f16 as f32", {**half, "expect": o, "dtype": "f32"})
    bits = {x: (p[x].view(np.uint32) >> 16).astype(np.uint16) for x in "qkv"}
    o, _ = reference({x: widened(bits[x]) for x in "qkv"})
    evals.check("bf16", {**bits, "expect": o, "dtype": "bf16"})
    evals.check("bf16 without --dtype", bits, code=2, words="--dtype bf16")


def blocks_of(integers, factors, bits):
    """ggml's blocks of integers [..., blocks, 32] with float16 factors [..., blocks, 1], and their values."""
    halves = factors.astype(np.float16)
    stored = integers.astype(np.int8).view(np.uint8) if bits == 8 else (integers[..., :16] + 8 | integers[..., 16:] + 8 << 4)
    values = (integers * halves.astype(np.float32)).astype(np.float32)
    return (np.concatenate([halves.view(np.uint8), stored.astype(np.uint8)], -1),
            values.reshape(*values.shape[:-2], -1))


def check_bytes(evals):
    """K and V of 8 bits and of blocks, whose last one is not full."""
    p = tensors(dim=48, dim_v=48)
    for bits, name in ((8, "q8_0"), (4, "q4_0")):
        stored, values = {}, {"q": p["q"]}
        for x in "kv":
            integers = RNG.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (2, 2, 37, 2, 32))
            stored[x], held = blocks_of(integers, RNG.uniform(-4, 4, (2, 2, 37, 2, 1)) / 2**bits, bits)
            values[x] = held[..., :48]
        o, lse = reference(values)
        problem = {"q": p["q"], **stored, "kv_format": name, "expect": o, "expect_lse": lse}
        evals.check(name, problem, allowed=["PASS"])
        evals.check(f"{name}, changed", {**problem, "k": stored["k"][..., ::-1, :]}, code=1, allowed=["FAIL"])
        turned = {x: problem[x].swapaxes(1, 2) for x in ("q", "k", "v", "expect")}
        evals.check(f"{name}, bshd", {**problem, **turned, "layout": "bshd"}, allowed=["PASS"])
        wide, held = blocks_of(RNG.integers(-8, 8, (2, 2, 37, 3, 32)), RNG.uniform(0.1, 0.2, (2, 2, 37, 3, 1)), bits)
        o, lse = reference({**values, "v": held})
        evals.check(f"{name}, wider v", {**problem, "v": wide, "expect": o, "expect_lse": lse}, allowed=["PASS"])
        scores = normal(4, 19, 37)
        o, lse = reference({**values, "v": held, "scores": scores, "score": "precomputed"})
        evals.check(f"{name}, scores", {"v": wide, "kv_format": name, "scores": scores, "expect": o}, allowed=["PASS"])
        ends, rows = np.array([0, 9, 37], np.int32), np.array([0, 5, 19], np.int32)
        packed = {x: problem[x][0].swapaxes(0, 1) for x in "qkv"}
        evals.check(f"{name}, packed", {**packed, "kv_format": name, "cu_seqlens_q": rows, "cu_seqlens_k": ends},
                    allowed=["PASS"])
        evals.check(f"{name}, short blocks", {**problem, "k": stored["k"][..., 1:]}, 2, f"blocks, {stored['k'].shape[-1]}]")
        evals.check(f"{name}, floats", {**problem, "k": values["k"]}, 2, f"--kv-format {name} it must hold uint8")
        evals.check(f"{name}, bool", {**problem, "k": stored["k"].view(bool)}, 2, "holds bool; with --kv-format")
        evals.check(f"{name}, too few", {**problem, "k": stored["k"][..., :1, :]}, 2, "head dimension 32")
        bare = {x: problem[x] for x in "qkv"}
        evals.check(f"{name} without --kv-format", bare, 2, "--kv-format must say what the bytes are")
    for name, places, bias in (("e4m3", 3, 7), ("e5m2", 2, 15)):
        stored = {x: (RNG.integers(0, 96, p[x].shape) | RNG.integers(0, 2, p[x].shape) << 7).astype(np.uint8) for x in "kv"}
        values = {"q": p["q"]}
        for x, given in stored.items():
            power, fraction = (given & 127).astype(int) >> places, given & (1 << places) - 1
            size = np.where(power > 0, (1 << places) + fraction, fraction) * 2.0 ** (np.maximum(power, 1) - bias - places)
            values[x] = np.where(given >> 7, -size, size).astype(np.float32)
        o, lse = reference({**values, "scale": 0.01})
        evals.check(name, {"q": p["q"], **stored, "kv_format": name, "scale": 0.01, "expect": o, "expect_lse": lse},
                    allowed=["PASS"])
    evals.check("unknown format", {**p, "kv_format": "q5_0"}, 2, "--kv-format q5_0 is unknown; did you mean q8_0")


def check_refusals(evals):
    """Problems that don't fit: exit code and words of the sentence."""
    p = tensors()
    refusals = [
        ({"k": normal(2, 3, 37, 24), "v": normal(2, 3, 37, 17)}, 2, "heads"),
        ({"k": normal(2, 2, 37, 23)}, 2, "--k"),
        ({"v": normal(2, 2, 36, 17)}, 2, "tokens 36"),
        ({"v": normal(3, 2, 37, 17)}, 2, "batch 3"),
        ({"q": normal(24)}, 2, "[seq, dim]"),
        ({"kv_len": np.array([38, 1])}, 2, "must be in 0..37"),
        ({"kv_len": np.array([-1, 1])}, 2, "must be in 0..37"),
        ({"kv_len": np.array([1, 1, 1])}, 2, "[batch]"),
        ({"kv_len": np.array([1.0, 1.0])}, 2, "int32 or int64"),
        ({"mask": normal(19, 37)}, 2, "--bias"),
        ({"bias": normal(19, 38)}, 2, "[2, 4, 19, 37]"),
        ({"bias": np.full((19, 37), 1e300)}, 2, "too large"),
        ({"sinks": normal(3)}, 2, "[heads_q]"),
        ({"score": "additive"}, 2, "needs --score-weight"),
        ({"score_weight": normal(24)}, 2, "doesn't go with --score-weight"),
        ({"k_scale": normal(2, 36)}, 2, "[batch, heads_kv, seq_k] = [2, 2, 37]"),
        ({"v_scale": np.ones(37, np.int32)}, 2, "--v-scale"),
        ({"k": np.zeros((2, 2, 37, 24), np.int8)}, 2, "holds i8"),
        ({"q": np.zeros((2, 4, 19, 24), np.int8)}, 2, "holds int8; floats are wanted"),
        ({"scores": normal(19, 37), "k_scale": normal(37)}, 2, "--k-scale doesn't go with --scores"),
        ({"scores": normal(19, 37), "scale": 1.0}, 2, "only dot scores are scaled"),
        ({"scores": normal(19, 37), "score": "dot"}, 2, "precomputed"),
        ({"causal": "offset"}, 2, "needs --offset"),
        ({"causal": "top-left", "offset": 3}, 2, "doesn't go with --offset"),
        ({"causal": "top-left", "window_right": 3}, 2, "--window-right"),
        ({"offset": 2**40}, 2, "32 bits"),
        ({"window_left": -2}, 2, "--window-left"),
        ({"cu_seqlens_q": np.array([0, 19], np.int32)}, 2, "needed together"),
        ({"expect": normal(2, 4, 19, 16)}, 2, "[2, 4, 19, 17]"),
        ({"q": np.array(["no", "numbers"])}, 5, "descr"),
        ({"dtype": "f8"}, 2, "--dtype"),
        ({"kv_indices": np.zeros((1, 1), np.int32)}, 2, "--kv-indices needs --kv-num-blocks"),
        ({"kv_num_blocks": np.array([2]), "kv_indices": np.zeros((1, 1), np.int32)}, 2, "0..1"),
        ({"kv_num_blocks": np.array([1]), "kv_indices": np.ones((1, 1), np.int32)}, 2, "entry 0 of list 0 is 1"),
        ({"kv_num_blocks": np.array([1]), "kv_indices": np.zeros((1, 2), np.int32)}, 2, "blocks of keys] = [2, 2, 1, 1]"),
    ]
    for change, code, words in refusals:
        evals.check(f"refusal of {list(change)}", {**p, **change}, code, words)
    packed = {"q": normal(9, 4, 24), "k": normal(9, 4, 24), "v": normal(9, 4, 17)}
    for cu, words in (([0, 5, 4], "must not decrease"), ([0, 10], "must be in 0..9"), ([-1, 9], "must be in 0..9")):
        evals.check(f"cu_seqlens {cu}", {**packed, "cu_seqlens_q": np.array(cu), "cu_seqlens_k": np.array([0, 9])}, 2, words)


def check_files(evals):
    """Inputs that are no .npy files, and outputs that cannot be written. Existing files stay unchanged."""
    folder = evals.folder
    p, file = tensors(), {name: folder / name for name in ("pipe", "short.npy", "long.npy", "huge.npy", "other.npy")}
    evals.run(p)  # leaves q.npy, k.npy and v.npy
    good = (folder / "q.npy").read_bytes()
    os.mkfifo(file["pipe"])
    file["short.npy"].write_bytes(good[:-1])
    file["long.npy"].write_bytes(b"\x93NUMPY\2\0" + 4 * b"\xff" + good)
    file["huge.npy"].write_bytes(good.replace(b"19, 24), }        ", b"1900000000, 24), }"))
    os.link(folder / "q.npy", file["other.npy"])
    (folder / "there.npy").write_bytes(b"before")
    for change, code, words in [
        ({"q": file["pipe"]}, 5, "not a regular file"),
        ({"q": folder}, 5, "not a regular file"),
        ({"k": folder / "nothing.npy"}, 5, "No such file"),
        ({"q": file["short.npy"]}, 5, "cut short"),
        ({"q": file["long.npy"]}, 5, "header has 4294967295 bytes"),
        ({"q": file["huge.npy"]}, 5, "cut short"),
        ({"save_o": folder / "q.npy"}, 2, "is also --q"),
        ({"save_lse": file["other.npy"]}, 2, "is also --q"),
        ({"k": folder / "q.npy", "save_o": folder / "q.npy"}, 2, "is also --q;"),
        ({"save_o": folder / "new.npy", "save_lse": folder / "new.npy"}, 2, "is also --save-o"),
        ({"save_o": folder / "nowhere" / "o.npy"}, 5, "cannot write"),
        ({"save_o": folder}, 5, "cannot write"),
        ({"save_o": folder / "there.npy", "sinks": normal(3)}, 2, "[heads_q]"),
    ]:
        evals.check(f"files: {change}", {**p, **change}, code, words, allowed=[])
    kept = (folder / "q.npy").read_bytes() == good and (folder / "there.npy").read_bytes() == b"before"
    evals.expect(kept and not list(folder.glob("*.tmp")) and not (folder / "new.npy").exists(), "files", "what is left")


def main():
    with tempfile.TemporaryDirectory() as folder:
        evals = Evals(sys.argv[1], folder)
        for check in (check_problems, check_drawn, check_layouts, check_types, check_bytes, check_refusals, check_files):
            check(evals)
    print(f"eval_numpy: {evals.checks} checks, {evals.failures} failures")
    return int(evals.failures > 0)


if __name__ == "__main__":
    sys.exit(main())
