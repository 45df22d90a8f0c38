"""Times of models, and the kernels that a runtime executes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from qgraph.cli.main import main
from qgraph.comparison.bench import BenchReport, ModelTime, Timing, bench
from qgraph.errors import ExecutionError, OptionError
from qgraph.inventory.kernels import Kernels, of_onnxruntime
from qgraph.reporting.pages import markdown_report

PRODUCT = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N,32] x) => (float[N,32] y) {
    y = MatMul(x, w)
}
"""
CODES = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N,32] x) => (float[N,32] y) {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    e = DequantizeLinear(w, s, v)
    p = MatMul(d, e)
    r = QuantizeLinear(p, s, z)
    y = DequantizeLinear(r, s, z)
}
"""


def model(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    parsed = onnx.parser.parse_model(text)
    parsed.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    return parsed


@pytest.fixture
def product(tmp_path: Path) -> Path:
    path = tmp_path / "product.onnx"
    onnx.save(model(PRODUCT, w=np.eye(32, dtype=np.float32)), path)
    return path


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    path = tmp_path / "codes.onnx"
    eye, scale = np.eye(32, dtype=np.int8), np.float32(0.1)
    constants = {"w": eye, "s": scale, "z": np.uint8(0), "v": np.int8(0)}
    onnx.save(model(CODES, **{n: np.asarray(x) for n, x in constants.items()}), path)
    return path


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "numpy"])
def test_models_are_timed_and_their_kernels_named(runtime, product, codes):
    pytest.importorskip(runtime)
    found = bench([product, codes], Timing(runtime, rounds=2, batch=4))
    assert [time.path for time in found.models] == [str(product), str(codes)]
    first, second = found.models
    assert first.ratio == 1
    assert 0 < second.low_ms <= second.median_ms <= second.high_ms
    assert (first.kernels.integer_nodes, first.kernels.float_nodes) == (0, 1)
    expected = (0, 1) if runtime == "numpy" else (1, 0)
    assert (second.kernels.integer_nodes, second.kernels.float_nodes) == expected


@pytest.mark.slow
def test_a_model_that_the_runtime_refuses_is_named(tmp_path):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "quant.onnx"
    text = PRODUCT.replace("MatMul(x, w)", "com.example.Unknown(x)").replace(
        '"" : 21', '"" : 21, "com.example" : 1'
    )
    onnx.save(model(text), path)
    with pytest.raises(ExecutionError, match=r"quant\.onnx: onnxruntime does not run it .*Unknown"):
        bench([path], Timing(rounds=1))


@pytest.mark.slow
def test_an_option_that_the_runtime_refuses_is_told(product):
    pytest.importorskip("openvino")
    settings = {"INFERENCE_PRECISION_HINT": "f32", "session.disable_quant_qdq": "1"}
    with pytest.raises(OptionError, match="openvino refuses the option session"):
        bench([product], Timing("openvino", rounds=1, options=settings))
    with pytest.raises(OptionError, match="NumPy has no session options"):
        bench([product], Timing("numpy", rounds=1, options=settings))


def test_integer_kernels_are_counted_in_branches_too(tmp_path):
    inner = onnx.parser.parse_model(PRODUCT).graph
    branches = {"then_branch": inner, "else_branch": inner}
    choice = onnx.helper.make_node("If", ["c"], ["y"], "choice", **branches)
    layer = onnx.helper.make_node("QLinearConv", ["a"], ["b"], "conv1")
    other = onnx.helper.make_node("Relu", ["b"], ["c"], "relu1")
    graph = onnx.helper.make_graph([layer, other, choice], "g", [], [])
    path = tmp_path / "optimized.onnx"
    onnx.save(onnx.helper.make_model(graph), path)
    nodes = of_onnxruntime(path)
    found = Kernels.of(nodes)
    assert found.counts == {"MatMul": 2, "QLinearConv": 1, "Relu": 1, "If": 1}
    assert (found.integer_nodes, found.float_nodes) == (1, 2)
    known = {node.names: node for node in nodes}
    assert (known["conv1"].is_product, known["conv1"].on_codes) == (True, True)
    assert not known["relu1"].is_product


def test_the_page_compares_with_the_first_model():
    kernels = Kernels({"Conv": 2}, 0, 2), Kernels({"QLinearConv": 2}, 2, 0)
    times = [
        ModelTime(f"{ms:g}.onnx", ms, ms, ms, ms / 8, 1.0, 1.0, None, each)
        for ms, each in zip((8.0, 2.0), kernels, strict=True)
    ]
    text = markdown_report(BenchReport("onnxruntime 1", Timing(), times).to_json())
    assert "4.00 times as fast as the first" in text
    assert "2 QLinearConv" in text


def test_wrong_settings_are_told(product, tmp_path, capsys):
    with pytest.raises(OptionError, match="runtime is 'tvm', expected one of onnxruntime"):
        Timing(runtime="tvm")
    with pytest.raises(OptionError, match="rounds is 0"):
        Timing(rounds=0)
    with pytest.raises(OptionError, match="no model to time"):
        bench([])
    fixed = tmp_path / "fixed.onnx"
    proto = onnx.load(product)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(proto, fixed)
    assert main(["bench", str(fixed), "--batch", "3", "--runtime", "numpy"]) == 2
    assert "fixed batch size 2, but 3 is asked for" in capsys.readouterr().err


@pytest.mark.slow
def test_the_report_has_the_fields_of_the_interface(product, tmp_path):
    report = tmp_path / "bench.json"
    command = ["bench", str(product), "--runtime", "numpy", "--rounds", "2"]
    assert main([*command, "--report", str(report)]) == 0
    document = json.loads(report.read_text())
    fields = {"qgraph", "schema", "command", "runtime", "threads", "batch", "models"}
    assert fields <= set(document)
    wanted = {"path", "median_ms", "low_ms", "high_ms", "ratio", "first_run_ms", "load_ms"}
    wanted |= {"peak_mb", "integer_nodes", "float_nodes", "kernels"}
    assert wanted <= set(document["models"][0])
