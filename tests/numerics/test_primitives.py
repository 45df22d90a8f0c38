"""Primitives take operands as ONNX does."""

from __future__ import annotations

import numpy as np
import pytest

from qgraph.numerics.primitives import NUMPY

OPERANDS = [np.float32([1, 5, -2]), np.float32([3, 2, -4]), np.float32([2, 9, -3])]
RESULTS = {
    ("Max", 1): [1, 5, -2],
    ("Max", 2): [3, 5, -2],
    ("Max", 3): [3, 9, -2],
    ("Min", 1): [1, 5, -2],
    ("Min", 2): [1, 2, -4],
    ("Min", 3): [1, 2, -4],
}


@pytest.mark.parametrize(("name", "count"), RESULTS)
@pytest.mark.parametrize("has_out", [False, True])
def test_maximum_and_minimum_take_any_number_of_operands(
    name: str, count: int, has_out: bool
) -> None:
    operands = [array.copy() for array in OPERANDS]
    more = {"out": np.empty(3, np.float32)} if has_out else {}
    assert NUMPY[name](*operands[:count], **more).tolist() == RESULTS[name, count]
    for before, after in zip(OPERANDS, operands, strict=True):
        assert before.tolist() == after.tolist()
