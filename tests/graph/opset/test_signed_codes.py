"""Models with signed codes stay loadable by ONNX Runtime when their opset is raised to 21."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qgraph import Model, load
from qgraph.graph.opset.versions import ceiling, require
from qgraph.transforms import parse_spec

FOLLOWERS = {
    "Reshape": "y = Reshape (d, shape)",
    "Transpose": "t = Transpose <perm = [0, 2, 1]> (d) y = Relu (t)",
    "Squeeze": "t = Squeeze (d, axis) y = Relu (t)",
    "Unsqueeze": "t = Unsqueeze (d, axis) y = Relu (t)",
    "Slice": "t = Slice (d, axis, one, one) y = Relu (t)",
    "MatMul and Add": "m = MatMul (d, w) y = Add (m, b)",
    "Add and MatMul": "m = MatMul (d, w) y = Add (b, m)",
}


def model_of(follower: str, *, point: int, kind: str = "int8", opset: int = 13) -> Model:
    weights = ", ".join(["1", "-2", "3", "-4"] * 4)
    return load(
        ir.from_onnx_text(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        g (float[1, 4, 4] x) => (y)
        <float s = {{0.5}}, {kind} z = {{{point}}}, float[4, 4] w = {{{weights}}},
         float[4] b = {{1, 2, 3, 4}}, int64[1] axis = {{0}}, int64[1] one = {{1}},
         int64[2] shape = {{4, 4}}, int8[4, 1] c = {{1, -2, 3, 1}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            {follower}
        }}""")
    )


def outputs(model: Model, x: Any) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    content = ir.to_proto(model.ir).SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("follower", FOLLOWERS.values(), ids=FOLLOWERS)
def test_zero_point_that_is_zero_is_left_out(follower: str) -> None:
    model = model_of(follower, point=0)
    x = np.arange(-8, 8, dtype=np.float32).reshape(1, 4, 4)
    before = outputs(model, x)
    assert require(model.ir, 21)
    (decode,) = model.nodes("DequantizeLinear")
    assert len(decode.inputs) == 2
    np.testing.assert_array_equal(outputs(model, x), before)


@pytest.mark.parametrize("follower", FOLLOWERS.values(), ids=FOLLOWERS)
def test_usual_opset_is_lower_for_other_zero_points(follower: str) -> None:
    assert ceiling(model_of(follower, point=3).ir) == 20
    assert ceiling(model_of(follower, point=0).ir) == 21
    assert ceiling(model_of(follower, point=3, kind="uint8").ir) == 21
    assert ceiling(model_of(follower, point=3).ir, 21) == 21
    assert ceiling(model_of(follower, point=3, opset=22).ir) == 22


def test_operators_that_compute_need_no_lower_opset() -> None:
    assert ceiling(model_of("y = Relu (d)", point=3).ir) == 21


def test_weights_of_few_bits_stay_bytes_where_the_opset_is_limited() -> None:
    model = model_of(
        "t = Transpose <perm = [0, 2, 1]> (d) v = DequantizeLinear (c, s) y = MatMul (t, v)",
        point=3,
    )
    x = np.arange(-8, 8, dtype=np.float32).reshape(1, 4, 4)
    before = outputs(model, x)
    model.apply(parse_spec("repack"))
    np.testing.assert_array_equal(outputs(model, x), before)
    assert model.ir.opset_imports[""] <= 20


def test_unused_zero_point_goes_with_its_node() -> None:
    model = model_of("y = Transpose (d)", point=0)
    decode = next(iter(model.nodes("DequantizeLinear")))
    own = ir.Value(
        name="own", const_value=ir.Tensor(np.int8(0)), type=ir.TensorType(ir.DataType.INT8)
    )
    model.ir.graph.register_initializer(own)
    decode.replace_input_with(2, own)
    require(model.ir, 21)
    assert "own" not in model.ir.graph.initializers
    assert "z" in model.ir.graph.initializers
