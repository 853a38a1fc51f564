#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws what kernel_regression wrote: the points, the curves, and the attention weights before and after
learning.

    kernel_regression FOLDER && plot.py FOLDER      # writes FOLDER/kernel_regression.png
"""

import csv
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read(path):
    """The rows of a CSV file as floats, without its header."""
    with open(path, encoding="ascii", newline="") as file:
        return [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]]


def main(folder):
    points, curve, before, after = (read(folder / f"{name}.csv") for name in ("points", "curve", "before", "after"))
    places, truth, first, prediction, average = zip(*curve)
    figure, (left, *heatmaps) = plt.subplots(1, 3, figsize=(13, 4), width_ratios=(4, 3, 3), layout="constrained")
    left.plot(*zip(*points), "o", color="#7F7F7F", markersize=4, label="known points")
    left.plot(places, truth, "--", color="#1A1A1A", label="2 sin x + x^0.8")
    left.plot(places, prediction, color="#0072B2", linewidth=2, label="with the learnt bandwidth")
    left.plot(places, first, color="#009E73", linewidth=1, label="with bandwidth 1")
    left.plot(places, average, color="#D55E00", linewidth=1, label="plain average")
    left.set(xlabel="x", ylabel="y", title="Nadaraya-Watson regression of 50 points")
    left.legend(frameon=False)
    most = max(max(row[1:]) for row in after)
    for axes, weights, title in zip(heatmaps, (before, after), ("before learning", "after")):
        image = axes.imshow([row[1:] for row in weights], aspect="auto", origin="lower", cmap="viridis", vmin=0, vmax=most,
                            extent=(0, len(points), places[0], places[-1]))
        axes.set(xlabel="known point, by x", ylabel="x of the prediction", title=f"attention weights {title}")
    figure.colorbar(image, ax=heatmaps[-1])
    figure.savefig(folder / "kernel_regression.png", dpi=90)
    print(folder / "kernel_regression.png")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))
