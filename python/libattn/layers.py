# SPDX-License-Identifier: MIT
"""Layers of attn/mha.h and attn/nn.h: weights packed once, run many times.

    layer = libattn.layers.MultiHeadAttention(batch=2, heads=4, seq=30, width=64, w_qkv=w, w_o=o)
    y = layer(x)                                    # float32 [batch, seq, width]

Everything is float32 and dense; weights of MultiHeadAttention may also be float16 or bfloat16. Weights are copied when a
layer is made. A layer is immutable: any number of threads may call it at once. Results are new arrays of the library that
the first input is from. docs/semantics.md ("The family around it") gives every formula with its source.

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


def _whole_or_none(**sizes):
    _whole(**{name: size for name, size in sizes.items() if size is not None})


def _shape(array, name, ndim):
    shape = FUNCTIONS["view"](array, name)[3]
    if len(shape) != ndim:
        raise ValueError(f"{name} has shape {shape}; it must have {ndim} dimensions")
    return shape


class _Arrays:
    """Addresses of arrays for one call to C, and the objects that have to live until it ends."""

    def __init__(self):
        self.kept = []

    def read(self, array, name, shape=None, dtypes=("float32",)):
        """(address, dtype, shape); the address is None for None."""
        if array is None:
            return None, None, None
        address, keeper, dtype, given = read_dense(array, name, dtypes)
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


def _new(like, *shape):
    """A new float32 array and its address."""
    array = FUNCTIONS["empty"](like, *shape)
    return array, read_dense(array, "the result")[0]


def _text(name):
    return name.encode() if name else None


def _options(kernel, threads):
    _whole_or_none(threads=threads)
    return S.attn_options(kernel=_text(kernel), threads=threads or 0)


def _linear(arrays, weight, bias, name, inputs, outputs, transposed=True):
    """attn_linear of a weight [outputs][inputs], as PyTorch stores it; or [inputs][outputs] if it is not transposed."""
    shape = (outputs, inputs) if transposed else (inputs, outputs)
    bias_name = name.replace("w", "b", 1) if name.startswith("w") else f"bias of {name}"
    return S.attn_linear(weight=arrays.floats(weight, name, shape), bias=arrays.floats(bias, bias_name, (outputs,)),
                         transposed=transposed)


class _Layer:
    """Owns a handle of C, and a workspace for each thread."""

    _kind = ""

    def _make(self, config, options):
        self._handle = ctypes.c_void_p()
        self._memory = threading.local()
        check(self._function("create")(ctypes.byref(config), ctypes.byref(options), ctypes.byref(self._handle)))

    def _function(self, name):
        return getattr(F, f"attn_{self._kind}_{name}")

    def _workspace(self, *rows):
        """(address, bytes)"""
        needed = self._function("workspace")(self._handle, *rows)
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


# ---- Multi-head attention ------------------------------------------------------------------------------------------------


def _mha_weights(arrays, problem, layout, weights):
    """attn_mha_weights of arrays [out][in] ("out_in") or [in][out] ("in_out")."""
    a = problem.attention
    columns_q, columns_k, columns_v = a.heads_q * a.dim_qk, a.heads_kv * a.dim_qk, a.heads_kv * a.dim_v
    sizes = {"w_qkv": (problem.width, columns_q + columns_k + columns_v), "w_q": (problem.width, columns_q),
             "w_k": (problem.width_memory, columns_k), "w_v": (problem.width_memory, columns_v),
             "w_o": (a.heads_q * a.dim_v, problem.width_out)}
    if layout not in ("out_in", "in_out"):
        raise ValueError(f"layout is {layout!r}; it must be 'out_in' (as PyTorch stores weights) or 'in_out'")
    struct, dtypes = S.attn_mha_weights(layout=C.ATTN_OUT_IN if layout == "out_in" else C.ATTN_IN_OUT), set()
    for name, array in weights.items():
        if array is None:
            continue
        if name.startswith("b_"):
            size = sizes["w" + name[1:]][1]
            setattr(struct, name, arrays.floats(array, name, (size,)))
            continue
        shape = sizes[name][::-1] if layout == "out_in" else sizes[name]
        address, dtype, _ = arrays.read(array, name, shape, tuple(DTYPES))
        setattr(struct, name, address)
        dtypes.add(dtype)
    if len(dtypes) > 1:
        raise TypeError(f"weights are {' and '.join(sorted(dtypes))}; they must have one dtype")
    struct.dtype = getattr(C, DTYPES[dtypes.pop()]) if dtypes else 0
    return struct


def _set_masks(attention, causal, align, window, uses):
    aligns = {"top_left": C.ATTN_ALIGN_TOP_LEFT, "bottom_right": C.ATTN_ALIGN_BOTTOM_RIGHT}
    if align not in aligns:
        raise ValueError(f"align is {align!r}; it must be 'top_left' or 'bottom_right'")
    attention.align = aligns[align]
    if window is not None:
        attention.window_left, attention.window_right = (-1 if side is None else side for side in window)
    if causal:
        attention.window_right = 0
    for name in uses:
        if name not in _USES:
            raise ValueError(f"uses has {name!r}; it may have {', '.join(map(repr, _USES))}")
        attention.uses |= getattr(C, _USES[name][0])


# Optional array of a call -> its bit, its shape, its dtypes
_USES = {"mask": ("ATTN_USE_MASK", "bhqk", ("bool", "uint8")), "bias": ("ATTN_USE_BIAS", "bhqk", ("float32",)),
         "kv_len": ("ATTN_USE_KV_LEN", "b", ("int32",)), "q_len": ("ATTN_USE_Q_LEN", "b", ("int32",)),
         "alibi_slopes": ("ATTN_USE_ALIBI", "h", ("float32",)), "sinks": ("ATTN_USE_SINKS", "h", ("float32",))}


def _attention_args(arrays, attention, brought):
    """attn_args of the optional arrays of a call."""
    extent = {"b": attention.batch, "h": attention.heads_q, "q": attention.seq_q, "k": attention.seq_k}
    args = S.attn_args()
    for name, array in brought.items():
        if name not in _USES:
            raise TypeError(f"unexpected keyword argument {name!r}; a layer takes {', '.join(_USES)}")
        _, axes, dtypes = _USES[name]
        shape = [extent[axis] for axis in axes]
        setattr(args, name, arrays.read(array, name, shape, dtypes)[0] if len(shape) > 1 else
                arrays.vector(array, name, shape[0], "int32" in dtypes))
    return args


class MultiHeadAttention(_Layer):
    """Multi-head attention with its projections (Vaswani et al. 2017, section 3.2.2).

    The problem: batch, heads, seq (and seq_memory, width_memory for cross-attention), width; heads_kv, dim_qk, dim_v and
    width_out default to heads, width / heads, dim_qk and width. causal, align, window, scale and softcap as in sdpa(). uses:
    the names of optional arrays that calls will bring: "mask" and "bias" [batch, heads, seq, keys], "kv_len" and "q_len"
    [batch], "alibi_slopes" and "sinks" [heads].

    The weights: w_qkv, or w_q, w_k and w_v; w_o; biases b_qkv or b_q, b_k, b_v; b_o. layout "out_in" is that of PyTorch's
    nn.Linear, "in_out" its transpose. product: the kernel of the projections ("product_amx"); the error of an unknown name
    lists those that run here.
    """

    _kind = "mha"

    def __init__(self, *, batch: int, heads: int, seq: int, width: int, seq_memory: int | None = None,
                 width_memory: int | None = None, width_out: int | None = None, heads_kv: int | None = None,
                 dim_qk: int | None = None, dim_v: int | None = None, causal: bool = False, align: str = "top_left",
                 window: tuple[int | None, int | None] | None = None, scale: float | None = None, softcap: float = 0,
                 uses: tuple[str, ...] = (), layout: str = "out_in", kernel: str | None = None, threads: int | None = None,
                 product: str | None = None, **weights: Any) -> None:
        _whole(batch=batch, heads=heads, seq=seq, width=width)
        _whole_or_none(seq_memory=seq_memory, width_memory=width_memory, width_out=width_out, heads_kv=heads_kv,
                       dim_qk=dim_qk, dim_v=dim_v)
        self._problem = problem = S.attn_mha_problem()
        problem.attention = S.attn_problem()
        seq_k = seq if seq_memory is None else seq_memory
        F.attn_mha_problem_init(ctypes.byref(problem), batch, heads, seq, seq_k, width)
        dim_qk = dim_qk or width // heads
        F.attn_problem_init(ctypes.addressof(problem) + S.attn_mha_problem.attention.offset, batch, heads, heads_kv or heads,
                            seq, seq_k, dim_qk, dim_v or dim_qk)
        problem.width_memory, problem.width_out = width_memory or width, width_out or width
        problem.memory_stride = S.attn_strides(b=seq_k * problem.width_memory, s=problem.width_memory, d=1)
        problem.y_stride = S.attn_strides(b=seq * problem.width_out, s=problem.width_out, d=1)
        _set_masks(problem.attention, causal, align, window, uses)
        problem.attention.softcap = softcap
        if scale is not None:
            problem.attention.scale = scale
        arrays = _Arrays()
        inner = _options(kernel, threads)
        options = S.attn_mha_options(attention=ctypes.addressof(inner), product=_text(product))
        packed = _mha_weights(arrays, problem, layout, _named(weights))
        self._handle, self._memory = ctypes.c_void_p(), threading.local()
        check(F.attn_mha_create(ctypes.byref(problem), ctypes.byref(packed), ctypes.byref(options),
                                ctypes.byref(self._handle)))

    def __call__(self, x: Any, memory: Any = None, **arrays_brought: Any) -> Any:
        """y [batch, seq, width_out] of x [batch, seq, width] and, in cross-attention, memory [batch, seq_memory, ...]."""
        p, arrays = self._problem, _Arrays()
        a = p.attention
        attention = _attention_args(arrays, a, arrays_brought)
        args = S.attn_mha_args(x=arrays.floats(x, "x", (a.batch, a.seq_q, p.width)),
                               memory=arrays.floats(memory, "memory", (a.batch, a.seq_k, p.width_memory)),
                               attention=ctypes.addressof(attention))
        y, args.y = _new(x, a.batch, a.seq_q, p.width_out)
        check(F.attn_mha_run(self._handle, ctypes.byref(args), *self._workspace()))
        return y

    def step(self, x: Any, cache: KVCache, *, layer: int = 0) -> Any:
        """y [tokens, width_out] of x [tokens, width], the new tokens of the step that cache.begin() has begun, sequence
        after sequence: they attend to what the cache holds in this layer of it. Scale, window and the like are the cache's;
        batch and seq of this layer do not count. Rows have the bits of a call over the whole text with the same kernel."""
        _whole(layer=layer)
        arrays, tokens = _Arrays(), cache.step_tokens
        address = arrays.floats(x, "x", (tokens, self._problem.width))
        y, out = _new(x, tokens, self._problem.width_out)
        check(F.attn_mha_step(self._handle, cache._handle, layer, address, out))
        return y

    def describe(self) -> str:
        """A few lines: shape, projections, and the attention as Plan.describe() tells it."""
        return F.attn_mha_describe(self._handle).decode()


_WEIGHTS = ("w_qkv", "w_q", "w_k", "w_v", "w_o", "b_qkv", "b_q", "b_k", "b_v", "b_o")


def _named(weights):
    for name in weights:
        if name.startswith("dropout"):
            raise TypeError(f"{name} is no argument: the layers of libattn are for inference, which has no dropout")
        if name not in _WEIGHTS:
            raise TypeError(f"{name} is neither a setting nor a weight; the weights are {', '.join(_WEIGHTS)}")
    return weights


# ---- Networks and blocks -------------------------------------------------------------------------------------------------

_ACTIVATIONS = {"relu": "ATTN_RELU", "gelu": "ATTN_GELU"}


def _activation(name):
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation is {name!r}; it must be 'relu' or 'gelu'")
    return getattr(C, _ACTIVATIONS[name])


class FeedForward(_Layer):
    """y = activation(x w1^T + b1) w2^T + b2: w1 [hidden][width], w2 [width][hidden], as PyTorch stores them. activation:
    "relu" or "gelu" (exact). product: the kernel of both maps."""

    _kind = "feed_forward"

    def __init__(self, w1: Any, w2: Any, *, b1: Any = None, b2: Any = None, activation: str = "relu",
                 threads: int | None = None, product: str | None = None) -> None:
        arrays = _Arrays()
        self.hidden, self.width = _shape(w1, "w1", 2)
        config = S.attn_feed_forward_config(width=self.width, hidden=self.hidden, activation=_activation(activation),
                                            first=_linear(arrays, w1, b1, "w1", self.width, self.hidden),
                                            second=_linear(arrays, w2, b2, "w2", self.hidden, self.width),
                                            product=_text(product))
        self._make(config, _options(None, threads))

    def __call__(self, x: Any) -> Any:
        """y of x [..., width]."""
        arrays = _Arrays()
        address, _, shape = arrays.read(x, "x")
        if not shape or shape[-1] != self.width:
            raise ValueError(f"x has shape {shape}; its last dimension must be {self.width}")
        y, out = _new(x, *shape)
        rows = math.prod(shape[:-1])
        check(F.attn_feed_forward_run(self._handle, rows, address, out, *self._workspace(rows)))
        return y


def _norm(arrays, pair, width, epsilon):
    gain, bias = pair or (None, None)
    return S.attn_norm(gain=arrays.floats(gain, "gain", (width,)), bias=arrays.floats(bias, "bias of a norm", (width,)),
                       epsilon=epsilon)


class Block(_Layer):
    """A transformer block: self-attention, with `memory` also cross-attention, a feed-forward network; each with residual
    and layer norm, after (post-norm, Vaswani et al. 2017) or before (pre_norm=True, Xiong et al. 2020).

    self_weights and cross_weights: dicts of what MultiHeadAttention takes. w1, b1, w2, b2: the network. norms: three pairs
    (gain, bias) for self-attention, cross-attention and network, or None. memory: (seq, width) of an encoder's output: the
    block is then a decoder's, and causal, as it is with causal=True. uses and cross_uses: as `uses` of MultiHeadAttention.
    product: the kernel of all dense layers.
    """

    _kind = "block"

    def __init__(self, *, batch: int, heads: int, seq: int, width: int, self_weights: dict[str, Any], w1: Any, w2: Any,
                 b1: Any = None, b2: Any = None, memory: tuple[int, int] | None = None,
                 cross_weights: dict[str, Any] | None = None, norms: Any = (None, None, None), epsilon: float = 1e-5,
                 pre_norm: bool = False, activation: str = "relu", causal: bool = False, uses: tuple[str, ...] = (),
                 cross_uses: tuple[str, ...] = (), layout: str = "out_in", kernel: str | None = None,
                 threads: int | None = None, product: str | None = None) -> None:
        _whole(batch=batch, heads=heads, seq=seq, width=width)
        hidden = _shape(w1, "w1", 2)[0]
        self._config = config = self._start(batch, heads, seq, width, hidden, memory)
        arrays = _Arrays()
        config.self_weights = _mha_weights(arrays, config.self, layout, _named(self_weights))
        _set_uses(config.self.attention, uses)
        if causal:
            F.attn_problem_set_causal(ctypes.byref(config.self.attention), C.ATTN_ALIGN_TOP_LEFT)
        if memory:
            config.cross_weights = _mha_weights(arrays, config.cross, layout, _named(cross_weights or {}))
            _set_uses(config.cross.attention, cross_uses)
        config.feed_forward.activation = _activation(activation)
        config.feed_forward.first = _linear(arrays, w1, b1, "w1", width, hidden)
        config.feed_forward.second = _linear(arrays, w2, b2, "w2", hidden, width)
        for name, pair in zip(("self_norm", "cross_norm", "feed_forward_norm"), norms):
            setattr(config, name, _norm(arrays, pair, width, epsilon))
        config.pre_norm = pre_norm
        config.product = _text(product)
        self._make(config, _options(kernel, threads))

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
        own, arrays = self._config.self, _Arrays()
        shape = (own.attention.batch, own.attention.seq_q, own.width)
        masks = _attention_args(arrays, own.attention, arrays_brought)
        args = S.attn_block_args(x=arrays.floats(x, "x", shape), self=ctypes.addressof(masks))
        self._bring_memory(args, arrays, memory, cross)
        y, args.y = _new(x, *shape)
        check(F.attn_block_run(self._handle, ctypes.byref(args), *self._workspace()))
        return y

    def _bring_memory(self, args, arrays, memory, cross):
        """The memory [batch, seq, width], or the pair that project_memory() made of it, and the masks of `cross`."""
        if memory is not None and not self._config.has_cross:
            raise ValueError("memory is given; it must be None, because the block was made without one")
        other = self._config.cross
        a = other.attention
        if isinstance(memory, tuple):
            keys, values = memory
            args.projected_k = arrays.floats(keys, "keys of memory", (a.batch, a.heads_kv, a.seq_k, a.dim_qk))
            args.projected_v = arrays.floats(values, "values of memory", (a.batch, a.heads_kv, a.seq_k, a.dim_v))
        elif memory is not None:
            args.memory = arrays.floats(memory, "memory", (a.batch, a.seq_k, other.width_memory))
        if memory is not None:
            masks = _attention_args(arrays, a, cross or {})
            arrays.kept.append(masks)
            args.cross = ctypes.addressof(masks)

    def project_memory(self, memory: Any, *, cross: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """(keys, values) of the cross-attention, to be given as `memory` in calls and steps: they are computed once."""
        a, arrays, args = self._config.cross.attention, _Arrays(), S.attn_block_args()
        self._bring_memory(args, arrays, memory, cross)
        (keys, to_keys), (values, to_values) = (_new(memory, a.batch, a.heads_kv, a.seq_k, d) for d in (a.dim_qk, a.dim_v))
        check(F.attn_block_project_memory(self._handle, ctypes.byref(args), to_keys, to_values, *self._workspace()))
        return keys, values

    def step(self, x: Any, cache: KVCache, memory: Any = None, *, layer: int = 0,
             cross: dict[str, Any] | None = None) -> Any:
        """y [tokens, width] of x [tokens, width]: the new tokens of the step that cache.begin() has begun, sequence after
        sequence. The self-attention is causal, over what the cache holds in this layer of it; the block's batch and seq
        count for a decoder block alone. The rows have the bits of a call over the whole text with the same kernel."""
        _whole(layer=layer)
        arrays = _Arrays()
        args = S.attn_block_args(x=arrays.floats(x, "x", (cache.step_tokens, self._config.self.width)))
        self._bring_memory(args, arrays, memory, cross)
        y, args.y = _new(x, cache.step_tokens, self._config.self.width)
        check(F.attn_block_step(self._handle, cache._handle, layer, ctypes.byref(args)))
        return y


def _set_uses(attention, uses):
    for name in uses:
        if name not in _USES:
            raise ValueError(f"uses has {name!r}; it may have {', '.join(map(repr, _USES))}")
        attention.uses |= getattr(C, _USES[name][0])


# ---- Attention of other kinds --------------------------------------------------------------------------------------------


class Additive(_Layer):
    """Additive attention with its projections (Bahdanau et al. 2015): w_q [hidden][width_q], w_k [hidden][width_k] as
    PyTorch stores them, score_weight [hidden]; with biases b_q and b_k if given."""

    _kind = "additive"

    def __init__(self, w_q: Any, w_k: Any, score_weight: Any, *, batch: int, seq_q: int, seq_k: int, dim_v: int,
                 b_q: Any = None, b_k: Any = None, kv_len: bool = False, kernel: str | None = None,
                 threads: int | None = None) -> None:
        arrays = _Arrays()
        _whole(batch=batch, seq_q=seq_q, seq_k=seq_k, dim_v=dim_v)
        hidden, width_q = _shape(w_q, "w_q", 2)
        width_k = _shape(w_k, "w_k", 2)[1]
        self._config = S.attn_additive_config(
            batch=batch, seq_q=seq_q, seq_k=seq_k, width_q=width_q, width_k=width_k, hidden=hidden, dim_v=dim_v,
            use_kv_len=kv_len, query=_linear(arrays, w_q, b_q, "w_q", width_q, hidden),
            key=_linear(arrays, w_k, b_k, "w_k", width_k, hidden),
            score_weight=arrays.floats(score_weight, "score_weight", (hidden,)))
        self._make(self._config, _options(kernel, threads))

    def __call__(self, q: Any, k: Any, v: Any, *, kv_len: Any = None, return_weights: bool = False) -> Any:
        """o [batch, seq_q, dim_v] of q [batch, seq_q, width_q], k [batch, seq_k, width_k] and v [batch, seq_k, dim_v];
        with return_weights (o, p [batch, seq_q, seq_k])."""
        c, arrays = self._config, _Arrays()
        args = S.attn_additive_args(q=arrays.floats(q, "q", (c.batch, c.seq_q, c.width_q)),
                                    k=arrays.floats(k, "k", (c.batch, c.seq_k, c.width_k)),
                                    v=arrays.floats(v, "v", (c.batch, c.seq_k, c.dim_v)),
                                    kv_len=arrays.vector(kv_len, "kv_len", c.batch))
        o, args.o = _new(q, c.batch, c.seq_q, c.dim_v)
        p, args.weights = _new(q, c.batch, c.seq_q, c.seq_k) if return_weights else (None, None)
        check(F.attn_additive_run(self._handle, ctypes.byref(args), *self._workspace()))
        return (o, p) if return_weights else o


class Synthesizer(_Layer):
    """Synthesizer (Tay et al. 2021): attention whose scores come from each row alone (dense: first = [(weight, bias)] of
    width -> hidden and second of hidden -> length, one pair per head) or are learnt (random: scores
    [heads][length][length]).

    w_v [heads dim_v][width], w_o [width][heads dim_v], b_v, b_o: as PyTorch stores them.
    """

    _kind = "synthesizer"

    def __init__(self, w_v: Any, w_o: Any, *, batch: int, seq: int, heads: int, b_v: Any = None, b_o: Any = None,
                 scores: Any = None, first: Any = None, second: Any = None, causal: bool = False, kv_len: bool = False,
                 kernel: str | None = None, threads: int | None = None) -> None:
        arrays = _Arrays()
        _whole(batch=batch, seq=seq, heads=heads)
        columns, width = _shape(w_v, "w_v", 2)
        self._config = c = S.attn_synthesizer_config(
            batch=batch, seq=seq, width=width, heads=heads, dim_v=columns // heads, causal=causal, use_kv_len=kv_len,
            value=_linear(arrays, w_v, b_v, "w_v", width, columns), output=_linear(arrays, w_o, b_o, "w_o", columns, width))
        if scores is not None:
            c.kind, c.length = C.ATTN_SYNTHESIZER_RANDOM, _shape(scores, "scores", 3)[2]
            c.scores = arrays.floats(scores, "scores", (heads, c.length, c.length))
        else:
            self._set_networks(arrays, first, second)
        self._make(c, _options(kernel, threads))

    def _set_networks(self, arrays, first, second):
        c = self._config
        if not first or not second or len(first) != c.heads or len(second) != c.heads:
            raise ValueError(f"first and second must have {c.heads} pairs (weight, bias); or give scores")
        c.kind = C.ATTN_SYNTHESIZER_DENSE
        c.hidden, c.length = _shape(first[0][0], "first", 2)[0], _shape(second[0][0], "second", 2)[0]
        self._networks = [(S.attn_linear * c.heads)(*(_linear(arrays, w, b, name, *sizes) for w, b in pairs))
                          for name, pairs, sizes in (("first", first, (c.width, c.hidden)),
                                                     ("second", second, (c.hidden, c.length)))]
        c.first, c.second = map(ctypes.addressof, self._networks)

    def __call__(self, x: Any, *, kv_len: Any = None) -> Any:
        """y [batch, seq, width] of x."""
        c, arrays = self._config, _Arrays()
        args = S.attn_synthesizer_args(x=arrays.floats(x, "x", (c.batch, c.seq, c.width)),
                                       kv_len=arrays.vector(kv_len, "kv_len", c.batch))
        y, args.y = _new(x, c.batch, c.seq, c.width)
        check(F.attn_synthesizer_run(self._handle, ctypes.byref(args), *self._workspace()))
        return y


def kernel_regression(x: Any, y: Any, query: Any, *, inverse_width: Any = None, return_weights: bool = False,
                      kernel: str | None = None, threads: int | None = None) -> Any:
    """Nadaraya-Watson regression with a Gaussian kernel: predictions [queries, dim_y] at query [queries, dim_x] from points
    x [points, dim_x] with values y [points, dim_y]. inverse_width [dim_x]: 1 / bandwidth. With return_weights also
    [queries, points], how much each point counts."""
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
    return dtype == "int8" or key_channels if scales is None else scales


class KVPool(_Layer):
    """Pages of keys and values, which caches take and give back (attn_kv_pool). One call at a time. scales: types of 8 bits
    are kept with a factor of each key and value; int8 is, unless False is given. key_channels: keys have one of each channel
    of a page instead. dtype may also be "q8_0" or "q4_0"."""

    _kind = "kv_pool"

    def __init__(self, *, pages: int, heads_kv: int, dim_qk: int, dim_v: int | None = None, page_tokens: int = 64,
                 num_layers: int = 1, dtype: str = "float32", scales: bool | None = None,
                 key_channels: bool = False) -> None:
        if dtype not in POOL_DTYPES:
            raise TypeError(f"dtype is {dtype}; it must be one of {', '.join(POOL_DTYPES)}")
        _whole(pages=pages, heads_kv=heads_kv, dim_qk=dim_qk, page_tokens=page_tokens, num_layers=num_layers)
        _whole_or_none(dim_v=dim_v)
        self._dtype = dtype
        self._shape = S.attn_kv_pool_shape(layers=num_layers, pages=pages, page_tokens=page_tokens, heads_kv=heads_kv,
                                           dim_qk=dim_qk, dim_v=dim_v or dim_qk, dtype=getattr(C, POOL_DTYPES[dtype]),
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
    """

    _kind = "kv_cache"

    def __init__(self, *, batch: int, heads: int, dim_qk: int, capacity: int, heads_kv: int | None = None,
                 dim_v: int | None = None, dtype: str = "float32", kernel: str | None = None, threads: int | None = None,
                 scale: float | None = None, softcap: float = 0.0, window: int | None = None,
                 window_first: int | None = None, sinks: Any = None, alibi: Any = None, rotation: Any = None,
                 float_tokens: bool = False, pool: KVPool | None = None, num_layers: int | None = None,
                 page_tokens: int | None = None, pages: int | None = None, scales: bool | None = None,
                 key_channels: bool = False) -> None:
        if dtype not in POOL_DTYPES:
            raise TypeError(f"dtype is {dtype}; it must be one of {', '.join(POOL_DTYPES)}")
        _whole(batch=batch, heads=heads, dim_qk=dim_qk, capacity=capacity)
        _whole_or_none(heads_kv=heads_kv, dim_v=dim_v, window=window, window_first=window_first, num_layers=num_layers,
                       page_tokens=page_tokens, pages=pages)
        arrays = _Arrays()
        self._dtype = "float32" if float_tokens else dtype
        self._lives = (rotation, pool)  # kept as long as the cache
        self._shape = S.attn_kv_cache_shape(
            batch=batch, heads_q=heads, heads_kv=heads_kv or heads, dim_qk=dim_qk, dim_v=dim_v or dim_qk, capacity=capacity,
            dtype=getattr(C, POOL_DTYPES[dtype]), float_tokens=float_tokens, scale=scale or 0.0, softcap=softcap,
            window=window or 0, window_first=window_first or 0, sinks=arrays.vector(sinks, "sinks", heads, whole=False),
            alibi_slopes=arrays.vector(alibi, "alibi", heads, whole=False), rope=rotation._handle if rotation else None,
            pool=pool._handle if pool else None, layers=num_layers or 0, page_tokens=page_tokens or 0, pages=pages or 0,
            scales=_scaled(dtype, scales, key_channels), key_channels=key_channels)
        self._make(self._shape, _options(kernel, threads))

    def _rows(self, arrays, array, name, heads, dim, packed, tokens=None):
        """(address, tokens) of [batch, heads, tokens, dim], or packed [tokens, heads, dim]."""
        address, _, shape = arrays.read(array, name, None, (self._dtype,))
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
    """gain (s - mean) / sqrt(variance + epsilon) + bias over the last dimension of s = x + residual (Ba et al. 2016)."""
    arrays = _Arrays()
    address, _, shape = arrays.read(x, "x")
    if not shape:
        raise ValueError("x has no dimensions; it must have at least one")
    y, out = _new(x, *shape)
    norm = _norm(arrays, (gain, bias), shape[-1], epsilon)
    check(F.attn_add_layer_norm(math.prod(shape[:-1]), shape[-1], address, arrays.floats(residual, "residual", shape),
                                ctypes.byref(norm), None, out))
    return y


def sinusoidal_positions(rows: int, width: int, *, like: Any, first: int = 0) -> Any:
    """Positions first ... first + rows - 1 as [rows, width] (Vaswani et al. 2017, section 3.5). like: an array of the
    library that the result shall be of."""
    _whole(rows=rows, width=width, first=first)
    out, address = _new(like, rows, width)
    check(F.attn_sinusoidal_positions(first, rows, width, address))
    return out
