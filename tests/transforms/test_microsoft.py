"""QuantizeLinear and DequantizeLinear between com.microsoft and the standard domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.errors import OptionError
from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.reports import SiteStatus
from qgraph.transforms.base import Transform
from qgraph.transforms.convert import ConvertDialect
from qgraph.transforms.lowered_operators import LowerMicrosoft, RaiseMicrosoft

PAIR = """<ir_version: {ir}, opset_import: ["": {opset}, "com.microsoft": 1]>
    g (float[4, 3] x) => (float[4, 3] y) <{known}> {{
        q = {domain}QuantizeLinear {axis}(x, s, z)
        y = {domain}DequantizeLinear {axis}(q, s, z)
    }}"""
SINGLE = "float s = {{0.1}}, {kind} z = {{{zero}}}"
SEVERAL = "float[3] s = {{0.1, 0.25, 3}}, {kind}[3] z = {{{zero}, 0, 1}}"
FEEDS = {"x": np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32) * 50}
FEEDS["x"][0] = [0.05, 1e5, -1e5]


def pair(kind: str, opset: int, *, several: bool = False, domain: str = "com.microsoft") -> Model:
    known = (SEVERAL if several else SINGLE).format(kind=kind, zero=7)
    axis = "<axis = 1> " if several else ""
    prefix = f"{domain}." if domain else ""
    text = PAIR.format(ir=10, opset=opset, known=known, domain=prefix, axis=axis)
    model = ir.from_onnx_text(text)
    for name, value in model.graph.initializers.items():
        # The text spends four bytes on a code of 4 bits, which ONNX Runtime cannot read.
        value.const_value = ir.tensor(value.const_value.numpy(), name=name)
    return load(model)


def domains(model: Model) -> set[str]:
    return {node.domain for node in model.nodes()}


def check(model: Model) -> None:
    onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)


def in_runtime(model: Model) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = ir.to_proto(model.ir).SerializeToString()
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, FEEDS)[0]


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("kind", "several", "opset"),
    [
        ("uint8", False, 12),
        ("int8", True, 13),
        ("int16", False, 21),
        ("uint16", True, 21),
        ("int4", False, 21),
        ("uint4", True, 21),
    ],
)
def test_the_opset_rises_as_far_as_codes_and_axes_need(
    kind: str, several: bool, opset: int
) -> None:
    before = pair(kind, 12, several=several)
    after = before.clone()
    report = after.apply(LowerMicrosoft())
    check(after)
    assert domains(after) == {""}
    assert after.ir.opset_imports == {"": opset}
    assert {site.verdict.exactness for site in report} == {Exactness.BITS}
    expected = before.run(FEEDS, backend="numpy")["y"]
    np.testing.assert_array_equal(after.run(FEEDS, backend="numpy")["y"], expected)
    np.testing.assert_array_equal(in_runtime(after), expected)
    np.testing.assert_array_equal(in_runtime(before), expected)
    assert after.apply(LowerMicrosoft()).sites == []


@pytest.mark.runtime
@pytest.mark.parametrize("kind", ["int16", "uint16", "int4", "uint4"])
@pytest.mark.parametrize("several", [False, True])
def test_young_codes_run_in_an_old_opset(kind: str, several: bool) -> None:
    before = pair(kind, 21, several=several, domain="")
    after = before.clone()
    report = after.apply(RaiseMicrosoft(opset=13))
    check(after)
    assert domains(after) == {"com.microsoft"}
    assert report.notes == ["opset lowered from 21 to 13"]
    expected = before.run(FEEDS, backend="numpy")["y"]
    np.testing.assert_array_equal(in_runtime(after), expected)
    back = after.clone()
    back.apply(LowerMicrosoft())
    np.testing.assert_array_equal(back.run(FEEDS, backend="numpy")["y"], expected)


def test_codes_of_8_bits_stay_unless_all_are_asked_for() -> None:
    kept = pair("int8", 21, domain="")
    report = kept.apply(RaiseMicrosoft())
    assert {site.outcome for site in report} == {SiteStatus.KEPT}
    assert "INT8 are standard below opset 21" in report.sites[0].reason
    kept.apply(RaiseMicrosoft(all=True))
    assert domains(kept) == {"com.microsoft"}


TYPED = """<ir_version: 10, opset_import: ["": 21]>
    g (float[4, 3] x) => (float[4, 3] y) <float s = {0.1}> {
        q = QuantizeLinear <output_dtype = 5> (x, s)
        y = DequantizeLinear (q, s)
    }"""


@pytest.mark.runtime
def test_a_type_without_zero_point_gets_one() -> None:
    before = load(ir.from_onnx_text(TYPED))
    after = before.clone()
    after.apply(RaiseMicrosoft(opset=13))
    check(after)
    encode = after.ir.graph.node(0)
    assert "output_dtype" not in encode.attributes
    assert encode.inputs[2].dtype is ir.DataType.INT16
    expected = before.run(FEEDS, backend="numpy")["y"]
    np.testing.assert_array_equal(in_runtime(after), expected)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("<output_dtype = 5, precision = 1> (x, s)", "no attribute 'precision'"),
        ("<output_dtype = 17> (x, s)", "no codes of type FLOAT8E4M3FN"),
    ],
)
def test_what_com_microsoft_lacks_is_refused(change: str, reason: str) -> None:
    text = TYPED.replace("<output_dtype = 5> (x, s)", change).replace('"": 21', '"": 23')
    model = load(ir.from_onnx_text(text))
    first = next(iter(model.apply(RaiseMicrosoft())))
    assert first.outcome is SiteStatus.REFUSED
    assert reason in first.reason


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ("y = Gelu (v)", "producing 'y' in graph 'g': Gelu does not exist in that opset"),
        (
            "y = Cast <to = 1, saturate = 0> (v)",
            "its attribute 'saturate' does not exist in that opset",
        ),
        ("w = Cast <to = 22> (v)\n y = Cast <to = 1> (w)", None),
    ],
)
def test_the_opset_stays_where_a_node_needs_it(extra: str, reason: str | None) -> None:
    text = TYPED.replace("y = DequantizeLinear (q, s)", f"v = DequantizeLinear (q, s)\n {extra}")
    model = load(ir.from_onnx_text(text))
    for node in model.ir.graph:
        if node.op_type == "Cast":
            node.outputs[0].dtype = ir.DataType(node.attributes["to"].as_int())
    (note,) = model.apply(RaiseMicrosoft(opset=13)).notes
    assert (reason or "is INT4, which is not allowed in that opset") in note
    assert note.startswith("opset 21 stays, above 13: ")
    assert model.ir.opset_imports[""] == 21


def test_nodes_in_subgraphs_and_functions_move_too() -> None:
    text = """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1, "local": 1]>
        g (float[2] x, bool c) => (float[2] y) <float s = {0.5}, int16 z = {300}> {
            q = com.microsoft.QuantizeLinear (x, s, z)
            y = If (c) <
                then_branch = yes () => (float[2] u) {
                    u = com.microsoft.DequantizeLinear (q, s, z) },
                else_branch = no () => (float[2] v) { v = local.decode (q) }>
        }
        <domain: "local", opset_import: ["": 17, "com.microsoft": 1]>
        decode (k) => (r) {
            t = Constant <value = float {0.25}> ()
            p = Constant <value = int16 {300}> ()
            r = com.microsoft.DequantizeLinear (k, t, p)
        }"""
    model = load(ir.from_onnx_text(text))
    feeds = [{"x": np.float32([1.3, -7]), "c": np.array(c)} for c in (True, False)]
    before = [model.run(each, backend="numpy")["y"] for each in feeds]
    report = model.apply(LowerMicrosoft())
    assert report.count(SiteStatus.CHANGED) == 3
    assert domains(model) == {"", "local"}
    check(model)
    for each, expected in zip(feeds, before, strict=True):
        np.testing.assert_array_equal(model.run(each, backend="numpy")["y"], expected)


def test_nodes_in_functions_are_not_moved_where_their_types_would_be_lost() -> None:
    """AveragePool needs the type of what the function returns."""
    text = """<ir_version: 10, opset_import: ["": 13, "local": 1]>
        g (float[1,1,4] x) => (float[1,1,3] y) {
            k = local.f (x)
            y = AveragePool <kernel_shape = [2]> (k)
        }
        <domain: "local", opset_import: ["": 13]>
        f (x) => (y) {
            s = Constant <value = float {0.5}> ()
            z = Constant <value = uint8 {3}> ()
            q = QuantizeLinear (x, s, z)
            y = DequantizeLinear (q, s, z)
        }"""
    model = load(ir.from_onnx_text(text))
    report = model.apply(RaiseMicrosoft(all=True))
    assert [site.outcome for site in report] == [SiteStatus.REFUSED] * 2
    assert "inline the functions first" in report.sites[0].reason
    onnx.checker.check_model(model.to_proto(), full_check=True)


def test_a_limit_of_the_opset_is_kept() -> None:
    model = pair("int16", 17)
    report = model.apply(LowerMicrosoft(opset=20))
    assert {site.reason for site in report} == {"it needs opset 21, above 20; allow opset 21"}
    assert domains(model) == {"com.microsoft"}


def test_a_function_of_another_opset_keeps_what_it_needs() -> None:
    text = """<ir_version: 10, opset_import: ["": 21, "local": 1]>
        g (float[2] x) => (float[2] y) { y = local.F (x) }
        <domain: "local", opset_import: ["": %d]> F (a) => (b) { b = %s (a) }"""
    old = load(ir.from_onnx_text(text % (12, "Relu")))
    assert old.apply(RaiseMicrosoft(opset=13)).notes == ["opset lowered from 21 to 13"]
    (function,) = old.ir.functions.values()
    assert (old.ir.opset_imports[""], function.opset_imports[""]) == (13, 12)
    young = load(ir.from_onnx_text(text % (20, "Gelu")))
    (note,) = young.apply(RaiseMicrosoft(opset=13)).notes
    assert "Gelu does not exist in that opset" in note
    assert young.ir.opset_imports[""] == 21


@pytest.mark.parametrize(
    "step", [RaiseMicrosoft(opset=0), LowerMicrosoft(opset=8), LowerMicrosoft(opset=29)]
)
def test_versions_that_do_not_exist_are_refused(step: Transform) -> None:
    with pytest.raises(OptionError, match=r"not a version of the .*, expected 9 to 28"):
        load(ir.from_onnx_text(TYPED)).apply(step)


def test_the_type_of_codes_is_inferred() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[4] x) => (float[4] y) <float s = {0.5}, int16 z = {3}, int64[1] n = {-1}> {
            q = QuantizeLinear (x, s, z)
            r = Reshape (q, n)
            y = DequantizeLinear (r, s)
        }"""
    model = load(ir.from_onnx_text(text))
    report = model.apply(RaiseMicrosoft())
    assert [site.outcome for site in report] == [SiteStatus.CHANGED] * 2


