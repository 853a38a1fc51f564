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
import numpy as np  # noqa: E402
from pairing.options import LEAST_ROUNDS, at_least  # noqa: E402

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("skipped: no PyTorch (scripts/peers/setup.sh torch)")
    sys.exit(77)

from libattn.bench.harness import paired_ratio, summarise  # noqa: E402
from libattn.bench.rounds import SPIN_PAUSE_S, schedule  # noqa: E402

LIMIT, CHECKED, SAMPLED, SEED = 1e-4, 20, 12, 1
WARMUP, RATE = 20, 1e-3  # those of train_gpt.c
SIZES = {"batch": 12, "seq": 64, "width": 128, "heads": 4, "layers": 4}
MASK = 2 ** 64 - 1


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
            count = int(np.fromfile(path, np.int64, 1)[0])
            return np.fromfile(path, np.float32, count, offset=16)


# ---- PyTorch -----------------------------------------------------------------------------------------------------------

class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.projection = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(made.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(torch.nn.Module):
    """With the parameters in the order of train_gpt.c, from one array."""

    def __init__(self, options, classes, weights):
        super().__init__()
        self.table = torch.nn.Embedding(classes, options.width)
        self.positions = torch.nn.Parameter(torch.empty(options.seq, options.width))
        self.blocks = torch.nn.ModuleList(Block(options.width, options.heads) for _ in range(options.layers))
        self.norm = torch.nn.LayerNorm(options.width)
        with torch.no_grad():
            for parameter, transposed in self.parameters_in_order():
                values, weights = weights[:parameter.numel()], weights[parameter.numel():]
                shape = parameter.shape[::-1] if transposed else parameter.shape
                values = torch.from_numpy(values).reshape(shape)
                parameter.copy_(values.T if transposed else values)
        assert not len(weights)

    def parameters_in_order(self):
        """(parameter, whether it lies transposed there)"""
        yield from ((self.table.weight, False), (self.positions, False))
        for block in self.blocks:
            for norm in (block.norm1, block.norm2):
                yield from ((norm.weight, False), (norm.bias, False))
            for linear in (block.qkv, block.projection, block.up, block.down):
                yield from ((linear.weight, True), (linear.bias, False))
        yield from ((self.norm.weight, False), (self.norm.bias, False))

    def forward(self, tokens, targets):
        x = self.table(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.norm(x), self.table.weight).flatten(0, 1), targets.flatten())


class Text:
    """The batches of train_gpt.c."""

    def __init__(self, options):
        text = np.frombuffer(b"".join(path.read_bytes() for path in options.text), np.uint8)
        self.characters, tokens = np.unique(text, return_inverse=True)
        self.tokens, self.options = torch.from_numpy(tokens.astype(np.int64)), options

    def batch(self, step):
        firsts = [draw(SEED, step * self.options.batch + b) % (len(self.tokens) - self.options.seq)
                  for b in range(self.options.batch)]
        return tuple(torch.stack([self.tokens[first + shift:][:self.options.seq] for first in firsts]) for shift in (0, 1))


def draw(seed, place):
    z = (seed * 0xBF58476D1CE4E5B9 + place * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Trainer:
    def __init__(self, model, text, compiled):
        self.model, self.text, self.done = model, text, 0
        self.loss = torch.compile(model) if compiled else model
        self.optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)

    def step(self, batch):
        self.done += 1
        for group in self.optimiser.param_groups:
            group["lr"] = RATE * min(self.done / WARMUP, (WARMUP / self.done) ** 0.5)
        self.optimiser.zero_grad()
        loss = self.loss(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1)
        self.optimiser.step()
        return loss

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
        return Trainer(Model(options, len(text.characters), weights), text, compiled)

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
