# SPDX-License-Identifier: MIT
"""Settings of the tests: where the package is, and which tests run only with --long."""

import os
import sys
from pathlib import Path

import pytest

if "LIBATTN_PYTHON" in os.environ:  # the build tree's library with the package of the source tree
    sys.path.insert(0, str(Path(__file__).parent.parent))


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="more cases; also by ATTN_TEST_LONG=1")


@pytest.fixture
def long(request):
    return request.config.getoption("--long") or os.environ.get("ATTN_TEST_LONG") == "1"
