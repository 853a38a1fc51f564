# SPDX-License-Identifier: MIT
"""compare(): several functions on several cases."""

from __future__ import annotations

import functools
import importlib
import os
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping

import numpy as np

from . import harness
from .files import COLUMNS, SAMPLE_COLUMNS, write_csv
from .harness import Ratio, holm, paired_ratio, summarise, verdict
from .places import Places
from .rounds import calibrate, no_collection, schedule, time_calls

AGAIN = " again"  # the A/A control: the baseline's second entry
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
TOLERANCE = {"float32": 1e-4, "float64": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}  # of outputs that no oracle checks


@dataclass
class Problem:
    """What the axes of attnbench define: "heads=8 seq=512 causal=bottom-right" (docs/measuring.md). Axes: dtype, batch,
    heads, heads_kv, seq, seq_q, seq_k, head_dim, causal. Functions are called as libattn.sdpa: f(q, k, v), with
    causal=True and align="bottom_right" if it is causal."""

    axes: str
    convert: Callable[[np.ndarray], Any] | None = None  # applied to q, k and v before anything is timed
    seed: int = 1
    id: str = field(init=False)
    flops: int = field(init=False)
    bytes: int = field(init=False)

    def __post_init__(self):
        axes = dict(word.partition("=")[::2] for word in self.axes.split())
        allowed = {"dtype", "batch", "heads", "heads_kv", "seq", "seq_q", "seq_k", "head_dim", "causal"}
        if set(axes) - allowed:
            raise harness.CaseError(f"no axis {min(set(axes) - allowed)!r}; there are: {', '.join(sorted(allowed))}")
        self.id, sizes, self.flops, self.bytes = harness.describe(*self.axes.split())
        self.batch, self.heads, self.heads_kv, self.seq_q, self.seq_k, self.head_dim = sizes
        self.dtype, self.causal = axes.get("dtype", "f32"), axes.get("causal", "none")
        if self.dtype not in DTYPES or self.causal not in harness.ALIGNMENTS:
            raise harness.CaseError(f"{self.axes}: dtype is f32, f16 or bf16; causal is none, top-left or bottom-right")

    @functools.cached_property
    def arrays(self):
        """q, k and v: normal, of mean 0 and standard deviation 1."""
        generator = np.random.default_rng(zlib.crc32(f"{self.seed} {self.id}".encode()))
        shapes = [(self.batch, heads, seq, self.head_dim)
                  for heads, seq in ((self.heads, self.seq_q), (self.heads_kv, self.seq_k), (self.heads_kv, self.seq_k))]
        return [generator.standard_normal(shape, dtype=np.float32).astype(_numpy_dtype(self.dtype)) for shape in shapes]

    @functools.cached_property
    def oracle(self):
        return harness.Reference(self, *(_bits(x) for x in self.arrays))

    @property
    def call(self):
        """(arguments before they are converted, keywords)"""
        return self.arrays, {} if self.causal == "none" else {"causal": True, "align": self.causal.replace("-", "_")}

    def check(self, output, _baseline):
        """None, or what is wrong. The limit is that of an implementation that states nothing of its arithmetic."""
        roundoff = 0.0 if self.dtype == "f32" else harness.dtypes()[self.dtype].roundoff
        found = self.oracle.check(_bits(_to_numpy(output)), harness.Rounding(harness.ASSUMED_EXP_ERROR, roundoff))
        return None if found.passed else f"{found.worst:.3g} times the error limit at {found.index}"

    def columns(self):
        """Those of results.csv."""
        return {"case_id": self.id, **dict.fromkeys(("dtype_q", "dtype_kv", "dtype_o"), self.dtype), "batch": self.batch,
                "heads_q": self.heads, "heads_kv": self.heads_kv, "seq_q": self.seq_q, "seq_k": self.seq_k,
                "dim_qk": self.head_dim, "dim_v": self.head_dim, "score": "dot", "causal": self.causal,
                "align": self.causal if self.causal != "none" else "top-left", "window": "none", "mask": "none",
                "bias": "none", "alibi": "off", "softcap": 0, "sinks": "off", "lengths": "full", "layout": "bhsd",
                "cache": "warm", "flops": self.flops, "bytes": self.bytes}


