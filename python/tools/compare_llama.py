#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tokens per second of llama.cpp with libggml-attn.so, with ggml's own flash attention, and without one: a table of
docs/python.md.

    scripts/peers/setup.sh ggml && cmake --preset release && cmake --build build --target attn_ggml attn_python
    .venv-peers/ggml/bin/python python/tools/compare_llama.py [--threads 2]

A llama of random weights in float16: 4 layers of width 512, 8 heads of 64 over 4 KV heads. "prompt" is one of so many
tokens, 512 at a time, "generation" 16 tokens behind it. Each way has a process, since backends are found when llama.cpp
starts; it waits while another is timed. The order changes from round to round; ratios are medians of the rounds' with 95 %
intervals (order statistics).
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
from pathlib import Path

from compare_ggml import interval

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python" / "tests" / "engines"))

from ggml_runs import VOCABULARY, start, write_model  # noqa: E402

WAYS = {"libattn": "1", "ggml's": "1", "none": "0"}  # -> flash_attn_type; llama.cpp has no q8_0 without flash attention
CASES = [("f16", 512), ("f16", 2048), ("f16", 6144), ("q8_0", 2048), ("q8_0", 6144)]  # type of K and V, prompt
GENERATED = 16


def work(model, kind, threads, flash, prompt):
    """Says the seconds of each way that a line of standard input names."""
    prompt = int(prompt)
    llama_cpp, context, read = start(model, kind, threads, n_ctx=prompt + 256, n_batch=512, n_ubatch=512,
                                     flash_attn_type=int(flash))
    memory = llama_cpp.llama_get_memory(context)
    tokens = [(7 * i * i + 3 * i) % VOCABULARY for i in range(prompt + GENERATED)]

    def read_prompt():
        llama_cpp.llama_memory_clear(memory, True)
        for first in range(0, prompt, 512):
            read(tokens[first:min(first + 512, prompt)])

    def generate():
        for token in tokens[prompt:]:
            read([token])
        llama_cpp.llama_memory_seq_rm(memory, 0, prompt, -1)

    for line in sys.stdin:
        begin = time.perf_counter()
        {"prompt": read_prompt, "generation": generate}[line.strip()]()
        print(time.perf_counter() - begin, file=sys.__stdout__, flush=True)


def begin(model, kind, prompt, way, options):
    backend = {"GGML_BACKEND_PATH": str(options.backend)} if way == "libattn" else {}
    return subprocess.Popen([sys.executable, __file__, "--work", model, kind, str(options.threads), WAYS[way], str(prompt)],
                            env={**os.environ, **backend}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)


def seconds(process, what):
    print(what, file=process.stdin, flush=True)
    return float(process.stdout.readline())


def rows(model, kind, prompt, options):
    ways = [way for way in WAYS if kind == "f16" or WAYS[way] == "1"]
    processes = {way: begin(model, kind, prompt, way, options) for way in ways}
    for what, tokens in (("prompt", prompt), ("generation", GENERATED)):
        times = {way: [] for way in ways}
        for process in processes.values():
            seconds(process, what)  # warm; and the prompt lies in the cache
        for _ in range(options.rounds):
            for way in random.sample(ways, len(ways)):
                times[way].append(seconds(processes[way], what))
        ours = times["libattn"]
        cells = [f"{tokens / statistics.median(ours):.0f}"]
        for way in list(WAYS)[1:]:
            found = interval([a / b for a, b in zip(times[way], ours)]) if way in times else None
            cells.append("**{:.2f}** ({:.2f} … {:.2f})".format(*found) if found else "-")
        yield f"| {kind}, {'' if what == 'prompt' else 'behind '}{prompt}, {what} | " + " | ".join(cells) + " |"
    for process in processes.values():
        process.communicate()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose type and prompt match")
    parser.add_argument("--backend", type=Path, default=ROOT / "build" / "libggml-attn.so")
    options = parser.parse_args()
    if not options.backend.exists():
        raise SystemExit(f"no {options.backend}: cmake --build build --target attn_ggml builds it")
    print("| K and V, tokens | tokens/s by libattn | ggml's / libattn (95 %) | without flash attention / libattn |\n|"
          + "---|" * 4, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/llama.gguf"
        write_model(model, "llama", 1, width=512, heads=8, kv_heads=4, hidden=1408, layers=4, dim=64, dtype="float16")
        for kind, prompt in CASES:
            if re.search(options.only, f"{kind} {prompt}"):
                for row in rows(model, kind, prompt, options):
                    print(row, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        main()
