# SPDX-License-Identifier: MIT
"""Rounds, as attnbench takes them: every function once in each, in an order that changes."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import math
import time
from dataclasses import dataclass, field
from typing import Callable

from .._native import bench_library
from .harness import Rounding, latin_square, open_peak

SPIN_PAUSE_S = 0.05  # idle workers of libgomp spin for less (about 10^5 pauses, below 20 ms)


class Refused(Exception):
    """An implementation cannot take the case, which becomes a SKIP row. The message is the reason."""


@dataclass
class Prepared:
    """An implementation that is ready to run one case."""
    calls: list                           # one function per copy of q, k and v; each computes the case and returns a result
    output: Callable = lambda result: result  # result -> array [batch][heads][seq][dim]; raises if the call failed
    rounding: Rounding | None = None      # the error limit follows from it
    facts: dict = field(default_factory=dict)  # further columns of its row: algorithm, isa, library, plan_ns, ...
    scope: Callable = contextlib.nullcontext   # () -> context manager for the calls, entered before the clock starts
    note: str = ""                        # for the table
    poison: Callable = lambda: None       # fills the output with NaN, which shows a call that writes nothing


def start(run, problem, copies):
    """A context manager that returns the Prepared of a function, or of an object with start(problem, arrays)."""
    if hasattr(run, "start"):
        return run.start(problem, [copy.arrays for copy in copies])
    calls = [functools.partial(run, *arguments, **keywords) for arguments, keywords in (copy.arguments for copy in copies)]
    return contextlib.nullcontext(Prepared(calls))


def check(row, right, places):
    """Calls the function on every copy, and checks what it returns. Given cases are compared with `right`, the
    baseline's first result. Returns the first result. A function that fails is not timed."""
    first = None
    try:
        with start(row.run, row.problem, places.copies) as prepared, prepared.scope():
            row.facts, row.note = prepared.facts, prepared.note
            for call in prepared.calls:
                prepared.poison()
                returned = call()
                first = returned if first is None else first
                if not compare_output(row, prepared, returned, first if right is None else right):
                    break
    except Refused as refusal:
        row.drop("SKIP", str(refusal))
    except Exception as error:  # whatever a function of the caller raises becomes a row
        row.drop("ERROR", " ".join(f"{type(error).__name__}: {error}".split()))
        return None
    return first


def compare_output(row, prepared, returned, right, when=""):
    """Whether what a call returned is right; if not, the row says what is wrong with it."""
    wrong, found = row.problem.check(prepared.output(returned), right, prepared.rounding)
    if found and (row.check is None or found.worst > row.check.worst):
        row.check = found
    if wrong:
        row.drop("FAIL", when + wrong)
    return not wrong


# ---- Timing ------------------------------------------------------------------------------------------------------------

def measure(rows, problem, places, rounds, sample_ns, threads, seed, pause_s):
    """Takes a sample of each row per round, every time in another place, and the peak and read loops beside it. The last
    output is checked again."""
    with open_peak(problem.dtype, threads) as peak, no_collection():
        for row in rows:
            with start(row.run, problem, places.of_round(0)) as prepared, prepared.scope():
                row.iterations, _ = calibrate(prepared.calls, sample_ns)
        bench_library().attnbench_handlers_note()
        read_rate = None
        for index, position, row in schedule(rows, rounds, seed):
            time.sleep(pause_s)
            if peak and problem.is_decode and (read_rate is None or position == 0):
                read_rate = peak.read([copy.arrays for copy in places.of_round(index)])
            if read_rate:
                row.read_rates.append(read_rate)
            if peak:
                row.peak_rates.append(peak.flops())
            time.sleep(pause_s)
            sample(row, problem, places, index, position, last=index == rounds - 1)


def sample(row, problem, places, index, position, last):
    places.move()
    with start(row.run, problem, places.of_round(index)) as prepared, prepared.scope():
        for call in prepared.calls:
            warm = call()  # plans, touches its memory for the first time and, where there is one copy, warms the caches
        prepared.poison()
        total_ns, returned = time_calls(prepared.calls, row.iterations)
        row.times_ns.append(total_ns / row.iterations)
        row.positions.append(position)
        handler = bench_library().attnbench_handlers_other()  # asked after every sample, because it ends the handler
        row.handler = row.handler or handler
        if last and row.handler:
            row.drop("ERROR", f"sets a handler of signal {row.handler}, which could work between calls")
        elif last:
            compare_output(row, prepared, returned, warm, "after timing: ")


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
    begun = time.perf_counter_ns()
    for call in due:
        returned = call()
    return time.perf_counter_ns() - begun, returned


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