class Given:
    """A case of the caller's own arguments. Outputs are compared with the baseline's."""

    flops = bytes = convert = None
    dtype = "f32"

    def __init__(self, arguments):
        self.call = ([], arguments) if isinstance(arguments, Mapping) else (list(arguments), {})

    def check(self, output, baseline):
        try:
            ours, right = _to_numpy(output), _to_numpy(baseline)
        except (TypeError, ValueError):
            return None  # no arrays
        if ours.dtype == object or right.dtype == object:
            return None
        if ours.shape != right.shape:
            return f"shape {ours.shape}; the baseline's is {right.shape}"
        ours, right, limit = ours.astype(float), right.astype(float), TOLERANCE.get(str(right.dtype), 0)
        error, size = np.abs(ours - right).max(initial=0), np.abs(right).max(initial=0)
        return None if error <= limit * size else f"differs from the baseline by {error:.3g}, of at most {size:.3g}"

    def columns(self):
        return {}


def _numpy_dtype(dtype):
    if dtype != "bf16":
        return np.dtype(DTYPES[dtype])
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _bits(array):
    """bfloat16 as the uint16 that the oracle takes."""
    array = np.ascontiguousarray(array)
    return array.view(np.uint16) if str(array.dtype) == "bfloat16" else array


def _to_numpy(output):
    if hasattr(output, "detach"):  # PyTorch's bfloat16 has no NumPy counterpart
        import torch

        output = output.detach().contiguous()
        if output.dtype == torch.bfloat16:
            return output.view(torch.int16).numpy().view(_numpy_dtype("bf16"))
        return output.numpy()
    return np.asarray(output)


@dataclass
class Row:
    """One function on one case. status: PASS, FAIL or ERROR; only what passes is timed. ratio: the baseline's time over this
    function's, so that more than 1 is quicker."""

    case: str
    function: str
    status: str = "PASS"
    reason: str = ""
    problem: Any = None
    run: Any = None  # the function
    times_ns: list = field(default_factory=list)
    positions: list = field(default_factory=list)
    peak_rates: list = field(default_factory=list)  # flop/s of the peak loop just before each sample
    iterations: int = 1
    ratio: Ratio | None = None
    p: float | None = None  # of the ratio; Holm-corrected over all rows
    verdict: str = ""

    @property
    def time(self):
        return summarise(self.times_ns)

    @property
    def peak_pct(self):
        """The median over the rounds of the share of the peak."""
        if not (self.times_ns and self.peak_rates and self.problem.flops):
            return None
        return float(np.median([100e9 * self.problem.flops / time / peak
                                for time, peak in zip(self.times_ns, self.peak_rates)]))

    def columns(self, baseline):
        """Those of results.csv that times fill. baseline: the function that the ratio compares with."""
        if not self.times_ns:
            return {}
        time_ns = self.time
        columns = {"samples": len(self.times_ns), "time_ns_min": time_ns.min, "time_ns_median": time_ns.median,
                   "time_ns_mad": time_ns.mad, "time_ns_ci_lo": time_ns.low, "time_ns_ci_hi": time_ns.high,
                   "flops": self.problem.flops, "bytes": self.problem.bytes,
                   "gflops": self.problem.flops / time_ns.median, "gbs": self.problem.bytes / time_ns.median,
                   "stop_reason": "rounds"}
        if self.peak_rates:
            columns.update(peak_gflops=float(np.median(self.peak_rates)) * 1e-9, peak_pct=self.peak_pct)
        if self.ratio:
            columns.update(baseline=baseline, ratio=self.ratio.median, ratio_ci_lo=self.ratio.low,
                           ratio_ci_hi=self.ratio.high)
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


def _check(row, baseline, places):
    """Calls the function once in every placement; (what it returned first). A function that fails is not timed."""
    first = None
    try:
        for arguments, keywords in places.calls:
            returned = row.run(*arguments, **keywords)
            first = returned if first is None else first
            wrong = row.problem.check(returned, first if baseline is None else baseline)
            if wrong:
                row.status, row.reason = "FAIL", wrong
                break
    except Exception as error:  # whatever a function of the caller raises becomes a row
        row.status, row.reason = "ERROR", f"{type(error).__name__}: {error}"
        return None
    return first


def _measure(rows, places, rounds, sample_ns, peak, seed):
    def call_of(row, index):
        arguments, keywords = places.call_of(index)
        return functools.partial(row.run, *arguments, **keywords)

    for row in rows:
        row.iterations, _ = calibrate([call_of(row, 0)], sample_ns)
    with no_collection():
        for index, position, row in schedule(rows, rounds, seed):
            call = call_of(row, index)
            places.move()
            call()  # plans, and brings its data into the caches
            if peak:
                row.peak_rates.append(peak.flops())
            total_ns, _ = time_calls([call], row.iterations)
            row.times_ns.append(total_ns / row.iterations)
            row.positions.append(position)


