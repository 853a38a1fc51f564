#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""OpenVINO's ScaledDotProductAttention against libattn: same buffers, same threads, one process, rounds in random order.

    scripts/peers/setup.sh openvino
    cmake --build build --target attn_shared attn_python attnbench_shared
    .venv-peers/openvino/bin/python scripts/peers/openvino_sdpa.py --cases limits --csv results/local/openvino.csv

A model has one opset-13 node for the CPU plugin: latency hint, one stream, the threads asked for, and arithmetic in the type
of the data (by default the plugin uses bf16 where the CPU has it). Inputs and output are set beforehand and shared, so a
call is infer() of one request; its Python layer takes about 3 us. Method and exit codes: scripts/peers/README.md.
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
except ImportError as missing:
    openvino, WITHOUT = None, f"OpenVINO cannot be imported ({missing}): scripts/peers/setup.sh openvino installs it"

from pairing import script  # noqa: E402
from libattn.bench.harness import ASSUMED_EXP_ERROR, Rounding, dtypes  # noqa: E402
from pairing.implementation import Absent, Prepared, Refused  # noqa: E402
from pairing.peers import PEERS  # noqa: E402
from pairing.storage import ARRAYS, aligned_empty, spoil  # noqa: E402

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
        request.set_input_tensor(index, shared_tensor(x, dtype))
    request.set_output_tensor(0, shared_tensor(o, dtype))
    return request


def shared_tensor(array, dtype):
    return openvino.Tensor(array, openvino.Shape(array.shape), openvino_type(dtype))


def openvino_type(dtype):
    return getattr(openvino.Type, dtype)


def openvino_name():
    return f"OpenVINO {openvino.__version__.split('-', maxsplit=1)[0]}"


def implementations(_options, _library):
    return [ScaledDotProductAttention() if openvino else Absent("openvino_sdpa", WITHOUT)]


def conditions(_options):
    return [f"{openvino_name()}  CPU plugin" if openvino else WITHOUT]


if __name__ == "__main__":
    sys.exit(script.main(script.Script(PEERS["openvino"], __doc__, implementations, conditions, own_threads=True)))
