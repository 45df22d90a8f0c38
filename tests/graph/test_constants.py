"""What counts as constant."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.errors import ModelError
from qgraph.graph.constants import constant, overridable

MODEL = """
<ir_version: 10, opset_import: ["": 21]>
g (float[2] x, float[2] fed) => (float[2] y) <float[2] fed = {5, 6}, float[2] w = {1, -2}> {
    a = Constant <value = float[2] {3, 4}> ()
    f = Constant <value_float = 0.5> ()
    fs = Constant <value_floats = [0.5, 0.25]> ()
    i = Constant <value_int = 7> ()
    empty = Constant <value_ints: ints = []> ()
    text = Constant <value_string = "no number"> ()
    s = Add (x, fed)
    y = Add (s, w)
}"""


@pytest.fixture
def values() -> dict[str, ir.Value]:
    model = ir.from_onnx_text(MODEL)
    return {v.name or "": v for v in ir.convenience.create_value_mapping(model.graph).values()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("w", np.array([1, -2], np.float32)),
        ("a", np.array([3, 4], np.float32)),
        ("f", np.array(0.5, np.float32)),
        ("fs", np.array([0.5, 0.25], np.float32)),
        ("i", np.array(7, np.int64)),
        ("empty", np.array([], np.int64)),
    ],
)
def test_known_values(values: dict[str, ir.Value], name: str, expected: np.ndarray) -> None:
    found = constant(values[name])
    assert found is not None
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("name", ["x", "fed", "s", "y", "text"])
def test_what_can_be_fed_or_is_computed_or_is_text_is_not_constant(
    values: dict[str, ir.Value], name: str
) -> None:
    assert constant(values[name]) is None


def test_an_absent_value_is_not_constant() -> None:
    assert constant(None) is None


def test_a_computed_value_that_another_tool_annotated_is_not_constant(
    values: dict[str, ir.Value],
) -> None:
    values["s"].const_value = ir.tensor(np.zeros(2, np.float32))
    assert constant(values["s"]) is None


def test_a_constant_node_of_another_domain_means_something_else() -> None:
    node = ir.node("Constant", [], {"value_int": 3}, domain="my.domain")
    assert constant(node.outputs[0]) is None


def test_a_constant_that_the_caller_of_a_function_fills_in_is_not_constant() -> None:
    attribute = ir.RefAttr("value_int", "k", ir.AttributeType.INT)
    node = ir.Node("", "Constant", [], [attribute])
    assert constant(node.outputs[0]) is None


def test_narrow_types_have_one_element_for_each_number() -> None:
    packed = onnx.TensorProto(
        data_type=onnx.TensorProto.INT4, dims=[3], raw_data=bytes([0x21, 0x0F]), name="w"
    )
    value = ir.Value(name="w", const_value=ir.serde.deserialize_tensor(packed))
    ir.Graph([], [], nodes=[], initializers=[value])
    found = constant(value)
    assert found is not None
    assert found.dtype == ml_dtypes.int4
    assert found.astype(int).tolist() == [1, 2, -1]


def test_the_array_cannot_be_written_and_the_model_is_safe(values: dict[str, ir.Value]) -> None:
    found = constant(values["w"])
    assert found is not None
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 9


def test_a_tensor_with_too_few_bytes_is_named() -> None:
    short = onnx.TensorProto(data_type=1, dims=[3], raw_data=bytes(8), name="w")
    value = ir.Value(name="w", const_value=ir.serde.deserialize_tensor(short))
    ir.Graph([], [], nodes=[], initializers=[value])
    with pytest.raises(ModelError, match=r"'w'.*FLOAT\[3\].*Export"):
        constant(value)


def test_overridable_lists_initializers_that_are_inputs() -> None:
    graph = ir.from_onnx_text(MODEL).graph
    assert [value.name for value in overridable(graph)] == ["fed"]
