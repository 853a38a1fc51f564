# SPDX-License-Identifier: MIT
"""The sections of the report: title, introduction, figures and tables, all readable without JavaScript."""

from dataclasses import dataclass

from plotting import figures, views
from plotting.bars import pass_panels
from plotting.errors import error_panels
from plotting.headlines import headlines
from plotting.heatmap import lead
from plotting.layers import layer_panels
from plotting.machines import machine_panels
from plotting.notes import reasons_by_kernel
from plotting.roofline import roofline_panels
from plotting.views import case_words

from . import html

MOST_PAGES = 3  # pages of one figure; scripts/plot.py draws all


@dataclass(frozen=True)
class Section:
    name: str       # the fragment that leads to it
    title: str
    figures: tuple  # names of plotting.figures.FIGURES
    reading: str    # how to read it
    tables: object  # function of the results that returns HTML


def write(section, results, looks):
    """One <section>."""
    drawn, missing = [], []
    for name in section.figures:
        try:
            pages = figures.FIGURES[name](results, looks)
        except views.NothingToDraw as reason:
            missing.append(f"No figure {name}: {reason}.")
            continue
        letter = chr(ord("a") + list(figures.FIGURES).index(name))
        drawn += [html.figure(page, f"{letter}{number}-",
                              f"{section.title} ({name}, {number} of {len(pages)}). The tables below hold its numbers.")
                  for number, page in enumerate(pages[:MOST_PAGES], start=1)]
        if len(pages) > MOST_PAGES:
            missing.append(f"{len(pages) - MOST_PAGES} more pages of {name}: attnbench plot draws them.")
    parts = [f'<section id="{section.name}" aria-labelledby="{section.name}-title">',
             f'<h2 id="{section.name}-title">{section.title}</h2>', html.paragraph(section.reading)]
    parts += drawn + [html.paragraph(words, "note") for words in missing]
    return "\n".join([*parts, section.tables(results), "</section>"])


# ---- Summary -------------------------------------------------------------------------------------------------------------

def summary_tables(results):
    machines = [(facts["cpu"], facts["hypervisor"], facts["date"], facts["commit"][:12] +
                 (" with uncommitted changes" if facts["source_tree"] == "dirty" else "")) for facts in results.environments]
    best = [(row.cpu, what, row["kernel"], f"{share:.0f} % of the {of}", case_words(row))
            for cpu in dict.fromkeys(row.cpu for row in results.rows)
            for what, row, share, of in headlines([row for row in results.rows if row.cpu == cpu])]
    return (html.table("Runs", ["CPU", "hypervisor", "date", "commit"], machines) +
            html.table("Highest shares, attention alone", ["CPU", "what", "kernel", "share", "case"], best) +
            html.table("Rows by status", ["CPU", "status", "rows #"], status_counts(results.rows)) +
            html.table("The fastest kernel of each case",
                       ["case", "dtype", "fastest", "time #", "runner-up", "takes longer #"], winner_rows(results.rows),
                       "Table: the fastest kernel of each case"))


def status_counts(rows):
    counts = {}
    for row in rows:
        counts[row.cpu, row["status"]] = counts.get((row.cpu, row["status"]), 0) + 1
    return [(cpu, status, count) for (cpu, status), count in counts.items()]


def winner_rows(rows):
    cases = {}
    for row in rows:
        cases.setdefault((row.cpu, row["case_id"]), []).append(row)
    found = [(own[0], views.winner(own)) for own in cases.values()]
    return [(case_words(row), views.dtype(row), cell.winner["kernel"] if cell else "none has a time",
             duration(cell.winner["time_ns_median"]) if cell else "",
             cell.runner_up["kernel"] if cell and cell.runner_up else "",
             (lead(cell) + ("" if cell.separated else " (not separated)")) if cell and cell.runner_up else "")
            for row, cell in found]


def duration(ns):
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns:.4g} ns"


# ---- Rates, roofs, threads, layers ------------------------------------------------------------------------------------

