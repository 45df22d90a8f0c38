"""Pairs of functions that differ at one of a few inputs, and pairs of which this is not known."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from qgraph.numerics import Array
from qgraph.proof.functions.expression import Builder, Expr
from qgraph.proof.functions.pair import FunctionPair
from qgraph.proof.functions.samples import refuted

F = np.float32
STEP = np.nextafter(F(0.01), F(1))
SCALES = np.array([0.01, 0.02], F).reshape(2, 1, 1)
OTHERS = np.array([0.01, np.nextafter(F(0.02), F(1))], F).reshape(2, 1, 1)
FLOAT, INT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT8

Pair = tuple[Expr, Expr]


def quant(b: Builder, scale: Array | F) -> Expr:
    code = b.Min(b.Max(b.Round(b.Div(b.input, scale)), F(-8)), F(7))
    return b.Mul(code, scale)


def casts(b: Builder) -> Pair:
    """Clipped and saturated casts: equal where the second is defined."""
    code = b.Round(b.input)
    clipped = b.Cast(b.Min(b.Max(code, F(-128)), F(127)), to=INT8)
    return b.Cast(clipped, to=FLOAT), b.Cast(b.Cast(code, to=INT8), to=FLOAT)


PAIRS: dict[str, tuple[Callable[[Builder], Pair], bool]] = {
    "scales": (lambda b: (quant(b, F(0.01)), quant(b, STEP)), True),
    "equal": (lambda b: (quant(b, F(0.5)), quant(b, F(0.5))), False),
    "a product and a quotient": (lambda b: (b.Mul(b.input, F(0.5)), b.Div(b.input, F(2))), False),
    "one channel": (lambda b: (quant(b, SCALES), quant(b, OTHERS)), True),
    "casts that are not defined": (casts, False),
    # 0 or -0: the quotient is infinity or minus infinity
    "the sign of a zero": (
        lambda b: (
            b.Div(F(1), b.Relu(b.Mul(b.input, F(0)))),
            b.Div(F(1), b.Abs(b.Mul(b.input, F(0)))),
        ),
        False,
    ),
    "shapes": (lambda b: (quant(b, F(0.01)), quant(b, SCALES)), False),
    "a function without a rule": (
        lambda b: (b.Pow(b.input, F(3)), b.Mul(b.Pow(b.input, F(3)), F(2))),
        False,
    ),
    "truth values": (lambda b: (b.Less(b.input, F(0)), b.Greater(b.input, F(0))), False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_refuted_by_values_that_are_defined(name: str) -> None:
    make, expected = PAIRS[name]
    assert refuted([FunctionPair(*make(Builder()))]) == [expected]


def test_all_pairs_are_tried_together() -> None:
    builder = Builder()
    pairs = [FunctionPair(*make(builder)) for make, _ in PAIRS.values()] * 30
    assert refuted(pairs) == [expected for _, expected in PAIRS.values()] * 30
