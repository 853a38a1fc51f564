# SPDX-License-Identifier: MIT
"""Memory of outputs and workspaces."""

import numpy as np

from libattn.bench.problems import BITS as ARRAYS  # the dtypes of attn.h as NumPy arrays

__all__ = ["ARRAYS", "aligned_empty", "spoil"]

ALIGNMENT = 64  # bytes; workspaces and read loops need it


def aligned_empty(shape, dtype=np.float32):
    """np.empty whose data begins at a multiple of ALIGNMENT bytes."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start:start + size].view(dtype).reshape(shape)


def spoil(array):
    """Fills an output with NaN, so that the check notices a call that writes nothing."""
    array.fill(0x7FC0 if array.dtype == np.uint16 else np.nan)
