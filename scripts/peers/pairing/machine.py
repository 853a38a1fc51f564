# SPDX-License-Identifier: MIT
"""What can disturb or colour a measurement in a process that holds two libraries with threads of their own."""

import os
import re
import sys

# Variables that change what is measured; printed with the results where they are set.
VARIABLES = re.compile(r"(ATTN|OMP|GOMP|KMP|MKL|ONEDNN|DNNL|ATEN|TORCH|OPENBLAS|MALLOC|OCL|TBB)_\w+"
                       r"|LD_PRELOAD|GLIBC_TUNABLES")


def prepare_environment():
    """Defaults that only count before the first thread starts, so call this before importing NumPy or a peer.

    OpenBLAS (NumPy's, for the float64 reference) would leave workers spinning into the first samples. LLVM's OpenMP, should
    it come in as a second runtime, lets its workers spin for 200 ms after each region; 1 ms is longer than the gaps inside a
    sample and shorter than the pause between two.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("KMP_BLOCKTIME", "1")


def settings_of_environment():
    return {name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)}


def openmp_runtimes():
    """Paths of the OpenMP runtimes in this process. One, shared by both sides, is right: its idle workers are the next
    region's workers. Those of two spin against each other."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if line.count("/")}
    return sorted(path for path in paths if re.match(r"lib([gi]?omp)\d*[-.][^/]*so|libiomp5", os.path.basename(path)))


def need_numpy():
    """Ends the program as skipped where NumPy is missing: nothing can be checked without it."""
    try:
        import numpy  # noqa: F401  # pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        print("skipped: no NumPy (python3 -m pip install numpy)")
        sys.exit(77)
