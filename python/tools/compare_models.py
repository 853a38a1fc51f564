#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tokens per second of transformers' models with attn_implementation="libattn" beside "sdpa" and "eager": tables of
docs/python.md.

    python3 python/tools/compare_models.py [--dtype bfloat16] [--threads 2] [--write docs/python.md]

Models of random weights (python/tests/models.py): 2 layers of 4 heads of 64. "forward" is one batch of 2 x 512 tokens (ViT:
4 images of 197 patches), "generate" 32 tokens after a prompt of 256, greedily, "generate_batch" 32 tokens after each of 8
prompts of 16 to 464, by continuous batching. By libattn.bench, as compare_torch.py; outputs must agree, and tokens be the
same in float32.
"""

import logging
import re
import sys
from pathlib import Path

import tables
import torch
import transformers

from libattn import bench

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import models

SIZES = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 997}
GENERATED, PROMPT, TOKENS = 32, 256, 512
GENERATORS = {"llama": ["generate", "generate_batch"], "mistral": ["generate", "generate_batch"], "t5": ["generate"]}
REQUESTS = [16 + 64 * (3 * i % 8) for i in range(8)]  # tokens of prompts


def forward(model, kind, given):
    return lambda: models.outputs(model, kind, given)


def generate(model, given):
    """In bfloat16 logits are often equal, and then rounding decides on the token: only their number is compared."""
    def tokens():
        found = model.generate(**given, max_new_tokens=GENERATED, min_new_tokens=GENERATED, do_sample=False)
        return found if model.dtype == torch.float32 else torch.tensor(found.shape)

    return tokens


def generate_batch(model):
    """Pages of 32 tokens, steps of at most 256."""
    draw = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, SIZES["vocab_size"], (n,), generator=draw).tolist() for n in REQUESTS]
    settings = transformers.GenerationConfig(max_new_tokens=GENERATED, do_sample=False, eos_token_id=-1, pad_token_id=0)
    pages = transformers.ContinuousBatchingConfig(page_size=32, num_blocks=400, max_batch_tokens=256)

    def tokens():
        with torch.inference_mode(False):  # its threads write what it makes
            found = model.generate_batch(prompts, generation_config=settings, continuous_batching_config=pages,
                                         progress_bar=False)
        rows = torch.tensor([found[name].generated_tokens for name in sorted(found, key=lambda x: int(x.split("_")[-1]))])
        return rows if model.dtype == torch.float32 else torch.tensor(rows.shape)

    return tokens


def case(kind, what, options):
    """({implementation: function}, tokens of a call)"""
    dtype = tables.DTYPES[options.dtype]
    batch, tokens = (4, 197) if kind == "vit" else (2, TOKENS) if what == "forward" else (2, PROMPT)
    given = models.inputs(kind, dtype, batch, tokens, padding=0, vocabulary=SIZES["vocab_size"], image=224)
    names = ["sdpa", "eager", "libattn"] if kind != "gemma2" else ["eager", "libattn"]  # sdpa has no softcap
    made = {name: models.make(kind, name, dtype, SIZES) for name in names}
    if what == "forward":
        if kind == "t5":
            given["decoder_input_ids"] = given["input_ids"]
        return {name: forward(model, kind, given) for name, model in made.items()}, batch * tokens
    if what == "generate_batch":
        return {name: generate_batch(model) for name, model in made.items()}, len(REQUESTS) * GENERATED
    given = {name: x for name, x in given.items() if not name.startswith("decoder")}
    return {name: generate(model, given) for name, model in made.items()}, batch * GENERATED


def rates(kind, what, options):
    functions, tokens = case(kind, what, options)
    found = bench.compare(functions, {what: ()}, baseline="libattn", rounds=options.rounds, sample_ms=options.sample_ms,
                          threads=options.threads)
    rows = {row.function: row for row in found.rows}
    wrong = [f"{row.function}: {row.reason}" for row in found.rows if row.status != "PASS"]
    if wrong:
        return f"| {kind}, {what} | {'; '.join(wrong)} | | | |"
    cells = [f"{1e9 * tokens / rows['libattn'].time.median:.0f}"]
    for name in ("sdpa", "eager"):  # their time over ours
        row = rows.get(name)
        ratio = row and row.ratio
        cells.append(f"**{1 / ratio.median:.2f}** ({1 / ratio.high:.2f} … {1 / ratio.low:.2f})" if ratio else "-")
    return f"| {kind}, {what} | {' | '.join(cells)} | {found.noise(what):.3f} |"


def main():
    logging.disable(logging.WARNING)  # transformers says where its pages lie
    options = tables.read_options(__doc__)
    lines = [tables.caption(options) + ";\ntokens per second of libattn, and the others' time over it:", "",
             "| model | tokens/s | sdpa / libattn (95 %) | eager / libattn | libattn / itself |", "|---|---|---|---|---|"]
    for kind in models.KINDS:
        for what in ("forward", *GENERATORS.get(kind, ())):
            if re.search(options.only, f"{kind} {what}"):
                lines.append(rates(kind, what, options))
                print(lines[-1], flush=True)
    tables.write("compare_models", lines, options)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
