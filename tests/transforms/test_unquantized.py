"""A deployment names the products that are no quantized layers, and says why."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from qgraph.errors import OptionError
from qgraph.transforms.deployment.deploy import deploy

TEXT = """<ir_version: 10, opset_import: ["": 21]>
net (float[2,4] x, float[4,4] v) => (float[2,4] y, float[2,4] t)
<float s = {0.5}, uint8 z = {0}, int8[4,4] w = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1,
 2, 3, 4, 5, 6}, int32[4,4] p = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6},
 float[4,4] u = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}> {
    c = QuantizeLinear (x, s, z)
    d = DequantizeLinear (c, s, z)
    e = DequantizeLinear (w, s)
    [coded] g = MatMul (d, e)
    h = Relu (g)
    i = Identity (h)
    [behind] j = MatMul (i, e)
    [plain] k = MatMul (d, u)
    [fed] l = MatMul (d, v)
    n = DequantizeLinear (p, s)
    [wide] m = MatMul (d, n)
    o = Add (m, j)
    y = Add (k, l)
    t = Add (o, y)
}"""


@pytest.fixture(scope="module")
def deployment():
    return deploy(ir.from_onnx_text(TEXT), "tensorrt")


def test_each_product_without_codes_has_a_reason(deployment):
    assert [layer.node for layer in deployment.layers] == ["coded"]
    assert deployment.unquantized == {
        "behind": "no quantizer between Relu and it",
        "plain": "its weights have no quantizer",
        "fed": "no quantizer between input 'v' and it",
        "wide": "its codes are not integers of 16 bits or fewer",
    }
    assert deployment.to_json()["notes"][-1] == (
        "not quantized, so in float and not listed: behind (no quantizer between Relu and it); "
        "plain (its weights have no quantizer); fed (no quantizer between input 'v' and it); "
        "and 1 more"
    )


def test_such_a_product_is_explained(deployment):
    assert deployment.explained("plain") == [
        "'plain' is not quantized, so it runs in float: its weights have no quantizer."
    ]
    with pytest.raises(OptionError, match="expected one of coded"):
        deployment.explained("nothing")


EINSUM = """<ir_version: 10, opset_import: ["": 21]>
net (float[2,2] x) => (float[2,2] y, float[2,2] t)
<float s = {0.5}, uint8 z = {0}, int8[2,2] w = {1, 2, 3, 4}> {
    c = QuantizeLinear (x, s, z)    d = DequantizeLinear (c, s, z)
    e = DequantizeLinear (w, s)     [coded] y = Einsum <equation = "ij,jk->ik"> (d, e)
    [plain] t = Einsum <equation = "ij,jk->ik"> (x, e)
}"""


def test_an_einsum_of_quantized_data_is_named():
    found = deploy(ir.from_onnx_text(EINSUM), "tensorrt")
    (note,) = [each for each in found.notes if "Einsum" in each]
    assert note.startswith("coded: profiles do not describe Einsum of quantized data")


WIDE = """<ir_version: 10, opset_import: ["": 21]>
net (float[2,4] x) => (float[2,2] y)
<float s = {0.5}, uint16 z = {100}, float t = {0.25}, uint8 c = {7},
 uint8[4,2] w = {0, 1, 2, 3, 4, 5, 6, 7}> {
    a = QuantizeLinear (x, s, z)
    b = DequantizeLinear (a, s, z)
    d = DequantizeLinear (w, t, c)
    [product] e = MatMul (b, d)
    f = QuantizeLinear (e, s, z)
    y = DequantizeLinear (f, s, z)
}"""


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(("target", "has_kernel"), [("qnn-htp", True), ("tensorrt", False)])
def test_codes_of_16_bits_are_judged_by_the_profile(target, has_kernel):
    (layer,) = deploy(ir.from_onnx_text(WIDE), target).layers
    assert layer.node == "product"
    assert (layer.kernel is not None) == has_kernel
    assert has_kernel or "UINT16" in layer.reason


def test_a_product_behind_a_trunc_is_told_apart():
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 1]>
    net (float[2,4] x) => (float[2,4] y)
    <float s = {0.5}, float z = {0}, float i = {6}, float o = {4}, float b = {4},
     float[4,4] w = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}> {
        q = qonnx.custom_op.general.Quant <signed = 1> (w, s, z, b)
        t = qonnx.custom_op.general.Trunc <rounding_mode = "FLOOR"> (x, s, z, i, o)
        [behind] y = MatMul (t, q)
    }"""
    found = deploy(ir.from_onnx_text(text), "onnxruntime-cpu").unquantized
    assert found == {"behind": "it reads the result of a Trunc, which is not quantized again"}
