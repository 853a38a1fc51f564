# SPDX-License-Identifier: MIT
"""The cases of compare(): problems that axes define, checked against the oracle, and arguments of the caller's own."""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

import numpy as np

from . import harness, pages
from .._blocks import BYTES, VALUES

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
BITS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(np.uint16)}  # NumPy has no bfloat16
TOLERANCE = {"float32": 1e-4, "float64": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}  # for outputs that no oracle checks
INTEGERS = {"i8": 127, "q8_0": 127, "q4_0": 7, "e4m3": 16}  # largest key and value; q8_0 and q4_0 with a factor of 1
CACHES = ("warm", "cold-kv")
FEW_QUERIES = 16


@dataclass(eq=False)
class Problem:
    """A case of attnbench's axes: "heads=8 seq=512 causal=bottom-right" (docs/measuring.md). Axes: dtype, batch,
    heads, heads_kv, seq, seq_q, seq_k, head_dim, dim_qk, dim_v, latent, causal, cache, threads; page_tokens, and with it
    page_order, lengths and chunk. Functions are called as libattn.sdpa: f(q, k, v), with causal=True and
    align="bottom_right" if it is causal; in pages with page_table, kv_len and cu_seqlens_q: q is [tokens, heads, dim], k and
    v [pages, kv_heads, page_tokens, dim]. With latent=on v is a view, the first dim_v columns of k.

    dtype=f32+i8, f32+q8_0, f32+q4_0 and f32+e4m3: keys and values are small integers, which every format of as many bits
    holds exactly, so that one oracle serves formats that differ. k and v are int8, or uint8 whose rows are the bytes of
    their blocks; q is smaller, so that scores have the usual size. They are for implementations that read such bytes, as
    those of scripts/peers; libattn.sdpa wants blocks in a dimension of their own, and kv_format.
    """

    axes: str
    convert: Callable[[np.ndarray], Any] | None = None  # applied to q, k and v before anything is timed
    seed: int = 1
    id: str = field(init=False)
    flops: int = field(init=False)
    bytes: int = field(init=False)

    def __post_init__(self):
        axes = dict(word.partition("=")[::2] for word in self.axes.split())
        allowed = {"dtype", "batch", "heads", "heads_kv", "seq", "seq_q", "seq_k", "head_dim", "causal", "cache", "threads",
                   "dim_qk", "dim_v", "latent", "page_tokens", "page_order", "lengths", "chunk"}
        if set(axes) - allowed:
            raise harness.CaseError(f"no axis {min(set(axes) - allowed)!r}; there are: {', '.join(sorted(allowed))}")
        self.id, sizes, self.flops, self.bytes = harness.describe(*self.axes.split())
        self.batch, self.heads, self.heads_kv, self.seq_q, self.seq_k, self.head_dim, self.dim_v = sizes
        self.latent = axes.get("latent", "off") == "on"
        self.dtype, self.causal = axes.get("dtype", "f32"), axes.get("causal", "none")
        self.dtype, _, kept = self.dtype.partition("+")
        self.dtype_kv = kept or self.dtype
        self.cache, self.threads = axes.get("cache", "warm"), int(axes.get("threads", "1"))
        fits = self.dtype in DTYPES and (not kept or (self.dtype == "f32" and kept in INTEGERS))
        if not fits or self.causal not in harness.ALIGNMENTS or self.cache not in CACHES:
            raise harness.CaseError(f"{self.axes}: dtype is f32, f16, bf16, or f32+ and one of {', '.join(INTEGERS)}; "
                                    f"causal is none, top-left or bottom-right; cache is {' or '.join(CACHES)}")
        if kept in BYTES and (self.head_dim % VALUES or self.dim_v % VALUES):
            raise harness.CaseError(f"{self.axes}: head_dim is {self.head_dim}; with dtype f32+{kept} a multiple of "
                                    f"{VALUES} is right")
        self.pages, self.lengths = None, axes.get("lengths", "full")
        if axes.get("page_tokens", "none") != "none":
            self.pages = pages.Pages(self.axes.split(), self.batch, self.seq_k, int(axes["page_tokens"]),
                                     axes.get("page_order") == "shuffled", np.random.default_rng(self.data_seed + 1))

    def __eq__(self, other):
        return isinstance(other, Problem) and self.id == other.id

    def __hash__(self):
        return hash(self.id)

    @property
    def dtypes(self):
        """The value of the axis."""
        return self.dtype if self.dtype == self.dtype_kv else f"{self.dtype}+{self.dtype_kv}"

    @property
    def is_decode(self):
        """Few queries and more keys: memory is the limit (as in scripts/plotting/views.py)."""
        return self.seq_q <= FEW_QUERIES and self.seq_q < self.seq_k and self.lengths == "full"

    @property
    def offset(self):
        """Query i of a causal problem sees the keys up to i + offset."""
        return self.seq_k - self.seq_q if self.causal == "bottom-right" else 0

    @property
    def bytes_kv(self):
        dims = [self.head_dim] if self.latent else [self.head_dim, self.dim_v]
        return self.batch * self.heads_kv * self.seq_k * sum(row_bytes(dim, self.dtype_kv) for dim in dims)

    @property
    def data_seed(self):
        return zlib.crc32(f"{self.seed} {self.id}".encode())

    @functools.cached_property
    def arrays(self):
        """q, k and v: normal, of mean 0 and standard deviation 1. bfloat16 is in the bits of uint16."""
        generator = np.random.default_rng(self.data_seed)
        if self.pages:
            queries = int(self.pages.cu_seqlens_q[-1]), self.heads
            keys = self.pages.count, self.heads_kv, self.pages.page_tokens
        else:
            queries, keys = (self.batch, self.heads, self.seq_q), (self.batch, self.heads_kv, self.seq_k)
        shapes = (*queries, self.head_dim), (*keys, self.head_dim), (*keys, self.dim_v)
        q, k, v = (generator.standard_normal(shape, dtype=np.float32) for shape in shapes)
        if self.dtype_kv in INTEGERS:
            most = INTEGERS[self.dtype_kv]
            q, k, v = q * (4 / most), *(np.rint(np.clip(x * (most / 4), -most, most)) for x in (k, v))
        q, k, v = store(q, self.dtype), *(store(x, self.dtype_kv) for x in (k, v))
        return [q, k, k[..., :v.shape[-1]] if self.latent else v]

    @functools.cached_property
    def oracle(self):
        return (pages if self.pages else harness).Reference(self, *self.arrays, self.data_seed)

    @property
    def call(self):
        """(arguments before they are converted, keywords)"""
        keywords = {} if self.causal == "none" else {"causal": True, "align": self.causal.replace("-", "_")}
        if self.pages:
            keywords.update(page_table=self.pages.table, kv_len=self.pages.kv_len, cu_seqlens_q=self.pages.cu_seqlens_q)
        return self.arrays, keywords

    def argument(self, array):
        """One of the arrays as functions get it."""
        array = array.view(_bfloat16()) if self.dtype == "bf16" else array
        return self.convert(array) if self.convert else array

    def check(self, output, _baseline, rounding=None):
        """(what is wrong or None, the Check). Without a rounding the limit is that of an implementation that states nothing
        of its arithmetic."""
        roundoff = 0.0 if self.dtype == "f32" else harness.dtypes()[self.dtype].roundoff
        rounding = rounding or harness.Rounding(harness.ASSUMED_EXP_ERROR, roundoff)
        found = self.oracle.check(_bits(_to_numpy(output)), rounding)
        wrong = f"{found.worst:.3g} times the error limit at {found.index} (batch:head:query:column)"
        return None if found.passed else wrong, found

    def columns(self):
        """Columns of results.csv."""
        return {"case_id": self.id, "dtype_q": self.dtype, "dtype_kv": self.dtype_kv, "dtype_o": self.dtype,
                "batch": self.batch, "heads_q": self.heads, "heads_kv": self.heads_kv, "seq_q": self.seq_q,
                "seq_k": self.seq_k, "dim_qk": self.head_dim, "dim_v": self.dim_v, "score": "dot", "causal": self.causal,
                "align": self.causal if self.causal != "none" else "top-left", "window": "none", "mask": "none",
                "bias": "none", "alibi": "off", "softcap": 0, "sinks": "off", "lengths": self.lengths,
                "layout": "packed" if self.pages else "bhsd", "cache": self.cache}


