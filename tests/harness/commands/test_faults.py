#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""attnbench's files and words when the system fails: full disks, folders that vanish, closed pipes, SIGKILL, limits of
memory, stack, files, processes and CPU time (ulimit).

tests/harness/commands/test_faults.py path/to/attnbench [KILLS]     KILLS: how often to kill (8)
"""

import csv
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import unittest

from runs import FolderTest, program_argument

ATTNBENCH = program_argument("attnbench")
KILLS = int(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 8
CASES = 5 * KILLS
MANY_CASES = ["check", "-k", "naive_c,flash_c", "-a", f"seq=1:{CASES}", "-a", "heads=1", "-a", "head_dim=8"]


def rows_of(journal):
    """The complete rows of a journal; its last line may be torn."""
    lines = journal.read_text(encoding="utf-8").splitlines(keepends=True) if journal.exists() else []
    return [json.loads(line) for line in lines[1:] if line.endswith("\n")]


def limit_files(limit):
    """Limits every file to `limit` bytes: writes beyond fail without a signal, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


class Faults(FolderTest):
    def setUp(self):
        super().setUp()
        self.folder /= "out"
        self.journal = self.folder / "journal.jsonl"

    def run_many(self, *more, **how):
        how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "timeout": 300, **how}
        return subprocess.run([ATTNBENCH, *MANY_CASES, "-o", self.folder, *more], check=False, **how)

    def start_many(self, *more):
        return subprocess.Popen([ATTNBENCH, *MANY_CASES, "-o", self.folder, *more], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)

    def expect_complete(self):
        """A resumed run succeeds; no row is missing or repeated."""
        done = self.run_many("--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        names = [(row["case_id"], row["kernel"]) for row in rows_of(self.journal)]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(len(names), 2 * CASES)
        self.assertEqual(len((self.folder / "results.csv").read_text(encoding="utf-8").splitlines()), 2 * CASES + 1)

    def expect_whole(self, path):
        """The file does not exist, or all its lines have the same number of cells."""
        if path.exists():
            with open(path, newline="", encoding="utf-8") as file:
                self.assertEqual(len({len(row) for row in csv.reader(file)}), 1)

    def wait_for_cases(self, process, count):
        """Waits until the process begins its case number `count`. Returns how many cases it has begun."""
        begun = 0
        while begun < count:
            line = process.stderr.readline()
            if not line:
                break
            begun += bool(re.match(r"\[\d+/", line))
        return begun

    def test_a_killed_run_loses_at_most_the_case_under_way(self):
        chance = random.Random(1)
        for _ in range(KILLS):
            before = len(rows_of(self.journal))
            with self.start_many("--resume" if self.journal.exists() else "--overwrite") as process:
                begun = self.wait_for_cases(process, chance.randint(1, 8))
                process.kill()
            self.assertGreaterEqual(len(rows_of(self.journal)), before + 2 * (begun - 1))
            if len(rows_of(self.journal)) == 2 * CASES:
                break
        self.expect_complete()

    def test_a_full_disk_is_an_error_and_no_loss(self):
        for limit in 0, 40, 600, 5000:
            shutil.rmtree(self.folder, ignore_errors=True)
            done = self.run_many(preexec_fn=lambda limit=limit: limit_files(limit), restore_signals=False)
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertIn("File too large", done.stderr)
            self.expect_whole(self.folder / "results.csv")
        self.expect_complete()

    def test_a_folder_that_vanishes_is_an_error(self):
        with self.start_many() as process:
            self.wait_for_cases(process, 2)
            shutil.rmtree(self.folder)
            _, said = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 5, said)
        self.assertIn("No such file or directory", said)

    def test_a_place_where_nothing_can_be_written_is_an_error_before_anything_runs(self):
        for output in ["-o", "/proc/out"], ["-o", "/dev/null/out"], ["--csv", "/proc/rows.csv"]:
            done = subprocess.run([ATTNBENCH, *MANY_CASES, *output], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertIn(output[1], done.stderr)
            self.assertNotIn("PASS", done.stdout)

    def test_a_closed_pipe_ends_the_program_and_the_journal_stays(self):
        for command in ["list", "cases", "-p", "edge"], ["check", "--help"], [*MANY_CASES, "-v", "-o", self.folder]:
            command = [ATTNBENCH, *map(str, command)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                process.stdout.readline()
                process.stdout.close()
                said = process.stderr.read()
            self.assertIn(process.wait(timeout=300), (0, 5, -signal.SIGPIPE), said)
        self.expect_complete()

    def run_limited(self, limit, value, *command, user=None):
        """The program ends in time, not by a signal, with a documented exit code, and with a sentence unless it succeeds."""
        def lower():
            if user:
                os.setgid(user)
                os.setuid(user)
            resource.setrlimit(limit, (value, value))

        done = subprocess.run([ATTNBENCH, *map(str, command)], preexec_fn=lower, capture_output=True, text=True, check=False,
                              timeout=120)
        short = "libgomp: Out of memory" in done.stderr or re.search(r"ERROR +(timing: )?(out of|no) memory", done.stdout)
        codes = (1,) if short else (0, 3, 4, 5, 130)  # libgomp ends the process; or a row is an ERROR
        if "error while loading shared libraries" in done.stderr:
            codes = (127,)  # there was no room to begin
        self.assertIn(done.returncode, codes, (limit, value, command, done.stdout, done.stderr))
        self.assertTrue(done.returncode == 0 or done.stderr or done.stdout, (limit, value, command))
        return done

    def test_small_limits_end_with_a_sentence(self):
        cases = ["-q", "-a", "seq=64", "-a", "heads=2"]
        commands = [["check", "-k", "naive_c,flash_*,gemm_openblas,matmul_onednn", *cases],
                    ["run", "-k", "naive_c", "--rounds", 2, *cases], ["compare", "no-such-folder", "nor-this"]]
        for number, command in enumerate(commands[:2]):
            folder = ["-o", f"{self.folder}-{number}", "--overwrite"]
            for kib in [25200, 60000, 200000, 300000, 400000, 550000, 700000, 1000000][::1 + 2 * number]:
                self.run_limited(resource.RLIMIT_AS, kib << 10, *command, *folder)
            for files in range(4, 10, 1 + 2 * number):
                self.run_limited(resource.RLIMIT_NOFILE, files, *command, *folder)
            for kib in 0, 1, 8:
                done = self.run_limited(resource.RLIMIT_FSIZE, kib << 10, *command, *folder)
                self.assertTrue(kib == 8 or (done.returncode == 5 and "File too large" in done.stderr), done.stderr)
        for kib in 32, 64, 128, 255, 256:
            done = self.run_limited(resource.RLIMIT_STACK, kib << 10, *commands[0])
            self.assertEqual(done.returncode, 0 if kib == 256 else 5, done.stderr)
            self.assertTrue(kib == 256 or f"limited to {kib} KiB (ulimit -s)" in done.stderr, done.stderr)
        self.assertEqual(self.run_limited(resource.RLIMIT_STACK, 64 << 10, *commands[2]).returncode, 5)

    def test_openblas_is_refused_where_its_threads_have_no_room(self):
        """It would wait for ever for memory, or raise SIGINT where a thread cannot be made."""
        for limit, value, user in (resource.RLIMIT_AS, 200000 << 10, None), (resource.RLIMIT_NPROC, 1, 65534):
            if user and os.getuid() != 0:
                continue
            done = self.run_limited(limit, value, "check", "-q", "-k", "gemm_openblas", "-a", "seq=64",
                                    user=user)
            if "not built" in done.stdout + done.stderr:
                self.skipTest("this build has no plug-in for OpenBLAS")
            self.assertIn("OPENBLAS_NUM_THREADS lowers their number", done.stdout + done.stderr)

    def test_a_limit_of_cpu_time_ends_the_run_and_keeps_its_rows(self):
        done = self.run_limited(resource.RLIMIT_CPU, 2, "check", "-q", "-k", "naive_c", "-a", f"seq=100:{CASES + 400}", "-o",
                                self.folder)
        self.assertEqual(done.returncode, 130, done.stderr)
        self.assertIn("the limit of CPU time is nearly reached (ulimit -t)", done.stderr)
        self.assertGreater(len(rows_of(self.journal)), 0)
        done = self.run_limited(resource.RLIMIT_CPU, 1, "peak")
        self.assertEqual(done.returncode, 5, done.stdout)
        self.assertIn("the limit of CPU time is nearly reached (ulimit -t)", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
