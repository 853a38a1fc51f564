#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tokens per second of examples/llm beside other programs, greedily, on a Llama with random weights.

    compare.py PROGRAM [--peer NAME[=PYTHON]]... [--dtype float32|bfloat16] [--texts N] [--prompt N] [--tokens N] ...

NAME: transformers (PyTorch's fused attention), compiled (the same by torch.compile, with a static cache), vllm, or llama.cpp
(packages llama-cpp-python, gguf, safetensors and torch); PYTHON: the interpreter that has its packages, default this one,
which needs transformers. Without --peer: transformers.

All run in turns, in changing order. Each peer is a process that loads the model once and runs once before; our program is a
new process each time, and its loading does not count. Prints medians with their range, and for each peer the median and the
range of the rounds' ratios, ours over theirs. In float32 all must give the same tokens.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = {"width": 1024, "hidden": 2816, "layers": 8, "heads": 16, "heads-kv": 8, "vocabulary": 32000, "texts": 1,
         "prompt": 512, "tokens": 33, "threads": 1, "rounds": 11}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--serve", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)  # a peer's process
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    return parser.parse_args()


def make_model(o, folder):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=o.vocabulary, hidden_size=o.width, intermediate_size=o.hidden, num_hidden_layers=o.layers,
        num_attention_heads=o.heads, num_key_value_heads=o.heads_kv, max_position_embeddings=o.prompt + o.tokens,
        bos_token_id=None, eos_token_id=None, initializer_range=0.05)
    transformers.LlamaForCausalLM(config).to(getattr(torch, o.dtype)).save_pretrained(folder)


def prompts_of(o):
    r = random.Random(1)
    return [[r.randrange(o.vocabulary) for _ in range(o.prompt)] for _ in range(o.texts)]


# ---- The programs: each (seconds of the prompts and their first tokens, seconds of the other tokens, texts) --------------


def ours(o, folder, prompts):
    words = [o.program, folder, "--tokens", str(o.tokens), "--threads", str(o.threads)]
    words += ["--bf16-rows", "1"] * (o.dtype == "bfloat16")  # like the others
    result = subprocess.run([*words, *[",".join(map(str, prompt)) for prompt in prompts]], capture_output=True, text=True,
                            check=True)
    rates = [float(rate) for rate in re.search(r"read, ([\d.]+)/s; \d+ made after them, ([\d.]+)/s", result.stderr).groups()]
    return (o.texts * o.prompt / rates[0], o.texts * (o.tokens - 1) / rates[1],
            [[int(t) for t in line.split(",")] for line in result.stdout.splitlines()])


def transformers_runner(o, folder, compiled=False):
    import torch
    import transformers

    torch.set_num_threads(o.threads)
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, o.dtype),
                                                          attn_implementation="sdpa").eval()
    forward = torch.compile(model.forward, dynamic=False) if compiled else model

    @torch.inference_mode()
    def run(prompts):
        cache = transformers.StaticCache(model.config, max_cache_len=o.prompt + o.tokens) if compiled else None
        times, made, new = [time.perf_counter()], [], torch.tensor(prompts)
        for _ in range(o.tokens):
            out = forward(new, past_key_values=cache, use_cache=True, logits_to_keep=1)
            new, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
            made.append(new)
            times.append(time.perf_counter())
        return times[1] - times[0], times[-1] - times[1], torch.cat(made, 1).tolist()

    return run


def vllm_runner(o, folder):
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
                   "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))[:o.threads]))}
    import vllm

    engine = vllm.LLM(folder, skip_tokenizer_init=True, dtype=o.dtype, enable_prefix_caching=False, disable_log_stats=True,
                      max_model_len=o.prompt + o.tokens, max_num_seqs=o.texts, max_num_batched_tokens=o.texts * o.prompt + 1)

    def timed(prompts, tokens):
        begin = time.perf_counter()
        found = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], use_tqdm=False,
                                sampling_params=vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True,
                                                                    detokenize=False))
        return time.perf_counter() - begin, [list(one.outputs[0].token_ids) for one in found]

    def run(prompts):
        first, _ = timed(prompts, 1)
        both, texts = timed(prompts, o.tokens)
        return first, both - first, texts

    return run


