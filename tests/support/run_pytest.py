#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a test file below tests/ with pytest; exit code 77 (skipped) where a package it needs is missing.

run_pytest.py [--peer NAME] FILE [PACKAGE...]

--peer: by the interpreter of .venv-peers/NAME (scripts/peers/setup.sh).
"""

import importlib
import os
import sys
from pathlib import Path

if sys.argv[1] == "--peer":
    interpreter = Path(__file__).parents[2] / ".venv-peers" / sys.argv[2] / "bin" / "python"
    if not interpreter.exists():
        print(f"skipped: no {interpreter} (scripts/peers/setup.sh {sys.argv[2]})")
        sys.exit(77)
    os.execv(interpreter, [interpreter, __file__, *sys.argv[3:]])
try:
    pytest, *_ = [importlib.import_module(package) for package in ("pytest", *sys.argv[2:])]
except ImportError as missing:
    print(f"skipped: no {missing.name} (python3 -m pip install {missing.name})")
    sys.exit(77)

code = pytest.main(["-q", "-rs", "-p", "no:cacheprovider", str(Path(__file__).parents[1] / sys.argv[1])])
if code == pytest.ExitCode.NO_TESTS_COLLECTED:
    print(f"skipped: no test of {sys.argv[1]} can run here")
    code = 77
sys.exit(code)
