"""What a comparison of two arrays counts, and which rows are proportional."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qgraph.exactness import Exactness
from qgraph.numerics.values import as_float32, compare_values, ratios_of_rows

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("ours", "theirs", "differing", "zero_sign", "index", "level"),
    [
        ([1, NAN, -INF], [1, -NAN, -INF], 0, 0, None, "bits"),
        ([1, 0.0, -0.0, 0.0], [1, 0.0, 0.0, -0.0], 0, 2, 2, "values"),
        ([1, -1], [1, 1], 1, 0, 1, "different"),
        ([0.0, NAN, 3], [-0.0, 3, NAN], 2, 1, 1, "different"),
        ([0.0, INF], [-0.0, -INF], 1, 1, 1, "different"),
        ([4, 1 + 2**-23], [4, 1], 1, 0, 1, "codes"),
        ([4, 2**-60], [4, 0.0], 1, 0, 1, "codes"),
    ],
)
def test_values_are_counted(
    ours: list[float],
    theirs: list[float],
    differing: int,
    zero_sign: int,
    index: int | None,
    level: str,
) -> None:
    found = compare_values(np.float32(ours), np.float32(theirs))
    assert (found.differing, found.zero_sign, found.index) == (differing, zero_sign, index)
    assert Exactness.of(found) == level


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.bool_])
def test_numbers_without_a_sign_of_zero(dtype: type[Any]) -> None:
    found = compare_values(np.array([0, 1, 1], dtype), np.array([0, 1, 0], dtype))
    assert (found.differing, found.zero_sign, found.index) == (1, 0, 2)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([[2, 4], [3, -9]], [[3, 6], [-1, 3]], [[1.5], [-1 / 3]]),
        ([[0, 0], [1, 2]], [[0, 0], [1, 2]], [[1], [1]]),
        ([[2, 4]], [[3, 5]], None),
        ([[2, 0]], [[2, 1]], None),
        ([[2, 0]], [[0, 0]], None),
        ([[0.5, 1]], [[1, 2]], None),  # not whole
        ([[2.0**26, 1]], [[2.0**26, 1]], None),  # products may be rounded
        ([[1, 2]], [[1], [2]], None),
    ],
)
def test_rows_are_proportional_or_not(one, other, expected):
    ratios = ratios_of_rows(*(np.array(rows, np.float64) for rows in (one, other)))
    assert (None if ratios is None else ratios.tolist()) == expected


def test_equal_codes_take_no_room():
    zeros = np.array([[0.0, -0.0]], np.float16)
    for codes in (np.full((3, 4), 8, np.uint8), np.arange(6, dtype=np.int8), zeros):
        numbers = as_float32(codes)
        wanted = np.array([float(code) for code in codes.flat], np.float32)
        assert numbers.shape == codes.shape
        assert numbers.tobytes() == wanted.tobytes()
        assert (not any(numbers.strides)) == (len(set(map(str, codes.flat))) == 1)
