# SPDX-License-Identifier: MIT
"""attn-conformance: libattn passes all cases, wrong implementations fail, and the files are those that the script writes."""

import filecmp
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

import reference  # noqa: E402
from libattn import conformance  # noqa: E402
from libattn.conformance import DIFFERENT, FAIL, PASS, REFUSED, check_case, load_cases, peers, report  # noqa: E402
from libattn.conformance.runner import Results  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "make" / "conformance" / "write.py"


def run(*arguments, **settings):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **settings)


def test_libattn_passes_every_case():
    sdpa, _ = peers.find("libattn")
    verdicts = [check_case(case, sdpa) for case in load_cases()]
    wrong = [verdict for verdict in verdicts if verdict.status != PASS and "ml_dtypes" not in verdict.words]
    assert not wrong
    assert len(verdicts) >= 300


def test_files_are_those_that_the_script_writes(tmp_path):
    if not SCRIPT.exists():
        pytest.skip("no checkout")
    done = run(SCRIPT, "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    names = sorted(file.name for file in tmp_path.iterdir())
    folder = conformance.cases.FOLDER
    assert names == sorted(file.name for file in folder.iterdir())
    assert filecmp.cmpfiles(tmp_path, folder, names, shallow=False) == (names, [], [])
    sizes = [file.stat().st_size for file in folder.iterdir()]
    assert max(sizes) <= 200_000 and sum(sizes) <= 3_000_000


# ---- Planted faults ----------------------------------------------------------------------------------------------------

def right(q, k, v, dtype="float32", return_lse=False, **options):
    """The formulas in float64, of cases without packed or quantised keys."""
    if {"cu_seqlens_q", "page_table", "kv_format", "do"} & set(options):
        raise conformance.Refused("not here")
    o, lse = reference.attention(q, k, v, **options)
    return (o, lse) if return_lse else o


def poisoned(q, k, v, **options):
    """Masks by adding -inf and multiplying by 0."""
    shape = (*q.shape[:3], k.shape[2])
    allowed, _ = reference.allowed_keys(shape, **{n: options[n] for n in ("mask", "causal", "align") if n in options})
    with np.errstate(invalid="ignore"):
        s = np.where(allowed, 0, -np.inf) + np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[3])
        p = np.exp(s - s.max(-1, keepdims=True))
        return np.einsum("bhij,bhjd->bhid", p / p.sum(-1, keepdims=True), v)


def change(**changes):
    """right() with changed options: name -> function of the options."""
    def fault(q, k, v, **options):
        for name, value in changes.items():
            new = value(q, k, options)
            options.pop(name, None)
            if new is not None:
                options[name] = new
        return right(q, k, v, **options)
    return fault


def empty_rows(fill):
    def fault(q, k, v, **options):
        o = right(q, k, v, **options)
        shape = (*q.shape[:3], k.shape[2])
        names = ("mask", "bias", "causal", "align", "kv_len", "window")
        allowed, _ = reference.allowed_keys(shape, **{n: options[n] for n in names if n in options})
        return np.where(allowed.any(-1)[..., None], o, np.nan if fill is None else fill(q, k, v))
    return fault


def add_align(by):
    return change(align=lambda q, k, o: {"bottom_right": k.shape[2] - q.shape[2]}.get(o.get("align"), 0) + by
                  if not isinstance(o.get("align"), (int, np.ndarray)) else o["align"] + by)


FAULTS = {  # name -> function, the case meant for it, its verdict, the convention
    "mask off by one": (add_align(1), "causal/16x16", FAIL, ""),
    "mask off by one, other way": (add_align(-1), "alignment/bottom_right_3x5", FAIL, ""),
    "top-left for bottom-right": (change(align=lambda q, k, o: 0), "alignment/bottom_right_3x5", FAIL, ""),
    "bottom-right for the flag": (change(align=lambda q, k, o: o.get("align", "bottom_right")), "causal/3x5", DIFFERENT,
                                  "bottom_right"),
    "softcap before scale": (change(scores=lambda q, k, o: np.tanh(np.einsum("bhid,bhjd->bhij", q, k)) * o["scale"],
                                    score=lambda q, k, o: "precomputed", softcap=lambda q, k, o: None), "softcap/scale",
                             DIFFERENT, "softcap_before_scale"),
    "softcap left out": (change(softcap=lambda q, k, o: None), "softcap/cap_2", FAIL, ""),
    "masked NaN": (poisoned, "masked_nan/mask_v_nan", DIFFERENT, "masked_nan_spreads"),
    "masked NaN, causal": (poisoned, "masked_nan/causal_k_nan", DIFFERENT, "masked_nan_spreads"),
    "sinks ignored": (change(sinks=lambda q, k, o: None), "sinks/plain", FAIL, ""),
    "sinks scaled": (change(sinks=lambda q, k, o: o["sinks"] * o.get("scale", q.shape[3]**-0.5)), "sinks/plain", FAIL, ""),
    "scale twice": (change(scale=lambda q, k, o: o.get("scale", 1 / q.shape[3])), "plain/7x9", FAIL, ""),
    "scale left out": (change(scale=lambda q, k, o: 1), "plain/7x9", FAIL, ""),
    "scale ignored": (change(scale=lambda q, k, o: None), "scale/small", FAIL, ""),
    "bias transposed": (change(bias=lambda q, k, o: o["bias"].swapaxes(2, 3)), "bias/square", FAIL, ""),
    "bias scaled": (change(bias=lambda q, k, o: o["bias"] * o["scale"]), "bias/scaled_after", FAIL, ""),
    "mask transposed": (change(mask=lambda q, k, o: o["mask"].swapaxes(2, 3)), "mask/square", FAIL, ""),
    "mask inverted": (change(mask=lambda q, k, o: ~o["mask"]), "mask/square", DIFFERENT, "inverted_mask"),
    "heads modulo": (lambda q, k, v, **o: right(q, *(x[:, np.arange(q.shape[1]) % k.shape[1]] for x in (k, v)), **o),
                     "groups/4_2", DIFFERENT, "interleaved_heads"),
    "heads reversed": (lambda q, k, v, **o: right(q, k[:, ::-1], v[:, ::-1], **o), "groups/4_2", FAIL, ""),
    "window exclusive": (change(window=lambda q, k, o: [None if n is None else max(n - 1, 0) for n in o["window"]]),
                         "window/3_0", DIFFERENT, "window_exclusive"),
    "window one more": (change(window=lambda q, k, o: [n + 1 for n in o["window"]]), "window/3_0", FAIL, ""),
    "a key more than the length": (change(kv_len=lambda q, k, o: o["kv_len"] + 1), "long_rows/border_1000", FAIL, ""),
    "first key missed": (lambda q, k, v, **o: right(q, k[:, :, 1:], v[:, :, 1:], **o), "long_rows/first_1000", FAIL, ""),
    "empty rows NaN": (empty_rows(None), "empty_rows/mask", DIFFERENT, "empty_nan"),
    "empty rows: the mean": (empty_rows(lambda q, k, v: v.mean(2, keepdims=True)), "empty_rows/kv_len", DIFFERENT,
                             "empty_mean"),
    "empty rows: one": (empty_rows(lambda q, k, v: 1.0), "empty_rows/mask", FAIL, ""),
    "row of another sequence": (lambda q, k, v, **o: right(q, k[::-1], v[::-1], **o), "plain/batch_3_heads_1", FAIL, ""),
    "float16 sums": (lambda q, k, v, **o: right(*(x.astype(np.float16) for x in (q, k, v)), **o), "plain/7x9", FAIL, ""),
    "alibi signed": (change(alibi=lambda q, k, o: None, bias=lambda q, k, o: (np.arange(9) - np.arange(9)[:, None])
                            * np.array([0.5, 0.125]).reshape(1, 2, 1, 1)), "alibi/plain", DIFFERENT, "alibi_signed"),
}


