# SPDX-License-Identifier: MIT
"""examples/minilm: its program when it is asked for times over standard input, and compare.py on a model with random
weights, without PyTorch, with a fake PyTorch, and with the real one if .venv-peers has it. Run by pytest; needs NumPy."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import runs

np = pytest.importorskip("numpy")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "minilm"
PROGRAM = Path(os.environ.get("ATTN_TEST_EXAMPLES", ROOT / "build" / "examples")) / "example_minilm"
TORCH_PYTHON = ROOT / ".venv-peers" / "torch" / "bin" / "python"
sys.path.insert(0, str(FOLDER))

import compare  # noqa: E402

LAYERS, WIDTH, HIDDEN, VOCABULARY, POSITIONS = 6, 384, 1536, 30522, 512
WORDS = "[PAD] [UNK] [CLS] [SEP] . , the cat sleeps on a warm mat while rain taps against glass and nobody moves it".split()
SENTENCES = ["The cat sleeps.", "Rain taps against the warm glass, and nobody moves.", "A mat"]  # 6, 13 and 4 tokens

# The part of PyTorch that torch_encoder.py uses, in 20 ms or more. FAKE_TORCH=wrong: its last step is wrong.
FAKE_TORCH = '''
import contextlib, os, sys, time, types
import numpy as np
__version__ = "2.13.0+cpu"
__path__ = []
class Tensor(np.ndarray):
    view = np.ndarray.reshape
    def transpose(self, a, b): return self.swapaxes(a, b)
    def new_zeros(self, *shape): return from_numpy(np.zeros(shape, self.dtype))
    def numpy(self): return np.asarray(self)
from_numpy = lambda array: np.ndarray.view(array, Tensor)
arange = lambda n: from_numpy(np.arange(n))
set_num_threads = lambda n: None
class inference_mode(contextlib.ContextDecorator):
    def __enter__(self): pass
    def __exit__(self, *_): pass
def norm(x, shape, gain, bias, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(epsilon)) * gain + bias
def sdpa(q, k, v, attn_mask):
    s = np.where(attn_mask, q @ k.swapaxes(2, 3) / np.float32(q.shape[3] ** 0.5), np.float32(-np.inf))
    e = np.exp(s - s.max(3, keepdims=True))
    return from_numpy(np.asarray(e / e.sum(3, keepdims=True) @ v))
def gelu(x):  # the error of its erf is at most 1.5e-7: Abramowitz & Stegun, 7.1.26
    z = abs(x) / np.float32(2**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    tail = np.exp(-z * z) * t * np.polyval([1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592], t)
    return (x * np.float32(0.5) * (1 + np.sign(x) * (1 - tail))).astype(np.float32)
def normalize(x):
    time.sleep(0.02)
    if os.environ.get("FAKE_TORCH") == "wrong": x = x + np.arange(x.shape[1])
    return x / np.sqrt((x * x).sum(1, keepdims=True))
nn = types.ModuleType("torch.nn")
nn.functional = types.SimpleNamespace(linear=lambda x, w, b: x @ w.T + b, layer_norm=norm, gelu=gelu, normalize=normalize,
                                      scaled_dot_product_attention=sdpa)
sys.modules["torch.nn"] = nn
'''


def layer_shapes(layer):
    for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
        yield f"{layer}{name}", (WIDTH, WIDTH)
    yield f"{layer}intermediate.dense", (HIDDEN, WIDTH)
    yield f"{layer}output.dense", (WIDTH, HIDDEN)


def random_tensors():
    """A model of the right shapes whose activations are of size 1. The embeddings of unused words are 0."""
    rng = np.random.default_rng(1)
    normal = lambda *shape: rng.standard_normal(shape, np.float32)
    words = np.zeros((VOCABULARY, WIDTH), np.float32)
    words[:len(WORDS)] = normal(len(WORDS), WIDTH)
    tensors = {"embeddings.word_embeddings.weight": words, "embeddings.position_embeddings.weight": normal(POSITIONS, WIDTH),
               "embeddings.token_type_embeddings.weight": normal(2, WIDTH)}
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{n}." for n in range(LAYERS)):
        norms += [layer + "attention.output.LayerNorm", layer + "output.LayerNorm"]
        for name, (rows, columns) in layer_shapes(layer):
            tensors[name + ".weight"] = normal(rows, columns) / np.float32(columns**0.5)
            tensors[name + ".bias"] = normal(rows) / 8
    for name in norms:
        tensors[name + ".weight"], tensors[name + ".bias"] = 1 + normal(WIDTH) / 8, normal(WIDTH) / 8
    return tensors


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tensors, header, at = random_tensors(), {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    blob = json.dumps(header).encode()
    blob += b" " * (-len(blob) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(blob).to_bytes(8, "little") + blob)
        for tensor in tensors.values():
            file.write(tensor.astype("<f4").tobytes())
    config = {"num_hidden_layers": LAYERS, "num_attention_heads": 12, "layer_norm_eps": 1e-12}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "sentences.txt").write_text("\n".join(SENTENCES) + "\n")
    (folder / "tokens.txt").write_text("2 4 5 6 3\n\n2 8 9 10 11 12 13 3\n")
    return folder


# ---- The program, asked for times -------------------------------------------------------------------------------------

@pytest.fixture
def waiting(model, tmp_path):
    """Starts minilm --rounds, which the end of the test kills."""
    started = []

    def start(*arguments):
        command = [PROGRAM, model / "model.safetensors", model / "tokens.txt", tmp_path / "out.csv", "--rounds", *arguments]
        started.append(subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]
    yield start
    for process in started:
        process.kill()
        process.communicate()


def ask(process, runs):
    print(runs, file=process.stdin, flush=True)
    return process.stdout.readline()


@pytest.mark.parametrize("padding", [[], ["--padded"]])
def test_every_line_is_answered_with_a_time_and_the_end_with_shares(waiting, tmp_path, padding):
    process = waiting("--kernel", "naive_c", *padding)
    assert process.stdout.readline() == "naive_c\n"
    assert np.loadtxt(tmp_path / "out.csv", delimiter=",").shape == (2, WIDTH)  # written before the first question
    assert all(float(ask(process, runs)) > 0 for runs in (1, 3))
    rest, _ = process.communicate()
    assert process.returncode == 0
    shares = [float(share) for share in re.findall(r"([\d.]+) %", rest)]
    assert rest.startswith("time in naive_c: projections ") and len(shares) == 5
    assert sum(shares) == pytest.approx(100, abs=0.3)


def test_a_sample_of_more_runs_takes_longer_but_says_the_time_of_one(waiting):
    process = waiting("--kernel", "naive_c")
    process.stdout.readline()
    ask(process, 1)
    begin = time.perf_counter()
    one = float(ask(process, 1))
    between = time.perf_counter()
    many = float(ask(process, 30))
    assert time.perf_counter() - between > 5 * (between - begin)  # 31 runs against 2
    assert one / 5 < many < one * 5


def test_no_thread_spins_while_the_program_waits(waiting):
    process = waiting("--threads", "2")
    process.stdout.readline()
    assert float(ask(process, 1)) > 0
    time.sleep(compare.SPIN_PAUSE_S)
    before = cpu_seconds(process.pid)
    time.sleep(0.3)
    assert cpu_seconds(process.pid) - before <= 0.03  # a spinning worker would take 0.3


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_packed_and_padded_batches_have_the_same_embeddings(waiting, tmp_path):
    found = []
    for padding in ([], ["--padded"]):
        waiting(*padding).stdout.readline()
        found.append(np.loadtxt(tmp_path / "out.csv", delimiter=","))
    assert np.abs(found[0] - found[1]).max() < 1e-6


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["--kernel", "flush_c"], 1, "no kernel of this build is called"), (["--kernel"], 2, "usage"), (["--fast"], 2, "usage")])
def test_wrong_arguments_are_explained(waiting, arguments, code, words):
    command = waiting(*arguments).args
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert done.returncode == code and words in done.stdout + done.stderr


# ---- Rounds ----------------------------------------------------------------------------------------------------------

class Clockwork:
    """A side that takes `milliseconds` per sentence. Its log says who was asked for how many runs, in order."""

    def __init__(self, name, milliseconds, log):
        self.name, self.milliseconds, self.log = name, milliseconds, log

    def time(self, runs):
        self.log.append((self.name, runs))
        return self.milliseconds * (1 + 0.001 * len(self.log))


def test_each_side_is_timed_once_per_round_in_changing_order():
    log = []
    times = compare.measure({name: Clockwork(name, ms, log) for name, ms in (("a", 1), ("b", 2), ("c", 40))}, 4, 12, 0.0)
    assert [len(values) for values in times.values()] == [12, 12, 12]
    runs = dict(log[3:])
    assert runs == {"a": 5, "b": 3, "c": 1}  # 20 ms, at 4 sentences a run
    rounds = [tuple(name for name, _ in log[at:at + 3]) for at in range(3, len(log), 3)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds) and len(set(rounds)) >= 3
    assert all(sum(names[place] == name for names in rounds) == 4 for place in range(3) for name in "abc")


def test_ratios_are_those_of_the_rounds(capsys):
    ours = [1.0 + 0.5 * (n % 7) for n in range(21)]  # noise that both sides share
    theirs = [time * (2 if n % 2 else 4) for n, time in enumerate(ours)]
    compare.print_times({"ours, packed": ours, "ours, padded": [3 * time for time in ours], "ours, again": ours,
                         "PyTorch, packed": theirs, "PyTorch, padded": [6 * time for time in ours]})
    printed = ratios_of(capsys.readouterr().out)
    ratio, low, high = printed["same work, packed"]
    assert ratio == pytest.approx(2 ** (20 / 13), abs=1e-3)  # four of 21 logarithms are left out at each end
    assert 2 < low < ratio < high < 4
    assert printed["same work, padded"] == [2, 2, 2]
    assert printed["packed by us, padded by PyTorch"] == [6, 6, 6]
    assert printed["ours against itself (noise)"] == [1, 1, 1]


def ratios_of(printed):
    """words -> [ratio, low, high], of the lines that end in an interval."""
    found = re.findall(r"^(.+?) +([\d.]+)  \[([\d.]+), ([\d.]+)\]$", printed, re.MULTILINE)
    return {words: [float(number) for number in numbers] for words, *numbers in found}


# ---- compare.py from end to end -----------------------------------------------------------------------------------------

@pytest.fixture
def run(model, tmp_path):
    def start(*arguments, torch=None, python=sys.executable, **environment):
        (tmp_path / "modules").mkdir()
        if torch:
            (tmp_path / "modules" / "torch.py").write_text(torch)
        environment["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's threads would wait for work in a loop
        given = [PROGRAM, "--model", model, "--sentences", model / "sentences.txt", *arguments]
        return runs.run([python, FOLDER / "compare.py", *given], PYTHONPATH=str(tmp_path / "modules"),
                        PYTHONDONTWRITEBYTECODE="1", **environment)
    return start


NO_TORCH = 'raise ImportError("No module named \'torch\'", name="torch")\n'
OURS = ["what packing saves us", "ours against itself (noise)"]
AGAINST = ["same work, packed", "same work, padded", "packed by us, padded by PyTorch"]


def assert_compared(done, comparisons, sides):
    """Fails unless the output is complete and its numbers are consistent."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("3 sentences of 4 to 13 tokens: 23 rows packed, 39 padded; packing saves 41 % of every")
    assert re.search(r"^naive_c +[\d.]+$", done.stdout, re.MULTILINE)  # one of the kernels, one by one
    found = ratios_of(done.stdout)
    assert sorted(found) == sorted([*comparisons, *sides])
    assert all(low <= middle <= high for middle, low, high in found.values())
    assert re.search(r"^ours, packed: time in \w+: projections [\d.]+ %, attention [\d.]+ %, feed-forward [\d.]+ %, "
                     r"add & norm [\d.]+ %, the rest [\d.]+ %$", done.stdout, re.MULTILINE)
    assert "\nours, padded: time in " in done.stdout and not done.stderr


