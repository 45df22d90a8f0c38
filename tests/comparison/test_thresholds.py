"""The thresholds next to data are found by asking the quantizer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.comparison.thresholds import DataQuantizer, data_quantizers, thresholds_above
from qgraph.numerics.float32 import from_keys

IMPORTS = '"": 21, "qonnx.custom_op.general": 1, "org.openvinotoolkit": 1'


def nodes(body: str) -> list[Any]:
    text = f"<ir_version: 10, opset_import: [{IMPORTS}]> g (float[N,2] x) => (y) {body}"
    return list(data_quantizers(ir.from_onnx_text(text).graph))


def quantizer(body: str) -> DataQuantizer:
    (found,) = nodes(body)
    assert isinstance(found, DataQuantizer)
    return found


def quant(scale: str = "{0.5}", rounding: str = "ROUND") -> DataQuantizer:
    size = scale.count(",") + 1
    return quantizer(
        f"<float[1,{size}] s = {scale}, float z = {{0}}, float b = {{4}}> {{ y = "
        f'qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "{rounding}"> '
        "(x, s, z, b) }"
    )


def after(number: float) -> np.float32:
    return np.nextafter(np.float32(number), np.float32(np.inf))


def above(each: DataQuantizer, *numbers: float) -> list[np.float32 | None]:
    data = np.asarray(numbers, np.float32).reshape(-1, 2)
    keys, found = thresholds_above(each, data)
    numbers_there = from_keys(keys).reshape(-1)
    return [
        x if is_there else None for x, is_there in zip(numbers_there, found.ravel(), strict=True)
    ]


def test_ties_go_to_even() -> None:
    """0.25 is half a step and belongs to 0, the float after it does not; 0.75 belongs to 1."""
    assert above(quant(), 0.1, 0.3) == [after(0.25), np.float32(0.75)]


def test_the_rounding_mode_is_that_of_the_node() -> None:
    assert above(quant(rounding="FLOOR"), 0.1, -0.3) == [np.float32(0.5), np.float32(0.0)]


def test_channels_have_scales_of_their_own() -> None:
    assert above(quant("{0.5, 2}"), 0.1, 0.1) == [after(0.25), after(1.0)]


def test_there_is_none_above_the_last_code() -> None:
    """The largest code is 7: nothing changes from 6.5 steps on."""
    assert above(quant(), 3.3, math.inf) == [None, None]
    assert above(quant(), math.nan, 3.1) == [None, after(3.25)]


@pytest.mark.parametrize(
    ("parameters", "call"),
    [
        ("float s = {0.1}, uint8 z = {7}", "QuantizeLinear (x, s, z)"),
        (
            "float a = {-1.3}, float b = {2.1}",
            "org.openvinotoolkit.FakeQuantize <levels = 16> (x, a, b, a, b)",
        ),
        ("float s = {0.3}", "qonnx.custom_op.general.BipolarQuant (x, s)"),
        (
            "float s = {0.3}, float e = {3}, float m = {2}, float b = {3}, float v = {15}",
            "qonnx.custom_op.general.FloatQuant (x, s, e, m, b, v)",
        ),
    ],
    ids=["QuantizeLinear", "FakeQuantize", "BipolarQuant", "FloatQuant"],
)
def test_the_code_changes_there_and_not_before(parameters: str, call: str) -> None:
    each = quantizer(f"<{parameters}> {{ q = {call} y = Identity (q) }}")
    data = np.random.default_rng(1).uniform(-3, 3, (200, 2)).astype(np.float32)
    keys, found = thresholds_above(each, data)
    code = each.quantize(data)
    changed, unchanged = each.quantize(from_keys(keys)), each.quantize(from_keys(keys - 1))
    assert found.sum() > 50
    assert (changed != code)[found].all()
    assert (unchanged == code)[found].all()
    assert (from_keys(keys) > data)[found].all()


def test_weights_are_no_data_and_open_parameters_have_no_fixed_thresholds() -> None:
    weight = "<float[2] w = {1, 2}, float s = {1}> { q = QuantizeLinear (w, s) y = Identity (q) }"
    assert nodes(weight) == []
    computed = "<float z = {0}> { s = ReduceMax <keepdims = 0> (x) y = QuantizeLinear (x, s) }"
    ((node, reason),) = nodes(computed)
    assert (node.op_type, reason) == ("QuantizeLinear", "its parameters are not constant")
