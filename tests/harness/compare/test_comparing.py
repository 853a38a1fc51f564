#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""attnbench compare: its messages, files and exit codes, on result folders made here.

tests/harness/compare/test_comparing.py path/to/attnbench [unittest options]     needs only Python's standard library
"""

import csv
import io
import json
import math
import os
import random
import re
import shutil
import sys
import unittest
from pathlib import Path

from runs import FolderTest, program_argument, read_csv, run, strict_json

ATTNBENCH = program_argument("attnbench")
CASE = "dtype:f32/B:1/Hq:2/Hkv:2/Sq:{seq}/Sk:{seq}/D:64/Dv:64/causal:none/threads:{threads}"
FACTS = {"cpu": "a CPU", "tiers": "c avx2", "compiler": "GNU 12", "flags": "-O3", "libraries": "none", "commit": "a" * 40}
COLUMNS = "case_id,kernel,seq_q,threads,status,reason,samples,time_ns_median,time_ns_ci_lo,time_ns_ci_hi,noise"
VERDICTS = ("SLOWER", "INCONCLUSIVE", "SAME", "FASTER")
SEQS, KERNELS = (64, 128, 256, 512), ("flash_c", "naive_c")


class Compare(FolderTest):
    def write(self, name, slower=None, *, threads=1, peak=100, facts=None, kernels=KERNELS, rounds=21, skip=()):
        """A result folder; slower: (kernel, seq) -> factor."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        lines, samples = [COLUMNS], ["run_id,case_id,kernel,round,position,time_ns,iterations,peak_gflops"]
        for seq in SEQS:
            for kernel in kernels:
                case = CASE.format(seq=seq, threads=threads)
                if kernel in skip:
                    lines.append(f'{case},{kernel},{seq},{threads},SKIP,"too long, too slow",,,,,')
                    continue
                time = 1000 * seq * (slower or {}).get((kernel, seq), (slower or {}).get(kernel, 1))
                lines.append(f"{case},{kernel},{seq},{threads},PASS,,{rounds},{time},{time * .999},{time * 1.001},0.001")
                samples += [f"r,{case},{kernel},{i},0,{time * (1 + (i - 10) * 1e-4)},5,{peak}" for i in range(rounds)]
        (folder / "results.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / "samples.csv").write_text("\n".join(samples) + "\n", encoding="utf-8")
        env = {key: {"value": value, "grade": "OK"} for key, value in (FACTS | (facts or {})).items()}
        (folder / "env.json").write_text(json.dumps(env), encoding="utf-8")
        return folder

    def compare(self, code, words, *arguments, **environment):
        return self.assert_ends(run([ATTNBENCH, "compare", *arguments], **environment), code, *words)

    def rows(self, *arguments):
        return list(csv.DictReader(io.StringIO(self.compare(0, [], *arguments, "--csv", "-").stdout)))

    def test_usage(self):
        a, b = self.write("a"), self.write("b")
        self.compare(2, ["give two results"], a)
        self.compare(2, ["unknown failure 'slow'; did you mean slower?"], a, b, "--fail-on", "slow")
        self.compare(2, ["at most two axes"], a, b, "--by", "kernel,seq,threads")
        self.compare(2, ["'kernelx'", "no axis"], a, b, "--by", "kernelx")
        self.compare(2, ["only one of"], a, b, "--csv", "-", "--json", "-")
        self.compare(2, ["100%"], a, b, "--margin", "200%")
        self.compare(5, ["nowhere", "No such file"], a, self.folder / "nowhere")

    def test_other_machines_are_refused_unless_asked_for(self):
        a, b = self.write("a"), self.write("b", facts={"cpu": "another", "compiler": "Clang 14"})
        self.compare(2, ["cpu differs: 'a CPU' and 'another'", "compiler differs", "--across"], a, b)
        self.compare(0, ["cpu differs", "8 INCONCLUSIVE"], a, b, "--across")
        c = self.write("c", threads=2)
        self.compare(2, ["threads differ: 1 and 2"], a, c)
        self.compare(0, ["8 INCONCLUSIVE"], a, c, "--across")
        (b / "env.json").unlink()
        self.compare(0, ["8 INCONCLUSIVE"], a, b)  # unknown facts do not differ

    def test_rows_that_lack_samples_or_peaks_have_medians(self):
        a, b = self.write("a"), self.write("b", {"flash_c": 1.5}, peak=200)
        lines = (b / "samples.csv").read_text(encoding="utf-8").splitlines(keepends=True)
        lacking = self.folder / "lacking"
        for name, text in [("samples", lines[:-15]), ("sample", [*lines[:-21], *lines[-20:]]),
                           ("peaks", [*lines[:-15], *(line.replace(",200", ",") for line in lines[-15:])]),
                           ("peak", [*lines[:-1], lines[-1].replace(",200", ",")])]:
            self.write(f"lacking/{name}", {"flash_c": 1.5}, peak=200)
            (lacking / name / "samples.csv").write_text("".join(text), encoding="utf-8")
            rows = {(row["kernel"], row["case_id"]): row for row in self.rows(a, lacking / name)[:-1]}
            for (kernel, case), row in rows.items():  # without peaks times are compared, with them shares of the peak
                last = kernel == KERNELS[-1] and f"Sq:{SEQS[-1]}/" in case
                self.assertAlmostEqual(float(row["ratio"]), (1 if last else 0.5) / (1.5 if kernel == "flash_c" else 1), 6)

    def test_pivots_hold_the_means_of_their_cells(self):
        for seed in range(6):
            chance = random.Random(seed)
            slower = {(kernel, seq): 1 for kernel in KERNELS for seq in SEQS}
            *planted, lost = chance.sample(sorted(slower), 3)  # more would look like noise of equal rows
            slower |= zip(planted, (0.8, 1.25))
            a, b = self.write(f"a{seed}"), self.write(f"b{seed}", slower)
            for file in (b / "results.csv", b / "samples.csv"):
                lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
                kept = [line for line in lines if f"/Sq:{lost[1]}/" not in line or f",{lost[0]}," not in line]
                file.write_text("".join(kept), encoding="utf-8")
            del slower[lost]
            seqs = {str(seq): [(kernel, seq) for kernel in KERNELS] for seq in SEQS}
            each = {kernel: [[(kernel, seq)] for seq in SEQS] for kernel in KERNELS}
            for by, head, rows in (("seq", ["seq_q", "ratio [95 %]"], {seq: [keys] for seq, keys in seqs.items()}),
                                   ("kernel,seq", ["kernel", *(f"seq_q {seq}" for seq in SEQS)], each)):
                text = self.compare(0, [], a, b, "--by", by, "--markdown", "-").stdout.split("\n\n")[-1]
                cells = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in text.splitlines()]
                self.assertEqual(cells[0], head)
                self.assertEqual([re.sub(r"\[[^]]*\]", "", " ".join(line)).split() for line in sorted(cells[2:])],
                                 sorted([name, *(word for keys in groups for word in self.mean(slower, keys))]
                                        for name, groups in rows.items()))

    @staticmethod
    def mean(slower, keys):
        """The geometric mean of these rows' ratios and its sign, as a list; [] without rows."""
        factors = [slower[key] for key in keys if key in slower]
        ratio = math.prod(factors) ** (-1 / len(factors)) if factors else 0
        return [f"{ratio:.4f}", *["-"] * (ratio < 0.95), *["+"] * (ratio > 1.05)] if factors else []

    def test_lines_longer_than_any_table_are_refused(self):
        a, b = self.write("a"), self.write("b")
        for more, code in ((85, 0), (86, 5), (200, 5)):  # 11 columns of their own
            lines = [line + ",x" * more for line in (b / "results.csv").read_text(encoding="utf-8").splitlines()]
            wide = self.folder / f"wide{more}"
            shutil.copytree(b, wide)
            (wide / "results.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
            self.compare(code, ["line 2: "] if code else [], a, wide)

    def test_baselines(self):
        a, b = self.write("a"), self.write("b", {"flash_c": 1.5})
        state = {"XDG_STATE_HOME": str(self.folder / "state")}
        (a / "env.json").write_text((a / "env.json").read_text(encoding="utf-8").ljust(2 * 65536 + 1), encoding="utf-8")
        self.compare(0, ["saved: "], a, "--save", "before", **state)
        for name in "results.csv", "samples.csv", "env.json":
            saved = self.folder / "state" / "attn" / "baselines" / "before" / name
            self.assertEqual(saved.read_bytes(), (a / name).read_bytes())
        self.compare(1, ["4 SLOWER", "--fail-on slower: 4"], "--baseline", "before", b, "--fail-on", "slower", **state)
        self.compare(5, ["No such file"], "--baseline", "never", b, **state)
        self.compare(2, ["no name of a baseline"], a, "--save", ".a", **state)
        self.compare(2, ["no result folder"], a / "results.csv", "--save", "x", **state)
        self.compare(2, ["A should be one result folder"], f"{a},{a}", "--save", "x", **state)

    def test_three_results(self):
        a, b, c = self.write("a"), self.write("b"), self.write("c", {"flash_c": 1.5})
        done = self.compare(1, ["--fail-on slower: 4"], a, b, c, "--fail-on", "slower")
        self.assertEqual(done.stdout.count("geometric mean of 8"), 2)
        self.compare(0, [], a, b, c, "--fail-on", "slower=50.1%")
        self.assertEqual(len(strict_json(self.compare(0, [], a, b, "--json", "-").stdout)["comparisons"]), 8)


class Random(FolderTest):
    """Random result files: which rows are paired, and the same numbers in every kind of output, against a model."""

    def write(self, chance, name, threads):
        """A folder of random rows, and these; columns in any order."""
        keys = [(case, kernel, t) for case in range(3) for kernel in KERNELS for t in threads if chance.random() < 0.7]
        rows = []
        for case, kernel, t in chance.sample(keys, len(keys)) or [(0, "flash_c", threads[0])]:
            n = chance.choice([0, 5, 21, 40])
            status = "PASS" if n else chance.choice(["PASS", "FAIL", "SKIP", "DEGENERATE"])
            rows.append({"case_id": f"B:{case}/threads:{t}/D:4", "kernel": kernel, "threads": t, "status": status,
                         "samples": n, "reason": chance.choice(["", 'so, "it"']), "warnings": chance.choice(["", "slow"]),
                         "time_ns_median": chance.choice([1000, 1010, 2500]), "peak": chance.choice(["", 8, 100])})
        folder = self.folder / name
        folder.mkdir()
        columns = {"case_id": "case_id", "kernel": "kernel", "time_ns": "time_ns_median", "peak_gflops": "peak"}
        times = [{name: row[column] for name, column in columns.items()} for row in rows for _ in range(row["samples"])]
        for name, lines in [("results", rows)] + [("samples", times)] * bool(times):
            columns = chance.sample(list(lines[0]), len(lines[0]))
            with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, columns, lineterminator=chance.choice(["\n", "\r\n"]))
                writer.writeheader()
                untimed = {"samples": "", "time_ns_median": ""}
                writer.writerows(row if row.get("samples", 1) else row | untimed for row in lines)
        return {"path": str(folder), "rows": rows}

    @staticmethod
    def find(rows, like, across):
        same = [row for row in rows if (row["kernel"], row["case_id"]) == (like["kernel"], like["case_id"])]
        if same or not across:
            return same[0] if same else None
        same = [row for row in rows if (row["kernel"], row["case_id"][:3]) == (like["kernel"], like["case_id"][:3])]
        return same[0] if len(same) == 1 else None

    @staticmethod
    def reason(a, b):
        lacks_a = not a or (b is not None and not a["samples"] and (b["samples"] or a["status"] != "PASS"))
        row, side = (a, "A") if lacks_a else (b, "B")
        if not row:
            return f"not in {side}"
        why = row["reason"] or row["warnings"] or "no time"
        return "not in every run" if row["samples"] else f"{row['status']} in {side}: {why}"

    def model(self, a, b, across):
        """Pairs, and rows that are left over."""
        pairs, left = [], []
        never = [None, "SKIP", "DEGENERATE"]
        for row in a[0]["rows"]:
            own = [self.find(run["rows"], row, False) for run in a] + [self.find(run["rows"], row, across) for run in b]
            if all(each and each["samples"] for each in own):
                x, y = row, own[len(a)]
                ratio = x["time_ns_median"] / y["time_ns_median"] * (x["peak"] / y["peak"] if x["peak"] and y["peak"] else 1)
                pairs.append((row["kernel"], row["case_id"], x["time_ns_median"], y["time_ns_median"],
                              min(each["samples"] for each in own), round(ratio, 6) if len(own) == 2 else "of runs"))
            elif any(each and each["status"] not in never for each in (row, own[len(a)])):
                left.append((row["kernel"], row["case_id"], self.reason(row, own[len(a)])))
        left += [(row["kernel"], row["case_id"], "not in A") for row in b[0]["rows"]
                 if not self.find(a[0]["rows"], row, across) and row["status"] not in never]
        return sorted(pairs), left

    def test_rows_are_paired_as_a_model_does(self):
        for seed in range(60):
            chance, across = random.Random(seed), seed % 2
            threads = chance.choice([(1,), (1, 2)]), chance.choice([(1,), (2,), (1, 4)]) if across else (1,)
            a, b = ([self.write(chance, f"{seed}-{side}{i}", threads[side]) for i in range(chance.choice([1, 1, 3]))]
                    for side in (0, 1))
            pairs, left = self.model(a, b, across)
            names = [",".join(run["path"] for run in side) for side in (a, b)]
            margin = chance.choice([1, 5, 30])
            options = [*names, *["--across"] * across, "--margin", f"{margin}%"]
            files = [self.folder / f"{seed}.{kind}" for kind in ("json", "csv", "md")]
            done = run([ATTNBENCH, "compare", *options, "--json", files[0], "--csv", files[1], "--markdown", files[2]])
            with self.subTest(seed=seed):
                self.assertEqual(done.returncode, 0 if pairs else 3, done.stderr)
                read = strict_json(files[0].read_text(encoding="utf-8"))
                found = read["comparisons"]
                self.assertEqual((read["a"], read["b"]), tuple(names))
                keys = ("kernel", "case_id", "time_ns_a", "time_ns_b", "rounds")
                ratio = (lambda each: round(each["ratio"], 6)) if len(a) == len(b) == 1 else lambda each: "of runs"
                self.assertEqual(sorted((*(each[key] for key in keys), ratio(each)) for each in found), pairs)
                self.assertEqual([(each["kernel"], each["case_id"], each["reason"]) for each in read["not_compared"]], left)
                for each in found + [read["geometric_mean"]] * bool(found):
                    self.assertEqual(each["verdict"], self.verdict(each, math.log1p(margin / 100)), each)
                order = [(VERDICTS.index(each["verdict"]), each["ratio"]) for each in found]
                self.assertEqual(order, sorted(order))
                self.check_texts(read, left, done.stdout, files[2].read_text(encoding="utf-8"))
                self.assertEqual([{key: str(value) for key, value in each.items() if value is not None} for each in
                                  found + [read["geometric_mean"]] * bool(found)],
                                 [{key: self.same(cell) for key, cell in line.items() if cell not in ("", "geometric mean")}
                                  for line in read_csv(files[1])])

    @staticmethod
    def verdict(each, limit):
        """The verdict of p, the ratio and its interval; differences up to the limit do not count."""
        if each["ratio_ci_lo"] is None:
            return "INCONCLUSIVE"
        ratio, lowest, highest = (math.log(each[key]) for key in ("ratio", "ratio_ci_lo", "ratio_ci_hi"))
        if each["p"] <= 0.05 and abs(ratio) > limit:
            return "SLOWER" if ratio < 0 else "FASTER"
        return "SAME" if -limit < lowest and highest < limit else "INCONCLUSIVE"

    @staticmethod
    def same(text):
        """A number as JSON's reader and Python print it."""
        try:
            return str(json.loads(text))
        except ValueError:
            return text

    def check_texts(self, read, left, text, markdown):
        found = read["comparisons"]
        counts = ", ".join(f"{sum(each['verdict'] == word for each in found)} {word}" for word in VERDICTS)
        parts = [each["case_id"].split("/") for each in found]
        common = [part for part in parts[0] if all(part in own for own in parts)] if parts else []
        self.assertEqual(f"\nall cases: {'/'.join(common)}\n" in text, bool(found))
        self.assertEqual(f"\ngeometric mean of {len(found)}: " in text, bool(found))
        for each, own in zip(found, parts):
            ratio = f"{each['ratio']:.4f}"
            if each["ratio_ci_lo"] is not None:
                ratio += f" [{each['ratio_ci_lo']:.4f}, {each['ratio_ci_hi']:.4f}]"
            line = f"| {each['verdict']} | {ratio} | `{each['kernel']}` | `{each['case_id']}` | {each['reason']} |\n"
            self.assertEqual(markdown.count(line), 1, line)
            times = (f"{each[key] / 1000:.3f} us" for key in ("time_ns_a", "time_ns_b"))
            name = "/".join(part for part in own if part not in common) or "-"
            line = "{:12} {:25} {:>10} {:>10}  {:16} {}  ({})\n".format(each["verdict"], ratio, *times, each["kernel"], name,
                                                                       each["reason"])
            self.assertIn("\n" + line, text)
        self.assertEqual((counts in text, counts in markdown), (bool(found), bool(found)))
        for lines, begin in ((text, "  "), (markdown, "- ")):
            self.assertEqual([line for line in lines.splitlines() if line.startswith(begin) and "(" in line],
                             [f"{begin}{kernel} {case} ({why})" for kernel, case, why in left])
        self.assertEqual("\nNot compared:\n\n- " in markdown, bool(left))
        self.assertTrue(markdown.startswith(f"A: `{read['a']}`, B: `{read['b']}`; ratio: time of A / time of B, above 1"))


