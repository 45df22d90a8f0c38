"""What make-portable writes, and that strip-functions takes it back."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.graph.scopes import PORTABLE
from qgraph.model import Model, load
from qgraph.reports import SiteStatus
from qgraph.transforms.base import parse_spec
from qgraph.transforms.convert import ConvertDialect
from qgraph.transforms.make_portable import MakePortable, StripFunctions

HEAD = """<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 2]>
    g (float[2, 500] x) => (float[2, 500] y)
    <float s = {0.1}, float z = {0}, float b = {4}>"""

ONE = (
    HEAD
    + """{
        q = qonnx.custom_op.general.Quant <signed = 1> (x, s, z, b)
        r = Relu (q)
        y = qonnx.custom_op.general.Quant <rounding_mode = "round", narrow = 0> (r, s, z, b)
    }"""
)

TWO = (
    HEAD
    + """{
        q = qonnx.custom_op.general.Quant <signed = 1> (x, s, z, b)
        r = qonnx.custom_op.general.Quant <signed = 0> (x, s, z, b)
        y = Add (q, r)
    }"""
)

TRUNCS = (
    HEAD
    + """{
        t = qonnx.custom_op.general.Trunc (x, s, z, b, b)
        u = qonnx.custom_op.general.Trunc (x, s, z, b, s, b)
        y = Add (t, u)
    }"""
)

OLD = """<ir_version: 6, opset_import: ["": 9, "onnx.brevitas": 1]>
    g (float[2, 500] x) => (float[2, 500] y) <float s = {0.7}> {
        q = onnx.brevitas.BipolarQuant (x, s)
        y = %s (q)
    }"""

BRANCH = """<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 2]>
    g (float[2, 500] x) => (float[2, 500] y)
    <bool c = {1}, float s = {0.1}, float z = {0}, float b = {4}> {
        y = If (c) <
            then_branch = t () => (float[2, 500] p) {
                p = qonnx.custom_op.general.Quant (x, s, z, b)
            }, else_branch = e () => (float[2, 500] n) { n = Neg (x) }>
    }"""

CALLED = """<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 2, "mine": 1]>
    g (float[2, 500] x) => (float[2, 500] y)
    <float s = {0.1}, float z = {0}, float b = {4}> {
        q = mine.Layer (x, s, z, b)
        y = qonnx.custom_op.general.Quant <signed = 0> (q, s, z, b)
    }
    <domain: "mine", opset_import: ["": 13, "qonnx.custom_op.general": 2]>
    Layer (x, s, z, b) => (y) {
        q = qonnx.custom_op.general.Quant <rounding_mode = "FLOOR"> (x, s, z, b)
        y = Neg (q)
    }"""

DEFINED = """<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 2]>
    g (float[2, 500] x) => (float[2, 500] y)
    <float s = {0.1}, float z = {0}, float b = {4}> {
        q = qonnx.custom_op.general.Quant <signed = 1> (x, s, z, b)
        y = qonnx.custom_op.general.IntQuant (q, s, z, b)
    }
    <domain: "qonnx.custom_op.general", opset_import: ["": 13]>
    Quant <signed> (x, s, z, b) => (y) { y = Mul (x, s) }"""


def functions(model: Model) -> list[tuple[str, str]]:
    return [(name, overload) for _, name, overload in model.ir.functions]


def calls(model: Model) -> list[str]:
    return [node.overload for node in model.nodes("Quant", "Trunc", "BipolarQuant")]


def text(model: Model) -> str:
    """The model in ONNX text, as any pass leaves it."""
    copy = model.clone()
    copy.apply()
    return onnx.printer.to_text(ir.to_proto(copy.ir))


def run_alone(model: Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Run a model in stock ONNX Runtime, with basic optimizations."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    content = ir.to_proto(model.ir).SerializeToString()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def test_one_combination_of_attributes_is_one_plain_function(check_pass):
    model, report = check_pass(MakePortable(), ONE, ops=["Quant", "Relu", "Quant"])
    assert functions(model) == [("Quant", "")]
    assert calls(model) == ["", ""]
    assert model.ir.ir_version == 9
    (function,) = model.ir.functions.values()
    defaults = {name: attribute.value for name, attribute in function.attributes.items()}
    assert defaults == {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"}
    entry, _ = report.to_json()["sites"]
    assert entry["outcome"] == "changed"
    assert (entry["exactness"], entry["method"]) == ("bits", "congruence")
    assert (entry["op"], entry["spelling"]) == ("qonnx.custom_op.general::Quant", "function Quant")
    assert report.notes == ["IR version raised from 8 to 9"]


def test_several_combinations_are_overloads(check_pass):
    model, report = check_pass(MakePortable(), TWO, ops=["Quant", "Quant", "Add"])
    names = [f"signed{signed}_narrow0_rounding_mode_ROUND" for signed in (1, 0)]
    assert functions(model) == [("Quant", name) for name in names]
    assert calls(model) == names
    assert model.ir.ir_version == 10
    assert [site.spelling for site in report] == [f"function Quant {name}" for name in names]


def test_versions_of_one_operator_are_told_apart(check_pass):
    model, _ = check_pass(MakePortable(), TRUNCS)
    stem = "rounding_mode_FLOOR_signed1_narrow0"
    assert functions(model) == [("Trunc", stem), ("Trunc", f"version2_{stem}")]


def test_nodes_keep_operator_domain_attributes_and_inputs(check_pass):
    model, _ = check_pass(MakePortable(), TWO)
    original = ir.from_onnx_text(TWO)
    for before, after in zip(original.graph, model.ir.graph, strict=True):
        assert (after.domain, after.op_type) == (before.domain, before.op_type)
        assert after.attributes == before.attributes
        assert [v.name for v in after.inputs] == [v.name for v in before.inputs]


@pytest.mark.cases(fast=2)
@pytest.mark.runtime
@pytest.mark.parametrize("source", [ONE, TWO, TRUNCS, BRANCH, CALLED, OLD % "Relu"])
def test_stock_runtime_executes_the_model(check_pass, source):
    model, _ = check_pass(MakePortable(), source)
    x = np.random.default_rng(0).normal(size=(2, 500)).astype(np.float32)
    (expected,) = load(ir.from_onnx_text(source)).run({"x": x}, backend="numpy").values()
    (found,) = run_alone(model, {"x": x})
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("source", [ONE, TWO, TRUNCS, BRANCH, CALLED, DEFINED, OLD % "Relu"])
def test_stripping_gives_the_original_back(tmp_path, source):
    original = load(ir.from_onnx_text(source))
    model = original.clone()
    model.apply(MakePortable())
    model.save(tmp_path / "portable.onnx")
    loaded = load(tmp_path / "portable.onnx")
    assert not loaded.apply(MakePortable()).modified
    report = loaded.apply(StripFunctions())
    assert report.count(SiteStatus.CHANGED) > 0
    assert text(loaded) == text(original)
    assert not loaded.apply(StripFunctions()).modified


def test_initializers_that_were_inputs_stay_frozen():
    source = ONE.replace("(float[2, 500] x)", "(float[2, 500] x, float s)")
    model = load(ir.from_onnx_text(source))
    report = model.apply(MakePortable())
    assert report.frozen_inputs == 1
    assert [value.name for value in model.inputs] == ["x"]


def test_quantizers_in_branches_and_functions(check_pass):
    model, report = check_pass(MakePortable(), BRANCH)
    assert functions(model) == [("Quant", "")]
    assert report.count(SiteStatus.CHANGED) == 1
    model, report = check_pass(MakePortable(), CALLED)
    assert functions(model) == [
        ("Layer", ""),
        ("Quant", "signed0_narrow0_rounding_mode_ROUND"),
        ("Quant", ""),
    ]


def test_runtime_overlooks_overloads_inside_functions():
    """Why at most one combination there is portable, under the plain name."""
    source = CALLED.replace("y = Neg (q)", "y = qonnx.custom_op.general.Quant (q, s, z, b)")
    model = load(ir.from_onnx_text(source))
    report = model.apply(MakePortable())
    assert [site.outcome for site in report] == [
        SiteStatus.CHANGED,
        SiteStatus.REFUSED,
        SiteStatus.REFUSED,
    ]
    assert "inline functions" in list(report)[1].reason
    assert functions(model) == [("Layer", ""), ("Quant", "signed0_narrow0_rounding_mode_ROUND")]


def test_no_node_calls_a_function_that_is_not_for_it():
    """The second node is refused, and would call a function of the plain name."""
    source = TWO.replace("<signed = 0> (x, s, z, b)", "(x, s, z, s)")
    model = load(ir.from_onnx_text(source))
    report = model.apply(MakePortable())
    assert report.count(SiteStatus.REFUSED) == 1
    assert functions(model) == [("Quant", "signed1_narrow0_rounding_mode_ROUND")]
    assert calls(model) == ["signed1_narrow0_rounding_mode_ROUND", ""]


@pytest.mark.runtime
def test_attributes_that_no_operator_has():
    model = load(ir.from_onnx_text(TWO.replace("signed = 1", "other = 7")))
    model.apply(MakePortable())
    signed, _ = model.ir.functions.values()
    assert signed.attributes["other"].value == 7
    x = np.ones((2, 500), np.float32)
    (found,) = run_alone(model, {"x": x})
    np.testing.assert_array_equal(found, np.float32(0.7) + x)


def test_functions_of_the_model_are_left_alone(check_pass):
    model, report = check_pass(MakePortable(), DEFINED)
    assert functions(model) == [("Quant", ""), ("IntQuant", "")]
    kept, changed = report
    assert (kept.outcome, kept.node) == (SiteStatus.KEPT, "q")
    assert "of its own" in kept.reason
    assert changed.outcome is SiteStatus.CHANGED
    body = model.ir.functions["qonnx.custom_op.general", "Quant", ""]
    assert [node.op_type for node in body] == ["Mul"]
    report = model.apply(StripFunctions())
    assert functions(model) == [("Quant", "")]
    assert [site.outcome for site in report] == [SiteStatus.KEPT, SiteStatus.CHANGED]


def test_node_added_later_gets_its_own_function():
    """Under the operator's one function it would compute something else."""
    model = load(ir.from_onnx_text(ONE))
    model.apply(MakePortable())
    model.ir.graph[2].attributes["rounding_mode"] = ir.AttrString("rounding_mode", "CEIL")
    report = model.apply(MakePortable())
    assert report.count(SiteStatus.CHANGED) == 2
    names = [f"signed1_narrow0_rounding_mode_{mode}" for mode in ("ROUND", "CEIL")]
    assert calls(model) == names
    assert functions(model) == [("Quant", name) for name in names]
    assert model.ir.ir_version == 10
    model.apply(StripFunctions())
    assert (model.ir.functions, calls(model), model.ir.ir_version) == ({}, ["", ""], 8)


