#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""attnbench merge and --resume on journals of random rows: what they print and write is what an independent model says.

tests/harness/report/test_merging.py path/to/attnbench [ROUNDS]     ROUNDS: of random folders (12)
"""

import contextlib
import json
import math
import os
import pty
import random
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from statistics import median

from runs import FolderTest, program_argument, read_csv, read_json, run

ATTNBENCH = program_argument("attnbench")
ROUNDS = int(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 12
ROOT = Path(__file__).resolve().parents[3]
KIND = dict(re.findall(r"(?m)^COLUMN\((\w+), (\w+), ", (ROOT / "harness/report/columns.def").read_text(encoding="utf-8")))
OPTIONAL = [*list(KIND)[list(KIND).index("layer"):list(KIND).index("other_axes")], "other_axes", "reference"]
STATUSES = ("PASS", "FAIL", "ERROR", "DEGENERATE", "SKIP")
COUNTERS = ("gflops", "gbs", "peak_gflops", "peak_pct", "ratio", "ratio_ci_lo", "ratio_ci_hi", "max_err_ratio")
APART = ("command", "build", "cpu", "cpu_family", "cpu_model", "seed", "rounds", "an item of the last part")
TIES = (0.125, 9.9949, 9.9951, 99.94, 99.96, 2.5)  # where the digits of a ratio or a time change
RANK = ("OK", "unknown", "WARN", "BAD")


# ---- Random folders -------------------------------------------------------------------------------------------------------

def text_of(chance):
    words = ["a", ",", '"q"', "line\nbreak", "\r", "back\\slash", "é", "€ 😀", "\x01", "100 %"] + ["word"] * 20
    return "  ".join(chance.sample(words, chance.randrange(12)))[:40].encode()[:90].decode(errors="ignore")


def number_of(chance):
    return chance.choice([chance.choice(TIES), 10 ** chance.uniform(-2, 6), chance.uniform(0, 100)])


def cell_of(chance, column):
    kind = KIND[column]
    if kind == "TEXT":
        short = column.startswith("dtype") or column in ("baseline", "isa", "library", "level")
        return chance.choice(["", "naive_c", "bf16"]) if short else text_of(chance)[:5]
    if kind.endswith("WHOLE"):
        return str(chance.choice([0, 1, 2, 8, chance.randrange(10 ** 12)]))
    if kind == "CHECKED_INDEX":
        return ":".join(str(chance.randrange(-1, 99)) for _ in range(4))
    if kind.endswith(("NUMBER", "POSITIVE")):
        return chance.choice(["0", "inf"]) if chance.random() < 0.05 else f"{number_of(chance):.9g}"
    return {"STATUS": chance.choice(STATUSES), "STOP": chance.choice(["precision", "rounds", "budget"])}[kind]


def row_of(chance, case, kernel):
    """Cells as the journal holds them, and the arrays of samples. Missing cells are absent."""
    row = {column: cell_of(chance, column) for column in KIND if KIND[column] != "SAMPLES" and chance.random() < 0.8}
    row |= {"run_id": f"run {chance.randrange(3)}", "case_id": case, "kernel": kernel, "status": cell_of(chance, "status"),
            "reason": text_of(chance), "warnings": text_of(chance)}
    if chance.random() < 0.7:  # attention alone
        row = {column: cell for column, cell in row.items() if column not in OPTIONAL[:-2]}
    elif "projections_pct" in row:
        row["rest_pct"] = "12.5"
    n = chance.choice([0, 0, 1, 5])
    if n:
        row |= {"samples": str(n), "time_ns_median": f"{number_of(chance):.9g}", "iterations": chance.randrange(9),
                "samples_ns": [round(number_of(chance), 3) for _ in range(n)], "ratio_best": 0.5,
                "positions": [chance.randrange(9) for _ in range(n)]}
        if chance.random() < 0.6:
            row["peaks"] = [chance.choice([0, 1.5, 2.5e11]) for _ in range(n)]
    return {key: row[key] for key in chance.sample(list(row), len(row)) if row[key] != ""}


def quoted(value):
    """A string as attnbench writes it: no escape but these."""
    return '"' + "".join(f"\\u{ord(c):04x}" if c < " " and c != "\n" else {"\n": "\\n", '"': '\\"', "\\": "\\\\"}.get(c, c)
                         for c in value) + '"'


def written(values):
    pairs = (f'"{key}": {quoted(value) if isinstance(value, str) else json.dumps(value)}'
             for key, value in dict(values).items())
    return "{" + ", ".join(pairs) + "}" if values else ""


def part_of(chance, path, others):
    """A result folder: head, lines, facts of env.json; written to `path`."""
    head = {"command": "run", "build": "b", "cpu": 'A "b" (R), 1', "cpu_family": "6", "cpu_model": "", "seed": "1",
            "rounds": "9", "shard": chance.choice(["all", "1/3", "2/3"]), "affinity": str(chance.randrange(9))}
    if chance.random() < 0.6:
        item = chance.choice(APART)
        head[item] = "check" if item == "command" else chance.choice(["7", "(8) Z"]) if item != "seed" else "7"
    rests = ("", "/lse:on/mask:random", "/bias:full/x:" + "y" * 40)
    cases = [f"dtype:f32/B:1/Hq:{heads}/threads:1{rest}" for heads in (1, 2) for rest in rests]
    lines = [row_of(chance, chance.choice(cases), chance.choice(["naive_c", "flash_c", "flash_c1", "k" * 30]))
             for _ in range(chance.randrange(12))]
    facts = {name: (text_of(chance) or "known", chance.choice(RANK), chance.choice(["", "a command"]))
             for name in ("host", "date", "cpu", "load", "argv", *chance.sample(["one", "two"], 1))}
    path.mkdir()
    (path / "journal.jsonl").write_bytes("\n".join(map(written, [{"journal": 2, **head}, *lines, ""])).encode())
    lines_of_facts = [f'  "{name}": ' + written({"value": value, "grade": grade, "advice": advice})
                      for name, (value, grade, advice) in facts.items()]
    (path / "env.json").write_bytes(("{\n" + ",\n".join(lines_of_facts) + "\n}\n").encode())
    if chance.random() < 0.8:
        (path / "results.csv").touch()
    return {"path": path, "head": head, "lines": lines, "facts": facts, "machine": machine_of(head, others)}


# ---- What merge should make of them ---------------------------------------------------------------------------------------

def differences(head, other):
    return [key for key in {**head, **other} if key not in ("shard", "affinity") and head.get(key, "") != other.get(key, "")]


def machine_of(head, others):
    heads = list({part["machine"]: part["head"] for part in reversed(others)}.items())[::-1]
    return next((machine for machine, first in sorted(heads) if not differences(first, head)), len(heads))


def latest(part):
    """The last line of a case and kernel, in the place of the first."""
    return list({(row["case_id"], row["kernel"]): row for row in part["lines"]}.values())


def joined(parts):
    """The rows of a machine, of several alike a timed one, else the earliest part's; and how many were left out."""
    rows, alike = [row for part in parts for row in latest(part)], {}
    for row in rows:
        alike.setdefault((row["case_id"], row["kernel"]), []).append(row)
    chosen = [max(each, key=lambda row: "samples" in row) for each in alike.values()]
    return [row for row in rows if any(row is each for each in chosen)], len(rows) - len(chosen)


