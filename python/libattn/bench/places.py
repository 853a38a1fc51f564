# SPDX-License-Identifier: MIT
"""Placements: where arguments, plans and workspaces lie in memory. A function may be 1 % quicker in one than in another, in
every round alike. So rounds go through several, and what these differ by counts in the interval of every ratio."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np

from .._plan import forget_plans

LINE, PAGE, MOST_GAP = 64, 4096, 2**17
MOST_BYTES = 2**28  # bytes of all copies of a case's arguments
MOST_ROTATION_BYTES, MOST_ROTATIONS = 2.0**31, 64  # copies for a cold cache


class Copy:
    """The arguments of a call in one place."""

    def __init__(self, problem, arrays, keywords):
        self.problem, self.arrays, self.given = problem, arrays, keywords

    @functools.cached_property
    def arguments(self):
        """(arguments, keywords) as functions get them."""
        done = {}  # an object that is given twice stays one

        def converted(value):
            if id(value) not in done:
                done[id(value)] = self.problem.argument(value) if isinstance(value, np.ndarray) else value
            return done[id(value)]

        return [converted(value) for value in self.arrays], {name: converted(value) for name, value in self.given.items()}


class Places:
    """Copies of a problem's arguments: one a round, fewer where they are large. Functions of a round share them. Where
    caches are to be cold, each round has all copies, and calls go through them."""

    def __init__(self, problem, rounds, seed):
        self.problem, self.random, self.gaps, self.warnings = problem, np.random.default_rng(seed), [], []
        arguments, keywords = problem.call
        if problem.cache == "cold-kv":
            self.count, self.copies = rounds, self._rotations(*arguments)
        else:
            size = sum(getattr(value, "nbytes", 0) for value in (*arguments, *keywords.values()))
            self.count = int(min(rounds, max(1, MOST_BYTES // max(1, size))))
            self.copies = [self._copy(arguments, keywords) for _ in range(self.count)]
        self.length = 1 if rounds < 2 * self.count else rounds // self.count

    def of_round(self, index):
        """The copies that calls of this round go through."""
        if self.problem.cache != "warm":
            return self.copies
        return [self.copies[index // self.length % self.count]]

    def move(self):
        """Lets the next plans and allocations lie somewhere else."""
        forget_plans()
        self.gaps.append(np.empty(self.random.integers(LINE, MOST_GAP), np.uint8))

    def _copy(self, arguments, keywords):
        moved = self._all_elsewhere([*arguments, *keywords.values()])
        return Copy(self.problem, moved[:len(arguments)], dict(zip(keywords, moved[len(arguments):])))

    def _rotations(self, q, k, v):
        """Copies of K and V for a cold cache, together over four times the last-level cache."""
        q, one = self._elsewhere(q), k.nbytes + (0 if has_columns(k, v) else v.nbytes)
        wanted, room = 4 * last_level_cache(), min(MOST_ROTATION_BYTES, 0.4 * available_bytes())
        count = max(1, min(MOST_ROTATIONS, math.ceil(wanted / one) + 1, int(room / one)))
        if count * one < wanted:
            self.warnings = [f"cache: {count} copies of K and V are less than 4 x the last-level cache"]
        keywords = self.problem.call[1]
        return [Copy(self.problem, [q, *self._all_elsewhere([k, v])], keywords) for _ in range(count)]

    def _all_elsewhere(self, values):
        """An object that is given twice stays one, and the first columns of another one (latent rows) stay its columns."""
        done = {}
        for index, value in enumerate(values):
            if id(value) not in done:
                rows = next((x for x in values[:index] if has_columns(x, value)), None)
                done[id(value)] = self._elsewhere(value) if rows is None else done[id(rows)][..., :value.shape[-1]]
        return [done[id(value)] for value in values]

    def _elsewhere(self, value):
        """A copy at any line of a page. An object that is no array of NumPy or PyTorch stays the same."""
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


def has_columns(rows, value):
    """Whether both are arrays of NumPy, and `value` is a view of the first columns of `rows`."""
    if not type(rows) is type(value) is np.ndarray or rows.ctypes.data != value.ctypes.data:
        return False
    return (rows.dtype, rows.strides, rows.shape[:-1]) == (value.dtype, value.strides, value.shape[:-1])


def last_level_cache():
    """Bytes of CPU 0's last-level cache; 32 MiB if Linux does not tell."""
    places = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    sizes = [path.read_text(encoding="ascii").strip() for path in places]
    return max((1024 * int(size[:-1]) for size in sizes if size.endswith("K")), default=2**25)


def available_bytes():
    """Memory that is free without swapping."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
