"""Bounds of models in 16-bit floats beside what their segments compute on data."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import Tolerances
from tests.comparison.test_bounds_on_data import SUM, X
from tests.comparison.test_exhaustive import KINDS, in_type


def model(kind: ir.DataType, bias: str) -> ir.Model:
    return in_type(ir.from_onnx_text(SUM.replace("BIAS", bias)), kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("backend", ["numpy", pytest.param("auto", marks=pytest.mark.runtime)])
def test_distances_are_those_computed_by_hand(kind: ir.DataType, backend: str) -> None:
    # sums in steps of 2: 0.25, 1, 1.5 (a tie: 2), 255; with 0.6 more, 0.55, 1.3, 1.8, 255
    data = {"x": X.astype(kind.numpy())}
    within = Tolerances(within="4step")
    report = qgraph.check(
        model(kind, "0"), model(kind, "0.6"), data, backend=backend, tolerances=within
    )
    assert report.bounds is not None
    segments = report.bounds.segments
    assert [(each.reason, each.violated) for each in segments] == [(None, None)] * 3
    codes, sums, _ = segments
    assert (codes.differing_codes, codes.distance) == (0, 0.0)
    assert (sums.elements, sums.differing_codes, sums.largest_steps) == (4, 1, 1)
    # only codes show: 1 is a quarter of a step beyond what may be rounded to 0.25
    assert sums.distance == 0.25
    assert sums.distance_bound is not None
    assert sums.distance_bound > 0.3
    assert report.verdict == "equal"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_same_model_in_float32_is_compared(kind: ir.DataType) -> None:
    wide = qgraph.load(model(kind, "0.5"))
    qgraph.transform(wide, "widen-floats")
    x = {"x": np.random.default_rng(3).uniform(0, 100, (64, 2)).astype(kind.numpy())}
    within = Tolerances(within="4step")
    report = qgraph.check(model(kind, "0.5"), wide, x, backend="numpy", tolerances=within)
    assert report.bounds is not None
    assert [(s.reason, s.violated) for s in report.bounds.segments] == [(None, None)] * 3
