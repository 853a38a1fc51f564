# SPDX-License-Identifier: MIT
"""compare(): several functions on several cases."""

from __future__ import annotations

import importlib
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping

from .files import COLUMNS, SAMPLE_COLUMNS, write_csv
from .harness import Check, Ratio, holm, paired_ratio, summarise, verdict
from .places import Places
from .problems import Given, Problem
from .rounds import check, measure

AGAIN = " again"  # the A/A control: the baseline's second entry


@dataclass
class Row:
    """One function on one case. status: PASS, FAIL, ERROR or SKIP (refused); only what passes is timed. ratio: the
    baseline's time over this function's, so that more than 1 is quicker."""

    case: str
    function: str
    status: str = "PASS"
    reason: str = ""
    problem: Any = None
    run: Any = None  # the function
    times_ns: list = field(default_factory=list)
    positions: list = field(default_factory=list)
    peak_rates: list = field(default_factory=list)  # flop/s of the peak loop just before each sample
    read_rates: list = field(default_factory=list)  # where it decodes: bytes/s of the read loop in the same round
    iterations: int = 1
    handler: int = 0  # the signal that it set a handler of when it was timed
    check: Check | None = None  # the largest error, where an oracle has one
    facts: dict = field(default_factory=dict)  # further columns
    note: str = ""
    warnings: list = field(default_factory=list)
    ratio: Ratio | None = None
    p: float | None = None  # p of the ratio, Holm-corrected over all rows
    verdict: str = ""

    def drop(self, status, reason):
        """Removes its times: only PASS rows have times."""
        self.status, self.reason = status, reason
        self.times_ns, self.positions, self.peak_rates, self.read_rates = [], [], [], []

    @property
    def time(self):
        return summarise(self.times_ns)

    @property
    def peak_pct(self):
        """The median over the rounds of the share of the peak."""
        if not (self.times_ns and self.peak_rates and self.problem.flops):
            return None
        return 100e9 * statistics.median(self.problem.flops / time / peak
                                         for time, peak in zip(self.times_ns, self.peak_rates))

    @property
    def read_pct(self):
        """The median over the rounds of the share of the read loop."""
        if not self.read_rates:
            return None
        return 100e9 * statistics.median(self.problem.bytes_kv / time / rate
                                         for time, rate in zip(self.times_ns, self.read_rates, strict=True))

    def columns(self, baseline):
        """Columns of results.csv. baseline: the function that the ratio compares with."""
        columns = {**self.problem.columns(), "kernel": self.function, "algorithm": self.function, "status": self.status,
                   "reason": self.reason, "warnings": "; ".join(self.warnings), **self.facts}
        if self.check:
            columns.update(rows_checked=self.check.rows, max_err_ratio=self.check.worst, max_abs_err=self.check.abs_error,
                           err_index=self.check.index)
        if not self.times_ns:
            return {name: value for name, value in columns.items() if name not in ("plan_ns", "workspace_bytes")}
        time_ns = self.time
        columns.update(samples=len(self.times_ns), time_ns_min=time_ns.min, time_ns_median=time_ns.median,
                       time_ns_mad=time_ns.mad, time_ns_ci_lo=time_ns.low, time_ns_ci_hi=time_ns.high,
                       flops=self.problem.flops, bytes=self.problem.bytes, stop_reason="rounds")
        if self.problem.flops:
            columns.update(gflops=self.problem.flops / time_ns.median, gbs=self.problem.bytes / time_ns.median)
        if self.peak_rates:
            columns.update(peak_gflops=statistics.median(self.peak_rates) * 1e-9, peak_pct=self.peak_pct)
        if self.read_rates:
            columns.update(peak_gbs=statistics.median(self.read_rates) * 1e-9, bw_pct=self.read_pct)
        if self.ratio or self.function == baseline:
            low, middle, high = (self.ratio.low, self.ratio.median, self.ratio.high) if self.ratio else (1, 1, 1)
            columns.update(baseline=baseline, ratio=middle, ratio_ci_lo=low, ratio_ci_hi=high)
        return columns

    def samples(self, run_id, case_id):
        """Rows of samples.csv."""
        peaks = self.peak_rates or [None] * len(self.times_ns)
        return [{"run_id": run_id, "case_id": case_id, "kernel": self.function, "round": index, "position": position,
                 "time_ns": time_ns, "iterations": self.iterations, "peak_gflops": peak and peak * 1e-9}
                for index, (time_ns, position, peak) in enumerate(zip(self.times_ns, self.positions, peaks))]


