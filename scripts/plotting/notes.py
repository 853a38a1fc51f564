# SPDX-License-Identifier: MIT
"""The notes under a figure: kernels without a time and why, warnings, and conditions that the figure omits."""

from .views import conditions, in_words, plural, shared_conditions


def count_cases(rows):
    return len({(row.cpu, row["case_id"]) for row in rows})


def untimed_notes(rows, cases=None):
    """(status, sentence) for the rows without a time, failures first. Kernels with equal status and reason share a sentence.

    cases: their total number; by default the number in rows.
    """
    cases = cases or count_cases(rows)
    groups = {}
    for (status, kernel), reasons in reasons_by_kernel(rows).items():
        for reason, hit in fold(reasons).items():
            groups.setdefault((status, reason, extent(hit, cases)), []).append(kernel)
    order = ("FAIL", "ERROR", "DEGENERATE", "SKIP", "PASS")
    return [(status, f"{'NOT TIMED' if status == 'PASS' else status} {', '.join(kernels)} ({where}): {reason}")
            for (status, reason, where), kernels in sorted(groups.items(), key=lambda item: order.index(item[0][0]))]


def blank_notes(rows):
    """untimed_notes() of the cases without any timed kernel, which no panel shows."""
    timed = {(row.cpu, row["case_id"]) for row in rows if row.timed}
    return untimed_notes([row for row in rows if (row.cpu, row["case_id"]) not in timed], count_cases(rows))


def reasons_by_kernel(rows):
    """(status, kernel) -> reason -> rows."""
    found = {}
    for row in rows:
        if not row.timed:
            reason = row["reason"] or ("checked, not timed" if row["status"] == "PASS" else "no reason given")
            found.setdefault((row["status"], row["kernel"]), {}).setdefault(reason, []).append(row)
    return found


def fold(reasons, most=2):
    """Merges reasons if there are more than `most`: they may contain numbers that differ in every case."""
    if len(reasons) <= most:
        return reasons
    first = next(iter(reasons))
    return {f"{len(reasons)} different reasons, the first: {first}": [row for rows in reasons.values() for row in rows]}


def extent(rows, cases):
    """Which cases a note concerns: every case, one case by its conditions, or a count."""
    if len(rows) == cases:
        return "every case" if cases > 1 else "the one case"
    if len(rows) == 1:
        shown = conditions(rows[0])
        return in_words(shown, ("seq", "head_dim", "causal", "threads"))
    return f"{len(rows)} of {cases} cases"


def warning_note(rows):
    """One sentence about rows with warnings, or "". The column also names the choice of "auto", which is no warning."""
    warned = {}
    for row in rows:
        for text in row["warnings"].split("; ") if row.timed else ():
            if text and not text.startswith("chose "):
                warned.setdefault(text, []).append((row.file, row.number))
    if not warned:
        return ""
    count = len({place for places in warned.values() for place in places})
    more = f" (and {plural(len(warned) - 1, 'other text')}, see column warnings)" if len(warned) > 1 else ""
    return f"{plural(count, 'timed row')} of {sum(row.timed for row in rows)} with a warning: {next(iter(warned))}{more}"


def sparse_note(drawn, sparse, what):
    """Names the omitted panels by the conditions that vary."""
    if not sparse:
        return []
    _, varying = shared_conditions(drawn + sparse)
    several = "; ".join(in_words(panel.conditions, varying, contrast=True) for panel in sparse)
    return [("", f"Not shown, only two {what}: {several}")]
