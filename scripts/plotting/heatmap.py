# SPDX-License-Identifier: MIT
"""Winner heatmap: the fastest kernel of each seq and head_dim, and its lead. Cells are hatched if the lead is uncertain."""

from matplotlib.patches import Patch, Rectangle

from . import style, svg, views
from .page import Frame, Page

EMPTY = "#EDEDED"
CELL = (0.98, 0.6)  # inches


def heatmap_page(panels, header, looks, notes):
    """All panels of a page have the same axes."""
    seqs = sorted({seq for panel in panels for seq in panel.seqs})
    dims = sorted({dim for panel in panels for dim in panel.head_dims})
    frame = Frame(CELL[0] * len(seqs), CELL[1] * len(dims), left=0.72, right=0.2)
    reading = ("In a cell: fastest kernel, and how much longer the runner-up takes; hatched: not separated, i.e. 95 % "
               f"intervals of the two times overlap, the lead is below {100 * views.MARGIN:.0f} %, or they are from "
               "different runs")
    columns = max(1, min(len(panels), int(14 / (frame.left + frame.width + frame.right))))
    page = Page("Fastest kernel by sequence length and head dimension", [*header, reading], views.titles(panels), columns,
                frame, legends(panels, len(seqs) * len(dims), looks), notes)
    for axes, panel in zip(page.axes, panels):
        draw_winners(axes, panel, seqs, dims, looks)
    return page


def legends(panels, places, looks):
    cells = [cell for panel in panels for cell in panel.cells.values()]
    algorithms = sorted({cell.winner["algorithm"] for cell in cells if cell}, key=list(looks.algorithms).index)
    entries = [(Patch(facecolor=looks.colour(name)), name) for name in algorithms]
    entries.append((Patch(facecolor="white", edgecolor=style.INK, hatch="////", lw=0.5), "not separated"))
    if any(cell is None for cell in cells):
        entries.append((Patch(facecolor=EMPTY, edgecolor=style.GRID), "no kernel with a time"))
    if any(len(panel.cells) < places for panel in panels):
        entries.append((Patch(facecolor="white", edgecolor=style.GRID), "not in the data"))
    return [entries]


def draw_winners(axes, panel, seqs, dims, looks):
    axes.set_xlim(0, len(seqs))
    axes.set_ylim(0, len(dims))
    for x, seq in enumerate(seqs):
        for y, dim in enumerate(dims):
            if (seq, dim) in panel.cells:
                draw_cell(axes, x, y, panel.cells[seq, dim], looks)
            else:
                axes.add_patch(Rectangle((x + 0.03, y + 0.03), 0.94, 0.94, facecolor="none", edgecolor=style.GRID, lw=0.8))
    axes.set_xticks([i + 0.5 for i in range(len(seqs))], [str(seq) for seq in seqs])
    axes.set_yticks([i + 0.5 for i in range(len(dims))], [views.either(dim) for dim in dims])
    axes.set_xlabel("seq_k" if panel.conditions["queries"] else "seq")
    axes.set_ylabel("head_dim")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_cell(axes, x, y, cell, looks):
    colour = looks.colour(cell.winner["algorithm"]) if cell else EMPTY
    ink = style.contrast(colour)
    patch = axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", lw=1.5))
    if cell is None:
        axes.text(x + 0.5, y + 0.5, "no time", ha="center", va="center", size=style.LABEL, color=style.FAINT)
        return
    box = None
    if not cell.separated and cell.runner_up:
        box = {"facecolor": colour, "edgecolor": "none", "pad": 1}  # keeps the hatching out of the words
        axes.add_patch(Rectangle((x + 0.01, y + 0.02), 0.98, 0.96, facecolor="none", edgecolor=ink, hatch="////", lw=0,
                                 alpha=0.55))
    name, _, tier = cell.winner["kernel"].rpartition("_")
    words = "\n".join(part for part in (name, tier, lead(cell)) if part)
    axes.text(x + 0.5, y + 0.5, words, ha="center", va="center", size=style.LABEL, color=ink, linespacing=1.15, bbox=box)
    svg.tip(patch, in_full(cell))


def in_full(cell):
    """The cell in words."""
    if cell.runner_up is None:
        return f"{cell.winner['kernel']}, alone"
    return f"{cell.winner['kernel']}, then {cell.runner_up['kernel']}: {lead(cell)}" + \
        ("" if cell.separated else " (not separated)")


def lead(cell):
    """How much longer the runner-up takes: +2.5 %, +40 %, 27×."""
    if cell.runner_up is None:
        return "alone"
    if cell.margin >= 9:
        return f"{1 + cell.margin:.0f}×"
    return f"+{100 * cell.margin:.{1 if cell.margin < 0.1 else 0}f} %"
