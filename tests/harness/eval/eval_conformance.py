#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Cases of libattn.conformance by `attnbench eval --case`: kernels pass them, and what is wrong fails.

tests/harness/eval/eval_conformance.py path/to/attnbench     exit 0: all as it should be; 77: no NumPy

By naive_c and the automatic choice; with ATTN_TEST_LONG by every kernel.
"""

import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path

try:
    import numpy as np
    from eval_runs import Evals
except ImportError:
    print("skipped: no NumPy")
    sys.exit(77)

CASES = Path(__file__).resolve().parents[3] / "python" / "libattn" / "conformance" / "cases"
KERNELS = "all" if os.environ.get("ATTN_TEST_LONG") else "naive_c,auto"
PLANTED = [  # a case, and options that make another one of it
    ("plain/dim_16", {"scale": 0.3}), ("scale/zero", {"scale": 0.1}), ("causal/5x5", {"causal": "none"}),
    ("alignment/bottom_right_3x5", {"causal": "top-left"}), ("alignment/offset_1", {"offset": 2}),
    ("window/1_0", {"window_left": 2}), ("window/bottom_right_4x9", {"offset": 4}), ("softcap/cap_2", {"softcap": 0}),
    ("groups/4_2", {"softcap": 0.1}),
]
DAMAGED = "plain/dim_16/o.npy"  # a value of it is moved by a hundredth


def place(name, folder=CASES):
    return {"case": f"{folder}/index.json:{name}"}


def check_cases(evals):
    """Every case passes, but for those that need what eval does not have."""
    for line in json.loads((CASES / "index.json").read_text(encoding="utf-8"))["cases"]:
        name = line["name"]
        if name.split("/")[0] in ("gradients", "pages") or name == "masked_nan/pages":
            evals.check(name, place(name), 2, "eval has neither pages nor gradients", allowed=[])
        else:
            evals.check(name, place(name), allowed=["PASS", "DEGENERATE"])


def check_planted(evals):
    for name, change in PLANTED:
        evals.check(f"{name} {change}", {**place(name), **change}, 1, "FAIL")


def check_archives(evals):
    """Copies of an archive: as it is, with a wrong value, cut short, compressed."""
    def copy(method, factor=1.0):
        with zipfile.ZipFile(CASES / "cases-01.npz") as source, zipfile.ZipFile(folder / "cases-01.npz", "w") as target:
            for name in source.namelist():
                data = source.read(name)
                if name == DAMAGED:
                    data = data[:-4] + (np.frombuffer(data[-4:], np.float32) * factor).tobytes()
                target.writestr(zipfile.ZipInfo(name), data, method)

    folder, case = evals.folder, "plain/dim_16"
    (folder / "index.json").write_bytes((CASES / "index.json").read_bytes())
    copy(zipfile.ZIP_STORED)
    evals.check("a copy", place(case, folder), allowed=["PASS", "DEGENERATE"])
    copy(zipfile.ZIP_STORED, 1.01)
    evals.check("a wrong value", place(case, folder), 1, "not as --expect has it")
    copy(zipfile.ZIP_DEFLATED)
    evals.check("compressed", place(case, folder), 5, "numpy.savez writes readable ones", allowed=[])
    for size, words in ((40, "ends within its list of arrays"), (100, "cut short"), (0, "holds no such array")):
        os.truncate(folder / "cases-01.npz", size)
        evals.check(f"{size} bytes", place(case, folder), 5, words, allowed=[])
    evals.check("no archive", place("quantised/q8_0_decode", folder), 5, "No such file", allowed=[])


def check_refusals(evals):
    for case, words in (("plain/dim_16", "names no case"), ("nowhere:plain/dim_16", "cannot be read"),
                        (f"{CASES}/index.json:plain/dim_17", "has no case plain/dim_17")):
        evals.check(case, {"case": case}, 2, words, allowed=[])


def main():
    with tempfile.TemporaryDirectory() as folder:
        evals = Evals(sys.argv[1], folder, "--kernel", KERNELS)
        for check in (check_cases, check_planted, check_archives, check_refusals):
            check(evals)
    print(f"eval_conformance: {evals.checks} checks, {evals.failures} failures")
    return int(evals.failures > 0)


if __name__ == "__main__":
    sys.exit(main())
