#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The order of the folders. A file includes only headers of its own folder and of folders before it in ATTN_LIBRARY_ROOMS
(CMakeLists.txt) or ATTN_HARNESS_ROOMS (harness/CMakeLists.txt). No headers include each other in a circle. No folder has
more than 20 files. Prints each breach; exit code 1 if there is one."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_FILES = 20
DATA = ("results", "tests/data", "tests/fuzz/corpus")


def listed(file, variable):
    text = (ROOT / file).read_text(encoding="utf-8")
    return re.search(rf"set\({variable}\s+([a-z/\s]+)\)", text).group(1).split()


def rooms():
    """Folders in the order in which they may include each other."""
    return [*listed("CMakeLists.txt", "ATTN_LIBRARY_ROOMS"),
            *(f"harness/{room}" for room in listed("harness/CMakeLists.txt", "ATTN_HARNESS_ROOMS"))]


def included(path):
    """Headers of this tree that a file includes, as paths below its root."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
        for folder in (ROOT / path).parent, ROOT, ROOT / "harness":
            if (folder / name).exists():
                yield str((folder / name).relative_to(ROOT))
                break


def breaches_of_order(order, files):
    place = {room: number for number, room in enumerate(order)}
    for path in files:
        room = str(Path(path).parent)
        for name in included(path):
            other = str(Path(name).parent)
            if place.get(other, -1) > place[room]:
                yield f"{path} includes {name}: {other} comes after {room}"
            if other not in place and other.startswith(("src", "harness", "kernels/common")):
                yield f"{path} includes {name}, which is in no room"


def circles(files):
    """Headers that include each other, directly or through others."""
    graph = {path: list(included(path)) for path in files if path.endswith(".h")}
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


def full_folders():
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    folders = [str(Path(name).parent) for name in listing.stdout.splitlines() if not name.startswith(DATA)]
    for folder in sorted(set(folders)):
        if folders.count(folder) > MOST_FILES:
            yield f"{folder} holds {folders.count(folder)} files; at most {MOST_FILES} can be read as one list"


def main():
    order = rooms()
    files = [str(path.relative_to(ROOT)) for room in order for path in sorted((ROOT / room).glob("*.[ch]"))]
    if not files:
        sys.exit("no files in the rooms: are the lists right?")
    found = [*breaches_of_order(order, files), *(f"circle: {circle}" for circle in circles(files)), *full_folders()]
    print(*found, f"{len(files)} files in {len(order)} rooms, {len(found)} breaches", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