def _cases(cases, convert, seed):
    """{name: Problem or Given}"""
    if isinstance(cases, Mapping):
        named = cases
    else:
        named = {case.axes if isinstance(case, Problem) else case: case for case in cases}
    return {name: _case(case, convert, seed) for name, case in named.items()}


def _case(case, convert, seed):
    if isinstance(case, str):
        return Problem(case, convert, seed)
    return case if isinstance(case, Problem) else Given(case)


def compare(fns: Mapping[str, Any], cases: Mapping[str, Any] | Iterable[Any], *, baseline: str | None = None,
            rounds: int = 21, sample_ms: float = 20.0, threads: int = 1, convert: Callable | None = None,
            seed: int = 1, pause_s: float = 0.0, each: Callable | None = None) -> Comparison:
    """Times every function on every case as attnbench does, and compares each with the baseline.

    fns: name -> function, or an object with start(problem, arrays) that prepares its calls beforehand: a context manager
        that returns a Prepared, or raises Refused. arrays: (q, k, v) in several places, bfloat16 as the bits of uint16.
    baseline: a name, by default the first; it runs twice, and the ratio of both entries is the noise.
    cases: axes of attnbench as texts ("heads=8 seq=512"), checked against the float64 oracle within the derived limit; or
        name -> arguments (a sequence or a mapping) of the functions, whose outputs must then agree with the baseline's.
    rounds: each function is timed once per round; a sample lasts at least sample_ms. At least 6, for an interval. In
        every round copies of the arrays, plans of libattn and what start() prepares lie elsewhere in memory: as many
        copies as 256 MiB hold.
    threads: of the peak loop that is timed beside every sample (the functions' threads are the caller's affair).
    convert: applied to each array of the cases that are texts, such as torch.from_numpy.
    pause_s: rest before each sample and each peak loop, where idle threads of two libraries would disturb each other.
    each: called with the Comparison and the case's rows when a case is done.

    Raises CaseError for axes that are wrong, ValueError for too few rounds or an unknown baseline. What a function raises
    becomes a row with status ERROR. Ctrl-C ends it; the cases that are done are kept (`interrupted` is true then).
    """
    if rounds < 6:
        raise ValueError(f"rounds is {rounds}; an interval of 95 % needs at least 6")
    baseline = baseline or next(iter(fns))
    if baseline not in fns:
        raise ValueError(f"baseline is {baseline!r}; it must be one of {', '.join(fns)}")
    found = Comparison(baseline, threads)
    names = [baseline, *(name for name in fns if name != baseline), baseline + AGAIN]
    try:
        for case, problem in _cases(cases, convert, seed).items():
            rows = [Row(case, name, problem=problem, run=fns.get(name, fns[baseline])) for name in names]
            _compare_one(problem, rows, found, rounds, sample_ms * 1e6, seed, pause_s)
            if each:
                each(found, rows)
    except KeyboardInterrupt:
        found.interrupted = True
    set_verdicts([row for row in found.rows if row.ratio and not found.is_control(row)])
    return found


def _compare_one(problem, rows, found, rounds, sample_ns, seed, pause_s):
    places, right = Places(problem, rounds, seed), None
    for row in rows:
        returned = check(row, right, places)
        right = returned if right is None else right
    passed = [row for row in rows if row.status == "PASS"]
    for row in passed:
        row.warnings += places.warnings
    measure(passed, problem, places, rounds, sample_ns, found.threads, seed, pause_s)
    found.add(rows, (places.count, places.length))


def set_verdicts(rows):
    """p, corrected for all of these rows, and verdicts."""
    for row, p in zip(rows, holm([row.ratio.p for row in rows])):
        row.p, row.verdict = p, verdict(row.ratio, p)


