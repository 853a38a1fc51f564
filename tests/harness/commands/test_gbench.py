#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Google Benchmark on our cases, and its compare.py on our results and its own.

tests/harness/commands/test_gbench.py CLASS...

The environment names the programs: ATTNBENCH, ATTNBENCH_GBENCH, GBENCH_BROKEN, COMPARE_PY.
"""

import json
import os
import re
import sys
import unittest
from pathlib import Path

import runs

CASE = ["-a", "heads=2", "-a", "head_dim=16", "-a", "causal=none,top-left"]
ID = "dtype:f32/B:1/Hq:2/Hkv:2/Sq:{0}/Sk:{0}/D:16/Dv:16/causal:{1}/threads:1"
QUICK = ["--benchmark_min_time=0.02"]


def run(program, *arguments, **environment):
    """Runs the program that a variable of the environment names."""
    return runs.run([os.environ[program], *arguments], without=("BENCHMARK_",), **environment)


def name(kernel, seq, causal="none"):
    return f"attn/kernel:{kernel}/{ID.format(seq, causal)}"


class Folder(runs.FolderTest):

    def ours(self, file, *arguments):
        """The file with the results of `attnbench run`."""
        path = self.folder / file
        self.assert_ends(run("ATTNBENCH", "run", "-q", "--rounds", 5, "--json", path, *CASE, *arguments), 0)
        return path

    def theirs(self, file, *arguments, code=0, program="ATTNBENCH_GBENCH", **environment):
        """The file with the results of Google Benchmark."""
        path = self.folder / file
        self.assert_ends(run(program, *QUICK, f"--benchmark_out={path}", "--benchmark_out_format=json", *CASE, *arguments,
                             **environment), code)
        return path


def entries(path):
    return {entry["name"]: entry for entry in json.loads(Path(path).read_text(encoding="utf-8"))["benchmarks"]}


class Gbench(Folder):

    def test_same_names_as_run(self):
        arguments = ["-k", "naive_c,flash_c", "-a", "seq=24,40"]
        theirs = entries(self.theirs("theirs.json", *arguments))
        ours = {entry.get("run_name") for entry in entries(self.ours("ours.json", *arguments)).values()}
        self.assertEqual(set(theirs), ours)
        self.assertEqual(set(theirs),
                         {name(k, s, c) for k in ("naive_c", "flash_c") for s in (24, 40) for c in ("none", "top-left")})

    def test_counters_follow_from_the_time(self):
        path = self.theirs("theirs.json", "-k", "flash_c", "-a", "seq=64", "-a", "causal=none", "--benchmark_min_time=0.5")
        entry = entries(path)[name("flash_c", 64)]
        flops, size = 2 * 2 * 64 * 64 * (16 + 16), 4 * 2 * 64 * 16 * 4
        self.assertAlmostEqual(entry["gflops"] * entry["real_time"] / flops, 1, delta=0.2)  # our clock holds theirs
        self.assertAlmostEqual(entry["gbs"] / entry["gflops"], size / flops, places=5)
        self.assertAlmostEqual(entry["peak_pct"], 100 * entry["gflops"] / entry["peak_gflops"], places=3)
        self.assertGreater(entry["peak_gflops"], entry["gflops"])
        self.assertTrue(0 < entry["max_err_ratio"] <= 1)

    def test_their_options_and_ours(self):
        done = run("ATTNBENCH_GBENCH", "--preset", "quick", "-k", "naive_c", "-a", "seq=16", "--benchmark_list_tests")
        self.assert_ends(done, 0)
        self.assertTrue(all(line.startswith("attn/kernel:naive_c/") for line in done.stdout.split()), done.stdout)
        done = run("ATTNBENCH_GBENCH", *CASE, "-a", "seq=16", "--benchmark_filter=kernel:naive_c/.*causal:none", *QUICK)
        self.assert_ends(done, 0)
        self.assertEqual(re.findall(r"attn/kernel:\S+", done.stdout), [name("naive_c", 16)])
        repeated = self.theirs("r.json", "-k", "naive_c", "-a", "seq=16", "-a", "causal=none", "--benchmark_repetitions=3")
        self.assertIn(f"{name('naive_c', 16)}_median", entries(repeated))
        for words, arguments in [("--kernel", ["--kernell=a"]), ("naive_c", ["-k", "naive_d"]), ("seq", ["-a", "sek=3"]),
                                 ("--benchmark_nope", ["--benchmark_nope"]), ("no CPU 1000", ["--cpus", "1000"])]:
            self.assert_ends(run("ATTNBENCH_GBENCH", *arguments), 2, words)
        self.assertIn("--benchmark_filter", run("ATTNBENCH_GBENCH", "--help").stdout)

    def test_layers(self):
        layers = ["positions", "decode-step", "additive", "regression", "synthesizer-random", "mha"]
        self.assert_ends(run("ATTNBENCH_GBENCH", *QUICK, f"--benchmark_out={self.folder / 'l.json'}", "-k", "auto",
                             "--benchmark_out_format=json", "-a", "seq=24", "-a", f"layer={','.join(layers)}"), 0)
        found = {re.search("layer:([^/]+)", name).group(1): entry for name, entry in entries(self.folder / "l.json").items()}
        self.assertEqual(set(found), set(layers))
        for layer, entry in found.items():
            self.assertNotIn("error_occurred", entry, layer)
            self.assertEqual("gflops" in entry, layer != "positions")
            self.assertTrue(0 < entry["max_err_ratio"] <= 1)

    def test_cold_caches_and_threads_are_checked_too(self):
        path = self.theirs("cold.json", "-k", "flash_c", "-a", "seq=64", "-a", "causal=none", "-a", "cache=warm,cold", "-t",
                           "1,2")
        for entry_name, entry in entries(path).items():
            self.assertNotIn("error_occurred", entry, entry_name)
            self.assertGreater(entry["gflops"], 0)

    def test_refusals_are_errors_with_a_reason(self):
        found = entries(self.theirs("theirs.json", "-k", "decode_c", "-a", "seq=160", "-a", "causal=none"))
        entry = found[name("decode_c", 160)]
        self.assertIn("SKIP: ", entry["error_message"])
        self.assertNotIn("gflops", entry)


class Broken(Folder):

    def test_a_failing_check_is_an_error_and_no_time(self):
        path = self.theirs("broken.json", "-k", "naive_c", "-a", "seq=24", program="GBENCH_BROKEN", code=1, BROKEN_FROM="0")
        for entry in entries(path).values():
            self.assertTrue(entry["error_occurred"])
            self.assertRegex(entry["error_message"], r"^FAIL: ")
            self.assertEqual((entry["real_time"], entry["iterations"]), (0, 0))
            self.assertNotIn("gflops", entry)

    def test_a_kernel_that_goes_wrong_later_has_no_time_either(self):
        path = self.theirs("late.json", "-k", "naive_c", "-a", "seq=24", "-a", "causal=none", program="GBENCH_BROKEN",
                           code=1, BROKEN_FROM="20")
        (entry,) = entries(path).values()
        self.assertIn("differs from the one that passed", entry["error_message"])
        self.assertNotIn("gflops", entry)

    def broken(self, how):
        """Exit code and entry of naive_c, broken in this way."""
        path = self.folder / f"{how}.json"
        done = run("GBENCH_BROKEN", *QUICK, f"--benchmark_out={path}", "--benchmark_out_format=json", *CASE, "-k", "naive_c",
                   "-a", "seq=64", "-a", "causal=none", BROKEN_HOW=how)
        (entry,) = entries(path).values()
        return done.returncode, entry

    def test_hidden_threads_have_no_time(self):
        code, entry = self.broken("thread")
        self.assertEqual(code, 1)
        self.assertIn("threads were busy, but the case has 1", entry["error_message"])
        self.assertNotIn("gflops", entry)

    def test_skipped_work_has_no_time(self):
        # All calls are one sample. Where another process takes the CPU meanwhile, calls that do nothing take long.
        for _ in range(8):
            code, entry = self.broken("skip")
            if "skips work" in entry.get("error_message", ""):
                break
        self.assertIn("skips work", entry.get("error_message", ""))
        self.assertEqual(code, 1)
        self.assertNotIn("gflops", entry)

    def test_unbroken_it_passes(self):
        path = self.theirs("fine.json", "-k", "naive_c", "-a", "seq=24", program="GBENCH_BROKEN", BROKEN_FROM="999999999")
        for entry in entries(path).values():
            self.assertNotIn("error_occurred", entry)


class Compare(Folder):
    """Google Benchmark's compare.py. It prints the change (new - old) / |old| of the time behind each name."""

    def compare(self, *arguments):
        return self.assert_ends(runs.run([sys.executable, os.environ["COMPARE_PY"], "--no-color", *arguments]), 0).stdout

    def changes(self, text, row):
        return [float(value) for value in re.findall(re.escape(row) + r" +([+-]\d+\.\d+) ", text)]

    def median(self, path, kernel, seq, causal="none"):
        return entries(path)[f"{name(kernel, seq, causal)}_median"]["real_time"]

    def assert_change(self, text, row, old, new):
        found = self.changes(text, row)
        self.assertEqual(len(found), 1, text)
        self.assertAlmostEqual(found[0], (new - old) / old, delta=0.0002)

    def test_our_files(self):
        """Includes decode_c, which refuses the case and so has rows without a time."""
        arguments = ["-k", "naive_c,flash_c,decode_c", "-a", "seq=160"]
        first, second = (self.ours(file, *arguments) for file in ("a.json", "b.json"))
        self.assertEqual(len(json.loads(first.read_text(encoding="utf-8"))["not_timed"]), 2)
        text = self.compare("benchmarks", first, second)
        self.assertNotIn("decode_c", text)
        for kernel in ("naive_c", "flash_c"):
            for causal in ("none", "top-left"):
                self.assert_change(text, f"{name(kernel, 160, causal)}_median", self.median(first, kernel, 160, causal),
                                   self.median(second, kernel, 160, causal))
                self.assertEqual(len(self.changes(text, name(kernel, 160, causal))), 5, "a row per repetition")
        text = self.compare("filters", first, "kernel:naive_c", "kernel:flash_c")
        for causal in ("none", "top-left"):
            row = f"attn/[kernel:naive_c vs. kernel:flash_c]/{ID.format(160, causal)}_median"
            naive, flash = (self.median(first, kernel, 160, causal) for kernel in ("naive_c", "flash_c"))
            self.assert_change(text, row, naive, flash)


