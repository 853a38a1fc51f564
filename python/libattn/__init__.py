# SPDX-License-Identifier: MIT
"""libattn: attention on the CPU, in hand-written SIMD kernels.

    import libattn
    out = libattn.sdpa(q, k, v, causal=True)      # NumPy, PyTorch, JAX, ...: [batch, heads, tokens, dim]

`python -m libattn` shows what runs here and checks it.
"""

from ._native import Spec, Unsupported
from ._plan import (Kernel, Plan, forget_plans, kernels, load_kernels, plan_counts, thread_source, tiers, use_pool,
                    version, why_not)
from ._sdpa import sdpa

__version__ = version()
__all__ = ["Kernel", "Plan", "Spec", "Unsupported", "forget_plans", "kernels", "load_kernels", "plan_counts", "sdpa",
           "thread_source", "tiers", "use_pool", "version", "why_not"]
