#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws how much longer the chosen kernel takes than the best one, from `attnbench tune --check --csv REGRET.csv`.

    scripts/plot_regret.py REGRET.csv [-o regret.svg]

One row of panels per choice that the file has: the built-in one (costs of the nearest class of CPUs), the one without this
CPU's class (--without-class), and the one by a tuning file (--tuning FILE). One panel per type: keys to the right, queries
upwards, mean regret of the problems of a cell by colour and in per cent; cells without problems stay white.
"""

import argparse
import csv
import math
import sys
from pathlib import Path

CHOICES = [("built_in", "built in"), ("without_class", "without its class"), ("tuned", "with the file")]


def choices_of(rows):
    """[(column of ratios, title)] of the choices that the file has."""
    return [(f"{name}_ratio", title) for name, title in CHOICES if f"{name}_ratio" in rows[0]]


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or not choices_of(rows):
        sys.exit(f"plot_regret.py: {path} has no rows of attnbench tune --check --csv")
    return rows


def means(rows, column):
    """{(log2 of keys, log2 of queries): mean regret} of the problems in each cell."""
    cells = {}
    for row in rows:
        place = tuple(int(math.log2(max(1, int(row[axis])))) for axis in ("seq_k", "seq_q"))
        cells.setdefault(place, []).append(float(row[column]) - 1)
    return {place: sum(values) / len(values) for place, values in cells.items()}


def draw_panel(axes, cells, colours):
    """colours: a ScalarMappable, which also makes the bar of colours."""
    from matplotlib.patches import Rectangle

    for (keys, queries), regret in cells.items():
        x, y = min(keys, 13), min(queries, 11)
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colours.to_rgba(regret), lw=0))
        ink = "white" if regret > 0.6 * colours.norm.vmax else "black"
        axes.text(x, y, f"{100 * regret:.0f}", ha="center", va="center", fontsize=6, color=ink)
    axes.set_xlim(-0.5, 13.5)
    axes.set_ylim(-0.5, 11.5)
    axes.set_xticks(range(2, 14, 2), [str(2**i) for i in range(2, 14, 2)])
    axes.set_yticks(range(0, 12, 2), [str(2**i) for i in range(0, 12, 2)])


def draw(rows, output, most=0.2):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from plotting import style
    from plotting.svg import svg_text

    style.apply()
    dtypes = sorted({row["dtype"] for row in rows})
    choices = choices_of(rows)
    size = (1 + 4 * len(dtypes), 0.5 + 3 * len(choices))
    figure, panels = pyplot.subplots(len(choices), len(dtypes), figsize=size, squeeze=False, layout="constrained")
    colours = ScalarMappable(Normalize(0, most, clip=True), matplotlib.colormaps["YlOrRd"].resampled(20))
    for line, (column, title) in enumerate(choices):
        for panel, dtype in zip(panels[line], dtypes, strict=True):
            own = [row for row in rows if row["dtype"] == dtype and float(row[column]) > 0]
            draw_panel(panel, means(own, column), colours)
            all_regrets = [float(row[column]) - 1 for row in own] or [0]
            panel.set_title(f"{dtype}, {title}: mean {100 * sum(all_regrets) / len(all_regrets):.1f} %", fontsize=9)
            panel.set_xlabel("keys")
            panel.set_ylabel("queries")
    figure.colorbar(colours, ax=panels, label=f"time beyond that of the best kernel (red: {100 * most:.0f} % or more)")
    if str(output).endswith(".svg"):
        Path(output).write_text(svg_text(figure), encoding="utf-8")
    else:
        figure.savefig(output, dpi=150)
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", metavar="REGRET.csv")
    parser.add_argument("-o", "--output", default="regret.svg", metavar="FILE",
                        help="SVG or PNG by its name (default regret.svg)")
    arguments = parser.parse_args()
    draw(read(arguments.csv), arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
