"""A model whose nodes cannot be what their operators are is refused, with the node named."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import qgraph
from qgraph.errors import ModelError
from qgraph.graph import structure
from qgraph.ops.operator import OPERATORS

TEXT = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "local": 1]>
net (float[2,4] x) => (float[2,4] y)
<float s = {0.5}, int8 z = {0}> {
    [quantize] q = QuantizeLinear <axis = 1> (x, s, z)
    [decode] d = DequantizeLinear (q, s, z)
    [sum] y = Add (d, x)
}"""


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def node(proto: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(each for each in proto.graph.node if each.name == name)


def constant(proto: onnx.ModelProto, name: str, array: np.ndarray) -> None:
    for each in proto.graph.initializer:
        if each.name == name:
            each.CopyFrom(numpy_helper.from_array(array, name))


def function(name: str, *calls: str) -> onnx.FunctionProto:
    nodes = [helper.make_node(call, ["a"], ["b"], domain="local") for call in calls]
    return helper.make_function(
        "local",
        name,
        ["a"],
        ["b"],
        nodes or [helper.make_node("Neg", ["a"], ["b"])],
        [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)],
    )


def no_input(proto):
    del node(proto, "quantize").input[:]


def empty_input(proto):
    node(proto, "decode").input[0] = ""


def many_inputs(proto):
    node(proto, "sum").input.extend(["x", "x"])


def many_outputs(proto):
    node(proto, "sum").output.append("more")


def no_output(proto):
    node(proto, "sum").op_type = "Other"
    del node(proto, "sum").output[:]


def wrong_attribute(proto):
    node(proto, "quantize").attribute[0].CopyFrom(helper.make_attribute("axis", "one"))


def untyped_attribute(proto):
    node(proto, "quantize").attribute[0].CopyFrom(AttributeProto(name="axis"))


def reference(proto):
    attribute = AttributeProto(name="axis", type=AttributeProto.INT, ref_attr_name="outer")
    node(proto, "quantize").attribute[0].CopyFrom(attribute)


def graph_is_missing(proto):
    node(proto, "sum").op_type = "Loop"


def text_scale(proto):
    constant(proto, "s", np.array("one", object))


def complex_scale(proto):
    constant(proto, "s", np.array(1 + 1j, np.complex64))


def text_of_a_dialect(proto):
    proto.opset_import.append(helper.make_opsetid("qonnx.custom_op.general", 1))
    node(proto, "quantize").op_type = "Quant"
    node(proto, "quantize").domain = "qonnx.custom_op.general"
    constant(proto, "s", np.array("one", object))


def microsoft_inputs(proto):
    node(proto, "sum").op_type, node(proto, "sum").domain = "QLinearAdd", "com.microsoft"


def microsoft_attribute(proto):
    mended = node(proto, "sum")
    mended.op_type, mended.domain = "MatMulNBits", "com.microsoft"
    mended.input.append("s")
    mended.attribute.append(helper.make_attribute("block_size", "big"))


def microsoft_bits(proto):
    microsoft_attribute(proto)
    node(proto, "sum").attribute[-1].CopyFrom(helper.make_attribute("bits", -1))


def wrong_field(proto):
    tensor = proto.graph.initializer[0]
    tensor.CopyFrom(TensorProto(name="s", data_type=TensorProto.INT64, int32_data=[1]))


def version(proto):
    proto.opset_import[0].version = 2**57


def negative_version(proto):
    proto.opset_import[0].version = -1


def circle(proto):
    proto.functions.extend([function("F", "G"), function("G", "F")])


def avalanche(proto):
    functions = [function("F0"), *(function(f"F{i}", *[f"F{i - 1}"] * 2) for i in range(1, 21))]
    for each in functions[1:]:
        each.node[0].output[0] = "c"
    proto.functions.extend(functions)


def element_type(proto):
    proto.graph.initializer[0].data_type = 2**31 - 1


def attribute_of_another_version(proto):
    """Operator set 12 has no ``block_size``; readers read it all the same."""
    proto.opset_import[0].version = 12
    node(proto, "decode").attribute.append(helper.make_attribute("block_size", "two"))


def no_text_of_a_dialect(proto):
    proto.opset_import.append(helper.make_opsetid("qonnx.custom_op.general", 1))
    node(proto, "quantize").op_type = "Quant"
    node(proto, "quantize").domain = "qonnx.custom_op.general"
    mode = helper.make_attribute("rounding_mode", b"\x1d\x87")
    node(proto, "quantize").attribute.append(mode)


def version_of_no_onnx(proto):
    proto.opset_import[0].version = 1001