def cell(row, column):
    kind, value = KIND[column], row.get(column, "")
    if kind.startswith("CHECKED"):
        default = "0:0:0:0" if kind == "CHECKED_INDEX" else "0"
        return "" if row["status"] in ("SKIP", "ERROR") else value or default
    if kind == "STOP":
        return (value or "precision") if "samples" in row else ""
    return "" if kind == "POSITIVE" and value == "0" else value


def number(row, column):
    """NaN where it is missing; errors are 0."""
    return float(row.get(column) or ("0" if KIND[column].startswith("CHECKED") else "nan"))


def entry(row, family):
    name, time = f"attn/kernel:{row['kernel']}/{row['case_id']}", float(row["time_ns_median"])
    finite = {column: float(cell(row, column)) for column in COUNTERS if cell(row, column)}
    return {"name": name + "_median", "run_name": name, "family_index": family, "per_family_instance_index": 0,
            "repetitions": int(row["samples"]), "threads": int(row.get("threads", -1)), "iterations": row["iterations"],
            "real_time": time, "cpu_time": time, "time_unit": "ns", "run_type": "aggregate", "aggregate_name": "median",
            "aggregate_unit": "time", **{key: value if math.isfinite(value) else None for key, value in finite.items()},
            **({"label": row["warnings"]} if "warnings" in row else {})}


