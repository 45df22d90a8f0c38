"""Nodes and parameters that violate a definition, and what the message says about them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import OperatorError
from qgraph.ops.operator import OPERATORS, Operator, operator_of

X = np.ones((2, 3), np.float32)
INT8 = np.asarray(0, np.int8)


def f32(*values):
    array = np.asarray(values, np.float32)
    return array.reshape(()) if array.size == 1 else array


def node_of(name, arrays, attributes):
    known = next(entry for entry in OPERATORS if entry.schema.name == name)
    inputs = [
        None if a is None else ir.Value(name=f"i{i}", type=ir.TensorType(ir.DataType.FLOAT))
        for i, a in enumerate(arrays)
    ]
    return ir.node(name, inputs, attributes, domain=known.schema.domains[0], name="n1")


@pytest.mark.parametrize(
    ("name", "arrays", "attributes", "reason"),
    [
        ("Quant", (X, *f32(1, 0, 2.5)), {}, "bits is 2.5, expected a whole number of at least 1"),
        ("Quant", (X, *f32(1, 0, 0)), {}, "bits is 0"),
        ("Quant", (X, *f32(1, 0, -3)), {}, "bits is -3"),
        ("Quant", (X, *f32(1, 0, np.nan)), {}, "bits is nan"),
        ("Quant", (X, *f32(1, 0, np.inf)), {}, "bits is inf"),
        ("Quant", (X, f32(1, 2), *f32(0, 4)), {}, r"scale has shape \[2\].*\[2, 3\]"),
        ("Quant", (X, f32(1), f32(0, 1), f32(4)), {}, r"zero_point has shape \[2\]"),
        ("Quant", (X.astype(np.int32), *f32(1, 0, 4)), {}, "data is int32.*put a Cast"),
        ("Quant", (X, *f32(1, 0, 4)), {"rounding_mode": "STOCHASTIC_ROUND"}, "ROUND, CEIL, FLOOR"),
        ("Quant", (X, *f32(1, 0, 4)), {"signed": 1.0}, "'signed' is of type FLOAT, expected INT"),
        ("Quant", (X, f32(1), None, f32(4)), {}, "input 'zero_point' is missing"),
        ("Quant", (X, *f32(1, 0)), {}, r"has 3 inputs, expected \(x, scale, zero_point, bits\)"),
        ("Trunc", (X, *f32(1, 0, 8)), {}, r"has 4 inputs, expected .* or \(x, scale"),
        ("Trunc", (X, *f32(1, 0, 8, 3.5)), {}, "out_bits is 3.5"),
        ("Trunc", (X, *f32(1, 0, 0.5, 1, 4)), {}, "in_bits is 0.5"),
        ("FloatQuant", (X, *f32(1, 9, 3, 7, 448)), {}, "exponent_bits is 9.* from 1 to 8"),
        ("FloatQuant", (X, *f32(1, 4, 24, 7, 448)), {}, "mantissa_bits is 24.* from 0 to 23"),
        ("FloatQuant", (X, *f32(1, 4, 3, 7.5, 448)), {}, "exponent_bias is 7.5"),
        ("FloatQuant", (X, *f32(1, 4, 3, 7, 448)), {"saturation": 0}, "overflow has no value"),
        ("FloatQuant", (X.astype(np.float16), *f32(1, 4, 3, 7, 448)), {}, "expected float32"),
        ("FakeQuantize", (X, *f32(0, 1, 0, 1)), {}, "'levels' is absent"),
        ("FakeQuantize", (X, *f32(0, 1, 0, 1)), {"levels": 1}, "1 levels, expected 2 to 16777216"),
        ("FakeQuantize", (X, *f32(0, 1, 0, 1)), {"levels": 1 << 25}, "33554432 levels"),
        ("FakeQuantize", (X, *f32(0, 1, 0, 1)), {"levels": 4.0}, "of type FLOAT, expected INT"),
        ("FakeQuantize", (X, f32(0).reshape(1, 1, 1), *f32(1, 0, 1)), {"levels": 4}, "enlarge"),
        ("FakeQuantize", (X[:1], X, *f32(1, 0, 1)), {"levels": 4}, "enlarge the data"),
        (
            "FakeQuantize",
            (X, *f32(0, 1, 0, 1)),
            {"levels": 4, "auto_broadcast": "pdpd"},
            "expected 'numpy'",
        ),
        ("QuantizeLinear", (X, f32(1, 2), None), {}, r"shape \[2\].*axis 1 needs shape \[3\]"),
        ("QuantizeLinear", (X, f32(1, 2), None), {"axis": 5}, "axis 5 does not exist"),
        ("QuantizeLinear", (X, np.ones((2, 1), np.float32), None), {}, r"needs shape \[3\]"),
        (
            "QuantizeLinear",
            (X, np.ones((2, 3), np.float32), None),
            {"block_size": 2},
            r"blocks of 2 along axis 1 needs shape \[2, 2\]",
        ),
        ("QuantizeLinear", (X, f32(1, 2), INT8), {"axis": 0}, "zero point has shape"),
        ("QuantizeLinear", (X, f32(1), np.asarray(0, np.int32)), {}, "codes would be INT32"),
        ("QuantizeLinear", (X, f32(1), INT8), {"output_dtype": 2}, "output_dtype is UINT8"),
        (
            "QuantizeLinear",
            (X, f32(1), np.asarray(1, ml_dtypes.float8_e5m2)),
            {},
            "zero point of type FLOAT8E5M2 is not 0",
        ),
        ("DequantizeLinear", (X, f32(1)), {}, "data is float32, expected codes"),
        (
            "DequantizeLinear",
            (X.astype(np.int8), f32(1), np.asarray(1, np.uint8)),
            {},
            "zero point is uint8 and its data int8",
        ),
        (
            "DequantizeLinear",
            (X.astype(np.int8), np.asarray(1, ml_dtypes.float8_e8m0fnu)),
            {},
            "Set output_dtype",
        ),
        ("Clip", (X, f32(1, 2)), {}, "expected a scalar"),
        ("Cast", (X,), {"to": ir.DataType.STRING}, "'STRING' has no NumPy dtype"),
        ("Cast", (X,), {"to": 999}, "999"),
        ("Cast", (X,), {"to": 1, "round_mode": "even"}, "expected up, down or nearest"),
    ],
)
def test_the_message_says_where_and_why(name, arrays, attributes, reason):
    node = node_of(name, arrays, attributes)
    with pytest.raises(OperatorError, match=reason) as caught:
        operator_of(node).run(node, arrays)
    assert str(caught.value).startswith(f"{name} 'n1'")


def test_definitions_refuse_overflow_without_a_value():
    node = node_of("FloatQuant", (X, *f32(1, 4, 3, 7, 448)), {"saturation": 0})
    operator = operator_of(node)
    with pytest.raises(ValueError, match="overflow has no value"):
        operator.define(None, *node.inputs, **operator.arguments(node))


FLOAT16 = ir.Value(name="h", type=ir.TensorType(ir.DataType.FLOAT16))
FLOAT = ir.Value(name="f", type=ir.TensorType(ir.DataType.FLOAT))
INT32 = ir.Value(name="i", type=ir.TensorType(ir.DataType.INT32))


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "reason"),
    [
        ("BipolarQuant", (FLOAT16, FLOAT), {}, "its data is FLOAT16"),
        ("QuantizeLinear", (FLOAT16, FLOAT), {}, "its data is FLOAT16"),
        ("QuantizeLinear", (FLOAT, FLOAT16), {}, "its scale is FLOAT16"),
        ("QuantizeLinear", (FLOAT, FLOAT), {"precision": 10}, "its precision is FLOAT16"),
        ("DequantizeLinear", (INT32, FLOAT16), {}, "its scale is FLOAT16"),
        ("DequantizeLinear", (INT32, FLOAT), {"output_dtype": 10}, "its output_dtype is FLOAT16"),
        ("DequantizeLinear", (INT32, FLOAT, INT32), {}, "INT32 and not 0"),
    ],
)
def test_definitions_are_refused_outside_float32(name, inputs, attributes, reason):
    """The kernels compute these; a proof in float32 would be about something else."""
    known = next(entry for entry in OPERATORS if entry.schema.name == name)
    node = ir.node(name, inputs, attributes, domain=known.schema.domains[0], name="n1")
    with pytest.raises(OperatorError, match=reason):
        operator_of(node).arguments(node)


def test_int32_codes_with_a_zero_point_of_zero_have_a_definition():
    zero = ir.node("Constant", [], {"value": ir.tensor(np.zeros(3, np.int32))}).outputs[0]
    node = ir.node("DequantizeLinear", [INT32, FLOAT, zero])
    assert operator_of(node).arguments(node)["axis"] == 1


def test_an_untyped_zero_point_leaves_the_type_open():
    inputs = [ir.Value(name=name) for name in ("x", "s", "z")]
    node = ir.node("QuantizeLinear", inputs, name="n1")
    with pytest.raises(OperatorError, match="type of its zero point 'z' is unknown"):
        operator_of(node).arguments(node)


def test_attributes_left_to_the_caller_of_a_function():
    reference = ir.RefAttr("signed", "outer", ir.AttributeType.INT)
    node = node_of("Quant", (X, *f32(1, 0, 4)), {"signed": reference})
    with pytest.raises(OperatorError, match="refers to an attribute of the function"):
        operator_of(node).arguments(node)


PARAMETERS = {
    "zero_point": 0,
    "bits": 4,
    "in_bits": 8,
    "out_bits": 4,
    "out_scale": 1,
    "exponent_bits": 4,
    "mantissa_bits": 3,
    "exponent_bias": 7,
    "max_value": 240,
}


@pytest.mark.parametrize("scale", [0, -1, np.inf, np.nan, 1e-45, 3e38])
@pytest.mark.parametrize(
    "operator",
    [each for each in OPERATORS if each.schema.inputs[:2] == ("x", "scale")],
    ids=lambda each: f"{each.schema.name}-{each.schema.since}",
)
def test_no_scale_is_refused_for_its_numbers(operator: Operator, scale: float) -> None:
    schema = operator.schema
    numbers = PARAMETERS | {"scale": scale}
    data = np.zeros(3, np.int8 if schema.name == "DequantizeLinear" else np.float32)
    parameters = [np.float32(numbers[name]) for name in schema.inputs[1:]]
    if schema.standard:
        parameters[1] = np.int8(0)
    attributes = {each.name: each.parse(each.default) for each in schema.attributes}
    assert operator.kernel(data, *parameters, **attributes).shape == data.shape
