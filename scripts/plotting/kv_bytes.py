# SPDX-License-Identifier: MIT
"""Bytes of a token against rate: what types of K and V of fewer bytes gain in decode, beside a loop that only reads."""

from dataclasses import dataclass

from matplotlib.lines import Line2D

from . import style, svg, views
from .axes import from_zero
from .page import Frame, Page, columns_for

BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "e4m3": 1, "e5m2": 1, "q8_0": 34 / 32, "q4_0": 18 / 32}  # each element
BLOCK = 32
FACTORS = {"token": 8}  # bytes of a token's two float32; fewer per page or head are not counted
MARKS = {"": "o", "token": "s", "head": "^", "tensor": "v"}


@dataclass(frozen=True)
class KvPanel:
    """Cases that differ in how K and V are stored alone. points: (type, factors, Point: bytes, million tokens a second)."""
    conditions: dict
    points: list
    reading: float  # bytes a second of the read loop, or None
    rows: list


def stored(row):
    """(type of K and V, factors, the other axes without these)."""
    axes = [part for part in row["other_axes"].split("/") if part]
    factors = next((part.split(":", 1)[1] for part in axes if part.startswith("kv_scales:")), "")
    return row["dtype_kv"], factors, "/".join(part for part in axes if not part.startswith("kv_scales:"))


def bytes_of(row):
    """Those of a token's key and value in one KV head; blocks are whole."""
    kind, factors, _ = stored(row)
    sizes = row["dim_qk"], row["dim_v"]
    if kind.startswith("q"):
        sizes = [dim + -dim % BLOCK for dim in sizes]
    return sum(sizes) * BYTES[kind] + FACTORS.get(factors, 0)


def kv_panels(rows):
    rows = [row for row in rows if views.is_decode(row) and not row["layer"] and row["dtype_kv"] in BYTES]
    groups = {}
    for row in rows:
        shown = {**views.conditions(row), "dtype": "", "other_axes": stored(row)[2]}
        groups.setdefault(tuple(shown.items()), views.Panel(shown, [])).rows.append(row)
    panels = [panel for panel in map(kv_panel, groups.values()) if len({kind for kind, _, _ in panel.points}) > 1]
    if not panels:
        raise views.NothingToDraw("no decode differs in the type of K and V alone: preset quantised has some")
    return panels


def kv_panel(panel):
    fastest = {}
    for row in panel.rows:
        best = fastest.get(stored(row)[:2])
        if row.timed and (best is None or row["time_ns_median"] < best["time_ns_median"]):
            fastest[stored(row)[:2]] = row
    points = []
    for (kind, factors), row in fastest.items():
        tokens = 1e3 * row["batch"] * row["heads_kv"] * row["seq_k"]  # millions a second, for nanoseconds
        y, low, high = (tokens / row[f"time_ns_{end}"] for end in ("median", "ci_hi", "ci_lo"))
        points.append((kind, factors, views.Point(bytes_of(row), y, low, high, row)))
    reading = max((row["peak_gbs"] for row in fastest.values() if row["peak_gbs"]), default=None)
    return KvPanel(panel.conditions, sorted(points, key=lambda point: point[2].x), reading and 1e9 * reading, panel.rows)


def kv_page(panels, header, notes):
    frame = Frame(width=3.0 if len(panels) > 1 else 4.6, height=2.6, left=0.62, right=0.3)
    lines = [*header, "Mark: the fastest kernel, median; bar: 95 % interval; line: a loop that only reads the bytes"]
    used = {factors for panel in panels for _, factors, _ in panel.points}
    legend = [[(Line2D([], [], color=style.INK, marker=mark, ls="none", ms=6), f"a factor a {factors}" if factors else
                "no factors") for factors, mark in MARKS.items() if factors in used]]
    page = Page("Bytes of keys and values against rate", lines, views.titles(panels), columns_for(panels), frame, legend,
                notes)
    for axes, panel in zip(page.axes, panels):
        draw_kv(axes, panel)
    return page


def draw_kv(axes, panel):
    xs = [point.x for _, _, point in panel.points]
    for kind, factors, at in panel.points:
        axes.plot([at.x, at.x], [at.low, at.high], color=style.INK, lw=0.9)
        mark, = axes.plot(at.x, at.y, color=style.INK, marker=MARKS.get(factors, "o"), ls="none", mec="white", mew=0.5)
        svg.tip(mark, f"{kind}, {factors or 'no factors'}, {at.row['kernel']}: {at.y:.4g} M tokens/s")
        axes.annotate(kind, (at.x, at.y), (0, -11 if factors else 6), textcoords="offset points", ha="center",
                      size=style.LABEL)
    axes.set_xlim(0, 1.1 * max(xs))
    from_zero(axes, 1.1 * max(point.high for _, _, point in panel.points))
    if panel.reading:
        ends = [min(xs) + (max(xs) - min(xs)) * i / 50 for i in range(51)]
        axes.plot(ends, [panel.reading / x / 1e6 for x in ends], color=style.FAINT, lw=0.9, zorder=1)
    axes.grid(axis="y", color=style.GRID, lw=0.6)
    axes.set_xlabel("bytes of a token in a KV head")
    axes.set_ylabel("million tokens a second and KV head")
