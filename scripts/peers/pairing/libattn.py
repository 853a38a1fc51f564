# SPDX-License-Identifier: MIT
"""libattn from Python: the part of include/attn/attn.h that dense attention needs, through ctypes.

    library = Library("build/libattn.so")
    problem = library.problem(batch=1, heads_q=8, heads_kv=8, seq_q=512, seq_k=512, dim_qk=64, dim_v=64)
    with library.plan(problem, threads=2) as plan:
        run = plan.bind(q, k, v, o)     # C-contiguous arrays [batch][heads][seq][dim]; bf16 as uint16
        plan.check(run())

The structures repeat those of the header. tests/test_peers.py compares their layout with that of a C compiler. The library
may be newer than this script: it reads as much of a structure as its struct_size says.
"""

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint32, c_void_p

import numpy as np

from .attnbench import dtypes, load_functions
from .storage import ARRAYS, aligned_empty

OK, INVALID_ARGUMENT, UNSUPPORTED, UNKNOWN_KERNEL = range(4)  # attn_status
TOP_LEFT, BOTTOM_RIGHT, OFFSET = range(3)                     # attn_align
USE_LSE = 1


class LibraryError(Exception):
    """The library refused a call; the message is its own. status: attn_status."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


class Strides(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("b", "h", "s", "d")]


class ScoreStrides(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("b", "h", "q", "k")]


class Sized(ctypes.Structure):
    """A struct whose first field is its size, which the library reads."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class Problem(Sized):
    _fields_ = [("struct_size", c_size_t),
                *((name, c_int64) for name in ("batch", "heads_q", "heads_kv", "seq_q", "seq_k", "dim_qk", "dim_v")),
                *((name, c_int) for name in ("dtype_q", "dtype_kv", "dtype_o")),
                *((name, Strides) for name in ("q_stride", "k_stride", "v_stride", "o_stride", "lse_stride")),
                *((name, ScoreStrides) for name in ("bias_stride", "mask_stride", "scores_stride")),
                ("score", c_int), ("scale", c_float), ("softcap", c_float),
                ("align", c_int), ("window_left", c_int64), ("window_right", c_int64),
                ("uses", c_uint32), ("total_q", c_int64), ("total_k", c_int64), ("score_weight_stride_h", c_int64)]


class Args(Sized):
    _fields_ = [("struct_size", c_size_t), *((name, c_void_p) for name in (
        "q", "k", "v", "o", "lse", "bias", "mask", "scores", "score_weight", "kv_len", "q_len", "row_len", "cu_seqlens_q",
        "cu_seqlens_k", "offsets", "alibi_slopes", "sinks"))]


class Options(Sized):
    _fields_ = [("struct_size", c_size_t), ("kernel", c_char_p), ("max_isa", c_char_p), ("threads", c_int),
                ("parallel_for", c_void_p), ("pool", c_void_p), ("tuning", c_void_p)]


class Numerics(ctypes.Structure):
    _fields_ = [(name, c_double) for name in ("exp_error", "p_rounding", "input_flush")]


class KernelInfo(ctypes.Structure):
    _fields_ = [*((name, c_char_p) for name in ("name", "algorithm", "isa", "library", "summary")), ("numerics", Numerics)]


FUNCTIONS = {  # name -> result, arguments
    "attn_version": (c_char_p, []),
    "attn_last_error": (c_char_p, []),
    "attn_cpu_tiers": (c_char_p, []),
    "attn_problem_init": (None, [POINTER(Problem), *[c_int64] * 7]),
    "attn_problem_set_causal": (None, [POINTER(Problem), c_int]),
    "attn_sdpa": (c_int, [POINTER(Problem), POINTER(Args)]),
    "attn_plan_create": (c_int, [POINTER(Problem), POINTER(Options), POINTER(c_void_p)]),
    "attn_plan_workspace": (c_size_t, [c_void_p]),
    "attn_plan_run": (c_int, [c_void_p, POINTER(Args), c_void_p, c_size_t]),
    "attn_plan_kernel": (c_char_p, [c_void_p]),
    "attn_plan_destroy": (None, [c_void_p]),
    "attn_kernel_get": (POINTER(KernelInfo), [c_int]),
    "attn_kernel_find": (POINTER(KernelInfo), [c_char_p]),
    "attn_plugin_name": (c_char_p, [c_int]),
    "attn_load_kernels": (c_int, [c_char_p]),
}


