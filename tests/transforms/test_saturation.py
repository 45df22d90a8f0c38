"""Deployments for processors that cut off sums of products of 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.errors import OptionError
from qgraph.inventory.executed import saturates
from qgraph.reporting.pages import page_of
from qgraph.reporting.view import Tone
from qgraph.targets.reader import profile_of
from qgraph.transforms.deployment import attempts, preferences
from qgraph.transforms.deployment.report import advice

TEXT = """<ir_version: 8, opset_import: ["": 17]>
net (float[5,64] x) => (float[5,8] y)
<float s = {0.05}, uint8 z = {0}, float t = {0.01}, int8 o = {0}, float u = {4}> {
    q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
    v = DequantizeLinear (w, t, o)  [product] m = MatMul (d, v)
    n = QuantizeLinear (m, u, z)    y = DequantizeLinear (n, u, z)
}"""
NO_VNNI = "openvino-cpu@x86-64-no-vnni"
TARGETS = {"onnxruntime-cpu": "onnxruntime", "openvino-cpu": "openvino"}


def network(largest: int) -> onnx.ModelProto:
    """Return a product whose weights are all near the largest one."""
    proto = onnx.parser.parse_model(TEXT)
    codes = np.random.default_rng(0).integers(largest - 20, largest + 1, (64, 8)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    return proto


def weight_types(model: qgraph.Model) -> set[str]:
    """Return the types of the stored codes of two axes."""
    values = model.ir.graph.initializers.values()
    return {v.dtype.name for v in values if v.dtype is not None and len(v.shape or ()) == 2}


def named_by_lint(model: onnx.ModelProto | qgraph.Model, target: str = NO_VNNI) -> list[str]:
    """Return the operators that lint warns of."""
    findings = qgraph.lint(model, target, select="QG312")
    assert {str(each.severity) for each in findings} <= {"warning"}
    return [each.nodes[0] for each in findings]


def in_runtime(path: Path, x: np.ndarray[Any, Any], runtime: str) -> np.ndarray[Any, Any]:
    """Return what a runtime computes at its defaults, but for OpenVINO's type of floats."""
    module = pytest.importorskip(runtime)
    if runtime == "onnxruntime":
        session = module.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, {"x": x})[0])
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    return np.asarray(module.Core().compile_model(str(path), "CPU", options)(x)[0])


@pytest.mark.cases(fast=1)
@pytest.mark.runtime
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_deployed_without_vnni_is_right_on_every_processor(target, tmp_path):
    proto, path = network(127), tmp_path / "out.onnx"
    model = qgraph.load(proto)
    result = qgraph.deploy(model, f"{target}@x86-64-no-vnni")
    assert str(result.certificate.verdict) == "proved"
    assert not [text for text in result.to_json()["conditions"] if "saturate," in text]
    model.save(path)
    x = np.random.default_rng(1).uniform(6, 13, (5, 64)).astype(np.float32)
    codes = np.clip(np.rint(x / np.float32(0.05)), 0, 255)
    weights = onnx.numpy_helper.to_array(proto.graph.initializer[-1]).astype(float)
    exact = np.clip(np.rint(codes @ weights * (0.05 * 0.01 / 4)), 0, 255)
    assert len(np.unique(exact)) > 5
    assert exact.max() < 255
    steps = np.abs(np.rint(in_runtime(path, x, TARGETS[target]) / 4) - exact)
    assert steps.max() <= 1


