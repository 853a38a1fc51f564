# SPDX-License-Identifier: MIT
"""Several machines: the share of its own peak (decoding: of its read loop) that the fastest kernel of each reaches."""

from dataclasses import dataclass

from matplotlib.lines import Line2D

from . import style, svg, views
from .axes import from_zero, power_of_two_axis
from .page import Frame, Page, columns_for

COLOURS = ("#0072B2", "#E69F00", "#CC79A7", "#009E73", "#D55E00", "#56B4E9", "#1A1A1A", "#8C7A00")  # see style.py
MARKERS = "os^DvPX*"


@dataclass(frozen=True)
class MachinePanel:
    conditions: dict
    of: str      # "peak" or "read loop"
    curves: dict  # cpu -> [Point], y in per cent
    rows: list


def machine_panels(rows):
    """One panel per condition in which at least two machines have shares."""
    if len({row.cpu for row in rows}) < 2:
        raise views.NothingToDraw("the results are of one machine")
    groups = {}
    for panel in views.panels([row for row in rows if row["seq_k"] > 0], ("seq",)):
        conditions = {key: value for key, value in panel.conditions.items() if key != "cpu"}
        groups.setdefault(tuple(conditions.items()), (conditions, []))[1].extend(panel.rows)
    panels = [machine_panel(conditions, own) for conditions, own in groups.values()]
    panels = [panel for panel in panels if len(panel.curves) > 1]
    if not panels:
        raise views.NothingToDraw("no condition in which two machines have a share of their peak")
    return sorted(panels, key=lambda panel: -len({point.x for points in panel.curves.values() for point in points}))


def machine_panel(conditions, rows):
    decoding = all(views.is_decode(row) for row in rows)
    column = "bw_pct" if decoding else "peak_pct"
    fastest = {}
    for row in rows:
        place = (row.cpu, row["seq_k"])
        if row.timed and row[column] and row["kernel"] != views.AUTO and \
                (place not in fastest or row["time_ns_median"] < fastest[place]["time_ns_median"]):
            fastest[place] = row
    curves = {}
    for (cpu, seq), row in sorted(fastest.items(), key=lambda item: item[0]):
        share, time = row[column], row["time_ns_median"]
        curves.setdefault(cpu, []).append(views.Point(seq, share, share * time / row["time_ns_ci_hi"],
                                                      share * time / row["time_ns_ci_lo"], row))
    return MachinePanel(conditions, "read loop" if decoding else "peak", curves, rows)


def machines_page(panels, header, notes):
    cpus = sorted({cpu for panel in panels for cpu in panel.curves})
    frame = Frame(width=3.3 if len(panels) > 1 else 4.8, height=2.4, left=0.62, right=0.3)
    lines = [*header, ("Line: the fastest kernel of a machine, as a share of the peak loop (decoding: of the read loop) "
                       "measured on that machine; band: 95 % interval of its time")]
    legend = [[(Line2D([], [], color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)]), cpu)]
              for i, cpu in enumerate(cpus)]
    page = Page("Machines by share of their peak", lines, views.titles(panels), columns_for(panels), frame, legend, notes)
    for axes, panel in zip(page.axes, panels):
        draw_machines(axes, panel, cpus, frame)
    return page


def draw_machines(axes, panel, cpus, frame):
    for i, cpu in enumerate(cpus):
        points = panel.curves.get(cpu, [])
        xs, colour = [point.x for point in points], COLOURS[i % len(COLOURS)]
        low, high = [point.low for point in points], [point.high for point in points]
        axes.fill_between(xs, low, high, color=colour, alpha=0.25, lw=0)
        line, = axes.plot(xs, [point.y for point in points], color=colour, marker=MARKERS[i % len(MARKERS)], mec="white",
                          mew=0.5, clip_on=False, zorder=3)
        svg.tip(line, *(f"{cpu}, {point.x}: {point.y:.1f} % with {point.row['kernel']}" for point in points))
    from_zero(axes, max([100] + [point.high for points in panel.curves.values() for point in points]))
    axes.grid(axis="y", color=style.GRID, lw=0.6)
    axes.set_ylabel(f"% of {panel.of}")
    power_of_two_axis(axes, sorted({point.x for points in panel.curves.values() for point in points}), "seq", frame.width)
