# SPDX-License-Identifier: MIT
"""An ONNX backend (onnx.backend.base) for models of one Attention node, by libattn. prepare() raises BackendIsNotSupposedTo
ImplementIt for what libattn has not: the matrix of scores or weights as an output."""

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

import libattn

PLACES = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")


def split_heads(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) if x.ndim == 3 else x


def with_four_dimensions(mask, keys):
    """A mask may cover the first keys alone; the others are masked then."""
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    missing = keys - mask.shape[3] if mask.shape[3] > 1 else 0
    return np.pad(mask, [(0, 0)] * 3 + [(0, missing)], constant_values=False if mask.dtype == bool else -np.inf)


def attend(given, attributes):
    """(Y, present_key, present_value)"""
    q = split_heads(given["Q"], attributes.get("q_num_heads"))
    k, v = (split_heads(given[name], attributes.get("kv_num_heads")) for name in "KV")
    options = {"scale": attributes.get("scale"), "softcap": attributes.get("softcap", 0.0)}
    offset = 0
    if "past_key" in given:
        offset = given["past_key"].shape[2]
        k, v = (np.concatenate([given[name], x], 2) for name, x in (("past_key", k), ("past_value", v)))
    if "nonpad_kv_seqlen" in given:
        options["kv_len"] = given["nonpad_kv_seqlen"]
        offset = given["nonpad_kv_seqlen"] - q.shape[2]
    options["align"] = offset if isinstance(offset, int) else offset.astype(np.int32)
    options["causal"] = bool(attributes.get("is_causal", 0))
    options["window"] = tuple(attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if "attn_mask" in given:
        mask = with_four_dimensions(given["attn_mask"], k.shape[2])
        options.update({"mask": mask} if mask.dtype == bool else {"bias": mask.astype(np.float32)})
    out = libattn.sdpa(q, k, v, **options)
    return out if given["Q"].ndim == 4 else out.transpose(0, 2, 1, 3).reshape(*given["Q"].shape[:2], -1), k, v


class AttentionNode(BackendRep):
    def __init__(self, node):
        self.node = node
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    def run(self, inputs, **kwargs):
        names = [place for place, name in zip(PLACES, self.node.input) if name]
        results = attend(dict(zip(names, inputs)), self.attributes)
        return [result for result, name in zip(results, self.node.output) if name]


class LibattnBackend(Backend):
    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        node, = model.graph.node
        if node.op_type != "Attention":
            raise BackendIsNotSupposedToImplementIt(f"the operator {node.op_type}")
        if len(node.output) > 3:
            raise BackendIsNotSupposedToImplementIt("scores or weights as an output (qk_matmul_output): never stored")
        return AttentionNode(node)
