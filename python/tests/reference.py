# SPDX-License-Identifier: MIT
"""docs/semantics.md in NumPy and float64, as plainly as it can be said. Knows nothing of libattn."""

import numpy as np


def allowed_keys(shape, *, mask=None, bias=None, causal=False, align="top_left", window=(None, None), kv_len=None,
                 q_len=None, row_len=None):
    """[batch, heads, queries, keys]: which keys each row sees; and the position of each query."""
    batch, _, queries, keys = shape
    kv = np.full(batch, keys) if kv_len is None else np.asarray(kv_len)
    rows = np.full(batch, queries) if q_len is None else np.asarray(q_len)
    offset = {"top_left": np.zeros(batch, int), "bottom_right": kv - rows}.get(align) if isinstance(align, str) else align
    offset = np.broadcast_to(offset, batch).reshape(-1, 1, 1, 1)
    i, j = np.arange(queries)[:, None], np.arange(keys)
    position = i + offset
    allowed = np.broadcast_to(j < kv.reshape(-1, 1, 1, 1), shape).copy()
    left, right = window
    if causal:
        right = 0
    if left is not None:
        allowed &= j >= position - left
    if right is not None:
        allowed &= j <= position + right
    if row_len is not None:
        allowed &= j < np.asarray(row_len).reshape(batch, 1, queries, 1)
    if mask is not None:
        allowed &= np.broadcast_to(mask, shape).astype(bool)
    if bias is not None:
        allowed &= np.broadcast_to(bias, shape) != -np.inf
    allowed &= i < rows.reshape(-1, 1, 1, 1)
    return allowed, position


def raw_scores(q, k, score, scale, score_weight):
    if score == "dot":
        return np.einsum("bhid,bhjd->bhij", q, k) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    weight = np.ones(q.shape[-1]) if score_weight is None else np.asarray(score_weight, float)
    weight = weight.reshape(-1, 1, 1, q.shape[-1])
    if score == "additive":
        return (weight * np.tanh(q[:, :, :, None] + k[:, :, None])).sum(-1)
    return -0.5 * ((weight * (q[:, :, :, None] - k[:, :, None])) ** 2).sum(-1)


def philox(counter, key):
    """The four words of Philox 4x32-10 for four arrays of counters and two numbers (Salmon et al. 2011, table 2)."""
    words, key = [np.asarray(x, np.uint64) for x in counter], list(key)
    for _ in range(10):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        words = [b >> shift ^ words[1] ^ np.uint64(key[0]), b & low, a >> shift ^ words[3] ^ np.uint64(key[1]), a & low]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return words


