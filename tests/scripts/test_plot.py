# SPDX-License-Identifier: MIT
"""scripts/plot.py: the files that it reads and refuses, and the contents of its figures. Run by pytest; drawing needs
matplotlib."""

import json
import os
import re
import sys
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from plot_data import COLUMNS, PEAK, everything, grid, in_pages, layer, layers, passes, row, stored, untimed, write

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import plot
from plotting import notes, table, views
from plotting.layers import layer_panels
from plotting.table import ResultsError, read_csv, read_results
from plotting.views import NothingToDraw


@pytest.fixture
def read(tmp_path):
    """Rows as the plotter reads them from a file."""
    return lambda rows: read_results([write(tmp_path / "read", rows)]).rows


# ---- reading -----------------------------------------------------------------------------------------------------------

def test_reads_folder_and_file_alike(tmp_path):
    folder = write(tmp_path / "a", grid(), environment={"cpu": "Some CPU", "commit": "abc"})
    by_folder, by_file = read_results([folder]), read_results([folder / "results.csv"])
    assert len(by_folder.rows) == len(by_file.rows) == 18
    assert by_folder.environments[0]["cpu"] == "Some CPU" and by_folder.environments[0]["date"] == "unknown"
    assert by_folder.rows[0].cpu == "Some CPU"
    assert by_folder.rows[1]["gflops"] == 80.0 and by_folder.rows[1]["seq_k"] == 128


def test_every_column_read_is_one_that_attnbench_writes():
    assert len(COLUMNS) > 50 and not set(table.COLUMNS) - set(COLUMNS)


def test_states_machine_and_origin(tmp_path):
    facts = {"cpu": {"value": "Some CPU", "grade": "OK"}, "hypervisor": {"value": "KVMKVMKVM", "grade": "WARN"},
             "commit": {"value": "0123456789abcdef"}, "source_tree": {"value": "dirty"}, "date": {"value": "2026-01-31"}}
    environments = read_results([write(tmp_path / "a", [row()], environment=facts)]).environments
    assert views.machines(environments) == "Some CPU (virtual machine, KVMKVMKVM)"
    assert views.origins(environments) == "date 2026-01-31, commit 0123456789ab with uncommitted changes"


def test_ignores_unknown_columns_and_order(tmp_path):
    folder = write(tmp_path / "a", [row() | {"humidity": "42 %"}], ["humidity", *reversed(COLUMNS)])
    assert read_results([folder]).rows[0]["kernel"] == "flash_avx2"


def test_reads_quoted_reasons_and_byte_order_mark(tmp_path):
    reason = 'refuses, as its tile is "too wide"\nfor this'
    folder = write(tmp_path / "a", [untimed("SKIP", reason), row("naive_c", 10.0)])
    file = folder / "results.csv"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    first, second = read_csv(file)
    assert first["reason"] == reason and not first.timed
    assert second.number == 3 and second.timed


BROKEN = [  # the change, parts of the message
    ({"time_ns_median": "12,5"}, ["row 2", "'time_ns_median'", "'12,5'", "'.'"]),
    ({"time_ns_median": "nan"}, ["row 2", "'time_ns_median'", "'nan'", "finite"]),
    ({"time_ns_median": "1e999"}, ["row 2", "'time_ns_median'", "finite"]),
    ({"time_ns_median": "0"}, ["row 2", "'time_ns_median'", "> 0"]),
    ({"time_ns_ci_lo": ""}, ["row 2", "'time_ns_ci_lo'", "empty"]),
    ({"time_ns_ci_lo": "9e9"}, ["row 2", "'time_ns_median'", "outside its interval"]),
    ({"gflops": "-1"}, ["row 2", "'gflops'", "'-1'", ">= 0"]),
    ({"gflops": ""}, ["row 2", "'gflops'", "empty"]),
    ({"ratio": "2", "ratio_ci_lo": "1"}, ["row 2", "'ratio_ci_hi'", "empty"]),
    ({"seq_k": "12.0"}, ["row 2", "'seq_k'", "'12.0'", "whole number"]),
    ({"threads": ""}, ["row 2", "'threads'", "whole number"]),
    ({"status": "OK"}, ["row 2", "'status'", "'OK'", "PASS FAIL SKIP DEGENERATE ERROR"]),
    ({"status": "FAIL"}, ["row 2", "'time_ns_median'", "FAIL", "only PASS rows"]),
    ({"kernel": ""}, ["row 2", "'kernel'", "empty"]),
]


@pytest.mark.parametrize("changes,words", BROKEN, ids=[f"{'+'.join(c)}={'+'.join(c.values())}" for c, _ in BROKEN])
def test_broken_cells_are_named(tmp_path, changes, words):
    folder = write(tmp_path / "a", [row() | changes])
    with pytest.raises(ResultsError) as error:
        read_results([folder])
    for word in [str(folder / "results.csv"), *words]:
        assert word in str(error.value)