WRITTEN = {
    "FakeQuantize": """v = org.openvinotoolkit.FakeQuantize <levels = 255> (f, l, h, l, h)
        d = org.openvinotoolkit.FakeQuantize <levels = 256> (x, g, k, g, k)""",
    "QuantizeLinear": """c = QuantizeLinear (f, t, o)       v = DequantizeLinear (c, t, o)
        q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)""",
    "zero point": """v = DequantizeLinear (e, t, p)
        q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)""",
}
"""Forms of weights of 8 bits other than symmetric stored codes."""


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.runtime
@pytest.mark.parametrize(
    ("target", "written"),
    [(target, form) for target in TARGETS for form in WRITTEN if target > "op" or form[0] != "F"],
)
def test_weights_in_other_forms_do_not_saturate(target, written, tmp_path):
    """Real weights are from 0.4 to 0.6 with the zero point, else from 1.07 to 1.27."""
    text = f"""<ir_version: 8, opset_import: ["": 17, "org.openvinotoolkit": 1]>
        net (float[5,64] x) => (float[5,8] y)
        <float s = {{0.05}}, uint8 z = {{0}}, float t = {{0.01}}, int8 o = {{0}}, int8 p = {{67}},
         float u = {{4}}, float l = {{-1.27}}, float h = {{1.27}}, float g = {{0}},
         float k = {{12.75}}> {{
            {WRITTEN[written]}
            [product] m = MatMul (d, v)
            n = QuantizeLinear (m, u, z)    y = DequantizeLinear (n, u, z)
        }}"""
    proto, path = onnx.parser.parse_model(text), tmp_path / "out.onnx"
    codes = np.random.default_rng(0).integers(107, 128, (64, 8)).astype(np.int8)
    real = codes * np.float32(0.01)
    for name, array in (("f", real), ("e", codes)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = qgraph.load(proto)
    result = qgraph.deploy(model, f"{target}@x86-64-no-vnni")
    assert not [text for text in result.to_json()["conditions"] if "saturate," in text]
    model.save(path)
    x = np.random.default_rng(1).uniform(6, 13, (5, 64)).astype(np.float32)
    data = np.clip(np.rint(x / np.float32(0.05)), 0, 255)
    weights = codes - 67.0 * (written == "zero point")
    exact = np.clip(np.rint(data @ weights * (0.05 * 0.01 / 4)), 0, 255)
    assert len(np.unique(exact)) > 5
    assert exact.max() < 255
    steps = np.abs(np.rint(in_runtime(path, x, TARGETS[target]) / 4) - exact)
    assert steps.max() <= 1


def data_product(kinds: tuple[str, str], points: tuple[int, int], limits: str) -> onnx.ModelProto:
    """Return a product of two operands of data."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[2,16,64] a, float[2,64,16] b) => (float[2,16,16] y)
        <float s = {{0.05}}, {kinds[0]} j = {{{points[0]}}}, {kinds[1]} k = {{{points[1]}}},
         {kinds[1]} low = {{{limits.split(",")[0]}}}, {kinds[1]} high = {{{limits.split(",")[1]}}},
         float u = {{40}}, uint8 m = {{128}}> {{
            q = QuantizeLinear (a, s, j)    d = DequantizeLinear (q, s, j)
            p = QuantizeLinear (b, s, k)    c = Clip (p, low, high)  e = DequantizeLinear (c, s, k)
            [product] f = MatMul (d, e)
            n = QuantizeLinear (f, u, m)    y = DequantizeLinear (n, u, m)
        }}""")


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.runtime
@pytest.mark.parametrize(
    ("kinds", "points", "limits", "is_integer"),
    [
        (("int8", "int8"), (0, 0), "-128, 127", False),
        (("uint8", "int8"), (0, 0), "-128, 127", False),
        (("int8", "uint8"), (0, 128), "0, 255", False),
        (("uint8", "uint8"), (0, 128), "0, 255", False),
        (("int8", "int8"), (0, 0), "-8, 7", True),
    ],
)
def test_products_of_data_are_right_in_openvino(kinds, points, limits, is_integer, tmp_path):
    openvino = pytest.importorskip("openvino")
    model = qgraph.load(data_product(kinds, points, limits))
    assert named_by_lint(model) == ["product"] * (not is_integer)
    result = qgraph.deploy(model, NO_VNNI)
    assert not named_by_lint(model)
    assert str(result.certificate.verdict) == "proved"
    assert [layer.kernel is not None for layer in result.layers] == [is_integer]
    assert not result.saturating
    model.save(tmp_path / "out.onnx")
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(3, 6, shape).astype(np.float32) for shape in ((2, 16, 64), (2, 64, 16)))
    low, high = (int(each) - points[1] for each in limits.split(","))
    lowest = -128 if kinds[0] == "int8" else 0
    step = np.float32(0.05)
    x = np.clip(np.rint(a / step), lowest, lowest + 255).astype(float)
    w = np.clip(np.rint(b / step), low, high).astype(float)
    exact = np.clip(np.rint(x @ w * (0.05 * 0.05 / 40)) + 128, 0, 255) - 128
    core = openvino.Core()
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    found = core.compile_model(str(tmp_path / "out.onnx"), "CPU", options)([a, b])[0]
    assert np.abs(np.rint(found / 40) - exact).max() <= 1
    assert len(np.unique(exact)) > 1


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.runtime
@pytest.mark.parametrize("filters", [1, 2])
@pytest.mark.parametrize("target", ["openvino-cpu", "onnxruntime-cpu"])
def test_depthwise_convolutions_are_exact_where_each_channel_has_one_filter(
    target, filters, tmp_path
):
    """Both runtimes add no pairs then; with two filters for each channel, they do."""
    many = 8 * filters  # fewer channels with two filters stay in float for OpenVINO
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[1,8,6,6] x) => (float[1,{many},4,4] y)
        <float s = {{0.05}}, uint8 z = {{0}}, float t = {{0.01}}, int8 o = {{0}},
         float u = {{1}}> {{
            q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
            v = DequantizeLinear (w, t, o)  [conv] c = Conv <group = 8> (d, v)
            n = QuantizeLinear (c, u, z)    y = DequantizeLinear (n, u, z)
        }}""")
    codes = np.random.default_rng(0).integers(107, 128, (many, 1, 3, 3)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    name = f"{target}@x86-64-no-vnni"
    found = list(qgraph.lint(proto, name, select="QG312"))
    assert len(found) == filters - 1
    kept = qgraph.deploy(proto, f"{target}@x86-64").to_json()["conditions"][-1]
    assert ("products of 1 layer saturate" in kept) == (filters == 2)
    model = qgraph.load(proto)
    (layer,) = qgraph.deploy(model, name).layers
    assert (layer.reason_id == "QG239") == (filters == 2 and target == "openvino-cpu")
    (kind,) = {v.dtype.name for v in model.ir.graph.initializers.values() if v.shape.rank() == 4}
    others = {"onnxruntime-cpu": "UINT8", "openvino-cpu": "INT16"}
    assert kind == ("INT8" if filters == 1 else others[target])
    model.save(tmp_path / "out.onnx")
    x = np.full((1, 8, 6, 6), 12.75, np.float32)
    exact = np.rint(255 * codes.astype(float).sum((1, 2, 3)) * 0.05 * 0.01)
    steps = in_runtime(tmp_path / "out.onnx", x, TARGETS[target]) - exact.reshape(1, many, 1, 1)
    assert np.abs(steps).max() <= 1


OPERATORS = {
    "QLinearMatMul": "n = QLinearMatMul (q, s, z, w, t, o, u, z)",
    "QGemm": 'n = com.microsoft.QGemm (q, s, z, w, t, o, "", u, z)',
    "MatMulInteger": """i = MatMulInteger (q, w, z, o)  f = Cast <to = 1> (i)  p = Mul (s, t)
        m = Mul (f, p)                  n = QuantizeLinear (m, u, z)""",
}
"""Operators on codes of 8 bits in place of a layer between quantizers."""


@pytest.mark.cases(fast=1, slow=4)
@pytest.mark.runtime
@pytest.mark.parametrize(
    ("target", "operator"),
    [("onnxruntime-cpu", name) for name in OPERATORS] + [("openvino-cpu", "QLinearMatMul")],
)
def test_operators_on_codes_are_cut_off_too(target, operator, tmp_path):
    proto = network(127)
    text = TEXT.replace('"": 17', '"": 17, "com.microsoft": 1')
    body = (
        f"{{ q = QuantizeLinear (x, s, z) {OPERATORS[operator]} y = DequantizeLinear (n, u, z) }}"
    )
    weights = proto.graph.initializer[-1]
    proto = onnx.parser.parse_model(text.partition("{\n")[0] + body)
    proto.graph.initializer.append(weights)
    kept = qgraph.deploy(proto, f"{target}@x86-64").to_json()["conditions"][-1]
    assert "products of 1 layer saturate" in kept
    name = f"{target}@x86-64-no-vnni"
    assert [str(each.severity) for each in qgraph.lint(proto, name, select="QG312")] == ["warning"]
    model = qgraph.load(proto)
    result = qgraph.deploy(model, name)
    assert not result.saturating
    assert not list(qgraph.lint(model, name, select="QG312"))
    (layer,) = result.layers
    assert (layer.kernel is not None) == (target == "onnxruntime-cpu")
    model.save(tmp_path / "out.onnx")
    x = np.random.default_rng(1).uniform(6, 13, (5, 64)).astype(np.float32)
    codes = np.clip(np.rint(x / np.float32(0.05)), 0, 255)
    exact = codes @ onnx.numpy_helper.to_array(weights).astype(float) * (0.05 * 0.01 / 4)
    steps = in_runtime(tmp_path / "out.onnx", x, TARGETS[target]) / 4 - np.rint(exact)
    assert np.abs(steps).max() <= 1


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.runtime
@pytest.mark.parametrize(("low", "high", "is_integer"), [(-8, 7, False), (0, 15, True)])
def test_data_of_four_bits_are_cut_off_if_they_are_signed(low, high, is_integer, tmp_path):
    """OpenVINO adds 128 to signed codes: 135 * 127 * 2 exceeds 16 bits."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8,
         opset_import: ["": 17, "org.openvinotoolkit": 1]>
        net (float[1,64] x) => (float[1,8] y)
        <float t = {{0.01}}, int8 o = {{0}}, float g = {{{low / 10}}}, float k = {{{high / 10}}}> {{
            v = DequantizeLinear (w, t, o)
            d = org.openvinotoolkit.FakeQuantize <levels = 16> (x, g, k, g, k)
            y = MatMul (d, v)
        }}""")
    weights = np.full((64, 8), 127, np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model = qgraph.load(proto)
    (layer,) = qgraph.deploy(model, NO_VNNI).layers
    assert (layer.kernel is not None) == is_integer
    model.save(tmp_path / "out.onnx")
    found = in_runtime(tmp_path / "out.onnx", np.full((1, 64), 9, np.float32), "openvino")
    assert found == pytest.approx(np.full((1, 8), 64 * high / 10 * 1.27), rel=1e-5)


@pytest.mark.cases(fast=1, slow=1)
@pytest.mark.runtime
@pytest.mark.parametrize(
    "between", ["c = Clip (q, a, b)", "c = MaxPool <kernel_shape = [1, 1]> (q)"]
)
def test_odd_weights_are_not_halved(between, tmp_path):
    """OpenVINO makes 2 of half of 3, and 0 of half of 1, in convolutions of signed codes."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[1,4,6,6] x) => (float[1,8,4,4] y)
        <float s = {{1}}, int8 z = {{0}}, int8 a = {{-8}}, int8 b = {{7}}, float t = {{1}}> {{
            q = QuantizeLinear (x, s, z)    {between}    d = DequantizeLinear (c, s, z)
            v = DequantizeLinear (w, t, z)  [conv] y = Conv (d, v)
        }}""")
    codes = np.tile(np.int8([1, 3, 5, -7]).reshape(1, 4, 1, 1), (8, 1, 3, 3))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    model = qgraph.load(proto)
    assert named_by_lint(model) == ["conv"]
    result = qgraph.deploy(model, NO_VNNI)
    assert not named_by_lint(model)
    assert [layer.kernel is not None for layer in result.layers] == [True]
    assert not result.saturating
    model.save(tmp_path / "out.onnx")
    x = np.broadcast_to(np.float32([5, 4, -3, 2]).reshape(1, 4, 1, 1), (1, 4, 6, 6))
    found = in_runtime(tmp_path / "out.onnx", np.ascontiguousarray(x), "openvino")
    assert found == pytest.approx(9 * (5 + 12 - 15 - 14), rel=1e-5)


@pytest.mark.slow
def test_a_product_with_a_bias_keeps_its_kernel_if_no_weight_is_negative():
    """Their codes are the same as UINT8, with zero point 0, which QGemm needs as an input."""
    proto = network(127)
    proto.graph.node[3].op_type = "Gemm"
    for name in ("x86-64", "x86-64-no-vnni"):
        model = qgraph.load(proto)
        (layer,) = qgraph.deploy(model, f"onnxruntime-cpu@{name}").layers
        assert layer.kernel == "QGemm"
    assert weight_types(model) == {"UINT8"}


@pytest.mark.parametrize(("scale", "is_finite"), [("3e36", False), ("2e36", True)])
def test_a_product_is_left_where_its_operand_may_be_infinite(scale, is_finite):
    """The lowest code times 3e36 is -inf, which a Max with the lowest number would change."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    net (float[2,1] a, float[1,2] b) => (float[2,2] y)
    <float s = {{0.05}}, float huge = {{{scale}}}, int8 z = {{0}}> {{
        q = QuantizeLinear (a, s, z)     x = DequantizeLinear (q, s, z)
        p = QuantizeLinear (b, huge, z)  w = DequantizeLinear (p, huge, z)
        y = MatMul (x, w)
    }}""")
    before, after = qgraph.load(model), qgraph.load(model)
    (site,) = after.apply(transforms.FloatProducts())
    assert site.outcome == ("changed" if is_finite else "refused")
    feeds = {"a": np.ones((2, 1), np.float32), "b": np.full((1, 2), -np.inf, np.float32)}
    results = [each.run(feeds, backend="numpy")["y"] for each in (before, after)]
    assert np.isfinite(results[0]).all() == is_finite
    assert np.array_equal(*results)


@pytest.mark.cases(fast=1)
@pytest.mark.runtime
def test_onnx_runtime_gets_unsigned_data():
    """Only the second operand of such a product would have INT8 codes."""
    proto = data_product(("int8", "int8"), (0, 0), "-128, 127")
    (clip,) = (node for node in proto.graph.node if node.op_type == "Clip")
    proto.graph.node.remove(clip)
    next(node for node in proto.graph.node if "c" in node.input).input[0] = "p"
    model = qgraph.load(proto)
    result = qgraph.deploy(model, "onnxruntime-cpu@x86-64-no-vnni")
    assert [layer.kernel for layer in result.layers] == ["QLinearMatMul"]
    assert str(result.certificate.verdict) == "proved"
    assert not result.saturating
    kinds = {each.inputs[2].dtype for each in model.nodes("QuantizeLinear")}
    assert kinds == {onnx_ir.DataType.UINT8}


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.runtime
@pytest.mark.parametrize(
    ("equation", "is_turned"), [("ij,jk->ik", False), ("ij,kj->ik", True), ("ij,jk->ki", False)]
)
def test_einsum_of_wide_weights_is_right_in_openvino(equation, is_turned, tmp_path):
    proto = network(127)
    weights = onnx.numpy_helper.to_array(proto.graph.initializer[-1])
    proto.graph.node[3].op_type = "Einsum"
    proto.graph.node[3].attribute.append(onnx.helper.make_attribute("equation", equation))
    if is_turned:
        turned = onnx.numpy_helper.from_array(np.ascontiguousarray(weights.T), "w")
        proto.graph.initializer[-1].CopyFrom(turned)
    if equation.endswith("ki"):
        proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", 1, [8, 5]))
    model = qgraph.load(proto)
    kept = qgraph.deploy(model.clone(), "openvino-cpu@x86-64").to_json()["conditions"]
    assert "products of 1 layer saturate" in kept[-1]
    assert named_by_lint(model) == ["product"]
    result = qgraph.deploy(model, NO_VNNI)
    assert not named_by_lint(model)
    assert str(result.certificate.verdict) == "proved"
    assert not result.saturating
    model.save(tmp_path / "out.onnx")
    x = np.random.default_rng(1).uniform(6, 13, (5, 64)).astype(np.float32)
    codes = np.clip(np.rint(x / np.float32(0.05)), 0, 255)
    exact = np.clip(np.rint(codes @ weights.astype(float) * (0.05 * 0.01 / 4)), 0, 255)
    found = np.rint(in_runtime(tmp_path / "out.onnx", x, "openvino") / 4)
    assert np.abs((found.T if equation.endswith("ki") else found) - exact).max() <= 1


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("kinds", [("int8", "int8"), ("uint8", "uint8")])
def test_a_result_for_vnni_counts_products_of_data(kinds):
    points, limits = ((0, 128), "0, 255") if kinds[1] == "uint8" else ((0, 0), "-128, 127")
    result = qgraph.deploy(data_product(kinds, points, limits), "openvino-cpu@x86-64")
    assert "products of 1 layer saturate" in result.to_json()["conditions"][-1]


@pytest.mark.slow
def test_quantizers_stay_where_every_layer_is_left_in_float():
    """Another form of the quantizers would move codes by a step, and gain nothing."""
    proto = onnx.parser.parse_model("""<ir_version: 8,
         opset_import: ["": 17, "org.openvinotoolkit": 1]>
        net (float[5,64] x) => (float[5,8] y)
        <float t = {0.01}, int8 o = {0}, float g = {0}, float k = {12.7}> {
            v = DequantizeLinear (w, t, o)
            d = org.openvinotoolkit.FakeQuantize <levels = 256> (x, g, k, g, k)
            m = MatMul (d, v)
            y = org.openvinotoolkit.FakeQuantize <levels = 256> (m, g, k, g, k)
        }""")
    proto.graph.initializer.append(network(127).graph.initializer[-1])
    model = qgraph.load(proto)
    result = qgraph.deploy(model, NO_VNNI)
    assert [layer.reason_id for layer in result.layers] == ["QG239"]
    assert str(result.certificate.verdict) == "proved"
    assert len(list(model.nodes("FakeQuantize"))) == 2
    assert not result.saturating


@pytest.mark.cases(fast=0, slow=1)
def test_layers_without_a_kernel_are_not_said_to_be_cut_off():
    """ONNX Runtime has no kernel with a Sigmoid before the quantizer, on any processor."""
    proto = onnx.parser.parse_model("""<ir_version: 8,
         opset_import: ["": 17, "org.openvinotoolkit": 1]>
        net (float[1,2,6,6] x) => (float[1,2,4,4] y)
        <float l = {-1.27}, float h = {1.27}, float g = {-0.3}, float k = {12.9},
         float r = {0}, float e = {1}> {
            v = org.openvinotoolkit.FakeQuantize <levels = 255> (f, l, h, l, h)
            d = org.openvinotoolkit.FakeQuantize <levels = 256> (x, g, k, g, k)
            [conv] m = Conv (d, v)     a = Sigmoid (m)
            y = org.openvinotoolkit.FakeQuantize <levels = 256> (a, r, e, r, e)
        }""")
    real = np.random.default_rng(0).uniform(1.07, 1.27, (2, 2, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(real, "f"))
    reasons = []
    for processor in ("x86-64", "x86-64-no-vnni"):
        (layer,) = qgraph.deploy(proto, f"onnxruntime-cpu@{processor}").layers
        assert layer.kernel is None
        reasons.append(layer.reason_id)
    assert reasons == ["QG217", "QG217"]


@pytest.mark.slow
def test_weights_are_stored_as_codes_where_no_form_is_within_the_limits(monkeypatch):
    """Only stored codes can be replaced by others, so that no sum is cut off."""
    proto = onnx.parser.parse_model(TEXT.replace("v = Deq", "c = QuantizeLinear (f, t, o) v = Deq"))
    proto.graph.node[3].input[0] = "c"
    real = np.random.default_rng(0).uniform(1.07, 1.27, (64, 8)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(real, "f"))
    # every form with layers on codes is beyond the limits
    region = attempts.RegionVerdict(
        reference_nodes=(), candidate_nodes=(), reference_value="n", candidate_value="n"
    )
    in_float = {"float-products", "fold-weights"}
    failing = property(lambda attempt: [] if attempt.changing <= in_float else [region])
    monkeypatch.setattr(attempts.Attempt, "failing", failing)
    model = qgraph.load(proto)
    result = qgraph.deploy(model, NO_VNNI)
    (layer,) = result.layers
    assert layer.kernel is None
    assert not result.saturating
    assert str(result.certificate.verdict) == "proved"


@pytest.mark.runtime
def test_onnx_runtime_gets_unsigned_weights():
    pytest.importorskip("onnxruntime")
    model = qgraph.load(network(127))
    (layer,) = qgraph.deploy(model, "onnxruntime-cpu@x86-64-no-vnni").layers
    assert (layer.kernel, weight_types(model)) == ("QLinearMatMul", {"UINT8"})
    once = model.to_proto()
    qgraph.deploy(model, "onnxruntime-cpu@x86-64-no-vnni")
    assert model.to_proto() == once
    ids = ("QG312", "QG402", "QG408")
    assert not list(qgraph.lint(model, "onnxruntime-cpu@x86-64-no-vnni", select=ids))


@pytest.mark.slow
def test_layers_that_stay_wrong_are_told_first(monkeypatch):
    # no form with layers in float is within the limits
    monkeypatch.setattr(preferences, "_with", lambda steps, attempt: attempt)
    result = qgraph.deploy(network(127), NO_VNNI)
    document = result.to_json()
    assert (result.saturating, document["summary"]["saturating_layers"]) == (["product"], 1)
    page = page_of(document)
    assert page.tone is Tone.OPEN
    assert "x86-64-no-vnni cuts off sums beyond 16 bits, which 1 layer can reach" in page.sentence
    assert "qgraph explain QG239" in advice(document)
    safe = qgraph.deploy(network(63), NO_VNNI).to_json()
    assert safe["summary"]["saturating_layers"] == 0
    assert "cuts off" not in page_of(safe).sentence


@pytest.mark.slow
def test_openvino_computes_the_layer_in_float():
    result = qgraph.deploy(network(127), NO_VNNI)
    (layer,) = result.layers
    assert (layer.kernel, layer.reason_id) == (None, "QG239")
    assert "beyond -64..64" in str(layer.reason)


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("target", TARGETS)
def test_weights_of_seven_bits_stay_as_they_are(target):
    model = qgraph.load(network(64))
    result = qgraph.deploy(model, f"{target}@x86-64-no-vnni")
    assert not result.left
    assert weight_types(model) == {"INT8"}


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("target", TARGETS)
def test_a_result_for_vnni_says_where_it_is_wrong(target):
    model = qgraph.load(network(127))
    result = qgraph.deploy(model, f"{target}@x86-64")
    assert weight_types(model) == {"INT8"}
    document = result.to_json()
    assert document["processor"] == "x86-64"
    text = document["conditions"][-1]
    assert "products of 1 layer saturate" in text
    assert f"--target {target}@x86-64-no-vnni" in text


@pytest.mark.slow
def test_this_processor_counts_where_none_is_named(monkeypatch):
    for answer, types in ((True, {"UINT8"}), (False, {"INT8"}), (None, {"INT8"})):
        monkeypatch.setattr(attempts, "saturates", lambda runtime, answer=answer: answer)
        model = qgraph.load(network(127))
        result = qgraph.deploy(model, "onnxruntime-cpu")
        assert weight_types(model) == types
        assert any("this processor has no VNNI" in note for note in result.notes) is bool(answer)


@pytest.mark.runtime
def test_the_probe_finds_what_other_products_show():
    """ONNX Runtime multiplies the same codes in MatMulInteger, without quantizers."""
    runtime = pytest.importorskip("onnxruntime")
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        net (uint8[1,32] a, int8[32,1] b) => (int32[1,1] y) { y = MatMulInteger (a, b) }""")
    session = runtime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {"a": np.full((1, 32), 200, np.uint8), "b": np.full((32, 1), 100, np.int8)}
    assert saturates("onnxruntime") is (session.run(None, feeds)[0].item() != 32 * 200 * 100)


