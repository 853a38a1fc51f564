# SPDX-License-Identifier: MIT
"""The content of each figure as plain data: panels of equal conditions, curves, winners, speed-ups. Nothing is drawn.

Every function returns its panels or raises NothingToDraw with the reason.
"""

from dataclasses import dataclass
from statistics import median

from .table import AUTO, Row

MARGIN = 0.01  # a smaller lead counts as none, even if the intervals are apart; attnbench's verdicts use the same margin
FEW_QUERIES = 16  # at most so many queries, and fewer than keys, is decoding: memory limits it, so its rate is in GB/s

NO_BREAK = "\u00a0"

# Values that figures do not mention.
USUAL = {"score": {"", "dot"}, "align": {"", "none"}, "window": {"", "none"}, "mask": {"", "none"}, "bias": {"", "none"},
         "alibi": {"", "off"}, "softcap": {"", "0"}, "sinks": {"", "off"}, "lengths": {"", "full"},
         "layout": {"", "bhsd"}, "cache": {"", "warm"}, "layer": {""}, "other_axes": {""}}


class NothingToDraw(Exception):
    """The data is not enough for this figure. The message says what is missing."""


@dataclass(frozen=True)
class Panel:
    """Rows whose conditions are equal except on the axes of the figure."""
    conditions: dict
    rows: list


@dataclass(frozen=True)
class Point:
    x: int
    y: float
    low: float
    high: float
    row: Row


@dataclass(frozen=True)
class Curve:
    kernel: str
    algorithm: str
    isa: str
    points: list


@dataclass(frozen=True)
class RatePanel:
    conditions: dict
    unit: str     # "GFLOP/s" or "GB/s"
    curves: list
    roofs: dict   # name -> [(x, rate)]
    xs: list
    rows: list


@dataclass(frozen=True)
class Cell:
    """Who wins one case. margin: time of the runner-up over time of the winner, minus 1; None without a runner-up."""
    winner: Row
    runner_up: Row
    margin: float
    separated: bool


@dataclass(frozen=True)
class WinnerPanel:
    conditions: dict
    seqs: set
    head_dims: set
    cells: dict   # (seq, head_dim) -> Cell, or None where a case has no time
    rows: list


# ---- conditions ------------------------------------------------------------------------------------------------------

def conditions(row, free=()):
    """All conditions of a row except the axes in `free`: "seq", "heads", "head_dim", "threads".

    If "seq" is free, queries is 0 for seq_q = seq_k, else seq_q. If "heads" is free, heads_kv is 0 for heads_kv = heads_q,
    else heads_kv.
    """
    shown = {"cpu": row.cpu, "dtype": dtype(row), "batch": row["batch"]}
    if "heads" in free:
        shown["heads_kv"] = 0 if row["heads_kv"] == row["heads_q"] else row["heads_kv"]
    else:
        shown["heads"] = (row["heads_q"], row["heads_kv"])
    for name in ("score", "align", "window", "mask", "bias", "alibi", "softcap", "sinks", "lengths", "layout", "cache"):
        shown[name] = row[name]
    if row["align"] == row["causal"] or not aligned(row):
        shown["align"] = ""
    shown["layer"], shown["other_axes"] = row["layer"], row["other_axes"]
    if "threads" not in free:
        shown["threads"] = row["threads"]
    shown["causal"] = row["causal"]
    if "head_dim" not in free and not ("heads" in free and shares_width(row)):
        shown["head_dim"] = (row["dim_qk"], row["dim_v"])
    if "seq" in free:
        shown["queries"] = 0 if row["seq_q"] == row["seq_k"] else row["seq_q"]
    else:
        shown["seq"] = (row["seq_q"], row["seq_k"])
    return shown


def shares_width(row):
    """Whether the width of a layer was given, so that head_dim is width / heads."""
    return f"width:{row['heads_q'] * row['dim_v']}" in row["other_axes"].split("/")


def aligned(row):
    """Whether row uses the alignment: causal, window and ALiBi do."""
    return row["causal"] != "none" or any(row[name] not in USUAL[name] for name in ("window", "alibi"))


