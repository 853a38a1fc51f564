#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""vLLM with its own attention and with libattn's, in one process: a model with random weights answers the same requests,
rounds in random order. Prints a table for docs/python.md.

    scripts/peers/setup.sh vllm
    cmake --build build --target attn_python
    .venv-peers/vllm/bin/python scripts/peers/vllm_engine.py [--dtype bfloat16] [--threads 2] [--rounds 6] [--cases 8k]

A case is a batch of requests: their prompts are one step, each of their further tokens another. Lengths of prompts are up to
an eighth below the case's, others in every round. Time is that of the model in a step (execute_model); attention is the
writing of the cache and the calls of the layers. Cases of one short prompt have 8 times as many rounds. Ratios are medians
over the rounds, with an interval of 95 % from 6 rounds on (order statistics), else with the smallest and the largest.
"""

import argparse
import collections
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# requests and tokens of a prompt
CASES = {"1 x 16": (1, 16), "1 x 128": (1, 128), "16 x 256": (16, 256), "1 x 8k": (1, 8000)}
GENERATED = 24
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
         "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 8192,
         "max_position_embeddings": 9000, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--cases", default="", metavar="WORD", help="only cases with this in their names")
    return parser.parse_args()


class Clock:
    """Adds up the seconds of methods, by a name for each."""

    def __init__(self):
        self.seconds, self.calls = collections.Counter(), []

    def watch(self, owner, method, name):
        inner = getattr(owner, method)

        def timed(*args, **options):
            begun = time.perf_counter()
            result = inner(*args, **options)
            self.seconds[name] += time.perf_counter() - begun
            if name == "step":
                self.calls.append(dict(self.seconds))
                self.seconds.clear()
            return result

        setattr(owner, method, timed)


def choose(runner, ours):
    """Who computes attention from now on. The caches of the requests before are of no use then."""
    for group in (group for groups in runner.attn_groups for group in groups):
        for builder in group.metadata_builders:
            builder.ours = ours
    for layer in runner.vllm_config.compilation_config.static_forward_context.values():
        layer.impl.ours = ours


def measure(llm, runner, clock, case, turn, ours):
    """(Seconds of the model, of attention, tokens) in the step of the prompts, and in one of those of one token, in the
    mean."""
    from vllm import SamplingParams

    requests, tokens = case
    draw = random.Random(turn)
    lengths = [tokens - draw.randrange(tokens // 8) for _ in range(requests)]
    prompts = [{"prompt_token_ids": [draw.randrange(MODEL["vocab_size"]) for _ in range(n)]} for n in lengths]
    choose(runner, ours)
    clock.calls.clear()
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=GENERATED, ignore_eos=True, detokenize=False),
                 use_tqdm=False)
    steps = [(step["step"], step["attention"]) for step in clock.calls if "attention" in step]
    return (*steps[0], sum(lengths)), (*map(statistics.fmean, zip(*steps[1:])), requests)


def interval(ratios):
    """The median, and the narrowest pair of ratios around it that misses the true one in 5 % of all cases at most."""
    ordered, count, outside = sorted(ratios), len(ratios), 0
    while sum(math.comb(count, i) for i in range(outside + 2)) / 2**count <= 0.025:
        outside += 1
    return f"**{statistics.median(ordered):.2f}** ({ordered[outside]:.2f} … {ordered[-1 - outside]:.2f})"


def main():
    options = parse()
    os.environ.update(OMP_NUM_THREADS=str(options.threads), VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1",
                      VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1")
    os.environ.setdefault("LIBATTN_PYTHON", str(ROOT / "build/python/libattn_python.so"))
    sys.path.insert(0, str(ROOT / "python"))
    import libattn.vllm
    from vllm import LLM

    libattn.vllm.register()
    from libattn.vllm.backend import Layer
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    clock = Clock()
    clock.watch(Layer, "forward", "attention")
    clock.watch(Layer, "do_kv_cache_update", "attention")
    clock.watch(CPUModelRunner, "execute_model", "step")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        llm = LLM(folder, skip_tokenizer_init=True, load_format="dummy", dtype=options.dtype, enforce_eager=True,
                  enable_prefix_caching=False, max_num_batched_tokens=9000, max_model_len=9000)
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    print(f"{options.dtype}, {options.threads} thread{'s' * (options.threads > 1)}, {options.rounds} rounds:\n")
    print("| case | attention's share by vLLM | by libattn | tokens/s by vLLM | by libattn | vLLM / libattn, attention | "
          "vLLM / libattn, step |\n|---|---|---|---|---|---|---|")
    draw = random.Random(1)
    for name, case in CASES.items():
        if options.cases not in name:
            continue
        found = {True: [], False: []}
        rounds = options.rounds * (8 if math.prod(case) < 1000 else 1)
        for turn in range(-1, rounds):  # the first one warms up
            for ours in draw.sample((True, False), 2):
                times = measure(llm, runner, clock, case, turn, ours)
                if turn >= 0:
                    found[ours].append(times)
        for part, kind in enumerate(("prompts", "generation")):
            rows = {ours: [times[part] for times in found[ours]] for ours in found}
            print(f"| {name}, {kind} | {' | '.join(columns(rows))} |", flush=True)


def columns(rows):
    """Shares, tokens per second and ratios of a row of the table."""
    def middle(ours, of):
        return statistics.median(of(*times) for times in rows[ours])

    shares = [f"{100 * middle(ours, lambda step, attention, _: attention / step):.0f} %" for ours in (False, True)]
    speeds = [f"{middle(ours, lambda step, _, tokens: tokens / step):.0f}" for ours in (False, True)]
    ratios = [interval([a[i] / b[i] for a, b in zip(rows[False], rows[True])]) for i in (1, 0)]
    return [*shares, *speeds, *ratios]


if __name__ == "__main__":
    main()
