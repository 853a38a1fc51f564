#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares train_gpt with the same model in PyTorch: losses from the same weights and batches, and tokens per second.

    scripts/peers/setup.sh torch
    cmake --build build --target example_train_gpt attn_shared attn_python attnbench_shared
    .venv-peers/torch/bin/python examples/train_gpt/compare.py build/examples/example_train_gpt docs/*.md --threads 2

Our program and PyTorch, eager and compiled, take steps in turn, each once per round; only one runs at a time. A step is the
batch forwards and backwards, clipping, and AdamW (PyTorch's fused one). Exit code: 0; 1 a loss of the first 20 steps differs
by more than 1e-4; 77 without PyTorch.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
sys.path.append(str(SCRIPTS / "peers"))

from pairing import machine  # noqa: E402

machine.prepare_environment()  # before NumPy starts its threads
machine.need_numpy()
from pairing.options import LEAST_ROUNDS, at_least  # noqa: E402

try:
    import torch
    from torch_gpt import SEED, Model, Text, Trainer, read_weights
except ImportError:
    print("skipped: no PyTorch (scripts/peers/setup.sh torch)")
    sys.exit(77)

from libattn.bench.harness import paired_ratio, summarise  # noqa: E402
from libattn.bench.rounds import SPIN_PAUSE_S, schedule  # noqa: E402

LIMIT, CHECKED, SAMPLED = 1e-4, 20, 12
SIZES = {"batch": 12, "seq": 64, "width": 128, "heads": 4, "layers": 4}


# ---- Our side ----------------------------------------------------------------------------------------------------------

class Program:
    def __init__(self, options):
        self.words = [str(word) for word in (options.program, *options.text)]
        self.words += [f"{name}={getattr(options, name)}" for name in (*SIZES, "threads")]

    def run(self, steps, every, *more):
        """[(loss, tokens per second)] of every so many steps"""
        done = subprocess.run([*self.words, f"steps={steps}", f"every={every}", f"seed={SEED}", "sample=0", *more],
                              capture_output=True, text=True, check=True)
        return [(float(loss), float(rate)) for loss, rate in re.findall(r"loss (\S+) .* (\d+) tokens/s", done.stdout)]

    def rate(self):
        """The rate of its second half, when its memory is there."""
        return self.run(2 * SAMPLED, SAMPLED)[1][1]

    def weights(self):
        """Those that it begins with."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "begin.bin"
            self.run(0, 1, f"save={path}")
            return read_weights(path)


# ---- PyTorch -----------------------------------------------------------------------------------------------------------

class TimedTrainer(Trainer):
    def rate(self):
        batches = [self.text.batch(self.done + i) for i in range(1 + SAMPLED)]
        self.step(batches[0])
        begin = time.perf_counter()
        for batch in batches[1:]:
            self.step(batch)
        return SAMPLED * batch[0].numel() / (time.perf_counter() - begin)


# ---- In turn -----------------------------------------------------------------------------------------------------------

def measure(sides, rounds, pause_s):
    """name -> tokens per second of each round"""
    rates = {name: [] for name in sides}
    for *_, name in schedule(list(sides), rounds, 1):
        time.sleep(pause_s)  # until the idle workers of the one before sleep
        rates[name].append(sides[name].rate())
    return rates


def print_rates(rates):
    ours = rates["train_gpt"]
    print(f"\n{'':<20} tokens/s [95 % interval]        train_gpt over it [95 % interval]")
    for name, values in rates.items():
        found = summarise(values)
        line = f"{name:<20} {found.median:8.0f} [{found.low:.0f}, {found.high:.0f}]"
        if values is not ours:
            ratio = paired_ratio(ours, values)
            line = f"{line:<53}{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        print(line)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("program", type=pathlib.Path, help="the built example")
    add("text", type=pathlib.Path, nargs="+", help="files that it learns")
    for name, value in (*SIZES.items(), ("threads", 1)):
        add(f"--{name}", type=at_least(1), default=value, help="default %(default)s")
    add("--rounds", type=at_least(11), default=LEAST_ROUNDS, metavar="N", help="default %(default)s, least 11")
    return parser.parse_args()


def main():
    options = read_options()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:options.threads])
    torch.set_num_threads(options.threads)
    program, text = Program(options), Text(options)
    weights = program.weights()

    def start(compiled):
        return TimedTrainer(Model(options, len(text.characters), weights), text, compiled)

    sides = {"train_gpt": program, "PyTorch eager": start(False), "PyTorch compiled": start(True)}
    theirs = [[float(sides[name].step(text.batch(step)).detach()) for step in range(CHECKED)]
              for name in sides if name != "train_gpt"]
    ours = [loss for loss, _ in program.run(CHECKED, 1)]
    worst = max(abs(a - b) for losses in theirs for a, b in zip(ours, losses, strict=True))
    print(f"{options.threads} thread(s), PyTorch {torch.__version__.split('+')[0]}, {len(weights)} parameters, batch "
          f"{options.batch} x {options.seq} x {options.width}, {options.layers} layers of {options.heads} heads\n"
          f"largest difference of a loss in {CHECKED} steps, from {ours[0]:.4f} to {ours[-1]:.4f}: {worst:.1e} "
          f"(limit {LIMIT:.0e})")
    print_rates(measure(sides, options.rounds, SPIN_PAUSE_S if options.threads > 1 else 0.0))
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
