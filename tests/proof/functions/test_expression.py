from __future__ import annotations

import numpy as np
import pytest

from qgraph.proof.functions.expression import Builder, evaluate, text
from qgraph.reasons import Undecidable


def test_equal_operations_are_the_same_object() -> None:
    b = Builder()
    assert b.Div(b.input, 0.5) is b.Div(b.input, np.float32(0.5))
    assert b.Div(b.input, 0.5) is not b.Div(b.input, np.array([0.5], np.float32))
    assert b.constant(np.float32(0.0)) is not b.constant(np.float32(-0.0))
    assert b.Min(b.input, 1.0, 2.0) is b.Min(b.Min(b.input, 1.0), 2.0)
    assert b.Identity(b.input) is b.input
    assert b.Cast(b.input, to="FLOAT") is b.input


def test_constants_are_folded_in_float32() -> None:
    b = Builder()
    folded = b.Sub(b.Pow(2.0, np.float32(8) - np.float32(1)), 1.0)
    assert folded.value is not None
    assert folded.value.dtype == np.float32
    assert folded.value == 127
    infinite = b.Div(1.0, 0.0).value
    assert infinite is not None
    assert np.isposinf(infinite)


def test_a_constant_condition_chooses_its_branch() -> None:
    b = Builder()
    y = b.Mul(b.input, np.ones((4, 1), np.float32))
    assert b.Where(True, y, b.input) is y
    assert b.Where(b.Equal(1.0, 2.0), 3.0, b.input) is b.input
    assert b.Where(np.ones((4, 1), bool), y, b.input) is y


def test_a_condition_that_widens_the_result_is_kept() -> None:
    b = Builder()
    assert b.Where(np.ones((4, 1), bool), b.input, 0.0).op == "Where"
    assert b.Where(np.array([True, False]), b.input, 0.0).shape == (2,)
    assert b.Where(False, np.zeros((4, 1), np.float32), b.input).shape == (4, 1)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda b: b.Erf(b.input), "not a primitive"),
        (lambda b: b.constant(np.float64(1)), "float64"),
        (lambda b: b.constant(np.float16(1)), "float16"),
        (lambda b: b.constant(np.int64(2**24 + 1)), "exceeds float32"),
        (lambda b: b.Cast(b.input, to="FLOAT16"), "FLOAT16"),
        (lambda b: b.Cast(300.0, to="INT8"), "undefined"),
        (lambda b: b.Add(b.Cast(b.input, to="INT8"), 1.0), "in type INT8"),
        (lambda b: b.Add(b.Less(b.input, 1.0), 1.0), "BOOL"),
        (lambda b: b.Add(np.zeros(2, np.float32), np.zeros(3, np.float32)), "do not fit"),
        (lambda b: b.Gather(np.zeros(3, np.float32), b.input), "index of type FLOAT"),
        (lambda b: b.Where(b.input, 1.0, 2.0), "condition of type FLOAT"),
        (lambda b: b.Round(b.input, mode=1), "attributes mode"),
        (lambda b: b.Add(b.input), "1 operands"),
    ],
)
def test_what_cannot_be_proved_is_refused(make, reason) -> None:
    with pytest.raises(Undecidable, match=reason):
        make(Builder())


def test_evaluate_broadcasts_constants() -> None:
    b = Builder()
    s = np.array([[0.5], [2.0]], np.float32)
    root = b.Mul(b.Round(b.Div(b.input, s)), s)
    x = np.array([0.3, 1.2, -3.0], np.float32)
    assert evaluate(root, x).tolist() == [[0.5, 1.0, -3.0], [0.0, 2.0, -4.0]]


def test_a_table_is_not_spread_over_the_data() -> None:
    b = Builder()
    index = b.Cast(b.Min(b.Max(b.input, 0.0), 2.0), to="INT64")
    root = b.Gather(np.array([7, 8, 9], np.float32), index)
    assert root.shape == ()
    assert evaluate(root, np.array([-5.0, 1.5, 5.0], np.float32)).tolist() == [7, 8, 9]
    scaled = b.Mul(root, np.array([7, 8, 9], np.float32))
    assert scaled.shape == (3,)
    assert evaluate(scaled, np.float32([0, 1, 2])).tolist() == [49, 64, 81]


def test_text_tells_apart_what_differs_and_nothing_else() -> None:
    def pair(scale, op="Floor", swapped=False):
        b = Builder()
        roots = [b.Mul(getattr(b, op)(b.Div(b.input, scale)), scale), b.input]
        return text(reversed(roots) if swapped else roots)

    s = np.float32(0.1)
    assert pair(s) == pair(s)
    others = [
        pair(np.nextafter(s, np.float32(1))),
        pair(np.array([s])),
        pair(s, "Ceil"),
        pair(s, swapped=True),
    ]
    assert len({pair(s), *others}) == 5
