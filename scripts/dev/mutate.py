#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Puts small faults into the C code, one at a time, and lists those that no test notices.

    cmake --preset mutants && cmake --build --preset mutants -j2        (assertions, -O2, a selection of each suite's cases)
    scripts/dev/mutate.py --files 'harness/check/*' --sample 50 --seed 7   (a seeded choice; without --sample all)
    scripts/dev/mutate.py --named --least 100                              (faults that once survived, with their tests)
    scripts/dev/mutate.py ... --then build-mutants-asan                    (tries survivors with sanitizers, too)
        cmake --preset mutants -B build-mutants-asan -DATTN_SANITIZE=address,undefined -DATTN_MAX_ISA=avx2

A fault is another operator, constant or condition, a dropped statement, or two swapped arguments. All faults are compiled
at once, outside of the build, and wait in one program for their turn (mutating/together.py); those that cannot are compiled
alone. Then the tests of a fault's file that enter its function run, the quickest first, until one fails. A fault is
    killed        a test failed, crashed, or ran much longer than usual; the row names it
    survived      every test passed: a test is missing, or no user can see the fault
    same code     the compiler's object did not change; not counted, like faults that do not compile
Headers of kernels/ are tried in two tiers. A build with sanitizers finds faults that only read or write beyond an array, or
never free memory. Rows go to BUILD/mutants.csv, with a second row for each survivor that is tried with --then. Exit code: 0;
1 fewer than --least per cent were killed; 2 bad usage; 3 a test failed without a fault.
"""
import argparse
import csv
import fnmatch
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from mutating.mutations import Mutation, key_of, mutations_of, read_named
from mutating.programs import Build, Workplace
from mutating.together import MOST_TOGETHER

ROOT = Path(__file__).resolve().parents[2]
NAMED = ROOT / "tests" / "mutants" / "named_mutants.txt"
COLUMNS = ("file", "line", "kind", "before", "after", "outcome", "test", "seconds")

# Files, and the tests that run on their faults in this order. Quick tests that are likely to fail come first.
AREAS = (
    ("python/*", "python"),
    ("src/nn/*", "nn_pieces nn_tokens nn_block nn_cache nn_layers nn_pool nn_channels nn_reshape mha_step safetensors"
                 " fuzz_safetensors fuzz_caches layer fault_memory layer_family"),
    ("src/train/*", "train train_fixture train_attention dropout backward gradients args mistakes fault_memory"),
    ("src/*", "problem plan args structs merge open_close choice choice_amd-zen3 paying_threads cpu probe load tuning tune"
              " mistakes grown rows kv_append score_steps product common operation pieces pages numerics nonfinite"
              " fuzz_plans nodes"
              " fuzz_tuning by_length scales quantised_rows nn_pieces mha_step state fuzz_kernels bf16_amx mha flush process"
              " serving steady layer old_program plugins_race plugins goals tune_costs decode nn_block"
              " nn_cache nn_layers nn_pool layer_family affinity setup fault_memory tier_c tier_avx2"
              " tier_avx512@qemu_Haswell check edge_c bits cli guard_pages terms key_blocks nn_channels mha_torch"
              " safetensors prefetch choice_amd-zen4 train train_attention backward dropout"),
    ("kernels/amx/*", "nonfinite bf16_amx common fuzz_kernels numerics flush conformance_amx tier_amx bits guard_pages cli"),
    ("kernels/ref/oracle*", "reference common numerics fuzz_kernels mha tier_c check edge_c conformance_c bits"),
    ("kernels/ref/nn_oracle*", "nn_pieces nn_block nn_cache nn_layers mha_torch mha layer layer_family"),
    ("kernels/*", "terms choice score_steps merge plan product common operation pieces pages key_blocks state scales"
                  " rows kv_append quantised_rows prefetch decode nonfinite numerics fuzz_kernels serving steady reference"
                  " mha backward dropout gradients"
                  " exp_c exp_avx2"
                  " cold_rows_avx2 warm_rows_avx2 cold_windows_c cold_windows_avx2 tier_c tier_avx2 tier_avx512 flush"
                  " edge_c edge_avx2 edge_avx512 conformance_c conformance_avx2 conformance_avx512 bf16_amx"
                  " conformance_amx check bits guard_pages cli"),
    ("harness/check/structure*", "structure layer structure_mutants conformance_c mutants check cli"),
    ("harness/check/*", "choose_rows error_limits values reference every_element gradients structure goals layer rounds"
                        " timed_rows operation check common fault_memory cheats structure_mutants mutants cli eval_numpy"),
    ("harness/timing/*", "stats row rates verdict setup rounds cause timed_rows paired measured_goals operation check layer"
                         " process goals session affinity tune_costs simulated_verdicts tensors structure sides comparing"
                         " fault_memory cheats cli"),
    ("harness/goals/*", "goals measured_goals fault_memory cli"),
    ("harness/layers/*", "layer nn_layers layer_family cli"),
    ("harness/commands/session*", "session faults fault_memory cli"),
    ("harness/report/*", "journal row fuzz_journal merging faults fault_memory shards cli"),
    ("harness/commands/merge.c", "merging fault_memory shards"),
    ("harness/compare/*", "verdict sides stats paired rounds comparing fault_memory simulated_verdicts cli"),
    ("harness/tuning/*", "tune_costs tune fault_memory cli"),
    ("harness/data/*", "npy fuzz_npy quantised_rows kv_append tensors outputs every_element timed_rows guard_pages layer"
                       " reference check cheats mutants cli"),
    ("harness/cases/*", "cases axes fuzz_texts tensors setup layer goals check cli"),
    ("harness/*", "axes row npy setup goals simulate timed_rows layer affinity cgroup check cpus_synthetic cpus cli"
                  " eval_numpy eval_minilm"),
)
# Default of --files: the library, its kernels, and the code of the harness that checks.
SCOPE = ("src/*", "kernels/common/*", "kernels/amx/*", "harness/check/*", "harness/timing/*", "harness/goals/*",
         "harness/compare/*", "harness/tuning/*", "harness/data/tensors_output.c", "harness/cases/work.c",
         "harness/commands/session*.c", "harness/report/journal.c")
# They say which lines of memory to prefetch: a fault changes no value.
PREFETCHES = ("kernels/common/memory/prefetch.h", "kernels/common/tiles/cold_lines.h")
TRIES = 3  # for a test without a fault: other load may disturb its times
MEMORY_BYTES = 16 << 30  # limit of a process: a fault may request any amount
# glibc fills the memory that programs in C allocate, and checks the bytes behind it when it is freed.
MEMORY_CHECKS = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}


# ---- Which faults ---------------------------------------------------------------------------------------------------------

def read_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build-mutants", help="a finished build (Unix Makefiles)")
    parser.add_argument("--then", type=Path, metavar="BUILD", help="a build in which survivors are tried again")
    parser.add_argument("--files", action="append", metavar="GLOB", help="files to put faults into; repeatable")
    parser.add_argument("--sample", type=int, metavar="N", help="number of faults")
    parser.add_argument("--by", choices=("kind", "file"), default="kind", help="balance the sample by")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--named", action="store_true", help="those of tests/mutants/named_mutants.txt, each with its test")
    parser.add_argument("--tests", help="names of tests, in this order, instead of those of the file")
    parser.add_argument("--longest", type=float, default=600, metavar="S", help="skip tests that need more CPU seconds")
    parser.add_argument("--least", type=float, default=0.0, metavar="PERCENT", help="exit code 1 if fewer are killed")
    parser.add_argument("--output", type=Path, metavar="CSV", help="default: mutants.csv in the build folder")
    return parser.parse_args(arguments)


def files_of(patterns):
    names = sorted(str(path.relative_to(ROOT)) for folder in ("src", "kernels", "harness", "python/native")
                   for path in (ROOT / folder).rglob("*.[ch]"))
    return [name for name in names if name not in PREFETCHES and any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def mutations_in(names):
    return [each for name in names for each in mutations_of(name, (ROOT / name).read_text(encoding="utf-8"))]


def sampled(mutations, count, seed, by="kind"):
    """A seeded choice: equally many of each kind as far as possible, or of each file in proportion to its size."""
    draw, groups = random.Random(seed), {}
    for mutation in mutations:
        groups.setdefault(getattr(mutation, by), []).append(mutation)
    for each in groups.values():
        draw.shuffle(each)
    if by == "file":
        step = max(len(mutations) / count, 1)
        start, line = draw.random() * step, [each for file in sorted(groups) for each in groups[file]]
        return [line[int(start + n * step)] for n in range(min(count, len(line)))]
    chosen = []
    while len(chosen) < count and any(groups.values()):
        chosen += [groups[kind].pop() for kind in sorted(groups) if groups[kind]]
    return chosen[:count]


def named_mutations(patterns=("*",)):
    """The named faults in these files. Raises ValueError if a line is gone, or stands twice in its file."""
    mutations = []
    for file, before, after in read_named(NAMED):
        if not any(fnmatch.fnmatch(file, pattern) for pattern in patterns):
            continue
        lines = (ROOT / file).read_text(encoding="utf-8").split("\n")
        numbers = [number for number, line in enumerate(lines) if line.strip() == before]
        if len(numbers) != 1:
            raise ValueError(f"{NAMED.name}: {file} has {len(numbers)} lines '{before}', should have one")
        mutations.append(Mutation(file, numbers[0], lines[numbers[0]], after, "named"))
    return mutations


def chosen_mutations(options):
    every = named_mutations(options.files or ["*"]) if options.named else mutations_in(files_of(options.files or SCOPE))
    return sampled(every, options.sample, options.seed, options.by) if options.sample else every


# ---- Running tests --------------------------------------------------------------------------------------------------------

class Trouble(Exception):
    """A test that fails without a fault."""


def cpu_seconds():
    """CPU time of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_test(command, environment, place, limit_s, cpu_s=600):
    """Exit code of a test, or None if it ran longer than limit_s. Each of its processes may use cpu_s of CPU time."""
    sanitized = place.build.sanitized  # AddressSanitizer reserves terabytes, and looks after allocations itself

    def limited():
        if not sanitized:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))

    checks = {} if sanitized or "python" in command[0] else MEMORY_CHECKS
    process = subprocess.Popen(command, cwd=place.folder,
                               env={**os.environ, **checks, **environment}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True, preexec_fn=limited)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


