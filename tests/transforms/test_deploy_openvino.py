"""Deployed models in OpenVINO: integer products counted in the graph that it executes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.inventory.layers import quantized_layers
from tests.conftest import openvino_core

openvino = pytest.importorskip("openvino")

TARGET = "openvino-cpu@x86-64"

COUNTED = {
    # quantized layers, products on codes afterwards, with the sums of data that were split off
    "TFC_1W2A": (4, 4),
    "brev_cnn_asym8": (4, 6),
    "brev_cnn_w4a4": (4, 4),
    "brev_cnn_w4a4_trunc": (5, 5),
    "brev_mlp_w1a2_bipolar": (3, 3),
    "field/ort_bert_qop": (16, 12),
    "kwsmlp_w3a3": (4, 4),
}
LEFT = {
    # layers that stay in float, and why
    "brev_cnn_asym8": (1, "two depthwise convolutions"),
    "ort_bert_qdq_u8": (4, "weights: a zero point other than 0"),
    "ort_bert_qop": (4, "a zero point other than 0"),
    "ort_lstm_dynamic": (1, "DynamicQuantizeLinear"),
    "ort_mbv3_qop_u8u8": (11, "two depthwise convolutions"),
}


def integer_products(path: Path) -> int:
    """Return the number of products of the executed graph whose data are codes of 8 bits."""
    compiled = openvino.Core().compile_model(str(path), "CPU")
    found = 0
    for node in compiled.get_runtime_model().get_ops():
        kind = node.get_rt_info()["layerType"].astype(str)
        if kind in ("Convolution", "Deconvolution", "FullyConnected", "MatMul"):
            found += node.input(0).get_element_type().get_type_name() in ("u8", "i8")
    return found


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("name", COUNTED)
def test_layers_run_in_integers(name, models, tmp_path):
    path, out = models / f"{name}.onnx", tmp_path / "out.onnx"
    model = qgraph.load(path)
    found = qgraph.deploy(model, TARGET)
    model.save(out)
    count, products = COUNTED[name]
    left, reason = LEFT.get(path.stem, (0, ""))
    assert (len(found.layers), len(found.left)) == (count, left)
    assert all(re.search(reason, str(layer.reason)) for layer in found.left)
    assert integer_products(out) == products
    assert str(found.certificate.verdict) in ("proved", "bounded")
    assert all(layer.bound is None or layer.bound.max_steps <= 1 for layer in found.layers)
    before, after = onnx.load(path), onnx.load(out)
    assert [v.name for v in after.graph.output] == [v.name for v in before.graph.output]


@pytest.mark.exhaustive
def test_every_model_keeps_or_gains_integer_layers(models):
    for path in sorted([*models.glob("*.onnx"), *(models / "field").glob("*.onnx")]):
        model = qgraph.load(path)
        if not next(iter(quantized_layers(model.ir)), None) and path.stem not in LEFT:
            continue
        found = qgraph.deploy(model, TARGET)
        count, reason = LEFT.get(path.stem, (0, ""))
        assert len(found.left) == count, path
        assert all(re.search(reason, str(layer.reason)) for layer in found.left), path
        assert not [layer.node for layer in found.left if layer.before], path
        again = model.to_proto()
        qgraph.deploy(model, TARGET)
        assert model.to_proto() == again, path


RECURRENT = """<ir_version: 8, opset_import: ["": 17]>
    net (float[5,1,4] x) => (float[5,1,1,3] y)
    <float s = {0.05}, uint8 z = {128}, int8 p = {0}, float t = {0.01}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        k = DequantizeLinear (v, t, p)
        m = MatMul (d, k)
        n = QuantizeLinear (m, s, z)
        e = DequantizeLinear (n, s, z)
        a = DequantizeLinear (w, t, p)
        b = DequantizeLinear (r, t, p)
        y = LSTM <hidden_size = 3> (e, a, b)
    }"""


@pytest.mark.slow
def test_weights_of_an_lstm_become_numbers(tmp_path):
    proto = onnx.parser.parse_model(RECURRENT)
    random = np.random.default_rng(0)
    for name, shape in (("v", (4, 4)), ("w", (1, 12, 4)), ("r", (1, 12, 3))):
        codes = random.integers(-64, 65, shape).astype(np.int8)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, name))
    onnx.save(proto, tmp_path / "in.onnx")
    with pytest.raises(RuntimeError, match="expects Constant"):
        openvino.Core().compile_model(str(tmp_path / "in.onnx"), "CPU")
    model = qgraph.load(proto)
    (layer,) = qgraph.deploy(model, "openvino-cpu").layers
    assert (layer.before, layer.kernel) == (None, "FullyConnected u8")
    model.save(tmp_path / "out.onnx")
    x = random.normal(size=(5, 1, 4)).astype(np.float32)
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    found = openvino.Core().compile_model(str(tmp_path / "out.onnx"), "CPU", hint)(x)[0]
    expected = qgraph.load(proto).run({"x": x}, backend="numpy")["y"]
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.slow
def test_signed_data_with_a_zero_point_become_unsigned():
    """On processors with AMX, OpenVINO runs the signed form slower than float."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    net (float[1,4,6,6] x) => (float[1,4,2,2] y)
    <float s = {0.05}, int8 z = {-7}, int8 o = {0}, float t = {0.01}> {
        q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
        v = DequantizeLinear (w, t)
        c = Conv (d, v)
        p = QuantizeLinear (c, s, o)    e = DequantizeLinear (p, s, o)
        f = Conv (e, v)
        r = QuantizeLinear (f, s, z)    y = DequantizeLinear (r, s, z)
    }""")
    codes = np.random.default_rng(0).integers(-64, 65, (4, 4, 3, 3)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "openvino-cpu")
    assert not found.left
    assert str(found.certificate.verdict) == "proved"
    encoders = list(model.nodes("QuantizeLinear"))
    assert [str(model.constant(n.inputs[2]).dtype) for n in encoders] == ["uint8", "int8", "uint8"]
    assert [int(model.constant(n.inputs[2])) for n in encoders] == [121, 0, 121]
    once = model.to_proto()
    qgraph.deploy(model, "openvino-cpu")
    assert model.to_proto() == once


JOINED = """<ir_version: 8, opset_import: ["": 17]>
    net (float[2,3,6,6] x) => (float[2,3,6,6] y)
    <float s = {0.05}, float t = {0.02}, float u = {0.01}, int8 z = {0}> {
        q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
        v = DequantizeLinear (w, u)     b = Conv <pads = [1, 1, 1, 1]> (d, v)
        p = QuantizeLinear (b, t, z)    e = DequantizeLinear (p, t, z)
        j = Concat <axis = 1> (d, e)
        BETWEEN
        k = DequantizeLinear (m, u)     c = Conv <pads = [1, 1, 1, 1]> (i, k)
        r = QuantizeLinear (c, s, z)    y = DequantizeLinear (r, s, z)
    }"""


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    "between", ["i = Relu (j)", "h = QuantizeLinear (j, s, z) i = DequantizeLinear (h, s, z)"]
)
def test_signed_codes_that_a_concat_joins_become_unsigned(between, tmp_path):
    """OpenVINO 2026.4.1 reads them as unsigned before a convolution, without a word."""
    proto = onnx.parser.parse_model(JOINED.replace("BETWEEN", between))
    random = np.random.default_rng(0)
    for name, channels in (("w", 3), ("m", 6)):
        codes = random.integers(-64, 65, (3, channels, 3, 3)).astype(np.int8)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, name))
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "openvino-cpu")
    assert (str(found.certificate.verdict), found.left) == ("proved", [])
    model.save(tmp_path / "out.onnx")
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(tmp_path / "out.onnx"), "CPU", hint)
    x = random.normal(size=(2, 3, 6, 6)).astype(np.float32)
    expected = qgraph.load(proto).run({"x": x}, backend="numpy")["y"]
    np.testing.assert_allclose(compiled(x)[0], expected, atol=0.0501)
    once = model.to_proto()
    qgraph.deploy(model, "openvino-cpu")
    assert model.to_proto() == once


@pytest.mark.slow
def test_a_layer_that_is_left_has_the_id_of_the_reason_that_decides():
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        net (float[N,2,6,6] x) => (float[N,2,4,4] y)
        <float s = {0.05}, uint8 u = {128}, uint8[2] z = {3, 250}, float[2] v = {0.01, 0.02}> {
            q = QuantizeLinear (x, s, u)    d = DequantizeLinear (q, s, u)
            w_ = DequantizeLinear <axis = 0> (w, v, z)
            c = Conv <group = 2> (d, w_)
            p = QuantizeLinear (c, s, u)    e = DequantizeLinear (p, s, u)
            m_ = DequantizeLinear (m, s, u)
            f = Conv (e, m_)
            r = QuantizeLinear (f, s, u)    y = DequantizeLinear (r, s, u)
        }""")
    codes = np.random.default_rng(0).integers(0, 256, (2, 1, 3, 3)).astype(np.uint8)
    codes[:, :, 0, 0], codes[:, :, 0, 1] = 0, 255
    for name, array in (("w", codes), ("m", np.uint8([130, 90, 77, 160]).reshape(2, 2, 1, 1))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    layer, other = qgraph.deploy(proto, "openvino-cpu").layers
    assert other.kernel is not None
    assert "; split-zero-points: two depthwise" in layer.reason
    assert layer.reason_id == "QG013"


@pytest.mark.slow
def test_forms_are_not_tried_that_cannot_mend_a_missing_size(monkeypatch):
    from qgraph.transforms.deployment import attempts

    verdicts, certified = [], attempts.certified

    def counted(*arguments, **options):
        proof, certificate = certified(*arguments, **options)
        verdicts.append(certificate.verdict)
        return proof, certificate

    monkeypatch.setattr(attempts, "certified", counted)
    found = qgraph.deploy(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        net (float[N,8,K] x, float[N,K,4] v) => (float[N,8,4] y)
        <float s = {0.05}, uint8 u = {128}> {
            q = QuantizeLinear (x, s, u)
            p = QuantizeLinear (v, s, u)
            m = QLinearMatMul (q, s, u, p, s, u, s, u)
            y = DequantizeLinear (m, s, u)
        }"""),
        "openvino-cpu",
    )
    assert [layer.reason_id for layer in found.left] == ["QG210"]
    assert sum(verdict == "undecided" for verdict in verdicts) == 1


@pytest.mark.slow
def test_codes_that_move_after_a_product_are_no_reason():
    """A later pass moves the Reshape, whose shape is computed, after the DequantizeLinear."""
    found = qgraph.deploy(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
        net (float[N,4] x, float[4,8] v) => (float[N,8] y)
        <float s = {0.05}, uint8 u = {0}, uint8 o = {7}, uint8 t = {128}, int64[1] rest = {8},
         int64[1] zero = {0}, uint8[8,8] w = {RANDOM}> {
            q = QuantizeLinear (x, s, u)
            p = QuantizeLinear (v, s, o)
            [data] m = QLinearMatMul (q, s, u, p, s, o, s, u)
            h = Shape (x)
            a = Gather (h, zero)
            k = Concat <axis = 0> (a, rest)
            r = Reshape (m, k)
            [weighted] n = QLinearMatMul (r, s, u, w, s, t, s, u)
            y = DequantizeLinear (n, s, u)
        }""".replace("RANDOM", ", ".join(map(str, range(100, 164))))
        ),
        "openvino-cpu",
    )
    (layer,) = found.left
    assert (layer.reason, layer.reason_id) == ("weights: a zero point other than 0", "QG210")


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("length", ["4", "T"])
def test_a_recurrent_network_that_openvino_compiles_is_not_said_to_be_refused(length, tmp_path):
    """OpenVINO 2026.4 refuses codes before an LSTM if the length of the sequence is fixed."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[{length},1,2] x) => (float[N,2] y)
        <int8[1,4,2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, int8[1,4,1] r = {{1, 2, 3, 4}},
         float s = {{0.1}}, int8 z = {{0}}, int8[1,2] v = {{3, 4}}, int64[2] f = {{-1, 1}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            a = DequantizeLinear (w, s, z)
            b = DequantizeLinear (r, s, z)
            h = LSTM <hidden_size = 1> (d, a, b)
            k = Reshape (h, f)
            p = QuantizeLinear (k, s, z)
            e = DequantizeLinear (p, s, z)
            c = DequantizeLinear (v, s, z)
            y = MatMul (e, c)
        }}"""
    model = qgraph.load(onnx.parser.parse_model(text))
    found = qgraph.deploy(model, "openvino-cpu")
    assert found.is_executed
    assert not [each for each in found.findings if each.rule.id == "QG601"]
    model.save(tmp_path / "out.onnx")
    openvino.Core().compile_model(str(tmp_path / "out.onnx"), "CPU")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "decode", "scales"),
    [
        ("INT8", "<axis = 0>", (16,)),
        ("INT4", "<axis = 0>", (16,)),
        ("INT4", "<axis = 0, block_size = 128>", (1, 24)),
    ],
)
def test_scales_along_rows_of_short_codes_are_right(kind, decode, scales):
    """OpenVINO reads them as those of columns, and loads no incomplete block."""
    proto = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    net (float[4, 16] x) => (float[4, 24] y) {{
        d = DequantizeLinear {decode} (w, s)
        y = MatMul (x, d)
    }}""")
    random = np.random.default_rng(0)
    codes = random.integers(-7, 8, (16, 24)).ravel().tolist()
    kind = getattr(onnx.TensorProto, kind)
    proto.graph.initializer.append(onnx.helper.make_tensor("w", kind, (16, 24), codes))
    each = random.uniform(0.1, 1, scales).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(each, "s"))
    x = random.normal(size=(4, 16)).astype(np.float32)
    model = qgraph.load(proto)
    expected = model.run({"x": x}, backend="numpy")["y"]
    qgraph.deploy(model, TARGET)
    core, hint = openvino_core(), {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(
        core.read_model(model.to_proto().SerializeToString()), "CPU", hint
    )
    np.testing.assert_allclose(compiled([x])["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_data_of_fp8_are_rounded_once(kind):
    """OpenVINO rounds to float16 and then to 8 bits: the trap ends where the first line fails."""
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    net (float[8,64] x) => (float[8,64] y) <float s = {0.013}> {
        c = QuantizeLinear (x, s, z)    d = DequantizeLinear (c, s, z)
        m = DequantizeLinear (w, s, z)  n = Neg (m)    y = Add (d, n)
    }""")
    number = getattr(onnx.TensorProto, kind)
    for name, shape in (("z", []), ("w", [64])):
        zeros = onnx.helper.make_tensor(name, number, shape, [0.0] * max(1, sum(shape)))
        proto.graph.initializer.append(zeros)
    x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    scale, dtype = np.float32(0.013), onnx.helper.tensor_dtype_to_np_dtype(number)
    largest = np.float32(448 if kind == "FLOAT8E4M3FN" else 57344)
    steps = np.clip(x / scale, -largest, largest)
    expected = steps.astype(dtype).astype(np.float32) * scale

    def differing(proto):
        read, hint = proto.SerializeToString(), {"INFERENCE_PRECISION_HINT": "f32"}
        run = openvino_core().compile_model(openvino_core().read_model(read), "CPU", hint)
        return np.mean(run([x])[0] != expected)

    assert differing(proto) > 0
    model = qgraph.load(proto)
    report = qgraph.deploy(model, "openvino-cpu")
    assert report.certificate.verdict == "proved"
    if report.refusal is not None:  # OpenVINO does not compile such chains for AVX2
        assert "not enough registers" in report.refusal
        return
    assert differing(model.to_proto()) == 0
    once = model.to_proto()
    qgraph.deploy(model, "openvino-cpu")
    assert model.to_proto() == once