class Library:
    """A loaded libattn.so. Raises LoadError if the file is missing or is not libattn."""

    def __init__(self, path):
        self.c = load_functions(path, FUNCTIONS, "cmake --build build --target attn_shared makes libattn.so")
        self.version = self.c.attn_version().decode()
        self.tiers = self.c.attn_cpu_tiers().decode()

    def problem(self, batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v, causal=None, lse=False, dtype="f32"):
        """Dense [batch][heads][seq][dim]. causal: None, TOP_LEFT or BOTTOM_RIGHT. dtype: of q, k, v and o."""
        problem = Problem()
        self.c.attn_problem_init(problem, batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v)
        problem.dtype_q = problem.dtype_kv = problem.dtype_o = dtypes()[dtype].number
        if causal is not None:
            self.c.attn_problem_set_causal(problem, causal)
        if lse:
            problem.uses |= USE_LSE
        return problem

    def load_plugins(self):
        """Loads libattn's own plug-ins, kernels on OpenBLAS and oneDNN, as far as they are there."""
        number = 0
        while name := self.c.attn_plugin_name(number):
            self.c.attn_load_kernels(name)
            number += 1

    def kernels(self):
        """Names of the kernels that are loaded, best first."""
        names = []
        while info := self.c.attn_kernel_get(len(names)):
            names.append(info.contents.name.decode())
        return names

    def kernel(self, name):
        """The KernelInfo of a name that kernels() lists."""
        return self.c.attn_kernel_find(name.encode()).contents

    def plan(self, problem, kernel=None, threads=1):
        """kernel: a registered name, None for the library's own choice."""
        return Plan(self, problem, kernel, threads)

    def check(self, status):
        if status != OK:
            raise LibraryError(self.c.attn_last_error().decode(), status)

    def sdpa(self, problem, q, k, v, o):
        """Plan, workspace and run in one call."""
        self.check(self.c.attn_sdpa(problem, make_args(problem, q, k, v, o)))


class Plan:
    """attn_plan with one workspace, so one thread at a time may run it. The end of a `with` block frees it."""

    def __init__(self, library, problem, kernel, threads):
        self.library, self.problem = library, problem
        self.handle = c_void_p()
        options = Options(kernel=kernel.encode() if kernel else None, threads=threads)
        library.check(library.c.attn_plan_create(problem, options, self.handle))
        self.workspace = aligned_empty(library.c.attn_plan_workspace(self.handle), np.uint8)
        self.kernel = library.c.attn_plan_kernel(self.handle).decode()

    def bind(self, q, k, v, o, lse=None):
        """A function that runs the plan on these arrays and returns the status; it calls C directly."""
        args = make_args(self.problem, q, k, v, o, lse)
        run = functools.partial(self.library.c.attn_plan_run, self.handle, ctypes.byref(args), self.workspace.ctypes.data,
                                self.workspace.nbytes)
        run.keep = (q, k, v, o, lse)
        return run

    def check(self, status):
        self.library.check(status)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.library.c.attn_plan_destroy(self.handle)
        self.handle = c_void_p()


def make_args(problem, q, k, v, o, lse=None):
    """Args of arrays. Raises ValueError if shape, type or order of an array does not fit, which ctypes would not notice."""
    p = problem
    shapes = {"q": (p.batch, p.heads_q, p.seq_q, p.dim_qk), "k": (p.batch, p.heads_kv, p.seq_k, p.dim_qk),
              "v": (p.batch, p.heads_kv, p.seq_k, p.dim_v), "o": (p.batch, p.heads_q, p.seq_q, p.dim_v),
              "lse": (p.batch, p.heads_q, p.seq_q)}
    types = {dtype.number: ARRAYS[name] for name, dtype in dtypes().items()}
    wanted = {"q": types[p.dtype_q], "k": types[p.dtype_kv], "v": types[p.dtype_kv], "o": types[p.dtype_o],
              "lse": ARRAYS["f32"]}
    arrays = {"q": q, "k": k, "v": v, "o": o}
    if p.uses & USE_LSE:
        arrays["lse"] = lse
    for name, array in arrays.items():
        if array is None or array.dtype != wanted[name] or array.shape != shapes[name] or not array.flags.c_contiguous:
            found = "None" if array is None else f"{array.dtype} {array.shape}"
            raise ValueError(f"{name} is {found}; C-contiguous {wanted[name]} {shapes[name]} is right")
    return Args(**{name: array.ctypes.data for name, array in arrays.items()})
