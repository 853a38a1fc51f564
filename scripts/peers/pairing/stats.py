# SPDX-License-Identifier: MIT
"""The statistics of attnbench (harness/timing/stats.c) and its verdicts: order statistics, paired ratios, Holm's correction."""

import math
from dataclasses import dataclass
from statistics import median

CONFIDENCE = 0.95
LEAST_ROUNDS = 21  # a verdict takes at least so many, fixed before looking
MARGIN = 0.01  # a lead below 1 % is no lead, whatever the intervals say


@dataclass(frozen=True)
class Summary:
    """low, high: 95 % interval of the median from order statistics; the range below 6 values. mad: median absolute
    deviation."""
    min: float
    median: float
    mad: float
    low: float
    high: float
    n: int


def median_rank(n):
    """The rank k, from 1, for which the k-th smallest and k-th largest of n values hold the median with >= 95 %; 1 if
    n < 6."""
    below, k = 0.0, 0
    while k < n // 2:
        below += math.comb(n, k) / 2**n
        if below > (1 - CONFIDENCE) / 2:
            break
        k += 1
    return max(k, 1)


def summarise(values):
    ordered = sorted(values)
    middle, rank = median(ordered), median_rank(len(ordered))
    return Summary(min=ordered[0], median=middle, mad=median(abs(value - middle) for value in ordered),
                   low=ordered[rank - 1], high=ordered[-rank], n=len(ordered))


def paired_ratio(a, b):
    """a / b, round by round: exp of the median log-ratio with its sign-test interval; mad is the relative deviation."""
    logs = summarise([math.log(x / y) for x, y in zip(a, b, strict=True)])
    return Summary(min=math.exp(logs.min), median=math.exp(logs.median), mad=math.expm1(logs.mad), low=math.exp(logs.low),
                   high=math.exp(logs.high), n=logs.n)


def sign_test(a, b):
    """Two-sided p of "a is above b as often as below"; equal pairs say nothing and are left out."""
    above, below = sum(x > y for x, y in zip(a, b, strict=True)), sum(x < y for x, y in zip(a, b, strict=True))
    n, fewer = above + below, min(above, below)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(fewer + 1)) / 2**n)


def holm(p_values):
    """Adjusted p-values in the order given: rejecting those <= a keeps the chance of any false rejection at a (Holm 1979).
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = worst
    return adjusted


def verdict(ratio, p, margin=MARGIN):
    """Of a rival's time over ours, p corrected: FASTER (we are), SLOWER, SAME (interval within the margin) or INCONCLUSIVE.
    """
    separated = p <= 1 - CONFIDENCE and not ratio.low <= 1 <= ratio.high
    if separated and ratio.median > 1 + margin:
        return "FASTER"
    if separated and ratio.median < 1 / (1 + margin):
        return "SLOWER"
    if 1 / (1 + margin) <= ratio.low and ratio.high <= 1 + margin:
        return "SAME"
    return "INCONCLUSIVE"