def rate_tables(results):
    rows = [(case_words(row), views.dtype(row), row["kernel"], duration(row["time_ns_median"]),
             f"{duration(row['time_ns_ci_lo'])} to {duration(row['time_ns_ci_hi'])}", number(row["gflops"]),
             number(row["peak_pct"]), number(row["gbs"]), number(row["bw_pct"]), number(row["ratio"], 3), row["warnings"])
            for row in results.rows if row.timed]
    columns = ["case", "dtype", "kernel", "time #", "95 % interval", "GFLOP/s #", "% of peak #", "GB/s #",
               "% of read loop #", "speed-up #", "warnings"]
    return html.table("Every timed row", columns, rows, f"Table: all {len(rows)} timed rows")


def number(value, digits=4):
    return "" if value is None else f"{value:.{digits}g}"


def roofline_tables(results):
    rows = []
    for panel in available(lambda: roofline_panels(results)):
        place = (panel.conditions["cpu"], panel.conditions["dtype"], panel.conditions["threads"])
        rows += [(*place, f"{isa} peak", f"{rate:.4g} GFLOP/s") for isa, rate in panel.peaks.items()]
        rows += [(*place, f"{level} bandwidth", f"{rate:.4g} GB/s") for level, rate in panel.bandwidths.items()]
    return html.table("Roofs as measured", ["CPU", "dtype", "threads #", "roof", "rate #"], rows)


def thread_tables(results):
    rows = [(case_words(point.row), views.dtype(point.row), curve.kernel, point.x, f"{point.y:.2f}×",
             f"{100 * views.efficiency(point, figures.fewest(panel)):.0f} %")
            for panel in available(lambda: views.scaling_panels(results.rows)) for curve in panel.curves
            for point in curve.points]
    columns = ["case", "dtype", "kernel", "threads #", "speed-up #", "of the ideal #"]
    return html.table("Speed-up over the fewest threads", columns, rows, f"Table: {len(rows)} speed-ups")


def layer_tables(results):
    rows = [(panel.layer, panel.axis, bar.x, duration(bar.time_ns), bar.row["kernel"],
             *(f"{100 * bar.shares[part]:.1f} %" for part in ("projections", "attention", "rest")))
            for panel in available(lambda: layer_panels(results.rows)[0]) for bar in panel.bars]
    columns = ["layer", "axis", "at #", "time #", "kernel", "projections #", "attention #", "rest #"]
    return html.table("Where the time of layers goes", columns, rows, f"Table: {len(rows)} layers")


def pass_tables(results):
    rows = [(panel.conditions["dtype"], panel.conditions["threads"], shape, name, row["kernel"], f"{row['peak_pct']:.1f} %",
             duration(row["time_ns_median"]))
            for panel in available(lambda: pass_panels(results.rows)) for shape, shares in panel.shares.items()
            for name, row in shares.items()]
    columns = ["dtype", "threads #", "shape", "pass", "kernel", "of the peak #", "time #"]
    return html.table("Attention and its gradients", columns, rows, f"Table: {len(rows)} passes")


def available(make):
    try:
        return make()
    except views.NothingToDraw:
        return []


# ---- Errors, machines, conditions -------------------------------------------------------------------------------------

def error_tables(results):
    rows = [(*panel.conditions.values(), kernel.kernel, len(kernel.ratios), f"{kernel.ratios[-1]:.3g}")
            for panel in available(lambda: error_panels(results.rows)) for kernel in panel.kernels]
    return html.table("Largest error of each kernel, as a share of its limit",
                      ["CPU", "dtype", "kernel", "cases #", "largest error / limit #"], rows)


def machine_tables(results):
    rows = [(case_words(point.row), panel.conditions["dtype"], cpu, point.row["kernel"], f"{point.y:.1f} % of {panel.of}")
            for panel in available(lambda: machine_panels(results.rows))
            for cpu, points in panel.curves.items() for point in points]
    return html.table("The fastest kernel of each machine", ["case", "dtype", "CPU", "kernel", "share #"], rows,
                      f"Table: {len(rows)} shares")


