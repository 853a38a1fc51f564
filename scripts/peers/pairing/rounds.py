# SPDX-License-Identifier: MIT
"""Several implementations on one problem: first checked, then timed in rounds of random order."""

import contextlib
import math
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from libattn.bench import harness
from libattn.bench.rounds import calibrate, no_collection, schedule, time_calls

from .implementation import Refused, Result
from .options import LEAST_ROUNDS
from .storage import aligned_empty, make_inputs

REWARM_BELOW_NS = 10e6           # before shorter calls comes an untimed one, which loads their data into the caches
MOST_ROTATION_BYTES = 2.0**31
MOST_ROTATIONS = 64
SPIN_PAUSE_S = 0.05              # idle workers of libgomp spin for less (about 10^5 pauses, below 20 ms)


@dataclass(frozen=True)
class Settings:
    rounds: int = LEAST_ROUNDS
    sample_ns: float = 20e6      # a sample lasts at least so long
    seed: int = 1
    pause_s: float = 0.0         # before every sample: see SPIN_PAUSE_S


def run_case(case, implementations, settings):
    """A Result per implementation. Those that pass the check are timed together."""
    seed = zlib.crc32(f"{settings.seed} {case.id}".encode())
    rotations, warnings = rotate(case, make_inputs(case, seed))
    reference = harness.Reference(case, *rotations[0], seed)
    with contextlib.ExitStack() as stack:
        results = [check(stack, case, each, rotations, reference) for each in implementations]
        passed = [result for result in results if result.status == "PASS"]
        for result in passed:
            result.warnings += warnings
            with result.prepared.scope():
                result.iterations, result.call_ns = calibrate(result.prepared.calls, settings.sample_ns)
        peak = stack.enter_context(harness.open_peak(case.dtype, case.threads))
        measure(passed, case, reference, settings, Gauges(peak, case, rotations), seed)
    return results


def rotate(case, inputs):
    """Copies of K and V for a cold cache, together over four times the last-level cache: (list of (q, k, v), warnings)."""
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
    """Bytes of CPU 0's last-level cache; 32 MiB if Linux does not tell."""
    places = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    sizes = [path.read_text(encoding="ascii").strip() for path in places]
    return max((1024 * int(size[:-1]) for size in sizes if size.endswith("K")), default=2**25)


def available_bytes():
    """Memory that is free without swapping."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))


def check(stack, case, implementation, rotations, reference):
    """Computes every rotation and compares it with the reference. What it prepared stays open in `stack`."""
    result = Result(case.id, implementation.name, problem=case)
    try:
        result.prepared = stack.enter_context(implementation.start(case, rotations))
        with result.prepared.scope():
            for call in result.prepared.calls:
                result.prepared.poison()
                compare(result, call(), reference, "")
                if result.status != "PASS":
                    break
    except Refused as refusal:
        result.drop("SKIP", str(refusal))
    except (RuntimeError, TypeError, ValueError, MemoryError) as error:
        result.drop("ERROR", " ".join(f"{type(error).__name__}: {error}".split()))
    return result


def compare(result, returned, reference, when):
    found = reference.check(result.prepared.output(returned), result.prepared.rounding)
    if result.check is None or found.worst > result.check.worst:
        result.check = found
    if not found.passed:
        place = f"{found.index} (batch:head:query:column)"
        result.drop("FAIL", f"{when}{found.worst:.3g} times the error limit at {place}")


# ---- Timing ------------------------------------------------------------------------------------------------------------

class Gauges:
    """Measures what times are compared with: the peak loop before each sample and, for decoding, the read loop per round."""

    def __init__(self, peak, case, rotations):
        self.peak, self.rotations, self.reads = peak, rotations, case.is_decode
        self.round, self.read_rate = -1, 0.0

    def record(self, result, index):
        if self.peak is None:
            return
        if self.reads and index != self.round:
            self.round, self.read_rate = index, self.peak.read(self.rotations)
        if self.read_rate:
            result.read_rates.append(self.read_rate)
        result.peak_rates.append(self.peak.flops())


def measure(results, case, reference, settings, gauges, seed):
    """Takes one sample of each result per round, with its position and rates. The last output is compared again."""
    with no_collection():
        for index, position, result in schedule(results, settings.rounds, seed):
            if settings.pause_s:
                time.sleep(settings.pause_s)
            gauges.record(result, index)
            returned = take_sample(result, position, case, settings)
            if index == settings.rounds - 1:
                compare(result, returned, reference, "after timing: ")


def take_sample(result, position, case, settings):
    """One sample: the time per call. Returns what the last call returned."""
    prepared = result.prepared
    if settings.pause_s:
        time.sleep(settings.pause_s)
    prepared.poison()
    with prepared.scope():
        if case.cache == "warm" and result.call_ns < REWARM_BELOW_NS:
            prepared.calls[0]()
        total_ns, returned = time_calls(prepared.calls, result.iterations)
    result.times_ns.append(total_ns / result.iterations)
    result.positions.append(position)
    return returned
