"""Functions that never decrease, and those that only seem to."""

from __future__ import annotations

import numpy as np
import pytest

from qgraph.ops.operator import OPERATORS
from qgraph.proof.functions.expression import Builder
from qgraph.proof.normal.maxima import direction, never_decreases

SHAPE_1 = np.ones(1, np.float32)


def fake_quantize(low: float, high: float, builder: Builder):
    (operator,) = (entry for entry in OPERATORS if entry.schema.name == "FakeQuantize")
    bounds = [np.float32(low), np.float32(high)] * 2
    attributes = {"levels": 256, "auto_broadcast": "numpy"}
    return operator.define(builder, builder.input, *bounds, **attributes)


@pytest.mark.parametrize(
    ("write", "rises"),
    [
        (lambda b, x: b.Relu(x), True),
        (lambda b, x: b.Min(b.Max(x, -1.0), 1.0), True),
        (lambda b, x: b.Add(b.Mul(x, 0.1), 3.0), True),
        (lambda b, x: b.Round(b.Div(x, 0.3)), True),
        (lambda b, x: b.Neg(b.Mul(x, -2.0)), True),
        (lambda b, x: b.Max(x, b.Mul(x, 0.5)), True),
        (lambda b, x: b.Mul(x, np.array([1, 2], np.float32)), True),
        (lambda b, x: b.Mul(x, -0.1), False),
        (lambda b, x: b.Mul(x, 0.0), False),  # NaN at infinity
        (lambda b, x: b.Mul(x, np.array([1, -2], np.float32)), False),
        (lambda b, x: b.Abs(x), False),
        (lambda b, x: b.Sub(1.0, x), False),
        (lambda b, x: b.Max(x, b.Neg(x)), False),
        (lambda b, x: b.Add(x, b.Neg(x)), False),
        (lambda b, x: b.Sub(x, b.Floor(x)), False),
    ],
)
def test_functions_by_their_operations(write, rises):
    builder = Builder()
    assert never_decreases(write(builder, builder.input)) == rises


def test_steps_are_put_in_order_where_operations_do_not_tell():
    builder = Builder()
    x = builder.input
    rounded = builder.Round(builder.Min(builder.Max(x, -4.0), 4.0))
    rising = builder.Where(builder.Less(x, 0.0), rounded, builder.Add(rounded, 1.0))
    falling = builder.Where(builder.Less(x, 0.0), rounded, builder.Sub(rounded, 1.0))
    assert direction(rising) is None
    assert never_decreases(rising)
    assert not never_decreases(falling)


def test_both_zeros_need_one_value():
    builder = Builder()
    sign = builder.Less(builder.Div(1.0, builder.input), 0.0)
    assert not never_decreases(builder.Where(sign, -1.0, 1.0))


def test_fake_quantize_may_fall_at_its_top():
    """The top level as computed is above the top of the range for these ends, found by trying."""
    rises = []
    for low, high in [(-1.0, 1.0), (-0.1, 0.2), (-0.2, 0.9), (-0.73, 1.21)]:
        computed = np.float32(np.float32(high) - np.float32(low)) + np.float32(low)
        found = never_decreases(fake_quantize(low, high, Builder()))
        assert found == (computed <= np.float32(high))
        rises.append(found)
    assert set(rises) == {True, False}


@pytest.mark.parametrize(("x", "y"), [(np.inf, -4.0), (-np.inf, 4.0)])
def test_the_values_at_infinities_have_to_be_in_order(x, y):
    builder = Builder()
    rounded = builder.Round(builder.Min(builder.Max(builder.input, -4.0), 4.0))
    end = builder.Equal(builder.input, np.float32(x))
    assert not never_decreases(builder.Where(end, y, rounded))
    assert never_decreases(builder.Where(end, -y, rounded))
