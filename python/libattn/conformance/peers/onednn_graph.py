# SPDX-License-Identifier: MIT
"""oneDNN by libattn's kernels on it: the SDPA partition of its Graph API, or before 3.0 its matmul and softmax.

https://uxlfoundation.github.io/oneDNN/dev_guide_graph_sdpa.html
"""

import os
from pathlib import Path

import libattn

from .libattn_sdpa import sdpa as by_libattn

PLUGIN = os.environ.get("LIBATTN_ONEDNN", "")
if not Path(PLUGIN).is_file():
    raise ImportError("LIBATTN_ONEDNN names no libattn_onednn.so: scripts/peers/setup.sh onednn builds it")
libattn.load_kernels(PLUGIN)


KERNEL = next(kernel for kernel in libattn.kernels() if kernel.name in ("graph_onednn", "matmul_onednn"))


def version():
    return f"({KERNEL.library}, {KERNEL.name})"


def sdpa(q, k, v, **options):
    return by_libattn(q, k, v, kernel=KERNEL.name, **options)
