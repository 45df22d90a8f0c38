"""Runtimes that do not return: OpenVINO takes twice as long for each If inside another."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qgraph.cli.main import main
from qgraph.comparison import bench
from qgraph.inventory import executed

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
