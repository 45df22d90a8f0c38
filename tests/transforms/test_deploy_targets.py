"""What deployments write for targets that are not run here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qgraph

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits_brevitas.onnx"

NARROW = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N,2,6,6] x) => (float[N,3,4,4] y)
    <float s = {0.05}, int8 z = {0}, float[3] sw = {0.01, 0.02, 0.015}, float t = {0.1},
     uint8 u = {0}, uint8 top = {15}, int32[3] b = {100, -200, 300},
     float[3] sb = {0.01, 0.01, 0.1}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        e = DequantizeLinear <axis = 0> (w, sw)
        f = DequantizeLinear <axis = 0> (b, sb)
        [conv] c = Conv (d, e, f)
        p = QuantizeLinear (c, t, u)
        k = Clip (p, u, top)
        g = DequantizeLinear (k, t, u)
        y = Relu (g)
    }"""


def narrow() -> qgraph.Model:
    proto = onnx.parser.parse_model(NARROW)
    weights = np.random.default_rng(0).integers(-127, 128, (3, 2, 3, 3)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return qgraph.load(proto)


def test_tensorrt_gets_signed_codes_without_zero_points_and_float_biases():
    model = narrow()
    (layer,) = qgraph.deploy(model, "tensorrt").layers
    assert (layer.before, layer.kernel) == (None, "convolution")
    kinds = [node.inputs[2].dtype.name for node in model.nodes("QuantizeLinear")]
    assert kinds == ["INT8", "INT8"]
    assert not any(model.constant(n.inputs[2]).any() for n in model.nodes("QuantizeLinear"))
    (conv,) = model.nodes("Conv")
    np.testing.assert_array_equal(model.constant(conv.inputs[2]), np.float32([1, -2, 30]))
    (clip,) = model.nodes("Clip")
    assert clip.inputs[0].producer() is conv


def test_hls4ml_gets_quants():
    model = narrow()
    found = qgraph.deploy(model, "hls4ml")
    assert [layer.kernel for layer in found.layers] == ["scaled-fixed-point"]
    names = {node.op_type for node in model.nodes()}
    assert "Quant" in names
    assert names.isdisjoint({"QuantizeLinear", "DequantizeLinear"})


FAKE = """<ir_version: 8, opset_import: ["": 13, "org.openvinotoolkit": 1]>
    net (float[N,2,6,6] x) => (float[N,3,4,4] y)
    <float low = {-6.4}, float high = {6.35}, float[3,1,1,1] top = {0.3, 0.7, 1.1},
     float[3,1,1,1] bottom = {-0.3, -0.7, -1.1}> {
        a = org.openvinotoolkit.FakeQuantize <levels = 256> (x, low, high, low, high)
        v = org.openvinotoolkit.FakeQuantize <levels = 255> (w, bottom, top, bottom, top)
        [conv] y = Conv (a, v)
    }"""


def test_hls4ml_gets_quants_for_weights_in_fake_quantize():
    proto = onnx.parser.parse_model(FAKE)
    weights = np.random.default_rng(0).normal(0, 0.4, (3, 2, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "hls4ml")
    assert [layer.kernel for layer in found.layers] == ["scaled-fixed-point"]
    (conv,) = model.nodes("Conv")
    quant = conv.inputs[1].producer()
    assert quant.op_type == "Quant"
    stored, scale = (model.constant(value) for value in quant.inputs[:2])
    top = np.float32([0.3, 0.7, 1.1]).reshape(3, 1, 1, 1)
    np.testing.assert_allclose(scale, top / 127, rtol=1e-6)
    np.testing.assert_allclose(stored, np.clip(np.rint(weights / top * 127), -127, 127) * scale)
    data = conv.inputs[0].producer()
    assert (data.op_type, model.constant(data.inputs[2])) == ("Quant", 0)
    once = model.to_proto()
    qgraph.deploy(model, "hls4ml")
    assert model.to_proto() == once


@pytest.mark.slow
def test_operators_on_codes_are_no_kernels_of_other_targets():
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,4] x) => (float[2,3] y)
        <float s = {0.1}, uint8 z = {3}, int8[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, int8 zw = {0},
         float t = {2}> {
            q = QuantizeLinear (x, s, z)
            [m] c = QLinearMatMul (q, s, z, w, s, zw, t, z)
            y = DequantizeLinear (c, t, z)
        }"""
    model = qgraph.load(onnx.parser.parse_model(text))
    (layer,) = qgraph.deploy(model, "tensorrt").layers
    assert layer.before is None
    assert layer.kernel is None
    assert layer.reason_id == "QG010"


def test_a_model_of_which_no_layer_fits_stays_as_it_is_where_it_is_taken():
    model = narrow()
    before = model.to_proto()
    found = qgraph.deploy(model, "vitis-ai")  # its scales are no powers of two
    assert [layer.reason_id for layer in found.layers] == ["QG212"]
    assert found.notes == ["no form has more layers in integer kernels"]
    assert model.to_proto() == before


def test_a_model_without_quantized_layers_is_not_proved_in_every_form(monkeypatch):
    from qgraph.transforms.deployment import attempts

    proofs, certified = [], attempts.certified
    monkeypatch.setattr(
        attempts, "certified", lambda *a, **k: proofs.append(a) or certified(*a, **k)
    )
    model = qgraph.load(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        net (float[N,8,4] x) => (float[N,8,8] y)
        <int8[4,2] w = {1, -2, 3, -4, 5, -6, 7, -8}, float s = {0.1}, float t = {0.5}> {
            d = DequantizeLinear (w, s)    a = MatMul (x, d)    r = Mul (a, t)
            k = Transpose <perm = [0, 2, 1]> (r)
            y = MatMul (a, k)
        }""")
    )
    before = model.to_proto()
    found = qgraph.deploy(model, "qnn-htp")
    assert (found.layers, found.notes[0]) == ([], "there is no quantized layer to rewrite")
    assert len(proofs) <= 2  # of the input as it is, and of what it becomes
    assert model.to_proto() == before


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("target", ["litert", "tensorrt", "hls4ml"])
def test_a_second_deployment_changes_nothing(target):
    text = NARROW.replace("y = Relu (g)", "h = DequantizeLinear (v, s) y = Conv (g, h)")
    proto = onnx.parser.parse_model(text.replace("float[N,3,4,4] y", "float[N,2,4,4] y"))
    codes = np.random.default_rng(0).integers(-127, 128, (3, 2, 3, 3)).astype(np.int8)
    for name, array in (("w", codes), ("v", codes[:2, :, :1, :1].repeat(2, 1)[:, :3])):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.copy(), name))
    model = qgraph.load(proto)
    assert qgraph.deploy(model, target).layers[0].kernel is not None
    once = model.to_proto()
    qgraph.deploy(model, target)
    assert model.to_proto() == once


