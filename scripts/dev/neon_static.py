#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Estimates the cycles of flash_neon's hot tile and of the bf16 kernels' products with llvm-mca's models of Arm cores.

    scripts/dev/neon_static.py                         prints the tables
    scripts/dev/neon_static.py --write                 also puts them into notebook/neon-static.md
    scripts/dev/neon_static.py --check                 exit 1 if an estimate is below the floor; 77 without the tools

Compiles kernels/neon/flash_neon.c, flash and decode of kernels/neonbf16, and without --check also decode_neon.c, which has
no floors, for aarch64 (Debian: gcc-aarch64-linux-gnu).
Takes the loops of both products and the branchless code of the exponentials from the assembly. llvm-mca (Debian: llvm-19
or newer) models repeated runs of each. A tile is 8 query rows by 12 keys. The estimates are no times: nothing is executed,
and they do not include caches, branches and the start of each loop.
"""

import argparse
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "notebook" / "neon-static.md"
CORES = ["neoverse-n1", "neoverse-v1", "neoverse-v2"]
BF16_CORES = ["neoverse-v1", "neoverse-v2"]  # those that have BFMMLA and BFDOT
ROWS, KEYS, LANES, STEPS = 8, 12, 4, 4  # sizes of a tile; STEPS: those of the inner dimension in one round of a product loop
GOALS = {64: (86, 90), 128: (92, 94)}  # floor and goal in % of the limit, by head_dim
BF16_FLOORS = {"bfmmla": 95, "bfdot": 75}  # in % of their rate, for product loops; decode's loops also pair values
FLAGS = ["-std=c11", "-O3", "-DNDEBUG", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-D_POSIX_C_SOURCE=200809L",
         "-Iinclude", "-I.", "-S", "-o"]

Stretch = collections.namedtuple("Stretch", "name lines multiplies")


def find(names):
    return next((name for name in names if shutil.which(name)), None)


def find_mca():
    """The newest llvm-mca that has a model of the newest core, or None."""
    for name in [f"llvm-mca-{n}" for n in range(25, 17, -1)] + ["llvm-mca"]:
        command = [name, "--mtriple=aarch64-linux-gnu", f"--mcpu={BF16_CORES[-1]}"]
        if shutil.which(name) and subprocess.run(command, input="nop\n", capture_output=True, text=True,
                                                    check=False).returncode == 0:
            return name
    return None


def first_line(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()


def compile_kernel(compiler, source, *flags, root=ROOT):
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "kernel.s"
        subprocess.run([compiler, *flags, *FLAGS, str(output), source], cwd=root, check=True)
        return output.read_text()


def compile_without_prefetching(compiler, source, *flags):
    """The loops of decode alone, for rows whose keys an earlier row has read."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for part in ("kernels", "include"):
            shutil.copytree(ROOT / part, root / part)
        products = root / "kernels/common/decode/products.h"
        text, found = re.subn(r"(\(few_kind\)\{rows, ATTN_##type, )policy,", r"\1PREFETCH_NONE,", products.read_text())
        if found != 2:
            raise SystemExit(f"WRONG: {products.name} has {found} places that set the policy of few rows, instead of 2")
        products.write_text(text)
        return compile_kernel(compiler, source, *flags, root=root)


def function(text, name):
    """Instructions and labels of a function."""
    body = text[text.index(f"\n{name}:") + 1:]
    body = body[:body.index(f"\t.size\t{name}")]
    lines = [re.sub(r"\s*//.*", "", line) for line in body.splitlines()]
    return [line for line in lines if line.strip() and not re.match(r"\s*[.#](?!L)", line)]


def is_multiply(line):
    return re.match(r"\s*fmla\b", line) is not None


BY_ELEMENT, BFMMLA, BFDOT, FMLA = r"\s*fmla.*\.s\[\d\]", r"\s*bfmmla\b", r"\s*bfdot\b", r"\s*fmla\b"


def product_loops(lines, multiply=BY_ELEMENT):
    """{number of multiply-adds: lines} of the innermost loops."""
    labels = {line.rstrip(":"): i for i, line in enumerate(lines) if line.startswith(".L")}
    loops = {}
    for end, line in enumerate(lines):
        jump = re.match(r"\s*b(?:\.)?\w*\s+(\.L\w+)$", line)
        begin = labels.get(jump[1], end) if jump else end
        body = [one for one in lines[begin:end] if not one.startswith(".L")]
        if begin < end and len(body) == end - begin - 1:
            loops.setdefault(sum(bool(re.match(multiply, one)) for one in body), body + [line])
    return loops


def loops_that_pass(lines, multiply):
    """The same of innermost loops that hold branches: none is taken."""
    labels, loops = {line.rstrip(":"): i for i, line in enumerate(lines) if line.startswith(".L")}, {}
    jumps = [(end, labels[jump[1]]) for end, line in enumerate(lines)
             if (jump := re.match(r"\s*b(?:\.)?\w*\s+(\.L\w+)$", line)) and labels.get(jump[1], end) < end]
    for end, begin in jumps:
        if not any(begin < other < end and to >= begin for other, to in jumps):
            body = straight(lines[begin:end + 1])
            loops.setdefault(sum(bool(re.match(multiply, one)) for one in body), body)
    return loops


