# SPDX-License-Identifier: MIT
"""Results as text, and those of several peers as one page and as a table in Markdown."""

from __future__ import annotations

from collections import Counter
from html import escape

from .cases import index, load_cases
from .verdicts import DIFFERENT, FAIL, PASS, REFUSED, STATUSES

SHORT = {PASS: "P", FAIL: "F", REFUSED: "R", DIFFERENT: "C"}


def line_of(verdict):
    """ "FAIL     1.2e+03  causal/3x5  o[0, 0, 1, 0] is ..." """
    ratio = ratio_of(verdict, ".3g")
    status = "DIFFERENT" if verdict.status == DIFFERENT else verdict.status
    return f"{status:9} {ratio:>8}  {verdict.case}{'  ' if verdict.words else ''}{verdict.words}"


def ratio_of(verdict, form):
    if verdict.ratio is None:
        return "inf" if verdict.status in (FAIL, DIFFERENT) else ""
    return format(verdict.ratio, form)


def subjects():
    return list(index()["sources"])


def counts(results, subject):
    """A Counter of the statuses of one subject."""
    return Counter(verdict.status for verdict in results.verdicts if verdict.case.split("/")[0] == subject)


def summary(results):
    """Lines: a row for each subject."""
    lines = [f"{'subject':14} {'PASS':>5} {'FAIL':>5} {'REFUSED':>8} {'DIFFERENT':>10}"]
    total = Counter()
    for subject in subjects():
        found = counts(results, subject)
        total += found
        if found:
            lines.append(f"{subject:14} " + " ".join(f"{found[status] or '':>{width}}" for status, width in
                                                     zip(STATUSES, (5, 5, 8, 10))))
    lines.append(f"{'all':14} " + " ".join(f"{total[status]:>{width}}" for status, width in zip(STATUSES, (5, 5, 8, 10))))
    return lines


def short_counts(found):
    """ "9", or "5 P 2 F 1 C" """
    if set(found) <= {PASS}:
        return str(found[PASS]) if found else ""
    return " ".join(f"{found[status]} {SHORT[status]}" for status in STATUSES if found[status])


def markdown(every):
    """The table of docs/conformance.md: subjects down, peers across."""
    lines = ["| subject | " + " | ".join(results.title for results in every) + " |", "|---" * (len(every) + 1) + "|"]
    for subject in subjects():
        lines.append(f"| {subject} | " + " | ".join(short_counts(counts(results, subject)) for results in every) + " |")
    totals = [short_counts(Counter(verdict.status for verdict in results.verdicts)) for results in every]
    return "\n".join([*lines, "| **all** | " + " | ".join(totals) + " |"]) + "\n"


# ---- The page ----------------------------------------------------------------------------------------------------------

STYLE = """body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:110em}table{border-collapse:collapse}
td,th{border:1px solid #8884;padding:1px 6px;text-align:left;vertical-align:top}
thead th{position:sticky;top:0;background:Canvas}
.P{background:#2a82}.F{background:#d336;font-weight:bold}.R{color:GrayText}.C{background:#c906}
:root{color-scheme:light dark}td small{display:block;color:GrayText}"""


def page(every):
    """One page of HTML: subjects and cases down, peers across. A cell of a case has a note's number behind its letter."""
    notes = {}

    def cell(verdict):
        if verdict is None:
            return "<td>"
        letter = SHORT[verdict.status]
        if verdict.status == PASS:
            return f"<td class=P>{verdict.ratio:.2g}"
        words = verdict.words
        if verdict.status == FAIL:
            return f"<td class=F>F {ratio_of(verdict, '.1g')}"
        return f"<td class={letter}>{letter} {notes.setdefault(words, len(notes) + 1)}"

    head = "<tr><th>" + "".join(f"<th>{escape(results.title)}" for results in every)
    found = [{verdict.case: verdict for verdict in results.verdicts} for results in every]
    by_subject = ["<tr><td>" + subject + "".join(f"<td>{short_counts(counts(results, subject))}" for results in every)
                  for subject in subjects()]
    rows = [f"<tr><td>{case.name}<small>{escape(case.meaning)}</small>"
            + "".join(cell(verdicts.get(case.name)) for verdicts in found) for case in load_cases()]
    conventions = "".join(f"<li><b>{name}</b>: {escape(meaning)}" for name, meaning in index()["conventions"].items())
    listed = "".join(f"<li value={number}>{escape(words)}" for words, number in notes.items())
    return f"""<!doctype html><html lang=en><meta charset=utf-8><title>attn-conformance</title><style>{STYLE}</style>
<h1>attn-conformance</h1>
<p>P passed, with its largest error over the derived limit. F failed. R refused, C follows another convention: the number is
that of a note below. Rules, and why the field differs: docs/conformance.md.
<h2>Subjects</h2><table><thead>{head}</thead>{"".join(by_subject)}</table>
<h2>Cases</h2><table><thead>{head}</thead>{"".join(rows)}</table>
<h2>Conventions</h2><ul>{conventions}</ul>
<h2>Notes</h2><ol>{listed}</ol></html>
"""
