"""Models that ONNX Runtime executes in integers: kernels, bounds, and what is left."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.bound import Against, Bounding
from qgraph.cli.main import main
from qgraph.errors import EquivalenceError, ExecutionError, OptionError
from qgraph.exactness import ProofVerdict
from qgraph.storage.origin import hash_in_memory
from qgraph.targets.reader import profile_of
from qgraph.transforms.base import escaped, selects
from qgraph.transforms.deployment import attempts, preferences, search
from qgraph.transforms.deployment.report import advice

pytest.importorskip("onnxruntime")


def executed(path: Path, tmp_path: Path) -> list[str]:
    """Return the operators of the graph that ONNX Runtime executes by default."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]


@pytest.mark.slow
def test_a_convolution_with_its_normalization_becomes_integer(network, tmp_path):
    import onnxruntime

    model, out = qgraph.load(network), tmp_path / "out.onnx"
    found = qgraph.deploy(model, "onnxruntime-cpu")
    model.save(out)
    assert "QLinearConv" not in executed(network, tmp_path)
    assert "QLinearConv" in executed(out, tmp_path)
    (layer,) = found.layers
    assert (layer.node, layer.before, layer.kernel) == ("conv", None, "QLinearConv")
    assert {"fold-batch-norm", "quantize-bias"} <= set(layer.rewrites)
    assert layer.exactness == "bounded"
    assert layer.bound is not None
    assert layer.bound.max_steps == 1

    x = np.random.default_rng(1).normal(0, 3, (64, 2, 6, 6)).astype(np.float32)
    before, after = (
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )[0]
        for path in (network, out)
    )
    steps = np.abs(np.rint(before / np.float32(0.1)) - np.rint(after / np.float32(0.1)))
    assert steps.max() <= 1
    assert np.mean(steps != 0) < 0.05
    assert len(np.unique(after)) > 10


@pytest.mark.slow
def test_what_was_deployed_stays_as_it_is(network):
    model = qgraph.load(network)
    qgraph.deploy(model, "onnxruntime-cpu")
    once = model.to_proto()
    again = qgraph.deploy(model, "onnxruntime-cpu")
    assert model.to_proto() == once
    assert again.certificate.verdict == "proved"
    assert [layer.before for layer in again.layers] == ["QLinearConv"]


@pytest.mark.slow
def test_a_layer_that_is_kept_is_left_with_its_reason(network):
    found = qgraph.deploy(network, "onnxruntime-cpu", keep=["con*"])
    (layer,) = found.layers
    assert layer.kernel is None
    assert "BatchNormalization" in str(layer.reason)
    assert "left out by nodes" in str(layer.reason)
    assert layer.reason_id == "QG012"
    with pytest.raises(EquivalenceError, match=r"Conv 'conv': .*1 of 1 quantized layers are left"):
        qgraph.deploy(network, "onnxruntime-cpu", keep=["conv"], require_all=True)


def test_a_pattern_that_keeps_no_layer_is_an_error(network):
    wanted = r"no layer 'cnov' to keep.*such as conv.* Did you mean 'conv'\?"
    with pytest.raises(OptionError, match=wanted):
        qgraph.deploy(network, "onnxruntime-cpu", keep=["con?", "cnov"])


def test_an_opset_that_the_runtime_refuses_is_lowered():
    head = '<ir_version: 10, opset_import: ["": 99]>'
    text = f"{head} net (float[N] x) => (float[N] y) {{ y = Neg (x) }}"
    model = qgraph.load(ir.from_onnx_text(text))
    found = qgraph.deploy(model, "onnxruntime-cpu")
    assert (model.ir.opset_imports[""], found.refusal) == (21, None)
    assert "opset lowered from 99 to 21" in found.notes


def test_the_next_step_after_wrong_parameters_is_about_them(network):
    found = qgraph.deploy(network, "tensorrt").to_json() | {"refusal": None}
    finding = {"nodes": ["q"], "message": "1 number NaN or infinite", "severity": "error"}
    found["findings"] = [finding | {"id": each} for each in ("QG601", "QG102")]
    assert advice(found).startswith("'qgraph explain QG102'")


@pytest.mark.slow
def test_a_rewrite_beyond_the_limit_is_not_done(network):
    model = qgraph.load(network)
    found = qgraph.deploy(model, "onnxruntime-cpu", within="0.00001step")
    (layer,) = found.layers
    assert layer.kernel is None
    assert "fold-batch-norm" not in layer.rewrites
    assert not found.certificate.beyond