def facts_of(parts):
    facts = {}
    for part in parts:
        for name, (value, grade, advice) in part["facts"].items():
            old = facts.setdefault(name, {"value": value, "grade": grade, "advice": advice})
            if value not in old["value"]:
                old["value"] += f"; {value}"
            if RANK.index(grade) > RANK.index(old["grade"]):
                old.update(grade=grade, advice=advice)
    return {name: {key: value for key, value in fact.items() if value or key != "advice"} for name, fact in facts.items()}


# ---- table.txt ------------------------------------------------------------------------------------------------------------
# Texts are bytes in Latin-1 here, as attnbench counts bytes.

def wrapped(text, column, indent):
    out, begins = "", True
    for word in text.split(" ") if text else []:
        if column + len(word) + (not begins) > 118 and column > indent:
            out, column, begins = f"{out}\n{'':{indent}}", indent, True
        out, column, begins = out + " " * (not begins) + word, column + len(word) + (not begins), False
    return out.removesuffix(" ") + "\n" if text.endswith(" ") else out + "\n"


def time_text(ns):
    scale, unit = next(((scale, unit) for scale, unit in ((1e9, "s "), (1e6, "ms"), (1e3, "us")) if ns >= scale), (1, "ns"))
    value = ns / scale
    return f"{value:.{3 if value < 10 else 2 if value < 100 else 1}f} {unit}"


def fixed(value, digits):
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def ratio_text(row):
    value, low, high = (number(row, name) for name in ("ratio", "ratio_ci_lo", "ratio_ci_hi"))
    digits = 2 if value < 10 else 1 if value < 100 else 0
    if not value > 0:
        return ""
    return f"{value:.{digits}f}" + ("" if math.isnan(low) else f" [{fixed(low, digits)}, {high:.{digits}f}]")


def time_row(row, reads):
    low, middle, high = (number(row, f"time_ns_{name}") for name in ("ci_lo", "median", "ci_hi"))
    halves = [half for half in (high - middle, middle - low) if not math.isnan(half)]
    spread = f"{100 * max(halves) / middle:.1f} %" if halves else ""
    rate = number(row, "gflops")
    return (f"  {row['kernel']:16} {time_text(middle):>10} {spread:>8} {fixed(rate if rate > 0 else math.nan, 1):>9} "
            f"{fixed(number(row, 'bw_pct' if reads else 'peak_pct'), 1):>8} {fixed(number(row, 'gbs'), 2):>8}  "
            f"{ratio_text(row):24} {fixed(number(row, 'max_err_ratio'), 3):>8}  {row['samples']}\n")


def painted(row, best):
    """Escape codes around a row on a terminal."""
    status = row["status"]
    code = 31 if status in ("FAIL", "ERROR") else 2 if status in ("SKIP", "DEGENERATE") else 1 if best else None
    return (f"\033[{code}m", "\033[0m") if code else ("", "")


def row_text(row, command, seed, reads, colours=("", ""), repro=False):
    status, reason = row["status"], row.get("reason", "")
    start = f"  {row['kernel']:16} {status:10} "
    if "samples" in row:
        out = time_row(row, reads)
    elif command == "check" and status != "SKIP":
        errors = [f"{number(row, name):.3g}" if status != "ERROR" else "" for name in ("max_err_ratio", "max_abs_err")]
        out = f"{start}{errors[0]:>9} {errors[1]:>10} {cell(row, 'rows_checked'):>8}\n"
        out += " " * 19 + wrapped(reason, 19, 19) if reason else ""
    else:
        out = start + wrapped(reason, len(start), len(start))
    if "projections_pct" in row:
        attention = f", attention {number(row, 'attention_pct'):.1f} %" if "attention_pct" in row else ""
        out += (f"{'':19}projections {number(row, 'projections_pct'):.1f} % ({row.get('product', '')}){attention}, "
                f"rest {number(row, 'rest_pct'):.1f} %\n")
    if "warnings" in row:
        out += " " * 19 + wrapped(row["warnings"], 19, 19)
    out = colours[0] + out + colours[1]
    if repro or status in ("FAIL", "ERROR"):
        out += f"{'':19}attnbench {command} --case {row['case_id']} --kernel {row['kernel']} --seed {seed}\n"
    return out


