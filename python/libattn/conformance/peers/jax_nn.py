# SPDX-License-Identifier: MIT
"""jax.nn.dot_product_attention on the CPU: https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html"""

import jax
import jax.numpy as jnp
import numpy as np

from ..verdicts import Refused
from . import only

NAME = "dot_product_attention"
jax.config.update("jax_default_matmul_precision", "highest")


def version():
    return jax.__version__


def tokens_first(x, dtype="float32"):
    """[batch, heads, tokens, dim] as JAX has it: [batch, tokens, heads, dim]."""
    return jnp.asarray(x).astype(dtype).transpose(0, 2, 1, 3)


def heads_first(x):
    return np.asarray(x.astype("float32").transpose(0, 2, 1, 3))


def sdpa(q, k, v, *, dtype="float32", mask=None, bias=None, causal=False, align="top_left", window=None, scale=None,
         kv_len=None, q_len=None, do=None, return_lse=False, **others):
    only(others, NAME)
    if not isinstance(align, str) or align != "top_left" and q.shape[2] != k.shape[2]:
        raise Refused(f"{NAME} aligns its causal mask and window top-left alone")
    if window and None in window:
        raise Refused(f"{NAME} has no window that is open on one side")
    if k.shape[3] != v.shape[3]:
        raise Refused(f"{NAME} takes values as wide as keys")
    options = {"mask": mask if mask is None else four(mask), "bias": bias if bias is None else four(bias).astype(dtype),
               "is_causal": causal, "local_window_size": window, "scale": scale, "key_value_seq_lengths": kv_len,
               "query_seq_lengths": q_len}

    def attend(*inputs):
        return jax.nn.dot_product_attention(*inputs, **options)

    inputs = [tokens_first(x, dtype) for x in (q, k, v)]
    if return_lse:
        o, logarithm = jax.nn.dot_product_attention(*inputs, **options, return_residual=True)
        return heads_first(o), np.asarray(logarithm).transpose(0, 2, 1)
    if do is None:
        return heads_first(attend(*inputs))
    _, backward = jax.vjp(attend, *inputs)
    return tuple(map(heads_first, backward(tokens_first(do, dtype))))


def four(x):
    return x.reshape((1,) * (4 - x.ndim) + x.shape)
