# SPDX-License-Identifier: MIT
"""ONNX Runtime on the CPU, a model of one node: Attention of opset 24, and GroupQueryAttention and MultiHeadAttention.

https://onnx.ai/onnx/operators/onnx__Attention.html
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from ..verdicts import Refused
from . import only

CONTRIB = "com.microsoft"
OPSETS, IR_VERSION = {"": 24, CONTRIB: 1}, 11
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int32": TensorProto.INT32,
"int64": TensorProto.INT64,
         "bool": TensorProto.BOOL, "int8": TensorProto.INT8}


def version():
    return onnxruntime.__version__


def run(op, domain, inputs, outputs, shared=(), **attributes):
    """The first output. inputs: by name, None where absent. shared: (input, output) that are one buffer."""
    given = {name: np.ascontiguousarray(x) for name, x in inputs.items() if x is not None}
    names = [name if inputs[name] is not None else "" for name in inputs]
    while not names[-1]:
        names.pop()
    node = helper.make_node(op, names, outputs, domain=domain,
                            **{name: value for name, value in attributes.items() if value is not None})
    results = [helper.make_tensor_value_info(name, TYPES[str(given[dict(shared).get(name, "q")].dtype)], None)
               for name in outputs]
    graph = helper.make_graph([node], op, [helper.make_tensor_value_info(name, TYPES[str(x.dtype)], x.shape)
                                           for name, x in given.items()], results)
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid(*o) for o in OPSETS.items()])
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(x.copy()) for name, x in given.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in outputs:
        if name in dict(shared):
            binding.bind_ortvalue_output(name, values[dict(shared)[name]])
        else:
            binding.bind_output(name)
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy()


def convert(x, dtype):
    if dtype == "bfloat16":
        raise Refused("its CPU provider has no kernel for bfloat16")
    return x if x is None else x.astype(dtype)


def attention(q, k, v, *, dtype="float32", mask=None, bias=None, causal=False, align="top_left", scale=None, softcap=None,
              kv_len=None, **others):
    """Keys before the first query are its past; nonpad_kv_seqlen aligns bottom-right (opset 24)."""
    only(others, "Attention")
    if mask is not None and bias is not None:
        raise Refused("Attention has one attn_mask: a boolean one or a bias")
    q, k, v = (convert(x, dtype) for x in (q, k, v))
    past = past_of(q, k, align) if causal and kv_len is None else 0
    if causal and kv_len is not None and align != "bottom_right":
        raise Refused("Attention aligns bottom-right where it has nonpad_kv_seqlen")
    inputs = {"q": q, "k": k[:, :, past:], "v": v[:, :, past:], "mask": mask if bias is None else convert(bias, dtype),
              "past_k": k[:, :, :past] if past else None, "past_v": v[:, :, :past] if past else None,
              "lengths": None if kv_len is None else kv_len.astype(np.int64)}
    outputs = ["o", "present_k", "present_v"] if past else ["o"]
    return run("Attention", "", inputs, outputs, is_causal=int(causal), scale=scale, softcap=softcap)


def past_of(q, k, align):
    past = k.shape[2] - q.shape[2] if isinstance(align, str) and align == "bottom_right" else align
    if isinstance(past, str):
        return 0
    if not isinstance(past, int) or not 0 <= past < k.shape[2]:
        raise Refused("its past has one length, of 0 or more tokens, and a token is new")
    return past


def tokens_first(x):
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def heads_first(o, q):
    return o.reshape(q.shape[0], q.shape[2], q.shape[1], -1).transpose(0, 2, 1, 3)


def group_query(q, k, v, *, dtype="float32", bias=None, causal=False, align="top_left", window=None, scale=None,
softcap=None,
                sinks=None, kv_len=None, kv_format=None, k_scale=None, v_scale=None, **others):
    """k and v are its cache, one buffer for past and present, whose last tokens are those of the queries."""
    who = "GroupQueryAttention"
    only(others, who)
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    if queries > keys or not isinstance(align, str) or (causal or window) and align != "bottom_right" and queries != keys:
        raise Refused(f"{who} appends as many keys as queries, and is aligned bottom-right")
    if kv_len is not None and queries > 1:
        raise Refused(f"{who} takes padding behind its queries, too")
    if k.shape[3] != v.shape[3]:
        raise Refused(f"{who} takes values as wide as keys")
    if window and (window[0] is None or window[1] not in (0, None) or window[1] is None and not causal):
        raise Refused(f"{who} has causal windows to the left")
    if kv_format not in (None, "int8") or kv_format and k_scale.size > 1:
        raise Refused(f"{who} keeps int8 with one factor of a tensor")
    lengths = np.full(batch, keys, np.int32) if kv_len is None else kv_len
    if kv_format is None:
        k, v = convert(k, dtype), convert(v, dtype)
    new = [np.stack([x[b, :, n - queries:n] for b, n in enumerate(lengths)]) for x in (k, v)]
    if kv_format:
        new = [(x * factor.ravel()[0]).astype(np.float32) for x, factor in zip(new, (k_scale, v_scale))]
    q = convert(q, dtype)
    inputs = {"q": tokens_first(q), "k": tokens_first(new[0]), "v": tokens_first(new[1]), "past_k": k, "past_v": v,
              "last_key": lengths - 1, "all_keys": np.array([keys], np.int32), "cos": None, "sin": None, "positions": None,
              "bias": None if bias is None else convert(bias, dtype), "sinks": None if sinks is None else convert(sinks,
              dtype),
              "k_scale": None if k_scale is None else k_scale.ravel(),
              "v_scale": None if v_scale is None else v_scale.ravel()}
    quantised = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8} if kv_format else {}
    o = run(who, CONTRIB, inputs, ["o", "present_k", "present_v"], shared=(("present_k", "past_k"), ("present_v", "past_v")),
            num_heads=heads, kv_num_heads=k.shape[1], scale=scale, softcap=softcap, causal=int(causal or bool(window)),
            local_window_size=window[0] if window else None, **quantised)
    return heads_first(o, q)


def multi_head(q, k, v, *, dtype="float32", mask=None, bias=None, causal=False, align="top_left", scale=None, **others):
    who = "MultiHeadAttention"
    only(others, who)
    if q.shape[1] != k.shape[1]:
        raise Refused(f"{who} has as many KV heads as heads")
    if causal and (not isinstance(align, str) or align != "top_left" and q.shape[2] != k.shape[2]):
        raise Refused(f"{who} aligns its causal mask top-left")
    if mask is not None:
        if mask.ndim != 4 or mask.shape[1] > 1:
            raise Refused(f"{who} takes masks [batch, keys] and [batch, queries, keys]")
        mask = np.broadcast_to(mask[:, 0], (q.shape[0], *mask.shape[2:])).astype(np.int32)
        mask = mask[:, 0] if mask.shape[1] == 1 else mask
    q, k, v = (convert(x, dtype) for x in (q, k, v))
    inputs = {"q": tokens_first(q), "k": tokens_first(k), "v": tokens_first(v), "in_bias": None, "mask": mask,
              "bias": None if bias is None else convert(bias, dtype)}
    return heads_first(run(who, CONTRIB, inputs, ["o"], num_heads=q.shape[1], unidirectional=int(causal), scale=scale), q)