def test_a_runtime_that_is_not_there_is_not_probed():
    assert saturates("no_such_runtime") is None


def test_processors_are_named_behind_the_target():
    assert profile_of("ONNXRuntime-CPU@x86-64-NO-vnni").processor == "x86-64-no-vnni"
    with pytest.raises(OptionError, match=r"'vnni', expected one of .*x86-64-no-vnni"):
        profile_of("onnxruntime-cpu@vnni")
    with pytest.raises(OptionError, match="There is no target 'onnx'"):
        profile_of("onnx@x86-64")
    with pytest.raises(OptionError, match=r"finn has no processor .*all are alike"):
        profile_of("finn@x86-64")


@pytest.mark.parametrize("written", ["FakeQuantize", "QuantizeLinear"])
@pytest.mark.parametrize("largest", [127, 60])
def test_lint_finds_weights_that_are_no_stored_codes(written, largest):
    text = f"""<ir_version: 8, opset_import: ["": 17, "org.openvinotoolkit": 1]>
        net (float[5,64] x) => (float[5,8] m)
        <float s = {{0.05}}, uint8 z = {{0}}, float t = {{0.01}}, int8 o = {{0}},
         float l = {{-1.27}}, float h = {{1.27}}, float g = {{0}}, float k = {{12.75}}> {{
            {WRITTEN[written]}
            [product] m = MatMul (d, v)
        }}"""
    proto = onnx.parser.parse_model(text)
    codes = np.random.default_rng(0).integers(largest - 20, largest + 1, (64, 8))
    tensor = onnx.numpy_helper.from_array(np.float32(codes * 0.01), "f")
    proto.graph.initializer.append(tensor)
    found = list(qgraph.lint(proto, NO_VNNI, select="QG312"))
    assert [str(each.severity) for each in found] == ["warning"] * (largest > 64)


