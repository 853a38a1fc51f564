# SPDX-License-Identifier: MIT
"""libattn: attention on the CPU, in hand-written SIMD kernels.

    import libattn
    out = libattn.sdpa(q, k, v, causal=True)      # NumPy, PyTorch, JAX, ...: [batch, heads, tokens, dim]

`python -m libattn` shows what runs here and checks it.
"""

from . import layers
from ._kv import Rope, kv_append, rope
from ._native import Spec, Unsupported
from ._plan import (Kernel, Plan, Timing, Tuning, dropout_mask, forget_plans, kernels, load_kernels, merge, new_state,
                    plan_counts, thread_source, tiers, tune, use_pool, version, why_not)
from ._blocks import q4_0, q8_0
from ._key_blocks import KeyBlocks
from ._sdpa import Gradients, sdpa, sdpa_grad
from .layers import KVPool

__version__ = version()
__all__ = ["Gradients", "KVPool", "Kernel", "KeyBlocks", "Plan", "Rope", "Spec", "Timing", "Tuning", "Unsupported",
           "dropout_mask", "forget_plans", "kernels", "kv_append", "layers", "load_kernels", "merge", "new_state",
           "plan_counts", "q4_0", "q8_0", "rope", "sdpa", "sdpa_grad", "thread_source", "tiers", "tune", "use_pool",
           "version", "why_not"]
