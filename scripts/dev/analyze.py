#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs gcc's static analyzer over the library, the plain kernels and the harness: analyze.py [BUILD_FOLDER]

Flags come from BUILD_FOLDER/compile_commands.json (default build/). READ lists reports that a reader found to be wrong.
Exit code: 0 no other report, 1 other reports, 77 the compiler is not gcc.
"""

import json
import multiprocessing.pool
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src/", "harness/", "kernels/common/", "kernels/library/", "kernels/ref/")

# (file, words of the report): why the report is wrong.
READ = {
    ("harness/cases/cases.c", "'second'"): "add_item() calls read_range() only for text with a colon",
    ("harness/check/structure_view.c", "use of NULL"): "arrays that a problem does not use are not copied",
    ("harness/data/npy.c", "leak of"): "npy_read() frees header and data through the reader",
    ("harness/eval/eval_run.c", "possibly-NULL"): "the condition before it checks for NULL",
    ("harness/timing/row.c", "'baseline'"): "there is a baseline as soon as one row has a time",
    ("kernels/ref/decode_c.c", "uninitialized value"): "decode_layout_of() fills in the layout through a table",
    ("src/layers/mha.c", "'args'"): "check_run() refuses NULL",
    ("src/plan/plan.c", "'plan'"): "attn_plan_create() sets it if it returns ATTN_OK",
    ("kernels/ref/nn_oracle_f64.c", "leak of"): "the returned field points to both blocks",
}


def reports_of(entry):
    """The analyzer's lines for one source: (file below the root, text)."""
    words = [word for word in shlex.split(entry["command"]) if word not in ("-Werror", "ccache")]
    words[words.index("-o") + 1] = os.devnull
    done = subprocess.run([*words, "-fanalyzer"], cwd=entry["directory"], capture_output=True, text=True, check=False,
                          env={**os.environ, "LC_ALL": "C"})
    lines = re.findall(r"^(\S+?):(\d+):\d+: warning: (.*\[-Wanalyzer.*)", done.stderr, re.MULTILINE)
    return [(os.path.relpath(os.path.join(entry["directory"], file), ROOT), line, text) for file, line, text in lines]


def is_known(file, text):
    return any(file == name and words in text for name, words in READ)


def main():
    commands = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build", "compile_commands.json").read_text())
    sources = {os.path.relpath(entry["file"], ROOT): entry for entry in commands}
    chosen = [entry for name, entry in sorted(sources.items()) if name.startswith(FOLDERS)]
    if chosen and "clang" in chosen[0]["command"].split(" -")[0]:
        print("skipped: the analyzer is gcc's, and this build is clang's")
        return 77
    with multiprocessing.pool.ThreadPool(os.cpu_count()) as pool:
        found = sorted({report for reports in pool.map(reports_of, chosen) for report in reports})
    unknown = [report for report in found if not is_known(report[0], report[2])]
    for file, line, text in unknown:
        print(f"{file}:{line}: {text}")
    print(f"{len(chosen)} files, {len(found)} reports, {len(unknown)} of them new")
    return 1 if unknown or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
