"""Converting operators on codes, whose inputs are quantizers; ONNX Runtime is the truth."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from qgraph.inventory.overview import overview
from qgraph.model import Model, load
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect, FoldWeights
from qgraph.transforms.fold_constants import FoldConstants

pytestmark = pytest.mark.runtime

DIALECTS = ["qdq", "qonnx", "openvino", "onnx"]

CODES = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
net (float[5, 4] x) => (float[5, 3] y)
<float s = {0.05}, uint8 z = {120}, float v = {0.1}, uint8 u = {7},
 float[3] sw = {0.02, 0.03, 0.07}, int8[3] zw = {0, 0, 0},
 int8[4,3] w = {1, -7, 30, 127, 5, -128, 66, 0, -3, 9, 10, 11}, float[5,3] c = {0.1, 0.5, -0.25,
 1, 2, 3, -1, -2, -3, 0, 0.3, 0.7, 0.05, -0.05, 2.5}> {
    [first] q = QuantizeLinear (x, s, z)
    [product] p = QLinearMatMul (q, s, z, w, sw, zw, v, u)
    [other] e = QuantizeLinear (c, v, u)
    [sum] t = com.microsoft.QLinearAdd (p, v, u, e, v, u, s, z)
    [last] y = DequantizeLinear (t, s, z)
}"""

BLOCKS = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
net (float[3, 32] x) => (float[3, 2] y)
<uint8[2,2,8] w = {WEIGHT}, float[2,2] s = {0.5, 0.25, 0.1, 0.3}> {
    [product] y = com.microsoft.MatMulNBits <K = 32, N = 2, bits = 4, block_size = 16> (x, w, s)
}""".replace("WEIGHT", ", ".join(str(37 * i % 256) for i in range(32)))

DYNAMIC = """<ir_version: 8, opset_import: ["": 17]>
net (float[3, 4] x) => (float[3, 2] y)
<int8[4,2] w = {1, -2, 3, 4, 50, -60, 7, -64}, float[2] v = {0.1, 0.3}> {
    [dynamic] q, s, z = DynamicQuantizeLinear (x)
    [product] i = MatMulInteger (q, w, z)
    f = Cast <to = 1> (i)
    m = Mul (s, v)
    y = Mul (f, m)
}"""


def runs(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return session.run(None, {"x": x})[0]


def made(text: str) -> tuple[Model, np.ndarray]:
    model = load(ir.from_onnx_text(text))
    shape = [int(size) for size in model.inputs[0].shape]
    return model, np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.cases(fast=5)
@pytest.mark.parametrize("text", [CODES, BLOCKS, DYNAMIC], ids=["codes", "blocks", "dynamic"])
@pytest.mark.parametrize("to", DIALECTS)
def test_results_are_those_of_onnx_runtime(to: str, text: str) -> None:
    model, x = made(text)
    expected = runs(model.to_proto(), x)
    report = model.apply(ConvertDialect(to=to))
    assert report.count("changed")
    assert not report.count("refused")
    foreign = {"QLinearMatMul", "QLinearAdd", "MatMulNBits", "MatMulInteger"}
    assert foreign.isdisjoint(node.op_type for node in model.nodes())
    result = model.run({"x": x}, backend="numpy")["y"]
    if text is BLOCKS:
        # Products of real numbers are added in another order.
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(result, expected)


def test_every_quantizer_is_in_the_dialect() -> None:
    model, _ = made(CODES)
    model.apply(ConvertDialect(to="qonnx"))
    names = [node.op_type for node in model.nodes()]
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(names)
    # One for the input, the weight, and each result; the sum reads codes that were decoded twice.
    assert names.count("Quant") >= 4


def test_dynamic_quantization_is_kept() -> None:
    model, _ = made(DYNAMIC)
    report = model.apply(ConvertDialect(to="qonnx"))
    (kept,) = (site for site in report if site.outcome is SiteStatus.KEPT)
    assert (kept.node, kept.op) == ("dynamic", "DynamicQuantizeLinear")
    assert "known only when the model runs" in str(kept.reason)


def test_dynamic_quantization_of_constants_is_refused_with_the_pass_that_folds_it() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    net (float[3, 4] x) => (float[3, 2] y) <float[4,2] w = {1, -2, 3, 4, 50, -60, 7, -64}> {
        q, s, z = DynamicQuantizeLinear (w)
        d = DequantizeLinear (q, s, z)
        y = MatMul (x, d)
    }"""
    model, x = made(text)
    (refusal,) = model.apply(ConvertDialect(to="qonnx"))
    assert "apply -p fold-constants before" in str(refusal.reason)
    model.apply(FoldConstants())
    model.apply(ConvertDialect(to="qonnx"))
    assert [node.op_type for node in model.nodes()] == ["Quant", "MatMul"]
    expected = runs(onnx.parser.parse_model(text), x)
    np.testing.assert_allclose(model.run({"x": x}, backend="numpy")["y"], expected, rtol=1e-5)


