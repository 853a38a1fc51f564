#!/usr/bin/env python3
"""The hot loops keep their sums in registers: no innermost loop of a flash kernel that is full of multiply-adds touches the stack with
a vector. Usage: check_spills.py BUILD_FOLDER; exit code 77 if there is nothing to look at."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

# What makes a loop one of products: its multiply-adds (at most four unrolled tiles of 24; beyond, they are polynomials), their share of
# its instructions, and broadcasts to feed them.
HOT, MOST, SHARE, BROADCASTS = 12, 96, 0.4, 3


def functions(path):
    """name -> [(address, instruction)] of an object file."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True).stdout
    found, name = {}, None
    for line in text.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            name = head[1]
            found[name] = []
        elif (body := re.match(r"\s*([0-9a-f]+):\s+(.+)", line)) and name:
            found[name].append((int(body[1], 16), body[2]))
    return found


def innermost_loops(instructions):
    """[first, last] addresses between a backward jump's target and the jump, those without another such pair inside."""
    loops = [(int(jump[1], 16), at) for at, text in instructions
             if (jump := re.match(r"j\w+\s+([0-9a-f]+)\b", text)) and int(jump[1], 16) < at]
    return [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]


def main():
    objects = sorted(Path(sys.argv[1]).rglob("flash_avx*.c.o"))
    objects = [path for path in objects if "attn_objects" in str(path)]
    if not shutil.which("objdump") or not objects:
        print("skipped: no objdump (Debian: apt-get install binutils) or no vector kernel in this build")
        return 77
    wrong = 0
    for path in objects:
        hot = 0
        for name, instructions in functions(path).items():
            for first, last in innermost_loops(instructions):
                loop = [text for at, text in instructions if first <= at <= last]
                fma = sum("vfmadd" in text for text in loop)
                spills = [text for text in loop if re.search(r"\(%rsp", text) and re.search(r"%[yz]mm", text)]
                broadcasts = sum("vbroadcastss" in text for text in loop)
                if not HOT <= fma <= MOST or fma < SHARE * len(loop) or broadcasts < BROADCASTS:
                    continue
                hot += 1
                if spills:
                    wrong += 1
                    print(f"WRONG: {path.name}, {name}: a loop of {fma} multiply-adds has {len(spills)} vector accesses to the stack,"
                          f" the first: {spills[0]}")
        print(f"{path.name}: {hot} hot loops looked at")
        if hot == 0:
            wrong += 1
            print(f"WRONG: {path.name} has no loop of {HOT} multiply-adds or more")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
