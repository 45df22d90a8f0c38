"""Pieces cover an array once, in order, and none is too large."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from qgraph.comparison import metrics
from qgraph.comparison.metrics import Comparing, pieces, within


@pytest.mark.parametrize("shape", [(), (7,), (1, 30), (3, 4, 5), (2, 1, 3, 7), (60, 1), (1, 1, 1)])
@pytest.mark.parametrize("at_once", [1, 4, 7, 1000])
def test_every_element_is_in_one_piece(shape: tuple[int, ...], at_once: int) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    found = [array[place] for place in pieces(shape, at_once)]
    assert max(piece.size for piece in found) <= at_once
    assert np.concatenate([piece.reshape(-1) for piece in found]).tolist() == list(
        range(array.size)
    )


def test_what_is_empty_has_no_pieces() -> None:
    assert list(pieces((3, 0, 2))) == []


def test_pieces_give_the_same_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(-50, 50, (3, 40, 5)).astype(np.float32)
    y = x.copy()
    y[1, 3:9, 2] += np.float32(2)
    y[2, 39, 4] = np.nan
    step = np.float32([0.5, 1, 2, 4, 8])

    def compared() -> object:
        comparing = Comparing("y")
        equal = comparing.add(x, y, step), comparing.add(x, x, step)
        return equal, comparing.result(), within(x, y, atol=2, rtol=0), within(x, x, atol=0, rtol=1)

    whole = compared()
    monkeypatch.setattr(metrics, "pieces", lambda shape: pieces(shape, 17))
    assert compared() == whole


def test_comparing_large_arrays_holds_little_besides() -> None:
    """Whole arrays of float64 would be 32 MB each, and several are needed."""
    x = np.ones((1, 1 << 22), np.float32)
    y = x + np.float32(0.5)
    tracemalloc.start()
    try:
        assert not Comparing("y").add(x, y)
        assert within(x, y, atol=1, rtol=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20