class Paired(FolderTest):
    """Two builds in one process; one of them is tests/harness/compare/slowed_libattn.c."""
    CASES = ("-k", "flash_c", "-a", "heads=1", "-a", "seq=48", "-a", "head_dim=16", "-q", "--rounds", "41")

    def setUp(self):
        super().setUp()
        self.real, self.slowed = (os.environ.get(name, "") for name in ("ATTN_TEST_LIBATTN", "ATTN_TEST_SLOWED"))
        if not self.real or not self.slowed:
            self.skipTest("no libattn.so: ATTN_TEST_LIBATTN, ATTN_TEST_SLOWED")

    def paired(self, code, words, *arguments, slowdown="0"):
        done = run([ATTNBENCH, "compare", "--paired", *arguments], ATTN_TEST_LIBATTN=self.real,
                   ATTN_TEST_SLOWDOWN=slowdown)
        if done.returncode == 4:
            self.skipTest(done.stderr)
        return self.assert_ends(done, code, *words)

    def test_a_slower_build_is_found(self):
        for attempt in range(4):  # a machine under load may need more rounds
            more = ["--rounds", str(41 * 2**attempt), "--fail-on", "slower=20%"]
            done = run([ATTNBENCH, "compare", "--paired", self.real, self.slowed, *self.CASES, *more],
                       ATTN_TEST_LIBATTN=self.real, ATTN_TEST_SLOWDOWN="9")
            if done.returncode:
                break
        if done.returncode == 4:
            self.skipTest(done.stderr)
        self.assert_ends(done, 1, "SLOWER", "--fail-on slower=20%: 1", "p ")
        row = next(line for line in done.stdout.splitlines() if line.startswith("SLOWER"))
        self.assertTrue(float(row.split()[1]) < 0.5, row)

    def test_one_build_twice(self):
        told = [word for word in self.CASES if word != "-q"]
        alike = "1 INCONCLUSIVE|1 SAME"
        for _ in range(2):  # one table in 100 may have a false verdict: two in succession are a defect
            done = self.paired(0, ["geometric mean of 1", "libattn 0."], self.real, self.slowed, *told)
            if re.search(alike, done.stdout):
                break
        self.assertRegex(done.stdout, alike)
        self.assertRegex(done.stderr, r"\[1/1, .*\] flash_c dtype:f32/")

    def test_errors(self):
        self.paired(2, ["nowhere", "cannot open"], self.real, "nowhere", *self.CASES)
        self.paired(2, ["two builds"], self.real, *self.CASES, "--baseline", "x")
        self.paired(2, ["two builds"], self.real, self.slowed, self.real)
        self.paired(2, ["'flash_d'"], self.real, self.slowed, "-k", "flash_d")
        self.paired(2, ["no case is possible"], self.real, self.slowed, *self.CASES, "-a", "heads_kv=3")
        self.paired(2, ["threads=4000: this process may use"], self.real, self.slowed, *self.CASES, "-t", "4000")
        self.paired(3, ["no timed case and kernel in common"], self.real, self.slowed, *self.CASES, "-a", "layer=mha")
        self.assert_ends(run([ATTNBENCH, "compare", self.folder, self.folder, "-k", "flash_c"]), 2, "need --paired")


