#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes results/README.md and results/index.html: every published run, its CPU, date, highest shares and files.

    scripts/results_index.py [--check] [FOLDER]     FOLDER: results, beside scripts

A run is a folder with results.csv and env.json. Words about it that the data does not say stand in its about.txt.
--check writes nothing. Exit code: 0 fine, 1 with --check: the files are not up to date, 2 a run cannot be read.
"""

import argparse
import sys
from html import escape
from pathlib import Path

from plotting import views
from plotting.headlines import headlines
from plotting.table import ResultsError, read_results

FINE, STALE, BAD_INPUT = 0, 1, 2
INTRODUCTION = ("One folder per run: every case and kernel (results.csv), the same as text (table.txt), machine, build and "
                "noise (env.json), and what else is named below. This list is made by scripts/results_index.py.")
FURTHER = {"figures": "figures", "machine.tuning": "tuning file", "regret.png": "regret heatmap",
           "limits.txt": "goals", "limits-amx.txt": "goals on AMX", "layers": "layers", "peers": "other libraries",
           "models": "other libraries on shapes of models"}


def main(argv=None):
    options = read_options(argv)
    try:
        runs = [describe(folder) for folder in sorted(options.folder.iterdir(), reverse=True)
                if (folder / "results.csv").exists() and folder.name != "local"]
    except ResultsError as error:
        print(f"results_index.py: {error}", file=sys.stderr)
        return BAD_INPUT
    texts = {"README.md": markdown(runs), "index.html": page(runs)}
    stale = [name for name, text in texts.items() if read(options.folder / name) != text]
    if options.check:
        print(f"run scripts/results_index.py: {' and '.join(stale)} lack what the runs say" if stale else "up to date")
        return STALE if stale else FINE
    for name in stale:
        (options.folder / name).write_text(texts[name], encoding="utf-8")
        print(f"written: {options.folder / name}")
    return FINE


def read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parents[1] / "results",
                        metavar="FOLDER", help="default: results, beside scripts")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the files are not up to date")
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
    return "\n".join([*lines, "", "`scripts/bench.sh` makes such a folder under `results/local/`, which git ignores.", ""])


def page(runs):
    articles = []
    for run in runs:
        files = "".join(f'<li><a href="{run["name"]}/{escape(name)}">{escape(words)}</a></li>'
                        for words, name in [*run["files"], ("all rows", "results.csv"), ("as text", "table.txt")])
        shares = "".join(f"<li>{escape(share)}</li>" for share in run["shares"])
        articles.append(f'<article>\n<h2>{escape(run["cpu"])}</h2>\n<p>{run["date"]}, commit {run["commit"]}; '
                        f'{escape(run["extent"])}</p>\n<ul>{shares}</ul>\n<p>{escape(run["about"])}</p>\n'
                        f'<ul class="files">{files}</ul>\n</article>')
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>attnbench: published runs</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 60rem; margin: 0 auto; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }}
h1 {{ font-size: 1.6rem; }}
h2 {{ font-size: 1.15rem; margin: 1.5rem 0 .3rem; }}
.files {{ display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; list-style: none; padding: 0; }}
</style>
</head>
<body>
<main>
<h1>attnbench: published runs</h1>
<p>{escape(INTRODUCTION)}</p>
{chr(10).join(articles)}
</main>
</body>
</html>
"""


if __name__ == "__main__":
    sys.exit(main())