def test_the_opset_is_raised_for_a_cast_of_four_bits() -> None:
    """Below opset 21 codes of 4 bits exist in com.microsoft only; Cast does not take them there."""
    text = """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[4] x) => (float[4] y) <int4[4] q = {1, -2, 3, -8}, float s = {0.5}> {
            w = com.microsoft.DequantizeLinear (q, s)
            y = Add (x, w)
        }"""
    model = load(ir.from_onnx_text(text))
    report = model.apply(ConvertDialect(to="onnx"))
    assert report.count(SiteStatus.CHANGED) == 1
    assert model.ir.opset_imports[""] == 21
    onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)


@pytest.mark.runtime
@pytest.mark.parametrize(("opset", "is_moved"), [(21, True), (23, False)])
@pytest.mark.parametrize("domain", ["", "com.microsoft."])
def test_halves_are_not_divided_in_another_type(domain, opset, is_moved):
    """Of the finite numbers, 136 get other codes in the other domain at opset 23."""
    text = f"""<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>
        g (float16[N] x) => (int8[N] q) <float16 s = {{11878}}, int8 z = {{0}}> {{
            q = {domain}QuantizeLinear (x, s, z)
        }}"""
    runtime = pytest.importorskip("onnxruntime")
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)]
    model = load(ir.from_onnx_text(text))
    before, results = domains(model), []
    for _ in range(2):
        data = model.to_proto().SerializeToString()
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
        results.append(session.run(None, {"x": x})[0])
        model.apply(LowerMicrosoft() if domain else RaiseMicrosoft(all=True))
    assert np.array_equal(*results)
    assert (domains(model) != before) == is_moved
