# SPDX-License-Identifier: MIT
"""libattn for PyTorch on CPUs.

    import libattn.torch
    out = libattn.torch.sdpa(q, k, v, is_causal=True)       # the signature of F.scaled_dot_product_attention
    with libattn.torch.replace_sdpa():                      # whatever calls F.scaled_dot_product_attention
        model(x)

Gradients are libattn's own (libattn.sdpa_grad), without scores in memory. Those of gradients, forward-mode derivatives, and
gradients of calls with lists of key blocks, scales, shared_prefix, window_first or keys of 8 bits, come from PyTorch's
operations in float32. These compute the scores again, in time and memory proportional to queries times keys. stats() counts
them, and calls that are passed on to PyTorch's function. Dropout drops other weights than PyTorch's function does, by a seed
from PyTorch's generator.

torch.ops.libattn.sdpa, sdpa_lse and sdpa_grad are operators of PyTorch's: they work under torch.compile and torch.export,
and follow autocast. torch.func differentiates them by PyTorch's operations; grad, vjp and jacrev of sdpa() are libattn's.
vmap is refused, and jvp of the function that vjp returned.
sdpa_state goes on from libattn.new_state(), in place, over a piece of the keys; it has no gradients.

flash_attn_func, flash_attn_varlen_func, their packed kinds and flash_attn_with_kvcache have the arguments of the package
flash-attn, flex_attention those of PyTorch's FlexAttention (torch_flex.py).
"""

from __future__ import annotations

import contextlib
import math
import threading
import warnings
from typing import Any, Iterator

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from ._blocks import VALUES
from ._key_blocks import KeyBlocks
from ._plan import dropout_mask
from ._sdpa import FUNCTIONS

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
           "flex_attention", "install", "replace_sdpa", "sdpa", "stats"]

Tensor = torch.Tensor
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_compute, _differentiate = FUNCTIONS["sdpa_without_gradients"], FUNCTIONS["sdpa_grad_of_tensors"]
_functorch = getattr(torch._C, "_functorch", None)
_is_wrapped = getattr(_functorch, "is_functorch_wrapped_tensor", lambda _: False)
_interpreters = getattr(_functorch, "peek_interpreter_stack", lambda: 1)
_stack = getattr(_functorch, "get_interpreter_stack", lambda: ())

# ---- The operators ---------------------------------------------------------------------------------------------------

_ARGUMENTS = ("(Tensor q, Tensor k, Tensor v, Tensor? mask=None, Tensor? bias=None, bool causal=False, "
              "str align='top_left', int window_left=-1, int window_right=-1, float? scale=None, float softcap=0., "
              "Tensor? alibi=None, Tensor? sinks=None, Tensor? kv_len=None, Tensor? cu_seqlens_q=None, "
              "Tensor? cu_seqlens_k=None, int max_seqlen_q=0, int max_seqlen_k=0, str layout='bhsd', "
              "Tensor? page_table=None, Tensor? offsets=None, int window_first=0, int key_begin=0, int key_end=0, "
              "int shared_prefix=0, Tensor? k_scale=None, Tensor? v_scale=None, str kv_format='', "
              "Tensor? kv_num_blocks=None, Tensor? kv_indices=None, Tensor? full_kv_num_blocks=None, "
              "Tensor? full_kv_indices=None, int block_queries=128, int block_keys=128, int mask_keys=0, "
              "float dropout=0., Tensor? seed=None, int offset=0)")


def _have_tangents(*tensors):
    """Whether forward-mode derivatives are wanted, which kernels would lose without a word, or gradients of gradients by
    torch.func."""
    if forward_ad._current_level < 0 and _interpreters() is None:
        return False
    tensors = [x for x in tensors if isinstance(x, Tensor)]
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        return True
    kinds = {each.level(): each.key().name for each in _stack() or ()}
    levels = set().union(*map(_levels, tensors))
    return (sum(kinds.get(level) == "Grad" for level in levels) > 1
            or any(kinds.get(level) == "Jvp" for level in levels - {max(kinds, default=0)}))


def _levels(x):
    """The transforms of torch.func that a tensor belongs to. PyTorch gives that of the latest one to all of a call."""
    found = set()
    while _is_wrapped(x):
        found.add(_functorch.maybe_get_level(x))
        x = _functorch.get_unwrapped(x)
    return found


def _are_transformed(*tensors):
    """Whether torch.func differentiates a call of an operator, where PyTorch takes no autograd.Function."""
    return _have_tangents(*tensors) or torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad and _is_wrapped(x) for x in tensors)


def _refuse_derivatives(*tensors, **options):
    raise NotImplementedError("libattn::sdpa_state has no derivatives, and sdpa_grad none by torch.func (grad, vjp, jvp); "
                              "sdpa and sdpa_lse have them")


