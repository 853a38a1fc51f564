# SPDX-License-Identifier: MIT
"""The figures. Each takes the results, asks views for its panels and returns finished pages, or raises NothingToDraw."""

import math
from itertools import cycle

from matplotlib.lines import Line2D

from . import style, svg, views
from .axes import fitting, from_zero, label_ends, power_of_two_axis
from .bars import bar_page, pass_page, pass_panels
from .errors import error_panels, errors_page
from .heatmap import heatmap_page
from .kv_bytes import kv_page, kv_panels
from .layers import layer_panels, layers_page
from .machines import machine_panels, machines_page
from .notes import blank_notes, sparse_note, untimed_notes, warning_note
from .page import Frame, Page, columns_for
from .paged import paged_page, paged_panels
from .roofline import roofline_page, roofline_panels

PANELS_A_PAGE = 12


def rate_seq(results, looks):
    panels, sparse = views.rate_panels(results.rows, "seq")
    label = "seq_k" if any(panel.conditions["queries"] for panel in panels) else "seq"
    extra = sparse_note(panels, sparse, "values of seq")
    return [rate_page("Rate against sequence length", label, part, header(part, results), extra, looks)
            for part in pages(panels)]


def rate_heads(results, looks):
    panels, sparse = views.rate_panels(results.rows, "heads")
    extra = sparse_note(panels, sparse, "numbers of heads")
    return [rate_page("Rate against number of heads", "heads", part, header(part, results), extra, looks)
            for part in pages(panels)]


def rate_head_dim(results, looks):
    panels, sparse = views.rate_panels(results.rows, "head_dim")
    extra = sparse_note(panels, sparse, "values of head_dim")
    return [rate_page("Rate against head dimension", "head_dim", part, header(part, results), extra, looks)
            for part in pages(panels)]


def speedup(results, looks):
    panels, left_out = views.thin(views.speedup_panels(results.rows))
    parts = pages(panels)
    blank = blank_notes(results.rows)
    return [bar_page(part, header(part, results, left_out), looks, notes(part) + (blank if part is parts[-1] else []))
            for part in parts]


def winners(results, looks):
    panels, sparse = views.winner_panels(results.rows)
    extra = sparse_note(panels, sparse, "cases")
    return [heatmap_page(part, header(part, results), looks, notes(part) + extra) for part in pages(panels)]


def threads(results, looks):
    panels, left_out = views.thin(views.scaling_panels(results.rows))
    return [scaling_page(part, header(part, results, left_out), looks) for part in pages(panels)]


def layers(results, looks):
    del looks  # parts of a layer, not kernels, have colours here
    panels, sparse = layer_panels(results.rows)
    extra = sparse_note(panels, sparse, "places")
    by_axis = [[panel for panel in panels if panel.axis == axis] for axis in ("heads", "seq")]
    return [layers_page(part, header(part, results), notes(part) + extra) for along in by_axis for part in pages(along)]


def in_pages(results, looks):
    del looks  # orders of pages, not kernels, have colours here
    return [paged_page(part, header(part, results), notes(part)) for part in pages(paged_panels(results.rows))]


def passes(results, looks):
    del looks  # passes, not kernels, have colours here
    return [pass_page(part, header(views.panels(views.rows_of(part)), results), notes(part))
            for part in pages(pass_panels(results.rows))]


def kv_bytes(results, looks):
    del looks  # types, not kernels, are told apart here
    return [kv_page(part, header(part, results), notes(part)) for part in pages(kv_panels(results.rows))]


def roofline(results, looks):
    panels = roofline_panels(results)
    return [roofline_page(part, header(views.panels(views.rows_of(part)), results), looks, notes(part))
            for part in pages(panels)]


def errors(results, looks):
    panels = error_panels(results.rows)
    return [errors_page(part, header(views.panels(views.rows_of(part)), results), looks, notes(part))
            for part in pages(panels)]


def machines(results, looks):
    del looks  # machines, not kernels, have colours here
    panels = machine_panels(results.rows)
    return [machines_page(part, header(part, results), notes(part)) for part in pages(panels)]


FIGURES = {"rate-seq": rate_seq, "rate-heads": rate_heads, "rate-head_dim": rate_head_dim, "speedup": speedup,
           "winners": winners, "roofline": roofline, "threads": threads, "layers": layers, "passes": passes,
           "pages": in_pages, "kv-bytes": kv_bytes, "errors": errors, "machines": machines}


# ---- shared pieces -----------------------------------------------------------------------------------------------------

def pages(panels):
    return [panels[i:i + PANELS_A_PAGE] for i in range(0, len(panels), PANELS_A_PAGE)]


