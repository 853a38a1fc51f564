# SPDX-License-Identifier: MIT
"""Runs a peer on the cases in a process of its own, so that a crash costs one case.

    python -m libattn.conformance.runner PEER PATTERN FIRST DESCRIPTOR

is what run_peer() starts. It writes a line of JSON for each case.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

from .cases import index, load_cases
from .peers import find
from .verdicts import FAIL, Verdict, check_case


class NotInstalled(Exception):
    """The peer's packages are missing."""


@dataclass(frozen=True)
class Results:
    """peer: its name on the command line; title: with its version; cases: the version of index.json."""
    peer: str
    title: str
    cases: int
    verdicts: list[Verdict]

    def as_dict(self):
        return {"peer": self.peer, "title": self.title, "cases": self.cases,
                "verdicts": [verdict.as_dict() for verdict in self.verdicts]}

    @classmethod
    def from_dict(cls, said):
        return cls(said["peer"], said["title"], said["cases"], [Verdict(**line) for line in said["verdicts"]])


def run_peer(name, pattern="*", on_verdict=lambda verdict: None):
    """The Results of a peer on the cases that match. Raises NotInstalled, or RuntimeError where it cannot start."""
    cases, verdicts, title = load_cases(pattern), [], None
    while title is None or len(verdicts) < len(cases):
        with Worker(name, pattern, len(verdicts)) as worker:
            title = worker.title
            for verdict in worker.verdicts():
                verdicts.append(verdict)
                on_verdict(verdict)
        if len(verdicts) < len(cases):
            verdicts.append(Verdict(cases[len(verdicts)].name, FAIL, float("inf"), worker.how_it_ended()))
            on_verdict(verdicts[-1])
    return Results(name, title, index()["version"], verdicts)


class Worker:
    """The process. Its own standard output stays free for what the peer prints."""

    def __init__(self, name, pattern, first):
        reading, writing = os.pipe()
        command = [sys.executable, "-m", __name__, name, pattern, str(first), str(writing)]
        self.process = subprocess.Popen(command, pass_fds=[writing], stdout=sys.stderr)
        os.close(writing)
        self.lines = os.fdopen(reading, encoding="utf-8")

    def __enter__(self):
        head = json.loads(self.lines.readline() or '{"error": "it ended before the first case"}')
        if "missing" in head:
            raise NotInstalled(head["missing"])
        if "error" in head:
            raise RuntimeError(head["error"])
        self.title = head["title"]
        return self

    def __exit__(self, *_):
        self.lines.close()
        self.process.wait()

    def verdicts(self):
        return (Verdict(**json.loads(line)) for line in self.lines)

    def how_it_ended(self):
        code = self.process.returncode
        return "the process ended " + (f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}")


def work(name, pattern, first, descriptor):
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as out:
        def say(**line):
            print(json.dumps(line), file=out, flush=True)
        try:
            run, title = find(name)
        except ImportError as error:
            say(missing=str(error))
            return
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}")
            return
        say(title=title)
        for case in load_cases(pattern)[int(first):]:
            say(**check_case(case, run).as_dict())


if __name__ == "__main__":
    work(*sys.argv[1:])
