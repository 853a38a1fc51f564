# SPDX-License-Identifier: MIT
"""Placements: where arguments, plans and workspaces lie in memory. A function may be 1 % quicker in one than in another, in
every round alike. So rounds go through several, and what these differ by counts in the interval of every ratio."""

from __future__ import annotations

import numpy as np

from .._plan import forget_plans

LINE, PAGE, MOST_GAP = 64, 4096, 2**17
MOST_BYTES = 2**28  # of all copies of a case's arguments


class Places:
    """Copies of a call's arguments: one a round, fewer where they are large. Functions of a round share a copy."""

    def __init__(self, call, convert, rounds, seed):
        arguments, keywords = call
        self.random, self.gaps, self.convert = np.random.default_rng(seed), [], convert
        size = sum(getattr(value, "nbytes", 0) for value in (*arguments, *keywords.values()))
        self.count = int(min(rounds, max(1, MOST_BYTES // max(1, size))))
        self.length = 1 if rounds < 2 * self.count else rounds // self.count
        self.calls = [self._copy(arguments, keywords) for _ in range(self.count)]

    def call_of(self, index):
        """(arguments, keywords) of that round."""
        return self.calls[index // self.length % self.count]

    def move(self):
        """The next call plans anew, somewhere else."""
        forget_plans()
        self.gaps.append(np.empty(self.random.integers(LINE, MOST_GAP), np.uint8))

    def _copy(self, arguments, keywords):
        done = {}  # what is given twice stays one

        def copy(value):
            if id(value) not in done:
                moved = self._elsewhere(value)
                done[id(value)] = self.convert(moved) if self.convert and isinstance(value, np.ndarray) else moved
            return done[id(value)]

        return [copy(value) for value in arguments], {name: copy(value) for name, value in keywords.items()}

    def _elsewhere(self, value):
        """A copy at any line of a page; of what is no array of NumPy or PyTorch, the same."""
        if type(value) is np.ndarray and value.flags.c_contiguous and not value.dtype.hasobject:
            start = self.random.integers(PAGE // LINE) * LINE
            memory = np.empty(value.nbytes + 2 * PAGE, np.uint8)
            start += -memory.ctypes.data % PAGE
            moved = memory[start:start + value.nbytes].view(value.dtype).reshape(value.shape)
            moved[...] = value
            return moved
        if type(value).__module__ == "torch" and hasattr(value, "clone") and not value.requires_grad:
            self.gaps.append(np.empty(self.random.integers(LINE, MOST_GAP), np.uint8))
            return value.clone()
        return value
