# SPDX-License-Identifier: MIT
"""The cost of pages: the rate of the kernel that is fastest on dense keys, against the tokens of a page, for pages in order
and shuffled."""

from dataclasses import dataclass

from matplotlib.lines import Line2D

from . import style, svg, views
from .axes import from_zero, label_ends, power_of_two_axis
from .page import Frame, Page, columns_for

ORDERS = {"ordered": ("#0072B2", "o", "-"), "shuffled": ("#D55E00", "s", "--"),
          "ring": ("#009E73", "^", ":")}  # colours as in style.py


@dataclass(frozen=True)
class PagedPanel:
    """Cases that differ in their pages alone. dense: the rate without pages, None if it has no time."""
    conditions: dict
    kernel: str
    unit: str
    curves: dict  # order -> [views.Point], x: tokens of a page
    dense: float
    rows: list


def pages_of(row):
    """(tokens of a page, 0 if dense; order of pages; the other axes without them)."""
    axes = [part for part in row["other_axes"].split("/") if part]
    found = dict(part.split(":", 1) for part in axes if part.startswith("page_"))
    rest = "/".join(part for part in axes if not part.startswith("page_"))
    return int(found.get("page_tokens", 0)), found.get("page_order", "ordered"), rest


def paged_panels(rows):
    if not any(pages_of(row)[0] for row in rows):
        raise views.NothingToDraw("no row has keys in pages: attnbench run --preset paged measures some")
    groups = {}
    for row in rows:
        shown = {**views.conditions(row), "other_axes": pages_of(row)[2]}
        groups.setdefault(tuple(shown.items()), views.Panel(shown, [])).rows.append(row)
    drawn = [paged_panel(panel) for panel in groups.values()]
    drawn = [panel for panel in drawn if panel and len({at.x for points in panel.curves.values() for at in points}) > 1]
    if not drawn:
        raise views.NothingToDraw("no two sizes of pages were timed with all else equal")
    return drawn


def paged_panel(panel):
    """None where nothing in pages has a time."""
    timed = [row for row in panel.rows if row.timed]
    in_pages = {row["kernel"] for row in timed if pages_of(row)[0]}
    dense = [row for row in timed if row["kernel"] in in_pages and not pages_of(row)[0]]
    candidates = dense or [row for row in timed if row["kernel"] in in_pages]
    best = min(candidates, key=lambda row: row["time_ns_median"], default=None)
    if best is None:
        return None
    rate = "gbs" if views.is_decode(best) and best["gbs"] is not None else "gflops"
    curves = {}
    for row in timed:
        tokens, order, _ = pages_of(row)
        point = views.rate_point(row, rate, rate)
        if tokens and row["kernel"] == best["kernel"] and point:
            curves.setdefault(order, []).append(views.Point(tokens, point.y, point.low, point.high, row))
    return PagedPanel(panel.conditions, best["kernel"], "GB/s" if rate == "gbs" else "GFLOP/s",
                      {order: sorted(points, key=lambda at: at.x) for order, points in curves.items()},
                      best[rate] if best in dense else None, panel.rows)


def paged_page(panels, header, notes):
    frame = Frame(width=2.6 if len(panels) > 1 else 4.4, height=2.4, left=0.62, right=1.35)
    lines = [*header, "Line: median of the kernel that is fastest on dense keys; band: 95 % interval; percentages: of the "
                      "rate on dense keys, at the line's right end"]
    drawn = {order for panel in panels for order in panel.curves}
    legend = [[*((Line2D([], [], color=colour, marker=marker, ls=line, ms=6), f"pages {order}")
                 for order, (colour, marker, line) in ORDERS.items() if order in drawn),
               (Line2D([], [], color=style.FAINT, lw=0.9), "dense keys")]]
    titles = [", ".join(filter(None, (title, panel.kernel))) for title, panel in zip(views.titles(panels), panels)]
    page = Page("Keys and values in pages", lines, titles, columns_for(panels), frame, legend, notes)
    for axes, panel in zip(page.axes, panels):
        draw_pages(axes, panel, frame)
    return page


def draw_pages(axes, panel, frame):
    xs = sorted({at.x for points in panel.curves.values() for at in points})
    labels = []
    if panel.dense:
        axes.plot(xs, [panel.dense] * len(xs), color=style.FAINT, lw=0.9, zorder=2)
        labels.append((panel.dense, f"dense {panel.dense:.3g}", style.FAINT))
    for order, points in panel.curves.items():
        colour, marker, line = ORDERS[order]
        at, y, low, high = zip(*((point.x, point.y, point.low, point.high) for point in points))
        axes.fill_between(at, low, high, color=colour, alpha=0.25, lw=0)
        drawn, = axes.plot(at, y, color=colour, marker=marker, ls=line, mec="white", mew=0.5, clip_on=False, zorder=3)
        svg.tip(drawn, *(f"{panel.kernel}, {order}, {x}: {rate:.4g} {panel.unit}" for x, rate in zip(at, y)))
        labels.append((y[-1], f"{order} {100 * y[-1] / panel.dense:.0f} %" if panel.dense else order, colour))
    from_zero(axes, max([panel.dense or 0] + [point.high for points in panel.curves.values() for point in points]))
    axes.grid(axis="y", color=style.GRID, lw=0.6)
    axes.set_ylabel(panel.unit)
    power_of_two_axis(axes, xs, "tokens of a page", frame.width)
    label_ends(axes, labels, frame.height)
