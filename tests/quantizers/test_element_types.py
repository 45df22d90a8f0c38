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
