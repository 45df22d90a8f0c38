"""Weights that Cast, Sub and Mul decode, and quantizers written as Mul, Round, Clip, Mul."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import qgraph
from qgraph.inventory.overview import overview
from qgraph.model import Model, load
from qgraph.transforms.convert import ConvertDialect, FoldWeights

HEAD = """<ir_version: 10, opset_import: ["": 21]>
net (float[2, 4] x) => (float[2, 3] y)
"""
CODES = "{1, 2, 3, 250, 5, 6, 7, 8, 9, 10, 11, 255}"
HALVES = "float16[3] s = {11878, 13640, 14746}, float16[3] z = {18176, 18432, 18560}"
"""The scales 0.1, 0.33 and 0.7 and the zero points 7, 8 and 9, as bits of float16."""

WEIGHTS = {
    "in float16": f"<uint8[4,3] w = {CODES}, {HALVES}> "
    "{ c = Cast <to = 10> (w) e = Sub (c, z) d = Mul (e, s) f = Cast <to = 1> (d) "
    "y = MatMul (x, f) }",
    "without scale": f"<uint8[4,3] w = {CODES}, float[3] s = {{0.1, 0.33, 0.7}}> "
    "{ c = Cast <to = 1> (w) m = MatMul (x, c) y = Mul (m, s) }",
    "in groups": f"<uint8[2,2,3] w = {CODES}, float[2,1,3] s = {{0.1, 0.33, 0.7, 1, 2, 3}}, "
    "uint8[2,1,3] z = {1, 2, 3, 4, 5, 6}, int64[2] sizes = {4, 3}> "
    "{ c = Cast <to = 1> (w) q = Cast <to = 1> (z) e = Sub (c, q) d = Mul (e, s) "
    "r = Reshape (d, sizes) y = MatMul (x, r) }",
    "transposed": f"<uint8[3,4] w = {CODES}, float[1,3] s = {{0.1, 0.33, 0.7}}> "
    "{ t = Transpose (w) c = Cast <to = 1> (t) d = Mul (c, s) y = MatMul (x, d) }",
    "unpacked from bytes": "<uint8[6,1] w = {18, 52, 250, 101, 7, 240}, "
    "uint8[6,1] p = {19, 84, 150, 0, 17, 8}, uint8 low = {15}, uint8 four = {4}, "
    "int64[2] sizes = {4, 3}, int64[3] groups = {2, 2, 3}, int64[3] points = {2, 1, 3}, "
    "int64[1] zero = {0}, int64[1] three = {3}, "
    "float16[2,1,3] s = {11878, 13640, 14746, 11878, 13640, 14746}> "
    '{ a = BitwiseAnd (w, low) b = BitShift <direction = "RIGHT"> (w, four) '
    "c = Concat <axis = -1> (a, b) g = Reshape (c, groups) f = Cast <to = 10> (g) "
    "h = BitwiseAnd (p, low) t = Slice (h, zero, three, zero) u = Slice (h, zero, three, zero) "
    "z = Concat <axis = 0> (t, u) zz = Reshape (z, points) zf = Cast <to = 10> (zz) "
    "e = Sub (f, zf) d = Mul (e, s) r = Reshape (d, sizes) k = Cast <to = 1> (r) "
    "y = MatMul (x, k) }",
    "unpacked by arithmetic shifts": "<int8[6,1] w = {18, -52, -6, 101, 7, -16}, "
    "uint8 four = {4}, uint8 zero = {0}, uint8 ones = {255}, int8 below = {0}, int8 eight = {8}, "
    "int8 low = {15}, int64[2] sizes = {4, 3}, float[1,3] s = {0.1, 0.33, 0.7}> "
    '{ u = Cast <to = 2> (w) n = Less (w, below) v = BitShift <direction = "RIGHT"> (u, four) '
    'm = BitShift <direction = "RIGHT"> (ones, four) q = BitwiseNot (m) o = BitwiseOr (v, q) '
    "oc = Cast <to = 3> (o) vc = Cast <to = 3> (v) high = Where (n, oc, vc) "
    "masked = BitwiseAnd (w, low) under = Sub (masked, eight) "
    "c = Concat <axis = 1> (under, high) r = Reshape (c, sizes) f = Cast <to = 1> (r) "
    "d = Mul (f, s) y = MatMul (x, d) }",
    "of channels": f"<uint8[4,3] w = {CODES}, float[3] s = {{0.1, 0.33, 0.7}}, "
    "float[3] z = {7, 8, 9}> "
    "{ c = Cast <to = 1> (w) e = Sub (c, z) d = Mul (e, s) y = MatMul (x, d) }",
}


DATA = np.random.default_rng(2).normal(scale=8, size=(2, 4)).astype(np.float32)


def made(body: str) -> Model:
    return load(ir.from_onnx_text(HEAD + body))


def results(model: Model, name: str = "y") -> Any:
    return ReferenceEvaluator(model.to_proto()).run([name], {"x": DATA})[0]


@pytest.mark.cases(fast=14)
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("step", [ConvertDialect(to="qdq"), FoldWeights()], ids=["convert", "fold"])
def test_codes_are_decoded_by_dequantize_linear(step: Any, name: str) -> None:
    model = made(WEIGHTS[name])
    expected, reference = results(model), model.clone()
    report = model.apply(step)
    assert report.count("changed") == 1
    assert not report.count("refused")
    operators = [node.op_type for node in model.nodes()]
    assert operators.count("DequantizeLinear") == 1
    assert "Sub" not in operators
    np.testing.assert_array_equal(results(model), expected)
    assert str(qgraph.prove(reference, model).exactness) == "bits"


@pytest.mark.parametrize("name", WEIGHTS)
def test_info_shows_them(name: str) -> None:
    (found,) = overview(made(WEIGHTS[name]).ir).quantizers
    formats = {"unpacked from bytes": "uint4", "unpacked by arithmetic shifts": "int4"}
    assert (found.weight, found.format) == (True, formats.get(name, "uint8"))


def test_unpacked_codes_are_stored_in_the_type_that_the_opset_has() -> None:
    """The codes of the low halves are those less 8; the high ones are signed."""
    model = made(WEIGHTS["unpacked by arithmetic shifts"])
    model.apply(ConvertDialect(to="qdq"))
    (decode,) = model.nodes("DequantizeLinear")
    codes = decode.inputs[0].const_value
    assert codes.dtype is ir.DataType.INT4
    assert codes.numpy().reshape(-1).tolist() == [-6, 1, 4, -4, 2, -1, -3, 6, -1, 0, -8, -1]
    older = load(
        ir.from_onnx_text(HEAD.replace("21", "18") + WEIGHTS["unpacked by arithmetic shifts"])
    )
    older.apply(ConvertDialect(to="qdq", opset=20))
    (decode,) = older.nodes("DequantizeLinear")
    assert decode.inputs[0].const_value.dtype is ir.DataType.INT8


def test_blocks_below_their_opset_are_refused_with_the_opset() -> None:
    older = load(ir.from_onnx_text(HEAD.replace("21", "18") + WEIGHTS["in groups"]))
    report = older.apply(ConvertDialect(to="qdq", opset=20))
    (site,) = report.sites
    assert (site.outcome, site.reason.id) == ("refused", "QG002")
    assert "allow opset 21" in site.reason


def test_minifloats_are_decoded_too() -> None:
    """The codes are 1, 2, 0.5 and others as bits of FLOAT8E4M3FN."""
    body = "<float8e4m3fn[4,3] w = {56, 64, 48, 57, 66, 1, 9, 120, 200, 0, 128, 100}, "
    body += "float[3] s = {0.1, 0.33, 0.7}> { c = Cast <to = 1> (w) d = Mul (c, s) "
    model = made(body + "y = MatMul (x, d) }")
    expected = results(model)
    report = model.apply(ConvertDialect(to="qdq"))
    assert [site.spelling for site in report if site.spelling] == ["DequantizeLinear"]
    np.testing.assert_array_equal(results(model), expected)


def test_a_zero_point_that_is_no_code_stays() -> None:
    body = WEIGHTS["in float16"].replace("18560", "18561")
    assert not made(body).apply(ConvertDialect(to="qdq")).count("changed")


LOST = """<ir_version: 10, opset_import: ["": 21]>
net (float[2, 4] x) => (float[2, 4] y)
<float k = {10}, float s = {0.1}, float lo = {-128}, float hi = {127}> {
    m = Mul (x, k) r = Round (m) c = Clip (r, lo, hi) y = Mul (c, s)
}"""


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize(
    ("to", "operator"),
    [("qdq", "QuantizeLinear"), ("qonnx", "Quant"), ("openvino", "FakeQuantize")],
)
def test_the_rounding_of_a_lost_quantizer_becomes_one(to: str, operator: str) -> None:
    model = load(ir.from_onnx_text(LOST))
    expected, reference = results(model), model.clone()
    report = model.apply(ConvertDialect(to=to))
    assert (report.count("changed"), report.count("refused")) == (1, 0)
    assert operator in [node.op_type for node in model.nodes()]
    assert str(qgraph.prove(reference, model).verdict) == "proved"
    np.testing.assert_array_equal(model.run({"x": DATA}, backend="numpy")["y"], expected)


@pytest.mark.cases(fast=2, slow=4)
@pytest.mark.parametrize("to", ["qdq", "qonnx", "openvino"])
@pytest.mark.parametrize("first", ["Mul (x, k)", "Div (x, s)"])
def test_pieces_in_float16_are_one_quantizer(to: str, first: str) -> None:
    """k is 10 and s is 0.1 in float16, lo and hi are -128 and 127."""
    constants = (
        "float16 k = {18688}, float16 s = {11878}, float16 lo = {55296}, float16 hi = {22512}"
    )
    model = load(
        ir.from_onnx_text(
            f"""<ir_version: 10, opset_import: ["": 21]>
            net (float16[2, 4] x) => (float16[2, 4] y) <{constants}> {{
                m = {first} r = Round (m) c = Clip (r, lo, hi) y = Mul (c, s)
            }}"""
        )
    )
    data = DATA.astype(np.float16)
    expected = ReferenceEvaluator(model.to_proto()).run(None, {"x": data})[0]
    (found,) = overview(model.ir).quantizers
    assert (found.format, found.weight) == ("int8", False)
    reference = model.clone()
    assert model.apply(ConvertDialect(to=to)).count("changed") == 1
    assert str(qgraph.prove(reference, model).verdict) == "proved"
    np.testing.assert_array_equal(model.run({"x": data}, backend="numpy")["y"], expected)


def test_a_scale_that_enlarges_the_weight_is_compared_and_kept() -> None:
    body = """<int8[3] w = {-2, 0, 1}, float z = {0}, float[2,1] s = {0.8, 0.3}, float[4,2] v = {1,
    2, 3, 4, 5, 6, 7, 8}> {
        c = Cast <to = 1> (w) e = Sub (c, z) d = Mul (e, s) m = MatMul (x, v) y = MatMul (m, d)
    }"""
    model = made(body)
    expected = results(model)
    assert not model.apply(ConvertDialect(to="qdq", exact="bits")).count("changed")
    np.testing.assert_array_equal(results(model), expected)
