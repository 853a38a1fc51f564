# SPDX-License-Identifier: MIT
"""Writing KV caches: new tokens into dense caches, pages or slots, with rotary position embeddings, in one pass."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from ._native import C, F, S, allocate, check
from ._sdpa import FUNCTIONS
from ._blocks import BYTES, VALUES, check_format
from .layers import (CACHE_DTYPES, DTYPES, KV_FORMATS, _flags, _handle_of, _handle_or_none, _numbers, _one_of, _options,
                     _whole)

PAIRINGS = {"interleaved": "ATTN_ROPE_INTERLEAVED", "halves": "ATTN_ROPE_HALVES"}
SCALINGS = {None: "ATTN_ROPE_UNSCALED", "linear": "ATTN_ROPE_LINEAR", "ntk": "ATTN_ROPE_NTK", "yarn": "ATTN_ROPE_YARN",
            "llama3": "ATTN_ROPE_LLAMA3"}


def _read_numbers(name, numbers, kind=float):
    """The numbers of a list or an array."""
    try:
        return [kind(x) for x in (numbers.tolist() if hasattr(numbers, "tolist") else numbers)]
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} is {numbers!r}; it must be a list of numbers") from None


class Rope:
    """A rotation of the first `dim` elements of queries and keys by their positions (Su et al. 2021, arXiv:2104.09864).

    pairing: "halves" rotates elements i and i + dim / 2 together (Hugging Face's Llama, GPT-NeoX), "interleaved" 2i and
    2i + 1 (GPT-J, the paper). scaling: None, "linear", "ntk", "yarn" or "llama3"; their numbers have the names of Hugging
    Face's rope_scaling, original_length for original_max_position_embeddings. frequencies [dim / 2]: radians per position
    in place of base and scaling. Immutable.
    """

    def __init__(self, pairing: str, dim: int, *, base: float = 10000.0, scaling: str | None = None, factor: float = 0.0,
                 original_length: float = 0.0, beta_fast: float = 0.0, beta_slow: float = 0.0, truncate: bool = True,
                 attention_factor: float = 0.0, low_freq_factor: float = 0.0, high_freq_factor: float = 0.0,
                 frequencies: Any = None) -> None:
        _whole(dim=dim)
        _flags(truncate=truncate)
        numbers = {"base": base, "factor": factor, "original_length": original_length, "beta_fast": beta_fast,
                   "beta_slow": beta_slow, "attention_factor": attention_factor, "low_freq_factor": low_freq_factor,
                   "high_freq_factor": high_freq_factor}
        _numbers(math.inf, **numbers)  # float64
        own = None
        if frequencies is not None:
            values = _read_numbers("frequencies", frequencies)
            if len(values) * 2 != dim:
                raise ValueError(f"frequencies has {len(values)} numbers; with dim {dim} it must have {dim // 2}")
            own = (ctypes.c_double * len(values))(*values)
        config = S.attn_rope_config(pairing=getattr(C, _one_of("pairing", pairing, PAIRINGS)), dim=dim,
                                    scaling=getattr(C, _one_of("scaling", scaling, SCALINGS)), exact_ramp=not truncate,
                                    **numbers, frequencies=ctypes.cast(own, ctypes.c_void_p) if own else None)
        self.dim = dim
        self._handle = ctypes.c_void_p()
        check(F.attn_rope_create(ctypes.byref(config), ctypes.byref(self._handle)))

    @property
    def frequencies(self) -> list[float]:
        """Radians per position of each pair."""
        return list((ctypes.c_double * (self.dim // 2)).from_address(F.attn_rope_frequencies(self._handle)))

    def __del__(self):
        if getattr(self, "_handle", None):
            F.attn_rope_destroy(self._handle)


class _Call:
    """The parts of its arrays that a call needs, and objects that has to live until it ends."""

    def __init__(self):
        self.kept = []

    def tensor(self, array, name, layout, dtypes=DTYPES, written=False):
        """(address, dtype, sizes, strides) as b, h, s, d of an array [batch, heads, tokens, dim] ("bhsd"), [batch, tokens,
        heads, dim] ("bshd"), or packed [tokens, heads, dim] ("thd"). written: the call writes to it."""
        address, keeper, dtype, shape, strides = FUNCTIONS["view"](array, name, written)
        self.kept.append((array, keeper))
        if dtype not in dtypes:
            raise TypeError(f"{name} is {dtype}; it must be one of {', '.join(dtypes)}")
        if len(shape) != len(layout):
            raise ValueError(f"{name} has shape {shape}; it must have {len(layout)} dimensions")
        return address, getattr(C, dtypes[dtype]), *self._in_order(shape, strides, layout)

    def blocks(self, array, name, layout, kv_format):
        """The same of uint8 [batch, heads, tokens, blocks, bytes of a block], which is written to; a row has all elements of
        its blocks."""
        address, keeper, dtype, shape, strides = FUNCTIONS["view"](array, name, True)
        self.kept.append((array, keeper))
        size = BYTES[kv_format]
        if dtype != "uint8":
            raise TypeError(f"{name} is {dtype}; with kv_format '{kv_format}' it must be uint8")
        if len(shape) != 5 or shape[4] != size or strides[4] != 1 or (shape[3] > 1 and strides[3] != size):
            raise ValueError(f"{name} has shape {tuple(shape)}; it must be [..., tokens, blocks, {size}] of 5 dimensions "
                             f"with kv_format '{kv_format}', the bytes of a row one behind the other")
        if any(step % size for step in strides[:3]):
            raise ValueError(f"{name} has strides of {strides[:3]} bytes; with kv_format '{kv_format}' they must be "
                             f"multiples of {size}")
        rows, steps = [*shape[:3], shape[3] * VALUES], [*(step // size * VALUES for step in strides[:3]), 1]
        return address, getattr(C, KV_FORMATS[kv_format]), *self._in_order(rows, steps, layout)

    @staticmethod
    def _in_order(shape, strides, layout):
        """(sizes, strides) as b, h, s, d."""
        order = ["thd".index(axis) if axis in "thd" and layout == "thd" else layout.index(axis)
                 for axis in ("htd" if layout == "thd" else "bhsd")]
        sizes, steps = [shape[i] for i in order], [strides[i] for i in order]
        if layout == "thd":
            sizes, steps = [1, *sizes], [0, *steps]
        return sizes, S.attn_strides(**dict(zip("bhsd", steps)))

    def whole(self, array, name, count):
        """The address of so many int32."""
        if array is None:
            return None
        address, keeper = FUNCTIONS["vector"](array, name, True, count)
        self.kept.append((array, keeper))
        return address

    def factors(self, array, name, sizes, written=False):
        """(address, strides) of a number or of float32 that broadcasts to sizes; of that very shape if written."""
        if array is None:
            return None, S.attn_strides()
        if isinstance(array, (int, float)) and not written:
            self.kept.append(ctypes.c_float(array))
            return ctypes.addressof(self.kept[-1]), S.attn_strides()
        address, keeper, dtype, shape, strides = FUNCTIONS["view"](array, name, written)
        self.kept.append((array, keeper))
        if dtype != "float32":
            raise TypeError(f"{name} is {dtype}; it must be float32")
        fits = len(shape) <= 3 and all(n in (1, size) for n, size in zip(shape[::-1], sizes[::-1]))
        if not fits or (written and tuple(shape) != sizes):
            wanted = "have" if written else "broadcast to"
            raise ValueError(f"{name} has shape {tuple(shape)}; it must {wanted} {sizes}")
        steps = [0] * (3 - len(shape)) + [0 if n == 1 and not written else step for n, step in zip(shape, strides)]
        return address, S.attn_strides(**dict(zip("bhs", steps)))

    def slots(self, array, count):
        if array is None:
            return None
        values = _read_numbers("slots", array, int)
        if len(values) != count:
            raise ValueError(f"slots has {len(values)} numbers; it must have {count}, one for each token")
        self.kept.append((ctypes.c_int64 * max(count, 1))(*values))
        return ctypes.addressof(self.kept[-1])


def rope(x: Any, rotation: Rope, *, positions: Any = None, past: Any = None, layout: str = "bhsd", out: Any = None,
         threads: int | None = None) -> Any:
    """x [batch, heads, tokens, dim] (layout "bhsd") or [batch, tokens, heads, dim] ("bshd") with each row rotated by its
    position: positions [batch * tokens], or past [batch] + token; past is 0 where it is not given. out: an array for the
    result, which may be x; it may have another float type. Raises ValueError or TypeError."""
    call = _Call()
    if layout not in ("bhsd", "bshd"):
        raise ValueError(f"layout is {layout!r}; it must be 'bhsd' or 'bshd'")
    address, dtype, sizes, strides = call.tensor(x, "x", layout)
    if out is None:
        out = allocate(x, tuple(FUNCTIONS["view"](x, "x")[3]), FUNCTIONS["view"](x, "x")[2])
    to, out_dtype, out_sizes, out_strides = call.tensor(out, "out", layout, written=True)
    if out_sizes != sizes:
        raise ValueError("out has another shape than x; it must have the same")
    args = S.attn_rope_args(batch=sizes[0], tokens=sizes[2], heads=sizes[1], dim=sizes[3], dtype=dtype, out_dtype=out_dtype,
                            x=address, out=to, x_stride=strides, out_stride=out_strides,
                            positions=call.whole(positions, "positions", sizes[0] * sizes[2]),
                            past=call.whole(past, "past", sizes[0]))
    check(F.attn_rope_run(_handle_of("rotation", rotation, Rope), ctypes.byref(args), ctypes.byref(_options(None, threads))))
    return out


def _read_rows(call, args, layout, tensors):
    """Fills in what q, k, v, and q_out say of a call."""
    seen = {}
    for name, array in tensors.items():
        if array is None and name in ("q", "q_out"):
            continue
        if array is None:
            raise TypeError(f"{name} is None; it must be an array")
        address, dtype, sizes, strides = call.tensor(array, name, layout, written=name == "q_out")
        for what, size in (("batch", sizes[0]), ("tokens", sizes[2])):
            if seen.setdefault(what, size) != size:
                raise ValueError(f"{name} has {what} {size}; the others have {seen[what]}")
        if name != "q_out" and seen.setdefault("dtype", dtype) != dtype:
            raise TypeError(f"{name} has another dtype than the other tensors; they must have one")
        heads = "heads_q" if name.startswith("q") else "heads_kv"
        dim = "dim_v" if name == "v" else "dim_qk"
        for what, size in ((heads, sizes[1]), (dim, sizes[3])):
            if seen.setdefault(what, size) != size:
                raise ValueError(f"{name} has {what} {size}; it must be {seen[what]}, as in the tensors before it")
        setattr(args, name, address)
        setattr(args, f"{name}_stride", strides)
        if name == "q_out":
            args.q_out_dtype = dtype
    for field, size in seen.items():
        setattr(args, field, size)
    return seen


def kv_append(k: Any, v: Any, k_cache: Any, v_cache: Any, *, past: Any = None, counts: Any = None, cu_seqlens: Any = None,
              page_table: Any = None, slots: Any = None, rotation: Rope | None = None, positions: Any = None, q: Any = None,
              q_out: Any = None, k_scale: Any = None, v_scale: Any = None, k_scale_cache: Any = None,
              v_scale_cache: Any = None, layout: str | None = None, cache_layout: str = "bhsd",
              kv_format: str | None = None, hadamard: bool = False, threads: int | None = None) -> Any:
    """Writes new tokens' keys and values into caches, in place, converted to their dtype (attn_kv_append).

    k and v: [batch, heads_kv, tokens, dim] (layout "bhsd", the default), [batch, tokens, heads_kv, dim] ("bshd"), or with
    cu_seqlens [batch + 1] packed, [tokens, heads_kv, dim] ("thd"). Caches: [batch, heads_kv, capacity, dim], or with
    page_table [batch, columns] [pages, heads_kv, page_tokens, dim]; with cache_layout "bshd" tokens stand before heads. past
    [batch]: tokens that each sequence has; counts [batch]: how many of the new ones each really has. slots, one for each
    token, in place of past and page_table: page * page_tokens + token, -1 for nowhere (vLLM's slot_mapping).

    kv_format: "q8_0" or "q4_0": caches are blocks as sdpa() takes them, uint8 [..., tokens, blocks, 34 or 18], and rows are
    quantised as libattn.q8_0() and q4_0() do.

    k_scale and v_scale: factors of the caches, as sdpa() takes them: a float, or float32 that broadcasts to [batch,
    heads_kv, capacity], with pages [pages, heads_kv, page_tokens]; new rows go there divided by theirs. k_scale_cache and
    v_scale_cache: float32 of that shape, where the factors of new rows are written: each row's largest absolute value over
    the largest one of the caches' dtype, of 8 bits.

    rotation rotates keys, by positions or by their places, and q, which is returned rotated (in q_out, or a new array).
    hadamard: keys and q are then multiplied by an orthogonal matrix, so that keys with large channels lose less in 8 and 4
    bits; q k stays what it is.
    Returns q_out, or None without q. Raises ValueError or TypeError; then nothing was written.
    """
    call = _Call()
    _flags(hadamard=hadamard)
    layout = layout or ("thd" if cu_seqlens is not None else "bhsd")
    if layout not in ("bhsd", "bshd", "thd") or (layout == "thd") != (cu_seqlens is not None):
        raise ValueError(f"layout is {layout!r}; it must be 'bhsd' or 'bshd', or with cu_seqlens 'thd'")
    if kv_format is not None:
        check_format(kv_format)
    if cache_layout not in ("bhsd", "bshd"):
        raise ValueError(f"cache_layout is {cache_layout!r}; it must be 'bhsd' or 'bshd'")
    if q is not None and q_out is None:
        view = FUNCTIONS["view"](q, "q")
        q_out = allocate(q, tuple(view[3]), view[2])
    args = S.attn_kv_append_args(rope=_handle_or_none("rotation", rotation, Rope), hadamard=hadamard)
    seen = _read_rows(call, args, layout, {"k": k, "v": v, "q": q, "q_out": q_out})
    outer = []
    for name, array, heads, dim in (("k_cache", k_cache, "heads_kv", "dim_qk"), ("v_cache", v_cache, "heads_kv", "dim_v")):
        address, dtype, sizes, strides = (call.blocks(array, name, cache_layout, kv_format) if kv_format else
                                          call.tensor(array, name, cache_layout, CACHE_DTYPES, True))
        row = seen[dim] + -seen[dim] % VALUES if kv_format else seen[dim]
        if (sizes[1], sizes[3]) != (seen[heads], row):
            raise ValueError(f"{name} has {sizes[1]} heads of {sizes[3]} elements; new tokens have {seen[heads]} of "
                             f"{seen[dim]}")
        outer.append((dtype, sizes[0], sizes[2]))
        args.cache_dtype = dtype
        setattr(args, name, address)
        setattr(args, f"{name}_stride", strides)
    if outer[0] != outer[1]:
        raise ValueError("v_cache has another dtype, or other pages and tokens, than k_cache; they must be alike")
    _, pages, tokens = outer[0]
    for name, given, made in (("k_scale", k_scale, k_scale_cache), ("v_scale", v_scale, v_scale_cache)):
        sizes = pages, args.heads_kv, tokens
        if given is not None and made is not None:
            raise ValueError(f"{name} and {name}_cache are both given; one of them must be None")
        address, strides = call.factors(given, name, sizes)
        if made is not None:
            address, strides = call.factors(made, f"{name}_cache", sizes, written=True)
        setattr(args, f"{name}_cache" if made is not None else name, address)
        setattr(args, f"{name}_stride", strides)
    batch, total = args.batch, args.tokens * args.batch
    if cu_seqlens is not None:
        batch = args.batch = len(cu_seqlens) - 1
        total = args.tokens
        args.cu_seqlens = call.whole(cu_seqlens, "cu_seqlens", batch + 1)
    if page_table is not None:
        table_shape = FUNCTIONS["view"](page_table, "page_table")[3]
        if len(table_shape) != 2 or table_shape[0] != batch:
            raise ValueError(f"page_table has shape {table_shape}; it must have ({batch}, columns)")
        flat = page_table.reshape(-1)
        args.page_table = call.whole(flat, "page_table", table_shape[0] * table_shape[1])
        args.page_table_stride = table_shape[1]
    if page_table is not None or slots is not None:
        args.page_tokens, args.pages = tokens, pages
    else:
        if pages != batch:
            raise ValueError(f"k_cache has batch {pages}; new tokens have {batch}")
        args.capacity = tokens
    args.past, args.counts = call.whole(past, "past", batch), call.whole(counts, "counts", batch)
    args.slots, args.positions = call.slots(slots, total), call.whole(positions, "positions", total)
    check(F.attn_kv_append(ctypes.byref(args), ctypes.byref(_options(None, threads))))
    return q_out
