# SPDX-License-Identifier: MIT
"""examples/llm on small random models that this file writes, beside the same models in float64. Run by pytest; needs NumPy.
test_llm_models.py compares with transformers."""

import itertools
import json
import os
import struct
import subprocess
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("ATTN_TEST_EXAMPLES", ROOT / "build" / "examples")) / "example_llm"

SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 23, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
KINDS = {"llama": {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 500.0, "eos_token_id": None},
         "mistral": {"sliding_window": 4}, "qwen2": {"tie_word_embeddings": True}, "qwen3": {},
         "gemma2": {"sliding_window": 4, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0,
                    "final_logit_softcapping": 3.0, "hidden_activation": "gelu_pytorch_tanh"}}
SEEDS = {"llama": 0, "mistral": 0, "qwen2": 2, "qwen3": 0, "gemma2": 0}  # texts of many tokens
PROMPTS = [[5, 17, 3, 8, 20, 1, 2], [9], [15, 2, 22]]


def weights_of(kind, config):
    r = np.random.default_rng(SEEDS[kind])
    width, hidden, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    columns = {"q": config["num_attention_heads"] * dim, "k": config["num_key_value_heads"] * dim}
    columns["v"] = columns["k"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    if kind not in ("qwen2", "gemma2"):
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    for i in range(config["num_hidden_layers"]):
        own = {f"self_attn.{part}_proj.weight": (n, width) for part, n in columns.items()}
        own |= {f"self_attn.{part}_proj.bias": (n,) for part, n in columns.items() if kind == "qwen2"}
        own |= {"self_attn.o_proj.weight": (width, columns["q"]), "mlp.gate_proj.weight": (hidden, width),
                "mlp.up_proj.weight": (hidden, width), "mlp.down_proj.weight": (width, hidden),
                "input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,)}
        if kind == "qwen3":
            own |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
        if kind == "gemma2":
            own |= {f"{place}_feedforward_layernorm.weight": (width,) for place in ("pre", "post")}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in own.items()}
    return {name: (r.standard_normal(shape) / 3 + ("norm" in name)).astype(np.float32) for name, shape in shapes.items()}


def rounded(weights):
    """To bfloat16, as float32."""
    return {name: ((w.view(np.uint32) + 0x8000) & 0xffff0000).view(np.float32) for name, w in weights.items()}


def save(folder, config, weights, dtype="F32", files=1, odd=None):
    """odd: a tensor that is bfloat16."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(weights)
    for part in range(files):
        path = "model.safetensors" if files == 1 else f"model-{part + 1:05d}-of-{files:05d}.safetensors"
        header, data = {"__metadata__": {"format": "pt"}}, b""
        for name in names[part::files]:
            bits = weights[name].view(np.uint32)
            own = "BF16" if name == odd else dtype
            new = (bits >> 16).astype(np.uint16).tobytes() if own == "BF16" else bits.tobytes()
            header[name] = {"dtype": own, "shape": weights[name].shape, "data_offsets": [len(data), len(data) + len(new)]}
            data += new
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (folder / path).write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def rms(x, gain, config):
    gain = gain + (config["model_type"] == "gemma2")
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * gain


def rotate(x, config):
    """x [tokens, heads, dim]"""
    half = x.shape[-1] // 2
    theta = config.get("rope_theta", 10000.0) ** (-np.arange(half) / half)
    angle = np.arange(len(x))[:, None, None] * theta / config.get("rope_scaling", {}).get("factor", 1)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def activation(x, config):
    if config["model_type"] == "gemma2":
        return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    return x / (1 + np.exp(-x))


def softcap(x, cap):
    return cap * np.tanh(x / cap) if cap else x


def logits_of(weights, config, tokens):
    """Logits after the last token, in float64."""
    heads, groups, dim = (config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    gemma = config["model_type"] == "gemma2"
    x = weights["model.embed_tokens.weight"][tokens].astype(float) * (config["hidden_size"]**0.5 if gemma else 1)
    scale = config.get("query_pre_attn_scalar", dim)**-0.5
    at = np.arange(len(tokens))
    for i in range(config["num_hidden_layers"]):
        window = len(x) if gemma and i % 2 else config.get("sliding_window", len(x))
        seen = (at <= at[:, None]) & (at > at[:, None] - window)
        w = {name.removeprefix(f"model.layers.{i}."): w.astype(float) for name, w in weights.items()}
        normed = rms(x, w["input_layernorm.weight"], config)
        q, k, v = (normed @ w[f"self_attn.{p}_proj.weight"].T + w.get(f"self_attn.{p}_proj.bias", 0) for p in "qkv")
        q, k = q.reshape(-1, heads, dim), k.reshape(-1, groups, dim)
        if config["model_type"] == "qwen3":
            q, k = (rms(a, w[f"self_attn.{name}_norm.weight"], config) for a, name in ((q, "q"), (k, "k")))
        q, k = rotate(q, config), rotate(k, config)
        k, v = (a.reshape(-1, groups, dim).repeat(heads // groups, 1) for a in (k, v))
        s = softcap(np.einsum("ihd,jhd->hij", q, k) * scale, config.get("attn_logit_softcapping"))
        s = np.where(seen, s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        o = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(len(x), -1)
        made = o @ w["self_attn.o_proj.weight"].T
        x = x + (rms(made, w["post_attention_layernorm.weight"], config) if gemma else made)
        normed = rms(x, w[f"{'pre_feedforward' if gemma else 'post_attention'}_layernorm.weight"], config)
        gate = activation(normed @ w["mlp.gate_proj.weight"].T, config)
        made = (gate * (normed @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
        x = x + (rms(made, w["post_feedforward_layernorm.weight"], config) if gemma else made)
    x = rms(x[-1], weights["model.norm.weight"], config)
    logits = x @ weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).T.astype(float)
    return softcap(logits, config.get("final_logit_softcapping"))


def greedy(weights, config, prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        logits = logits_of(weights, config, tokens)
        two = np.sort(logits)[-2:]
        assert two[1] - two[0] > 1e-4  # far from a tie in float32
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt):]


def run(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False)


def tokens_of(folder, prompts, *options):
    result = run(folder, *options, *[",".join(map(str, prompt)) for prompt in prompts])
    assert result.returncode == 0, result.stderr
    return [[int(token) for token in line.split(",")] for line in result.stdout.splitlines()]


@pytest.fixture(params=KINDS)
def model(request, tmp_path):
    config = {"model_type": request.param, **SIZES, **KINDS[request.param]}
    weights = weights_of(request.param, config)
    return tmp_path / "model", config, weights


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_greedy_tokens_are_those_of_float64(model, dtype):
    folder, config, weights = model
    weights = rounded(weights) if dtype == "BF16" else weights
    save(folder, config, weights, dtype, files=3 if dtype == "BF16" else 1)
    right = [greedy(weights, config, prompt, 12) for prompt in PROMPTS]
    assert len({token for text in right for token in text}) > 5
    assert tokens_of(folder, PROMPTS, "--tokens", 12) == right
    assert [tokens_of(folder, [prompt], "--tokens", 12, "--page-tokens", 16)[0] for prompt in PROMPTS] == right
    likely = [np.argsort(-logits_of(weights, config, prompt)) for prompt in PROMPTS]
    for kind, most in ("bf16", 1), ("q8_0", 2), ("q4_0", 4):  # keys and values are near the right ones
        found = tokens_of(folder, PROMPTS, "--tokens", 1, "--kv", kind)
        assert all(token in tokens[:most] for [token], tokens in zip(found, likely))
    if dtype == "BF16":
        both = run(folder, "--bf16-rows", 1, "--int8-weights", 1, 5)
        assert "bf16_rows and .int8_weights are both true; one of them must be false" in both.stderr
    for rows in 0, 1:
        found = tokens_of(folder, PROMPTS, "--tokens", 1, "--int8-weights", 1, "--int8-rows", rows)
        assert all(token in tokens[:2] for [token], tokens in zip(found, likely))


def test_prompts_longer_than_a_step(model):
    """A step takes 512 tokens of a prompt; a text with a short prompt goes on meanwhile."""
    folder, config, weights = model
    config = {**config, "max_position_embeddings": 2048}
    save(folder, config, weights)
    tokens = np.random.default_rng(3).integers(0, config["vocab_size"], 1030).tolist()
    prompts = [tokens, [4, 7], tokens[:513]]
    right = [greedy(weights, config, prompt, count) for prompt, count in zip(prompts, (1, 3, 2))]
    found = tokens_of(folder, prompts, "--tokens", 3)
    assert [text[:len(wanted)] for text, wanted in zip(found, right)] == right
    beams = tokens_of(folder, prompts, "--tokens", 3, "--beams", 2)
    assert beams == [tokens_of(folder, [prompt], "--tokens", 3, "--beams", 2)[0] for prompt in prompts]


def test_an_end_token_ends_a_text(model):
    folder, config, weights = model
    free = greedy(weights, config, PROMPTS[0], 12)
    stop = free[5]
    save(folder, {**config, "eos_token_id": [22, stop]}, weights)
    assert tokens_of(folder, PROMPTS[:1], "--tokens", 12) == [free[:free.index(stop) + 1]]
    (folder / "generation_config.json").write_text('{"eos_token_id": 1000}')
    assert tokens_of(folder, PROMPTS[:1], "--tokens", 12) == [free]


def test_beams_that_are_all_texts_find_the_best(model):
    """With as many beams as there are texts of two tokens nothing is dropped before the last of three tokens."""
    folder, config, weights = model
    config = {**config, "vocab_size": 6}
    weights = {name: w[:6] if name in ("model.embed_tokens.weight", "lm_head.weight") else w for name, w in weights.items()}
    save(folder, config, weights)

    def score(prompt, text):
        total = 0
        for i, token in enumerate(text):
            logits = logits_of(weights, config, [*prompt, *text[:i]])
            total += logits[token] - np.log(np.exp(logits).sum())
        return total

    prompts = [[1, 4], [2, 3, 0, 5, 1]]
    right = [max(itertools.product(range(6), repeat=3), key=lambda text: score(prompt, text)) for prompt in prompts]
    assert tokens_of(folder, prompts, "--tokens", 3, "--beams", 36) == [list(text) for text in right]


def test_samples(model):
    folder, config, weights = model
    save(folder, config, weights)
    warm = ("--tokens", 10, "--temperature", 1.5)
    assert tokens_of(folder, PROMPTS, *warm, "--top-k", 1) == tokens_of(folder, PROMPTS, "--tokens", 10)
    drawn = tokens_of(folder, PROMPTS, *warm, "--top-p", 0.95, "--seed", 3)
    assert drawn == [tokens_of(folder, [prompt], *warm, "--top-p", 0.95, "--seed", 3 + i)[0]
                     for i, prompt in enumerate(PROMPTS)]
    assert drawn != tokens_of(folder, PROMPTS, *warm, "--top-p", 0.95, "--seed", 4)


def test_prompts_from_a_file(model):
    folder, config, weights = model
    save(folder, config, weights)
    lines = "".join(" ".join(map(str, prompt)) + "\n" for prompt in PROMPTS)
    (folder / "prompts").write_text(lines)
    result = run(folder, "--prompts", folder / "prompts", "--tokens", 4)
    assert [[int(t) for t in line.split(",")] for line in result.stdout.splitlines()] == tokens_of(folder, PROMPTS,
                                                                                                   "--tokens", 4)
    assert "MB resident once packed" in result.stderr and "11 tokens read" in result.stderr


WRONG = [
    ({"model_type": "gpt5"}, 'config.json: model_type is "gpt5"; it must be one of llama mistral qwen2 qwen3 gemma2'),
    ({"hidden_size": 0}, "config.json: hidden_size is 0; it must be a number in 1..2.14748e+09"),
    ({"num_hidden_layers": None}, "config.json: num_hidden_layers is missing; it must be a number in"),
    ({"hidden_act": "mish"}, 'hidden_act is "mish"; it must be one of relu gelu silu gelu_pytorch_tanh'),
    ({"layer_types": ["full_attention"]}, "layer_types is"),
    ({"rope_scaling": {"rope_type": "longrope"}}, 'rope_type is "longrope"; it must be one of default linear yarn llama3'),
    ({"rope_scaling": {"rope_type": "yarn"}}, "factor is missing; it must be a number in 1..1e+06"),
    ({"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is"),
    ({"eos_token_id": "end"}, 'eos_token_id is "end"; it must be a token or a list of tokens'),
    ({"eos_token_id": [3, -1.5]}, "it must be a token or a list of tokens: whole numbers from 0 on"),
    ({"rope_scaling": "yarn"}, 'rope_scaling is "yarn"; it must be an object, or null'),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale": 0.7}}, "mscale is 0.7"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "mscale_all_dim": 1}}, "mscale_all_dim is 1; it must be missing"),
    ({"rope_theta": 1}, "rope_theta is 1; it must be a number in 1.001..1e+12"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window is missing; it must be a number of tokens"),
    ({"attention_bias": True}, "tensor model.layers.0.self_attn.q_proj.bias is missing"),
    ({"mlp_bias": True}, "tensor model.layers.0.mlp.gate_proj.bias is missing"),
    ({"model_type": "qwen2"}, "tensor model.layers.0.self_attn.q_proj.bias is missing"),
    ({"head_dim": None, "num_attention_heads": 64}, "head_dim is missing; it must be at least 2"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ({"tie_word_embeddings": "no"}, 'tie_word_embeddings is "no"; it must be true or false'),
    ({"layer_types": [1, 2]}, "layer_types is [1,2]; it must be a list of full_attention and sliding_attention"),
    ({"intermediate_size": 41}, "tensor model.layers.0.mlp.gate_proj.weight is 40 x 32; it must be 41 x 32"),
    ({"num_hidden_layers": 3}, "tensor model.layers.2.input_layernorm.weight is missing"),
    ({"max_position_embeddings": 20}, "prompt 0 and --tokens are 33 tokens; max_position_embeddings is 20"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_models_are_refused(tmp_path, change, message):
    config = {"model_type": "llama", **SIZES}
    save(tmp_path / "m", {**config, **change}, weights_of("llama", config))
    result = run(tmp_path / "m", 5)
    assert result.returncode == 1 and message in result.stderr and not result.stdout


def test_logits_that_are_no_numbers_end_it(tmp_path):
    config = {"model_type": "llama", **SIZES}
    weights = weights_of("llama", config)
    weights["model.norm.weight"] = np.full_like(weights["model.norm.weight"], np.nan)
    folder = save(tmp_path / "m", config, weights)
    for beams in (1, 2):
        result = run(folder, "5,3", "--beams", beams)
        assert result.returncode == 1 and "logits" in result.stderr and not result.stdout
    del weights["lm_head.weight"]
    assert "tensor lm_head.weight is missing" in run(save(folder, config, weights), 5).stderr


def test_wrong_files_and_options_are_refused(tmp_path):
    config = {"model_type": "llama", **SIZES}
    weights = weights_of("llama", config)
    folder = save(tmp_path / "m", config, weights)
    for words, message in [((), "or --prompts FILE"), (("23",), 'prompt 0: "23" is no token; tokens are 0..22'),
                           (("5,x",), '"x" is no token'), (("",), "prompt 0 has no tokens"),
                           (("--tokens", "0", "1"), "--tokens is 0; it must be an integer in 1..1e+09"),
                           (("--beam", "2", "1"), "--beam is no option"),
                           (("--kv", "f8", "1"), "--kv is f8; it must be f32"),
                           (("--beams", "2", "--temperature", "1", "1"), "beam search does not sample"),
                           (("--prompts", "nowhere"), "--prompts nowhere cannot be read")]:
        result = run(folder, *words)
        assert result.returncode in (1, 2) and message in result.stderr
    parts = save(tmp_path / "parts", config, weights, files=3)
    (parts / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors: it cannot be read" in run(parts, 5).stderr
    (parts / "model-00001-of-00003.safetensors").unlink()
    (parts / "model-00003-of-00003.safetensors").unlink()
    assert "parts/model.safetensors: it cannot be read" in run(parts, 5).stderr
    save(folder, config, weights, odd="model.layers.1.mlp.up_proj.weight")
    assert "tensor model.layers.1.mlp.up_proj.weight has another type than those before it" in run(folder, 5).stderr
    for text in "[", "[]", json.dumps(config) + "x":
        (folder / "config.json").write_text(text)
        [line] = run(folder, 5).stderr.splitlines()
        assert line.endswith("config.json is not JSON; it must be an object, {...}, and nothing behind it")
    (folder / "config.json").unlink()
    assert "config.json cannot be read; a transformers folder has it" in run(folder, 5).stderr
