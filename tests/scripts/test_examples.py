# SPDX-License-Identifier: MIT
"""The Python scripts of examples/: they draw pictures of the files that the programs write."""

import os
import pathlib
import subprocess
import sys

import matplotlib.image
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
BINARIES = pathlib.Path(os.environ["ATTN_TEST_EXAMPLES"])


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def assert_drawn(path, least_colours):
    """The picture has a sensible size and enough colours, so it is not empty."""
    pixels = matplotlib.image.imread(path)
    height, width = pixels.shape[:2]
    assert width >= 400 and height >= 250
    colours = {tuple(pixel) for pixel in (pixels.reshape(-1, pixels.shape[2]) * 255).astype(int)}
    assert len(colours) >= least_colours, f"{path}: {len(colours)} colours"


def test_train_gpt(tmp_path):
    """The loss falls, and a run that stops and goes on ends with the bits of one that does not, on any number of threads."""
    shape = ["batch=4", "seq=24", "width=32", "layers=2", "dropout=0.1", "sample=0", EXAMPLES / "README.md"]
    program, files = BINARIES / "example_train_gpt", [tmp_path / name for name in ("whole", "parts")]
    output = run(program, "steps=40", f"save={files[0]}", *shape)
    losses = [float(line.split()[3]) for line in output.splitlines() if line.startswith("step")]
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.1
    run(program, "steps=13", "threads=1", f"save={files[1]}", *shape)
    run(program, "steps=40", "threads=2", f"save={files[1]}", *shape)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_train_translator():
    """With additive scores it learns, too; one that has not learnt fails."""
    shape = ["threads=1", "batch=48", "width=32", "layers=1", "clauses=1", "warmup=100", "dropout=0", "sentences=100",
             "exact=95"]
    output = run(BINARIES / "example_train_translator", "steps=700", "additive=1", *shape)
    assert "1 beam: " in output and "4 beams: " in output
    with pytest.raises(subprocess.CalledProcessError, match="exit status 1"):
        run(BINARIES / "example_train_translator", "steps=100", *shape)


def test_kernel_regression(tmp_path):
    assert "bandwidth 0." in run(BINARIES / "example_kernel_regression", tmp_path)
    run(sys.executable, EXAMPLES / "kernel_regression" / "plot.py", tmp_path)
    assert_drawn(tmp_path / "kernel_regression.png", 50)


def test_seq2seq_attention(tmp_path):
    folder = EXAMPLES / "seq2seq_attention"
    out = run(BINARIES / "example_seq2seq_attention", folder / "weights.safetensors", tmp_path, "reversal")
    assert "reversal -> lasrever\n" in out
    run(sys.executable, folder / "plot.py", tmp_path)
    assert_drawn(tmp_path / "attention.png", 50)
