# SPDX-License-Identifier: MIT
"""The C functions of the harness for Python: statistics, order of rounds, float64 oracle, error limits, peak loops
(harness/shared).

Call load() first.
"""

import contextlib
import ctypes
import functools
import math
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

DEFAULT = Path(__file__).resolve().parents[3] / "build" / "libattnbench.so"
ALIGNMENTS = {"none": None, "top-left": 0, "bottom-right": 1}  # attn_align of causal problems
SLICE_NS = 2e6        # time of the peak loop before every sample
READ_BYTES = 2.0**28  # of K and V are read at most once per round
DOUBLES = POINTER(c_double)


class Problem(ctypes.Structure):
    """attnbench_problem."""
    _fields_ = [("sizes", c_int64 * 6), *((name, c_int) for name in ("dtype", "align", "with_lse")),
                *((name, c_void_p) for name in ("q", "k", "v")), ("seed", c_uint64)]


FUNCTIONS = {  # name -> result, arguments
    "attnbench_summarise": (None, [DOUBLES, c_int, DOUBLES]),
    "attnbench_paired_ratio": (None, [DOUBLES, DOUBLES, c_int, DOUBLES]),
    "attnbench_sign_test": (c_double, [DOUBLES, DOUBLES, c_int]),
    "attnbench_holm": (c_int, [DOUBLES, c_int]),
    "attnbench_latin_square": (c_int, [POINTER(c_int), c_int, c_uint64, c_int]),
    "attnbench_axis": (c_int, [c_char_p, c_char_p, c_size_t]),
    "attnbench_case": (c_int, [POINTER(c_char_p), c_int, c_char_p, POINTER(c_int64), DOUBLES]),
    "attnbench_dtype": (c_char_p, [c_int, DOUBLES]),
    "attnbench_expected_create": (c_void_p, [POINTER(Problem)]),
    "attnbench_expected_destroy": (None, [c_void_p]),
    "attnbench_compare": (c_double, [*[c_void_p] * 3, DOUBLES, DOUBLES, POINTER(c_int64)]),
    "attnbench_peak_open": (c_void_p, [c_char_p, c_int, c_double]),
    "attnbench_peak_close": (None, [c_void_p]),
    "attnbench_peak_name": (c_char_p, [c_void_p]),
    "attnbench_peak_rate": (c_double, [c_void_p]),
    "attnbench_read_rate": (c_double, [c_void_p, c_size_t, c_int]),
}


class LoadError(Exception):
    """A shared library is missing or the wrong one; the message names the command that builds it."""


def load_functions(path, functions, remedy):
    """The shared library at `path` with its functions declared. Raises LoadError, which ends with the remedy."""
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LoadError(f"{error}; {remedy}") from None
    return library


_c = None


def load(beside=DEFAULT):
    """Loads libattnbench.so from the folder of the file `beside`, else from build/. Later calls do nothing."""
    global _c
    if _c is not None:
        return
    path = Path(beside).absolute().with_name("libattnbench.so")
    _c = load_functions(path if path.exists() else DEFAULT, FUNCTIONS,
                        "cmake --build build --target attnbench_shared makes libattnbench.so")


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
    _c.attnbench_summarise(doubles(values), len(values), summary)
    return Summary(*summary)


def paired_ratio(a, b):
    """a / b round by round: exp of the median log-ratio, with its sign-test interval; mad is relative."""
    summary = doubles([0.0] * 5)
    _c.attnbench_paired_ratio(*pairs(a, b), summary)
    return Summary(*summary)


def sign_test(a, b):
    """The two-sided p-value of "a is above b as often as below", without equal pairs."""
    return _c.attnbench_sign_test(*pairs(a, b))


def pairs(a, b):
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values are no pairs")
    return doubles(a), doubles(b), len(a)


def holm(p_values):
    """Adjusted p-values in the same order: if those <= a are rejected, the chance of any false rejection is at most a."""
    p = doubles(p_values)
    if not _c.attnbench_holm(p, len(p)):
        raise MemoryError
    return list(p)


def latin_square(n, seed, block):
    """The orders of n rounds: every number 0 .. n - 1 is once in each place and, for even n, once behind each other one."""
    square = (c_int * (n * n))()
    if not _c.attnbench_latin_square(square, n, seed, block):
        raise MemoryError
    return [list(square[n * row:n * (row + 1)]) for row in range(n)]


# ---- Cases -------------------------------------------------------------------------------------------------------------

class CaseError(Exception):
    """A case that cannot be read or measured; the message names axis, value and what would be right."""


