# SPDX-License-Identifier: MIT
"""Result files for test_plot.py: rows with chosen rates, in the columns that attnbench writes."""

import csv
import json
import re
from pathlib import Path

COLUMNS_DEF = Path(__file__).resolve().parents[2] / "harness" / "report" / "columns.def"
COLUMNS = re.findall(r"(?m)^COLUMN\((\w+), ", COLUMNS_DEF.read_text(encoding="utf-8"))

PEAK = {"c": 15.0, "avx2": 120.0, "avx512": 240.0}


def row(name="flash_avx2", rate=90.0, width=0.002, seq=512, heads=8, dim=64, threads=1, baseline_rate=None, seq_q=None,
        **changes):
    """A timed PASS row of `rate` GFLOP/s with a relative interval of +-width. `changes` replace any columns."""
    algorithm, isa = name.rsplit("_", 1)
    seq_q = seq if seq_q is None else seq_q
    causal = changes.get("causal", "none")
    flops = 4 * heads * seq_q * seq * dim
    time = flops / rate
    values = dict.fromkeys(COLUMNS, "") | {
        "run_id": "r1", "kernel": name, "algorithm": algorithm, "isa": isa, "dtype_q": "f32", "dtype_kv": "f32",
        "dtype_o": "f32", "batch": 1, "heads_q": heads, "heads_kv": heads, "seq_q": seq_q, "seq_k": seq, "dim_qk": dim,
        "dim_v": dim, "score": "dot", "causal": causal, "align": "top-left", "window": "none", "mask": "none",
        "bias": "none", "alibi": "off", "softcap": 0, "sinks": "off", "lengths": "full", "layout": "bhsd", "cache": "warm",
        "threads": threads, "status": "PASS", "time_ns_median": repr(time), "time_ns_ci_lo": repr(time * (1 - width)),
        "time_ns_ci_hi": repr(time * (1 + width)), "flops": flops, "max_err_ratio": 0.05, "noise": 0.004,
        "bytes": 8 * heads * (seq_q + seq) * dim, "gflops": repr(rate), "gbs": repr(8 * heads * (seq_q + seq) * dim / time),
        "peak_gflops": PEAK[isa] * threads, "peak_pct": repr(100 * rate / PEAK[isa] / threads),
        "case_id": f"dtype:f32/B:1/Hq:{heads}/Hkv:{heads}/Sq:{seq_q}/Sk:{seq}/D:{dim}/Dv:{dim}/causal:{causal}/"
                   f"threads:{threads}"}
    if baseline_rate:
        ratio = rate / baseline_rate
        values |= {"baseline": "naive_c", "ratio": repr(ratio), "ratio_ci_lo": repr(ratio * 0.99),
                   "ratio_ci_hi": repr(ratio * 1.01)}
    return values | changes


def untimed(status, reason, **changes):
    return row(**changes) | {"status": status, "reason": reason} | {
        column: "" for column in COLUMNS if column.startswith(("time_ns", "ratio", "peak", "g", "max_err"))}


