# SPDX-License-Identifier: MIT
"""scripts/kv_error.py on captured tensors: its losses are those of NumPy, and its table, CSV and figure say them."""

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import capture_qkv
import kv_error
import libattn
import ml_dtypes
import numpy as np

CAPTURE = Path(__file__).resolve().parents[1] / "data" / "minilm"


@pytest.fixture(scope="module")
def rows():
    return {row["form"]: row for row in kv_error.measure(*kv_error.read_capture(CAPTURE))}


def rounded(x, name):
    """x as a cache holds it, in NumPy."""
    if name == "q4_0, Hadamard":
        h = np.array([[(-1) ** (i & j).bit_count() for i in range(32)] for j in range(32)]) / np.sqrt(32)
        return rounded((x @ h).astype(np.float32), "q4_0") @ h
    if name == "q4_0":
        blocks = libattn.q4_0(x)[..., 0, :]
        n = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], -1).astype(np.float64) - 8
        return n * np.ascontiguousarray(blocks[..., :2]).view(np.float16)
    if name.startswith("int8"):
        axes = {"tensor": None, "head": (0, 2, 3), "token": 3}[name.split()[-1]]
        factor = np.abs(x).max(axes, keepdims=True) / 127
        return np.rint(x / factor) * factor
    return x.astype(getattr(ml_dtypes, {"e4m3": "float8_e4m3fn", "bfloat16": "bfloat16"}[name])).astype(np.float64)


@pytest.mark.parametrize("name", ["bfloat16", "int8, a factor a tensor", "int8, a factor a head", "int8, a factor a token",
                                  "e4m3", "q4_0", "q4_0, Hadamard"])
def test_losses_are_those_of_numpy(rows, name):
    layers, kv_len = kv_error.read_capture(CAPTURE)
    errors, sizes = [], []
    for layer in layers:
        values = rounded(layer["v"], name.split(", Hadamard")[0])  # only keys are mixed
        out, _ = capture_qkv.attention(layer["q"], rounded(layer["k"], name), values, kv_len)
        for b, length in enumerate(kv_len):
            errors.append((out[b, :, :length] - layer["o"][b, :, :length]) ** 2)
            sizes.append(layer["o"][b, :, :length] ** 2)
    right = np.sqrt(sum(e.sum() for e in errors) / sum(s.sum() for s in sizes))
    assert rows[name]["loss"] == pytest.approx(right, rel=0.02)


def test_fewer_bytes_lose_more(rows):
    assert rows["float32"]["loss"] < 1e-6
    order = ["float32", "float16", "bfloat16", "q8_0", "int8, a factor a head", "e4m3", "e5m2", "q4_0"]
    losses = [rows[name]["loss"] for name in order]
    assert losses == sorted(losses) and all(row["worst_head"] > row["loss"] for row in rows.values())
    assert {name: row["bytes"] for name, row in rows.items()} == {
        "float32": 256, "float16": 128, "bfloat16": 128, "int8, a factor a tensor": 64, "int8, a factor a head": 64,
        "int8, a factor a token": 72, "e4m3": 64, "e5m2": 64, "q8_0": 68, "q8_0, Hadamard": 68, "q4_0": 36,
        "q4_0, Hadamard": 36}


def test_table_csv_and_figure(rows, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert kv_error.main([str(CAPTURE), "-o", str(tmp_path / "out")]) == 0
    assert f"| q4_0 | 36 | 0.14 | {rows['q4_0']['loss']:.2g} |" in capsys.readouterr().out
    with open(tmp_path / "out.csv", encoding="utf-8") as file:
        written = {row["form"]: row for row in csv.DictReader(file)}
    assert list(written) == list(rows) and float(written["e5m2"]["loss"]) == pytest.approx(rows["e5m2"]["loss"], rel=1e-3)
    text = (tmp_path / "out.svg").read_text(encoding="utf-8")
    assert text.count(">q8_0") == 8 and "2 layers, 3 heads of 32, 2 passages of 128, 53 tokens" in text
    np.save(tmp_path / "kv_len.npy", np.zeros(1, np.int32))
    with pytest.raises(SystemExit, match="has no layer"):
        kv_error.read_capture(tmp_path)
