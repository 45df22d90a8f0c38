from __future__ import annotations

import numpy as np
import pytest

from qgraph.numerics.blocks import align, blocks_of


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("block_size", [0, 4])
def test_one_element_is_per_tensor_on_any_axis(shape, block_size):
    aligned = align(np.full(shape, 3, np.float32), (2, 5), axis=7, block_size=block_size)
    assert aligned.shape == ()
    assert aligned == 3


@pytest.mark.parametrize(
    ("axis", "shape"), [(0, (2, 1, 1)), (1, (1, 3, 1)), (-1, (1, 1, 4)), (-3, (2, 1, 1))]
)
def test_per_axis(axis, shape):
    x_shape = (2, 3, 4)
    scale = np.arange(x_shape[axis], dtype=np.float32)
    aligned = align(scale, x_shape, axis)
    assert aligned.shape == shape
    index = np.indices(x_shape)[axis]
    np.testing.assert_array_equal(np.broadcast_to(aligned, x_shape), scale[index])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 9])
def test_blocked_entries_are_found_by_division(axis, block_size):
    x_shape = (6, 7, 5)
    shape = list(x_shape)
    shape[axis] = -(-shape[axis] // block_size)
    zero_point = np.arange(np.prod(shape), dtype=np.int8).reshape(shape)
    aligned = align(zero_point, x_shape, axis, block_size)
    index = np.indices(x_shape)
    index[axis] //= block_size
    assert aligned.dtype == np.int8
    np.testing.assert_array_equal(aligned, zero_point[tuple(index)])


@pytest.mark.parametrize(
    ("shape", "axis", "block_size", "message"),
    [
        ((3,), 0, 0, r"\[3\] does not fit data of shape \[4, 6\].*needs shape \[4\]"),
        ((4, 1), 0, 0, r"one entry per index of axis 0 needs shape \[4\]"),
        ((4, 2), 1, 2, r"blocks of 2 along axis 1 needs shape \[4, 3\]"),
        ((6,), 1, 2, r"needs shape \[4, 3\]"),
        ((4,), 2, 0, r"axis 2 does not exist in data of shape \[4, 6\]; expected -2 to 1"),
    ],
)
def test_shapes_that_do_not_belong_together(shape, axis, block_size, message):
    with pytest.raises(ValueError, match=message):
        align(np.ones(shape, np.float32), (4, 6), axis, block_size)


@pytest.mark.parametrize(
    ("scale_shape", "x_shape", "expected"),
    [
        ((4, 2), (4, 64), (1, 32)),
        ((2, 4), (64, 4), (0, 32)),
        ((4, 3), (4, 70), (1, 24)),
        ((4, 1), (4, 64), (1, 64)),
        ((4, 4), (4, 10), (1, 3)),
        ((4, 64), (4, 64), None),
        ((2, 2), (4, 64), None),
        ((64,), (4, 64), None),
        ((4, 128), (4, 64), None),
        ((4, 0), (4, 64), None),
        ((4, 7), (4, 10), None),
        ((), (), None),
    ],
)
def test_blocks_of(scale_shape, x_shape, expected):
    assert blocks_of(scale_shape, x_shape) == expected


@pytest.mark.parametrize("count", range(1, 40))
def test_what_blocks_of_finds_fits_align(count):
    found = blocks_of((2, count), (2, 40))
    if found is not None:
        assert align(np.ones((2, count), np.float32), (2, 40), *found).shape == (2, 40)
