# SPDX-License-Identifier: MIT
"""Runs the cases of attn-conformance by one or more peers: python -m libattn.conformance --peer torch."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import report
from .cases import load_cases
from .peers import PEERS
from .runner import NotInstalled, Results, run_peer
from .verdicts import FAIL, PASS

OK, FAILED, USAGE, NOT_INSTALLED = 0, 1, 2, 77


def read_options(argv):
    parser = argparse.ArgumentParser(
        prog="python -m libattn.conformance", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs named cases of attention by a peer and compares with expected values within derived limits.\n"
                    "Prints every case that does not pass, and a summary by subject.",
        epilog=f"Peers: {', '.join(PEERS)}, or package.module:function.\n"
               "Exit code: 0 no case failed, 1 some did, 2 usage, 77 a peer is not installed.")
    add = parser.add_argument
    add("--peer", action="append", default=[], metavar="NAME", help="whom to run; repeatable")
    add("--cases", default="*", metavar="PATTERN", help='such as "causal/*" (default: all)')
    add("--json", type=Path, metavar="FILE", help="results of the one peer")
    add("--from", dest="earlier", type=Path, nargs="+", default=[], metavar="JSON", help="results of earlier runs")
    add("--html", type=Path, metavar="FILE", help="one page: the matrix of all results")
    add("--markdown", type=Path, metavar="FILE", help="the matrix by subject")
    add("--list", action="store_true", help="print the cases and what they mean")
    add("-v", dest="every", action="store_true", help="print cases that pass, too")
    options = parser.parse_args(argv)
    if not (options.peer or options.earlier or options.list):
        parser.error("--peer, --from or --list is needed")
    if options.json and len(options.peer) != 1:
        parser.error(f"--json takes the results of one --peer, not of {len(options.peer)}")
    if not load_cases(options.cases):
        parser.error(f"no case matches --cases {options.cases!r}; --list prints their names")
    return options


def main(argv=None):
    options = read_options(argv)
    if options.list:
        for case in load_cases(options.cases):
            print(f"{case.name:36} {case.meaning}")
        return OK
    every = [Results.from_dict(json.loads(file.read_text(encoding="utf-8"))) for file in options.earlier]
    code = OK
    for name in options.peer:
        try:
            results = run_and_print(name, options)
        except NotInstalled as missing:
            print(f"{name}: not installed: {missing}", file=sys.stderr)
            code = code or NOT_INSTALLED
            continue
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return USAGE
        every.append(results)
        code = FAILED if any(verdict.status == FAIL for verdict in results.verdicts) else code
        if options.json:
            options.json.write_text(one_line_each(results), encoding="utf-8")
    if options.html:
        options.html.write_text(report.page(every), encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(report.markdown(every), encoding="utf-8")
    return code


def run_and_print(name, options):
    def show(verdict):
        if options.every or verdict.status != PASS:
            print(report.line_of(verdict), flush=True)

    results = run_peer(name, options.cases, show)
    print(f"\n{results.title}", *report.summary(results), sep="\n")
    return results


def one_line_each(results):
    """JSON with a line for each case, so that two runs can be compared."""
    said = results.as_dict()
    lines = ",\n".join(json.dumps(verdict, ensure_ascii=False) for verdict in said.pop("verdicts"))
    return json.dumps(said, ensure_ascii=False)[:-1] + f', "verdicts": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    sys.exit(main())
