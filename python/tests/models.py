# SPDX-License-Identifier: MIT
"""Models of transformers, small or of a chosen size and randomly initialised, and two attention functions for them:

    exact    float64, by PyTorch's operations, differentiable
    narrow   libattn in float32 inside a float64 model; keeps the derived limit of each call's error (limits.py)
"""

import torch
from limits import proven_limit, worst_kernel
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import libattn
import libattn.transformers as lt

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 97}
KINDS = ["bert", "llama", "mistral", "gemma2", "t5", "vit"]

_SCALED = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
ROPES = {"llama_linear": {**_SCALED, "rope_type": "linear"}, "llama_yarn": {**_SCALED, "rope_type": "yarn"},
         "llama_llama3": {**_SCALED, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}}


def configuration(kind, sizes):
    """(class, configuration)"""
    import transformers as t

    heads, width = sizes["num_attention_heads"], sizes["hidden_size"]
    decoder = {**sizes, "num_key_value_heads": heads // 2, "max_position_embeddings": 4096, "pad_token_id": 0,
               "bos_token_id": 1, "eos_token_id": None}
    window = 5 if width == 64 else 256
    if kind == "bert":
        return t.BertModel, t.BertConfig(**sizes)
    if kind.startswith("llama"):
        return t.LlamaForCausalLM, t.LlamaConfig(**decoder, rope_parameters=ROPES.get(kind))
    if kind == "mistral":
        return t.MistralForCausalLM, t.MistralConfig(**decoder, sliding_window=window)
    if kind == "gpt2":
        return t.GPT2LMHeadModel, t.GPT2Config(n_embd=width, n_inner=sizes["intermediate_size"], n_head=heads,
                                               n_layer=sizes["num_hidden_layers"], vocab_size=sizes["vocab_size"],
                                               bos_token_id=1, eos_token_id=None)
    if kind == "qwen2":
        return t.Qwen2ForCausalLM, t.Qwen2Config(**decoder)
    if kind == "qwen3":
        return t.Qwen3ForCausalLM, t.Qwen3Config(**decoder, head_dim=24)
    if kind == "whisper":
        layers = sizes["num_hidden_layers"]
        return t.WhisperForConditionalGeneration, t.WhisperConfig(
            d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
            decoder_attention_heads=heads, encoder_ffn_dim=sizes["intermediate_size"], vocab_size=sizes["vocab_size"],
            decoder_ffn_dim=sizes["intermediate_size"], num_mel_bins=8, max_source_positions=20, pad_token_id=0,
            bos_token_id=1, eos_token_id=None, decoder_start_token_id=2)
    if kind == "gemma2":
        return t.Gemma2ForCausalLM, t.Gemma2Config(**decoder, head_dim=width // heads, sliding_window=window)
    if kind in ("t5", "t5_gated"):
        return t.T5ForConditionalGeneration, t.T5Config(
            feed_forward_proj="gated-gelu" if kind == "t5_gated" else "relu",
            d_model=width, d_kv=width // heads, d_ff=sizes["intermediate_size"], num_layers=sizes["num_hidden_layers"],
            num_heads=heads, vocab_size=sizes["vocab_size"], pad_token_id=0, eos_token_id=None, decoder_start_token_id=0)
    image = {"image_size": 32, "patch_size": 8} if width == 64 else {"image_size": 224, "patch_size": 16}
    return t.ViTModel, t.ViTConfig(**{**sizes, **image})


def make(kind, implementation, dtype=torch.float32, sizes=SIZES):
    torch.manual_seed(0)
    model, config = configuration(kind, sizes)
    config._attn_implementation = implementation
    return model(config).to(dtype).eval()


def inputs(kind, dtype=torch.float32, batch=2, tokens=11, padding=4, vocabulary=97, image=32):
    """The second sequence is padded on the left."""
    g = torch.Generator().manual_seed(1)
    if kind == "vit":
        return {"pixel_values": torch.randn(batch, 3, image, image, generator=g).to(dtype)}
    ids = torch.randint(1, vocabulary, (batch, tokens), generator=g)
    mask = torch.ones_like(ids)
    if padding:
        mask[1, :padding] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    return {**given, "decoder_input_ids": ids[:, :7]} if kind == "t5" else given


def outputs(model, kind, given):
    """[n, features]: without the rows of padding."""
    result = model(**given)
    out = result.logits if hasattr(result, "logits") else result.last_hidden_state
    return out[given["attention_mask"].bool()] if kind not in ("t5", "vit") else out.flatten(0, 1)


# ---- Attention for the derived limit -----------------------------------------------------------------------------------

CALLS = []  # for exact: the outputs; for narrow: (limit, largest error / limit)
INPUT_ROUNDING = 2.0**-24  # error of float64 inputs rounded to float32


def _problem(module, query, key, attention_mask, scaling, is_causal, position_bias, softcap):
    """Reads arguments like attention_forward() in libattn.transformers."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    return {"mask": None, "bias": None, **lt._masks(attention_mask, position_bias, key.shape[2]), "causal": causal,
            "scale": scaling, "softcap": softcap or 0.0}


def _float64(q, k, v, o):
    """(out, probabilities) of [b, h, s, d]"""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * (q.shape[-1]**-0.5 if o["scale"] is None else o["scale"])
    if o["softcap"]:
        s = o["softcap"] * torch.tanh(s / o["softcap"])
    if o["bias"] is not None:
        s = s + o["bias"].double()
    if o["causal"]:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if o["mask"] is not None:
        s = s.masked_fill(~o["mask"], -torch.inf)
    empty = torch.isneginf(s).all(-1, keepdim=True)
    p = torch.softmax(s.masked_fill(empty, 0), -1).masked_fill(empty, 0)
    return p @ v, p


def exact(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, position_bias=None,
          softcap=None, **kwargs):
    o = _problem(module, query, key, attention_mask, scaling, is_causal, position_bias, softcap)
    out = _float64(query, key, value, o)[0].transpose(1, 2)
    if out.requires_grad:
        out.retain_grad()
    CALLS.append(out)
    return out, None


def narrow(module, query, key, value, attention_mask, dropout=0.0, **options):
    out = lt.attention_forward(module, *(x.float() for x in (query, key, value)), attention_mask, **options)[0].double()
    named = {name: options.get(name) for name in ("scaling", "is_causal", "position_bias", "softcap")}
    o = _problem(module, query, key, attention_mask, **named)
    right, p = _float64(query, key, value, o)
    arrays = {name: x.numpy() for name, x in o.items() if isinstance(x, torch.Tensor)}
    limit = torch.from_numpy(proven_limit(right.numpy(), *(x.numpy() for x in (query, key, value)),
                                          worst_kernel(libattn.kernels()), p=p.numpy(), input_rounding=INPUT_ROUNDING,
                                          **{**o, **arrays})).transpose(1, 2)
    CALLS.append((limit, ((out - right.transpose(1, 2)).abs() / limit).max().item()))
    return out, None


for _name, _function in (("exact", exact), ("narrow", narrow)):
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, sdpa_mask)
