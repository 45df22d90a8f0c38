"""Faults that runtimes change silently (QG3)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from tests.lint.faults.register import fault
from tests.lint.faults.tools import (
    F,
    as_output,
    beside,
    bias_of,
    constant,
    data_pair,
    fed,
    has_data_pair,
    is_before_quantizer,
    is_biased,
    is_first,
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
    sizes,
    weights_of,
)


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


@fault("QG301", lambda node: is_pair(node) and is_inner(node))
def two_pairs(model: ir.Model, node: ir.Node) -> str:
    scale, *zero = parameters(node)
    put(node, 0, "QuantizeLinear", scale * 2, *zero)
    put(node, 0, "DequantizeLinear", scale * 2, *zero)
    return label(node)


@fault("QG303", lambda node: is_before_quantizer(node) and is_biased(node))
def float_bias(model: ir.Model, node: ir.Node) -> str:
    size = constant(bias_of(node).inputs[0]).size
    fed(node, 2, np.linspace(0.0123, 0.9, size, dtype=F))
    return label(node)


@fault("QG304", lambda node: is_biased(node) and has_data_pair(node), "qnn-htp")
def ignored(model: ir.Model, node: ir.Node) -> str:
    decoder = bias_of(node)
    fed(decoder, 1, constant(decoder.inputs[1]) * F(2))
    return label(node)


@fault("QG305", lambda node: has_data_pair(node) and node.op_type == "MatMul")
def float_data(model: ir.Model, node: ir.Node) -> str:
    encoder, _ = data_pair(node)
    node.replace_input_with(0, encoder.inputs[0])
    return label(node)


@fault("QG306", lambda node: has_data_pair(node) and is_image_layer(node))
def average(model: ir.Model, node: ir.Node) -> str:
    return label(put(node, 0, "AveragePool", kernel_shape=[1, 1]))


@fault("QG307", lambda node: (
    is_before_quantizer(node) and node.op_type == "Conv" and is_pair(reader(node))))  # fmt: skip
def residual(model: ir.Model, node: ir.Node) -> str:
    encoder, decoder = pair(reader(node))
    value = decoder.outputs[0]
    uses = [(use.node, use.idx) for use in value.uses()]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    twin = beside(node.inputs[0], "Conv", *node.inputs[1:], **attributes)
    codes = beside(twin.outputs[0], "QuantizeLinear", *parameters(encoder))
    second = beside(codes.outputs[0], "DequantizeLinear", *parameters(decoder))
    total = beside(second.outputs[0], "Add", value)
    codes = beside(total.outputs[0], "QuantizeLinear", *parameters(encoder))
    result = beside(codes.outputs[0], "DequantizeLinear", *parameters(decoder))
    for reading, index in uses:
        reading.replace_input_with(index, result.outputs[0])
    return label(total)


def symmetric(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    fed(decoder, 2, np.zeros(constant(decoder.inputs[1]).shape, np.int8))
    return label(node)


def is_matrix_product(node: ir.Node) -> bool:
    return has_data_pair(node) and node.op_type in ("MatMul", "Gemm")


@fault("QG309", is_matrix_product, clean=symmetric)
def shifted(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    fed(decoder, 2, np.full(constant(decoder.inputs[1]).shape, 3, np.int8))
    return label(node)


@fault("QG310", lambda node: is_pair(node) and is_inner(node) and (
    constant(node.inputs[1]).dtype == F))  # fmt: skip
def half(model: ir.Model, node: ir.Node) -> str:
    put(node, 0, "Cast", to=int(ir.DataType.FLOAT16))
    fed(node, 1, constant(node.inputs[1]).astype(np.float16))
    return label(node)


@fault("QG311", lambda node: is_pair(node) and is_inner(node) and has_open_batch(node))
def dynamic(model: ir.Model, node: ir.Node) -> str | None:
    shape = sizes(model, node.inputs[0])
    if len(shape) < 2 or shape[0] == 1:
        return None
    _, decoder = pair(node)
    new = ir.node("DynamicQuantizeLinear", [node.inputs[0]], num_outputs=3, name="planted")
    node.graph.insert_before(node, new)
    for index, output in enumerate(new.outputs):
        output.name = f"planted_{index}"
        decoder.replace_input_with(index, output)
    return label(new)


def has_open_batch(node: ir.Node) -> bool:
    shape = node.graph.inputs[0].shape
    return shape is not None and len(shape) > 1 and not isinstance(shape[0], int)


def quiet(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    fed(decoder, 0, constant(decoder.inputs[0]) // 4)
    return label(node)


def adds_pairs(node: ir.Node) -> bool:
    """Depthwise convolutions with one filter for each channel do not."""
    return node.attributes.get_int("group", 1) == 1 and has_type(node, np.uint8, np.int8)


@fault("QG312", lambda node: has_data_pair(node) and adds_pairs(node), clean=quiet)
def loud(model: ir.Model, node: ir.Node) -> str:
    decoder = weights_of(node)
    fed(decoder, 0, np.full_like(constant(decoder.inputs[0]), 127))
    return label(node)


def has_type(node: ir.Node, *types: object) -> bool:
    encoder, _ = data_pair(node)
    return len(encoder.inputs) > 2 and constant(encoder.inputs[2]).dtype in types


_NARROW = {"QuantizeLinear", "DequantizeLinear", "Quant", "BipolarQuant", "FloatQuant", "Trunc",
           "FakeQuantize", "Conv", "Gemm", "MatMul", "ConvTranspose"}  # fmt: skip


@fault("QG313", lambda node: is_first(node) and not any(
    each.op_type in _NARROW for each in node.graph), "openvino-cpu")  # fmt: skip
def narrow(model: ir.Model, node: ir.Node) -> str:
    value = next(node.outputs[0] for node in model.graph if node.outputs[0].name)
    new = beside(value, "MatMul", np.eye(2, dtype=F))
    as_output(model, new.outputs[0])
    return ""


def is_sum_of_codes(node: ir.Node) -> bool:
    after = reader(node) if node.op_type == "Add" else None
    makers = [maker(node, index) for index in (0, 1)]
    return (
        after is not None
        and is_pair(after)
        and makers[0] is not makers[1]
        and all(each is not None and each.op_type == "DequantizeLinear" for each in makers)
        and all(constant(each.inputs[1]) is not None for each in makers)
        and all(constant(each.inputs[1]).size == 1 for each in makers)
    )


@fault("QG314", is_sum_of_codes)
def ties(model: ir.Model, node: ir.Node) -> str:
    scale = constant(reader(node).inputs[1])
    for index in (0, 1):
        decoder = maker(node, index)
        encoder = maker(decoder, 0)
        for each in (decoder, encoder):
            if each is not None and each.op_type in ("QuantizeLinear", "DequantizeLinear"):
                fed(each, 1, np.full_like(constant(each.inputs[1]), scale / 2))
    return label(node)


@fault("QG315", lambda node: has_data_pair(node) and node.op_type == "Conv" and (
    has_type(node, np.int8)))  # fmt: skip
def joined(model: ir.Model, node: ir.Node) -> str:
    return label(put(node, 0, "Concat", axis=1))


@fault("QG316", lambda node: has_data_pair(node) and node.op_type == "MatMul")
def rows(model: ir.Model, node: ir.Node) -> str | None:
    if len(sizes(model, node.inputs[0])) != 3:
        return None
    return label(put(node, 0, "ReduceMean", axes=[1], keepdims=1))


@fault("QG317", lambda node: has_data_pair(node) and is_image_layer(node))
def beyond(model: ir.Model, node: ir.Node) -> str | None:
    spatial = sizes(model, node.inputs[0])[2:]
    if not all(isinstance(size, int) for size in spatial) or len(spatial) != 2:
        return None
    strides = [next(s for s in (2, 3, 5, 7) if (size - 1) % s) for size in spatial if size > 1]
    if len(strides) != 2:
        return None
    new = put(node, 0, "MaxPool", kernel_shape=[3, 3], strides=strides, pads=[0, 0, 2, 2])
    new.attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 1)
    return label(new)


@fault("QG319", lambda node: node.op_type in ("Gemm", "MatMul") and weights_of(node) is not None)
def tied(model: ir.Model, node: ir.Node) -> str | None:
    graph, (data, weights) = node.graph, node.inputs[:2]
    shape = sizes(model, weights)
    if len(shape) != 2 or shape[0] != shape[1] or not isinstance(graph, ir.Graph):
        return None
    is_plain = not node.attributes.get_int("transB", 0)
    moved = [ir.node("Transpose", [weights], {"perm": [1, 0]})] if is_plain else []
    new = ir.node("MatMul", [data, moved[0].outputs[0] if moved else weights])
    for each in (*moved, new):
        each.name = f"planted_{each.op_type}"
        each.outputs[0].name = f"{each.name}_result"
    graph.insert_after(node, [*moved, new])
    as_output(model, new.outputs[0])
    return label(new)


@fault("QG318", is_pair, "tensorrt")
def unsigned(model: ir.Model, node: ir.Node) -> str:
    for each in pair(node):
        fed(each, 2, np.asarray(0, np.uint8))
    return label(node)


@fault("QG320", lambda node: has_data_pair(node) and is_image_layer(node))
def padded(model: ir.Model, node: ir.Node) -> str:
    for each in data_pair(node):
        fed(each, 2, np.asarray(128, np.uint8))
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}
    return label(put(node, 0, "AveragePool", **window))


@fault("QG321", is_layer)
def columns(model: ir.Model, node: ir.Node) -> str | None:
    stored = weights_of(node).inputs[0]
    if constant(stored).shape[1] == 1:
        return None
    scales = np.linspace(0.01, 0.02, constant(stored).shape[1], dtype=F)
    decoder = beside(stored, "DequantizeLinear", scales, axis=1)
    rows = beside(decoder.outputs[0], "Gather", np.asarray([0, 1]))
    as_output(model, rows.outputs[0])
    return label(rows)


@fault("QG322", is_pair)
def float8(model: ir.Model, node: ir.Node) -> str:
    for each in (node, reader(node)):
        fed(each, 2, np.zeros((), ml_dtypes.float8_e4m3fn))
    return label(node)


@fault("QG323", has_data_pair)
def limited(model: ir.Model, node: ir.Node) -> str | None:
    decoder = data_pair(node)[1]
    scale = constant(decoder.inputs[1])
    if scale is None or scale.size != 1:
        return None
    return label(put(node, 0, "Clip", F(-9.5) * scale, F(5.5) * scale))


@fault("QG324", has_data_pair)
def softmax(model: ir.Model, node: ir.Node) -> str:
    encoder, _ = data_pair(node)
    zero = constant(encoder.inputs[2]) if len(encoder.inputs) > 2 else None
    zero = np.asarray(0, np.uint8) if zero is None else np.asarray(zero.flat[0])
    new = put(node, 0, "Softmax", axis=-1)
    put(node, 0, "QuantizeLinear", F(1 / 255), zero)
    put(node, 0, "DequantizeLinear", F(1 / 255), zero)
    return label(new)


def is_product(node: ir.Node) -> bool:
    return is_layer(node) and node.op_type != "Conv"


@fault("QG325", is_product)
def scales_of_rows(model: ir.Model, node: ir.Node) -> str | None:
    decoder = weights_of(node)
    axis = node.attributes.get_int("transB", 0)
    size = constant(decoder.inputs[0]).shape[axis]
    fed(decoder, 1, np.linspace(0.01, 0.02, size, dtype=F))
    if len(decoder.inputs) > 2:
        fed(decoder, 2, np.zeros(size, np.int8))
    decoder.attributes.add(ir.AttrInt64("axis", axis))
    return label(node) if size > 1 else None


@fault("QG326", is_pair)
def without_point(model: ir.Model, node: ir.Node) -> str | None:
    if model.opset_imports.get("", 0) > 20:
        return None
    encoder = beside(node.inputs[0], "QuantizeLinear", F(0.1), np.asarray(0, np.int8))
    decoder = beside(encoder.outputs[0], "DequantizeLinear", F(0.1))
    as_output(model, beside(decoder.outputs[0], "Reshape", np.asarray([-1])).outputs[0])
    return label(decoder)


@fault("QG327", lambda node: has_data_pair(node) and node.op_type == "Conv")
def signed_four(model: ir.Model, node: ir.Node) -> str:
    for each in data_pair(node):
        fed(each, 2, np.asarray(3, ml_dtypes.int4))
    return label(node)


@fault("QG328", lambda node: has_data_pair(node) and node.op_type == "MatMul")
def normalized(model: ir.Model, node: ir.Node) -> str | None:
    width = sizes(model, node.inputs[0])[-1]
    if not isinstance(width, int):
        return None
    for each in data_pair(node):
        fed(each, 2, np.asarray(0, np.uint8))
    return label(put(node, 0, "LayerNormalization", np.ones(width, F)))


@fault("QG330", lambda node: has_data_pair(node) and node.op_type == "Conv")
def less(model: ir.Model, node: ir.Node) -> str:
    for each in data_pair(node):
        fed(each, 2, np.asarray(0, np.uint8))
    put(node, 0, "Sub", F(0.01))
    return label(node)


@fault("QG331", lambda node: has_data_pair(node) and node.op_type == "Conv")
def largest(model: ir.Model, node: ir.Node) -> str:
    value = beside(node.outputs[0], "GlobalMaxPool")
    codes = beside(value.outputs[0], "QuantizeLinear", F(0.0273), np.asarray(3, np.uint8))
    as_output(model, beside(codes.outputs[0], "DequantizeLinear", *parameters(codes)).outputs[0])
    return label(value)
