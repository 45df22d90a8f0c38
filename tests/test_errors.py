"""Messages of errors of other programs."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qgraph.errors import runtime_message
from tests.conftest import openvino_core


@pytest.mark.runtime
def test_messages_of_a_runtime_name_no_place_in_its_source():
    runtime = pytest.importorskip("onnxruntime")
    graph = onnx.helper.make_graph([], "empty", [], [])
    opsets = [onnx.helper.make_opsetid("", 21)]
    empty = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match=r"/onnxruntime/core/\S+\.cc:\d+ ") as found:
        runtime.InferenceSession(empty.SerializeToString(), options)
    text = runtime_message(found.value, Path("/none"))
    assert text.startswith("Exception during initialization: ort_value_name_idx_map.MaxIdx() > -1")


@pytest.mark.runtime
def test_operators_that_openvino_does_not_have_are_named(tmp_path: Path) -> None:
    core = openvino_core()
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "other": 1]>
    net (float[2] x) => (float[2] y) { y = other.Unheard (x) }""")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(RuntimeError, match="Unheard") as found:
        core.compile_model(tmp_path / "m.onnx", "CPU")
    assert "No conversion rule found for operations: other.Unheard" in runtime_message(
        found.value, tmp_path
    )