class Given:
    """A case of the caller's own arguments. Outputs are compared with the baseline's."""

    flops = bytes = None
    dtype, cache, is_decode = "f32", "warm", False

    def __init__(self, arguments):
        self.call = ([], arguments) if isinstance(arguments, Mapping) else (list(arguments), {})

    @staticmethod
    def argument(array):
        return array

    def check(self, output, baseline, _rounding=None):
        """(what is wrong or None, None)"""
        return self._difference(output, baseline), None

    @staticmethod
    def _difference(output, baseline):
        try:
            ours, right = _to_numpy(output), _to_numpy(baseline)
        except (TypeError, ValueError):
            return None  # no arrays
        if ours.dtype == object or right.dtype == object:
            return None
        if ours.shape != right.shape:
            return f"shape {ours.shape}; the baseline's is {right.shape}"
        ours, right, limit = ours.astype(float), right.astype(float), TOLERANCE.get(str(right.dtype), 0)
        error, size = np.abs(ours - right).max(initial=0), np.abs(right).max(initial=0)
        return None if error <= limit * size else f"differs from the baseline by {error:.3g}, of at most {size:.3g}"

    def columns(self):
        return {}


def store(values, dtype):
    """float32 `values` in the dtype, rounded to nearest even; every NaN becomes the same NaN."""
    if dtype in INTEGERS:
        return _store_integers(values, dtype)
    if dtype != "bf16":
        return values.astype(BITS[dtype], copy=False)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    stored = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    stored[np.isnan(values)] = 0x7FC0
    return stored


