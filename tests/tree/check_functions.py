#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Functions of the harness are short: in every folder of harness/ the median is at most 8 lines, and nine of ten functions
have at most 25, counted from the line of the name to the closing brace. Prints each folder, and with --all every function
with more than 25 lines. Exit code 1 if a folder exceeds a limit."""
import re
import statistics
import sys
from pathlib import Path

HARNESS = Path(__file__).resolve().parents[2] / "harness"
MEDIAN, NINE_OF_TEN = 8, 25

# clang-format begins a definition in the first column. The name is the last word before the parameters.
BEGINS = re.compile(r"^(?!typedef|struct|enum|union|#|/|\}|extern)[A-Za-z_][\w \*]*?\b(\w+)\(")


def functions(path):
    """(name, lines) of every function that a file defines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = name = None
    for number, line in enumerate(lines):
        if start is None:
            match = BEGINS.match(line)
            if match:
                start, name = number, match[1]
        if start is not None:
            head = " ".join(lines[start:number + 1])
            if line.startswith("}") or (number == start and line.endswith("}") and "{" in line):
                yield name, number - start + 1
                start = None
            elif "{" not in head and line.endswith(";"):
                start = None  # a declaration
            elif re.search(r"=\s*\{?$|\)\s*=", head):
                start = None  # an initialised variable


def main():
    failed = 0
    for folder in sorted(path for path in HARNESS.iterdir() if path.is_dir()):
        found = [(lines, name, path.name) for path in sorted(folder.glob("*.[ch]")) for name, lines in functions(path)]
        if not found:
            continue
        counts = sorted(lines for lines, *_ in found)
        median, ninth = statistics.median(counts), counts[min(len(counts) - 1, int(0.9 * len(counts)))]
        above = median > MEDIAN or ninth > NINE_OF_TEN
        failed += above
        print(f"{folder.name:10} {len(counts):4} functions, median {median:g}, nine of ten at most {ninth}, "
              f"longest {counts[-1]}{'  ABOVE' if above else ''}")
        if "--all" in sys.argv:
            for lines, name, file in sorted(found, reverse=True):
                if lines > NINE_OF_TEN:
                    print(f"    {lines:3} {file}: {name}")
    print(f"{failed} folders above a median of {MEDIAN} lines or nine of ten at most {NINE_OF_TEN}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
