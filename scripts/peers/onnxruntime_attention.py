#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ONNX Runtime's three attention operators against libattn: same data, same threads, one process, rounds in random order.

    scripts/peers/setup.sh onnxruntime
    cmake --build build --target attn_shared attn_python attnbench_shared
    .venv-peers/onnxruntime/bin/python scripts/peers/onnxruntime_attention.py --cases limits --csv results/local/ort.csv

ort_mha        com.microsoft MultiHeadAttention: flash without mask and causal, else the score matrix of all heads in memory
ort_attention  ai.onnx Attention of opset 23: the score matrix of all heads in memory
ort_gqa        com.microsoft GroupQueryAttention: no score matrix; always causal; K and V are its cache, one buffer for
               past and present; of cases in pages a dense copy, because it has no pages; also int8, and 4 bits beside
               q4_0, with one factor of all keys

A model has one node. All graph optimisations are on, and inputs and outputs are bound beforehand (IO binding), so a call is
only run_with_iobinding(). Method and exit codes: scripts/peers/README.md.
"""

import contextlib
import functools
import sys

from pairing.machine import need_numpy, prepare_environment

prepare_environment()  # before NumPy starts its threads
need_numpy()
import numpy as np  # noqa: E402

try:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplementedByRuntime
except ImportError as missing:
    onnx, WITHOUT = None, f"ONNX Runtime cannot be imported ({missing}): scripts/peers/setup.sh onnxruntime installs it"

from pairing import script  # noqa: E402
from libattn.bench.harness import ASSUMED_EXP_ERROR, Rounding, dtypes  # noqa: E402
from libattn.bench.problems import FEW_QUERIES, integers_of  # noqa: E402
from pairing.implementation import Absent, Prepared, Refused  # noqa: E402
from pairing.peers import PEERS  # noqa: E402
from pairing.storage import ARRAYS, aligned_empty, spoil  # noqa: E402

CONTRIB = "com.microsoft"
OPSETS, IR_VERSION = {"": 23, CONTRIB: 1}, 10  # opset 23 brought Attention


class Operator:
    """One operator. Subclasses define the node and the arrays that it reads and writes."""
    name = op = domain = ""

    @contextlib.contextmanager
    def start(self, case, rotations):
        self.refuse(case)
        bindings = [self.bind(case, *tensors) for tensors in rotations]
        try:
            session = make_session(self.op, self.domain, bindings[0], case)
        except NotImplementedByRuntime as error:
            raise Refused(f"{self.op} of {case.dtype}: {' '.join(str(error).split())}") from None
        o = bindings[0].outputs["o"]
        for binding in bindings[1:]:
            binding.outputs["o"] = o
        calls = [functools.partial(session.run_with_iobinding, bind_io(session, binding)) for binding in bindings]
        yield Prepared(calls=calls, output=lambda _: self.output(case, o), rounding=rounding(case.dtype),
                      poison=lambda: spoil(o),
                      facts={"algorithm": self.name, "isa": "", "library": f"ONNX Runtime {onnxruntime.__version__}"})

    def refuse(self, case):
        """Raises Refused for a case that the operator does not have, or defines differently."""
        if case.pages:
            raise Refused(f"{self.op} has no pages and no packed queries")

    def bind(self, case, q, k, v):
        """The Binding of one rotation."""
        raise NotImplementedError

    def output(self, case, o):
        """o as [batch][heads][seq][dim]."""
        return o


class Binding:
    """Arrays by the names of the node's inputs and outputs, in order. names: those of all inputs, "" for one that is absent.
    """

    def __init__(self, inputs, outputs, attributes, names=None):
        self.inputs, self.outputs, self.attributes = inputs, outputs, attributes
        self.names = names or list(inputs)


class MultiHeadAttention(Operator):
    """q is [batch][seq][heads * dim]. The operator takes K and V in two layouts. This class uses the faster one: for many
    queries that of q, for few queries [batch][heads][seq][dim], as in a cache."""
    name, op, domain = "ort_mha", "MultiHeadAttention", CONTRIB

    def refuse(self, case):
        super().refuse(case)
        if case.heads != case.heads_kv:
            raise Refused("MultiHeadAttention has no KV heads of its own; it takes heads_kv = heads")
        if case.causal == "bottom-right" and case.seq_q != case.seq_k:
            raise Refused("unidirectional aligns top-left; bottom-right with seq_q != seq_k would take a past or a bias")

    def bind(self, case, q, k, v):
        cache = case.seq_q <= FEW_QUERIES
        inputs = {"q": tokens_first(q), "k": k if cache else tokens_first(k), "v": v if cache else tokens_first(v)}
        return Binding(inputs, {"o": tokens_first_empty(case)},
                       {"num_heads": case.heads, "unidirectional": int(case.causal != "none")})

    def output(self, case, o):
        return heads_first(case, o)


class GroupQueryAttention(Operator):
    """K and V of the case are the cache. Past and present are one buffer, so a call writes only the keys of its queries,
    with the values that they have already. The first prompt (seq_q = seq_k) writes all keys."""
    name, op, domain, kept = "ort_gqa", "GroupQueryAttention", CONTRIB, ("i8", "q4_0")

    def refuse(self, case):
        if case.pages and not case.pages.uniform:
            raise Refused("GroupQueryAttention takes as many queries of every sequence")
        if case.seq_q > case.seq_k:
            raise Refused("GroupQueryAttention appends its queries' keys to a cache; it takes seq_q <= seq_k")
        if case.causal != "bottom-right" and case.seq_q > 1 or case.causal == "top-left" and case.seq_k > 1:
            raise Refused("GroupQueryAttention is always causal, aligned bottom-right")

    def bind(self, case, q, k, v):
        if case.pages:
            q, k, v = (aligned_copy(x) for x in case.pages.dense(q, k, v))
        new, attributes, factors = slice(case.seq_k - case.seq_q, case.seq_k), {}, {}
        new_k, new_v = (x[:, :, new] for x in (k, v))
        if case.dtype_kv in self.kept:
            new_k, new_v = (integers_of(x, case.dtype_kv).astype(np.float32) for x in (new_k, new_v))
            k, v = (quantised(x, case.dtype_kv) for x in (k, v))
            factors = {name: np.ones(1, np.float32) for name in ("k_scale", "v_scale")}
            attributes = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR",
                          "kv_cache_bit_width": 4 if case.dtype_kv == "q4_0" else 8}
        inputs = {"q": tokens_first(q), "k": tokens_first(new_k), "v": tokens_first(new_v),
                  "past_k": k, "past_v": v, "last_key": np.full(case.batch, case.seq_k - 1, np.int32),
                  "all_keys": np.array([case.seq_k], np.int32)}
        names = [*inputs, *([""] * 5 if factors else []), *factors]
        return Binding({**inputs, **factors}, {"o": tokens_first_empty(case), "present_k": k, "present_v": v},
                       {"num_heads": case.heads, "kv_num_heads": case.heads_kv, **attributes}, names)

    def output(self, case, o):
        return o.reshape(-1, case.heads, case.head_dim) if case.pages else heads_first(case, o)


class Attention(Operator):
    """All tensors are [batch][heads][seq][dim]. It has grouped heads."""
    name, op = "ort_attention", "Attention"

    def refuse(self, case):
        super().refuse(case)
        if case.causal == "bottom-right" and case.seq_q != case.seq_k:
            raise Refused("is_causal of opset 23 aligns top-left; bottom-right with seq_q != seq_k would take a past or "
                          "a mask")

    def bind(self, case, q, k, v):
        o = aligned_empty((case.batch, case.heads, case.seq_q, case.head_dim), ARRAYS[case.dtype])
        return Binding({"q": q, "k": k, "v": v}, {"o": o}, {"is_causal": int(case.causal != "none")})


OPERATORS = (MultiHeadAttention(), Attention(), GroupQueryAttention())


# ---- Layouts -----------------------------------------------------------------------------------------------------------

def tokens_first(x):
    """[batch][heads][seq][dim] as a new [batch][seq][heads * dim]."""
    batch, heads, seq, dim = x.shape
    copy = aligned_empty((batch, seq, heads * dim), x.dtype)
    copy.reshape(batch, seq, heads, dim)[...] = x.transpose(0, 2, 1, 3)
    return copy


def aligned_copy(x):
    copy = aligned_empty(x.shape, x.dtype)
    copy[...] = x
    return copy


def quantised(x, dtype):
    """Rows of the cache: int8, or two elements of 4 bits a byte, the first one in its lower half."""
    integers = integers_of(x, dtype)
    if dtype == "i8":
        return aligned_copy(integers)
    halves = (integers + 8).view(np.uint8)
    return aligned_copy(halves[..., ::2] | halves[..., 1::2] << 4)


def tokens_first_empty(case):
    return aligned_empty((case.batch, case.seq_q, case.heads * case.head_dim), ARRAYS[case.dtype])


def heads_first(case, o):
    return o.reshape(case.batch, case.seq_q, case.heads, case.head_dim).transpose(0, 2, 1, 3)


# ---- Sessions ----------------------------------------------------------------------------------------------------------

def make_session(op, domain, binding, case):
    """A session of a model with this one node and fixed shapes."""
    def describe(arrays):
        return [helper.make_tensor_value_info(name, onnx_type(array), array.shape) for name, array in arrays.items()]

    node = helper.make_node(op, binding.names, list(binding.outputs), domain=domain, **binding.attributes)
    graph = helper.make_graph([node], op, describe(binding.inputs), describe(binding.outputs))
    model = helper.make_model(graph, ir_version=IR_VERSION,
                              opset_imports=[helper.make_opsetid(*opset) for opset in OPSETS.items()])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = case.threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4  # errors are raised anyway
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def onnx_type(array):
    """uint16 arrays hold bfloat16 (pairing/storage.py)."""
    return TensorProto.BFLOAT16 if array.dtype == np.uint16 else helper.np_dtype_to_tensor_dtype(array.dtype)


def bind_io(session, binding):
    """Binds the addresses of the arrays, which are read and written in place."""
    io = session.io_binding()
    for name, x in binding.inputs.items():
        io.bind_input(name, "cpu", 0, onnx_type(x), x.shape, x.ctypes.data)
    for name, x in binding.outputs.items():
        io.bind_output(name, "cpu", 0, onnx_type(x), x.shape, x.ctypes.data)
    io.keep = binding
    return io


def rounding(dtype):
    return Rounding(ASSUMED_EXP_ERROR, p_rounding=0.0 if dtype == "f32" else dtypes()[dtype].roundoff)


def implementations(_options, _library):
    return [operator if onnx else Absent(operator.name, WITHOUT) for operator in OPERATORS]


def conditions(_options):
    return [f"ONNX Runtime {onnxruntime.__version__}  CPUExecutionProvider" if onnx else WITHOUT]


if __name__ == "__main__":
    sys.exit(script.main(script.Script(PEERS["onnxruntime"], __doc__, implementations, conditions, own_threads=True)))
