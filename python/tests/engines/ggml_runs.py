# SPDX-License-Identifier: MIT
"""Models of random weights for llama.cpp; greedy tokens and their logits as JSON: ggml_runs.py MODEL TYPE THREADS, by the
peer ggml's interpreter. Gemma's own next token would be the last one, again and again, so that it reads another."""

import ctypes
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PEER = ROOT / ".venv-peers/ggml"
PROGRAMS = PEER / "build/bin"
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}  # enum ggml_type
PROMPT, NEW_TOKENS, VOCABULARY = 75, 24, 32


def write_model(path, arch, seed, width=128, heads=4, kv_heads=2, hidden=192, layers=2, dim=32, dtype="float32"):
    import gguf
    import numpy as np

    r = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(8192)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
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
        writer.add_tensor(name, values.astype(dtype if len(shape) > 1 else np.float32))

    add("token_embd.weight", VOCABULARY, width)
    add("output_norm.weight", width)
    if arch != "gemma2":
        add("output.weight", VOCABULARY, width)
    for layer in range(layers):
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


def start(model, kind, threads, **options):
    """(llama_cpp, a context, a function that reads tokens). options: of llama_context_params."""
    import llama_cpp

    ctypes.CDLL(str(PROGRAMS / "libggml.so")).ggml_backend_load_all_from_path(str(PROGRAMS).encode())
    llama_cpp.llama_backend_init()
    found = llama_cpp.llama_model_load_from_file(str(model).encode(), llama_cpp.llama_model_default_params())
    settings = llama_cpp.llama_context_default_params()
    for name, value in {**dict.fromkeys(("n_threads", "n_threads_batch"), int(threads)),
                        **dict.fromkeys(("type_k", "type_v"), TYPES[kind]), "flash_attn_type": 1, **options}.items():
        setattr(settings, name, value)
    context = llama_cpp.llama_init_from_model(found, settings)

    def read(some):
        array = (llama_cpp.llama_token * len(some))(*some)
        assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(some))) == 0

    return llama_cpp, context, read


def main(model, kind, threads):
    llama_cpp, context, decode = start(model, kind, threads, n_ctx=512, n_batch=64, n_ubatch=32)  # a prompt in pieces
    tokens, best = [(7 * i * i + 3 * i) % VOCABULARY for i in range(PROMPT)], []

    def read(some):
        decode(some)
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
