"""Faults that make models slower than necessary (QG4)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qgraph.lint.facts import ModelFacts
from qgraph.targets.engine import NoKernel
from qgraph.targets.reader import profile_of
from tests.lint.faults.register import fault
from tests.lint.faults.silent import is_sum_of_codes
from tests.lint.faults.tools import (
    F,
    behind,
    beside,
    constant,
    data_pair,
    fed,
    has_data_pair,
    is_before_quantizer,
    is_image_layer,
    is_inner,
    is_layer,
    is_pair,
    label,
    maker,
    pair,
    parameters,
    put,
    reader,
    weights_of,
)


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


@fault("QG401", has_data_pair, "onnxruntime-cpu")
def in_float(model: ir.Model, node: ir.Node) -> str:
    packed(model, node)
    return label(node)


@fault("QG402", lambda node: has_data_pair(node) and node.op_type == "Conv" and (
    is_before_quantizer(node)), "onnxruntime-cpu")  # fmt: skip
def slower(model: ir.Model, node: ir.Node) -> str | None:
    facts = ModelFacts(model, profile_of("onnxruntime-cpu"))
    if node in (layer.node for layer, answer in facts.answers if isinstance(answer, NoKernel)):
        return None
    unsigned(model, node)
    return label(node)


def is_above_lowest(node: ir.Node) -> bool:
    """Return whether the quantizer behind a layer has codes for negative numbers."""
    if not is_before_quantizer(node) or len(reader(node).inputs) < 3:
        return False
    zero = constant(reader(node).inputs[2])
    return zero is not None and int(zero.flat[0]) > np.iinfo(zero.dtype).min


@fault("QG405", is_above_lowest)
def open_range(model: ir.Model, node: ir.Node) -> str:
    return label(put(reader(node), 0, "Relu"))


@fault("QG410", lambda node: has_data_pair(node) and node.op_type == "Conv")
def by_channel(model: ir.Model, node: ir.Node) -> str | None:
    channels = constant(weights_of(node).inputs[0]).shape[1] * (
        node.attributes.get_int("group", 1) or 1
    )
    if channels == 1:
        return None
    scales(data_pair(node), channels)
    return label(node)


def scales(nodes: list[ir.Node], channels: int) -> None:
    """Give quantizers of data a scale for each channel."""
    for each in nodes:
        scale, *zero = parameters(each)
        fed(each, 1, scale.reshape(()) * np.linspace(1, 2, channels, dtype=scale.dtype))
        for array in zero:
            fed(each, 2, np.full(channels, array.reshape(()), array.dtype))


@fault("QG411", lambda node: is_before_quantizer(node) and node.op_type == "Conv" and (
    is_pair(reader(node)) and all(
        use.node.op_type in ("Conv", "Gemm", "Flatten")
        for use in pair(reader(node))[1].outputs[0].uses())))  # fmt: skip
def unquantized(model: ir.Model, node: ir.Node) -> str:
    encoder, decoder = pair(reader(node))
    decoder.outputs[0].replace_all_uses_with(node.outputs[0])
    model.graph.remove([decoder, encoder], safe=True)
    return label(node)


def is_join_of_codes(node: ir.Node) -> bool:
    makers = [each.producer() for each in node.inputs if each is not None]
    return node.op_type == "Concat" and len(set(makers)) > 1 and all(
        each is not None and each.op_type == "DequantizeLinear" and (
            constant(each.inputs[1]) is not None and constant(each.inputs[1]).size == 1)
        for each in makers)  # fmt: skip


@fault("QG412", is_join_of_codes)
def unequal(model: ir.Model, node: ir.Node) -> str:
    decoder = maker(node, 0)
    fed(decoder, 1, constant(decoder.inputs[1]) * F(1.5))
    return label(node)


@fault("QG414", lambda node: is_before_quantizer(node) and is_pair(reader(node)))
def inside(model: ir.Model, node: ir.Node) -> str:
    encoder, decoder = pair(reader(node))
    codes = behind(decoder.outputs[0], "QuantizeLinear", *parameters(encoder))
    behind(codes.outputs[0], "DequantizeLinear", *parameters(decoder))
    put(codes, 0, "Relu")
    return label(node)


def has_float_source(node: ir.Node, index: int) -> bool:
    decoder = maker(node, index)
    encoder = None if decoder is None else maker(decoder, 0)
    source = None if encoder is None or encoder.op_type != "QuantizeLinear" else maker(encoder, 0)
    return source is not None and source.op_type in ("Conv", "Gemm", "MatMul", "Relu", "Add")


@fault("QG415", lambda node: is_sum_of_codes(node) and has_float_source(node, 1))
def half_float(model: ir.Model, node: ir.Node) -> str:
    node.replace_input_with(1, maker(maker(node, 1), 0).inputs[0])
    return label(node)


@fault("QG416", lambda node: is_layer(node) and node.op_type == "Gemm" and (
    maker(node, 0).op_type == "DequantizeLinear"))  # fmt: skip
def flat(model: ir.Model, node: ir.Node) -> str:
    return label(put(node, 0, "Flatten"))


def is_matrix_product(node: ir.Node) -> bool:
    turned = maker(node, 1)
    quants = ("Quant", "BipolarQuant")
    after = reader(node)
    return node.op_type == "MatMul" and (
        turned is not None
        and maker(node, 0) is not None
        and maker(node, 0).op_type in quants
        and (turned.op_type in quants or (
            turned.op_type == "Transpose" and maker(turned, 0).op_type in quants))
        and (after is None or after.op_type != "Add")
    )  # fmt: skip


@fault("QG417", is_matrix_product)
def product_and_sum(model: ir.Model, node: ir.Node) -> str:
    behind(node.outputs[0], "Add", np.zeros(1, F))
    return label(node)


@fault("QG418", lambda node: node.op_type == "GlobalAveragePool" and (
    maker(node, 0).op_type == "DequantizeLinear"))  # fmt: skip
def mean(model: ir.Model, node: ir.Node) -> str:
    if model.opset_imports[""] < 18:
        return label(put(node, 0, "ReduceMean", axes=[2, 3], keepdims=1))
    return label(put(node, 0, "ReduceMean", np.asarray([2, 3]), keepdims=1))


@fault("QG419", lambda node: has_data_pair(node) and is_image_layer(node))
def integers(model: ir.Model, node: ir.Node) -> str:
    names = ("strides", "pads", "group", "dilations", "kernel_shape")
    attributes = {name: a.value for name, a in node.attributes.items() if name in names}
    codes, weights = data_pair(node)[0].outputs[0], constant(weights_of(node).inputs[0])
    new = beside(codes, "ConvInteger", weights, **attributes)
    number = beside(new.outputs[0], "Cast", to=1)
    node.outputs[0].replace_all_uses_with(number.outputs[0])
    return label(new)


def blocked(node: ir.Node, axis: int, size: int) -> str | None:
    """Give the weights of a layer a scale for each block of an axis."""
    decoder = weights_of(node)
    shape = list(constant(decoder.inputs[0]).shape)
    if shape[axis] % size:
        return None
    shape[axis] //= size
    fed(decoder, 1, np.full(shape, 0.01, F))
    fed(decoder, 2, np.zeros(shape, np.int8))
    decoder.attributes["axis"] = ir.AttrInt64("axis", axis)
    decoder.attributes["block_size"] = ir.AttrInt64("block_size", size)
    return label(decoder)


def is_matrix_layer(node: ir.Node) -> bool:
    return is_layer(node) and node.op_type in ("MatMul", "Gemm") and (
        constant(weights_of(node).inputs[0]).ndim == 2)  # fmt: skip


def summed_axis(node: ir.Node) -> int:
    return 1 if node.attributes.get_int("transB", 0) else 0


@fault("QG420", is_matrix_layer)
def small(model: ir.Model, node: ir.Node) -> str | None:
    return blocked(node, summed_axis(node), 8)


@fault("QG422", is_matrix_layer)
def outputs(model: ir.Model, node: ir.Node) -> str | None:
    axis = 1 - summed_axis(node)
    return blocked(node, axis, 2 if constant(weights_of(node).inputs[0]).shape[axis] % 32 else 32)


@fault("QG421", lambda node: is_pair(node) and is_inner(node))
def swish(model: ir.Model, node: ir.Node) -> str:
    encoder, decoder = pair(node)
    value = decoder.outputs[0]
    uses = [(use.node, use.idx) for use in value.uses()]
    hard = beside(value, "HardSigmoid")
    codes = beside(hard.outputs[0], "QuantizeLinear", *parameters(encoder))
    second = beside(codes.outputs[0], "DequantizeLinear", *parameters(decoder))
    new = beside(second.outputs[0], "Mul", value)
    for reading, index in uses:
        reading.replace_input_with(index, new.outputs[0])
    return label(new)
