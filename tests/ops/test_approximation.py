"""Errors of executed operations against exact fractions, as the prover and the checker use them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from qgraph.ops.approximation import (
    ARITHMETIC,
    FLOAT32,
    Approximation,
    granules,
    multiple_of,
    rounded,
    sum_of,
)
from qgraph.ops.sums_of_products import Taps, products
from qgraph.reasons import Undecidable

TYPES = {"FLOAT": np.float32, "FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16}
LARGEST = 127
SLACK = 1 + Fraction(1, 2**40)  # the ranges below are float64


@dataclass(frozen=True)
class Line:
    """An exact function of two codes of at most 127: multiples of both, and a number."""

    factors: tuple[Fraction, Fraction]
    added: Fraction = Fraction(0)

    @property
    def offset(self) -> np.ndarray:
        return np.asarray(float(self.added))

    @property
    def range(self) -> tuple[np.ndarray, np.ndarray]:
        reach = float(sum(map(abs, self.factors))) * LARGEST
        return self.offset - reach, self.offset + reach

    def plus(self, other: Line, sign: float = 1.0) -> Line:
        a, b = self.factors, other.factors
        sign = Fraction(sign)
        return Line((a[0] + sign * b[0], a[1] + sign * b[1]), self.added + sign * other.added)

    def times(self, factor: np.ndarray) -> Line:
        by = Fraction(float(factor))
        return Line((self.factors[0] * by, self.factors[1] * by), self.added * by)

    def at(self, x: int, y: int) -> Fraction:
        return self.factors[0] * x + self.factors[1] * y + self.added


def data(place: int) -> Approximation:
    line = Line((Fraction(1 - place), Fraction(place)))
    return Approximation(line, *line.range, unit=np.ones(()))


def fixed(number: float) -> Approximation:
    return Approximation.of_constant(
        np.asarray(number), Line((Fraction(0), Fraction(0)), Fraction(number))
    )


def exceeds(found: Approximation, executed: float, exact: Fraction) -> Fraction:
    """The error as a part of its bound; more than 1 if it is beyond."""
    bound = Fraction(found.absolute.item()) + Fraction(found.relative.item()) * abs(exact)
    error = abs(Fraction(float(executed)) - exact)
    assert bound or not error
    return error / bound / SLACK if bound else Fraction(0)


def run(steps, kind, x: int, y: int):
    """The executed numbers of a list of operations, each rounded once to its type."""
    with np.errstate(all="ignore"):
        value = kind(x)
        for name, number in steps:
            other = kind(y) if number is None else kind(number)
            value = {
                "add": lambda a, b: a + b,
                "sub": lambda a, b: a - b,
                "mul": lambda a, b: a * b,
                "div": lambda a, b: a / b,
            }[name](value, other)
            value = kind(value)
    return float(value)


def bound(steps, arithmetic) -> Approximation:
    kind, found = TYPES[arithmetic.name], data(0)
    for name, number in steps:
        other = data(1) if number is None else fixed(float(kind(number)))
        if name in ("add", "sub"):
            exact = sum_of(found, other, 1.0 if name == "add" else -1.0)
        elif name == "mul":
            exact = multiple_of(found, other.meant.offset, other.numbers)
        else:
            exact = multiple_of(found, 1 / other.meant.offset, 1 / other.numbers)
            if abs(np.frexp(float(other.numbers))[0]) != 0.5:
                exact = Approximation(
                    exact.meant, exact.low, exact.high, exact.absolute, exact.relative
                )
        found = rounded(exact, arithmetic)
    return found


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("name", TYPES)
def test_no_operation_leaves_its_bound(name):
    rng = np.random.default_rng(7)
    worst, decided = Fraction(0), 0
    for _ in range(150):
        names = rng.choice(["add", "sub", "mul", "div"], rng.integers(1, 5))
        steps = [
            (n, None if n in ("add", "sub") and rng.random() < 0.3 else rng.normal() * 3)
            for n in names
        ]
        try:
            found = bound(steps, ARITHMETIC[name])
        except Undecidable:
            continue  # it may overflow
        decided += 1
        for x, y in rng.integers(-LARGEST, LARGEST + 1, (12, 2)).tolist():
            executed = run(steps, TYPES[name], x, y)
            worst = max(worst, exceeds(found, executed, found.meant.at(x, y)))
    assert decided > 100
    assert Fraction(1, 2) < worst <= 1


def test_whole_numbers_are_exact_until_a_type_lacks_one():
    found = bound([("mul", 1024.0), ("add", None)], FLOAT32)
    assert found.is_exact
    assert not bound([("mul", 2.0**18), ("add", None)], FLOAT32).is_exact
    assert run([("mul", 2.0**18), ("add", None)], np.float32, 127, 1) == 127 * 2**18


def test_sums_with_data_of_unknown_range_have_an_error_relative_to_the_sum():
    whole = Line((Fraction(1), Fraction(0)))
    unlimited = np.full((), np.inf)
    found = rounded(
        replace(Approximation(whole, -unlimited, unlimited, unit=None), relative=np.asarray(2**-24))
    )
    found = rounded(sum_of(found, data(1)))
    assert np.isfinite(found.absolute)
    rng = np.random.default_rng(3)
    for exponent, y in rng.integers((-30, -127), (100, 128), (2000, 2)).tolist():
        x = Fraction(float(rng.normal() * 2.0**exponent))
        # rounded twice, then added
        near = np.float32(float(x) * (1 + rng.choice([-1, 0, 1]) * 2.0**-25)) + np.float32(y)
        assert exceeds(found, near, x + y) <= 1


def test_a_result_beyond_a_type_has_no_bound():
    with pytest.raises(Undecidable, match="FLOAT16"):
        bound([("mul", 600.0)], ARITHMETIC["FLOAT16"])


def test_granules_are_the_lowest_bits_of_numbers():
    numbers = np.random.default_rng(1).normal(size=200) * 2.0 ** np.arange(-100, 100)
    numbers[::3] = np.rint(numbers[::3] * 16) / 16
    for number, granule in zip(numbers.tolist(), granules(numbers).tolist(), strict=True):
        if number == 0:
            assert granule == np.inf
            continue
        count = Fraction(number) / Fraction(granule)
        assert count.denominator == 1
        assert count.numerator % 2 == 1


@dataclass(frozen=True)
class Sum:
    """An exact sum of products of codes and factors."""

    factors: tuple[Fraction, ...]

    @property
    def offset(self) -> np.ndarray:
        return np.zeros(())

    @property
    def range(self) -> tuple[np.ndarray, np.ndarray]:
        reach = np.asarray(float(sum(map(abs, self.factors))) * LARGEST)
        return -reach, reach


def added(terms: np.ndarray, chunk: int | None) -> float:
    """A float32 sum in sequence, or of sums of chunks."""
    if chunk is None:
        return float(np.cumsum(terms)[-1])
    parts = [np.cumsum(terms[i : i + chunk])[-1] for i in range(0, len(terms), chunk)]
    return float(np.cumsum(np.array(parts, np.float32))[-1])


@pytest.mark.parametrize("chunk", [None, 16])
@pytest.mark.parametrize("count", [1, 3, 40, 333])
def test_no_order_of_additions_leaves_its_bound(count, chunk):
    rng = np.random.default_rng(count)
    scale = np.float32(0.0371)
    weights = rng.normal(size=count).astype(np.float32)
    wide = weights.astype(np.float64)[None]
    factors = tuple(Fraction(float(w)) * Fraction(float(scale)) for w in weights)
    kind = replace(FLOAT32, chunk=chunk)
    decoded = rounded(multiple_of(data(0), np.float64(scale), np.float64(scale)))
    constant = Approximation.of_constant(wide, _Fixed(wide))
    found = products(
        lambda *_: Sum(factors), decoded, constant, Taps(("MatMul",), 1, 0, 0, False), kind
    )
    worst = Fraction(0)
    for _ in range(20):
        x = rng.integers(-LARGEST, LARGEST + 1, count)
        terms = (x.astype(np.float32) * scale) * weights
        exact = sum((f * int(c) for f, c in zip(factors, x, strict=True)), Fraction(0))
        for order in (rng.permutation(count), np.argsort(terms), np.argsort(-np.abs(terms))):
            worst = max(worst, exceeds(found, added(terms[order], chunk), exact))
    assert 0 < worst <= 1


@dataclass(frozen=True)
class _Fixed:
    offset: np.ndarray


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_sum_with_data_without_a_range_has_a_relative_error(sign, is_first):
    """An input has any size and a relative error; codes have a range and an absolute error."""
    off, apart = Fraction(1, 2**24), Fraction(1, 16)
    line = Line((Fraction(1), Fraction(0)))
    endless = Approximation(
        line, np.asarray(-np.inf), np.asarray(np.inf), relative=np.asarray(float(off))
    )
    codes = replace(data(1), absolute=np.asarray(float(apart)))
    operands = (endless, codes) if is_first else (codes, endless)
    found = sum_of(*operands, sign)
    worst = Fraction(0)
    for size in (0, 1e-30, 0.5, 127, 128, 1e5, 1e20, 3e38):
        for code, one, other in itertools.product((-LARGEST, 0, LARGEST), (-1, 1), (-1, 1)):
            ideal = Fraction(size), Fraction(code)
            executed = ideal[0] * (1 + one * off), ideal[1] + other * apart
            sums = [
                a + Fraction(sign) * b if is_first else b + Fraction(sign) * a
                for a, b in (ideal, executed)
            ]
            bound = Fraction(found.absolute.item()) + Fraction(found.relative.item()) * abs(sums[0])
            worst = max(worst, abs(sums[1] - sums[0]) / bound)
    assert Fraction(99, 100) < worst <= 1


def test_a_sum_of_two_data_without_ranges_has_no_bound():
    line = Line((Fraction(1), Fraction(0)))
    ends = np.asarray(-np.inf), np.asarray(np.inf)
    endless = Approximation(line, *ends, relative=np.asarray(2.0**-24))
    assert not np.isfinite(sum_of(endless, endless).error)
