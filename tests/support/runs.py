# SPDX-License-Identifier: MIT
"""Shared by the Python tests: starting programs, reading the files that they write, temporary folders."""

import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path


def program_argument(default):
    """The absolute path of the program that the first argument names. Removes it, so that unittest does not see it."""
    return str(Path(sys.argv.pop(1)).resolve()) if len(sys.argv) > 1 else default


def run(command, *, without=(), cwd=None, before=None, **environment):
    """The finished process. Environment variables ATTN_* and those with the prefixes `without` are unset unless given;
    before: called in the process before the command starts."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ATTN_", *without))}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env | environment, cwd=cwd,
                          timeout=300, preexec_fn=before, check=False)


def read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def strict_json(text):
    """Refuses NaN and Infinity, which Python would read but which are not JSON."""
    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def read_json(path):
    return strict_json(Path(path).read_text(encoding="utf-8"))


class FolderTest(unittest.TestCase):
    """self.folder: a temporary folder for each test."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def assert_ends(self, done, code, *words):
        """The process ended with this exit code and printed all of the words. Returns it."""
        said = done.stderr + done.stdout
        self.assertEqual(done.returncode, code, f"{done.args}: {said}")
        for word in words:
            self.assertIn(word, said, f"{done.args}")
        return done
