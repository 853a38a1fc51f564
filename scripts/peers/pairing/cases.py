# SPDX-License-Identifier: MIT
"""The problems that are measured: the axes of attnbench that peers have, and the names of cases."""

import difflib
import itertools
from pathlib import Path

from libattn.bench import CaseError, Problem, harness
from libattn.bench.problems import INTEGERS

AXES = ("dtype", "batch", "heads", "heads_kv", "seq", "seq_q", "seq_k", "head_dim", "dim_qk", "dim_v",
        "latent", "causal", "cache", "page_tokens", "page_order", "lengths", "chunk")
DTYPES = ("f32", "bf16", "f16", *(f"f32+{kept}" for kept in INTEGERS))
WORDS = {"dtype": DTYPES, "causal": ("none", "top-left", "bottom-right"),  # attnbench has more
         "cache": ("warm", "cold-kv"), "latent": ("off", "on"), "lengths": ("full", "kv_len", "mixed")}


def read_preset(name):
    """The axes of each section of the preset, with one value per axis, as attnbench spans them."""
    presets = Path(__file__).resolve().parents[3] / "harness" / "cases" / "presets"
    path = next(presets.rglob(f"{name}.preset"))
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
    # Keys and values of 8 and 4 bits: decoding, and a chunk of a prompt. Only vLLM has e4m3, in pages.
    "quantised": [{"dtype": dtype, "heads_kv": "8", "head_dim": "128", "causal": "bottom-right", **pages, **case}
                  for dtype, pages in (("f32+i8", {}), ("f32+q8_0", {}), ("f32+q4_0", {}),
                                       ("f32+e4m3", {"page_tokens": "128"}))
                  for case in (*({"heads": heads, "seq_q": "1", "seq_k": "8192", "cache": "cold-kv"}
                                 for heads in ("8", "32", "64")), {"heads": "32", "seq_q": "256", "seq_k": "4096"})],
    # Absorbed latent attention, dense and in the pages that vLLM's operator takes.
    "mla": [{"heads": heads, "heads_kv": "1", "seq_q": "1", "seq_k": "8192", "dim_qk": "576", "dim_v": "512",
             "latent": "on", "cache": "cold-kv", **pages} for pages in ({}, {"page_tokens": "16"})
            for heads in ("16", "64", "128")],
    "quick": [{"heads": "2", "seq": "128"}, {"heads": "2", "seq": "256", "causal": "bottom-right"},
              {"heads": "4", "heads_kv": "2", "seq_q": "1", "seq_k": "1024"}],
    "models": read_preset("models"),
    "paged": [{"heads": "32", "heads_kv": "8", "head_dim": "128", "page_tokens": "128", "page_order": "shuffled", **case}
              for case in (
                  {"seq_q": "1", "seq_k": "8192", "cache": "cold-kv"},
                  {"batch": "8", "seq_q": "1", "seq_k": "1024", "cache": "cold-kv"},
                  {"seq": "1024", "causal": "bottom-right"},
                  {"seq_q": "256", "seq_k": "4096", "causal": "bottom-right"},
                  {"batch": "16", "seq_q": "256", "seq_k": "2048", "causal": "bottom-right", "lengths": "mixed",
                   "cache": "cold-kv"})],
}


def heading(case):
    """The one that attnbench prints above its table."""
    return (f"{case.dtypes}  batch {case.batch}  heads {pair(case.heads, case.heads_kv, '/')}"
            f"  seq {pair(case.seq_q, case.seq_k, 'x')}  head_dim {pair(case.head_dim, case.dim_v, '/')}"
            f"  causal {case.causal}  threads {case.threads}" + (f"  cache {case.cache}" if case.cache != "warm" else "")
            + ("  latent" if case.latent else "")
            + (f"  pages of {case.pages.page_tokens}  lengths {case.lengths}" if case.pages else ""))


def title(case):
    """A short name for tables and figures, without what all cases of the peers table share."""
    heads, dims = pair(case.heads, case.heads_kv, "/"), pair(case.head_dim, case.dim_v, "/")
    if case.lengths == "mixed":
        return f"mixed batch of {case.batch}"
    if case.is_decode:
        batch = f"{case.batch}×" if case.batch > 1 else ""
        kind = "MLA decode" if case.latent else "decode" if case.heads == case.heads_kv else "GQA decode"
        words = f"{kind} {batch}{heads}×{case.seq_k}×{dims}"
        return words if case.seq_q == 1 else f"{words}, {case.seq_q} queries"
    words = [f"d{dims}", f"s{pair(case.seq_q, case.seq_k, '×')}"]
    words += [f"×{heads} heads"] if heads != "1" else []
    words += ["causal"] if case.causal != "none" else []
    return " ".join(words + ([f"batch {case.batch}"] if case.batch > 1 else []))


def pair(a, b, joint):
    return f"{a}" if a == b else f"{a}{joint}{b}"


def build_cases(presets, axes, threads, seed=1):
    """Problems of libattn.bench in order, without repetitions.

    presets: names of PRESETS. axes: "name=values" texts; they replace the axis of the same name in every preset ("seq" its
    seq_q and seq_k too), and without a preset they span a grid on their own.
    """
    asked = dict(read_axis(text) for text in axes)
    cases = []
    for base in [case for name in presets for case in PRESETS[name]] or [{}]:
        fixed = {name: value for name, value in base.items() if not ("seq" in asked and name in ("seq_q", "seq_k"))}
        for values in itertools.product(*asked.values()):
            cases.append(build_case({**fixed, **dict(zip(asked, values))}, threads, seed))
    return list(dict.fromkeys(cases))


def build_case(values, threads, seed=1):
    """The case of these axes; the other axes have attnbench's defaults."""
    axes = " ".join(f"{name}={value}" for name, value in values.items())
    case = Problem(f"{axes} threads={threads}".lstrip(), seed=seed)
    if min(case.batch, case.heads, case.heads_kv, case.seq_q, case.seq_k, case.head_dim, case.dim_v) < 1:
        raise CaseError(f"{axes}: sizes from 1 up are right")
    return case


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
