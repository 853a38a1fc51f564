# SPDX-License-Identifier: MIT
"""An implementation of attention, ours or a peer's, and its result on one case.

An implementation has a `name` and `start(case, rotations)`, a context manager that returns a Prepared or raises Refused.
"""

import contextlib
from dataclasses import dataclass, field

from libattn.bench.comparing import Row


class Refused(Exception):
    """The implementation cannot take the case, which becomes a SKIP row. The message is the reason."""


@dataclass
class Prepared:
    """An implementation that is ready to run one case."""
    calls: list                  # one function per rotation; each computes the case once and returns a result
    output: object               # result -> array [batch][heads][seq][dim]; raises if the call failed
    rounding: object             # libattn.bench.harness.Rounding, from which its error limit follows
    facts: dict                  # further columns of its row: algorithm, isa, library, plan_ns, workspace_bytes
    scope: object = contextlib.nullcontext  # () -> context manager for the calls, entered before the clock starts
    note: str = ""               # for the table
    poison: object = lambda: None           # fills the output with NaN, which shows a call that writes nothing


@dataclass
class Result(Row):
    """One row: an implementation on a case (`problem`). Times and rates are empty unless status is PASS."""
    prepared: Prepared = None
    check: object = None            # libattn.bench.harness.Check
    read_rates: list = field(default_factory=list)   # bytes/s of the read loop in the same round
    call_ns: float = 0.0
    warnings: list = field(default_factory=list)

    def drop(self, status, reason):
        """Removes its times: only PASS rows have times."""
        self.status, self.reason = status, reason
        self.times_ns, self.positions, self.peak_rates, self.read_rates = [], [], [], []

    @property
    def timed(self):
        return bool(self.times_ns)


class Absent:
    """A peer that is not installed: it refuses every case for the same reason."""

    def __init__(self, name, reason):
        self.name, self.reason = name, reason

    @contextlib.contextmanager
    def start(self, case, rotations):
        raise Refused(self.reason)
        yield  # makes this a generator