def straight(lines):
    """The lines with each branch replaced by nop: no branch is taken."""
    branch = r"\b(b\.?\w+|cbn?z .*?,|tbn?z .*?,)\s+\.L\w+"
    return [re.sub(branch, "nop", line) for line in lines if not line.startswith(".L")]


def start_of_tile(lines):
    """The lines before the first loop, which initialise the sums with minus the references of the rows."""
    return straight(lines[1:next(i for i, line in enumerate(lines) if re.match(r"\s*fmla.*\.s\[", line))])


def exponentials(lines):
    """The stretch without labels with the most multiplications: P of a tile whose reference does not change."""
    stretches, current = [], []
    for line in lines:
        if line.startswith(".L"):
            stretches.append(current)
            current = []
        elif not re.match(r"\s*(ret|b\s)", line):
            current.append(line)
    return straight(max(stretches, key=lambda s: sum(is_multiply(one) for one in s)))


def stretches(text):
    panel, sums = function(text, "full_panel"), function(text, "accumulate_tile")
    qk, pv = product_loops(panel), product_loops(sums)
    full, pair = ROWS * KEYS // LANES * STEPS, ROWS * 2 * STEPS
    return [Stretch("Q Kᵀ, 4 of head_dim", qk[full], full), Stretch("P V, 4 keys × 12 columns", pv[full], full),
            Stretch("P V, 4 keys × 8 columns", pv[pair], pair), Stretch("start of a tile", start_of_tile(panel), 0),
            Stretch("exponentials of 8 × 12", exponentials(panel), 0)]


def cycles(mca, core, lines):
    """Cycles of one round in the steady state: (cycles of 300 rounds - cycles of 100 rounds) / 200."""

    def total(rounds):
        command = [mca, "--mtriple=aarch64-linux-gnu", f"--mcpu={core}", f"--iterations={rounds}", "--instruction-info=0",
                   "--resource-pressure=0", "--skip-unsupported-instructions=none"]
        source = "\n".join(lines).replace("#:lo12:", ":lo12:") + "\n"
        result = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
        if result.returncode:
            result = subprocess.run(command[:-1], input=source, capture_output=True, text=True, check=True)
        return int(re.search(r"Total Cycles:\s+(\d+)", result.stdout)[1])

    return (total(300) - total(100)) / 200


def multiplies_per_cycle(mca, core, instruction="fmla\tv{0}.4s, v24.4s, v25.s[{1}]"):
    """Throughput with 24 independent sums and no loads; by default of FMLA by element."""
    return 24 / cycles(mca, core, ["\t" + instruction.format(i, i % 4) for i in range(24)])


