"""Faults of parameters that do not compute what was intended (QG1)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.lint.faults.register import fault
from tests.lint.faults.tools import (
    F,
    bias_of,
    constant,
    data_pair,
    fed,
    has_data_pair,
    is_biased,
    is_data,
    is_data_quant,
    is_fake,
    is_layer,
    is_pair,
    is_quant,
    is_scaled,
    label,
    reader,
    scaled,
    weights_of,
)

fault("QG101", is_data)(scaled(0.0))
fault("QG102", is_scaled)(scaled(float("nan")))
fault("QG103", lambda node: is_data(node) and constant(node.inputs[1]).dtype == F)(scaled(1e-40))
fault("QG104", is_data)(scaled(None, -1.0))


@fault("QG105", is_layer)
def below_middle(model: ir.Model, node: ir.Node) -> str:
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


@fault("QG106", is_data_quant)
def outside(model: ir.Model, node: ir.Node) -> str:
    fed(node, 2, np.asarray(1000, F))
    return label(node)


@fault("QG117", lambda node: node.op_type == "Trunc")
def version(model: ir.Model, node: ir.Node) -> str:
    model.opset_imports[node.domain] = 1 if len(node.inputs) == 6 else 2
    return label(node)


@fault("QG123", has_data_pair)
def underflow(model: ir.Model, node: ir.Node) -> str:
    for each in data_pair(node) or ():
        fed(each, 1, np.full_like(constant(each.inputs[1]), 1e-25))
    decoder = weights_of(node)
    fed(decoder, 1, np.full_like(constant(decoder.inputs[1]), 1e-25))
    return label(node)


@fault("QG124", is_biased)
def inexact(model: ir.Model, node: ir.Node) -> str:
    decoder = bias_of(node)
    fed(decoder, 0, np.full_like(constant(decoder.inputs[0]), 1 << 25))
    return label(node)
