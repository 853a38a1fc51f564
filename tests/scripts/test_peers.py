# SPDX-License-Identifier: MIT
"""scripts/peers: libattn and the harness through ctypes, cases, rounds, and torch_sdpa.py without PyTorch and with a fake
PyTorch. Run by pytest; needs NumPy."""

import ctypes
import itertools
import math
import os
import re
import shutil
from pathlib import Path

import pytest
from peer_support import ABSENT, LIBRARY, ROOT, SMALL, needs_library, np, one_case, run_script
from runs import read_csv
from runs import run as run_program

# peer_support adds their folders to the path.
from libattn.bench import harness
from libattn.bench.comparing import Row, set_verdicts
from libattn.bench.files import COLUMNS, SAMPLE_COLUMNS
from libattn.bench.harness import Reference, Rounding, verdict
from pairing import library as attn
from libattn.bench.problems import store
from libattn.bench.rounds import schedule
from pairing import machine, storage
from pairing.cases import CaseError, build_cases
from pairing.ours import LibraryKernel
from pairing.results import leads
from plotting.table import read_results

pytestmark = needs_library

@pytest.fixture(scope="module")
def library():
    return attn.Library(LIBRARY)


def widen(array, dtype):
    """The values as float64."""
    if dtype == "bf16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(float)


