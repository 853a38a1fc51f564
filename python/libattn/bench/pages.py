# SPDX-License-Identifier: MIT
"""Problems whose keys and values lie in pages, with packed queries, as attnbench's axes page_tokens, page_order, lengths and
chunk define them."""

from __future__ import annotations

import itertools

import numpy as np

from . import harness


class Pages:
    """lengths: (queries, keys) of each sequence. table: int32 [batch, columns], -1 behind a sequence's last page. kv_len:
    int32 [batch]. cu_seqlens_q: int32 [batch + 1]. count: pages in all."""

    def __init__(self, axes, batch, seq_k, page_tokens, shuffled, generator):
        self.page_tokens, self.lengths = page_tokens, harness.lengths(axes, batch)
        columns = -(-seq_k // page_tokens)
        self.count = batch * columns
        self.table = np.arange(self.count, dtype=np.int32).reshape(batch, columns)
        if shuffled:
            self.table = generator.permutation(self.table.ravel()).reshape(batch, columns)
        self.kv_len = np.array([keys for _, keys in self.lengths], np.int32)
        self.table[np.arange(columns) >= -(-self.kv_len[:, None] // page_tokens)] = -1
        self.cu_seqlens_q = np.array([0, *itertools.accumulate(queries for queries, _ in self.lengths)], np.int32)

    def rows(self, b):
        """The packed queries of sequence b."""
        return slice(*self.cu_seqlens_q[b:b + 2])

    @property
    def uniform(self):
        """Whether all sequences have as many queries, and as many keys."""
        return len(set(self.lengths)) == 1

    def dense(self, q, k, v):
        """Copies [batch, heads, tokens, dim] of arrays whose lengths are uniform: for peers without pages."""
        queries = q.reshape(len(self.lengths), -1, *q.shape[1:]).transpose(0, 2, 1, 3)
        keys, values = (np.concatenate([self.tokens(x, b) for b in range(len(self.lengths))]) for x in (k, v))
        return tuple(map(np.ascontiguousarray, (queries, keys, values)))

    def tokens(self, pages, b):
        """[1, heads, keys, dim], a copy of what stands in the pages [pages, heads, page_tokens, dim] of sequence b."""
        used = self.table[b][self.table[b] >= 0]
        heads, dim = pages.shape[1], pages.shape[3]
        return pages[used].transpose(1, 0, 2, 3).reshape(1, heads, -1, dim)[:, :, :self.kv_len[b]]


class Reference:
    """The right output of packed queries [tokens, heads, dim], by an oracle for each sequence that has some."""

    def __init__(self, problem, q, k, v, seed):
        self.pages, self.parts = problem.pages, {}
        for b, (queries, keys) in enumerate(problem.pages.lengths):
            if queries:
                arrays = heads_first(q[problem.pages.rows(b)]), *(problem.pages.tokens(x, b) for x in (k, v))
                arrays = map(np.ascontiguousarray, arrays)
                self.parts[b] = harness.Reference(Sequence(problem, queries, keys), *arrays, seed + b)

    def check(self, output, rounding):
        """The Check of the sequence with the largest error; its index names that sequence and its own queries."""
        found = {b: part.check(np.ascontiguousarray(heads_first(output[self.pages.rows(b)])), rounding)
                 for b, part in self.parts.items()}
        b, worst = max(found.items(), key=lambda item: item[1].worst)
        index = ":".join([str(b), *worst.index.split(":")[1:]])
        return harness.Check(worst.worst, max(one.abs_error for one in found.values()), index,
                             sum(one.rows for one in found.values()))


class Sequence:
    """One of a problem, as harness.Reference takes it."""

    def __init__(self, problem, queries, keys):
        self.batch, self.heads, self.heads_kv = 1, problem.heads, problem.heads_kv
        self.head_dim, self.dim_v = problem.head_dim, problem.dim_v
        self.seq_q, self.seq_k, self.causal = queries, keys, problem.causal
        self.dtype, self.dtype_kv = problem.dtype, problem.dtype_kv


def heads_first(x):
    """[tokens, heads, dim] as [1, heads, tokens, dim]."""
    return x.transpose(1, 0, 2)[None]