def test_what_the_last_rewrites_leave_unproved_is_not_written(network, monkeypatch):
    def shifted(attempt: attempts.Attempt, *rest: object) -> preferences.Preferred:
        model = attempt.model.clone()
        scale = next(iter(model.nodes("QuantizeLinear"))).inputs[1]
        scale.const_value = ir.tensor(scale.const_value.numpy() * np.float32(1.01))
        return preferences.Preferred(replace(attempt, model=model), {})

    monkeypatch.setattr("qgraph.transforms.deployment.deploy.preferred", shifted)
    model = qgraph.load(network)
    before = model.to_proto()
    deployment = qgraph.deploy(model, "onnxruntime-cpu")
    assert model.to_proto() == before
    assert deployment.certificate.verdict is ProofVerdict.PROVED
    assert any(note.startswith("nothing was changed, since") for note in deployment.notes)


def test_a_refused_request_changes_nothing(network):
    model = qgraph.load(network)
    before = model.to_proto()
    with pytest.raises(EquivalenceError):
        qgraph.deploy(model, "onnxruntime-cpu", keep=["*"], require_all=True)
    with pytest.raises(OptionError, match="onnxruntime-cpu"):
        qgraph.deploy(model, "onnxruntime-cup")
    assert model.to_proto() == before


def test_the_command_writes_model_report_and_certificate(network, tmp_path, capsys):
    out, report, proof = (tmp_path / name for name in ("out.onnx", "r.json", "c.json"))
    command = ["deploy", str(network), "--target", "onnxruntime-cpu"]
    files = ["-o", str(out), "--report", str(report), "--certificate", str(proof)]
    assert main([*command, *files]) == 0
    printed = capsys.readouterr().out
    assert "1 OF 1 QUANTIZED LAYERS IN INTEGER KERNELS" in printed
    document = json.loads(report.read_text())
    assert document["summary"]["integer_layers_before"] == 0
    assert document["output"]["path"] == str(out)
    properties = {each.key: each.value for each in onnx.load(out).metadata_props}
    assert properties["qgraph.deploy.target"] == "onnxruntime-cpu"
    assert properties["qgraph.deploy.input"] == document["input"]["sha256"]
    assert main(["prove", "--verify", str(proof), str(network), str(out)]) == 0
    assert f"prove it again: {document['prove']}\nnext: add --inputs" in printed
    assert repeated(document, tmp_path) == ("bounded", 0)

    assert main([*command, "--explain", "conv"]) == 0
    assert "runs in QLinearConv on onnxruntime-cpu" in capsys.readouterr().out
    assert main([*command, "--explain", "cnv"]) == 2
    assert main(command) == 2
    assert main([*command, "-o", str(network)]) == 2
    kept = tmp_path / "kept.onnx"
    assert main([*command, "--keep", "*", "--require-all", "-o", str(kept)]) == 1
    assert not kept.exists()


def repeated(document, folder: Path) -> tuple[str, int]:
    """Return verdict and exit status of the command that a report names."""
    program, *arguments = shlex.split(document["prove"])
    assert program == "qgraph"
    status = main([*arguments, "--certificate", str(folder / "again.json")])
    return json.loads((folder / "again.json").read_text())["verdict"], status


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("name", ["brev_cnn_w4a4", "nncf_cnn_int8_sym", "brev_mlp_w1a2_bipolar"])
def test_the_command_that_is_printed_repeats_the_verdict(name, models, tmp_path):
    source, out, report = models / f"{name}.onnx", tmp_path / "o u t.onnx", tmp_path / "r.json"
    command = ["deploy", str(source), "-o", str(out), "--target", "onnxruntime-cpu"]
    assert main([*command, "--range", "x=-4:4", "--report", str(report)]) == 0
    document = json.loads(report.read_text())
    assert repeated(document, tmp_path) == (document["verdict"], 0)


def test_a_profile_that_is_not_there_is_named(network, capsys):
    assert main(["deploy", str(network), "--target", "./none.toml", "--dry-run"]) == 3
    assert capsys.readouterr().err.startswith("error: none.toml: there is no such file, expected")