class Verdicts(FolderTest):
    """scripts/dev/verdicts.py, on an attnbench whose verdicts are made here."""

    def verdicts(self, code, words, *arguments, slower=0, faster=0, rows=20, exit_code=0):
        program = self.folder / "harness" / "attnbench"
        program.parent.mkdir(exist_ok=True)
        names = ["SLOWER"] * slower + ["FASTER"] * faster
        text = json.dumps({"comparisons": [{"verdict": name} for name in names + ["SAME"] * (rows - len(names))]})
        program.write_text(f"#!/bin/sh\n[ $1 = run ] || echo '{text}'\necho words >&2\nexit {exit_code}\n", encoding="utf-8")
        program.chmod(0o755)
        script = Path(__file__).resolve().parents[3] / "scripts" / "dev" / "verdicts.py"
        return self.assert_ends(run([sys.executable, script, *arguments]), code, *words)

    def test_the_same_build_again(self):
        self.verdicts(0, ["2 comparisons of a run with the next one: 0 of 40 rows", "all 3 pairs of 3 runs: 0 of 60 rows"],
                      "same", self.folder, "--runs", "3")
        self.verdicts(1, ["1 comparisons of a run with the next one: 2 of 20"], "same", self.folder, "--runs", "2",
                      slower=1, faster=1)

    def test_a_build_beside_itself(self):
        (self.folder / "libattn.so").write_text("a library", encoding="utf-8")
        self.verdicts(0, ["0 of 3 tables, of 60 rows"], "itself", self.folder, "--times", "3", "--busy", "1")
        self.verdicts(1, ["3 of 3 tables"], "itself", self.folder, "--times", "3", faster=1)

    def test_planted_slowdowns(self):
        self.verdicts(0, ["planted 3 %: 38 of 40 rows SLOWER (95.0 %), 0 FASTER"], "planted", self.folder, slower=19)
        self.verdicts(1, ["36 of 40 rows SLOWER (90.0 %)"], "planted", self.folder, slower=18)
        self.verdicts(0, ["planted 2 %: 18 of 20"], "planted", self.folder, "--slowdown", "2", "--times", "1", slower=18)
        self.verdicts(1, ["planted 2 %: 17 of 20"], "planted", self.folder, "--slowdown", "2", "--times", "1", slower=17)
        self.verdicts(1, ["2 FASTER"], "planted", self.folder, slower=19, faster=1)
        self.verdicts(1, ["planted 0 %: 2 of 40"], "planted", self.folder, "--slowdown", "0", slower=1)
        self.verdicts(1, ["exit code 3", "words"], "planted", self.folder, exit_code=3)


if __name__ == "__main__":
    unittest.main()