def attention(q, k, v, causal_offset=None):
    """o and lse in float64, computed independently of the oracle."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.astype(float), np.repeat(k, group, 1).astype(float), np.repeat(v, group, 1).astype(float)
    s = np.einsum("bhid,bhjd->bhij", q, k) * float(np.float32(1 / math.sqrt(q.shape[3])))  # the scale of attn_problem
    if causal_offset is not None:
        i, j = np.indices(s.shape[2:])
        s = np.where(j <= i + causal_offset, s, -np.inf)
    e = np.exp(s)
    return np.einsum("bhij,bhjd->bhid", e / e.sum(3, keepdims=True), v), np.log(e.sum(3))


def right_answer(case, q, k, v):
    return attention(q, k, v, None if case.causal == "none" else case.offset)


# ---- libattn through ctypes ------------------------------------------------------------------------------------------

def test_problem_init_fills_what_the_header_promises(library):
    p = library.problem(batch=2, heads_q=6, heads_kv=3, seq_q=5, seq_k=7, dim_qk=16, dim_v=8, lse=True)
    assert p.struct_size == ctypes.sizeof(p)
    assert [p.batch, p.heads_q, p.heads_kv, p.seq_q, p.seq_k, p.dim_qk, p.dim_v] == [2, 6, 3, 5, 7, 16, 8]

    def strides(s):
        return [s.b, s.h, s.s, s.d]
    assert strides(p.q_stride) == [6 * 5 * 16, 5 * 16, 16, 1] and strides(p.k_stride) == [3 * 7 * 16, 7 * 16, 16, 1]
    assert strides(p.v_stride) == [3 * 7 * 8, 7 * 8, 8, 1] and strides(p.o_stride) == [6 * 5 * 8, 5 * 8, 8, 1]
    assert strides(p.lse_stride)[:3] == [6 * 5, 5, 1]
    assert [p.bias_stride.b, p.mask_stride.h, p.scores_stride.q, p.scores_stride.k] == [6 * 5 * 7, 5 * 7, 7, 1]
    assert [p.score, p.scale, p.softcap, p.align] == [0, 0.25, 0, attn.TOP_LEFT]
    assert [p.window_left, p.window_right, p.uses] == [-1, -1, attn.C.ATTN_USE_LSE]
    causal = library.problem(1, 1, 1, 2, 3, 4, 4, causal=attn.BOTTOM_RIGHT)
    assert [causal.align, causal.window_left, causal.window_right, causal.uses] == [attn.BOTTOM_RIGHT, -1, 0, 0]


SHAPES = [(), ("causal=top-left",), ("seq_q=9", "causal=bottom-right"), ("heads_kv=2", "seq_q=1"),
          ("batch=2", "head_dim=40")]


@pytest.mark.parametrize("axes", SHAPES, ids=" ".join)
def test_kernels_agree_with_numpy(library, axes):
    case = one_case("heads=4", "seq=33", *axes)
    q, k, v = case.arrays
    right, right_lse = right_answer(case, q, k, v)
    problem = library.problem(case.batch, 4, case.heads_kv, case.seq_q, 33, case.head_dim, case.head_dim,
                              harness.ALIGNMENTS[case.causal], lse=True)
    for kernel in (None, "naive_c", "flash_c"):
        o, lse = np.full(q.shape, np.nan, np.float32), np.full(q.shape[:3], np.nan, np.float32)
        with library.plan(problem, kernel, threads=2) as plan:
            plan.check(plan.bind(q, k, v, o, lse)())
            assert plan.kernel == (kernel or plan.kernel) and plan.kernel in library.kernels()
        assert np.abs(o - right).max() < 1e-5 and np.abs(lse - right_lse).max() < 1e-5
    reference, rounding = Reference(case, q, k, v, lse=True), Rounding(library.kernel(plan.kernel).numerics.exp_error)
    assert reference.check(o, rounding, lse).passed
    lse[0, 1, 0] += 1e-4
    assert reference.check(o, rounding, lse).index == "0:1:0:-1"


IN_PAGES = [("seq_q=1",), ("batch=3", "seq_q=5", "causal=bottom-right"), ("batch=9", "chunk=7", "lengths=kv_len"),
            ("batch=17", "seq_q=9", "lengths=mixed", "causal=bottom-right")]


@pytest.mark.parametrize("axes", IN_PAGES, ids=" ".join)
def test_pages_are_checked_sequence_by_sequence(library, axes):
    case = one_case("heads=4", "heads_kv=2", "seq_k=70", "head_dim=16", "page_tokens=16", "page_order=shuffled", *axes)
    q, k, v = case.arrays
    pages, right = case.pages, np.zeros(q.shape)
    assert pages.lengths == harness.lengths(case.axes.split(), case.batch) and q.shape[0] == pages.cu_seqlens_q[-1]
    for b, (queries, keys) in enumerate(pages.lengths):
        tokens = [np.stack([x[pages.table[b, j // 16], :, j % 16] for j in range(keys)], 1)[None] for x in (k, v)]
        offset = keys - queries if case.causal == "bottom-right" else None
        right[pages.rows(b)] = attention(q[pages.rows(b)].transpose(1, 0, 2)[None], *tokens, offset)[0][0].transpose(1, 0, 2)
    with LibraryKernel(library, "flash_c", "flash_c").start(case, [(q, k, v)]) as prepared:
        o = prepared.output(prepared.calls[0]())
        assert np.abs(o - right).max() < 1e-5
        assert case.check(o, None, prepared.rounding)[0] is None
        last = max(b for b, (queries, _) in enumerate(pages.lengths) if queries)
        o[pages.cu_seqlens_q[last], 1, 3] += 1e-3
        wrong, found = case.check(o, None, prepared.rounding)
        assert wrong and found.index == f"{last}:1:0:3"


@pytest.mark.parametrize("axes", [(), ("dtype=bf16", "seq_q=2", "causal=bottom-right"),
                                  ("page_tokens=16",), ("batch=3", "page_tokens=16", "lengths=kv_len")])
def test_latent_rows_are_read_where_they_lie(library, axes):
    case = one_case("heads=4", "heads_kv=1", "seq_q=1", "seq_k=50", "dim_qk=40", "dim_v=24", "latent=on", *axes)
    q, k, v = case.arrays
    with LibraryKernel(library, "auto", None).start(case, [(q, k, v)]) as prepared:
        o = prepared.output(prepared.calls[0]())
        assert o.shape == (*q.shape[:-1], 24) and case.check(o, None, prepared.rounding)[0] is None
        if not case.pages:
            right = right_answer(case, *(widen(x, case.dtype) for x in (q, k, v)))[0]
            assert np.abs(widen(o, case.dtype) - right).max() < (1e-5 if case.dtype == "f32" else 2e-2)
        late = k[..., 1:25]  # a fault: V begins with the second column
        with pytest.raises(ValueError, match="v is .*; first columns of k, "):
            LibraryKernel(library, "auto", None).start(case, [(q, k, late)]).__enter__()
    case.arrays[1][..., 0] = case.arrays[1][..., 1]  # another V: the oracle must notice
    case.__dict__.pop("oracle")
    assert case.check(o, None, prepared.rounding)[0] is not None


def test_one_call_without_a_plan(library):
    case = one_case("heads=2", "seq=16")
    q, k, v = case.arrays
    o = np.empty_like(q)
    library.sdpa(library.problem(1, 2, 2, 16, 16, 64, 64), q, k, v, o)
    assert np.abs(o - attention(q, k, v)[0]).max() < 1e-5


def test_refusals_carry_the_librarys_words(library):
    problem = library.problem(1, 1, 1, 4, 4, 8, 8)
    with pytest.raises(attn.LibraryError, match="flash_nonsense") as refused:
        library.plan(problem, "flash_nonsense")
    assert refused.value.status == attn.UNKNOWN_KERNEL
    problem.heads_q, problem.heads_kv = 3, 2
    with pytest.raises(attn.LibraryError, match="heads_q"):
        library.plan(problem)


@pytest.mark.parametrize("spoil", [lambda x: x.astype(float), lambda x: x[:, :, :-1], lambda x: x.transpose(0, 1, 3, 2),
                                   lambda x: None], ids=["float64", "shorter", "transposed", "None"])
def test_arrays_that_do_not_fit_never_reach_the_library(library, spoil):
    good = np.zeros((1, 2, 4, 4), np.float32)
    with library.plan(library.problem(1, 2, 2, 4, 4, 4, 4)) as plan:
        plan.bind(good, good, good, good)
        for place in range(4):
            arrays = [good, good, good, good]
            arrays[place] = spoil(good) if place else good[:, :1]
            with pytest.raises(ValueError, match="is right"):
                plan.bind(*arrays)


def test_a_file_that_is_no_library_is_named(tmp_path):
    (tmp_path / "libattn.so").write_text("no library")
    with pytest.raises(attn.LoadError, match="libattn.so"):
        attn.Library(tmp_path / "libattn.so")
    with pytest.raises(attn.LoadError, match="attn_"):
        attn.Library("libc.so.6")


# ---- The oracle ------------------------------------------------------------------------------------------------------

def test_the_limit_finds_one_key_too_many():
    case = one_case("heads=2", "seq=256", "causal=top-left")
    q, k, v = case.arrays
    reference = Reference(case, q, k, v)
    right = right_answer(case, q, k, v)[0].astype(np.float32)
    rounding = Rounding(exp_error=1e-6)
    assert reference.check(right, rounding).passed
    assert not reference.check(right * np.float32(1 + 1e-4), rounding).passed
    late, _ = attention(q, k, v, causal_offset=1)
    assert reference.check(late.astype(np.float32), rounding).worst > 100
    right[0, 1, 200, 3] = np.nan
    found = reference.check(right, rounding)
    assert not found.passed and found.worst == math.inf and found.index == "0:1:200:3" and found.rows == 512


def test_outputs_may_lie_in_memory_in_another_order():
    case = one_case("heads=2", "seq=16", "head_dim=8")
    q, k, v = case.arrays
    o = right_answer(case, q, k, v)[0].astype(np.float32)
    tokens_first = o.transpose(0, 2, 1, 3).copy()
    reference = Reference(case, q, k, v)
    assert reference.check(tokens_first.transpose(0, 2, 1, 3), Rounding(0)).passed
    for wrong in (tokens_first, o.astype(float)):
        with pytest.raises(ValueError, match="is right"):
            reference.check(wrong, Rounding(0))


def test_rows_without_keys_must_be_zero():
    case = one_case("heads=1", "seq_q=8", "seq_k=4", "causal=bottom-right")
    q, k, v = case.arrays
    reference = Reference(case, q, k, v)
    right = np.zeros(q.shape, np.float32)
    right[:, :, 4:] = attention(q[:, :, 4:], k, v, causal_offset=0)[0]
    assert reference.check(right, Rounding(0)).passed
    right[0, 0, 2, 5] = 1e-30
    assert reference.check(right, Rounding(0)).index == "0:0:2:5" and not reference.check(right, Rounding(0)).passed


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_half_precision_is_checked_by_its_own_steps(dtype):
    case = one_case("heads=2", "seq=64", f"dtype={dtype}")
    q, k, v = case.arrays
    reference = Reference(case, q, k, v)
    o, w = right_answer(case, *(widen(x, dtype) for x in (q, k, v)))[0], weighted_spread(case, q, k, v)
    right, step = store(o.astype(np.float32), dtype), harness.dtypes()[dtype].roundoff
    exact, narrow = Rounding(0), Rounding(0, p_rounding=step)
    assert 0.5 < reference.check(right, exact).worst <= 1
    neighbour = right + np.asarray(1, right.dtype) if dtype == "bf16" else np.nextafter(right, np.float16(9))
    assert not reference.check(neighbour, exact).passed
    assert reference.check(neighbour, Rounding(0, store_error=3 * step)).passed
    p_error = np.random.default_rng(3).uniform(-step, step, o.shape) * w  # like a kernel that rounds P
    moved = store((o + p_error).astype(np.float32), dtype)
    assert reference.check(moved, narrow).passed and not reference.check(moved, exact).passed
    right[0, 0, 3, 5] = store(np.array([np.nan], np.float32), dtype)[0]
    assert reference.check(right, narrow).index == "0:0:3:5"


def weighted_spread(case, q, k, v):
    """W of docs/numerics.md: the effect of independent errors of P on the output."""
    q, k, v = (widen(x, case.dtype) for x in (q, k, v))
    e = np.exp(np.einsum("bhid,bhjd->bhij", q, k) * float(np.float32(1 / math.sqrt(case.head_dim))))
    p = e / e.sum(3, keepdims=True)
    o = p @ v
    return np.sqrt(np.maximum(p**2 @ v**2 - 2 * o * (p**2 @ v) + o**2 * (p**2).sum(3, keepdims=True), 0))


def test_bfloat16_rounds_to_nearest_even():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.4e38, np.inf, np.nan, 1e-40], np.float32)
    bits = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xFF80, 0x7F80, 0x7FC0, 0x0001]
    assert [int(x) for x in store(values, "bf16")] == bits
    o = np.zeros(3, np.uint16)
    storage.spoil(o)
    assert np.isnan(widen(o, "bf16")).all()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_kernels_take_half_precision(library, dtype):
    case = one_case("heads=2", "seq=33", f"dtype={dtype}")
    q, k, v = case.arrays
    o = np.zeros_like(q)
    with library.plan(library.problem(1, 2, 2, 33, 33, 64, 64, dtype=dtype), "flash_c") as plan:
        plan.check(plan.bind(q, k, v, o)())
        with pytest.raises(ValueError, match="is right"):
            plan.bind(q.astype(np.float32), k, v, o)
    assert Reference(case, q, k, v).check(o, Rounding(library.kernel("flash_c").numerics.exp_error)).passed


# ---- Peaks -----------------------------------------------------------------------------------------------------------

def test_the_peak_is_measured_in_this_process():
    with harness.open_peak("f32", 1) as peak:
        rates = [peak.flops() for _ in range(5)]
        assert " f32: " in peak.name and 1e9 < max(rates) < 1e12
    case = one_case("heads=1", "seq_q=1", "seq_k=4096")
    rotations = [case.arrays]
    with harness.open_peak("bf16", 1) as peak:
        assert 1e8 < max(peak.read(rotations) for _ in range(5)) < 1e13
    with harness.open_peak("f32", 2) as peak:
        assert peak.flops() > 0 and peak.read(rotations) > 0
        tiny = np.zeros((1, 1, 2, 4), np.float32)
        assert peak.read([(tiny, tiny, tiny)]) > 0  # less than a line of each


# ---- Cases -----------------------------------------------------------------------------------------------------------

def test_limits_are_the_columns_of_the_peers_table():
    ids = [case.id for case in build_cases(["limits"], [], 2)]
    assert len(ids) == 9
    assert ids[0] == "dtype:f32/B:1/Hq:1/Hkv:1/Sq:2048/Sk:2048/D:64/Dv:64/causal:none/threads:2"
    assert ids[1] == "dtype:f32/B:1/Hq:1/Hkv:1/Sq:2048/Sk:2048/D:64/Dv:64/causal:bottom-right/threads:2"
    assert ids[8] == "dtype:f32/B:1/Hq:32/Hkv:8/Sq:1/Sk:8192/D:128/Dv:128/causal:none/threads:2/cache:cold-kv"


def test_models_are_the_preset_of_attnbench():
    attnbench = os.environ.get("ATTNBENCH", ROOT / "build" / "harness" / "attnbench")
    listed = run_program([attnbench, "list", "cases", "--preset", "models"]).stdout.split()
    assert [case.id for case in build_cases(["models"], [], 1)] == listed


def test_axes_span_a_grid_and_replace_those_of_presets():
    grid = build_cases([], ["seq=128:512:*2", "head_dim=64,80"], 1)
    assert [(case.seq_q, case.seq_k, case.head_dim) for case in grid] == [
        (seq, seq, dim) for seq, dim in itertools.product((128, 256, 512), (64, 80))]
    assert {case.heads for case in build_cases(["limits"], ["heads=8", "heads_kv=heads"], 1)} == {8}
    assert {(case.seq_q, case.seq_k) for case in build_cases(["limits"], ["seq=64"], 1)} == {(64, 64)}
    assert [case.seq_k for case in build_cases([], ["seq_k=4:10:+3"], 1)] == [4, 7, 10]


@pytest.mark.parametrize(("text", "words"), [
    ("sek=4", "did you mean 'seq_k'"), ("seq=x", "a whole number"), ("seq", "AXIS=VALUES"), ("seq=0", "from 1 up"),
    ("causal=yes", "none, top-left"), ("causal=offset", "one of none"), ("cache=cold", "one of warm"),
    ("dtype=f64", "f32, f16"), ("dtype=f32+bf16", "one of f32"),
    ("seq=1:8:*1", "FIRST:LAST:*FACTOR"), ("seq=8:4:+1", "FIRST <= LAST"), ("heads_kv=3", "heads_kv"),
    ("seq=1:5000", "at most 4096 values"), ("seq=4294967297", "at most 2147483647")])
def test_wrong_axes_are_explained(text, words):
    with pytest.raises(CaseError, match=re.escape(words)):
        build_cases([], [text], 1)


def test_work_counts_allowed_pairs():
    assert one_case("heads=2", "seq=8", "head_dim=4").flops == 4 * 2 * 64 * 4
    assert one_case("heads=1", "seq=8", "head_dim=4", "causal=top-left").flops == 4 * 36 * 4
    assert one_case("heads=1", "seq_q=2", "seq_k=5", "head_dim=4", "causal=bottom-right").flops == 4 * (4 + 5) * 4
    assert one_case("heads=4", "heads_kv=2", "seq_q=1", "seq_k=10", "head_dim=4").bytes == 4 * (2 * 4 * 1 + 2 * 2 * 10) * 4


# ---- Statistics: tests/harness/timing/test_stats.c has more -------------------------------------------------------------

def test_statistics_are_those_of_the_harness():
    found = harness.summarise(range(1, 22))
    assert (found.min, found.median, found.low, found.high, found.mad) == (1, 11, 6, 16, 5)
    drift = [2.0**i for i in range(21)]
    ratio = harness.paired_ratio([1.5 * x for x in drift], drift)
    assert [round(x, 12) for x in (ratio.median, ratio.low, ratio.high)] == [1.5, 1.5, 1.5]
    medians = [2, 100, 0, 3, 1, 4]  # six placements of two rounds each: see tests/harness/timing/test_stats.c
    a = [math.exp(medians[i // 2] + (0.1 if i % 2 else -0.1)) for i in range(12)]
    ratio = harness.paired_ratio(a, [1.0] * 12, (6, 2))
    assert math.log(ratio.median) == pytest.approx(2.5)
    assert math.log(ratio.high) == pytest.approx(2.5 + 3.182446 * (9.5 / 12)**0.5, rel=1e-6)
    assert ratio.p == pytest.approx(0.0673, rel=1e-3)
    assert harness.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    with pytest.raises(ValueError):
        harness.paired_ratio([1, 2], [1])


@pytest.mark.parametrize(("low", "middle", "high", "p", "word"), [
    (1.2, 1.3, 1.4, 0.001, "FASTER"), (0.7, 0.8, 0.9, 0.001, "SLOWER"), (1.2, 1.3, 1.4, 0.2, "INCONCLUSIVE"),
    (1.001, 1.005, 1.008, 0.001, "SAME"), (0.995, 1.0, 1.005, 0.9, "SAME"), (0.9, 1.05, 1.2, 0.3, "INCONCLUSIVE"),
    (1.002, 1.008, 1.02, 0.001, "INCONCLUSIVE"), (0.98, 0.985, 0.999, 0.001, "SLOWER")])
def test_verdicts_need_interval_margin_and_corrected_p(low, middle, high, p, word):
    assert verdict(harness.Summary(low, middle, 0, low, high), p) == word


def test_verdicts_are_corrected_over_all_cases():
    def results(ours, theirs):
        return [Row("case", "auto", times_ns=ours), Row("case", "torch_flash", times_ns=theirs)]
    lead = [1.0] * 21, [1.046 + 0.01 * i for i in range(-10, 11)]  # p = 0.02 alone
    weak = [1.0] * 21, [1.057 + 0.01 * i for i in range(-10, 11)]  # p = 0.007 alone: significant, but not among three
    alone, among = ([row for pair in pairs for row in leads(results(*pair), {"torch_flash"}, None)]
                    for pairs in ([weak], [weak, lead, lead]))
    for rows in alone, among:
        set_verdicts(rows)
    assert [row.verdict for row in alone] == ["FASTER"]
    assert [row.verdict for row in among] == ["INCONCLUSIVE"] * 3


def test_rounds_follow_latin_squares():
    due = list(schedule("abcdef", 14, seed=3))
    assert [index for index, position, _ in due if position == 5] == list(range(14))
    orders = ["".join(item for _, _, item in due[6 * i:6 * i + 6]) for i in range(14)]
    assert all(sorted(line) == list("abcdef") for line in [*orders, *zip(*orders[:6]), *zip(*orders[6:12])])
    followers = [pair for order in orders[:6] for pair in itertools.pairwise(order)]
    assert len(set(followers)) == len(followers) == 6 * 5
    assert orders[:6] != orders[6:12] and not list(schedule([], 14, seed=3))


def test_openmp_runtimes_are_found_by_name(tmp_path, monkeypatch):
    maps = "".join(f"7f00-7f01 r-xp 00000000 00:00 1    {path}\n" for path in (
        "/usr/lib/x/libgomp.so.1.0.0", "/usr/lib/x/libgomp.so.1.0.0", "/opt/libomp.so.5", "/opt/libgomp-a34b3233.so.1",
        "/opt/libiomp5.so", "/opt/libcompute.so", "[heap]"))
    file = tmp_path / "maps"
    file.write_text(maps)
    opened = open
    monkeypatch.setattr("builtins.open", lambda path, *rest, **names: opened(
        file if path == "/proc/self/maps" else path, *rest, **names))
    assert machine.openmp_runtimes() == ["/opt/libgomp-a34b3233.so.1", "/opt/libiomp5.so", "/opt/libomp.so.5",
                                         "/usr/lib/x/libgomp.so.1.0.0"]


# ---- The script ------------------------------------------------------------------------------------------------------

# The part of PyTorch that the script uses. FAKE_TORCH: "wrong", "late" (wrong after 100 calls), "refuses", "breaks".
FAKE_TORCH = '''
import contextlib, os, sys, types
import numpy as np
__version__ = "2.13.0+cpu"
MODE, CALLS = os.environ.get("FAKE_TORCH", ""), []
class Tensor:
    def __init__(self, array): self.array = array
    def numpy(self): return self.array
from_numpy, inference_mode, set_num_threads = Tensor, contextlib.nullcontext, lambda n: None
backends = types.SimpleNamespace(cpu=types.SimpleNamespace(get_cpu_capability=lambda: "AVX512"))
def sdpa(q, k, v, is_causal=False, enable_gqa=False):
    CALLS.append(1)
    if MODE == "refuses": raise RuntimeError("No available kernel. Aborting execution.")
    if MODE == "breaks": raise RuntimeError("out of luck")
    q, k, v = (x.array.astype(float) for x in (q, k, v))
    if enable_gqa: k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.swapaxes(2, 3) / q.shape[3] ** 0.5
    if is_causal: s = np.where(np.tri(*s.shape[2:], dtype=bool), s, -np.inf)
    e = np.exp(s)
    o = e / e.sum(3, keepdims=True) @ v
    if MODE == "wrong" or MODE == "late" and len(CALLS) > 100: o = o * 1.001
    return Tensor(o.astype(np.float32))
nn = types.ModuleType("torch.nn")
nn.attention = types.ModuleType("torch.nn.attention")
nn.attention.SDPBackend = types.SimpleNamespace(FLASH_ATTENTION=1, MATH=0)
nn.attention.sdpa_kernel = lambda backend: contextlib.nullcontext()
nn.functional = types.SimpleNamespace(scaled_dot_product_attention=sdpa)
sys.modules["torch.nn"], sys.modules["torch.nn.attention"] = nn, nn.attention
__path__ = []
'''


@pytest.fixture
def script(tmp_path):
    """Runs torch_sdpa.py with the source of a module torch. Returns the process and the rows of its CSV file."""
    def run(*arguments, torch, **environment):
        file = tmp_path / "out.csv"
        (tmp_path / "modules").mkdir(exist_ok=True)
        done = run_script("torch_sdpa.py", *SMALL, "--csv", file, *arguments, folder=tmp_path / "modules",
                          modules={"torch": torch}, **environment)
        return done, read_csv(file) if file.exists() else []
    return run


NO_TORCH = ABSENT.format("torch")


def test_without_torch_its_rows_are_skipped_with_the_command(script):
    done, rows = script("-k", "naive_c", torch=NO_TORCH)
    assert done.returncode == 0, done.stderr
    assert [(row["kernel"], row["status"]) for row in rows] == [
        ("auto", "PASS"), ("naive_c", "PASS"), ("torch_flash", "SKIP"), ("torch_math", "SKIP")]
    assert all("scripts/peers/setup.sh torch" in row["reason"] and not row["time_ns_median"] for row in rows[2:])
    assert all(float(row["gflops"]) > 0 and row["baseline"] == "auto" for row in rows[:2])
    assert "SKIP: PyTorch" in done.stdout


def test_files_have_attnbenchs_columns_and_the_plotter_reads_them(script, tmp_path):
    done, rows = script("-a", "causal=none,bottom-right", "--samples", tmp_path / "samples.csv", torch=FAKE_TORCH)
    assert done.returncode == 0, done.stderr
    declared = re.findall(r"(?m)^COLUMN\((\w+), ", (ROOT / "harness/report/columns.def").read_text(encoding="utf-8"))
    declared = declared[:declared.index("layer")]  # the others are written only if a file has whole layers
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()[0] == ",".join(declared)
    assert declared == COLUMNS
    written = (ROOT / "harness/report/writers.c").read_text(encoding="utf-8")
    assert f'"{",".join(SAMPLE_COLUMNS)}\\n"' in written
    samples = read_csv(tmp_path / "samples.csv")
    assert len(rows) == 6 and len(samples) == 6 * 21
    assert all(float(sample["peak_gflops"]) > 0 for sample in samples)
    torch_row = rows[1]
    assert (torch_row["kernel"], torch_row["library"], torch_row["isa"]) == ("torch_flash", "PyTorch 2.13.0", "avx512")
    assert all(float(row["peak_gflops"]) > 1 and float(row["peak_pct"]) > 0 and not row["bw_pct"] for row in rows)
    for row in rows:
        assert row["status"] == "PASS" and row["samples"] == "21" and row["baseline"] == "auto"
        assert 0 < float(row["max_err_ratio"]) <= 1 and row["rows_checked"] == "48"
    assert float(rows[0]["ratio"]) == 1 and rows[0]["warnings"].startswith("chose ")
    first = [sample for sample in samples if sample["case_id"] == rows[0]["case_id"]]
    times = {name: [float(sample["time_ns"]) for sample in first if sample["kernel"] == name]
             for name in ("auto", "torch_flash")}
    expected = harness.paired_ratio(times["auto"], times["torch_flash"])
    assert float(torch_row["ratio"]) == pytest.approx(expected.median, rel=1e-6)
    assert f"{1 / float(torch_row['ratio']):.3f} [{1 / float(torch_row['ratio_ci_hi']):.3f}" in done.stdout
    assert len(read_results([tmp_path / "out.csv"]).rows) == 6
    assert "A/A control" in done.stdout and "Holm-corrected over these 4 comparisons" in done.stdout


@pytest.mark.parametrize(("mode", "status", "reason", "code"), [
    ("wrong", "FAIL", "times the error limit", 1), ("late", "FAIL", "after timing", 1),
    ("refuses", "SKIP", "does not take this", 0), ("breaks", "ERROR", "out of luck", 1)])
def test_no_time_without_a_passed_check(script, mode, status, reason, code):
    done, rows = script(torch=FAKE_TORCH, FAKE_TORCH=mode)
    assert done.returncode == code, done.stderr
    assert [row["status"] for row in rows] == ["PASS", status, status]
    for row in rows[1:]:
        assert reason in row["reason"]
        assert not any(row[column] for column in COLUMNS[COLUMNS.index("samples"):COLUMNS.index("warnings")])
    assert "Holm" not in done.stdout


def test_torch_skips_cases_that_it_aligns_otherwise(script):
    done, rows = script("-a", "seq_q=8", "-a", "causal=bottom-right", torch=FAKE_TORCH)
    assert done.returncode == 0 and [row["status"] for row in rows] == ["PASS", "SKIP", "SKIP"]
    done, rows = script("-a", "seq_q=8", "-a", "causal=top-left", "-a", "heads_kv=1", torch=FAKE_TORCH)
    assert [row["status"] for row in rows] == ["PASS"] * 3, done.stdout


def test_mkl_can_be_told_to_use_its_fast_kernels(script):
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("no C compiler")
    done, rows = script("--mkl", "intel", torch=FAKE_TORCH)
    assert done.returncode == 0, done.stderr
    assert "MKL kernels: those for Intel's CPUs (--mkl intel)" in done.stdout  # the answer of the preloaded function
    assert rows[1]["library"] == "PyTorch 2.13.0, MKL as on Intel"
    preloaded = re.search(r"LD_PRELOAD=([^:\s]+)", done.stdout)[1]
    assert not Path(preloaded).exists()
    done, _ = script(torch=FAKE_TORCH)
    assert done.returncode == 0 and "MKL kernels: unknown" in done.stdout


def test_cold_caches_rotate_copies(script):
    done, rows = script("-a", "heads=1", "-a", "seq_q=1", "-a", "seq_k=8192", "-a", "head_dim=64", "-a", "cache=cold-kv",
                        torch=NO_TORCH)
    assert done.returncode == 0, done.stderr
    row = rows[0]
    assert row["status"] == "PASS" and row["case_id"].endswith("/threads:1/cache:cold-kv") and row["cache"] == "cold-kv"


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["-a", "sek=4"], 2, "did you mean 'seq_k'"), (["-k", "flash_avx"], 2, "did you mean"),
    (["--rounds", "20"], 2, "from 21 up"),
    (["--cases", "none"], 2, "limits"), (["-t", "0"], 2, "from 1 up"), (["--sample-ms", "-1"], 2, "above 0"),
    (["--cpus", "x"], 2, "numbers of CPUs"), (["--cpus", "9999"], 2, "are right"),
    (["--frobnicate"], 2, "frobnicate"), (["--libattn", "/no/libattn.so"], 2, "attn_shared"),
    (["--csv", "/no/such/folder/out.csv"], 5, "cannot be written")])
def test_wrong_arguments_are_explained_before_anything_runs(script, arguments, code, words):
    done, _ = script(*arguments, torch=NO_TORCH)
    assert done.returncode == code and words in done.stderr and "GFLOP/s" not in done.stdout


def test_nothing_that_could_run_is_a_skip(script, tmp_path):
    done, _ = script(torch=NO_TORCH, ATTN_KERNEL="nonsense")
    assert done.returncode == 77 and "ATTN_KERNEL=nonsense" in done.stdout and "SKIP" in done.stdout
    done = run_script("torch_sdpa.py", *SMALL, folder=tmp_path, modules={"numpy": ABSENT.format("numpy")})
    assert done.returncode == 77 and "pip install numpy" in done.stdout
