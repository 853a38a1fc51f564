# SPDX-License-Identifier: MIT
"""scripts/peers: the scripts of the peers besides PyTorch, run_all.py with its table and figure, setup.sh. Installed peers
(.venv-peers) run on small cases; the others are absent, and a fake ggml is compiled here. Run by pytest; needs NumPy."""

import os
import re
import subprocess
import sys

import pytest
from peer_support import ABSENT, LIBRARY, PEERS_FOLDER, ROOT, SMALL, compiler, needs_library, np, one_case, run_script
from runs import read_csv

# peer_support adds their folders to the path.
import ggml_flash_attn
import onnxruntime_attention
import run_all
from libattn.bench.files import COLUMNS, write_csv
from libattn.bench.problems import INTEGERS, integers_of, row_bytes, store, stored_type
from pairing import combine
from pairing.cases import PRESETS, CaseError
from pairing.cases import title as title_of
from pairing.implementation import Refused, Usual
from pairing.peers import PEERS, WORDS, Peer

# The part of PyTorch that torch_linear.py uses. FAKE_TORCH=wrong: a product is 1 % too large.
LINEAR_TORCH = '''
import contextlib, os, types
import numpy as np
float32, inference_mode, set_num_threads = np.float32, contextlib.nullcontext, lambda threads: None
randn = lambda *shape, dtype: np.random.default_rng(1).standard_normal(shape).astype(dtype)
factor = np.float32(1.01 if os.environ.get("FAKE_TORCH") == "wrong" else 1)
nn = types.SimpleNamespace(functional=types.SimpleNamespace(linear=lambda x, w: x @ w.T * factor))
'''

KERNELS = [name for peer in PEERS.values() for name in peer.kernels]


@pytest.fixture
def script(tmp_path):
    """Runs the script of a peer. Returns the process and the rows of its CSV file. hide: modules that cannot be imported."""
    def run(name, *arguments, hide=(), **how):
        done = run_script(PEERS[name].script, *arguments, "--csv", tmp_path / "out.csv", folder=tmp_path,
                          modules={module: ABSENT.format(module) for module in hide}, **how)
        return done, read_csv(tmp_path / "out.csv")
    return run


# ---- The list of peers ----------------------------------------------------------------------------------------------

def test_every_peer_has_a_script_an_environment_and_words():
    for peer in PEERS.values():
        assert os.access(PEERS_FOLDER / peer.script, os.X_OK)
        pins = (PEERS_FOLDER / f"requirements-{peer.name}.txt").read_text(encoding="utf-8").splitlines()
        assert all("==" in line for line in pins if not line.startswith("#")) and any("numpy==" in line for line in pins)
        assert f"scripts/peers/setup.sh {peer.name}" in peer.install
        assert all(WORDS[name].startswith(peer.title) for name in peer.kernels)
    assert set(WORDS) == set(KERNELS)
    files = {path.name for path in PEERS_FOLDER.glob("requirements-*.txt")}
    assert files == {f"requirements-{name}.txt" for name in PEERS}


@pytest.mark.parametrize(("arguments", "code", "words"), [
    ([], 2, "no name"), (["jax"], 2, "no peer 'jax'"), (["--list"], 0, "onnxruntime: ")])