def dropout_factors(shape, dropout, seed=0, offset=0):
    """[batch, heads, queries, keys]: 0 where a weight is dropped, else what it is multiplied by."""
    seed, offset = seed % 2**64, offset % 2**64
    stream = np.arange(shape[0])[:, None, None, None] * shape[1] + np.arange(shape[1])[:, None, None]
    row, j = np.arange(shape[2])[:, None], np.arange(shape[3])
    counter = np.broadcast_arrays(16 * (j // 128) + j % 16, row, stream, offset % 2**32)
    words = np.stack(philox(counter, (seed % 2**32, seed >> 32 ^ offset >> 32)))
    r = np.broadcast_to(j // 16 % 8, shape)
    halves = np.take_along_axis(words, (r // 2)[None], 0)[0] >> (16 * (r % 2)).astype(np.uint64) & np.uint64(0xFFFF)
    threshold = min(int(65536 * dropout + 0.5), 65535)
    return (halves >= threshold) / (1 - threshold / 65536)


def attention(*arguments, **options):
    """(o, lse) of dense [batch, heads, tokens, dim]."""
    return attention_and_weights(*arguments, **options)[:2]


def attention_and_weights(q, k, v, *, scale=None, softcap=0, alibi=None, sinks=None, score="dot", score_weight=None,
                          scores=None, dropout=0, seed=0, offset=0, **masks):
    """(o, lse, probabilities before dropout)"""
    v = np.asarray(v, float)
    if score == "precomputed":
        s = np.asarray(scores, float)
        v = np.repeat(v, s.shape[1] // v.shape[1], 1)
        s = np.broadcast_to(s, (v.shape[0], *s.shape[1:]))
    else:
        q, k = np.asarray(q, float), np.asarray(k, float)
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
        s = raw_scores(q, k, score, scale, score_weight)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    allowed, position = allowed_keys(s.shape, **masks)
    if masks.get("bias") is not None:
        s = s + np.asarray(masks["bias"], float)
    if alibi is not None:
        s = s - np.asarray(alibi, float).reshape(-1, 1, 1) * np.abs(position - np.arange(s.shape[3]))
    s = np.where(allowed, s, -np.inf)
    top = np.where(allowed.any(-1), s.max(-1, initial=-np.inf), 0)
    e = np.exp(s - top[..., None])
    total = e.sum(-1)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + top
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, float).reshape(-1, 1) - top)
    p = e / np.where(allowed.any(-1), total, 1)[..., None]
    return np.einsum("bhij,bhjd->bhid", p * dropout_factors(p.shape, dropout, seed, offset), v), lse, p


def gradients(do, q, k, v, *, d_lse=None, scale=None, softcap=0, alibi=None, sinks=None, score="dot", score_weight=None,
              scores=None, dropout=0, seed=0, offset=0, **masks):
    """{"dq": ..., "dbias": [batch, heads, queries, keys], ...}: of sum(do * o), and of sum(d_lse * lse)."""
    options = {"scale": scale, "softcap": softcap, "alibi": alibi, "sinks": sinks, "score": score,
               "score_weight": score_weight, "scores": scores, "dropout": dropout, "seed": seed, "offset": offset}
    o, _, p = attention_and_weights(q, k, v, **options, **masks)
    heads, kv_heads = p.shape[1], np.asarray(v).shape[1]
    do, values = np.asarray(do, float), np.repeat(np.asarray(v, float), heads // kv_heads, 1)
    delta, share = (do * o).sum(-1), p.sum(-1)
    factors = dropout_factors(p.shape, dropout, seed, offset)
    ds = p * (factors * np.einsum("bhid,bhjd->bhij", do, values) - delta[..., None])
    if d_lse is not None:
        ds += np.asarray(d_lse, float)[..., None] * p / np.where(share > 0, share, 1)[..., None]
    position = allowed_keys(p.shape, **masks)[1]

    def share_heads(x):
        return x.reshape(x.shape[0], kv_heads, -1, *x.shape[2:]).sum(2)

    found = {"dv": share_heads(np.einsum("bhij,bhid->bhjd", p * factors, do)), "dbias": ds,
             "dsinks": -(np.where(share > 0, 1 - share, 0) * delta).sum((0, 2)),
             "dalibi_slopes": -(ds * np.abs(position - np.arange(p.shape[3]))).sum((0, 2, 3))}
    if score == "precomputed":
        raw = np.asarray(scores, float)
    else:
        q, keys = np.asarray(q, float), np.repeat(np.asarray(k, float), heads // kv_heads, 1)
        raw = raw_scores(q, keys, score, scale, score_weight)
    ds = ds * (1 - np.tanh(raw / softcap) ** 2) if softcap else ds
    if score == "precomputed":
        return {**found, "dscores": ds}
    if score == "dot":
        ds = ds * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
        dk = np.einsum("bhij,bhid->bhjd", ds, q)
        return {**found, "dq": np.einsum("bhij,bhjd->bhid", ds, keys), "dk": share_heads(dk)}
    weight = np.ones(q.shape[-1]) if score_weight is None else np.asarray(score_weight, float)
    one, weight = weight.ndim == 1, weight.reshape(-1, 1, 1, q.shape[-1])
    a, b, ds = q[:, :, :, None], keys[:, :, None], ds[..., None]
    if score == "additive":
        t = np.tanh(a + b)
        by_q = by_k = ds * weight * (1 - t**2)
        by_weight = ds * t
    else:
        by_k = ds * weight**2 * (a - b)
        by_q, by_weight = -by_k, -ds * weight * (a - b) ** 2
    by_weight = by_weight.sum((0, 1, 2, 3) if one else (0, 2, 3))
    return {**found, "dq": by_q.sum(3), "dk": share_heads(by_k.sum(2)), "dscore_weight": by_weight}
