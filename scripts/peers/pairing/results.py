# SPDX-License-Identifier: MIT
"""Comparisons with our automatic kernel, and tables for people."""

import statistics

from libattn.bench.comparing import AGAIN, Row
from libattn.bench.harness import paired_ratio

from .cases import heading

OURS, CONTROL = "auto", "auto" + AGAIN  # the kernel that peers are compared with, and its A/A control


def leads(rows, names, placing):
    """Rows of our automatic kernel against each of these kernels: the ratio is their time over ours. rows: of one case."""
    ours = next((row for row in rows if row.function == OURS and row.times_ns), None)
    return [Row(theirs.case, theirs.function, problem=theirs.problem,
                ratio=paired_ratio(theirs.times_ns, ours.times_ns, placing))
            for theirs in rows if ours and theirs.times_ns and theirs.function in names]


# ---- Tables ------------------------------------------------------------------------------------------------------------

def print_case(rows):
    print(f"\n{heading(rows[0].problem)}")
    versus = f"kernel / {OURS}" if rows[0].times_ns else ""
    print(f"  {'kernel':<20} {'time':>10} {'+-':>7} {'GFLOP/s':>8} {'% peak':>7} {'GB/s':>7} {'% read':>7}  {versus:<26} "
          f"{'err/limit':>9}")
    for row in rows:
        if row.function != CONTROL:
            print_row(row)
    control = rows[-1].ratio
    if control:
        print(f"  A/A control: {OURS} against itself {interval(1 / control.median, 1 / control.high, 1 / control.low)}")


def print_row(row):
    if not row.times_ns:
        print(f"  {row.function:<20} {row.status}: {row.reason}")
        return
    columns, time = row.columns(OURS), row.time
    error = f"{columns['max_err_ratio']:.3f}" if "max_err_ratio" in columns else ""
    peak = f"{columns['peak_pct']:.1f}" if "peak_pct" in columns else "-"
    spread = 100 * max(time.high - time.median, time.median - time.low) / time.median
    read = f"{columns['bw_pct']:.1f}" if "bw_pct" in columns else ""
    slower = interval(*slowness(columns)) if "ratio" in columns else ""
    print(f"  {row.function:<20} {duration(time.median):>10} {spread:>5.1f} % {columns['gflops']:>8.1f} {peak:>7}"
          f" {columns['gbs']:>7.2f} {read:>7}  {slower:<26} {error:>9}  {row.note}".rstrip())
    for warning in row.warnings:
        print(f"    {warning}")


def print_verdicts(rows):
    """rows: those of leads() on all cases, with verdicts."""
    if not rows:
        return
    print(f"\nAgainst {OURS}: the peer's time over ours, paired by round; p Holm-corrected over these "
          f"{len(rows)} comparisons")
    names = list(dict.fromkeys(row.function for row in rows))
    for name in names:
        print(f"  {name}")
        for row in (row for row in rows if row.function == name):
            print(f"    {row.verdict:<13} {interval(row.ratio.median, row.ratio.low, row.ratio.high):<26} p {row.p:<8.2g} "
                  f"{heading(row.problem)}")
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
