#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a test file of this folder with pytest; exit code 77 (skipped) where a package it needs is missing.

run_pytest.py FILE [PACKAGE...]
"""

import importlib
import sys
from pathlib import Path

try:
    pytest, *_ = [importlib.import_module(package) for package in ("pytest", *sys.argv[2:])]
except ImportError as missing:
    print(f"skipped: no {missing.name} (python3 -m pip install {missing.name})")
    sys.exit(77)

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", str(Path(__file__).parent / sys.argv[1])]))
