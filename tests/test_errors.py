"""Messages of errors of other programs."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from qgraph.errors import runtime_message


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