def dtype(row):
    q, kv, o = row["dtype_q"], row["dtype_kv"], row["dtype_o"]
    return q if q == kv == o else f"Q {q}, K/V {kv}, O {o}"


def describe(key, value, contrast=False):
    """A condition in words; "" for a usual value, unless contrast: panels differ in this condition."""
    if value in USUAL.get(key, ()) and not (contrast and value):
        return ""
    if key in ("heads", "head_dim") and value == (0, 0):
        return ""  # a layer without heads
    if key == "heads":
        query, shared = value
        return plural(query, "head") + (f", {shared} of K/V" if shared != query else "")
    if key == "heads_kv":
        if value == 0:
            return "own K/V for every head" if contrast else ""
        return plural(value, "head") + " of K/V"
    if key == "head_dim":
        return f"head_dim {either(value)}"
    if key == "seq":
        return f"seq {value[0]}" if value[0] == value[1] else f"seq_q {value[0]}, seq_k {value[1]}"
    if key == "queries":
        if value == 0:
            return "seq_q = seq_k" if contrast else ""
        return plural(value, "query", "queries")
    if key == "threads":
        return plural(value, "thread")
    if key == "causal":
        return "not causal" if value == "none" else f"causal {value}"
    if key in ("cpu", "dtype", "other_axes"):
        return value
    return f"{key} {value}"


def machines(environments):
    """The CPUs of all files, and their hypervisors."""
    names = [f"{facts['cpu']} (virtual machine, {facts['hypervisor']})" if facts["hypervisor"] not in ("none", "unknown")
             else facts["cpu"] for facts in environments]
    return " and ".join(dict.fromkeys(names))


def origins(environments):
    """Date and commit of all files."""
    changed = {"dirty": " with uncommitted changes"}
    return "; ".join(dict.fromkeys(f"date {facts['date']}, commit {facts['commit'][:12]}"
                                   f"{changed.get(facts['source_tree'], '')}" for facts in environments))


def plural(count, singular, several=""):
    return f"{count} {singular if count == 1 else several or singular + 's'}"


def either(pair):
    """64 for (64, 64), 192/128 for (192, 128)."""
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}/{pair[1]}"


def panels(rows, free=()):
    """Groups rows by conditions; panels are sorted by them."""
    groups = {}
    for row in rows:
        shown = conditions(row, free)
        groups.setdefault(tuple(shown.items()), Panel(shown, [])).rows.append(row)
    return [groups[key] for key in sorted(groups, key=lambda key: [(value != "none", value) for _, value in key])]


def rows_of(several):
    return [row for panel in several for row in panel.rows]


def thin(several, most=4):
    """Keeps at most `most` evenly spaced values of seq per condition: (panels kept, values of seq left out)."""
    seqs = {}
    for panel in several:
        seqs.setdefault(rest(panel), set()).add(panel.conditions["seq"])
    kept = {key: spaced(sorted(values), most) for key, values in seqs.items()}
    left_out = {seq for key, values in seqs.items() for seq in values - set(kept[key])}
    return [panel for panel in several if panel.conditions["seq"] in kept[rest(panel)]], sorted(left_out)


def rest(panel):
    """The conditions besides seq."""
    return tuple((key, value) for key, value in panel.conditions.items() if key != "seq")


def spaced(values, most):
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def shared_conditions(several):
    """(conditions that all panels share, keys of the others)."""
    first = several[0].conditions
    keys = list(dict.fromkeys(key for panel in several for key in panel.conditions))
    varying = [key for key in keys if any(panel.conditions.get(key) != first.get(key) for panel in several)]
    return {key: first[key] for key in keys if key not in varying}, varying


def titles(several):
    """A title per panel: the conditions in which the panels differ."""
    _, varying = shared_conditions(several)
    return [in_words(panel.conditions, varying, contrast=True) for panel in several]


def in_words(shown, keys, contrast=False):
    """Conditions as one line, which may be broken only between conditions."""
    words = [describe(key, shown[key], contrast) for key in keys if key in shown]
    return ", ".join(word.replace(" ", NO_BREAK) for word in words if word)


