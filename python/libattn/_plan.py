# SPDX-License-Identifier: MIT
"""Plan, and what can be asked about kernels."""

from __future__ import annotations

import ctypes
import math
import operator
from dataclasses import dataclass
from typing import Any, Sequence

from ._blocks import BYTES, VALUES, check_format
from ._native import C, F, S, allocate, check, dense_strides
from ._sdpa import FUNCTIONS


class Plan:
    """All decisions about one shape, made once: kernel, tiles, threads.

        plan = libattn.Plan(q, k, v, causal=True)       # arrays, or libattn.Spec((1, 8, 512, 64)) for their shapes alone
        out = plan.run(q, k, v)                         # any arrays of these shapes, dtypes and strides

    The arguments are those of sdpa(). run() takes what is data: q, k, v, mask, bias, lengths, ..., `out` and `lse`; optional
    arrays that the plan was made with have to be given, and no others. It returns what sdpa() would. Any number of threads
    may run a plan at once.

    Raises what sdpa() raises; run() a ValueError for arrays that do not fit the plan.
    """

    __slots__ = ("_address", "run")

    def __init__(self, q: Any, k: Any, v: Any, **options: Any) -> None:
        self.run, self._address = FUNCTIONS["plan"](q, k, v, **options)

    def describe(self) -> str:
        """A few lines: kernel, tiles, threads, workspace, and why it was chosen."""
        return F.attn_plan_describe(self._address).decode().replace("(OpenMP", f"({thread_source()}")

    @property
    def kernel(self) -> str:
        """The name of the kernel that runs."""
        return F.attn_plan_kernel(self._address).decode()

    @property
    def workspace_bytes(self) -> int:
        """Bytes of memory that a run works in."""
        return F.attn_plan_workspace(self._address)

    @property
    def piece_keys(self) -> int:
        """Pieces of keys begin at multiples of so many keys, for the bits of one call; 0 without state."""
        return F.attn_plan_piece_keys(self._address)

    def __repr__(self) -> str:
        return f"<libattn.Plan of {self.kernel}>"


@dataclass(frozen=True)
class Kernel:
    """A kernel's properties. The error limits of docs/numerics.md are computed from the last four."""

    name: str
    algorithm: str
    isa: str
    library: str
    summary: str
    exp_error: float
    p_rounding: float
    input_flush: float
    input_rounding: float
    query_rounding: float
    unusable: str | None  # why this CPU cannot run it


def _kernel(info):
    texts = (getattr(info, name).decode() for name in ("name", "algorithm", "isa", "library", "summary"))
    numerics = (getattr(info.numerics, name) for name in ("exp_error", "p_rounding", "input_flush", "input_rounding",
                                                       "query_rounding"))
    reason = F.attn_kernel_unusable(ctypes.addressof(info))
    return Kernel(*texts, *numerics, reason.decode() if reason else None)


def kernels() -> list[Kernel]:
    """All kernels of attention in this build, best first; those of gradients have no functions here yet."""
    found = map(F.attn_kernel_get, range(F.attn_kernel_count()))
    return [_kernel(S.attn_kernel_info.from_address(at)) for at in found if F.attn_kernel_operation(at) == C.ATTN_FORWARD]


def why_not(kernel: str, q: Any, k: Any, v: Any, **options: Any) -> str | None:
    """Why the kernel cannot compute sdpa(q, k, v, **options) on this CPU, in a sentence; None if it can."""
    return FUNCTIONS["why_not"](q, k, v, kernel=kernel, **options)


@dataclass(frozen=True)
class Timing:
    """The times of a kernel with one number of threads, by tune(). Nanoseconds of a call: the median, and the ends of its
    95 % interval; `ratio`: over the first entry's time. rounds is 0, and the times too, where it could not be timed."""

    kernel: str
    threads: int
    rounds: int
    time_ns: float
    time_low_ns: float
    time_high_ns: float
    ratio: float
    ratio_low: float
    ratio_high: float


