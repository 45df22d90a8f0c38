"""Squared errors of shared scales: compiled loops against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from qgraph.quantizers.weights import search
from qgraph.quantizers.weights.scheme import Scheme, parameters


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 2])
def test_compiled_loops_add_the_squares_of_few_channels_in_the_order_of_numpy(
    monkeypatch, channels
):
    pytest.importorskip("numba")
    w = np.random.default_rng(0).standard_normal((64, channels, 1)).astype(np.float32)
    scheme, sums = Scheme("INT4"), []
    ends = [np.abs(row[None]) for row in w[:20]]
    for worth in (0, 1 << 62):
        monkeypatch.setattr(search, "_WORTH", worth)
        scales = [parameters(-end, end, scheme) for end in ends]
        sums.append([search.noise(w, each, scheme, (0, 2), np.empty_like(w)) for each in scales])
    np.testing.assert_array_equal(*sums)
