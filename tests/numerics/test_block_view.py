"""In which shape data is seen while parameters for blocks of it apply."""

from __future__ import annotations

import numpy as np
import pytest

from qgraph.numerics.blocks import enlarges, view_of
from qgraph.numerics.values import narrowed


def blocked(rows: int, blocks: int, size: int) -> np.ndarray:
    entries = np.arange(1, rows * blocks + 1, dtype=np.float32).reshape(rows, blocks)
    return np.repeat(entries, size, axis=1)


def test_blocks_become_an_axis():
    scale, zero = blocked(2, 3, 4), np.zeros((), np.float32)
    view = view_of((2, 12), [scale, zero])
    assert view.seen == (2, 3, 4)
    np.testing.assert_array_equal(view.lay(scale)[:, :, 0], [[1, 2, 3], [4, 5, 6]])
    assert view.lay(scale).shape == (2, 3, 1)
    assert view.lay(zero).shape == ()


def test_what_does_not_vary_within_blocks_together_is_left():
    scale = blocked(2, 3, 4)
    assert view_of((2, 12), [scale, np.arange(12, dtype=np.float32)]).axis is None
    assert view_of((2, None), [scale]).axis is None
    assert view_of((2, 11), [blocked(2, 3, 4)[:, :11]]).axis is None


def test_what_varies_along_one_axis_needs_no_view():
    scale = np.repeat(np.float32([[1], [2]]), 6, axis=1)
    view = view_of((2, 6), [scale])
    assert view.axis is None
    assert view.lay(scale).shape == (2, 1)
    assert narrowed(np.ones((4, 3), np.float32)).shape == (1, 1)


def test_parameters_that_enlarge_the_data_keep_their_shape():
    scale = np.ones((3, 1), np.float32)
    assert view_of((4,), [scale]).lay(scale).shape == (3, 1)


@pytest.mark.parametrize(
    ("shape", "parameter", "expected"),
    [((4,), (3, 1), True), ((3, 4), (3, 1), False), ((None, 4), (3, 4), False), ((2,), (3,), True)],
)
def test_what_surely_enlarges(shape, parameter, expected):
    assert enlarges([np.ones(parameter)], shape) is expected
