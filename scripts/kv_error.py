#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How far attention goes from float32's where keys and values are kept in fewer bytes: a table, a CSV and a figure.

    scripts/capture_qkv.py -o capture
    scripts/kv_error.py capture -o kv-error

Keys and values of the capture go into a cache of each type by libattn.kv_append; libattn.sdpa reads it. The loss is the
distance of its outputs from those of the float32 values (in float64, from the capture), relative to their size: the root of
the sum of squares over all tokens, heads and layers; beside it that of the worst head of a layer. Bytes are those of a token
in one KV head: its key and its value, with factors that are its own.

Needs the package libattn, NumPy and ml_dtypes; the figure needs matplotlib.
"""

import argparse
import csv
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Form:
    """How a cache holds keys and values. dtype: of ml_dtypes or NumPy; kv_format: blocks; per: what shares a factor;
    hadamard: keys and queries are multiplied by an orthogonal matrix before."""

    name: str
    dtype: str = "uint8"
    kv_format: str | None = None
    per: str | None = None
    hadamard: bool = False


FORMS = (Form("float32", "float32"), Form("float16", "float16"), Form("bfloat16", "bfloat16"),
         Form("int8, a factor a tensor", "int8", per="tensor"), Form("int8, a factor a head", "int8", per="head"),
         Form("int8, a factor a token", "int8", per="token"), Form("e4m3", "float8_e4m3fn"), Form("e5m2", "float8_e5m2"),
         Form("q8_0", kv_format="q8_0"), Form("q8_0, Hadamard", kv_format="q8_0", hadamard=True),
         Form("q4_0", kv_format="q4_0"), Form("q4_0, Hadamard", kv_format="q4_0", hadamard=True))
INT8_MOST = 127


def cache_of(rows, form):
    """(a cache of the form for rows like these [batch, heads, tokens, dim], bytes of a row)."""
    import libattn
    import ml_dtypes  # registers its types with NumPy

    if form.kv_format:
        cache = np.zeros_like(getattr(libattn, form.kv_format)(rows))
    else:
        cache = np.zeros(rows.shape, getattr(ml_dtypes, form.dtype, form.dtype))
    return cache, cache[0, 0, 0].nbytes + (np.float32().nbytes if form.per == "token" else 0)


def factors_of(rows, form):
    """The factors of these rows for kv_append."""
    if form.per == "token":
        return np.zeros(rows.shape[:3], np.float32)
    most = np.abs(rows).max() if form.per == "tensor" else np.abs(rows).max((0, 2, 3), keepdims=True)[..., 0]
    return np.asarray(most / INT8_MOST, np.float32).reshape(1, -1, 1)


def attend(layer, kv_len, form):
    """(o over a cache of the form, bytes of a token). layer: q, k, v [batch, heads, tokens, dim]."""
    import libattn

    caches, sizes = zip(*(cache_of(layer[x], form) for x in "kv"))
    factors = {f"{x}_scale": factors_of(layer[x], form) for x in "kv"} if form.per else {}
    written = {f"{x}_cache" if form.per == "token" else x: array for x, array in factors.items()}
    q = libattn.kv_append(layer["k"], layer["v"], *caches, kv_format=form.kv_format, q=layer["q"], hadamard=form.hadamard,
                          **written)
    return libattn.sdpa(q, *caches, kv_len=kv_len, kv_format=form.kv_format, **factors), sum(sizes)


def read_capture(folder):
    """[{q, k, v, o} of each layer], kv_len."""
    kv_len = np.load(folder / "kv_len.npy")
    files = sorted(folder.glob("layer*_q.npy"), key=lambda path: int(path.name[5:-6]))
    if not files:
        raise SystemExit(f"kv_error.py: {folder} has no layer*_q.npy; scripts/capture_qkv.py -o {folder} makes them")
    return [{x: np.load(path.with_name(path.name[:-5] + f"{x}.npy")) for x in "qkvo"} for path in files], kv_len


def squares(layer, kv_len, out):
    """Sums over tokens that are no padding, by head: (squared errors, squared outputs)."""
    real = (np.arange(out.shape[2]) < kv_len[:, None])[:, None, :, None]
    return (((out - layer["o"]) ** 2) * real).sum((0, 2, 3)), ((layer["o"] ** 2) * real).sum((0, 2, 3))


def measure(layers, kv_len):
    """A row of numbers for each form."""
    rows = []
    for form in FORMS:
        errors, sizes, of_layers = [], [], []
        for layer in layers:
            out, of_token = attend(layer, kv_len, form)
            error, size = squares(layer, kv_len, out)
            errors.append(error)
            sizes.append(size)
            of_layers.append(math.sqrt(error.sum() / size.sum()))
        heads = np.sqrt(np.array(errors) / np.array(sizes))
        rows.append({"form": form.name, "bytes": of_token, "loss": math.sqrt(np.sum(errors) / np.sum(sizes)),
                     "worst_head": heads.max(), "layers": of_layers})
    return rows


def table(rows):
    lines = ["| keys and values | bytes of a token | of float32's | loss | worst head |", "|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['form']} | {row['bytes']} | {row['bytes'] / rows[0]['bytes']:.2f} | {row['loss']:.2g} | "
                     f"{row['worst_head']:.2g} |")
    return "\n".join(lines)


def write_csv(rows, path):
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["form", "bytes", "loss", "worst_head", *(f"loss_layer{n}" for n in range(len(rows[0]["layers"])))])
        for row in rows:
            numbers = [row["loss"], row["worst_head"], *row["layers"]]
            out.writerow([row["form"], row["bytes"], *(f"{x:.4e}" for x in numbers)])


def draw(rows, words, stem):
    """Writes stem.svg and stem.png. words: what was captured."""
    from matplotlib.lines import Line2D
    from plotting import style, svg
    from plotting.page import Frame, Page

    style.apply()
    height, colour = 3.6, "#0072B2"
    lines = [words, "Loss: distance from the output over float32 values, relative to it (root of the sum of squares)"]
    legend = [(Line2D([], [], color=colour, marker="o", ls="none", ms=6), "all layers"),
              (Line2D([], [], color=colour, marker="o", ls="none", ms=3.5, alpha=0.4), "one layer")]
    page = Page("Error of attention against bytes of keys and values", lines, [""], 1,
                Frame(width=6.2, height=height, left=0.7, right=1.7), [legend], [])
    axes = page.axes[0]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({row["bytes"] for row in rows})
    axes.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
    every = [x for row in rows for x in [row["loss"], *row["layers"]]]
    low, high = math.log10(min(every)) - 0.3, math.log10(max(every)) + 0.3
    axes.set_ylim(10**low, 10**high)
    inches = [height * (math.log10(row["loss"]) - low) / (high - low) for row in rows]
    for row in rows:
        marks, = axes.plot([row["bytes"]] * len(row["layers"]), row["layers"], color=colour, marker="o", ls="none", ms=3.5,
                           alpha=0.4, mew=0)
        svg.tip(marks, *(f"{row['form']}, layer {n}: {loss:.2g}" for n, loss in enumerate(row["layers"])))
        mark, = axes.plot([row["bytes"]], [row["loss"]], color=colour, marker="o", ls="none", ms=6, mec="white", mew=0.5)
        svg.tip(mark, f"{row['form']}: {row['loss']:.2g} with {row['bytes']} bytes")
    for row, place in zip(rows, style.spread(inches, 0.15, 0.05, height)):
        axes.annotate(f"{row['form']}  {row['loss']:.1g}", (row["bytes"], row["loss"]), (1.03, place / height),
                      textcoords="axes fraction", va="center", size=style.LABEL,
                      arrowprops={"arrowstyle": "-", "color": style.FAINT, "lw": 0.4, "shrinkA": 0, "shrinkB": 4})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xticks([], minor=True)
    decades = [10.0**n for n in range(math.ceil(low), math.floor(high) + 1)]
    axes.set_yticks(decades, [f"{x:g}" for x in decades])
    axes.set_yticks([], minor=True)
    axes.grid(color=style.GRID, lw=0.6)
    axes.set_xlabel("bytes of a token's key and value in one head")
    axes.set_ylabel("loss")
    page.save(stem)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", type=Path, help="a folder that scripts/capture_qkv.py wrote")
    parser.add_argument("-o", "--output", default="kv-error", metavar="STEM",
                        help="writes STEM.csv, STEM.svg and STEM.png (default: %(default)s)")
    options = parser.parse_args(argv)
    layers, kv_len = read_capture(options.capture)
    batch, heads, _, dim = layers[0]["q"].shape
    rows = measure(layers, kv_len)
    print(table(rows))
    write_csv(rows, f"{options.output}.csv")
    draw(rows, f"{len(layers)} layers, {heads} heads of {dim}, {batch} passages of {', '.join(map(str, kv_len))} tokens",
         options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
