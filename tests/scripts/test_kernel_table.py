#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""scripts/make/kernel_table.py --check fails if the document is out of date, and only then.

tests/scripts/test_kernel_table.py path/to/kernel_table     needs only Python's standard library
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "make" / "kernel_table.py"
GENERATOR = sys.argv.pop(1) if len(sys.argv) > 1 else "build/tests/kernel_table"


class Check(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lines = subprocess.run([GENERATOR], stdout=subprocess.PIPE, check=True, encoding="utf-8").stdout.splitlines()

    def check(self, lines):
        """Exit code and output for a build whose kernel_table prints these lines."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "lines"
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
            command = [sys.executable, str(SCRIPT), "--check", f"cat {file}"]
            done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=False)
        return done.returncode, done.stdout

    def without(self, kernel):
        return [line for line in self.lines if kernel not in line.split("\t")[1:3] or line[0] in "SF"]

    def test_what_the_kernels_say_now_passes(self):
        self.assertEqual(self.check(self.lines)[0], 0)

    def test_another_cell_fails(self):
        lines = [line[:-3] + "1" if line.startswith("R\tWhich keys\tflash_c\t") else line for line in self.lines]
        self.assertNotEqual(lines, self.lines)
        code, said = self.check([*lines, "N\tflash_c\t1\tit is tired"])
        self.assertEqual(code, 1)
        self.assertIn("Which keys: flash_c", said)
        self.assertIn("it is tired", said)

    def test_a_kernel_that_is_not_built_here_keeps_its_row(self):
        self.assertLess(len(self.without("flash_c")), len(self.lines))
        self.assertEqual(self.check(self.without("flash_c"))[0], 0)

    def test_another_version_of_a_library_is_said_and_not_failed(self):
        lines = ["\t".join([*line.split("\t")[:4], "BLAS 9", "other"]) if line.startswith("K\tflash_c\t") else line
                 for line in self.lines]
        code, said = self.check(lines)
        self.assertEqual(code, 0)
        self.assertIn("not compared: flash_c", said)


if __name__ == "__main__":
    unittest.main()
