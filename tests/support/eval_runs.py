# SPDX-License-Identifier: MIT
"""Shared by eval_numpy.py and onnx_attention.py: runs of `attnbench eval` on NumPy arrays, and checks of what they print."""

import pathlib
import subprocess

import numpy as np


class Evals:
    """Runs `attnbench eval` on problems; counts its checks and failures."""

    def __init__(self, attnbench, folder, *options):
        self.command, self.folder = [attnbench, "eval", *options], pathlib.Path(folder)
        self.checks = self.failures = 0

    def run(self, p):
        """p: option -> value; arrays are written to files. Returns exit code and output."""
        command = list(self.command)
        for name, value in p.items():
            if isinstance(value, np.ndarray):
                np.save(self.folder / f"{name}.npy", value)
                value = self.folder / f"{name}.npy"
            command += ["--" + name.replace("_", "-"), str(value)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300)
        return done.returncode, " ".join(command) + "\n" + done.stdout

    def expect(self, fine, name, what, output=""):
        self.checks += 1
        if not fine:
            self.failures += 1
            print(f"FAILED: {name}: {what}\n{output}")

    def check(self, name, p, code=0, words="", allowed=None):
        """eval must end with this exit code and print the words. allowed: there must be rows, all with these statuses;
        [] means no rows. Returns kernel -> status."""
        got, output = self.run(p)
        found = statuses(output)
        rows_fit = allowed is None or set(found.values()) <= set(allowed) and bool(found) == bool(allowed)
        self.expect(got == code and words in output and rows_fit, name,
                    f"exit code {got} and {set(found.values())}; wanted {code}, '{words}' and {allowed}", output)
        return found


def statuses(output):
    """kernel -> status of the rows that ran; the answer of --expect has a row, too."""
    words = [line.split() for line in output.splitlines()]
    return {row[0]: row[1] for row in words if len(row) > 1 and row[1] in ("PASS", "FAIL", "DEGENERATE", "ERROR")}


def moved(y, amount):
    """The answer with its largest value moved by `amount`, relative to 1 + its size."""
    wrong = y.copy()
    place = np.unravel_index(np.abs(y).argmax(), y.shape)
    wrong[place] += amount * (1 + abs(y[place]))
    return wrong