class Baseline:
    """CPU seconds of each test without a fault; None for tests that are skipped on this machine, or take too long."""

    def __init__(self, place, longest):
        self.place, self.longest, self.seconds, self.met = place, longest, {}, {}

    def of(self, test):
        if test not in self.seconds:
            self.seconds[test] = self._measure(test)
        return self.seconds[test]

    def meets(self, test, number):
        """Whether a test enters the function of a fault. Nobody knows of those that are compiled alone: number 0."""
        return not number or self.met[test][number]

    def _measure(self, test):
        if not self.place.build.tests.get(test, ([],))[0]:  # not configured, or not built
            return None
        met = self.place.folder / "met"
        met.write_bytes(bytes(MOST_TOGETHER))
        self.place.choose(0)
        command, environment = self.place.command_of(test)
        limit_s, limit_cpu_s = min(600, 30 + 20 * self.longest), int(min(600, 2 + self.longest))  # beside other load
        for _ in range(TRIES):
            begun = cpu_seconds()
            code = run_test(command, {**environment, "MUTANTS_MET": str(met)}, self.place, limit_s, limit_cpu_s)
            seconds, self.met[test] = cpu_seconds() - begun, met.read_bytes()
            if code == 0 and seconds <= self.longest:
                return seconds
            if code in (0, 77) or self.longest < 600 and (code is None or seconds > self.longest):
                return None
        raise Trouble(f"{test} fails without a fault (exit code {code})")


    def is_late(self, test, limit_s, cpu_s):
        """Whether the test runs too long without a fault, too: other load is the reason."""
        self.place.choose(0)
        return run_test(*self.place.command_of(test), self.place, limit_s, cpu_s) is None


