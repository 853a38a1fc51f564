# SPDX-License-Identifier: MIT
"""Bars. Speed-up: how much faster each kernel is than the baseline, per case; whiskers show the paired interval. Passes:
share of the peak of attention and of its gradients, shape by shape."""

from dataclasses import dataclass
from math import log10

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from . import style, svg, views
from .page import Frame, Page, columns_for

BAR = 0.2  # inches per kernel
LABEL_ROOM = 0.55  # inches right of the longest bar, for its number


def bar_page(panels, header, looks, notes):
    """A panel per case and a bar per kernel. All panels have the same kernels and the same axis."""
    rows = [row for panel in panels for row in panel.rows]
    kernels = {row["kernel"]: views.Curve(row["kernel"], row["algorithm"], row["isa"], []) for row in rows}
    baselines = {row["baseline"] for row in rows if views.compared(row)}
    ordered = [curve.kernel for curve in sorted(kernels.values(), key=looks.order)
               if curve.kernel not in baselines or len(baselines) > 1]
    frame = Frame(width=2.6, height=BAR * len(ordered) + 0.1, left=0.12, right=0.18, below=0.32,
                  first_left=max(style.text_width(kernel, style.LABEL) for kernel in ordered) + 0.15)
    name = " or ".join(sorted(baselines))
    lines = [*header,
             f"Bar: time of {name} / time of the kernel, median of the paired ratios; whisker: 95 % interval; log axis"]
    columns = columns_for(panels, 4)
    page = Page(f"Speed-up over {name}", lines, views.titles(panels), columns, frame, bar_legends(kernels, ordered, looks),
                notes)
    limits = axis_limits(panels, frame.width)
    for i, (axes, panel) in enumerate(zip(page.axes, panels)):
        draw_bars(axes, panel, ordered, limits, looks)
        axes.set_yticks(range(len(ordered)), ordered if i % columns == 0 else [""] * len(ordered))
    return page


def bar_legends(kernels, ordered, looks):
    algorithms = dict.fromkeys(kernels[kernel].algorithm for kernel in ordered)
    tiers = dict.fromkeys(kernels[kernel].isa for kernel in ordered)
    return [[(Patch(facecolor=looks.colour(name)), name) for name in sorted(algorithms, key=list(looks.algorithms).index)],
            [(Patch(facecolor="#D9D9D9", edgecolor=style.INK, hatch=style.hatching(isa), lw=0.5), isa or "no tier")
             for isa in tiers] + [(Line2D([], [], color=style.INK, lw=1), "baseline")]]


def axis_limits(panels, width):
    """Limits that include all intervals, 1, and the numbers on the right."""
    rows = [row for panel in panels for row in panel.rows if views.compared(row)]
    low = log10(min([1.0] + [row["ratio_ci_lo"] for row in rows])) - 0.02
    high = log10(max([1.0] + [row["ratio_ci_hi"] for row in rows])) + 0.02
    high += (high - low) * LABEL_ROOM / (width - LABEL_ROOM)
    return 10 ** low, 10 ** high


def draw_bars(axes, panel, ordered, limits, looks):
    rows = {row["kernel"]: row for row in panel.rows}
    axes.set_xscale("log")
    axes.set_xlim(*limits)
    axes.set_ylim(len(ordered) - 0.5, -0.5)
    for y, kernel in enumerate(ordered):
        row = rows.get(kernel)
        if row is not None and views.compared(row):
            draw_bar(axes, y, row, looks)
        else:
            colour = style.STATUS_COLOUR.get(row["status"] if row else "", style.FAINT)
            axes.annotate(absence(row), (1, y), (3, 0), textcoords="offset points", va="center", size=style.LABEL,
                          color=colour, style="italic")
    axes.axvline(1, color=style.INK, lw=1)
    axes.grid(axis="x", color=style.GRID, lw=0.6)
    axes.tick_params(axis="y", length=0)
    ticks = [tick for decade in (0.01, 0.1, 1, 10, 100, 1000) for tick in (decade, 2 * decade, 5 * decade)
             if limits[0] <= tick <= limits[1]]
    if len(ticks) > 7:
        ticks = [tick for tick in ticks if f"{tick:e}"[0] == "1"]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.set_xticks([], minor=True)


def draw_bar(axes, y, row, looks):
    ratio, low, high = (row[column] for column in ("ratio", "ratio_ci_lo", "ratio_ci_hi"))
    drawn = axes.barh(y, ratio - 1, left=1, height=0.72, color=looks.colour(row["algorithm"]), edgecolor="white", lw=0.5,
                      hatch=style.hatching(row["isa"]))
    svg.tip(drawn[0], f"{row['kernel']}: {ratio:.4g} (95 %: {low:.4g} to {high:.4g})")
    axes.plot([low, high], [y, y], color=style.INK, lw=1, marker="|", ms=5, mew=1)
    digits = f"{ratio:.0f}" if ratio >= 100 else f"{ratio:#.3g}"
    axes.annotate(f"{digits}×", (max(high, 1), y), (4, 0), textcoords="offset points", va="center", size=style.LABEL)


