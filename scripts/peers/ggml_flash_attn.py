#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ggml's flash_attn_ext against libattn: same buffers, same threads, one process, rounds in random order.

    scripts/peers/setup.sh ggml
    cmake --build build --target attn_shared attn_python attnbench_shared
    .venv-peers/ggml/bin/python scripts/peers/ggml_flash_attn.py --ggml-lib .venv-peers/ggml/build/bin/libggml.so \
        --cases limits --csv ggml.csv

ggml is source: setup.sh builds it. Another build needs -DBUILD_SHARED_LIBS=ON (libggml.so loads libggml-base and -cpu).
The graph of one node is planned and its work buffer allocated beforehand, and its tensors are the given arrays, so a call is
only ggml_graph_compute(). K and V are float32, as Q, or q8_0 or q4_0; V may be a view of the rows of K.
Method and exit codes: scripts/peers/README.md.
"""

import contextlib
import ctypes
import functools
import sys
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

from pairing.machine import need_numpy, prepare_environment

prepare_environment()  # before NumPy starts its threads
need_numpy()
import numpy as np  # noqa: E402
from pairing import script  # noqa: E402
from libattn.bench.harness import ASSUMED_EXP_ERROR, Rounding  # noqa: E402
from pairing.library import LoadError, load_functions  # noqa: E402
from pairing.implementation import Absent, Prepared, Refused  # noqa: E402
from pairing.peers import PEERS  # noqa: E402
from pairing.storage import aligned_empty, spoil  # noqa: E402

NAME = "ggml_flash_attn_ext"
WITHOUT = "ggml is not installed as a package; --ggml-lib PATH names your build of it (libggml.so)"
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}  # enum ggml_type
SUCCESS = 0                  # enum ggml_status
QUERY_ROUNDING = 1 / 254 + 2.0**-11  # Q becomes q8_0: half of 1/127 of the largest, and the rounding of its factor
OBJECTS_BYTES = 2**20        # memory of a context: a graph and a handful of tensors without their data


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


class GraphPlan(ctypes.Structure):
    """struct ggml_cplan: the members that are used, and room for the members of other versions."""
    _fields_ = [("work_size", c_size_t), ("work_data", c_void_p), ("rest", c_void_p * 30)]


FUNCTIONS = {  # name -> result, arguments
    "ggml_init": (c_void_p, [InitParams]),
    "ggml_free": (None, [c_void_p]),
    "ggml_new_tensor_4d": (c_void_p, [c_void_p, c_int, *[c_int64] * 4]),
    "ggml_view_4d": (c_void_p, [c_void_p, c_void_p, *[c_int64] * 4, *[c_size_t] * 4]),
    "ggml_flash_attn_ext": (c_void_p, [*[c_void_p] * 5, *[c_float] * 3]),
    "ggml_new_graph": (c_void_p, [c_void_p]),
    "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
    "ggml_backend_cpu_buffer_from_ptr": (c_void_p, [c_void_p, c_size_t]),
    "ggml_backend_buffer_free": (None, [c_void_p]),
    "ggml_backend_tensor_alloc": (c_int, [c_void_p, c_void_p, c_void_p]),
    "ggml_cpu_init": (None, []),
    "ggml_graph_plan": (GraphPlan, [c_void_p, c_int, c_void_p]),
    "ggml_graph_compute": (c_int, [c_void_p, POINTER(GraphPlan)]),
}


class Ggml:
    """A loaded libggml.so."""

    def __init__(self, path):
        self.c = load_functions(Path(path).absolute(), FUNCTIONS,
                                "--ggml-lib takes the libggml.so of a build with shared libraries")
        self.c.ggml_cpu_init()
        self.version = ""
        with contextlib.suppress(AttributeError):  # exists since version 0.9
            self.c.ggml_version.restype = c_char_p
            self.version = self.c.ggml_version().decode()


class FlashAttn:
    """Each rotation has a context, a graph and a work buffer. Inputs are [batch][heads][seq][dim], the output is
    [batch][seq][heads][dim]."""
    name, kept, latent = NAME, ("q8_0", "q4_0"), True

    def __init__(self, ggml):
        self.ggml = ggml

    @contextlib.contextmanager
    def start(self, case, rotations):
        if case.pages:
            raise Refused("flash_attn_ext has no pages")
        if case.dtype != "f32":
            raise Refused("flash_attn_ext keeps Q and O in float32")
        o = aligned_empty((case.batch, case.seq_q, case.heads, case.dim_v))
        mask = causal_mask(case)
        with contextlib.ExitStack() as stack:
            calls = [stack.enter_context(self.graph(case, *tensors, mask, o)) for tensors in rotations]
            rounded = QUERY_ROUNDING if case.dtype_kv in self.kept else 0.0
            yield Prepared(calls=calls, output=functools.partial(self.output, o),
                          rounding=Rounding(ASSUMED_EXP_ERROR, query_rounding=rounded),
                          poison=lambda: spoil(o),
                          facts={"algorithm": NAME, "isa": "", "library": f"ggml {self.ggml.version}".rstrip()})

    @staticmethod
    def output(o, status):
        if status != SUCCESS:
            raise RuntimeError(f"ggml_graph_compute returned {status}; 0 is right")
        return o.transpose(0, 2, 1, 3)

    @contextlib.contextmanager
    def graph(self, case, q, k, v, mask, o):
        """A function that computes one rotation."""
        c, buffers = self.ggml.c, []
        context = c.ggml_init(InitParams(OBJECTS_BYTES, None, True))

        def tensor(array, kind="f32", row=None):
            made = c.ggml_new_tensor_4d(context, TYPES[kind], row or array.shape[-1],
                                        *reversed(array.shape[:-1]))
            place(made, array)
            return made

        def values(keys):
            if not case.latent:
                return tensor(v, case.dtype_kv, case.dim_v)
            return c.ggml_view_4d(context, keys, case.dim_v, *reversed(v.shape[:-1]), *reversed(v.strides[:-1]), 0)

        def place(made, array):
            """ggml takes data from buffers, so each array becomes a buffer."""
            buffers.append(c.ggml_backend_cpu_buffer_from_ptr(array.ctypes.data, array.nbytes))
            c.ggml_backend_tensor_alloc(buffers[-1], made, array.ctypes.data)

        try:
            keys = tensor(k, case.dtype_kv, case.head_dim)
            result = c.ggml_flash_attn_ext(context, tensor(q), keys, values(keys),
                                           None if mask is None else tensor(mask, "f16"),
                                           case.head_dim**-0.5, 0.0, 0.0)
            place(result, o)
            graph = c.ggml_new_graph(context)
            c.ggml_build_forward_expand(graph, result)
            plan = c.ggml_graph_plan(graph, case.threads, None)
            work = aligned_empty(max(plan.work_size, 1), np.uint8)
            plan.work_data = work.ctypes.data
            call = functools.partial(c.ggml_graph_compute, graph, ctypes.byref(plan))
            call.keep = work, mask
            yield call
        finally:
            for buffer in buffers:
                c.ggml_backend_buffer_free(buffer)
            c.ggml_free(context)


def causal_mask(case):
    """0 and -inf, the same for all heads: ggml has no other causal mask. None if all keys are allowed."""
    if case.causal == "none":
        return None
    mask = aligned_empty((1, 1, case.seq_q, case.seq_k), np.float16)
    mask[...] = np.where(np.tri(case.seq_q, case.seq_k, case.offset, dtype=bool), 0, -np.inf)
    return mask


def implementations(options, _library):
    if options.ggml_lib is None:
        return [Absent(NAME, WITHOUT)]
    try:
        return [FlashAttn(Ggml(options.ggml_lib))]
    except LoadError as error:
        return [Absent(NAME, str(error))]


def conditions(options):
    return [f"ggml from {options.ggml_lib}" if options.ggml_lib else WITHOUT]


def add_options(add):
    add("--ggml-lib", type=Path, metavar="PATH", help="libggml.so of your build of ggml (default: none)")


if __name__ == "__main__":
    sys.exit(script.main(script.Script(PEERS["ggml"], __doc__, implementations, conditions, own_threads=True,
                                      add_options=add_options)))
