"""A draft that computes in another element type than the nodes it stands for is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qgraph
from qgraph.transforms import ConvertDialect


def model() -> onnx.ModelProto:
    """A weight of FP8 with a float16 scale, which float32 holds as well, beside float16 data."""
    codes = np.arange(8, dtype=np.float32).reshape(2, 4).astype(ml_dtypes.float8_e4m3fn)
    kind = TensorProto.FLOAT8E4M3FN
    stored = [
        helper.make_tensor("w", kind, [2, 4], codes.tobytes(), raw=True),
        helper.make_tensor("z", kind, [], b"\0", raw=True),
        helper.make_tensor("s", TensorProto.FLOAT16, [], np.float16(0.0078125).tobytes(), raw=True),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], "decode"),
        helper.make_node("Add", ["x", "d"], ["y"], "sum"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, [2, 4]) for n in "xy"]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("to", ["qdq", "qonnx", "openvino", "onnx"])
def test_the_result_is_valid_at_full_check(to):
    x = {"x": np.full((2, 4), 0.5, np.float16)}
    original = qgraph.load(model())
    converted = original.clone()
    converted.apply(ConvertDialect(to=to))
    onnx.checker.check_model(converted.to_proto(), full_check=True)
    before, after = (m.run(x, backend="numpy")["y"] for m in (original, converted))
    assert before.dtype == after.dtype == np.float16
    np.testing.assert_array_equal(before, after)


DECODED = """<ir_version: 10, opset_import: ["": 21]> net (float16[4] x) => (float16[4] y)
<KIND[4] w = {0, 5, 100, LAST}, float16 s = {8192}, KIND z = {3}> {
    d = DequantizeLinear (w, s, z)
    y = Add (x, d)
}"""


@pytest.mark.parametrize(
    ("kind", "last", "spelling"), [("uint8", 255, "Cast+Sub+Mul"), ("uint16", 4098, None)]
)
def test_integer_codes_are_decoded_in_float16_where_it_holds_them(kind, last, spelling):
    """4098 is no float16 number: 4098 - 3 would be 4096 - 3."""
    text = DECODED.replace("KIND", kind).replace("LAST", str(last))
    decoded = qgraph.load(onnx.parser.parse_model(text))
    (entry,) = decoded.apply(ConvertDialect(to="onnx")).sites
    assert entry.spelling == spelling
    if spelling is not None:
        scale = np.uint16(8192).view(np.float16)  # 2**-7
        expected = (np.array([0, 5, 100, last]) - 3) * float(scale)
        y = decoded.run({"x": np.zeros(4, np.float16)}, backend="numpy")["y"]
        assert y.dtype == np.float16
        np.testing.assert_array_equal(y.astype(float), expected)
