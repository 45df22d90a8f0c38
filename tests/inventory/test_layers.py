"""Layers of quantized operands are found, and described as the model writes them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qgraph.inventory.executed import executed
from qgraph.inventory.layers import quantized_layers
from qgraph.targets.layer import (
    BehindLayer,
    Granularity,
    LayerBias,
    ProductAxis,
    QuantizedLayer,
    ZeroPoint,
)

NET = """<ir_version: 10, opset_import: ["": 21]>
net (float[1,4,8,8] x) => (float[1,2] y)
<float s = {0.5}, uint8 z = {0}, int8[6,2,3,3] w = {W}, float[6] ws = {1, 2, 1, -1, 1, 1},
 int8[2,6] f = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float fs = {0.25}, uint8 fz = {128},
 uint8[2,6] u = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
 int32[6] b = {1, 2, 3, 4, 5, 6}, float[6] bs = {0.5, 1, 0.5, -0.5, 0.5, 1},
 int64[2] sizes = {1, 6}, float six = {6}, float zero = {0}> {
    q = QuantizeLinear (x, s, z)
    d = DequantizeLinear (q, s, z)
    t = Transpose <perm = [0, 1, 3, 2]> (d)
    v = DequantizeLinear <axis = 0> (w, ws)
    bias = DequantizeLinear <axis = 0> (b, bs)
    [conv] c = Conv <group = 2> (t, v, bias)
    r = Relu (c)
    k = Clip (r, zero, six)
    qk = QuantizeLinear (k, s, z)
    dk = DequantizeLinear (qk, s, z)
    mean = GlobalAveragePool (dk)
    rows = Reshape (mean, sizes)
    dv = DequantizeLinear (f, fs)
    [after_mean] m = Gemm <transB = 1> (rows, dv)
    qm = QuantizeLinear (rows, s, z)
    dm = DequantizeLinear (qm, s, z)
    du = DequantizeLinear (u, fs, fz)
    [gemm] g = Gemm <transB = 1, beta = 2.0> (dm, du)
    y = Add (g, m)
}"""


@pytest.fixture(scope="module")
def layers() -> list[QuantizedLayer]:
    weights = ", ".join(["1"] * 108)
    model = ir.from_onnx_text(NET.replace("W", weights, 1))
    return [each.description for each in quantized_layers(model)]


def test_layers_of_quantized_operands_are_found(layers: list[QuantizedLayer]) -> None:
    """The data of the first Gemm come from a mean, which has no codes."""
    assert [each.node for each in layers] == ["conv", "gemm"]


def test_operators_of_other_domains_decode_nothing() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "other": 1]>
    net (uint8[2,2] q, int8[2,2] w) => (float[2,2] y) <float s = {0.5}> {
        d = DequantizeLinear (q, s)
        v = other.DequantizeLinear <axis = [1]> (w, s)
        y = MatMul (d, v)
    }"""
    assert list(quantized_layers(ir.from_onnx_text(text))) == []


def test_operands_are_described(layers: list[QuantizedLayer]) -> None:
    conv, gemm = layers
    assert (conv.x.codes, conv.x.before, conv.x.zero) == ("UINT8", ("Transpose",), ZeroPoint.ZERO)
    assert conv.x.is_direct
    assert not conv.x.is_constant
    assert (conv.w.codes, conv.w.granularity, conv.w.axis, conv.w.zero, conv.w.is_positive) == (
        *("INT8", Granularity.AXIS, ProductAxis.OUTPUT),
        *(ZeroPoint.NONE, False),
    )
    assert conv.w.is_power_of_two
    assert conv.w.is_constant
    assert (gemm.w.codes, gemm.w.zero, gemm.w.granularity) == (
        *("UINT8", ZeroPoint.MIDDLE, Granularity.TENSOR),
    )


def test_the_surroundings_are_described(layers: list[QuantizedLayer]) -> None:
    conv, gemm = layers
    assert (conv.group, conv.rank, conv.consumers) == ("grouped", 4, 1)
    # scales 0.5 * ws, the last of which is 0.5 and stored as 1
    assert conv.bias == LayerBias("INT32", 1.0, 0.5)
    assert conv.behind == (BehindLayer("Relu", is_redundant=True), BehindLayer("Clip"))
    assert conv.y is not None
    assert conv.y.codes == "UINT8"
    assert (gemm.y, gemm.behind) == (None, (BehindLayer("Add (data)"),))
    assert gemm.attributes == {"alpha": 1.0, "beta": 2.0, "transA": 0.0, "transB": 1.0}


