#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs other projects' own tests of attention against libattn, unchanged, through the shims of upstream/.

    tests/clients/check_upstream.py --flash-attention ~/flash-attention --vllm ~/vllm [--sample 200] [--seed 1]
                                    [--gigabytes 4] [--seconds 60] [--only kvcache]

Both are checkouts (or unpacked sdists) of yours; none is a part of this repository. The environment variables
ATTN_FLASH_ATTENTION and ATTN_VLLM name them too. Needs pytest, torch and, for FlashAttention, einops; LIBATTN_PYTHON names
libattn_python.so (default: that of build/). Of FlashAttention all tests of its functions run, of vLLM those of CPU
attention. Every skip is printed with its reason, also of cases that want more memory or time than may be.

Exit code: 0 all passed or were skipped, 1 a test failed, 77 no checkout, or a package is missing.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent / "upstream"
ROOT = HERE.parents[2]
# name -> (the shim, its file of tests, what they import beside torch and pytest)
PROJECTS = {"flash-attention": ("flash_attn_shim", "tests/test_flash_attn.py", ["einops"]),
            "vllm": ("vllm_shim", "tests/kernels/attention/test_cpu_attn.py", [])}


def run(name, checkout, options):
    """The exit code of pytest on that project's tests."""
    shim, file, _ = PROJECTS[name]
    tests = checkout.resolve() / file
    paths = [str(ROOT / "python"), str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = {"LIBATTN_PYTHON": str(ROOT / "build/python/libattn_python.so"), **os.environ,
                   "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                   variable(name): str(checkout.resolve()), "ATTN_UPSTREAM_SAMPLE": str(options.sample),
                   "ATTN_UPSTREAM_SEED": str(options.seed), "ATTN_UPSTREAM_GIGABYTES": str(options.gigabytes),
                   "ATTN_UPSTREAM_SECONDS": str(options.seconds)}
    which_cases = f"{options.sample} cases of each test, seed {options.seed}" if options.sample else "all cases"
    print(f"{name}: {tests}, {which_cases}", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-rs", "--tb=short", "-p", "sampling", "-p", shim,
                           "-p", "no:cacheprovider", "--noconftest", "--rootdir", tests.parent, "-k", options.only, tests],
                          env=environment, cwd=HERE, check=False).returncode


def variable(name):
    return f"ATTN_{name.upper().replace('-', '_')}"


def why_not(name, checkout):
    """A sentence that says why these tests cannot run, or None."""
    _, file, modules = PROJECTS[name]
    if checkout is None:
        return f"no checkout of {name}; --{name} PATH or {variable(name)} names one"
    if not (checkout / file).exists():
        return f"{checkout} has no {file}; a checkout of {name} is right"
    missing = [module for module in ("torch", "pytest", *modules) if not importlib.util.find_spec(module)]
    return f"{name}: no {missing[0]}; {sys.executable} -m pip install {' '.join(missing)}" if missing else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    for name in PROJECTS:
        parser.add_argument(f"--{name}", dest=name, type=Path, metavar="PATH", help=f"a checkout of {name}",
                            default=Path(os.environ[variable(name)]) if variable(name) in os.environ else None)
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="cases of each test function (default: all)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the sample (default: 1)")
    parser.add_argument("--gigabytes", type=float, default=0, metavar="N", help="leave out cases that want more memory")
    parser.add_argument("--seconds", type=float, default=0, metavar="N", help="leave out cases that take more CPU time")
    parser.add_argument("--only", default="", metavar="EXPRESSION", help="tests whose names match, as pytest's -k")
    options = parser.parse_args()
    codes = []
    for name in PROJECTS:
        checkout = getattr(options, name)
        reason = why_not(name, checkout)
        if reason:
            print(f"skipped: {reason}")
        else:
            codes.append(run(name, checkout, options))
    return 1 if any(codes) else 0 if codes else 77


if __name__ == "__main__":
    sys.exit(main())