def row_bytes(dim, dtype):
    """Bytes of a row of keys or values."""
    return dim // VALUES * BYTES[dtype] if dtype in BYTES else dim * harness.dtypes()[dtype].bytes


def stored_type(dtype):
    """The NumPy type of what store() gives."""
    return BITS.get(dtype) or np.dtype(np.int8 if dtype == "i8" else np.uint8)


def integers_of(stored, dtype):
    """The integers that store() was given, as int8."""
    if dtype == "i8":
        return stored
    if dtype == "e4m3":
        return np.float32([_e4m3(byte) for byte in range(256)])[stored].astype(np.int8)
    blocks = stored.reshape(*stored.shape[:-1], -1, BYTES[dtype])[..., 2:]
    if dtype == "q4_0":
        blocks = np.concatenate([blocks & 15, blocks >> 4], -1) - np.uint8(8)
    return np.ascontiguousarray(blocks).view(np.int8).reshape(*stored.shape[:-1], -1)


def _e4m3(byte):
    exponent, fraction = byte >> 3 & 15, byte & 7
    size = fraction * 2.0**-9 if exponent == 0 else (8 + fraction) * 2.0**(exponent - 10)
    return (-size if byte & 128 else size) if byte & 127 < 127 else 0.0  # NaN is none of the integers


def _store_integers(values, dtype):
    if dtype == "i8":
        return values.astype(np.int8)
    if dtype == "e4m3":
        codes = {_e4m3(byte): byte for byte in range(255, -1, -1)}
        most = INTEGERS[dtype]
        return np.uint8([codes[n] for n in range(-most, most + 1)])[values.astype(np.int64) + most]
    blocks = values.reshape(*values.shape[:-1], -1, VALUES)
    ones = np.broadcast_to(np.float16([1]).view(np.uint8), (*blocks.shape[:-1], 2))
    if dtype == "q8_0":
        rest = blocks.astype(np.int8).view(np.uint8)
    else:
        low, high = np.split((blocks + 8).astype(np.uint8), 2, -1)
        rest = low | high << 4
    return np.concatenate([ones, rest], -1).reshape(*values.shape[:-1], -1)


def _bfloat16():
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _bits(array):
    """bfloat16 as the uint16 that the oracle takes. Other arrays stay as they lie."""
    return np.ascontiguousarray(array).view(np.uint16) if str(array.dtype) == "bfloat16" else array


def _to_numpy(output):
    if hasattr(output, "detach"):  # PyTorch's bfloat16 has no NumPy counterpart
        import torch

        output = output.detach().contiguous()
        return output.view(torch.int16).numpy().view(_bfloat16()) if output.dtype == torch.bfloat16 else output.numpy()
    return np.asarray(output)