BROKEN_FILES = [
    (b"", "empty"),
    (b"\xff\xfe", "UTF-8"),
    (",".join(COLUMNS).encode() + b"\n", "only a header"),
    (",".join(COLUMNS).encode() + b"\n1,2\n", f"row 2: 2 cells; the header has {len(COLUMNS)}"),
    (",".join(COLUMNS + ["seq_k"]).encode() + b"\n", "'seq_k' stands there 2 times"),
    (",".join(COLUMNS[1:]).encode() + b"\n", "'run_id' is missing"),
    (b'"a', "RFC 4180"),
]


@pytest.mark.parametrize("content,words", BROKEN_FILES, ids=[words for _, words in BROKEN_FILES])
def test_broken_files_are_named(tmp_path, content, words):
    file = tmp_path / "results.csv"
    file.write_bytes(content)
    with pytest.raises(ResultsError) as error:
        read_csv(file)
    assert str(file) in str(error.value) and words in str(error.value)


def test_broken_environment_is_named(tmp_path):
    folder = write(tmp_path / "a", [row()])
    (folder / "env.json").write_text("{", encoding="utf-8")
    with pytest.raises(ResultsError, match="env.json: not readable as JSON"):
        read_results([folder])


def test_the_same_case_twice_is_refused(tmp_path):
    one, two = write(tmp_path / "a", [row()]), write(tmp_path / "b", [row(rate=91.0)])
    with pytest.raises(ResultsError, match="flash_avx2 is also in .*a.results.csv, row 2"):
        read_results([one, two])


# ---- layers ------------------------------------------------------------------------------------------------------------

