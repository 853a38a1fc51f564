# SPDX-License-Identifier: MIT
"""OpenVINO's ScaledDotProductAttention of opset 13, and PagedAttentionExtension, which its transformation of models puts in:
models of one node for the CPU plugin.

https://docs.openvino.ai/2026, operation specifications, ScaledDotProductAttention-13
"""

import numpy as np
import openvino
from openvino import opset13
from openvino._pyopenvino.op import _PagedAttentionExtension  # no opset has it

from ..verdicts import Refused
from . import only
from .packing import PAGE, pack, tokens_of

NAME, PAGED = "ScaledDotProductAttention", "PagedAttentionExtension"
SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
CORE = openvino.Core()


def version():
    return openvino.__version__.split("-", maxsplit=1)[0]


def sdpa(q, k, v, *, dtype="float32", mask=None, bias=None, causal=False, align="top_left", scale=None, **others):
    """Arithmetic in the type of the case; float32 inputs and outputs are converted in the model."""
    only(others, NAME)
    if mask is not None and bias is not None:
        raise Refused(f"{NAME} has one attention_mask: a boolean one or a bias")
    if causal and (mask is not None or bias is not None):
        raise Refused(f"{NAME} ignores attention_mask where causal is set")
    if causal and (not isinstance(align, str) or align != "top_left" and q.shape[2] != k.shape[2]):
        raise Refused(f"{NAME} aligns its causal mask top-left")
    if q.shape[1] != k.shape[1]:
        raise Refused(f"{NAME} has as many KV heads as heads")
    added = mask if mask is not None else bias
    given = [np.ascontiguousarray(x) for x in (q, k, v, *([added] if added is not None else []))]
    inputs = [opset13.parameter(x.shape, openvino.Type.boolean if x.dtype == bool else openvino.Type.f32) for x in given]
    element = getattr(openvino.Type, SHORT[dtype])
    nodes = [x if array.dtype == bool or dtype == "float32" else opset13.convert(x, element)
             for x, array in zip(inputs, given)]
    if scale is not None and added is None:
        nodes.append(opset13.constant(0.0, element))  # no mask
    if scale is not None:
        nodes.append(opset13.constant(scale, element))
    o = opset13.scaled_dot_product_attention(*nodes, causal=causal)
    model = openvino.Model([opset13.convert(o, openvino.Type.f32)], inputs)
    compiled = CORE.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": SHORT[dtype]})
    return compiled(given)[0]


# Inputs of PagedAttentionExtension behind q, k, v and the two caches: rank, and type where it is not int32. Those that
# a case does not set are 0 or empty.
PAGED_INPUTS = {
    "past_lens": 1, "subsequence_begins": 1, "block_indices": 1, "block_indices_begins": 1, "scale": (0, np.float32),
    "sliding_window": 0, "alibi_slopes": (1, np.float32), "max_context_len": 0, "score_aggregation_window": 1,
    "rotated_block_indices": 1, "rotation_deltas": 2, "rotation_trig_lut": (2, np.float32),
    "xattention_threshold": (1, np.float32), "xattention_block_size": 0, "xattention_stride": 0, "sinks": (4, np.float32),
    "adaptive_rkv_start_size": 0, "adaptive_rkv_evictable_sizes": 1, "adaptive_rkv_diversity_block_set_indices": 1,
    "adaptive_rkv_diversity_block_set_indices_begins": 1, "token_type_ids": 1, "qq_bias": (1, np.uint8),
    "qq_bias_begins": 1}


def paged(q, k, v, *, dtype="float32", scale=None, alibi=None, sinks=None, **others):
    """A call writes the newest keys and values, as many as there are queries, into the caches, and attends."""
    given = pack(PAGED, q, k, v, others, always_causal=True)
    if given.k.shape[2] != PAGE:
        raise Refused(f"{PAGED} has blocks of {PAGE} tokens")
    rows = np.diff(given.cu)
    new = [np.concatenate([tokens_of(x, given.table[b:b + 1], given.lengths[b:b + 1])[n - count:]
                           for b, (n, count) in enumerate(zip(given.lengths, rows))]) for x in (given.k, given.v)]
    used = [pages[:-(-n // PAGE)] for pages, n in zip(given.table, given.lengths)]
    said = {"past_lens": given.lengths - rows, "subsequence_begins": given.cu, "block_indices": np.concatenate(used),
            "block_indices_begins": np.cumsum([0, *map(len, used)]), "sliding_window": given.window or 0,
            "scale": q.shape[-1]**-0.5 if scale is None else scale, "max_context_len": given.lengths.max()}
    said |= {} if alibi is None else {"alibi_slopes": alibi}
    said |= {} if sinks is None else {"sinks": sinks.reshape(1, -1, 1, 1)}
    arrays = [np.ascontiguousarray(x.reshape(len(x), -1)) for x in (given.q, *new)]
    arrays += [np.ascontiguousarray(x) for x in (given.k, given.v)]
    inputs = [opset13.parameter(openvino.PartialShape([-1, *x.shape[1:]]), openvino.Type.f32) for x in arrays]
    element = getattr(openvino.Type, SHORT[dtype])
    nodes = [x if dtype == "float32" else opset13.convert(x, element) for x in inputs]
    for name, kind in PAGED_INPUTS.items():
        rank, numbers = kind if isinstance(kind, tuple) else (kind, np.int32)
        arrays.append(np.array(said.get(name, np.zeros([0] * rank)), numbers))
        inputs.append(opset13.parameter(openvino.PartialShape([-1] * rank), openvino.Type(arrays[-1].dtype)))
    node = _PagedAttentionExtension([x.output(0) for x in nodes + inputs[len(nodes):]])
    facts = node.get_rt_info()
    facts["k_head_size"], facts["v_head_size"] = given.k.shape[-1], given.v.shape[-1]
    facts["num_k_heads"] = facts["num_v_heads"] = given.k.shape[1]
    model = openvino.Model([opset13.convert(node.output(0), openvino.Type.f32)], inputs)
    compiled = CORE.compile_model(model, "CPU", {
        "INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": SHORT[dtype], "KV_CACHE_PRECISION": SHORT[dtype]})
    return given.unpack(compiled(arrays)[0].reshape(len(given.q), given.q.shape[1], -1))
