"""Before opset 11, a Clip that states no bounds has finite ones, so infinities become finite."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import qgraph
from qgraph.proof.matching.normalise import flat


def model(operator: str, opset: int = 10) -> ir.Model:
    return ir.from_onnx_text(f"""<ir_version: 5, opset_import: ["": {opset}]>
    net (float[4] x) => (float[4] y) {{ y = {operator} (x) }}""")


LARGEST = np.finfo(np.float32).max
DATA = np.float32([-np.inf, -1, 2, np.inf])


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("Clip", [-LARGEST, -1, 2, LARGEST]),
        ("Clip <min = 0.0>", [0, 0, 2, LARGEST]),
        ("Clip <max = 1.0>", [-LARGEST, -1, 1, 1]),
        ("Clip <min = -1.0, max = inf>", [-1, -1, 2, np.inf]),
    ],
)
def test_clips_of_opset_10_have_the_bounds_that_onnx_runtime_has(operator, expected) -> None:
    own = model(operator.replace(", max = inf", ""))
    if "inf" in operator:
        own.graph[0].attributes["max"] = ir.AttrFloat32("max", np.inf)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = ir.to_proto(own).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": DATA})[0], np.float32(expected))
    low, high = (flat(own).graph[0].attributes[name].as_float() for name in ("min", "max"))
    np.testing.assert_array_equal(np.clip(DATA, low, high), np.float32(expected))
    if operator != "Clip":
        result = qgraph.Model(own).run({"x": DATA}, backend="numpy")["y"]
        np.testing.assert_array_equal(result, np.float32(expected))


@pytest.mark.slow
def test_a_clip_of_opset_10_without_bounds_is_not_nothing() -> None:
    pair = qgraph.Model(model("Clip")), qgraph.Model(model("Identity"))
    assert qgraph.prove(*pair).verdict == "different"


def test_a_clip_of_opset_11_may_have_no_bounds() -> None:
    pair = qgraph.Model(model("Clip", 11)), qgraph.Model(model("Identity", 11))
    assert qgraph.prove(*pair).verdict in ("proved", "undecided")