def header(panels, results, left_out=()):
    """CPU, conditions that all panels share, and date of the data. left_out: values of seq that are not drawn."""
    shared, _ = views.shared_conditions(panels)
    words = views.in_words(shared, [key for key in shared if key != "cpu"])
    lines = [f"CPU: {views.machines(results.environments)}", words, f"Measured: {views.origins(results.environments)}"]
    if left_out:
        lines.append(f"At most four values of seq for each condition; some panels omit: "
                     f"{', '.join(views.describe('seq', seq) for seq in left_out)}")
    return lines


def notes(panels):
    rows = views.rows_of(panels)
    warning = warning_note(rows)
    return untimed_notes(rows) + ([("", warning)] if warning else [])


def kernel_legends(panels, looks, extra=()):
    """One legend for colours and markers, one for line styles."""
    curves = sorted({(curve.algorithm, curve.isa): curve for panel in panels for curve in panel.curves}.values(),
                    key=looks.order)
    algorithms = sorted({curve.algorithm for curve in curves}, key=list(looks.algorithms).index)
    by_algorithm = [(Line2D([], [], color=looks.colour(name), marker=looks.marker(name), ls="none", ms=6), name)
                    for name in algorithms]
    by_tier = [(Line2D([], [], color=style.INK, ls=style.line_style(isa)), isa or "no tier")
               for isa in dict.fromkeys(curve.isa for curve in curves)]
    return [by_algorithm, by_tier + list(extra)]


def draw_curve(axes, curve, xs, looks):
    """Draws a line through the timed points with a gap at each x without a time. The band is the 95 % interval."""
    colour = looks.colour(curve.algorithm)
    at = {point.x: point for point in curve.points}
    gap = float("nan")
    y, low, high = ([getattr(at[x], name) if x in at else gap for x in xs] for name in ("y", "low", "high"))
    axes.fill_between(xs, low, high, color=colour, alpha=0.25, lw=0)
    line, = axes.plot(xs, y, color=colour, marker=looks.marker(curve.algorithm), ls=style.line_style(curve.isa), mec="white",
                      mew=0.5, clip_on=False, zorder=3)
    points = [at[x] for x in xs if x in at]
    svg.tip(line, *(f"{curve.kernel}, {at.x}: {at.y:.4g} (95 %: {at.low:.4g} to {at.high:.4g})" for at in points))


# ---- rates -------------------------------------------------------------------------------------------------------------

def rate_page(title, label, panels, conditions, extra_notes, looks):
    texts = [end_labels(panel, looks) for panel in panels]
    longest = max(style.text_width(words, style.LABEL) for labels in texts for _, words, _ in labels)
    width = 3.3 if len(panels) > 1 else 4.8
    frame = Frame(width, 2.7, left=0.62, right=longest + 0.075 * width + 0.2)
    roofs = sorted({"read loop's bandwidth" if panel.unit == "GB/s" else "peak of the kernel's tier" for panel in panels})
    conditions = conditions + [
        f"Line: median; band: 95 % interval; percentages: of the {' or '.join(roofs)}, at the line's right end"]
    roof = [(Line2D([], [], color=style.FAINT, lw=0.9), "roof as measured")]
    page = Page(title, conditions, views.titles(panels), columns_for(panels), frame, kernel_legends(panels, looks, roof),
                notes(panels) + extra_notes)
    for axes, panel, labels in zip(page.axes, panels, texts):
        draw_rates(axes, panel, label, frame, looks)
        label_ends(axes, labels, frame.height)
    return page


def draw_rates(axes, panel, label, frame, looks):
    """The highest measured peak is the topmost line. Peaks of lower tiers are thin lines below it."""
    for name, places in panel.roofs.items():
        x, y = zip(*places)
        dashes = "-" if panel.unit == "GB/s" else style.line_style(name.split()[0])
        axes.plot(x, y, color=style.FAINT, ls=dashes, lw=0.9, clip_on=False, zorder=2)
    for curve in sorted(panel.curves, key=looks.order, reverse=True):
        draw_curve(axes, curve, panel.xs, looks)
    rates = [point.high for curve in panel.curves for point in curve.points]
    from_zero(axes, max(rates + [y for places in panel.roofs.values() for _, y in places]))
    axes.grid(axis="y", color=style.GRID, lw=0.6)
    axes.set_ylabel(panel.unit)
    power_of_two_axis(axes, panel.xs, label, frame.width)


