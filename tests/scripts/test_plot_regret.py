# SPDX-License-Identifier: MIT
"""scripts/plot_regret.py: means of cells, and a figure from a file. Run by pytest with the other tests of plots."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import plot_regret

HEADER = "dtype,mask,heads_kv,group,dim,seq_q,seq_k,best,best_ns,built_in,built_in_ratio,tuned,tuned_ratio\n"
ROWS = ("f32,full,1,1,64,1,9,a,100,b,1.2,a,1.0\n"
        "f32,full,1,1,64,1,15,a,100,b,1.4,a,1.0\n"
        "bf16,causal,1,1,64,40,300,a,9,a,1,a,1\n")


def test_means_are_of_cells(tmp_path):
    (tmp_path / "r.csv").write_text(HEADER + ROWS)
    cells = plot_regret.means(plot_regret.read(tmp_path / "r.csv"), "built_in_ratio")
    assert cells == {(3, 0): pytest.approx(0.3), (8, 5): 0}


def titles(rows, output):
    return [axes.get_title() for axes in plot_regret.draw(rows, output).axes if axes.get_title()]


def test_figure_has_a_panel_per_type_and_choice(tmp_path):
    (tmp_path / "r.csv").write_text(HEADER + ROWS)
    rows = plot_regret.read(tmp_path / "r.csv")
    assert titles(rows, tmp_path / "r.png") == [
        "bf16, built in: mean 0.0 %", "f32, built in: mean 30.0 %",
        "bf16, with the file: mean 0.0 %", "f32, with the file: mean 0.0 %"]
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    plot_regret.draw(rows, tmp_path / "r.svg")
    text = (tmp_path / "r.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg") and ">30</text>" in text and "<image" not in text


def test_choices_are_those_of_the_file(tmp_path):
    (tmp_path / "r.csv").write_text("dtype,seq_q,seq_k,built_in_ratio,without_class_ratio\nf32,1,9,1.2,1.5\n")
    assert titles(plot_regret.read(tmp_path / "r.csv"), tmp_path / "r.png") == [
        "f32, built in: mean 20.0 %", "f32, without its class: mean 50.0 %"]


def test_other_files_are_refused(tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match="no rows of attnbench tune"):
        plot_regret.read(tmp_path / "other.csv")
