"""Elementary functions against exact arithmetic: each result is the nearest number."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from qgraph.numerics import correct_rounding

Array = np.ndarray[Any, Any]
TERMS = 90
BITS = 250


def exp(x: Fraction) -> Fraction:
    """The series at x / 2**k below 1/2, squared k times."""
    halvings = max(0, x.numerator.bit_length() - x.denominator.bit_length() + 2)
    small, term, total = x / 2**halvings, Fraction(1), Fraction(1)
    for n in range(1, TERMS):
        term = cut(term * small / n)
        total += term
    for _ in range(halvings):
        total = cut(total * total)
    return total


def cut(x: Fraction) -> Fraction:
    """Return ``x`` to ``BITS`` significant bits, so that numbers stay short."""
    if x == 0:
        return x
    shift = BITS - (abs(x.numerator).bit_length() - x.denominator.bit_length())
    return Fraction(round(x * Fraction(2) ** shift)) / Fraction(2) ** shift


def sine(x: Fraction) -> Fraction:
    term, total = x, x
    for n in range(1, TERMS):
        term = cut(-term * x * x / ((2 * n) * (2 * n + 1)))
        total += term
    return total


def cosine(x: Fraction) -> Fraction:
    term = total = Fraction(1)
    for n in range(1, TERMS):
        term = cut(-term * x * x / ((2 * n - 1) * (2 * n)))
        total += term
    return total


EXACT: dict[str, Callable[[Fraction], Fraction]] = {
    "exp": exp,
    "sigmoid": lambda x: 1 / (1 + exp(-x)),
    "tanh": lambda x: (exp(2 * x) - 1) / (exp(2 * x) + 1),
    "sin": sine,
    "cos": cosine,
}


def draws(dtype: Any) -> Array:
    random = np.random.default_rng(0)
    return np.concatenate([random.normal(size=10) * 8, 2.0 ** random.uniform(-20, 3, 6)]).astype(
        dtype
    )


def is_nearest(found: Any, exact: Fraction, dtype: Any) -> bool:
    inf = dtype(np.inf)
    gap = abs(Fraction(float(found)) - exact)
    neighbours = np.nextafter(found, -inf), np.nextafter(found, inf)
    return all(gap <= abs(Fraction(float(n)) - exact) for n in neighbours if np.isfinite(n))


@pytest.mark.cases(fast=6, slow=13)
@pytest.mark.parametrize("margin", [2.0**-46, 2.0**-20], ids=["few", "most"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", EXACT)
def test_results_are_the_nearest_numbers(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: Any, margin: float
) -> None:
    """With a large margin most results are computed with more digits."""
    monkeypatch.setattr(correct_rounding, "_ERROR", margin)
    x = draws(dtype)
    found = getattr(correct_rounding, name)(x)
    assert found.dtype == dtype
    for at, y in zip(x, found, strict=True):
        assert is_nearest(y, EXACT[name](Fraction(float(at))), dtype), at


def test_a_logarithm_is_the_inverse_of_the_exponential() -> None:
    """Half a step away from the result, the exponential is on the other side of the argument."""
    x = np.abs(draws(np.float32))
    inf = np.float32(np.inf)
    for at, y in zip(x, correct_rounding.log(x), strict=True):
        below, above = (Fraction(float(np.nextafter(y, end))) for end in (-inf, inf))
        middle = Fraction(float(y))
        assert exp((below + middle) / 2) <= Fraction(float(at)) <= exp((above + middle) / 2)


@pytest.mark.parametrize("margin", [2.0**-46, 2.0**-20], ids=["few", "most"])
def test_whole_powers_are_the_nearest_numbers(
    monkeypatch: pytest.MonkeyPatch, margin: float
) -> None:
    monkeypatch.setattr(correct_rounding, "_ERROR", margin)
    x = draws(np.float32)
    for exponent in (-3, -1, 2, 3, 7):
        for at, y in zip(x, correct_rounding.power(x, np.float32(exponent)), strict=True):
            assert is_nearest(y, Fraction(float(at)) ** exponent, np.float32)


def test_powers_of_any_exponent() -> None:
    """Roots are known exactly: the square of the neighbours' middle is on the other side."""
    x = np.abs(draws(np.float32))
    np.testing.assert_array_equal(correct_rounding.power(x, np.float32(0.5)), np.sqrt(x))
    twos = np.arange(-149, 128, dtype=np.float32)
    found = correct_rounding.power(np.float32(2), twos)
    np.testing.assert_array_equal(found, np.ldexp(np.float32(1), twos.astype(int)))


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("exp", [-INF, -200, -0.0, 100, INF], [0, 0, 1, INF, INF]),
        ("log", [0, -0.0, 1, INF, -1], [-INF, -INF, 0, INF, NAN]),
        ("sigmoid", [-INF, -200, -0.0, 100, INF], [0, 0, 0.5, 1, 1]),
        ("tanh", [-INF, -0.0, 0, 50, INF], [-1, -0.0, 0, 1, 1]),
        ("sin", [-0.0, 0, INF, -INF, NAN], [-0.0, 0, NAN, NAN, NAN]),
        ("cos", [-0.0, 0, INF, -INF, NAN], [1, 1, NAN, NAN, NAN]),
    ],
)
def test_special_values(name: str, x: list[float], y: list[float]) -> None:
    with np.errstate(all="ignore"):
        found = getattr(correct_rounding, name)(np.float32(x))
    np.testing.assert_array_equal(found, np.float32(y))
    np.testing.assert_array_equal(
        np.signbit(found[found == 0]), np.signbit(np.float32(y)[found == 0])
    )


def test_special_powers_are_those_of_ieee_754() -> None:
    x = np.float32([0, -0.0, -0.0, -2, -2, -8, 1, 0, INF, NAN, -INF, 3e38])
    y = np.float32([-1, -1, 3, 3, 0.5, -2, NAN, 0, -1, 0, 3, 2])
    expected = [INF, -INF, -0.0, -8, NAN, 1 / 64, 1, 1, 0, 1, -INF, INF]
    with np.errstate(all="ignore"):
        found = correct_rounding.power(x, y)
    np.testing.assert_array_equal(found, np.float32(expected))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_large_arguments_are_reduced_by_enough_bits_of_pi(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The published digits of the sine and the cosine of 2**120."""
    monkeypatch.setattr(correct_rounding, "_ERROR", 2.0**-20)
    published = {
        "sin": [(2.0**120, 0.377820109360752)],
        "cos": [(2.0**120, -0.925879022854837)],
    }[name]
    for x, y in published:
        found = getattr(correct_rounding, name)(np.float32([x]))
        assert found[0] == np.float32(y)


def test_arguments_of_float64_may_have_narrow_results() -> None:
    found = correct_rounding.exp(np.float64([0.5, 80.125]), np.float32)
    assert found.dtype == np.float32
    for x, y in zip((0.5, 80.125), found, strict=True):
        assert is_nearest(y, exp(Fraction(x)), np.float32)