def test_setup_explains_itself(arguments, code, words):
    done = subprocess.run([PEERS_FOLDER / "setup.sh", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code and words in done.stdout + done.stderr


# ---- Absent ----------------------------------------------------------------------------------------------------------

@needs_library
@pytest.mark.parametrize(("name", "hidden"), [
    ("onnxruntime", ["onnx"]), ("openvino", ["openvino"]), ("vllm", ["torch"]), ("onednn", []), ("ggml", [])])
def test_an_absent_peer_is_a_row_with_the_command(script, name, hidden):
    peer = PEERS[name]
    done, rows = script(name, *SMALL, hide=hidden)
    assert done.returncode == 0, done.stderr
    rows = {row["kernel"]: row for row in rows}
    assert list(rows) == ["auto", *peer.kernels] and rows["auto"]["status"] == "PASS"
    remedy = "--ggml-lib" if name == "ggml" else f"scripts/peers/setup.sh {name}"
    for kernel in peer.kernels:
        if name == "onednn" and rows[kernel]["status"] == "PASS":
            continue  # this libattn has it
        assert rows[kernel]["status"] == "SKIP" and not rows[kernel]["time_ns_median"]
        assert remedy in rows[kernel]["reason"] or name == "onednn" and rows[kernel]["reason"]


@needs_library
def test_run_all_without_any_peer_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Peer, "interpreter", lambda _: None)
    assert run_all.main(["--quick", "-a", "dtype=f32", "-o", str(tmp_path)]) == 77
    rows = [row for name in PEERS for row in read_csv(tmp_path / f"{name}.csv")]
    assert len(rows) == len(KERNELS) * len(PRESETS["quick"]) and {row["status"] for row in rows} == {"SKIP"}
    told, table = capsys.readouterr().err, (tmp_path / "table.md").read_text(encoding="utf-8")
    for peer in PEERS.values():
        assert peer.install in told
        assert f"SKIP (every case): {peer.title} is not installed: {peer.install}" in table


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["jax"], 2, "no peer 'jax'"), (["--rounds", "20"], 2, "from 21 up"), (["-a", "sek=4"], 2, "did you mean 'seq_k'"),
    (["--from", "/no/such/folder"], 5, "earlier run"), (["-o", "/proc/none"], 5, "/proc/none")])
def test_wrong_arguments_of_run_all_are_explained(arguments, code, words):
    done = subprocess.run([sys.executable, PEERS_FOLDER / "run_all.py", *arguments], capture_output=True, text=True,
                          check=False)
    assert done.returncode == code and words in done.stderr


def test_run_all_passes_on_what_was_asked(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3})
    options = run_all.read_options(["--cases", "limits", "-a", "seq=64", "--sample-ms", "3"])
    passed = " ".join(run_all.passed_on(options))
    assert "--cases limits -a seq=64 --cpus 3 --threads 1 --rounds 21 --sample-ms 3.0" in passed
    options = run_all.read_options(["-t", "2"])
    passed = " ".join(run_all.passed_on(options))
    assert "--cases limits -a dtype=f32,bf16 --threads 2" in passed and "--cpus" not in passed


# ---- Semantics that differ from ours --------------------------------------------------------------------------------

@pytest.mark.parametrize(("operator", "axes", "words"), [
    ("ort_mha", ("heads=4", "heads_kv=2"), "KV heads"), ("ort_mha", ("seq_q=2", "causal=bottom-right"), "top-left"),
    ("ort_attention", ("seq_q=2", "causal=bottom-right"), "top-left"),
    ("ort_mha", ("page_tokens=16",), "no pages"), ("ort_attention", ("page_tokens=16",), "no pages"),
    ("ort_gqa", ("batch=9", "lengths=mixed", "page_tokens=16", "causal=bottom-right"), "as many queries of every"),
    ("ort_gqa", ("seq=8",), "always causal"), ("ort_gqa", ("seq_q=9", "seq_k=8"), "seq_q <= seq_k"),
    ("ort_gqa", ("seq_q=2", "seq_k=8", "causal=top-left"), "bottom-right")])
def test_onnx_operators_refuse_what_they_define_otherwise(operator, axes, words):
    with pytest.raises(Refused, match=words):
        next(each for each in onnxruntime_attention.OPERATORS if each.name == operator).refuse(one_case(*axes))


@pytest.mark.parametrize(("operator", "axes"), [
    ("ort_mha", ("seq_q=1",)), ("ort_attention", ("heads_kv=2", "causal=top-left")), ("ort_gqa", ("seq_q=1", "heads_kv=2")),
    ("ort_gqa", ("seq_q=3", "seq_k=8", "causal=bottom-right")), ("ort_gqa", ("seq=8", "causal=bottom-right"))])
def test_onnx_operators_take_what_they_define_alike(operator, axes):
    next(each for each in onnxruntime_attention.OPERATORS if each.name == operator).refuse(one_case(*axes))


