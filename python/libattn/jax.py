# SPDX-License-Identifier: MIT
"""libattn for JAX on CPUs.

    import libattn.jax
    out = libattn.jax.sdpa(q, k, v, causal=True)                        # under jit, grad, vmap
    out = libattn.jax.dot_product_attention(q, k, v, is_causal=True)    # the signature of jax.nn's

Compiled programs call libattn's C functions by XLA's foreign function interface (python/native/xla.c): without Python, on
XLA's threads, and arrays are read and written where they lie. Where JAX has no such interface (uses_ffi is False), they call
Python back (jax.pure_callback). Gradients are libattn's (libattn.sdpa_grad), without scores in memory. vmap makes one call
with a larger batch where there is such a call, else a loop. There are no forward-mode derivatives, and no gradients of
gradients.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from . import _native
from ._sdpa import FUNCTIONS, sdpa_grad

__all__ = ["dot_product_attention", "sdpa", "uses_ffi"]

_DERIVED = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sinks": "dsinks", "alibi": "dalibi_slopes",
            "score_weight": "dscore_weight"}  # in the order of results
_REFUSED = ("scores", "key_blocks", "state", "out", "lse", "kv_format")  # arrays that are written, and odd shapes
_FLOATS = ("bias", "sinks", "alibi", "score_weight", "k_scale", "v_scale")
_INTEGERS = ("kv_len", "q_len", "row_len", "cu_seqlens_q", "cu_seqlens_k", "page_table", "offsets")
_BITS = ("seed", "offset")


def _register():
    """Whether XLA takes the C function: JAX has the interface since 0.4.34, and checks its version."""
    try:
        ffi = jax.ffi if hasattr(jax, "ffi") else __import__("jax.extend", fromlist=["ffi"]).ffi
        ffi.register_ffi_target("libattn_attention", ffi.pycapsule(_native.XLA_HANDLER), platform="cpu")
    except Exception:  # any version of JAX may refuse in its own way; callbacks serve all
        return False
    return hasattr(jax, "ffi")


uses_ffi = _register()


class _Call(NamedTuple):
    """A call as far as it is known when it is traced. ffi: it calls C; shared: arrays that all `batch` sequences have
    together."""

    options: tuple
    ffi: bool
    wanted: tuple | None = None  # the arguments by which gradients are computed; None: out and lse are
    shared: tuple = ()
    batch: int = 0

    def shape(self, name, x):
        return (self.batch, *x.shape[-3:]) if name in self.shared else x.shape


# ---- One call ------------------------------------------------------------------------------------------------------------


def _by_token(call, arrays):
    """Whether heads stand behind queries."""
    return dict(call.options).get("layout", "thd" if "cu_seqlens_q" in arrays else "bhsd") in ("bshd", "thd")


def _results(call, arrays):
    """The shapes of out and lse, or of the gradients."""
    if call.wanted is not None:
        return [jax.ShapeDtypeStruct(call.shape(name, arrays[name]), arrays[name].dtype) for name in call.wanted]
    *rows, _ = call.shape("q", arrays["q"])
    dtype = jnp.float32 if dict(call.options).get("out_dtype") == "float32" else arrays["q"].dtype
    by_token = _by_token(call, arrays) and len(rows) > 1
    return [jax.ShapeDtypeStruct((*rows, arrays["v"].shape[-1]), dtype),
            jax.ShapeDtypeStruct((*rows[:-2], rows[-1], rows[-2]) if by_token else tuple(rows), jnp.float32)]


def _arguments(call, arrays):
    """Those of sdpa or sdpa_grad."""
    options = dict(call.options)
    if call.wanted is None:
        return {**arrays, **options, "return_lse": True}
    options.pop("kernel", None)
    return {**arrays, **options, **{gradient: name in call.wanted for name, gradient in _DERIVED.items()}}


def _compile(call, arrays):
    """(names of operands, the call in integers). Raises what is wrong with shapes and options."""
    def spec(name, x):
        shape, dtype = call.shape(name, x), "int32" if name in _BITS else str(x.dtype)
        strides = (0, *_native.dense_strides(shape[1:])) if name in call.shared else None
        return _native.Spec(shape, dtype, strides)

    function = FUNCTIONS["compile_sdpa" if call.wanted is None else "compile_sdpa_grad"]
    return function(**_arguments(call, {name: spec(name, x) for name, x in arrays.items()}))


def _by_ffi(call, arrays):
    names, numbers = _compile(call, arrays)
    function = jax.ffi.ffi_call("libattn_attention", _results(call, arrays))
    return function(*(arrays[name] for name in names), call=np.array(numbers, np.int64))


def _by_callback(call, arrays):
    def compute(arrays):
        arrays = {name: np.asarray(x) for name, x in arrays.items()}
        for name in call.shared:
            arrays[name] = np.broadcast_to(arrays[name], call.shape(name, arrays[name]))
        if call.wanted is None:
            return list(FUNCTIONS["sdpa"](**_arguments(call, arrays)))
        found = sdpa_grad(**_arguments(call, arrays))
        return [getattr(found, _DERIVED[name]) for name in call.wanted]

    return jax.pure_callback(compute, _results(call, arrays), arrays, vmap_method="sequential")


def _run(call, arrays):
    """The results as a list. It refuses to be differentiated: that is what _attend is for."""
    @custom_vmap
    def compute(arrays):
        return (_by_ffi if call.ffi else _by_callback)(call, arrays)

    @compute.def_vmap
    def map_batch(size, batched, arrays):
        return _run_batch(call, size, batched[0] if isinstance(batched, (list, tuple)) else batched, arrays)

    guarded = jax.custom_jvp(compute)

    @guarded.defjvp
    def refuse(primals, tangents):
        raise NotImplementedError("libattn has no gradients of gradients in JAX, and no forward-mode derivatives")

    return guarded(arrays)


# ---- A batch of calls ----------------------------------------------------------------------------------------------------

_ROWS = {"q": 4, "k": 4, "v": 4, "do": 4, "out": 4, "lse": 3, "d_lse": 3}  # dimensions with batch and heads
_BROADCAST = {"mask": 4, "bias": 4, "k_scale": 3, "v_scale": 3}
_LENGTHS = ("kv_len", "q_len", "row_len", "offsets")


def _can_merge(call, batched, arrays):
    """Whether one call computes the batch: what differs has a batch axis. Weights are dropped by place in the batch."""
    options = dict(call.options)
    odd = [name for name in batched if batched[name] and name not in (*_ROWS, *_BROADCAST, *_LENGTHS)]
    return (not odd and not {"cu_seqlens_q", "page_table"} & arrays.keys() and not options.get("dropout") and
            not options.get("shared_prefix") and set(call.wanted or ()) <= {"q", "k", "v"})


def _full(name, x, lead, by_token, batch):
    """The array with all its dimensions behind `lead` that vmap brought: batch, then heads where rows have some."""
    shape = x.shape[lead:]
    if name in _LENGTHS:
        shape = (batch, -1) if name == "row_len" else (batch,)
    elif name in _ROWS and len(shape) == _ROWS[name] - 2:  # no heads
        shape = (1, shape[0], 1, *shape[1:]) if by_token and _ROWS[name] == 4 else (1, 1, *shape)
    else:
        shape = (1,) * ({**_ROWS, **_BROADCAST}.get(name, 0) - len(shape)) + shape
    return x.reshape(*x.shape[:lead], *shape)


def _merge(call, size, batched, arrays):
    """(call, arrays) of one call for the whole batch."""
    q = arrays["q"].shape[batched["q"]:]
    before = call.batch or (q[0] if len(q) == 4 else 1)
    merged, shared = {}, []
    for name, x in arrays.items():
        if name not in (*_ROWS, *_BROADCAST, *_LENGTHS):
            merged[name] = x
            continue
        x = _full(name, x, int(batched[name]), _by_token(call, arrays), before)
        if batched[name]:
            x = jnp.broadcast_to(x, (size, before, *x.shape[2:])).reshape(size * before, *x.shape[2:])
        elif name in "qkv" and x.shape[0] == 1 and (before == 1 or name in call.shared):
            shared.append(name)
        elif name not in _BROADCAST or x.shape[0] > 1:
            x = jnp.broadcast_to(x[None], (size, before, *x.shape[1:])).reshape(size * before, *x.shape[1:])
        merged[name] = x
    return call._replace(shared=tuple(shared), batch=size * before), merged


def _run_batch(call, size, batched, arrays):
    """(results with a leading axis, which of them have it), as custom_vmap wants them."""
    if _can_merge(call, batched, arrays):
        now, merged = _merge(call, size, batched, arrays)
        like = _results(call, {name: jax.ShapeDtypeStruct(x.shape[batched[name]:], x.dtype) for name, x in arrays.items()})
        found = [x.reshape(size, *one.shape) for x, one in zip(_run(now, merged), like)]
    else:
        moving = {name: x for name, x in arrays.items() if batched[name]}
        found = jax.lax.map(lambda moving: _run(call, {**arrays, **moving}), moving)
    return found, [True] * len(found)


# ---- Gradients -----------------------------------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call, arrays):
    return _run(call, arrays)


def _forward(call, arrays):
    """Keeps the arrays, and the names of those by which backward differentiates: a dictionary without leaves."""
    wanted = [name for name, x in arrays.items() if x.perturbed]
    for name in wanted:
        if name not in _DERIVED:
            raise NotImplementedError(f"libattn has no gradient by {name}: jax.lax.stop_gradient({name}) says that none is "
                                      "wanted")
    arrays = {name: x.value for name, x in arrays.items()}
    results = _run(call, arrays)
    return results, (arrays, *results, dict.fromkeys(wanted))


def _backward(call, kept, gradients):
    arrays, out, lse, wanted = kept
    do, d_lse = (x if not isinstance(x, SymbolicZero) else None for x in gradients)
    beside = {"do": jnp.zeros(out.shape, out.dtype) if do is None else do, "out": out, "lse": lse}
    if d_lse is not None:
        beside["d_lse"] = d_lse
    names = tuple(name for name in _DERIVED if name in wanted)
    found = dict(zip(names, _run(call._replace(wanted=names), {**arrays, **beside})))
    return ({name: found.get(name) for name in arrays},)


_attend.defvjp(_forward, _backward, symbolic_zeros=True)


@functools.partial(jax.jit, static_argnums=0)
def _checked(call, arrays):
    """Traced once for each shape: then what does not fit is refused."""
    _compile(call, arrays)
    return _attend(call, arrays)


def _offsets(align, q, borders):
    """One for each sequence."""
    batch = len(borders) - 1 if borders is not None else q.shape[0] if q.ndim == 4 else 1
    offsets = jnp.asarray(align, jnp.int32)
    return jnp.broadcast_to(offsets, (batch,)) if offsets.ndim == 0 else offsets


def sdpa(q: Any, k: Any, v: Any, *, return_lse: bool = False, **options: Any) -> Any:
    """libattn.sdpa() of JAX's arrays, with the same options but for scores, key_blocks, state, out, lse and kv_format.

    Gradients: by q, k, v, bias, sinks, alibi and score_weight, of out and, with return_lse, of lse. seed and offset may be
    arrays of one integer, such as jax.random.bits(key). Raises what libattn.sdpa() raises where shapes tell it, else
    JaxRuntimeError with its sentence.
    """
    arrays, static = {"q": jnp.asarray(q), "k": jnp.asarray(k), "v": jnp.asarray(v)}, []
    for name, x in options.items():
        if name in _REFUSED:
            raise TypeError(f"libattn.jax.sdpa() takes no {name}")
        if x is None:
            continue
        if name == "align" and not isinstance(x, str):
            arrays["offsets"] = _offsets(x, arrays["q"], options.get("cu_seqlens_q"))
        elif name in _FLOATS:
            arrays[name] = jnp.asarray(x, jnp.float32)
        elif name in _INTEGERS:
            arrays[name] = jnp.asarray(x, jnp.int32)
        elif name in _BITS and hasattr(x, "shape"):
            x = jnp.asarray(x)
            arrays[name] = (x if x.dtype.itemsize >= 4 else x.astype(jnp.int32)).reshape(())
        elif hasattr(x, "shape") or name == "mask":
            arrays[name] = jnp.asarray(x)
        else:
            static.append((name, tuple(x) if isinstance(x, list) else x))
    out, lse = _checked(_Call(tuple(sorted(static)), uses_ffi and jax.default_backend() == "cpu"), arrays)
    return (out, lse) if return_lse else out


def dot_product_attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *,
                          scale: float | None = None, is_causal: bool = False, query_seq_lengths: Any = None,
                          key_value_seq_lengths: Any = None,
                          local_window_size: int | tuple[int, int] | None = None, implementation: str | None = None,
                          return_residual: bool = False) -> Any:
    """jax.nn.dot_product_attention: query [batch, queries, heads, dim], key and value [batch, keys, kv_heads, dim]; batch
    may be missing. bias and mask broadcast to [batch, heads, queries, keys]. A row that sees no key gives 0.
    return_residual: (out, logsumexp [batch, queries, heads] in the dtype of key, without gradients). implementation: None or
    "libattn"."""
    if implementation not in (None, "libattn"):
        raise ValueError(f"implementation is {implementation!r}; it must be None or 'libattn'")
    found = sdpa(query, key, value, layout="bshd", causal=is_causal, scale=scale, window=local_window_size, bias=bias,
                 mask=mask, kv_len=key_value_seq_lengths, q_len=query_seq_lengths,
                 return_lse=return_residual)
    if not return_residual:
        return found
    return found[0], jax.lax.stop_gradient(found[1].swapaxes(-1, -2).astype(jnp.asarray(key).dtype))
