"""Layers that a deployment leaves in float by choice: by a profile, for size, or as measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import qgraph
from qgraph import transforms
from qgraph.cli.main import main
from qgraph.errors import OptionError
from qgraph.inventory.executed import executed

onnxruntime = pytest.importorskip("onnxruntime")

SLOWER = """
[[slower]]
text = "convolutions of 3 x 3"
ratio = 1.5
operators = ["Conv"]
source = ["run"]
"""


@pytest.mark.slow
def test_a_layer_that_the_profile_says_is_slower_stays_in_float(network, tmp_path):
    known = Path(qgraph.__file__).parent / "targets" / "onnxruntime-cpu.toml"
    profile = tmp_path / "own.toml"
    profile.write_text(known.read_text() + SLOWER)
    model = qgraph.load(network)
    found = qgraph.deploy(model, str(profile))
    (layer,) = found.layers
    assert layer.reason == "convolutions of 3 x 3: measured to take 1.5 times as long as float"
    assert (layer.kernel, layer.reason_id, layer.exactness) == (None, "QG224", "bounded")
    assert executed(model.ir).integer_nodes == 0


def test_a_model_of_packed_weights_stays_and_needs_a_session_option(tmp_path):
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,32] x) => (float[N,8] y) <float[1,8] s = {1, 1, 1, 1, 1, 1, 1, 1}> {
            d = DequantizeLinear <axis = 0, block_size = 32> (w, s)
            y = MatMul (x, d)
        }""")
    codes = np.random.default_rng(0).integers(-8, 8, (32, 8))
    weights = onnx.helper.make_tensor(
        "w", onnx.TensorProto.INT4, codes.shape, codes.ravel().tolist()
    )
    proto.graph.initializer.append(weights)
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "onnxruntime-cpu")
    assert found.session_options == {"session.qdq_matmulnbits_accuracy_level": "1"}
    assert found.certificate.verdict == "proved"
    assert found.weight_bytes_after == found.weight_bytes_before

    import onnxruntime

    path = tmp_path / "packed.onnx"
    model.save(path)
    options = onnxruntime.SessionOptions()
    for key, value in found.session_options.items():
        options.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(4, 32)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ codes, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_packed_weights_beside_a_quantized_layer_stay_packed():
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,32] x) => (float[N,8] y, float[N,8] z)
        <float s = {0.05}, uint8 u = {128}, float[8] t = {1, 1, 1, 1, 1, 1, 1, 1},
         float[8] b = {1, 1, 1, 1, 1, 1, 1, 1}> {
            d = DequantizeLinear <axis = 1> (w, t)
            [only] y = MatMul (x, d)
            q = QuantizeLinear (x, s, u)
            e = DequantizeLinear (q, s, u)
            f = DequantizeLinear <axis = 1> (v, t)
            [coded] m = MatMul (e, f)
            a = Add (m, b)
            p = QuantizeLinear (a, s, u)
            z = DequantizeLinear (p, s, u)
        }""")
    codes = np.random.default_rng(0).integers(-8, 8, (32, 8)).ravel().tolist()
    for name in ("w", "v"):
        weights = onnx.helper.make_tensor(name, onnx.TensorProto.INT4, (32, 8), codes)
        proto.graph.initializer.append(weights)
    model = qgraph.load(proto)
    (layer,) = qgraph.deploy(model, "onnxruntime-cpu").layers
    assert (layer.node, layer.before, layer.kernel) == ("coded", None, "QGemm")
    (left,) = [node for node in model.nodes("MatMul") if node.name == "only"]
    assert left.inputs[1].producer().inputs[0].dtype.name == "INT4"


LAST_IN_FLOAT = """<ir_version: 10, opset_import: ["": 21]>
    net (float[N,32] x) => (float[N,8] y, float[N,8] z)
    <float s = {0.05}, uint8 u = {128}, float[8] t = {1, 1, 1, 1, 1, 1, 1, 1},
     float[8] b = {1, 1, 1, 1, 1, 1, 1, 1}> {
        q = QuantizeLinear (x, s, u)
        e = DequantizeLinear (q, s, u)
        f = DequantizeLinear <axis = 1> (v, t)
        [coded] m = MatMul (e, f)
        a = Add (m, b)
        p = QuantizeLinear (a, s, u)
        z = DequantizeLinear (p, s, u)
        h = Tanh (e)
        d = DequantizeLinear <axis = 0> (w, t)
        [last] y0 = Gemm <transB = 1> (h, d, b)
        BEHIND
    }"""


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("prefer", ["speed", "size"])
@pytest.mark.parametrize("kind", [np.int8, np.int16])
@pytest.mark.parametrize("quantized", [False, True])
def test_weights_that_are_decoded_in_each_run_become_floats(kind, prefer, quantized):
    pair = "c = QuantizeLinear (y0, s, u) y = DequantizeLinear (c, s, u)"
    source = LAST_IN_FLOAT.replace("BEHIND", pair if quantized else "y = Identity (y0)")
    proto = onnx.parser.parse_model(source)
    codes = np.random.default_rng(0).integers(-8, 8, (8, 32))
    weights = {"w": codes.astype(kind), "v": codes.T.astype(np.int8)}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        for name, array in weights.items()
    )
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "onnxruntime-cpu", prefer=prefer)
    assert found.certificate.verdict in ("proved", "bounded")
    (last,) = [node for node in model.nodes("Gemm") if node.name == "last"]
    is_decoded = prefer == "speed" and not quantized
    assert (last.inputs[1].producer() is None) == is_decoded
    if is_decoded:
        assert np.array_equal(last.inputs[1].const_value.numpy(), codes.astype(np.float32))
    again = model.clone()
    qgraph.deploy(again, "onnxruntime-cpu", prefer=prefer)
    assert again.identity() == model.identity()


def test_a_layer_whose_weights_become_floats_keeps_its_reason():
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,3,4,4] x) => (float[N,2,2,2] y, float[N,2,2,2] z)
        <float s = {0.05}, uint8 u = {128}, float t = {0.01}> {
            q = QuantizeLinear (x, s, u)
            d = DequantizeLinear (q, s, u)
            f = DequantizeLinear (w, t)
            [coded] m = Conv (d, f)
            p = QuantizeLinear (m, s, u)
            z = DequantizeLinear (p, s, u)
            g = DequantizeLinear (w, t)
            [last] y = Conv (d, g)
        }""")
    codes = np.random.default_rng(0).integers(-8, 8, (2, 3, 3, 3)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "onnxruntime-cpu")
    (layer,) = found.left
    assert any("of weights of 1 layer in float became floats" in note for note in found.notes)
    (last,) = [node for node in model.nodes("Conv") if node.name == "last"]
    assert np.array_equal(last.inputs[1].const_value.numpy(), codes * np.float32(0.01))
    assert (layer.node, layer.reason) == ("last", "no quantizer after Conv")


