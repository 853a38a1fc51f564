#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws how train_gpt and train_translator learn: losses of train_gpt and of the same model in PyTorch, from the same
weights and batches, and losses of the translator with both kinds of scores.

    scripts/peers/setup.sh torch
    cmake --build build --target example_train_gpt example_train_translator
    .venv-peers/torch/bin/python examples/train_gpt/curves.py build/examples docs/*.md -o examples/train_gpt/learning.svg

Needs PyTorch and matplotlib. Takes some minutes on two cores.
"""

import argparse
import pathlib
import re
import subprocess
import tempfile

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from torch_gpt import SEED, Model, Text, Trainer, read_weights

SIZES = {"batch": 12, "seq": 64, "width": 128, "heads": 4, "layers": 4}
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#7F7F7F"


def run(*words):
    """The losses of its lines, and the lines behind them."""
    text = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout
    return [float(loss) for loss in re.findall(r"loss (\S+)", text)], text.splitlines()


def gpt_losses(options):
    """Those of train_gpt and of PyTorch, each step."""
    words = (options.programs / "example_train_gpt", *options.text, *(f"{name}={size}" for name, size in SIZES.items()),
             f"seed={SEED}", "sample=0", "every=1")
    with tempfile.TemporaryDirectory() as folder:
        begin = pathlib.Path(folder) / "begin.bin"
        run(*words, "steps=0", f"save={begin}")
        weights = read_weights(begin)
    ours = run(*words, f"steps={options.steps}")[0]
    text = Text(options)
    trainer = Trainer(Model(options, len(text.characters), weights), text, False)
    return ours, [float(trainer.step(text.batch(step)).detach()) for step in range(options.steps)]


def translator(options, additive):
    """Losses of each 20th step, and the share of sentences that are exact."""
    losses, lines = run(options.programs / "example_train_translator", f"additive={additive}", "every=20")
    return losses, re.search(r"1 beam: (\S+) %", "\n".join(lines))[1]


def draw(options):
    plt.rcParams.update({"svg.hashsalt": "learning", "svg.fonttype": "none", "axes.spines.top": False,
                         "axes.spines.right": False, "font.size": 9})
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained", width_ratios=(3, 2, 3))
    ours, theirs = gpt_losses(options)
    steps = range(1, len(ours) + 1)
    left.plot(steps, theirs, color=ORANGE, linewidth=3, alpha=0.5, label="PyTorch")
    left.plot(steps, ours, color=BLUE, linewidth=0.9, label="train_gpt")
    left.set(title="train_gpt: loss", xlabel="step")
    left.legend(frameon=False)
    middle.semilogy(steps, [max(abs(a - b), 1e-7) for a, b in zip(ours, theirs, strict=True)], color=GREY, linewidth=0.7)
    middle.set(title="distance of the two losses", xlabel="step")
    for additive, colour, name in ((0, BLUE, "scaled dot product"), (1, ORANGE, "additive")):
        losses, exact = translator(options, additive)
        right.plot([20 * (n + 1) for n in range(len(losses))], losses, color=colour, linewidth=1,
                   label=f"{name} scores: {exact} % exact")
    right.set(title="train_translator: loss with label smoothing 0.1", xlabel="step")
    right.legend(frameon=False)
    figure.savefig(options.output, metadata={"Date": None})
    print(options.output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path, help="the folder of the built examples")
    parser.add_argument("text", type=pathlib.Path, nargs="+", help="files that train_gpt learns")
    parser.add_argument("--steps", type=int, default=500, help="of train_gpt, default %(default)s")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("learning.svg"))
    parser.set_defaults(**SIZES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # both learn the text of this moment
        copy = pathlib.Path(folder) / "text"
        copy.write_bytes(b"".join(path.read_bytes() for path in options.text))
        options.text = [copy]
        draw(options)


if __name__ == "__main__":
    main()
