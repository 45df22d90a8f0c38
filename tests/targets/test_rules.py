"""What rules about runtimes see of a node, wherever its parameters are stored."""

from __future__ import annotations

import onnx
import pytest

import qgraph
from qgraph.targets.layer import Granularity
from qgraph.targets.rules import node_forms

STORED = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 3] x) => (float[3, 2] y)
    <float[3] s = {0.5, 1, 2}, float8e4m3fnuz[3] z = {0, 0, 0}> {
        q = QuantizeLinear (x, s, z)
        t = Transpose (q)
        y = DequantizeLinear <axis = 0> (t, s)
    }"""


def constants(text: str) -> onnx.ModelProto:
    """Return a model whose initializers are Constant nodes."""
    model = onnx.parser.parse_model(text)
    nodes = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in model.graph.initializer
    ]
    del model.graph.initializer[:]
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


@pytest.mark.parametrize("read", [onnx.parser.parse_model, constants])
def test_types_and_scales_are_seen(read) -> None:
    model = read(STORED)
    onnx.checker.check_model(model, full_check=True)
    forms = [form for form in node_forms(qgraph.load(model).ir) if "Linear" in form.name]
    assert [form.codes for form in forms] == ["FLOAT8E4M3FNUZ"] * 2
    assert [form.granularity for form in forms] == [Granularity.AXIS] * 2
    assert [form.scale for form in forms] == ["FLOAT"] * 2


@pytest.mark.parametrize("read", [onnx.parser.parse_model, constants])
def test_runtimes_that_refuse_codes_are_known(read) -> None:
    runtimes = {each.runtime: each for each in qgraph.info(read(STORED)).runtimes}
    assert str(runtimes["openvino-cpu"].loads) == "no"
    openvino = pytest.importorskip("openvino")
    with pytest.raises(RuntimeError):
        openvino.Core().read_model(read(STORED).SerializeToString())


@pytest.mark.runtime
def test_rules_of_an_operator_do_not_hold_for_its_name_in_another_domain() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "trt": 1]>
    g (float[2, 4] x) => (float[2, 4] y)
    <int8[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, float s = {0.5}> {
        d = trt.DequantizeLinear (w, s)
        y = MatMul (x, d)
    }""")
    runtimes = {each.runtime: str(each.loads) for each in qgraph.info(model).runtimes}
    assert runtimes["onnxruntime-cpu"] == "unknown"
    session = pytest.importorskip("onnxruntime").InferenceSession
    with pytest.raises(Exception, match="trt:DequantizeLinear"):
        session(model.SerializeToString(), providers=["CPUExecutionProvider"])
