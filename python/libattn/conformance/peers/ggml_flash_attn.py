# SPDX-License-Identifier: MIT
"""ggml's flash_attn_ext on the CPU backend, by libggml.so of llama-cpp-python, or the one that ATTN_GGML_LIB names.

https://github.com/ggml-org/ggml/blob/master/include/ggml.h: masks are float16 [queries, keys], the only ones that it has.
"""

import ctypes
import importlib.util
import os
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np

from ..verdicts import Refused
from . import only

NAME = "ggml_flash_attn_ext"
TYPES = {"float32": 0, "float16": 1, "q4_0": 2, "q8_0": 8}  # enum ggml_type


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


FUNCTIONS = {  # name -> result, arguments
    "ggml_init": (c_void_p, [InitParams]),
    "ggml_free": (None, [c_void_p]),
    "ggml_version": (c_char_p, []),
    "ggml_new_tensor_4d": (c_void_p, [c_void_p, c_int, *[c_int64] * 4]),
    "ggml_flash_attn_ext": (c_void_p, [*[c_void_p] * 5, *[c_float] * 3]),
    "ggml_flash_attn_ext_add_sinks": (None, [c_void_p, c_void_p]),
    "ggml_new_graph": (c_void_p, [c_void_p]),
    "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
    "ggml_graph_compute_with_ctx": (c_int, [c_void_p, c_void_p, c_int]),
    "ggml_get_data": (c_void_p, [c_void_p]),
    "ggml_nbytes": (c_size_t, [c_void_p]),
    "ggml_cpu_init": (None, []),
}


def load():
    path = os.environ.get("ATTN_GGML_LIB")
    if path is None:
        found = importlib.util.find_spec("llama_cpp")
        if found is None:
            raise ImportError("no package llama-cpp-python, and ATTN_GGML_LIB does not name a libggml.so")
        path = Path(found.submodule_search_locations[0]) / "lib" / "libggml.so"
    folder = Path(path).parent
    libraries = [ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL) for name in ("libggml-base.so", "libggml-cpu.so")]
    functions = {}
    for name, (result, arguments) in FUNCTIONS.items():
        function = next(getattr(library, name) for library in libraries if hasattr(library, name))
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


C = load()
C["ggml_cpu_init"]()


def version():
    return C["ggml_version"]().decode()


def flash_attn_ext(q, k, v, *, dtype="float32", mask=None, bias=None, scale=None, softcap=0.0, sinks=None, kv_format=None,
                   **others):
    """Q and the result are float32; K and V of the case's type, or blocks."""
    only(others, NAME)
    if dtype == "bfloat16" or kv_format not in (None, "q8_0", "q4_0"):
        raise Refused(f"{NAME} was tried with float32, float16, q8_0 and q4_0 keys and values")
    batch, heads, queries, dim = q.shape
    keys, dim_v = k.shape[2], dim if kv_format else v.shape[3]
    context = C["ggml_init"](InitParams(2**26, None, False))
    try:
        def tensor(x, kind, row=None):
            made = C["ggml_new_tensor_4d"](context, TYPES[kind], row or x.shape[-1], *reversed(x.shape[:3]))
            x = np.ascontiguousarray(x)
            ctypes.memmove(C["ggml_get_data"](made), x.ctypes.data, C["ggml_nbytes"](made))
            return made

        kind = kv_format or dtype
        stored = [x if kv_format else x.astype(dtype) for x in (k, v)]
        inputs = [tensor(q, "float32"), *(tensor(x, kind, width) for x, width in zip(stored, (dim, dim_v)))]
        added = mask_of(mask, bias, (batch, heads, queries, keys))
        result = C["ggml_flash_attn_ext"](context, *inputs, None if added is None else tensor(added, "float16"),
                                          dim**-0.5 if scale is None else scale, 0.0, softcap)
        if sinks is not None:
            C["ggml_flash_attn_ext_add_sinks"](result, tensor(sinks.reshape(1, 1, 1, -1), "float32"))
        graph = C["ggml_new_graph"](context)
        C["ggml_build_forward_expand"](graph, result)
        status = C["ggml_graph_compute_with_ctx"](context, graph, 1)
        if status:
            raise Refused(f"ggml_graph_compute returned {status}")
        floats = ctypes.cast(C["ggml_get_data"](result), POINTER(c_float))
        o = np.ctypeslib.as_array(floats, (batch, queries, heads, dim_v)).copy()
        return o.transpose(0, 2, 1, 3)
    finally:
        C["ggml_free"](context)


def mask_of(mask, bias, shape):
    """0 and -inf for a boolean mask, in float16."""
    if mask is None and bias is None:
        return None
    with np.errstate(over="ignore"):
        added = np.float32(0) if bias is None else bias
        if mask is not None:
            added = np.where(mask, added, -np.inf)
        half = np.asarray(added).astype(np.float16)
    if (half != added).any():
        raise Refused(f"{NAME} has masks of float16, which do not hold this bias")
    return np.broadcast_to(half, shape)
