# SPDX-License-Identifier: MIT
"""libattn from Python: the part of include/attn/attn.h that dense attention needs, through ctypes.

    library = Library("build/libattn.so")
    problem = library.problem(batch=1, heads_q=8, heads_kv=8, seq_q=512, seq_k=512, dim_qk=64, dim_v=64)
    with library.plan(problem, threads=2) as plan:
        run = plan.bind(q, k, v, o)     # C-contiguous arrays [batch][heads][seq][dim]; bf16 as uint16
        plan.check(run())

Structures and functions are those of the Python package, which reads them from the headers. The library may be newer or
older: it reads as much of a structure as its struct_size says.
"""

import ctypes
import functools
from ctypes import byref

import numpy as np

from libattn._native import C, S, open_library
from libattn.bench.harness import dtypes
from libattn.bench.places import has_columns
from libattn.bench.problems import INTEGERS, row_bytes, stored_type

from .storage import ARRAYS, aligned_empty

UNKNOWN_KERNEL = C.ATTN_UNKNOWN_KERNEL
TOP_LEFT, BOTTOM_RIGHT = C.ATTN_ALIGN_TOP_LEFT, C.ATTN_ALIGN_BOTTOM_RIGHT


class LoadError(Exception):
    """A shared library is missing or the wrong one; the message names the command that builds it."""


def load_functions(path, functions, remedy):
    """The shared library at `path` with its functions declared. Raises LoadError, which ends with the remedy."""
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LoadError(f"{error}; {remedy}") from None
    return library


class LibraryError(Exception):
    """The library refused a call; the message is its own. status: attn_status."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


class Library:
    """A loaded libattn.so. Raises LoadError if the file is missing or is not libattn."""

    def __init__(self, path):
        try:
            self.c = open_library(path)
        except (OSError, AttributeError) as error:
            raise LoadError(f"{error}; cmake --build build --target attn_shared makes libattn.so") from None
        self.version = self.c.attn_version().decode()
        self.tiers = self.c.attn_cpu_tiers().decode()

    def problem(self, batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v, causal=None, lse=False, dtype="f32",
                dtype_kv=None):
        """Dense [batch][heads][seq][dim]. causal: None, TOP_LEFT or BOTTOM_RIGHT. dtype: of q, k, v and o; dtype_kv: of k
        and v, if they have another."""
        problem = S.attn_problem()
        self.c.attn_problem_init(byref(problem), batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v)
        problem.dtype_q = problem.dtype_o = dtypes()[dtype].number
        problem.dtype_kv = dtypes()[dtype_kv or dtype].number
        if causal is not None:
            self.c.attn_problem_set_causal(byref(problem), causal)
        if lse:
            problem.uses |= C.ATTN_USE_LSE
        return problem

    def take_pages(self, problem, pages):
        """Queries packed, K and V in pages: libattn.bench.pages.Pages."""
        self.c.attn_problem_set_varlen(byref(problem), int(pages.cu_seqlens_q[-1]), 0)
        self.c.attn_problem_set_pages(byref(problem), pages.page_tokens, pages.count)

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
            names.append(S.attn_kernel_info.from_address(info).name.decode())
        return names

    def kernel(self, name):
        """The attn_kernel_info of a name that kernels() lists."""
        return S.attn_kernel_info.from_address(self.c.attn_kernel_find(name.encode()))

    def plan(self, problem, kernel=None, threads=1):
        """kernel: a registered name, None for the library's own choice."""
        return Plan(self, problem, kernel, threads)

    def check(self, status):
        if status != C.ATTN_OK:
            raise LibraryError(self.c.attn_last_error().decode(), status)

    def sdpa(self, problem, q, k, v, o):
        """Plan, workspace and run in one call."""
        self.check(self.c.attn_sdpa(byref(problem), byref(make_args(problem, q, k, v, o))))


class Plan:
    """attn_plan with one workspace, so one thread at a time may run it. The end of a `with` block frees it."""

    def __init__(self, library, problem, kernel, threads):
        self.library, self.problem = library, problem
        self.handle = ctypes.c_void_p()
        options = S.attn_options(kernel=kernel.encode() if kernel else None, threads=threads)
        library.check(library.c.attn_plan_create(byref(problem), byref(options), byref(self.handle)))
        self.workspace = aligned_empty(library.c.attn_plan_workspace(self.handle), np.uint8)
        self.kernel = library.c.attn_plan_kernel(self.handle).decode()

    def bind(self, q, k, v, o, lse=None, pages=None):
        """A function that runs the plan on these arrays and returns the status; it calls C directly."""
        args = make_args(self.problem, q, k, v, o, lse, pages)
        run = functools.partial(self.library.c.attn_plan_run, self.handle, byref(args), self.workspace.ctypes.data,
                                self.workspace.nbytes)
        run.keep = (q, k, v, o, lse, pages)
        return run

    def check(self, status):
        self.library.check(status)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.library.c.attn_plan_destroy(self.handle)
        self.handle = ctypes.c_void_p()


def make_args(problem, q, k, v, o, lse=None, pages=None):
    """attn_args of arrays. Raises ValueError if shape, type or order of an array does not fit: ctypes would not notice."""
    p = problem
    queries = (p.total_q, p.heads_q) if pages else (p.batch, p.heads_q, p.seq_q)
    keys = (p.pages, p.heads_kv, p.page_tokens) if pages else (p.batch, p.heads_kv, p.seq_k)
    names = {dtype.number: name for name, dtype in dtypes().items() if name in (*ARRAYS, *INTEGERS)}
    kept = names[p.dtype_kv]
    rows = [row_bytes(dim, kept) // stored_type(kept).itemsize for dim in (p.dim_qk, p.dim_v)]
    shapes = {"q": (*queries, p.dim_qk), "k": (*keys, rows[0]), "v": (*keys, rows[1]), "o": (*queries, p.dim_v),
              "lse": queries}
    wanted = {"q": ARRAYS[names[p.dtype_q]], "k": stored_type(kept), "v": stored_type(kept),
              "o": ARRAYS[names[p.dtype_o]], "lse": ARRAYS["f32"]}
    arrays = {"q": q, "k": k, "v": v, "o": o}
    if pages:
        arrays.update(page_table=pages.table, kv_len=pages.kv_len, cu_seqlens_q=pages.cu_seqlens_q)
        shapes.update(page_table=(p.batch, p.page_table_stride), kv_len=(p.batch,), cu_seqlens_q=(p.batch + 1,))
        wanted.update(dict.fromkeys(("page_table", "kv_len", "cu_seqlens_q"), np.dtype(np.int32)))
    if p.uses & C.ATTN_USE_LSE:
        arrays["lse"] = lse
    for name, array in arrays.items():
        fits = array is not None and (array.dtype, array.shape) == (wanted[name], shapes[name])
        if name == "v" and bytes(p.v_stride) == bytes(p.k_stride) and p.dim_v < p.dim_qk:
            fits, order = fits and has_columns(k, v), "first columns of k,"
        else:
            fits, order = fits and array.flags.c_contiguous, "C-contiguous"
        if not fits:
            found = "None" if array is None else f"{array.dtype} {array.shape}"
            raise ValueError(f"{name} is {found}; {order} {wanted[name]} {shapes[name]} is right")
    return S.attn_args(**{name: array.ctypes.data for name, array in arrays.items()})
