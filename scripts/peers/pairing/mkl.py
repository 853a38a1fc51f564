# SPDX-License-Identifier: MIT
"""Intel's MKL inside a peer: which kernels it uses, and how to give it the fast ones on CPUs of other makers.

MKL calls mkl_serv_intel_cpu_true(). If the answer is no, it uses generic kernels: its sgemm on AMD Zen 5 then has less
than half its AVX-512 speed. The remedy is to preload a function of that name that says yes; it works for libraries that
call it through their symbol table, as PyTorch's wheels do.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PRELOADED = "attn_mkl_as_on_intel.so"
SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\nint mkl_serv_intel_cpu(void) { return 1; }\n"


class MklError(Exception):
    """The library cannot be preloaded; the message says what is missing."""


def is_preloaded():
    return PRELOADED in os.environ.get("LD_PRELOAD", "")


def recognises_cpu(path):
    """Whether MKL in the loaded shared library at `path` uses its kernels for Intel's CPUs; None if it cannot be asked. A
    preloaded function answers first, as it does for MKL itself."""
    for place in (None, str(path)):
        with contextlib.suppress(OSError, AttributeError):
            return bool(ctypes.CDLL(place).mkl_serv_intel_cpu_true())
    return None


def kernels_of(torch):
    """Which kernels PyTorch's matrix products use, in words."""
    fast = recognises_cpu(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
    if fast is None:
        return "unknown"
    if not fast:
        return "generic, because this CPU is not Intel's; --mkl intel gives it the fast ones"
    return "those for Intel's CPUs (--mkl intel)" if is_preloaded() else "those for Intel's CPUs"


def add_option(add, title):
    add("--mkl", choices=("as-is", "intel"), default="as-is",
        help=f"intel: let {title}'s MKL use its fast kernels on another maker's CPU too (default as-is)")


def environment_of_others():
    """The environment for programs that this one starts, without the preloaded file, which may be deleted by then."""
    kept = [place for place in os.environ.get("LD_PRELOAD", "").split(":") if place and not place.endswith(PRELOADED)]
    return {**os.environ, "LD_PRELOAD": ":".join(kept)}


def restart_preloaded():
    """Restarts this program with the library preloaded, and does not return. The restarted program deletes the file."""
    if is_preloaded():
        places = os.environ["LD_PRELOAD"].split(":")
        shutil.rmtree(Path(next(place for place in places if place.endswith(PRELOADED))).parent, ignore_errors=True)
        return
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        raise MklError("--mkl intel needs a C compiler (cc, gcc or clang)")
    library = Path(tempfile.mkdtemp()) / PRELOADED
    done = subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)], input=SOURCE, text=True,
                          capture_output=True, check=False)
    if done.returncode:
        raise MklError(f"--mkl intel: {compiler} failed: {done.stderr.strip()}")
    preload = ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_PRELOAD": preload})
