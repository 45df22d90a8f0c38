"""Sums that NumPy, ONNX Runtime and OpenVINO execute lie within bounds that are not vast."""

from __future__ import annotations

import numpy as np
import pytest

from tests.proof.bounds import executed_sums
from tests.proof.bounds.executed_sums import CODES, RUNS, codes_seen, seen

LENGTHS = (16, 64, 256, 1024)


def _installed(name: str) -> None:
    for start, module in (("ONNX Runtime", "onnxruntime"), ("OpenVINO", "openvino")):
        if name.startswith(start):
            pytest.importorskip(module)


def test_an_error_beyond_the_bound_is_counted():
    def wrong(codes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return executed_sums.in_sequence(codes, weights) + np.float32(1)

    found = seen(wrong, 16, 1, channels=2)
    assert found.outside == found.sums
    assert found.tightness < 1


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_no_runtime_leaves_the_bound(name):
    _installed(name)
    assert seen(RUNS[name], 256, 1, channels=4).outside == 0


@pytest.mark.slow
@pytest.mark.parametrize("form", CODES)
def test_codes_of_integer_kernels_are_within_the_bound_of_the_ideal(form):
    pytest.importorskip("onnxruntime")
    found = codes_seen(form, 64, 1, channels=4)
    assert found.outside == 0
    assert found.bound < 1e-4


@pytest.mark.exhaustive
@pytest.mark.parametrize("terms", LENGTHS)
@pytest.mark.parametrize("name", RUNS)
def test_ten_million_sums_are_within_their_bounds(name, terms):
    _installed(name)
    count = len(RUNS) + len(CODES)
    assert seen(RUNS[name], terms, 10_000_000 // count // len(LENGTHS), seed=terms).outside == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("terms", LENGTHS)
@pytest.mark.parametrize("form", CODES)
def test_codes_of_many_products_are_within_the_bound(form, terms):
    pytest.importorskip("onnxruntime")
    count = len(RUNS) + len(CODES)
    assert codes_seen(form, terms, 10_000_000 // count // len(LENGTHS), seed=terms).outside == 0


@pytest.mark.slow
@pytest.mark.parametrize("terms", LENGTHS)
def test_bounds_are_at_most_200_times_what_sorted_products_show(terms):
    assert seen(executed_sums.in_sorted_sequence, terms, 1, channels=8).tightness <= 200
