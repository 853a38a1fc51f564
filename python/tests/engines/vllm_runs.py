# SPDX-License-Identifier: MIT
"""Runs jobs by vLLM in a process of its own, because plug-ins, settings and threads are a process's: for test_vllm.py.

    vllm_runs.py FOLDER     reads FOLDER/jobs.json, writes FOLDER/results.json

A job: "llm", arguments of vllm.LLM; "prompts", lists of tokens; "tokens", how many to generate, 0 for an embedding;
"alone", one request at a time; "audio", whether each has a sound of its own; "check", whether to compare what attention
computes with float64. A result: "found", for each request its tokens and their log-probabilities, or its embedding;
"checked", the largest error over its limit.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from limits import proven_limit, worst_kernel
from reference import attention_and_weights

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_NO_USAGE_STATS="1",
                  HF_HUB_OFFLINE="1")


class Checked:
    """A function sdpa with its outputs compared: those of the first calls, sequence by sequence."""

    def __init__(self, sdpa, calls=24):
        import libattn

        self.sdpa, self.arithmetic = sdpa, worst_kernel(libattn.kernels())
        self.left, self.worst = calls, 0.0

    def __call__(self, q, k, v, *, out, **options):
        self.sdpa(q, k, v, out=out, **options)
        self.left -= 1
        if self.left < 0 or "page_table" not in options:
            return
        borders, lengths = options["cu_seqlens_q"].tolist(), options["kv_len"].tolist()
        dtype = str(q.dtype).removeprefix("torch.")
        said = {name: options[name] for name in ("scale", "softcap", "window", "causal", "align") if name in options}
        said.update({name: options[name].numpy() for name in ("alibi", "sinks") if name in options})
        for b, length in enumerate(lengths):
            rows, (keys, values) = slice(*borders[b:b + 2]), (pages_of(x, options["page_table"][b], length) for x in (k, v))
            here = by_head(q[rows]), keys, values
            right, _, p = attention_and_weights(*here, **said)
            limit = proven_limit(right, *here, self.arithmetic, dtype=dtype, p=p, **said)
            self.worst = max(self.worst, float((abs(by_head(out[rows]) - right) / limit).max()))


def by_head(rows):
    return rows.double().numpy().transpose(1, 0, 2)[None]


def pages_of(pages, table, length):
    """[1, heads, length, dim] of a sequence."""
    used = pages[table[:-(-length // pages.shape[2])].long()]  # [blocks, heads, tokens, dim]
    return used.transpose(0, 1).flatten(1, 2)[None, :, :length].double().numpy()


def run(job):
    from libattn.vllm import backend
    from vllm import LLM, SamplingParams
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    own = backend.sdpa
    backend.sdpa = Checked(own) if job["check"] else own
    llm = LLM(**{"enforce_eager": True, **job["llm"]})
    prompts = [{"prompt_token_ids": prompt, **({"multi_modal_data": {"audio": sound(i)}} if job["audio"] else {})}
               for i, prompt in enumerate(job["prompts"])]
    parameters = SamplingParams(temperature=0, max_tokens=job["tokens"] or 1, ignore_eos=True, detokenize=False, logprobs=0)
    groups = [[prompt] for prompt in prompts] if job.get("alone") else [prompts]
    if job["tokens"]:
        found = [generated(one) for group in groups for one in llm.generate(group, parameters, use_tqdm=False)]
    else:
        found = [one.outputs.embedding for group in groups for one in llm.embed(group, use_tqdm=False)]
    llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    worst, backend.sdpa = getattr(backend.sdpa, "worst", None), own
    return {"found": found, "checked": worst}


def sound(seed):
    return np.random.default_rng(seed).standard_normal(8000 + 300 * seed, np.float32), 16000  # a second of them


def generated(request):
    tokens = list(request.outputs[0].token_ids)
    return {"tokens": tokens, "logprobs": [step[token].logprob for token, step in zip(tokens, request.outputs[0].logprobs)]}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    results = [run(job) for job in json.loads((folder / "jobs.json").read_text())]
    (folder / "results.json").write_text(json.dumps(results))
