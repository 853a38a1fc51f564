# SPDX-License-Identifier: MIT
"""Where the time of a layer goes: a stack of bars per case, for the kernel that is fastest there."""

from dataclasses import dataclass

from matplotlib.patches import Patch

from . import style, svg, views
from .page import Frame, Page, columns_for
from .table import Row

PARTS = {"projections": "#0072B2", "attention": "#E69F00", "rest": "#BBBBBB", "undivided": "#009E73"}  # see style.py
MOST_BARS = 8


@dataclass(frozen=True)
class LayerBar:
    """One case of a layer: its time with the fastest kernel, and the share of each part, 0..1. A layer whose profile has no
    parts is "undivided"."""
    x: int
    time_ns: float
    shares: dict
    row: Row


@dataclass(frozen=True)
class LayerPanel:
    conditions: dict
    layer: str
    axis: str     # "heads" or "seq"
    bars: list
    rows: list


def layer_panels(rows):
    """Layers along the number of heads and along seq, like views.fullest(): (panels, panels left out)."""
    layers = [row for row in rows if row["layer"]]
    if not layers:
        raise views.NothingToDraw("no row is of a layer: attnbench run --preset mha measures some")
    drawn = [layer_panel(panel, axis) for axis in ("heads", "seq") for panel in views.panels(layers, (axis,))]
    drawn, sparse = views.fullest(drawn, lambda panel: len(panel.bars))
    if not drawn:
        raise views.NothingToDraw("no layer was timed at two numbers of heads or lengths with all else equal")
    return drawn, sparse


def layer_shares(row):
    shares = {part: (row[f"{part}_pct"] or 0) / 100 for part in ("projections", "attention", "rest")}
    return shares | {"undivided": 0 if row["projections_pct"] is not None else 1}


def layer_panel(panel, axis):
    column = {"seq": "seq_k", "heads": "heads_q"}[axis]
    fastest = {}
    for row in panel.rows:
        best = fastest.get(row[column])
        if row.timed and (best is None or row["time_ns_median"] < best["time_ns_median"]):
            fastest[row[column]] = row
    bars = [LayerBar(x, row["time_ns_median"], layer_shares(row), row) for x, row in sorted(fastest.items())]
    return LayerPanel(panel.conditions, panel.rows[0]["layer"], axis, bars, panel.rows)


def layers_page(panels, header, notes):
    """A panel per layer, all along the same axis: the median time of a call, split by the profile of the run."""
    frame = Frame(width=2.6 if len(panels) > 1 else 4.4, height=2.2, left=0.62, right=0.2)
    seen = [part for part in PARTS if any(bar.shares[part] for panel in panels for bar in panel.bars)]
    undivided = "; undivided: the layer has no profile of its parts" if "undivided" in seen else ""
    lines = [*header, ("Bar: median time of one call with the fastest kernel; projections: all dense layers, in a block "
                       f"with the feed-forward{undivided}; numbers: share of attention")]
    legend = [[(Patch(facecolor=PARTS[part]), part) for part in seen]]
    title = f"Time of whole layers, by {'number of heads' if panels[0].axis == 'heads' else 'sequence length'}"
    page = Page(title, lines, views.titles(panels), columns_for(panels), frame, legend, notes)
    for axes, panel in zip(page.axes, panels):
        draw_layers(axes, panel)
    return page


def draw_layers(axes, panel):
    bars = views.spaced(panel.bars, MOST_BARS)
    scale, unit = (1e-6, "ms") if max(bar.time_ns for bar in bars) >= 1e6 else (1e-3, "µs")
    places = range(len(bars))
    base = [0.0] * len(bars)
    for part, colour in PARTS.items():
        heights = [bar.time_ns * scale * bar.shares[part] for bar in bars]
        drawn = axes.bar(places, heights, 0.72, bottom=base, color=colour, lw=0)
        for patch, bar, height in zip(drawn, bars, heights):
            svg.tip(patch, f"{part}, {bar.x}: {height:.4g} {unit} of {bar.time_ns * scale:.4g} with {bar.row['kernel']}")
        base = [low + height for low, height in zip(base, heights)]
    for place, bar, top in zip(places, bars, base):
        if bar.row["attention_pct"] is None:
            continue  # no attention, or no profile of it
        axes.annotate(f"{100 * bar.shares['attention']:.0f}", (place, top), (0, 2), textcoords="offset points", ha="center",
                      va="bottom", size=style.LABEL)
    axes.set_ylim(0, 1.1 * max(base))
    axes.set_xlim(-0.6, len(bars) - 0.4)
    axes.set_xticks(list(places), [str(bar.x) for bar in bars])
    axes.tick_params(axis="x", length=0)
    axes.grid(axis="y", color=style.GRID, lw=0.6)
    axes.set_xlabel(panel.axis)
    axes.set_ylabel(unit)
