# SPDX-License-Identifier: MIT
"""Ticks that fit their axis, and names at the right end of curves."""

from math import log2

from . import style


def power_of_two_axis(axes, xs, label, width):
    """Logarithmic x axis with ticks at as many measured values as fit."""
    axes.set_xscale("log", base=2)
    low, high = min(xs), max(xs)
    room = (high / low) ** 0.03 if high > low else 1.5
    axes.set_xlim(low / room, high * room)
    ticks = fitting(xs, width, log2)
    axes.set_xticks(ticks, [str(x) for x in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)


def fitting(xs, width, scale):
    """Values whose labels do not overlap, chosen from the largest down."""
    low, high = scale(min(xs)), scale(max(xs))
    chosen, free = [], float("inf")
    for x in sorted(xs, reverse=True):
        middle = width * 0.93 * (scale(x) - low) / (high - low) if high > low else 0
        half = style.text_width(str(x), style.LABEL) / 2
        if middle + half + 0.08 <= free:
            chosen.append(x)
            free = middle - half
    return chosen[::-1]


def from_zero(axes, highest):
    """y axis from 0 to a little above the highest value, so that a line there does not lie on the panel's edge."""
    axes.set_ylim(0, 1.05 * highest)


def label_ends(axes, labels, height):
    """Writes names at the right end of the panel, with a thin line to each y. labels: (y, text, colour)."""
    to_panel = axes.transData + axes.transAxes.inverted()
    right = axes.get_xlim()[1]
    inches = [height * float(to_panel.transform((right, y))[1]) for y, _, _ in labels]
    for y, place, (_, words, colour) in zip(inches, style.spread(inches, 0.135, 0.03, height), labels):
        axes.annotate("", xy=(1.0, y / height), xytext=(1.055, place / height), xycoords="axes fraction",
                      arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.6, "shrinkA": 0, "shrinkB": 0})
        axes.annotate(words, xy=(1.065, place / height), xycoords="axes fraction", va="center", size=style.LABEL)