_library = torch.library.Library("libattn", "DEF")
_library.define("sdpa" + _ARGUMENTS + " -> Tensor", tags=torch.Tag.pt2_compliant_tag)
_library.define("sdpa_lse" + _ARGUMENTS + " -> (Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)
_library.define("sdpa_state" + _ARGUMENTS.replace("Tensor v,", "Tensor v, Tensor(a!) state,") + " -> Tensor",
                tags=torch.Tag.pt2_compliant_tag)
_library.define("dropout_mask(Tensor seed, int offset, float dropout, SymInt[] shape) -> Tensor",
                tags=torch.Tag.pt2_compliant_tag)
_library.define("sdpa_grad(Tensor do, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? d_lse, "
                "bool[6] wanted, " + _ARGUMENTS.partition("Tensor v, ")[2] + " -> Tensor[]",
                tags=torch.Tag.pt2_compliant_tag)


def _keywords(mask=None, bias=None, causal=False, align="top_left", window_left=-1, window_right=-1, scale=None,
              softcap=0.0, alibi=None, sinks=None, kv_len=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=0,
              max_seqlen_k=0, layout="bhsd", page_table=None, offsets=None, window_first=0, key_begin=0, key_end=0,
              shared_prefix=0, k_scale=None, v_scale=None, kv_format="", kv_num_blocks=None, kv_indices=None,
              full_kv_num_blocks=None, full_kv_indices=None, block_queries=128, block_keys=128, mask_keys=0, dropout=0.0,
              seed=None, offset=0):
    """The operators' options as libattn.sdpa() has them."""
    lists = kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices
    blocks = None if all(x is None for x in lists) else KeyBlocks(*lists, (block_queries, block_keys))
    return {"mask": mask, "bias": bias, "causal": causal, "align": align, "window": (window_left, window_right),
            "scale": scale, "softcap": softcap, "alibi": alibi, "sinks": sinks, "kv_len": kv_len,
            "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "max_seqlen_q": max_seqlen_q or None,
            "max_seqlen_k": max_seqlen_k or None, "layout": layout, "page_table": page_table, "offsets": offsets,
            "window_first": window_first, "keys": (key_begin, key_end or None), "shared_prefix": shared_prefix,
            "k_scale": k_scale, "v_scale": v_scale, "kv_format": kv_format or None, "key_blocks": blocks,
            "mask_keys": mask_keys or None, "dropout": dropout, "seed": seed, "offset": offset}


def _run(q, k, v, *args, lse=False, state=None, **options):
    return _compute(q, k, v, **_keywords(*args, **options), return_lse=lse, state=state)


def _run_lse(*args, **options):
    return _run(*args, **options, lse=True)


def _run_state(q, k, v, state, *args, **options):
    return _run(q, k, v, *args, **options, state=state)


def _run_mask(seed, offset, dropout, shape):
    return dropout_mask(shape, dropout, int(seed), offset, out=torch.empty(shape, dtype=torch.bool))


def _run_grad(do, q, k, v, out, lse, d_lse, wanted, *args, **options):
    found = _differentiate(do, q, k, v, out, lse, d_lse=d_lse, **dict(zip(_GRADIENTS, wanted)),
                           **_keywords(*args, **options))
    return [x for x in found if x is not None]


def _fake_grad(do, q, k, v, out, lse, d_lse, wanted, *args, **options):
    given = dict(zip(_NAMES, args), **options)
    likes = q, k, v, given.get("bias"), *(x if x is None else x.flatten() for x in (given.get("sinks"), given.get("alibi")))
    return [like.new_empty(like.shape) for like, needed in zip(likes, wanted) if needed]


def _fake(q, k, v, *args, **options):
    dim = v.shape[-1]
    if dict(zip(_NAMES, args), **options).get("kv_format"):  # v's dim is q's where v has as many blocks as k
        dim = q.shape[-1] if v.shape[-2] == k.shape[-2] else VALUES * v.shape[-2]
    return q.new_empty((*q.shape[:-1], dim))


def _fake_state(q, k, v, state, *args, **options):
    return _fake(q, k, v, *args, **options)


def _shapes(q, v, layout):
    """Those of out and lse."""
    rows = q.shape[:-1]
    return (*rows, v.shape[-1]), (*rows[:-2], rows[-1], rows[-2]) if layout in ("bshd", "thd") and len(rows) > 1 else rows


def _fake_lse(q, k, v, *args, **options):
    values = dict(zip(_NAMES, args), **options)
    shape = _shapes(q, v, values.get("layout", "bhsd"))[1]
    return _fake(q, k, v, **values), q.new_empty(shape, dtype=torch.float32)


_GRADIENTS = ("dq", "dk", "dv", "dbias", "dsinks", "dalibi_slopes")
_NAMES = ("mask", "bias", "causal", "align", "window_left", "window_right", "scale", "softcap", "alibi", "sinks", "kv_len",
          "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "layout", "page_table", "offsets", "window_first",
          "key_begin", "key_end", "shared_prefix", "k_scale", "v_scale", "kv_format", "kv_num_blocks", "kv_indices",
          "full_kv_num_blocks", "full_kv_indices", "block_queries", "block_keys", "mask_keys", "dropout", "seed", "offset")
_USUAL = {**dict.fromkeys(_NAMES), "window_left": -1, "window_right": -1, "block_queries": 128, "block_keys": 128,
          **dict.fromkeys(("window_first", "key_begin", "key_end", "shared_prefix", "mask_keys", "dropout", "offset"), 0)}


# ---- The same in PyTorch's operations, for gradients -----------------------------------------------------------------


def _lengths(q, k, o):
    """Keys of each sequence, [b, 1, 1, 1]."""
    lengths = torch.full((q.shape[0],), k.shape[-2]) if o["kv_len"] is None else o["kv_len"]
    return lengths.view(-1, 1, 1, 1)


def _mask(q, k, o):
    """The mask of all keys, [b or 1, h or 1, q or 1, k or 1]; keys before those of a mask of the newest are allowed."""
    mask, newest = o["mask"], o["mask_keys"]
    if mask is None:
        return torch.tensor(True)
    if not newest:
        return mask
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    column = torch.arange(k.shape[-2]) - (_lengths(q, k, o) - newest)
    column = column.expand(q.shape[0], *mask.shape[1:3], -1)
    chosen = mask.expand(q.shape[0], -1, -1, newest).gather(-1, column.clamp(0, newest - 1))
    return chosen | (column < 0)


def _allowed(q, k, o):
    """(keys that lengths, window and causality leave, distance from the query), [b or 1, 1, q, k], of [b, h, s, d]."""
    queries, keys = q.shape[-2], k.shape[-2]
    lengths = _lengths(q, k, o)
    j, i = torch.arange(keys), torch.arange(queries)[:, None]
    position = i + (lengths - queries if o["align"] == "bottom_right" else 0)
    if o["offsets"] is not None:
        position = i + o["offsets"].view(-1, 1, 1, 1)
    allowed = j < lengths
    right = 0 if o["causal"] else o["window_right"]
    if o["window_left"] >= 0:
        allowed = allowed & ((j >= position - o["window_left"]) | (j < o["window_first"]))
    if right >= 0:
        allowed = allowed & (j <= position + right)
    if o["key_begin"] or o["key_end"]:
        allowed = allowed & (j >= o["key_begin"]) & (j < (o["key_end"] or keys))
    return allowed, (position - j).abs()


def _named(q, k, o, kind):
    """Whether the list of the query's block names the key's block, [b or 1, h or 1, q, k]; False without such lists."""
    counts, entries = o[kind + "kv_num_blocks"], o[kind + "kv_indices"]
    if counts is None:
        return torch.tensor(False)
    blocks = -(-k.shape[-2] // o["block_keys"])
    shape = torch.broadcast_shapes(counts.shape, entries.shape[:-1])
    behind = torch.arange(entries.shape[-1]) >= counts[..., None]
    entries = entries.masked_fill(behind, blocks).long().expand(*shape, -1)
    named = torch.zeros(*shape, blocks + 1, dtype=torch.bool).scatter(-1, entries, True)[..., :-1]
    named = named.repeat_interleave(o["block_queries"], -2)[..., :q.shape[-2], :]
    named = named.repeat_interleave(o["block_keys"], -1)[..., :k.shape[-2]]
    return named if shape[1] == 1 else named.repeat_interleave(q.shape[1] // shape[1], 1)


def _scores(q, k, o):
    """Scores of [b, h, s, d] in float32, with -inf where a key is masked."""
    s = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if o["scale"] is None else o["scale"])
    if o["softcap"]:
        s = o["softcap"] * torch.tanh(s / o["softcap"])
    allowed, distance = _allowed(q, k, o)
    mask = _mask(q, k, o)
    if o["kv_num_blocks"] is not None:
        mask = _named(q, k, o, "full_") | (_named(q, k, o, "") & mask)
    allowed = allowed & mask
    if o["bias"] is not None:
        s = s + o["bias"]
    if o["alibi"] is not None:
        s = s - o["alibi"].view(-1, 1, 1) * distance
    return s.masked_fill(~allowed, -torch.inf)


def _reference(q, k, v, o, with_lse=False):
    """(out, weights [b, h, q, k]), or (out, lse): what the operator computes, of [b, h, s, d], differentiable."""
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    k, v = (x.float() if scale is None else x.float() * (scale if scale.ndim == 4 else scale[..., None])
            for x, scale in ((k, o["k_scale"]), (v, o["v_scale"])))
    q, k, v = q.float(), k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = _scores(q, k, o)
    empty = torch.isneginf(s).all(-1, keepdim=True)
    lse = s.masked_fill(empty, 0).logsumexp(-1).masked_fill(empty.squeeze(-1), -torch.inf) if with_lse else None
    if o["sinks"] is not None:
        s = torch.cat([s, o["sinks"].view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    p = torch.softmax(s.masked_fill(empty, 0), -1)[..., :k.shape[-2]].masked_fill(empty, 0)
    if o["dropout"]:
        kept = torch.ops.libattn.dropout_mask(o["seed"], o["offset"], o["dropout"], p.shape)
        p = p * kept / (1 - min(math.floor(o["dropout"] * 65536 + 0.5), 65535) / 65536)
    return (p @ v).to(dtype), lse if with_lse else p.to(dtype)


def _to_bhsd(x, layout):
    x = x.transpose(-2, -3) if layout == "bshd" else x
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def _check_reference(o):
    """Calls whose gradients neither libattn nor PyTorch's operations compute."""
    for name, what in (("cu_seqlens_q", "packed sequences twice, or with this option"),
                       ("page_table", "keys and values in pages"), ("kv_format", "keys and values in blocks")):
        if o[name] is not None and o[name] != "":
            raise NotImplementedError(f"libattn has no gradients of {what} ({name})")


def _by_reference(do, d_lse, inputs, o, again):
    """Gradients of `inputs`, some of q, k, v and the tensors of o, by PyTorch's operations. again: they have gradients."""
    _count("scores")
    out, lse = _reference(*(_to_bhsd(o[name], o["layout"]) for name in "qkv"), o, with_lse=True)
    pairs = [(out, do if do is None else _to_bhsd(do, o["layout"]).expand_as(out)),
             (lse, d_lse if d_lse is None else d_lse.reshape(lse.shape))]
    outs, gradients = zip(*((result, gradient) for result, gradient in pairs if gradient is not None))
    return torch.autograd.grad(outs, inputs, gradients, allow_unused=True, create_graph=again)


def _by_operations(q, k, v, *args, **options):
    """(out, lse) by PyTorch's operations, which have all derivatives."""
    _count("scores")
    o = {**_USUAL, **dict(zip(_NAMES, args)), **options, "q": q, "k": k, "v": v}
    _check_reference(o)
    out, lse = _reference(*(_to_bhsd(o[name], o["layout"]) for name in "qkv"), o, with_lse=True)
    shapes = _shapes(q, v, o["layout"])
    return (out.transpose(1, 2) if o["layout"] == "bshd" else out).reshape(shapes[0]), lse.reshape(shapes[1])


def _leaves(o, names, again):
    """o, in which the named tensors begin a graph of their own; again: or one that goes on behind them."""
    return {**o, **{name: o[name].view_as(o[name]) if again and o[name].requires_grad else o[name].detach().requires_grad_()
                    for name in names}}


# ---- Gradients -------------------------------------------------------------------------------------------------------

_NATIVE = ("q", "k", "v", "bias", "sinks", "alibi")  # libattn differentiates by these


def _has_gradients(o):
    lacking = ("page_table", "kv_num_blocks", "full_kv_num_blocks", "k_scale", "v_scale")
    return (o["k"].dtype in DTYPES and not any(o[name] for name in ("kv_format", "shared_prefix", "window_first"))
            and all(o[name] is None for name in lacking))


def _join(names, options, tensors):
    """All options and tensors by their names."""
    return {**_USUAL, **options, **dict(zip(names, tensors))}


def _below_autograd(name, function, tensors, options):
    """The operator `name` of tensors and options, without gradients: by `function`, where nothing else wants to see it."""
    if _plain(*(x for x in (*tensors, *options.values()) if isinstance(x, Tensor))):
        return function(*tensors, **options)
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(torch.ops.libattn, name)(*tensors, **options)


def _one_by_one(function, info, in_dims, arguments):
    """vmap by a loop, for jacrev."""
    parts = [function.apply(*(x.select(dim, i) if isinstance(dim, int) else x for x, dim in zip(arguments, in_dims)))
             for i in range(info.batch_size)]
    return tuple(map(torch.stack, zip(*parts))), (0,) * len(parts[0])


class _Attention(torch.autograd.Function):
    """(out, lse) of q, k, v and further tensors, whose names come first, beside the options that are none."""

    @staticmethod
    def forward(names, options, q, k, v, *others):
        return _below_autograd("sdpa_lse", _run_lse, (q, k, v), {**options, **dict(zip(names, others))})

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.names, ctx.options = ("q", "k", "v", *inputs[0]), inputs[1]
        ctx.save_for_backward(*inputs[2:], *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return _one_by_one(_Attention, info, in_dims, arguments)

    @staticmethod
    def backward(ctx, do, d_lse):
        *tensors, out, lse = ctx.saved_tensors
        needed = [name for name, needs in zip(ctx.names, ctx.needs_input_grad[2:]) if needs]
        found = dict.fromkeys(ctx.names)
        if needed and (do is not None or d_lse is not None):
            found.update(_gradients(do, d_lse, out, lse, _join(ctx.names, ctx.options, tensors), needed))
        return None, None, *found.values()


def _gradients(do, d_lse, out, lse, o, needed):
    """{name: gradient} of the named ones."""
    if _have_tangents(do, d_lse):
        raise NotImplementedError("libattn has no forward-mode derivatives (jvp) of the function that vjp() returned; those "
                                  "of torch.func.grad() it has")
    by_libattn = [name for name in needed if name in _NATIVE] if _has_gradients(o) else []
    rest, again, found = [name for name in needed if name not in by_libattn], torch.is_grad_enabled(), {}
    if by_libattn:
        do = torch.zeros_like(out) if do is None else do
        results = _Gradient.apply(*_sorted(o), tuple(name in by_libattn for name in _NATIVE), do, d_lse, out.detach(),
                                  lse.detach(), *_tensors(o))
        found = {name: x.view_as(o[name]) for name, x in zip((n for n in _NATIVE if n in by_libattn), results)}
    if rest:
        _check_reference(o)
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            o = _leaves(o, rest, again)
            found.update(zip(rest, _by_reference(do, d_lse, [o[name] for name in rest], o, again)))
    return found


def _tensors(o):
    return [x for x in o.values() if isinstance(x, Tensor)]


def _sorted(o):
    """(names of tensors, options that are none)"""
    names = tuple(name for name, x in o.items() if isinstance(x, Tensor))
    return names, {name: x for name, x in o.items() if name not in names and x is not None}


class _Gradient(torch.autograd.Function):
    """The wanted gradients of those in _NATIVE. Their own come from PyTorch's operations: out and lse are taken as what the
    other tensors give, so that they have none."""

    @staticmethod
    def forward(names, options, wanted, do, d_lse, out, lse, *tensors):
        o = {**options, **dict(zip(names, tensors))}
        given = (do, *(o.pop(name) for name in "qkv"), out, lse, d_lse, wanted)
        return tuple(_below_autograd("sdpa_grad", _run_grad, given, o))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.names, ctx.options, ctx.wanted = inputs[:3]
        ctx.save_for_backward(*inputs[3:5], *inputs[7:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return _one_by_one(_Gradient, info, in_dims, arguments)

    @staticmethod
    def backward(ctx, *gradients):
        names, again = ("do", "d_lse", *ctx.names), torch.is_grad_enabled()
        o = _join(names, ctx.options, ctx.saved_tensors)
        _check_reference(o)
        needed = [name for name, needs in zip(names, (*ctx.needs_input_grad[3:5], *ctx.needs_input_grad[7:])) if needs]
        wanted = [name for name, x in zip(_NATIVE, ctx.wanted) if x]
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            o = _leaves(o, {*needed, *wanted}, again)
            first = _by_reference(o["do"], o["d_lse"], [o[name] for name in wanted], o, True)
            pairs = [(x, gradient) for x, gradient in zip(first, gradients) if gradient is not None and x is not None]
            firsts, gradients = zip(*((x, gradient.view_as(x)) for x, gradient in pairs))
            second = torch.autograd.grad(firsts, [o[name] for name in needed], gradients, allow_unused=True,
                                         create_graph=again)
        found = {**dict.fromkeys(names), **dict(zip(needed, second))}
        return None, None, None, found.pop("do"), found.pop("d_lse"), None, None, *found.values()


# ---- Registration ----------------------------------------------------------------------------------------------------


def _cast(*tensors):
    dtype = torch.get_autocast_dtype("cpu")
    return [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors]


def _autocast(name):
    def cast(q, k, v, *args, **options):
        with torch.autocast("cpu", enabled=False):
            return getattr(torch.ops.libattn, name)(*_cast(q, k, v), *args, **options)

    return cast


def _no_vmap(info, in_dims, *args, **options):
    raise NotImplementedError("libattn::sdpa cannot be mapped by vmap: put the mapped dimension into batch or heads")


def _autograd(operator, function, transformed):
    """The kernel that comes before all others: only there are the tangents and wrappers of torch.func to be seen."""
    def differentiable(keyset, *args, **options):
        tensors = *args, *options.values()
        if _are_transformed(*tensors):
            return transformed(*args, **options)
        if _need_gradients(*(x for x in tensors if isinstance(x, Tensor))):
            return function(*args, **options)
        return operator.redispatch(keyset & torch._C._after_autograd_keyset, *args, **options)

    return differentiable


def _sdpa_lse(q, k, v, *args, **options):
    options = _given(**dict(zip(_NAMES, args), **options))
    names, others = _sorted(options)
    return _Attention.apply(names, others, q, k, v, *_tensors(options))


def _sdpa(*args, **options):
    return _sdpa_lse(*args, **options)[0]


def _out_by_operations(*args, **options):
    return _by_operations(*args, **options)[0]


def _sdpa_grad(do, q, k, v, out, lse, d_lse, wanted, *args, **options):
    o = {"q": q, "k": k, "v": v, **_given(**dict(zip(_NAMES, args), **options))}
    return list(_Gradient.apply(*_sorted(o), tuple(wanted), do, d_lse, out, lse, *_tensors(o)))


def _register():
    for name, run, fake, *differentiable in (("sdpa", _run, _fake, _sdpa, _out_by_operations),
                                             ("sdpa_lse", _run_lse, _fake_lse, _sdpa_lse, _by_operations),
                                             ("sdpa_grad", _run_grad, _fake_grad, _sdpa_grad, _refuse_derivatives),
                                             ("sdpa_state", _run_state, _fake_state, *2 * [_refuse_derivatives])):
        _library.impl(name, run, "CPU")
        first = _autograd(getattr(torch.ops.libattn, name).default, *differentiable)
        _library.impl(name, first, "Autograd", with_keyset=True)
        torch.library.register_fake(f"libattn::{name}", fake, lib=_library)
        torch.library.register_vmap(f"libattn::{name}", _no_vmap, lib=_library)
    for name in ("sdpa", "sdpa_lse"):
        _library.impl(name, _autocast(name), "AutocastCPU")
    _library.impl("dropout_mask", _run_mask, "CPU")
    torch.library.register_fake("libattn::dropout_mask", lambda seed, offset, dropout, shape: seed.new_empty(
        shape, dtype=torch.bool), lib=_library)


_register()

from . import torch_kv  # noqa: E402, F401  the operators kv_append and rope
from .torch_flex import flex_attention  # noqa: E402


# ---- What libattn does not compute -----------------------------------------------------------------------------------

_original = F.scaled_dot_product_attention
_BY_PYTORCH = "PyTorch's own function computes such calls"
_KINDS = {"scores": "libattn has no gradients of gradients, no forward-mode derivatives, and none with lists of key blocks, "
                    "scales and keys of 8 bits: these come from PyTorch's operations, which hold all scores in memory",
          "weights": "libattn gives no weights: PyTorch's operations compute calls that want them (output_attentions)",
          "dropout": f"libattn drops with probabilities below 1: {_BY_PYTORCH}",
          "dtypes": f"libattn takes float32, float16 and bfloat16, one for query, key and value: {_BY_PYTORCH}",
          "devices": f"libattn computes on the CPU: {_BY_PYTORCH}",
          "tensors": f"libattn takes no nested or sparse tensors, subclasses or transforms of torch.func: {_BY_PYTORCH}",
          "shapes": f"libattn replaces calls whose query, key and value have one batch: {_BY_PYTORCH}",
          "masks": f"libattn takes attn_mask or is_causal, not both: {_BY_PYTORCH}"}
_counts: dict[str, int] = {}
_warned: set[str] = set()
_lock = threading.Lock()


def stats(reset: bool = False) -> dict[str, int]:
    """How many calls something else than libattn computed, by kind; kinds without calls are left out.

    "dropout" (of 1), "dtypes", "devices", "tensors" (nested, sparse, subclasses, torch.func), "shapes" (batches that
    broadcast) and "masks" (attn_mask with is_causal) went to PyTorch's own function; "scores" (derivatives that libattn
    lacks) and "weights" (output_attentions of transformers) to its operations, which hold scores.
    The first call of each kind in a process warns. reset: counts begin anew after this. Compiled graphs are not counted.
    """
    with _lock:
        found = dict(_counts)
        if reset:
            _counts.clear()
    return found


def _count(kind):
    if torch.compiler.is_compiling():
        return
    with _lock:
        _counts[kind] = _counts.get(kind, 0) + 1
        first = kind not in _warned
        _warned.add(kind)
    if first:
        warnings.warn(f"{_KINDS[kind]} (libattn.torch.stats() counts them; this is said once)", stacklevel=4)


def _need_gradients(*tensors):
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return True
    return False


# ---- Functions -------------------------------------------------------------------------------------------------------

_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_function_modes = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: torch.is_autocast_enabled("cpu"))


_USUAL_TYPES = (Tensor, torch.nn.Parameter)


def _is_eager():
    return not (torch.compiler.is_compiling() or _dispatch_modes() or _function_modes())


def _plain(*tensors):
    """Whether nothing but numbers is wanted of plain tensors: then the dispatcher can be left out, which takes as long as a
    small call."""
    if not _is_eager() or _interpreters() is not None or _any_autocast() or _have_tangents(*tensors):
        return False
    return all(type(x) in _USUAL_TYPES for x in tensors) and not _need_gradients(*tensors)


def _given(**options):
    return {name: x for name, x in options.items() if x is not None}


def _attend(q, k, v, lse=False, **options):
    """options: those that are not as usual. None is usual for each."""
    options = _given(**options)
    tensors = q, k, v, *_tensors(options)
    if _plain(*tensors):
        if "kv_num_blocks" in options:
            return _run(q, k, v, lse=lse, **options)
        left, right = options.pop("window_left", -1), options.pop("window_right", -1)
        if left >= 0 or right >= 0:
            options["window"] = (left, right)
        if lse:
            options["return_lse"] = True
        return _compute(q, k, v, **options)
    if not torch.compiler.is_compiling() and _have_tangents(*tensors):
        result = _by_operations(q, k, v, **options)
        return result if lse else result[0]
    if _is_eager() and _need_gradients(*tensors) and all(type(x) in _USUAL_TYPES for x in tensors):
        if torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return _attend(*_cast(q, k, v), lse=lse, **options)
        result = _sdpa_lse(q, k, v, **options)
        return result if lse else result[0]
    return (torch.ops.libattn.sdpa_lse if lse else torch.ops.libattn.sdpa)(q, k, v, **options)


def _split_mask(mask):
    """(mask, bias) of an attn_mask: boolean masks select, others are added in float32."""
    if mask is None:
        return None, None
    return (mask, None) if mask.dtype == torch.bool else (None, mask.float())


def sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
         is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by libattn: the same arguments, shapes and results.

    query [..., heads, queries, dim], key and value [..., heads, keys, dim] on the CPU in float32, float16 or bfloat16; what
    stands before the heads broadcasts, and so does one head of key and value. A row that sees no key gives 0. Has gradients.
    dropout_p, below 1, drops weights as libattn.sdpa() does: other ones than PyTorch's function does, by a seed from
    PyTorch's generator, so that torch.manual_seed() repeats them. Raises what libattn.sdpa() raises.
    """
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask is given and is_causal is true; only one of them may be")
    if not enable_gqa and query.ndim > 2 and key.shape[-3] not in (1, query.shape[-3]):
        raise ValueError(f"query has {query.shape[-3]} heads and key has {key.shape[-3]}; grouped queries need "
                         "enable_gqa=True")
    dropped = _draw_seed(dropout_p)
    if attn_mask is None and query.ndim <= 4 and _plain(query, key, value):
        try:
            return _compute(query, key, value, causal=is_causal, scale=scale, **dropped)
        except ValueError:
            if _one_batch(query, key, value):
                raise
    mask, bias = _split_mask(attn_mask)
    if query.ndim > 4 or not _one_batch(query, key, value):
        return _flattened(query, key, value, mask, bias, causal=is_causal, scale=scale, **dropped)
    return _attend(query, key, value, mask=mask, bias=bias, causal=is_causal, scale=scale, **dropped)


def _one_batch(query, key, value):
    return query.shape[:-3] == key.shape[:-3] == value.shape[:-3]


def _draw_seed(dropout):
    """Options of a call with this dropout; PyTorch's generator goes on."""
    if not dropout:
        return {}
    return {"dropout": dropout, "seed": torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu")}


def _flattened(query, key, value, mask, bias, **options):
    """All dimensions before the heads, broadcast, become the batch."""
    batch = torch.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))

    def flatten(x):
        return x.expand(*batch, *x.shape[-3:]).reshape(-1, *x.shape[-3:])

    mask, bias = (x if x is None or x.ndim <= 3 else flatten(x) for x in (mask, bias))
    out = _attend(*map(flatten, (query, key, value)), mask=mask, bias=bias, **options)
    return out.reshape(*batch, *out.shape[1:])


# ---- In place of PyTorch's -------------------------------------------------------------------------------------------


def _is_plain(*tensors):
    for x in tensors:
        if x.is_nested or x.layout is not torch.strided:
            return False
    if torch.compiler.is_compiling():
        return True
    return (_interpreters() is None and not torch.overrides.has_torch_function(tensors)
            and (forward_ad._current_level < 0 or all(forward_ad.unpack_dual(x).tangent is None for x in tensors)))


def _why_not(query, key, value, attn_mask, dropout_p, is_causal):
    """The kind of a call that goes to PyTorch's function; None if libattn computes it."""
    inputs = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if dropout_p >= 1:
        return "dropout"
    if not (query.is_cpu and key.is_cpu and value.is_cpu):
        return "devices"
    if query.dtype not in DTYPES or not query.dtype == key.dtype == value.dtype:
        return "dtypes"
    if not _is_plain(*inputs):
        return "tensors"
    if not query.ndim == key.ndim == value.ndim >= 2 or not _one_batch(query, key, value):
        return "shapes"
    if attn_mask is not None and is_causal:
        return "masks"
    return None


def _replacement(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """libattn where it can, else PyTorch's own function."""
    kind = _why_not(query, key, value, attn_mask, dropout_p, is_causal)
    if kind is None:
        return sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    _count(kind)
    return _original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def install() -> None:
    """Replaces F.scaled_dot_product_attention in this process. Calls that libattn does not take (other devices or dtypes)
    still go to PyTorch's own; stats() counts them. Modules that have imported the function by name keep
    what they have."""
    F.scaled_dot_product_attention = _replacement


@contextlib.contextmanager
def replace_sdpa() -> Iterator[None]:
    """install() for the length of a with block, in all threads."""
    before = F.scaled_dot_product_attention
    install()
    try:
        yield
    finally:
        F.scaled_dot_product_attention = before


# ---- FlashAttention's names ------------------------------------------------------------------------------------------


def _flash_options(dropout_p, softmax_scale, causal, window_size, softcap):
    """Causal masks and windows are aligned bottom-right, as flash-attn does from version 2.1 on."""
    left, right = map(int, window_size)
    return {**_draw_seed(dropout_p), "scale": softmax_scale, "causal": causal, "align": "bottom_right", "window_left": left,
            "window_right": right, "softcap": softcap}


def _attend_by_slopes(slopes, batch, attend):
    """attend(sequences, alibi): a slice of the batch and slopes [heads], which is what libattn takes. Sequences whose slopes
    [batch, heads] differ are computed one by one."""
    if slopes is None or slopes.ndim == 1:
        return attend(slice(0, batch), slopes)
    if slopes.shape[0] not in (1, batch):
        raise ValueError(f"alibi_slopes has batch {slopes.shape[0]}; q has {batch}")
    if (slopes == slopes[:1]).all():
        return attend(slice(0, batch), slopes[0])
    parts = [attend(slice(b, b + 1), slopes[b]) for b in range(batch)]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    out, lse = zip(*parts)
    return torch.cat(out), torch.cat(lse, 0 if lse[0].ndim == 3 else 1)


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False) -> Any:
    """flash_attn.flash_attn_func on the CPU: q [batch, queries, heads, dim], k and v [batch, keys, kv_heads, dim];
    alibi_slopes [heads] or [batch, heads]. With return_attn_probs (out, lse [batch, heads, queries], None): libattn holds no
    probabilities. Every result is deterministic."""
    options = _flash_options(dropout_p, softmax_scale, causal, window_size, softcap)

    def attend(rows, alibi):
        return _attend(q[rows], k[rows], v[rows], lse=return_attn_probs, layout="bshd", alibi=alibi, offset=rows.start,
                       **options)

    result = _attend_by_slopes(alibi_slopes, q.shape[0], attend)
    return (*result, None) if return_attn_probs else result


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
                           max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
                           causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                           alibi_slopes: Tensor | None = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Tensor | None = None) -> Any:
    """flash_attn.flash_attn_varlen_func on the CPU: q [tokens, heads, dim], k and v [tokens, kv_heads, dim], packed. With
    block_table [batch, columns] k and v are [pages, page_tokens, kv_heads, dim], and cu_seqlens_k says the lengths."""
    options = _flash_options(dropout_p, softmax_scale, causal, window_size, softcap)

    batch = len(cu_seqlens_q) - 1

    def pick(packed, borders, rows):
        """(tokens of these sequences, where each begins among them)"""
        if rows == slice(0, batch):
            return packed, borders
        first, end = borders[rows.start] if rows.start else 0, borders[rows.stop]
        return packed[first:end if rows.stop < batch else None], borders[rows.start:rows.stop + 1] - first

    def attend(rows, alibi):
        queries, borders = pick(q, cu_seqlens_q, rows)
        if block_table is None:
            (keys, borders_k), (values, _) = (pick(x, cu_seqlens_k, rows) for x in (k, v))
            options.update(cu_seqlens_k=borders_k, max_seqlen_k=max_seqlen_k)
        else:
            keys, values = k.transpose(1, 2), v.transpose(1, 2)
            options.update(kv_len=cu_seqlens_k.diff()[rows], page_table=block_table[rows])
        return _attend(queries, keys, values, lse=return_attn_probs, layout="thd", alibi=alibi, cu_seqlens_q=borders,
                       max_seqlen_q=max_seqlen_q, offset=rows.start, **options)

    result = _attend_by_slopes(alibi_slopes, batch, attend)
    return (*result, None) if return_attn_probs else result


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **options: Any) -> Any:
    """flash_attn_func of kv [batch, keys, 2, kv_heads, dim]: further arguments likewise, here and below."""
    return flash_attn_func(q, *kv.unbind(2), *args, **options)


def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **options: Any) -> Any:
    """flash_attn_func of qkv [batch, tokens, 3, heads, dim]."""
    return flash_attn_func(*qkv.unbind(2), *args, **options)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **options: Any) -> Any:
    """flash_attn_varlen_func of kv [tokens, 2, kv_heads, dim]."""
    return flash_attn_varlen_func(q, *kv.unbind(1), *args, **options)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *args: Any, **options: Any) -> Any:
    """flash_attn_varlen_func of qkv [tokens, 3, heads, dim]."""
    return flash_attn_varlen_func(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **options)


