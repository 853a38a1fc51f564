# SPDX-License-Identifier: MIT
"""libattn.bench: what is checked, what is timed, tables, files and figures. No test depends on how fast anything is."""

import contextlib
import csv
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

import libattn  # noqa: E402
from libattn import bench  # noqa: E402
from libattn.bench import places, rounds  # noqa: E402
from libattn.bench.problems import Given  # noqa: E402

QUICK = {"rounds": 7, "sample_ms": 0.05}


def often(q, k, v, **options):
    for _ in range(30):
        out = libattn.sdpa(q, k, v, threads=1, **options)
    return out


def once(q, k, v, **options):
    return libattn.sdpa(q, k, v, threads=1, **options)


def off_by_one_key(q, k, v, causal=False, align=None):
    return libattn.sdpa(q, k, v, window=(None, 1))


def refuses(q, k, v, **options):
    raise NotImplementedError("not today")


def rows_of(found):
    return {(row.case, row.function): row for row in found.rows}


def test_checked_timed_and_compared():
    case = "heads=2 seq=40 causal=bottom-right"
    found = bench.compare({"once": once, "often": often, "wrong": off_by_one_key, "refuses": refuses}, [case], **QUICK)
    rows = rows_of(found)
    assert [rows[case, name].status for name in ("once", "often", "wrong", "refuses")] == ["PASS", "PASS", "FAIL", "ERROR"]
    assert "times the error limit at 0:" in rows[case, "wrong"].reason
    assert rows[case, "refuses"].reason == "NotImplementedError: not today"
    assert not rows[case, "wrong"].times_ns  # only what passes is timed
    assert len(rows[case, "once"].times_ns) == len(rows[case, "once again"].times_ns) == 7
    assert len(rows[case, "often"].peak_rates) in (0, 7)  # 0 without a loop for this CPU
    slow = rows[case, "often"].ratio
    assert slow.median < 0.5  # 30 calls
    assert slow.low <= slow.median <= slow.high
    assert rows[case, "often"].p <= 1
    assert found.noise(case) > 0
    assert all(word in str(found) for word in ("often", "wrong", "FAIL", "not today", "against itself"))


def test_a_handler_of_a_signal_is_an_error(monkeypatch):
    case, timing, before = "heads=2 seq=40", [], signal.getsignal(signal.SIGUSR1)
    schedule = rounds.schedule
    monkeypatch.setattr(rounds, "schedule", lambda *arguments: timing.append(True) or schedule(*arguments))

    def sets_one(q, k, v, **options):
        if timing:
            signal.signal(signal.SIGUSR1, lambda *_: None)
        return once(q, k, v, **options)

    try:
        rows = rows_of(bench.compare({"once": once, "sets one": sets_one}, [case], **QUICK))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert rows[case, "once"].status == "PASS"
    assert rows[case, "sets one"].status == "ERROR"
    assert f"sets a handler of signal {signal.SIGUSR1.value}" in rows[case, "sets one"].reason


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_dtypes(dtype):
    if dtype == "bf16":
        pytest.importorskip("ml_dtypes")
    found = bench.compare({"once": once}, [f"dtype={dtype} heads=4 heads_kv=2 seq_q=3 seq_k=50"], **QUICK)
    assert {row.status for row in found.rows} == {"PASS"}


def test_arguments_of_the_caller():
    def double(x, plus=0):
        return 2 * x + plus

    functions = {"double": double, "sum": lambda x, plus=0: x + x + plus, "wrong": lambda x, plus=0: x,
                 "text": lambda *x, **y: "2"}
    x = np.arange(5, dtype=np.float32)
    rows = rows_of(bench.compare(functions, {"a": (x,), "b": {"x": x, "plus": 1}}, **QUICK))
    for case in "ab":
        assert [rows[case, name].status for name in functions] == ["PASS", "PASS", "FAIL", "FAIL"]
    assert "differs from the baseline by 4" in rows["a", "wrong"].reason


def test_every_round_has_its_own_placement(monkeypatch):
    """Copies of the arguments, the same for all functions of a round, and plans that are made anew for every sample."""
    seen, forgotten = [], []

    def watch(x, y, text, again):
        assert x is again and np.array_equal(x, np.arange(6, dtype=np.float32)) and text == "the same"
        seen.append((x.ctypes.data, y.ctypes.data))
        return x + y.sum()

    monkeypatch.setattr(places, "forget_plans", lambda: forgotten.append(True))
    x, y = np.arange(6, dtype=np.float32), np.ones(3)
    found = bench.compare({"watch": watch}, {"a": (x, y, "the same", x)}, rounds=7, sample_ms=0.01)
    assert found.placing == {"a": (7, 1)} and {row.status for row in found.rows} == {"PASS"}
    assert len(set(seen)) == 7 and (x.ctypes.data, y.ctypes.data) not in seen
    assert all(address % 64 == 0 for pair in seen for address in pair)
    assert len(forgotten) == 7 * 2  # for the function and its control


