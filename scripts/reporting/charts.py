# SPDX-License-Identifier: MIT
"""What the interactive charts draw, as plain data for report.js: the panels of plotting.views and its neighbours.

A chart is a list of views; report.js shows one at a time. A view has the axis and the dtype by which it is chosen, the words
that tell it from the others, and lines, spots or cells. Every line belongs to a kernel (or a machine), which may be hidden.
"""

from plotting import figures, machines, style, views
from plotting.errors import error_panels
from plotting.layers import PARTS, layer_panels
from plotting.roofline import roofline_panels

SYMBOLS = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross", "X": "x",
           "*": "star", "d": "diamond-tall", "p": "pentagon", "h": "hexagon", "<": "triangle-left", ">": "triangle-right",
           "H": "hexagon2", "8": "octagon"}
DASHES = {"c": "dot", "portable": "4px,2px", "avx2": "dash", "avx512bf16": "longdashdot", "neonbf16": "longdashdot",
          "amx": "dashdot"}


def all_charts(results, looks):
    """name -> views; charts that the data is not enough for are left out."""
    makers = {"winners": winner_views, "rate": rate_views, "roofline": roofline_views, "threads": thread_views,
              "layers": layer_views, "errors": error_views, "machines": machine_views}
    charts = {}
    for name, make in makers.items():
        found = list(make(results, looks))
        if found:
            charts[name] = found
    return charts


def kernels_of(results, looks):
    """[{"name", "colour", "symbol", "dash"}] of the kernels with a time or an error, high tiers first."""
    seen = {row["kernel"]: views.Curve(row["kernel"], row["algorithm"], row["isa"], []) for row in results.rows
            if row.timed or row["max_err_ratio"] is not None}
    return [{"name": curve.kernel} | appearance(curve, looks) for curve in sorted(seen.values(), key=looks.order)]


def appearance(curve, looks):
    return {"colour": looks.colour(curve.algorithm), "symbol": SYMBOLS[looks.marker(curve.algorithm)],
            "dash": DASHES.get(curve.isa, "solid")}


def available(make):
    """Panels, or none where the data is not enough."""
    try:
        return make()
    except views.NothingToDraw:
        return []


def labelled(panels):
    """(panel, words): in which conditions, other than the dtype, it differs from the others."""
    if not panels:
        return
    for panel, words in zip(panels, views.titles(panels)):
        dtype = panel.conditions["dtype"]
        parts = [part for part in words.split(", ") if part.replace(views.NO_BREAK, " ") != dtype]
        yield panel, ", ".join(parts).replace(views.NO_BREAK, " ") or "all cases"


def view(panel, words, x, y, **others):
    return {"dtype": panel.conditions["dtype"], "words": words, "x": x, "y": y, "axis": x} | others


def points(name, found, **others):
    return {"name": name, "x": [point.x for point in found], "y": [short(point.y) for point in found],
            "low": [short(point.low) for point in found], "high": [short(point.high) for point in found]} | others


def short(value):
    return None if value is None else float(f"{value:.5g}")


def rate_views(results, looks):
    del looks
    for axis in ("seq", "heads", "head_dim"):
        panels = available(lambda axis=axis: views.rate_panels(results.rows, axis)[0])
        for panel, words in labelled(panels):
            share = "bw_pct" if panel.unit == "GB/s" else "peak_pct"
            lines = [points(curve.kernel, curve.points, share=[short(point.row[share]) for point in curve.points])
                     for curve in panel.curves]
            roofs = [{"name": name, "x": [x for x, _ in places], "y": [short(y) for _, y in places],
                      "dash": DASHES.get(name.split()[0], "solid")} for name, places in panel.roofs.items()]
            yield view(panel, words, axis, panel.unit, kind="lines", lines=lines, roofs=roofs, log_x=True,
                       share="% of read loop" if panel.unit == "GB/s" else "% of peak")


def thread_views(results, looks):
    del looks
    for panel, words in labelled(available(lambda: views.scaling_panels(results.rows))):
        start, most = figures.fewest(panel), max(panel.xs)
        ideal = {"name": "ideal", "x": [start, most], "y": [1, most / start]}
        yield view(panel, words, "threads", "speed-up", kind="lines", roofs=[ideal], log_x=False,
                   lines=[points(curve.kernel, curve.points) for curve in panel.curves])


