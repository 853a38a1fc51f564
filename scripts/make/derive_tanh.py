#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Derives the rational function that the vector tiers use for tanh, and prints it as C hex floats with its error.

    tanh(x) = x P(x^2) / Q(x^2),  |x| <= 9;  for larger x, tanh is 1 in float32

It is odd, so its relative error stays small near 0, where tanh(x) -> x. The fit is minimax by iterated linear least
squares: Q tanh(x)/x - P = 0, weighted by 1 / (Q tanh(x)/x) of the previous round (Sanathanan & Koerner 1963) and by Lawson's
weights, which level the largest errors. Coefficients are rounded to float32. The float32 evaluation is emulated on a dense
grid; a kernel declares that error, which includes rounding.
"""
import numpy as np

LIMIT = 9.0
NUMERATOR, DENOMINATOR = 4, 4  # degrees in x^2


def fit(function=np.tanh, limit=LIMIT, degrees=(NUMERATOR, DENOMINATOR), rounds=200):
    numerator, denominator = degrees
    nodes = limit / 2 * (1 + np.cos(np.pi * (np.arange(6000) + 0.5) / 6000))
    x = np.sort(np.concatenate([nodes, np.geomspace(1e-4, 1, 2000)]))
    y, target = x * x, function(x) / x
    lawson, scale = np.ones_like(x), 1 / target
    best = (np.inf, None, None)
    for _ in range(rounds):
        powers_p = y[:, None] ** np.arange(numerator + 1)
        powers_q = y[:, None] ** np.arange(1, denominator + 1)
        rows = np.hstack([powers_p, -target[:, None] * powers_q])
        weight = np.sqrt(lawson) * scale
        column = np.linalg.norm(rows * weight[:, None], axis=0)
        solution = np.linalg.lstsq(rows * weight[:, None] / column, target * weight, rcond=None)[0] / column
        p, q = solution[:numerator + 1], np.concatenate([[1.0], solution[numerator + 1:]])
        q_value = np.polynomial.polynomial.polyval(y, q)
        error = np.abs(np.polynomial.polynomial.polyval(y, p) / q_value / target - 1)
        if error.max() < best[0]:
            best = (error.max(), p, q)
        scale = 1 / (target * np.abs(q_value))
        lawson = lawson * (error / error.max() + 1e-3)
        lawson /= lawson.mean()
    return best


def horner(c, y, wide):
    """Horner in float32. wide: the type that holds the product, np.float64 for a fused multiply-add."""
    value = np.full_like(y, np.float32(c[-1]))
    for a in c[-2::-1]:
        value = (value.astype(wide) * y.astype(wide) + np.float32(a)).astype(np.float32)
    return value


def float32_error(p, q):
    """Largest relative error. Horner with fused multiply-adds (one rounding each), one product, one division."""
    x = np.concatenate([np.linspace(0, 10, 4_000_001)[1:], np.geomspace(1e-30, 1, 1_000_000)]).astype(np.float32)
    clamped = np.minimum(x, np.float32(LIMIT))
    y = clamped * clamped
    result = clamped * horner(p, y, np.float64) / horner(q, y, np.float64)
    return float(np.abs(result.astype(np.float64) / np.tanh(x.astype(np.float64)) - 1).max())


def main():
    error, p, q = fit()
    print(f"degrees {NUMERATOR} / {DENOMINATOR} in x^2: rational error {error:.2e}, float32 error {float32_error(p, q):.2e}")
    for name, coefficients in (("p", p), ("q", q)):
        for i, value in enumerate(np.float32(coefficients)):
            print(f"  {name}{i} = {float(value).hex()}f  /* {value:.9g} */")


if __name__ == "__main__":
    main()