def headline(row):
    names = (("batch", "batch", ""), ("heads_q", "heads_kv", "/"), ("seq_q", "seq_k", "x"), ("dim_qk", "dim_v", "/"),
             ("causal", "causal", ""), ("threads", "threads", ""))
    titles = ("batch", "heads", "seq", "head_dim", "causal", "threads")
    text = "f32"
    for title, (one, two, between) in zip(titles, names):
        a, b = row.get(one, ""), row.get(two, "")
        text += f"  {title} {a}{between + b if a != b else ''}" if a else ""
    return text + "".join("  " + part.replace(":", " ") for part in row["case_id"].split("threads:1")[1].split("/")[1:])


def block(rows, command, seed, colour=False, repro=False):
    rows = sorted(rows, key=lambda row: float(row["time_ns_median"]) if "samples" in row else math.inf)
    best, out = rows[0], wrapped(headline(rows[0]), 0, 4)
    out = f"\033[1m{out}\033[0m" if colour else out
    reads = "samples" in best and number(best, "bw_pct") > number(best, "peak_pct")
    share = f"% {best.get('level') or 'read'}" if reads else "% peak"
    baselines = list(dict.fromkeys(row["baseline"] for row in rows if "baseline" in row))
    ratio = "x" if not baselines else f"x {baselines[0] if len(baselines) == 1 else 'baseline'} [95 %]"
    if command == "check":
        out += f"  {'kernel':16} {'status':10} {'err/lim':>9} {'abs error':>10} {'rows':>8}\n"
    elif "samples" in best:
        out += (f"  {'kernel':16} {'median':>10} {'+-':>8} {'GFLOP/s':>9} {share:>8} {'GB/s':>8}  "
                f"{ratio:24} {'err/lim':>8}  n\n")
    else:
        out += f"  {'kernel':16} {'status':10} reason\n"
    for i, row in enumerate(rows):
        out += row_text(row, command, seed, reads, painted(row, i == 0 and "samples" in row) if colour else ("", ""), repro)
    return out + "\n"


def summary(rows, reasons=False):
    out = f"{'kernel':18} {'PASS':>7} {'FAIL':>7} {'ERROR':>7} {'DEGENERATE':>10} {'SKIP':>7}  worst err/lim\n"
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        own = [row for row in rows if row["kernel"] == kernel]
        counts = [sum(row["status"] == status for row in own) for status in STATUSES]
        errors = [number(row, "max_err_ratio") for row in own if row["status"] not in ("SKIP", "ERROR")]
        worst = f"  {max(errors):13.3g}" if errors else ""
        out += "{:18} {:7} {:7} {:7} {:10} {:7}{}\n".format(kernel, *counts, worst)
    skipped = [row for row in rows if row["status"] == "SKIP"] if reasons else []
    for i, reason in enumerate(dict.fromkeys(row["reason"] for row in skipped)):
        own = [row["kernel"] for row in skipped if row["reason"] == reason]
        out += "\nskipped:\n" * (not i) + f"{len(own):7}  " + wrapped(f"{reason} ({', '.join(dict.fromkeys(own))})", 9, 9)
    peaks, noises, undisturbed, all_samples = {}, {}, 0.0, 0.0
    for row in rows:
        if number(row, "peak_gflops") > 0:
            key = tuple(row.get(name, "") for name in ("library", "isa", "dtype_kv")) + (int(row.get("threads", -1)),)
            peaks.setdefault(key, []).append(number(row, "peak_gflops"))
        if "samples" in row:
            noises.setdefault(row["case_id"], number(row, "noise"))
        if "samples" in row and "undisturbed_pct" in row:
            undisturbed += int(row["samples"]) * number(row, "undisturbed_pct") / 100
            all_samples += int(row["samples"])
    texts = [f"{key[0] or key[1]} {key[2]} {median(values):.1f} ({(key[3] + 2 ** 31) % 2 ** 32 - 2 ** 31})"
             for key, values in peaks.items()]
    out += "\n" + ("measured peak, GFLOP/s (threads): " + ", ".join(texts) + "\n" if texts else "")
    known = [noise for noise in noises.values() if not math.isnan(noise)]
    if known:
        out += (f"noise floor: the quickest kernel timed against itself differs by {100 * median(known):.2f} % (median over "
                f"{len(known)} case{'s' * (len(known) > 1)}), {100 * max(known):.2f} % at worst\n")
    if undisturbed < all_samples:
        out += (f"disturbed: another program ran on the same cores in {100 * (1 - undisturbed / all_samples):.0f} % of the "
                "samples\n")
    counts = ", ".join(f"{sum(row['status'] == status for row in rows)} {status}" for status in STATUSES)
    return out + f"{len(rows)} row{'s' * (len(rows) != 1)}: {counts}\n"