def machine_views(results, looks):
    del looks
    panels = available(lambda: machines.machine_panels(results.rows))
    cpus = sorted({cpu for panel in panels for cpu in panel.curves})
    colours = {cpu: {"colour": machines.COLOURS[i % len(machines.COLOURS)],
                     "symbol": SYMBOLS[machines.MARKERS[i % len(machines.MARKERS)]]} for i, cpu in enumerate(cpus)}
    for panel, words in labelled(panels):
        lines = [points(cpu, found, kernel=[point.row["kernel"] for point in found], **colours[cpu])
                 for cpu, found in panel.curves.items()]
        yield view(panel, words, "seq", f"% of {panel.of}", kind="lines", lines=lines, roofs=[], log_x=True)


def roofline_views(results, looks):
    del looks
    for panel, words in labelled(available(lambda: roofline_panels(results))):
        top = max(panel.peaks.values(), default=1)
        least, most = min(spot.x for spot in panel.spots) / 2, max(spot.x for spot in panel.spots) * 2
        roofs = [{"name": f"{isa} peak", "x": [least, most], "y": [short(rate)] * 2, "dash": DASHES.get(isa, "solid")}
                 for isa, rate in panel.peaks.items()]
        roofs += [{"name": f"{level} bandwidth", "x": [least, max(least, top / rate)], "dash": "dash",
                   "y": [short(rate * least), short(max(top, rate * least))]} for level, rate in panel.bandwidths.items()]
        lines = {}
        for spot in panel.spots:
            line = lines.setdefault(spot.row["kernel"], {"name": spot.row["kernel"], "x": [], "y": [], "text": []})
            line["x"].append(short(spot.x))
            line["y"].append(short(spot.y))
            line["text"].append(case_words(spot.row))
        yield view(panel, words, "flops per byte", "GFLOP/s", kind="spots", lines=list(lines.values()), roofs=roofs,
                   log_x=True, log_y=True)


def error_views(results, looks):
    for panel, words in labelled(available(lambda: error_panels(results.rows))):
        lines = []
        for kernel in sorted(panel.kernels, key=looks.order, reverse=True):
            rows = [row for row in panel.rows if row["kernel"] == kernel.kernel and row["max_err_ratio"] is not None]
            ratios = [min(row["max_err_ratio"], 1e9) for row in rows]
            lines.append({"name": kernel.kernel, "x": [short(max(ratio, 1e-6)) for ratio in ratios],
                          "y": [kernel.kernel] * len(rows), "text": [case_words(row) for row in rows]})
        yield view(panel, words, "largest error / limit", "", kind="spots", lines=lines, roofs=[], limit=1, log_x=True)


def winner_views(results, looks):
    for panel, words in labelled(available(lambda: views.winner_panels(results.rows)[0])):
        seqs, dims = sorted(panel.seqs), sorted(panel.head_dims)
        cells = [cell_of(x, y, panel.cells[seq, dim], looks) for y, dim in enumerate(dims) for x, seq in enumerate(seqs)
                 if (seq, dim) in panel.cells]
        yield view(panel, words, "seq_k" if panel.conditions["queries"] else "seq", "head_dim", kind="cells", cells=cells,
                   columns=[str(seq) for seq in seqs], rows=[views.either(dim) for dim in dims])


def cell_of(x, y, cell, looks):
    from plotting.heatmap import EMPTY, lead
    if cell is None:
        return {"x": x, "y": y, "words": ["no time"], "colour": EMPTY, "says": "no kernel has a time"}
    colour = looks.colour(cell.winner["algorithm"])
    runner_up = cell.runner_up["kernel"] if cell.runner_up else None
    says = f"{cell.winner['kernel']}, " + (f"then {runner_up}: {lead(cell)}" if runner_up else "alone")
    return {"x": x, "y": y, "colour": colour, "ink": style.contrast(colour), "separated": cell.separated,
            "words": [*cell.winner["kernel"].rsplit("_", 1), lead(cell)],
            "says": says + ("" if cell.separated or not runner_up else " (not separated)")}


def layer_views(results, looks):
    del looks
    for panel, words in labelled(available(lambda: layer_panels(results.rows)[0])):
        bars = panel.bars
        parts = [{"name": part, "colour": colour, "x": [str(bar.x) for bar in bars],
                  "y": [short(1e-6 * bar.time_ns * bar.shares[part]) for bar in bars],
                  "text": [f"{100 * bar.shares[part]:.1f} % with {bar.row['kernel']}" for bar in bars]}
                 for part, colour in PARTS.items() if any(bar.shares[part] for bar in bars)]
        yield view(panel, words, panel.axis, "ms", kind="bars", lines=parts)


def case_words(row):
    """A case in a line: seq, head_dim, heads, causal, and what else is not usual."""
    shown = views.conditions(row)
    first = ("seq", "head_dim", "heads", "causal", "threads")
    others = [key for key in shown if key not in (*first, "cpu", "dtype", "batch")]
    return views.in_words(shown, [*first, *others]).replace(views.NO_BREAK, " ")