def four_bits(network: Path) -> Path:
    proto = onnx.load(network)
    (weights,) = [each for each in proto.graph.initializer if each.name == "w"]
    codes = onnx.numpy_helper.to_array(weights) // 16
    weights.CopyFrom(onnx.numpy_helper.from_array(codes, "w"))
    path = network.with_name("four.onnx")
    onnx.save(proto, path)
    return path


@pytest.mark.slow
def test_weights_stay_packed_for_size(network):
    model = qgraph.load(four_bits(network))
    model.apply(transforms.Repack(opset=21))
    small, large = model.clone(), model.clone()
    found = qgraph.deploy(small, "onnxruntime-cpu", prefer="Size")
    (layer,) = found.layers
    assert (layer.kernel, layer.reason) == (None, "its weights stay packed as INT4")
    assert "quantize-bias" not in layer.rewrites
    fast = qgraph.deploy(large, "onnxruntime-cpu")
    assert not fast.left
    assert found.weight_bytes_after < fast.weight_bytes_after


@pytest.fixture
def clock(monkeypatch):
    """Times as they are asked for, in milliseconds: by the number of integer weights."""
    from qgraph.comparison.bench import BenchReport, ModelTime
    from qgraph.inventory.kernels import Kernels
    from qgraph.transforms.deployment import preferences, tuning

    times = {"FLOAT": 4.0, "INT8": 3.0, "INT16": 2.0}

    def bench(models, timing):
        taken = []
        for model in models:
            kinds = {str(v.dtype) for v in model.ir.graph.initializers.values()}
            kinds = kinds if list(model.nodes("DequantizeLinear")) else {"FLOAT"}
            taken.append(next(t for name, t in reversed(times.items()) if name in kinds))
        rows = [
            ModelTime(None, t, t, t, t / taken[0], t, t, None, Kernels({}, 0, 0)) for t in taken
        ]
        return BenchReport("clock 1", timing, rows)

    for module in (preferences, tuning):
        monkeypatch.setattr(module, "bench", bench)
    return times


