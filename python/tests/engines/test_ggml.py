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
from ggml_runs import PROGRAMS, ROOT, TYPES, VOCABULARY

gguf = pytest.importorskip("gguf")
np = pytest.importorskip("numpy")
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


def write_model(path, arch, seed):
    """A model of two layers with random weights."""
    r = np.random.default_rng(seed)
    width, heads, kv_heads, hidden, dim = 128, 4, 2, 192, 32
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_block_count(2)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    if arch == "gemma2":  # softcap, sliding windows of 32 keys in every other layer, heads whose width is their own
        writer.add_key_length(dim)
        writer.add_value_length(dim)
        writer.add_attn_logit_softcapping(3.0)
        writer.add_final_logit_softcapping(30.0)
        writer.add_sliding_window(32)
    else:
        writer.add_rope_dimension_count(dim)

    def add(name, *shape, scale=0.1):
        values = r.standard_normal(shape) * scale if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", VOCABULARY, width)
    add("output_norm.weight", width)
    if arch != "gemma2":
        add("output.weight", VOCABULARY, width)
    for layer in range(2):
        shapes = {"attn_norm": (width,), "attn_q": (heads * dim, width), "attn_k": (kv_heads * dim, width),
                  "attn_v": (kv_heads * dim, width), "attn_output": (width, heads * dim), "ffn_norm": (width,),
                  "ffn_gate": (hidden, width), "ffn_up": (hidden, width), "ffn_down": (width, hidden)}
        if arch == "gemma2":
            shapes |= {"post_attention_norm": (width,), "post_ffw_norm": (width,)}
        for name, shape in shapes.items():
            add(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
