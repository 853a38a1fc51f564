# SPDX-License-Identifier: MIT
"""Roofline (Williams, Waterman and Patterson, 2009): the rate of each row against its flops per byte, below measured roofs.

A compute roof is the peak loop of a tier. A slope is the median rate of the read loops beside the samples of the cases that
one level of cache holds, the roof that `bw_pct` in results.csv is a share of. Results without the column `level` have the
slopes of `attnbench peak --csv` (peak.csv beside results.csv), or of all their read loops.
"""

from dataclasses import dataclass
from math import floor, log2, log10
from statistics import median

from matplotlib.lines import Line2D

from . import style, svg, views
from .axes import label_ends
from .page import Frame, Page, columns_for

SLOPES = {"L1": (0, (1, 1.3)), "L2": (0, (4, 1.6)), "L3": (0, (7, 2, 1.5, 2)), "memory": "-", "read loop": "-"}


@dataclass(frozen=True)
class Spot:
    """One row: x in flops per byte, y in GFLOP/s."""
    x: float
    y: float
    row: views.Row


@dataclass(frozen=True)
class RooflinePanel:
    conditions: dict   # cpu, dtype, threads
    spots: list
    peaks: dict        # tier -> GFLOP/s
    bandwidths: dict   # level -> GB/s
    rows: list


def roofline_panels(results):
    """One panel per CPU, dtype and number of threads; attention only, since layers have phases of different intensity."""
    groups = {}
    for row in results.rows:
        if not row["layer"]:
            groups.setdefault((row.cpu, views.dtype(row), row["threads"]), []).append(row)
    panels = [roofline_panel(place, rows, results.ceilings.get(place[0], [])) for place, rows in sorted(groups.items())]
    panels = [panel for panel in panels if panel.spots]
    if not panels:
        raise views.NothingToDraw("no row of attention alone has a time, flops and bytes")
    return panels


def roofline_panel(place, rows, ceilings):
    cpu, dtype, threads = place
    spots = [Spot(row["flops"] / row["bytes"], row["gflops"], row) for row in rows
             if row.timed and row["flops"] and row["bytes"] and row["gflops"]]
    peaks = measured_peaks(rows)
    bandwidths = measured_reads(rows)
    if not bandwidths or "read loop" in bandwidths:
        reads = {ceiling.name: rate_of(ceiling, threads) for ceiling in ceilings if ceiling.kind == "read"}
        bandwidths = {name: rate for name, rate in reads.items() if rate} or bandwidths
    return RooflinePanel({"cpu": cpu, "dtype": dtype, "threads": threads}, spots, peaks, bandwidths, rows)


def measured_reads(rows):
    """level -> median of the read loops; "read loop" for rows without a level."""
    found = {}
    for row in rows:
        if row.timed and row["peak_gbs"]:
            found.setdefault(row["level"] or "read loop", []).append(row["peak_gbs"])
    return {level: median(found[level]) for level in SLOPES if level in found}


def rate_of(ceiling, threads):
    """None where that number of threads was not measured."""
    return ceiling.one_core if threads == 1 else ceiling.all_cores if threads == ceiling.threads else None


def measured_peaks(rows):
    """tier -> median of the peak loops that ran beside the samples of our own kernels."""
    found = {}
    for row in rows:
        if row.timed and row["peak_gflops"] and not views.on_library(row):
            found.setdefault(row["isa"], []).append(row["peak_gflops"])
    return {isa: median(rates) for isa, rates in found.items()}


