# SPDX-License-Identifier: MIT
"""The results of all peers as a table: a column per case, a row per library. scripts/plotting/peers.py draws the bars."""

import csv
import re
import statistics
from dataclasses import dataclass

from .cases import DTYPES, build_case, title
from .peers import PEERS, WORDS
from .results import OURS, interval, slowness


@dataclass(frozen=True)
class Cell:
    """One library on one case. value, low, high: % of the peak loop, or GB/s of K and V for decoding; None unless status is
    PASS and there is a peak. slower: (median, low, high) of its time over ours in the same process; None for ours."""
    status: str
    reason: str
    value: float = None
    low: float = None
    high: float = None
    slower: tuple = None


@dataclass(frozen=True)
class Grid:
    """All that was measured with one dtype and one number of threads."""
    dtype: str
    threads: int
    cases: list      # list of Problem
    names: list      # names of kernels: ours first, then as PEERS has them
    libraries: dict  # kernel -> library and version, if a row has them
    cells: dict      # (kernel, case) -> Cell
    peak: float      # GFLOP/s, the median of all rows; None without
    reads: dict      # case -> GB/s of the read loop, for decoding
    noise: dict      # case -> % by which our kernel differs from itself (A/A control) in the worst process; 0 below 1 %

    @property
    def title(self):
        return f"{self.dtype}, {'one thread' if self.threads == 1 else f'{self.threads} threads'}"

    @property
    def titles(self):
        return [title(case) for case in self.cases]

    def absences(self):
        """(kernel, status, which cases and why) for each reason why a library has no time."""
        found = {}
        for name in self.names:
            for case in self.cases:
                cell = self.cells.get((name, case))
                if cell and cell.status != "PASS":
                    found.setdefault((name, cell.status, cell.reason), []).append(title(case))
        return [(name, status, f"({'every case' if len(titles) == len(self.cases) else ', '.join(titles)}): {reason}")
                for (name, status, reason), titles in found.items()]


def read_rows(paths):
    """Rows of several CSV files, as dictionaries of text."""
    rows = []
    for path in paths:
        with open(path, newline="", encoding="utf-8") as file:
            rows += csv.DictReader(file)
    return rows


def make_grids(rows):
    """The grids, those with few threads and float32 first."""
    groups, libraries = {}, {row["kernel"]: row["library"] for row in rows if row["library"]}
    for row in rows:
        groups.setdefault((int(row["threads"]), dtypes_of(row)), []).append(row)
    order = sorted(groups, key=lambda key: (key[0], DTYPES.index(key[1])))
    return [make_grid(threads, dtype, groups[threads, dtype], libraries) for threads, dtype in order]


def make_grid(threads, dtype, rows, libraries):
    names = [OURS, *(name for peer in PEERS.values() for name in peer.kernels)]
    found = {}
    for row in rows:
        found.setdefault((row["kernel"], case_of(row)), []).append(row)
    cells = {key: make_cell(key[1], several) for key, several in found.items()}
    return Grid(dtype, threads, list(dict.fromkeys(case for _, case in found)),
                [name for name in names if any(kernel == name for kernel, _ in found)], libraries, cells,
                median_of(rows, "peak_gflops"),
                {case: read for case in dict.fromkeys(case for _, case in found)
                 if (read := median_of([row for row in rows if case_of(row) == case], "peak_gbs"))},
                {case: max(map(noise_of, several)) for (kernel, case), several in found.items() if kernel == OURS})


def dtypes_of(row):
    """The value of the axis."""
    return row["dtype_q"] if row["dtype_kv"] in ("", row["dtype_q"]) else f"{row['dtype_q']}+{row['dtype_kv']}"


def noise_of(row):
    """The percentage in the warning that pairing/script.py writes."""
    told = re.search(r"differs from itself by [+-]([0-9.]+) %", row["warnings"])
    return float(told[1]) if told else 0.0