def test_lint_warns_of_products_on_the_named_processor():
    levels = {
        name: [
            str(each.severity)
            for each in qgraph.lint(network(127), f"onnxruntime-cpu@{name}", select="QG312")
        ]
        for name in ("x86-64", "x86-64-no-vnni")
    }
    assert levels == {"x86-64": ["info"], "x86-64-no-vnni": ["warning"]}


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.runtime
@pytest.mark.parametrize("largest", [127, 60])
def test_weights_of_fake_quantize_stay_where_nothing_is_gained(largest, tmp_path):
    proto = onnx.parser.parse_model("""<ir_version: 8,
         opset_import: ["": 17, "org.openvinotoolkit": 1]>
        net (float[5,64] x) => (float[5,8] y)
        <float g = {0}, float k = {12.7}, float l = {-1.27}, float h = {1.27}> {
            d = org.openvinotoolkit.FakeQuantize <levels = 256> (x, g, k, g, k)
            v = org.openvinotoolkit.FakeQuantize <levels = 255> (f, l, h, l, h)
            [product] y = MatMul (d, v)
        }""")
    codes = np.random.default_rng(0).integers(largest - 20, largest + 1, (64, 8))
    real = codes.astype(np.float32) * np.float32(0.01)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(real, "f"))
    model, path = qgraph.load(proto), tmp_path / "out.onnx"
    result = qgraph.deploy(model, NO_VNNI)
    model.save(path)
    assert str(result.certificate.verdict) == "proved"
    assert len(list(model.nodes("FakeQuantize"))) == 2
    assert [layer.kernel is None for layer in result.layers] == [largest == 127]
    x = np.random.default_rng(1).uniform(6, 13, (5, 64)).astype(np.float32)
    expected = qgraph.load(proto).run({"x": x}, backend="numpy")["y"]
    np.testing.assert_allclose(in_runtime(path, x, "openvino"), expected, rtol=1e-5)


