# SPDX-License-Identifier: MIT
"""Runs the Python code of README.md, python/README.md and docs/python.md: the blocks of each page one after the other,
without those that import a package which is not here."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = ["README.md", "python/README.md", "docs/python.md"]


def blocks(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(text[:m.start()].count("\n") + 2, m[1]) for m in re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)]


@pytest.mark.parametrize("page", PAGES)
def test_page(page):
    pytest.importorskip("numpy")
    names = {"__name__": "page"}
    found, left_out = blocks(page), []
    assert found
    for line, code in found:
        packages = re.findall(r"^\s*(?:import|from) (torch|transformers|jax|ml_dtypes|onnx|pandas)", code, re.M)
        missing = [package for package in packages if not importlib.util.find_spec(package)]
        if missing:
            left_out.append(f"line {line} of {page}: no {missing[0]}")
        else:
            exec(compile("\n" * (line - 1) + code, page, "exec"), names)
    if left_out:
        pytest.skip("; ".join(left_out))
