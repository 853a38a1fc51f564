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


def attention(*arguments, **options):
    """(o, lse) of dense [batch, heads, tokens, dim]."""
    return attention_and_weights(*arguments, **options)[:2]


def attention_and_weights(q, k, v, *, scale=None, softcap=0, alibi=None, sinks=None, score="dot", score_weight=None,
                          scores=None, **masks):
    """(o, lse, probabilities)"""
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
    return np.einsum("bhij,bhjd->bhid", p, v), lse, p
