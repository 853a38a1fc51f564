# SPDX-License-Identifier: MIT
"""libggml-attn.so in ggml: its own tests of attention, and a small llama whose tokens stay the same.

    scripts/peers/setup.sh ggml && cmake --preset release && cmake --build build --target attn_ggml attn_python
    ctest --test-dir build -R engines_ggml
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ggml_runs import PROGRAMS, ROOT, TYPES, write_model

pytest.importorskip("gguf")
pytest.importorskip("numpy")
BACKEND = Path(os.environ.get("LIBATTN_PYTHON", ROOT / "build/python/x")).parent.parent / "libggml-attn.so"
if not (PROGRAMS / "test-backend-ops").exists():
    pytest.skip(f"no {PROGRAMS}/test-backend-ops: scripts/peers/setup.sh ggml", allow_module_level=True)
if not BACKEND.exists():
    pytest.skip(f"no {BACKEND}: configure again after scripts/peers/setup.sh ggml", allow_module_level=True)


def with_backend():
    return {**os.environ, "GGML_BACKEND_PATH": str(BACKEND)}


def test_backend_ops():
    """ggml's own test: every case of the types that libattn takes, beside the CPU's backend."""
    done = subprocess.run([PROGRAMS / "test-backend-ops", "test", "-o", "FLASH_ATTN_EXT", "-b", "libattn"], check=False,
                          env=with_backend(), capture_output=True, text=True)
    cases = [line for line in done.stdout.splitlines() if line.startswith("  FLASH_ATTN_EXT(")]
    assert done.returncode == 0, "\n".join(line for line in cases if "FAIL" in line) or done.stdout[-2000:] + done.stderr
    passed = [line for line in cases if line.endswith("OK\x1b[0m")]
    for kind in TYPES:
        of_kind = [line for line in cases if f"type_K={kind},type_V={kind}," in line]
        assert len(of_kind) > 100 and all(line in passed for line in of_kind), kind


def generate(model, kind, threads, environment):
    program = Path(__file__).with_name("ggml_runs.py")
    done = subprocess.run([sys.executable, program, model, kind, str(threads)], check=False, env=environment,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("arch", ["llama", "gemma2"])
def test_tokens(arch, tmp_path):
    """Greedy tokens with and without the backend, by caches of every type; the scheduler copies nothing for it. With the
    seed, the best token leads by more than what rounding Q to the type of K, as ggml does, makes of a logit."""
    write_model(tmp_path / f"{arch}.gguf", arch, seed=7)
    for kind in TYPES:
        for threads in (1, 2) if kind == "f16" else (1,):  # two are slow: they turn while they wait
            ours, log = generate(tmp_path / f"{arch}.gguf", kind, threads, {**with_backend(), "GGML_SCHED_DEBUG": "2"})
            right, other_log = generate(tmp_path / f"{arch}.gguf", kind, threads, os.environ)
            assert ours["tokens"] == right["tokens"] and len(set(ours["tokens"])) > 3, kind
            limit = 0.1 if kind.startswith("q") else 0.02
            assert max(abs(a - b) for a, b in zip(ours["best"], right["best"])) < limit, kind
            splits = [line for line in log.splitlines() if "SPLIT" in line and "libattn" in line]
            assert splits and all("# 0 inputs" in line for line in splits)
            assert "libattn" not in other_log
