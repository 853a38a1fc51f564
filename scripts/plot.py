#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the figures of one or more attnbench runs, as PNG and SVG: rates, speed-ups, winners, roofline, threads and more.

    attnbench plot results/local/2026-01-31 -o figures
    attnbench plot simulated.json

Reads results.csv, and env.json and peak.csv beside it; or simulations, which have a figure of their own: files of attnbench
explain --simulate --json, and of attn_mpi_simulate. If the data for a figure is missing, the reason is printed.
Exit code: 0 figures were written, 2 bad input or usage, 3 nothing to draw or matplotlib is missing, 5 cannot write.
"""

import argparse
import difflib
import sys
from pathlib import Path

from plotting.command import NOTHING, OK, run
from plotting.table import is_simulated, read_simulated
from plotting.views import NothingToDraw

FIGURES = ("rate-seq", "rate-heads", "rate-head_dim", "speedup", "winners", "roofline", "threads", "layers", "passes",
           "pages", "kv-bytes", "errors", "machines")


def main(argv=None):
    options = read_options(argv)
    if all(map(is_simulated, options.results)):
        return run("plot.py", write_simulated, options, read_simulated)
    return run("plot.py", write_figures, options)


def write_simulated(rows, looks, options):
    from plotting import figures
    options.out.mkdir(parents=True, exist_ok=True)
    return OK if draw("simulated", figures.simulated, rows, looks, options.out) else NOTHING


def write_figures(results, looks, options):
    from plotting import figures
    options.out.mkdir(parents=True, exist_ok=True)
    written = sum(draw(name, figures.FIGURES[name], results, looks, options.out) for name in options.only)
    list_untimed(results.rows, options.out / "not-timed.txt")
    if not written:
        print("plot.py: nothing to draw", file=sys.stderr)
    return OK if written else NOTHING


def read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0],
                                     epilog="Figures: " + ", ".join(FIGURES))
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS",
        help="a result folder (with results.csv), a CSV file, or simulations' JSON files")
    add("-o", "--output", dest="out", type=Path, metavar="DIR", help="default: figures, beside the first CSV")
    add("--only", action="append", type=figure_name, metavar="NAME", help="draw this figure only; repeatable")
    options = parser.parse_args(argv)
    first = Path(options.results[0])
    options.out = options.out or (first if first.is_dir() else first.parent) / "figures"
    options.only = options.only or FIGURES
    return options


def figure_name(text):
    if text not in FIGURES:
        near = difflib.get_close_matches(text, FIGURES, 1, 0)
        raise argparse.ArgumentTypeError(f"no figure {text!r}; did you mean {near[0]!r}? There are: {', '.join(FIGURES)}")
    return text


def draw(name, figure, results, looks, folder):
    """Writes the pages of one figure and prints their names, or why there are none. Returns how many were written."""
    try:
        pages = figure(results, looks)
    except NothingToDraw as reason:
        print(f"{name}: not drawn: {reason}")
        return 0
    for number, page in enumerate(pages, start=1):
        stem = folder / (name if number == 1 else f"{name}-{number}")
        page.save(stem)
        print(f"{name}: {stem}.png, {stem}.svg")
    return len(pages)


def list_untimed(rows, file):
    """Lists every row without a time; the notes under a figure are cut after some lines."""
    lines = [f"{row['status']}\t{row['kernel']}\t{row['case_id']}\t{row['reason']}" for row in rows if not row.timed]
    if lines:
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{len(lines)} of {len(rows)} rows have no time; all reasons: {file}")


if __name__ == "__main__":
    sys.exit(main())
