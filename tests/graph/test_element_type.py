"""Types that a model does not state."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph import transforms
from qgraph.graph.schema import element_type
from qgraph.model import load

HEADER = '<ir_version: 10, opset_import: ["": 21]>'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("t = Cast <to = 2> (x) v = Relu(t)", "UINT8"),
        ("t = Relu(x) v = Transpose(t)", "FLOAT"),
        ("v = QuantizeLinear(x, s, z)", "INT8"),
        ("v = QuantizeLinear <output_dtype = 21> (x, s)", "UINT4"),
        ("t = Shape(x) v = Abs(t)", None),
        ("v, i = TopK(x, k)", "FLOAT"),
        ("c = Constant <value_ints = [1, 2]> () v = Flatten(c)", "INT64"),
        (
            """n, v = Loop (k, , k) <body = b (int64 i, bool c, int64[1] n) =>
                (bool d, int64[1] m, float[4] e) { d = Identity (c) m = Neg (n) e = Relu (x) }>""",
            None,
        ),
    ],
)
def test_types_follow_from_operators(body, expected):
    model = ir.from_onnx_text(
        f"{HEADER} g (float[4] x, int64[1] k) => (float[4] y) "
        f"<float s = {{0.5}}, int8 z = {{0}}> {{ {body} y = Identity(x) }}"
    )
    (value,) = [v for node in model.graph for v in node.outputs if v.name == "v"]
    found = element_type(value, model.opset_imports)
    assert (found.name if found else None) == expected


def test_types_do_not_depend_on_shapes():
    """The shape of the data, a result of a Reshape to a computed shape, is not known."""
    model = load(
        ir.from_onnx_text(
            f"{HEADER} g (float16[N] x, int64[K] k) => (float16[A,B,C] y) "
            "<float16 s = {11878}, int16 z = {189}> { "
            "t = Reshape (x, k) u, v = Split <axis = 1, num_outputs = 2> (t) "
            "q = QuantizeLinear (u, s, z) y = DequantizeLinear (q, s, z) }"
        )
    )
    model.apply(transforms.ConvertDialect(to="qonnx"))
    assert [node.op_type for node in model.nodes()][2:] == ["Quant", "Clip"]
    onnx.checker.check_model(model.to_proto(), full_check=True)


def test_integers_of_no_stated_type_are_no_data_of_quantizers():
    model = load(
        ir.from_onnx_text(
            f"{HEADER} g (float[4] x) => (float[4] y) <float one = {{1}}, uint8 z = {{0}}> {{ "
            "c = Cast <to = 2> (x) d = Abs(c) q = Cast <to = 21> (d) e = Cast <to = 2> (q) "
            "y = DequantizeLinear(e, one, z) }"
        )
    )
    x = np.array([0, 3, 15, 200], np.float32)
    before = model.run({"x": x}, backend="numpy")["y"]
    model.apply(transforms.ConvertDialect(to="qonnx"))
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], before)


def test_a_body_is_not_said_in_the_operator_that_it_defines():
    quant = '<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>'
    model = load(
        ir.from_onnx_text(
            f"{quant} g (float[4] x) => (float[4] y) <float s = {{0.5}}> {{ "
            "y = qonnx.custom_op.general.BipolarQuant(x, s) }"
        )
    )
    model.apply(transforms.MakePortable(), transforms.ConvertDialect(to="qonnx"))
    found = model.run({"x": np.array([-2, -0.1, 0, 3], np.float32)}, backend="numpy")["y"]
    np.testing.assert_array_equal(found, [-0.5, -0.5, 0.5, 0.5])


def test_an_attribute_without_a_name_is_no_type():
    model = ir.from_onnx_text(f"{HEADER} g (float[4] x) => (float[4] y) {{ y = Relu (x) }}")
    (node,) = model.graph
    node.attributes.add(ir.AttrInt64s("", [1]))
    node.outputs[0].dtype = None
    assert element_type(node.outputs[0], model.opset_imports) is ir.DataType.FLOAT