def table(rows, parts, cpu):
    rows = [{key: value.encode().decode("latin-1") if isinstance(value, str) else value for key, value in row.items()}
            for row in rows]
    head, blocks = parts[0]["head"], []
    for row in rows:
        if not blocks or blocks[-1][0]["case_id"] != row["case_id"]:
            blocks.append([])
        blocks[-1].append(row)
    cpu = cpu.encode().decode("latin-1")
    out = f"{len(rows)} rows of {len(parts)} part{'s' * (len(parts) != 1)}, joined; {cpu}\n\n"
    out += "".join(block(rows, head["command"], head["seed"]) for rows in blocks)
    return out + (summary(rows) if rows else "")


# ---- The test -------------------------------------------------------------------------------------------------------------

class Merging(FolderTest):
    maxDiff = None

    def check_folder(self, path, parts, rows):
        """Every file of a machine's folder."""
        shown = [column for column in KIND if column not in OPTIONAL]
        shown += [column for column in OPTIONAL[:-2] if any("layer" in row for row in rows)]
        shown += [column for column in OPTIONAL[-2:] if any(column in row for row in rows)]
        cells = [{column: cell(row, column) for column in shown} for row in rows]
        self.assertEqual(read_csv(path / "results.csv"), cells)
        head, *lines = [json.loads(line) for line in (path / "journal.jsonl").read_text(encoding="utf-8").splitlines()]
        self.assertEqual(head, {"journal": 2, **parts[0]["head"], "shard": "all"})
        for line, row in zip(lines, rows, strict=True):
            arrays = {key: value for key, value in row.items() if not isinstance(value, str)}
            self.assertEqual(line, {column: cell(row, column) for column in KIND if cell(row, column)} | arrays)
        samples = [[row.get("run_id"), row["case_id"], row["kernel"], i, row["positions"][i], row["samples_ns"][i],
                    row["iterations"], row["peaks"][i] / 1e9 if row.get("peaks", [0] * 9)[i] else ""]
                   for row in rows for i in range(int(row.get("samples", 0)))]
        self.assertEqual([list(line.values()) for line in read_csv(path / "samples.csv")],
                         [[f"{value:.9g}" if isinstance(value, float) else str(value) for value in line]
                          for line in samples])
        document = read_json(path / "results.json")
        timed = [row for row in rows if "samples" in row]
        self.assertEqual(document["benchmarks"], [entry(row, i) for i, row in enumerate(timed)])
        self.assertEqual(document["not_timed"], [
            {"name": f"attn/kernel:{row['kernel']}/{row['case_id']}", "status": row["status"],
             "reason": row.get("reason", ""), "warnings": row.get("warnings", "")} for row in rows if "samples" not in row])
        facts = facts_of(parts)
        self.assertEqual(read_json(path / "env.json"), facts)
        context = {"date": "date", "host_name": "host", "cpu": "cpu"}
        self.assertEqual({key: document["context"][key] for key in context},
                         {key: facts[name]["value"] for key, name in context.items()})
        self.assertEqual(document["context"]["run_id"], "merged")
        self.assertEqual(read_csv(path / "runs.csv"), [
            {"run_ids": " ".join(dict.fromkeys(line["run_id"] for line in latest(part))), "part": str(part["path"]),
             "shard": part["head"]["shard"], "affinity": "unknown",
             **{name: part["facts"][name][0] for name in ("host", "date", "load", "argv")}} for part in parts])
        self.assertEqual((path / "table.txt").read_bytes().decode("latin-1"), table(rows, parts, facts["cpu"]["value"]))

    def check_words(self, done, parts, machines):
        """The words about parts and folders."""
        expected = [f"warning: {part['path']}: its run has not ended; start it again with --resume, then merge again"
                    for part in parts if not (part["path"] / "results.csv").exists()]
        if parts[0]["head"]["shard"] != "all":
            there = {part["head"]["shard"] for part in parts}
            expected += [f"warning: shard {i}/3 is missing" for i in (1, 2, 3) if f"{i}/3" not in there]
        lines = []
        for machine, (path, _, rows, repeated) in enumerate(machines):
            if repeated:
                expected.append(f"warning: {repeated} rows stand in several parts: a timed one counts, else the first")
            cases = len({row["case_id"] for row in rows})
            lines.append(f"{path}: {len(rows)} rows of {cases} case{'s' * (cases != 1)}")
            first = [other[1][0]["head"] for other in machines[:machine + 1]]
            if machine:
                lines.append("  apart: other " + ", ".join(differences(head, first[-1])[0] for head in first[:-1]))
        self.assertEqual((done.stderr.splitlines(), done.stdout.splitlines()), (expected, lines))

    def test_files_hold_what_a_model_says(self):
        for seed in range(ROUNDS):
            chance, parts = random.Random(seed), []
            for i in range(chance.randrange(1, 6)):
                parts.append(part_of(chance, self.folder / f"{seed}-{i}", parts))
            machines, slugs = [], []
            for machine in range(max(part["machine"] for part in parts) + 1):
                own = [part for part in parts if part["machine"] == machine]
                items = [own[0]["head"][name].lower() for name in ("cpu", "cpu_family", "cpu_model")]
                slugs.append("-".join(filter(None, (re.sub("[^a-z0-9]+", "-", item).strip("-") for item in items))))
                machines.append([self.folder / f"all{seed}", own, *joined(own)])
            for machine, slug in enumerate(slugs if len(slugs) > 1 else []):
                alike = slugs[:machine].count(slug)
                machines[machine][0] /= slug + (f"-{alike + 1}" if alike else "")
            with self.subTest(seed=seed):
                done = run([ATTNBENCH, "merge", "-o", self.folder / f"all{seed}", *(part["path"] for part in parts)])
                self.assertEqual(done.returncode, 0, done.stderr)
                self.check_words(done, parts, machines)
                for path, own, rows, _ in machines:
                    self.check_folder(path, own, rows)


