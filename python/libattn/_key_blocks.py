# SPDX-License-Identifier: MIT
"""KeyBlocks: which blocks of keys are visited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KeyBlocks:
    """Lists of the blocks of keys that each block of queries visits, for sdpa(key_blocks=...).

    The names are those of PyTorch's BlockMask, which sdpa() takes as well. kv_num_blocks: entries of each list, int32
    [batch, kv_heads, blocks of queries]. kv_indices: the lists, int32 [batch, kv_heads, blocks of queries, entries];
    block n has the keys from n BLOCK_SIZE[1] on. Batch and kv_heads may be 1, to broadcast. Entries may come in any
    order, and those behind a list's number hold anything. full_kv_num_blocks, full_kv_indices: the same for blocks in
    which `mask` does not count. BLOCK_SIZE: queries that share a list, a multiple of 16, and keys of a block, a
    multiple of 64.
    """

    kv_num_blocks: Any
    kv_indices: Any
    full_kv_num_blocks: Any = None
    full_kv_indices: Any = None
    BLOCK_SIZE: tuple[int, int] = (128, 128)
