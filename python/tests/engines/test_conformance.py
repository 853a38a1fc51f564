# SPDX-License-Identifier: MIT
"""attn-conformance by every peer that is installed: it runs, and what docs/conformance.md publishes holds.

Each peer runs by the interpreter of its environment (scripts/peers/setup.sh), where there is one, else by this one.
The test engines_conformance sets ATTN_TEST_CONFORMANCE=all. Others, which run these files as well, take some cases of
each peer, all of libattn, and no reproductions.
"""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from libattn.conformance.runner import Results

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "peers" / "conformance.py"
if not SCRIPT.exists():
    pytest.skip("no checkout", allow_module_level=True)
MATRIX = runpy.run_path(str(SCRIPT))
NOT_INSTALLED = 77
FEW = os.environ.get("ATTN_TEST_CONFORMANCE") != "all"
# The published verdicts are of a CPU with AVX512-FP16. On others peers refuse 8 bits, or compute 16 bits in other steps.
PUBLISHED_CPU = "avx512_fp16" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
MISTAKES = "AttributeError", "NameError", "KeyError", "IndexError", "AssertionError", "UnboundLocalError"


def interpreter_of(environment):
    own = ROOT / ".venv-peers" / environment / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def run(environment, *arguments):
    return subprocess.run([interpreter_of(environment), *map(str, arguments)], capture_output=True, text=True,
                          env=MATRIX["settings"](), check=False)


@pytest.mark.parametrize("name", MATRIX["ENVIRONMENTS"])
def test_peer(name, tmp_path):
    cases = "*/*causal*" if FEW and name != "libattn" else "*"
    done = run(MATRIX["ENVIRONMENTS"][name], "-m", "libattn.conformance", "--peer", name, "--cases", cases, "--json",
               tmp_path / "r.json")
    if done.returncode == NOT_INSTALLED or "No module named 'numpy'" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    results = Results.from_dict(json.loads((tmp_path / "r.json").read_text(encoding="utf-8")))
    assert not [verdict for verdict in results.verdicts if verdict.words.startswith(MISTAKES)]  # our adapter is wrong
    file = ROOT / "results" / "conformance" / f"{name}.json"
    published = Results.from_dict(json.loads(file.read_text(encoding="utf-8")))
    statuses = [{verdict.case: verdict.status for verdict in one.verdicts} for one in (published, results)]
    changed = sorted(f"{case} was {statuses[0].get(case)}, is {status}" for case, status in statuses[1].items()
                     if statuses[0].get(case) != status)
    if published.title != results.title:
        pytest.skip(f"{results.title}, where {published.title} is published: {'; '.join(changed) or 'the same verdicts'}")
    if changed and name != "libattn" and not PUBLISHED_CPU:
        pytest.skip(f"{results.title} on a CPU without AVX512-FP16, where one with it is published: {'; '.join(changed)}")
    assert not changed


REPRODUCTIONS = [("onnxruntime", "[0.2 0.2 0.2 0.2 0.2]"), ("onnxruntime", "0.94419"), ("onnxruntime", "[ 1.  0. nan]"),
                 ("ggml", "0.7876"), ("torch", "-2.38"), ("torch", "5.3802e-32"), ("openvino", "0.0078125")]


@pytest.mark.skipif(FEW, reason="only in engines_conformance")
@pytest.mark.parametrize("number", range(len(REPRODUCTIONS)))
def test_reproduction(number):
    """A failure that docs/conformance.md shows is still there, by the peer alone."""
    text = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1 + number].split("```")[0]
    environment, wanted = REPRODUCTIONS[number]
    if environment == "openvino" and not PUBLISHED_CPU:
        pytest.skip("OpenVINO fails so on CPUs with AVX512-FP16 alone")
    done = run(environment, "-c", code)
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0 and wanted in done.stdout, done.stdout + done.stderr
