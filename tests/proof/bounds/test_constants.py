"""Constants that are computed by a definition: what is executed, and what is meant."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.numerics.rounding import Rounding
from qgraph.ops.definitions.quant import define
from qgraph.proof.bounds.quantity import ConstantTracer
from qgraph.reasons import Undecidable

WEIGHTS = np.array([0.31, -0.07, 7.0, -np.inf, 0.0], np.float32)
CODES = [3, -1, 7, -8, 0]
"""Of 4 bits and a scale of 0.1: what is beyond them has the last one."""


def quantized(weights: np.ndarray):
    tracer = ConstantTracer()
    scale, zero, bits = (tracer.constant(np.float32(number)) for number in (0.1, 0, 4))
    options = {"signed": True, "narrow": False, "rounding_mode": Rounding.ROUND}
    return define(tracer, tracer.constant(weights), scale, zero, bits, **options).quantity


def test_a_weight_is_meant_to_be_its_code_times_the_stored_scale():
    result = quantized(WEIGHTS)
    scale = Fraction(float(np.float32(0.1)))
    for code, meant, executed in zip(
        CODES, result.meant.offset.tolist(), result.numbers.tolist(), strict=True
    ):
        assert Fraction(meant) == code * scale
        assert executed == float(np.float32(code) * np.float32(0.1))
    factors = result.factors
    assert factors is not None
    assert (factors[0].item(), factors[1].tolist()) == (float(scale), CODES)


def test_a_result_that_is_no_number_is_refused():
    with pytest.raises(Undecidable, match="NaN"):
        quantized(np.array([np.nan], np.float32))


def test_what_is_not_chosen_is_not_computed():
    tracer = ConstantTracer()
    nothing = tracer.constant(np.zeros(2, np.float32))
    undefined = tracer.Gather(tracer.constant(np.zeros(())), nothing)  # fails where it is computed
    chosen = tracer.Where(tracer.constant(np.ones(2, np.bool_)), nothing, undefined)
    assert chosen.quantity.numbers.tolist() == [0, 0]


def test_infinite_weights_that_are_clipped_are_bounded():
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (int8[N,2] x) => (float[N,1] y)
    <float[2,1] w = {1, 2}, float s = {SCALE}, float z = {0}, float b = {4}, int8 n = {0}> {
        a = DequantizeLinear (x, s, n)
        q = qonnx.custom_op.general.Quant <signed = 1, rounding_mode = "ROUND"> (w, s, z, b)
        m = MatMul (a, q)
        [end] y = Mul (m, s)
    }"""
    models = [ir.from_onnx_text(text.replace("SCALE", scale)) for scale in ("0.25", "0.26")]
    for model in models:
        weights = np.array([[np.inf], [0.5]], np.float32)
        model.graph.initializers["w"].const_value = ir.tensor(weights, name="w")
    (region,) = qgraph.prove(*models, within="1000step").regions
    # codes 7 and 2: at most (7 + 2) * 128 times the difference of the cubes of the scales
    assert region.bound.absolute == pytest.approx(9 * 128 * (0.26**3 - 0.25**3), rel=1e-3)


@pytest.mark.parametrize(("count", "expected"), [(1, [1, 5]), (2, [3, 5]), (3, [3, 9])])
def test_maxima_of_any_number_of_constants(count: int, expected: list[int]):
    tracer = ConstantTracer()
    constants = [tracer.constant(np.float32(pair)) for pair in ([1, 5], [3, 2], [2, 9])]
    assert tracer.Max(*constants[:count]).quantity.numbers.tolist() == expected
