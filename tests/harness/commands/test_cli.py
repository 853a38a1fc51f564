#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The command line of attnbench: exit codes, messages, files, resuming, interrupting.

tests/harness/commands/test_cli.py path/to/attnbench [unittest options]     needs only Python's standard library
"""

import contextlib
import fcntl
import math
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from runs import FolderTest, program_argument, read_csv, read_json, run, strict_json

ATTNBENCH = program_argument("attnbench")
ROOT = Path(__file__).resolve().parents[3]

CSV_HEADER = (
    "run_id,case_id,kernel,algorithm,isa,library,dtype_q,dtype_kv,dtype_o,batch,heads_q,heads_kv,seq_q,seq_k,dim_qk,"
    "dim_v,score,causal,align,window,mask,bias,alibi,softcap,sinks,lengths,layout,cache,threads,status,reason,"
    "rows_checked,max_err_ratio,max_abs_err,err_index,samples,time_ns_min,time_ns_median,time_ns_mad,time_ns_ci_lo,"
    "time_ns_ci_hi,plan_ns,workspace_bytes,flops,bytes,gflops,gbs,peak_gflops,peak_pct,peak_gbs,bw_pct,level,baseline,"
    "ratio,ratio_ci_lo,ratio_ci_hi,noise,stop_reason,threads_counted,undisturbed_pct,warnings")
TIMED = CSV_HEADER[CSV_HEADER.index("samples"):CSV_HEADER.index(",baseline")].split(",")
LAYER_HEADER = CSV_HEADER + ",layer,width,product,projections_pct,attention_pct,rest_pct"
OTHER_AXES_HEADER = CSV_HEADER + ",other_axes"
SAMPLES_HEADER = "run_id,case_id,kernel,round,position,time_ns,iterations,peak_gflops"
STATUSES = {"PASS", "FAIL", "SKIP", "DEGENERATE", "ERROR"}
SMALL = ["-a", "heads=2", "-a", "seq=24", "-a", "head_dim=16"]
QUICK = ["--rounds", "6", "--case-budget", "1"]  # the fewest with an interval


def attnbench(*arguments, **environment):
    return run([ATTNBENCH, *arguments], **environment)


def runs_here(kernel):
    """Whether the kernel is built and this CPU can run it."""
    return re.search(rf"^{kernel} (?!.*UNUSABLE)", attnbench("list", "kernels").stdout, re.MULTILINE) is not None


class CommandLine(FolderTest):
    def expect(self, code, words, *arguments, **environment):
        return self.assert_ends(attnbench(*arguments, **environment), code, *words)

    def test_help_is_complete_and_narrow(self):
        commands = re.findall(r"^  (\w+)  ", self.expect(0, ["run", "check"], "--help").stdout, re.MULTILINE)
        self.assertLessEqual({"run", "check", "eval", "list", "explain", "peak", "tune", "env"}, set(commands))
        for command in commands:
            done = self.expect(0, ["--help"], command, "--help")
            self.assertEqual(done.stderr, "")
            for line in done.stdout.splitlines():
                self.assertLessEqual(len(line), 100, f"{command}: {line}")

    def tuning_file(self):
        """A tuning file of this machine, or None where nothing is timed."""
        path = self.folder / "a.tuning"
        narrow = ["-a", "dtype=f32", "-a", "head_dim=64", "-a", "causal=none"]
        done = attnbench("tune", "--budget", "1us", *narrow, "-o", path)
        if done.returncode == 4:  # emulated instructions
            return None
        self.assert_ends(done, 2, "is too short", "it should be 10m")
        self.assertFalse(path.exists())
        for budget in "200ms", "2s", "20s", "60s":  # the last two for slow builds and busy machines
            done = attnbench("tune", "--budget", budget, *narrow, "-o", path)
            if done.returncode == 0:
                break
        self.assert_ends(done, 0, "problems timed")
        return path.read_text(encoding="utf-8")

    def written(self, name, text):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def test_tuning_file_is_written_used_and_checked(self):
        text = self.tuning_file()
        if text is None:
            return
        self.assertTrue(text.startswith("attn-tuning 5\ncpu "), text)
        everywhere = "dim=1..* group=1..* seq_k=0..* seq_q=0..*"
        rule = f"rule f32 full {everywhere} kernel=naive_c second=flash_c margin=2 low=2 high=2\n"
        path = self.written("b.tuning", text + rule)
        self.expect(0, ["naive_c", "b.tuning, line", "flash_c takes 2.00 times as long"], "explain", "-a", "seq=40",
                    ATTN_TUNING=path)
        choices = ["class  ", "without it  ", "built_in", "without_class", "tuned"]
        self.expect(0, choices, "tune", "--check", "--tuning", path, "--without-class", "--points", "3",
                    "--budget", "100ms", "--csv", self.folder / "regret.csv")
        self.assertTrue((self.folder / "regret.csv").read_text(encoding="utf-8").startswith("dtype,mask,"))
        path = self.written("c.tuning", text.replace("cpu ", "cpu not "))
        self.expect(4, ["was measured on another CPU"], "tune", "--check", "--tuning", path)
        self.expect(0, ["c.tuning is not used", "automatic"], "explain", ATTN_TUNING=path)
        self.expect(0, ["no plan: ATTN_TUNING: cannot read the tuning file missing"], "explain", ATTN_TUNING="missing")

    def test_classes_of_cpus_are_named(self):
        self.expect(0, ["by costs of amd-zen4 (ATTN_MACHINE)" if runs_here("flash_avx2") else "automatic"], "explain",
                    ATTN_MACHINE="amd-zen4")
        self.expect(0, ["no plan: ATTN_MACHINE is 'vax'; it must be a class of CPUs: generic, amd-zen3, "], "explain",
                    ATTN_MACHINE="vax")
        self.expect(1, ["ERROR", "ATTN_MACHINE is 'vax'"], "check", "--kernel", "decode_portable", "-a", "seq_q=1",
                    ATTN_MACHINE="vax")  # a name decides, and no costs

    def test_tune_refuses_what_would_spoil_it(self):
        self.expect(2, ["-a seq=4: should be dtype, head_dim, causal or pass"], "tune", "-a", "seq=4")
        self.expect(2, ["-a dtype=f32+bf16: should be f32, f16, bf16, or f32+"], "tune", "-a", "dtype=f32+bf16")
        self.expect(2, ["head_dim=2000000000: should be at most 16666666"], "tune", "-a", "head_dim=2000000000")
        self.expect(2, ["ATTN_KERNEL is set"], "tune", ATTN_KERNEL="naive_c")
        self.expect(2, ["ATTN_MACHINE is set"], "tune", ATTN_MACHINE="generic")
        self.expect(2, ["cannot read the tuning file"], "tune", "--check", "--tuning", "missing")
        for option in ["--tuning", "x"], ["--csv", "x"], ["--without-class"]:
            self.expect(2, ["belong to --check, which is missing"], "tune", *option)

    def test_manual_pages_and_completion_come_from_the_tables(self):
        self.assertIn("compare", self.expect(0, [], "--help=words").stdout.split())
        words = self.expect(0, [], "compare", "--help=words").stdout.split()
        self.assertLessEqual({"--paired", "-k", "--fail-on", "--help"}, set(words))
        page = self.expect(0, [".SH OPTIONS", "\\fB\\-\\-paired\\fR"], "compare", "--help=man").stdout
        self.assertEqual(page.count(".TP"), len([word for word in words if word.startswith("--")]) - 1)
        self.expect(0, [".SH COMMANDS", "fBcompare"], "--help=man")
        for script in "plot", "report":  # the same options as those of the script that runs
            help_text = run([sys.executable, ROOT / "scripts" / f"{script}.py", "--help"]).stdout
            self.assertEqual(set(re.findall(r"(?<![\w-])--?[a-z]+", help_text)) - {"-h"},
                             set(self.expect(0, [], script, "--help=words").stdout.split()))
            self.expect(2, ["needs a result folder"], script)

    def complete(self, *words):
        """The words that bash offers for the last one."""
        lines = f'source {ROOT}/packaging/attnbench.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _attnbench'
        done = run(["bash", "-c", lines + r'; printf "%s\n" "${COMPREPLY[@]}"', "bash", ATTNBENCH, *words])
        return done.stdout.split()

    def test_a_shell_completes_axes_and_their_words(self):
        listed = self.expect(0, [], "list", "axes").stdout.splitlines()[3:]
        axes = [line.split()[0] for line in listed if line[0] != " "]
        self.assertEqual(self.complete("run", "-a", ""), [f"{axis}=" for axis in axes])
        self.assertEqual(self.complete("--axis", "ca"), ["causal=", "cache="])
        for axis, below in zip([line.split()[0] for line in listed], [*listed[1:], "end"]):
            if axis in axes and axis != "kernel":
                words = below.replace(",", "").split() if below[0] == " " else []
                self.assertEqual(self.complete("run", "-a", axis, "="), words, axis)
        self.assertEqual(self.complete("run", "-a", "causal", "=", "none,bo"), ["none,bottom-right"])
        self.assertIn("flash_c", self.complete("run", "-a", "kernel", "=", "fl"))
        self.assertEqual(self.complete("run", "--preset", "=", "deco"), ["decode"])

    def test_usage_errors_name_the_nearest_word(self):
        for words, arguments in [
            (["'rum'", "run"], ["rum"]),
            (["'--presett'", "--preset"], ["run", "--presett", "quick"]),
            (["'seqq'", "seq"], ["run", "-a", "seqq=4"]),
            (["'flash_avx3'", "flash_avx2"], ["run", "-k", "flash_avx3"]),
            (["'quik'", "quick"], ["run", "--preset", "quik"]),
            (["'edgy'", "edge"], ["check", "--suite", "edgy"]),
            (["'axess'", "axes"], ["list", "axess"]),
            (["--rounds", "'x'", "whole number"], ["run", "--rounds", "x"]),
            (["--rounds", "needs a value"], ["run", "--rounds"]),
            (["--rounds '100001'", "from 1 to 100000"], ["run", "--rounds", "100001"]),
            (["--seed '-1'", "from 0 to 9223372036854775807"], ["run", "--seed", "-1"]),
            (["--cases '2147483648'", "from 1 to 2147483647"], ["list", "cases", "--cases", "2147483648"]),
            (["--threads '4097'", "from 1 to 4096"], ["peak", "--threads", "4097"]),
            (["--window-left '9223372036854775807'", "from -1 to"], ["eval", "--window-left", "9223372036854775807"]),
            (["window", "9223372036854775807", "at most"], ["run", "-a", "window=9223372036854775807"]),
            (["--softcap '1e-300'", "float32"], ["eval", "--softcap", "1e-300"]),
            (["--budget '1e300h'", "1e6h"], ["run", "--budget", "1e300h"]),
            (["--precision '101%'", "100%"], ["run", "--precision", "101%"]),
            (["'5:1'", "FIRST <= LAST"], ["run", "-a", "seq=5:1"]),
            (["'-3'", "at least 0"], ["run", "-a", "seq=-3"]),
            (["'extra'"], ["run", "extra"]),
            (["limits", "rows of its own"], ["run", "--preset", "limits", "-a", "seq=64"]),
            (["limits", "rows of its own"], ["run", "--preset", "limits,quick"]),
            (["--rounds 5", "at least 11"], ["run", "--preset", "limits", "--rounds", "5"]),
            (["--gate", "--preset limits"], ["run", "--gate"]),
            (["run: --resume needs the folder to resume: -o DIR"], ["run", "--resume"]),
            (["run: --resume and --overwrite exclude each other"], ["run", "--resume", "--overwrite", "-o", "nowhere"]),
            (["run: --shard splits cases; --preset limits measures goals"], ["run", "--preset", "limits", "--shard", "1/2"]),
            (["run: --case-budget: should be above 0"], ["run", "--case-budget", "0"]),
            (["--v", "missing"], ["eval"]),
        ]:
            done = self.expect(2, words, *arguments)
            self.assertEqual(done.stdout, "", arguments)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, arguments)

    def test_openmp_starts_no_more_threads_than_may_be_asked_for(self):
        self.expect(0, ["1 PASS"], "check", "-k", "naive_c", *SMALL, OMP_NUM_THREADS="1000000")
        if "built without" not in attnbench("env").stdout:
            self.expect(0, ["1000000", "4096 is the most"], "list", "axes", OMP_NUM_THREADS="1000000")

    def test_nothing_to_run_is_not_success(self):
        self.expect(3, ["'zzz*'", "matches no kernel"], "run", "-k", "zzz*", *SMALL)
        self.expect(2, ["no case is possible", "heads_kv"], "check", "-a", "heads=3", "-a", "heads_kv=2")

    def test_goals_are_rows_with_verdicts(self):
        if not runs_here("flash_avx2"):
            self.skipTest("no kernel that has goals runs here")
        done = self.expect(0, ["seq 2048, against itself", "rows are for another CPU", "open, for another CPU or tier:",
                               "against naive_c dtype:f32"], "run", "--preset", "limits", "-n")
        self.assertNotIn("not reached", done.stdout)
        done = self.expect(0, [], "run", "--preset", "limits", "-k", "flash_portable", "-n")
        self.assertNotIn("open, for", done.stdout)  # files not asked for
        done = self.expect(0, ["open, for another CPU or tier:"], "run", "--preset", "limits", "-n", ATTN_MAX_ISA="avx2")
        self.assertRegex(done.stdout, r"seq 2048, against itself +flash_avx512 +avx512\n")
        limits = ["run", "-q", "--preset", "limits", "-k", "flash_avx2", "--budget", "0.01", "-o", self.folder]
        self.expect(0, ["--budget", "SKIP", "KiB"], *limits)
        rows = read_csv(self.folder / "limits.csv")
        text = (self.folder / "limits.txt").read_text(encoding="utf-8")
        self.assertIn("95 % interval", text)
        self.assertIn("open, for another CPU or tier:", text)
        self.expect(2, ["--overwrite"], *limits)
        self.assertEqual({row["kernel"] for row in rows}, {"flash_avx2"})
        self.assertLessEqual({"PASS", "SKIP"}, {row["status"] for row in rows})
        for row in rows:
            self.assertEqual(row["status"] == "PASS", row["measured"] != "", row)
            self.assertEqual(row["status"] == "PASS", row["reason"] == "", row)
            if row["metric"] == "workspace":
                self.assertEqual(row["verdict"], "ok" if float(row["measured"]) <= float(row["floor"]) else "short", row)

    def test_an_openblas_that_does_not_know_the_cpu_is_a_warning(self):
        libraries = attnbench("env", OPENBLAS_CORETYPE="Haswell").stdout
        if "OpenBLAS" not in libraries or not runs_here("flash_avx2"):
            self.skipTest("needs OpenBLAS and a CPU with AVX2")
        self.assertIsNone(re.search(r"WARN +libraries", libraries))
        old = attnbench("env", OPENBLAS_CORETYPE="Prescott").stdout
        if " Prescott" not in old:
            self.skipTest("this OpenBLAS has no code for Prescott")
        self.assertRegex(old, r"WARN +libraries .*Prescott.*\n +fix: OPENBLAS_CORETYPE=(SkylakeX|Haswell)")

    def test_environment_is_printed_and_never_ignored(self):
        said = {"ATTN_KERNEL": "naive_c", "ATTN_MAX_ISA": "c", "ATTN_VERBOSE": "0", "ATTN_TUNING": "nowhere",
                "OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false", "OMP_PLACES": "cores"}
        done = self.expect(1, ["cannot read the tuning file nowhere"], "check", "--isa", "c", *SMALL, **said)
        self.assertIn("".join(f"in force: {name}={value}\n" for name, value in said.items()), done.stdout)
        for arguments in (["check", *SMALL], ["run", *SMALL], ["explain", *SMALL]):
            self.expect(2, ["ATTN_MAX_ISA", "'cc'", "c, "], *arguments, ATTN_MAX_ISA="cc")
        self.expect(1, ["ATTN_KERNEL", "'nope'", "naive_c"], "check", "-k", "auto", *SMALL, ATTN_KERNEL="nope")

    def test_a_skip_has_a_reason_and_can_be_made_a_failure(self):
        done = attnbench("list", "kernels")
        if "avx2" not in done.stdout:
            self.skipTest("this build has one tier")
        reason = "cap 'c'" if runs_here("flash_avx2") else "lacks AVX2"
        self.expect(77, ["SKIP", reason], "check", "--isa", "avx2", *SMALL, ATTN_MAX_ISA="c")
        self.expect(0, ["SKIP", reason], "check", *SMALL, ATTN_MAX_ISA="c")
        self.expect(1, ["avx2"], "check", "--require", "avx2", *SMALL, ATTN_MAX_ISA="c")
        self.expect(1, ["attnbench check: --require avx2: this build has no kernel of that tier"], "check", "--require",
                    "avx2", "-k", "naive_c", *SMALL)
        self.expect(0, [], "check", "--require", "c", "-k", "naive_c", *SMALL)

    def test_results_go_to_stdout_and_progress_to_stderr(self):
        done = self.expect(0, ["naive_c", "PASS"], "check", "-k", "naive_c", *SMALL)
        self.assertNotIn("naive_c", done.stderr)
        self.assertNotIn("\x1b", done.stdout + done.stderr)  # no colours in a pipe
        quiet = self.expect(0, ["PASS"], "check", "-q", "-k", "naive_c", *SMALL)
        self.assertEqual(quiet.stderr, "")
        self.assertEqual(quiet.stdout, done.stdout)

    def test_a_terminal_gets_a_bar(self):
        ours, theirs = pty.openpty()
        done = subprocess.run([ATTNBENCH, "check", "-k", "naive_c", *SMALL, "-a", "seq=16,24"], check=False, stderr=theirs,
                              stdout=subprocess.DEVNULL, env=os.environ | {"TERM": "xterm"})
        os.close(theirs)
        read = b""
        with contextlib.suppress(OSError):  # EIO at the end; one read may bring a part
            while part := os.read(ours, 100000):
                read += part
        os.close(ours)
        said = read.decode()
        self.assertEqual(done.returncode, 0, said)
        self.assertRegex(said, r"\r\x1b\[K\[\.{20}\] 1/\d+, \d+ s left, dtype:f32")
        self.assertRegex(said, r"\[#+\.*\] 2/\d+, \d+\.\d cases/min, \d+ s left, dtype:f32.*naive_c")

    def test_what_is_impossible_is_refused_before_anything_runs(self):
        done = self.expect(2, ["1 of 2 cases are not possible", "Hq:3/Hkv:2", "multiple"], "run", "-k", "naive_c", "-a",
                           "seq=16", "-a", "heads=2,3", "-a", "heads_kv=2")
        self.assertEqual(done.stdout, "")

    def test_the_least_rounds_are_those_of_the_help(self):
        said = " ".join(self.expect(0, [], "run", "--help").stdout.split())
        self.assertIn("(default 11 to 200, but from 3 on for kernels that are too slow for 11", said)
        for row in self.timed_within("--case-budget", "1ms"):
            self.assertGreaterEqual(int(row["samples"]), 3)  # test_timed_rows knows how many rounds fit
        for budget in "2s", "20s", "100s":  # the longer ones for a machine that stops for seconds
            samples = [int(row["samples"]) for row in self.timed_within("--budget", budget)]
            if min(samples) >= 11:
                break
        self.assertTrue(min(samples) >= 11 and max(samples) <= 200, samples)

    def timed_within(self, *budget):
        out = self.folder / "rows.csv"
        self.expect(0, [], "run", "-q", "-k", "naive_c,flash_c", "-a", "seq=16", "-a", "heads=1", *budget, "--csv", out)
        return read_csv(out)

    def test_dry_run_runs_nothing(self):
        done = self.expect(0, ["Sq:24"], "run", "--dry-run", *SMALL, "-o", self.folder / "out")
        self.assertNotIn("PASS", done.stdout)
        self.assertFalse((self.folder / "out" / "results.csv").exists())

    def test_what_a_folder_lacks_is_listed_and_written(self):
        cases = ["-k", "naive_c,flash_c", "-a", "seq=8,16", "-a", "heads=1", "-a", "head_dim=8", "-o", self.folder / "out"]
        listed = self.expect(0, [], "check", *cases, "-n").stdout.split()
        ids = [word for word in listed if word.startswith("dtype:")]
        self.expect(0, ["2 rows: 2 PASS"], "check", *cases, "--case", ids[1])  # and no other case
        left = self.expect(0, [ids[0], "about"], "check", *cases, "-n", "--resume").stdout
        self.assertNotIn(ids[1], left)
        journal = (self.folder / "out" / "journal.jsonl").read_bytes()
        self.expect(0, ["4 rows: 2 PASS", "2 SKIP"], "check", *cases, "--resume", "--unmeasured")
        reasons = [(row["case_id"], row["reason"]) for row in read_csv(self.folder / "out" / "results.csv")]
        self.assertEqual(reasons, [(ids[0], "not measured: --resume does it")] * 2 + [(ids[1], "")] * 2)
        self.assertEqual((self.folder / "out" / "journal.jsonl").read_bytes(), journal)
        self.expect(0, ["4 rows: 4 PASS"], "check", *cases, "--resume")
        self.expect(2, ["--unmeasured needs"], "check", "--unmeasured", *SMALL)
        self.expect(2, ["--unmeasured lists cases"], "run", "-p", "limits", "--unmeasured", "-o", self.folder / "x")

    def test_a_session_begins_and_ends_with_what_it_did(self):
        arguments = ["-k", "naive_c,flash_c", "-a", "heads=1", "-a", "seq=8,12", "-a", "head_dim=8", "--seed", "7"]
        for command in ["check"], ["run", "--rounds", "1"]:
            lines = run([ATTNBENCH, *command, *arguments], without=("OMP_",)).stdout.splitlines()
            self.assertRegex(lines[0], r"^attnbench \d+\.\d+\.\d+ on .+; this CPU runs: c")
            self.assertEqual(lines[1], "2 cases x 2 kernels, seed 7")
            self.assertEqual(lines[2].startswith("binding: "), command[0] == "run")
            self.assertEqual(lines[2 + (command[0] == "run")], "")
            self.assertEqual("structural tests, cases" in "\n".join(lines), command[0] == "check")
        one = self.expect(0, ["1 case x 1 kernel, seed 7"], "check", "-k", "naive_c", *SMALL, "--seed", "7")
        self.assertNotIn("in force", one.stdout)
        lines = self.expect(0, [], "run", "-n", "--rounds", "1000", *arguments).stdout.splitlines()
        self.assertEqual(len(lines), 3)
        for line, seq in zip(lines, (8, 12)):  # samples of 2 ms, and peak loops of 1 ms
            self.assertRegex(line, rf"^ +6\.0 s  dtype:f32/B:1/Hq:1/Hkv:1/Sq:{seq}/[^ ]*$")
        self.assertEqual(lines[2], "2 cases x 2 kernels, about 12 s (a guess, to a factor of two or so)")
        files = [self.folder / name for name in ("a.csv", "a.json", "b.csv", "out")]
        names = [word for pair in zip(("--csv", "--json", "--samples", "-o"), files) for word in pair]
        done = self.expect(0, [], "run", "-q", "--rounds", "1", *arguments, *names)
        self.assertTrue(done.stderr.endswith("".join(f"written: {file}\n" for file in files)), done.stderr)
        table = (files[3] / "table.txt").read_text(encoding="utf-8")
        self.assertNotIn("\x1b", table)
        self.assertEqual(len(re.findall(r"(?m)^  naive_c +\d", table)), 2, table)
        head = strict_json((files[3] / "journal.jsonl").read_text(encoding="utf-8").splitlines()[0])
        self.assertEqual(list(head)[:4], ["journal", "command", "version", "build"])
        self.assertRegex(read_json(files[1])["context"]["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d$")
        for row in read_csv(files[0]):
            self.assertRegex(row["run_id"], r"^\d{8}T\d{6}-\d+$")
        for name in "--csv", "--json", "--samples":
            self.expect(5, ["nowhere"], "run", "-q", "--rounds", "1", *arguments, name, self.folder / "nowhere" / "file")

    def test_a_machine_that_is_unfit_is_told(self):
        facts = strict_json(self.expect(0, [], "env", "--json", "-").stdout)
        known = {name: facts[name] for name in ("build_type", "hypervisor", "sanitizers", "clock_source")}  # they stay
        run = ["run", "-q", "--rounds", "1", "-k", "naive_c", *SMALL]
        said, checked = self.expect(0, [], *run).stderr.splitlines(), self.expect(0, [], "check", *run[1:2], *run[4:]).stderr
        for name, fact in known.items():
            graded = {"BAD": "bad for measuring", "WARN": "warning"}.get(fact["grade"])
            line = f"{graded}: {name} is " + "; ".join(filter(None, [fact["value"], fact.get("advice")]))
            self.assertEqual([each for each in said if f": {name} is " in each], [line] if graded else [])
            self.assertNotIn(f": {name} is ", checked)
        done = attnbench(*run, "--strict-env")
        unfit = "attnbench run: --strict-env: this machine is unfit to measure; see attnbench env"
        self.assertIn(done.returncode, (4,) if "BAD" in [fact["grade"] for fact in known.values()] else (0, 4))
        self.assertEqual(done.returncode == 4, unfit in done.stderr)
        self.assertEqual(done.returncode == 4, done.stdout == "")

    def test_long_checks_show_failures_alone(self):
        for cases, more, shown in (12, [], 12), (13, [], 0), (13, ["-v"], 13):
            done = self.expect(0, [f"{cases} rows: {cases} PASS"], "check", "-q", "-k", "naive_c", "-a",
                               f"seq=2:{cases + 1}", "-a", "heads=1", "-a", "head_dim=8", *more)
            self.assertEqual(len(re.findall(r"(?m)^  naive_c +PASS", done.stdout)), shown, done.stdout)

    def test_list_names_kernels_presets_axes_and_cases(self):
        self.expect(0, ["flash_c", "naive_c"], "list", "kernels")
        self.assertRegex(self.expect(0, ["edge"], "list", "presets").stdout, r"(?m)^quick +1[78] cases +[0-9:]+( s)?  The")
        self.expect(0, ["seq", "head_dim", "causal", "threads"], "list", "axes")
        self.expect(0, ["Sq:24/Sk:24/D:16"], "list", "cases", *SMALL)

    def test_case_names_are_unique_and_say_what_masks(self):
        for suite in ("edge", "conformance"):
            names = self.expect(0, ["/bias:masking"], "list", "cases", "-p", suite).stdout.splitlines()
            self.assertEqual(len(names), len(set(names)), suite)

    def test_check_tells_on_how_many_cases_each_structural_test_ran(self):
        done = self.expect(0, ["structural tests"], "check", "--suite", "conformance", "-k", "flash_c", "--cases", "150")
        lines = done.stdout.split("each ran:\n")[1].splitlines()[:2]
        heads, counts = (line.split() for line in lines)
        self.assertEqual(*([word.end() for word in re.finditer(r"\S+", line)][1:] for line in lines))  # columns
        self.assertEqual((heads[0], counts[0]), ("kernel", "flash_c"))
        self.assertEqual(len(heads), len(counts))
        self.assertLessEqual({"threads", "batch", "rows", "poison", "neighbours", "probe", "partition"}, set(heads))
        for name, count in zip(heads[1:], counts[1:]):
            self.assertGreater(int(count), 10, name)

    def test_explain_says_why(self):
        done = self.expect(0, ["kernel     decode_c", "flash_c                   yes"], "explain", *SMALL, ATTN_MAX_ISA="c")
        for line in done.stdout.splitlines():
            if "avx2" in line and "flash" in line:
                self.assertIn("cap 'c'", line)

    def test_explain_simulates_any_number_of_threads(self):
        file, topology = self.folder / "s.json", self.folder / "t"
        topology.write_text("node cores=8 bandwidth=9\n", encoding="utf-8")
        shape = ("-a", "seq=200", "-a", "heads=2", "-a", "head_dim=16")
        self.expect(0, ["efficiency"], "explain", "--simulate", *shape, "-t", "1,2,64", "--json", file)
        rows = read_json(file)
        self.assertEqual([row["threads"] for row in rows], [1, 2, 64])
        self.assertEqual(rows[0]["efficiency"], 1)
        self.assertGreater(rows[0]["predicted_of_measured"], 0.2)
        self.assertLess(rows[0]["predicted_of_measured"], 5)
        self.assertNotIn("predicted_of_measured", rows[2] if (os.cpu_count() or 1) < 64 else {})
        for row in rows:
            self.assertAlmostEqual(sum(row["thread_ns"].values()) / row["plan_threads"] / row["predicted_ns"], 1, 3)
        simulate = ("explain", "--simulate", *shape, "--topology", topology)
        self.expect(0, ["efficiency"], *simulate, "-a", "pass=backward")
        self.expect(3, ["threads is 9; the topology has 8 cores"], *simulate, "-t", "9")
        topology.write_text("node cores=8\n", encoding="utf-8")
        self.expect(2, ["t, line 1: bandwidth is ''"], *simulate)
        self.expect(2, ["--topology: cannot read missing"], "explain", "--simulate", "--topology", "missing")
        self.expect(2, ["--json needs --simulate"], "explain", "--json", "x")
        self.expect(3, ["layers are not simulated"], "explain", "--simulate", "-a", "layer=mha", "-a", "seq=8")

    def test_an_unwritable_file_is_an_error_before_anything_runs(self):
        done = self.expect(5, ["/nonexistent"], "check", *SMALL, "--csv", "/nonexistent/folder/x.csv")
        self.assertNotIn("PASS", done.stdout)

    def test_a_case_can_be_rerun_by_its_name_and_by_its_repro_line(self):
        done = self.expect(0, ["PASS"], "check", "-k", "naive_c", "--repro", *SMALL, "-a", "causal=bottom-right")
        line = next(line for line in done.stdout.splitlines() if "attnbench check" in line)
        words = shlex.split(line[line.index("attnbench check"):])[1:]
        self.assertIn("causal bottom-right", attnbench(*words).stdout)
        case_id = re.search(r"dtype:f32/\S+", done.stdout).group(0)
        again = self.expect(0, ["PASS", case_id], "check", "-k", "naive_c", "--case", case_id)
        self.assertEqual(again.stdout, self.expect(0, [], "check", "-k", "naive_c", "--case", case_id).stdout)


class Files(FolderTest):
    """The files of one run with a skipped kernel, a degenerate case and timed rows."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.out, cls.json = Path(cls.temporary.name, "out"), Path(cls.temporary.name, "all.json")
        cls.kernels = ["naive_c", "flash_c"]
        cls.skipped = ["flash_avx2"] if "flash_avx2" in attnbench("list", "kernels").stdout else []  # because of the cap
        cls.arguments = ["run", "-k", ",".join(cls.kernels + cls.skipped), "-a", "heads=2", "-a", "seq_q=1,24", "-a",
                         "seq_k=1,24", "-a", "head_dim=16", "-a", "causal=none,bottom-right", *QUICK, "-o", cls.out,
                         "--json", cls.json]
        cls.done = attnbench(*cls.arguments, ATTN_MAX_ISA="c")
        cls.rows = read_csv(cls.out / "results.csv")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_exit_code_and_folder(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        names = {path.name for path in self.out.iterdir()}
        self.assertEqual(names, {"results.csv", "samples.csv", "results.json", "env.json", "journal.jsonl", "table.txt"})
        self.assertEqual((self.out / "table.txt").read_text(encoding="utf-8"), self.done.stdout)

    def test_csv_header_is_exact(self):
        for name, header in (("results.csv", CSV_HEADER), ("samples.csv", SAMPLES_HEADER)):
            with open(self.out / name, encoding="utf-8", newline="") as file:
                self.assertEqual(file.readline().rstrip("\r\n"), header)

    def test_rows_parse_and_only_pass_carries_times(self):
        self.assertEqual(len(self.rows), 8 * len(self.kernels + self.skipped))
        self.assertLessEqual({row["status"] for row in self.rows}, {"PASS", "SKIP", "DEGENERATE"})
        self.assertEqual({row["kernel"] for row in self.rows if row["status"] == "SKIP"}, set(self.skipped))
        for row in self.rows:
            self.assertEqual(len(row), len(CSV_HEADER.split(",")))
            self.assertNotIn(None, row.values())
            if row["status"] != "PASS":
                self.assertTrue(row["reason"], row)
                self.assertEqual([row[column] for column in TIMED], [""] * len(TIMED), row["status"])
                continue
            self.assertIn(row["level"], ("L1", "L2", "L3", "memory", ""))
            for column in TIMED:
                if column != "level":
                    self.assertTrue(row[column] == "" or math.isfinite(float(row[column])), f"{column} {row[column]}")
            self.assertLess(float(row["max_err_ratio"]), 1)
            low, median, high = (float(row[f"time_ns_{name}"]) for name in ("ci_lo", "median", "ci_hi"))
            self.assertTrue(0 < float(row["time_ns_min"]) <= low <= median <= high)
            flops = 2 * 2 * (int(row["dim_qk"]) + int(row["dim_v"])) * int(row["seq_q"]) * int(row["seq_k"])
            if row["causal"] == "none":
                self.assertEqual(float(row["flops"]), flops)
            self.assertAlmostEqual(float(row["gflops"]), float(row["flops"]) / median, delta=1e-4 * float(row["gflops"]))

    def test_fewer_than_six_rounds_have_no_interval(self):
        file = self.folder / "rows.csv"
        done = self.assert_ends(attnbench("run", "-k", "naive_c,flash_c", *SMALL, "--rounds", "5", "--csv", file), 0)
        for row in read_csv(file):
            self.assertEqual((row["status"], row["samples"]), ("PASS", "5"))
            self.assertGreater(float(row["time_ns_median"]) * float(row["ratio"]), 0)
            for column in ("time_ns_ci_lo", "time_ns_ci_hi", "ratio_ci_lo", "ratio_ci_hi"):
                self.assertEqual(row[column], "", column)
        self.assertNotIn("0.0 %", done.stdout.split("noise floor")[0])

    def test_json_is_strict_and_like_google_benchmark(self):
        data = read_json(self.json)
        self.assertEqual(data["context"]["json_schema_version"], 1)
        iterations = [entry for entry in data["benchmarks"] if entry["run_type"] == "iteration"]
        runs = [(entry["name"], entry["repetition_index"]) for entry in iterations]
        self.assertEqual(len(runs), len(set(runs)))
        timed = [row for row in self.rows if row["status"] == "PASS"]
        names = {f"attn/kernel:{row['kernel']}/{row['case_id']}" for row in timed}
        self.assertEqual({entry["name"] for entry in iterations}, names)
        self.assertEqual(len(runs), sum(int(row["samples"]) for row in timed))
        others = [value for key, value in data.items() if key not in ("context", "benchmarks")]
        self.assertEqual(sum(len(entries) for entries in others), len(self.rows) - len(timed))
        medians = [entry for entry in data["benchmarks"] if entry["run_type"] == "aggregate"]
        self.assertEqual(read_json(self.out / "results.json"), data | {"benchmarks": medians})

    def test_a_folder_with_results_is_not_overwritten_by_accident(self):
        before = (self.out / "results.csv").read_bytes()
        self.assert_ends(attnbench(*self.arguments), 2, f"attnbench run: {self.out} holds results: --resume adds what is "
                         "missing, --overwrite starts again")
        self.assertEqual((self.out / "results.csv").read_bytes(), before)


class Descriptors(FolderTest):
    def test_closed_descriptors_are_not_taken_by_files(self):
        run = [ATTNBENCH, "check", "-k", "naive_c", *SMALL, "-o", self.folder / "out"]
        done = subprocess.run(["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *run], check=False)
        self.assertEqual(done.returncode, 0)
        for line in (self.folder / "out" / "journal.jsonl").read_text(encoding="utf-8").splitlines():
            strict_json(line)

    def test_a_full_stdout_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("needs /dev/full")
        for command in ["list", "axes"], ["env"], ["check", "-k", "naive_c", *SMALL], ["env", "--json", "-"]:
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([ATTNBENCH, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(done.returncode, 5, command)
            self.assertIn("No space left", done.stderr)

    def test_bytes_that_are_no_text_are_escaped(self):
        folder = os.path.join(os.fsencode(self.folder), b"\xff \xc3\xa4 \xed\xa0\x80 \x01\"")
        done = subprocess.run([ATTNBENCH, "check", "-k", "naive_c", *SMALL, "-o", folder], capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(folder, b"env.json"), encoding="utf-8") as file:
            self.assertIn("\u00ff \u00e4 \u00ed\u00a0\u0080 \x01\"", strict_json(file.read())["argv"]["value"])


class Layers(FolderTest):
    """Columns that only some files have: those of layers, and the one for all other axes."""

    def run_to_csv(self, header, *axes):
        """The finished process and the rows of its CSV file, which must have this header."""
        file = self.folder / "rows.csv"
        done = self.assert_ends(attnbench("run", "-k", "flash_c", *axes, *SMALL, *QUICK, "--csv", file), 0)
        self.assertEqual(file.read_text(encoding="utf-8").splitlines()[0], header)
        return done, read_csv(file)

    def test_axes_without_a_column_share_one(self):
        _, rows = self.run_to_csv(OTHER_AXES_HEADER, "-a", "magnitude=1,10", "-a", "lse=on")
        self.assertEqual([row["other_axes"] for row in rows], ["lse:on", "lse:on/magnitude:10"])

    def test_large_cases_name_the_second_kernel(self):
        file = self.folder / "large.csv"
        self.assert_ends(attnbench("check", "-k", "flash_c", "-a", "seq=900", "-a", "heads=1", "--csv", file), 0)
        (row,) = read_csv(file)
        self.assertRegex(row["reference"], r"^(?!flash_c)\w+_\w+$")

    def test_layers_have_columns_of_their_own(self):
        done, rows = self.run_to_csv(LAYER_HEADER, "-a", "layer=none,mha,block")
        self.assertEqual(done.stdout.count("projections "), 2)
        rows = {row["layer"]: row for row in rows}
        self.assertEqual(set(rows), {"", "mha", "block"})
        self.assertEqual([rows[""][name] for name in LAYER_HEADER.split(",")[-5:]], [""] * 5)
        flops = {}
        for name in ("mha", "block"):
            row = rows[name]
            self.assertEqual((row["status"], row["width"], row["product"]), ("PASS", "32", "product_c"))
            shares = [float(row[f"{part}_pct"]) for part in ("projections", "attention", "rest")]
            self.assertAlmostEqual(sum(shares), 100, places=5)
            self.assertGreater(min(shares[:2]), 0)
            flops[name] = float(row["flops"]) - float(rows[""]["flops"])
        self.assertEqual(flops["mha"], 2 * 24 * 4 * 32 * 32)
        self.assertEqual(flops["block"], flops["mha"] + 2 * 24 * 2 * 32 * 128)

    def test_cells_that_mean_nothing_are_empty(self):
        empty = {"positions": {"heads_q", "heads_kv", "dim_qk", "dim_v", "score", "flops", "gflops", "product",
                               "attention_pct"},
                 "decode-step": {"width", "product", "projections_pct", "attention_pct", "rest_pct", "workspace_bytes"},
                 "regression": {"width", "product", "rest_pct", "plan_ns", "workspace_bytes"},
                 "feed-forward": {"heads_q", "score", "attention_pct"}, "additive": set()}
        full = {"heads_q", "dim_qk", "score", "flops", "gflops", "width", "product", "projections_pct", "attention_pct",
                "rest_pct", "plan_ns", "workspace_bytes"}
        out = self.folder / "out"
        done = attnbench("run", "-k", "auto", "-a", f"layer={','.join(empty)}", "-a", "seq=24", *QUICK, "-o", out)
        self.assert_ends(done, 0)
        rows = {row["layer"]: row for row in read_csv(out / "results.csv")}
        entries = read_json(out / "results.json")["benchmarks"]
        self.assertEqual(set(rows), set(empty))
        for layer, row in rows.items():
            self.assertEqual(row["status"], "PASS")
            self.assertGreater(float(row["gbs"]), 0)
            self.assertLessEqual(empty[layer], {name for name in row if row[name] == ""}, layer)
        self.assertLessEqual(full, {name for name, cell in rows["additive"].items() if cell})
        self.assertEqual({layer: rows[layer]["score"] for layer in ("additive", "regression", "decode-step")},
                         {"additive": "additive", "regression": "gaussian", "decode-step": "dot"})
        self.assertEqual((rows["decode-step"]["seq_q"], rows["decode-step"]["causal"]), ("1", "bottom-right"))
        self.assertEqual(len({entry["run_name"] for entry in entries}), len(rows))
        headlines = [line for line in done.stdout.splitlines() if line.startswith("f32 ")]
        self.assertNotIn("head", next(line for line in headlines if "layer positions" in line))
        self.assertEqual(done.stdout.count("projections "), 2)  # feed-forward and additive
        self.assertNotIn("attention", next(line for line in done.stdout.splitlines() if "projections 100.0 %" in line))

    def test_layers_without_a_kernel_have_one_row(self):
        self.assert_ends(attnbench("check", "-k", "naive_c,flash_c", "-a", "layer=positions", "-a", "seq=24"), 0, "1 PASS",
                         "runs no kernel: one row stands for all")

    def test_cases_that_are_no_layer_are_refused_with_a_reason(self):
        for axes, words in ((["layer=mha", "width=30", "heads=4"], "multiple of its heads"), (["width=32"], "layer=mha"),
                            (["layer=additive", "heads=8"], "heads is 8; layer additive is made for heads=1 only")):
            done = attnbench("check", "-k", "flash_c", *(word for axis in axes for word in ("-a", axis)))
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(words, done.stderr)


class Resuming(FolderTest):
    def setUp(self):
        super().setUp()
        self.folder /= "out"
        self.journal = self.folder / "journal.jsonl"
        self.arguments = ["run", "-k", "naive_c,flash_c", "-a", "heads=2", "-a", "seq=16,24,32", "-a", "head_dim=16", *QUICK,
                          "-o", self.folder]

    def rows(self):
        return {(row["case_id"], row["kernel"]): row for row in read_csv(self.folder / "results.csv")}

    def edit_journal(self, edit):
        """Applies edit() to the list of the journal's lines with their line breaks."""
        lines = edit(self.journal.read_text(encoding="utf-8").splitlines(keepends=True))
        self.journal.write_text("".join(lines), encoding="utf-8")

    def resume(self, code, *words):
        done = self.assert_ends(attnbench(*self.arguments, "--resume"), code)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_damaged_rows_are_measured_again(self):
        self.assertEqual(attnbench(*self.arguments).returncode, 0)
        complete = self.rows()
        self.edit_journal(lambda lines: [
            *lines[:2],
            lines[2][:40] + lines[3],  # two lines in one, as two processes could write
            lines[4].replace('"status": "PASS"', '"status": "ERROR"'),
            lines[5].replace('"iterations": ', '"iterations": 1e300, "iterations": '),
            lines[6][:60]])
        self.resume(0, "journal.jsonl: line 3", "line 5", "line 6")
        resumed = self.rows()
        self.assertEqual(set(resumed), set(complete))
        self.assertEqual({row["status"] for row in resumed.values()}, {"PASS"})
        self.assertEqual(len([1 for key, row in resumed.items() if row == complete[key]]), 1)
        before = self.journal.read_bytes()
        self.arguments[2] = "flash_c"
        self.resume(0, "line 3", "line 5")
        self.assertEqual(self.rows(), resumed)
        self.assertEqual(len(read_csv(self.folder / "results.csv")), 6)  # no row is repeated
        self.assertEqual(self.journal.read_bytes(), before)

    def test_cases_skipped_for_the_budget_are_measured_later(self):
        self.assertEqual(attnbench(*self.arguments, "--budget", "1us").returncode, 3)
        self.assertEqual({row["status"] for row in self.rows().values()}, {"SKIP"})
        self.assertEqual({row["reason"] for row in self.rows().values()}, {"--budget of 0 s is used up"})
        self.assertEqual(len(self.rows()), 6)  # each with its case and kernel
        self.resume(0)
        self.assertEqual({row["status"] for row in self.rows().values()}, {"PASS"})

    def test_a_journal_without_a_whole_head_starts_again(self):
        self.folder.mkdir()
        for text in "", '{"journal": 2, "comm':
            self.journal.write_text(text, encoding="utf-8")
            for name in "results.csv.123.tmp", "my.tmp", "1.tmp", ".tmp", "a.1b.tmp":
                (self.folder / name).touch()
            self.resume(0, "line 1 is cut off")
            self.assertEqual({path.name for path in self.folder.glob("*tmp")}, {"my.tmp", "1.tmp", ".tmp", "a.1b.tmp"})
            self.assertEqual(len(self.rows()), 6)
            self.assertEqual(self.journal.read_text(encoding="utf-8").count("\n"), 7)

    def test_a_change_that_matters_forbids_to_resume(self):
        self.assertEqual(attnbench(*self.arguments).returncode, 0)
        whole = self.journal.read_text(encoding="utf-8")
        self.assertRegex(whole, '^[^\n]*"build": "[0-9a-f]{16}"')
        for name, words in {"build": ["its build is 'other'"], "cpu": ["its cpu is 'other'"], "rounds": ["now it is '6'"],
                            **{name: [f"its {name} is 'other'"] for name in (
                                "command", "version", "cpu_family", "cpu_model", "cpu_stepping", "microcode", "tiers",
                                "affinity", "libraries", "plugins", "attn_variables", "thread_variables",
                                "memory_variables", "shard", "seed", "precision", "case-budget")}}.items():
            self.edit_journal(lambda lines, name=name: [re.sub(rf'("{name}": )"[^"]*"', r'\1"other"', lines[0]), *lines[1:]])
            self.resume(5, "cannot be resumed", *words)
            self.journal.write_text(whole, encoding="utf-8")
        self.journal.write_text("{}\n" + whole, encoding="utf-8")
        self.resume(5, "no journal of attnbench")

    def test_the_order_of_variables_does_not_matter(self):
        self.assert_ends(attnbench(*self.arguments, GOMP_B="1", GOMP_A="2"), 0)
        self.assert_ends(attnbench(*self.arguments, "--resume", GOMP_A="2", GOMP_B="1"), 0)

    def test_a_folder_belongs_to_one_process(self):
        self.folder.mkdir()
        lock = os.open(self.folder, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.resume(5, str(self.folder), "another process", "-o")
        self.assertFalse(self.journal.exists())

    def test_timings_that_were_interrupted_are_not_kept(self):
        self.arguments += ["-a", "seq=16", "--rounds", "100000", "--case-budget", "1h"]
        with subprocess.Popen([ATTNBENCH, *map(str, self.arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as process:
            while "[1/1" not in process.stderr.readline():
                self.assertIsNone(process.poll())
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            self.assertIn("with --resume goes on", process.communicate(timeout=60)[1])
        self.assertEqual(process.returncode, 130)
        self.assertEqual(self.journal.read_text(encoding="utf-8").count("\n"), 1)

    def test_resume_adds_the_rows_that_a_torn_journal_lacks(self):
        self.assertEqual(attnbench(*self.arguments).returncode, 0)
        complete = self.rows()
        lines = self.journal.read_text(encoding="utf-8").splitlines()
        kept = lines[:5]  # the head and two cases of two kernels
        self.edit_journal(lambda lines: [*lines[:5], lines[5][:60]])  # half a line, as after a crash
        self.resume(0)
        resumed = self.rows()
        self.assertEqual(set(resumed), set(complete))
        for line in kept[1:]:
            key = strict_json(line)["case_id"], strict_json(line)["kernel"]
            self.assertEqual(resumed[key], complete[key])
        self.assertEqual(len({row["run_id"] for row in resumed.values()}), 2)
        for line in self.journal.read_text(encoding="utf-8").splitlines():
            strict_json(line)

    def test_an_interrupt_keeps_finished_rows(self):
        arguments = [ATTNBENCH, *map(str, self.arguments), "-a", "seq=16:512:+8"]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        give_up = time.monotonic() + 60
        while not (self.journal.exists() and self.journal.read_text(encoding="utf-8").count("\n") > 2):
            self.assertLess(time.monotonic(), give_up, "no row was written")
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, said)
        self.assertRegex(said, r"\ninterrupted after [1-9]\d* of 63 cases: the files hold what was done; the same command "
                               r"with --resume goes on from there\n$")
        rows = read_csv(self.folder / "results.csv")
        self.assertGreaterEqual(len(rows), 2)
        self.assertTrue(all(row["status"] in STATUSES for row in rows))
        read_json(self.folder / "results.json")
        self.assertLess(len(rows), 63 * 2)


if __name__ == "__main__":
    unittest.main(verbosity=1)
