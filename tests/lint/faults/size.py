"""Faults that make models larger than necessary (QG5)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.lint.faults.register import fault
from tests.lint.faults.tools import (
    F,
    as_output,
    beside,
    constant,
    fed,
    is_layer,
    label,
    parameters,
    put,
    weights_of,
)


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


def has_many(node: ir.Node, least: int = 1024) -> bool:
    return is_layer(node) and constant(weights_of(node).inputs[0]).size >= least


@fault("QG501", lambda node: has_many(node, 64))
def unpacked(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    codes, scale = constant(decoder.inputs[0]), constant(decoder.inputs[1])
    zero = np.zeros(scale.shape, np.int8)
    new = put(decoder, 0, "QuantizeLinear", scale, zero)
    fed(decoder, 2, zero)
    axis = decoder.attributes.get_int("axis", 1)
    new.attributes["axis"] = ir.AttrInt64("axis", axis)
    wide = scale if scale.size == 1 else scale.reshape([-1, *[1] * (codes.ndim - 1 - axis)])
    fed(new, 0, (codes * wide).astype(F))
    return label(decoder)


@fault("QG502", lambda node: has_many(node, 64))
def wide(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    fed(decoder, 0, constant(decoder.inputs[0]) // 32)
    return label(decoder)


@fault("QG503", has_many)
def unused(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    fed(decoder, 0, constant(decoder.inputs[0]) // 3)
    fed(decoder, 1, np.asarray(0.01, F))
    fed(decoder, 2, np.asarray(0, np.int8))
    return label(decoder)


@fault("QG504", has_many)
def copies(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    new = beside(decoder.outputs[0], "DequantizeLinear", *parameters(decoder))
    fed(decoder, 0, constant(decoder.inputs[0]))
    fed(new, 0, constant(decoder.inputs[0]).copy())
    new.attributes["axis"] = ir.AttrInt64("axis", decoder.attributes.get_int("axis", 1))
    as_output(model, new.outputs[0])
    return label(decoder)


@fault("QG507", lambda node: has_many(node, 128))
def double(model: ir.Model, node: ir.Node) -> str:
    codes = constant(weights_of(node).inputs[0])
    new = put(node, 1, "Cast", to=1)
    fed(new, 0, codes.astype(np.float64))
    return label(new)
