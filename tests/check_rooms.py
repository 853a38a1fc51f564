#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The folders of harness/ are ordered: a file includes only headers of its own folder and of folders before it in
ATTN_HARNESS_ROOMS (harness/CMakeLists.txt), and no headers include each other in a circle. Prints each breach; exit code 1
if there is one."""
import re
import sys
from pathlib import Path

HARNESS = Path(__file__).resolve().parent.parent / "harness"


def rooms():
    text = (HARNESS / "CMakeLists.txt").read_text(encoding="utf-8")
    return re.search(r"set\(ATTN_HARNESS_ROOMS ([a-z ]+)\)", text).group(1).split()


def included(path):
    """Headers of the harness that a file includes, as paths below harness/."""
    text = path.read_text(encoding="utf-8")
    names = re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)
    return [name for name in names if (HARNESS / name).exists()]


def breaches_of_order(order, files):
    place = {room: number for number, room in enumerate(order)}
    for path in files:
        room = path.parent.name
        for name in included(path):
            other = Path(name).parent.name
            if other not in place:
                yield f"{room}/{path.name} includes {name}, which is in no room of ATTN_HARNESS_ROOMS"
            elif place[other] > place[room]:
                yield f"{room}/{path.name} includes {name}: room {other} comes after {room}"


def circles(files):
    """Headers that include each other, directly or through others."""
    graph = {str(path.relative_to(HARNESS)): included(path) for path in files if path.suffix == ".h"}
    done = set()

    def walk(name, trail):
        if name in trail:
            yield " -> ".join([*trail[trail.index(name):], name])
        elif name not in done:
            for other in graph.get(name, []):
                yield from walk(other, [*trail, name])
            done.add(name)

    for name in graph:
        yield from walk(name, [])


def main():
    order = rooms()
    files = [path for room in order for path in sorted((HARNESS / room).glob("*.[ch]"))]
    if not files:
        sys.exit("no files in the rooms: is ATTN_HARNESS_ROOMS right?")
    found = [*breaches_of_order(order, files), *(f"circle: {circle}" for circle in circles(files))]
    print(*found, f"{len(files)} files in {len(order)} rooms, {len(found)} breaches", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
