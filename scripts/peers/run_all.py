#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs every installed peer on the same cases, beside libattn, and puts all results into one table and one figure.

    scripts/peers/setup.sh --all                    environments of their own, once
    cmake --build build --target attn_shared attn_python attnbench_shared
    scripts/peers/run_all.py -o results/local/peers          # nine cases in float32 and bfloat16, one thread: ten minutes
    scripts/peers/run_all.py -o results/local/peers-2 --threads 2 -a heads=8
    scripts/peers/run_all.py --quick                         # does it work?
    scripts/peers/run_all.py --from results/local/peers      # table and figure again

Writes NAME.csv, NAME-samples.csv and NAME.txt for every peer, table.md and peers-*.png, *.svg. A peer that is not installed
is a row with the command that installs it. Method and exit codes: scripts/peers/README.md.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for the figures

from pairing import combine
from pairing.cases import CaseError, build_cases
from pairing.library import LoadError
from pairing.options import Help, add_case_options
from pairing.peers import FOLDER, PEERS, ROOT

from pairing.results import OURS

from libattn.bench.comparing import Row
from libattn.bench.files import COLUMNS, write_csv

OK, FAILED, USAGE, CANNOT_WRITE, NOTHING_RAN, INTERRUPTED = 0, 1, 2, 5, 77, 130
USUAL_AXES = ["dtype=f32,bf16"]
CONDITIONS = "conditions.txt"


def main(argv=None):
    options = read_options(argv)
    codes = []
    try:
        if not options.again:
            cases = build_cases(options.cases, options.axes, options.threads)
            options.out.mkdir(parents=True, exist_ok=True)
            write_conditions(options.out / CONDITIONS)
            codes = [run_peer(PEERS[name], cases, options) for name in options.names]
        combine_all(options.again or options.out)
    except (CaseError, LoadError) as error:
        return complain(error, USAGE)
    except OSError as error:
        return complain(f"{error.filename or options.out}: {error.strerror}", CANNOT_WRITE)
    except KeyboardInterrupt:
        return INTERRUPTED
    for code in (INTERRUPTED, CANNOT_WRITE, USAGE, FAILED):
        if code in codes:
            return code
    return NOTHING_RAN if codes and set(codes) == {NOTHING_RAN} else OK


def run_peer(peer, cases, options):
    """Runs the peer's script in its environment and copies its output to NAME.txt. Returns the exit code."""
    interpreter = peer.interpreter()
    if peer.name == "ggml" and not options.ggml_lib:
        interpreter = None
    if not interpreter:
        print(f"{peer.title}: not installed; {peer.install}", file=sys.stderr)
        write_absent(peer, cases, options.out / f"{peer.name}.csv")
        return NOTHING_RAN
    own = {"torch": ["--mkl", options.mkl], "ggml": ["--ggml-lib", options.ggml_lib]}.get(peer.name, [])
    libattn = options.libattn_onednn if peer.name == "onednn" else options.libattn
    command = list(map(str, (interpreter, FOLDER / peer.script, *passed_on(options), *own,
                             *(["--libattn", libattn] if libattn else []), "--csv", options.out / f"{peer.name}.csv",
                             "--samples", options.out / f"{peer.name}-samples.csv")))
    print(f"\n==== {peer.title} ====", flush=True)
    begun = time.monotonic()
    with open(options.out / f"{peer.name}.txt", "w", encoding="utf-8") as log, \
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            sys.stdout.write(line)
            log.write(line)
    print(f"{peer.title}: {time.monotonic() - begun:.0f} s, exit code {child.returncode}", file=sys.stderr)
    return child.returncode


def passed_on(options):
    """The options for the script of every peer."""
    cpus = options.cpus or (sorted(os.sched_getaffinity(0))[:1] if options.threads == 1 else [])
    return [*(word for name in options.cases for word in ("--cases", name)),
            *(word for text in options.axes for word in ("-a", text)),
            *(["--cpus", ",".join(map(str, cpus))] if cpus else []),
            "--threads", str(options.threads), "--rounds", str(options.rounds), "--sample-ms", str(options.sample_ms),
            "--seed", str(options.seed)]