class Resumed(FolderTest):
    """Rows of a journal that --resume finds complete: the table on a terminal, of long checks and with --repro."""
    maxDiff = None

    def on_a_terminal(self, *arguments):
        """attnbench's output there."""
        terminal, end = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("ATTN_", "NO_COLOR"))}
        environment["TERM"] = "xterm"
        with tempfile.TemporaryFile() as said:
            with subprocess.Popen([ATTNBENCH, *map(str, arguments)], stdout=end, stderr=said, env=environment) as process:
                os.close(end)
                text = b""
                with contextlib.suppress(OSError):
                    while more := os.read(terminal, 65536):
                        text += more
            os.close(terminal)
            said.seek(0)
            self.assertIn(process.returncode, (0, 1), said.read())
        return text.decode().replace("\r\n", "\n")

    def test_tables_on_terminals_and_of_long_checks(self):
        for seed, cases in (1, 12), (2, 13):
            chance, folder = random.Random(seed), self.folder / str(cases)
            arguments = ["check", "-k", "naive_c,flash_c", "-a", f"seq=1:{cases}:+1", "-a", "heads=1", "-a", "head_dim=4",
                         "-q", "--seed", seed, "-o", folder, *["--repro"] * (seed == 1)]
            self.assertEqual(run([ATTNBENCH, *arguments]).returncode, 0)
            head, *lines = (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines]
            for row in rows:
                row.update(status=chance.choice(["PASS", "FAIL", "SKIP", "SKIP", "DEGENERATE"]),
                           reason=chance.choice(["too long", "too short " + "or too long " * 12]))
            (folder / "journal.jsonl").write_text("\n".join([head, *map(written, rows), ""]), encoding="utf-8")
            long, parts = cases > 12, []  # a check of more than 12 cases shows failures alone
            for i in range(0, len(rows), 2):
                shown = [row for row in rows[i:i + 2] if not long or row["status"] == "FAIL"]
                parts += [block(shown, "check", seed, True, seed == 1)] if shown else []
            text = self.on_a_terminal(*arguments, "--resume")
            opening, rest = text.split("\n\n", 1)
            self.assertIn(f"{cases} cases x 2 kernels, seed {seed}", opening)
            self.assertEqual(re.sub(r"structural tests, .*?\n\n", "", rest, flags=re.DOTALL),
                             "".join(parts) + summary(rows, reasons=long))


if __name__ == "__main__":
    unittest.main(verbosity=1)