def case_words(row):
    """A case in a line: seq, head_dim, heads, causal, and what else is not usual."""
    shown = conditions(row)
    first = ("seq", "head_dim", "heads", "causal", "threads")
    others = [key for key in shown if key not in (*first, "cpu", "dtype", "batch")]
    return in_words(shown, [*first, *others]).replace(NO_BREAK, " ")


# ---- rate against seq, heads or head_dim -------------------------------------------------------------------------------

def rate_panels(rows, axis):
    """Rates along "seq" (seq_k), "heads" (heads_q) or "head_dim" (dim_qk), one panel per condition: (panels, left out)."""
    column = {"seq": "seq_k", "heads": "heads_q", "head_dim": "dim_qk"}[axis]
    placed = [row for row in rows if row[column] > 0]  # the axis is logarithmic
    drawn = [rate_panel(panel, column) for panel in panels(placed, (axis,))]
    drawn, sparse = fullest(drawn, lambda panel: len({point.x for curve in panel.curves for point in curve.points}))
    if not drawn:
        raise NothingToDraw(scarcity(rows, axis, column))
    return drawn, sparse


def fullest(several, size_of):
    """Panels with at least three places, or two if none has three: (those, panels left out with two)."""
    sizes = [size_of(panel) for panel in several]
    enough = 3 if max(sizes, default=0) > 2 else 2
    return ([panel for panel, size in zip(several, sizes) if size >= enough],
            [panel for panel, size in zip(several, sizes) if 1 < size < enough])


def scarcity(rows, axis, column):
    """Why there is no curve along this axis."""
    values = sorted({row[column] for row in rows if row.timed and row[column] > 0})
    if not values:
        return "no row has a time"
    if len(values) == 1:
        return f"only {axis}={values[0]} in the data"
    return f"no two values of {axis} with all else equal in the data"


def rate_panel(panel, column):
    decoding = all(is_decode(row) and row["gbs"] is not None for row in panel.rows if row.timed)
    rate, roof = ("gbs", "peak_gbs") if decoding else ("gflops", "peak_gflops")
    curves = curves_of(panel.rows, lambda row: rate_point(row, column, rate))
    roofs = {}
    for row in panel.rows:
        # A library chooses its instructions itself: the peak of its rows is that of the CPU's best tier, not of row["isa"].
        if row.timed and row[roof] and (decoding or not on_library(row)):
            name = "read loop" if decoding else f"{row['isa']} peak"
            roofs.setdefault(name, {}).setdefault(row[column], []).append(row[roof])
    roofs = {name: sorted((x, median(rates)) for x, rates in places.items()) for name, places in roofs.items()}
    xs = sorted({row[column] for row in panel.rows})
    return RatePanel(panel.conditions, "GB/s" if decoding else "GFLOP/s", curves, roofs, xs, panel.rows)


def on_library(row):
    """Names of our own kernels end with the tier, those of kernels on a library with the library."""
    return row["kernel"] != "auto" and not row["kernel"].endswith("_" + row["isa"])


def is_decode(row):
    return row["seq_q"] <= FEW_QUERIES and row["seq_q"] < row["seq_k"]


def rate_point(row, column, rate):
    """Rates are inverse times, so the low end of the time's interval gives the upper rate. None if the row has no rate."""
    value, time = row[rate], row["time_ns_median"]
    if value is None:
        return None
    return Point(row[column], value, value * time / row["time_ns_ci_hi"], value * time / row["time_ns_ci_lo"], row)


def curves_of(rows, point_of):
    """A curve per kernel through its timed rows. point_of may return None to omit a row."""
    found = {}
    for row in rows:
        point = point_of(row) if row.timed else None
        if point is not None:
            curve = found.setdefault(row["kernel"], Curve(row["kernel"], row["algorithm"], row["isa"], []))
            curve.points.append(point)
    for curve in found.values():
        curve.points.sort(key=lambda point: point.x)
    return list(found.values())


# ---- speed-up against the baseline -------------------------------------------------------------------------------------