@pytest.mark.slow
def test_a_layer_that_is_no_layer_of_codes_afterwards_has_the_reason_of_what_it_was():
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,4] x) => (float[2,3] y)
        <int8[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, int8 zw = {0}, float t = {2}> {
            q, s, z = DynamicQuantizeLinear (x)
            [m] c = MatMulInteger (q, w, z, zw)
            f = Cast <to = 1> (c)
            p = Mul (s, t)
            y = Mul (f, p)
        }"""
    (layer,) = qgraph.deploy(qgraph.load(onnx.parser.parse_model(text)), "tensorrt").layers
    assert layer.kernel is None
    assert layer.reason.endswith("data: DynamicQuantizeLinear+DequantizeLinear")
    assert layer.reason_id == "QG205"


UNITS = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N,2,6,6] x) => (float[N,2,2,2] y)
    <float s = {0.05}, TYPE z = {ZERO}, float t = {0.01}, float[2] b = {0.1, -0.2},
     float low = {0}, float high = {6}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        v = DequantizeLinear (w, t)
        [first] c = Conv (d, v, b)
        LIMITED
        p = QuantizeLinear (r, s, z)
        e = DequantizeLinear (p, s, z)
        [second] f = Conv (e, v, b)
        o = QuantizeLinear (f, s, z)
        y = DequantizeLinear (o, s, z)
    }"""


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.parametrize(("kind", "zero"), [("int8", "0"), ("uint8", "128")])
@pytest.mark.parametrize("limited", ["r = Relu (c)", "r = Clip (c, low, high)"])
def test_qnn_gets_limits_between_quantizers_of_their_own(kind, zero, limited):
    text = UNITS.replace("TYPE", kind).replace("ZERO", zero).replace("LIMITED", limited)
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    weights = rng.integers(-127, 128, (2, 2, 3, 3)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "qnn-htp")
    assert [layer.kernel for layer in found.layers] == ["convolution", "convolution"]
    (clip,) = model.nodes("Clip")
    assert clip.inputs[0].producer().op_type == "DequantizeLinear"
    assert [node.op_type for node in clip.outputs[0].consumers()] == ["QuantizeLinear"]
    for conv in model.nodes("Conv"):
        assert [node.op_type for node in conv.outputs[0].consumers()] == ["QuantizeLinear"]
    x = rng.normal(0, 3, (8, 2, 6, 6)).astype(np.float32)
    before, after = (
        each.run({"x": x}, backend="numpy")["y"] for each in (qgraph.load(proto), model)
    )
    np.testing.assert_array_equal(after, before)
    once = model.to_proto()
    qgraph.deploy(model, "qnn-htp")
    assert model.to_proto() == once


def test_a_model_of_which_no_layer_fits_is_only_converted_where_it_is_not_taken():
    text = """<ir_version: 10, opset_import: ["": 20, "qonnx.custom_op.general": 1]>
        net (float[1,2,4,4] x) => (float[1,2,2,2] y)
        <float s = {0.3}, float z = {0}, float b = {8}, float t = {0.07}, float[2] n = {1, 2}> {
            d = qonnx.custom_op.general.Quant <signed = 1> (x, s, z, b)
            v = qonnx.custom_op.general.Quant <signed = 1, narrow = 1> (w, t, z, b)
            [conv] c = Conv (d, v)
            [norm] m = BatchNormalization (c, n, n, n, n)
            y = qonnx.custom_op.general.Quant <signed = 1> (m, s, z, b)
        }"""
    proto = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).normal(0, 3, (2, 2, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "vitis-ai")  # its scales are no powers of two
    assert [layer.kernel for layer in found.layers] == [None]
    assert found.certificate.verdict == "proved"
    assert {node.op_type for node in model.nodes()} == {
        "QuantizeLinear",
        "DequantizeLinear",
        "Conv",
        "BatchNormalization",
    }


@pytest.mark.slow
def test_a_deployment_that_lowers_the_opset_warns_of_no_option(caplog) -> None:
    """TensorRT takes opset 20 at most; the passes in between get this number, not the user."""
    model = qgraph.load(DIGITS)
    qgraph.convert(model, to="qdq")
    assert model.ir.opset_imports[""] == 21
    qgraph.deploy(model, "tensorrt")
    assert model.ir.opset_imports[""] == 20
    assert "limits what is written" not in caplog.text
    again = qgraph.load(DIGITS)
    qgraph.convert(again, to="qdq")
    qgraph.convert(again, to="onnx", opset=20)
    assert "opset=20 limits what is written" in caplog.text


def test_scales_that_are_inputs_too_become_constants():
    """Old files list each initializer as an input, and no pass has to change anything else."""
    proto = onnx.parser.parse_model("""<ir_version: 6, opset_import: ["": 11, "onnx.brevitas": 1]>
        net (float[2,4] x, float s, float o, float b, float[4,2] w, float t) => (float[2,2] y)
        <float s = {0.05}, float o = {0}, float b = {8},
         float[4,2] w = {0.5, -1, 2, 1.5, 0, 3, -2.5, 1}, float t = {0.5}> {
            d = onnx.brevitas.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND"> (x, s, o, b)
            v = onnx.brevitas.Quant <signed = 1, narrow = 1, rounding_mode = "ROUND"> (w, t, o, b)
            [only] y = MatMul (d, v)
        }""")
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "hls4ml")
    assert [layer.kernel for layer in found.layers] == ["scaled-fixed-point"]
    assert [each.name for each in model.to_proto().graph.input] == ["x"]


