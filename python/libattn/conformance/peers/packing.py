# SPDX-License-Identifier: MIT
"""For peers whose queries are packed and whose keys and values lie in pages: other cases are copied there."""

from dataclasses import dataclass

import numpy as np

from ..verdicts import Refused
from . import only

OPTIONS = "causal", "align", "window", "kv_len", "q_len", "cu_seqlens_q", "cu_seqlens_k", "page_table"
PAGE = 32


@dataclass
class Packed:
    """q [tokens, heads, dim]; k, v [pages, kv_heads, page tokens, dim]; table [batch, pages of a sequence]; cu [batch + 1]:
    where the queries of each sequence begin; lengths [batch]: its keys; window: how many keys a query sees, or None."""
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    table: np.ndarray
    cu: np.ndarray
    lengths: np.ndarray
    causal: bool
    window: int | None
    shape: tuple

    def unpack(self, o):
        """o [tokens, heads, dim] in the shape of the case; rows of padding, which the peer does not have, are 0."""
        if len(self.shape) == 3:
            return o
        full = np.zeros((self.shape[0], self.shape[2], self.shape[1], o.shape[-1]), np.float32)
        for b, (start, end) in enumerate(zip(self.cu, self.cu[1:])):
            full[b, :end - start] = o[start:end]
        return full.transpose(0, 2, 1, 3)


def pack(who, q, k, v, others, always_causal=False):
    """Refuses what is not causal masks aligned bottom-right, windows of the last keys, and lengths."""
    only(others, who, *OPTIONS)
    causal, window, align = others.get("causal", False), others.get("window"), others.get("align", "top_left")
    if not isinstance(align, str):
        raise Refused(f"{who} aligns bottom-right")
    if window and (window[0] is None or window[1] not in (0, None) or window[1] is None and not causal):
        raise Refused(f"{who} has a window of the last keys alone")
    table, cu_k = others.get("page_table"), others.get("cu_seqlens_k")
    cu, lengths = queries_of(q, k, others)
    rows = np.diff(cu)
    if any(n and not keys for n, keys in zip(rows, lengths)):
        raise Refused(f"{who} does not write the rows of a sequence without keys")
    if align == "top_left" and (causal or window) and table is None and (rows != lengths).any():
        raise Refused(f"{who} aligns bottom-right")
    causal = bool(causal or window)
    if always_causal and not causal and (rows > 1).any():
        raise Refused(f"{who} is always causal")
    if always_causal and (rows > lengths).any():
        raise Refused(f"{who} has no queries before key 0")
    packed = q if q.ndim == 3 else np.concatenate([q[b, :, :n].transpose(1, 0, 2) for b, n in enumerate(rows)])
    k, v, table = pages_of(k, v, lengths, cu_k) if table is None else (k, v, table)
    return Packed(packed, k, v, table, cu, lengths, causal, window[0] + 1 if window else None, q.shape)


def queries_of(q, k, others):
    """(cu_seqlens_q, keys of each sequence)"""
    cu, kv_len = others.get("cu_seqlens_q"), others.get("kv_len")
    if cu is not None:
        return cu, kv_len if "page_table" in others else np.diff(others["cu_seqlens_k"])
    rows = others.get("q_len", np.full(len(q), q.shape[2]))
    return np.cumsum([0, *rows]), np.full(len(q), k.shape[2]) if kv_len is None else kv_len


def pages_of(k, v, lengths, cu_seqlens_k):
    """Dense or packed keys and values in pages; what lies behind a length is copied, too, where there is such a key."""
    if cu_seqlens_k is None:
        tokens = [[x[b].transpose(1, 0, 2) for b in range(len(lengths))] for x in (k, v)]
    else:
        tokens = [[x[a:b] for a, b in zip(cu_seqlens_k, cu_seqlens_k[1:])] for x in (k, v)]
    columns = max(-(-max(len(x) for x in tokens[0]) // PAGE), 1)
    table = np.arange(len(lengths) * columns).reshape(len(lengths), columns)
    caches = []
    for every in tokens:
        cache = np.zeros((table.size, PAGE, *every[0].shape[1:]), every[0].dtype)
        for b, x in enumerate(every):
            cache.reshape(len(lengths), columns * PAGE, *x.shape[1:])[b, :len(x)] = x
        caches.append(cache.transpose(0, 2, 1, 3))
    return *caches, table


def tokens_of(cache, table, lengths):
    """Keys or values [tokens, kv_heads, dim] of all sequences, one behind the other, out of their pages."""
    rows = cache.transpose(0, 2, 1, 3)
    return np.concatenate([rows[pages[:-(-n // rows.shape[1])]].reshape(-1, *rows.shape[2:])[:n]
                           for pages, n in zip(table, lengths)])