def test_layouts_of_onnx_are_inverse():
    case = one_case("batch=2", "heads=3", "seq=5", "head_dim=4")
    x = np.arange(2 * 3 * 5 * 4, dtype=np.float32).reshape(2, 3, 5, 4)
    tokens = onnxruntime_attention.tokens_first(x)
    assert tokens.shape == (2, 5, 12) and (tokens[1, 4, 4:8] == x[1, 1, 4]).all()
    assert (onnxruntime_attention.heads_first(case, tokens) == x).all()


def test_ggml_masks_as_attn_aligns():
    assert ggml_flash_attn.causal_mask(one_case("seq=4")) is None
    mask = ggml_flash_attn.causal_mask(one_case("seq_q=2", "seq_k=4", "causal=bottom-right"))
    assert mask.dtype == np.float16 and (np.isfinite(mask[0, 0]) == [[1, 1, 1, 0], [1, 1, 1, 1]]).all()
    mask = ggml_flash_attn.causal_mask(one_case("seq_q=2", "seq_k=4", "causal=top-left"))
    assert (np.isfinite(mask[0, 0]) == [[1, 0, 0, 0], [1, 1, 0, 0]]).all()


# ---- A fake ggml -----------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def fake_ggml(tmp_path_factory):
    return make_fake_ggml(tmp_path_factory.mktemp("ggml"))


def make_fake_ggml(folder, *options):
    library = folder / "libggml.so"
    source = ROOT / "tests" / "scripts" / "fake_ggml.c"
    subprocess.run([compiler(), "-shared", "-fPIC", "-O2", *options, source, "-o", library, "-lm"], check=True)
    return library


@needs_library
def test_ggml_is_called_as_its_header_says(script, fake_ggml):
    done, rows = script("ggml", *SMALL, "-a", "heads=4", "-a", "heads_kv=2", "-a", "batch=2", "-a", "seq_q=8", "-a",
                        "causal=none,bottom-right,top-left", "--ggml-lib", fake_ggml)
    assert done.returncode == 0, done.stderr + done.stdout
    rows = [row for row in rows if row["kernel"] == "ggml_flash_attn_ext"]
    assert [(row["status"], row["library"]) for row in rows] == [("PASS", "ggml 0.0.1")] * 3
    _, rows = script("ggml", *SMALL, "-a", "dtype=bf16", "--ggml-lib", fake_ggml)
    assert "float32" in rows[1]["reason"]


@needs_library
def test_ggml_reads_blocks_of_8_and_4_bits(script, fake_ggml):
    done, rows = script("ggml", *SMALL, "-a", "head_dim=64", "-a", "dtype=f32+q8_0,f32+q4_0,f32+i8", "--ggml-lib", fake_ggml)
    assert done.returncode == 0, done.stderr + done.stdout
    rows = {(row["kernel"], row["dtype_kv"]): row for row in rows}
    assert [rows["auto", kept]["status"] for kept in ("q8_0", "q4_0", "i8")] == ["PASS"] * 3
    assert [rows["ggml_flash_attn_ext", kept]["status"] for kept in ("q8_0", "q4_0", "i8")] == ["PASS", "PASS", "SKIP"]
    assert rows["ggml_flash_attn_ext", "i8"]["reason"].endswith("of the type of its queries, or q8_0 or q4_0")


@needs_library
@pytest.mark.parametrize(("options", "status"), [([], "PASS"), (["-DLATE_VIEWS"], "FAIL")])
def test_ggml_reads_latent_rows_where_they_lie(script, tmp_path, options, status):
    done, rows = script("ggml", "--cases", "mla", "-a", "seq_k=40", "-a", "heads=4", "--sample-ms", "0.05", "--ggml-lib",
                        make_fake_ggml(tmp_path, *options))
    assert done.returncode == (status == "FAIL"), done.stderr + done.stdout
    rows = [row for row in rows if row["kernel"] == "ggml_flash_attn_ext"]
    assert [row["status"] for row in rows] == [status, "SKIP"] and rows[1]["reason"] == "flash_attn_ext has no pages"