@dataclass(frozen=True)
class Tuning:
    """The result of tune(): the entries, quickest first, what the library would have chosen by itself, and what has no
    time."""

    entries: list[Timing]
    automatic: str
    automatic_threads: int
    seconds: float
    not_timed: list[tuple[str, int, str]]  # kernel, threads, and why it has no time

    @property
    def best(self) -> dict[str, Any]:
        """Options for sdpa() and Plan(): the quickest kernel with its threads."""
        return {"kernel": self.entries[0].kernel, "threads": self.entries[0].threads}


def _timing(entry):
    values = {name: getattr(entry, name) for name, _ in entry._fields_}
    return Timing(**{**values, "kernel": entry.kernel.decode()})


def tune(q: Any, k: Any, v: Any, *, seconds: float = 0.5, **options: Any) -> Tuning:
    """Times every kernel that takes sdpa(q, k, v, **options) on these very arrays, for about so many seconds, on one thread,
    on all, and powers of two between.

        best = libattn.tune(q, k, v, causal=True).best
        plan = libattn.Plan(q, k, v, causal=True, **best)

    Raises what sdpa() raises.
    """
    report = S.attn_tune_report()
    FUNCTIONS["tune"](ctypes.addressof(report), round(seconds * 1000), q, k, v, **options)
    others = [(report.entry[i].kernel.decode(), report.entry[i].threads, report.not_timed[i].decode())
              for i in range(report.timed, report.count)]
    return Tuning([_timing(report.entry[i]) for i in range(report.timed)], report.automatic.decode(),
                  report.automatic_threads, report.seconds, others)


