# SPDX-License-Identifier: MIT
"""The dtypes of attn.h as NumPy arrays. NumPy has no bfloat16, so uint16 arrays hold its bits."""

import numpy as np

ARRAYS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(np.uint16)}
ALIGNMENT = 64  # bytes; workspaces and read loops need it


def aligned_empty(shape, dtype=np.float32):
    """np.empty whose data begins at a multiple of ALIGNMENT bytes."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start:start + size].view(dtype).reshape(shape)


def make_inputs(case, seed):
    """q, k, v: normal, mean zero, standard deviation 1, rounded to the dtype of the case."""
    rng = np.random.default_rng(seed)
    inputs = [aligned_empty((case.batch, heads, seq, case.head_dim), ARRAYS[case.dtype])
              for heads, seq in ((case.heads, case.seq_q), (case.heads_kv, case.seq_k), (case.heads_kv, case.seq_k))]
    for x in inputs:
        x[...] = store(rng.standard_normal(x.shape, dtype=np.float32), case.dtype)
    return inputs


def store(values, dtype):
    """float32 `values` in the dtype, rounded to nearest even; every NaN becomes the same NaN."""
    if dtype != "bf16":
        return values.astype(ARRAYS[dtype], copy=False)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    stored = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    stored[np.isnan(values)] = 0x7FC0
    return stored


def spoil(array):
    """Fills an output with NaN, so that the check notices a call that writes nothing."""
    array.fill(0x7FC0 if array.dtype == np.uint16 else np.nan)