@pytest.mark.slow
def test_tuning_takes_the_fastest_form(network, clock, tmp_path, capsys):
    report = tmp_path / "r.json"
    command = ["deploy", str(network), "--target", "onnxruntime-cpu@x86-64", "--dry-run"]
    assert main([*command, "--tune", "--report", str(report)]) == 0
    document = json.loads(report.read_text())
    (layer,), tuning = document["layers"], document["tuning"]
    assert layer["kernel"] is None
    assert layer["reason"] == "its integer form was measured to take 1.5 of float's time"
    assert [form["chosen"] for form in tuning["forms"]] == ["float"]
    assert tuning["forms"][0]["shapes"] == [[1, 2, 6, 6]]
    assert tuning["milliseconds"] == {"float": 4.0, "input": 3.0, "untuned": 3.0, "tuned": 2.0}
    assert not any("network in float" in note for note in document["notes"])
    assert main([*command, "--tune", "--prefer", "size"]) == 2

    sizes = qgraph.Inputs(shapes={"x": (3, 2, 6, 6)})
    found = qgraph.deploy(network, "onnxruntime-cpu@x86-64", prefer="tuned", inputs=sizes)
    assert found.accuracy is None
    assert found.tuning is not None
    assert found.tuning.forms[0].shapes == [[3, 2, 6, 6]]

    clock["INT16"] = 3.5
    found = qgraph.deploy(network, "onnxruntime-cpu@x86-64", prefer="tuned")
    assert found.tuning is not None
    assert (found.tuning.chosen, found.left) == ("untuned", [])
    clock["FLOAT"] = 2.5
    found = qgraph.deploy(network, "onnxruntime-cpu@x86-64", prefer="tuned")
    assert found.tuning is not None
    assert found.tuning.chosen == "untuned"
    assert "(untuned) takes 1.2 times as long" in found.notes[-1]
    with pytest.raises(OptionError, match="cannot be run here"):
        qgraph.deploy(network, "tensorrt", prefer="tuned")


@pytest.mark.slow
def test_tuning_leaves_an_input_that_is_the_fastest(network, clock):
    clock["INT32"] = 3.2  # biases of the result
    model = qgraph.load(network)
    before = model.to_proto()
    found = qgraph.deploy(model, "onnxruntime-cpu@x86-64", prefer="tuned")
    assert found.tuning is not None
    assert found.tuning.chosen == "input"
    assert "the input was measured to be the fastest" in found.notes[0]
    assert model.to_proto() == before


def test_a_result_that_the_target_does_not_load_is_told(tmp_path, capsys):
    """TensorRT takes symmetric quantizers only: tensorrt.toml. The codes are an output here."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        net (float[N,2] x) => (uint8[N,2] y)
        <float s = {0.05}, int8 o = {0}, uint8 z = {9}, int8[2,2] v = {1, 2, 3, 4}> {
            q = QuantizeLinear (x, s, o)
            e = DequantizeLinear (q, s, o)
            f = DequantizeLinear (v, s, o)
            m = MatMul (e, f)
            y = QuantizeLinear (m, s, z)
        }""")
    path, out, page = (tmp_path / name for name in ("net.onnx", "out.onnx", "page.md"))
    onnx.save(proto, path)
    command = ["deploy", str(path), "--target", "tensorrt", "-o", str(out)]
    assert main([*command, "--markdown", str(page)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    sentence = "But tensorrt does not load the result: zero points other than 0"
    assert sentence in told
    assert sentence in page.read_text()
    assert "next: 'qgraph explain QG601'" in told


@pytest.mark.slow
def test_a_result_that_does_not_run_on_random_inputs_is_written_and_not_timed(tmp_path, capsys):
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        net (float[n,2] x) => (float[3,m,2] y)
        <float s = {0.05}, int8 o = {0}, int8[2,2] v = {1, 2, 3, 4}, int64[3] form = {3, -1, 2}> {
            q = QuantizeLinear (x, s, o)
            e = DequantizeLinear (q, s, o)
            f = DequantizeLinear (v, s, o)
            m = MatMul (e, f)
            p = QuantizeLinear (m, s, o)
            d = DequantizeLinear (p, s, o)
            y = Reshape (d, form)
        }""")
    path, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    onnx.save(proto, path)
    command = ["deploy", str(path), "--target", "onnxruntime-cpu", "-o", str(out), "--measure"]
    assert main(command) == 0
    assert out.exists()
    assert "not timed; another --shape may help: " in " ".join(capsys.readouterr().err.split())


def test_what_lint_finds_in_the_result_is_told(tmp_path, capsys):
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        net (float[N,8] x) => (float[N,8] y) <float s = {0.05}, uint8 u = {128}, uint8 z = {90}> {
            q = QuantizeLinear (x, s, u)
            e = DequantizeLinear (q, s, u)
            f = DequantizeLinear (v, s, z)
            [only] m = MatMul (e, f)
            p = QuantizeLinear (m, s, u)
            y = DequantizeLinear (p, s, u)
        }""")
    codes = np.random.default_rng(0).integers(0, 256, (8, 8)).astype(np.uint8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "v"))
    path, report = tmp_path / "net.onnx", tmp_path / "report.json"
    onnx.save(proto, path)
    out = tmp_path / "out.onnx"
    command = ["deploy", str(path), "--target", "onnxruntime-cpu@x86-64", "-o", str(out)]
    assert main([*command, "--report", str(report)]) == 0
    (found,) = json.loads(report.read_text())["findings"]
    assert (found["id"], found["severity"]) == ("QG409", "warning")
    told = capsys.readouterr()
    assert f"'qgraph lint {out} --target onnxruntime-cpu@x86-64'" in " ".join(told.out.split())
    assert "warning QG409: " in told.out


