# SPDX-License-Identifier: MIT
"""What runs here, and a check of it: python -m libattn. Exit code 1 if a kernel fails the check."""

import sys

import libattn
from libattn._check import self_check
from libattn._native import LIBRARY


def describe():
    print(f"libattn {libattn.version()}  {LIBRARY}")
    print(f"python  {sys.version.split()[0]}{'' if getattr(sys, '_is_gil_enabled', lambda: True)() else ', free-threaded'}")
    print(f"tiers   {' '.join(libattn.tiers())}")
    print(f"threads {libattn.thread_source()}")


def main():
    describe()
    results = self_check()
    print(f"\n{'kernel':20} {'cases':>5}  error/limit")
    failed = 0
    for kernel in libattn.kernels():
        if kernel.unusable:
            print(f"{kernel.name:20} {'-':>5}  {kernel.unusable}")
            continue
        cases, error = results[kernel.name]
        passed = cases and error <= 1
        failed += not passed
        print(f"{kernel.name:20} {cases:5}  {error:.3f} {'passed' if passed else 'FAILED'}   {kernel.summary}")
    print("\nself-check against the float64 oracle:", "FAILED" if failed else "passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
