# SPDX-License-Identifier: MIT
"""Options of run_all.py and the script of each peer, and how their values are read."""

import argparse

from .cases import PRESETS

LEAST_ROUNDS = 21  # for a verdict; the number is fixed before the results are known


def add_case_options(add):
    """The cases and how often they are measured."""
    add("--cases", action="append", choices=PRESETS, default=[], metavar="NAME",
        help=f"repeatable: a list of cases, {', '.join(PRESETS)} (default quick, unless there are axes)")
    add("-a", dest="axes", action="append", default=[], metavar="AXIS=VALUES",
        help="repeatable: seq=128:8192:*2, heads=8,12, dtype=f32,bf16; replaces that axis of --cases")
    add("-t", "--threads", type=at_least(1), default=1, metavar="N", help="threads of both sides (default 1)")
    add("--cpus", type=cpu_list, metavar="LIST", help="bind to these CPUs, such as 0 or 0,2 (default: as started)")
    add("--rounds", type=at_least(LEAST_ROUNDS), default=LEAST_ROUNDS, metavar="N",
        help=f"each once per round (default and least {LEAST_ROUNDS})")
    add("--sample-ms", type=positive, default=20.0, metavar="MS", help="a sample repeats the call for so long (default 20)")
    add("--seed", type=at_least(0), default=1, metavar="N", help="of inputs and order (default 1)")


class Help(argparse.HelpFormatter):
    """Fits into 100 columns."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=26, width=100)


def at_least(least):
    def read(text):
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}; a whole number from {least} up is right")
        return int(text)
    return read


def cpu_list(text):
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}; numbers of CPUs with commas between are right")
    return [int(part) for part in parts]


def positive(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; a number above 0 is right")
    return value
