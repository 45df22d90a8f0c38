from __future__ import annotations

import numpy as np

from qgraph.numerics import float32 as keys


def test_keys_order_the_floats_and_the_zeros() -> None:
    ordered = np.array(
        [-np.inf, -3.4028235e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3.4028235e38, np.inf],
        np.float32,
    )
    assert (np.diff(keys.to_keys(ordered)) > 0).all()


def test_constants_are_the_keys_of_their_numbers() -> None:
    largest = np.finfo(np.float32).max
    numbers = [-np.inf, -largest, -0.0, 0.0, largest, np.inf]
    expected = [
        keys.NEGATIVE_INFINITY,
        keys.LOWEST,
        keys.NEGATIVE_ZERO,
        keys.POSITIVE_ZERO,
        keys.HIGHEST,
        keys.POSITIVE_INFINITY,
    ]
    assert keys.to_keys(numbers).tolist() == expected
    assert keys.from_keys(expected).tobytes() == np.array(numbers, np.float32).tobytes()


def test_neighbouring_keys_are_neighbouring_floats() -> None:
    some = np.random.default_rng(0).integers(keys.LOWEST, keys.HIGHEST, 10000)
    some = some[some != keys.NEGATIVE_ZERO]
    x = keys.from_keys(some)
    assert (keys.to_keys(x) == some).all()
    assert (keys.from_keys(some + 1) == np.nextafter(x, np.float32(np.inf))).all()


def test_shapes_are_kept() -> None:
    assert keys.to_keys(np.float32(1)).shape == ()
    assert keys.from_keys(np.zeros((2, 3), np.int64)).shape == (2, 3)
