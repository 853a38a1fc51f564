# SPDX-License-Identifier: MIT
"""torch.nn.functional.scaled_dot_product_attention and torch.nn.attention.flex_attention on the CPU.

https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
"""

import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ..verdicts import Refused
from . import only

warnings.filterwarnings("ignore", category=UserWarning)
NAME = "scaled_dot_product_attention"


def version():
    return torch.__version__.split("+")[0]


def tensor(x, dtype="float32"):
    return torch.from_numpy(x).to(getattr(torch, dtype))


def array(x):
    return x.detach().to(torch.float32 if x.dtype.itemsize < 4 else x.dtype).numpy()


def with_gradients(attend, q, k, v, do, dtype):
    """o as an array, or the gradients of sum(do o)."""
    inputs = [tensor(x, dtype).requires_grad_(do is not None) for x in (q, k, v)]
    o = attend(*inputs)
    return array(o) if do is None else tuple(map(array, torch.autograd.grad(o, inputs, tensor(do, dtype))))


def sdpa(q, k, v, *, dtype="float32", mask=None, bias=None, causal=False, align="top_left", scale=None, do=None, **others):
    only(others, NAME)
    options = {"scale": scale, "is_causal": causal, "enable_gqa": q.shape[1] != k.shape[1]}
    if mask is not None and bias is not None:
        raise Refused(f"{NAME} has one attn_mask: a boolean one or a bias")
    if mask is not None or bias is not None:
        options["attn_mask"] = tensor(mask, "bool") if mask is not None else tensor(bias, dtype)
    if not isinstance(align, str):
        raise Refused(f"{NAME} has no position of query 0")
    if causal and align == "bottom_right":
        options.update(is_causal=False, attn_mask=causal_lower_right(q.shape[2], k.shape[2]))
    return with_gradients(lambda *inputs: torch.nn.functional.scaled_dot_product_attention(*inputs, **options),
                          q, k, v, do, dtype)


def math(*arguments, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(*arguments, **options)


def flex(q, k, v, *, dtype="float32", mask=None, bias=None, causal=False, align="top_left", window=None, scale=None,
softcap=0,
         alibi=None, kv_len=None, q_len=None, row_len=None, return_lse=False, do=None, **others):
    """Masks as mask_mod, what is added to scores as score_mod. It runs without torch.compile, as PyTorch's own formula."""
    only(others, "flex_attention")
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    kv_len, q_len, row_len, align, alibi = (None if x is None or isinstance(x, str) else torch.as_tensor(x) for x in (
        kv_len, q_len, row_len, {"top_left": 0}.get(align, align) if isinstance(align, str) else align, alibi))
    if align is None:  # bottom-right
        align = (keys if kv_len is None else kv_len) - (queries if q_len is None else q_len)
    align = torch.as_tensor(align).expand(batch)
    mask, bias = (None if x is None else torch.from_numpy(x).expand(batch, heads, queries, keys) for x in (mask, bias))
    left, right = window or (None, None)
    right = 0 if causal else right

    def allowed(b, h, i, j):
        seen = (j >= 0) if kv_len is None else j < kv_len[b]
        position = i + align[b]
        for condition in (left is not None and j >= position - left, right is not None and j <= position + right,
                          q_len is not None and i < q_len[b], row_len is not None and j < row_len[b, i],
                          mask is not None and mask[b, h, i, j], bias is not None and bias[b, h, i, j] != -torch.inf):
            if condition is not False:
                seen = seen & condition
        return seen

    def score(s, b, h, i, j):
        if softcap:
            s = softcap * torch.tanh(s / softcap)
        if bias is not None:
            s = s + bias[b, h, i, j]
        return s if alibi is None else s - alibi[h] * (i + align[b] - j).abs()

    block_mask = create_block_mask(allowed, batch, heads, queries, keys, device="cpu")
    options = {"score_mod": score, "block_mask": block_mask, "scale": scale, "enable_gqa": heads != k.shape[1]}
    if return_lse:
        o, logarithm = flex_attention(*(tensor(x, dtype) for x in (q, k, v)), return_lse=True, **options)
        return array(o), array(logarithm)
    return with_gradients(lambda *inputs: flex_attention(*inputs, **options), q, k, v, do, dtype)
