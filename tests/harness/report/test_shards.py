#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""attnbench run --shard and attnbench merge: the parts of a sweep, killed, resumed and joined.

tests/harness/report/test_shards.py path/to/attnbench [KILLS]     KILLS: how often to kill (3)
"""

import random
import re
import shlex
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path

from runs import FolderTest, program_argument, read_csv, run, strict_json

ATTNBENCH = program_argument("attnbench")
KILLS = int(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 3
MEASURING = Path(__file__).resolve().parents[3] / "docs" / "measuring.md"
SLURM = Path(__file__).resolve().parents[3] / "examples" / "sweep" / "slurm.sh"
KERNELS = ("naive_c", "flash_c")
SWEEP = ("run", "-k", ",".join(KERNELS), "-a", "heads=1,2", "-a", "seq=8:48:+8", "-a", "head_dim=16", "--rounds", "2")
CASES = 12


def names(path):
    return [(row["case_id"], row["kernel"]) for row in read_csv(path)]


class Shards(FolderTest):
    def attnbench(self, *arguments, **environment):
        return run([ATTNBENCH, *arguments], cwd=self.folder, **environment)

    def shard(self, part, *more, code=0):
        return self.assert_ends(self.attnbench(*SWEEP, "--shard", part, "-q", *more), code)

    def listed(self, part, *axes):
        """The cases of a shard, and the seconds that they are guessed to take."""
        said = self.assert_ends(self.attnbench(*SWEEP, *axes, "--shard", part, "--dry-run"), 0).stdout
        found = re.findall(r"^ *([\d.]+) s  (dtype:\S+)$", said, re.MULTILINE)
        return {case: float(seconds) for seconds, case in found}

    # ---- The split -------------------------------------------------------------------------------------------------------

    def test_shards_hold_every_case_once_and_cost_alike(self):
        axes = ("-a", "seq=128:2048:*2", "-a", "head_dim=32,64,128", "-a", "heads=1,2,4,8")
        for count in 1, 2, 5:
            shards = [self.listed(f"{i}/{count}", *axes) for i in range(1, count + 1)]
            cases = [case for shard in shards for case in shard]
            self.assertEqual((len(cases), len(set(cases))), (60, 60))
            costs = [sum(shard.values()) for shard in shards]
            self.assertLess(max(costs), 1.5 * min(costs), costs)

    def test_the_split_is_the_same_on_every_cpu(self):
        here = self.listed("2/3")
        there = run([ATTNBENCH, *SWEEP, "--shard", "2/3", "--dry-run"], ATTN_MAX_ISA="c").stdout
        self.assertEqual(set(here), set(re.findall(r"dtype:\S+", there)))

    def test_wrong_shards_are_refused(self):
        for part in "0/2", "3/2", "1", "1/", "/2", "a/b", "1/2/3", "1/0", "-1/2", "1/100001":
            self.assert_ends(self.attnbench(*SWEEP, "--shard", part), 2, "--shard", "2/8")
        self.shard("13/13", code=3)
        self.assert_ends(self.attnbench("run", "-p", "limits", "--shard", "1/2"), 2, "--shard splits cases")

    def test_another_shard_does_not_resume(self):
        self.shard("1/2", "-o", "part")
        self.assert_ends(self.attnbench(*SWEEP, "--shard", "2/2", "-o", "part", "--resume"), 5, "its shard is '1/2'")

    # ---- Joining ---------------------------------------------------------------------------------------------------------

    # test_merging.py tests the contents of merged files, and which results are kept apart.

    def test_a_merged_sweep_continues_as_a_whole(self):
        parts = [f"part{i}" for i in (1, 2, 3)]
        for i, part in enumerate(parts, start=1):
            self.shard(f"{i}/3", "-o", part)
        self.assert_ends(self.attnbench("merge", "-o", "all", *parts), 0, "all: 24 rows of 12 cases")
        before = (self.folder / "all" / "journal.jsonl").read_bytes()
        self.assert_ends(self.attnbench(*SWEEP, "-q", "-o", "all", "--resume"), 0)
        self.assertEqual((self.folder / "all" / "journal.jsonl").read_bytes(), before)
        self.assert_ends(self.attnbench("merge", "-o", "all", *parts), 2, "--overwrite")
        self.assert_ends(self.attnbench("merge", "-o", "all", *parts, "--overwrite"), 0)

    def test_what_is_no_result_is_refused(self):
        (self.folder / "empty").mkdir()
        (self.folder / "other").mkdir()
        (self.folder / "other" / "journal.jsonl").write_text('{"a": 1}\n')
        self.assert_ends(self.attnbench("merge", "-o", "all", "empty"), 5, "empty/journal.jsonl")
        self.assert_ends(self.attnbench("merge", "-o", "all", "other"), 5, "no journal of attnbench")
        self.assert_ends(self.attnbench("merge", "other"), 2, "-o DIR")
        self.assertFalse((self.folder / "all").exists())

    # ---- Killed parts, and the example -----------------------------------------------------------------------------------

    def test_a_killed_shard_loses_at_most_the_case_under_way(self):
        chance = random.Random(2)
        sweep = [ATTNBENCH, *SWEEP, "-a", "seq=128:512:+8", "--shard", "1/2", "--resume", "-o", self.folder / "part"]
        journal = self.folder / "part" / "journal.jsonl"
        rows = 0
        for _ in range(KILLS):
            with subprocess.Popen(list(map(str, sweep)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  text=True) as process:
                said = [process.stderr.readline()]
                while said[-1] and not said[-1].startswith("["):
                    said.append(process.stderr.readline())
                time.sleep(chance.uniform(0, 0.15))
                process.kill()
                said += process.stderr.readlines()
            begun = sum(bool(re.match(r"\[\d+/", line)) for line in said)
            lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)[1:]
            whole = [strict_json(line) for line in lines if line.endswith("\n")]
            self.assertGreaterEqual(len(whole), rows + len(KERNELS) * (begun - 1))
            rows = len(whole)
        self.assertEqual(subprocess.run([*map(str, sweep), "-q"], stdout=subprocess.DEVNULL, check=False).returncode, 0)
        found = names(self.folder / "part" / "results.csv")
        expected = self.listed("1/2", "-a", "seq=128:512:+8")
        self.assertEqual(sorted(found), sorted((case, kernel) for case in expected for kernel in KERNELS))

    @unittest.skipUnless(SLURM.exists(), "no examples in this tree")
    def test_the_example_for_slurm_measures_a_sweep(self):
        for task in "1", "2", "2":  # the last one was requeued
            done = run([SLURM, *SWEEP[1:], "-q"], cwd=self.folder, ATTNBENCH=ATTNBENCH, SLURM_ARRAY_TASK_ID=task,
                       SLURM_ARRAY_TASK_COUNT="2")
            self.assert_ends(done, 0)
        self.assert_ends(self.attnbench("merge", "-o", "sweep", "sweep-1", "sweep-2"), 0, f"of {CASES} cases")

    @unittest.skipUnless(shutil.which("parallel"), "no GNU parallel; to install it: apt-get install parallel")
    def test_the_line_for_gnu_parallel_measures_a_sweep(self):
        """The command of docs/measuring.md, with a program in place of ssh; a shell makes `nope_c` of n*e_c."""
        line = re.search(r"^parallel .*", MEASURING.read_text(encoding="utf-8"), re.MULTILINE)[0]
        words = shlex.split(line.replace("build/harness/attnbench", shlex.quote(str(ATTNBENCH))))
        at = words.index("-p")
        words[at:at + 2] = [*SWEEP[1:], "-k", "n*e_c", "-q"]
        (self.folder / "nope_c").touch()
        ssh = self.folder / "ssh"
        ssh.write_text('#!/bin/sh\necho "$1" >>"$NODES"\nshift 2\nexport SHELL=/bin/sh\ncd "$HOME" && exec sh -c "$*"\n',
                       encoding="utf-8")  # like sshd, it sets $SHELL, which parallel runs a job with
        ssh.chmod(0o755)
        nodes = self.folder / "nodes"
        elsewhere = self.folder / "home"
        elsewhere.mkdir()
        for begun, home in (4, elsewhere), (8, self.folder):  # parallel writes folders below $HOME as paths from $HOME
            done = run(words, cwd=self.folder, PARALLEL_SSH=ssh, NODES=nodes, HOME=home)
            self.assert_ends(done, 0)
            self.assertEqual(sorted(nodes.read_text().split()), sorted(["node1", "node2"] * (begun // 2)))
        parts = [f"part{i}" for i in range(1, 5)]
        self.assert_ends(self.attnbench("merge", "-o", "sweep", *parts), 0, f"of {CASES} cases")


if __name__ == "__main__":
    unittest.main(verbosity=1)
