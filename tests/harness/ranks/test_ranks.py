#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""attnbench-mpi: a sweep over ranks holds the rows of one process, whatever dies.

tests/harness/ranks/test_ranks.py path/to/attnbench path/to/attnbench-mpi MPIRUN
"""

import os
import re
import stat
import sys
import unittest
from pathlib import Path

from runs import FolderTest, program_argument, read_csv, read_json, run

ATTNBENCH = program_argument("attnbench")
PROGRAM = program_argument("attnbench-mpi")
MPIRUN = sys.argv.pop(1) if len(sys.argv) > 1 else "mpirun.openmpi"
SLURM = Path(__file__).resolve().parents[3] / "examples" / "sweep" / "slurm_mpi.sh"
CASES = 6
CHECK = ("check", "-k", "naive_c,flash_c", "-a", "heads=1,2", "-a", "seq=16:48:+16", "-a", "head_dim=16")
RUN = ("run", *CHECK[1:], "--rounds", "2")
SURVIVE = {"mpirun.openmpi": "--enable-recovery", "mpirun.mpich": "-disable-auto-cleanup"}
LAUNCH = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",  # containers of tests have no other user
          "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_rmaps_base_oversubscribe": "1",
          "OMPI_MCA_hwloc_base_binding_policy": "none", "OMP_NUM_THREADS": "1", "ASAN_OPTIONS": "detect_leaks=0"}


def checked(folder):
    """The cells that are the same in every check."""
    rows = read_csv(folder / "results.csv")
    return sorted((row["case_id"], row["kernel"], row["status"], row["max_err_ratio"]) for row in rows)


class Ranks(FolderTest):
    def sweep(self, *arguments, ranks=3, survive=False, fault="", code=0, words=()):
        """A sweep into `sweep`. fault: lines of a shell script that stands for attnbench; $RANK is the rank, $ONCE a file
        that is not there at first."""
        attnbench = self.folder / "attnbench.sh"
        rank = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
        attnbench.write_text(f'#!/bin/sh\nRANK={rank} ONCE={self.folder}/once\n{fault}\nexec {ATTNBENCH} "$@"\n',
                             encoding="utf-8")
        attnbench.chmod(attnbench.stat().st_mode | stat.S_IXUSR)
        flags = [SURVIVE[Path(MPIRUN).name]] if survive else []
        done = run([MPIRUN, *flags, "-n", ranks, PROGRAM, "--attnbench", attnbench, "-o", "sweep", *arguments],
                   cwd=self.folder, TMPDIR=str(self.folder), **LAUNCH)
        if code is not None:
            self.assert_ends(done, code)
        for word in words:
            self.assertIn(word, done.stderr + done.stdout)
        return done

    def assert_whole(self, check=CHECK):
        self.assert_ends(run([ATTNBENCH, *check, "-q", "-o", self.folder / "one"], **LAUNCH), 0)
        self.assertEqual(checked(self.folder / "sweep"), checked(self.folder / "one"))

    # ---- Sweeps ----------------------------------------------------------------------------------------------------------

    def test_a_sweep_is_that_of_one_process(self):
        self.sweep(*CHECK, words=("3 of 3 ranks work", f"[{CASES}/{CASES}]"))
        self.assert_whole()
        runs = read_csv(self.folder / "sweep" / "runs.csv")
        self.assertEqual({row["run_id"] for row in runs},
                         {row["run_id"] for row in read_csv(self.folder / "sweep" / "results.csv")})
        self.assertGreater(len({row["rank"] for row in runs}), 1)
        host = runs[0]["host"]
        self.assertEqual(read_json(self.folder / "sweep" / "nodes" / f"{host}.json")["cpu"],
                         read_json(self.folder / "sweep" / "env.json")["cpu"])
        journal = (self.folder / "sweep" / "journal.jsonl").read_bytes()
        self.sweep(*CHECK)  # has nothing left to do
        self.assertEqual((self.folder / "sweep" / "journal.jsonl").read_bytes(), journal)
        self.assert_ends(run([ATTNBENCH, *CHECK, "-q", "-o", "sweep", "--resume"], cwd=self.folder, **LAUNCH), 0)
        self.assertEqual([path for path in self.folder.iterdir() if path.name.startswith("attnbench-mpi-")], [])

    def test_long_cases_are_dealt_first(self):
        self.sweep("check", "-k", "flash_c", "-a", "seq=16:512:*2", "-a", "heads=8", ranks=1,
                   fault=f'echo "$@" >>{self.folder}/said')
        said = [line for line in (self.folder / "said").read_text().splitlines() if "--case" in line]
        longest = [max(map(int, re.findall(r"/Sq:(\d+)/", line))) for line in said]
        self.assertGreater(len(longest), 2, said)
        self.assertEqual(longest[0], 512)
        self.assertEqual(longest, sorted(longest, reverse=True))

    def test_one_rank_of_a_node_times(self):
        self.sweep(*RUN, words=("1 of 3 ranks work; 2 wait",))
        rows = read_csv(self.folder / "sweep" / "results.csv")
        self.assertEqual(len(rows), 2 * CASES)
        self.assertEqual({row["rank"] for row in read_csv(self.folder / "sweep" / "runs.csv")}, {"0"})
        self.assertTrue(all(float(row["time_ns_median"]) > 0 for row in rows))
        self.sweep("--overwrite", "--share", *RUN, words=("3 of 3 ranks work",))

    # ---- Losses ----------------------------------------------------------------------------------------------------------

    def test_a_child_that_dies_costs_its_case_a_second_try(self):
        once = 'case "$*" in *--case*) [ -e "$ONCE" ] || { touch "$ONCE"; kill -9 $$; } ;; esac'
        self.sweep(*CHECK, fault=once, words=("was ended by signal 9", "it is dealt again"))
        self.assert_whole()

    def test_a_child_that_hangs_is_ended(self):
        once = 'case "$*" in *--case*) [ -e "$ONCE" ] || { touch "$ONCE"; exec sleep 100; } ;; esac'
        self.sweep("--patience", "3s", *CHECK, fault=once, words=("attnbench hung", "it is dealt again"))
        self.assert_whole()

    def test_a_case_that_always_dies_is_given_up(self):
        fault = 'case "$*" in *--case*Hq:2/*Sq:48/*) echo "no luck" >&2; kill -9 $$ ;; esac'
        done = self.sweep(*CHECK, fault=fault, code=None, words=("no luck; it is given up", "could not be measured"))
        rows = read_csv(self.folder / "sweep" / "results.csv")
        missing = {row["case_id"] for row in rows if row["status"] == "SKIP"}
        self.assertEqual(len(missing), 1, done.stderr)
        self.assertEqual({row["reason"] for row in rows if row["status"] == "SKIP"}, {"not measured: --resume does it"})
        self.sweep(*CHECK)
        self.assert_whole()

    def test_a_rank_that_dies_costs_its_cases_a_second_try(self):
        once = 'case "$RANK $*" in [12]*--case*) [ -e "$ONCE" ] || { touch "$ONCE"; kill -9 $PPID; } ;; esac'
        self.sweep("--patience", "3s", *CHECK, survive=True, fault=once, code=None,
                   words=("it is lost, and others get its", f"[{CASES}/{CASES}]"))
        self.assert_whole()

    def test_a_rank_that_stood_still_may_come_back(self):
        stops = '[ -e "$ONCE" ] || { touch "$ONCE"; kill -STOP $PPID; sleep 4; kill -CONT $PPID; }'
        fault = f'case "$RANK $*" in 1*--case*) {stops} ;; *--case*) sleep 1 ;; esac'
        check = [word.replace("16:48:+16", "16:96:+16") for word in CHECK]  # the others are not done before it is back
        self.sweep("--patience", "2s", *check, fault=fault, words=("has been silent for 2 s", "is back", "[12/12]"))
        self.assert_whole(check)

    def test_ranks_end_where_rank_0_dies(self):
        dies = 'case "$RANK $*" in 0*--case*) kill -9 $PPID ;; esac'
        self.sweep("--patience", "3s", *CHECK, survive=True, fault=dies, code=None, words=("rank 0 is silent",))
        self.assertIn("SKIP", {row["status"] for row in read_csv(self.folder / "sweep" / "results.csv")})
        self.sweep(*CHECK)
        self.assert_whole()

    def test_without_recovery_the_next_start_goes_on(self):
        dies = 'case "$RANK $*" in 1*--case*) sleep 1; kill -9 $PPID ;; esac'
        self.sweep("--patience", "3s", *CHECK, fault=dies, code=None)
        before = (self.folder / "sweep" / "journal.jsonl").read_text().splitlines()
        self.sweep(*CHECK)
        self.assertEqual((self.folder / "sweep" / "journal.jsonl").read_text().splitlines()[:len(before)], before)
        self.assert_whole()

    # ---- Refusals --------------------------------------------------------------------------------------------------------

    def test_rows_of_unlike_nodes_do_not_meet(self):
        self.sweep(*CHECK, fault='[ "$RANK" = 1 ] && export ATTN_MAX_ISA=c',
                   words=("gets no case: its attn_variables is 'ATTN_MAX_ISA=c', that of rank 0 'none'", "2 of 3 ranks"))
        self.assertLessEqual({row["rank"] for row in read_csv(self.folder / "sweep" / "runs.csv")}, {"0", "2"})
        self.assert_whole()

    def test_other_settings_do_not_continue_a_sweep(self):
        self.sweep(*CHECK, ranks=2)
        self.sweep(*CHECK, "--seed", "2", ranks=2, code=5, words=("its seed is '1', now it is '2'",))

    def test_what_makes_no_sense_is_refused(self):
        self.sweep("--patience", "0.1s", *CHECK, code=2, words=("at least 1 s",))
        self.sweep(code=2, words=("run or check is missing",))
        self.sweep(*CHECK, "--csv=x", code=2, words=("--csv belongs to a run of attnbench alone",))
        self.sweep(*CHECK, "-k", "nothing", code=2, words=("nothing",))
        self.sweep("run", "-p", "limits", code=2, words=("limits",))
        done = run([MPIRUN, "-n", "3", PROGRAM, *CHECK], cwd=self.folder, **LAUNCH)
        self.assert_ends(done, 2)
        self.assertEqual((done.stdout + done.stderr).count("-o DIR is missing"), 1)

    @unittest.skipUnless(SLURM.exists(), "no examples in this tree")
    def test_the_example_for_slurm_measures_a_sweep(self):
        """srun is a script that starts mpirun."""
        srun = self.folder / "srun"
        srun.write_text('#!/bin/sh\necho "$@" >srun.said\nwhile [ "${1#-}" != "$1" ]; do shift; done\n'
                        f'exec {MPIRUN} -n 2 "$@"\n', encoding="utf-8")
        srun.chmod(0o755)
        done = run([SLURM, "--share", *RUN], cwd=self.folder, ATTNBENCH_MPI=PROGRAM + f" --attnbench {ATTNBENCH}",
                   PATH=f"{self.folder}:{os.environ['PATH']}", TMPDIR=str(self.folder), **LAUNCH)
        self.assert_ends(done, 0, "2 of 2 ranks work")
        self.assertEqual(len(read_csv(self.folder / "sweep" / "results.csv")), 2 * CASES)
        self.assertIn("--kill-on-bad-exit=0", (self.folder / "srun.said").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=1)
