"""What a comparison of two arrays counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qgraph.exactness import Exactness
from qgraph.numerics.values import compare_values

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
