"""Look for places of faults in a graph, and change nodes there."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.walk import infer
from tests.lint.faults.register import Plant

F = np.float32
QONNX = "qonnx.custom_op.general"


def constant(value: ir.Value | None) -> np.ndarray | None:
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    maker = value.producer()
    if maker is not None and maker.op_type == "Constant" and "value" in maker.attributes:
        return maker.attributes["value"].as_tensor().numpy()
    return None


def fed(node: ir.Node, index: int, array: np.ndarray) -> None:
    """Give a node a constant of its own."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    number = len(graph.initializers)
    value = ir.Value(name=f"planted_{node.name or node.outputs[0].name}_{index}_{number}")
    value.const_value = ir.Tensor(np.asarray(array), name=value.name)
    value.shape, value.type = ir.Shape(array.shape), ir.TensorType(value.const_value.dtype)
    graph.register_initializer(value)
    while len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def put(
    before: ir.Node,
    index: int,
    op: str,
    *arrays: np.ndarray,
    domain: str = "",
    **attributes: object,
) -> ir.Node:
    """Put an operator in front of an input of a node; return it."""
    graph, source = before.graph, before.inputs[index]
    assert isinstance(graph, ir.Graph)
    new = ir.node(op, [source, *([None] * len(arrays))], attributes or None, domain=domain)
    new.name = f"planted_{op}"
    new.outputs[0].name = f"planted_{op}_of_{before.name or before.outputs[0].name}"
    graph.insert_before(before, new)
    for number, array in enumerate(arrays, 1):
        fed(new, number, np.asarray(array))
    before.replace_input_with(index, new.outputs[0])
    return new


def label(node: ir.Node) -> str:
    return str(node.name or node.outputs[0].name)


def is_quantize(node: ir.Node) -> bool:
    return node.op_type == "QuantizeLinear" and constant(node.inputs[1]) is not None


def is_data(node: ir.Node) -> bool:
    return (
        is_quantize(node)
        and constant(node.inputs[0]) is None
        and constant(node.inputs[1]).size == 1
    )


def maker(node: ir.Node, index: int) -> ir.Node | None:
    value = node.inputs[index] if len(node.inputs) > index else None
    return None if value is None else value.producer()


def weights_of(node: ir.Node) -> ir.Node | None:
    """The DequantizeLinear of stored int8 codes that a layer on codes reads."""
    if node.op_type not in ("Conv", "Gemm", "MatMul"):
        return None
    x, w = maker(node, 0), maker(node, 1)
    if x is None or w is None or {x.op_type, w.op_type} != {"DequantizeLinear"}:
        return None
    codes = constant(w.inputs[0])
    return (
        w
        if codes is not None and codes.dtype == np.int8 and constant(w.inputs[1]) is not None
        else None
    )


def is_layer(node: ir.Node) -> bool:
    return weights_of(node) is not None


def bias_of(node: ir.Node) -> ir.Node | None:
    bias = maker(node, 2) if is_layer(node) and node.op_type != "MatMul" else None
    return bias if bias is not None and bias.op_type == "DequantizeLinear" else None


def is_biased(node: ir.Node) -> bool:
    bias = bias_of(node)
    codes = None if bias is None else constant(bias.inputs[0])
    return codes is not None and codes.dtype == np.int32


def reader(node: ir.Node) -> ir.Node | None:
    uses = list(node.outputs[0].uses())
    return uses[0].node if len(uses) == 1 and not node.outputs[0].is_graph_output() else None


def is_before_quantizer(node: ir.Node) -> bool:
    after = reader(node) if is_layer(node) else None
    return after is not None and after.op_type == "QuantizeLinear"


def is_pair(node: ir.Node) -> bool:
    after = reader(node) if is_data(node) else None
    if after is None or after.op_type != "DequantizeLinear":
        return False
    return not after.outputs[0].is_graph_output()


def is_quant(node: ir.Node) -> bool:
    return node.op_type == "Quant" and constant(node.inputs[1]) is not None


def is_data_quant(node: ir.Node) -> bool:
    return is_quant(node) and constant(node.inputs[0]) is None


def is_fake(node: ir.Node) -> bool:
    return node.op_type == "FakeQuantize" and constant(node.inputs[1]) is not None


