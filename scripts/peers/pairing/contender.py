# SPDX-License-Identifier: MIT
"""What takes part in a comparison, and what came of it.

A contender has a `name` and `start(case, rotations)`, a context manager that gives an Entrant or raises Refused.
"""

import contextlib
from dataclasses import dataclass, field


class Refused(Exception):
    """This contender cannot take the case: a SKIP row. The message says why."""


@dataclass
class Entrant:
    """A contender that is ready to run one case."""
    calls: list                  # one function per rotation; each computes the case once and returns a result
    output: object               # result -> array [batch][heads][seq][dim]; raises where the result says that a call failed
    rounding: object             # reference.Rounding of its arithmetic: what its error limit is computed from
    facts: dict                  # further columns of its row: algorithm, isa, library, plan_ns, workspace_bytes
    scope: object = contextlib.nullcontext  # () -> context manager around the calls, entered outside the timed stretch
    note: str = ""               # for the table
    poison: object = lambda: None           # spoils the output buffers, so that a call that writes nothing is found out


@dataclass
class Result:
    """One row: a contender on a case. times_ns and the rates: one per round, empty unless status is PASS."""
    name: str
    status: str = "PASS"
    reason: str = ""
    entrant: Entrant = None
    judgement: object = None
    times_ns: list = field(default_factory=list)
    positions: list = field(default_factory=list)
    peak_rates: list = field(default_factory=list)   # flop/s of the peak loop just before the sample
    read_rates: list = field(default_factory=list)   # bytes/s of the read loop in the same round
    iterations: int = 1
    call_ns: float = 0.0
    warnings: list = field(default_factory=list)

    def lose(self, status, reason):
        self.status, self.reason = status, reason
        self.times_ns, self.positions, self.peak_rates, self.read_rates = [], [], [], []

    @property
    def timed(self):
        return bool(self.times_ns)


class Absent:
    """Stands for a rival that is not there: every case is refused for the same reason."""

    def __init__(self, name, reason):
        self.name, self.reason = name, reason

    @contextlib.contextmanager
    def start(self, case, rotations):
        raise Refused(self.reason)
        yield  # makes this a generator