def test_quantizers_of_other_dialects_count_too() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 20, "qonnx.custom_op.general": 1]>
        net (float[N,2] x) => (float[N,2] y)
        <float[2,2] w = {0.5, -1.1, 0.7, 2}, float s = {0.25}, float z = {0}, float b = {4}> {
            d = qonnx.custom_op.general.Quant <signed = 0, narrow = 0> (x, s, z, b)
            v = qonnx.custom_op.general.Quant <signed = 1, narrow = 1> (w, s, z, b)
            [product] y = MatMul (d, v)
        }"""
    )
    (layer,) = quantized_layers(model)
    data, weights = layer.description.x, layer.description.w
    assert (data.codes, data.written, data.levels) == ("UINT4", "Quant", 16)
    assert (weights.codes, weights.levels, weights.is_constant) == ("INT4", 15, True)


@pytest.mark.runtime
def test_executed_kernels_are_those_of_the_optimized_graph() -> None:
    """BatchNormalization keeps the first layer in float; nothing keeps the second."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 21]>
        net (float[1,2,4,4] x) => (float[1,2,2,2] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,2,2,2] w = {WS}, float[2] n = {1, 2}> {
            q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
            v = DequantizeLinear (w, s)
            [first] c = Conv (d, v)
            [norm] b = BatchNormalization (c, n, n, n, n)
            qb = QuantizeLinear (b, s, z)   db = DequantizeLinear (qb, s, z)
            [second] e = Conv (db, v)
            qe = QuantizeLinear (e, s, z)   y = DequantizeLinear (qe, s, z)
        }""".replace("WS", ", ".join(["1"] * 16))
    )
    found = executed(model)
    assert [(each.node, each.is_integer) for each in found.layers] == [
        ("first", False),
        ("second", True),
    ]
    assert found.layers[1].kernel == "QLinearConv"
    assert (found.integer_nodes, found.float_nodes) == (1, 1)
    assert [node.name for node in model.graph if node.op_type == "Conv"] == ["first", "second"]


@pytest.mark.parametrize(
    ("opset", "clip", "name"),
    [
        (13, "Clip (r, zero, six)", "Clip (data)"),
        (10, "Clip <min = 0.0, max = 6.0> (r)", "Clip"),
    ],
)
def test_a_clip_whose_limits_are_computed_or_attributes_is_not_redundant(
    opset: int, clip: str, name: str
) -> None:
    """The quantizer behind it reaches up to 127.5, and nobody knows the computed limit."""
    text = f"""<ir_version: 10, opset_import: ["": {opset}]>
    net (float[2,2] x, float six) => (float[2,2] y)
    <float s = {{0.5}}, uint8 z = {{0}}, int8[2,2] w = {{1, 2, 3, 4}}, int8 n = {{0}},
     float zero = {{0}}> {{
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        v = DequantizeLinear (w, s, n)
        r = MatMul (d, v)
        k = {clip}
        qk = QuantizeLinear (k, s, z)
        y = DequantizeLinear (qk, s, z)
    }}"""
    (layer,) = (each.description for each in quantized_layers(ir.from_onnx_text(text)))
    assert layer.behind == (BehindLayer(name),)


def test_a_quantizer_whose_codes_are_moved_is_that_of_the_layer() -> None:
    found = quantized_layers(ir.from_onnx_text(BODY_OF_MOVED))
    (layer,) = (each.description for each in found)
    assert layer.y is not None
    assert (layer.y.codes, layer.y.written) == (
        "UINT8",
        "QuantizeLinear+Clip+DequantizeLinear",
    )
    # codes of 0 to 255 times 0.5 leave nothing for Relu to do
    assert layer.behind == (BehindLayer("Relu", is_redundant=True),)


BODY_OF_MOVED = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,1,8,8] x) => (float[1,2,3,3] y) <float s = {0.5}, uint8 z = {0}, uint8 top = {15},
    int8[2,1,3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}> {
    q = QuantizeLinear (x, s, z)
    d = DequantizeLinear (q, s, z)
    v = DequantizeLinear (w, s)
    c = Conv (d, v)
    r = Relu (c)
    p = QuantizeLinear (r, s, z)
    k = Clip (p, z, top)
    m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (k)
    y = DequantizeLinear (m, s, z)
}"""


@pytest.mark.parametrize("scale", ["1", "0.5"])
def test_a_quantizer_that_is_quantized_again_ends_at_its_codes(scale: str) -> None:
    """Between quantizers of scale 1, a limit is part of one quantizer with both."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[1,1,8,8] x) => (float[1,1,6,6] y) <float s = {{{scale}}}, uint8 z = {{128}},
        float low = {{-1}}, float top = {{1}}, int8[1,1,3,3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}> {{
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        v = DequantizeLinear (w, s)
        c = Conv (d, v)
        o = QuantizeLinear (c, s, z)
        e = DequantizeLinear (o, s, z)
        k = Clip (e, low, top)
        p = QuantizeLinear (k, s, z)
        y = DequantizeLinear (p, s, z)
    }}"""
    (layer,) = (each.description for each in quantized_layers(ir.from_onnx_text(text)))
    assert layer.y is not None
    assert (layer.y.codes, layer.y.written) == ("UINT8", "QuantizeLinear+DequantizeLinear")


@pytest.mark.parametrize("scales", ["0.5, 0.25", "0.5, 0.25, 1"])
def test_biases_are_not_compared_with_scales_of_data_that_differ(scales: str) -> None:
    """With a scale for each channel of the data, no scale makes the bias codes of the sum."""
    channels = scales.count(",") + 1
    text = f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[1,{channels},4,4] x) => (float[1,3,4,4] y)
    <float[{channels}] s = {{{scales}}}, float[3] ws = {{1, 2, 4}}, float[3] bs = {{1, 1, 1}},
     uint8[{channels}] z = {{{", ".join("0" * channels)}}}, int32[3] b = {{1, 2, 3}},
     int8[3,{channels},1,1] w = {{{", ".join("1" * 3 * channels)}}}> {{
        q = QuantizeLinear <axis = 1> (x, s, z)
        d = DequantizeLinear <axis = 1> (q, s, z)
        v = DequantizeLinear <axis = 0> (w, ws)
        bias = DequantizeLinear <axis = 0> (b, bs)
        y = Conv (d, v, bias)
    }}"""
    (layer,) = quantized_layers(ir.from_onnx_text(text))
    assert layer.description.x.granularity is Granularity.AXIS
    assert layer.description.bias == LayerBias("INT32")