def test_few_placements_where_arguments_are_large(monkeypatch):
    monkeypatch.setattr(places, "MOST_BYTES", 5 * 4000)
    few = places.Places(Given([np.ones(1000, np.float32)]), 21, 1)
    assert (few.count, few.length) == (5, 4)
    copies = [few.of_round(index) for index in (0, 3, 4, 19, 20)]
    assert [copy == [few.copies[0]] for copy in copies] == [True, True, False, False, True]


def test_cold_caches_have_copies_in_other_places():
    problem = bench.Problem("heads=8 seq_q=1 seq_k=1024 cache=cold-kv")
    cold = places.Places(problem, 21, 1)
    rotations = [copy.arrays for copy in cold.of_round(5)]
    assert len(rotations) > 1 and len({k.ctypes.data for _, k, _ in rotations}) == len(rotations)
    assert all((v == problem.arrays[2]).all() and q is rotations[0][0] for q, _, v in rotations)
    assert (cold.count, cold.length) == (21, 1)


LATENT = "heads=4 heads_kv=1 seq_q=1 seq_k=40 dim_qk=24 dim_v=16 latent=on"


@pytest.mark.parametrize("more", ["", " cache=cold-kv", " page_tokens=16", " page_tokens=16 cache=cold-kv"])
def test_latent_rows_stay_one_array(more):
    problem = bench.Problem(LATENT + more)
    assert (problem.head_dim, problem.dim_v, problem.bytes_kv) == (24, 16, 40 * 24 * 4)
    assert problem.bytes == 4 * (4 * 24 + 40 * 24 + 4 * 16) and problem.flops == 2 * 4 * 40 * (24 + 16)
    for copy in places.Places(problem, 7, 1).copies:
        _, k, v = copy.arrays
        assert places.has_columns(k, v) and v.shape == (*k.shape[:-1], 16) and k is not problem.arrays[1]
        assert (k == problem.arrays[1]).all()
    found = bench.compare({"ours": once, "late": lambda q, k, v, **how: once(q, k, k[..., 1:17], **how),
                           "copied": lambda q, k, v, **how: once(q, k, v.copy(), **how)}, [problem], **QUICK)
    assert [row.status for row in found.rows] == ["PASS", "FAIL", "PASS", "PASS"]
    assert found.rows[0].problem.columns()["dim_v"] == 16


class Doubled:
    """Prepares its calls beforehand, with an output of its own; started counts what was prepared."""

    def __init__(self, fails=None, refuses=False):
        self.fails, self.refuses, self.started, self.late = fails, refuses, [], False

    @contextlib.contextmanager
    def start(self, problem, arrays):
        if self.refuses:
            raise bench.Refused("only even heads")
        out = np.empty_like(arrays[0][0])
        self.started.append((len(arrays), arrays[0][0].ctypes.data))

        def call(q, k, v):
            if not (self.fails == "idle" or self.fails == "late" and self.late):
                libattn.sdpa(q, k, v, out=out, threads=1)

        yield bench.Prepared([functools.partial(call, *one) for one in arrays], output=lambda _: out,
                             rounding=bench.Rounding(1e-6), facts={"library": "Doubled 1"}, note="a note",
                             poison=lambda: out.fill(np.nan))
        self.late = len(self.started) > 7


def test_objects_that_prepare_their_calls():
    """They are prepared anew for every sample, in another place, and their outputs are checked before and after."""
    prepared, case = Doubled(), "heads=2 seq=24"
    found = bench.compare({"once": once, "prepared": prepared, "idle": Doubled("idle"), "late": Doubled("late"),
                           "refuses": Doubled(refuses=True)}, [case], **QUICK)
    rows = rows_of(found)
    names = ("once", "prepared", "idle", "late", "refuses")
    assert [rows[case, name].status for name in names] == ["PASS", "PASS", "FAIL", "FAIL", "SKIP"]
    assert rows[case, "refuses"].reason == "only even heads"
    assert rows[case, "late"].reason.startswith("after timing: ") and not rows[case, "late"].times_ns
    assert [count for count, _ in prepared.started] == [7, 1] + 7 * [1]  # checked, calibrated, timed
    assert len({address for _, address in prepared.started[2:]}) == 7
    columns = {row["kernel"]: row for row in found.columns()}
    assert columns["prepared"]["library"] == "Doubled 1" and 0 < columns["prepared"]["max_err_ratio"] <= 1
    assert columns["prepared"]["rows_checked"] == 48 and rows[case, "prepared"].note == "a note"
    assert columns["once"]["ratio"] == 1 and set(columns) == set(names)