def test_opset_is_raised_to_where_round_exists():
    model = load(ir.from_onnx_text(OLD % "Relu"))
    report = model.apply(MakePortable())
    assert report.notes == ["opset raised from 9 to 11", "IR version raised from 6 to 9"]
    assert model.ir.opset_imports[""] == 11
    assert PORTABLE in model.ir.metadata_props
    report = model.apply(StripFunctions())
    assert report.notes == [
        "opset lowered from 11 to 9, its original value",
        "IR version lowered from 9 to 6, its original value",
    ]
    assert model.ir.metadata_props == {}


def test_opset_stays_raised_where_a_node_was_rewritten():
    model = load(ir.from_onnx_text(OLD % "Clip <min = -1.0, max = 1.0>"))
    model.apply(MakePortable())
    report = model.apply(StripFunctions())
    assert report.notes == ["IR version lowered from 9 to 6, its original value"]
    assert model.ir.opset_imports[""] == 11
    onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)


def test_opset_that_was_raised_further_is_not_lowered():
    model = load(ir.from_onnx_text(OLD % "Relu"))
    model.apply(MakePortable(), parse_spec("convert{to=qdq}"), StripFunctions())
    assert model.ir.functions == {}
    assert model.ir.opset_imports[""] >= 11
    onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)


def test_model_without_quantizers_stays_as_it_is():
    source = '<ir_version: 4, opset_import: ["": 9]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    model = load(ir.from_onnx_text(source))
    before = text(model)
    for step in (MakePortable(), StripFunctions()):
        report = model.apply(step)
        assert (report.sites, report.modified, text(model)) == ([], False, before)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (ONE.replace("float[2, 500]", "float16[2, 500]"), "FLOAT16"),
        (ONE.replace("b = {4}", "b = {2.5}"), "bits is 2.5"),
        (ONE.replace("signed = 1", 'rounding_mode = "DPU"'), "DPU"),
        (ONE.replace("Quant <signed = 1> (x, s, z, b)", "Quant (x, s, z)"), "3 inputs"),
    ],
    ids=["type", "width", "rounding", "inputs"],
)
def test_refused_with_a_reason(source, reason):
    model = load(ir.from_onnx_text(source))
    report = model.apply(MakePortable())
    refused = [site for site in report if site.outcome is SiteStatus.REFUSED]
    assert refused
    assert reason in refused[0].reason
    assert refused[0].verdict is None


