# SPDX-License-Identifier: MIT
"""Greedy tokens of llama.cpp, and their logits, as JSON: ggml_runs.py MODEL TYPE THREADS, by the peer ggml's interpreter.
Gemma's own next token would be the last one, again and again, so that it reads another."""

import ctypes
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PEER = ROOT / ".venv-peers/ggml"
PROGRAMS = PEER / "build/bin"
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}  # enum ggml_type
PROMPT, NEW_TOKENS, VOCABULARY = 75, 24, 32


def main(model, kind, threads):
    os.environ["LLAMA_CPP_LIB_PATH"] = str(PROGRAMS)
    sys.path.insert(0, str(PEER / "llama"))
    import llama_cpp

    ctypes.CDLL(str(PROGRAMS / "libggml.so")).ggml_backend_load_all_from_path(str(PROGRAMS).encode())
    llama_cpp.llama_backend_init()
    found = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = 512, 64, 32  # a prompt in pieces
    settings.n_threads = settings.n_threads_batch = int(threads)
    settings.flash_attn_type = 1
    settings.type_k = settings.type_v = TYPES[kind]
    context = llama_cpp.llama_init_from_model(found, settings)
    tokens, best = [(7 * i * i + 3 * i) % VOCABULARY for i in range(PROMPT)], []

    def read(some):
        array = (llama_cpp.llama_token * len(some))(*some)
        assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(some))) == 0
        logits = llama_cpp.llama_get_logits_ith(context, -1)
        return max((logits[i], i) for i in range(VOCABULARY))

    read(tokens[:64])
    score, token = read(tokens[64:])
    generated = []
    for i in range(NEW_TOKENS):
        generated.append(token)
        best.append(score)
        score, token = read([(token + 5 * i * ("gemma" in model)) % VOCABULARY])
    print(json.dumps({"tokens": generated, "best": best}))


if __name__ == "__main__":
    main(*sys.argv[1:])
