#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""OpenVINO's attention against libattn: same buffers, same threads, one process, rounds in random order.

    scripts/peers/setup.sh openvino
    cmake --build build --target attn_shared attn_python attnbench_shared
    .venv-peers/openvino/bin/python scripts/peers/openvino_sdpa.py --cases limits --csv results/local/openvino.csv

A model has one opset-13 node for the CPU plugin: latency hint, one stream, the threads asked for, and arithmetic in the type
of the data (by default the plugin uses bf16 where the CPU has it). Inputs and output are set beforehand and shared, so a
call is infer() of one request; its Python layer takes about 3 us. Method and exit codes: scripts/peers/README.md.

openvino_sdpa   ScaledDotProductAttention of opset 13
openvino_paged  PagedAttentionExtension, which OpenVINO's own transformation of models puts in: cases in pages, in float32;
                always causal; keys and values in blocks of 32 tokens, copied there beforehand
"""

import contextlib
import sys

from pairing.machine import need_numpy, prepare_environment

prepare_environment()  # before NumPy starts its threads
need_numpy()
import numpy as np  # noqa: E402

try:
    import openvino
    from openvino import opset13
    from openvino._pyopenvino.op import _PagedAttentionExtension  # no opset has it
except ImportError as missing:
    openvino, WITHOUT = None, f"OpenVINO cannot be imported ({missing}): scripts/peers/setup.sh openvino installs it"

from pairing import script  # noqa: E402
from libattn.bench.harness import ASSUMED_EXP_ERROR, Rounding, dtypes  # noqa: E402
from libattn.bench.problems import INTEGERS  # noqa: E402
from pairing.implementation import Absent, Prepared, Refused  # noqa: E402
from pairing.peers import PEERS  # noqa: E402
from pairing.storage import ARRAYS, aligned_empty, spoil  # noqa: E402

DTYPES = {np.dtype("int32"): "i32", np.dtype("uint8"): "u8"}  # types of inputs that are no tensors of the case
CAPABILITIES = {"f32": "FP32", "f16": "FP16", "bf16": "BF16"}  # the plugin's names


class ScaledDotProductAttention:
    """The node takes as many KV heads as heads. Fewer KV heads are broadcast before it, as in exported models."""
    name = "openvino_sdpa"

    def __init__(self):
        self.core = openvino.Core()
        self.capabilities = self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")

    @contextlib.contextmanager
    def start(self, case, rotations):
        if case.pages:
            raise Refused("ScaledDotProductAttention has no pages")
        if case.causal == "bottom-right" and case.seq_q != case.seq_k:
            raise Refused("causal aligns top-left; bottom-right with seq_q != seq_k would take a mask tensor")
        precision = case.dtype if CAPABILITIES[case.dtype] in self.capabilities else "f32"
        compiled = self.core.compile_model(make_model(case), "CPU", {
            "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": case.threads,
            "INFERENCE_PRECISION_HINT": precision, "ENABLE_CPU_PINNING": False})
        o = aligned_empty((case.batch, case.heads, case.seq_q, case.head_dim), ARRAYS[case.dtype])
        requests = [make_request(compiled, tensors, o, case.dtype) for tensors in rotations]
        yield Prepared(calls=[request.infer for request in requests], output=lambda _: o, poison=lambda: spoil(o),
                      rounding=rounding(case.dtype, precision),
                      facts={"algorithm": self.name, "isa": "", "library": openvino_name()},
                      note="" if precision == case.dtype else f"computes in {precision}")


BLOCK_TOKENS = 32  # the only size that the CPU plugin takes

# Inputs of the node behind q, k, v and the two caches: type, rank, value of what the case does not set
PAGED_INPUTS = {"past_lens": ("i32", 1), "subsequence_begins": ("i32", 1), "block_indices": ("i32", 1),
                "block_indices_begins": ("i32", 1), "scale": ("f32", 0), "sliding_window": ("i32", 0),
                "alibi_slopes": ("f32", 1), "max_context_len": ("i32", 0), "score_aggregation_window": ("i32", 1),
                "rotated_block_indices": ("i32", 1), "rotation_deltas": ("i32", 2), "rotation_trig_lut": ("f32", 2),
                "xattention_threshold": ("f32", 1), "xattention_block_size": ("i32", 0), "xattention_stride": ("i32", 0),
                "sinks": ("f32", 4), "adaptive_rkv_start_size": ("i32", 0), "adaptive_rkv_evictable_sizes": ("i32", 1),
                "adaptive_rkv_diversity_block_set_indices": ("i32", 1),
                "adaptive_rkv_diversity_block_set_indices_begins": ("i32", 1), "token_type_ids": ("i32", 1),
                "qq_bias": ("u8", 1), "qq_bias_begins": ("i32", 1)}


class PagedAttention:
    """A call appends its queries' keys and values to the caches, with the values that they have already, and attends."""
    name, kept = "openvino_paged", tuple(INTEGERS)  # taken here only to be refused with the reason

    def __init__(self):
        self.core = openvino.Core()

    @contextlib.contextmanager
    def start(self, case, rotations):
        if not case.pages:
            raise Refused("its keys and values are paged: -a page_tokens=128")
        if case.dtype != "f32":
            raise Refused("PagedAttentionExtension was tried with float32 alone")
        if case.dtype_kv in self.kept:
            raise Refused("its cache in u8 rounds the keys and values of each call's queries once more, by up to half of "
                          "1/255 of a row's range, for which the oracle's limit has no term")
        if case.pages.page_tokens % BLOCK_TOKENS:
            raise Refused(f"its blocks have {BLOCK_TOKENS} tokens; page_tokens must be a multiple")
        if case.causal != "bottom-right" and any(queries > 1 for queries, _ in case.pages.lengths):
            raise Refused("PagedAttentionExtension is always causal, aligned bottom-right")
        compiled = self.core.compile_model(paged_model(case), "CPU", {
            "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": case.threads,
            "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "ENABLE_CPU_PINNING": False})
        o = aligned_empty((len(rotations[0][0]), case.heads * case.head_dim), np.float32)
        inputs = [paged_arrays(case, *tensors) for tensors in rotations]  # they must outlive the requests
        requests = [make_request(compiled, arrays, o, "f32") for arrays in inputs]
        yield Prepared(calls=[request.infer for request in requests], poison=lambda: spoil(o),
                       output=lambda _: o.reshape(-1, case.heads, case.head_dim), rounding=rounding("f32", "f32"),
                       facts={"algorithm": self.name, "isa": "", "library": openvino_name()})


def paged_model(case):
    def parameter(dtype, *sizes):
        return opset13.parameter(openvino.PartialShape(list(sizes)), openvino_type(dtype))
    rows = [parameter("f32", -1, heads * case.head_dim) for heads in (case.heads, case.heads_kv, case.heads_kv)]
    caches = [parameter("f32", -1, case.heads_kv, BLOCK_TOKENS, case.head_dim) for _ in range(2)]
    inputs = rows + caches + [parameter(dtype, *[-1] * rank) for dtype, rank in PAGED_INPUTS.values()]
    node = _PagedAttentionExtension([x.output(0) for x in inputs])
    facts = node.get_rt_info()
    facts["k_head_size"] = facts["v_head_size"] = case.head_dim
    facts["num_k_heads"] = facts["num_v_heads"] = case.heads_kv
    return openvino.Model([node.output(0)], inputs)


def paged_arrays(case, q, k, v):
    """The inputs of a call: the queries' keys and values side by side, all of them in blocks, and what says where."""
    pages = case.pages
    new = [np.concatenate([pages.tokens(x, b)[0, :, keys - queries:].transpose(1, 0, 2)
                           for b, (queries, keys) in enumerate(pages.lengths)]) for x in (k, v)]
    rows = [np.ascontiguousarray(x.reshape(len(x), -1)) for x in (q, *new)]
    used = [row[row >= 0] for row in pages.table]
    split = pages.page_tokens // BLOCK_TOKENS  # blocks of a page
    given = {"past_lens": [keys - queries for queries, keys in pages.lengths], "subsequence_begins": pages.cu_seqlens_q,
             "block_indices": (np.concatenate(used)[:, None] * split + np.arange(split)).ravel(),
             "block_indices_begins": np.cumsum([0, *(len(row) * split for row in used)]),
             "scale": case.head_dim ** -0.5, "max_context_len": max(keys for _, keys in pages.lengths)}
    others = [np.array(given.get(name, np.zeros([0] * rank)), ARRAYS.get(dtype, np.int32 if dtype == "i32" else np.uint8))
              for name, (dtype, rank) in PAGED_INPUTS.items()]
    return [*rows, *(in_blocks(x, split) for x in (k, v)), *others]


def in_blocks(x, split):
    """[pages, heads, page_tokens, dim] as [pages * split, heads, BLOCK_TOKENS, dim]."""
    pages, heads, _, dim = x.shape
    copy = aligned_empty((pages * split, heads, BLOCK_TOKENS, dim), x.dtype)
    copy.reshape(pages, split, heads, BLOCK_TOKENS, dim)[...] = x.reshape(
        pages, heads, split, BLOCK_TOKENS, dim).transpose(0, 2, 1, 3, 4)
    return copy


def rounding(dtype, precision):
    """On a CPU without bf16 the plugin's conversion rounds up only from the middle, and only if the last bit is 1: its
    error is up to a whole step, twice that of rounding to nearest."""
    narrowed = 0.0 if precision == "f32" else dtypes()[precision].roundoff
    return Rounding(ASSUMED_EXP_ERROR, p_rounding=narrowed,
                    store_error=2 * dtypes()["bf16"].roundoff if dtype == "bf16" and precision == "f32" else 0.0)


def make_model(case):
    q, k, v = (opset13.parameter((case.batch, heads, seq, case.head_dim), openvino_type(case.dtype))
               for heads, seq in ((case.heads, case.seq_q), (case.heads_kv, case.seq_k), (case.heads_kv, case.seq_k)))
    all_k, all_v = (x if case.heads == case.heads_kv else repeat_heads(case, x) for x in (k, v))
    o = opset13.scaled_dot_product_attention(q, all_k, all_v, causal=case.causal != "none")
    return openvino.Model([o], [q, k, v])


def repeat_heads(case, x):
    """[batch][heads_kv][seq][dim] -> [batch][heads][seq][dim]"""
    def constant(*values):
        return opset13.constant(np.array(values, np.int64))
    shape = case.batch, case.heads_kv, case.heads // case.heads_kv, case.seq_k, case.head_dim
    copies = opset13.broadcast(opset13.unsqueeze(x, constant(2)), constant(*shape))
    return opset13.reshape(copies, constant(case.batch, case.heads, case.seq_k, case.head_dim), False)


def make_request(compiled, tensors, o, dtype):
    """A request that reads and writes these arrays in place."""
    request = compiled.create_infer_request()
    for index, x in enumerate(tensors):
        request.set_input_tensor(index, shared_tensor(x, DTYPES.get(x.dtype, dtype)))
    request.set_output_tensor(0, shared_tensor(o, dtype))
    return request


def shared_tensor(array, dtype):
    return openvino.Tensor(array, openvino.Shape(array.shape), openvino_type(dtype))


def openvino_type(dtype):
    return getattr(openvino.Type, dtype)


def openvino_name():
    return f"OpenVINO {openvino.__version__.split('-', maxsplit=1)[0]}"


def implementations(_options, _library):
    return [one() if openvino else Absent(one.name, WITHOUT) for one in (ScaledDotProductAttention, PagedAttention)]


def conditions(_options):
    return [f"{openvino_name()}  CPU plugin" if openvino else WITHOUT]


if __name__ == "__main__":
    sys.exit(script.main(script.Script(PEERS["openvino"], __doc__, implementations, conditions, own_threads=True)))