def strips_of(vectors):
    """Widths, in vectors, of the strips into which accumulate_tile divides the columns."""
    count = -(-vectors // 3)
    return [vectors * (i + 1) // count - vectors * i // count for i in range(count)]


def tile_cycles(of, head_dim):
    qk, wide, narrow, start, exp = of
    widths = collections.Counter(strips_of(head_dim // LANES))
    pv = KEYS // STEPS * (widths[3] * wide + widths[2] * narrow)
    return start, head_dim // STEPS * qk, exp, pv


def tables(mca, text):
    """(lines of Markdown, {(core, head_dim): estimate in % of the limit})."""
    parts = stretches(text)
    rows = ["| core | FMLA a cycle | " + " | ".join(part.name for part in parts) + " |", "|---|---|" + "---|" * len(parts)]
    shares = ["| core | head_dim | start | Q Kᵀ | exponentials | P V | cycles of a tile | FMLA limit | share | floor "
              "| goal |",
              "|---|---|---|---|---|---|---|---|---|---|---|"]
    estimates = {}
    for core in CORES:
        rate = multiplies_per_cycle(mca, core)
        of = [cycles(mca, core, part.lines) for part in parts]
        cells = [f"{c:.1f}" + (f" ({100 * part.multiplies / rate / c:.1f} %)" if part.multiplies else "")
                 for part, c in zip(parts, of)]
        rows.append(f"| {core} | {rate:.2f} | " + " | ".join(cells) + " |")
        for head_dim, (floor, goal) in GOALS.items():
            parts_of_tile = tile_cycles(of, head_dim)
            limit = 2 * ROWS * KEYS * head_dim / LANES / rate
            share = estimates[core, head_dim] = 100 * limit / sum(parts_of_tile)
            cells = " | ".join(f"{part:.0f}" for part in (*parts_of_tile, sum(parts_of_tile), limit))
            shares.append(f"| {core} | {head_dim} | {cells} | {share:.1f} % | {floor} | {goal} |")
    return rows + [""] + shares, estimates


def bf16_rows(mca, instruction, loops):
    """(rows of a table: per core the rate of the instruction, and the cycles of loops, [(number of them, lines)]; the loops
    below the floor, in words)."""
    rows, short = [], []
    for core in BF16_CORES:
        rate = multiplies_per_cycle(mca, core, instruction + "\tv{0}.4s, v24.8h, v25.8h")
        cells = []
        for count, lines in loops:
            time = cycles(mca, core, lines)
            share = 100 * count / rate / time
            cells.append(f"{time:.1f} ({share:.1f} %)")
            if share < BF16_FLOORS[instruction]:
                short.append(f"{core}, {count} {instruction.upper()}: {share:.1f} % of their rate, "
                             f"floor {BF16_FLOORS[instruction]}")
        rows.append(f"| {core} | {rate:.2f} | " + " | ".join(cells) + " |")
    return rows, short


def bf16_table(mca, text):
    loops = [(24, product_loops(function(text, name), BFMMLA)[24]) for name in ("score_panel_bf16", "accumulate_columns_of")]
    rows, short = bf16_rows(mca, "bfmmla", loops)
    head = ["| core | BFMMLA a cycle | Q Kᵀ, 4 of head_dim | P V, 4 keys × 12 columns |", "|---|---|---|---|"]
    return head + rows, short


def decode_table(mca, text):
    """The largest loops for 4 rows."""
    loops = [max(product_loops(function(text, f"{part}_4_bf16"), BFDOT).items())
             for part in ("score", "accumulate")]
    names = [f"{name} ({count} BFDOT)" for name, (count, _) in zip(("Q Kᵀ, 4 rows", "P V, 4 rows"), loops)]
    rows, short = bf16_rows(mca, "bfdot", loops)
    return [f"| core | BFDOT a cycle | {names[0]} | {names[1]} |", "|---|---|---|---|", *rows], short


TYPES = {"f32": "float32", "bf16": "bfloat16", "i8": "int8", "e4m3": "e4m3", "q8_0": "q8_0", "q4_0": "q4_0"}


def decode_types_table(mca, text):
    """decode_neon: the largest loops for 4 rows, without prefetches."""
    head = "| core | " + " | ".join(f"{name}, {part}" for name in TYPES.values() for part in ("Q Kᵀ", "P V")) + " |"
    rows = [head, "|---|" + "---|" * (2 * len(TYPES))]
    for core in CORES:
        rate = multiplies_per_cycle(mca, core)
        cells = []
        for kind in TYPES:
            for part in ("score", "accumulate"):
                count, lines = max(loops_that_pass(function(text, f"{part}_4_{kind}"), FMLA).items())
                lines = [line for line in lines if not re.match(r"\s*prfu?m\b", line)]
                cells.append(f"{100 * count / rate / cycles(mca, core, lines):.0f}")
        rows.append(f"| {core} | " + " | ".join(cells) + " |")
    return rows


BEGIN, END = "<!-- begin: scripts/dev/neon_static.py --write -->", "<!-- end -->"


def write(lines):
    text = DOCUMENT.read_text()
    before, after = text[:text.index(BEGIN)], text[text.index(END):]
    DOCUMENT.write_text("\n".join([before + BEGIN, "", *lines, "", after]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default=find(["aarch64-linux-gnu-gcc"]), help="default aarch64-linux-gnu-gcc")
    parser.add_argument("--mca", default=find_mca(), help="default the newest")
    parser.add_argument("--write", action="store_true", help="puts the tables into notebook/neon-static.md")
    parser.add_argument("--check", action="store_true", help="exit 1 if an estimate is below the floor")
    options = parser.parse_args()
    if not options.compiler or not options.mca:
        print("skipped: no aarch64-linux-gnu-gcc or no llvm-mca that knows the cores "
              "(Debian: apt-get install gcc-aarch64-linux-gnu llvm-19)")
        return 77
    made_by = [first_line([options.compiler, "--version"])[0],
               next(line.strip() for line in first_line([options.mca, "--version"]) if "version" in line)]
    lines, estimates = tables(options.mca, compile_kernel(options.compiler, "kernels/neon/flash_neon.c"))
    short = [f"{core}, head_dim {dim}: {share:.1f} % of the FMLA limit, floor {GOALS[dim][0]}"
             for (core, dim), share in estimates.items() if share < GOALS[dim][0]]
    of_bf16 = []
    for name, table, compiled in (("flash_neonbf16", bf16_table, compile_kernel),
                                  ("decode_neonbf16", decode_table, compile_without_prefetching)):
        text = compiled(options.compiler, f"kernels/neonbf16/{name}.c", "-march=armv8.2-a+bf16")
        rows, below = table(options.mca, text)
        of_bf16 += ["", f"`{name}`:", "", *rows]
        short += below
    if not options.check:
        text = compile_kernel(options.compiler, "kernels/neon/decode_neon.c")
        of_bf16 += ["", "`decode_neon`, 4 rows, by the type of K and V: share of the rate of FMLA, in %:", "",
                    *decode_types_table(options.mca, text)]
    lines = ["Made with " + " and ".join(made_by) + ".", "", *lines, *of_bf16]
    print("\n".join(lines))
    if options.write:
        write(lines)
    if options.check and short:
        print("WRONG:", *short, sep="\n  ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
