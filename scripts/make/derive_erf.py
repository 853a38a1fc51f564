#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Derives the rational function that kernels/common/tiles/gelu.h uses for erf, and prints it as C hex floats with its error.

    erf(x) = x P(x^2) / Q(x^2),  |x| <= 4;  for larger x, erf is 1 within a quarter of float32's unit

The fit is that of derive_tanh.py. The float32 evaluation, without fused multiply-adds, is emulated on a dense grid.
"""

import math

import derive_tanh
import numpy as np

LIMIT, DEGREES = 4.0, (5, 5)
erf = np.vectorize(math.erf)


def float32_error(p, q):
    """Largest absolute error (GELU adds 1 to erf). Horner with two roundings per step, one product, one division."""
    x = np.linspace(0, 5, 400_001)[1:].astype(np.float32)
    clamped = np.minimum(x, np.float32(LIMIT))
    y = clamped * clamped
    result = clamped * derive_tanh.horner(p, y, np.float32) / derive_tanh.horner(q, y, np.float32)
    return float(np.abs(result.astype(np.float64) - erf(x.astype(np.float64))).max())


def main():
    error, p, q = derive_tanh.fit(erf, LIMIT, DEGREES)
    print(f"degrees {DEGREES} in x^2: rational error {error:.2e}, absolute float32 error {float32_error(p, q):.2e}")
    for name, coefficients in (("p", p), ("q", q)):
        print(f"{name}: " + ", ".join(f"{float(value).hex()}f" for value in np.float32(coefficients)))


if __name__ == "__main__":
    main()