def write(folder, rows, columns=COLUMNS, environment=None):
    folder.mkdir(exist_ok=True)
    with open(folder / "results.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    if environment is not None:
        (folder / "env.json").write_text(json.dumps(environment), encoding="utf-8")
    return folder


def grid(seqs=(128, 512, 2048), heads=(8,), dims=(64, 128), threads=(1,)):
    """naive_c, flash_avx2, blocked_avx512 everywhere; flash 8 times as fast as naive, blocked 12 times."""
    kernels = (("naive_c", 10.0), ("flash_avx2", 80.0), ("blocked_avx512", 120.0))
    return [row(kernel, rate * count ** 0.9, seq=seq, heads=head, dim=dim, threads=count, baseline_rate=10.0 * count ** 0.9)
            for seq in seqs for head in heads for dim in dims for count in threads for kernel, rate in kernels]


def layer(name="flash_avx2", heads=8, width=512, attention=30.0, kind="mha", **changes):
    """A timed row of a layer whose heads share its width."""
    cells = row(name, heads=heads, dim=width // heads, **changes)
    return cells | {"layer": kind, "width": width, "product": "product_avx2", "projections_pct": 99.5 - attention,
                    "attention_pct": attention, "rest_pct": 0.5, "other_axes": f"width:{width}",
                    "case_id": f"{cells['case_id']} {kind} {width}"}


def layers(heads=(1, 2, 4, 8), seqs=(128, 256, 512)):
    """Two layers along heads and seq; blocked is always faster."""
    return [layer(name, count, rate=rate, seq=seq, kind=kind, baseline_rate=None) for kind in ("mha", "block")
            for seq in seqs for count in heads for name, rate in (("flash_avx2", 60.0), ("blocked_avx2", 70.0))]


def in_pages(**changes):
    """Decoding with keys dense and in pages; the larger the pages, the faster, and shuffled ones slower."""
    def case(name, rate, axes):
        cells = row(name, rate, seq=8192, seq_q=1, **changes)
        return cells | {"other_axes": axes, "case_id": f"{cells['case_id']}/{axes} {changes}"}
    return [case(name, rate, "") for name, rate in (("decode_avx512", 12.0), ("flash_avx2", 3.0))] + \
           [case(name, rate * tokens / 300 * share, f"page_tokens:{tokens}{order}")
            for name, rate in (("decode_avx512", 12.0), ("flash_avx2", 3.0)) for tokens in (16, 64, 256)
            for order, share in (("", 1.0), ("/page_order:shuffled", 0.6))]


def passes(**other):
    """Attention, its gradients, and both, of two shapes, of which one has other axes; two tiers."""
    def case(name, rate, part, changes):
        cells = row(name, rate, **changes)
        axes = "" if part == "forward" else f"pass:{part}"
        return cells | {"other_axes": axes, "case_id": f"{cells['case_id']}/{axes}"}
    kernels = {"forward": (("flash_avx512", 204.0), ("flash_avx2", 114.0)),
               "backward": (("flash_backward_avx512", 180.0), ("flash_backward_avx2", 108.0)),
               "both": (("flash_backward_avx512", 192.0),)}
    return [case(name, rate, part, changes) for part, some in kernels.items() for name, rate in some
            for changes in ({"seq": 2048, "heads": 1}, {"seq": 64, "heads": 12, **other})]


def stored(name="decode_avx512", share=1.0, **changes):
    """Decoding over float32, bfloat16, int8 without and with factors, and q4_0: fewer bytes are faster."""
    def case(kind, rate, axes=""):
        cells = row(name, rate * share, seq=8192, seq_q=1, dim=128, **changes)
        return cells | {"dtype_kv": kind, "other_axes": axes, "peak_gbs": 20.0,
                        "case_id": f"{cells['case_id']}/{kind}/{axes} {changes}"}
    return [case("f32", 10.0), case("bf16", 18.0), case("i8", 30.0), case("i8", 28.0, "kv_scales:token"),
            case("q4_0", 31.0)]


def everything():
    """Data for every figure, with a skip, a failure and a close race."""
    rows = grid(dims=(64,), threads=(1, 2)) + grid(dims=(128,)) + grid(seqs=(512,), heads=(1, 2, 4), dims=(64,))
    rows += [untimed("SKIP", "this CPU has no AVX-512", name="flash_avx512", seq=seq, dim=dim)
             for seq in (128, 512, 2048) for dim in (64, 128)]
    rows += [row("blocked_avx512", 110.0, dim=dim) for dim in (32, 256)]
    rows += [untimed("FAIL", "output[0,1,2,3] is off by 4.1 x the bound", name="naive_avx2", seq=512)]
    refused = [untimed("SKIP", "this CPU has no AVX-512", name="flash_avx512", seq=128, heads=16, dim=32),
               untimed("FAIL", "output[0,1,2,3] is off by 4.1 x the bound", name="naive_avx2", seq=128, heads=16, dim=32)]
    mha = {"layer": "mha", "other_axes": "width:512"}
    decode = [untimed(status, reason, name=name, seq=8192, seq_q=1, dim=dim) | {"other_axes": axes}
              for status, name, reason in (("SKIP", "flash_avx512", "this CPU has no AVX-512"),
                                           ("FAIL", "naive_avx2", "output[0,1,2,3] is off by 4.1 x the bound"))
              for dim, axes in ((64, "page_tokens:16"), (128, ""))]
    rows += in_pages() + stored() + decode + passes()
    rows += layers(heads=(16, 32, 64)) + [cells | mha | {"case_id": cells["case_id"] + " mha"} for cells in refused]
    return rows + [row("blocked_avx2", 119.9, seq=128, baseline_rate=10.0)]