class Comparison:
    """The result of compare(): `rows`, and tables and figures of them."""

    def __init__(self, baseline, threads):
        self.baseline, self.threads, self.rows = baseline, threads, []
        self.placing, self.interrupted = {}, False  # case -> (placements, rounds in turn in each)
        self.id = f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"

    def add(self, rows, placing):
        """The rows of a case, with their ratios."""
        self.rows += rows
        self.placing[rows[0].case] = placing
        for row in rows[1:] if rows[0].times_ns else []:
            row.ratio = paired_ratio(rows[0].times_ns, row.times_ns, placing) if row.times_ns else None

    def is_control(self, row):
        return row.function == self.baseline + AGAIN

    def noise(self, case):
        """The A/A control of a case: the ratio of the baseline to itself."""
        controls = (row for row in self.rows if row.case == case and self.is_control(row) and row.ratio)
        return next((row.ratio.median for row in controls), None)

    def records(self):
        """A dictionary for each function and case: what frame() has."""
        for row in self.rows:
            if self.is_control(row):
                continue
            record = {"case": row.case, "function": row.function, "status": row.status, "reason": row.reason}
            if row.times_ns:
                time_ns = row.time
                record.update(rounds=len(row.times_ns), time_ns=time_ns.median, time_low_ns=time_ns.low,
                              time_high_ns=time_ns.high, peak_pct=row.peak_pct, noise=self.noise(row.case))
            if row.times_ns and row.problem.flops:
                record.update(gflops=row.problem.flops / time_ns.median, gbs=row.problem.bytes / time_ns.median)
            if row.ratio:
                record.update(ratio=row.ratio.median, ratio_low=row.ratio.low, ratio_high=row.ratio.high, p=row.p,
                              verdict=row.verdict)
            yield record

    def frame(self):
        """The rows as a pandas DataFrame."""
        return _needed("pandas", "frame()").DataFrame(list(self.records()))

    def sample_rows(self, control=True):
        """The rows of samples.csv, with or without the A/A control's."""
        return [sample for row in self.rows if control or not self.is_control(row)
                for sample in row.samples(self.id, row.problem.columns().get("case_id", row.case))]

    def samples(self):
        """Every sample as a pandas DataFrame, with the columns of samples.csv."""
        return _needed("pandas", "samples()").DataFrame(list(self.sample_rows()), columns=SAMPLE_COLUMNS)

    def columns(self):
        """The rows of results.csv: those of cases that are texts, without the A/A control."""
        return [{**row.columns(self.baseline), "run_id": self.id, "threads": self.threads,
                 "noise": self.noise(row.case) if row.times_ns else None}
                for row in self.rows if row.problem.columns() and not self.is_control(row)]

    def write(self, folder):
        """Writes results.csv and samples.csv with attnbench's columns, for scripts/plot.py: of cases that are texts."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_csv(Path(folder) / "results.csv", COLUMNS, self.columns())
        write_csv(Path(folder) / "samples.csv", SAMPLE_COLUMNS, self.sample_rows())

    def plot(self, path=None):
        """A figure of the ratios with their intervals, a colour for each function, saved if path is given. By Matplotlib."""
        figure_class = _needed("matplotlib.figure", "plot()").Figure
        cases = list(dict.fromkeys(row.case for row in self.rows))
        figure = figure_class(figsize=(8, 1.2 + 0.4 * len(cases)), layout="constrained")
        axes = figure.subplots()
        names = list(dict.fromkeys(row.function for row in self.rows if row.ratio))
        for number, name in enumerate(names):
            rows = [row for row in self.rows if row.function == name and row.ratio]
            middle, spread = [row.ratio.median for row in rows], [[], []]
            for row in rows:
                spread[0].append(row.ratio.median - row.ratio.low)
                spread[1].append(row.ratio.high - row.ratio.median)
            places = [cases.index(row.case) + 0.12 * (number - (len(names) - 1) / 2) for row in rows]
            label = f"{self.baseline} again: the noise" if name == self.baseline + AGAIN else name
            axes.errorbar(middle, places, xerr=spread, fmt="o", capsize=3, label=label)
        axes.axvline(1, color="0.5", linewidth=1)
        axes.set(xscale="log", yticks=range(len(cases)), yticklabels=cases, ylim=(len(cases) - 0.5, -0.5),
                 xlabel=f"time of {self.baseline} / time (95 % interval); right of 1: quicker")
        axes.legend()
        if path:
            figure.savefig(path, dpi=150)
        return figure

    def __str__(self):
        lines = []
        for case in dict.fromkeys(row.case for row in self.rows):
            lines += [case, f"  {'function':20} {'time':>12}  {'% peak':>6}  {self.baseline} / function"]
            for record in (record for record in self.records() if record["case"] == case):
                lines.append("  " + _line(record))
            if self.noise(case):
                lines.append(f"  {self.baseline} against itself: {self.noise(case):.3f}")
        return "\n".join(lines)

    __repr__ = __str__  # notebooks show this


def _needed(module, what):
    """A module of a package that only this needs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(f"{what} needs {package}: python3 -m pip install {package}", name=missing.name) from None


def _line(record):
    if "time_ns" not in record:
        return f"{record['function']:20} {record['status']}: {record['reason']}"
    peak = f"{record['peak_pct']:.1f}" if record["peak_pct"] is not None else "-"
    line = f"{record['function']:20} {record['time_ns'] / 1000:9.1f} µs  {peak:>6}"
    if "ratio" in record:
        line += "  {ratio:.3f} [{ratio_low:.3f}, {ratio_high:.3f}] {verdict}".format(**record)
    return line
