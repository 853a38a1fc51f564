#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the attention weights that seq2seq_attention wrote: for each written letter, the weight of each letter of the word.

    seq2seq_attention weights.safetensors FOLDER && plot.py FOLDER      # writes FOLDER/attention.png
"""

import csv
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main(folder):
    with open(folder / "attention.csv", encoding="ascii", newline="") as file:
        header, *rows = csv.reader(file)
    word, written = header[1:], [row[0] for row in rows]
    figure, axes = plt.subplots(figsize=(5.2, 4.6), layout="constrained")
    image = axes.imshow([[float(cell) for cell in row[1:]] for row in rows], cmap="viridis", vmin=0, vmax=1)
    axes.set_xticks(range(len(word)), word)
    axes.set_yticks(range(len(written)), written)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set(xlabel="the word", ylabel="what is written")
    figure.colorbar(image, ax=axes, label="attention weight")
    figure.savefig(folder / "attention.png", dpi=110)
    print(folder / "attention.png")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))
