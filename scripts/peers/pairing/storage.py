# SPDX-License-Identifier: MIT
"""How numbers are stored: the dtypes of attn.h as NumPy arrays. NumPy has no bfloat16; its bits stand in uint16."""

import numpy as np

CODES = {"f32": 0, "f16": 1, "bf16": 2}  # attn_dtype
ARRAYS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(np.uint16)}
ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
LEAST_STEP = {"f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}  # the smallest positive value


def store(values, dtype, out=None):
    """float32 `values`, rounded to nearest even, as dtype; NaN becomes one NaN."""
    if dtype != "bf16":
        stored = values.astype(ARRAYS[dtype], copy=False)
    else:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        stored = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        stored[np.isnan(values)] = 0x7FC0
    if out is None:
        return stored
    out[...] = stored
    return out


def widen(array, dtype):
    """As float64."""
    if dtype == "bf16":
        array = (np.asarray(array).astype(np.uint32) << 16).view(np.float32)
    return array.astype(float)


def spoil(array):
    """Fills an output with NaN, so that a call that writes nothing is found out."""
    array.fill(0x7FC0 if array.dtype == np.uint16 else np.nan)