def run_with_fault(test, number, place, baseline):
    """Exit code of a test with a fault; None if it hangs. 0 where other load delays it, which says nothing."""
    limits = 60 + 20 * baseline.of(test), int(5 + 3 * baseline.of(test))
    for _ in range(TRIES):
        place.choose(number)
        code = run_test(*place.command_of(test), place, *limits)
        if code is not None or not baseline.is_late(test, *limits):
            return code
    return 0


def tests_of(mutation, options):
    if options.named:
        return read_named(NAMED)[key_of(mutation)]
    area = options.tests or next(tests for pattern, tests in AREAS if fnmatch.fnmatch(mutation.file, pattern))
    return " ".join(sorted(area.split(), key=lambda test: not Path(mutation.file).stem.startswith(test)))  # its own first


def noticed(mutation, number, place, options, baseline):
    """Outcome of a fault that is compiled, and the test that noticed it: runs its tests until one fails."""
    for test in tests_of(mutation, options).split():
        if not place.touches(test, mutation) or baseline.of(test) is None or not baseline.meets(test, number):
            continue
        code = run_with_fault(test, number, place, baseline)
        if code is None:
            return "killed", f"{test} (time)"
        if code:
            return "killed", test if code > 0 else f"{test} ({signal.Signals(-code).name})"
    return "survived", ""


