"""Faults that show in data only (QG8)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.lint.faults.register import fault
from tests.lint.faults.silent import has_type, quiet
from tests.lint.faults.size import dead
from tests.lint.faults.tools import (
    F,
    constant,
    data_pair,
    fed,
    has_data_pair,
    is_before_quantizer,
    label,
    pair,
    parameters,
    put,
    reader,
    reads_input,
    scaled,
    weights_of,
)


def factor(rule: str, number: float) -> None:
    fault(rule, reads_input, has_data=True)(scaled(None, number))


factor("QG801", 1 / 1000)
factor("QG802", 8)
factor("QG807", 1e6)


@fault("QG803", lambda node: is_before_quantizer(node) and node.op_type == "Conv", has_data=True)
def dead_channel(model: ir.Model, node: ir.Node) -> str:
    dead(model, node)
    return label(reader(node))


@fault("QG804", lambda node: reads_input(node) and len(node.inputs) > 2, has_data=True)
def negative(model: ir.Model, node: ir.Node) -> str:
    zero = constant(node.inputs[2])
    for each in pair(node):
        fed(each, 2, np.full_like(zero, np.iinfo(zero.dtype).min))
    return label(node)


def coarse(node: ir.Node, number: float) -> str:
    scale, *zero = parameters(node)
    put(node, 0, "QuantizeLinear", (scale * number).astype(scale.dtype), *zero)
    put(node, 0, "DequantizeLinear", (scale * number).astype(scale.dtype), *zero)
    return label(node)


@fault("QG805", reads_input, has_data=True)
def few_codes(model: ir.Model, node: ir.Node) -> str:
    return coarse(node, 8)


@fault("QG809", reads_input, has_data=True)
def on_ties(model: ir.Model, node: ir.Node) -> str:
    return coarse(node, 0.5)


def has_neighbours(node: ir.Node) -> bool:
    """Return whether a layer multiplies UINT8 data with several weights of each channel."""
    return (
        has_data_pair(node)
        and has_type(node, np.uint8)
        and constant(weights_of(node).inputs[0]).shape[1] > 1
        and node.attributes.get_int("group", 1) == 1
    )


@fault("QG806", has_neighbours, has_data=True, clean=quiet)
def saturating(model: ir.Model, node: ir.Node) -> str:
    for each in data_pair(node):
        fed(each, 1, constant(each.inputs[1]) / F(1000))
    decoder = weights_of(node)
    fed(decoder, 0, np.full_like(constant(decoder.inputs[0]), 127))
    return label(node)


@fault("QG808", reads_input, has_data=True)
def infinite(model: ir.Model, node: ir.Node) -> str:
    put(node, 0, "Div", np.asarray(0, F))
    return label(node)
