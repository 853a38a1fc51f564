# SPDX-License-Identifier: MIT
"""Shows what runs here, and checks it: python -m libattn [--seconds S]. Exit code 1 if a kernel fails the check."""

import argparse
import sys

import libattn
from libattn._check import self_check
from libattn._native import LIBRARY


def describe():
    print(f"libattn {libattn.version()}  {LIBRARY}")
    print(f"python  {sys.version.split()[0]}{'' if getattr(sys, '_is_gil_enabled', lambda: True)() else ', free-threaded'}")
    print(f"tiers   {' '.join(libattn.tiers())}")
    print(f"threads {libattn.thread_source()}")


def read_seconds():
    parser = argparse.ArgumentParser(prog="python -m libattn",
                                     description="Prints version, tiers and kernels, and checks every kernel that this CPU "
                                                 "can run against the float64 oracle.",
                                     epilog="Exit code: 0, or 1 if a kernel fails the check.")
    parser.add_argument("--seconds", type=float, default=5, help="of drawn cases, after six chosen ones (default: 5)")
    return parser.parse_args().seconds


def main():
    seconds = read_seconds()
    describe()
    results = self_check(seconds)
    print(f"\n{'kernel':20} {'cases':>5}  error/limit")
    failed = 0
    for kernel in libattn.kernels():
        if kernel.unusable:
            print(f"{kernel.name:20} {'-':>5}  {kernel.unusable}")
            continue
        cases, error, worst = results[kernel.name]
        passed = cases and error <= 1
        failed += not passed
        print(f"{kernel.name:20} {cases:5}  {error:.3f} {'passed' if passed else 'FAILED'}   "
              f"{kernel.summary if passed or not cases else worst}")
    print("\nself-check against the float64 oracle:", "FAILED" if failed else "passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
