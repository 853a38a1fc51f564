# SPDX-License-Identifier: MIT
"""Models of transformers, small and randomly initialised, with attn_implementation="libattn" beside "sdpa": the same logits
within rounding, and the same tokens. Runs with --long only: importing transformers and making models takes seconds."""

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def transformers(request):
    if not request.config.getoption("--long"):
        pytest.skip("takes half a minute: --long")
    module = pytest.importorskip("transformers")
    import libattn.transformers  # noqa: F401

    return module


SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 97}
DECODER = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
           "eos_token_id": None}


def make(transformers, kind, implementation, dtype=torch.float32):
    torch.manual_seed(0)
    configurations = {
        "bert": lambda t: (t.BertModel, t.BertConfig(**SMALL)),
        "llama": lambda t: (t.LlamaForCausalLM, t.LlamaConfig(**DECODER)),
        "mistral": lambda t: (t.MistralForCausalLM, t.MistralConfig(**DECODER, sliding_window=5)),
        "gemma2": lambda t: (t.Gemma2ForCausalLM, t.Gemma2Config(**DECODER, head_dim=16, sliding_window=5)),
        "t5": lambda t: (t.T5ForConditionalGeneration, t.T5Config(
            d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=97, pad_token_id=0, eos_token_id=None,
            decoder_start_token_id=0)),
        "vit": lambda t: (t.ViTModel, t.ViTConfig(**{**SMALL, "image_size": 32, "patch_size": 8})),
    }
    model, config = configurations[kind](transformers)
    config._attn_implementation = implementation
    return model(config).to(dtype).eval()


def inputs(kind):
    g = torch.Generator().manual_seed(1)
    if kind == "vit":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=g)}
    tokens = torch.randint(1, 97, (2, 11), generator=g)
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0  # padded on the left
    given = {"input_ids": tokens, "attention_mask": mask}
    return {**given, "decoder_input_ids": tokens[:, :7]} if kind == "t5" else given


def outputs(model, kind, given):
    with torch.inference_mode():
        result = model(**given)
    out = result.logits if hasattr(result, "logits") else result.last_hidden_state
    return out[given["attention_mask"].bool()] if kind in ("bert", "llama", "mistral", "gemma2") else out


@pytest.mark.parametrize("kind", ["bert", "llama", "mistral", "gemma2", "t5", "vit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_same_outputs(transformers, kind, dtype):
    given = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs(kind).items()}
    other = "eager" if kind == "gemma2" else "sdpa"
    right = outputs(make(transformers, kind, other, dtype), kind, given).float()
    ours = outputs(make(transformers, kind, "libattn", dtype), kind, given).float()
    assert ours.isfinite().all()
    assert (ours - right).abs().max() <= (1e-4 if dtype == torch.float32 else 0.1) * right.abs().max()


@pytest.mark.parametrize("kind", ["llama", "mistral", "t5"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
def test_same_tokens(transformers, kind, options):
    if kind == "t5" and "cache_implementation" in options:
        pytest.skip("a static cache is for decoders")
    given = {key: x for key, x in inputs(kind).items() if not key.startswith("decoder")}
    tokens = [make(transformers, kind, implementation).generate(**given, max_new_tokens=12, do_sample=False,
                                                                disable_compile=True, **options)
              for implementation in ("sdpa", "libattn")]
    assert torch.equal(*tokens)