def test_heads_share_a_layers_width(read):
    rows = read(layers(seqs=(512,)) + [row(heads=heads, dim=512 // heads) for heads in (1, 2, 4, 8)])
    assert len(views.panels(rows, ("heads",))) == 2 + 4  # a panel per layer; attention alone keeps its head_dims apart
    panels, sparse = layer_panels(rows)
    assert not sparse and {(panel.layer, panel.axis) for panel in panels} == {("mha", "heads"), ("block", "heads")}
    assert [bar.x for bar in panels[0].bars] == [1, 2, 4, 8]
    for bar in panels[0].bars:
        assert bar.row["kernel"] == "blocked_avx2" and sum(bar.shares.values()) == pytest.approx(1)
        assert bar.shares["attention"] == pytest.approx(0.3)


def test_files_without_layers_need_no_columns_for_them(tmp_path):
    plain = COLUMNS[:COLUMNS.index("layer")]
    results = read_results([write(tmp_path / "a", [row()], plain)])
    assert results.rows[0]["layer"] == "" and results.rows[0]["attention_pct"] is None
    with pytest.raises(views.NothingToDraw, match="no row is of a layer"):
        layer_panels(results.rows)


def test_layers_may_lack_heads_parts_and_counted_work(read):
    none = dict.fromkeys(("heads_q", "heads_kv", "dim_qk", "dim_v", "score", "projections_pct", "attention_pct", "rest_pct",
                          "product"), "")
    cells = [layer(kind=kind, seq=seq) for kind in ("positions", "feed-forward", "mha") for seq in (64, 256, 1024)]
    for cell in cells:
        if cell["layer"] == "positions":
            cell |= none | {"gflops": "", "peak_pct": "", "peak_gflops": ""}
        if cell["layer"] == "feed-forward":
            cell |= {**none, "projections_pct": 99.5, "rest_pct": 0.5}
    rows = read(cells)
    panels, _ = layer_panels(rows)
    shares = {panel.layer: panel.bars[0].shares for panel in panels}
    assert shares["positions"] == {"projections": 0, "attention": 0, "rest": 0, "undivided": 1}
    assert shares["feed-forward"] == {"projections": 0.995, "attention": 0, "rest": 0.005, "undivided": 0}
    assert all(sum(parts.values()) == pytest.approx(1) for parts in shares.values())
    assert not any("head" in title for title in views.titles(panels) if "mha" not in title)
    drawn, _ = views.rate_panels(rows, "seq")
    assert {"mha", "feed-forward"} <= {panel.conditions["layer"] for panel in drawn}
    with pytest.raises(ResultsError, match="'heads_q': ''; must be a whole number"):
        read([row() | {"heads_q": ""}])  # attention alone has heads


# ---- conditions and curves ---------------------------------------------------------------------------------------------

def test_conditions_keep_different_problems_apart(read):
    rows = read([row(seq=256), row(seq=512), row(seq=256, causal="bottom-right", align="bottom-right"),
                 row(seq=256, other_axes="magnitude:10", case_id="another"), row(seq=256, dim_v=128, case_id="a third")])
    assert len(views.panels(rows)) == 5
    assert len(views.panels(rows, ("seq",))) == 4
    assert len(views.panels(rows, ("seq", "head_dim"))) == 3


def test_alignment_counts_only_where_it_means_something(read):
    plain = read([row(align="top-left"), row(align="bottom-right", seq=256)])
    assert len(views.panels(plain, ("seq",))) == 1
    windowed = read([row(align="top-left", window="64.."), row(align="bottom-right", seq=256, window="64..")])
    assert len(views.panels(windowed, ("seq",))) == 2


def test_rates_and_their_interval(read):
    panels, sparse = views.rate_panels(read(grid()), "seq")
    assert len(panels) == 2 and not sparse
    flash = next(curve for curve in panels[0].curves if curve.kernel == "flash_avx2")
    assert [point.x for point in flash.points] == [128, 512, 2048]
    assert flash.points[0].y == 80.0
    assert flash.points[0].low == pytest.approx(80 / 1.002) and flash.points[0].high == pytest.approx(80 / 0.998)
    assert panels[0].roofs["avx512 peak"] == [(128, 240.0), (512, 240.0), (2048, 240.0)]


def test_decoding_is_shown_in_bytes(read):
    rows = [row(seq=seq, seq_q=1, peak_gbs="40", bw_pct="90") for seq in (1024, 4096)]
    panels, _ = views.rate_panels(read(rows), "seq")
    assert panels[0].unit == "GB/s" and panels[0].roofs == {"read loop": [(1024, 40.0), (4096, 40.0)]}


def test_panels_of_two_points_give_way_and_are_named(read):
    rows = read(grid(dims=(64,)) + grid(seqs=(256, 1024), heads=(4,), dims=(64,)))
    panels, sparse = views.rate_panels(rows, "seq")
    assert [panel.conditions["heads"] for panel in panels] == [(8, 8)]
    (_, note), = notes.sparse_note(panels, sparse, "values of seq")
    assert "only two values of seq" in note and note.replace(views.NO_BREAK, " ").endswith("4 heads")
    assert len(views.rate_panels(read(grid(seqs=(256, 1024))), "seq")[0]) == 2


ABSENT = [
    (lambda rows: views.rate_panels(rows, "seq"), grid(seqs=(512,)), "only seq=512 in the data"),
    (lambda rows: views.rate_panels(rows, "heads"), grid(), "only heads=8 in the data"),
    (views.scaling_panels, grid(), "only threads=1 in the data"),
    (views.scaling_panels, grid(seqs=(64,)) + grid(threads=(2,)), "no two values of threads with all else equal"),
    (views.speedup_panels, [row(seq=seq) for seq in (64, 128)], "no row has a ratio"),
    (views.speedup_panels, [row("naive_c", 10.0, baseline_rate=10.0)], "only the baseline itself has a time"),
    (views.winner_panels, [row(seq=seq) for seq in (64, 128)], "only flash_avx2 has times"),
    (views.winner_panels, [untimed("SKIP", "no")], "no row has a time"),
]


@pytest.mark.parametrize("view,rows,reason", ABSENT, ids=[reason for _, _, reason in ABSENT])
def test_what_is_absent_has_a_reason(read, view, rows, reason):
    with pytest.raises(NothingToDraw, match=reason):
        view(read(rows))


# ---- winners -----------------------------------------------------------------------------------------------------------

def test_the_winner_is_the_shortest_time(read):
    cell = views.winner(read([row("naive_c", 10.0), row("blocked_avx512", 120.0), row("flash_avx2", 80.0)]))
    assert cell.winner["kernel"] == "blocked_avx512" and cell.runner_up["kernel"] == "flash_avx2"
    assert cell.margin == pytest.approx(0.5) and cell.separated


@pytest.mark.parametrize("rate,width,separated", [
    (104.0, 0.015, True),    # 4 % apart, intervals of 1.5 %
    (104.0, 0.025, False),   # the intervals overlap
    (100.5, 0.0001, False),  # apart, but by less than the margin of 1 %
])
def test_a_lead_needs_intervals_apart_and_a_margin(read, rate, width, separated):
    cell = views.winner(read([row("flash_avx512", rate, width), row("blocked_avx512", 100.0, width)]))
    assert cell.winner["kernel"] == "flash_avx512" and cell.separated is separated


def test_few_samples_are_a_point_and_separate_nothing(read):
    no_interval = {"samples": 3, "time_ns_ci_lo": "", "time_ns_ci_hi": ""}
    rows = read([row("flash_avx512", 150.0), row("flash_avx2", 100.0, **no_interval)])
    assert rows[1]["time_ns_ci_lo"] == rows[1]["time_ns_median"] == rows[1]["time_ns_ci_hi"]
    assert views.winner(rows).margin == pytest.approx(0.5) and not views.winner(rows).separated


def test_a_ratio_of_few_common_rounds_is_a_point(read):
    (kept,) = read([row(baseline_rate=10.0, samples=11) | {"ratio_ci_lo": "", "ratio_ci_hi": ""}])
    assert kept["has_interval"] and kept["ratio_ci_lo"] == kept["ratio"] == kept["ratio_ci_hi"]


def test_a_lead_over_another_run_is_not_separated(read):
    cell = views.winner(read([row("flash_avx512", 200.0), row("blocked_avx512", 100.0, run_id="r2")]))
    assert cell.winner["kernel"] == "flash_avx512" and not cell.separated


def test_only_timed_rows_can_win(read):
    cell = views.winner(read([untimed("FAIL", "wrong", name="flash_avx512"), row("naive_c", 10.0)]))
    assert cell.winner["kernel"] == "naive_c" and cell.runner_up is None
    assert views.winner(read([untimed("FAIL", "wrong")])) is None


def test_the_automatic_choice_is_no_runner_up(read):
    cell = views.winner(read([row("flash_avx2", 80.0), row("flash_avx2", 81.0, kernel="auto"), row("naive_c", 10.0)]))
    assert cell.winner["kernel"] == "flash_avx2" and cell.runner_up["kernel"] == "naive_c"


def test_winner_cells_lie_at_seq_and_head_dim(read):
    (panel,), _ = views.winner_panels(read(grid() + [untimed("ERROR", "no memory", seq=8192)]))
    assert panel.seqs == {128, 512, 2048, 8192} and panel.head_dims == {(64, 64), (128, 128)}
    assert panel.cells[8192, (64, 64)] is None
    assert panel.cells[128, (128, 128)].winner["kernel"] == "blocked_avx512"


# ---- threads, thinning, notes ------------------------------------------------------------------------------------------

def test_scaling_is_relative_to_the_fewest_threads(read):
    panels = views.scaling_panels(read(grid(seqs=(512,), dims=(64,), threads=(1, 2, 4))))
    flash = next(curve for curve in panels[0].curves if curve.kernel == "flash_avx2")
    assert [point.x for point in flash.points] == [1, 2, 4]
    assert flash.points[2].y == pytest.approx(4 ** 0.9)
    assert views.efficiency(flash.points[2], 1) == pytest.approx(4 ** -0.1)
    assert flash.points[2].low < flash.points[2].y < flash.points[2].high


def test_thinning_keeps_the_ends_and_says_what_is_gone(read):
    panels = views.speedup_panels(read(grid(seqs=(64, 128, 256, 512, 1024, 2048), dims=(64,))))
    kept, left_out = views.thin(panels)
    assert [panel.conditions["seq"][0] for panel in kept] == [64, 256, 512, 2048]
    assert left_out == [(128, 128), (1024, 1024)]


def test_notes_list_every_untimed_kernel_once(read):
    rows = read([row("naive_c", 10.0), row("naive_c", 10.0, seq=256),
                 untimed("SKIP", "this CPU has no AMX", name="flash_avx512"),
                 untimed("SKIP", "this CPU has no AMX", name="flash_avx512", seq=256),
                 untimed("SKIP", "this CPU has no AMX", name="blocked_avx512"),
                 untimed("SKIP", "this CPU has no AMX", name="blocked_avx512", seq=256),
                 untimed("FAIL", "off by 5 x the bound", name="flash_avx2"),
                 untimed("DEGENERATE", "one key", name="flash_avx2", seq=256)])
    found = [(status, note.replace(views.NO_BREAK, " ")) for status, note in notes.untimed_notes(rows)]
    assert found == [
        ("FAIL", "FAIL flash_avx2 (seq 512, head_dim 64, not causal, 1 thread): off by 5 x the bound"),
        ("DEGENERATE", "DEGENERATE flash_avx2 (seq 256, head_dim 64, not causal, 1 thread): one key"),
        ("SKIP", "SKIP flash_avx512, blocked_avx512 (every case): this CPU has no AMX")]


def test_cases_without_any_time_are_told_apart(read):
    rows = read([row(), untimed("SKIP", "no AMX", name="flash_avx512"), untimed("SKIP", "budget used up", seq=4096)])
    (_, note), = notes.blank_notes(rows)
    assert note.replace(views.NO_BREAK, " ") == (
        "SKIP flash_avx2 (seq 4096, head_dim 64, not causal, 1 thread): budget used up")
    assert notes.blank_notes(rows[:2]) == []


def test_warnings_are_counted_by_row(read):
    rows = read([row(), row(seq=256, warnings="chose flash_avx2"), row(seq=64, warnings="chose flash_avx2; cache too small"),
                 row(seq=32, warnings="cache too small; noisy")])
    assert notes.warning_note(rows) == ("2 timed rows of 4 with a warning: cache too small (and 1 other text, see column "
                                        "warnings)")
    assert notes.warning_note(rows[:2]) == ""


def test_panels_name_what_they_differ_in(read):
    rows = read([row(cache="warm"), row(cache="cold-kv", case_id="dtype:f32/cache:cold-kv")])
    assert views.titles(views.panels(rows)) == ["cache\u00a0cold-kv", "cache\u00a0warm"]


def test_reasons_that_differ_everywhere_are_folded(read):
    rows = read([row("naive_c", 10.0, seq=seq) for seq in (1, 2, 3, 4)] +
                [untimed("SKIP", f"needs {seq} GiB", seq=seq) for seq in (1, 2, 3, 4)])
    assert notes.untimed_notes(rows) == [
        ("SKIP", "SKIP flash_avx2 (every case): 4 different reasons, the first: needs 1 GiB")]


# ---- the command -------------------------------------------------------------------------------------------------------

def test_bad_input_exits_2_and_names_the_place(tmp_path, capsys):
    folder = write(tmp_path / "a", [row() | {"seq_k": "x"}])
    assert plot.main([str(folder), "-o", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert "results.csv, row 2, column 'seq_k': 'x'" in message
    assert not (tmp_path / "out").exists()


def test_missing_folder_exits_2(tmp_path, capsys):
    assert plot.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_unknown_figure_exits_2_with_the_nearest_name(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        plot.main([str(tmp_path), "--only", "winer"])
    assert exit_.value.code == 2
    assert "did you mean 'winners'" in capsys.readouterr().err


SINGLE = [name for name in plot.FIGURES if name != "machines"]  # figures for which one run is enough


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A result folder for every figure."""
    pytest.importorskip("matplotlib")
    return write(tmp_path_factory.mktemp("plot") / "run", everything(),
                 environment={"cpu": "Some CPU " * 20, "commit": "abc"})


def test_every_figure_is_written(run, tmp_path, capsys):
    out = tmp_path / "figures"
    assert plot.main([str(run), "-o", str(out)]) == 0
    said = capsys.readouterr().out
    for name in SINGLE:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (out / f"{name}.svg").read_text(encoding="utf-8")
        assert f"{name}: {out}" in said
    assert "SKIP\tflash_avx512" in (out / "not-timed.txt").read_text(encoding="utf-8")
    again = tmp_path / "again"
    assert plot.main([str(run), "-o", str(again), "--only", "winners"]) == 0
    for file in ("winners.png", "winners.svg"):
        assert (again / file).read_bytes() == (out / file).read_bytes(), "equal data must give equal files"
    assert sorted(path.name for path in again.iterdir()) == ["not-timed.txt", "winners.png", "winners.svg"]


def test_a_figure_without_data_is_named(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = write(tmp_path / "run", grid(dims=(64,)))
    assert plot.main([str(folder), "--only", "threads", "--only", "rate-heads", "--only", "winners"]) == 0
    said = capsys.readouterr().out
    assert "threads: not drawn: only threads=1 in the data" in said
    assert "rate-heads: not drawn: only heads=8 in the data" in said
    assert (folder / "figures" / "winners.png").exists() and not (folder / "figures" / "threads.png").exists()


def test_nothing_to_draw_exits_3(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = write(tmp_path / "run", [untimed("SKIP", "this CPU has no AVX2")])
    assert plot.main([str(folder)]) == 3
    assert "nothing to draw" in capsys.readouterr().err


# ---- what the pages show -----------------------------------------------------------------------------------------------

def page_texts(page):
    """(text, (x0, y0, x1, y1) in pixels) of every visible text of a page."""
    from matplotlib.text import Text
    renderer = page.figure.canvas.get_renderer()
    page.figure.draw_without_rendering()
    hidden = set()
    for axes in page.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                hidden.add(tick.label2)
                if not low <= tick.get_loc() <= high:
                    hidden.add(tick.label1)
    for text in page.figure.findobj(Text):
        if text not in hidden and text.get_visible() and text.get_text().strip():
            yield text.get_text(), tuple(Text.get_window_extent(text, renderer).extents.tolist())


def pages_of(name, *folders):
    from plotting import figures, style
    style.apply()
    results = read_results(folders)
    return figures.FIGURES[name](results, style.Looks({row["algorithm"] for row in results.rows}))


@pytest.fixture(scope="module", params=SINGLE)
def pages(run, request):
    """The pages of each figure in turn, and the texts of each page."""
    drawn = pages_of(request.param, run)
    return drawn, [list(page_texts(page)) for page in drawn]


def check_room(page, texts):
    """No text overlaps another or leaves the page."""
    width, height = page.figure.get_size_inches() * page.figure.dpi
    for words, (x0, y0, x1, y1) in texts:
        assert x0 >= 0 and y0 >= 0 and x1 <= width and y1 <= height, f"{words!r} leaves the page"
    for (one, a), (two, b) in combinations(texts, 2):
        apart = a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 2 or b[3] <= a[1] + 2
        assert apart, f"{one!r} and {two!r} overlap"


def test_no_text_overlaps_or_leaves_the_page(pages):
    for page, texts in zip(*pages):
        check_room(page, texts)


@pytest.mark.parametrize("name", SINGLE)
def test_crowded_pages_have_room(tmp_path, name):
    """With many close ticks, long conditions, equal rates and long ratios."""
    pytest.importorskip("matplotlib")
    many, long = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), range(1024, 1601, 64)
    all_pairs = bool(os.environ.get("ATTN_TEST_LONG"))
    dense = grid(seqs=long, heads=(97,), threads=(31,), dims=(64,))
    dense += grid(seqs=long if all_pairs else (1024, 1600), heads=(98, 99), threads=(31,), dims=(64,))
    dense += grid(seqs=range(1024, 1601, 64), heads=(97,), threads=(1, 32), dims=(64,))
    masked = [cells | {"mask": "padding", "bias": "heads", "lengths": "kv_len", "layout": "strided", "score": "additive",
                       "case_id": cells["case_id"] + "/mask:padding"} for cells in dense if cells["threads"] > 1]
    equal = [row(f"{algorithm}_{isa}", 100.0 + i / 100, seq=seq, baseline_rate=0.0123) for seq in range(1024, 1601, 64)
             for i, (algorithm, isa) in enumerate((a, t) for a in ("flash", "naive", "blocked", "new") for t in PEAK)
             if (algorithm, isa) not in (("naive", "c"), ("flash", "avx2"), ("blocked", "avx512"))]
    deep = layers(many, long) if all_pairs else layers(many, (1024,)) + layers((1,), long[1:])
    wide = grid(seqs=(64,), dims=range(192, 257, 8))
    paged = [cells for batch in (1, 2, 3, 4) for kind in (in_pages, stored)
             for cells in kind(batch=batch, heads_kv=4, causal="bottom-right")]
    paged += passes(batch=96, causal="top-left")
    for page in pages_of(name, write(tmp_path / "run", dense + masked + equal + deep + wide + paged)):
        check_room(page, list(page_texts(page)))


def test_pages_stand_beside_dense_keys(tmp_path):
    from plotting.paged import paged_panels
    panel, = paged_panels(read_results([write(tmp_path / "run", in_pages())]).rows)
    assert panel.kernel == "decode_avx512" and panel.unit == "GB/s"
    rate = float(in_pages()[0]["gbs"])
    assert panel.dense == pytest.approx(rate)
    assert {order: [at.x for at in points] for order, points in panel.curves.items()} == \
        {"ordered": [16, 64, 256], "shuffled": [16, 64, 256]}
    assert panel.curves["shuffled"][2].y == pytest.approx(rate * 256 / 300 * 0.6)
    words = [text for text, _ in page_texts(pages_of("pages", tmp_path / "run")[0])]
    assert "shuffled 51 %" in words and "ordered 85 %" in words
    with pytest.raises(views.NothingToDraw, match="no two sizes of pages"):
        paged_panels(read_results([write(tmp_path / "one", in_pages()[:4])]).rows)


def test_gradients_stand_beside_attention(tmp_path):
    from plotting.bars import pass_panels
    panel, = pass_panels(read_results([write(tmp_path / "run", passes(batch=4, causal="top-left"))]).rows)
    assert {shape: {part: row["kernel"] for part, row in shares.items()} for shape, shares in panel.shares.items()} == \
        {shape: {"forward": "flash_avx512", "backward": "flash_backward_avx512", "both": "flash_backward_avx512"}
         for shape in ("1 × 2048 × 64", "48 × 64 × 64 causal")}
    words = [text for text, _ in page_texts(pages_of("passes", tmp_path / "run")[0])]
    assert {"85", "75", "80", "1 × 2048 × 64", "48 × 64 × 64 causal", "forward", "backward", "both"} <= set(words)
    with pytest.raises(views.NothingToDraw, match="no row is of gradients"):
        pass_panels(read_results([write(tmp_path / "one", passes()[:4])]).rows)


def test_bytes_of_keys_stand_beside_their_rate(tmp_path):
    from plotting.kv_bytes import kv_panels
    panel, = kv_panels(read_results([write(tmp_path / "run", stored("decode_avx2", 0.5) + stored())]).rows)
    assert [(kind, factors, at.x) for kind, factors, at in panel.points] == \
        [("q4_0", "", 144), ("i8", "", 256), ("i8", "token", 264), ("bf16", "", 512), ("f32", "", 1024)]
    assert panel.reading == 20e9
    for _, _, at in panel.points:
        assert at.row["kernel"] == "decode_avx512"
        assert at.y == pytest.approx(8 * 8192 / at.row["time_ns_median"] * 1e3) and at.low < at.y < at.high
    words = [text for text, _ in page_texts(pages_of("kv-bytes", tmp_path / "run")[0])]
    assert {"q4_0", "bf16", "a factor a token", "no factors"} <= set(words)
    with pytest.raises(views.NothingToDraw, match="no decode differs in the type of K and V alone"):
        kv_panels(read_results([write(tmp_path / "one", stored()[2:4])]).rows)


def test_rings_of_pages_are_drawn(tmp_path):
    ring = [cells | {key: cells[key].replace("shuffled", "ring") for key in ("case_id", "other_axes")}
            for cells in in_pages()]
    words = [text for text, _ in page_texts(pages_of("pages", write(tmp_path / "run", ring))[0])]
    assert "ring 51 %" in words and "pages ring" in words and "pages shuffled" not in words


def test_bar_numbers_stay_in_their_panel(run):
    for page in pages_of("speedup", run):
        renderer = page.figure.canvas.get_renderer()
        for axes in page.axes:
            numbers = [text for text in axes.texts if text.get_text().endswith("×")]
            assert numbers and not any("e" in text.get_text() for text in numbers)
            for text in numbers:
                assert text.get_window_extent(renderer).x1 <= axes.get_window_extent().x1


def test_pages_state_conditions(pages):
    for texts in pages[1]:
        words = " ".join(text for text, _ in texts).replace(views.NO_BREAK, " ")
        for condition in ("CPU: Some CPU", "f32", "batch 1", "not causal", "commit abc", "date unknown"):
            assert condition in words


def test_skips_and_failures_stand_under_the_figure(pages):
    words = " ".join(text for texts in pages[1] for text, _ in texts)
    assert "SKIP flash_avx512" in words and "this CPU has no AVX-512" in words
    assert "FAIL naive_avx2" in words and "off by 4.1 x the bound" in words


def test_unseparated_cells_are_hatched(run):
    from matplotlib.patches import Rectangle
    axes = pages_of("winners", run)[0].axes[0]
    hatched = [patch.get_xy() for patch in axes.findobj(Rectangle) if patch.get_hatch()]
    assert [(int(x), int(y)) for x, y in hatched] == [(0, 3)]  # seq 128, head_dim 64: rates of 120.0 and 119.9


@pytest.mark.parametrize("name", ["rate-seq", "rate-heads", "rate-head_dim", "threads", "roofline"])
def test_the_highest_line_lies_below_the_edge(run, name):
    for axes in (axes for page in pages_of(name, run) for axes in page.axes):
        highest = max(y for line in axes.lines for y in line.get_ydata() if y == y)
        assert axes.transData.transform((1, highest))[1] < axes.bbox.y1 - 5, "pixels"


@pytest.mark.parametrize("name", SINGLE)
def test_svg_is_small_and_keeps_text_and_references(run, name):
    from plotting.svg import svg_text
    for page in pages_of(name, run):
        text = svg_text(page.figure, "p-")
        root = ElementTree.fromstring(text)
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        assert len(set(ids)) == len(ids) and set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", text)) == set(ids)
        assert all(name.startswith("p-") for name in ids)
        words = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {line for shown, _ in page_texts(page) for line in shown.split("\n")} <= words
        assert len(text) < 200000


def test_svg_marks_bars_and_cells_have_tips(run):
    from plotting.svg import svg_text
    rates = svg_text(pages_of("rate-seq", run)[0].figure)
    assert "<title>flash_avx2, 128: 80 (95 %: 79.84 to 80.16)</title>" in rates
    drawn = views.rate_panels(read_results([run]).rows, "seq")[0]
    assert rates.count("<title>") == sum(len(curve.points) for panel in drawn for curve in panel.curves)
    assert "<title>blocked_avx512, then flash_avx2: +50 %</title>" in svg_text(pages_of("winners", run)[0].figure)
    bars = svg_text(pages_of("speedup", run)[0].figure)
    assert re.search(r"<title>flash_avx2: 8 \(95 %: 7.92 to 8.08\)</title><path", bars)


# ---- roofline and errors -----------------------------------------------------------------------------------------------

PEAK_CSV = """kind,name,dtype,what,threads,one_core,all_cores,unit
compute,avx2,f32,"fma, 256 bit",2,120,240,Gflop/s
read,L1,,"16 KiB per core",2,200,400,GB/s
read,memory,,"1048576 KiB per core",2,10,15,GB/s
"""


def test_roofs_are_those_of_the_threads(tmp_path):
    pytest.importorskip("matplotlib")
    from plotting.roofline import roofline_panels
    folder = write(tmp_path / "run", grid(seqs=(512,), dims=(64,), threads=(1, 2, 3)))
    (folder / "peak.csv").write_text(PEAK_CSV, encoding="utf-8")
    one, two, three = roofline_panels(read_results([folder]))
    assert one.bandwidths == {"L1": 200, "memory": 10} and two.bandwidths == {"L1": 400, "memory": 15}
    assert three.bandwidths == {}, "that number of threads was not measured"
    assert one.peaks == PEAK and two.peaks["c"] == 2 * PEAK["c"]
    spot = next(spot for spot in one.spots if spot.row["kernel"] == "flash_avx2")
    assert (spot.x, spot.y) == (128, 80.0)  # 4 s s d flops, 16 s d bytes


def test_read_loops_are_the_slopes(tmp_path):
    pytest.importorskip("matplotlib")
    from plotting.roofline import roofline_panels
    rates = ((1024, "40", "L2"), (4096, "30", "memory"), (8192, "20", "memory"), (16384, "10", "memory"))
    rows = [row(seq=seq, seq_q=1, peak_gbs=gbs) for seq, gbs, _ in rates]
    (panel,) = roofline_panels(read_results([write(tmp_path / "old", rows)]))
    assert panel.bandwidths == {"read loop": 25}
    for one, (_, _, level) in zip(rows, rates):
        one["level"] = level
    folder = write(tmp_path / "run", rows)
    (folder / "peak.csv").write_text(PEAK_CSV, encoding="utf-8")
    (panel,) = roofline_panels(read_results([folder]))
    assert panel.bandwidths == {"L2": 40, "memory": 20}


def test_a_file_that_is_no_table_of_ceilings_is_named(tmp_path):
    folder = write(tmp_path / "run", grid())
    (folder / "peak.csv").write_text("kind,name\nread,L1\n", encoding="utf-8")
    with pytest.raises(ResultsError, match="peak.csv: not a file of attnbench peak"):
        read_results([folder])


def test_errors_are_of_checked_rows(read):
    pytest.importorskip("matplotlib")
    from plotting.errors import error_panels
    rows = read([row(max_err_ratio="0.25"), row(seq=64, max_err_ratio="0.125"), untimed("SKIP", "no", name="flash_avx512"),
                 untimed("FAIL", "wrong", name="naive_c") | {"max_err_ratio": "inf"}])
    (panel,) = error_panels(rows)
    assert [(kernel.kernel, kernel.ratios) for kernel in panel.kernels] == [("flash_avx2", [0.125, 0.25]),
                                                                            ("naive_c", [float("inf")])]


def test_family_and_model_tell_cpus_of_one_name_apart(tmp_path):
    facts = {"cpu": {"value": "AMD EPYC"}, "cpu_family": {"value": "26"}, "cpu_model": {"value": "2"}}
    other = facts | {"cpu_model": {"value": "17"}}
    results = read_results([write(tmp_path / name, grid(), environment=cpu) for name, cpu in (("a", facts), ("b", other))])
    assert {row.cpu for row in results.rows} == {"AMD EPYC, family 26 model 2", "AMD EPYC, family 26 model 17"}


def test_machines_are_compared_by_shares_of_their_peaks(tmp_path):
    pytest.importorskip("matplotlib")
    from plotting.machines import machine_panels
    one = write(tmp_path / "a", grid(dims=(64,)) + grid(seqs=(64,)), environment={"cpu": "One"})
    two = write(tmp_path / "b", [row("flash_avx2", 60.0, seq=seq) for seq in (128, 512)], environment={"cpu": "Two " * 10})
    (panel,) = machine_panels(read_results([one, two]).rows)
    shares = {cpu[:3]: [(point.x, point.y) for point in points] for cpu, points in panel.curves.items()}
    assert shares == {"One": [(64, 50), (128, 50), (512, 50), (2048, 50)], "Two": [(128, 50), (512, 50)]}
    assert {point.row["kernel"] for points in panel.curves.values() for point in points} == {"blocked_avx512", "flash_avx2"}
    with pytest.raises(NothingToDraw, match="of one machine"):
        machine_panels(read_results([one]).rows)
    for page in pages_of("machines", one, two):
        check_room(page, list(page_texts(page)))


# ---- simulations -------------------------------------------------------------------------------------------------------

def test_simulations_have_a_figure_of_their_own(tmp_path):
    file = tmp_path / "s.json"
    lines = [{"case_id": f"B:1/Sq:{seq}/threads:{n}/x", "kernel": "flash_c", "threads": n, "efficiency": 1 / n}
             for seq in (8, 16) for n in (1, 2, 64)]
    file.write_text(json.dumps(lines), encoding="utf-8")
    assert plot.main([str(file), "-o", str(tmp_path / "out")]) == 0
    root = ElementTree.parse(tmp_path / "out" / "simulated.svg").getroot()
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"B:1/Sq:8/x, flash_c", "B:1/Sq:16/x, flash_c", "threads", "64"} <= set(texts)


def test_simulated_clusters_are_drawn_against_ranks(tmp_path):
    file = tmp_path / "clusters.csv"
    rows = [f"{net},{ranks},PASS_KV,zigzag,9,7,5,0.{ranks}" for net in ("slow", "fast") for ranks in (2, 4)]
    file.write_text("\n".join(["platform,ranks,mode,shards,tokens,queries,gmacs,efficiency", *rows]), encoding="utf-8")
    assert plot.main([str(file), "-o", str(tmp_path / "out")]) == 0
    root = ElementTree.parse(tmp_path / "out" / "simulated.svg").getroot()
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"PASS_KV, 7 queries, zigzag, 5 GMAC/s a node", "slow", "fast", "ranks", "4"} <= texts


def test_a_file_that_is_no_simulation_is_refused(tmp_path, capsys):
    for text in ("[]", "{", '[{"threads": 1}]'):
        (tmp_path / "s.json").write_text(text, encoding="utf-8")
        assert plot.main([str(tmp_path / "s.json")]) == 2
        assert "s.json" in capsys.readouterr().err
