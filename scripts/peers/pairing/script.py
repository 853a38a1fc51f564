# SPDX-License-Identifier: MIT
"""The common part of the peers' scripts: command line, conditions, cases, tables, files.

A script makes a Script and calls main(), after prepare_environment() of machine.py and before any thread starts.
"""

import argparse
import difflib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from libattn.bench import compare
from libattn.bench.comparing import set_verdicts
from libattn.bench.files import COLUMNS, SAMPLE_COLUMNS, write_csv
from libattn.bench.harness import MARGIN, open_peak
from libattn.bench.rounds import SPIN_PAUSE_S

from . import mkl
from .cases import AXES, CaseError, build_cases, heading
from .implementation import Usual
from .library import Library, LoadError
from .machine import openmp_runtimes, settings_of_environment
from .options import Help, add_case_options
from .ours import LibraryKernel
from .peers import Peer
from .results import OURS, leads, print_case, print_verdicts

OK, FAILED, USAGE, CANNOT_WRITE, NOTHING_RAN, INTERRUPTED = 0, 1, 2, 5, 77, 130


@dataclass(frozen=True)
class Script:
    """The part of a script that one peer adds."""
    peer: Peer
    doc: str                               # the docstring of the script; the help begins with its first paragraph
    implementations: object                # (options, library) -> [implementation], named as in peer.kernels
    conditions: object                     # (options) -> lines above the tables
    start: object = lambda options: None   # before the first case: threads
    own_threads: bool = False              # whether the peer has a thread pool of its own, not OpenMP's
    has_mkl: bool = False
    add_options: object = lambda add: None
    libattn: Path = Path("build/libattn.so")


def main(script, argv=None):
    options = read_options(script, argv)
    try:
        cases = build_cases(options.cases, options.axes, options.threads, options.seed)
        library = Library(options.libattn)
        check_kernels(library, options.kernels)
        bind_to_cpus(options.cpus)
    except (CaseError, LoadError, OSError) as error:
        return complain(error, USAGE)
    if options.mkl == "intel":
        try:
            mkl.restart_preloaded()
        except mkl.MklError as error:
            return complain(error, USAGE)
    for path in filter(None, (options.csv, options.samples)):
        if not os.access(path.parent, os.W_OK) or path.is_dir():
            return complain(f"{path}: cannot be written; name a file in a folder that exists", CANNOT_WRITE)
    script.start(options)
    pause_s = pause(script, options)
    print_conditions(script, library, options, pause_s)
    entries = [LibraryKernel(library, OURS, None), *(LibraryKernel(library, name, name) for name in options.kernels),
               *map(Usual, script.implementations(options, library))]
    run = Run(script, cases)
    run.announce()
    found = compare({entry.name: entry for entry in entries}, cases, baseline=OURS, rounds=options.rounds,
                    sample_ms=options.sample_ms, threads=options.threads, seed=options.seed, pause_s=pause_s, each=run.add)
    if found.interrupted:
        print("interrupted: what was finished is kept", file=sys.stderr)
    set_verdicts(run.leads)
    print_verdicts(run.leads)
    return finish(options, found)


class Run:
    """Prints each case, and keeps the comparisons with peers."""

    def __init__(self, script, cases):
        self.cases, self.done, self.leads, self.peers = cases, 0, [], set(script.peer.kernels)

    def announce(self):
        if self.done < len(self.cases):
            print(f"[{self.done + 1}/{len(self.cases)}] {heading(self.cases[self.done])}", file=sys.stderr)

    def add(self, found, rows):
        self.leads += leads(rows, self.peers, found.placing[rows[0].case])
        print_case(rows)
        sys.stdout.flush()
        ours, control = rows[0], rows[-1].ratio
        if ours.times_ns:
            ours.warnings.append(f"chose {ours.note.removeprefix('runs ')}")
        if control and abs(1 / control.median - 1) > MARGIN:
            ours.warnings.append(f"A/A control: differs from itself by {100 * (1 / control.median - 1):+.1f} %")
        self.done += 1
        self.announce()


def finish(options, found):
    """Writes the files. Returns the exit code."""
    rows = found.columns()
    try:
        if options.csv:
            write_csv(options.csv, COLUMNS, rows)
        if options.samples:
            write_csv(options.samples, SAMPLE_COLUMNS, found.sample_rows(control=False))
    except OSError as error:
        return complain(f"{error.filename}: cannot be written ({error.strerror})", CANNOT_WRITE)
    statuses = {row["status"] for row in rows}
    if found.interrupted:
        return INTERRUPTED
    if statuses & {"FAIL", "ERROR"}:
        return FAILED
    return OK if "PASS" in statuses else NOTHING_RAN


def pause(script, options):
    """Seconds of pause before a sample: 0 with one thread, or if both sides share one OpenMP runtime."""
    apart = script.own_threads or len(openmp_runtimes()) > 1
    return SPIN_PAUSE_S if options.threads > 1 and apart else 0.0


def print_conditions(script, library, options, pause_s):
    runtimes = openmp_runtimes()
    for line in script.conditions(options):
        print(line)
    print(f"libattn {library.version}  {options.libattn}  tiers {library.tiers}")
    print(f"threads {options.threads} of {len(os.sched_getaffinity(0))} CPUs  rounds {options.rounds}  samples of "
          f"{options.sample_ms:g} ms or more  seed {options.seed}")
    print(f"OpenMP: {', '.join(runtimes) or 'none'}")
    if pause_s:
        print(f"two thread pools: {pause_s * 1e3:g} ms of rest before each sample and each peak loop")
    for name, value in settings_of_environment().items():
        print(f"environment: {name}={value}")
    with open_peak("f32", options.threads) as peak:
        print(f"% of peak: of {peak.name}, {peak.flops() * 1e-9:.0f} GFLOP/s, timed beside every sample" if peak else
              "% of peak: none (no loop for this CPU)")


def check_kernels(library, names):
    known = library.kernels()
    if set(names) - set(known):
        library.load_plugins()
        known = library.kernels()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0)[0]
            raise LoadError(f"no kernel {name!r}; did you mean {near!r}? There are: {', '.join(known)}")


def bind_to_cpus(cpus):
    """Must be called before any thread starts, because threads inherit the binding."""
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            usable = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            raise OSError(f"--cpus {','.join(map(str, cpus))}: {error.strerror}; of {usable} are right") from None


# ---- Command line ------------------------------------------------------------------------------------------------------

def read_options(script, argv):
    parser = argparse.ArgumentParser(description=script.doc.split("\n\n", maxsplit=1)[0], formatter_class=Help,
                                     epilog=f"Axes, as attnbench's: {', '.join(AXES)}.")
    add = parser.add_argument
    add_case_options(add)
    add("-k", "--kernel", dest="kernels", action="append", default=[], metavar="NAME",
        help="repeatable: this kernel of libattn as well (default: its automatic choice only)")
    add("--libattn", type=Path, default=script.libattn, metavar="PATH",
        help=f"the shared library, (default {script.libattn}: cmake --build build --target "
             "attn_shared attn_python attnbench_shared)")
    if script.has_mkl:
        mkl.add_option(add, script.peer.title)
    add("--csv", type=Path, metavar="FILE", help="write the rows as attnbench run --csv does")
    add("--samples", type=Path, metavar="FILE", help="write every sample as attnbench run --samples does")
    script.add_options(add)
    parser.set_defaults(mkl="as-is")
    options = parser.parse_args(argv)
    if not options.cases and not options.axes:
        options.cases = ["quick"]
    return options


def complain(message, code):
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    return code