def write_gguf(o, folder, path):
    """The model as llama.cpp has it: rotated pairs of q and k stand side by side."""
    import gguf
    import torch
    from safetensors.torch import load_file

    writer, config = gguf.GGUFWriter(path, "llama"), json.loads((Path(folder) / "config.json").read_text())
    writer.add_block_count(o.layers)
    writer.add_context_length(o.prompt + o.tokens)
    writer.add_embedding_length(o.width)
    writer.add_feed_forward_length(o.hidden)
    writer.add_head_count(o.heads)
    writer.add_head_count_kv(o.heads_kv)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(o.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, o.layers)
    for name, tensor in load_file(Path(folder) / "model.safetensors").items():
        for part, heads in ("q_proj", o.heads), ("k_proj", o.heads_kv):
            if part in name:
                tensor = tensor.reshape(heads, 2, -1, o.width).transpose(1, 2).reshape(-1, o.width)
        to = names.get_name(name, try_suffixes=(".weight",))
        if tensor.dim() == 1 or tensor.dtype == torch.float32:
            writer.add_tensor(to, tensor.float().numpy())
        else:
            writer.add_tensor(to, tensor.contiguous().view(torch.uint8).numpy(), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp_runner(o, folder):
    import ctypes

    import llama_cpp as c
    import numpy as np

    path = os.path.join(folder, "model.gguf")
    write_gguf(o, folder, path)
    c.llama_backend_init()
    quiet = c.llama_log_callback(lambda level, text, data: None)
    c.llama_log_set(quiet, ctypes.c_void_p())
    model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
    p = c.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = o.texts * (o.prompt + o.tokens), o.texts * o.prompt, 512, o.texts
    p.n_threads = p.n_threads_batch = o.threads
    if o.dtype == "float32":  # the default is float16, to which flash attention rounds in any case
        p.type_k = p.type_v = 0  # GGML_TYPE_F32
        p.flash_attn_type = 0  # LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = c.llama_init_from_model(model, p)
    batch = c.llama_batch_init(o.texts * o.prompt, 0, 1)

    def step(texts, position):
        """The next token of each text: the new ones stand at `position` and behind it."""
        batch.n_tokens = sum(map(len, texts))
        places = [(text, i) for text, tokens in enumerate(texts) for i in range(len(tokens))]
        for at, (text, i) in enumerate(places):
            batch.token[at], batch.pos[at], batch.n_seq_id[at] = texts[text][i], position + i, 1
            batch.seq_id[at][0], batch.logits[at] = text, i + 1 == len(texts[text])
        if c.llama_decode(context, batch):
            sys.exit("llama_decode() failed")
        ends = [at for at, (text, i) in enumerate(places) if i + 1 == len(texts[text])]
        return [int(np.ctypeslib.as_array(c.llama_get_logits_ith(context, at), (o.vocabulary,)).argmax()) for at in ends]

    def run(prompts):
        c.llama_memory_clear(c.llama_get_memory(context), True)
        times, made = [time.perf_counter()], [step(prompts, 0)]
        times.append(time.perf_counter())
        for i in range(o.tokens - 1):
            made.append(step([[token] for token in made[-1]], o.prompt + i))
        return times[1] - times[0], time.perf_counter() - times[1], [list(text) for text in zip(*made)]

    run.kept = quiet  # llama.cpp calls it
    return run


RUNNERS = {"transformers": transformers_runner, "compiled": lambda o, folder: transformers_runner(o, folder, compiled=True),
           "vllm": vllm_runner, "llama.cpp": llama_cpp_runner}


# ---- Turns ---------------------------------------------------------------------------------------------------------------


def serve(o, name, folder):
    """A peer's process: runs once for each line that it reads, and writes what it found as a line to what was stdout."""
    to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print there
    run, prompts = RUNNERS[name](o, folder), prompts_of(o)
    for _ in sys.stdin:
        print(json.dumps(run(prompts)), file=to, flush=True)


class Server:
    """A peer in a process of its own."""

    def __init__(self, name, python, folder, log):
        self.process = subprocess.Popen([python or sys.executable, __file__, *sys.argv[1:], "--serve", name, folder],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.name, self.log = name, log

    def __call__(self):
        print(file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            sys.exit(f"{self.name} ended: {self.log.read()[-2000:]}")
        return json.loads(line)


def spread(numbers, digits):
    numbers = sorted(numbers)
    return f"{statistics.median(numbers):.{digits}f} [{numbers[0]:.{digits}f}, {numbers[-1]:.{digits}f}]"


def alike(text, right):
    """How many tokens are the same before the first other one."""
    return next((i for i, (a, b) in enumerate(zip(text, right)) if a != b), len(right))


def report(o, found):
    """found: name -> what each round gave."""
    parts = [("prompt", 0, o.texts * o.prompt), ("new", 1, o.texts * (o.tokens - 1))]
    for name, rounds in found.items():
        words = []
        for part, at, tokens in parts:
            words.append(f"{part} {spread([tokens / one[at] for one in rounds], 1)} tokens/s")
            if name != "ours":
                words[-1] += f", ratio {spread([b[at] / a[at] for a, b in zip(found['ours'], rounds)], 2)}"
        same = min(alike(text, right) for one in rounds for text, right in zip(one[2], found["ours"][0][2]))
        print(f"{name}: {'; '.join(words)}; the first {same} tokens as ours")
        if o.dtype == "float32" and same < o.tokens:
            sys.exit(f"{name} has other tokens")


def main():
    o = options()
    os.environ |= {"OMP_NUM_THREADS": str(o.threads), "TOKENIZERS_PARALLELISM": "false"}
    if o.serve:
        serve(o, *o.serve)
        return
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        make_model(o, folder)
        sides = {"ours": lambda: ours(o, folder, prompts_of(o))}
        for peer in o.peer or ["transformers"]:
            name, _, python = peer.partition("=")
            sides[name] = Server(name, python, folder, log)
        try:
            for side in sides.values():
                side()
            found, names = {name: [] for name in sides}, list(sides)
            for i in range(o.rounds):
                for name in (names[i % len(names):] + names[:i % len(names)])[::1 if i // len(names) % 2 else -1]:
                    found[name].append(sides[name]())
        finally:
            for side in list(sides.values())[1:]:
                side.process.kill()
    report(o, found)


if __name__ == "__main__":
    main()
