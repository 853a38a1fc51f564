# SPDX-License-Identifier: MIT
"""Shared by the scripts of all peers: libattn, cases, rounds, tables and files. Statistics, oracle and peaks are those of
the Python package (libattn.bench), as it is installed or, without that, of the build tree."""

import importlib.util
import os
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_BUILT = _ROOT / "build" / "python" / "libattn_python.so"

if "LIBATTN_PYTHON" in os.environ or not importlib.util.find_spec("libattn"):
    sys.path.append(str(_ROOT / "python"))
    path = os.environ.setdefault("LIBATTN_PYTHON", str(_BUILT))
    if not Path(path).exists():
        print(f"{path} is missing: cmake --build build --target attn_python attnbench_shared makes it", file=sys.stderr)
        sys.exit(2)
