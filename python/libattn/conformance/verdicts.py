# SPDX-License-Identifier: MIT
"""Verdicts on a peer's answer: PASS, FAIL, or right by another convention of the field."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from .cases import index

PASS, FAIL, REFUSED, DIFFERENT = "PASS", "FAIL", "REFUSED", "DIFFERENT BY CONVENTION"
STATUSES = PASS, FAIL, REFUSED, DIFFERENT


class Refused(Exception):
    """Raised by a peer for a case that it cannot take; its words are reported."""


@dataclass(frozen=True)
class Verdict:
    """ratio: the largest error over its limit; None where it is infinite, or there is no output. words: where it failed,
    what was refused, or which convention is followed."""
    case: str
    status: str
    ratio: float | None = None
    words: str = ""

    def __post_init__(self):
        if self.ratio is not None and not math.isfinite(self.ratio):
            object.__setattr__(self, "ratio", None)

    def as_dict(self):
        return asdict(self)


def check_case(case, run):
    """The Verdict on run(q, k, v, **options). Whatever the peer raises is a refusal, in its words."""
    q, k, v, options = case.arguments()
    try:
        given = run(q, k, v, **options)
    except Exception as error:
        return Verdict(case.name, REFUSED, words=words_of(error))
    given = given if len(case.outputs) > 1 else (given,)
    if len(given) != len(case.outputs):
        return Verdict(case.name, FAIL, np.inf, f"returned {len(given)} arrays; {', '.join(case.outputs)} would be right")
    return compare(case, given)


def words_of(error):
    words = " ".join(str(error).split()) or type(error).__name__
    return words if isinstance(error, Refused) else f"{type(error).__name__}: {words}"


def compare(case, given):
    """The Verdict on the outputs, in the order of case.outputs."""
    followed, worst = [], (0.0, "")
    for output, values in zip(case.outputs, given):
        try:
            values = np.asarray(values, dtype=float)
        except (TypeError, ValueError) as error:
            return Verdict(case.name, FAIL, np.inf, f"{output}: {words_of(error)}")
        known = case.expected(output)
        ratio, words = error_over_limit(values, *known[0][1:])
        worst = max(worst, (ratio, f"{output}{words}"))
        if ratio > 1:
            followed.append(next((name for name, *other in known[1:] if follows(name, values, known[0][1:], other)), None))
    if not followed:
        return Verdict(case.name, PASS, worst[0])
    if None in followed:
        return Verdict(case.name, FAIL, *worst)
    return Verdict(case.name, DIFFERENT, worst[0], ", ".join(dict.fromkeys(followed)))


def follows(name, values, expected, other):
    if name.split("+")[-1] in index()["partial"] and values.shape == expected[0].shape:
        nan = np.isnan(values)
        return bool(nan.any()) and error_over_limit(np.where(nan, expected[0], values), *expected)[0] <= 1
    return error_over_limit(values, *other)[0] <= 1


def error_over_limit(values, expected, limit):
    """(the largest error over its limit, where it is and what stands there)."""
    if values.shape != expected.shape:
        return np.inf, f" has shape {list(values.shape)}; {list(expected.shape)} would be right"
    if not values.size:
        return 0.0, ""
    expected = expected.astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = abs(values - expected)
        ratio = np.where(error <= limit, error / np.where(limit > 0, limit, 1), error / limit)
    same = (values == expected) | (np.isnan(values) & np.isnan(expected))
    ratio = np.where(same, 0.0, np.where(np.isnan(ratio), np.inf, ratio))
    at = np.unravel_index(ratio.argmax(), ratio.shape)
    return float(ratio[at]), f"{list(map(int, at))} is {values[at]:.9g}; {expected[at]:.9g} within {limit[at]:.2g} is right"