def absence(row):
    """Why a kernel has no bar."""
    if row is None:
        return "not run"
    if row["status"] != "PASS":
        return row["status"]
    if row["kernel"] == row["baseline"]:
        return "baseline"
    return "no ratio" if row.timed else "not timed"


# ---- passes ------------------------------------------------------------------------------------------------------------

PASSES = {"forward": "#0072B2", "backward": "#D55E00", "both": "#009E73"}  # colours as in style.py
SHAPE = ("batch", "heads", "seq", "head_dim", "causal", "other_axes")


@dataclass(frozen=True)
class PassPanel:
    """Cases that differ in shape and pass alone. shares: shape -> pass -> row of the kernel with the most operations a
    second."""
    conditions: dict
    shares: dict
    rows: list


def pass_of(row):
    """(pass, the other axes without it)"""
    axes = [part for part in row["other_axes"].split("/") if part]
    found = [part.removeprefix("pass:") for part in axes if part.startswith("pass:")]
    return found[0] if found else "forward", "/".join(part for part in axes if not part.startswith("pass:"))


def shape_of(row):
    shown = views.conditions(row)
    heads = row["batch"] * row["heads_q"]
    shared = "" if row["heads_kv"] == row["heads_q"] else f" / {row['batch'] * row['heads_kv']}"
    seq = "×".join(map(str, dict.fromkeys(shown["seq"])))
    return f"{heads}{shared} × {seq} × {views.either(shown['head_dim'])}" + (" causal" if row["causal"] != "none" else "")


def pass_panels(rows):
    if all(pass_of(row)[0] == "forward" for row in rows):
        raise views.NothingToDraw("no row is of gradients: attnbench run --preset train measures some")
    groups = {}
    for row in rows:
        shown = {key: value for key, value in views.conditions(row).items() if key not in SHAPE}
        shown["other_axes"] = pass_of(row)[1]
        groups.setdefault(tuple(shown.items()), PassPanel(shown, {}, [])).rows.append(row)
    for panel in groups.values():
        for row in panel.rows:
            if row.timed and row["peak_pct"] is not None:
                shares = panel.shares.setdefault(shape_of(row), {})
                best = shares.setdefault(pass_of(row)[0], row)
                shares[pass_of(row)[0]] = max(best, row, key=lambda one: one["gflops"])
        for shape in [shape for shape, shares in panel.shares.items() if not set(shares) - {"forward"}]:
            del panel.shares[shape]
    drawn = [panel for panel in groups.values() if panel.shares]
    if not drawn:
        raise views.NothingToDraw("no gradients have a share of the peak")
    return drawn


def pass_page(panels, header, notes):
    most = max(len(panel.shares) for panel in panels)
    frame = Frame(width=2.8, height=BAR * len(PASSES) * most + 0.1, left=1.5, right=0.35, below=0.32)
    lines = [*header, "Bar: median share of the peak loop beside it, of the kernel with the most operations a second; "
                      "label: heads × tokens × head_dim"]
    seen = [name for name in PASSES if any(name in shares for panel in panels for shares in panel.shares.values())]
    page = Page("Attention and its gradients", lines, views.titles(panels), columns_for(panels, 3), frame,
                [[(Patch(facecolor=PASSES[name]), name) for name in seen]], notes)
    for axes, panel in zip(page.axes, panels):
        draw_passes(axes, panel)
    return page


def draw_passes(axes, panel):
    for y, shares in enumerate(panel.shares.values()):
        for name, row in shares.items():
            place = y + 0.27 * (list(PASSES).index(name) - 1)
            drawn = axes.barh(place, row["peak_pct"], height=0.25, color=PASSES[name], lw=0)
            svg.tip(drawn[0], f"{name}, {row['kernel']}: {row['peak_pct']:.1f} % of the peak, {row['gflops']:.4g} GFLOP/s")
            axes.annotate(f"{row['peak_pct']:.0f}", (row["peak_pct"], place), (3, 0), textcoords="offset points",
                          va="center", size=style.LABEL)
    axes.set_ylim(len(panel.shares) - 0.5, -0.5)
    axes.set_xlim(0, 1.08 * max(100, *(row["peak_pct"] for shares in panel.shares.values() for row in shares.values())))
    axes.set_yticks(range(len(panel.shares)), list(panel.shares))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=style.GRID, lw=0.6)
    axes.set_xlabel("% of the peak")
