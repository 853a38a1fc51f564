# SPDX-License-Identifier: MIT
"""The highest shares that a run reached: of the multiply-add peak per dtype, and of the read loop in decoding."""

from plotting import views

from .charts import case_words


def headlines(rows):
    """[(what, row, share in per cent, "peak" or "read loop")]: attention alone, on the fewest threads of the run."""
    rows = [row for row in rows if row.timed and not row["layer"]]
    fewest = min((row["threads"] for row in rows), default=1)
    best = {}
    for row in rows:
        decoding = views.is_decode(row)
        share, of = (row["bw_pct"], "read loop") if decoding else (row["peak_pct"], "peak")
        place = (views.dtype(row), "decode" if decoding else "prefill")
        if row["threads"] == fewest and share and (place not in best or share > best[place][1]):
            best[place] = (row, share, of)
    return [(f"{dtype} {phase}", row, share, of) for (dtype, phase), (row, share, of) in sorted(best.items())]


def in_words(headline):
    what, row, share, of = headline
    return f"{what}: {row['kernel']} {share:.0f} % of the {of} ({case_words(row)})"
