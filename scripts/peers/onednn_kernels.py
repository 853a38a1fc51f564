#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""oneDNN against libattn's own kernels: same buffers, same threads, one process, rounds in random order.

    scripts/peers/setup.sh onednn
    .venv-peers/onednn/bin/python scripts/peers/onednn_kernels.py --cases limits --csv results/local/onednn.csv

libattn has kernels on oneDNN's C interface, with primitives made in the plan and buffers in the workspace (kernels/onednn/).
This script times them in the libattn that setup.sh builds with oneDNN 3.13:

matmul_onednn  matmul, softmax, matmul for a block of rows or a head
graph_onednn   the SDPA partition of its graph interface

PyPI's oneDNN is built for SYCL: each call goes through a queue and TBB's threads, which costs time in small cases. Another
libattn (--libattn build/libattn.so) uses the oneDNN that it was built with, such as Debian's 2.6 on OpenMP. Method and exit
codes: scripts/peers/README.md.
"""

import os
import sys

from pairing.machine import need_numpy, prepare_environment

prepare_environment()  # before NumPy starts its threads
need_numpy()
from pairing import script  # noqa: E402
from pairing.ours import LibraryKernel  # noqa: E402
from pairing.peers import PEERS, ROOT  # noqa: E402

PEER = PEERS["onednn"]
ENVIRONMENT = ROOT / ".venv-peers" / "onednn"
WITH_ONEDNN = ENVIRONMENT / "build" / "libattn.so"

# PyPI's oneDNN is built for SYCL: its CPU engine runs on Intel's OpenCL runtime, which the package has here.
OPENCL = ENVIRONMENT / "lib" / "libintelocl.so"


def implementations(_options, library):
    remedy = f"{PEER.install} builds a libattn that has it"
    library.load_plugins()
    return [LibraryKernel(library, name, name, remedy) for name in PEER.kernels]


def conditions(_options):
    return ["oneDNN: the one that this libattn was built with (column library)"]


if __name__ == "__main__":
    if OPENCL.exists():
        os.environ.setdefault("OCL_ICD_FILENAMES", str(OPENCL))
    default = WITH_ONEDNN if WITH_ONEDNN.exists() else script.Script.libattn
    sys.exit(script.main(script.Script(PEER, __doc__, implementations, conditions, libattn=default, own_threads=True)))
