"""Kernels that are found by name, and runtimes that do not return.

OpenVINO takes twice as long for each If inside another.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qgraph.cli.main import main
from qgraph.comparison import bench
from qgraph.inventory import executed
from qgraph.model import load

DEPTH = 24


def branches(depth: int) -> onnx.GraphProto:
    """Return a graph that chooses between ``-h`` and a graph of less depth, in an If."""
    out = f"then{depth}"
    node = onnx.helper.make_node("Relu", ["h"], [out])
    if depth:
        node = choice(depth, out)
    return onnx.helper.make_graph([node], out, [], [floats(out)])


def choice(depth: int, out: str) -> onnx.NodeProto:
    other = f"else{depth}"
    negated = onnx.helper.make_node("Neg", ["h"], [other])
    graphs = branches(depth - 1), onnx.helper.make_graph([negated], other, [], [floats(other)])
    then_branch, else_branch = graphs
    return onnx.helper.make_node(
        "If", ["c"], [out], then_branch=then_branch, else_branch=else_branch
    )


def floats(name: str) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1])


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    net (float[1,1] x, bool c) => (float[1,1] y)
    <float s = {0.5}, uint8 z = {0}, int8 o = {0}, int8[1,1] w = {1}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        v = DequantizeLinear (w, s, o)
        p = MatMul (d, v)
        r = QuantizeLinear (p, s, z)
        h = DequantizeLinear (r, s, z)
        y = Relu (h)
    }""")
    del model.graph.node[-1]
    model.graph.node.append(choice(DEPTH, "y"))
    onnx.checker.check_model(model)
    path = tmp_path / "nested.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.slow
@pytest.mark.runtime
def test_a_kernel_has_the_names_of_all_operators_that_it_computes():
    """OpenVINO 2026.4.1 names this one after BatchNormalization and LeakyRelu, not after Conv."""
    pytest.importorskip("openvino")
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    net (float[1,16,8,8] x) => (float[1,16,4,4] y)
    <float s = {0.03}, uint8 z = {0}, float t = {0.002}, int8 o = {0}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        e = DequantizeLinear (w, t, o)
        [conv] c = Conv (d, e)
        b = BatchNormalization (c, g, h, h, g)
        u = QuantizeLinear (b, s, z)
        v = DequantizeLinear (u, s, z)
        l = LeakyRelu <alpha = 1.0> (v)
        y = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (l)
    }""")
    random = np.random.default_rng(0)
    arrays = {
        "w": random.integers(-64, 64, (16, 16, 1, 1)).astype(np.int8),
        "g": random.uniform(0.5, 1, 16).astype(np.float32),
        "h": random.normal(size=16).astype(np.float32),
    }
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    (layer,) = executed.executed(load(proto).ir, "openvino").layers
    assert (layer.node, layer.kernel, layer.is_integer) == ("conv", "Convolution u8", True)


@pytest.mark.slow
@pytest.mark.runtime
def test_a_runtime_that_does_not_return_ends_the_command(
    nested: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("openvino")
    for module in (executed, bench):
        monkeypatch.setattr(module, "LOADING_SECONDS", 1)
    out = tmp_path / "out.onnx"
    assert main(["deploy", str(nested), "--target", "openvino-cpu", "-o", str(out)]) == 3
    text = " ".join(capsys.readouterr().err.split())
    assert f"If producing 'y' in graph 'net', graphs {DEPTH} deep: openvino has not loaded" in text
    assert not out.exists()
    assert main(["bench", str(nested), "--runtime", "openvino"]) == 3
    assert "the runtime has not loaded it and run it within 1 s" in capsys.readouterr().err
