# SPDX-License-Identifier: MIT
"""Rows of results.csv and samples.csv as attnbench writes them (harness/report/columns.def), and tables for people."""

import statistics

from libattn.bench.harness import holm, paired_ratio, summarise, verdict

USUAL = {"score": "dot", "window": "none", "mask": "none", "bias": "none", "alibi": "off", "softcap": 0, "sinks": "off",
         "lengths": "full", "layout": "bhsd"}  # the same in every row

OURS, CONTROL = "auto", "auto again"  # the kernel that peers are compared with, and its A/A control


def row_of(run_id, case, result, baseline):
    """Column -> value, without empty columns. baseline: the timed result for the ratio, or None."""
    row = {"run_id": run_id, "case_id": case.id, "kernel": result.name, "status": result.status, "reason": result.reason,
           "dtype_q": case.dtype, "dtype_kv": case.dtype, "dtype_o": case.dtype, "batch": case.batch, "heads_q": case.heads,
           "heads_kv": case.heads_kv, "seq_q": case.seq_q, "seq_k": case.seq_k, "dim_qk": case.head_dim,
           "dim_v": case.head_dim, "causal": case.causal, "align": case.causal if case.causal != "none" else "top-left",
           "cache": case.cache, "threads": case.threads, **USUAL}
    row.update(result.prepared.facts if result.prepared else {"algorithm": result.name})
    if result.check:
        row.update(rows_checked=result.check.rows, max_err_ratio=result.check.worst, max_abs_err=result.check.abs_error,
                   err_index=result.check.index)
    if result.timed:
        row.update(time_columns(case, result, baseline), **roof_columns(case, result))
    else:
        for column in ("plan_ns", "workspace_bytes"):
            row.pop(column, None)
    return row


def time_columns(case, result, baseline):
    time = summarise(result.times_ns)
    gflops = case.flops / time.median
    columns = {"samples": len(result.times_ns), "time_ns_min": time.min, "time_ns_median": time.median,
               "time_ns_mad": time.mad, "time_ns_ci_lo": time.low, "time_ns_ci_hi": time.high,
               "flops": case.flops, "bytes": case.bytes,
               "gflops": gflops, "gbs": case.bytes / time.median, "stop_reason": "rounds"}
    if baseline:
        ratio = paired_ratio(baseline.times_ns, result.times_ns)
        columns.update(baseline=baseline.name, ratio=ratio.median, ratio_ci_lo=ratio.low, ratio_ci_hi=ratio.high)
    return columns


def roof_columns(case, result):
    """The rates of the peak and read loops, and the medians over the rounds of the shares of them."""
    columns = {}
    for names, work, rates in ((("peak_gflops", "peak_pct"), case.flops, result.peak_rates),
                               (("peak_gbs", "bw_pct"), case.bytes_kv, result.read_rates)):
        if rates:
            shares = [work / time / (rate * 1e-9) for time, rate in zip(result.times_ns, rates, strict=True)]
            columns.update(zip(names, (statistics.median(rates) * 1e-9, 100 * statistics.median(shares))))
    return columns


def sample_rows(run_id, case, result):
    peaks = result.peak_rates or [None] * len(result.times_ns)
    return [{"run_id": run_id, "case_id": case.id, "kernel": result.name, "round": index, "position": position,
             "time_ns": time, "iterations": result.iterations, "peak_gflops": peak and peak * 1e-9}
            for index, (time, position, peak) in enumerate(zip(result.times_ns, result.positions, peaks, strict=True))]


# ---- Verdicts ----------------------------------------------------------------------------------------------------------

class Comparisons:
    """Our automatic kernel against every kernel of a peer on every case, with one Holm correction for all."""

    def __init__(self, names):
        self.names = names  # of the peer's kernels
        self.found = []     # (case, kernel, ratio)

    def add(self, case, results):
        ours = next((result for result in results if result.name == OURS and result.timed), None)
        for theirs in results:
            if ours and theirs.timed and theirs.name in self.names:
                self.found.append((case, theirs.name, paired_ratio(theirs.times_ns, ours.times_ns)))

    def verdicts(self):
        """(case, kernel, ratio, corrected p, verdict)"""
        corrected = holm([ratio.p for *_, ratio in self.found])
        return [(case, name, ratio, p, verdict(ratio, p)) for (case, name, ratio), p in zip(self.found, corrected)]


def control_ratio(results):
    """The A/A control: the time of our kernel's second entry over that of its first; None if they were not timed."""
    pair = {result.name: result.times_ns for result in results if result.timed}
    return paired_ratio(pair[CONTROL], pair[OURS]) if OURS in pair and CONTROL in pair else None


# ---- Tables ------------------------------------------------------------------------------------------------------------

def print_case(case, rows, results):
    print(f"\n{case}")
    versus = f"kernel / {OURS}" if any("ratio" in row for row in rows) else ""
    print(f"  {'kernel':<20} {'time':>10} {'+-':>7} {'GFLOP/s':>8} {'% peak':>7} {'GB/s':>7} {'% read':>7}  {versus:<26} "
          f"{'err/limit':>9}")
    for row, result in zip(rows, results):
        if result.name != CONTROL:
            print_row(row, result)
    control = control_ratio(results)
    if control:
        print(f"  A/A control: {OURS} against itself {interval(control.median, control.low, control.high)}")


def print_row(row, result):
    error = f"{row['max_err_ratio']:.3f}" if "max_err_ratio" in row else ""
    if not result.timed:
        print(f"  {result.name:<20} {result.status}: {result.reason}")
        return
    time, peak = summarise(result.times_ns), f"{row['peak_pct']:.1f}" if "peak_pct" in row else "-"
    spread = 100 * max(time.high - time.median, time.median - time.low) / time.median
    read = f"{row['bw_pct']:.1f}" if "bw_pct" in row else ""
    slower = interval(*slowness(row)) if "ratio" in row else ""
    print(f"  {result.name:<20} {duration(time.median):>10} {spread:>5.1f} % {row['gflops']:>8.1f} {peak:>7}"
          f" {row['gbs']:>7.2f} {read:>7}  {slower:<26} {error:>9}  {result.prepared.note}".rstrip())
    for warning in result.warnings:
        print(f"    {warning}")


def print_verdicts(verdicts):
    if not verdicts:
        return
    print(f"\nAgainst {OURS}: the peer's time over ours, paired by round; p Holm-corrected over these "
          f"{len(verdicts)} comparisons")
    for name in dict.fromkeys(name for _, name, *_ in verdicts):
        print(f"  {name}")
        for case, _, ratio, p, word in (found for found in verdicts if found[1] == name):
            print(f"    {word:<13} {interval(ratio.median, ratio.low, ratio.high):<26} p {p:<8.2g} {case}")
    middle = {name: statistics.geometric_mean(ratio.median for _, other, ratio, *_ in verdicts if other == name)
              for name in dict.fromkeys(name for _, name, *_ in verdicts)}
    print("  geometric means: " + ", ".join(f"{name} {value:.2f}" for name, value in middle.items()))


def slowness(row):
    """(median, low, high) of a row's time over its baseline's time, the inverse of the column `ratio`."""
    return tuple(1 / float(row[column]) for column in ("ratio", "ratio_ci_hi", "ratio_ci_lo"))


def interval(median, low, high):
    return f"{median:.3f} [{low:.3f}, {high:.3f}]"


def duration(ns):
    unit, word = next((unit for unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")) if ns >= unit[0]), (1, "ns"))
    return f"{ns / unit:.{3 if ns < 10 * unit else 2 if ns < 100 * unit else 1}f} {word}"