def compare(fns: Mapping[str, Callable], cases: Mapping[str, Any] | Iterable[Any], *, baseline: str | None = None,
            rounds: int = 21, sample_ms: float = 20.0, threads: int = 1, convert: Callable | None = None,
            seed: int = 1) -> Comparison:
    """Times every function on every case as attnbench does, and compares each with the baseline.

    fns: name -> function. baseline: a name, by default the first; it runs twice, and the ratio of both entries is the noise.
    cases: axes of attnbench as texts ("heads=8 seq=512"), checked against the float64 oracle within the derived limit; or
        name -> arguments (a sequence or a mapping) of the functions, whose outputs must then agree with the baseline's.
    rounds: each function is timed once per round; a sample lasts at least sample_ms. At least 6, for an interval. In
        every round copies of the arrays, and plans of libattn, lie elsewhere in memory: as many as 256 MiB hold.
    threads: of the peak loop that is timed beside every sample (the functions' threads are the caller's affair).
    convert: applied to each array of the cases that are texts, such as torch.from_numpy.

    Raises CaseError for axes that are wrong, ValueError for too few rounds or an unknown baseline. What a function raises
    becomes a row with status ERROR.
    """
    if rounds < 6:
        raise ValueError(f"rounds is {rounds}; an interval of 95 % needs at least 6")
    baseline = baseline or next(iter(fns))
    if baseline not in fns:
        raise ValueError(f"baseline is {baseline!r}; it must be one of {', '.join(fns)}")
    found = Comparison(baseline, threads)
    names = [baseline, *(name for name in fns if name != baseline), baseline + AGAIN]
    for case, problem in _cases(cases, convert, seed).items():
        rows = [Row(case, name, problem=problem, run=fns.get(name, fns[baseline])) for name in names]
        places, right = Places(problem.call, problem.convert, rounds, seed), None
        for row in rows:
            returned = _check(row, right, places)
            right = returned if right is None else right
        with harness.open_peak(problem.dtype, threads) as peak:
            _measure([row for row in rows if row.status == "PASS"], places, rounds, sample_ms * 1e6, peak, seed)
        found.placing[case] = places.count, places.length
        found.rows += rows
    found.finish()
    return found


def set_verdicts(rows):
    """p, corrected for all of these rows, and verdicts."""
    for row, p in zip(rows, holm([row.ratio.p for row in rows])):
        row.p, row.verdict = p, verdict(row.ratio, p)


class Comparison:
    """What compare() found: `rows`, and tables and figures of them."""

    def __init__(self, baseline, threads):
        self.baseline, self.threads, self.rows = baseline, threads, []
        self.placing = {}  # case -> (placements, rounds in turn in each)
        self.id = f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"

    def finish(self):
        """Ratios, and verdicts with one correction for all."""
        first = {row.case: row for row in self.rows if row.function == self.baseline and row.times_ns}
        compared = [row for row in self.rows if row.times_ns and row.case in first and row.function != self.baseline]
        for row in compared:
            row.ratio = paired_ratio(first[row.case].times_ns, row.times_ns, self.placing.get(row.case))
        set_verdicts([row for row in compared if not self._is_control(row)])

    def _is_control(self, row):
        return row.function == self.baseline + AGAIN

    def noise(self, case):
        """The A/A control of a case: the ratio of the baseline to itself."""
        controls = (row for row in self.rows if row.case == case and self._is_control(row) and row.ratio)
        return next((row.ratio.median for row in controls), None)

    def records(self):
        """A dictionary for each function and case: what frame() has."""
        for row in self.rows:
            if self._is_control(row):
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

    def _samples(self):
        return [sample for row in self.rows
                for sample in row.samples(self.id, row.problem.columns().get("case_id", row.case))]

    def samples(self):
        """Every sample as a pandas DataFrame, with the columns of samples.csv."""
        return _needed("pandas", "samples()").DataFrame(list(self._samples()), columns=SAMPLE_COLUMNS)

    def write(self, folder):
        """Writes results.csv and samples.csv with attnbench's columns, for scripts/plot.py: of cases that are texts."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        rows = []
        for row in self.rows:
            columns = {**row.problem.columns(), "run_id": self.id, "kernel": row.function, "algorithm": row.function,
                       "status": row.status, "reason": row.reason, "threads": self.threads}
            if columns.get("case_id") and not self._is_control(row):
                noise = self.noise(row.case) if row.times_ns else None
                rows.append({**columns, **row.columns(self.baseline), "noise": noise})
        write_csv(Path(folder) / "results.csv", COLUMNS, rows)
        write_csv(Path(folder) / "samples.csv", SAMPLE_COLUMNS, self._samples())

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
