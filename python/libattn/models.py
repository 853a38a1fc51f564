# SPDX-License-Identifier: MIT
"""Layers of transformers as libattn's blocks: where each kind of layer keeps the weights that Block takes.

    blocks = [libattn.layers.Block.from_torch(layer) for layer in model.model.layers]
    cache = libattn.layers.KVCache.from_torch(model.model.layers[0], batch=1, capacity=100, num_layers=len(blocks))

KINDS is all that is known of a kind; the rest, heads, epsilons, scales and windows, is read from the layer's modules. Names
are those of transformers 5.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu",
               "swish": "silu"}

SCALINGS = {"default": None, "linear": "linear", "yarn": "yarn", "llama3": "llama3"}
# rope_parameters of a configuration -> arguments of Rope
ROPE_NUMBERS = {"rope_theta": "base", "original_max_position_embeddings": "original_length",
                **{name: name for name in ("factor", "beta_fast", "beta_slow", "truncate", "attention_factor",
                                           "low_freq_factor", "high_freq_factor")}}


class Kind(NamedTuple):
    """Modules by name. Biases are theirs, where they have some; modules that a layer lacks are left out."""

    attention: str  # the self-attention: its scale, its window, and the configuration
    weights: dict[str, str]  # the self-attention's
    network: dict[str, str]
    norms: tuple[str, ...]
    options: dict[str, bool]  # further arguments
    cross: dict[str, str] | None = None
    post_norms: tuple[str, ...] | None = None
    heads: str = "num_attention_heads"  # fields of the configuration
    activation: str = "hidden_act"
    gain: float = 0  # added to the gains of norms


def _attention(inside, q, k, v, o):
    return {f"w_{part}": f"{inside}.{name}" for part, name in zip("qkvo", (q, k, v, o))}


_PRE, _RMS = {"pre_norm": True}, {"pre_norm": True, "rms_norm": True}
_LLAMA = Kind("self_attn", {**_attention("self_attn", "q_proj", "k_proj", "v_proj", "o_proj"),
                            "q_norm_gain": "self_attn.q_norm", "k_norm_gain": "self_attn.k_norm"},
              {"w1": "mlp.up_proj", "w_gate": "mlp.gate_proj", "w2": "mlp.down_proj"},
              ("input_layernorm", "post_attention_layernorm"), options={**_RMS, "causal": True})
_T5 = Kind("layer.0.SelfAttention", _attention("layer.0.SelfAttention", *"qkvo"),
           {"w1": "layer.1.DenseReluDense.wi", "w2": "layer.1.DenseReluDense.wo"},
           ("layer.0.layer_norm", "layer.1.layer_norm"), heads="num_heads", activation="dense_act_fn", options=_RMS)
_T5_DECODER = _T5._replace(cross=_attention("layer.1.EncDecAttention", *"qkvo"),
                           network={"w1": "layer.2.DenseReluDense.wi", "w2": "layer.2.DenseReluDense.wo"},
                           norms=(*_T5.norms, "layer.2.layer_norm"))
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
_WHISPER = Kind("self_attn", _attention("self_attn", *_PROJECTIONS), {"w1": "fc1", "w2": "fc2"},
                ("self_attn_layer_norm", "final_layer_norm"), heads="encoder_attention_heads",
                activation="activation_function", options=_PRE)

KINDS = {
    "BertLayer": Kind("attention.self", {"w_q": "attention.self.query", "w_k": "attention.self.key",
                                         "w_v": "attention.self.value", "w_o": "attention.output.dense"},
                      {"w1": "intermediate.dense", "w2": "output.dense"},
                      ("attention.output.LayerNorm", "output.LayerNorm"), options={}),
    "ViTLayer": Kind("attention", _attention("attention", "q_proj", "k_proj", "v_proj", "o_proj"),
                     {"w1": "mlp.fc1", "w2": "mlp.fc2"}, ("layernorm_before", "layernorm_after"), options=_PRE),
    "GPT2Block": Kind("attn", {"w_qkv": "attn.c_attn", "w_o": "attn.c_proj"}, {"w1": "mlp.c_fc", "w2": "mlp.c_proj"},
                      ("ln_1", "ln_2"), activation="activation_function", options={**_PRE, "causal": True}),
    **dict.fromkeys(("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"), _LLAMA),
    "Gemma2DecoderLayer": _LLAMA._replace(norms=("input_layernorm", "pre_feedforward_layernorm"), gain=1,
                                          post_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
                                          activation="hidden_activation"),
    "T5Block": _T5,
    "T5Block of a decoder": _T5_DECODER,
    "WhisperEncoderLayer": _WHISPER,
    "WhisperDecoderLayer": _WHISPER._replace(
        cross=_attention("encoder_attn", *_PROJECTIONS), heads="decoder_attention_heads",
        norms=("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")),
}
# Maps of a network with a gate, by the map that one without has
GATED = {"wi": {"w_gate": "wi_0", "w1": "wi_1"}}


def _kind(layer):
    name = type(layer).__name__ + (" of a decoder" if getattr(layer, "is_decoder", False) else "")
    if name not in KINDS:
        raise ValueError(f"layer is a {name}; it must be one of {', '.join(KINDS)}")
    return KINDS[name]


def _find(layer, name):
    """The module of that name, or None."""
    for part in name.split("."):
        layer = getattr(layer, part, None)
    return layer


def _weight(module):
    """[out][in], as it is kept: transformers' Conv1D has it transposed."""
    weight = module.weight.detach()
    return (weight.t() if type(module).__name__ == "Conv1D" else weight).contiguous()


