"""Which runtimes can load a model: the rules, and what ONNX Runtime really does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import UnsupportedError
from qgraph.graph.schema import OpSchema
from qgraph.model import load
from qgraph.targets.engine import runtimes_of
from qgraph.targets.layer import Granularity, Loads
from qgraph.targets.profile import Profile
from qgraph.targets.reader import profiles
from qgraph.targets.rules import LoadRule, NodeForm, node_forms
from qgraph.transforms import ConvertDialect, FoldWeights, MakePortable
from tests.onnx_schemas import publish

TARGETS = profiles()

NO, UNKNOWN, YES = Loads.NO, Loads.UNKNOWN, Loads.YES


def graph(body: str, initializers: str = "", *, opset: int = 21, version: int = 10) -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: {version}, opset_import: ["": {opset}]>
        net (float[2,64] x) => (float[2,64] y) <float s = {{0.5}}{initializers}> {{ {body} }}"""
    )


def verdicts(model: ir.Model) -> dict[str, str]:
    return {found.runtime: str(found.loads) for found in runtimes_of(model, TARGETS)}


def pair(kind: str, *, opset: int = 21, zero: int = 0, block: int = 0, of: str = "x") -> ir.Model:
    """A pair on the data, or a DequantizeLinear of a constant where ``of`` is ``w``."""
    sizes = f"[2,{64 // block}]" if block else ""
    many = ", ".join(["1"] * (2 * 64 // block)) if block else "1"
    zeros = ", ".join([str(zero)] * (2 * 64 // block)) if block else str(zero)
    form = f"<axis = 1, block_size = {block}>" if block else ""
    body = f"""q = QuantizeLinear {form} (x, t, z)
               y = DequantizeLinear {form} (q, t, z)"""
    weight = ""
    if of == "w":
        weight = f", {kind}[2,64] w = {{{', '.join(['1'] * 128)}}}"
        body = f"d = DequantizeLinear {form} (w, t, z)  y = Mul (x, d)"
    extra = f", float{sizes} t = {{{many}}}, {kind}{sizes} z = {{{zeros}}}{weight}"
    model = graph(body, extra, opset=opset, version=13)
    # The parser does not pack narrow types.
    for name, fill in (("z", zero), ("w", 1)):
        value = model.graph.initializers.get(name)
        if value is not None:
            array = np.full(value.shape.numpy(), fill, value.dtype.numpy())
            value.const_value = ir.Tensor(array, dtype=value.dtype, name=name)
    return model


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (pair("int8"), {"onnxruntime-cpu": YES, "tensorrt": YES, "openvino-cpu": YES, "finn": NO}),
        (pair("int8", zero=3), {"onnxruntime-cpu": YES, "tensorrt": NO, "openvino-cpu": YES}),
        (pair("uint8"), {"tensorrt": NO, "onnxruntime-cuda": YES, "hls4ml": NO}),
        (pair("int16"), {"onnxruntime-cpu": YES, "tensorrt": NO, "openvino-cpu": YES}),
        (pair("int16", opset=19), dict.fromkeys(("onnxruntime-cpu", "openvino-cpu"), NO)),
        (pair("int8", block=32, opset=19), {"onnxruntime-cpu": NO}),
        (pair("int8", block=32), {"onnxruntime-cpu": YES, "onnxruntime-cuda": UNKNOWN}),
        (pair("int4", of="w"), {"tensorrt": NO, "qnn-htp": YES, "onnxruntime-cpu": YES}),
        (pair("int4", of="w", block=64), {"tensorrt": YES, "openvino-cpu": YES}),
        (pair("int4", of="w", block=32), {"tensorrt": NO}),
        (pair("int4"), {"tensorrt": NO}),
    ],
)
def test_pairs_of_each_form(model, expected):
    found = verdicts(model)
    assert {name: found[name] for name in expected} == expected


def test_reasons_say_what_how_often_and_where():
    model = graph(
        """[first] a = org.openvinotoolkit.FakeQuantize <levels = 256> (x, lo, hi, lo, hi)
           [second] b = org.openvinotoolkit.FakeQuantize <levels = 256> (a, lo, hi, lo, hi)
           y = Relu (b)""",
        ", float lo = {0}, float hi = {255}",
        opset=29,
    )
    model.graph.opset_imports["org.openvinotoolkit"] = 1
    (found,) = [each for each in runtimes_of(model, TARGETS) if each.runtime == "onnxruntime-cpu"]
    assert found.loads is NO
    version, node = found.reasons
    assert (version.text, version.nodes) == ("it takes opset 7 to 28, the model has 29", 0)
    assert node.text.startswith("it has no FakeQuantize")
    assert (node.nodes, node.example) == (2, "first")
    model.graph.opset_imports[""] = 27
    assert verdicts(model)["openvino-cpu"] == YES


def test_versions_beyond_a_runtime():
    model = graph("y = Relu (x)", opset=20, version=9)
    open_or_other = {"iree", "litert", "stm32", "tidl", "vitis-ai"}
    assert {verdict for name, verdict in verdicts(model).items() if name not in open_or_other} == {
        "yes"
    }
    for version, expected in ((14, (YES, NO, YES)), (15, (NO, NO, NO))):
        model.ir_version = version
        found = verdicts(model)
        assert (found["onnxruntime-cpu"], found["finn"], found["openvino-cpu"]) == expected


def test_functions_of_the_model_serve_onnx_runtime_and_names_serve_hls4ml():
    text = """
        <ir_version: 10, opset_import: ["": 20, "qonnx.custom_op.general": 1]>
        net (float[2] x) => (float[2] y) <float s = {1}, float z = {0}, float b = {4}> {
            y = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (x, s, z, b)
        }"""
    body = """
        <domain: "qonnx.custom_op.general", opset_import: ["": 20]>
        Quant <signed, narrow> (x, s, z, b) => (y) { y = Round (x) }"""
    found = verdicts(ir.from_onnx_text(text))
    assert (found["onnxruntime-cpu"], found["hls4ml"], found["finn"]) == (NO, YES, YES)
    found = verdicts(ir.from_onnx_text(text + body))
    assert (found["onnxruntime-cpu"], found["hls4ml"], found["finn"]) == (YES, YES, YES)
    assert found["tensorrt"] == NO


def test_a_foreign_operator_is_not_judged():
    model = graph("y = my.domain.Thing (x)")
    assert verdicts(model)["onnxruntime-cpu"] == NO, "the import is missing"
    model.graph.opset_imports["my.domain"] = 1
    found = verdicts(model)
    assert found["onnxruntime-cpu"] == found["openvino-cpu"] == UNKNOWN


def test_the_scale_of_a_scale_counts():
    model = graph(
        """t = DequantizeLinear (f, s)
           d = DequantizeLinear <axis = 1, block_size = 32> (w, t)  y = Mul (x, d)""",
        ", float8e4m3fn[2,2] f = {1, 1, 1, 1}, float4e2m1[2,64] w = {"
        + ", ".join(["1"] * 128)
        + "}",
        opset=23,
        version=11,
    )
    inner = next(each for each in node_forms(model) if each.codes == "FLOAT4E2M1")
    assert (inner.scale, inner.granularity, inner.block) == (
        "FLOAT8E4M3FN",
        Granularity.BLOCK,
        32,
    )
    found = verdicts(model)
    assert (found["onnxruntime-cpu"], found["tensorrt"], found["openvino-cpu"]) == (NO, YES, YES)


@pytest.mark.parametrize("name", ["onnxruntime-cpu", "openvino-cpu", "tensorrt"])
def test_a_runtime_does_not_know_what_a_plugin_adds(name: str):
    """An operator that only a plugin registers is as unknown to a runtime as without the plugin."""
    text = """<ir_version: 10, opset_import: ["": 21, "com.example.rules": 1]>
    net (float[2] x) => (float[2] y) { y = com.example.rules.Steps (x) }"""
    model = ir.from_onnx_text(text)
    before = verdicts(model)
    schema = OpSchema("Steps", ("com.example.rules",), ("x",))
    schema.declare()
    publish([schema])
    assert before[name] == verdicts(model)[name] == UNKNOWN


@pytest.mark.slow
@pytest.mark.runtime
def test_real_models_are_refused_where_the_profile_says_so(models: Path):
    """ONNX Runtime loads each model that the profile says it loads, and no other."""
    import onnxruntime as ort

    wrong = {}
    for path in sorted([*models.glob("*.onnx"), *(models / "field").glob("*.onnx")]):
        stated = verdicts(load(path).ir)["onnxruntime-cpu"]
        try:
            ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            loads = YES
        except Exception:
            loads = NO
        if stated != loads:
            wrong[path.name] = stated, loads
    assert wrong == {}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_rules_are_well_formed(target: Profile):
    """Every condition names something that exists, and every reason can be filled in."""
    assert re.search(r"run|source|documentation", target.knowledge), "it states how it is known"
    form = NodeForm("domain", "Name", "label", codes="INT8")
    types = {kind.name for kind in ir.DataType}
    for rule in target.load:
        assert rule.reason or rule.loads is YES, "a refusal has a reason"
        assert "None" not in rule.reason.format(**vars(form))
        assert (rule.codes or frozenset()) | (rule.scales or frozenset()) <= types


def test_every_condition_of_a_rule_counts():
    form = NodeForm("", "Op", "n", codes="INT8", scale="FLOAT", block=32, bits=4, weight=True,
                granularity=Granularity.BLOCK, readers=frozenset({"MatMul"}))  # fmt: skip
    others = {
        "domains": {"d"}, "names": {"N"}, "codes": {"INT4"}, "scales": {"FLOAT16"},
        "granularities": {Granularity.AXIS}, "blocks": {64}, "bits": {8}, "readers": {"Conv"},
    }  # fmt: skip
    assert LoadRule(YES).fits(form)
    for name, values in others.items():
        assert not LoadRule(YES, **{name: frozenset(values)}).fits(form), name
    for name in ("weight", "offset", "copied", "call", "known", "declared"):
        held = getattr(form, name)
        assert LoadRule(YES, **{name: held}).fits(form)
        assert not LoadRule(YES, **{name: not held}).fits(form), name
    fields = {field.name for field in dataclasses.fields(LoadRule)} - {
        "loads",
        "reason",
        "source",
        "id",
    }
    assert fields == {*others, "weight", "offset", "copied", "call", "known", "declared"}


@pytest.mark.parametrize(
    ("kind", "opset", "expected"), [("int8", 21, NO), ("int8", 20, YES), ("uint8", 21, YES)]
)
def test_signed_zero_points_before_data_movement(kind, opset, expected):
    """ONNX Runtime 1.31 and 1.32 refuse a session for the first, on this kind of processor."""
    model = graph(
        "q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)  y = Reshape (d, n)",
        f", {kind} z = {{0}}, int64[2] n = {{2, 64}}",
        opset=opset,
    )
    assert verdicts(model)["onnxruntime-cpu"] == expected


def test_operators_on_codes_of_onnx_runtime_are_known():
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        net (uint8[2,4] a) => (uint8[2,4] y) <float s = {0.5}, uint8 z = {3}> {
            y = com.microsoft.QLinearMul (a, s, z, a, s, z, s, z)
        }"""
    )
    assert verdicts(model)["onnxruntime-cpu"] == YES


FORMS = {
    "as it is": [],
    "qdq": [ConvertDialect(to="qdq")],
    "onnx": [ConvertDialect(to="onnx")],
    "qonnx": [ConvertDialect(to="qonnx")],
    "openvino": [ConvertDialect(to="openvino")],
    "folded": [FoldWeights()],
    "folded, opset 23": [FoldWeights(opset=23)],
    "folded, opset 25": [FoldWeights(opset=25)],
    "qdq, opset 23": [ConvertDialect(to="qdq", opset=23)],
    "qdq, opset 25": [ConvertDialect(to="qdq", opset=25)],
    "portable": [MakePortable()],
}


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.runtime
def test_onnx_runtime_loads_what_it_is_said_to_load(models, tmp_path, model_name):
    """Real models, and what conversion and folding make of them, also with FP4 and INT2."""
    runtime = pytest.importorskip("onnxruntime")
    for label, steps in FORMS.items():
        model = load(models / f"{model_name}.onnx")
        if steps:
            try:
                model.apply(*steps)
            except UnsupportedError:  # an operator that cannot be raised to the opset
                continue
        path = tmp_path / "model.onnx"
        model.save(path)
        (found,) = [
            v for v in runtimes_of(load(path).ir, TARGETS) if v.runtime == "onnxruntime-cpu"
        ]
        for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
            assert _loads(runtime, path, level) == (found.loads is YES), (label, level, found)


@pytest.mark.cases(fast=50, slow=155)
@pytest.mark.runtime
@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize("of", ["x", "w"])
@pytest.mark.parametrize("opset", [13, 19, 21, 23, 25])
@pytest.mark.parametrize(
    "kind",
    ["int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2", "float8e4m3fn",
     "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz", "float4e2m1"],
)  # fmt: skip
def test_onnx_runtime_loads_pairs_as_it_is_said(tmp_path, kind, opset, of, block):
    runtime = pytest.importorskip("onnxruntime")
    model = pair(kind, opset=opset, of=of, block=block)
    ir.save(model, tmp_path / "model.onnx")
    expected = verdicts(model)["onnxruntime-cpu"] == YES
    assert _loads(runtime, tmp_path / "model.onnx", "ORT_ENABLE_ALL") == expected


def _loads(runtime, path, level) -> bool:
    options = runtime.SessionOptions()
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    try:
        runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # its exceptions have no common base
        return False
    return True
