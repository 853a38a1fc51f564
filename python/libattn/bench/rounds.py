# SPDX-License-Identifier: MIT
"""Rounds, as attnbench takes them: every function once in each, in an order that changes."""

import contextlib
import gc
import itertools
import math
import time

from .harness import latin_square


def schedule(items, rounds, seed):
    """(round, position, item): the rows of randomised Latin squares, one square after the other."""
    for index in range(rounds if items else 0):
        block, row = divmod(index, len(items))
        if row == 0:
            square = latin_square(len(items), seed, block)
        for position, who in enumerate(square[row]):
            yield index, position, items[who]


def time_calls(calls, count):
    """(nanoseconds of `count` calls, what the last one returned); `calls` in turn."""
    due = itertools.islice(itertools.cycle(calls), count)
    start = time.perf_counter_ns()
    for call in due:
        returned = call()
    return time.perf_counter_ns() - start, returned


def calibrate(calls, sample_ns):
    """(calls of a sample that lasts at least so long, nanoseconds of a call). This also warms up."""
    least_ns = max(sample_ns, 1e12 * time.get_clock_info("perf_counter").resolution)
    count = 1
    total_ns, _ = time_calls(calls, count)
    while total_ns < least_ns:
        factor = min(100, 1.2 * least_ns / max(total_ns, 1))
        count = math.ceil(count * max(factor, 1.2))
        total_ns, _ = time_calls(calls, count)
    return count, total_ns / count


@contextlib.contextmanager
def no_collection():
    """No garbage is collected while samples are taken."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