def axis_values(assignment):
    """The values of an assignment: ["128", "256"] for "seq=128:256:*2"."""
    values = ctypes.create_string_buffer(2**16)
    if not _c.attnbench_axis(assignment.encode(), values, len(values)):
        raise CaseError(values.value.decode())
    return values.value.decode().split(",")


@functools.lru_cache(maxsize=1024)
def describe(*axes):
    """(case id, [batch, heads_q, heads_kv, seq_q, seq_k, head_dim], flops, bytes per call) for axes such as "seq=128"."""
    texts = (c_char_p * len(axes))(*(axis.encode() for axis in axes))
    text, sizes, work = ctypes.create_string_buffer(480), (c_int64 * 6)(), doubles([0.0] * 2)
    if not _c.attnbench_case(texts, len(axes), text, sizes, work):
        raise CaseError(text.value.decode())
    return text.value.decode(), list(sizes), int(work[0]), int(work[1])


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
    while name := _c.attnbench_dtype(len(found), facts):
        found[name.decode()] = Dtype(len(found), int(facts[0]), facts[1])
    return found


# ---- The oracle --------------------------------------------------------------------------------------------------------

ASSUMED_EXP_ERROR = 20 * 2.0**-23  # for peers that state none: the largest that any peer states (PyTorch)


@dataclass(frozen=True)
class Rounding:
    """What an implementation declares about its arithmetic (attn_numerics). store_error: the relative error of storing an
    output; 0 means that it rounds to nearest."""
    exp_error: float
    p_rounding: float = 0.0
    input_flush: float = 0.0
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
    """The right output of a case in float64. q, k, v: dense, as from storage.make_inputs()."""

    def __init__(self, case, q, k, v, seed=1, lse=False):
        align = ALIGNMENTS[case.causal]
        sizes = (c_int64 * 6)(case.batch, case.heads, case.heads_kv, case.seq_q, case.seq_k, case.head_dim)
        self.inputs = q, k, v  # the handle points to their data
        self.handle = _c.attnbench_expected_create(Problem(
            sizes, dtypes()[case.dtype].number, -1 if align is None else align, lse,
            *(x.ctypes.data for x in self.inputs), seed))
        if not self.handle:
            raise MemoryError("no memory for the float64 oracle")

    def __del__(self):
        if getattr(self, "handle", None):
            _c.attnbench_expected_destroy(self.handle)

    def check(self, output, rounding, lse=None):
        """Compares `output` [batch][heads][seq][dim] of the case's dtype, and `lse` if the reference has one."""
        q = self.inputs[0]
        if output.shape != q.shape or output.dtype != q.dtype:
            raise ValueError(f"output is {output.dtype} {output.shape}; {q.dtype} {q.shape} is right")
        arithmetic = doubles([rounding.exp_error, rounding.p_rounding, rounding.input_flush, rounding.store_error])
        abs_error, where = doubles([0.0]), (c_int64 * 5)()
        dense = [x if x is None or x.flags.c_contiguous else x.copy() for x in (output, lse)]
        worst = _c.attnbench_compare(self.handle, *(x if x is None else x.ctypes.data for x in dense), arithmetic, abs_error,
                                     where)
        return Check(worst, abs_error[0], ":".join(map(str, where[:4])), where[4])


# ---- Peaks -------------------------------------------------------------------------------------------------------------

class Peak:
    """The peak loop for one dtype. Rates are sums over all threads."""

    def __init__(self, handle, threads):
        self.handle, self.threads = handle, threads
        self.name = _c.attnbench_peak_name(handle).decode()

    def flops(self):
        """Flop/s of one slice of the multiply-add loop."""
        return _c.attnbench_peak_rate(self.handle)

    def read(self, rotations):
        """Bytes/s of reading K and V of as many rotations as READ_BYTES allows, each once; 0 if they are too small.

        Reads the last rotations, because calls begin with the first ones, which must not be in the caches.
        """
        tensors = [array for _, *kv in rotations for array in kv]
        count = 2 * math.ceil(READ_BYTES / (tensors[0].nbytes + tensors[1].nbytes))
        seconds = total = 0.0
        for array in tensors[-count:]:
            rate = _c.attnbench_read_rate(array.ctypes.data, array.nbytes, self.threads)
            if not rate:
                return 0.0
            seconds, total = seconds + array.nbytes / rate, total + array.nbytes
        return total / seconds


@contextlib.contextmanager
def open_peak(dtype, threads):
    """A Peak, or None if there is no loop for this CPU."""
    handle = _c.attnbench_peak_open(dtype.encode(), threads, SLICE_NS)
    try:
        yield Peak(handle, threads) if handle else None
    finally:
        _c.attnbench_peak_close(handle)