def speedup_panels(rows):
    """One panel per case in which a kernel other than the baseline has a ratio."""
    drawn = [panel for panel in panels(rows) if any(compared(row) for row in panel.rows)]
    if drawn:
        return drawn
    if not any(row.timed for row in rows):
        raise NothingToDraw("no row has a time")
    if not any(row["ratio"] for row in rows):
        raise NothingToDraw("no row has a ratio: was the baseline kernel part of the run?")
    raise NothingToDraw("only the baseline itself has a time")


def compared(row):
    return row["ratio"] is not None and row["kernel"] != row["baseline"]


# ---- winners -----------------------------------------------------------------------------------------------------------

def winner_panels(rows):
    """The fastest kernel per seq and head_dim, for conditions with several kernels: (panels, panels left out)."""
    drawn = []
    for panel in panels(rows, ("seq", "head_dim")):
        cells = {}
        for row in panel.rows:
            cells.setdefault((row["seq_k"], (row["dim_qk"], row["dim_v"])), []).append(row)
        cells = {place: winner(group) for place, group in cells.items()}
        if any(cell and cell.runner_up for cell in cells.values()):
            drawn.append(WinnerPanel(panel.conditions, {seq for seq, _ in cells}, {dim for _, dim in cells}, cells,
                                     panel.rows))
    drawn, sparse = fullest(drawn, lambda panel: len(panel.cells))
    if drawn:
        return drawn, sparse
    kernels = sorted({row["kernel"] for row in rows if row.timed})
    if len(kernels) < 2:
        raise NothingToDraw(f"only {kernels[0]} has times in the data" if kernels else "no row has a time")
    raise NothingToDraw("no two values of seq or head_dim, all else equal, at which two kernels have times")


def winner(rows):
    """The fastest kernel of one case and its lead over the next; None if none is timed.

    "auto" is omitted, since it runs one of the other kernels. separated: both are from one run (processes differ by several
    percent), their 95 % intervals do not overlap, and the margin is at least 1 %.
    """
    timed = [row for row in rows if row.timed and row["kernel"] != AUTO]
    ranked = sorted(timed, key=lambda row: (row["time_ns_median"], row["kernel"]))
    if not ranked:
        return None
    if len(ranked) == 1:
        return Cell(ranked[0], None, None, False)
    best, second = ranked[:2]
    margin = second["time_ns_median"] / best["time_ns_median"] - 1
    apart = best["time_ns_ci_hi"] < second["time_ns_ci_lo"] and best["run_id"] == second["run_id"] and \
        best["has_interval"] and second["has_interval"]
    return Cell(best, second, margin, apart and margin >= MARGIN)


# ---- threads -----------------------------------------------------------------------------------------------------------

def scaling_panels(rows):
    """Speed-up over the same kernel with the fewest threads of the panel. x of a point is its number of threads."""
    drawn = []
    for panel in panels(rows, ("threads",)):
        fewest = min((row["threads"] for row in panel.rows if row.timed), default=0)
        base = {row["kernel"]: row for row in panel.rows if row.timed and row["threads"] == fewest}
        curves = curves_of(panel.rows, lambda row, base=base: scaling_point(row, base.get(row["kernel"])))
        if any(len(curve.points) > 1 for curve in curves):
            drawn.append(RatePanel(panel.conditions, "speed-up", [curve for curve in curves if len(curve.points) > 1], {},
                                   sorted({row["threads"] for row in panel.rows}), panel.rows))
    if not drawn:
        raise NothingToDraw(scarcity(rows, "threads", "threads"))
    return drawn


def scaling_point(row, base):
    if base is None:
        return None
    time, reference = row["time_ns_median"], base["time_ns_median"]
    if row is base:
        return Point(row["threads"], 1.0, 1.0, 1.0, row)
    return Point(row["threads"], reference / time, base["time_ns_ci_lo"] / row["time_ns_ci_hi"],
                 base["time_ns_ci_hi"] / row["time_ns_ci_lo"], row)


def efficiency(point, fewest):
    """Share of the ideal speed-up."""
    return point.y * fewest / point.x
