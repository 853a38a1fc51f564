# SPDX-License-Identifier: MIT
"""Things that can disturb a measurement in a process with two libraries that each have threads."""

import os
import re
import sys

# Variables that change measurements; those that are set are printed with the results.
VARIABLES = re.compile(r"(ATTN|OMP|GOMP|KMP|MKL|ONEDNN|DNNL|ATEN|TORCH|OPENBLAS|MALLOC|OCL|TBB)_\w+"
                       r"|LD_PRELOAD|GLIBC_TUNABLES")


def prepare_environment():
    """Sets defaults that must be set before the first thread starts, so before NumPy or a peer is imported.

    NumPy's OpenBLAS would have workers that spin during the first samples. LLVM's OpenMP, if it is a second runtime, lets
    its workers spin for 200 ms after each region; 1 ms is longer than the gaps inside a sample and shorter than the pause
    between samples.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("KMP_BLOCKTIME", "1")


def settings_of_environment():
    return {name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)}


def openmp_runtimes():
    """Paths of the OpenMP runtimes in this process. There should be one that both sides share, because idle workers of two
    runtimes spin against each other."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if line.count("/")}
    return sorted(path for path in paths if re.match(r"lib([gi]?omp)\d*[-.][^/]*so|libiomp5", os.path.basename(path)))


def need_numpy():
    """Ends the program as skipped if NumPy is missing, because nothing can be checked without it."""
    try:
        import numpy  # noqa: F401  # pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        print("skipped: no NumPy (python3 -m pip install numpy)")
        sys.exit(77)
