# SPDX-License-Identifier: MIT
"""The problems that are measured: the axes of attnbench that peers have, the names of cases, and the work of a case."""

import difflib
import itertools
from dataclasses import dataclass
from pathlib import Path

from libattn.bench import harness
from libattn.bench.harness import CaseError

AXES = ("dtype", "batch", "heads", "heads_kv", "seq", "seq_q", "seq_k", "head_dim", "causal", "cache")
WORDS = {"dtype": ("f32", "f16", "bf16"), "causal": ("none", "top-left", "bottom-right"),  # attnbench has more
         "cache": ("warm", "cold-kv")}

FEW_QUERIES = 16


def read_preset(name):
    """The axes of each section of harness/cases/presets/NAME.preset, with one value per axis, as attnbench spans them."""
    path = Path(__file__).resolve().parents[3] / "harness" / "cases" / "presets" / f"{name}.preset"
    sections = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            sections.append({})
        elif line and not line.startswith("#"):
            axis, _, values = line.partition(" = ")
            sections[-1][axis] = values.split(", ")
    return [dict(zip(axes, values)) for axes in sections for values in itertools.product(*axes.values())]


PRESETS = {
    # The cases of the peers table, with the shapes of harness/cases/presets/limits.preset.
    "limits": [
        {"heads": "1", "seq": "2048"},
        {"heads": "1", "seq": "2048", "causal": "bottom-right"},
        {"heads": "1", "seq": "2048", "head_dim": "128"},
        {"heads": "1", "seq": "512"},
        {"heads": "8", "seq": "128"},
        {"heads": "1", "seq": "128"},
        {"heads": "1", "seq": "8192"},
        {"heads": "8", "seq_q": "1", "seq_k": "4096", "cache": "cold-kv"},
        {"heads": "32", "heads_kv": "8", "seq_q": "1", "seq_k": "8192", "head_dim": "128", "cache": "cold-kv"},
    ],
    "quick": [{"heads": "2", "seq": "128"}, {"heads": "2", "seq": "256", "causal": "bottom-right"},
              {"heads": "4", "heads_kv": "2", "seq_q": "1", "seq_k": "1024"}],
    "models": read_preset("models"),
}


@dataclass(frozen=True)
class Case:
    """One problem and how it is measured."""
    batch: int
    heads: int
    heads_kv: int
    seq_q: int
    seq_k: int
    head_dim: int
    causal: str
    cache: str
    threads: int = 1
    dtype: str = "f32"  # of q, k, v and o

    def __str__(self):
        """The heading that attnbench prints above its table."""
        return (f"{self.dtype}  batch {self.batch}  heads {pair(self.heads, self.heads_kv, '/')}"
                f"  seq {pair(self.seq_q, self.seq_k, 'x')}  head_dim {self.head_dim}  causal {self.causal}"
                f"  threads {self.threads}" + (f"  cache {self.cache}" if self.cache != "warm" else ""))

    @property
    def description(self):
        """(attnbench's case_id, sizes, flops, bytes). Masked pairs and softmax count no flops."""
        return harness.describe(f"dtype={self.dtype}", f"batch={self.batch}", f"heads={self.heads}",
                                  f"heads_kv={self.heads_kv}", f"seq_q={self.seq_q}", f"seq_k={self.seq_k}",
                                  f"head_dim={self.head_dim}", f"causal={self.causal}", f"cache={self.cache}",
                                  f"threads={self.threads}")

    @property
    def id(self):
        return self.description[0]

    @property
    def flops(self):
        return self.description[2]

    @property
    def bytes(self):
        return self.description[3]

    @property
    def title(self):
        """A short name for tables and figures, without what all cases of the peers table share."""
        heads = pair(self.heads, self.heads_kv, "/")
        if self.is_decode:
            words = f"{'decode' if self.heads == self.heads_kv else 'GQA decode'} {heads}×{self.seq_k}×{self.head_dim}"
            return words if self.seq_q == 1 else f"{words}, {self.seq_q} queries"
        words = [f"d{self.head_dim}", f"s{pair(self.seq_q, self.seq_k, '×')}"]
        words += [f"×{heads} heads"] if heads != "1" else []
        words += ["causal"] if self.causal != "none" else []
        return " ".join(words + ([f"batch {self.batch}"] if self.batch > 1 else []))

    @property
    def is_decode(self):
        """Few queries and more keys: memory is the limit (as in scripts/plotting/views.py)."""
        return self.seq_q <= FEW_QUERIES and self.seq_q < self.seq_k

    @property
    def offset(self):
        """Query i of a causal problem sees the keys up to i + offset."""
        return self.seq_k - self.seq_q if self.causal == "bottom-right" else 0

    @property
    def bytes_kv(self):
        return int(self.dtype.lstrip("bf")) // 8 * self.batch * 2 * self.heads_kv * self.seq_k * self.head_dim


def pair(a, b, joint):
    return f"{a}" if a == b else f"{a}{joint}{b}"


def build_cases(presets, axes, threads):
    """Cases in order, without repetitions.

    presets: names of PRESETS. axes: "name=values" texts; they replace the axis of the same name in every preset ("seq" its
    seq_q and seq_k too), and without a preset they span a grid on their own.
    """
    asked = dict(read_axis(text) for text in axes)
    cases = []
    for base in [case for name in presets for case in PRESETS[name]] or [{}]:
        fixed = {name: value for name, value in base.items() if not ("seq" in asked and name in ("seq_q", "seq_k"))}
        for values in itertools.product(*asked.values()):
            cases.append(build_case({**fixed, **dict(zip(asked, values))}, threads))
    return list(dict.fromkeys(cases))


def build_case(values, threads):
    """The case of these axes; the other axes have attnbench's defaults."""
    _, sizes, *_ = harness.describe(*(f"{name}={value}" for name, value in values.items()))
    if min(sizes) < 1:
        raise CaseError(f"{', '.join(f'{name}={value}' for name, value in values.items())}: sizes from 1 up are right")
    words = {name: values.get(name, choices[0]) for name, choices in WORDS.items()}
    return Case(*sizes, threads=threads, **words)


def read_axis(text):
    """("seq", ["128", "256"]) for "seq=128:256:*2"."""
    name = text.partition("=")[0]
    if name not in AXES:
        near = difflib.get_close_matches(name, AXES, 1, 0)[0]
        raise CaseError(f"no axis {name!r}; did you mean {near!r}? There are: {', '.join(AXES)}")
    values = harness.axis_values(text)
    for value in values:
        if value not in WORDS.get(name, values):
            raise CaseError(f"axis {name}: {value!r}; one of {', '.join(WORDS[name])} is right")
    return name, values
