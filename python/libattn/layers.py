# SPDX-License-Identifier: MIT
"""Layers of attn/mha.h and attn/nn.h: weights packed once, run many times.

    layer = libattn.layers.MultiHeadAttention(heads=4, width=64, w_qkv=w, w_o=o)
    y = layer(x)                                    # float32 [batch, seq, width]

Everything is dense, and float32 unless a layer is made with another dtype; weights of attention, networks and blocks may
also be float16 or bfloat16, which most tiers keep in 2 bytes an element. Weights are copied when a layer is made. Batch and
lengths are those of each call's arrays, unless they are given when the layer is made: then it refuses others. Any number of
threads may call a layer at once. Results are new arrays of the library that the first input is from. docs/semantics.md
("The family around it") gives every formula with its source.

Errors are those of sdpa(): ValueError, TypeError, Unsupported, MemoryError, with the library's sentence.
"""

from __future__ import annotations

import ctypes
import math
import operator
import threading
from typing import Any

from ._native import C, F, S, check
from ._plan import read_dense
from ._sdpa import FUNCTIONS

DTYPES = {"float32": "ATTN_F32", "float16": "ATTN_F16", "bfloat16": "ATTN_BF16"}
CACHE_DTYPES = {**DTYPES, "float8_e4m3fn": "ATTN_F8_E4M3", "float8_e5m2": "ATTN_F8_E5M2", "int8": "ATTN_I8"}
KV_FORMATS = {"q8_0": "ATTN_Q8_0", "q4_0": "ATTN_Q4_0"}
POOL_DTYPES = {**CACHE_DTYPES, **KV_FORMATS}


def _whole(**sizes):
    """Refuses what ctypes would refuse without its name, or cut to 64 bits."""
    for name, size in sizes.items():
        try:
            fits = abs(operator.index(size)) < 2**62
        except TypeError:
            fits = False
        if not fits:
            raise TypeError(f"{name} is {size!r}; it must be one integer")


def _positive(**sizes):
    _whole_or_none(**sizes)
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")


def _whole_or_none(**sizes):
    _whole(**{name: size for name, size in sizes.items() if size is not None})


def _flags(**flags):
    """Refuses what would count as true or false by Python's rules, as "no" does."""
    for name, value in flags.items():
        if type(value).__name__ not in ("bool", "bool_"):  # Python's and NumPy's
            raise TypeError(f"{name} is {value!r}; it must be True or False")


def _numbers(most=2.0**128, **values):
    """Refuses what is no number, and numbers that are not below `most`, as no infinity is: of float32, unless given."""
    for name, value in values.items():
        try:
            number = None if isinstance(value, (str, bytes, bool)) else float(value)
        except OverflowError:
            number = math.inf
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise TypeError(f"{name} is {value!r}; it must be one finite number")
        if not abs(number) < most:
            raise ValueError(f"{name} is {value!r}; it must be a finite number, below {most:.3g} in magnitude")


def _numbers_or_none(**values):
    _numbers(**{name: value for name, value in values.items() if value is not None})


def _one_of(name, value, table, error=ValueError):
    """The entry of a table that has this name."""
    if not isinstance(value, (str, type(None))) or value not in table:
        raise error(f"{name} is {value!r}; it must be one of {', '.join(map(repr, table))}")
    return table[value]


def _handle_of(name, value, kind):
    """The handle of an object of this package."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r}; it must be a {kind.__name__}")
    return value._handle


def _handle_or_none(name, value, kind):
    return None if value is None else _handle_of(name, value, kind)


def _pair(name, value, right):
    """The two of a tuple or a list; `right` is the end of the sentence that refuses anything else."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name} is {value!r}; it must be {right}")
    return value


def _fit(name, shape, **axes):
    """Refuses a shape that has another number of axes, or another size where one is given; None takes any. The shape of an
    array that is missing is None."""
    if shape is None:
        raise TypeError(f"{name} is None; it must be an array")
    if len(shape) != len(axes) or any(size not in (None, has) for has, size in zip(shape, axes.values())):
        right = ", ".join(axis if size is None else str(size) for axis, size in axes.items())
        raise ValueError(f"{name} has shape {shape}; it must have ({right})")


def _length(name, values):
    """How many there are in a list or an array."""
    try:
        return len(None if isinstance(values, (str, bytes, dict)) else values)
    except TypeError:
        raise TypeError(f"{name} is {values!r}; it must be an array or a list") from None


def _shape(array, name, ndim):
    shape = FUNCTIONS["view"](array, name)[3]
    if len(shape) != ndim:
        raise ValueError(f"{name} has shape {shape}; it must have {ndim} dimensions")
    return shape


class _Arrays:
    """Addresses of arrays for one call to C, and the objects that have to live until it ends."""

    def __init__(self):
        self.kept = []

    def read(self, array, name, shape=None, dtypes=("float32",), written=False):
        """(address, dtype, shape); the address is None for None."""
        if array is None:
            return None, None, None
        address, keeper, dtype, given = read_dense(array, name, dtypes, written)
        self.kept.append((array, keeper))
        if shape is not None and given != tuple(shape):
            raise ValueError(f"{name} has shape {given}; it must have {tuple(shape)}")
        return address, dtype, given

    def floats(self, array, name, shape=None):
        return self.read(array, name, shape)[0]

    def vector(self, array, name, count, whole=True):
        """The address of so many int32, or float32 if they are not whole: of an array or a list, as sdpa() takes them."""
        if array is None:
            return None
        address, keeper = FUNCTIONS["vector"](array, name, whole, count)
        self.kept.append((array, keeper))
        return address


def _new(like, *shape, dtype="float32"):
    """A new array and its address. Another dtype than float32 must be that of `like`."""
    array = FUNCTIONS["empty" if dtype == "float32" else "alike"](like, *shape)
    return array, read_dense(array, "the result", (dtype,))[0]


def _text(**names):
    """The bytes of one name, for C; None for None."""
    (what, name), = names.items()
    if not isinstance(name, (str, type(None))):
        raise TypeError(f"{what} is {name!r}; it must be the name of one, or None")
    return name.encode() if name else None


def _options(kernel, threads, what="kernel"):
    _whole_or_none(threads=threads)
    return S.attn_options(kernel=_text(**{what: kernel}), threads=threads or 0)


def _linear(arrays, weight, bias, name, inputs, outputs, dtype="float32"):
    """attn_linear of a weight [outputs][inputs], as PyTorch stores it."""
    bias_name = name.replace("w", "b", 1) if name.startswith("w") else f"bias of {name}"
    return S.attn_linear(weight=arrays.read(weight, name, (outputs, inputs), (dtype,))[0],
                         bias=arrays.floats(bias, bias_name, (outputs,)), transposed=True)