def attribute_of_a_function(proto):
    proto.functions.append(function("F"))
    proto.functions[0].attribute.append("slope")
    leaky = proto.functions[0].node[0]
    leaky.op_type = "LeakyRelu"
    leaky.attribute.add(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope")
    node(proto, "sum").CopyFrom(
        helper.make_node("F", ["d"], ["y"], "sum", domain="local", slope="steep")
    )


FAULTS = {
    attribute_of_another_version: "'decode'.*'block_size' is of type STRING, expected INT",
    attribute_of_a_function: "F 'sum'.*'slope' is of type STRING, expected FLOAT",
    no_input: "QuantizeLinear 'quantize'.*input 'x' is absent",
    empty_input: "DequantizeLinear 'decode'.*input 'x' is absent",
    many_inputs: "Add 'sum'.*it has 4 inputs, expected at most 2",
    many_outputs: "Add 'sum'.*it has 2 outputs, expected at most 1",
    no_output: "Other 'sum'.*it has no outputs",
    wrong_attribute: "'quantize'.*attribute 'axis' is of type STRING, expected INT",
    untyped_attribute: "'quantize'.*attribute 'axis' has no type or no value",
    reference: "'quantize'.*attribute 'axis' refers to the attribute 'outer'",
    graph_is_missing: "Loop 'sum'.*attribute 'body' is absent",
    text_scale: "'quantize'.*input 'y_scale' is of type STRING, expected real numbers",
    complex_scale: "'quantize'.*input 'y_scale' is of type COMPLEX64",
    text_of_a_dialect: "Quant 'quantize'.*input 's' is of type STRING",
    no_text_of_a_dialect: "Quant 'quantize'.*'rounding_mode' is no text, expected UTF-8",
    version_of_no_onnx: "operator set 'ai.onnx' is imported at version 1001, expected 1 to 1000",
    microsoft_inputs: "QLinearAdd 'sum'.*it has 2 inputs, expected 7 at least",
    microsoft_attribute: "MatMulNBits 'sum'.*'block_size' is of type STRING, expected INT",
    microsoft_bits: "MatMulNBits 'sum'.*its codes have -1 bits, expected 1 to 16",
    wrong_field: "initializer 's': its numbers are in int32_data.* INT64 are in int64_data",
    version: "operator set 'ai.onnx' is imported at version 144115188075855872",
    negative_version: "operator set 'ai.onnx' is imported at version -1",
    circle: "functions call each other in a circle",
    avalanche: "that 3145726 nodes would run",
    element_type: "2147483647 is not a valid DataType",
}


@pytest.mark.parametrize(
    ("fault", "message"), FAULTS.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_a_node_that_cannot_be_what_its_operator_is(fault, message):
    proto = model()
    qgraph.load(proto)
    fault(proto)
    with pytest.raises(ModelError, match=FAULTS[fault]):
        qgraph.load(proto)


@pytest.mark.parametrize("schema", [each.schema for each in OPERATORS if not each.schema.standard])
def test_attributes_of_quantizers_have_their_types(schema):
    for attribute in schema.attributes:
        proto = model()
        quantizer = node(proto, "quantize")
        quantizer.op_type, quantizer.domain = schema.name, schema.domains[0]
        del quantizer.attribute[:]
        quantizer.attribute.append(helper.make_attribute(attribute.name, [1.0]))
        message = (
            f"'quantize'.*'{attribute.name}' is of type FLOATS, expected {attribute.kind.name}"
        )
        with pytest.raises(ModelError, match=message):
            qgraph.load(proto)


READ = re.compile(r"get_(int|float|string|ints|floats)\(\s*\"(\w+)\"")


def test_attributes_that_are_read_have_types_that_are_checked():
    """A reader of an attribute finds the type that it expects, or there is no such attribute."""
    root = Path(qgraph.__file__).parents[1]
    files = [file for name in ("qgraph", "transforms") for file in (root / name).rglob("*.py")]
    read = {(name, kind) for file in files for kind, name in READ.findall(file.read_text())}
    kinds: dict[str, set[str]] = defaultdict(set)
    for schema in onnx.defs.get_all_schemas_with_history():
        for attribute in schema.attributes.values():
            kinds[attribute.name].add(str(attribute.type).rpartition(".")[2].lower())
    foreign = [*structure._KINDS.items(), *structure._KINDS_OF.items()]
    for name, kind in foreign:
        kinds[name if isinstance(name, str) else name[1]].add(kind.name.lower())
    assert len(read) > 40
    assert sorted(pair for pair in read if pair[1] not in kinds[pair[0]]) == []


def test_functions_that_are_called_often_are_no_fault():
    proto = model()
    proto.functions.append(function("F"))
    value = "x"
    for place in range(200):
        proto.graph.node.append(helper.make_node("F", [value], [f"v{place}"], domain="local"))
        value = f"v{place}"
    assert len(list(qgraph.load(proto).nodes())) == 204


def test_a_size_of_minus_one_is_unknown():
    """Some exporters write it so; ONNX Runtime reads it as unknown, too."""
    proto = model()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    loaded = qgraph.load(proto)
    assert loaded.inputs[0].shape.dims[0].value is None
    assert loaded.run({"x": np.ones((5, 4), np.float32)}, backend="numpy")["y"].shape == (5, 4)


def test_text_that_is_not_utf_8_is_named():
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        net (float[2] x) => (string[1] t) { t = Identity (c) }"""
    )
    proto.graph.initializer.append(
        TensorProto(name="c", data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff"])
    )
    with pytest.raises(ModelError, match="Constant 'c': a text in it is not UTF-8"):
        qgraph.load(proto).run({"x": np.ones(2, np.float32)}, backend="numpy")


def test_random_inputs_are_not_as_large_as_a_model_says():
    proto = model()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2**40
    from qgraph.execution.inputs import make_inputs

    with pytest.raises(qgraph.QGraphError, match="has 4398046511104 elements, expected at most"):
        make_inputs(qgraph.load(proto).inputs)