@pytest.mark.cases(fast=0, slow=3)
@pytest.mark.runtime
@pytest.mark.parametrize("step", ["Relu (d)", "Mul (d, k)", "Neg (d)"])
def test_openvino_computes_products_behind_operators_in_float(step, tmp_path):
    """It moves the scale behind the operator, and multiplies codes."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[5,64] x) => (float[5,8] y)
        <float s = {{0.05}}, uint8 z = {{0}}, float t = {{0.01}}, int8 o = {{0}},
         float k = {{2}}> {{
            q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
            v = DequantizeLinear (w, t, o)  p = {step}  [product] y = MatMul (p, v)
        }}""")
    codes = np.random.default_rng(0).integers(107, 128, (64, 8)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    kept = qgraph.deploy(proto, "openvino-cpu@x86-64").to_json()["conditions"][-1]
    assert "products of 1 layer saturate" in kept
    model, path = qgraph.load(proto), tmp_path / "out.onnx"
    assert named_by_lint(model) == ["product"]
    result = qgraph.deploy(model, NO_VNNI)
    assert not named_by_lint(model)
    assert str(result.certificate.verdict) == "proved"
    assert not result.saturating
    model.save(path)
    x = np.full((5, 64), 12.75, np.float32)
    factor = {"R": 1, "M": 2, "N": -1}[step[0]]
    exact = 255 * 0.05 * factor * 0.01 * codes.astype(float).sum(0)
    np.testing.assert_allclose(in_runtime(path, x, "openvino"), [exact] * 5, rtol=1e-5)


@pytest.mark.parametrize(("largest", "found"), [(127, ["product"]), (64, [])])
def test_lint_finds_products_behind_operators_on_ranges(largest, found):
    """OpenVINO was 25 % off with ONEDNN_MAX_CPU_ISA=AVX2, for Relu and Mul."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17,
        "org.openvinotoolkit": 1]> net (float[5,64] x) => (float[5,8] y)
        <float g = {0}, float h = {2.55}, float t = {0.01}, int8 o = {0}, float k = {2}> {
            d = org.openvinotoolkit.FakeQuantize <levels = 256> (x, g, h, g, h)
            v = DequantizeLinear (w, t, o)  p = Mul (d, k)  [product] y = MatMul (p, v)
        }""")
    codes = np.full((64, 8), largest, np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    assert named_by_lint(qgraph.load(proto)) == found


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.parametrize("largest", [127, 64])
@pytest.mark.parametrize(
    "node",
    [
        "DynamicQuantizeMatMul (x, w, t, o)",
        'QAttention <num_heads = 2> (c, w, b, t, t, "", z, o)',
        'DynamicQuantizeLSTM <hidden_size = 8> (x, w, r, "", "", "", "", "", e, i, e, i)',
    ],
)
def test_operators_that_quantize_data_are_named(node, largest):
    """On an AMD EPYC without VNNI their results are 0.70 to 0.75 of those with UINT8 weights."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8,
         opset_import: ["": 17, "com.microsoft": 1]>
        net (float[3,1,64] x, uint8[3,1,64] c) => (float y)
        <float t = {{0.01}}, int8 o = {{0}}, uint8 z = {{0}}, float[1] e = {{0.01}},
         int8[1] i = {{0}}> {{ [own] y = com.microsoft.{node} }}""")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    shapes = {"w": (1, 64, 32) if "LSTM" in node else (64, 24), "r": (1, 8, 32)}
    for name, shape in shapes.items():
        codes = onnx.numpy_helper.from_array(np.full(shape, largest, np.int8), name)
        proto.graph.initializer.append(codes)
    bias = onnx.numpy_helper.from_array(np.zeros(24, np.float32), "b")
    proto.graph.initializer.append(bias)
    target = "onnxruntime-cpu@x86-64-no-vnni"
    assert len(list(qgraph.lint(proto, target, select="QG312"))) == (largest == 127)
    result = qgraph.deploy(proto, target)
    assert result.saturating == (["own"] if largest == 127 else [])
    conditions = "".join(result.to_json()["conditions"])
    assert ("products of 1 layer saturate" in conditions) == (largest == 127)