class _Layer:
    """Owns a handle of C, and a workspace for each thread."""

    _kind = ""

    def _make(self, config, options):
        self._handle = ctypes.c_void_p()
        self._memory = threading.local()
        check(self._function("create")(ctypes.byref(config), ctypes.byref(options), ctypes.byref(self._handle)))

    def _function(self, name):
        return getattr(F, f"attn_{self._kind}_{name}")

    def _workspace(self, *rows, handle=None):
        """(address, bytes)"""
        needed = self._function("workspace")(handle or self._handle, *rows)
        if getattr(self._memory, "size", -1) < needed:
            self._memory.block = ctypes.create_string_buffer(needed + 64)
            self._memory.size = needed
        return -(-ctypes.addressof(self._memory.block) // 64) * 64, needed

    @property
    def kernel(self) -> str:
        """The name of the attention kernel that runs."""
        return self._function("kernel")(self._handle).decode()

    def __del__(self):
        if getattr(self, "_handle", None):
            self._function("destroy")(self._handle)


class _Reshaped:
    """A layer of C for one shape, over weights that others share."""

    def __init__(self, handle, destroy):
        self.handle, self._destroy = handle, destroy

    def __del__(self):
        self._destroy(self.handle)


class _AnyShape(_Layer):
    """A layer that takes calls of any shape. It keeps what it made for the newest MOST_SHAPES of them, over the same packed
    weights. self._handle has the weights, and the shape that the layer was made for."""

    MOST_SHAPES = 64

    def _open(self, **sizes):
        """sizes: what the layer was made for; None where calls may have any."""
        self._sizes, self._lock, self._shapes = sizes, threading.Lock(), {}
        self._newest = _Reshaped(self._handle, lambda handle: None)

    def _for_shape(self, key, what):
        """The layer of C for a shape. what(): the arguments of reshaping."""
        kept = self._shapes.get(key) or self._reshape(key, what)
        self._newest = kept
        return kept

    def _reshape(self, key, what):
        handle = ctypes.c_void_p()
        check(self._function("reshape")(self._handle, *what(), ctypes.byref(handle)))
        kept = _Reshaped(handle, self._function("destroy"))
        with self._lock:
            if key in self._shapes:  # another thread has made it meanwhile
                return self._shapes[key]
            while len(self._shapes) >= self.MOST_SHAPES:
                del self._shapes[next(iter(self._shapes))]
            self._shapes[key] = kept
        return kept

    @property
    def kernel(self) -> str:
        """The name of the attention kernel that runs: for the shape that was called last."""
        newest = self._newest  # kept alive while C reads it
        return self._function("kernel")(newest.handle).decode()


# ---- Multi-head attention ------------------------------------------------------------------------------------------------


_LAYOUTS = {"out_in": C.ATTN_OUT_IN, "in_out": C.ATTN_IN_OUT, "heads_in_out": C.ATTN_HEADS_IN_OUT}


def _matrix_shapes(problem, layout):
    """Shapes of the matrices by name."""
    a = problem.attention
    parts = {"w_q": (problem.width, a.heads_q, a.dim_qk), "w_k": (problem.width_memory, a.heads_kv, a.dim_qk),
             "w_v": (problem.width_memory, a.heads_kv, a.dim_v)}
    shapes = {name: (rows, heads * dim) for name, (rows, heads, dim) in parts.items()}
    shapes["w_qkv"] = problem.width, sum(columns for _, columns in shapes.values())
    shapes["w_o"] = a.heads_q * a.dim_v, problem.width_out
    if layout == "out_in":
        return {name: shape[::-1] for name, shape in shapes.items()}
    if layout == "heads_in_out":
        shapes = {name: (heads, rows, dim) for name, (rows, heads, dim) in parts.items()}
        shapes["w_o"] = a.heads_q, a.dim_v, problem.width_out
        alike = a.dim_qk == a.dim_v
        shapes["w_qkv"] = (a.heads_q + 2 * a.heads_kv, problem.width, a.dim_qk) if alike else (
            problem.width * (a.heads_q * a.dim_qk + a.heads_kv * (a.dim_qk + a.dim_v)),)
    return shapes


def _mha_weights(arrays, problem, layout, weights, bf16_rows, int8_weights, int8_rows):
    """attn_mha_weights of arrays in that layout."""
    a = problem.attention
    struct, dtypes = S.attn_mha_weights(layout=_one_of("layout", layout, _LAYOUTS)), set()
    shapes, columns = _matrix_shapes(problem, layout), _matrix_shapes(problem, "in_out")
    _numbers_or_none(qk_norm_epsilon=weights.get("qk_norm_epsilon"))
    struct.qk_norm = weights.get("qk_norm_epsilon") is not None
    for name, array in weights.items():
        if array is None:
            continue
        if name == "qk_norm_epsilon":
            struct.qk_norm_epsilon = array
        elif name == "head_columns":
            struct.head_columns = arrays.read(array, name, (a.heads_q + 2 * a.heads_kv,), ("int64",))[0]
        elif name.endswith("_norm_gain"):
            if not struct.qk_norm:
                raise ValueError(f"{name} is given without qk_norm_epsilon; it must be None")
            setattr(struct, name, arrays.floats(array, name, (a.dim_qk,)))
        elif name.startswith("b_"):
            setattr(struct, name, arrays.floats(array, name, columns["w" + name[1:]][1:]))
        else:
            address, dtype, _ = arrays.read(array, name, shapes[name], tuple(DTYPES))
            setattr(struct, name, address)
            dtypes.add(dtype)
    if len(dtypes) > 1:
        raise TypeError(f"weights are {' and '.join(sorted(dtypes))}; they must have one dtype")
    struct.dtype = getattr(C, DTYPES[dtypes.pop()]) if dtypes else 0
    struct.bf16_rows, struct.int8_weights, struct.int8_rows = bf16_rows, int8_weights, int8_rows
    return struct


def _set_dtypes(attention, dtype, heads_dtype):
    """The types of rows and heads; the heads' outputs have that of both, or float32."""
    attention.dtype_q = attention.dtype_kv = _float_dtype("heads_dtype", heads_dtype)
    attention.dtype_o = attention.dtype_q if heads_dtype == dtype else C.ATTN_F32


_ALIGNS = {"top_left": C.ATTN_ALIGN_TOP_LEFT, "bottom_right": C.ATTN_ALIGN_BOTTOM_RIGHT}


def _set_masks(attention, causal, align, window, uses):
    attention.align = _one_of("align", align, _ALIGNS)
    if window is not None:
        left, right = _pair("window", window, "a pair (left, right) of integers, None = all keys of that side, or None")
        _whole_or_none(**{"left of window": left, "right of window": right})
        attention.window_left, attention.window_right = (-1 if side is None else side for side in (left, right))
    if causal:
        attention.window_right = 0
    _set_uses(attention, uses)


# Optional array of a call -> its bit, its shape, its dtypes
_USES = {"mask": ("ATTN_USE_MASK", "bhqk", ("bool", "uint8")), "bias": ("ATTN_USE_BIAS", "bhqk", ("float32",)),
         "kv_len": ("ATTN_USE_KV_LEN", "b", ("int32",)), "q_len": ("ATTN_USE_Q_LEN", "b", ("int32",)),
         "alibi_slopes": ("ATTN_USE_ALIBI", "h", ("float32",)), "sinks": ("ATTN_USE_SINKS", "h", ("float32",))}


class _Brought:
    """The optional arrays of a call: attn_args, and what the problem must say of them."""

    def __init__(self, arrays, brought, batch, heads, seq, keys):
        extent = {"b": batch, "h": heads, "q": seq, "k": keys}
        self.args, self.strides = S.attn_args(), {}
        for name, array in brought.items():
            if name not in _USES:
                raise TypeError(f"unexpected keyword argument {name!r}; a layer takes {', '.join(_USES)}")
            if array is None:
                continue
            _, axes, dtypes = _USES[name]
            shape = [extent[axis] for axis in axes]
            if len(shape) == 1:
                address = arrays.vector(array, name, shape[0], "int32" in dtypes)
                self.strides[name] = ()
            else:
                address, _, has = arrays.read(array, name, None, dtypes)
                self.strides[name] = _broadcast(name, has, shape)
            setattr(self.args, name, address)
        self.key = tuple(sorted(self.strides.items()))

    def set_problem(self, attention):
        """The uses of what was brought, and how masks lie."""
        _set_uses(attention, self.strides)
        for name, strides in self.strides.items():
            if strides:
                setattr(attention, f"{name}_stride", S.attn_score_strides(**dict(zip("bhqk", strides))))


def _broadcast(name, has, shape):
    """The strides of a dense array that broadcasts to the shape: 0 where it has no axis, or one of one element."""
    padded = (1,) * (len(shape) - len(has)) + has
    if len(has) > len(shape) or any(size not in (1, full) for size, full in zip(padded, shape)):
        raise ValueError(f"{name} has shape {has}; it must broadcast to {tuple(shape)}")
    return tuple(0 if size == 1 else math.prod(padded[axis + 1:]) for axis, size in enumerate(padded))


class MultiHeadAttention(_AnyShape):
    """Multi-head attention with its projections (Vaswani et al. 2017, section 3.2.2).

    The problem: heads and width (and width_memory for cross-attention); heads_kv, dim_qk, dim_v and width_out default to
    heads, width / heads, dim_qk and width. causal, align, window, scale and softcap as in sdpa(). batch, seq and seq_memory:
    None = those of each call. uses: the names of optional arrays that every call must bring.

    Calls may bring, in any case: "mask" and "bias" that broadcast to [batch, heads, seq, keys], "kv_len" and "q_len"
    [batch], "alibi_slopes" and "sinks" [heads].

    The weights: w_qkv, or w_q, w_k and w_v; w_o; biases b_qkv or b_q, b_k, b_v; b_o. layout "out_in" is that of PyTorch's
    nn.Linear, "in_out" its transpose, "heads_in_out" [heads, width, dim] and for w_o [heads, dim, width_out]. head_columns,
    int64 [heads + 2 heads_kv]: where in w_qkv and b_qkv the columns of each head begin, those of Q, of K and of V, if they
    are not one behind the other (BLOOM, GPT-NeoX, Falcon). qk_norm_epsilon: each head of Q and K is divided by its root mean
    square, and multiplied by q_norm_gain and k_norm_gain [dim_qk], if given (Qwen 3, Gemma 3). product: the kernel of the
    projections ("product_amx"); the error of an unknown name lists those that run here. bf16_rows: with bfloat16 weights,
    rows are rounded to it before they are projected, which is faster. int8_weights: weights are rounded to int8, each row of
    an "out_in" matrix by a scale of its own, its largest magnitude / 127, and take a byte each. int8_rows: with them, rows
    are rounded in the same way before they are projected, which is faster still where the CPU multiplies integers.
    dtype: of x, memory and y, "float32", "bfloat16" or "float16". heads_dtype: how the layer keeps Q, K and V; None = as
    dtype. Steps need a cache that takes such tokens.
    """

    _kind = "mha"

    def __init__(self, *, heads: int, width: int, batch: int | None = None, seq: int | None = None,
                 seq_memory: int | None = None, width_memory: int | None = None, width_out: int | None = None,
                 heads_kv: int | None = None, dim_qk: int | None = None, dim_v: int | None = None, causal: bool = False,
                 align: str = "top_left", window: tuple[int | None, int | None] | None = None, scale: float | None = None,
                 softcap: float = 0, uses: tuple[str, ...] = (), layout: str = "out_in", kernel: str | None = None,
                 threads: int | None = None, product: str | None = None, bf16_rows: bool = False,
                 int8_weights: bool = False, int8_rows: bool = False, dtype: str = "float32",
                 heads_dtype: str | None = None, **weights: Any) -> None:
        _whole(heads=heads, width=width)
        _positive(heads=heads, heads_kv=heads_kv)
        _whole_or_none(batch=batch, seq=seq, seq_memory=seq_memory, width_memory=width_memory, width_out=width_out,
                       dim_qk=dim_qk, dim_v=dim_v)
        _flags(causal=causal, bf16_rows=bf16_rows, int8_weights=int8_weights, int8_rows=int8_rows)
        _numbers(softcap=softcap)
        _numbers_or_none(scale=scale)
        _check_uses(uses=uses)
        dim_qk, rows_dtype = dim_qk or width // heads, _float_dtype("dtype", dtype)
        self._dtype = dtype

        def problem_of(batch, seq, keys, brought=None, want_weights=False):
            problem = S.attn_mha_problem(attention=S.attn_problem())
            F.attn_mha_problem_init(ctypes.byref(problem), batch, heads, seq, keys, width)
            F.attn_problem_init(ctypes.addressof(problem) + S.attn_mha_problem.attention.offset, batch, heads,
                                heads if heads_kv is None else heads_kv, seq, keys, dim_qk, dim_v or dim_qk)
            problem.width_memory, problem.width_out = width_memory or width, width_out or width
            problem.memory_stride = S.attn_strides(b=keys * problem.width_memory, s=problem.width_memory, d=1)
            problem.y_stride = S.attn_strides(b=seq * problem.width_out, s=problem.width_out, d=1)
            _set_masks(problem.attention, causal, align, window, uses)
            _set_dtypes(problem.attention, dtype, heads_dtype or dtype)
            problem.dtype_x = problem.dtype_y = rows_dtype
            problem.attention.softcap = softcap
            if scale is not None:
                problem.attention.scale = scale
            if brought:
                brought.set_problem(problem.attention)
            problem.want_weights = want_weights
            return problem

        first = (1 if batch is None else batch, 1 if seq is None else seq)
        first += (first[1] if seq_memory is None else seq_memory,)
        self._problem_of, self._problem = problem_of, problem_of(*first)
        arrays, problem = _Arrays(), self._problem
        inner = _options(kernel, threads)
        options = S.attn_mha_options(attention=ctypes.addressof(inner), product=_text(product=product))
        packed = _mha_weights(arrays, problem, layout, _named(weights), bf16_rows, int8_weights, int8_rows)
        self._handle, self._memory = ctypes.c_void_p(), threading.local()
        check(F.attn_mha_create(ctypes.byref(problem), ctypes.byref(packed), ctypes.byref(options),
                                ctypes.byref(self._handle)))
        self._open(batch=batch, seq=seq, keys=seq_memory)

    def __call__(self, x: Any, memory: Any = None, *, return_weights: bool = False, **arrays_brought: Any) -> Any:
        """y [batch, seq, width_out] of x [batch, seq, width] and, in cross-attention, memory [batch, keys, width_memory].
        With return_weights (y, P [batch, heads, seq, keys]), which takes longer by the square of the keys."""
        _flags(return_weights=return_weights)
        p, arrays, fixed = self._problem, _Arrays(), self._sizes
        address, _, shape = arrays.read(x, "x", None, (self._dtype,))
        _fit("x", shape, batch=fixed["batch"], seq=fixed["seq"], width=p.width)
        batch, seq, _ = shape
        keys, memory_at = seq if fixed["keys"] is None else fixed["keys"], None
        if memory is not None:
            memory_at, _, has = arrays.read(memory, "memory", None, (self._dtype,))
            _fit("memory", has, batch=batch, keys=fixed["keys"], width=p.width_memory)
            keys = has[1]
        brought = _Brought(arrays, arrays_brought, batch, p.attention.heads_q, seq, keys)
        args = S.attn_mha_args(x=address, memory=memory_at, attention=ctypes.addressof(brought.args))
        y, args.y = _new(x, batch, seq, p.width_out, dtype=self._dtype)
        sizes = (batch, seq, keys)
        layer = self._for_shape((*sizes, brought.key, return_weights),
                                lambda: (ctypes.byref(self._problem_of(*sizes, brought, return_weights)),))
        check(F.attn_mha_run(layer.handle, ctypes.byref(args), *self._workspace(handle=layer.handle)))
        if not return_weights:
            return y
        weights, out = _new(x, batch, p.attention.heads_q, seq, keys)
        check(F.attn_mha_attention_weights(layer.handle, ctypes.byref(args), out, *self._workspace(handle=layer.handle)))
        return y, weights

    def step(self, x: Any, cache: KVCache, *, layer: int = 0) -> Any:
        """y [tokens, width_out] of x [tokens, width], the new tokens of the step that cache.begin() has begun, sequence
        after sequence: they attend to what the cache holds in this layer of it. Scale, window and the like are the cache's;
        batch and seq of this layer do not count. Rows have the bits of a call over the whole text with the same kernel."""
        _whole(layer=layer)
        arrays, steps = _Arrays(), _handle_of("cache", cache, KVCache)
        tokens = cache.step_tokens
        address, _, shape = arrays.read(x, "x", None, (self._dtype,))
        _fit("x", shape, tokens=tokens, width=self._problem.width)
        y, out = _new(x, tokens, self._problem.width_out, dtype=self._dtype)
        check(F.attn_mha_step(self._handle, steps, layer, address, out))
        return y

    def describe(self) -> str:
        """A few lines on the shape that was called last: projections, and the attention as Plan.describe() tells it."""
        newest = self._newest  # kept alive while C reads it
        return F.attn_mha_describe(newest.handle).decode()


_WEIGHTS = ("w_qkv", "w_q", "w_k", "w_v", "w_o", "b_qkv", "b_q", "b_k", "b_v", "b_o", "q_norm_gain", "k_norm_gain",
            "qk_norm_epsilon", "head_columns")


def _named(weights, what="weights"):
    if not isinstance(weights, dict):
        raise TypeError(f"{what} is {weights!r}; it must be a dict of weights: {', '.join(_WEIGHTS)}")
    for name in weights:
        if str(name).startswith("dropout"):
            raise TypeError(f"{name} is no argument: the layers of libattn are for inference, which has no dropout")
        if name not in _WEIGHTS:
            raise TypeError(f"{name} is neither a setting nor a weight; the weights are {', '.join(_WEIGHTS)}")
    return weights


# ---- Networks and blocks -------------------------------------------------------------------------------------------------

_ACTIVATIONS = {"relu": "ATTN_RELU", "gelu": "ATTN_GELU", "silu": "ATTN_SILU", "gelu_tanh": "ATTN_GELU_TANH"}


def _activation(name):
    return getattr(C, _one_of("activation", name, _ACTIVATIONS))


def _float_dtype(name, dtype):
    return getattr(C, _one_of(name, dtype, DTYPES, TypeError))


class Linear(_Layer):
    """y = activation(x weight^T + bias): a weight [out][in] as PyTorch's nn.Linear stores it, float32, float16 or bfloat16,
    or int8 with a scale [out] by which its rows are multiplied.

    dtype and out_dtype: of x and y in all calls. Where weight and x are bfloat16, the CPU's products of bfloat16 take them,
    with bf16_rows also x of another dtype, rounded. activation: as FeedForward takes it. product: the kernel. int8_weights:
    of another dtype, the weight is rounded to int8 with a scale for each row, as MultiHeadAttention does it. int8_rows: with
    a weight of int8, x is, too.
    """

    _kind = "product"

    def __init__(self, weight: Any, bias: Any = None, *, dtype: str = "float32", out_dtype: str = "float32",
                 activation: str | None = None, bf16_rows: bool = False, threads: int | None = None,
                 product: str | None = None, scale: Any = None, int8_weights: bool = False, int8_rows: bool = False) -> None:
        _flags(bf16_rows=bf16_rows, int8_weights=int8_weights, int8_rows=int8_rows)
        arrays, options, types = _Arrays(), _options(product, threads, "product"), {**DTYPES, "int8": "ATTN_I8"}
        address, kept, (self.out, self.width) = arrays.read(weight, "weight", _shape(weight, "weight", 2), tuple(types))
        self._dtype, self._out_dtype = dtype, out_dtype
        config = S.attn_product_weights(depth=self.width, columns=self.out, weight=address, stride_depth=1,
                                        stride_column=self.width, dtype=getattr(C, types[kept]),
                                        scale=arrays.floats(scale, "scale", (self.out,)),
                                        dtype_x=_float_dtype("dtype", dtype), dtype_y=_float_dtype("out_dtype", out_dtype),
                                        bias=arrays.floats(bias, "bias", (self.out,)), bf16_rows=bf16_rows,
                                        int8_weights=int8_weights, int8_rows=int8_rows)
        if activation is not None:
            config.activate = F.attn_activation_function(_activation(activation), ctypes.byref(options))
        self._make(config, options)
        self._run = FUNCTIONS["linear"](self._handle.value, self.width, self.out, config.dtype_x, config.dtype_y)

    @property
    def kernel(self) -> str:
        """The name of the product that runs."""
        return F.attn_product_name(self._handle).decode()

    def __call__(self, x: Any, out: Any = None) -> Any:
        """y [..., out] of x [..., in]. out: an array of out_dtype for it, needed unless that is float32 or dtype."""
        y = self._run(x, out)
        return self._call(x, out) if y is None else y

    def _call(self, x, out):
        """The same, with a sentence for everything that is wrong."""
        arrays = _Arrays()
        address, _, shape = arrays.read(x, "x", None, (self._dtype,))
        if not shape or shape[-1] != self.width:
            raise ValueError(f"x has shape {shape}; its last dimension must be {self.width}")
        right, rows = (*shape[:-1], self.out), math.prod(shape[:-1])
        if out is None and self._out_dtype not in ("float32", self._dtype):
            raise TypeError(f"out is None; it must be an array of {self._out_dtype}, which is out_dtype")
        y, to = _new(x, *right, dtype=self._out_dtype) if out is None else (
            out, arrays.read(out, "out", right, (self._out_dtype,), True)[0])
        args = S.attn_product_args(batch=1, rows=rows, x=address, x_stride=S.attn_strides(s=self.width, d=1), y=to,
                                   y_stride=S.attn_strides(s=self.out, d=1))
        check(F.attn_product_run(self._handle, ctypes.byref(args), *self._workspace(rows)))
        return y


class FeedForward(_Layer):
    """y = activation(x w1^T + b1) w2^T + b2, or with w_gate y = (activation(x w_gate^T + b_gate) (x w1^T + b1)) w2^T + b2
    (Shazeer 2020): w1 and w_gate [hidden][width], w2 [width][hidden], as PyTorch stores them. activation: "relu", "gelu"
    (exact), "gelu_tanh" or "silu". Weights are float32, float16 or bfloat16, all alike. product: the kernel of the maps.
    bf16_rows: with bfloat16 weights, rows are rounded to it before they are multiplied, which is faster. dtype: of x, y and
    the hidden rows. int8_weights and int8_rows: as MultiHeadAttention takes them."""

    _kind = "feed_forward"

    def __init__(self, w1: Any, w2: Any, *, b1: Any = None, b2: Any = None, w_gate: Any = None, b_gate: Any = None,
                 activation: str = "relu", threads: int | None = None, product: str | None = None,
                 bf16_rows: bool = False, int8_weights: bool = False, int8_rows: bool = False,
                 dtype: str = "float32") -> None:
        _flags(bf16_rows=bf16_rows, int8_weights=int8_weights, int8_rows=int8_rows)
        arrays, self._dtype = _Arrays(), dtype
        self.hidden, self.width = _shape(w1, "w1", 2)
        config = S.attn_feed_forward_config(width=self.width, hidden=self.hidden, product=_text(product=product),
                                            bf16_rows=bf16_rows, int8_weights=int8_weights, int8_rows=int8_rows)
        config.dtype_x = config.dtype_y = _float_dtype("dtype", dtype)
        _set_network(config, arrays, activation, (w1, b1), (w2, b2), (w_gate, b_gate))
        self._make(config, _options(None, threads))

    def __call__(self, x: Any) -> Any:
        """y of x [..., width]."""
        arrays = _Arrays()
        address, _, shape = arrays.read(x, "x", None, (self._dtype,))
        if not shape or shape[-1] != self.width:
            raise ValueError(f"x has shape {shape}; its last dimension must be {self.width}")
        y, out = _new(x, *shape, dtype=self._dtype)
        rows = math.prod(shape[:-1])
        check(F.attn_feed_forward_run(self._handle, rows, address, out, *self._workspace(rows)))
        return y


def _set_network(config, arrays, activation, first, second, gate):
    """The maps of a feed-forward network, each (weight, bias), and the function between them."""
    width, hidden = config.width, config.hidden
    dtype = arrays.read(first[0], "w1", None, tuple(DTYPES))[1]  # all have it
    config.dtype = getattr(C, DTYPES[dtype])
    config.activation = _activation(activation)
    config.first = _linear(arrays, *first, "w1", width, hidden, dtype)
    config.second = _linear(arrays, *second, "w2", hidden, width, dtype)
    if gate[0] is not None:
        config.gate = _linear(arrays, *gate, "w_gate", width, hidden, dtype)
    elif gate[1] is not None:
        raise ValueError("b_gate is given without w_gate; it must be None")


def _norm(arrays, pair, width, epsilon):
    gain, bias = pair
    return S.attn_norm(gain=arrays.floats(gain, "gain", (width,)), bias=arrays.floats(bias, "bias of a norm", (width,)),
                       epsilon=epsilon)


def _set_norms(config, arrays, kind, pairs, epsilon):
    """The norms of a block: "norm" or "post_norm"."""
    names = ("self", "cross", "feed_forward")
    if not isinstance(pairs, (tuple, list)):
        raise TypeError(f"{kind}s is {pairs!r}; it must be a list of pairs (gain, bias), or None in place of a pair")
    if len(pairs) == 2 and not config.has_cross:
        names = names[::2]
    if len(pairs) != len(names):
        raise ValueError(f"{kind}s has {len(pairs)} pairs; it must have 3: of self-attention, cross-attention and network")
    for name, given in zip(names, pairs):
        pair = (None, None) if given is None else _pair(f"a pair of {kind}s", given, "(gain, bias) or None")
        setattr(config, f"{name}_{kind}", _norm(arrays, pair, config.self.width, epsilon))


class Block(_AnyShape):
    """A transformer block: self-attention, with `memory` also cross-attention, a feed-forward network; each with residual
    and layer norm, after (post-norm, Vaswani et al. 2017) or before (pre_norm=True, Xiong et al. 2020), or before and after
    (post_norms too, Gemma 2).

    self_weights and cross_weights: dicts of what MultiHeadAttention takes. w1, b1, w2, b2, w_gate, b_gate, activation: the
    network, as FeedForward takes it. rms_norm: norms by root mean square (add_rms_norm()). norms: pairs (gain, bias), or
    None, for self-attention, cross-attention (only with memory) and network; post_norms: likewise, of what these give
    before it is added, or None for no such norms. heads_kv: of the self-attention. memory: (seq, width) of an encoder's
    output: the block is then a decoder's, and causal, as it is with causal=True. batch and seq, that of the memory too:
    None = those of each call. uses and cross_uses: as `uses` of MultiHeadAttention. product: the kernel of all dense
    layers. dim_qk, scale, softcap and window are those of the self-attention, as MultiHeadAttention takes them; dim_qk and
    scale also of the cross-attention. Steps take scale, softcap and window from the cache. bf16_rows, int8_weights and
    int8_rows: of all dense layers, dtype and heads_dtype, as MultiHeadAttention takes them: dtype is also that of all rows
    that enter a sublayer; in a pre-norm block the sums between them stay float32.
    """

    _kind = "block"

    def __init__(self, *, heads: int, width: int, self_weights: dict[str, Any], w1: Any, w2: Any, b1: Any = None,
                 b2: Any = None, w_gate: Any = None, b_gate: Any = None, heads_kv: int | None = None,
                 dim_qk: int | None = None, scale: float | None = None, softcap: float = 0,
                 window: tuple[int | None, int | None] | None = None, rms_norm: bool = False,
                 batch: int | None = None, seq: int | None = None, memory: tuple[int | None, int] | None = None,
                 cross_weights: dict[str, Any] | None = None, norms: Any = (None, None, None), epsilon: float = 1e-5,
                 pre_norm: bool = False, post_norms: Any = None, activation: str = "relu", causal: bool = False,
                 uses: tuple[str, ...] = (), cross_uses: tuple[str, ...] = (), layout: str = "out_in",
                 kernel: str | None = None, threads: int | None = None, product: str | None = None,
                 bf16_rows: bool = False, int8_weights: bool = False, int8_rows: bool = False,
                 dtype: str = "float32", heads_dtype: str | None = None) -> None:
        _whole(heads=heads, width=width)
        _positive(heads=heads, heads_kv=heads_kv, dim_qk=dim_qk)
        _whole_or_none(batch=batch, seq=seq, dim_qk=dim_qk)
        _flags(rms_norm=rms_norm, pre_norm=pre_norm, causal=causal, bf16_rows=bf16_rows, int8_weights=int8_weights,
               int8_rows=int8_rows)
        _numbers(softcap=softcap, epsilon=epsilon)
        _numbers_or_none(scale=scale)
        _check_uses(uses=uses, cross_uses=cross_uses)
        if memory is not None:
            keys, width_memory = _pair("memory", memory, "a pair (seq, width), seq an integer or None; or None")
            _whole_or_none(**{"seq of memory": keys})
            _whole(**{"width of memory": width_memory})
        rows_dtype = _float_dtype("dtype", dtype)
        hidden, heads_dtype = _shape(w1, "w1", 2)[0], heads_dtype or dtype
        self._dtype, self._heads_dtype = dtype, heads_dtype

        def config_of(batch, seq, keys, own=None, other=None):
            config = Block._start(batch, heads, seq, width, hidden, memory and (keys, memory[1]))
            config.dtype_rows = rows_dtype
            config.self.attention.heads_kv = heads if heads_kv is None else heads_kv
            for attention in (config.self.attention, config.cross.attention)[:2 if memory else 1]:
                _set_dtypes(attention, dtype, heads_dtype)
                if dim_qk:
                    attention.dim_qk = attention.dim_v = dim_qk
                    attention.scale = dim_qk**-0.5
                if scale is not None:
                    attention.scale = scale
            config.self.attention.softcap = softcap
            _set_masks(config.self.attention, causal or memory is not None, "top_left", window, uses)
            if memory:
                _set_uses(config.cross.attention, cross_uses)
            for brought, attention in ((own, config.self.attention), (other, config.cross.attention)):
                if brought:
                    brought.set_problem(attention)
            return config

        if memory is None and (cross_weights or cross_uses):
            raise ValueError("cross_weights or cross_uses is given; without memory they must not be")
        keys = memory[0] if memory else None
        self._config_of = config_of
        self._config = config = config_of(*(1 if size is None else size for size in (batch, seq, keys)))
        arrays = _Arrays()
        config.self_weights = _mha_weights(arrays, config.self, layout, _named(self_weights, "self_weights"), bf16_rows,
                                           int8_weights, int8_rows)
        if memory:
            given = _named({} if cross_weights is None else cross_weights, "cross_weights")
            config.cross_weights = _mha_weights(arrays, config.cross, layout, given, bf16_rows, int8_weights,
                                                int8_rows)
        _set_network(config.feed_forward, arrays, activation, (w1, b1), (w2, b2), (w_gate, b_gate))
        config.feed_forward.bf16_rows, config.feed_forward.int8_weights, config.feed_forward.int8_rows = (
            bf16_rows, int8_weights, int8_rows)
        _set_norms(config, arrays, "norm", norms, epsilon)
        _set_norms(config, arrays, "post_norm", (None,) * 3 if post_norms is None else post_norms, epsilon)
        config.pre_norm, config.rms_norm, config.post_norms = pre_norm, rms_norm, post_norms is not None
        config.product = _text(product=product)
        self._make(config, _options(kernel, threads))
        self._open(batch=batch, seq=seq, keys=keys)

    @classmethod
    def from_torch(cls, layer: Any, **options: Any) -> Block:
        """The block of a layer of transformers, such as model.model.layers[0] of a Llama: libattn.models.KINDS lists them.
        options: further arguments, before those of the layer. Layers that rotate queries and keys do so in steps only, by
        their cache (KVCache.from_torch())."""
        from .models import block_arguments

        return cls(**{**block_arguments(layer), **options})

    @staticmethod
    def _start(batch, heads, seq, width, hidden, memory):
        config = S.attn_block_config()
        for part in (config.self, config.cross):
            part.struct_size = ctypes.sizeof(S.attn_mha_problem)
            part.attention.struct_size = ctypes.sizeof(S.attn_problem)
        config.feed_forward.struct_size = ctypes.sizeof(S.attn_feed_forward_config)
        config.self_weights.struct_size = config.cross_weights.struct_size = ctypes.sizeof(S.attn_mha_weights)
        if memory:
            F.attn_decoder_block_init(ctypes.byref(config), batch, heads, seq, memory[0], width, memory[1], hidden)
        else:
            F.attn_encoder_block_init(ctypes.byref(config), batch, heads, seq, width, hidden)
        return config

    def __call__(self, x: Any, memory: Any = None, *, cross: dict[str, Any] | None = None, **arrays_brought: Any) -> Any:
        """y [batch, seq, width] of x. Optional arrays of the self-attention by name, those of the cross-attention in
        `cross`."""
        self._check_memory(memory, cross)
        width, arrays, fixed = self._config.self.width, _Arrays(), self._sizes
        address, _, shape = arrays.read(x, "x", None, (self._dtype,))
        _fit("x", shape, batch=fixed["batch"], seq=fixed["seq"], width=width)
        masks = _Brought(arrays, arrays_brought, shape[0], self._config.self.attention.heads_q, shape[1], shape[1])
        args = S.attn_block_args(x=address, self=ctypes.addressof(masks.args))
        layer = self._bring_memory(args, arrays, memory, cross, *shape[:2], masks)
        y, args.y = _new(x, *shape, dtype=self._dtype)
        check(F.attn_block_run(layer.handle, ctypes.byref(args), *self._workspace(handle=layer.handle)))
        return y

    def _check_memory(self, memory, cross):
        """Refuses a memory or masks for it in an encoder block, and none in a decoder's."""
        if self._config.has_cross:
            if memory is None:
                raise ValueError("memory is None; a decoder block attends to it")
        elif memory is not None:
            raise ValueError("memory is given; it must be None, because the block was made without one")
        elif cross:
            raise ValueError("cross is given; it must be None, because the block was made without memory")
        if not isinstance(cross, (dict, type(None))):
            raise TypeError(f"cross is {cross!r}; it must be a dict of arrays: {', '.join(_USES)}")

    def _bring_memory(self, args, arrays, memory, cross, batch, seq, masks=None):
        """The memory [batch, keys, width], or the pair that project_memory() made of it, and the masks of `cross`. Returns
        the layer of C for the shape. batch and seq: those of the rows, None = the memory's, 1."""
        a, keys = self._config.cross.attention, self._sizes["keys"]
        other = None
        if isinstance(memory, tuple):
            (args.projected_k, _, has), (args.projected_v, _, second) = (
                arrays.read(part, f"{name} of memory", dtypes=(self._heads_dtype,))
                for name, part in zip(("keys", "values"), memory))
            _fit("keys of memory", has, batch=batch, heads=a.heads_kv, seq=keys, dim=a.dim_qk)
            batch, _, keys, _ = has
            _fit("values of memory", second, batch=batch, heads=a.heads_kv, seq=keys, dim=a.dim_v)
        elif memory is not None:
            args.memory, _, has = arrays.read(memory, "memory", None, (self._dtype,))
            _fit("memory", has, batch=batch, seq=keys, width=self._config.cross.width_memory)
            batch, keys, _ = has
        sizes = (batch, seq or 1, keys)
        if memory is not None:
            other = _Brought(arrays, cross or {}, batch, a.heads_q, sizes[1], keys)
            arrays.kept.append(other)
            args.cross = ctypes.addressof(other.args)

        def problems():
            config = self._config_of(*(size or 0 for size in sizes), masks, other)
            return ctypes.byref(config.self), ctypes.byref(config.cross) if config.has_cross else None

        return self._for_shape((*sizes, masks and masks.key, other and other.key), problems)

    def project_memory(self, memory: Any, *, cross: dict[str, Any] | None = None,
                       out: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
        """(keys, values) [batch, heads_kv, keys, dim] of the cross-attention, to be given as `memory` in calls and steps:
        they are computed once. out: arrays of heads_dtype for them, which are needed unless that is float32 or dtype."""
        self._check_memory(memory, cross)
        a, arrays, args = self._config.cross.attention, _Arrays(), S.attn_block_args()
        layer = self._bring_memory(args, arrays, memory, cross, self._sizes["batch"], self._sizes["seq"])
        batch, rows, _ = _shape(memory, "memory", 3)
        if out is not None or self._heads_dtype not in ("float32", self._dtype):
            _pair("out", out, f"two arrays of {self._heads_dtype}, which is heads_dtype")
        (keys, to_keys), (values, to_values) = (
            _new(memory, batch, a.heads_kv, rows, dim, dtype=self._heads_dtype) if out is None else
            (out[i], arrays.read(out[i], "out", (batch, a.heads_kv, rows, dim), (self._heads_dtype,), True)[0])
            for i, dim in enumerate((a.dim_qk, a.dim_v)))
        check(F.attn_block_project_memory(layer.handle, ctypes.byref(args), to_keys, to_values,
                                          *self._workspace(handle=layer.handle)))
        return keys, values

    def step(self, x: Any, cache: KVCache, memory: Any = None, *, layer: int = 0,
             cross: dict[str, Any] | None = None) -> Any:
        """y [tokens, width] of x [tokens, width]: the new tokens of the step that cache.begin() has begun, sequence after
        sequence. The self-attention is causal, over what the cache holds in this layer of it. In a decoder block each
        sequence of the memory takes as many tokens. The rows have the bits of a call over the whole text with the same
        kernel."""
        _whole(layer=layer)
        arrays, steps, block = _Arrays(), _handle_of("cache", cache, KVCache), self._newest
        tokens = cache.step_tokens
        self._check_memory(memory, cross)
        address, _, shape = arrays.read(x, "x", None, (self._dtype,))
        _fit("x", shape, tokens=tokens, width=self._config.self.width)
        args = S.attn_block_args(x=address)
        if memory is not None:
            sequences = len(memory[0] if isinstance(memory, tuple) else memory)
            seq = self._sizes["seq"] or max(1, tokens // max(1, sequences))
            block = self._bring_memory(args, arrays, memory, cross, self._sizes["batch"], seq)
        y, args.y = _new(x, tokens, self._config.self.width, dtype=self._dtype)
        check(F.attn_block_step(block.handle, steps, layer, ctypes.byref(args)))
        return y


def _check_uses(**uses):
    for what, names in uses.items():
        if not isinstance(names, (tuple, list, set, frozenset)):
            raise TypeError(f"{what} is {names!r}; it must be a tuple of names: {', '.join(map(repr, _USES))}")
        for name in names:
            _one_of(f"a name of {what}", name, {key: key for key in _USES})


def _set_uses(attention, uses):
    for name in uses:
        attention.uses |= getattr(C, _USES[name][0])


# ---- Attention of other kinds --------------------------------------------------------------------------------------------


class Additive(_AnyShape):
    """Additive attention with its projections (Bahdanau et al. 2015): w_q [hidden][width_q], w_k [hidden][width_k] as
    PyTorch stores them, score_weight [hidden]; with biases b_q and b_k if given. batch, seq_q and seq_k: None = those of
    each call. kv_len: every call brings it."""

    _kind = "additive"

    def __init__(self, w_q: Any, w_k: Any, score_weight: Any, *, dim_v: int, batch: int | None = None,
                 seq_q: int | None = None, seq_k: int | None = None, b_q: Any = None, b_k: Any = None, kv_len: bool = False,
                 kernel: str | None = None, threads: int | None = None) -> None:
        arrays = _Arrays()
        _whole(dim_v=dim_v)
        _whole_or_none(batch=batch, seq_q=seq_q, seq_k=seq_k)
        _flags(kv_len=kv_len)
        hidden, width_q = _shape(w_q, "w_q", 2)
        width_k = _shape(w_k, "w_k", 2)[1]
        self._config = S.attn_additive_config(
            **{name: 1 if size is None else size for name, size in (("batch", batch), ("seq_q", seq_q), ("seq_k", seq_k))},
            width_q=width_q, width_k=width_k, hidden=hidden, dim_v=dim_v,
            use_kv_len=kv_len, query=_linear(arrays, w_q, b_q, "w_q", width_q, hidden),
            key=_linear(arrays, w_k, b_k, "w_k", width_k, hidden),
            score_weight=arrays.floats(score_weight, "score_weight", (hidden,)))
        self._make(self._config, _options(kernel, threads))
        self._open(batch=batch, seq_q=seq_q, seq_k=seq_k)

    def __call__(self, q: Any, k: Any, v: Any, *, kv_len: Any = None, return_weights: bool = False) -> Any:
        """o [batch, seq_q, dim_v] of q [batch, seq_q, width_q], k [batch, seq_k, width_k] and v [batch, seq_k, dim_v];
        with return_weights (o, p [batch, seq_q, seq_k])."""
        _flags(return_weights=return_weights)
        c, arrays, fixed = self._config, _Arrays(), self._sizes
        address, _, shape = arrays.read(q, "q")
        _fit("q", shape, batch=fixed["batch"], seq_q=fixed["seq_q"], width=c.width_q)
        batch, seq_q, _ = shape
        keys, _, shape = arrays.read(k, "k")
        _fit("k", shape, batch=batch, seq_k=fixed["seq_k"], width=c.width_k)
        seq_k = shape[1]
        args = S.attn_additive_args(q=address, k=keys, v=arrays.floats(v, "v", (batch, seq_k, c.dim_v)),
                                    kv_len=arrays.vector(kv_len, "kv_len", batch))
        o, args.o = _new(q, batch, seq_q, c.dim_v)
        p, args.weights = _new(q, batch, seq_q, seq_k) if return_weights else (None, None)
        layer = self._for_shape((batch, seq_q, seq_k), lambda: (batch, seq_q, seq_k))
        check(F.attn_additive_run(layer.handle, ctypes.byref(args), *self._workspace(handle=layer.handle)))
        return (o, p) if return_weights else o


class Synthesizer(_AnyShape):
    """Synthesizer (Tay et al. 2021): attention whose scores come from each row alone (dense: first = [(weight, bias)] of
    width -> hidden and second of hidden -> length, one pair per head) or are learnt (random: scores
    [heads][length][length]).

    w_v [heads dim_v][width], w_o [width][heads dim_v], b_v, b_o: as PyTorch stores them. batch and seq, at most length:
    None = those of each call.
    """

    _kind = "synthesizer"

    def __init__(self, w_v: Any, w_o: Any, *, heads: int, batch: int | None = None, seq: int | None = None,
                 b_v: Any = None, b_o: Any = None, scores: Any = None, first: Any = None, second: Any = None,
                 causal: bool = False, kv_len: bool = False, kernel: str | None = None, threads: int | None = None) -> None:
        arrays = _Arrays()
        _whole(heads=heads)
        _positive(heads=heads)
        _whole_or_none(batch=batch, seq=seq)
        _flags(causal=causal, kv_len=kv_len)
        columns, width = _shape(w_v, "w_v", 2)
        self._config = c = S.attn_synthesizer_config(
            batch=1 if batch is None else batch, seq=1 if seq is None else seq, width=width, heads=heads,
            dim_v=columns // heads, causal=causal, use_kv_len=kv_len,
            value=_linear(arrays, w_v, b_v, "w_v", width, columns), output=_linear(arrays, w_o, b_o, "w_o", columns, width))
        if scores is not None:
            c.kind, c.length = C.ATTN_SYNTHESIZER_RANDOM, _shape(scores, "scores", 3)[2]
            c.scores = arrays.floats(scores, "scores", (heads, c.length, c.length))
        else:
            self._set_networks(arrays, first, second)
        self._make(c, _options(kernel, threads))
        self._open(batch=batch, seq=seq)

    def _set_networks(self, arrays, first, second):
        c = self._config
        if any(pairs is None or _length(name, pairs) != c.heads for name, pairs in (("first", first), ("second", second))):
            raise ValueError(f"first and second must have {c.heads} pairs (weight, bias); or give scores")
        c.kind = C.ATTN_SYNTHESIZER_DENSE
        c.hidden, c.length = _shape(first[0][0], "first", 2)[0], _shape(second[0][0], "second", 2)[0]
        self._networks = [(S.attn_linear * c.heads)(*(_linear(arrays, w, b, name, *sizes) for w, b in pairs))
                          for name, pairs, sizes in (("first", first, (c.width, c.hidden)),
                                                     ("second", second, (c.hidden, c.length)))]
        c.first, c.second = map(ctypes.addressof, self._networks)

    def __call__(self, x: Any, *, kv_len: Any = None) -> Any:
        """y [batch, seq, width] of x."""
        c, arrays, fixed = self._config, _Arrays(), self._sizes
        address, _, shape = arrays.read(x, "x")
        _fit("x", shape, batch=fixed["batch"], seq=fixed["seq"], width=c.width)
        args = S.attn_synthesizer_args(x=address, kv_len=arrays.vector(kv_len, "kv_len", shape[0]))
        y, args.y = _new(x, *shape)
        layer = self._for_shape(shape[:2], lambda: shape[:2])
        check(F.attn_synthesizer_run(layer.handle, ctypes.byref(args), *self._workspace(handle=layer.handle)))
        return y


def kernel_regression(x: Any, y: Any, query: Any, *, inverse_width: Any = None, return_weights: bool = False,
                      kernel: str | None = None, threads: int | None = None) -> Any:
    """Nadaraya-Watson regression with a Gaussian kernel: predictions [queries, dim_y] at query [queries, dim_x] from points
    x [points, dim_x] with values y [points, dim_y]. inverse_width [dim_x]: 1 / bandwidth. With return_weights also
    [queries, points], how much each point counts."""
    _flags(return_weights=return_weights)
    arrays = _Arrays()
    (points, dim_x), dim_y, queries = _shape(x, "x", 2), _shape(y, "y", 2)[1], _shape(query, "query", 2)[0]
    problem = S.attn_regression(points=points, queries=queries, dim_x=dim_x, dim_y=dim_y, x=arrays.floats(x, "x"),
                                y=arrays.floats(y, "y", (points, dim_y)),
                                query=arrays.floats(query, "query", (queries, dim_x)),
                                inverse_width=arrays.floats(inverse_width, "inverse_width", (dim_x,)))
    prediction, problem.prediction = _new(query, queries, dim_y)
    weights, problem.weights = _new(query, queries, points) if return_weights else (None, None)
    check(F.attn_kernel_regression(ctypes.byref(problem), ctypes.byref(_options(kernel, threads))))
    return (prediction, weights) if return_weights else prediction


# ---- Decoding ------------------------------------------------------------------------------------------------------------


def _scaled(dtype, scales, key_channels):
    """Whether a pool keeps factors; None = what the dtype needs."""
    _flags(scales=False if scales is None else scales, key_channels=key_channels)
    return dtype == "int8" or key_channels if scales is None else scales


class KVPool(_Layer):
    """Pages of keys and values, which caches take and give back (attn_kv_pool). One call at a time. scales: types of 8 bits
    are kept with a factor of each key and value; int8 is, unless False is given. key_channels: keys have one of each channel
    of a page instead. dtype may also be "q8_0" or "q4_0"."""

    _kind = "kv_pool"

    def __init__(self, *, pages: int, heads_kv: int, dim_qk: int, dim_v: int | None = None, page_tokens: int = 64,
                 num_layers: int = 1, dtype: str = "float32", scales: bool | None = None,
                 key_channels: bool = False) -> None:
        kept = getattr(C, _one_of("dtype", dtype, POOL_DTYPES, TypeError))
        _whole(pages=pages, heads_kv=heads_kv, dim_qk=dim_qk, page_tokens=page_tokens, num_layers=num_layers)
        _whole_or_none(dim_v=dim_v)
        self._dtype = dtype
        self._shape = S.attn_kv_pool_shape(layers=num_layers, pages=pages, page_tokens=page_tokens, heads_kv=heads_kv,
                                           dim_qk=dim_qk, dim_v=dim_v or dim_qk, dtype=kept,
                                           scales=_scaled(dtype, scales, key_channels), key_channels=key_channels)
        self._handle = ctypes.c_void_p()
        check(F.attn_kv_pool_create(ctypes.byref(self._shape), ctypes.byref(self._handle)))

    @property
    def free_pages(self) -> int:
        """Pages that no sequence holds."""
        return F.attn_kv_pool_free_pages(self._handle)


class KVCache(_Layer):
    """Sequences of keys and values; each step appends to them and attends causally to all (attn_kv_cache).

    A sequence that holds no tokens costs nothing: it joins by its first step, and leaves by truncate(0, sequence=...).
    window: tokens that a query sees, itself included; window_first: first ones that it sees beside them. rotation
    (libattn.Rope) turns keys and queries. pool: pages shared with other caches, else `pages` of page_tokens of its own. q,
    k and v are of dtype, or with float_tokens float32, as with types of 8 bits, "q8_0" and "q4_0" they must be; what is kept
    is of dtype.
    scales: types of 8 bits are kept with a factor of each key and value, made by the step that appends them (int8: True).
    key_channels: keys of 8 bits have a factor of each channel of a page, made when it is full; until then its tokens stay
    float32 (KIVI, arXiv:2402.02750; attn_kv_cache_shape).
    hadamard: keys are kept, and queries attend, multiplied by an orthogonal matrix, by which 8 and 4 bits lose less (QuaRot,
    arXiv:2404.00456; attn_kv_append_args).
    bias_by_distance [heads, distances]: added to the scores of keys so many tokens before the query, the last one to those
    of all further keys (T5).
    """

    _kind = "kv_cache"

    def __init__(self, *, batch: int, heads: int, dim_qk: int, capacity: int, heads_kv: int | None = None,
                 dim_v: int | None = None, dtype: str = "float32", kernel: str | None = None, threads: int | None = None,
                 scale: float | None = None, softcap: float = 0.0, window: int | None = None,
                 window_first: int | None = None, sinks: Any = None, alibi: Any = None, rotation: Any = None,
                 float_tokens: bool = False, pool: KVPool | None = None, num_layers: int | None = None,
                 page_tokens: int | None = None, pages: int | None = None, scales: bool | None = None,
                 key_channels: bool = False, bias_by_distance: Any = None, hadamard: bool = False) -> None:
        from ._kv import Rope  # which is made of parts of this file

        kept = getattr(C, _one_of("dtype", dtype, POOL_DTYPES, TypeError))
        _whole(batch=batch, heads=heads, dim_qk=dim_qk, capacity=capacity)
        _whole_or_none(heads_kv=heads_kv, dim_v=dim_v, window=window, window_first=window_first, num_layers=num_layers,
                       page_tokens=page_tokens, pages=pages)
        arrays = _Arrays()
        _flags(float_tokens=float_tokens, hadamard=hadamard)
        _numbers(softcap=softcap)
        _numbers_or_none(scale=scale)
        self._dtype = "float32" if float_tokens else dtype
        self._lives = (rotation, pool)  # kept as long as the cache
        self._shape = S.attn_kv_cache_shape(
            batch=batch, heads_q=heads, heads_kv=heads_kv or heads, dim_qk=dim_qk, dim_v=dim_v or dim_qk, capacity=capacity,
            dtype=kept, float_tokens=float_tokens, scale=scale or 0.0, softcap=softcap,
            window=window or 0, window_first=window_first or 0, sinks=arrays.vector(sinks, "sinks", heads, whole=False),
            alibi_slopes=arrays.vector(alibi, "alibi", heads, whole=False),
            rope=_handle_or_none("rotation", rotation, Rope), pool=_handle_or_none("pool", pool, KVPool),
            layers=num_layers or 0, page_tokens=page_tokens or 0, pages=pages or 0,
            scales=_scaled(dtype, scales, key_channels), key_channels=key_channels, hadamard=hadamard)
        if bias_by_distance is not None:
            self._shape.bias_by_distance, _, shape = arrays.read(bias_by_distance, "bias_by_distance")
            _fit("bias_by_distance", shape, heads=heads, distances=None)
            self._shape.bias_distances = shape[1]
        self._make(self._shape, _options(kernel, threads))

    @classmethod
    def from_torch(cls, layer: Any, **options: Any) -> KVCache:
        """The cache for steps of Block.from_torch(layer) and of all layers with its scale, window and rotation. options:
        batch, capacity, num_layers, and further arguments, before those of the layer."""
        from .models import cache_arguments

        return cls(**{**cache_arguments(layer), **options})

    def _rows(self, arrays, array, name, heads, dim, packed, tokens=None):
        """(address, tokens) of [batch, heads, tokens, dim], or packed [tokens, heads, dim]."""
        address, _, shape = arrays.read(array, name, None, (self._dtype,))
        if shape is None:
            raise TypeError(f"{name} is None; it must be an array")
        s = self._shape
        right = (tokens if tokens is not None else shape[0], heads, dim) if packed else (
            s.batch, heads, tokens if tokens is not None else shape[2] if len(shape) == 4 else 0, dim)
        if shape != right:
            words = f"({'tokens' if tokens is None else tokens}, {heads}, {dim})" if packed else (
                f"({s.batch}, {heads}, {'tokens' if tokens is None else tokens}, {dim})")
            raise ValueError(f"{name} has shape {shape}; it must have {words}")
        return address, shape[0] if packed else shape[2]

    def step(self, q: Any, k: Any, v: Any, *, counts: Any = None) -> Any:
        """o [batch, heads, tokens, dim_v], float32, of q [batch, heads, tokens, dim_qk], and k and v [batch, heads_kv,
        tokens, ...], which are appended. counts [batch]: how many of the tokens each sequence really has. One step at a
        time. Raises MemoryError where the pool has too few free pages; then nothing has changed."""
        s, arrays = self._shape, _Arrays()
        address, tokens = self._rows(arrays, q, "q", s.heads_q, s.dim_qk, False)
        keys = self._rows(arrays, k, "k", s.heads_kv, s.dim_qk, False, tokens)[0]
        values = self._rows(arrays, v, "v", s.heads_kv, s.dim_v, False, tokens)[0]
        o, out = _new(q, s.batch, s.heads_q, tokens, s.dim_v)
        lengths = arrays.vector(counts, "counts", s.batch)
        check(F.attn_kv_cache_step(self._handle, tokens, lengths, address, keys, values, out))
        return o

    def begin(self, counts: Any) -> None:
        """Begins a step of counts [batch] new tokens for all layers: lengths grow, and pages are taken. Raises MemoryError
        where the pool has too few; then nothing has changed."""
        arrays = _Arrays()
        check(F.attn_kv_cache_begin(self._handle, arrays.vector(counts, "counts", self._shape.batch)))

    def attend(self, q: Any, k: Any, v: Any, *, layer: int = 0) -> Any:
        """o [tokens, heads, dim_v] of the begun step's tokens in one layer, packed: q [tokens, heads, dim_qk], and k and v
        [tokens, heads_kv, ...], which are appended, sequence after sequence."""
        _whole(layer=layer)
        s, arrays = self._shape, _Arrays()
        address, tokens = self._rows(arrays, q, "q", s.heads_q, s.dim_qk, True)
        keys = self._rows(arrays, k, "k", s.heads_kv, s.dim_qk, True, tokens)[0]
        values = self._rows(arrays, v, "v", s.heads_kv, s.dim_v, True, tokens)[0]
        expected = self.step_tokens
        if tokens != expected:
            raise ValueError(f"q has {tokens} tokens; the step has begun with {expected}")
        o, out = _new(q, tokens, s.heads_q, s.dim_v)
        args = S.attn_kv_cache_args(layer=layer, tokens=0, q=address, k=keys, v=values, o=out)
        check(F.attn_kv_cache_attend(self._handle, ctypes.byref(args)))
        return o

    @property
    def step_tokens(self) -> int:
        """New tokens of the step that has begun, of all sequences together."""
        return F.attn_kv_cache_step_tokens(self._handle)

    @property
    def lengths(self) -> list[int]:
        """Tokens that each sequence has in the cache."""
        return list((ctypes.c_int32 * self._shape.batch).from_address(F.attn_kv_cache_lengths(self._handle)))

    @property
    def free_pages(self) -> int:
        """Pages of the pool that no sequence holds."""
        return F.attn_kv_pool_free_pages(F.attn_kv_cache_pool(self._handle))

    def truncate(self, length: int, *, sequence: int | None = None) -> None:
        """Forgets all but the first `length` tokens of every sequence that has more, or of one."""
        _whole(length=length)
        _whole_or_none(sequence=sequence)
        if sequence is None:
            check(F.attn_kv_cache_truncate(self._handle, length))
        else:
            check(F.attn_kv_cache_truncate_sequence(self._handle, sequence, length))

    def fork(self, source: int, to: int, length: int | None = None) -> None:
        """Makes sequence `to` what the first `length` tokens of `source` are (None: all); their pages are shared."""
        _whole(source=source, to=to)
        _whole_or_none(length=length)
        lengths = self.lengths
        all_of = lengths[source] if 0 <= source < len(lengths) else 0
        check(F.attn_kv_cache_fork(self._handle, source, to, all_of if length is None else length))

    def reorder(self, parents: Any) -> None:
        """Beam search: sequence b becomes what sequence parents[b] was; -1 = empty."""
        arrays = _Arrays()
        check(F.attn_kv_cache_reorder(self._handle, arrays.vector(parents, "parents", self._shape.batch)))


# ---- Small pieces --------------------------------------------------------------------------------------------------------


def add_layer_norm(x: Any, residual: Any = None, *, gain: Any = None, bias: Any = None, epsilon: float = 1e-5) -> Any:
    """gain (s - mean) / sqrt(variance + epsilon) + bias over the last dimension of s = x + residual (Ba et al. 2016). Both
    may be float32, float16 or bfloat16; the result has the dtype of x."""
    return _add_norm(C.ATTN_NORM_LAYER, x, residual, (gain, bias), epsilon)


def add_rms_norm(x: Any, residual: Any = None, *, gain: Any = None, bias: Any = None, epsilon: float = 1e-6) -> Any:
    """gain s / sqrt(mean(s^2) + epsilon) + bias over the last dimension of s = x + residual (Zhang & Sennrich 2019),
    likewise."""
    return _add_norm(C.ATTN_NORM_RMS, x, residual, (gain, bias), epsilon)


def _add_norm(kind, x, residual, pair, epsilon):
    arrays = _Arrays()
    address, dtype, shape = arrays.read(x, "x", None, tuple(DTYPES))
    if not shape:
        raise ValueError("x has no dimensions; it must have at least one")
    other, other_dtype, _ = arrays.read(residual, "residual", shape, tuple(DTYPES))
    _numbers(epsilon=epsilon)
    y, out = _new(x, *shape, dtype=dtype)
    join = S.attn_row_join(rows=math.prod(shape[:-1]), width=shape[-1], norm_kind=kind,
                           norm=_norm(arrays, pair, shape[-1], epsilon), x=address, other=other, y=out)
    join.dtype_x = join.dtype_y = getattr(C, DTYPES[dtype])
    join.dtype_other = getattr(C, DTYPES[other_dtype or dtype])
    check(F.attn_row_join_run(ctypes.byref(join), ctypes.byref(_options(None, 1))))
    return y


def sinusoidal_positions(rows: int, width: int, *, like: Any, first: int = 0) -> Any:
    """Positions first ... first + rows - 1 as [rows, width] (Vaswani et al. 2017, section 3.5). like: an array of the
    library that the result shall be of."""
    _whole(rows=rows, width=width, first=first)
    out, address = _new(like, rows, width)
    check(F.attn_sinusoidal_positions(first, rows, width, address))
    return out


def embedding(table: Any, tokens: Any, *, factor: float = 1.0, dtype: str = "float32") -> Any:
    """factor table[tokens], [count, width]. table [vocabulary, width] is float32, float16 or bfloat16; tokens are int32, or
    a list. dtype: of the result, float32 or that of the table."""
    _numbers(factor=factor)
    rows_dtype = _float_dtype("dtype", dtype)
    arrays = _Arrays()
    address, kept, shape = arrays.read(table, "table", None, tuple(DTYPES))
    _fit("table", shape, vocabulary=None, width=None)
    if dtype not in ("float32", kept):
        raise TypeError(f"dtype is {dtype!r}; it must be 'float32' or that of the table, {kept!r}")
    count = _length("tokens", tokens)
    rows, out = _new(table, count, shape[1], dtype=dtype)
    what = S.attn_embedding(vocabulary=shape[0], width=shape[1], table=address, dtype=getattr(C, DTYPES[kept]),
                            factor=factor, dtype_rows=rows_dtype)
    check(F.attn_embed(ctypes.byref(what), count, arrays.vector(tokens, "tokens", count), out))
    return rows


def pool(x: Any, kind: str = "mean", *, lengths: Any = None, cu_seqlens: Any = None, unit: bool = False) -> Any:
    """One float32 row for each sequence, [batch, width]: the mean of its rows, or the "first" one. x, float32, float16 or
    bfloat16, is [batch, seq, width], of which the first lengths [batch] rows count; or packed [rows, width], with cu_seqlens
    [batch + 1]. unit: rows of length 1."""
    _flags(unit=unit)
    kinds = {"mean": C.ATTN_POOL_MEAN, "first": C.ATTN_POOL_FIRST}
    what = _one_of("kind", kind, kinds)
    arrays, packed = _Arrays(), cu_seqlens is not None
    address, dtype, shape = arrays.read(x, "x", None, tuple(DTYPES))
    _fit("x", shape, **dict.fromkeys(["rows", "width"] if packed else ["batch", "seq", "width"]))
    batch = _length("cu_seqlens", cu_seqlens) - 1 if packed else shape[0]
    starts = arrays.vector(cu_seqlens, "cu_seqlens", batch + 1)
    end = (ctypes.c_int32 * (batch + 1)).from_address(starts)[-1] if packed and batch >= 0 else None
    if packed and end != shape[0]:
        raise ValueError(f"cu_seqlens ends with {'nothing' if end is None else end}; it must end with {shape[0]}, the rows "
                         "of x")
    y, out = _new(x, batch, shape[-1])
    check(F.attn_pool_rows(ctypes.byref(S.attn_pooling(
        kind=what, unit=unit, batch=batch, seq=0 if packed else shape[1], width=shape[-1],
        x=address, dtype=getattr(C, DTYPES[dtype]), y=out, lengths=arrays.vector(lengths, "lengths", batch),
        cu_seqlens=starts))))
    return y


class Sampler:
    """Draws tokens from logits [vocabulary] (attn_sample_token). temperature 0 is greedy; top_k 0 and top_p 0 keep all.
    seed: where the draws begin; `state` is where they are."""

    def __init__(self, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 0.0, seed: int = 0) -> None:
        _whole(top_k=top_k)
        _numbers(temperature=temperature, top_p=top_p)
        if not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise ValueError(f"seed is {seed!r}; it must be an integer in 0..2^64 - 1")
        self._what = S.attn_sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        self._state = ctypes.c_uint64(seed)

    def _draw(self, logits, state, probabilities):
        arrays, token = _Arrays(), ctypes.c_int32()
        address, _, shape = arrays.read(logits, "logits")
        _fit("logits", shape, vocabulary=None)
        made, out = _new(logits, *shape) if probabilities else (None, None)
        check(F.attn_sample_token(ctypes.byref(self._what), shape[0], address, ctypes.byref(state), out,
                                  ctypes.byref(token)))
        return made if probabilities else token.value

    def __call__(self, logits: Any) -> int:
        """The next token."""
        return self._draw(logits, self._state, False)

    def probabilities(self, logits: Any) -> Any:
        """The probability of each token, [vocabulary]: 0 for those that do not stay. Draws nothing."""
        return self._draw(logits, ctypes.c_uint64(self._state.value), True)

    @property
    def state(self) -> int:
        """The state of the draws: the seed of a sampler that goes on from here."""
        return self._state.value


class Generation(_Layer):
    """The texts that follow one prompt: one, or those of a beam search (attn_generation). It says which tokens come next,
    and when a text ends; the program runs the model.

        texts = libattn.layers.Generation(vocabulary=32000, most_tokens=100, beams=4, stop_tokens=[2])
        while texts.running:
            tokens, parents = texts.advance(logits)     # logits of the texts that run, at first of the prompt
            cache.reorder(parents)
            ...                                         # a step of the model: tokens[i] >= 0 goes to sequence i

    stop_tokens end a text, as its last one. sampler: how one beam draws, from where the Sampler is, which stays there; None:
    greedily. first_sequence: number of the first of the cache's `beams` sequences: parents count from it."""

    _kind = "generation"

    def __init__(self, *, vocabulary: int, most_tokens: int, beams: int = 1, stop_tokens: Any = (),
                 sampler: Sampler | None = None, first_sequence: int = 0) -> None:
        _whole(vocabulary=vocabulary, most_tokens=most_tokens, first_sequence=first_sequence)
        _positive(beams=beams)
        if not isinstance(sampler, (Sampler, type(None))):
            raise TypeError(f"sampler is {sampler!r}; it must be a Sampler")
        arrays, count = _Arrays(), _length("stop_tokens", stop_tokens)
        self._handle, self._beams, self._most, self._vocabulary = ctypes.c_void_p(), beams, most_tokens, vocabulary
        check(F.attn_generation_create(ctypes.byref(S.attn_generation_config(
            vocabulary=vocabulary, most_tokens=most_tokens, beams=beams, stop_count=count, first_sequence=first_sequence,
            stop_tokens=arrays.vector(stop_tokens, "stop_tokens", count) if count else None,
            sampling=ctypes.addressof(sampler._what) if sampler else None, seed=sampler.state if sampler else 0)),
            ctypes.byref(self._handle)))

    @property
    def running(self) -> int:
        """How many texts run: 1 at first, 0 once the best one is known."""
        return F.attn_generation_running(self._handle)

    def advance(self, logits: Any) -> tuple[list[int], list[int]]:
        """(tokens, parents) of logits [running, vocabulary], float32: for each of the beams the new token of the text that
        runs on there and the sequence that it continues, or -1. NaN, +inf, or -inf in every place of a row raises a
        ValueError; then nothing has changed."""
        arrays = _Arrays()
        address = arrays.floats(logits, "logits", (self.running, self._vocabulary))
        tokens, parents = (ctypes.c_int32 * self._beams)(), (ctypes.c_int32 * self._beams)()
        check(F.attn_generation_advance(self._handle, address, tokens, parents))
        return list(tokens), list(parents)

    def text(self) -> list[int]:
        """Tokens of the best text that has ended, without the prompt's; before one has, of the best that runs."""
        tokens = (ctypes.c_int32 * self._most)()
        return tokens[:F.attn_generation_text(self._handle, tokens)]
