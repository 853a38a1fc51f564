#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tokens per second of examples/llm beside transformers (PyTorch's fused attention) on a Llama with random weights.

    compare.py PROGRAM [--dtype float32|bfloat16] [--texts N] [--prompt N] [--tokens N] [--threads N] [--rounds N] ...

Both run in turns, in changing order. The program is a new process each time, and its loading does not count; transformers
runs once before. Prints medians, and the ratios' median and range. In float32 both must give the same tokens.
"""

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    for name, value in {"width": 1024, "hidden": 2816, "layers": 8, "heads": 16, "heads-kv": 8, "vocabulary": 32000,
                        "texts": 1, "prompt": 512, "tokens": 33, "threads": 1, "rounds": 11}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    return parser.parse_args()


def make_model(o, folder):
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_num_threads(o.threads)
    config = transformers.LlamaConfig(
        vocab_size=o.vocabulary, hidden_size=o.width, intermediate_size=o.hidden, num_hidden_layers=o.layers,
        num_attention_heads=o.heads, num_key_value_heads=o.heads_kv, max_position_embeddings=o.prompt + o.tokens,
        eos_token_id=None, initializer_range=0.05)
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, o.dtype))
    model.save_pretrained(folder)
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, o.dtype),
                                                         attn_implementation="sdpa").eval()


def ours(o, folder, prompts):
    """(prompt tokens/s, new tokens/s, texts)"""
    words = [o.program, folder, "--tokens", str(o.tokens), "--threads", str(o.threads)]
    words += ["--bf16-rows", "1"] * (o.dtype == "bfloat16")  # theirs does
    result = subprocess.run([*words, *[",".join(map(str, prompt)) for prompt in prompts]], capture_output=True, text=True,
                            check=True)
    rates = re.search(r"read, ([\d.]+)/s; \d+ made after them, ([\d.]+)/s", result.stderr)
    return float(rates[1]), float(rates[2]), [[int(t) for t in line.split(",")] for line in result.stdout.splitlines()]


def theirs(o, model, prompts):
    import torch

    with torch.inference_mode():
        times, made, cache, new = [time.perf_counter()], [], None, torch.tensor(prompts)
        for _ in range(o.tokens):
            out = model(new, past_key_values=cache, use_cache=True, logits_to_keep=1)
            new, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
            made.append(new)
            times.append(time.perf_counter())
    return (o.texts * o.prompt / (times[1] - times[0]), o.texts * (o.tokens - 1) / (times[-1] - times[1]),
            torch.cat(made, 1).tolist())


def main():
    o = options()
    os.environ["OMP_NUM_THREADS"] = str(o.threads)
    r = random.Random(1)
    prompts = [[r.randrange(o.vocabulary) for _ in range(o.prompt)] for _ in range(o.texts)]
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(o, folder)
        theirs(o, model, prompts)
        rounds = []
        for i in range(o.rounds):
            sides = [lambda: ours(o, folder, prompts), lambda: theirs(o, model, prompts)]
            found = [side() for side in sides[::1 if i % 2 else -1]]
            rounds.append(found if i % 2 else found[::-1])
    if o.dtype == "float32" and any(a[2] != b[2] for a, b in rounds):
        sys.exit("the tokens differ")
    for at, name in enumerate(["prompt", "new"]):
        rates = [statistics.median(pair[side][at] for pair in rounds) for side in (0, 1)]
        ratios = sorted(a[at] / b[at] for a, b in rounds)
        print(f"{name}: {rates[0]:.1f} tokens/s, transformers {rates[1]:.1f}; ratio {statistics.median(ratios):.2f} "
              f"[{ratios[0]:.2f}, {ratios[-1]:.2f}]")


if __name__ == "__main__":
    main()