@pytest.mark.exhaustive
def test_quantizers_that_stand_behind_one_another_keep_no_layer_in_float():
    """The second one does nothing; exporters put one behind each operator."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        net (float[2,4,3,3] x) => (float[2,3] y)
        <float s = {0.05}, int8 z = {-3}, float t = {0.01}, int8 o = {0}, float u = {0.0005},
         int32[3] b = {40, -30, 20}> {
            g = GlobalAveragePool (x)
            a = QuantizeLinear (g, s, z)    c = DequantizeLinear (a, s, z)
            f = Flatten (c)
            d = QuantizeLinear (f, s, z)    e = DequantizeLinear (d, s, z)
            v = DequantizeLinear (w, t, o)  k = DequantizeLinear (b, u)
            [last] m = Gemm <transB = 1> (e, v, k)
            q = QuantizeLinear (m, s, z)    y = DequantizeLinear (q, s, z)
        }""")
    codes = np.random.default_rng(0).integers(-127, 128, (3, 4)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    model = qgraph.load(proto)
    (layer,) = qgraph.deploy(model, "hls4ml").layers
    assert layer.kernel is not None
    assert [node.op_type for node in model.nodes("MatMul", "Gemm")] == ["MatMul"]
    once = model.to_proto()
    qgraph.deploy(model, "hls4ml")
    assert model.to_proto() == once


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("written", ["qonnx", "qdq"])
def test_quantizers_that_a_target_refuses_become_plain_operators(written):
    """TensorRT takes no zero points of data: it has no integer kernel for this, and no operator."""
    forms = {
        "qonnx": "d = qonnx.custom_op.general.Quant <signed = 0> (x, s, p, b)",
        "qdq": "q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)",
    }
    model = qgraph.load(
        onnx.parser.parse_model(f"""<ir_version: 10,
         opset_import: ["": 20, "qonnx.custom_op.general": 1]>
        net (float[N,4] x) => (float[N,2] y)
        <float s = {{0.05}}, float p = {{101}}, float b = {{8}}, uint8 z = {{101}},
         float t = {{0.5}}, int8[4,2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, int8 o = {{0}}> {{
            {forms[written]}
            v = DequantizeLinear (w, t, o)
            y = MatMul (d, v)
        }}""")
    )
    found = qgraph.deploy(model, "tensorrt")
    (layer,) = found.layers
    assert layer.kernel is None
    assert str(found.certificate.verdict) == "proved"
    names = {node.op_type for node in model.nodes()}
    assert names.isdisjoint({"QuantizeLinear", "Quant"})
    assert not list(qgraph.lint(model, "tensorrt", select="QG601"))
    once = model.to_proto()
    qgraph.deploy(model, "tensorrt")
    assert model.to_proto() == once


@pytest.mark.slow
def test_only_quantizers_that_a_target_refuses_become_plain_operators():
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[2,4] x) => (float[2,3] y)
        <float s = {0.05}, int8 z = {0}, uint8 p = {17}, float t = {0.01}, int8[4,4] w =
         {1, 2, 3, 4, -5, 6, 7, 8, 9, -10, 11, 12, 13, 14, -15, 16}, int8[4,3] v =
         {1, 2, 3, 4, -5, 6, 7, 8, 9, -10, 11, 12}> {
            q = QuantizeLinear (x, s, z)    d = DequantizeLinear (q, s, z)
            g = DequantizeLinear (w, t)     [signed] a = MatMul (d, g)
            e = QuantizeLinear (a, s, z)    f = DequantizeLinear (e, s, z)
            b = Tanh (f)
            h = QuantizeLinear (b, s, p)    i = DequantizeLinear (h, s, p)
            k = DequantizeLinear (v, t)     [shifted] y = MatMul (i, k)
        }"""
    model = qgraph.load(onnx.parser.parse_model(text))
    result = qgraph.deploy(model, "tensorrt")
    assert [layer.kernel is not None for layer in result.layers] == [True, False]
    assert result.certificate.verdict in ("proved", "bounded")
    assert not list(qgraph.lint(model, "tensorrt", select="QG601"))
    once = model.to_proto()
    qgraph.deploy(model, "tensorrt")
    assert model.to_proto() == once


def test_qnn_gets_float32_biases_beside_long_sums_of_float16():
    """Its kernels accept no float16 bias. The last product is in float, and adds 2048 terms."""
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        net (float16[1,2,32,32] x) => (float16[1,3] y) <int8 z = {0}> {
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            e = DequantizeLinear (w, t)
            c = Conv <pads = [1, 1, 1, 1]> (d, e, b)
            o = QuantizeLinear (c, s, z)
            f = DequantizeLinear (o, s, z)
            r = Flatten (f)
            y = MatMul (r, v)
        }""")
    rng = np.random.default_rng(0)
    for name, array in {
        "s": np.float16(0.1),
        "t": np.float16(0.01),
        "b": np.float16([1, -2]),
        "w": rng.integers(-127, 128, (2, 2, 3, 3)).astype(np.int8),
        "v": rng.normal(0, 0.01, (2048, 3)).astype(np.float16),
    }.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    found = qgraph.deploy(qgraph.load(proto), "qnn-htp")
    assert [layer.kernel for layer in found.layers] == ["convolution"]


