# SPDX-License-Identifier: MIT
"""Bars of libattn and its peers: a panel per case, a bar per library. Draws a Grid of scripts/peers/pairing/combine.py."""

from matplotlib.patches import Patch

from . import style
from .page import Frame, Page
from .views import NO_BREAK

BAR = 0.21        # inches per library
LABEL_ROOM = 1.1  # inches right of the longest bar, for its numbers
OURS, PEER = "#0072B2", "#B8B8B8"
COLUMNS = 3


def peers_page(grid, labels, conditions):
    """labels: the words beside the bars of grid.names."""
    first_left = max(style.text_width(words, style.LABEL) for words in labels) + 0.15
    frame = Frame(width=2.7, height=BAR * len(labels) + 0.1, left=0.14, right=0.2, below=0.45, first_left=first_left)
    lines = [*conditions, *reading(grid)]
    legend = [[(Patch(facecolor=OURS), "libattn"), (Patch(facecolor=PEER), "peer"),
               (Patch(facecolor="white", edgecolor=style.FAINT, hatch="////", lw=0.5), "no time: see below")]]
    words = dict(zip(grid.names, labels))
    notes = [(status, f"{status} {words[name]} {why}") for name, status, why in grid.absences()]
    page = Page(f"libattn and its peers: {grid.title}", lines, grid.titles,
                min(COLUMNS, len(grid.cases)), frame, legend, notes, "table.md beside this figure")
    for i, (axes, case) in enumerate(zip(page.axes, grid.cases)):
        draw_case(axes, grid, case, frame.width)
        axes.set_yticks(range(len(labels)), labels if i % COLUMNS == 0 else [""] * len(labels))
    return page


def reading(grid):
    peak = f"{grid.peak:.0f} GFLOP/s" if grid.peak else "not measured"
    return [f"Bar: % of the peak loop timed beside every sample ({peak}); decode: GB/s of K and V; line: peak, or read loop",
            ("Whisker: 95 % interval, ours: over the processes of all peers; ×: the peer's time over ours, paired by round "
             "in one process")]


def draw_case(axes, grid, case, width):
    cells = [grid.cells.get((name, case)) for name in grid.names]
    roof = grid.reads.get(case) if case.is_decode else 100.0
    limit = max([cell.high for cell in cells if cell and cell.high] + [roof or 1.0])
    scale = limit * width / (width - LABEL_ROOM)
    for y, cell in enumerate(cells):
        draw_cell(axes, y, cell, scale, ours=y == 0)
    axes.set_xlim(0, scale)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.grid(axis="x", color=style.GRID, lw=0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("GB/s of K and V" if case.is_decode else "% of peak", labelpad=2)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= limit])
    if roof:
        axes.axvline(roof, color=style.FAINT, lw=0.9)


def draw_cell(axes, y, cell, scale, ours):
    if cell is None or cell.value is None:
        status = cell.status if cell else "not run"
        axes.barh(y, 0.06 * scale, height=0.62, facecolor="white", edgecolor=style.FAINT, hatch="//////", lw=0.5)
        note(axes, y, 0.06 * scale, "no peak" if status == "PASS" else status,
             color=style.STATUS_COLOUR.get(status, style.FAINT), style="italic")
        return
    axes.barh(y, cell.value, height=0.74, color=OURS if ours else PEER)
    axes.plot([cell.low, cell.high], [y, y], color=style.INK, lw=0.9, marker="|", ms=4, mew=0.9)
    words = f"{cell.value:.0f}" if cell.value >= 10 else f"{cell.value:.1f}"
    if cell.slower:
        words += 3 * NO_BREAK + (f"{cell.slower[0]:.2f}×" if cell.slower[0] < 100 else f"{cell.slower[0]:.0f}×")
    note(axes, y, max(cell.high, cell.value), words, weight="bold" if ours else "normal")


def note(axes, y, x, words, **kwargs):
    axes.annotate(words, (x, y), (4, 0), textcoords="offset points", va="center", size=style.LABEL,
                  bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6}, **kwargs)
