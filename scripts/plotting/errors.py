# SPDX-License-Identifier: MIT
"""Errors against their limit: for every kernel, the largest error of each checked case as a share of what it may be."""

from dataclasses import dataclass
from math import isfinite

from matplotlib.lines import Line2D

from . import style, svg, views
from .page import Frame, Page

LEAST, MOST = 1e-3, 4.0  # ends of the axis; smaller shares stand at its left end, larger ones at its right end
ROW = 0.2                # inches per kernel


@dataclass(frozen=True)
class KernelErrors:
    kernel: str
    algorithm: str
    isa: str
    rows: list  # the checked ones, by max_err_ratio

    @property
    def ratios(self):
        return [row["max_err_ratio"] for row in self.rows]


@dataclass(frozen=True)
class ErrorPanel:
    conditions: dict  # cpu, dtype
    kernels: list
    rows: list


def error_panels(rows):
    """One panel per CPU and dtype. Rows that were not checked have no part in it."""
    groups = {}
    for row in rows:
        groups.setdefault((row.cpu, views.dtype(row)), []).append(row)
    panels = [ErrorPanel({"cpu": cpu, "dtype": dtype}, errors_of(group), group)
              for (cpu, dtype), group in sorted(groups.items())]
    panels = [panel for panel in panels if panel.kernels]
    if not panels:
        raise views.NothingToDraw("no row has column max_err_ratio: nothing was checked")
    return panels


def errors_of(rows):
    found = {}
    for row in rows:
        if row["max_err_ratio"] is not None:
            empty = KernelErrors(row["kernel"], row["algorithm"], row["isa"], [])
            found.setdefault(row["kernel"], empty).rows.append(row)
    for kernel in found.values():
        kernel.rows.sort(key=lambda row: row["max_err_ratio"])
    return list(found.values())


def errors_page(panels, header, looks, notes):
    kernels = {kernel.kernel: kernel for panel in panels for kernel in panel.kernels}
    ordered = [kernel.kernel for kernel in sorted(kernels.values(), key=looks.order)]
    first = max(style.text_width(kernel, style.LABEL) for kernel in ordered) + 0.15
    frame = Frame(width=3.4, height=ROW * len(ordered) + 0.1, left=0.15, right=0.75, below=0.45, first_left=first)
    columns = min(3, len(panels))
    lines = [*header, ("Mark: one checked case; number: the largest; line: the limit, derived from the kernel's own "
                       f"arithmetic; left end: {LEAST:g} or less")]
    algorithms = sorted({kernel.algorithm for kernel in kernels.values()}, key=list(looks.algorithms).index)
    legend = [(Line2D([], [], color=looks.colour(name), marker=looks.marker(name), ls="none", ms=6), name)
              for name in algorithms]
    page = Page("Errors against their limit", lines, views.titles(panels), columns, frame, [legend], notes)
    for i, (axes, panel) in enumerate(zip(page.axes, panels)):
        draw_errors(axes, panel, ordered, looks)
        axes.set_yticks(range(len(ordered)), ordered if i % columns == 0 else [""] * len(ordered))
    return page


def draw_errors(axes, panel, ordered, looks):
    kernels = {kernel.kernel: kernel for kernel in panel.kernels}
    axes.set_xscale("log")
    axes.set_xlim(LEAST, MOST)
    axes.set_ylim(len(ordered) - 0.5, -0.5)
    axes.axvline(1, color=style.INK, lw=1)
    for y, name in enumerate(ordered):
        words = "not checked"
        if name in kernels:
            ratios, kernel = kernels[name].ratios, kernels[name]
            marks, = axes.plot([min(max(ratio, LEAST), MOST) for ratio in ratios], [y] * len(ratios), ls="none", mec="white",
                               mew=0.4, color=looks.colour(kernel.algorithm), marker=looks.marker(kernel.algorithm),
                               alpha=0.8, clip_on=False)
            svg.tip(marks, *(f"{views.case_words(row)}: {row['max_err_ratio']:.3g}" for row in kernel.rows))
            words = f"{ratios[-1]:.2g}" if isfinite(ratios[-1]) else "not finite"
        axes.annotate(words, (1, y), (8, 0), xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
                      size=style.LABEL, color=style.ALARM if name in kernels and kernels[name].ratios[-1] > 1 else style.INK)
    ticks = (0.001, 0.01, 0.1, 1)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.grid(axis="x", color=style.GRID, lw=0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("largest error / limit", labelpad=2)