def _floats(tensor, more=0):
    return None if tensor is None else (tensor.detach().float() + more).contiguous()


def _maps(layer, names):
    """Weights, and their biases, by argument."""
    found = {}
    for argument, name in names.items():
        module = _find(layer, name)
        if module is None:
            continue
        found[argument] = _weight(module)
        if getattr(module, "bias", None) is not None:
            found["b" + argument[1:]] = _floats(module.bias)
    return found


def _epsilon(norm):
    return norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps


def _attention_weights(layer, kind, names):
    gains = {argument: _find(layer, name) for argument, name in names.items() if argument.endswith("_norm_gain")}
    gains = {argument: norm for argument, norm in gains.items() if norm is not None}
    weights = _maps(layer, {argument: name for argument, name in names.items() if argument not in gains})
    for argument, norm in gains.items():
        weights[argument] = _floats(norm.weight, kind.gain)
        weights["qk_norm_epsilon"] = _epsilon(norm)
    return weights


def _norms(layer, kind, names):
    """Pairs of self-attention, cross-attention and network."""
    pairs = [(_floats(norm.weight, kind.gain), _floats(getattr(norm, "bias", None)))
             for norm in (_find(layer, name) for name in names)]
    return pairs if len(pairs) == 3 else [pairs[0], None, pairs[1]]


def _sizes(layer, kind):
    """Arguments of blocks and of caches."""
    attention = _find(layer, kind.attention)
    heads = getattr(attention.config, kind.heads)
    columns = _weight(_find(layer, kind.weights["w_o"])).shape[1]
    return {"heads": heads, "heads_kv": getattr(attention.config, "num_key_value_heads", None) or heads,
            "dim_qk": columns // heads, "scale": float(attention.scaling),
            "softcap": float(getattr(attention, "attn_logit_softcapping", None) or 0)}


def _window(layer, kind):
    """Tokens that a query sees, itself included, or None for all."""
    attention = _find(layer, kind.attention)
    owner = attention if hasattr(attention, "sliding_window") else attention.config
    return getattr(owner, "sliding_window", None)


def _rope_arguments(parameters):
    """The arguments of Rope for transformers' rope_parameters."""
    given = {name: number for name, number in parameters.items() if number is not None}
    scaling = given.pop("rope_type")
    if scaling not in SCALINGS:
        raise ValueError(f"rope_type of the layer is {scaling!r}; it must be one of {', '.join(SCALINGS)}")
    for name in given:
        if name not in ROPE_NUMBERS:
            raise ValueError(f"rope_parameters of the layer has {name}; it may have {', '.join(ROPE_NUMBERS)}")
    return {"scaling": SCALINGS[scaling], **{ROPE_NUMBERS[name]: number for name, number in given.items()}}


def block_arguments(layer: Any) -> dict[str, Any]:
    """The arguments of layers.Block for a layer of transformers, of one of KINDS."""
    kind = _kind(layer)
    config, window = _find(layer, kind.attention).config, _window(layer, kind)
    network = kind.network
    if _find(layer, network["w1"]) is None:  # gated
        inside, name = network["w1"].rsplit(".", 1)
        network = {**network, **{argument: f"{inside}.{own}" for argument, own in GATED[name].items()}}
    norms = [_find(layer, name) for name in kind.norms]
    activation = getattr(config, kind.activation)
    if activation not in ACTIVATIONS:
        raise ValueError(f"{kind.activation} of the layer is {activation!r}; it must be one of {', '.join(ACTIVATIONS)}")
    arguments = {**_sizes(layer, kind), "width": norms[0].weight.shape[0], "epsilon": _epsilon(norms[0]),
                 "activation": ACTIVATIONS[activation], "self_weights": _attention_weights(layer, kind, kind.weights),
                 **_maps(layer, network), "norms": _norms(layer, kind, kind.norms), **kind.options}
    if kind.post_norms:
        arguments["post_norms"] = _norms(layer, kind, kind.post_norms)
    if kind.cross:
        arguments["cross_weights"] = _attention_weights(layer, kind, kind.cross)
        arguments["memory"] = (None, arguments["width"])
    if window:
        arguments["window"] = (window - 1, 0)
    return arguments


def cache_arguments(layer: Any) -> dict[str, Any]:
    """The arguments of layers.KVCache for such a layer, but for its batch and capacity. Layers of one model that differ in
    their windows take caches of their own. T5's table is in its first layer."""
    from ._kv import Rope

    kind = _kind(layer)
    attention, arguments = _find(layer, kind.attention), _sizes(layer, kind)
    arguments["window"] = _window(layer, kind)
    rope = getattr(attention.config, "rope_parameters", None)
    if rope:
        arguments["rotation"] = Rope("halves", arguments["dim_qk"], **_rope_arguments(rope))
    if getattr(attention, "has_relative_attention_bias", False):
        distances = attention.relative_attention_max_distance + 1
        bias = attention.compute_bias(1, distances, past_seen_tokens=distances - 1)  # from far to near
        arguments["bias_by_distance"] = _floats(bias[0, :, 0].flip(-1))
    return arguments