def test_weights_of_fewer_codes_behind_a_transpose_become_quants():
    """Brevitas limits the codes of weights by a Clip, and torch turns the decoded weights."""
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        net (float[1,3] x) => (float[1,2] y)
        <float s = {0.1}, int8 z = {0}, int8 low = {-7}, int8 high = {7},
         int8[2,3] w = {1, -7, 3, 7, 0, -2}> {
            q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
            c = Clip (w, low, high) e = DequantizeLinear (c, s, z) t = Transpose (e)
            m = MatMul (d, t)
            o = QuantizeLinear (m, s, z) y = DequantizeLinear (o, s, z)
        }""")
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "hls4ml")
    assert [layer.kernel for layer in found.layers] == ["scaled-fixed-point"]
    assert not list(model.nodes("DequantizeLinear", "Clip"))


@pytest.mark.slow
def test_a_form_of_plain_operators_is_proved_once(monkeypatch):
    """TensorRT accepts no zero point of data, so the product gets plain operators."""
    from qgraph.transforms.deployment import attempts

    proofs, certified = [], attempts.certified
    monkeypatch.setattr(
        attempts, "certified", lambda *a, **k: proofs.append(a) or certified(*a, **k)
    )
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        net (float[1,3] x) => (float[1,2] y)
        <float s = {0.1}, uint8 z = {100}, int8 w = {0}, int8[3,2] c = {1, -7, 3, 7, 0, -2}> {
            q = QuantizeLinear (x, s, z)
            m = QLinearMatMul (q, s, z, c, s, w, s, z)
            y = DequantizeLinear (m, s, z)
        }""")
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "tensorrt")
    assert found.notes.count("quantizers are plain operators, since tensorrt loads no other form")
    assert len({id(sides[1]) for sides, *_ in proofs}) == len(proofs) > 0
