# SPDX-License-Identifier: MIT
"""The highest shares that a run reached: of the multiply-add peak per dtype, and of the read loop in decoding."""

from . import views

DISTURBED = "faster than the measured peak"  # in the column warnings: such a share means nothing
ROOF = 105  # per cent: a higher share means nothing either, because no kernel is so much faster than its roof


def headlines(rows):
    """[(what, row, share in per cent, "peak" or "read loop")]: attention alone, on the fewest threads of the run.

    Only the fastest kernel of a case counts: a slower tier may reach a higher share of its lower peak.
    """
    cases = {}
    for row in rows:
        if row.timed and not row["layer"]:
            cases.setdefault((row.cpu, row["case_id"]), []).append(row)
    fewest = min((own[0]["threads"] for own in cases.values()), default=1)
    winners = filter(None, map(views.winner, cases.values()))
    rows = [cell.winner for cell in winners]
    best = {}
    for row in rows:
        decoding = views.is_decode(row)
        share, of = (row["bw_pct"], "read loop") if decoding else (row["peak_pct"], "peak")
        place = (views.dtype(row), "decode" if decoding else "prefill")
        known = share and share <= ROOF and DISTURBED not in row["warnings"]
        if row["threads"] == fewest and known and (place not in best or share > best[place][1]):
            best[place] = (row, share, of)
    return [(f"{dtype} {phase}", row, share, of) for (dtype, phase), (row, share, of) in sorted(best.items())]