def test_formulas_pass():
    statuses = {case.name: check_case(case, right).status for case in load_cases() if case.subject != "masked_nan"}
    assert {status for name, status in statuses.items() if "seen_nan" not in name} == {PASS, REFUSED}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name):
    fault, case, status, convention = FAULTS[name]
    verdict = check_case(load_cases(case)[0], fault)
    assert (verdict.status, verdict.words if status == DIFFERENT else "") == (status, convention), verdict


def test_other_logarithms_are_conventions():
    def base_two(*arguments, **options):
        o, logarithm = right(*arguments, **options)
        return o, logarithm / np.log(2)
    assert check_case(load_cases("lse/plain")[0], base_two).words == "lse_base_2"
    assert check_case(load_cases("lse/plain")[0], right).status == PASS


def test_limits_are_sharp_enough():
    """An error of 1e-4 of the values fails in every case of float32 with few keys."""
    def rough(*arguments, **options):
        return right(*arguments, **options) * (1 + 1e-4)
    verdicts = [check_case(case, rough) for case in load_cases("plain/*") if "float16" not in case.name]
    assert {verdict.status for verdict in verdicts} == {FAIL}


# ---- The command -------------------------------------------------------------------------------------------------------

PEER = '''
import os
import numpy as np

__version__ = "7"

def mine(q, k, v, causal=False):
    if q.shape[2] == 33:
        os.abort()
    s = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[3])
    if causal:
        s = np.where(np.tri(*s.shape[2:]), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhij,bhjd->bhid", p / p.sum(-1, keepdims=True), v)
'''


def test_command_runs_a_function(tmp_path):
    (tmp_path / "mypackage.py").write_text(PEER)
    done = run("-m", "libattn.conformance", "--peer", "mypackage:mine", "--cases", "causal/*", "--json", "r.json", "--html",
               "r.html", "--markdown", "r.md", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    said = json.loads((tmp_path / "r.json").read_text())
    statuses = {line["case"]: (line["status"], line["words"]) for line in said["verdicts"]}
    assert said["title"] == "mypackage:mine 7"
    assert statuses["causal/5x5"][0] == PASS
    assert statuses["causal/33x33"] == (FAIL, "the process ended by SIGABRT")
    status, words = statuses["causal/float16"]
    assert status == REFUSED and "unexpected keyword argument 'dtype'" in words
    assert "causal/3x5" in (tmp_path / "r.html").read_text() and "mypackage:mine 7" in (tmp_path / "r.md").read_text()
    assert "causal/33x33  the process ended by SIGABRT" in done.stdout


def test_published_matrix_is_that_of_its_results():
    published = ROOT / "results" / "conformance"
    if not published.exists():
        pytest.skip("no checkout")
    every = [Results.from_dict(json.loads(file.read_text(encoding="utf-8"))) for file in published.glob("*.json")]
    text = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    titles = text.split("| subject | ")[1].split(" |\n")[0].split(" | ")
    every.sort(key=lambda results: titles.index(results.title))
    assert report.markdown(every) in text
    assert (published / "matrix.html").read_text(encoding="utf-8") == report.page(every)


@pytest.mark.parametrize("arguments, code, words", [
    (["--peer", "nobody"], 2, "no peer 'nobody'; libattn, torch"),
    (["--peer", "no_such_package:f"], 77, "not installed"),
    (["--peer", "libattn", "--cases", "nothing/*"], 2, "no case matches"),
    ([], 2, "--peer, --from or --list is needed")])
def test_command_explains(arguments, code, words):
    done = run("-m", "libattn.conformance", *arguments)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
