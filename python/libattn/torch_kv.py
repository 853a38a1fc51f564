# SPDX-License-Identifier: MIT
"""torch.ops.libattn.kv_append and rope: libattn.kv_append() and libattn.rope() as operators of PyTorch's, for torch.compile
and torch.export. They have no gradients. Importing libattn.torch registers them."""

from __future__ import annotations

import functools

import torch

from ._kv import Rope, kv_append, rope

_library = torch.library.Library("libattn", "FRAGMENT")
_library.define("kv_append(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? past=None, "
                "Tensor? counts=None, Tensor? cu_seqlens=None, Tensor? page_table=None, Tensor? slots=None, "
                "str layout='', str cache_layout='bhsd', Tensor? k_scale=None, Tensor? v_scale=None, "
                "Tensor(c!)? k_scale_cache=None, Tensor(d!)? v_scale_cache=None, str kv_format='', "
                "bool hadamard=False) -> ()", tags=torch.Tag.pt2_compliant_tag)
_library.define("rope(Tensor x, str pairing, int dim, float base=10000., Tensor? positions=None, Tensor? past=None, "
                "str layout='bhsd', str scaling='', float factor=0., float original_length=0., float beta_fast=0., "
                "float beta_slow=0., bool truncate=True, float attention_factor=0., float low_freq_factor=0., "
                "float high_freq_factor=0.) -> Tensor", tags=torch.Tag.pt2_compliant_tag)

_rotation = functools.lru_cache(maxsize=64)(Rope)


def _flat(x):
    return None if x is None else x.reshape(-1)


def _append(k, v, k_cache, v_cache, past=None, counts=None, cu_seqlens=None, page_table=None, slots=None, layout="",
            cache_layout="bhsd", k_scale=None, v_scale=None, k_scale_cache=None, v_scale_cache=None, kv_format="",
            hadamard=False):
    kv_append(k, v, k_cache, v_cache, past=past, counts=counts, cu_seqlens=cu_seqlens, page_table=page_table,
              slots=_flat(slots), layout=layout or None, cache_layout=cache_layout, k_scale=k_scale, v_scale=v_scale,
              k_scale_cache=k_scale_cache, v_scale_cache=v_scale_cache, kv_format=kv_format or None, hadamard=hadamard)


def _rotate(x, pairing, dim, base=10000.0, positions=None, past=None, layout="bhsd", scaling="", **numbers):
    return rope(x, _rotation(pairing, dim, base=base, scaling=scaling or None, **numbers), positions=_flat(positions),
                past=past, layout=layout, out=torch.empty(x.shape, dtype=x.dtype))


_library.impl("kv_append", _append, "CPU")
_library.impl("rope", _rotate, "CPU")
torch.library.register_fake("libattn::kv_append", lambda *tensors, **options: None, lib=_library)
torch.library.register_fake("libattn::rope", lambda x, *others, **options: x.new_empty(x.shape), lib=_library)