def _rotate(x, positions, cos, sin, interleaved):
    """x [batch, tokens, heads, dim] turned by the angles of `positions` [batch, tokens], rows of the tables [rows, pairs]
    (Su et al. 2021, https://arxiv.org/abs/2104.09864): columns 0 and 1, 2 and 3, ... are a pair if interleaved, else 0 and
    pairs, 1 and pairs + 1, ...; columns from 2 pairs on stay."""
    if positions.numel() and positions.max() >= cos.shape[0]:
        raise ValueError(f"rotary_cos has {cos.shape[0]} rows; the last token is at position {positions.max()}")
    width = 2 * cos.shape[1]
    head, tail = x[..., :width].float(), x[..., width:]
    a, b = (head[..., ::2], head[..., 1::2]) if interleaved else head.chunk(2, -1)
    c, s = (table[positions].float().unsqueeze(2) for table in (cos, sin))
    turned = a * c - b * s, a * s + b * c
    turned = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat((turned.to(x.dtype), tail), -1)


def _check_room(cache, lengths, table):
    """Every sequence must fit into its row of the cache or its pages."""
    tokens, columns = cache.shape[1], 1 if table is None else table.shape[1]
    if lengths.numel() and lengths.max() > tokens * columns:
        holds = f"k_cache has {tokens}" if table is None else f"block_table has {columns} columns of {tokens}"
        raise ValueError(f"{holds} tokens; with the new ones a sequence has {lengths.max()}")


