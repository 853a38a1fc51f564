#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How often `attnbench compare` is right on this machine, where the truth is known.

    scripts/dev/verdicts.py same BUILD [--runs 21] [-- OPTIONS]             one build again and again, file against file
    scripts/dev/verdicts.py itself BUILD [--times 2] [--busy 1] [-- OPTIONS]        one build beside a copy of itself
    scripts/dev/verdicts.py planted BUILD [--slowdown 3] [--times 2] [-- OPTIONS]   two builds, one of them slowed

`same` runs a preset (quick) so many times and compares every run with the next one, and every two: no row of neighbours may
be FASTER or SLOWER. `itself` makes so many tables of BUILD's libattn.so beside a copy of it: at most 1 % of the tables may
hold a row that is FASTER or SLOWER. `planted` compares BUILD's libattn.so with tests/libattn_slowed.so, which passes calls
on to it and then waits so many per cent of their time: 95 % of the rows must be SLOWER with 3 %, 90 % with 2 %, none with
0. --busy keeps so many processes busy meanwhile. OPTIONS go to `attnbench run` and to `attnbench compare --paired`. The
exit code is 1 if a goal is missed.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = ["-k", "flash_*", "-k", "naive_*", "-k", "!*_c", "-k", "!*_openblas", "-k", "!*_amx", "-a", "heads=2", "-a",
         "seq=64,256", "-a", "head_dim=64,128"]
GOALS = {0.0: 0, 2.0: 90, 3.0: 95}  # per cent of the rows that must be SLOWER


def attnbench(build, *arguments, **environment):
    """Its stdout; ends the program with its messages if it fails."""
    command = [build / "harness/attnbench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    if done.returncode:
        sys.exit(f"verdicts.py: {' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def changes(build, *arguments, **environment):
    """How many rows there are, how many SLOWER and how many FASTER."""
    text = attnbench(build, "compare", *arguments, "--json", "-", **environment)
    verdicts = [row["verdict"] for row in json.loads(text)["comparisons"]]
    return len(verdicts), verdicts.count("SLOWER"), verdicts.count("FASTER")


def total(build, pairs):
    rows, slower, faster = (sum(column) for column in zip(*(changes(build, *pair) for pair in pairs), strict=True))
    return rows, slower + faster


def same(options):
    options.rest = options.rest or ["--preset", "quick"]
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / f"run{i}" for i in range(options.runs)]
        for run in runs:
            attnbench(options.build, "run", "-q", "-o", run, *options.rest)
        rows, wrong = total(options.build, itertools.pairwise(runs))
        print(f"{len(runs) - 1} comparisons of a run with the next one: {wrong} of {rows} rows FASTER or SLOWER")
        pairs = list(itertools.combinations(runs, 2))
        rows, all_wrong = total(options.build, pairs)
        print(f"all {len(pairs)} pairs of {len(runs)} runs: {all_wrong} of {rows} rows FASTER or SLOWER")
    return wrong == 0


def itself(options):
    wrong = rows = 0
    with tempfile.TemporaryDirectory() as folder:
        copies = [shutil.copy(options.build / "libattn.so", Path(folder) / name) for name in ("a.so", "b.so")]
        for table in range(options.times):
            count, slower, faster = changes(options.build, "--paired", *copies, "-q", *(options.rest or CASES))
            rows, wrong = rows + count, wrong + (slower + faster > 0)
            print(f"table {table + 1}: {slower} SLOWER, {faster} FASTER of {count} rows", flush=True)
    print(f"beside itself: {wrong} of {options.times} tables, of {rows} rows in all, have a row that is FASTER or SLOWER")
    return 100 * wrong <= options.times


def planted(options):
    real, slowed = options.build / "libattn.so", options.build / "tests/libattn_slowed.so"
    environment = {"ATTN_TEST_LIBATTN": str(real.resolve()), "ATTN_TEST_SLOWDOWN": str(options.slowdown / 100)}
    pair = ["--paired", real, slowed, "-q", *(options.rest or CASES)]
    rows = slower = faster = 0
    for table in range(options.times):
        counts = changes(options.build, *pair, **environment)
        rows, slower, faster = rows + counts[0], slower + counts[1], faster + counts[2]
        print(f"table {table + 1}: {counts[1]} SLOWER, {counts[2]} FASTER of {counts[0]} rows", flush=True)
    share = 100 * slower / rows
    print(f"planted {options.slowdown:g} %: {slower} of {rows} rows SLOWER ({share:.1f} %), {faster} FASTER")
    if options.slowdown not in GOALS:
        print("there is no goal for this slowdown; there are for " + ", ".join(f"{g:g}" for g in GOALS))
    return faster == 0 and (share >= GOALS.get(options.slowdown, 0) if options.slowdown else slower == 0)


@contextlib.contextmanager
def busy(count):
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["same", "itself", "planted"])
    parser.add_argument("build", type=Path, help="a build folder")
    parser.add_argument("--runs", type=int, default=21, help="of the preset (default 21)")
    parser.add_argument("--slowdown", type=float, default=3.0, metavar="PER_CENT", help="that is planted (default 3)")
    parser.add_argument("--times", type=int, default=2, help="so many comparisons (default 2)")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile (default 0)")
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    options.rest = rest
    with busy(options.busy):
        fine = {"same": same, "itself": itself, "planted": planted}[options.what](options)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