def test_decoding_has_shares_of_the_read_loop():
    found = bench.compare({"once": once}, ["heads=2 seq_q=1 seq_k=512", "seq=8"], **QUICK)
    decode, prefill = found.rows[0], found.rows[2]
    assert len(decode.read_rates) in (0, 7) and not prefill.read_rates  # 0 without a loop for this CPU
    decode.times_ns, decode.read_rates = [10, 20], [51.2e9, 25.6e9]  # 524288 bytes of K and V
    assert decode.read_pct == pytest.approx(100 * 1024)


def test_an_interruption_keeps_what_is_done():
    def interrupted(q, k, v):
        if q.shape[2] == 20:
            raise KeyboardInterrupt
        return once(q, k, v)

    found = bench.compare({"once": interrupted}, ["seq=16", "seq=20", "seq=24"], **QUICK)
    assert found.interrupted
    assert [row.case for row in found.rows] == ["seq=16"] * 2
    assert found.noise("seq=16") > 0


def test_mistakes():
    for kind, sentence, cases, options in (
            (ValueError, "at least 6", ["seq=4"], {"rounds": 5}),
            (ValueError, "must be one of once", ["seq=4"], {"baseline": "x"}),
            (bench.CaseError, "no axis 'sek'", ["sek=4"], {}), (bench.CaseError, "whole number", ["seq=x"], {}),
            (bench.CaseError, "dense cases", ["seq=4 causal=offset"], {})):
        with pytest.raises(kind, match=sentence):
            bench.compare({"once": once}, cases, **options)


def test_tables_files_and_figures(tmp_path, monkeypatch):
    found = bench.compare({"once": once, "often": often}, ["seq=16", "seq=20"], **QUICK)
    found.write(tmp_path)
    with open(tmp_path / "results.csv", newline="", encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    assert [(row["kernel"], row["seq_q"], row["samples"]) for row in written] == [
        ("once", "16", "7"), ("often", "16", "7"), ("once", "20", "7"), ("often", "20", "7")]
    assert float(written[1]["ratio"]) == pytest.approx(found.rows[1].ratio.median)
    assert len((tmp_path / "samples.csv").read_text(encoding="utf-8").splitlines()) == 1 + 6 * 7
    assert [record["function"] for record in found.records()] == ["once", "often"] * 2
    assert repr(found) == str(found)  # notebooks show it
    with monkeypatch.context() as without:
        for package, call in (("pandas", found.frame), ("pandas", found.samples),
                              ("matplotlib", found.plot)):
            without.setitem(sys.modules, package, None)
            without.setitem(sys.modules, f"{package}.figure", None)
            with pytest.raises(ModuleNotFoundError, match=rf"\(\) needs {package}: python3 -m pip install {package}"):
                call()
    try:
        import pandas  # noqa: F401
    except ImportError:
        pass
    else:
        assert list(found.frame()["case"]) == ["seq=16", "seq=16", "seq=20", "seq=20"]
        assert len(found.samples()) == 6 * 7
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text(encoding="utf-8").count("<!-- seq=") == 2  # text becomes paths


def test_program(tmp_path):
    command = [sys.executable, "-m", "libattn.bench", "--rounds", "6", "--sample-ms", "0.05"]
    environment = {**os.environ, "PYTHONPATH": str(Path(libattn.__file__).parents[1])}

    def run(*arguments):
        return subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, check=False)

    done = run("--output", tmp_path, "seq=16")
    assert done.returncode == 0, done.stderr
    assert "numpy" in done.stdout
    assert (tmp_path / "results.csv").exists()
    for arguments, sentence in ((["sek=16"], "no axis 'sek'"), (["--threads", "0"], "threads is 0; it must be in 1.."),
                                (["--threads", "999999"], "threads is 999999; it must be in 1.."),
                                (["--output", tmp_path / "results.csv" / "x"], "output: [Errno")):
        done = run(*arguments)
        assert done.returncode == 2
        assert sentence in done.stderr