def noise_tables(results):
    floors = {}
    for row in results.rows:
        if row["noise"] is not None:
            floors.setdefault(row.cpu, []).append(row["noise"])
    noise = [(cpu, len(values), f"{100 * sorted(values)[len(values) // 2]:.2f} %", f"{100 * max(values):.2f} %")
             for cpu, values in floors.items()]
    warned = {}
    for row in results.rows:
        for text in row["warnings"].split("; ") if row.timed else ():
            if text and not text.startswith("chose "):
                warned[row.cpu, text] = warned.get((row.cpu, text), 0) + 1
    return (html.table("Noise floor: a kernel against itself, in the rounds of each case",
                       ["CPU", "rows #", "median #", "largest #"], noise) +
            html.table("Warnings of timed rows", ["CPU", "warning", "rows #"],
                       [(*place, count) for place, count in warned.items()]) + environment_tables(results))


def environment_tables(results):
    parts = []
    for facts, environment in zip(results.facts, results.environments):
        rows = [(name, fact["value"], fact["grade"], fact["advice"]) for name, fact in facts.items()]
        bad = sum(fact["grade"] in ("WARN", "BAD") for fact in facts.values())
        parts.append(html.table(f"env.json of {environment['cpu']}, {environment['date']}",
                                ["fact", "value", "grade", "advice"], rows,
                                f"Environment of {environment['cpu']}: {bad} of {len(facts)} facts disturb measuring"))
    return "\n".join(parts)


def untimed_tables(results):
    groups = {}
    for (status, kernel), reasons in reasons_by_kernel(results.rows).items():
        for reason, rows in reasons.items():
            groups.setdefault((status, reason), []).extend((kernel, row) for row in rows)
    rows = [(status, reason, ", ".join(dict.fromkeys(kernel for kernel, _ in found)), len(found),
             case_words(found[0][1])) for (status, reason), found in sorted(groups.items())]
    return html.table("Rows without a time", ["status", "reason", "kernels", "rows #", "one of the cases"], rows) or \
        html.paragraph("Every row has a time.")


SECTIONS = (
    Section("summary", "Summary", ("winners",),
            "A cell holds the fastest kernel and how much longer the runner-up takes. A hatched cell is not separated: the "
            "95 % intervals of the two times overlap, or the lead is below 1 %.",
            summary_tables),
    Section("rate", "Rate against seq, heads and head_dim", ("rate-seq", "rate-heads", "rate-head_dim"),
            "Lines are medians, bands are 95 % intervals. The peaks on top were measured in the same process, beside the "
            "samples. Decoding is limited by memory: its rate is in GB/s of K and V.", rate_tables),
    Section("roofline", "Roofline", ("roofline",),
            "A mark is a case: its rate against its flops per byte of Q, K, V and O. No mark can lie above the peak of its "
            "kernel's tier, or left of the slope of the cache level (or memory) that holds its data.", roofline_tables),
    Section("threads", "Threads", ("threads",),
            "Speed-up of each kernel over its own time on the fewest threads.", thread_tables),
    Section("layers", "Layers", ("layers",),
            "The time of a whole layer with its fastest kernel, split into projections, attention and the rest.",
            layer_tables),
    Section("passes", "Gradients", ("passes",),
            "The share of the peak of attention, of its gradients, and of one after the other, for the kernel with the most "
            "operations a second.", pass_tables),
    Section("errors", "Errors against limits", ("errors",),
            "The largest error of every checked case, as a share of what the kernel's arithmetic allows. Above 1 a check "
            "fails, and the row has no time.", error_tables),
    Section("machines", "Machines", ("machines",),
            "Machines are compared by the share of their own peak, which is measured on each.", machine_tables),
    Section("noise", "Noise and environment", (), "What disturbed the measurements, and what they were made on.",
            noise_tables),
    Section("untimed", "Not timed", (), "Rows without a time, by reason: skipped, failed or not measured.",
            untimed_tables),
)
