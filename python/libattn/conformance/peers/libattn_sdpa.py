# SPDX-License-Identifier: MIT
"""libattn.sdpa() and sdpa_grad()."""

import numpy as np

import libattn

from ..verdicts import Refused


def version():
    return libattn.version()


def sdpa(q, k, v, *, dtype="float32", kv_format=None, do=None, **options):
    q, do = convert(q, dtype), convert(do, dtype)
    if kv_format == "e4m3":
        k, v = (x.view(small_types().float8_e4m3fn) for x in (k, v))
    elif kv_format in ("q8_0", "q4_0"):
        options["kv_format"] = kv_format
    elif kv_format is None:
        k, v = convert(k, dtype), convert(v, dtype)
    if do is None:
        return libattn.sdpa(q, k, v, **options)
    o, lse = libattn.sdpa(q, k, v, return_lse=True, **options)
    return libattn.sdpa_grad(do, q, k, v, o, lse, **options)[:3]


def convert(x, dtype):
    if dtype == "float32" or x is None:
        return x
    return x.astype(np.float16 if dtype == "float16" else small_types().bfloat16)


def small_types():
    try:
        import ml_dtypes
    except ImportError:
        raise Refused("NumPy has no such type without ml_dtypes") from None
    return ml_dtypes