def is_inner(node: ir.Node) -> bool:
    return is_data(node) and node.inputs[0].producer() is not None


def scaled(value: float | None, factor: float = 1.0) -> Plant:
    def plant(model: ir.Model, node: ir.Node) -> str:
        scale = constant(node.inputs[1])
        changed = scale * factor if value is None else np.full_like(scale, value)
        both = [node, reader(node)] if node.op_type == "QuantizeLinear" else [node]
        for each in both:
            if each is not None and each.op_type in ("QuantizeLinear", "DequantizeLinear", "Quant"):
                fed(each, 1, changed.astype(scale.dtype))
        return label(node)

    return plant


def is_scaled(node: ir.Node) -> bool:
    return is_quantize(node) or is_quant(node)


def behind(
    value: ir.Value, op: str, *operands: ir.Value | np.ndarray, **attributes: object
) -> ir.Node:
    """Put an operator behind a value, so that all its readers read the result; return it."""
    uses = [(use.node, use.idx) for use in value.uses()]
    new = beside(value, op, *operands, **attributes)
    for node, index in uses:
        node.replace_input_with(index, new.outputs[0])
    return new


def beside(
    value: ir.Value, op: str, *operands: ir.Value | np.ndarray, **attributes: object
) -> ir.Node:
    """Add an operator that reads a value, and nothing reads; return it."""
    readers = [use.node for use in value.uses()]
    maker = value.producer()
    graph = readers[0].graph if maker is None else maker.graph
    new = ir.node(op, [value, *([None] * len(operands))], attributes or None)
    number = len(graph)
    new.name = f"planted_{op}_{number}"
    new.outputs[0].name = f"planted_{op}_{number}_of_{value.name}"
    makers = {*(each.producer() for each in operands if isinstance(each, ir.Value)), maker}
    last = next((node for node in reversed(list(graph)) if node in makers), None)
    if last is None:
        graph.insert_before(next(iter(graph)), new)
    else:
        graph.insert_after(last, new)
    for index, operand in enumerate(operands, 1):
        if isinstance(operand, ir.Value):
            new.replace_input_with(index, operand)
        else:
            fed(new, index, np.asarray(operand))
    return new


def as_output(model: ir.Model, value: ir.Value) -> None:
    """Make a value an output of a model."""
    value.shape, value.type = None, ir.TensorType(ir.DataType.FLOAT)
    model.graph.outputs.append(value)


def parameters(node: ir.Node) -> list[np.ndarray]:
    """Return the constant scale and zero point of a quantizer."""
    found = [constant(value) for value in node.inputs[1:]]
    return [array for array in found if array is not None]


def sizes(model: ir.Model, value: ir.Value) -> tuple[object, ...]:
    """Return the inferred shape of a value; empty if its rank is not known."""
    fact = infer(model).get(value)
    return () if fact is None or fact.shape is None else tuple(fact.shape)


def pair(node: ir.Node) -> list[ir.Node]:
    """Return a QuantizeLinear and the DequantizeLinear that reads it."""
    after = reader(node)
    assert after is not None
    return [node, after]


def data_pair(node: ir.Node) -> list[ir.Node] | None:
    """Return the pair of the data of a layer on codes; None without a plain one."""
    decoder = maker(node, 0)
    encoder = None if decoder is None else maker(decoder, 0)
    plain = encoder is not None and is_data(encoder) and decoder.op_type == "DequantizeLinear"
    return [encoder, decoder] if plain and len(encoder.outputs[0].uses()) == 1 else None


def has_data_pair(node: ir.Node) -> bool:
    return is_layer(node) and data_pair(node) is not None


def is_first(node: ir.Node) -> bool:
    """Return whether a node is the first of its graph: the place of a fault of the model."""
    return node.graph is not None and next(iter(node.graph)) is node


def reads_input(node: ir.Node) -> bool:
    """Return whether a node is the quantizer of an input of the model."""
    return is_pair(node) and node.inputs[0] is not None and node.inputs[0].is_graph_input()


def is_image_layer(node: ir.Node) -> bool:
    """Return whether a layer on codes is a convolution over two spatial axes."""
    if not is_layer(node) or node.op_type != "Conv":
        return False
    return constant(weights_of(node).inputs[0]).ndim == 4
