#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The choice of --cpus: on this machine, and (with `synthetic`, which needs hwloc) on larger machines that hwloc imitates.

tests/harness/machine/test_cpus.py path/to/attnbench [synthetic]     needs only Python's standard library
"""

import csv
import os
import re
import sys
import unittest

from runs import FolderTest, program_argument, read_csv, read_json, run, strict_json

ATTNBENCH = program_argument("attnbench")
SYNTHETIC = sys.argv[1:2] == ["synthetic"] and bool(sys.argv.pop(1))

TWO_SOCKETS = "pack:2 numa:1 core:8 pu:2"  # 2 nodes, 16 cores, 32 CPUs; CPU 2n and 2n + 1 share core n
# Linux often numbers all first threads before all second ones: here core n has CPUs n and n + 4. This one has caches, too.
INTERLEAVED = "pack:1 l3:2 l2:2 core:1 pu:2(indexes=0,4,1,5,2,6,3,7)"
CHIPLETS = "pack:2 numa:4 l3:2 core:6 pu:2"  # like a large EPYC in NPS4: 8 nodes, 96 cores, 192 CPUs


def attnbench(*arguments, topology=None, cpu=None, **environment):
    """The finished process, on a topology that hwloc imitates, or confined to one CPU."""
    if topology:
        environment["HWLOC_SYNTHETIC"] = topology
    return run([ATTNBENCH, *arguments], without=("HWLOC_", "OMP_P", "OMP_NUM"),
               before=None if cpu is None else lambda: os.sched_setaffinity(0, {cpu}), **environment)


def facts(*arguments, **where):
    """The facts of `env` by name."""
    done = attnbench("env", "--json", "-", *arguments, **where)
    assert done.returncode == 0, done.stderr
    return {name: fact["value"] for name, fact in strict_json(done.stdout).items()}


def places(*arguments, **where):
    """(CPU, core, node, package) of each thread, from the table of `env`."""
    done = attnbench("env", *arguments, **where)
    assert done.returncode == 0, done.stderr
    rows = [tuple(map(int, row)) for row in re.findall(r"^(\d+) +(\d+) +(\d+) +(\d+) +(\d+)$", done.stdout, re.MULTILINE)]
    assert [row[0] for row in rows] == list(range(len(rows)))
    return [row[1:] for row in rows]


def cpus(text, *arguments, topology=TWO_SOCKETS):
    return [place[0] for place in places("--cpus", text, *arguments, topology=topology)]


class Synthetic(FolderTest):

    def test_facts(self):
        for topology, packages, nodes, cores, pus in [(TWO_SOCKETS, 2, 2, 16, 32), (INTERLEAVED, 1, 1, 4, 8),
                                                      (CHIPLETS, 2, 8, 96, 192)]:
            seen = facts(topology=topology)
            self.assertEqual([seen[name] for name in ("packages", "nodes", "cores", "pus")],
                             [str(n) for n in (packages, nodes, cores, pus)])
            self.assertIn(topology, seen["topology"])
        self.assertRegex(facts(topology=INTERLEAVED)["caches"], r"L3 .* x 2, L2 .* x 4")

    def test_one_thread_per_core(self):
        self.assertEqual(cpus("core:0-3"), [0, 2, 4, 6])
        self.assertEqual(cpus("core:0-3", topology=INTERLEAVED), [0, 1, 2, 3])
        self.assertEqual(cpus("package:1"), list(range(16, 32, 2)))
        self.assertEqual(cpus("numa:0"), list(range(0, 16, 2)))
        self.assertEqual(cpus("all"), list(range(0, 32, 2)))
        self.assertEqual(cpus("l3:1", topology=INTERLEAVED), [2, 3])
        self.assertEqual(len(cpus("all", topology=CHIPLETS)), 96)

    def test_paths_and_ranges(self):
        for text, expected in [("package:1.core:0-1", [16, 18]), ("socket:1.pu:3", [19]), ("core:odd", range(2, 32, 4)),
                               ("core:even", range(0, 32, 4)), ("core:14-", [28, 30]), ("core:15:3", [0, 2, 30]),
                               ("package:0-1.core:0", [0, 16]), ("numa:1.core:all", range(16, 32, 2)),
                               ("core:0-1,8", [0, 2, 16]), ("core:0 core:2", [0, 4]), ("package:1.core:0,2", [16, 20]),
                               ("core:all,~package:0", range(16, 32, 2)), ("core:0,~pu:0", [1]),
                               ("core:0-3,~core:1", [0, 4, 6])]:
            self.assertEqual(cpus(text), list(expected), text)
        self.assertEqual(cpus("numa:7.l3:1.core:5", topology=CHIPLETS), [190])

    def test_cpus_named_themselves(self):
        """Numbers, sets and pu: choose siblings too, but those come after the first CPUs of all cores."""
        for text, expected in [("0-3", [0, 2, 1, 3]), ("pu:0-3", [0, 2, 1, 3]), ("1", [1]), ("5,4", [4, 5]), ("0x5", [0, 2]),
                               ("0xf0000000", [28, 30, 29, 31])]:
            self.assertEqual(cpus(text), expected, text)
        done = attnbench("env", "--cpus", "0x1,0x00000000", topology=TWO_SOCKETS)  # words of 32 bits
        self.assert_ends(done, 2, "there is no CPU 32")
        self.assertEqual(cpus("0x1,0x00000000", topology=CHIPLETS), [32])
        self.assertEqual(cpus("pu:1", topology=INTERLEAVED), [4])  # the number that hwloc counts
        self.assertEqual(cpus("1", topology=INTERLEAVED), [1])     # the number that Linux gives

    def test_more_threads_than_cores(self):
        """Every core gets its first thread before any gets a second, and `env` says that cores are shared."""
        all_places = places("--threads", 32, topology=TWO_SOCKETS)
        self.assertEqual([place[1] for place in all_places], 2 * list(range(16)))
        self.assertEqual(len({place[0] for place in all_places}), 32)
        self.assertEqual([place[3] for place in all_places[:16]], 8 * [0] + 8 * [1])
        self.assertIn("one per core", facts("--threads", 16, topology=TWO_SOCKETS)["binding"])
        self.assertIn("more than one per core", facts("--threads", 17, topology=TWO_SOCKETS)["binding"])
        few = facts("--threads", 3, "--cpus", "core:0-1", topology=TWO_SOCKETS)
        self.assertIn("none: 3 threads on 2 CPUs", few["binding"])

    def test_errors_name_what_exists(self):
        for text, words in [("core:16", ["core:16", "core:0-15"]), ("package:1.core:9", ["package:1", "core:0-7"]),
                            ("corse:0", ["'corse'", "package:0-1", "core:0-15", "pu:0-31"]), ("l3:0", ["'l3'", "core:0-15"]),
                            ("core:x", ["core:x", "N-M"]), ("core:3-1", ["core:3-1"]), ("core:0:0", ["core:0:0"]),
                            ("40", ["no CPU 40", "0-31"]), ("core:0.5", ["'5'", "core:0-3"]), ("core:", ["core:"]),
                            ("", ["no CPU is left"]), ("~all", ["no CPU is left"]), ("0xg", ["hexadecimal"]),
                            ("0-", ["'0-'"]), (",".join(["0"] * 500), []), ("core:" + "9" * 300, ["too long"])]:
            self.assert_ends(attnbench("env", "--cpus", text, topology=TWO_SOCKETS), 2 if words else 0, *words)

    def test_another_machine_cannot_be_bound_to(self):
        self.assert_ends(attnbench("run", "--cpus", "core:0", "-a", "seq=8", topology=TWO_SOCKETS), 2, "synthetic",
                         "attnbench env --cpus")
        self.assert_ends(attnbench("run", "-k", "naive_c", "-a", "seq=8", "-a", "heads=1", "--rounds", 3,
                                   topology=TWO_SOCKETS), 0)  # binds to CPUs of this machine


class Here(FolderTest):

    def setUp(self):
        super().setUp()
        self.allowed = sorted(os.sched_getaffinity(0))

    def need_two_cpus(self):
        if len(self.allowed) < 2:
            self.skipTest("one CPU: run refuses two threads")

    def run_naive(self, *arguments, **how):
        """The finished process and its rows."""
        file = self.folder / "results.csv"
        done = attnbench("run", "-k", "naive_c", *arguments, "--rounds", 3, "--csv", file, **how)
        return done, read_csv(file)

    def test_defaults_are_all_cores(self):
        seen = facts()
        self.assertGreaterEqual(int(seen["pus"]), len(self.allowed))
        if not HWLOC:
            self.skipTest("cores have names with hwloc only")
        self.assertEqual(len(places("--cpus", "core:all")), int(re.search(r"(\d+) cores?$", seen["binding"])[1]))
        self.assertLessEqual({place[0] for place in places("--cpus", "core:all")}, set(self.allowed))

    def test_numbers_are_the_systems(self):
        for cpu in self.allowed[:4]:
            self.assertEqual([place[0] for place in places("--cpus", str(cpu))], [cpu])

    def test_masks_in_force_are_respected(self):
        first, last = self.allowed[0], self.allowed[-1]
        if HWLOC:
            self.assertEqual([place[0] for place in places("--cpus", "core:all", cpu=first)], [first])
        self.assertEqual(facts(cpu=last)["binding"], f"one thread per core of CPUs {last}, 1 core")
        if first == last:
            self.skipTest("this process may use one CPU only")
        self.assert_ends(attnbench("run", "--cpus", last, cpu=first), 2,
                         f"CPU {last} is not allowed; this process may use {first}")

    def test_errors_name_what_exists(self):
        numbers = [("9000", ["'9000'"]), ("1000", ["no CPU 1000"])]
        names = [("core:4000", ["core:0"]), ("kore:1", ["'kore'"]), ("abc", ["core:0-3"]), ("core:0-0-0", ["N-M"])]
        if not HWLOC:
            names = [(text, [f"'{text}'", "0-3,8", "libhwloc-dev"]) for text, _ in names]
            names += [("0x1", ["hwloc"]), ("", ["0-3,8"])]
        for text, words in numbers + names:
            for command in (["env"], ["run", "-a", "seq=8"], ["check", "-a", "seq=8"], ["peak"],
                            ["eval", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]):
                self.assert_ends(attnbench(*command, "--cpus", text), 2, *words)

    def test_more_threads_than_cpus_are_refused_before_anything_runs(self):
        done = attnbench("run", "-a", "seq=8", "-t", "1,2", "--cpus", self.allowed[0])
        self.assert_ends(done, 2, "threads=2: this process may use 1 CPU, ")
        self.assertEqual(done.stdout, "")
        self.assert_ends(attnbench("check", "-k", "naive_c", "-a", "seq=8", "-t", "2", "--cpus", self.allowed[0]), 0)

    def test_threads_that_openmp_does_not_give_are_refused_before_anything_runs(self):
        self.need_two_cpus()
        for name, value, least in (("OMP_THREAD_LIMIT", "1", 2), ("OMP_MAX_ACTIVE_LEVELS", "0", 1)):
            right = f"; {name}={value} should be {least} or more" if OPENMP else ""
            for cases in (("-a", "seq=8", "-t", "1,2"), ("--preset", "limits"))[:2 if OPENMP else 1]:  # else limits skips
                done = attnbench("run", *cases, **{name: value})
                self.assert_ends(done, 2, f"threads=2: 1 of 2 threads run: {WHY_FEWER}{right}\n")
                self.assertEqual(done.stdout, "")
            self.assert_ends(attnbench("check", "-k", "naive_c", "-a", "seq=8", "-t", "2", **{name: value}), 0)

    @unittest.skipIf(os.environ.get("ATTN_TEST_FEW"), "reads gigabytes on every imitated machine")
    def test_peak_counts_its_threads(self):
        done = attnbench("peak", "--threads", 2, "--csv", "-", OMP_THREAD_LIMIT="1")
        self.assert_ends(done, 0, f"warning: 1 of 2 threads run: {WHY_FEWER}" +
                         ("; OMP_THREAD_LIMIT=1 should be 2 or more" if OPENMP else ""))
        self.assertEqual({row["threads"] for row in csv.DictReader(done.stdout.splitlines())}, {"1"})

    def test_threads_of_a_larger_case_do_not_spin_beside_one(self):
        self.need_two_cpus()
        if not OPENMP:
            self.skipTest("no OpenMP: run refuses two threads")
        _, rows = self.run_naive("-a", "seq=64", "-t", "2,1", OMP_WAIT_POLICY="active")
        (one,) = [row for row in rows if row["threads"] == "1"]
        self.assertEqual(one["status"], "PASS", one["reason"])
        self.assertLess(float(one["threads_counted"]), 1.25)

    def test_a_run_stays_where_it_is_put(self):
        """The process itself is confined, as env.json says afterwards."""
        last = self.allowed[-1]
        done = attnbench("run", "--cpus", last, "-k", "naive_c", "-a", "seq=8", "-a", "heads=1", "--rounds", 3, "-o",
                         self.folder)
        self.assert_ends(done, 0, f"binding: 1 thread on CPU {last}")
        seen = read_json(self.folder / "env.json")
        self.assertEqual(seen["affinity"]["value"], f"CPUs {last}")
        self.assertIn(f"CPU {last}", seen["binding"]["value"])
        for name in ("topology", "packages", "nodes", "cores", "pus"):
            self.assertIn(name, seen)


HWLOC = "hwloc" in facts()["topology"]
OPENMP = not facts()["openmp"].startswith(("off", "not found"))
WHY_FEWER = "OpenMP or the system gives no more" if OPENMP else "this build has no OpenMP"
if SYNTHETIC:
    del Here
    if not HWLOC:
        print("skipped: attnbench was built without hwloc (Debian: apt-get install libhwloc-dev)")
        sys.exit(77)
else:
    del Synthetic

if __name__ == "__main__":
    unittest.main()
