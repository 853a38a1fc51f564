"""Winner heatmap: the fastest kernel of each seq and head_dim, its lead in the cell, hatched where the lead is not proven."""

from matplotlib import patheffects
from matplotlib.patches import Patch, Rectangle

from . import style, views
from .page import Frame, Page

EMPTY = "#EDEDED"
CELL = (0.98, 0.6)  # inches


def heatmap_page(panels, header, looks, notes):
    seqs, dims = max(len(panel.seqs) for panel in panels), max(len(panel.head_dims) for panel in panels)
    frame = Frame(CELL[0] * seqs, CELL[1] * dims, left=0.72, right=0.2)
    _, varying = views.shared_conditions(panels)
    titles = [views.in_words(panel.conditions, varying) for panel in panels]
    lines = header + ["In a cell: fastest kernel, and how much longer the runner-up takes; hatched: not separated, i.e. 95 % "
                      f"intervals of the two times overlap, the lead is below {100 * views.MARGIN:.0f} %, or they are from different runs"]
    columns = max(1, min(len(panels), int(14 / (frame.left + frame.width + frame.right))))
    page = Page("Fastest kernel by sequence length and head dimension", lines, titles, columns, frame,
                legends(panels, looks), notes)
    for axes, panel in zip(page.axes, panels):
        draw_winners(axes, panel, seqs, dims, looks)
    return page


def legends(panels, looks):
    cells = [cell for panel in panels for cell in panel.cells.values()]
    algorithms = sorted({cell.winner["algorithm"] for cell in cells if cell}, key=list(looks.algorithms).index)
    entries = [(Patch(facecolor=looks.colour(name)), name) for name in algorithms]
    entries.append((Patch(facecolor="white", edgecolor=style.INK, hatch="////", lw=0.5), "not separated"))
    if any(cell is None for cell in cells):
        entries.append((Patch(facecolor=EMPTY, edgecolor=style.GRID), "no kernel with a time"))
    return [entries]


def draw_winners(axes, panel, seqs, dims, looks):
    """seqs x dims cells, so that all panels of a page have cells of one size."""
    axes.set_xlim(0, seqs)
    axes.set_ylim(0, dims)
    for (seq, dim), cell in panel.cells.items():
        draw_cell(axes, panel.seqs.index(seq), panel.head_dims.index(dim), cell, looks)
    axes.set_xticks([i + 0.5 for i in range(len(panel.seqs))], [str(seq) for seq in panel.seqs])
    axes.set_yticks([i + 0.5 for i in range(len(panel.head_dims))], [views.either(dim) for dim in panel.head_dims])
    axes.set_xlabel("seq_k" if panel.conditions["queries"] else "seq")
    axes.set_ylabel("head_dim")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_cell(axes, x, y, cell, looks):
    colour = looks.colour(cell.winner["algorithm"]) if cell else EMPTY
    ink = style.contrast(colour)
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", lw=1.5))
    if cell is None:
        axes.text(x + 0.5, y + 0.5, "no time", ha="center", va="center", size=style.LABEL, color=style.FAINT, style="italic")
        return
    if not cell.separated and cell.runner_up:
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor="none", edgecolor=ink, hatch="////", lw=0, alpha=0.55))
    name, _, tier = cell.winner["kernel"].rpartition("_")
    words = "\n".join(part for part in (name, tier, lead(cell)) if part)
    axes.text(x + 0.5, y + 0.5, words, ha="center", va="center", size=style.LABEL, color=ink, linespacing=1.15,
              path_effects=[patheffects.withStroke(linewidth=2.2, foreground=colour)])


def lead(cell):
    """How much longer the runner-up takes: +2.5 %, +40 %, 27×."""
    if cell.runner_up is None:
        return "no rival"
    if cell.margin >= 9:
        return f"{1 + cell.margin:.0f}×"
    return f"+{100 * cell.margin:.{1 if cell.margin < 0.1 else 0}f} %"
