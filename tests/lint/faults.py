"""Faults that are planted in real models: how, and at which node each has to be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import onnx_ir as ir

Plant = Callable[[ir.Model, ir.Node], str | None]
"""Changes a model at a node, in place; returns the name of the node that has the fault."""

FAULTS: dict[str, tuple[Callable[[ir.Node], bool], Plant]] = {}
"""By id of the rule: which nodes can have the fault, and how they get it."""

F = np.float32


def fault(rule: str, fits: Callable[[ir.Node], bool]) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        FAULTS[rule] = fits, plant
        return plant

    return register


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
    value = ir.Value(name=f"planted_{node.name or node.outputs[0].name}_{index}")
    value.const_value = ir.Tensor(np.asarray(array), name=value.name)
    value.shape, value.type = ir.Shape(array.shape), ir.TensorType(value.const_value.dtype)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    graph.register_initializer(value)
    while len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def put(before: ir.Node, index: int, op: str, *arrays: np.ndarray, **attributes: object) -> ir.Node:
    """Put an operator in front of an input of a node; return it."""
    graph, source = before.graph, before.inputs[index]
    assert isinstance(graph, ir.Graph)
    new = ir.node(op, [source, *([None] * len(arrays))], attributes or None, name=f"planted_{op}")
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


fault("QG101", is_data)(scaled(0.0))
fault("QG102", is_scaled)(scaled(float("nan")))
fault("QG103", lambda node: is_data(node) and constant(node.inputs[1]).dtype == F)(scaled(1e-40))
fault("QG104", is_data)(scaled(None, -1.0))


@fault("QG105", is_layer)
def beside(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    codes = constant(decoder.inputs[0]).astype(np.int16) + 127
    fed(decoder, 0, np.clip(codes, 0, 255).astype(np.uint8))
    fed(decoder, 2, np.full(constant(decoder.inputs[1]).shape, 127, np.uint8))
    return label(decoder)


@fault("QG107", is_data_quant)
def fraction(model: ir.Model, node: ir.Node) -> str:
    fed(node, 2, np.asarray(0.5, F))
    return label(node)


@fault("QG108", lambda node: is_layer(node) and node.op_type == "Conv" and (
    constant(weights_of(node).inputs[0]).shape[1] > 1))  # fmt: skip
def axis(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    size = constant(decoder.inputs[0]).shape[1]
    fed(decoder, 1, np.linspace(0.01, 0.02, size, dtype=F))
    fed(decoder, 2, np.zeros(size, np.int8))
    decoder.attributes["axis"] = ir.AttrInt64("axis", 1)
    return label(node)


@fault("QG109", is_layer)
def length(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    fed(decoder, 1, np.linspace(0.01, 0.02, 77, dtype=F))
    fed(decoder, 2, np.zeros(77, np.int8))
    return label(decoder)


@fault("QG110", is_biased)
def overflow(model: ir.Model, node: ir.Node) -> str:
    size = constant(bias_of(node).inputs[0]).size
    fed(node, 2, np.full(size, 1e12, F))
    return label(node)


@fault("QG111", is_biased)
def accumulator(model: ir.Model, node: ir.Node) -> str:
    decoder = bias_of(node)
    fed(decoder, 0, np.full_like(constant(decoder.inputs[0]), 2**31 - 1))
    return label(node)


@fault("QG112", is_biased)
def bias_scale(model: ir.Model, node: ir.Node) -> str:
    decoder = bias_of(node)
    fed(decoder, 1, constant(decoder.inputs[1]) * F(2))
    return label(node)


@fault("QG113", is_biased)
def bias_zero(model: ir.Model, node: ir.Node) -> str:
    decoder = bias_of(node)
    fed(decoder, 2, np.full(constant(decoder.inputs[1]).shape, 3, np.int32))
    return label(node)


@fault("QG114", lambda node: is_biased(node) and constant(weights_of(node).inputs[1]).size > 1)
def lost(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    scale = constant(decoder.inputs[1]).copy()
    scale[1] = 0
    fed(decoder, 1, scale)
    fed(node, 2, np.ones(scale.size, F))
    return label(node)


@fault("QG115", is_fake)
def reverse(model: ir.Model, node: ir.Node) -> str:
    low, high = constant(node.inputs[1]), constant(node.inputs[2])
    fed(node, 1, high + F(1))
    fed(node, 2, low - F(1))
    return label(node)


@fault("QG116", is_fake)
def levels(model: ir.Model, node: ir.Node) -> str:
    node.attributes["levels"] = ir.AttrInt64("levels", 1)
    return label(node)


@fault("QG118", lambda node: node.op_type == "Trunc")
def rounds(model: ir.Model, node: ir.Node) -> str:
    node.attributes["rounding_mode"] = ir.AttrString("rounding_mode", "ROUND")
    return label(node)


@fault("QG119", is_quant)
def width(model: ir.Model, node: ir.Node) -> str:
    fed(node, 3, np.asarray(2.5, F))
    return label(node)


@fault("QG120", is_quant)
def narrow_width(model: ir.Model, node: ir.Node) -> str:
    fed(node, 3, np.asarray(8, np.int8))
    return label(node)


@fault("QG121", is_pair)
def disagree(model: ir.Model, node: ir.Node) -> str:
    decoder = reader(node)
    fed(decoder, 1, constant(node.inputs[1]) * F(2))
    return label(node)


@fault("QG122", is_pair)
def cast(model: ir.Model, node: ir.Node) -> str:
    decoder = reader(node)
    new = ir.node("Cast", [node.outputs[0]], {"to": 1}, name="planted")
    new.outputs[0].name = "planted_cast"
    node.graph.insert_after(node, new)
    decoder.outputs[0].replace_all_uses_with(new.outputs[0])
    return label(node)


@fault("QG302", lambda node: is_before_quantizer(node) and node.op_type != "MatMul")
def float_weights(model: ir.Model, node: ir.Node) -> str:
    codes = constant(weights_of(node).inputs[0])
    fed(node, 1, codes.astype(F))
    return label(node)


@fault("QG308", is_pair)
def sixteen(model: ir.Model, node: ir.Node) -> str:
    for each in (node, reader(node)):
        fed(each, 2, np.asarray(0, np.uint16))
    return label(node)


@fault("QG403", lambda node: is_before_quantizer(node) and node.op_type == "Conv")
def batch_norm(model: ir.Model, node: ir.Node) -> str:
    size = constant(weights_of(node).inputs[0]).shape[0]
    one, zero = np.full(size, 1.5, F), np.zeros(size, F)
    return label(put(reader(node), 0, "BatchNormalization", one, zero, zero, one))


@fault("QG404", is_before_quantizer)
def factor(model: ir.Model, node: ir.Node) -> str:
    return label(put(reader(node), 0, "Mul", np.asarray(1.5, F)))


@fault("QG406", is_pair)
def wrapped(model: ir.Model, node: ir.Node) -> str:
    decoder, scale = reader(node), constant(node.inputs[1])
    put(node, 0, "Div", scale)
    for each in (node, decoder):
        fed(each, 1, np.ones_like(scale))
    new = ir.node("Mul", [decoder.outputs[0], None], name="planted")
    new.outputs[0].name = "planted_mul"
    node.graph.insert_after(decoder, new)
    decoder.outputs[0].replace_all_uses_with(new.outputs[0])
    new.replace_input_with(0, decoder.outputs[0])
    fed(new, 1, scale)
    return label(node)


@fault("QG407", is_layer)
def packed(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    fed(decoder, 0, (constant(decoder.inputs[0]) // 18).astype(ml_dtypes.int4))
    fed(decoder, 2, np.zeros(constant(decoder.inputs[1]).shape, ml_dtypes.int4))
    return label(decoder)


@fault("QG408", is_layer)
def unsigned(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    codes = constant(decoder.inputs[0]).astype(np.int16) + 128
    fed(decoder, 0, codes.astype(np.uint8))
    fed(decoder, 2, np.full(constant(decoder.inputs[1]).shape, 128, np.uint8))
    return label(decoder)


@fault("QG409", is_layer)
def offset(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    fed(decoder, 2, np.full(constant(decoder.inputs[1]).shape, 3, np.int8))
    return label(decoder)


@fault("QG413", is_layer)
def chain(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    put(decoder, 0, "Clip", np.asarray(-127, np.int8), np.asarray(127, np.int8))
    return label(decoder)


@fault("QG505", lambda node: is_layer(node) and node.op_type == "Conv")
def dead(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    codes = constant(decoder.inputs[0]).copy()
    codes[1] = 0
    fed(decoder, 0, codes)
    return label(decoder)


@fault("QG506", lambda node: is_layer(node) and constant(weights_of(node).inputs[1]).size > 1)
def equal(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    fed(decoder, 1, np.full_like(constant(decoder.inputs[1]), 0.01))
    return label(decoder)


@fault("QG701", is_inner)
def twice(model: ir.Model, node: ir.Node) -> str:
    parameters = [constant(node.inputs[1]), constant(node.inputs[2])]
    put(node, 0, "QuantizeLinear", *parameters)
    put(node, 0, "DequantizeLinear", *parameters)
    return label(node)


@fault("QG706", is_inner)
def identity(model: ir.Model, node: ir.Node) -> str:
    return label(put(node, 0, "Identity"))


@fault("QG712", is_data)
def computed(model: ir.Model, node: ir.Node) -> str:
    fed(node, 1, np.asarray([0.1, 0.2], F))
    put(node, 1, "ReduceMax", keepdims=0)
    return label(node)


@fault("QG713", is_quant)
def unreadable(model: ir.Model, node: ir.Node) -> str:
    node.attributes["rounding_mode"] = ir.AttrString("rounding_mode", "SIDEWAYS")
    return label(node)


@fault("QG714", lambda node: is_pair(node) and is_inner(node) and (
    len(node.inputs) > 2 and constant(node.inputs[2]).dtype == np.int8))  # fmt: skip
def relu(model: ir.Model, node: ir.Node) -> str:
    put(node, 0, "Relu")
    for each in (node, reader(node)):
        if each is not None and each.op_type in ("QuantizeLinear", "DequantizeLinear"):
            fed(each, 2, np.zeros_like(constant(each.inputs[2])))
    return label(node)


def places(model: ir.Model, rule: str, most: int) -> Iterator[int]:
    """Yield the positions of a few nodes that can have a fault, spread over the model."""
    fits, _ = FAULTS[rule]
    found = [i for i, node in enumerate(model.graph) if fits(node)]
    step = max(1, len(found) // most)
    yield from found[::step][:most]