def run_all(mutations, options, build_folder, report):
    """Tries every fault in a build: first those that are compiled together. The compiler is asked about survivors alone."""
    build = Build(ROOT, build_folder)
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        (Path(folder) / "libattnbench.so").symlink_to(build.folder / "libattnbench.so")  # the Python package looks there
        many, one = (Workplace(build, Path(folder) / name) for name in ("many", "one"))
        numbers, baseline = many.build_together(mutations), Baseline(many, options.longest)
        print(f"{len(numbers)} of {len(mutations)} faults compiled at once", flush=True)
        for mutation in sorted(mutations, key=lambda each: each not in numbers):
            begun = time.monotonic()
            done = noticed(mutation, numbers[mutation], many, options, baseline) if mutation in numbers else None
            if not done or done[0] == "survived":
                outcome = one.build_alone(mutation)
                done = (outcome, "") if outcome != "changed" else done or noticed(mutation, 0, one, options, baseline)
            report(mutation, *done, time.monotonic() - begun)


# ---- Reporting ------------------------------------------------------------------------------------------------------------

def show(mutation, outcome):
    where = f"{outcome}  {mutation.file}:{mutation.number + 1}"
    print("", where, f"- {mutation.before.strip()}", f"+ {mutation.after.strip()}", sep="\n", flush=True)


def summarize(outcomes):
    """A line for each file and one for all. Returns the share of killed faults among those that count, in per cent."""
    print(f"\n{'file':44} {'killed':>6} {'survived':>8} {'not counted':>11}")
    files, total = {}, Counter(outcomes.values())
    for mutation, outcome in outcomes.items():
        files.setdefault(mutation.file, Counter())[outcome] += 1
    for file, count in [*sorted(files.items()), ("all", total)]:
        print(f"{file:44} {count['killed']:6} {count['survived']:8} "
              f"{count['same code'] + count['not compiled']:11}")
    counted = total["killed"] + total["survived"]
    percent = 100.0 * total["killed"] / counted if counted else 100.0
    print(f"{percent:.1f} % of {counted} faults killed")
    return percent


def main(arguments=None):
    options = read_options(arguments)
    mutations = chosen_mutations(options)
    builds = [options.build, *filter(None, [options.then])]
    for folder in builds:
        if not (folder / "compile_commands.json").exists():
            print(f"mutate.py: no build in {folder} (see --help)", file=sys.stderr)
            return 2
    outcomes = {}
    with (options.output or options.build / "mutants.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)

        def report(mutation: Mutation, outcome, test, seconds):
            outcomes[mutation] = outcome
            rows.writerow([mutation.file, mutation.number + 1, mutation.kind, *key_of(mutation)[1:], outcome, test,
                           f"{seconds:.1f}"])
            file.flush()
            if outcome == "survived":
                show(mutation, outcome)

        try:
            for folder in builds:
                left = [each for each in mutations if outcomes.get(each, "survived") == "survived"]
                run_all(left, options, folder, report)
                percent = summarize(outcomes)
        except Trouble as trouble:
            print(f"mutate.py: {trouble}", file=sys.stderr)
            return 3
    return 0 if percent >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
