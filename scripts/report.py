#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes one HTML file about one or more attnbench runs, which opens from disk without a network.

    attnbench report results/local/2026-01-31 -o report.html

It has the figures of plot.py as SVG, and tables, which can be sorted and filtered where JavaScript runs.
Reads results.csv, and env.json and peak.csv (attnbench peak --csv) beside it.
Exit code: 0 the report is written, 2 bad input or usage, 3 matplotlib is missing, 5 cannot write.
"""

import argparse
import sys
from pathlib import Path

from plotting.command import OK, run


def main(argv=None):
    return run("report.py", write_report, read_options(argv))


def write_report(results, looks, options):
    from reporting.document import document
    title = options.title or "Attention on " + " and ".join(dict.fromkeys(facts["cpu"] for facts in results.environments))
    options.out.write_text(document(results, looks, title), encoding="utf-8")
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    return OK


def read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS", help="a result folder (with results.csv) or a CSV file")
    add("-o", "--output", dest="out", type=Path, metavar="FILE", default=Path("report.html"), help="default report.html")
    add("--title", metavar="WORDS", help='default "Attention on" and the CPU')
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
