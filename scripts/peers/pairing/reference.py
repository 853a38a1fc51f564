# SPDX-License-Identifier: MIT
"""The right answer in float64, in NumPy, and how far from it an output may be: docs/numerics.md for dot scores."""

import math
from dataclasses import dataclass

import numpy as np

from .storage import ARRAYS, LEAST_STEP, ROUNDOFF, store, widen

BLOCK = 512  # query rows at a time: bounds the memory of the scores
U = 2.0**-24
ASSUMED_EXP_ERROR = 20 * 2.0**-23  # of a rival that states none: the widest that one of them does state (PyTorch)


@dataclass(frozen=True)
class Rounding:
    """attn_numerics: what a kernel says about its own arithmetic. store_error: of storing an output, where it is not rounding
    to nearest."""
    exp_error: float
    p_rounding: float = 0.0
    input_flush: float = 0.0
    store_error: float = None


@dataclass(frozen=True)
class Judgement:
    """worst: largest error / limit, > 1 fails. abs_error: largest error. index: "batch:head:query:column" of the worst."""
    worst: float
    abs_error: float
    index: str
    rows: int

    @property
    def passed(self):
        return self.worst <= 1


def make_inputs(case, rng, empty=np.empty):
    """q, k, v: normal, mean zero, standard deviation 1, rounded to the dtype of the case. empty: allocates."""
    shapes = [(case.batch, heads, seq, case.head_dim)
              for heads, seq in ((case.heads, case.seq_q), (case.heads_kv, case.seq_k), (case.heads_kv, case.seq_k))]
    return [store(rng.standard_normal(shape, dtype=np.float32), case.dtype, empty(shape, ARRAYS[case.dtype]))
            for shape in shapes]


class Reference:
    """o and lse of a case in float64, and beside each output what its error limit needs (names as in docs/numerics.md)."""

    def __init__(self, case, q, k, v):
        self.case, self.scale = case, float(np.float32(1 / math.sqrt(case.head_dim)))
        q, k, v = (widen(x, case.dtype) for x in (q, k, v))
        shape = q.shape[:3]
        self.o, self.m = np.zeros((*shape, v.shape[3])), np.zeros((*shape, v.shape[3]))  # M = sum p |v|
        self.w = None if case.dtype == "f32" else np.zeros(self.o.shape)                 # W = sqrt(sum p^2 (v - o)^2)
        self.lse, self.abs_sum, self.allowed = np.full(shape, -np.inf), np.zeros(shape), np.zeros(shape)
        # Over all keys of the head, allowed or not: they only enter terms of the size of denormals.
        self.max_q = np.abs(q).max(initial=0)
        self.max_k, self.max_v = (np.repeat(np.abs(x).max((2, 3)), case.heads // case.heads_kv, 1)[:, :, None]
                                  for x in (k, v))
        for b in range(case.batch):
            for kv_head in range(case.heads_kv):
                self._fill_group(b, kv_head, q[b], k[b, kv_head], v[b, kv_head])

    def _fill_group(self, b, kv_head, q, k, v):
        """All rows of the query heads that share a KV head."""
        group = self.case.heads // self.case.heads_kv
        abs_k, abs_v, keys = np.abs(k).T, np.abs(v), np.arange(len(k))
        for h in range(kv_head * group, (kv_head + 1) * group):
            for first in range(0, q.shape[1], BLOCK):
                rows = slice(first, min(first + BLOCK, q.shape[1]))
                block = q[h, rows]
                allowed = np.ones((len(block), len(k)), bool)
                if self.case.causal != "none":
                    allowed = keys <= np.arange(rows.start, rows.stop)[:, None] + self.case.offset
                self._fill_rows((b, h, rows), block, k, v, abs_k, abs_v, allowed)

    def _fill_rows(self, place, q, k, v, abs_k, abs_v, allowed):
        s = np.where(allowed, self.scale * (q @ k.T), -np.inf)
        some = allowed.any(1)
        top = np.where(some, s.max(1, initial=-np.inf), 0.0)
        p = np.exp(s - top[:, None])
        total = np.where(some, p.sum(1), 1.0)
        p /= total[:, None]
        self.o[place], self.m[place] = p @ v, p @ abs_v
        if self.w is not None:
            o, p2 = self.o[place], p * p
            square = p2 @ (v * v) - 2 * o * (p2 @ v) + o * o * p2.sum(1, keepdims=True)
            self.w[place] = np.sqrt(np.maximum(square, 0))
        self.lse[place] = np.where(some, top + np.log(total), -np.inf)
        self.abs_sum[place] = (self.scale * (np.abs(q) @ abs_k) * allowed).max(1, initial=0)
        self.allowed[place] = allowed.sum(1)

    def limits(self, rounding):
        """Of every output and every LSE. The sharp limit applies too: the inputs have mean zero. W is known for half-precision
        problems only, so of a kernel that narrows P in a float32 problem only the proven limit is asked."""
        n, dim, eps, u_p, f = self.allowed, self.case.head_dim, rounding.exp_error, rounding.p_rounding, rounding.input_flush
        rescales = 1 + np.floor(n / 16)
        tiny = 2.0**-126 if f else 2.0**-149
        vanish = dim * (self.scale * f * (self.max_q + self.max_k) + 2.0**-126 * (self.scale + self.max_k))
        proven = U * (dim + 16) * self.abs_sum + vanish + eps * (1 + rescales) + u_p + U * (n + rescales + 4)
        sharp = U * (4 + math.sqrt(dim)) * self.abs_sum + vanish + eps + U * (np.sqrt(n) + 4)
        lost = n * 2.0**-125 * self.max_v + (2 * n + 4) * tiny + f
        a = (2 * proven)[..., None]
        error = np.where(a < 1, np.expm1(np.minimum(a, 1)) * self.m, 2 * (self.max_v[..., None] + np.abs(self.o)))
        if not u_p or self.w is not None:
            narrowed = 6 * u_p * self.w if u_p else 0.0
            error = np.minimum(error, (2 * sharp)[..., None] * self.m + narrowed)
            proven = np.minimum(proven, sharp + u_p)
        error = error + lost[..., None]
        dtype = self.case.dtype
        u_o = ROUNDOFF[dtype] if rounding.store_error is None else rounding.store_error
        output = error + u_o * (np.abs(self.o) + error) + LEAST_STEP[dtype] / 2
        finite_lse = np.where(n > 0, self.lse, 0)
        return np.where(n[..., None] > 0, output, 0), np.where(n > 0, proven + 4 * U * (1 + np.abs(finite_lse)), 0)

    def judge(self, output, rounding):
        """Compares every element of `output` [batch][heads][seq][dim], stored as the case says. A NaN anywhere fails."""
        limit, _ = self.limits(rounding)
        error = np.abs(widen(output, self.case.dtype) - self.o)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(error <= limit, np.where(limit > 0, error / limit, 0), np.maximum(error / limit, 1 + 1e-9))
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
        worst = np.unravel_index(np.argmax(ratio), ratio.shape)
        return Judgement(worst=float(ratio[worst]), abs_error=float(np.where(np.isnan(error), np.inf, error).max()),
                         index=":".join(map(str, worst)), rows=output.size // output.shape[3])
