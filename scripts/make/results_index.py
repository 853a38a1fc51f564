#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes results/README.md: every published run, its CPU, date, highest shares and files. --draw makes figures and pages.

    scripts/make/results_index.py [--check | --draw] [FOLDER]     FOLDER: results, beside scripts

A run is a folder with results.csv and env.json. Words about it that the data does not say stand in its about.txt.
--check writes nothing. --draw writes into FOLDER/local/drawn, and draws again the few figures that are published.
Exit code: 0 fine, 1 with --check: README.md is not up to date, 2 a run cannot be read.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))
from plotting import views  # noqa: E402
from plotting.headlines import headlines  # noqa: E402
from plotting.table import ResultsError, read_results  # noqa: E402

FINE, STALE, BAD_INPUT = 0, 1, 2
INTRODUCTION = ("One folder per run: every case and kernel (results.csv), the same as text (table.txt), machine, build and "
                "noise (env.json), and what else is named below. This list is made by scripts/make/results_index.py.")
KEPT = """Numbers, texts and one or two figures of each run are kept here. `scripts/make/results_index.py --draw` makes the
others under `results/local/drawn`: every figure as PNG and SVG, a page of each run (report.html), a figure of all machines,
and those of other libraries. Two files that `attnbench run` writes are not published: samples.csv,
every single time, and results.json, the rows of results.csv for Google Benchmark's tools.

`scripts/bench.sh` makes such a folder under `results/local/`, which git ignores."""
FURTHER = {"figures/rate-seq.svg": "rates", "figures/winners.svg": "fastest kernels",
           "machine.tuning": "tuning file", "regret.svg": "regret heatmap",
           "limits.txt": "goals", "limits-amx.txt": "goals on AMX", "layers": "layers", "training": "gradients",
           "peers": "other libraries",
           "models": "other libraries on shapes of models", "pages": "keys and values in pages", "mixed": "mixed batches",
           "cascade": "shared prefixes", "quantised": "keys and values of 8 bits",
           "block-sparse": "lists of key blocks", "mla": "latent rows"}


def main(argv=None):
    options = read_options(argv)
    try:
        runs = [describe(folder) for folder in sorted(options.folder.iterdir(), reverse=True)
                if (folder / "results.csv").exists() and folder.name != "local"]
    except ResultsError as error:
        print(f"results_index.py: {error}", file=sys.stderr)
        return BAD_INPUT
    if options.draw:
        draw_all(options.folder, options.folder / "local" / "drawn")
    readme, text = options.folder / "README.md", markdown(runs)
    stale = read(readme) != text
    if options.check:
        print("run scripts/make/results_index.py: README.md lacks what the runs say" if stale else "up to date")
        return STALE if stale else FINE
    if stale:
        readme.write_text(text, encoding="utf-8")
        print(f"written: {readme}")
    return FINE


def read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", nargs="?", type=Path, default=SCRIPTS.parent / "results", metavar="FOLDER",
                        help="default: results, beside scripts")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if README.md is not up to date")
    parser.add_argument("--draw", action="store_true", help="draw all figures and pages into FOLDER/local/drawn")
    return parser.parse_args(argv)


def read(path):
    return path.read_text(encoding="utf-8") if path.exists() else None


def describe(folder):
    results = read_results([folder])
    (facts,) = results.environments
    cases = len({row["case_id"] for row in results.rows})
    about = (read(folder / "about.txt") or "").split()
    return {"name": folder.name, "cpu": views.machines([facts]), "date": facts["date"][:10], "commit": facts["commit"][:12],
            "about": " ".join(about), "extent": f"{cases} cases, {sum(row.timed for row in results.rows)} timed rows",
            "shares": [short(headline) for headline in headlines(results.rows)],
            "files": [(words, name) for name, words in FURTHER.items() if (folder / name).exists()]}


def short(headline):
    what, row, share, of = headline
    return f"{what}: {row['kernel']} {share:.0f} % of the {of}"


def markdown(runs):
    lines = ["# Published runs", "", INTRODUCTION, "", "| run | CPU | highest shares, attention alone | what | see |",
             "|---|---|---|---|---|"]
    for run in runs:
        files = ", ".join(f"[{words}]({run['name']}/{name})" for words, name in run["files"])
        what = "; ".join(filter(None, (run["extent"], run["about"])))
        lines.append(f"| [{run['name']}]({run['name']}) | {run['cpu']}; commit {run['commit']} | {'; '.join(run['shares'])} "
                     f"| {what} | {files} |")
    return "\n".join([*lines, "", KEPT, ""])


# ---- Drawing -----------------------------------------------------------------------------------------------------------

def draw_all(folder, out):
    """Every figure and page of the runs in `folder`, in folders of the same names below `out`."""
    runs = [file.parent for depth in ("*", "*/*") for file in sorted(folder.glob(f"{depth}/results.csv"))
            if "local" not in file.relative_to(folder).parts]
    for run in runs:
        place = out / run.relative_to(folder)
        place.mkdir(parents=True, exist_ok=True)
        start("plot.py", run, "-o", place / "figures")
        start("report.py", run, "-o", place / "report.html")
        if (run / "regret.csv").exists():
            start("plot_regret.py", run / "regret.csv", "-o", place / "regret.svg")
        for peers in (file.parent for file in run.glob("*/conditions.txt")):
            shutil.copytree(peers, place / peers.name, dirs_exist_ok=True)
            start("peers/run_all.py", "--from", place / peers.name)
    start("plot.py", *(run for run in runs if run.parent == folder), "--only", "machines", "-o", out)
    for published in folder.glob("[0-9]*/**/*.svg"):
        shutil.copy(out / published.relative_to(folder), published)


def start(script, *arguments):
    """Runs one of our scripts, which says what it writes."""
    subprocess.run([sys.executable, SCRIPTS / script, *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