def _append(cache, new, rows, lengths, table):
    """Writes the tokens of `new` behind those of each sequence, in its row of the cache or in its pages."""
    at, tokens = lengths.long()[:, None] + torch.arange(new.shape[1]), cache.shape[1]
    rows = rows[:, None]
    if table is not None:
        rows, at = table.long().gather(1, at // tokens), at % tokens
        if ((rows < 0) | (rows >= cache.shape[0])).any():  # PyTorch would take a negative one from the end
            raise ValueError(f"block_table has {rows.tolist()} where new tokens go; each must be in 0..{cache.shape[0] - 1}")
    cache[rows, at] = new.to(cache.dtype)


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
                            rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
                            cache_seqlens: int | Tensor | None = None, cache_batch_idx: Tensor | None = None,
                            cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
                            softmax_scale: float | None = None, causal: bool = False,
                            window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, rotary_interleaved: bool = True,
                            alibi_slopes: Tensor | None = None, num_splits: int = 0,
                            return_softmax_lse: bool = False) -> Any:
    """flash_attn.flash_attn_with_kvcache on the CPU: q [batch, queries, heads, dim] attends to the caches [batch, capacity,
    kv_heads, dim], of which sequence b holds cache_seqlens[b] tokens; k and v, if given, are appended first, in place.
    With block_table [batch, columns] the caches are [pages, page_tokens, kv_heads, dim].

    rotary_cos, rotary_sin [positions, pairs]: q and k are turned first, k and the queries of a causal mask or a window at
    positions from cache_seqlens[b] on, other queries at cache_seqlens[b]. cache_leftpad [batch]: the tokens before it are
    masked. cache_batch_idx copies the rows that it names. alibi_slopes: [heads] or [batch, heads].
    """
    for name, given in (("cache_batch_idx", cache_batch_idx), ("cache_leftpad", cache_leftpad)):
        if block_table is not None and given is not None:
            raise ValueError(f"{name} is given with block_table; it must be None, as the table says where sequences lie")
    batch = q.shape[0]
    rows = torch.arange(batch) if cache_batch_idx is None else cache_batch_idx.long()
    if cache_seqlens is None:
        cache_seqlens = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    lengths = torch.full((batch,), cache_seqlens, dtype=torch.int32) if isinstance(cache_seqlens, int) else cache_seqlens
    options = _flash_options(0.0, softmax_scale, causal, window_size, softcap)
    new = 0 if k is None else k.shape[1]
    _check_room(k_cache, lengths + new, block_table)
    if rotary_cos is not None:
        at, moves = lengths.long()[:, None], causal or options["window_left"] >= 0 or options["window_right"] >= 0
        q = _rotate(q, at + torch.arange(q.shape[1]) * moves, rotary_cos, rotary_sin, rotary_interleaved)
        k = k if k is None else _rotate(k, at + torch.arange(new), rotary_cos, rotary_sin, rotary_interleaved)
    if k is not None:
        _append(k_cache, k, rows, lengths, block_table)
        _append(v_cache, v, rows, lengths, block_table)
        lengths = lengths + new
    keys, values = (k_cache, v_cache) if cache_batch_idx is None else (k_cache[rows], v_cache[rows])
    if block_table is not None:
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    mask = None if cache_leftpad is None else torch.arange(keys.shape[1]) >= cache_leftpad[:, None, None, None]

    def attend(some, alibi):
        pages = block_table is not None
        return _attend(q[some], *((keys, values) if pages else (keys[some], values[some])), lse=return_softmax_lse,
                       layout="bshd", kv_len=lengths[some].to(torch.int32), alibi=alibi,
                       page_table=block_table[some] if pages else None, mask=None if mask is None else mask[some], **options)

    return _attend_by_slopes(alibi_slopes, batch, attend)
