# SPDX-License-Identifier: MIT
"""How each peer is called. A peer is a function of q, k, v and the case's options, under the names of libattn.sdpa().

q [batch, heads, queries, dim], k, v: NumPy arrays of float32; dtype="float16" or "bfloat16" says what they are to be
converted to, exactly. Arrays among the options are NumPy's. Returns o; with return_lse=True (o, lse); with do= (dq, dk, dv).
What it cannot take it raises. Options that a case does not have are not passed: a function without a parameter `sinks`
refuses those cases by its TypeError.
"""

from __future__ import annotations

import importlib

from ..verdicts import Refused

# name on the command line -> module of this folder, function, title
PEERS = {
    "libattn": ("libattn_sdpa", "sdpa", "libattn"),
    "torch": ("torch_sdpa", "sdpa", "PyTorch sdpa"),
    "torch-math": ("torch_sdpa", "math", "PyTorch sdpa, math backend"),
    "torch-flex": ("torch_sdpa", "flex", "PyTorch flex_attention"),
    "onnxruntime": ("onnxruntime_nodes", "attention", "ONNX Runtime Attention"),
    "onnxruntime-gqa": ("onnxruntime_nodes", "group_query", "ONNX Runtime GroupQueryAttention"),
    "onnxruntime-mha": ("onnxruntime_nodes", "multi_head", "ONNX Runtime MultiHeadAttention"),
    "openvino": ("openvino_sdpa", "sdpa", "OpenVINO ScaledDotProductAttention"),
    "openvino-paged": ("openvino_sdpa", "paged", "OpenVINO PagedAttentionExtension"),
    "onednn": ("onednn_graph", "sdpa", "oneDNN"),
    "ggml": ("ggml_flash_attn", "flash_attn_ext", "ggml flash_attn_ext"),
    "vllm": ("vllm_cpu", "paged", "vLLM CPU attention"),
    "jax": ("jax_nn", "sdpa", "jax.nn.dot_product_attention"),
    "transformers": ("transformers_eager", "eager", "transformers eager attention"),
    "transformers-paged": ("transformers_eager", "paged", "transformers eager attention in pages"),
}

OPTIONS = {  # for words of refusals
    "mask": "boolean mask", "bias": "bias", "causal": "causal flag", "align": "alignment of its causal mask",
    "window": "window", "scale": "scale", "softcap": "softcap", "sinks": "sinks", "alibi": "ALiBi slopes",
    "kv_len": "lengths of keys", "q_len": "lengths of queries", "row_len": "lengths for each row",
    "cu_seqlens_q": "packed sequences", "cu_seqlens_k": "packed sequences", "page_table": "pages",
    "kv_format": "quantised keys and values", "return_lse": "log-sum-exp among its results", "do": "gradients",
    "dtype": "types of 16 bits",
}


def only(options, who, *taken):
    """Refuses options that the peer's function has no parameter for."""
    for name in OPTIONS:
        if name in options and name not in taken:
            raise Refused(f"{who} has no {OPTIONS[name]}")


def find(name):
    """(function, title with version) of a peer, or of "module:function". ImportError where its packages are missing."""
    if name in PEERS:
        module_name, function, title = PEERS[name]
        module = importlib.import_module(f".{module_name}", __name__)
        return getattr(module, function), f"{title} {module.version()}"
    module_name, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"no peer {name!r}; {', '.join(PEERS)} or package.module:function would be right")
    module = importlib.import_module(module_name)
    return getattr(module, function), f"{name} {getattr(module, '__version__', '')}".strip()