def case_of(row):
    columns = {"batch": "batch", "heads": "heads_q", "heads_kv": "heads_kv", "seq_q": "seq_q", "seq_k": "seq_k",
               "head_dim": "dim_qk", "causal": "causal", "cache": "cache"}
    axes = {axis: row[column] for axis, column in columns.items()}
    return build_case({**axes, "dtype": dtypes_of(row)}, int(row["threads"]))


def make_cell(case, several):
    """From one row; or from our rows of several processes: their median, the lowest low end and the highest high end."""
    timed = [row for row in several if row["status"] == "PASS" and row["time_ns_median"]]
    if not timed:
        return Cell(several[0]["status"], several[0]["reason"])
    slower = slowness(timed[0]) if timed[0]["ratio"] and timed[0]["kernel"] != OURS else None
    values = [value for value in (spread_of(case, row) for row in timed) if value]
    if not values:
        return Cell("PASS", "", slower=slower)
    middle = statistics.median(value for value, _, _ in values)
    return Cell("PASS", "", middle, min(low for _, low, _ in values), max(high for _, _, high in values), slower)


def spread_of(case, row):
    """(rate, low, high) of a timed row, from the interval of its time. None if the row has no peak."""
    time, low, high = (float(row[column]) for column in ("time_ns_median", "time_ns_ci_lo", "time_ns_ci_hi"))
    if case.is_decode:
        rate = case.bytes_kv / time
    elif row["peak_pct"]:
        rate = float(row["peak_pct"])
    else:
        return None
    return rate, rate * time / high, rate * time / low


def median_of(rows, column):
    values = [float(row[column]) for row in rows if row[column]]
    return statistics.median(values) if values else None


# ---- Markdown ----------------------------------------------------------------------------------------------------------

def markdown(grids, conditions):
    return "\n".join([*(f"{line}  " for line in conditions), "", *(line for grid in grids for line in grid_lines(grid))])


def grid_lines(grid):
    peak = f" of {grid.peak:.0f} GFLOP/s" if grid.peak else ""
    reads = ["read loop", *(f"{grid.reads[case]:.1f}" if case in grid.reads else "" for case in grid.cases)]
    rates = [[label(grid, name), *(rate_text(grid.cells.get((name, case))) for case in grid.cases)] for name in grid.names]
    times = [[label(grid, name), *(slower_text(grid.cells.get((name, case))) for case in grid.cases)]
             for name in grid.names if name != OURS]
    noise = ["A/A control: ours differs from itself by", *(noise_text(grid.noise.get(case)) for case in grid.cases)]
    return [f"{grid.title}: % of the peak loop{peak}; decode: GB/s of K and V", "",
            *table(["", *grid.titles], [*rates, reads] if grid.reads else rates), "",
            f"{grid.title}: time over ours in the same process, 95 % interval", "",
            *table(["", *grid.titles], [*times, noise]), "",
            *(f"- {WORDS.get(name, name)}, {status} {why}" for name, status, why in grid.absences()), ""]


def table(header, rows):
    return ["| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows]]


def label(grid, name):
    """The first column: the library with its version, and which part of it."""
    if name == OURS:
        return "**libattn**, automatic choice"
    words = WORDS[name]
    version, comma, how = grid.libraries.get(name, "").partition(", ")
    peer = next(peer for peer in PEERS.values() if name in peer.kernels)
    return (words.replace(peer.title, version, 1) if version.startswith(peer.title) else words) + comma + how


def rate_text(cell):
    if cell is None:
        return ""
    if cell.status != "PASS":
        return "–" if cell.status == "SKIP" else cell.status
    return "no peak" if cell.value is None else f"{cell.value:.1f}"


def noise_text(percent):
    return "–" if percent is None else f"{percent:.1f} %" if percent else "< 1 %"


def slower_text(cell):
    if cell is None or cell.slower is None:
        return "–" if cell is None or cell.status in ("PASS", "SKIP") else cell.status
    return interval(*cell.slower)
