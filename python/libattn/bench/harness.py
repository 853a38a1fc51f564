# SPDX-License-Identifier: MIT
"""The C functions of attnbench for Python (libattnbench.so): statistics, order of rounds, float64 oracle, error limits, peak
loops."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from ctypes import byref, c_char_p, c_double, c_int, c_int32, c_int64
from dataclasses import dataclass

from .._native import S, bench_library

ALIGNMENTS = {"none": None, "top-left": 0, "bottom-right": 1}  # attn_align of causal problems
SLICE_NS = 2e6        # time of the peak loop before every sample
READ_BYTES = 2.0**28  # so many of K and V are read at most once per round
READ_ORDERS = 3  # orders of the read loop (harness/timing/reading.h)


def doubles(values):
    return (c_double * len(values))(*values)


# ---- Statistics --------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Summary:
    """low, high: the 95 % interval of the median from order statistics; NaN for fewer than 6 values. mad: the median
    absolute deviation."""
    min: float
    median: float
    mad: float
    low: float
    high: float


def summarise(values):
    summary = doubles([0.0] * 5)
    bench_library().attnbench_summarise(doubles(values), len(values), summary)
    return Summary(*summary)


@dataclass(frozen=True)
class Ratio(Summary):
    """median: the mean over the placements, a trimmed mean of their medians; low, high and p are of that mean, by what
    rounds and placements differ by. NaN and 1 for fewer than 6 rounds or 2 placements."""
    p: float


def paired_ratio(a, b, placing=None, ran=(None, None)):
    """a / b round by round. placing: (placements, rounds in turn in each), one placement after the other; None: each round
    has its own. ran: of a and of b, which part of each round they had their cores; rounds in which other programs took them
    do not count. min and mad are of the rounds, mad relative."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values are no pairs")
    summary = doubles([0.0] * 6)
    ran = [doubles(part) if part else None for part in ran]
    bench_library().attnbench_paired_ratio(doubles(a), doubles(b), *ran, len(a), *(placing or (0, 0)), summary)
    return Ratio(*summary)


def holm(p_values):
    """Adjusted p-values in the same order: if those <= a are rejected, the chance of any false rejection is at most a."""
    p = doubles(p_values)
    if not bench_library().attnbench_holm(p, len(p)):
        raise MemoryError
    return list(p)


def latin_square(n, seed, block):
    """The orders of n rounds: every number 0 .. n - 1 is once in each place and, for even n, once behind each other one."""
    square = (c_int * (n * n))()
    if not bench_library().attnbench_latin_square(square, n, seed, block):
        raise MemoryError
    return [list(square[n * row:n * (row + 1)]) for row in range(n)]


ALPHA = 0.01   # chance of any false FASTER or SLOWER in a table, as of attnbench compare
MARGIN = 0.01  # a lead below 1 % is no lead, whatever the intervals say


def verdict(ratio, p, margin=MARGIN):
    """The verdict on a ratio, another's time over that of the function, with its corrected p. FASTER: the function is
    faster. SAME: the interval lies within the margin."""
    separated = p <= ALPHA and not ratio.low <= 1 <= ratio.high
    if separated and ratio.median > 1 + margin:
        return "FASTER"
    if separated and ratio.median < 1 / (1 + margin):
        return "SLOWER"
    if 1 / (1 + margin) <= ratio.low and ratio.high <= 1 + margin:
        return "SAME"
    return "INCONCLUSIVE"


# ---- Cases -------------------------------------------------------------------------------------------------------------

class CaseError(Exception):
    """A case that cannot be read or measured; the message names axis, value and what would be right."""


def axis_values(assignment):
    """The values of an assignment: ["128", "256"] for "seq=128:256:*2"."""
    values = ctypes.create_string_buffer(2**16)
    if not bench_library().attnbench_axis(assignment.encode(), values, len(values)):
        raise CaseError(values.value.decode())
    return values.value.decode().split(",")


@functools.lru_cache(maxsize=1024)
def describe(*axes):
    """(case id, [batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v], flops, bytes per call) for axes as "seq=128"."""
    texts = (c_char_p * len(axes))(*(axis.encode() for axis in axes))
    text, sizes, work = ctypes.create_string_buffer(480), (c_int64 * 7)(), doubles([0.0] * 2)
    if not bench_library().attnbench_case(texts, len(axes), text, sizes, work):
        raise CaseError(text.value.decode())
    return text.value.decode(), list(sizes), int(work[0]), int(work[1])


def lengths(axes, batch):
    """[(queries, keys)] of each of the `batch` sequences of a case of these axes."""
    texts = (c_char_p * len(axes))(*(axis.encode() for axis in axes))
    queries, keys = (c_int32 * batch)(), (c_int32 * batch)()
    if not bench_library().attnbench_lengths(texts, len(axes), batch, queries, keys):
        raise CaseError(f"{' '.join(axes)}: no such case of {batch} sequences")
    return list(zip(queries, keys))


@dataclass(frozen=True)
class Dtype:
    """A storage type: its attn_dtype, the bytes of an element, half a unit in the last place of 1."""
    number: int
    bytes: int
    roundoff: float


