# SPDX-License-Identifier: MIT
"""examples/llm beside transformers, on small random models that transformers saves. Run by pytest; needs PyTorch and
transformers. test_llm.py does without them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("ATTN_TEST_EXAMPLES", ROOT / "build" / "examples")) / "example_llm"
SIZES = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": None,
         "pad_token_id": 0, "initializer_range": 0.15}  # large weights: texts of many tokens
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
KINDS = {"llama": {"rope_parameters": LLAMA3}, "llama-yarn": {"rope_parameters": YARN, "attention_bias": True,
                                                              "mlp_bias": True},
         "mistral": {"sliding_window": 7}, "qwen2": {"tie_word_embeddings": True},
         "qwen2-window": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
         "qwen3": {"head_dim": 32},
         "gemma2": {"head_dim": 32, "sliding_window": 7, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0,
                    "final_logit_softcapping": 4.0}}
PROMPTS = [[5, 17, 3, 88, 120], [9, 150, 31, 7, 66, 42, 199, 2, 1, 77, 13], [44]]
TOKENS = 24


@pytest.fixture(params=KINDS, scope="module")
def model(request, tmp_path_factory):
    """Folders of a model in bfloat16, and of the same one widened to float32; and the latter."""
    torch.manual_seed(2)
    config = transformers.AutoConfig.for_model(request.param.split("-")[0], **SIZES, **KINDS[request.param])
    made = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in made.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.1)
    folders = {dtype: tmp_path_factory.mktemp(request.param) for dtype in (torch.bfloat16, torch.float32)}
    made.to(torch.bfloat16).save_pretrained(folders[torch.bfloat16], max_shard_size="150KB")
    made = transformers.AutoModelForCausalLM.from_pretrained(folders[torch.bfloat16], dtype=torch.float32).eval()
    made.save_pretrained(folders[torch.float32])
    return folders, made


def tokens_of(folder, prompts, *options):
    words = [",".join(map(str, prompt)) for prompt in prompts]
    result = subprocess.run([PROGRAM, folder, "--tokens", str(TOKENS), *map(str, options), *words], capture_output=True,
                            text=True, check=False)
    assert result.returncode == 0, result.stderr
    return [[int(token) for token in line.split(",")] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("ends", [False, True])
def test_the_tokens_of_transformers(model, dtype, beams, ends):
    """ends: at tokens that the model likes."""
    folders, made = model
    folder = folders[dtype]
    right = generated(made, beams)
    assert len({token for text in right for token in text}) > 8
    if ends:
        stops = [right[0][9], right[1][15]]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
        right = generated(made, beams, eos_token_id=stops)
        assert any(len(text) < TOKENS for text in right)
    assert tokens_of(folder, PROMPTS, "--beams", beams) == right
    assert [tokens_of(folder, [prompt], "--beams", beams)[0] for prompt in PROMPTS] == right
    (folder / "generation_config.json").unlink(missing_ok=True)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_text(model):
    tokenizers = pytest.importorskip("tokenizers")
    folder, words = model[0][torch.float32], [f"w{i}" for i in range(SIZES["vocab_size"])]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    texts = [" ".join(words[token] for token in prompt) for prompt in PROMPTS]
    right = [text + " ".join(words[token] for token in tokens)
             for text, tokens in zip(texts, tokens_of(folder, PROMPTS, "--beams", 2))]
    result = subprocess.run([sys.executable, ROOT / "examples" / "llm" / "llm.py", PROGRAM, folder, "--tokens", str(TOKENS),
                             "--beams", "2", *texts], capture_output=True, text=True, check=False)
    assert result.stdout.splitlines() == right


def test_rates():
    sizes = {"width": 64, "hidden": 96, "layers": 2, "heads": 4, "heads-kv": 2, "vocabulary": 50, "prompt": 20, "texts": 3,
             "tokens": 4, "rounds": 2}
    result = subprocess.run([sys.executable, ROOT / "examples" / "llm" / "compare.py", PROGRAM,
                             *[f"--{name}={size}" for name, size in sizes.items()]], capture_output=True, text=True,
                            check=False)
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["ours", "transformers"], result.stderr
    assert all(line.endswith("; the first 4 tokens as ours") and line.count(" tokens/s") == 2 for line in lines)
    assert lines[1].count(" tokens/s, ratio ") == 2


def generated(made, beams, **options):
    with torch.inference_mode():
        return [made.generate(torch.tensor([prompt]), do_sample=False, num_beams=beams, max_new_tokens=TOKENS,
                              pad_token_id=0, **options)[0, len(prompt):].tolist() for prompt in PROMPTS]
