# SPDX-License-Identifier: MIT
"""Shared by the scripts that make tables of docs/python.md: their options, and where a table goes."""

import argparse
import re
from pathlib import Path

import torch

import libattn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def read_options(doc):
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sample-ms", type=float, default=5)
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name has it")
    parser.add_argument("--write", help="replace the table between the marks of this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


def cpu():
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"model name\s*: (.*)", text)
    return found[1] if found else "unknown CPU"


def caption(options, peer=f"PyTorch {torch.__version__}"):
    return (f"{cpu()}, {options.dtype}, {options.threads} thread{'s' * (options.threads > 1)}, {peer}, "
            f"libattn {libattn.version()}, {options.rounds} rounds")


def printed(lines):
    """The list of the lines, each printed as soon as it is there."""
    found = []
    for line in lines:
        print(line, flush=True)
        found.append(line)
    return found


def write(name, lines, options):
    """Puts it between <!-- NAME DTYPE THREADS --> and <!-- end -->, if a file is given."""
    if not options.write:
        return
    path, mark = Path(options.write), f"{name} {options.dtype} {options.threads}"
    text, count = re.subn(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", lambda m: m[1] + "\n".join(lines) + "\n" + m[2],
                          path.read_text(encoding="utf-8"), flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{path} has {count} places marked '{mark}'; one is right")
    path.write_text(text, encoding="utf-8")


def ratio_text(row):
    return f"**{row.ratio.median:.2f}** ({row.ratio.low:.2f} … {row.ratio.high:.2f})" if row and row.ratio else "-"