@functools.cache
def dtypes():
    """Name -> Dtype, as the library has them."""
    found, facts = {}, doubles([0.0] * 2)
    while name := bench_library().attnbench_dtype(len(found), facts):
        found[name.decode()] = Dtype(len(found), int(facts[0]), facts[1])
    return found


# ---- The oracle --------------------------------------------------------------------------------------------------------

ASSUMED_EXP_ERROR = 20 * 2.0**-23  # for peers that state none: the largest that any peer states (PyTorch)


@dataclass(frozen=True)
class Rounding:
    """An implementation's declared arithmetic (attn_numerics). store_error: the relative error of storing an
    output; 0 means that it rounds to nearest."""
    exp_error: float
    p_rounding: float = 0.0
    input_flush: float = 0.0
    input_rounding: float = 0.0
    query_rounding: float = 0.0
    store_error: float = 0.0


@dataclass(frozen=True)
class Check:
    """worst: the largest error / limit (> 1 fails). abs_error: largest error. index: "batch:head:query:column" of worst."""
    worst: float
    abs_error: float
    index: str
    rows: int

    @property
    def passed(self):
        return self.worst <= 1


class Reference:
    """The right output of a case in float64. q, k, v: dense; v may be the first columns of k."""

    def __init__(self, case, q, k, v, seed=1, lse=False):
        align = ALIGNMENTS[case.causal]
        sizes = (c_int64 * 7)(case.batch, case.heads, case.heads_kv, case.seq_q, case.seq_k, case.head_dim, case.dim_v)
        number, kept = dtypes()[case.dtype].number, dtypes()[case.dtype_kv].number
        self.inputs = q, k, v  # the handle points to their data
        self.shape = *q.shape[:-1], case.dim_v
        self.handle = bench_library().attnbench_expected_create(byref(S.attnbench_problem(
            sizes=sizes, dtype=number, dtype_kv=kept, align=-1 if align is None else align, with_lse=lse, seed=seed,
            **{name: x.ctypes.data for name, x in zip("qkv", self.inputs)})))
        if not self.handle:
            raise MemoryError("no memory for the float64 oracle")

    def __del__(self):
        if getattr(self, "handle", None):
            bench_library().attnbench_expected_destroy(self.handle)

    def check(self, output, rounding, lse=None):
        """Compares `output` [batch][heads][seq][dim] of the case's dtype, and `lse` if the reference has one."""
        q = self.inputs[0]
        if output.shape != self.shape or output.dtype != q.dtype:
            raise ValueError(f"output is {output.dtype} {output.shape}; {q.dtype} {self.shape} is right")
        arithmetic = doubles([rounding.exp_error, rounding.p_rounding, rounding.input_flush, rounding.input_rounding,
                              rounding.query_rounding, rounding.store_error])
        abs_error, where = doubles([0.0]), (c_int64 * 5)()
        dense = [x if x is None or x.flags.c_contiguous else x.copy() for x in (output, lse)]
        addresses = (x if x is None else x.ctypes.data for x in dense)
        worst = bench_library().attnbench_compare(self.handle, *addresses, arithmetic, abs_error, where)
        return Check(worst, abs_error[0], ":".join(map(str, where[:4])), where[4])


# ---- Peaks -------------------------------------------------------------------------------------------------------------

class Peak:
    """The peak loop for one dtype. Rates are sums over all threads."""

    def __init__(self, handle, threads):
        self.handle, self.threads = handle, threads
        self.name = bench_library().attnbench_peak_name(handle).decode()

    def flops(self):
        """Flop/s of one slice of the multiply-add loop."""
        return bench_library().attnbench_peak_rate(self.handle)

    def read(self, rotations):
        """Bytes/s of reading K and V of as many rotations as READ_BYTES allows: the quickest of three orders, each on
        rotations of its own where there are enough. 0 if memory is short.

        Reads the last rotations, because calls begin with the first ones, which must not be in the caches.
        """
        pairs = [halves(k) if k.ctypes.data == v.ctypes.data else (k, v) for _, k, v in rotations]
        pairs = pairs[-math.ceil(READ_BYTES / sum(array.nbytes for array in pairs[0])):]
        return max(self._read(pairs[order::READ_ORDERS] or pairs, order) for order in range(READ_ORDERS))

    def _read(self, pairs, order):
        seconds = total = 0.0
        for k, v in pairs:
            rate = bench_library().attnbench_read_rate(k.ctypes.data, k.nbytes, v.ctypes.data, v.nbytes, self.threads, order)
            if not rate:
                return 0.0
            seconds, total = seconds + (k.nbytes + v.nbytes) / rate, total + k.nbytes + v.nbytes
        return total / seconds


def halves(latent):
    """The memory of rows that hold K and V, in two parts of whole lines."""
    memory = latent.reshape(-1).view("uint8")
    middle = memory.nbytes // 128 * 64
    return memory[:middle], memory[middle:]


@contextlib.contextmanager
def open_peak(dtype, threads):
    """A Peak, or None if there is no loop for this CPU."""
    handle = bench_library().attnbench_peak_open(dtype.encode(), threads, SLICE_NS)
    try:
        yield Peak(handle, threads) if handle else None
    finally:
        bench_library().attnbench_peak_close(handle)
