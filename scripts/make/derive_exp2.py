#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Derives the polynomials that the vector tiers use for 2^f, and prints them as C hex floats with their error.

    2^t = 2^n 2^f,  t = n + f

with f in [0, 1) (AVX-512: vreduce, vscalef) or [-1/2, 1/2] (AVX2, NEON: round to nearest, add to the exponent). The
polynomial minimises the largest relative error. Its coefficients are rounded to float32 one by one, from the constant term
up; after each, the others are fitted again and compensate the rounding. The constant term is 1, so 2^0 = 1 exactly. The
float32 Horner evaluation with fused multiply-adds is emulated on a dense grid; a kernel may declare that error, which
includes rounding.
"""
import numpy as np

LONG = np.longdouble


def relative_error(coefficients, f):
    """Relative error of sum c_i f^i against 2^f."""
    value = np.zeros_like(f)
    for c in coefficients[::-1]:
        value = value * f + c
    return value / np.exp2(f) - 1


def fit(fixed, degree, low, high, rounds=60):
    """Minimax fit of the coefficients after `fixed`, by Lawson's iteratively reweighted least squares."""
    f = ((low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(4001, dtype=LONG) + LONG(0.5)) / 4001))
    scale = np.exp2(f)
    known = sum((LONG(c) * f**i for i, c in enumerate(fixed)), np.zeros_like(f))
    powers = np.stack([f**i / scale for i in range(len(fixed), degree + 1)], axis=1)
    target = 1 - known / scale
    weight = np.ones_like(f)
    best, best_error = None, np.inf
    for _ in range(rounds):
        root = np.sqrt(weight)
        solution = np.linalg.lstsq((powers * root[:, None]).astype(float), (target * root).astype(float), rcond=None)[0]
        residual = np.abs(powers @ solution.astype(LONG) - target)
        if residual.max() < best_error:
            best, best_error = solution, residual.max()
        weight = weight * residual
        weight /= weight.sum()
    return list(best), float(best_error)


def round_one_by_one(degree, low, high):
    fixed = [1.0]
    while len(fixed) <= degree:
        free, _ = fit(fixed, degree, LONG(low), LONG(high))
        fixed.append(float(np.float32(free[0])))
    return fixed


def float32_horner_error(coefficients, low, high):
    """Largest relative error of float32 Horner with fused multiply-adds (emulated: one rounding of the exact a*b + c)."""
    f = np.linspace(low, high, 2_000_001)[:-1].astype(np.float32)
    value = np.full_like(f, coefficients[-1])
    for c in coefficients[-2::-1]:
        value = (value.astype(LONG) * f.astype(LONG) + LONG(c)).astype(np.float32)
    return float(np.abs(value.astype(LONG) / np.exp2(f.astype(LONG)) - 1).max())


def print_lines(parts=32):
    """Tables of flash_amx and flash_avx512bf16: a line for 2^f in each of `parts` equal parts of [0, 1). Line i is line 0
    times 2^(i / parts)."""
    (level, slope), error = fit([], 1, LONG(0), LONG(1) / parts)
    powers = np.exp2(np.arange(parts) / parts)
    print(f"lines through {parts} parts: error {error:.2e}")
    for name, values in [("level, and 2^-8", powers * level + 2.0**-8), ("slope", powers * slope)]:
        print(f"  {name}: " + ", ".join(f"{float(np.float32(x)).hex()}f" for x in values))


def main():
    grid = LONG(1) * np.arange(100001) / 100000
    for low, high, degree in [(0.0, 1.0, 5), (-0.5, 0.5, 5), (0.0, 1.0, 3)]:
        c = round_one_by_one(degree, low, high)
        f = LONG(low) + (LONG(high) - LONG(low)) * grid
        print(f"degree {degree} on [{low}, {high}]: polynomial error {float(np.abs(relative_error(c, f)).max()):.2e}, "
              f"float32 Horner error {float32_horner_error(c, low, high):.2e}")
        for i, value in enumerate(c):
            print(f"  c{i} = {value.hex()}f  /* {value:.9g} */")
    print_lines()


if __name__ == "__main__":
    main()
