"""A file of many nodes is loaded after it was written: one node of each form stands for the others.

What is expected of the part is what reading the whole file gives.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

from qgraph.errors import ModelError
from qgraph.model import load
from qgraph.storage.files import from_proto
from qgraph.storage.forms import keep_one_of_each_form

LINES = " ".join(
    f"r{i} = Relu (m{i - 1}) [n{i}] m{i} = Clip (r{i}, l, h) s{i} = Sum (m{i}, r{i}, m{i})"
    for i in range(1, 9)
)
MODEL = f"""<ir_version: 10, opset_import: ["": 21]>
g (float[N,4] m0) => (float[N,4] m8, float[N,4] s3)
<float l = {{-1}}, float h = {{1}}> {{ {LINES} }}"""


def model() -> onnx.ModelProto:
    """Return a chain of 24 nodes of three forms; the type of each value is stated."""
    proto = onnx.parser.parse_model(MODEL)
    results = {each.name for each in proto.graph.output}
    for node in [each for each in proto.graph.node if each.output[0] not in results]:
        info = onnx.ValueInfoProto()
        info.CopyFrom(proto.graph.input[0])
        info.name = node.output[0]
        proto.graph.value_info.append(info)
    return proto


def undefined_input(proto: onnx.ModelProto) -> None:
    """Use a value that nothing gives."""
    proto.graph.node[22].input[0] = "nowhere"


def output_twice(proto: onnx.ModelProto) -> None:
    """Give the name of another value."""
    proto.graph.node[20].output[0] = "s3"


def no_input(proto: onnx.ModelProto) -> None:
    """Leave out an input that is needed."""
    proto.graph.node[22].input[0] = ""


def too_many_inputs(proto: onnx.ModelProto) -> None:
    """Add an input that Relu has not."""
    proto.graph.node[21].input.append("l")


def no_output(proto: onnx.ModelProto) -> None:
    """Leave out all outputs of a node."""
    del proto.graph.node[23].output[:]


def untyped_attribute(proto: onnx.ModelProto) -> None:
    """Add an attribute without type and value."""
    proto.graph.node[21].attribute.add(name="alpha")


def refused_type(proto: onnx.ModelProto) -> None:
    """State a type of a late value that no data have."""
    proto.graph.value_info[20].type.tensor_type.elem_type = 99


def text(proto: onnx.ModelProto) -> None:
    """State that a late value is text, and let an operator use it that takes numbers."""
    proto.graph.value_info[20].type.tensor_type.elem_type = onnx.TensorProto.STRING
    proto.graph.node[21].input[0] = proto.graph.value_info[20].name


def cycle(proto: onnx.ModelProto) -> None:
    """Let an early node use a late result."""
    proto.graph.node[3].input[0] = "m8"


def no_such_result(proto: onnx.ModelProto) -> None:
    """Let the graph return what no node gives."""
    proto.graph.output[0].name = "nowhere"


def broken_tensor(proto: onnx.ModelProto) -> None:
    """Let a late Constant of many hold fewer numbers than its shape says."""
    for i in range(20):
        value = onnx.TensorProto(data_type=1, dims=[2], raw_data=bytes(8 if i < 19 else 4))
        proto.graph.node.add(op_type="Constant", output=[f"c{i}"]).attribute.append(
            onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=value)
        )


def short_initializer(proto: onnx.ModelProto) -> None:
    """Let a late initializer of many, which nothing uses, hold less than its shape says."""
    for i in range(20):
        content = bytes(8 if i < 19 else 4)
        proto.graph.initializer.add(name=f"i{i}", data_type=1, dims=[2], raw_data=content)


def text_constant(proto: onnx.ModelProto) -> None:
    """Let an operator on numbers use the last of many Constants, which is text."""
    for i in range(20):
        kind = onnx.TensorProto.STRING if i == 19 else onnx.TensorProto.FLOAT
        value = onnx.TensorProto(data_type=kind, dims=[1])
        (value.string_data if i == 19 else value.float_data).append(b"a" if i == 19 else 1.0)
        proto.graph.node.add(op_type="Constant", output=[f"c{i}"]).attribute.append(
            onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=value)
        )
        proto.graph.node.add(op_type="Neg", input=[f"c{i}"], output=[f"n{i}"])


FAULTS = (
    undefined_input,
    output_twice,
    no_input,
    too_many_inputs,
    no_output,
    untyped_attribute,
    refused_type,
    text,
    cycle,
    no_such_result,
    broken_tensor,
    short_initializer,
    text_constant,
)


def is_readable(proto: onnx.ModelProto) -> bool:
    """Return whether a message is a model."""
    try:
        from_proto(proto)
    except ModelError:
        return False
    return True


def is_part_readable(proto: onnx.ModelProto) -> bool:
    """Return whether there is a part of a message that is a model."""
    return keep_one_of_each_form(proto) and is_readable(proto)


def test_a_part_of_a_good_file_is_readable_and_has_a_node_of_each_form() -> None:
    proto = model()
    for i in range(20):
        proto.graph.initializer.add(name=f"i{i}", data_type=1, dims=[2], raw_data=bytes(8))
    assert is_part_readable(proto)
    assert sorted(node.op_type for node in proto.graph.node) == ["Clip", "Relu", "Sum"]
    assert sorted(tensor.name for tensor in proto.graph.initializer) == ["h", "i0", "l"]


@pytest.mark.parametrize("fault", FAULTS)
def test_no_part_of_a_broken_file_is_readable(fault: Callable[[onnx.ModelProto], None]) -> None:
    proto = model()
    fault(proto)
    assert not is_readable(proto), "this is no fault"
    assert not is_part_readable(proto)


def test_files_without_such_a_part_are_left_as_they_are() -> None:
    late, nested, called = model(), model(), model()
    late.graph.node.insert(0, late.graph.node.pop())
    body = onnx.GraphProto(name="body")
    branch = onnx.AttributeProto(name="body", type=onnx.AttributeProto.GRAPH, g=body)
    nested.graph.node[5].attribute.append(branch)
    called.functions.add(name="f", domain="own")
    for proto in (late, nested, called):
        before = proto.SerializeToString()
        assert not keep_one_of_each_form(proto)
        assert proto.SerializeToString() == before


def test_shared_models_have_readable_parts(shared: Path) -> None:
    paths = sorted((shared / "models").glob("*.onnx"))
    parts = [onnx.load(path, load_external_data=False) for path in paths]
    flat = [proto for proto in parts if keep_one_of_each_form(proto)]
    assert len(flat) > len(paths) / 2
    for path, proto in zip(paths, parts, strict=True):
        assert load(path).outputs
        if proto in flat:
            from_proto(proto, path.parent)