@pytest.mark.slow
@pytest.mark.parametrize("ceil", [1, 0])
def test_a_silent_change_by_the_target_is_in_the_headline(ceil, tmp_path, capsys):
    """OpenVINO computes windows in the padding, whatever is proved of the model as written."""
    pytest.importorskip("openvino")
    proto = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,2,5,5] x) => (float[N,2,3,3] y)
        <float s = {{0.5}}, uint8 o = {{128}}, float t = {{0.05}}, int8 z = {{0}},
         int8[2,2,1,1] v = {{1, 2, 3, 4}}> {{
            q = QuantizeLinear (x, s, o)
            e = DequantizeLinear (q, s, o)
            [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1],
                ceil_mode = {ceil}> (e)
            f = DequantizeLinear (v, t, z)
            y = Conv (p, f)
        }}""")
    path = tmp_path / "net.onnx"
    onnx.save(proto, path)
    assert main(["deploy", str(path), "--target", "openvino-cpu", "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    headline = told[told.index("QUANTIZED LAYERS IN INTEGER KERNELS") :]
    assert ("But openvino-cpu can change pool silently: the last windows" in headline) is bool(ceil)


ATAN = """<ir_version: 10, opset_import: ["": 21]>
    net (float[N,4] x) => (float[N,4] y)
    <float s = {0.05}, uint8 z = {9}, int8 o = {0},
     int8[4,4] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> {
        k = Cast <to = KIND> (x)
        a = Atan (k)
        c = Cast <to = 1> (a)
        q = QuantizeLinear (c, s, z)
        e = DequantizeLinear (q, s, z)
        f = DequantizeLinear (v, s, o)
        [one] m = MatMul (e, f)
        p = QuantizeLinear (m, s, z)
        y = DequantizeLinear (p, s, z)
    }"""


@pytest.mark.slow
def test_a_result_that_the_installed_runtime_refuses_is_told(tmp_path, capsys):
    """ONNX Runtime has no Atan of float64, which is type 11."""
    for kind, refused in (("11", True), ("1", False)):
        path = tmp_path / f"{kind}.onnx"
        onnx.save(onnx.parser.parse_model(ATAN.replace("KIND", kind)), path)
        command = ["deploy", str(path), "--target", "onnxruntime-cpu", "--dry-run"]
        assert main(command) == 0
        told = " ".join(capsys.readouterr().out.split())
        headline = told[told.index("QUANTIZED LAYERS IN INTEGER KERNELS") :]
        assert ("But onnxruntime refuses the model: " in headline) is refused
        assert ("next: change what onnxruntime-cpu refuses" in told) is refused


@pytest.mark.slow
def test_a_moved_pair_states_its_zero_point():
    """ONNX Runtime copies it behind the Reshape, with codes of UINT8 if none is stated."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    net (float[1, 2, 2] x) => (float[2, 2] y)
    <float s = {0.0625}, int8 z = {0}, int64[2] sizes = {2, 2}, int8[2, 2] w = {1, 2, 3, 4}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s)
        r = Reshape (d, sizes)
        v = DequantizeLinear (w, s, z)
        p = MatMul (r, v)
        e = QuantizeLinear (p, s, z)
        y = DequantizeLinear (e, s, z)
    }"""
    model = qgraph.load(onnx.parser.parse_model(text))
    x = np.float32([[[-2, 1], [3, -4]]])
    expected = model.run({"x": x}, backend="numpy")["y"]
    qgraph.deploy(model, "onnxruntime-cpu")
    session = onnxruntime.InferenceSession(model.to_proto().SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
