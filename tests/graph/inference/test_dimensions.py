"""Polynomials over open sizes compute what the numbers compute that they stand for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from qgraph.graph.inference.dimensions import (
    LIMIT,
    Dim,
    add,
    bounds,
    broadcast,
    exact_divide,
    floor_divide,
    least,
    limits_of,
    merged,
    multiply,
    product,
    subtract,
    symbol,
)
from tests.graph.inference.generator import number

N, M = symbol("N"), symbol("M")
SIZES = [{"N": n, "M": m} for n in (0, 1, 2, 3, 7, 64) for m in (0, 1, 5)]


def expressions(rng: np.random.Generator) -> Dim:
    """A random polynomial, with quotients in it."""
    made: Dim = int(rng.integers(-3, 9))
    for _ in range(int(rng.integers(1, 6))):
        other = [N, M, int(rng.integers(-3, 9))][int(rng.integers(3))]
        step = int(rng.integers(4))
        made = (
            floor_divide(made, int(rng.integers(1, 7)))
            if step == 3
            else (add, subtract, multiply)[step](made, other)
        )
    return made


@pytest.mark.slow
def test_operations_agree_with_numbers() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        a, b, by = expressions(rng), expressions(rng), int(rng.integers(1, 9))
        for sizes in SIZES:
            m, n = number(a, sizes), number(b, sizes)
            assert number(add(a, b), sizes) == m + n
            assert number(subtract(a, b), sizes) == m - n
            assert number(multiply(a, b), sizes) == m * n
            assert number(floor_divide(a, by), sizes) == m // by


def test_equal_texts_are_equal_sizes_and_exact_quotients_multiply_back() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        a, b = expressions(rng), expressions(rng)
        whole = multiply(a, b)
        if whole is not None and b not in (0, None):
            assert exact_divide(whole, b) == a
        for sizes in SIZES if a == b else ():
            assert number(a, sizes) == number(b, sizes)
        if a is not None:
            low, high = bounds(a)
            assert all(low <= number(a, sizes) <= high for sizes in SIZES)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (add(multiply(N, 4), 1), "4*N + 1"),
        (product([N, 3, M]), "3*M*N"),
        (floor_divide(add(multiply(N, 2), 3), 2), "N + 1"),
        (floor_divide(add(N, 1), 2), "floor((N + 1)/2)"),
        (floor_divide(add(multiply(N, 2), 3), 4), "floor((N + 1)/2)"),
        (exact_divide(multiply(add(N, 1), M), add(N, 1)), "M"),
        (subtract(1, N), "-N + 1"),
    ],
)
def test_polynomials_have_one_form(made: Dim, text: str) -> None:
    assert str(made) == text


def test_what_is_not_known_is_none() -> None:
    assert add(None, 1) is None
    assert multiply(None, 2) is None
    assert multiply(None, 0) == 0, "no elements, however many rows"
    assert exact_divide(N, 2) is None
    assert exact_divide(N, 0) is None
    assert floor_divide(N, 0) is None
    assert exact_divide(multiply(N, M), multiply(N, N)) is None
    assert product(symbol(f"a{i}") for i in range(3)) == product(symbol(f"a{i}") for i in (2, 0, 1))
    big: Dim = 1
    for i in range(6):
        big = multiply(big, add(symbol(f"a{i}"), 1))
    assert big is None, "too many terms"


def test_bounds_hold_for_all_open_sizes() -> None:
    assert bounds(5) == (5, 5)
    assert bounds(add(multiply(N, 3), 2)) == (2, 3 * LIMIT + 2)
    assert bounds(subtract(N, M)) == (-LIMIT, LIMIT)


BROADCAST: list[tuple[Dim, Dim, Dim]] = [
    (1, N, N),
    (N, N, N),
    (N, 3, 3),
    (N, 0, 0),
    (N, M, None),
    (None, 1, None),
    (None, 4, 4),
    (None, N, None),
    (N, least(N, 64), N),
    (least(N, 64), least(N, 64), least(N, 64)),
    (M, least(N, 64), None),
    (add(N, 1), least(N, 64), None),
    (1, least(N, 64), least(N, 64)),
]


@pytest.mark.parametrize(("a", "b", "result"), BROADCAST)
def test_broadcasting_an_open_size(a: Dim, b: Dim, result: Dim) -> None:
    assert broadcast(a, b) == result
    assert broadcast(b, a) == result


def test_broadcasting_agrees_with_numpy_wherever_it_is_known() -> None:
    some = (0, 1, 2, 3, N, M, least(N, 1), least(N, 2), least(M, 5), least(add(N, 1), 3))
    for a, b in itertools.product(some, repeat=2):
        for sizes in SIZES:
            shapes = [(number(size, sizes),) for size in (a, b)]
            try:
                (there,) = np.broadcast_shapes(*shapes)
                found = number(broadcast(a, b), sizes)
            except ValueError:
                continue
            assert found in (None, there)


def test_sizes_that_broadcast_keep_to_their_limits() -> None:
    some = (1, 2, N, M, least(N, 1), least(N, 2), least(M, 5), least(add(N, 1), 3), add(N, 1))
    assert limits_of(N, least(N, 2)) == limits_of(least(N, 2), N) == {"N": 2}
    for a, b in itertools.product(some, repeat=2):
        limits = limits_of(a, b)
        for sizes in SIZES:
            ours, theirs = (number(size, sizes) for size in (a, b))
            if ours == theirs or 1 in (ours, theirs):
                known = {str(a): ours, str(b): theirs}
                assert all(known[text] <= limit for text, limit in limits.items())


def test_the_lower_of_a_size_and_a_number() -> None:
    assert str(least(add(N, 1), 64)) == "min(N + 1, 64)"
    assert least(3, 64) == 3
    assert least(64, 3) == 3
    assert least(None, 3) is None
    assert least(-1, 3) is None, "an end that counts from the last element"
    assert least(subtract(N, 1), 3) is None, "for N = 0"


def test_one_size_has_one_description() -> None:
    assert merged(None, N) == N
    assert merged(N, 3) == 3
    assert merged(3, None) == 3
    with pytest.raises(ValueError, match="cannot be one size"):
        merged(3, 4)