def roofline_page(panels, header, looks, notes):
    texts = [[(rate, f"{isa} peak {rate:.0f}", style.FAINT) for isa, rate in panel.peaks.items()] for panel in panels]
    longest = max(style.text_width(words, style.LABEL) for labels in texts for _, words, _ in labels or [(0, "", 0)])
    width = 3.6 if len(panels) > 1 else 5.2
    frame = Frame(width, 2.9, left=0.62, right=longest + 0.075 * width + 0.2)
    lines = [*header, ("Mark: one case of one kernel, median; horizontal: peak loop of a tier; slope: bytes per second as "
                       "read; bytes of a case: Q, K, V and O once"), *map(bandwidth_words, panels)]
    page = Page("Roofline: rate against flops per byte", lines, views.titles(panels), columns_for(panels), frame,
                legends(panels, looks), notes)
    for axes, panel, labels in zip(page.axes, panels, texts):
        draw_roofline(axes, panel, frame, looks)
        label_ends(axes, labels, frame.height)
    return page


def bandwidth_words(panel):
    where = views.in_words(panel.conditions, ("dtype", "threads"))
    rates = ", ".join(f"{name} {rate:.3g} GB/s" for name, rate in panel.bandwidths.items())
    return f"Read, {where}: {rates or 'not measured; attnbench peak --csv peak.csv does'}"


def legends(panels, looks):
    algorithms = sorted({spot.row["algorithm"] for panel in panels for spot in panel.spots},
                        key=list(looks.algorithms).index)
    levels = dict.fromkeys(name for panel in panels for name in panel.bandwidths)
    return [[(Line2D([], [], color=looks.colour(name), marker=looks.marker(name), ls="none", ms=6), name)
             for name in algorithms],
            [(Line2D([], [], color=style.FAINT, lw=0.9, ls=SLOPES.get(name, "-")), f"{name} bandwidth") for name in levels]]


def limits(panel):
    """((least x, most x), (least y, most y)) with room around marks and roofs, whole powers of two."""
    xs, ys = [spot.x for spot in panel.spots], [spot.y for spot in panel.spots] + list(panel.peaks.values())
    return tuple((2.0 ** floor(log2(min(values)) - 0.2), 2.0 ** (floor(log2(max(values)) + 0.2) + 1)) for values in (xs, ys))


def draw_roofline(axes, panel, frame, looks):
    (left, right), (low, high) = limits(panel)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    top = max(panel.peaks.values(), default=high)
    for rate in panel.peaks.values():
        axes.plot([left, right], [rate, rate], color=style.FAINT, lw=0.9, zorder=2)
    for name, rate in panel.bandwidths.items():
        axes.plot([left, top / rate], [left * rate, top], color=style.FAINT, lw=0.9, ls=SLOPES.get(name, "-"), zorder=2)
    for algorithm in dict.fromkeys(spot.row["algorithm"] for spot in panel.spots):
        spots = [spot for spot in panel.spots if spot.row["algorithm"] == algorithm]
        marks, = axes.plot([spot.x for spot in spots], [spot.y for spot in spots], color=looks.colour(algorithm),
                           marker=looks.marker(algorithm), ls="none", mec="white", mew=0.4, alpha=0.8, zorder=3)
        svg.tip(marks, *(f"{spot.row['kernel']}, {views.case_words(spot.row)}: {spot.y:.4g} GFLOP/s" for spot in spots))
    log_ticks(axes, (left, right), (low, high), frame)


def log_ticks(axes, across, up, frame):
    """Powers of two below, as many as fit; 1, 2 and 5 times powers of ten on the left."""
    step = 1 if log2(across[1] / across[0]) * 0.35 < frame.width else 2
    xs = [2.0 ** power for power in range(int(log2(across[0])), int(log2(across[1])) + 1, step)]
    decades = log10(up[1] / up[0])
    digits = (1, 2, 5) if decades < 2.5 else (1,) if decades > 1 else (1, 2, 5)
    ys = [digit * 10.0 ** power for power in range(-4, 7) for digit in digits if up[0] <= digit * 10.0 ** power <= up[1]]
    axes.set_xticks(xs, [f"{x:g}" for x in xs])
    axes.set_yticks(ys, [f"{y:g}" for y in ys])
    axes.set_xticks([], minor=True)
    axes.set_yticks([], minor=True)
    axes.grid(color=style.GRID, lw=0.6)
    axes.set_xlabel("flops per byte")
    axes.set_ylabel("GFLOP/s")