def test_a_float_model_is_told_what_to_do(tmp_path, capsys):
    path = tmp_path / "float.onnx"
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[N,4] x) => (float[N,4] y) { y = Relu (x) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    assert main(["deploy", str(path), "--target", "onnxruntime-cpu", "--dry-run"]) == 0
    assert "next: quantize the operands" in capsys.readouterr().out


@pytest.mark.slow
def test_data_shows_codes_that_differ_and_keeps_the_bounds(network, tmp_path, capsys):
    x = np.random.default_rng(1).normal(0, 3, (40, 2, 6, 6)).astype(np.float32)
    model = qgraph.load(network)
    found = qgraph.deploy(model, "onnxruntime-cpu", inputs={"x": x})
    before, after = (
        each.run({"x": x}, backend="numpy")["y"] for each in (qgraph.load(network), model)
    )
    shown = found.accuracy
    assert shown is not None
    assert (shown.samples, shown.before, shown.after) == (40, None, None)
    (segment,) = [each for each in shown.bounds.segments if each.reference == "p"]
    assert segment.accumulated_codes == np.count_nonzero(before != after)
    assert segment.distance <= segment.distance_bound
    document = shown.to_json()
    assert document["violated_bounds"] == 0

    np.savez(tmp_path / "data.npz", x=x)
    command = ["deploy", str(network), "--target", "onnxruntime-cpu", "--dry-run"]
    assert main([*command, "--labels", "y"]) == 2
    assert main([*command, "--inputs", str(tmp_path / "data.npz"), "--labels", "label"]) == 3
    assert "has no array 'label' with labels" in capsys.readouterr().err
    assert main([*command, "--range", "z=0:1"]) == 2
    with pytest.raises(ExecutionError, match="The inputs have no rows"):
        qgraph.deploy(network, "onnxruntime-cpu", inputs={"x": x[:0]})
    with pytest.raises(OptionError, match="Labels are given without inputs"):
        qgraph.deploy(network, "onnxruntime-cpu", labels=[1])


@pytest.mark.slow
def test_the_accuracy_is_that_of_both_models(tmp_path):
    examples = Path(__file__).parents[2] / "examples"
    source, data = examples / "digits_brevitas.onnx", examples / "digits_test.npz"
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    command = ["deploy", str(source), "-o", str(out), "--target", "onnxruntime-cpu"]
    given = ["--inputs", str(data), "--labels", "label"]
    assert main([*command, *given, "--report", str(report)]) == 0
    with np.load(data) as arrays:
        x, labels = arrays["x"], arrays["label"]
    scores = [qgraph.load(path).run({"x": x})["scores"] for path in (source, out)]
    shares = [float(np.mean(each.argmax(axis=1) == labels)) for each in scores]
    document = json.loads(report.read_text())["accuracy"]
    assert [document["before"], document["after"]] == shares
    assert document["samples"] == 360
    assert 0 < document["codes_that_differ"] < 0.01


def test_the_float_network_has_no_quantizer_behind_another_one():
    from qgraph.transforms.deployment.attempts import float_network

    text = """<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
        net (float[2,4] x) => (float[2,4] y)
        <float s = {0.1}, float t = {0.07}, float z = {0}, float b = {8}> {
            a = qonnx.custom_op.general.Quant <signed = 0> (x, s, z, b)
            c = qonnx.custom_op.general.Quant <signed = 1> (a, t, z, b)
            e = qonnx.custom_op.general.Quant <signed = 1> (c, s, z, b)
            y = Add (a, e)
        }"""
    plain = float_network(qgraph.load(ir.from_onnx_text(text)))
    assert [node.op_type for node in plain.nodes()] == ["Add"]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert np.array_equal(plain.run({"x": x})["y"], 2 * x)


@pytest.mark.exhaustive
def test_the_example_runs_in_integers_and_can_be_timed():
    from qgraph.comparison.bench import Timing, beside_float
    from qgraph.transforms.deployment.attempts import float_network

    path = Path(__file__).parents[2] / "examples" / "digits_brevitas.onnx"
    reference, model = qgraph.load(path), qgraph.load(path)
    found = qgraph.deploy(model, "onnxruntime-cpu")
    assert not found.left
    plain = float_network(reference)
    assert {node.op_type for node in plain.nodes()}.isdisjoint({"Quant", "QuantizeLinear"})
    assert plain.ir.graph.initializers.keys() == {
        value.name
        for node in plain.nodes()
        for value in node.inputs
        if value and value.is_initializer()
    }
    times = beside_float(plain, model, [reference], Timing(rounds=2))
    assert times["input_milliseconds"] is None  # ONNX Runtime has no Quant
    converted = reference.clone()
    converted.apply(transforms.ConvertDialect(to="qdq"))
    times = beside_float(plain, model, [reference, converted], Timing(rounds=2))
    assert times["ratio_to_input"] > 0
    assert times["input_is_converted"]
    assert times["integer_nodes"] == len(found.layers)


@pytest.mark.slow
def test_layers_beside_an_lstm_become_integer(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[4,2,6] x) => (float[n,m] y)
        <float s = {0.05}, uint8 z = {128}, float sw = {0.01}, int8 o = {0},
         float[8] g = {1, 2, 0.5, 1.5, 1, 0.7, 1.1, 0.9},
         float[8] b = {0.1, 0, -0.2, 0.3, 0, 0.1, 0.2, -0.1},
         float[4] c = {0.5, 1, 1.5, 2}, int64[1] a = {0}> {
            q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
            e = DequantizeLinear (v, sw, o)
            [first] m = MatMul (d, e) f = Add (m, b) h = Mul (f, g)
            p = QuantizeLinear (h, s, z) i = DequantizeLinear (p, s, z)
            j, k = LSTM <hidden_size = 5> (i, w, r)
            l = Squeeze (k, a)
            t = QuantizeLinear (l, s, z) u = DequantizeLinear (t, s, z)
            aa = DequantizeLinear (vv, sw, o)
            [last] bb = MatMul (u, aa) cc = Mul (bb, c)
            dd = QuantizeLinear (cc, s, z) y = DequantizeLinear (dd, s, z)
        }"""
    proto = onnx.parser.parse_model(text)
    generator = np.random.default_rng(0)
    for name, shape in {"v": (6, 8), "vv": (5, 4)}.items():
        codes = generator.integers(-127, 128, shape).astype(np.int8)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, name))
    for name, shape in {"w": (1, 20, 8), "r": (1, 20, 5)}.items():
        weights = generator.normal(0, 0.3, shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    found = qgraph.deploy(proto, "onnxruntime-cpu")
    assert [(layer.node, bool(layer.before), bool(layer.kernel)) for layer in found.layers] == [
        ("first", False, True),
        ("last", True, True),
    ]
    assert found.certificate.verdict == "bounded"


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        ("*", ["a", "b|c", "d[0]"]),
        ("a|d*", ["a", "d[0]"]),
        ("!a", ["b|c", "d[0]"]),
        ("*|!d*", ["a", "b|c"]),
        (escaped("b|c"), ["b|c"]),
        (f"!{escaped('d[0]')}|!{escaped('b|c')}", ["a"]),
    ],
)
def test_patterns_select_names(patterns, selected):
    assert [name for name in ("a", "b|c", "d[0]") if selects(patterns, name)] == selected


@pytest.mark.exhaustive
def test_one_quantizer_beyond_the_limit_costs_no_other():
    proto = onnx.parser.parse_model("""<ir_version: 10,
         opset_import: ["": 20, "qonnx.custom_op.general": 1]>
        net (float[N,4] x) => (float[N,4] z)
        <float s = {0.05}, float p = {101}, float b = {8}, float o = {0}, float t = {0.01},
         float big = {10000000.0}> {
            v = qonnx.custom_op.general.Quant <narrow = 1> (w, t, o, b)
            d = qonnx.custom_op.general.Quant <signed = 0, rounding_mode = "ROUND"> (x, s, p, b)
            [first] m = MatMul (d, v)
            e = qonnx.custom_op.general.Quant <signed = 0, rounding_mode = "ROUND"> (m, s, p, b)
            f = Mul (e, big)
            g = Add (f, e)
            h = Sub (g, f)
            i = qonnx.custom_op.general.Quant <signed = 0, rounding_mode = "ROUND"> (h, s, p, b)
            z = Relu (i)
        }""")
    weights = np.random.default_rng(0).normal(0, 0.4, (4, 4)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "onnxruntime-cpu")
    assert [layer.kernel for layer in found.layers] == ["QLinearMatMul"]
    (note,) = [note for note in found.notes if "--within" in note]
    assert "'i' is within" in note
    assert len(list(model.nodes("Div"))) == 1  # of the last quantizer alone


@pytest.mark.slow
def test_only_the_layer_before_a_segment_beyond_the_limit_stays():
    proto = onnx.parser.parse_model("""<ir_version: 10,
         opset_import: ["": 20, "qonnx.custom_op.general": 1]>
        net (float[N,4,5,5] x) => (float[N,4,5,5] z)
        <float s = {0.05}, float p = {0}, float b = {8}, float t = {0.01},
         float[4] one = {1, 1, 1, 1}, float[4] two = {0.5, 2, 0.7, 1.5},
         float[4] far = {1000000, 1000000, 1000000, 1000000}> {
            v = qonnx.custom_op.general.Quant <narrow = 1> (w, t, p, b)
            d = qonnx.custom_op.general.Quant <signed = 0> (x, s, p, b)
            [first] m = Conv (d, v)
            n = BatchNormalization (m, two, one, one, two)
            e = qonnx.custom_op.general.Quant <signed = 0> (n, s, p, b)
            [second] k = Conv (e, v)
            l = BatchNormalization (k, two, far, one, two)
            z = qonnx.custom_op.general.Quant <signed = 0> (l, s, p, b)
        }""")
    weights = np.random.default_rng(0).normal(0, 0.4, (4, 4, 1, 1)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model = qgraph.load(proto)
    found = qgraph.deploy(model, "onnxruntime-cpu")
    kernels = {layer.node: layer.kernel for layer in found.layers}
    assert kernels == {"first": "QLinearConv", "second": None}
    assert len(list(model.nodes("BatchNormalization"))) == 1


def test_a_wider_limit_is_named_where_nothing_is_gained_within_this_one():
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        net (float[N,4,5,5] x) => (float[N,4,5,5] z)
        <float s = {0.05}, uint8 p = {0}, float t = {0.01}, int8 o = {0},
         float[4] one = {1, 1, 1, 1}, float[4] two = {0.5, 2, 0.7, 1.5},
         float[4] far = {1000000, 1000000, 1000000, 1000000}> {
            q = QuantizeLinear (x, s, p)    d = DequantizeLinear (q, s, p)
            v = DequantizeLinear (w, t, o)  k = Conv (d, v)
            l = BatchNormalization (k, two, far, one, two)
            n = QuantizeLinear (l, s, p)    z = DequantizeLinear (n, s, p)
        }""")
    codes = np.random.default_rng(0).integers(-64, 65, (4, 4, 1, 1)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    model = qgraph.load(proto)
    result = qgraph.deploy(model, "onnxruntime-cpu")
    (layer,) = result.layers
    assert layer.kernel is None
    (note,) = (each for each in result.notes if "'n' is within" in each)
    assert "--within" in note


def test_passes_without_effect_cost_no_proofs(monkeypatch):
    """Sums of float16 are beyond the limits, whatever is left out."""
    proto = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 19]>
        net (float16[N,256] x) => (float16[N,8] z)
        <uint8 p = {0}, int8 o = {0}> {
            q = QuantizeLinear (x, s, p)    d = DequantizeLinear (q, s, p)
            c = QuantizeLinear (w, t, o)    v = DequantizeLinear (c, t, o)
            k = MatMul (d, v)               l = Relu (k)
            n = QuantizeLinear (l, u, p)    z = DequantizeLinear (n, u, p)
        }""")
    weights = np.random.default_rng(0).uniform(-0.6, 0.6, (256, 8))
    for name, number in {"w": weights, "s": 0.05, "t": 0.01, "u": 0.5}.items():
        tensor = onnx.numpy_helper.from_array(np.asarray(number, np.float16), name)
        proto.graph.initializer.append(tensor)
    certified, forms = attempts.certified, []

    def recorded(sides, *arguments, **options):
        forms.append(hash_in_memory(sides[1]))
        return certified(sides, *arguments, **options)

    monkeypatch.setattr(attempts, "certified", recorded)
    model, profile = qgraph.load(proto), profile_of("openvino-cpu")
    limits = Bounding.of("1step", model.inputs, model.outputs)
    found = search.best_form(model, profile, replace(limits, against=Against.IDEAL), [])
    assert "no form is within 1step" in found.report.notes[0]
    assert len(set(forms)) == 1
    assert len(forms) <= 2  # of nine combinations of passes
