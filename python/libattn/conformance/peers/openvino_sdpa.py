# SPDX-License-Identifier: MIT
"""OpenVINO's ScaledDotProductAttention of opset 13, a model of one node for the CPU plugin.

https://docs.openvino.ai/2026, operation specifications, ScaledDotProductAttention-13
"""

import numpy as np
import openvino
from openvino import opset13

from ..verdicts import Refused
from . import only

NAME = "ScaledDotProductAttention"
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
