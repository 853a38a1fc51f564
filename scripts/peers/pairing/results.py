# SPDX-License-Identifier: MIT
"""Rows of results.csv and samples.csv as attnbench writes them (harness/report/columns.def), and tables for people."""

import statistics

from libattn.bench.comparing import AGAIN, Row
from libattn.bench.harness import paired_ratio, summarise

USUAL = {"score": "dot", "window": "none", "mask": "none", "bias": "none", "alibi": "off", "softcap": 0, "sinks": "off",
         "lengths": "full", "layout": "bhsd"}  # the same in every row

OURS, CONTROL = "auto", "auto" + AGAIN  # the kernel that peers are compared with, and its A/A control


def row_of(run_id, case, result):
    """Column -> value, without empty columns."""
    row = {"run_id": run_id, "case_id": case.id, "kernel": result.function, "status": result.status, "reason": result.reason,
           "dtype_q": case.dtype, "dtype_kv": case.dtype, "dtype_o": case.dtype, "batch": case.batch, "heads_q": case.heads,
           "heads_kv": case.heads_kv, "seq_q": case.seq_q, "seq_k": case.seq_k, "dim_qk": case.head_dim,
           "dim_v": case.head_dim, "causal": case.causal, "align": case.causal if case.causal != "none" else "top-left",
           "cache": case.cache, "threads": case.threads, **USUAL}
    row.update(result.prepared.facts if result.prepared else {"algorithm": result.function})
    if result.check:
        row.update(rows_checked=result.check.rows, max_err_ratio=result.check.worst, max_abs_err=result.check.abs_error,
                   err_index=result.check.index)
    if result.timed:
        row.update(result.columns(OURS), **reading_columns(case, result))
    else:
        for column in ("plan_ns", "workspace_bytes"):
            row.pop(column, None)
    return row


def reading_columns(case, result):
    """The rate of the read loop, and the median over the rounds of the share of it."""
    if not result.read_rates:
        return {}
    shares = [case.bytes_kv / time / (rate * 1e-9) for time, rate in zip(result.times_ns, result.read_rates, strict=True)]
    return {"peak_gbs": statistics.median(result.read_rates) * 1e-9, "bw_pct": 100 * statistics.median(shares)}


# ---- Comparisons -------------------------------------------------------------------------------------------------------

def set_ratios(results):
    """Of our time over that of each timed result; those of one case."""
    ours = next((result for result in results if result.function == OURS and result.timed), None)
    for result in results:
        result.ratio = paired_ratio(ours.times_ns, result.times_ns) if ours and result.timed else None


def leads(results, names):
    """Rows of our automatic kernel against each of these kernels: the ratio is their time over ours."""
    ours = next((result for result in results if result.function == OURS and result.timed), None)
    return [Row(theirs.case, theirs.function, problem=theirs.problem, ratio=paired_ratio(theirs.times_ns, ours.times_ns))
            for theirs in results if ours and theirs.timed and theirs.function in names]


def control_ratio(results):
    """The A/A control: the time of our kernel's second entry over that of its first; None if they were not timed."""
    pair = {result.function: result.times_ns for result in results if result.timed}
    return paired_ratio(pair[CONTROL], pair[OURS]) if OURS in pair and CONTROL in pair else None


# ---- Tables ------------------------------------------------------------------------------------------------------------

def print_case(case, rows, results):
    print(f"\n{case}")
    versus = f"kernel / {OURS}" if any("ratio" in row for row in rows) else ""
    print(f"  {'kernel':<20} {'time':>10} {'+-':>7} {'GFLOP/s':>8} {'% peak':>7} {'GB/s':>7} {'% read':>7}  {versus:<26} "
          f"{'err/limit':>9}")
    for row, result in zip(rows, results):
        if result.function != CONTROL:
            print_row(row, result)
    control = control_ratio(results)
    if control:
        print(f"  A/A control: {OURS} against itself {interval(control.median, control.low, control.high)}")


def print_row(row, result):
    error = f"{row['max_err_ratio']:.3f}" if "max_err_ratio" in row else ""
    if not result.timed:
        print(f"  {result.function:<20} {result.status}: {result.reason}")
        return
    time, peak = summarise(result.times_ns), f"{row['peak_pct']:.1f}" if "peak_pct" in row else "-"
    spread = 100 * max(time.high - time.median, time.median - time.low) / time.median
    read = f"{row['bw_pct']:.1f}" if "bw_pct" in row else ""
    slower = interval(*slowness(row)) if "ratio" in row else ""
    print(f"  {result.function:<20} {duration(time.median):>10} {spread:>5.1f} % {row['gflops']:>8.1f} {peak:>7}"
          f" {row['gbs']:>7.2f} {read:>7}  {slower:<26} {error:>9}  {result.prepared.note}".rstrip())
    for warning in result.warnings:
        print(f"    {warning}")


def print_verdicts(rows):
    """Of leads() on all cases, whose verdicts are set."""
    if not rows:
        return
    print(f"\nAgainst {OURS}: the peer's time over ours, paired by round; p Holm-corrected over these "
          f"{len(rows)} comparisons")
    names = list(dict.fromkeys(row.function for row in rows))
    for name in names:
        print(f"  {name}")
        for row in (row for row in rows if row.function == name):
            print(f"    {row.verdict:<13} {interval(row.ratio.median, row.ratio.low, row.ratio.high):<26} p {row.p:<8.2g} "
                  f"{row.problem}")
    middle = {name: statistics.geometric_mean(row.ratio.median for row in rows if row.function == name) for name in names}
    print("  geometric means: " + ", ".join(f"{name} {value:.2f}" for name, value in middle.items()))


def slowness(row):
    """(median, low, high) of a row's time over its baseline's time, the inverse of the column `ratio`."""
    return tuple(1 / float(row[column]) for column in ("ratio", "ratio_ci_hi", "ratio_ci_lo"))


def interval(median, low, high):
    return f"{median:.3f} [{low:.3f}, {high:.3f}]"


def duration(ns):
    unit, word = next((unit for unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")) if ns >= unit[0]), (1, "ns"))
    return f"{ns / unit:.{3 if ns < 10 * unit else 2 if ns < 100 * unit else 1}f} {word}"
