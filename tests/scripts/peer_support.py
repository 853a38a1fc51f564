# SPDX-License-Identifier: MIT
"""Shared by test_peers.py and test_peer_scripts.py: the library (ATTN_TEST_LIBATTN, else build/libattn.so), cases, and runs
of the peers' scripts."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import runs

np = pytest.importorskip("numpy")

ROOT = Path(__file__).resolve().parents[2]
PEERS_FOLDER = ROOT / "scripts" / "peers"
LIBRARY = Path(os.environ.get("ATTN_TEST_LIBATTN", ROOT / "build" / "libattn.so"))
sys.path[:0] = [str(PEERS_FOLDER), str(ROOT / "scripts")]

from pairing.cases import build_cases  # noqa: E402

needs_library = pytest.mark.skipif(
    not LIBRARY.exists(), reason=f"no {LIBRARY}: cmake --build build --target attn_shared attn_python attnbench_shared")

SMALL = ["-a", "heads=2", "-a", "seq=24", "-a", "head_dim=16", "--sample-ms", "0.05"]
ABSENT = 'raise ImportError("No module named {0!r}", name={0!r})\n'  # the source of a module that cannot be imported


def one_case(*axes, threads=1):
    return build_cases([], axes, threads)[0]


def compiler():
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    return found or pytest.skip("no C compiler")


def run_script(script, *arguments, folder, modules=None, interpreter=sys.executable, library=("--libattn", LIBRARY),
               **environment):
    """Runs the script of a peer. modules: name -> source of a module that hides the real one, written into `folder`."""
    for name, source in (modules or {}).items():
        (folder / f"{name}.py").write_text(source)
    return runs.run([interpreter, PEERS_FOLDER / script, *library, *arguments], PYTHONDONTWRITEBYTECODE="1",
                    PYTHONPATH=str(folder), **environment)
