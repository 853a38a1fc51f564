# SPDX-License-Identifier: MIT
"""libattn for JAX on CPUs.

    import libattn.jax
    out = libattn.jax.sdpa(q, k, v, causal=True)                        # under jit, grad, vmap
    out = libattn.jax.dot_product_attention(q, k, v, is_causal=True)    # the signature of jax.nn's

XLA calls libattn back (jax.pure_callback); arrays are read where they lie, results are copied once. Gradients are libattn's
(libattn.sdpa_grad), without scores in memory. vmap calls one by one. There are no forward-mode derivatives, and no gradients
of gradients.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from . import _native
from ._plan import Plan
from ._sdpa import FUNCTIONS, sdpa_grad

__all__ = ["dot_product_attention", "sdpa"]

_DERIVED = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "sinks": "dsinks", "alibi": "dalibi_slopes",
            "score_weight": "dscore_weight"}
_REFUSED = ("scores", "key_blocks", "state", "out", "lse", "kv_format")  # arrays that are written, and odd shapes
_FLOATS = ("bias", "sinks", "alibi", "score_weight")
_INTEGERS = ("kv_len", "q_len", "row_len", "cu_seqlens_q", "cu_seqlens_k", "page_table", "offsets")


def _shapes(static, arrays):
    """Those of out and lse."""
    q, options = arrays["q"], dict(static)
    rows, packed = q.shape[:-1], "cu_seqlens_q" in arrays
    by_token = options.get("layout", "thd" if packed else "bhsd") in ("bshd", "thd") and len(rows) > 1
    dtype = jnp.float32 if options.get("out_dtype") == "float32" else q.dtype
    return (jax.ShapeDtypeStruct((*rows, arrays["v"].shape[-1]), dtype),
            jax.ShapeDtypeStruct((*rows[:-2], rows[-1], rows[-2]) if by_token else rows, jnp.float32))


def _call(static, arrays):
    def compute(arrays):
        return FUNCTIONS["sdpa"](**arrays, **dict(static), return_lse=True)

    return _call_back(compute, _shapes(static, arrays), arrays)


def _call_back(function, shapes, *arrays):
    """function(*arrays) by NumPy. It refuses to be differentiated: that is what _attend is for."""
    guarded = jax.custom_jvp(functools.partial(jax.pure_callback, function, shapes, vmap_method="sequential"))

    @guarded.defjvp
    def refuse(primals, tangents):
        raise NotImplementedError("libattn has no gradients of gradients in JAX, and no forward-mode derivatives")

    return guarded(*arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static, arrays):
    return _call(static, arrays)


def _forward(static, arrays):
    """Keeps the arrays, and the names of those by which backward differentiates: a dictionary without leaves."""
    wanted = [name for name, x in arrays.items() if x.perturbed]
    for name in wanted:
        if name not in _DERIVED:
            raise NotImplementedError(f"libattn has no gradient by {name}: jax.lax.stop_gradient({name}) says that none is "
                                      "wanted")
    arrays = {name: x.value for name, x in arrays.items()}
    results = _call(static, arrays)
    return results, (arrays, *results, dict.fromkeys(wanted))


def _backward(static, kept, gradients):
    arrays, out, lse, wanted = kept
    do, d_lse = (x if not isinstance(x, SymbolicZero) else None for x in gradients)
    do = jnp.zeros(out.shape, out.dtype) if do is None else do
    options = {name: x for name, x in static if name != "kernel"}
    asked = {gradient: name in wanted for name, gradient in _DERIVED.items()}

    def differentiate(do, d_lse, out, lse, arrays):
        arrays = dict(arrays)
        found = sdpa_grad(do, *(arrays.pop(name) for name in "qkv"), out, lse, d_lse=d_lse, **asked, **arrays, **options)
        return {name: getattr(found, _DERIVED[name]) for name in wanted}

    shapes = {name: jax.ShapeDtypeStruct(arrays[name].shape, arrays[name].dtype) for name in wanted}
    found = _call_back(differentiate, shapes, do, d_lse, out, lse, arrays)
    return ({name: found.get(name) for name in arrays},)


_attend.defvjp(_forward, _backward, symbolic_zeros=True)


def _spec(x):
    return _native.Spec(x.shape, str(x.dtype))


@functools.partial(jax.jit, static_argnums=0)
def _checked(static, arrays):
    """Traced once for each shape: a plan says then what does not fit."""
    Plan(**{name: _spec(x) for name, x in arrays.items() if name not in ("seed", "offset")}, **dict(static))
    return _attend(static, arrays)


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
        if name in _FLOATS:
            arrays[name] = jnp.asarray(x, jnp.float32)
        elif name in _INTEGERS:
            arrays[name] = jnp.asarray(x, jnp.int32)
        elif hasattr(x, "shape") or name == "mask":
            arrays[name] = jnp.asarray(x)
        else:
            static.append((name, tuple(x) if isinstance(x, list) else x))
    out, lse = _checked(tuple(sorted(static)), arrays)
    return (out, lse) if return_lse else out


def dot_product_attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *,
                          scale: float | None = None, is_causal: bool = False, query_seq_lengths: Any = None,
                          key_value_seq_lengths: Any = None,
                          local_window_size: int | tuple[int, int] | None = None) -> Any:
    """jax.nn.dot_product_attention: query [batch, queries, heads, dim], key and value [batch, keys, kv_heads, dim]; batch
    may be missing. bias and mask broadcast to [batch, heads, queries, keys]. A row that sees no key gives 0."""
    return sdpa(query, key, value, layout="bshd", causal=is_causal, scale=scale, window=local_window_size, bias=bias,
                mask=mask, kv_len=key_value_seq_lengths, q_len=query_seq_lengths)
