"""Faults that leave superfluous or wrong parts in a model (QG7)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.lint.faults.portability import foreign
from tests.lint.faults.register import fault
from tests.lint.faults.tools import (
    F,
    as_output,
    behind,
    beside,
    constant,
    fed,
    is_before_quantizer,
    is_data,
    is_first,
    is_inner,
    is_pair,
    is_quant,
    label,
    pair,
    parameters,
    put,
    reader,
)


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


@fault("QG702", is_inner)
def again(model: ir.Model, node: ir.Node) -> str:
    new = beside(node.inputs[0], "QuantizeLinear", *parameters(node))
    decoder = beside(new.outputs[0], "DequantizeLinear", *parameters(node))
    as_output(model, decoder.outputs[0])
    return label(new)


@fault("QG703", is_inner)
def unread(model: ir.Model, node: ir.Node) -> str:
    return label(beside(node.inputs[0], "Relu"))


@fault("QG704", is_first)
def listed(model: ir.Model, node: ir.Node) -> str | None:
    found = [value for value in model.graph.initializers.values() if not value.is_graph_input()]
    if not found:
        return None
    model.graph.inputs.append(found[0])
    return ""


@fault("QG705", is_before_quantizer)
def redundant(model: ir.Model, node: ir.Node) -> str:
    return label(put(reader(node), 0, "Clip", np.asarray(-1e30, F), np.asarray(1e30, F)))


@fault("QG707", lambda node: is_first(node) and len(node.graph) > 1)
def one_name(model: ir.Model, node: ir.Node) -> str:
    *_, last = model.graph
    last.name = node.name = "planted"
    return "planted"


@fault("QG708", is_data)
def misstated(model: ir.Model, node: ir.Node) -> str:
    node.outputs[0].shape = ir.Shape([7, 7, 7, 7, 7, 7])
    return label(node)


@fault("QG709", is_first)
def unread_input(model: ir.Model, node: ir.Node) -> str:
    shape, kind = ir.Shape([1]), ir.TensorType(ir.DataType.FLOAT)
    model.graph.inputs.append(ir.Value(name="planted_input", shape=shape, type=kind))
    return ""


@fault("QG710", lambda node: is_first(node) and any(is_pair(each) for each in node.graph))
def mixed(model: ir.Model, node: ir.Node) -> str:
    foreign(model, next(each for each in model.graph if is_pair(each)))
    return ""


@fault("QG711", is_first)
def unused_import(model: ir.Model, node: ir.Node) -> str:
    model.opset_imports["planted"] = 1
    return ""


@fault("QG715", is_pair)
def unreachable(model: ir.Model, node: ir.Node) -> str:
    encoder, decoder = pair(node)
    scale, *zero = parameters(encoder)
    codes = behind(decoder.outputs[0], "QuantizeLinear", scale, *zero)
    behind(codes.outputs[0], "DequantizeLinear", scale, *zero)
    put(codes, 0, "Clip", np.zeros_like(scale).reshape(()), (scale * 20).reshape(()))
    return label(codes)