def test_peers_without_latent_rows_refuse_them():
    for axes in (("dim_qk=16", "dim_v=8"), ("heads_kv=1", "latent=on")):
        with pytest.raises(Refused, match="arrays of one shape"):
            Usual(onnxruntime_attention.OPERATORS[1]).start(one_case(*axes), [])


@pytest.mark.parametrize("kept", ["i8", "q8_0", "q4_0", "e4m3"])
def test_formats_hold_the_same_integers(kept):
    most = INTEGERS[kept]
    integers = np.random.default_rng(3).integers(-most, most + 1, (2, 3, 64)).astype(np.float32)
    stored = store(integers, kept)
    assert stored.dtype == stored_type(kept) and stored.nbytes == 6 * row_bytes(64, kept)
    assert (integers_of(stored, kept) == integers).all()
    case = one_case(f"dtype=f32+{kept}", "heads=1", "head_dim=64", "seq=32")
    assert case.dtypes == f"f32+{kept}" and case.bytes_kv == 2 * 32 * row_bytes(64, kept)
    for x in case.arrays[1:]:
        assert most / 2 < np.abs(integers_of(x, kept)).max() <= most


def test_rows_of_onnx_have_two_elements_of_4_bits_a_byte():
    stored = store(np.float32([[*range(-7, 8), 0] * 2]), "q4_0")
    assert (onnxruntime_attention.quantised(stored, "q4_0")[0, :4] == [0x21, 0x43, 0x65, 0x87]).all()


def test_blocks_need_rows_of_whole_blocks():
    with pytest.raises(CaseError, match="head_dim is 48; with dtype f32[+]q8_0 a multiple of 32"):
        one_case("dtype=f32+q8_0", "head_dim=48")


@needs_library
def test_a_library_that_is_not_ggml_is_a_row(script, tmp_path):
    for path in (tmp_path / "none.so", LIBRARY):
        done, rows = script("ggml", *SMALL, "--ggml-lib", path)
        assert done.returncode == 0 and rows[1]["status"] == "SKIP" and "--ggml-lib" in rows[1]["reason"]


# ---- Installed peers ------------------------------------------------------------------------------------------------

@needs_library
@pytest.mark.parametrize("name", ["torch", "onnxruntime", "openvino", "vllm"])
def test_installed_peers_give_the_right_answer(script, name):
    peer, own = PEERS[name], ROOT / ".venv-peers" / name / "bin" / "python"
    if not own.exists():
        pytest.skip(f"{peer.title} is not installed: {peer.install}")
    in_pages, rows = ["-a", "page_tokens=32", "-a", "page_order=shuffled"], []
    latent = [word for axis in ("latent=on", "heads_kv=1", "dim_qk=576", "dim_v=512", "seq_q=1") for word in ("-a", axis)]
    latent_pages = [*latent, "-a", "page_tokens=16"]
    runs = {"torch": [[], latent], "vllm": [in_pages, latent_pages], "openvino": [[], in_pages]}
    for more in runs.get(name, [[]]):
        done, found = script(name, "--cases", "quick", "-a", "dtype=f32,f16,bf16", "--sample-ms", "0.05", *more,
                             interpreter=own)
        assert done.returncode == 0, done.stderr + done.stdout
        rows += [row for row in found if row["kernel"] != "auto"]
    assert {row["status"] for row in rows} <= {"PASS", "SKIP"}
    for kernel in peer.kernels:
        timed = [row for row in rows if row["kernel"] == kernel and row["status"] == "PASS"]
        assert {row["dtype_q"] for row in timed} >= {"f32"} and all(row["library"].startswith(peer.title) for row in timed)


# ---- One table and one figure ----------------------------------------------------------------------------------------

