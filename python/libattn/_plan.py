# SPDX-License-Identifier: MIT
"""Plan, and what can be asked about kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from ._native import F, S, check
from ._sdpa import FUNCTIONS


class Plan:
    """All decisions about one shape, made once: kernel, tiles, threads; with a workspace of its own.

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

    def __repr__(self) -> str:
        return f"<libattn.Plan of {self.kernel}>"


@dataclass(frozen=True)
class Kernel:
    """What is known of a kernel. The error limits of docs/numerics.md are computed from the last three."""

    name: str
    algorithm: str
    isa: str
    library: str
    summary: str
    exp_error: float
    p_rounding: float
    input_flush: float
    unusable: str | None  # why this CPU cannot run it


def _kernel(info):
    texts = (getattr(info, name).decode() for name in ("name", "algorithm", "isa", "library", "summary"))
    numerics = (getattr(info.numerics, name) for name in ("exp_error", "p_rounding", "input_flush"))
    reason = F.attn_kernel_unusable(ctypes.addressof(info))
    return Kernel(*texts, *numerics, reason.decode() if reason else None)


def kernels() -> list[Kernel]:
    """All kernels of this build, best first."""
    return [_kernel(S.attn_kernel_info.from_address(F.attn_kernel_get(i))) for i in range(F.attn_kernel_count())]


def why_not(kernel: str, q: Any, k: Any, v: Any, **options: Any) -> str | None:
    """Why the kernel cannot compute sdpa(q, k, v, **options) on this CPU, in a sentence; None if it can."""
    return FUNCTIONS["why_not"](q, k, v, kernel=kernel, **options)


def tiers() -> list[str]:
    """The tiers of SIMD instructions that this CPU and its system allow, lowest first: ["c", "avx2", "avx512"]."""
    return F.attn_cpu_tiers().decode().split()


def load_kernels(plugin: str) -> None:
    """Loads a plug-in with further kernels: a path with a slash in it (docs/library.md, "Plug-ins")."""
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
    """Plans that sdpa() has made and kept since forget_plans(), and calls that found theirs."""
    return FUNCTIONS["count_plans"]()