def test_runtimes_take_no_function_in_the_standard_domain():
    source = """<ir_version: 8, opset_import: ["": 13]>
        g (float[4] x) => (float[4] y) <float a = {0}, float b = {6}> {
            y = FakeQuantize <levels = 16> (x, a, b, a, b)
        }"""
    model = load(ir.from_onnx_text(source))
    (entry,) = model.apply(MakePortable())
    assert entry.outcome is SiteStatus.REFUSED
    assert "'org.openvinotoolkit'" in entry.reason
    assert model.ir.functions == {}


def test_a_new_node_does_not_call_the_function_of_another_one() -> None:
    """The function of a Quant that rounds up is not that of one that rounds to nearest."""
    text = """<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 2]>
        g (float[6] x) => (float[6] up, float[6] near)
        <float s = {0.5}, float z = {0}, float b = {4}, int8 i = {0}> {
            up = qonnx.custom_op.general.Quant <signed = 1, rounding_mode = "CEIL"> (x, s, z, b)
            c = QuantizeLinear (x, s, i)
            near = DequantizeLinear (c, s, i)
        }"""
    model = load(ir.from_onnx_text(text))
    x = np.float32([0.1, 0.6, -0.1, -0.4, 3.1, 3])
    model.apply(MakePortable(), ConvertDialect(to="qonnx"))
    assert [node.op_type for node in model.ir.graph] == ["Quant", "Quant"]
    onnx.checker.check_model(ir.to_proto(model.ir))
    for each in (model, load(ir.serde.deserialize_model(ir.to_proto(model.ir)))):
        results = each.run({"x": x}, backend="numpy")
        assert results["up"].tolist() == (np.ceil(x / 0.5) * 0.5).tolist()
        assert results["near"].tolist() == (np.rint(x / 0.5) * 0.5).tolist()


def test_a_function_of_the_model_is_no_quantizer() -> None:
    """Only functions that make-portable wrote are known to do what the operator does."""
    text = """<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
        g (float[2] x) => (float[2] y) <float s = {0.5}, float z = {0}, float b = {8}> {
            y = qonnx.custom_op.general.Quant <signed = 1> (x, s, z, b)
        }
        <domain: "qonnx.custom_op.general", opset_import: ["": 21]>
        Quant (x, s, z, b) => (y) { d = Div (x, s) c = Ceil (d) y = Mul (c, s) }"""
    model = load(ir.from_onnx_text(text))
    (entry,) = model.apply(ConvertDialect(to="qdq", exact=Exactness.NEAR))
    assert entry.outcome is SiteStatus.REFUSED
    assert "function of its own" in entry.reason
