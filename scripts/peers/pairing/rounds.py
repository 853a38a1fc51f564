# SPDX-License-Identifier: MIT
"""Several contenders on one problem, side by side: checked first, then timed in rounds of changing order."""

import contextlib
import gc
import itertools
import math
import random
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .contender import Refused, Result
from .libattn import aligned_empty
from .peak import PeakLibrary
from .reference import Reference, make_inputs
from .stats import LEAST_ROUNDS

REWARM_BELOW_NS = 10e6           # shorter calls get an untimed one first, which brings their data back into the caches
MOST_ROTATION_BYTES = 2.0**31
MOST_ROTATIONS = 64
SPIN_PAUSE_S = 0.05              # longer than idle workers of libgomp spin (some 10^5 pauses, below 20 ms)


@dataclass(frozen=True)
class Settings:
    rounds: int = LEAST_ROUNDS
    sample_ns: float = 20e6      # a sample lasts at least so long
    seed: int = 1
    pause_s: float = 0.0         # before every sample: see SPIN_PAUSE_S
    peak: PeakLibrary = None     # what shares of the peak are taken of; None: none are


def run_case(case, contenders, settings):
    """A Result per contender. Only what passed the check is timed, and all that passed is timed together."""
    seed = zlib.crc32(f"{settings.seed} {case.id}".encode())
    rotations, warnings = rotate(case, make_inputs(case, np.random.default_rng(seed), aligned_empty))
    reference = Reference(case, *rotations[0])
    with contextlib.ExitStack() as stack:
        results = [check(stack, case, contender, rotations, reference) for contender in contenders]
        racing = [result for result in results if result.status == "PASS"]
        for result in racing:
            result.warnings += warnings
            calibrate(result, settings)
        meter = stack.enter_context(settings.peak.meter(case.dtype, case.threads)) if settings.peak else None
        measure(racing, case, reference, settings, Gauges(meter, case, rotations), random.Random(seed))
    return results


def rotate(case, inputs):
    """Copies of K and V for a cold cache, together beyond four times the last level: (list of (q, k, v), warnings)."""
    if case.cache == "warm":
        return [tuple(inputs)], []
    wanted, room = 4 * last_level_cache(), min(MOST_ROTATION_BYTES, 0.4 * available_bytes())
    count = max(1, min(MOST_ROTATIONS, math.ceil(wanted / case.bytes_kv) + 1, int(room / case.bytes_kv)))
    q, *kv = inputs
    rotations = [(q, *kv)]
    for _ in range(count - 1):
        copies = [aligned_empty(x.shape, x.dtype) for x in kv]
        for copy, original in zip(copies, kv):
            copy[...] = original
        rotations.append((q, *copies))
    short = count * case.bytes_kv < wanted
    return rotations, [f"cache: {count} copies of K and V are less than 4 x the last-level cache"] if short else []


def last_level_cache():
    """Bytes, by what Linux says of CPU 0; 32 MiB where it says nothing."""
    places = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    sizes = [path.read_text(encoding="ascii").strip() for path in places]
    return max((1024 * int(size[:-1]) for size in sizes if size.endswith("K")), default=2**25)


def available_bytes():
    """Memory that can be had without swapping."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))


def check(stack, case, contender, rotations, reference):
    """Every rotation is computed and compared with the reference; leaves the entrant open in `stack`."""
    result = Result(contender.name)
    try:
        result.entrant = stack.enter_context(contender.start(case, rotations))
        with result.entrant.scope():
            for call in result.entrant.calls:
                result.entrant.poison()
                compare(result, call(), reference, "")
                if result.status != "PASS":
                    break
    except Refused as refusal:
        result.lose("SKIP", str(refusal))
    except (RuntimeError, TypeError, ValueError, MemoryError) as error:
        result.lose("ERROR", " ".join(f"{type(error).__name__}: {error}".split()))
    return result


def compare(result, returned, reference, when):
    entrant = result.entrant
    judgement = reference.judge(entrant.output(returned), entrant.rounding)
    if result.judgement is None or judgement.worst > result.judgement.worst:
        result.judgement = judgement
    if not judgement.passed:
        place = f"{judgement.index} (batch:head:query:column)"
        result.lose("FAIL", f"{when}{judgement.worst:.3g} times the error limit at {place}")


# ---- Timing ------------------------------------------------------------------------------------------------------------

class Gauges:
    """The loops that rates are shares of, beside the samples: the peak loop before each, for decoding the read loop once a
    round."""

    def __init__(self, meter, case, rotations):
        self.meter, self.rotations, self.reads = meter, rotations, case.is_decode
        self.round, self.read_rate = -1, 0.0

    def record(self, result, index):
        if self.meter is None:
            return
        if self.reads and index != self.round:
            self.round, self.read_rate = index, self.meter.read(self.rotations)
        if self.read_rate:
            result.read_rates.append(self.read_rate)
        result.peak_rates.append(self.meter.flops())


def measure(results, case, reference, settings, gauges, rng):
    """Fills times, positions and the rates beside them: everyone once per round. The last output is compared again."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        for index, position, result in schedule(results, settings.rounds, rng):
            if settings.pause_s:
                time.sleep(settings.pause_s)
            gauges.record(result, index)
            returned = take_sample(result, position, case, settings)
            if index == settings.rounds - 1:
                compare(result, returned, reference, "after timing: ")
    finally:
        if collecting:
            gc.enable()


def schedule(results, rounds, rng):
    """(round, position in it, result): the rows of randomised Latin squares."""
    square = []
    for index in range(rounds if results else 0):
        square = square or latin_square(len(results), rng)
        for position, who in enumerate(square.pop()):
            yield index, position, results[who]


def latin_square(n, rng):
    """Rows of names 0..n-1, everyone once in each place; for even n everyone follows everyone else equally often
    (Williams 1949)."""
    names, shifts = rng.sample(range(n), n), rng.sample(range(n), n)
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) % n for place in range(n)]
    return [[names[(step + shift) % n] for step in zigzag] for shift in shifts]


def take_sample(result, position, case, settings):
    """One sample: the time per call. Returns what the last call returned."""
    entrant = result.entrant
    if settings.pause_s:
        time.sleep(settings.pause_s)
    entrant.poison()
    with entrant.scope():
        if case.cache == "warm" and result.call_ns < REWARM_BELOW_NS:
            entrant.calls[0]()
        total_ns, returned = time_calls(entrant.calls, result.iterations)
    result.times_ns.append(total_ns / result.iterations)
    result.positions.append(position)
    return returned


def time_calls(calls, count):
    """(nanoseconds of `count` calls, what the last one returned)"""
    due = itertools.islice(itertools.cycle(calls), count)
    start = time.perf_counter_ns()
    for call in due:
        returned = call()
    return time.perf_counter_ns() - start, returned


def calibrate(result, settings):
    """Finds how many calls make a sample, which also warms up."""
    least_ns = max(settings.sample_ns, 1e12 * time.get_clock_info("perf_counter").resolution)
    with result.entrant.scope():
        total_ns, _ = time_calls(result.entrant.calls, 1)
        while total_ns < least_ns:
            factor = min(100, 1.2 * least_ns / max(total_ns, 1))
            result.iterations = math.ceil(result.iterations * max(factor, 1.2))
            total_ns, _ = time_calls(result.entrant.calls, result.iterations)
    result.call_ns = total_ns / result.iterations
