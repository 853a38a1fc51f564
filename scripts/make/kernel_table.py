#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes docs/kernels.md, the table of problems that each kernel accepts. Asks the kernels of one or more builds.

    scripts/make/kernel_table.py build/tests/kernel_table                    rewrites the rows of the kernels in that build
    scripts/make/kernel_table.py --check build/tests/kernel_table            exit 1 if the document is out of date
    scripts/make/kernel_table.py 'qemu-aarch64 -L /usr/aarch64-linux-gnu build-aarch64/tests/kernel_table'

No build has every kernel; rows of other kernels are kept. --check compares the rows of the kernels in the build and requires
a row for every kernel of kernels/kernels.def. A kernel on a library may refuse other problems if the library has another
version than the one in the document; --check prints such kernels and does not compare them.
"""

import argparse
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "kernels.md"
REGISTRY = ROOT / "kernels" / "kernels.def"

OPENING = """# What each kernel takes

`scripts/make/kernel_table.py` makes this page from what the kernels answer through `attn_kernel_rejects`; a test compares
it with the build. [semantics.md](semantics.md) defines every option. A number in place of a ✓ is the reason, below
the tables. Each option is tried alone, on a problem of 2 heads, 4 queries, 64 keys and 64 dimensions in the first of the
types that the kernel takes.
`attnbench explain -a ...` answers for any other problem, on your CPU.
"""


class Table:
    """The answers of the builds' kernels."""

    def __init__(self):
        self.heads, self.meanings = {}, {}  # title -> headings; title -> heading -> meaning
        self.rows = {}  # (title, kernel) -> cells
        self.kernels = {}  # kernel -> (algorithm, tier, library, summary)
        self.reasons = {}  # kernel -> [reason]

    def read(self, command):
        text = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, check=True, encoding="utf-8").stdout
        for line in text.splitlines():
            kind, *words = line.split("\t")
            if kind == "S":
                self.heads[words[0]] = words[1:]
            elif kind == "F":
                self.meanings.setdefault(words[0], {})[words[1]] = words[2]
            elif kind == "K":
                self.kernels[words[0]] = words[1:]
                self.reasons[words[0]] = []
            elif kind == "R":
                self.rows[words[0], words[1]] = words[2:]
            elif kind == "N":
                self.reasons[words[0]].append(words[2])


def line(cells):
    return "| " + " | ".join(cells) + " |"


def kernel_lines(table, kernel):
    """title -> line of one kernel."""
    algorithm, tier, library, summary = table.kernels[kernel]
    lines = {"Kernels": line([f"`{kernel}`", algorithm, tier, library or "–", summary])}
    for title in table.heads:
        lines[title] = line([f"`{kernel}`"] + ["✓" if cell == "yes" else cell for cell in table.rows[title, kernel]])
    if table.reasons[kernel]:
        reasons = "; ".join(f"**{number}** {reason}" for number, reason in enumerate(table.reasons[kernel], 1))
        lines["Reasons"] = f"- `{kernel}`: {reasons}"
    return lines


def read_document():
    """title -> kernel -> line, unchanged."""
    lines, title = {}, ""
    for text in DOCUMENT.read_text(encoding="utf-8").splitlines() if DOCUMENT.exists() else []:
        heading = re.match(r"## (.*)", text)
        title = heading.group(1) if heading else title
        row = re.match(r"(?:\||-) `([a-z0-9_]+)`", text)
        if row:
            lines.setdefault(title, {})[row.group(1)] = text
    return lines


def registered():
    """Kernels in the order of the registry."""
    return re.findall(r"^ATTN_KERNEL\(([a-z0-9_]+),", REGISTRY.read_text(encoding="utf-8"), re.MULTILINE)


def merge(old, table):
    """Lines of the document, replaced by those of the build where it has the kernel. Only registered kernels."""
    merged = {}
    for kernel in registered():
        lines = kernel_lines(table, kernel) if kernel in table.kernels else {
            title: rows[kernel] for title, rows in old.items() if kernel in rows}
        for title, text in lines.items():
            merged.setdefault(title, {})[kernel] = text
    return merged


def document(lines, table):
    """The whole text."""
    out = [OPENING]

    def add(title, head, note):
        out.append(f"## {title}\n")
        out.append("\n".join([line(head), "|" + "---|" * len(head), *lines.get(title, {}).values()]) + "\n")
        if note:
            out.append(note + "\n")

    add("Kernels", ["kernel", "algorithm", "tier", "library", "what it is"], "")
    for title, head in table.heads.items():
        meanings = "; ".join(f"**{name}** {meaning}" for name, meaning in table.meanings[title].items())
        add(title, ["kernel", *head], meanings + ".")
    out.append("## Reasons\n")
    out.append("\n".join(lines.get("Reasons", {}).values()) + "\n")
    return "\n".join(out)


def library_of(text):
    return text.split(" | ")[3]


def differences(old, new, table):
    """Yields a sentence for each kernel without a row and each line that differs between document and build."""
    for kernel in registered():
        if kernel not in old.get("Kernels", {}):
            yield f"{kernel} has no row"
        elif kernel in table.kernels and library_of(old["Kernels"][kernel]) != library_of(new["Kernels"][kernel]):
            print(f"not compared: {kernel} uses {library_of(new['Kernels'][kernel])} here, but "
                  f"{library_of(old['Kernels'][kernel])} in the document")
        else:
            for title in new:
                if old.get(title, {}).get(kernel) != new[title].get(kernel):
                    yield f"{title}: {kernel}\n  in the document: {old.get(title, {}).get(kernel)}\n  " \
                          f"in this build:   {new[title].get(kernel)}"
    for kernel in sorted(set(old.get("Kernels", {})) - set(registered())):
        yield f"{kernel} has a row, but is not in kernels/kernels.def"


def check(old, new, table):
    found = list(differences(old, new, table))
    for sentence in found:
        print(sentence)
    text = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    if not found and document(old, table) != text:
        found.append("the text around the rows")
        print("docs/kernels.md: the text around the rows is not what scripts/make/kernel_table.py writes")
    print(f"docs/kernels.md: {len(table.kernels)} kernels of this build, {len(registered())} registered, {len(found)} "
          "differences" + ("; scripts/make/kernel_table.py updates it" if found else ""))
    return 1 if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the document is out of date")
    parser.add_argument("command", nargs="+", help="tests/kernel_table of a build, after an emulator if it needs one")
    arguments = parser.parse_args()
    table = Table()
    for command in arguments.command:
        table.read(command)
    old = read_document()
    new = merge(old, table)
    if arguments.check:
        return check(old, new, table)
    DOCUMENT.write_text(document(new, table), encoding="utf-8")
    for kernel in registered():
        if kernel not in new["Kernels"]:
            print(f"{kernel} has no row: none of these builds has it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
