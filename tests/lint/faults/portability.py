"""Faults that some runtimes, or a target, do not accept (QG6)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from tests.lint.faults.register import fault
from tests.lint.faults.silent import has_type, is_product
from tests.lint.faults.speed import by_channel
from tests.lint.faults.tools import (
    QONNX,
    F,
    as_output,
    beside,
    constant,
    data_pair,
    fed,
    has_data_pair,
    is_before_quantizer,
    is_data_quant,
    is_first,
    is_inner,
    is_layer,
    is_pair,
    is_quant,
    label,
    pair,
    put,
    weights_of,
)


@fault("QG601", lambda node: is_pair(node) and is_inner(node), "onnxruntime-cpu")
def refused(model: ir.Model, node: ir.Node) -> str | None:
    return narrow(model, node)


@fault("QG603", lambda node: is_pair(node) and is_inner(node))
def narrow(model: ir.Model, node: ir.Node) -> str | None:
    if model.opset_imports[""] > 20:
        return None
    for each in pair(node):
        fed(each, 2, np.asarray(0, ml_dtypes.int4))
    return label(node)


@fault("QG602", is_first, "onnxruntime-cpu")
def future(model: ir.Model, node: ir.Node) -> str:
    model.opset_imports[""] = 99
    return ""


@fault("QG604", lambda node: node.op_type in ("Relu", "Add", "Conv"))
def undeclared(model: ir.Model, node: ir.Node) -> str:
    node.domain = "planted"
    return label(node)


def is_first_of_quantized(node: ir.Node) -> bool:
    names = ("QuantizeLinear", "Quant", "FakeQuantize")
    return is_first(node) and any(each.op_type in names for each in node.graph)


@fault("QG605", is_first_of_quantized)
def old(model: ir.Model, node: ir.Node) -> str | None:
    if model.opset_imports[""] < 13:
        return None
    model.opset_imports[""] = 11
    return ""


@fault("QG606", is_inner)
def foreign(model: ir.Model, node: ir.Node) -> str:
    model.opset_imports[QONNX] = 2
    numbers = [np.asarray(number, F) for number in (0.1, 0, 8)]
    new = put(node, 0, "Quant", *numbers, domain=QONNX, signed=1, narrow=0, rounding_mode="ROUND")
    return label(new)


@fault("QG607", is_data_quant)
def floor(model: ir.Model, node: ir.Node) -> str:
    node.attributes["rounding_mode"] = ir.AttrString("rounding_mode", "FLOOR")
    return label(node)


@fault("QG608", lambda node: is_quant(node) and int(constant(node.inputs[3]).max()) in (2, 4, 8))
def odd(model: ir.Model, node: ir.Node) -> str:
    fed(node, 3, np.asarray(5, F))
    return label(node)


@fault("QG609", is_pair)
def vendor(model: ir.Model, node: ir.Node) -> str:
    model.opset_imports["com.microsoft"] = 1
    for each in pair(node):
        each.domain = "com.microsoft"
    return label(node)


@fault("QG610", lambda node: is_layer(node) and node.op_type == "Gemm" and (
    len(weights_of(node).inputs) > 2))  # fmt: skip
def unstated(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    decoder.resize_inputs(2)
    return label(decoder)


@fault("QG611", is_layer)
def powers(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    shape = constant(decoder.inputs[1]).shape
    fed(decoder, 1, np.full(shape, 0.5, F).astype(ml_dtypes.float8_e8m0fnu))
    return label(decoder)


@fault("QG612", is_pair)
def float8(model: ir.Model, node: ir.Node) -> str:
    for each in pair(node):
        fed(each, 2, np.asarray(1, ml_dtypes.float8_e4m3fn))
    return label(node)


@fault("QG613", is_layer)
def one_block(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    fed(decoder, 1, np.asarray(0.01, F))
    fed(decoder, 2, np.asarray(0, np.int8))
    decoder.attributes["block_size"] = ir.AttrInt64("block_size", 32)
    return label(decoder)


@fault("QG614", lambda node: is_pair(node) and len(pair(node)[1].outputs[0].uses()) == 1, "qnn-htp")
def shared(model: ir.Model, node: ir.Node) -> str:
    _, decoder = pair(node)
    as_output(model, beside(decoder.outputs[0], "Relu").outputs[0])
    return label(decoder)


@fault("QG615", lambda node: is_pair(node) and is_inner(node))
def branch(model: ir.Model, node: ir.Node) -> str:
    encoder, decoder = pair(node)
    source, *given = encoder.inputs
    inner = ir.node("QuantizeLinear", [source, *given], name="planted_inner")
    inner.outputs[0].name = "planted_codes"
    outer = ir.node("DequantizeLinear", [inner.outputs[0], *decoder.inputs[1:]], name="planted_end")
    outer.outputs[0].name = "planted_then"
    same = ir.node("Identity", [source], name="planted_same")
    same.outputs[0].name = "planted_else"
    graphs = {
        "then_branch": ir.Graph([], [outer.outputs[0]], nodes=[inner, outer], name="then"),
        "else_branch": ir.Graph([], [same.outputs[0]], nodes=[same], name="else"),
    }
    choice = ir.node("If", [None], graphs, name="planted_if")
    choice.outputs[0].name = "planted_result"
    node.graph.insert_after(decoder, choice)
    fed(choice, 0, np.asarray(True))
    decoder.outputs[0].replace_all_uses_with(choice.outputs[0])
    return label(inner)


@fault("QG616", is_first_of_quantized)
def old_ir(model: ir.Model, node: ir.Node) -> str | None:
    if not any(each.op_type == "QuantizeLinear" for each in model.graph):
        return None
    model.ir_version = 4
    return ""


@fault("QG617", is_layer)
def lowest(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    codes = constant(decoder.inputs[0]).copy()
    codes.flat[0] = -128
    fed(decoder, 0, codes)
    return label(decoder)


@fault("QG618", lambda node: node.op_type in ("Relu", "Add", "Conv"))
def unknown(model: ir.Model, node: ir.Node) -> str:
    node.domain = "planted"
    model.opset_imports["planted"] = 1
    return label(node)


@fault("QG619", lambda node: has_data_pair(node) and is_before_quantizer(node) and (
    node.op_type == "Conv" and has_type(node, np.uint8, np.int8)))  # fmt: skip
def channels(model: ir.Model, node: ir.Node) -> str | None:
    return by_channel(model, node)


@fault("QG620", is_pair)
def wide(model: ir.Model, node: ir.Node) -> str:
    whole = beside(node.inputs[0], "Cast", to=ir.DataType.INT32.value)
    decoder = beside(whole.outputs[0], "DequantizeLinear", np.asarray(0.1, F))
    as_output(model, beside(decoder.outputs[0], "Reshape", np.asarray([-1])).outputs[0])
    return label(decoder)


@fault("QG621", lambda node: is_product(node) and has_data_pair(node))
def four_bits(model: ir.Model, node: ir.Node) -> str:
    for each in data_pair(node):
        fed(each, 2, np.zeros((), ml_dtypes.uint4))
    return label(node)


@fault("QG622", lambda node: has_data_pair(node) and node.op_type == "Conv")
def listed(model: ir.Model, node: ir.Node) -> str:
    pool = beside(node.inputs[0], "AveragePool", kernel_shape=[1, 1])
    zero = constant(data_pair(node)[1].inputs[2])
    encoder = beside(pool.outputs[0], "QuantizeLinear", np.full(1, 0.1, F), zero.reshape(1))
    as_output(model, encoder.outputs[0])
    return label(pool)
