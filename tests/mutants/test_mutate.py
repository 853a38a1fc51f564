#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""scripts/dev/mutate.py: which faults it finds in C, and what it reports of faults that tests notice or miss.

tests/mutants/test_mutate.py path/to/build     needs only Python's standard library
"""
import contextlib
import csv
import io
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "dev"))
sys.dont_write_bytecode = True
import mutate  # noqa: E402  # found by the path above
from mutating.mutations import Mutation, mutations_of, read_named  # noqa: E402
from mutating.programs import Build, Workplace  # noqa: E402
from mutating.together import READER, with_all  # noqa: E402

BUILD = sys.argv.pop(1) if len(sys.argv) > 1 else str(ROOT / "build")

FAULTS = {  # a statement, and all its mutations
    "x = a < b;": "x = a <= b; | ;",
    "int x = a >> b;": "int x = a << b;",
    "x += y && z;": "x -= y && z; | x += y || z; | ;",
    "const int x = 7;": "const int x = 8;",
    "return 0;": "return 1;",
    "return 1;": "return 0;",
    "return 2.5e-3f;": "return (2 * 2.5e-3f);",
    "return 0x1.8p-24;": "return (2 * 0x1.8p-24);",
    "return 0.0f;": "return 1.0f;",
    "return true;": "return false;",
    "return !ready;": "return ready;",
    "return a ? b : c;": "return a ? c : b;",
    "if (!ready) stop(now);": "if (ready) stop(now); | if (!ready) ;",
    "if (ready(x)) return;": "if (!(ready(x))) return; | if (ready(x)) ;",
    "copy(to, from, bytes[n]);": "copy(from, to, bytes[n]); | copy(to, bytes[n], from); | ;",
    "fmin(a, b);": ";",
    "n++;": ";",
    "break;": ";",
    # no faults: declarations, buffers, text, comments, assertions, pointers, hints, macros
    "int x = y;": "",
    "char text[160];": "",
    "long long a[2], b[3 * N];": "long long a[2], b[3 / N];",
    "__m512i a[8], b[9];": "",
    'char a[40] = "", b[80] = "x";': "",
    "x = a[3];": "x = a[4]; | ;",
    'say("a < 1, b + 2");': ";",
    "/* a < b */": "",
    "assert(a < b && f(c) == 1);": "",
    "const float *a, *const b = c;": "",
    "if (ahead > 1) fetch_pairs(next, 1);": "",
    "#define LESS(a, b) (a < b)": "",
}


def faults_of(statement, before=";"):
    text = f"  {before}\n  {statement}\n"
    return [each.after.strip() for each in mutations_of("x.c", text) if each.number == 1]


class Mutations(unittest.TestCase):
    def test_every_kind_of_fault(self):
        for statement, wanted in FAULTS.items():
            with self.subTest(statement):
                self.assertEqual(sorted(faults_of(statement)), sorted(filter(None, wanted.split(" | "))))

    def test_half_a_statement_is_not_dropped(self):
        self.assertEqual(faults_of("b = c;", before="a +"), [])
        self.assertEqual(faults_of("b = c;", before="else"), [";"])

    def test_comment_of_several_lines_and_macro_of_several_lines(self):
        self.assertEqual(mutations_of("x.c", "/* a\n  b < 1;\n*/\n#define X \\\n  b < 1;\n"), [])

    def test_sample_is_seeded_and_takes_every_kind(self):
        every = mutations_of("x.c", "\n".join(f"  {statement}" for statement in FAULTS))
        first = mutate.sampled(every, 7, seed=3)
        self.assertEqual(first, mutate.sampled(every, 7, seed=3))
        self.assertNotEqual(first, mutate.sampled(every, 7, seed=4))
        self.assertEqual(len({each.kind for each in first}), 7)
        self.assertEqual(len(mutate.sampled(every, 10 ** 6, seed=3)), len(every))

    def test_a_sample_by_file_gives_each_its_share(self):
        every = [fault for file, lines in (("a.c", 30), ("b.c", 10)) for fault in mutations_of(file, "  x = 2;\n" * lines)]
        chosen = mutate.sampled(every, 16, seed=5, by="file")
        self.assertEqual(sorted(Counter(each.file for each in chosen).items()), [("a.c", 12), ("b.c", 4)])
        self.assertEqual(len(set(chosen)), 16)
        self.assertEqual(sorted(mutate.sampled(every, 10 ** 6, seed=5, by="file")), sorted(every))


PROGRAM = """#include <stdio.h>
typedef struct pair { int first, second; } pair;
static int less(pair p, int most) {
  if (p.first < most && !(p.second > 3)) return p.first - p.second;
  if (p.second == 0)
    return 9;
  else
    p.second += 2;
  return p.first * 4;
}
static int twice(int a) { return 2 * a; }
static void shift(pair *p) {
  p->first += 2;
  if (p->second > 1) p->second--;
}
int main(void) {
  const int most = 5, least = 2;
  int sum = 0, steps = 0;
  for (int i = 0; i < 6 && steps++ < 20; i++) sum = 3 * sum + less((pair){i, 6 - i}, most);
  for (int i = least; i <= 9 && steps++ < 30; i += 3) {
    pair given = {.first = i, .second = sum % 7};
    shift(&given);
    sum += twice(less(given, least));
    if (sum > 100) break;
  }
  printf("%d\\n", sum);
  return 0;
}
"""


class Together(unittest.TestCase):
    """Faults that are compiled at once."""

    def output_of(self, folder, name, text, **environment):
        source, program = Path(folder) / f"{name}.c", Path(folder) / name
        if not program.exists():
            source.write_text(text, encoding="utf-8")
            done = subprocess.run(["cc", "-w", "-o", program, source], stderr=subprocess.PIPE, check=False)
            self.assertTrue(done.returncode == 0 or name != "many", done.stderr)
            if done.returncode:
                return None
        return subprocess.run([program], env=environment, stdout=subprocess.PIPE, timeout=60, check=False).stdout

    def test_each_fault_does_what_it_does_alone(self):
        line, before = next(pair for pair in enumerate(PROGRAM.split("\n")) if "twice(int" in pair[1])
        named = Mutation("x.c", line, before, "static int twice(int a) { return 3 * a; } /* more */", "named")
        found = [named, *(each for each in mutations_of("x.c", PROGRAM) if each.kind != "arguments")]
        faults = dict(enumerate(found, 1))
        many, owners = with_all(PROGRAM, faults)
        self.assertEqual(set(owners.values()), set(faults))
        lines, different = PROGRAM.split("\n"), 0
        with tempfile.TemporaryDirectory() as folder:
            usual = self.output_of(folder, "usual", PROGRAM)
            self.assertEqual(self.output_of(folder, "many", many + READER), usual)
            for number, fault in list(faults.items())[::4]:
                text = "\n".join([*lines[:fault.number], fault.after, *lines[fault.number + 1:]])
                alone = self.output_of(folder, f"x{number}", text)
                with self.subTest(fault.after):
                    self.assertEqual(self.output_of(folder, "many", "", MUTANT=str(number)), alone)
                different += alone != usual
        self.assertGreater(different, 5)


class Areas(unittest.TestCase):
    def test_every_unit_test_meets_the_faults_of_an_area(self):
        elsewhere = {"onednn", "openblas", "safetensors"}  # their code has no faults: plug-ins and examples
        tests = {path.stem[len("test_"):] for path in (ROOT / "tests").rglob("test_*.c")}
        self.assertEqual(tests - elsewhere - set(" ".join(names for _, names in mutate.AREAS).split()), set())


class Named(unittest.TestCase):
    def test_every_named_fault_has_its_line(self):
        self.assertGreater(len(mutate.named_mutations()), 20)

    def test_entries_are_read_and_half_ones_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "list"
            path.write_text("# what\nsrc/a.c\n- a;\n+ ;\n= why\n\nsrc/b.c\n- b;\n", encoding="utf-8")
            self.assertRaisesRegex(ValueError, "lacks lines", read_named, path)
            path.write_text("src/a.c\n- a;\n+ ;\n= why\n", encoding="utf-8")
            self.assertEqual(read_named(path), {("src/a.c", "a;", ";"): "why"})
            path.write_text("src/a.c\n+ a;\n- ;\n= why\n", encoding="utf-8")
            self.assertRaisesRegex(ValueError, "should begin with '- '", read_named, path)


class Runs(unittest.TestCase):
    """Faults of one small file of the build at hand."""

    def run_sample(self, tests, *options, files="harness/timing/stats.c"):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
            rows = Path(folder) / "rows.csv"
            code = mutate.main(["--build", BUILD, "--files", files, "--seed", "3", "--tests", tests,
                                "--output", str(rows), "--least", "60", *options])
            with rows.open(newline="", encoding="utf-8") as file:
                return code, said.getvalue(), list(csv.DictReader(file))

    def test_the_files_own_test_kills_most_of_a_sample(self):
        code, said, rows = self.run_sample("stats rounds", "--sample", "6")
        self.assertEqual((code, len(rows)), (0, 6), said)
        self.assertIn("stats", [row["test"] for row in rows if row["outcome"] == "killed"])

    def test_faults_that_no_test_runs_survive(self):
        code, said, rows = self.run_sample("safetensors", "--sample", "6", "--then", BUILD)
        self.assertEqual(code, 1)
        left = [row for row in rows[:6] if row["outcome"] == "survived"]
        self.assertEqual([row["line"] for row in rows[6:]], [row["line"] for row in left])
        self.assertEqual(said.count("faults killed"), 2)
        self.assertIn("survived  harness/timing/stats.c:", said)

    def test_faults_of_the_shared_library_reach_its_programs(self):
        _, said, rows = self.run_sample("old_program", "--sample", "8", files="src/plan/plan.c")
        self.assertIn("old_program", [row["test"].split(" ")[0] for row in rows if row["outcome"] == "killed"], said)

    def test_what_other_load_delays_is_no_kill(self):
        place = SimpleNamespace(choose=lambda number: None, command_of=lambda test: ([], {}))
        baseline = mutate.Baseline(place, 9)
        baseline.seconds = {"quick": 1.0}
        for codes, outcome in (([1], 1), ([None, 0], None), ([None, None, 1], 1), ([None] * 6, 0)):  # None is late
            with mock.patch.object(mutate, "run_test", side_effect=codes):  # with the fault, and without it, in turn
                self.assertEqual(mutate.run_with_fault("quick", 7, place, baseline), outcome)

    def test_what_cannot_be_compiled_together_is_left_to_itself(self):
        text = ("int f(int a) {\n#ifdef OTHER_SYSTEM\n  a = a + 3;\n#endif\n  return a + 2;\n}\n"
                "static const int\n  table[] = {3};\nint g(void) { return table[0]; }\n")
        faults = [*mutations_of("f.c", text), Mutation("f.c", 4, "  return a + 2;", "  return a + ;", "named")]
        with tempfile.TemporaryDirectory() as folder:
            place, source = Workplace.__new__(Workplace), str(Path(folder) / "f.c")
            Path(source).write_text(text, encoding="utf-8")
            place.folder = place.sources = Path(folder) / "copy"
            place.sources.mkdir()
            place.build = SimpleNamespace(root=Path(folder), folder=Path(folder) / "build", users_of=lambda _: [source],
                                          compiles={source: (["cc", "-o", "f.o", "-c", source], folder)})
            numbers = place.build_together(faults)
            self.assertEqual({mutation.number for mutation in numbers}, {2, 4})
            self.assertNotIn(faults[-1], numbers)
            ends = [place.build_alone(fault) for fault in (faults[-1], *(each for each in faults if each.number == 7))]
            self.assertEqual((ends[0], set(ends[1:])), ("not compiled", {"changed"}))
            self.assertIn("same code", [place.build_alone(fault) for fault in faults if fault.number == 2])

    def test_headers_come_from_the_copy_too(self):
        place = Workplace.__new__(Workplace)
        place.build, place.sources = Build(ROOT, BUILD), Path("/copy")
        for word, moved in ((f"-I{ROOT}", "-I/copy"), (f"-I{ROOT}/src", "-I/copy/src"), (f"{ROOT}/src/a.c", "/copy/src/a.c"),
                            (f"-I{place.build.folder}/generated", f"-I{place.build.folder}/generated"), ("-O2", "-O2")):
            self.assertEqual(place._moved(word), moved)

    def test_a_fault_in_a_header_of_all_tiers_is_tried_in_few(self):
        users = Build(ROOT, BUILD).users_of("kernels/common/problem/convert.h")
        self.assertIn(str(ROOT / "kernels" / "ref" / "flash_c.c"), users)
        self.assertFalse([each for each in users if "/harness/" in each and "/tests/" not in each or "/avx512/" in each])


if __name__ == "__main__":
    unittest.main()