def test_powers_of_two_keep_the_scales() -> None:
    text = CODES.replace("0.05}, uint8 z", "0.125}, uint8 z").replace("{0.1}", "{0.25}")
    model, x = made(text.replace("0.02, 0.03, 0.07", "0.25, 0.5, 1"))
    expected = runs(model.to_proto(), x)
    model.apply(ConvertDialect(to="qdq"))
    names = [node.op_type for node in model.nodes()]
    assert names.count("MatMul") == names.count("Add") == 1
    assert set(names) == {"QuantizeLinear", "DequantizeLinear", "MatMul", "Add"}
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


def test_weights_of_operators_are_folded_already() -> None:
    model, _ = made(BLOCKS)
    report = model.apply(FoldWeights())
    assert [(site.node, site.outcome) for site in report] == [("product", SiteStatus.KEPT)]


def test_info_lists_weights_and_results() -> None:
    model, _ = made(CODES)
    found = {(each.node, each.weight): each for each in overview(model.ir).quantizers}
    weight, result = found["product", True], found["product", False]
    assert (weight.format, weight.granularity) == ("int8", "per channel (3)")
    assert weight.scale == (pytest.approx(0.02), pytest.approx(0.07))
    assert (result.format, result.zero_point) == ("uint8", (7, 7))
    assert result.scale == (pytest.approx(0.1), pytest.approx(0.1))
    first = found["first", False]
    assert (first.format, first.zero_point) == ("uint8", (120, 120))
    assert "lower-integer-operators" in str(first.reason)


def test_info_describes_blocks_and_dynamic_scales() -> None:
    (blocks,) = overview(made(BLOCKS)[0].ir).quantizers
    assert (blocks.format, blocks.granularity) == ("uint4", "per 16 along axis 1")
    assert blocks.weight_bytes == 2 * 2 * 8 + 2 * 2 * 4
    data, weight = overview(made(DYNAMIC)[0].ir).quantizers
    assert (data.dialect, data.format, data.scale) == ("dynamic", "uint8", None)
    assert (weight.op, weight.format, weight.weight) == ("MatMulInteger", "int8", True)


COMPUTED = """<ir_version: 10, opset_import: ["": 21]>
net (float[3, 4] x) => (float[3, 4] y)
<float top = {127}, int8 z = {0}, float[4] s = {0.5, 0.5, 0.25, 1}, int8[4] zs = {0, 0, 0, 0}> {
    m = Abs (x)
    r = ReduceMax <keepdims = 0> (m)
    d = Div (r, top)
    [quantize] q = QuantizeLinear (x, d, z)
    [dequantize] f = DequantizeLinear (q, d, z)
    [second] p = QuantizeLinear <axis = 1> (f, s, zs)
    [third] y = DequantizeLinear <axis = 1> (p, s, zs)
}"""


def test_a_computed_scale_stays_and_other_quantizers_are_converted() -> None:
    model, x = made(COMPUTED)
    expected = runs(model.to_proto(), x)
    (dynamic,) = (each for each in overview(model.ir).quantizers if each.dialect == "dynamic")
    assert (dynamic.node, dynamic.format, dynamic.scale) == ("dequantize", "int8", None)
    report = model.apply(ConvertDialect(to="qonnx"))
    assert (report.count("changed"), report.count("refused")) == (1, 0)
    assert "Quant" in [node.op_type for node in model.nodes()]
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)