def test_without_torch_our_own_batches_are_compared(run):
    done = run("--rounds", 11, torch=NO_TORCH)
    assert_compared(done, OURS, ["ours, packed", "ours, padded"])
    assert "PyTorch: not installed, so its time is missing (scripts/peers/setup.sh torch)" in done.stdout


INTEL = "those for Intel's CPUs (--mkl intel)"
LONG = [(["--threads", 1, "--mkl", "intel"], INTEL), (["--threads", 2], "unknown")]
SHORT = [(["--threads", 2, "--mkl", "intel"], INTEL)]


@pytest.mark.parametrize(("arguments", "mkl"), LONG if os.environ.get("ATTN_TEST_LONG") else SHORT)
def test_with_torch_both_sides_are_timed_in_turn(run, arguments, mkl):
    done = run("--rounds", 11, "--kernel", "naive_c", *arguments, torch=FAKE_TORCH, OMP_WAIT_POLICY="active")
    if "needs a C compiler" in done.stderr:
        pytest.skip("no C compiler")
    assert_compared(done, [*OURS, *AGAINST], ["ours, packed", "ours, padded", "PyTorch, packed", "PyTorch, padded"])
    assert re.findall(r"^(\w+_\w+) +[\d.]+$", done.stdout, re.MULTILINE) == ["naive_c"]  # a named kernel is the only one
    assert "in turn, 11 rounds: naive_c;" in done.stdout and "ours, packed: time in naive_c: " in done.stdout
    assert f"PyTorch 2.13.0, its MKL kernels: {mkl}" in done.stdout  # the answer of the preloaded function
    assert "OMP_WAIT_POLICY" not in done.stdout  # unset, because workers must sleep while the other side is timed
    found = ratios_of(done.stdout)
    assert all(found[f"PyTorch, {name}"][0] >= 20 / len(SENTENCES) for name in ("packed", "padded"))


def test_wrong_embeddings_of_torch_are_a_failure(run):
    done = run("--rounds", 11, "--kernel", "naive_c", torch=FAKE_TORCH, FAKE_TORCH="wrong")
    assert done.returncode == 1
    assert float(re.search(r"PyTorch, padded (\S+)", done.stdout)[1]) > compare.TOLERANCE


def test_the_real_torch_agrees(run):
    if not TORCH_PYTHON.exists():
        pytest.skip("PyTorch is not in .venv-peers: scripts/peers/setup.sh torch")
    done = run("--rounds", 11, "--threads", 2, python=TORCH_PYTHON)
    assert_compared(done, [*OURS, *AGAINST], ["ours, packed", "ours, padded", "PyTorch, packed", "PyTorch, padded"])


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["--rounds", 10], 2, "from 11 up"), (["--threads", 0], 2, "from 1 up"),
    (["--kernel", "flush_c"], 1, "no kernel of this build is called")])
def test_wrong_arguments_of_compare_are_explained(run, arguments, code, words):
    done = run(*arguments, torch=NO_TORCH)
    assert done.returncode == code and words in done.stdout + done.stderr
