# SPDX-License-Identifier: MIT
"""Keys and values in blocks as ggml lays them out: 32 neighbours of a row share a float16 factor."""

from __future__ import annotations

from typing import Any

VALUES = 32
BYTES = {"q8_0": 34, "q4_0": 18}


def check_format(kv_format):
    if not isinstance(kv_format, str) or kv_format not in BYTES:
        raise ValueError(f"kv_format is {kv_format!r}; it must be one of {', '.join(map(repr, BYTES))}")


def _blocks(rows):
    """Rows of float32 as blocks of 32 [..., blocks, 32], with zeros behind the last."""
    import numpy as np

    rows = np.asarray(rows, np.float32)
    if rows.ndim < 1:
        raise ValueError(f"rows has {rows.ndim} dimensions; it must be [..., dim]")
    missing = -rows.shape[-1] % VALUES
    rows = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])
    return rows.reshape(*rows.shape[:-1], -1, VALUES)


def _join(factor, integers):
    """uint8 [..., blocks, 2 + bytes of the integers]."""
    import numpy as np

    with np.errstate(over="ignore"):  # becomes infinite, as in ggml
        half = factor.astype(np.float16).view(np.uint8)
    return np.concatenate([half, integers], axis=-1)


def _inverse(factor):
    import numpy as np

    with np.errstate(divide="ignore"):
        return np.where(factor == 0, np.float32(0), 1 / factor)


def q8_0(rows: Any) -> Any:
    """Rows [..., dim] as blocks of 8 bits, uint8 [..., blocks, 34]: for sdpa(kv_format="q8_0").

    The largest magnitude of 32 values becomes 127; the bytes are those of ggml and of gguf.quants.
    """
    import numpy as np

    x = _blocks(rows)
    factor = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    size = np.minimum(np.abs(x) * _inverse(factor), np.float32(127))
    down = np.floor(size)
    nearest = down + (size - down >= np.float32(0.5))
    return _join(factor, (np.sign(x) * nearest).astype(np.int8).view(np.uint8))


def q4_0(rows: Any) -> Any:
    """Rows [..., dim] as blocks of 4 bits, uint8 [..., blocks, 18]: for sdpa(kv_format="q4_0").

    The value of 32 that is farthest from 0 becomes -8; the bytes are those of ggml and of gguf.quants.
    """
    import numpy as np

    x = _blocks(rows)
    factor = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1) / np.float32(-8)
    n = np.clip(x * _inverse(factor) + np.float32(8.5), 0, 15).astype(np.uint8)
    return _join(factor, n[..., : VALUES // 2] | n[..., VALUES // 2 :] << 4)