def result_row(kernel, case, time_ns=None, status="PASS", reason="", peak_pct="", slower=None, library="", warnings=""):
    """A row as the scripts write it. slower: (median, low, high) of its time over ours."""
    row = dict.fromkeys(COLUMNS, "") | {
        "kernel": kernel, "status": status, "reason": reason, "library": library, "dtype_q": case.dtype, "batch": case.batch,
        "heads_q": case.heads, "heads_kv": case.heads_kv, "seq_q": case.seq_q, "seq_k": case.seq_k, "dim_qk": case.head_dim,
        "causal": case.causal, "cache": case.cache, "threads": case.threads, "warnings": warnings}
    if time_ns:
        row |= {"time_ns_median": time_ns, "time_ns_ci_lo": 0.9 * time_ns, "time_ns_ci_hi": 1.25 * time_ns,
                "peak_pct": peak_pct, "peak_gflops": 100.0, "peak_gbs": 16.0 if case.is_decode else ""}
    if slower:
        row |= {"ratio": 1 / slower[0], "ratio_ci_lo": 1 / slower[2], "ratio_ci_hi": 1 / slower[1]}
    return {column: str(value) for column, value in row.items()}


PREFILL = one_case("heads=1", "seq=2048")
DECODE = one_case("heads=8", "seq_q=1", "seq_k=4096", "cache=cold-kv")  # 16 MiB of K and V
ROWS = [
    result_row("auto", PREFILL, 1e7, peak_pct=90.0, slower=(1, 1, 1)),
    result_row("auto", PREFILL, 2e7, peak_pct=80.0, slower=(1, 1, 1), warnings="A/A control: differs from itself by -1.7 %"),
    result_row("auto", PREFILL, 2e7, peak_pct=70.0, slower=(1, 1, 1)),
    result_row("auto", DECODE, 2.0**21, peak_pct=3.0, slower=(1, 1, 1)),
    result_row("torch_flash", PREFILL, 1.5e7, peak_pct=60.0, slower=(1.5, 1.25, 2),
               library="PyTorch 2.13.0, MKL as on Intel"),
    result_row("torch_flash", DECODE, status="FAIL", reason="3.7 times the error limit"),
    result_row("ort_mha", PREFILL, 1.25e7, peak_pct="", slower=(1.25, 1.2, 1.3), library="ONNX Runtime 1.31.1"),
    result_row("ort_mha", DECODE, 2.0**22, peak_pct=1.5, slower=(2, 1.9, 2.1), library="ONNX Runtime 1.31.1"),
    result_row("openvino_sdpa", PREFILL, status="SKIP", reason="no OpenVINO"),
    result_row("openvino_sdpa", DECODE, status="SKIP", reason="no OpenVINO"),
]


def test_the_table_holds_everything_once():
    lines = combine.markdown(combine.make_grids(ROWS), ["CPU: some"]).splitlines()
    assert lines[0] == "CPU: some  "
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert cells == [
        ["", "d64 s2048", "decode 8×4096×64"], ["---"] * 3,
        ["**libattn**, automatic choice", "80.0", "8.0"],
        ["PyTorch 2.13.0 flash, MKL as on Intel", "60.0", "FAIL"],
        ["ONNX Runtime 1.31.1 MultiHeadAttention", "no peak", "4.0"],
        ["OpenVINO ScaledDotProductAttention", "–", "–"],
        ["read loop", "", "16.0"],
        ["", "d64 s2048", "decode 8×4096×64"], ["---"] * 3,
        ["PyTorch 2.13.0 flash, MKL as on Intel", "1.500 [1.250, 2.000]", "FAIL"],
        ["ONNX Runtime 1.31.1 MultiHeadAttention", "1.250 [1.200, 1.300]", "2.000 [1.900, 2.100]"],
        ["OpenVINO ScaledDotProductAttention", "–", "–"],
        ["A/A control: ours differs from itself by", "1.7 %", "< 1 %"]]
    assert "- PyTorch flash, FAIL (decode 8×4096×64): 3.7 times the error limit" in lines
    assert "- OpenVINO ScaledDotProductAttention, SKIP (every case): no OpenVINO" in lines
    assert any("peak loop of 100 GFLOP/s" in line for line in lines)


