# SPDX-License-Identifier: MIT
"""flex_attention: PyTorch's FlexAttention (Dong et al. 2024, https://arxiv.org/abs/2412.05496) by libattn.

A score_mod or mask_mod is a Python function, which is traced (torch_trace.py) and read: scores may be scaled, capped by
tanh and masked, and whatever depends on positions may be added. Slopes times distances become ALiBi, comparisons of
positions a window; other positions become a bias or a mask in memory. Importing libattn.torch imports this.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, Callable

import torch
from torch import Tensor

from .torch_trace import graph_of

INF = math.inf

# ---- What positions say ----------------------------------------------------------------------------------------------


@dataclass
class _Value:
    """A value of batch, head, query and key. `make()` has it on the grid. Where it is known, line: it is line[0] * key +
    line[1] * query + line[2], far: it is far * |key - query|, band: it is true for key - query in -band[0] ... band[1]."""

    make: Callable[[], Any]
    line: tuple | None = None
    far: Any = None
    band: tuple | None = None


def _constant(x):
    return _Value(lambda: x, line=(0, 0, x))


def _number(x):
    """x as a number, where it is one everywhere."""
    if isinstance(x, _Value):
        x = x.line[2] if _is_constant(x) else None
    if isinstance(x, Tensor) and x.numel() == 1 and not x.requires_grad:
        x = x.item()
    return x if isinstance(x, (int, float)) else None


def _is_constant(x):
    return x.line is not None and all(_is_zero(c) for c in x.line[:2])


def _is_zero(c):
    return not isinstance(c, Tensor) and c == 0


def _is_distance(x):
    """Whether x is its coefficient times key - query."""
    return x.line is not None and _is_zero(x.line[2]) and _same(x.line[0], x.line[1])


def _same(a, b):
    """Whether a is -b, and a number or one of each head."""
    return a is not None and (torch.equal(a, -b) if isinstance(a, Tensor) and isinstance(b, Tensor) else
                              not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == -b)


def _compare(x, y, strict):
    """The band in which x >= y, or x > y."""
    if x.line is None or y.line is None:
        return None
    key, query, rest = (_number(a - b) for a, b in zip(x.line, y.line))
    if rest is None or (key, query) not in ((-1, 1), (1, -1)):
        return None
    end = math.ceil(rest) - 1 if strict else math.floor(rest)
    return (INF, end) if key == -1 else (end, INF)


def _scaled(x, factor):
    """Fields of x times a constant."""
    return {"line": x.line and tuple(0 if _is_zero(c) else c * factor for c in x.line),
            "far": None if x.far is None else x.far * factor}


def _of_positions(name, function, values):
    """The value that a function of others has."""
    made = [x if isinstance(x, _Value) else _constant(x) for x in values]
    found = _Value(functools.cache(lambda: function(*(x.make() for x in made))))
    if all(map(_is_constant, made)):
        return _constant(found.make())
    x, y = (*made, None)[:2]
    if name in ("add", "sub") and x.line and y.line:
        found.line = tuple(a + b if name == "add" else a - b for a, b in zip(x.line, y.line))
    elif name == "neg":
        found = replace(found, **_scaled(x, -1))
    elif name == "mul" and (_is_constant(x) or _is_constant(y)):
        found = replace(found, **(_scaled(y, x.line[2]) if _is_constant(x) else _scaled(x, y.line[2])))
    elif name == "div" and _is_constant(y):
        found = replace(found, **_scaled(x, 1 / y.line[2]))
    elif name == "_to_copy":
        found.line, found.far = x.line, x.far
    elif name == "abs" and _is_distance(x):
        found.far = abs(x.line[0])
    elif name in ("ge", "gt"):
        found.band = _compare(x, y, name == "gt")
    elif name in ("le", "lt"):
        found.band = _compare(y, x, name == "lt")
    elif name in ("bitwise_and", "logical_and") and x.band and y.band:
        found.band = tuple(map(min, x.band, y.band))
    return found


# ---- What becomes of a score -----------------------------------------------------------------------------------------


@dataclass
class _Score:
    """outer * tanh(inner * score), if capped, else inner * score; plus `added`, where all of `masks` are true."""

    inner: float = 1.0
    outer: float = 1.0
    capped: bool = False
    added: tuple = ()
    masks: tuple = ()

    def times(self, factor):
        outer = {"outer": self.outer * factor} if self.capped else {"inner": self.inner * factor}
        return replace(self, **outer, added=tuple(_of_positions("mul", torch.mul, (x, factor)) for x in self.added))

    def plus(self, x):
        return replace(self, added=(*self.added, x if isinstance(x, _Value) else _constant(x)))


def _of_score(name, values):
    """The score that a function of one and of other values has."""
    x, y = (*values, None)[:2]
    if name in ("_to_copy", "clone", "alias"):
        return x
    if name == "neg":
        return x.times(-1.0)
    if name in ("add", "sub") and not (isinstance(x, _Score) and isinstance(y, _Score)):
        if isinstance(x, _Score):
            return x.plus(y if name == "add" else _of_positions("neg", torch.neg, (y,)) if isinstance(y, _Value) else -y)
        return (y if name == "add" else y.times(-1.0)).plus(x)
    if name in ("mul", "div") and _number(y if isinstance(x, _Score) else x) is not None:
        if isinstance(x, _Score):
            return x.times(_number(y) if name == "mul" else 1 / _number(y))
        if name == "mul":
            return y.times(_number(x))
    if name == "tanh" and not (x.capped or x.added or x.masks):
        return replace(x, capped=True)
    if name == "where" and isinstance(values[1], _Score) and _number(values[2]) == -INF:
        return replace(values[1], masks=(*values[1].masks, x))
    if name == "where" and isinstance(values[2], _Score) and _number(y) == -INF:
        return replace(values[2], masks=(*values[2].masks, _of_positions("not", torch.logical_not, (x,))))
    if name == "masked_fill" and isinstance(x, _Score) and _number(values[2]) == -INF:
        return replace(x, masks=(*x.masks, _of_positions("not", torch.logical_not, (y,))))
    raise NotImplementedError(f"score_mod has {name} of the score, which libattn does not have: scores may be scaled by "
                              "numbers, capped by tanh, added to, and masked by where(..., score, -inf)")


def _call(target, args, kwargs):
    """A step of a traced function: its values are numbers, tensors, _Value and _Score."""
    name = target.overloadpacket.__name__
    leaves, tree = torch.utils._pytree.tree_flatten(args)
    if any(isinstance(x, _Score) for x in leaves):
        return _of_score(name, args)
    if not any(isinstance(x, _Value) for x in leaves):
        return target(*args, **kwargs)

    def function(*values):
        return target(*torch.utils._pytree.tree_unflatten(values, tree), **kwargs)

    plain = not kwargs or name == "_to_copy"  # alpha and rounding modes make others of sums and quotients
    return _of_positions(name if plain else "", function, leaves)


def _read(function, inputs):
    """The result of function(*inputs); tensors that it reads have their values of now."""
    like = [torch.zeros(()), *(torch.zeros((), dtype=torch.int32) for _ in range(4))]  # each one of its own
    module, given, values = graph_of(function, like[-len(inputs):]), iter(inputs), {}
    *nodes, output = module.graph.nodes
    for node in nodes:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = (next(given) if node.op == "placeholder" else getattr(module, node.target) if node.op == "get_attr"
                        else _call(node.target, args, kwargs))
    return torch.fx.map_arg(output.args[0], values.__getitem__)


def _grid(batch, heads, queries, keys):
    """The four positions as values on the grid."""
    sizes = batch, heads, queries, keys
    b, h, q, k = (torch.arange(n, dtype=torch.int32).view([-1 if i == j else 1 for j in range(4)])
                  for i, n in enumerate(sizes))
    return _constant(b), _constant(h), _Value(lambda: q, line=(0, 1, 0)), _Value(lambda: k, line=(1, 0, 0))


# ---- The call --------------------------------------------------------------------------------------------------------


def _join_masks(values):
    """(band, tensor or None) of values that must all be true."""
    band, mask = (INF, INF), None
    for x in values:
        if x.band and min(x.band) >= 0:
            band = tuple(map(min, band, x.band))
        else:
            made = torch.as_tensor(x.make())
            mask = made if mask is None else mask & made
    return band, mask


def _split_added(added, heads, right):
    """(slopes [heads] or None, bias or None): distances are slopes, where keys behind the query are masked or alike."""
    slopes, bias = None, None
    for x in added:
        slope = -x.far if x.far is not None else x.line[0] if right <= 0 and _is_distance(x) else None
        slope = None if slope is None else torch.as_tensor(slope, dtype=torch.float32)
        if slope is not None and slope.shape in ((), (1, heads, 1, 1), (1, 1, 1, 1)):
            slope = slope.flatten().expand(heads)
            slopes = slope if slopes is None else slopes + slope
        else:
            made = torch.as_tensor(x.make(), dtype=torch.float32)
            bias = made if bias is None else bias + made
    return slopes, bias


def _full_blocks_are_in(band, blocks, queries, keys):
    """Whether a window leaves all of the full blocks, where mask_mod does not count."""
    if blocks.full_kv_num_blocks is None or band == (INF, INF):
        return True
    rows, columns = blocks.BLOCK_SIZE
    first_key = blocks.full_kv_indices * columns
    first_query = torch.arange(first_key.shape[-2])[:, None] * rows
    last_key, last_query = (first_key + columns).clamp(max=keys) - 1, (first_query + rows).clamp(max=queries) - 1
    inside = (last_query - first_key <= band[0]) & (last_key - first_query <= band[1])
    return bool((inside | (torch.arange(first_key.shape[-1]) >= blocks.full_kv_num_blocks[..., None])).all())


def _lists(blocks):
    return {**{name: getattr(blocks, name) for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks",
                                                        "full_kv_indices")},
            "block_queries": blocks.BLOCK_SIZE[0], "block_keys": blocks.BLOCK_SIZE[1]}


def _block_options(query, key, blocks, grid, dense):
    """(band, mask, lists) of a BlockMask. dense: all of it as a mask."""
    from .torch import _named

    queries, keys = query.shape[2], key.shape[2]
    if tuple(blocks.shape[-2:]) != (queries, keys):
        raise ValueError(f"block_mask was made for {blocks.shape[-2]} queries and {blocks.shape[-1]} keys; there are "
                         f"{queries} and {keys}")
    read = _read(blocks.mask_mod, grid)
    band, mask = _join_masks([read if isinstance(read, _Value) else _constant(read)])
    if mask is not None and mask.numel() == 1 and mask.item():
        mask = None
    rows, columns = blocks.BLOCK_SIZE
    of_heads = blocks.kv_num_blocks.shape[1] in (1, key.shape[1])
    if not dense and of_heads and rows % 16 == 0 and columns % 64 == 0 and _full_blocks_are_in(band, blocks, queries, keys):
        return band, mask, _lists(blocks)
    if mask is None and band != (INF, INF):
        mask = read.make()
    o, mask = _lists(blocks), torch.tensor(True) if mask is None else mask
    return (INF, INF), _named(query, key, o, "full_") | (_named(query, key, o, "") & mask), {}


@torch.compiler.disable
def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor] | None = None,
                   block_mask: Any = None, scale: float | None = None, enable_gqa: bool = False,
                   return_lse: bool = False) -> Any:
    """torch.nn.attention.flex_attention.flex_attention on the CPU: query [batch, heads, queries, dim], key and value [batch,
    kv_heads, keys, dim]. With return_lse (out, lse [batch, heads, queries]).

    score_mod(score, b, h, q_idx, kv_idx) may scale a score, cap it by tanh, add what depends on positions, and mask by -inf.
    block_mask: of create_block_mask(); its lists say which keys are read. Has gradients by query, key, value and by what
    score_mod adds. Raises NotImplementedError for another score_mod, with the operation that libattn lacks; ValueError for
    shapes.
    """
    from .torch import _attend, _need_gradients

    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        raise ValueError(f"query, key and value have {query.ndim}, {key.ndim} and {value.ndim} dimensions; each must have 4")
    (batch, heads, queries, dim), keys = query.shape, key.shape[2]
    if not enable_gqa and heads != key.shape[1]:
        raise ValueError(f"query has {heads} heads and key has {key.shape[1]}; grouped queries need enable_gqa=True")
    grid = _grid(batch, heads, queries, keys)
    score = _Score() if score_mod is None else _read(score_mod, (_Score(), *grid))
    if not isinstance(score, _Score):
        raise NotImplementedError("score_mod gives what does not depend on the score, which libattn does not have")
    band, mask = _join_masks(score.masks)
    options = {}
    if block_mask is not None:
        dense = mask is not None or _need_gradients(query, key, value, *(x.make() for x in score.added))
        wider, more, options = _block_options(query, key, block_mask, grid, dense)
        band = tuple(map(min, band, wider))
        mask = more if mask is None or more is None else mask & more
    slopes, bias = _split_added(score.added, heads, band[1])
    factor = score.inner * (score.outer if score.capped else 1.0)
    return _attend(query, key, value, lse=return_lse, scale=factor * (dim**-0.5 if scale is None else scale),
                   softcap=abs(score.outer) if score.capped else None, mask=mask, bias=bias, alibi=slopes,
                   **dict(zip(("window_left", "window_right"), (-1 if x == INF else x for x in band))), **options)
