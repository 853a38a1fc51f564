# SPDX-License-Identifier: MIT
"""Attention of one sequence over the ranks of an mpi4py communicator: libattn_mpi (docs/scale.md).

    from mpi4py import MPI
    import libattn.mpi

    border = libattn.mpi.border((1, 32, tokens, 128), (1, 8, tokens, 128), comm)
    rows = libattn.mpi.zigzag(tokens, border, comm)
    plan = libattn.mpi.Plan(comm, q, k, v, rows=rows, keys=rows, tokens=(tokens, tokens), causal=True)
    o = plan.run(q, k, v)                  # own rows, with the bits of one process

The library is built with the repository where CMake finds an MPI, which must be mpi4py's. The environment variable
LIBATTN_MPI names it where the loader does not find libattn_mpi.so.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, Sequence

import numpy as np

from ._native import C, F, S, Unsupported

MODES = ("auto", "pass_kv", "pass_q", "exchange", "split")
_DTYPES = {"float32": C.ATTN_F32, "float16": C.ATTN_F16, "bfloat16": C.ATTN_BF16}


class _Range(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_int64), ("end", ctypes.c_int64)]


class _Shard(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("q", ctypes.c_void_p), ("q_count", ctypes.c_int64),
                ("k", ctypes.c_void_p), ("k_count", ctypes.c_int64), ("layout", ctypes.c_void_p)]


class _Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("mode", ctypes.c_int), ("compute", ctypes.c_void_p),
                ("piece_keys", ctypes.c_int64), ("block_rows", ctypes.c_int64), ("timeout_s", ctypes.c_double),
                ("network", ctypes.c_void_p), ("run", ctypes.c_void_p), ("run_context", ctypes.c_void_p),
                ("group_ranks", ctypes.c_int)]


@functools.lru_cache(maxsize=None)
def _library():
    try:
        library = ctypes.CDLL(os.environ.get("LIBATTN_MPI", "libattn_mpi.so"))
    except OSError as error:
        raise ImportError(f"{error}; CMake builds libattn_mpi where it finds an MPI, and LIBATTN_MPI names it") from None
    for name, result in (("attn_mpi_plan_workspace", ctypes.c_size_t), ("attn_mpi_plan_describe", ctypes.c_char_p),
                         ("attn_mpi_plan_kernel", ctypes.c_char_p), ("attn_last_error", ctypes.c_char_p)):
        getattr(library, name).restype = result
    return library


def _check(status):
    if status != C.ATTN_OK:
        kinds = {C.ATTN_UNSUPPORTED: Unsupported, C.ATTN_OUT_OF_MEMORY: MemoryError}
        raise kinds.get(status, ValueError)(_library().attn_last_error().decode())


def _handle(comm):
    """A communicator as C passes it: a pointer with OpenMPI, an int with MPICH."""
    from mpi4py import MPI

    kind = ctypes.c_void_p if MPI._sizeof(MPI.Comm) == ctypes.sizeof(ctypes.c_void_p) else ctypes.c_int
    return kind(MPI._handleof(comm))


def _text(text):
    return text.encode() if text else None


def _problem(q_shape, k_shape, dim_v, dtype):
    problem = S.attn_problem()
    F.attn_problem_init(ctypes.byref(problem), q_shape[0], q_shape[1], k_shape[1], q_shape[2], k_shape[2], q_shape[3], dim_v)
    if dtype not in _DTYPES:
        raise TypeError(f"dtype is {dtype}; it must be one of {', '.join(_DTYPES)}")
    problem.dtype_q = problem.dtype_kv = problem.dtype_o = _DTYPES[dtype]
    return problem


def border(q_shape: Sequence[int], k_shape: Sequence[int], comm: Any, dtype: str = "float32", kernel: str | None = None,
           causal: bool = True) -> int:
    """Keys between the borders of shards, by the kernel that rank 0 chooses for all: collective. q_shape and k_shape are
    those of the whole problem, [batch, heads, tokens, dim].

    Raises a ValueError or Unsupported for shapes that no kernel takes, or where a rank cannot run rank 0's kernel;
    TypeError for another dtype.
    """
    problem, keys = _problem(q_shape, k_shape, k_shape[3], str(dtype)), ctypes.c_int64()
    problem.window_right = 0 if causal else -1
    options = S.attn_options(kernel=_text(kernel))
    _check(_library().attn_mpi_border(ctypes.byref(problem), ctypes.byref(options), _handle(comm), ctypes.byref(keys)))
    return keys.value


def zigzag(tokens: int, border: int, comm: Any) -> list[tuple[int, int]]:
    """The ranges [begin, end) of this rank that balance a causal mask: chunks r and 2 R - 1 - r of 2 R."""
    ranges = (_Range * 2)()
    count = _library().attn_mpi_zigzag(ctypes.c_int64(tokens), ctypes.c_int64(border), comm.Get_rank(), comm.Get_size(),
                                       ranges)
    return [(one.begin, one.end) for one in ranges[:count]]


def _ranges(pairs):
    return (_Range * max(len(pairs), 1))(*(_Range(*map(int, pair)) for pair in pairs))


class Plan:
    """All decisions about one problem on a communicator. Every method but describe() is collective.

    q, k, v are NumPy arrays of this rank's tokens, or any of these shapes and dtypes: [batch, heads, own rows, dim],
    [batch, kv_heads, own keys, dim] and [batch, kv_heads, own keys, dim_v]; float32, float16 or ml_dtypes' bfloat16.
    rows, keys: the tokens that they are, as [begin, end) pairs. tokens: (queries, keys) of the whole sequence. window:
    (left, right), -1 = open. align: "top_left" or "bottom_right". mode: one of MODES. backward: finds gradients instead.
    group_ranks: in mode "exchange" heads are divided within groups of so many ranks, and keys pass from group to group; 0 is
    the model's choice. It divides the ranks and heads, and divides kv_heads or is a multiple of them, or is all ranks.

    Raises a ValueError for arguments that are wrong on some rank, Unsupported for what no kernel or mode takes.
    """

    def __init__(self, comm: Any, q: Any, k: Any, v: Any, *, rows: Sequence[tuple[int, int]],
                 keys: Sequence[tuple[int, int]], tokens: tuple[int, int], causal: bool = False,
                 window: tuple[int, int] = (-1, -1), align: str = "top_left", scale: float | None = None,
                 softcap: float = 0.0, mode: str = "auto", kernel: str | None = None, threads: int = 0,
                 piece_keys: int = 0, timeout: float = 0.0, lse: bool = False, backward: bool = False,
                 group_ranks: int = 0) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
        if not 0 <= group_ranks <= comm.Get_size():  # C's int would take a larger one for another
            raise ValueError(f"group_ranks is {group_ranks}; it must be from 0, the model's choice, to all ranks, "
                             f"{comm.Get_size()}")
        whole, own = ((_problem((*q.shape[:2], queries, q.shape[3]), (*k.shape[:2], count, k.shape[3]), v.shape[3],
                                str(q.dtype))) for queries, count in (tokens, (q.shape[2], k.shape[2])))
        whole.window_left, whole.window_right = window[0], 0 if causal else window[1]
        whole.align = {"top_left": C.ATTN_ALIGN_TOP_LEFT, "bottom_right": C.ATTN_ALIGN_BOTTOM_RIGHT}[align]
        whole.softcap = softcap
        if scale is not None:
            whole.scale = scale
        if lse:
            whole.uses |= C.ATTN_USE_LSE
        if backward:
            for problem in (whole, own):
                F.attn_problem_set_backward(ctypes.byref(problem))
        self._handle = ctypes.c_void_p()
        self._lse, self._backward, self._shapes, self._dtype = lse, backward, (q.shape, k.shape, v.shape), q.dtype
        q_ranges, k_ranges = _ranges(rows), _ranges(keys)
        for name, pairs, held in (("rows", rows, q.shape[2]), ("keys", keys, k.shape[2])):
            if sum(end - begin for begin, end in pairs) != held:
                raise ValueError(f"{name} are {list(pairs)}; they must be the {held} tokens of the array")
        compute = S.attn_options(kernel=_text(kernel), threads=threads)
        shard = _Shard(ctypes.sizeof(_Shard), ctypes.addressof(q_ranges), len(rows), ctypes.addressof(k_ranges), len(keys),
                       ctypes.addressof(own))
        options = _Options(struct_size=ctypes.sizeof(_Options), mode=MODES.index(mode), compute=ctypes.addressof(compute),
                           piece_keys=piece_keys, timeout_s=timeout, group_ranks=group_ranks)
        _check(_library().attn_mpi_plan_create(ctypes.byref(whole), ctypes.byref(shard), ctypes.byref(options),
                                               _handle(comm), ctypes.byref(self._handle)))
        self._memory = np.empty(_library().attn_mpi_plan_workspace(self._handle) + 64, np.uint8)

    def _dense(self, name, array, shape):
        if array.shape != tuple(shape) or array.dtype != self._dtype:
            raise ValueError(f"{name} is {array.dtype} {array.shape}; the plan is of {self._dtype} {tuple(shape)}")
        return np.ascontiguousarray(array)

    def _run(self, arrays):
        address = -(-self._memory.ctypes.data // 64) * 64
        args = S.attn_args(**{name: array.ctypes.data if array.size else None for name, array in arrays.items()})
        _check(_library().attn_mpi_plan_run(self._handle, ctypes.byref(args), ctypes.c_void_p(address),
                                            ctypes.c_size_t(self._memory.nbytes - 64)))

    def run(self, q: Any, k: Any, v: Any) -> Any:
        """O of own rows [batch, heads, own rows, dim_v]; with lse (O, LSE), LSE being float32 [batch, heads, own rows]."""
        inputs = dict(zip("qkv", map(self._dense, "qkv", (q, k, v), self._shapes)))
        out = np.empty((*self._shapes[0][:3], self._shapes[2][3]), self._dtype)
        outputs = {"o": out}
        if self._lse:
            outputs["lse"] = np.empty(self._shapes[0][:3], np.float32)
        self._run({**inputs, **outputs})
        return (out, outputs["lse"]) if self._lse else out

    def grad(self, q: Any, k: Any, v: Any, out: Any, lse: Any, grad_out: Any) -> tuple:
        """(d_q of own rows, d_k and d_v of own keys), for a plan with backward=True. out and lse are what run() returned."""
        inputs = dict(zip("qkv", map(self._dense, "qkv", (q, k, v), self._shapes)))
        inputs |= {"o": np.ascontiguousarray(out), "lse": np.ascontiguousarray(lse, np.float32),
                   "d_o": np.ascontiguousarray(grad_out, self._dtype)}
        grads = [np.empty(shape, self._dtype) for shape in self._shapes]
        self._run({**inputs, **dict(zip(("d_q", "d_k", "d_v"), grads))})
        return tuple(grads)

    def describe(self) -> str:
        """Lines on mode, kernel, pieces, memory, and the model's time of each mode."""
        return _library().attn_mpi_plan_describe(self._handle).decode()

    @property
    def mode(self) -> str:
        """One of MODES, never "auto"."""
        return MODES[_library().attn_mpi_plan_mode(self._handle)]

    @property
    def kernel(self) -> str:
        """The kernel whose bits rows get, chosen by rank 0."""
        return _library().attn_mpi_plan_kernel(self._handle).decode()

    def close(self) -> None:
        """Frees the plan and its communicator: collective, and before MPI ends."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        _library().attn_mpi_plan_destroy(handle)