def test_grids_are_apart_by_dtype_and_threads():
    other = [result_row("auto", one_case("heads=1", "seq=64", f"dtype={dtype}"), 1e3, peak_pct=1.0)
             for dtype in ("bf16", "f16")]
    two = result_row("auto", one_case("heads=1", threads=2), 1e3, peak_pct=1.0)
    grids = combine.make_grids([two, *other, *ROWS])
    assert [(grid.dtype, grid.threads) for grid in grids] == [("f32", 1), ("bf16", 1), ("f16", 1), ("f32", 2)]
    cell = grids[0].cells["auto", PREFILL]
    assert (cell.value, cell.low, cell.high) == (80.0, pytest.approx(70 / 1.25), pytest.approx(90 / 0.9)) and not cell.slower


@pytest.mark.parametrize(("axes", "title"), [
    (("heads=1", "seq=2048"), "d64 s2048"), (("heads=8", "seq=128"), "d64 s128 ×8 heads"),
    (("heads=1", "seq=512", "causal=bottom-right", "head_dim=128"), "d128 s512 causal"),
    (("heads=32", "heads_kv=8", "seq_q=1", "seq_k=8192", "head_dim=128"), "GQA decode 32/8×8192×128"),
    (("batch=16", "lengths=mixed", "page_tokens=16"), "mixed batch of 16"),
    (("batch=8", "heads_kv=2", "seq_q=1", "page_tokens=16"), "GQA decode 8×8/2×512×64"),
    (("heads=1", "seq_q=64", "seq_k=256", "batch=2"), "d64 s64×256 batch 2")])
def test_cases_have_short_titles(axes, title):
    assert title_of(one_case(*axes)) == title


def test_the_figure_shows_every_library_and_every_gap(tmp_path):
    pytest.importorskip("matplotlib")
    write_csv(tmp_path / "torch.csv", COLUMNS, ROWS)
    assert run_all.main(["--from", str(tmp_path)]) == 0
    assert (tmp_path / "peers-f32-1.png").stat().st_size > 10_000
    drawn = (tmp_path / "peers-f32-1.svg").read_text(encoding="utf-8").replace("\u00a0", " ")
    for words in ("libattn, automatic choice", "PyTorch 2.13.0 flash, MKL as on Intel", "80", "60   1.50×", "4.0   2.00×",
                  "FAIL", "SKIP", "no peak", "decode 8×4096×64",
                  "SKIP OpenVINO ScaledDotProductAttention (every case): no OpenVINO"):
        assert f">{words}</text>" in drawn, words


@needs_library
def test_dense_layers_beside_pytorchs(tmp_path):
    arguments = ["--rows", "1,9", "--sizes", "32x48", "--rounds", "6", "--product", "product_c"]
    done = run_script("torch_linear.py", *arguments, folder=tmp_path, library=(), modules={"torch": LINEAR_TORCH})
    assert done.returncode == 0, done.stderr
    assert "1 x 32 x 48" in done.stdout and "9 x 32 x 48" in done.stdout
    assert "float32, 1 threads, 2 shapes, torch: geometric mean" in done.stdout
    assert "2 shapes, openblas: geometric mean" in done.stdout and "onednn" not in done.stdout
    done = run_script("torch_linear.py", *arguments, folder=tmp_path, library=(), modules={"torch": LINEAR_TORCH},
                      FAKE_TORCH="wrong")
    assert done.returncode == 1 and "FAIL: differs from the baseline by" in done.stdout
    for script in ("torch_linear.py", "torch_gradients.py"):
        done = run_script(script, folder=tmp_path, library=(), modules={"torch": ABSENT.format("torch")})
        assert done.returncode == 77 and "scripts/peers/setup.sh torch" in done.stdout


@needs_library
@pytest.mark.parametrize("passes", ["backward", "both"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_beside_pytorchs_and_jaxs(tmp_path, dtype, passes):
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    arguments = ["--only", "48 x 64 x 64", "--rounds", "6", "--dtype", dtype, "--pass", passes]
    done = run_script("torch_gradients.py", *arguments, folder=tmp_path, library=())
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"best peer over ours, {dtype}, {passes}, 1 threads.*\n48 x 64 x 64 causal +[0-9.]+ x, ", done.stdout)
    assert all(peer in done.stdout for peer in ("torch_flash", "torch_math", "jax"))