class CompareBoth(Compare):
    test_our_files = None

    def test_their_file_against_ours(self):
        """decode_c is an error in theirs and has no time in ours."""
        arguments = ["-k", "naive_c,flash_c,decode_c", "-a", "seq=160", "-a", "causal=none"]
        theirs = self.theirs("theirs.json", *arguments, "--benchmark_repetitions=5")
        ours = self.ours("ours.json", *arguments)
        text = self.compare("benchmarks", theirs, ours)
        for kernel in ("naive_c", "flash_c"):
            old, new = (self.median(path, kernel, 160) for path in (theirs, ours))
            self.assert_change(text, f"{name(kernel, 160)}_median", old, new)
        text = self.compare("filters", theirs, "kernel:naive_c", "kernel:flash_c")
        self.assert_change(text, f"attn/[kernel:naive_c vs. kernel:flash_c]/{ID.format(160, 'none')}_median",
                           self.median(theirs, "naive_c", 160), self.median(theirs, "flash_c", 160))


if __name__ == "__main__":
    if any(word.startswith("Compare") for word in sys.argv[1:]):
        try:
            import scipy  # noqa: F401  what compare.py imports
        except ImportError:
            print("skipped: no scipy, which compare.py imports (python3 -m pip install scipy)")
            sys.exit(77)
    unittest.main()
