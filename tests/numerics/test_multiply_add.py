"""A product and a sum that are rounded once, against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from qgraph.numerics.float32 import multiply_add


def nearest(exact: Fraction) -> np.float32:
    """Return the nearest float32 number, of two the one whose last bit is 0."""
    start = np.float32(float(exact))
    numbers = [
        start,
        np.nextafter(start, np.float32(-np.inf)),
        np.nextafter(start, np.float32(np.inf)),
    ]
    return min(
        numbers,
        key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1),
    )


def test_one_rounding() -> None:
    """The first four sums miss the middle of two numbers by 2**-70, which float64 does not hold."""
    step, ulp = 2.0**-12, 2.0**-23
    rows = [
        (sign * step * (1 + ulp), step * (1 - ulp), c)
        for sign in (1, -1)
        for c in (1 + ulp, -1 - ulp)
    ]
    rng = np.random.default_rng(5)
    rows += (rng.normal(size=(200, 3)) * 2.0 ** rng.integers(-20, 20, (200, 3))).tolist()
    a, b, c = np.array(rows, np.float32).T
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    np.testing.assert_array_equal(multiply_add(a, b, c), [nearest(sum_) for sum_ in exact])