def write_absent(peer, cases, path):
    """A SKIP row for each of its kernels on each case."""
    reason = f"{peer.title} is not installed: {peer.install}"
    rows = [Row(case.id, name, "SKIP", reason, case).columns(OURS) | {"threads": case.threads}
            for case in cases for name in peer.kernels]
    write_csv(path, COLUMNS, rows)


# ---- Table and figure --------------------------------------------------------------------------------------------------

def combine_all(folder):
    """table.md and figures from the CSV files that lie in `folder`."""
    paths = [folder / f"{name}.csv" for name in PEERS if (folder / f"{name}.csv").exists()]
    if not paths:
        raise FileNotFoundError(2, "holds no file such as torch.csv; the folder of an earlier run is right", str(folder))
    grids = combine.make_grids(combine.read_rows(paths))
    conditions = (folder / CONDITIONS).read_text(encoding="utf-8").splitlines() if (folder / CONDITIONS).exists() else []
    (folder / "table.md").write_text(combine.markdown(grids, conditions), encoding="utf-8")
    print(f"table: {folder / 'table.md'}")
    try:
        from plotting import peers, style
    except ImportError as error:
        print(f"no figure: {error}; python3 -m pip install -r scripts/requirements.txt", file=sys.stderr)
        return
    style.apply()
    for grid in grids:
        stem = folder / f"peers-{grid.dtype}-{grid.threads}"
        peers.peers_page(grid, [combine.label(grid, name).strip("*").replace("**", "") for name in grid.names],
                         conditions).save(stem)
        print(f"figure: {stem}.png, {stem}.svg")


def write_conditions(file):
    """Lines above table and figure, for --from too."""
    file.write_text(f"CPU: {cpu_name()}\nMeasured {time.strftime('%Y-%m-%d')}, commit {commit()}\n", encoding="utf-8")


def cpu_name():
    """The name that Linux gives, with family and model, because a virtual machine may have a vague name."""
    facts = {}
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            name, colon, value = line.partition(":")
            if colon:
                facts.setdefault(name.strip(), value.strip())
    family = f" (family {facts['cpu family']}, model {facts['model']})" if "cpu family" in facts else ""
    return facts.get("model name", "unknown") + family


def commit():
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True,
                          check=False)
    return done.stdout.strip() or "unknown"


# ---- Command line ------------------------------------------------------------------------------------------------------

def read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0], formatter_class=Help,
                                     epilog=f"Peers: {', '.join(PEERS)}.")
    add = parser.add_argument
    add("names", nargs="*", metavar="PEER", help="these only (default: all)")
    add("-o", dest="out", type=Path, default=ROOT / "results/local/peers", metavar="DIR",
        help="where the files go (default results/local/peers)")
    add("--from", dest="again", type=Path, metavar="DIR", help="measure nothing; table and figures of an earlier run")
    add("--quick", action="store_true", help="small cases and short samples, to see that everything works")
    add_case_options(add)
    add("--mkl", choices=("auto", "as-is", "intel"), default="auto",
        help="of PyTorch: intel gives its MKL the fast kernels on another maker's CPU (default auto: does so there)")
    add("--ggml-lib", type=Path, metavar="PATH", help="libggml.so of your build of ggml (default: none)")
    add("--libattn", type=Path, metavar="PATH", help="the shared library (default build/libattn.so)")
    add("--libattn-onednn", type=Path, metavar="PATH",
        help="the one whose oneDNN kernels take part (default: that of .venv-peers/onednn/build, else build/libattn.so)")
    options = parser.parse_args(argv)
    for name in options.names:
        if name not in PEERS:
            parser.error(f"no peer {name!r}; there are: {', '.join(PEERS)}")
    return with_defaults(options)


def with_defaults(options):
    options.names = options.names or list(PEERS)
    if not options.cases and not options.axes:
        options.axes = USUAL_AXES
    options.cases = options.cases or ["quick" if options.quick else "limits"]
    if options.quick:
        options.sample_ms = min(options.sample_ms, 1.0)
    if options.mkl == "auto":
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            options.mkl = "as-is" if "GenuineIntel" in file.read() else "intel"
    return options


def complain(message, code):
    print(f"run_all.py: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
