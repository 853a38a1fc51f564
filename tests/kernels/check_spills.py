#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The hot loops of the flash kernels keep their sums in registers: no innermost loop with many multiply-adds loads a vector
from the stack or stores one there. Usage: check_spills.py BUILD_FOLDER; exit code 77 if there is no kernel to check."""
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

# A hot loop has this many multiply-adds (at most four unrolled tiles of 24; longer loops compute polynomials), this share of
# multiply-adds, and this many instructions that feed them: broadcasts, or on Arm elements of a register.
HOT, MOST, SHARE, BROADCASTS = 12, 96, 0.4, 3

# For each architecture: a jump and its target, a multiply-add, a vector access to the stack, a feeding instruction.
X86 = {"objdump": "objdump", "jump": r"j\w+\s+([0-9a-f]+)\b", "fma": r"vfmadd|vdpbf16ps",
       "spill": r"(?=.*\(%rsp)(?=.*%[yz]mm)", "feed": r"vbroadcastss"}
SSE = {**X86, "fma": r"mulps|addps", "spill": r"(?=.*\(%rsp)(?=.*%xmm)", "feed": r"shufps"}  # without fused multiply-adds
ARM = {"objdump": "objdump" if platform.machine() == "aarch64" else "aarch64-linux-gnu-objdump",
       "jump": r"(?:b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+, #\d+,)\s+([0-9a-f]+)\b",
       "fma": r"fmla|bfmmla|bfdot", "spill": r"(?:ldr|str|ldp|stp|ldur|stur)\s+q\d.*\[sp",
       "feed": r"fmla.*\.s\[|bfmmla|bfdot"}


def functions(path, machine):
    """name -> [(address, instruction)] of an object file."""
    text = subprocess.run([machine["objdump"], "-d", "--no-show-raw-insn", path], capture_output=True, text=True,
                          check=True).stdout
    found, name = {}, None
    for line in text.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            name = head[1]
            found[name] = []
        elif (body := re.match(r"\s*([0-9a-f]+):\s+(.+)", line)) and name:
            found[name].append((int(body[1], 16), body[2]))
    return found


def innermost_loops(instructions, machine):
    """(first, last) addresses of loops, each from the target of a backward jump to the jump, without other loops inside."""
    loops = [(int(jump[1], 16), at) for at, text in instructions
             if (jump := re.match(machine["jump"], text)) and int(jump[1], 16) < at]
    return [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]


def main():
    objects = sorted(Path(sys.argv[1], "CMakeFiles/attn_objects.dir").rglob("flash_*.c.o"))
    built_for_x86 = any("avx" in path.name for path in objects)
    machines = (("flash_avx", X86), ("flash_neon", ARM), *([("flash_portable", SSE)] if built_for_x86 else []))
    objects = [(path, machine) for path in objects for name, machine in machines if path.name.startswith(name)]
    if not objects or not all(shutil.which(machine["objdump"]) for _, machine in objects):
        print("skipped: no vector kernel in this build, or no objdump for it (Debian: apt-get install binutils, for Arm"
              " binutils-aarch64-linux-gnu)")
        return 77
    wrong = 0
    for path, machine in objects:
        hot = 0
        for name, instructions in functions(path, machine).items():
            for first, last in innermost_loops(instructions, machine):
                loop = [text for at, text in instructions if first <= at <= last]
                fma = sum(bool(re.match(machine["fma"], text)) for text in loop)
                spills = [text for text in loop if re.match(machine["spill"], text)]
                broadcasts = sum(bool(re.match(machine["feed"], text)) for text in loop)
                if not HOT <= fma <= MOST or fma < SHARE * len(loop) or broadcasts < BROADCASTS:
                    continue
                hot += 1
                if spills:
                    wrong += 1
                    print(f"WRONG: {path.name}, {name}: a loop of {fma} multiply-adds has {len(spills)} vector accesses "
                          f"to the stack, the first: {spills[0]}")
        print(f"{path.name}: {hot} hot loops looked at")
        if hot == 0:
            wrong += 1
            print(f"WRONG: {path.name} has no loop of {HOT} multiply-adds or more")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