def merge(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Merges attention over disjoint sets of keys: (out, lse) pairs, as sdpa(..., return_lse=True) gives them without sinks,
    into the pair over all keys.

    Each out is a dense float32 array [..., dim], each lse a dense float32 [...]. New arrays of the first part's library.
    Source: Dao et al. 2023, https://arxiv.org/abs/2307.08691, section 3.1.
    """
    if not parts:
        raise ValueError("parts is empty; it must have at least one (out, lse)")
    for i, pair in enumerate(parts):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"parts[{i}] is no pair (out, lse), as sdpa(..., return_lse=True) gives")
    o, lse = [[read_dense(pair[side], ("out", "lse")[side]) for pair in parts] for side in (0, 1)]
    shape = o[0][3]
    for name, side, wanted in (("out", o, shape), ("lse", lse, shape[:-1])):
        for i, (_, _, _, given) in enumerate(side):
            if given != wanted:
                raise ValueError(f"{name} of parts[{i}] has shape {given}; it must have {wanted}")
    merged = [FUNCTIONS["empty"](parts[0][0], *size) for size in (shape, shape[:-1])]
    views = [read_dense(array, "out") for array in merged]
    table = ctypes.c_void_p * len(parts)
    check(F.attn_merge(len(parts), math.prod(shape[:-1]), shape[-1], table(*(part[0] for part in o)),
                       table(*(part[0] for part in lse)), *(part[0] for part in views)))
    return tuple(merged)


STATE_FLOATS = C.ATTN_STATE_SUMS + 2  # the floats of a state row behind its dim_v


def new_state(q: Any, v: Any, *, layout: str = "bhsd", kv_format: str | None = None) -> Any:
    """The state of queries that have seen no key yet, for sdpa(..., state=): float32 of the library that q is from, [batch,
    heads, queries, dim of v + 18]; packed ("thd", "htd") [heads, tokens, dim of v + 18]. Dimensions that q has not are left
    out. kv_format: as in sdpa(), where v is blocks. state[..., -2] = -inf starts anew. Only shapes of q and v are read.
    Raises ValueError or TypeError."""
    if layout not in ("bhsd", "bshd", "thd", "htd"):
        raise ValueError(f"layout is {layout!r}; it must be one of 'bhsd', 'bshd', 'thd', 'htd'")
    *rows, dim = FUNCTIONS["view"](q, "q")[3]
    if layout in ("bshd", "thd"):
        rows[-2:] = reversed(rows[-2:])
    shape = FUNCTIONS["view"](v, "v")[3]
    if kv_format is not None:
        check_format(kv_format)
        if len(shape) < 3 or shape[-1] != BYTES[kv_format]:
            raise ValueError(f"v has shape {shape}; with kv_format {kv_format!r} it must be [..., blocks, "
                             f"{BYTES[kv_format]}]")
        stored = VALUES * shape[-2]
        dim = dim if stored == dim + -dim % VALUES else stored  # sdpa() does so, too
    else:
        dim = shape[-1]
    state = FUNCTIONS["empty"](q, *rows, dim + STATE_FLOATS)
    problem = S.attn_problem()
    F.attn_problem_init(ctypes.byref(problem), 1, 1, 1, math.prod(rows), 0, 1, dim)
    problem.uses = C.ATTN_USE_STATE
    check(F.attn_state_start(ctypes.byref(problem), read_dense(state, "state")[0]))
    return state


def dropout_mask(shape: Sequence[int], dropout: float, seed: int, offset: int = 0, *, out: Any = None) -> Any:
    """The weights that sdpa(..., dropout=dropout, seed=seed, offset=offset) keeps: a NumPy array of bool, [batch, heads,
    queries, keys], or `out`, dense bool or uint8 of the shape. Tokens of packed sequences count within each.

    It depends on these numbers alone: docs/semantics.md has the rule (Philox 4x32-10, Salmon et al. 2011,
    https://doi.org/10.1145/2063384.2063405). What is kept is divided by 1 - dropout, a multiple of 2^-16.
    Raises ValueError or TypeError.
    """
    shape = tuple(shape)
    if len(shape) != 4:
        raise ValueError(f"shape is {shape}; it must be (batch, heads, queries, keys)")
    out = allocate(None, shape, "bool") if out is None else out
    address, _, _, given = read_dense(out, "out", ("bool", "uint8"), written=True)
    if given != shape:
        raise ValueError(f"out has shape {given}; it must have {shape}")
    problem = S.attn_problem()
    F.attn_problem_init(ctypes.byref(problem), *shape[:2], shape[1], *shape[2:], 1, 1)
    problem.dropout = dropout
    check(F.attn_dropout_mask(ctypes.byref(problem), *(_bits(seed=seed, offset=offset)), address))
    return out


def _bits(**numbers):
    """Integers of 64 bits, with a sign or without one, as without."""
    for name, number in numbers.items():
        if not -2**63 <= operator.index(number) < 2**64:
            raise TypeError(f"{name} is {number}; it must be an integer of 64 bits")
    return [operator.index(number) % 2**64 for number in numbers.values()]


def read_dense(array, name, dtypes=("float32",), written=False):
    """(address, what keeps it, dtype, shape) of a dense array; written: one that may be written to."""
    address, keeper, dtype, shape, strides = FUNCTIONS["view"](array, name, written)
    if dtype not in dtypes:
        raise TypeError(f"{name} is {dtype}; it must be {' or '.join(dtypes)}")
    if all(shape) and any(a != b for a, b, size in zip(strides, dense_strides(shape), shape) if size > 1):
        raise ValueError(f"{name} is not dense; its strides are {strides} for shape {shape}")
    return address, keeper, dtype, shape


def tiers() -> list[str]:
    """The tiers of SIMD instructions that this CPU and its system allow, lowest first: ["c", "avx2", "avx512"]."""
    return F.attn_cpu_tiers().decode().split()


def load_kernels(plugin: str) -> None:
    """Loads a plug-in with further kernels: a path with a slash in it, or PATH:SYMBOL (docs/library.md, "Plug-ins")."""
    check(F.attn_load_kernels(plugin.encode()))


def version() -> str:
    """The version of the C library: "0.1.0"."""
    return F.attn_version().decode()


def thread_source() -> str:
    """Where threads come from: the file of the OpenMP runtime that the process has loaded, or "pool"."""
    return FUNCTIONS["thread_source"]()


def use_pool(yes: bool = True) -> None:
    """Take threads from libattn's own pool even where an OpenMP runtime is loaded."""
    FUNCTIONS["refuse_openmp"](bool(yes))


def forget_plans() -> None:
    """Frees the plans that sdpa() keeps. They also keep what ATTN_KERNEL and ATTN_MAX_ISA said when they were made."""
    FUNCTIONS["forget"]()


def plan_counts() -> tuple[int, int]:
    """The number of plans that sdpa() has made and kept since forget_plans(), and of calls that found theirs."""
    return FUNCTIONS["count_plans"]()