def end_labels(panel, looks):
    """(y, text, colour) of each roof and curve, at its last point."""
    labels = [(places[-1][1], f"{name} {places[-1][1]:.{0 if places[-1][1] >= 100 else 1}f}", style.FAINT)
              for name, places in panel.roofs.items()]
    for curve in sorted(panel.curves, key=looks.order):
        last = curve.points[-1]
        share = last.row["bw_pct" if panel.unit == "GB/s" else "peak_pct"]
        words = curve.kernel + (f" {share:.0f} %" if share is not None else "")
        words += f" (at {last.x})" if last.x < max(panel.xs) else ""
        labels.append((last.y, words, looks.colour(curve.algorithm)))
    return labels


# ---- threads -----------------------------------------------------------------------------------------------------------

def scaling_page(panels, conditions, looks):
    texts = [[(curve.points[-1].y, f"{curve.kernel} {100 * views.efficiency(curve.points[-1], fewest(panel)):.0f} %",
               looks.colour(curve.algorithm)) for curve in sorted(panel.curves, key=looks.order)] for panel in panels]
    longest = max(style.text_width(words, style.LABEL) for labels in texts for _, words, _ in labels)
    width = 2.9 if len(panels) > 1 else 4.4
    frame = Frame(width, 2.7, left=0.62, right=longest + 0.075 * width + 0.2)
    base = sorted({fewest(panel) for panel in panels})
    over = " or ".join(views.plural(n, "thread") for n in base)
    reading = (f"Speed-up over the same kernel with {over}; band: 95 % interval; percentages: of the ideal, at the line's "
               "right end")
    ideal = [(Line2D([], [], color=style.FAINT, lw=0.9), "ideal")]
    page = Page("Thread scaling", [*conditions, reading], views.titles(panels), columns_for(panels), frame,
                kernel_legends(panels, looks, ideal), notes(panels))
    for axes, panel, labels in zip(page.axes, panels, texts):
        draw_scaling(axes, panel, frame, looks)
        label_ends(axes, labels, frame.height)
    return page


def fewest(panel):
    return min(point.x for curve in panel.curves for point in curve.points)


def draw_scaling(axes, panel, frame, looks):
    start, most = fewest(panel), max(panel.xs)
    axes.plot([start, most], [1, most / start], color=style.FAINT, lw=0.9, zorder=2)
    for curve in sorted(panel.curves, key=looks.order, reverse=True):
        draw_curve(axes, curve, panel.xs, looks)
    highest = max(point.high for curve in panel.curves for point in curve.points)
    from_zero(axes, max(highest, most / start))
    axes.set_xlim(start - 0.04 * (most - start), most + 0.03 * (most - start))
    axes.set_xticks(fitting(panel.xs, frame.width, float))
    axes.grid(color=style.GRID, lw=0.6)
    axes.set_xlabel("threads")
    axes.set_ylabel("speed-up")


# ---- simulated threads and ranks ---------------------------------------------------------------------------------------

READING = {"threads": "Time of one thread over the time of all threads together; tasks were timed one by one, and played",
           "ranks": "Ideal time over the time of the slowest rank of a simulated cluster"}


def simulated(lines, looks):
    """A page for threads and one for ranks: efficiency of each case against their number."""
    del looks  # cases have colours here, and networks dashes
    return [simulated_page([line for line in lines if line["of"] == of], of) for of in READING
            if any(line["of"] == of for line in lines)]


def simulated_page(lines, of):
    curves = {}
    for line in lines:
        curves.setdefault((line["case"], line["on"]), {})[line["number"]] = line["efficiency"]
    colours = dict(zip(dict.fromkeys(case for case, _ in curves), cycle(colour for colour, _ in style.ALGORITHMS.values())))
    dashes = dict(zip(dict.fromkeys(on for _, on in curves), cycle(["-", "--", ":", "-."])))
    legend = [[(Line2D([], [], color=colour), case)] for case, colour in colours.items()]
    legend += [[(Line2D([], [], color=style.FAINT, ls=dash), on)] for on, dash in dashes.items() if on]
    page = Page("Simulated efficiency", [READING[of]], [""], 1, Frame(6.0, 3.2, left=0.62, right=0.5), legend, [])
    axes, = page.axes
    for (case, on), points in curves.items():
        numbers = sorted(points)
        axes.plot(numbers, [points[n] for n in numbers], color=colours[case], ls=dashes[on], lw=1.3, marker=".", ms=4)
    power_of_two_axis(axes, sorted({2 ** i for line in lines for i in [int(math.log2(line["number"]))]}), of, 6.0)
    from_zero(axes, max(line["efficiency"] for line in lines))
    axes.grid(color=style.GRID, lw=0.6)
    axes.set_ylabel("efficiency")
    return page
