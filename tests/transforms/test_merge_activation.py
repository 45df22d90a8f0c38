"""Relu and Clip before a quantizer become limits of its codes, and back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.parser import parse_model

from qgraph.graph.constants import constant
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.transforms.merge_activation import ActivationForm, MergeActivation

F = np.float32


def graph(nodes: str, stored: str, opset: int = 17) -> str:
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[2, 1000] x) => (float[2, 1000] y) <{stored}> {{ {nodes} }}"""


def pair(before: str = "", codes: str = "q", zero: str = "z", axis: str = "") -> str:
    given = "h" if before else "x"
    clip = "" if codes == "q" else f"{codes} = Clip (q, l, u)"
    return f"""{before} q = QuantizeLinear {axis} ({given}, s, {zero}) {clip}
        y = DequantizeLinear {axis} ({codes}, s, {zero})"""


SIGNED, UNSIGNED = "float s = {0.05}, int8 z = {0}", "float s = {0.05}, uint8 z = {5}"
ENDS = "float a = {-0.1249}, float b = {6.0}"
CASES = {
    # nodes, constants, limits of the codes by hand: round(end / s) + z
    "relu": (pair("h = Relu (x)"), SIGNED, (0, 127)),
    "clip": (pair("h = Clip (x, a, b)"), f"{UNSIGNED}, {ENDS}", (3, 125)),
    "chain": (
        pair("e = Max (a, x) i = Min (e, b) h = Relu (i)"),
        f"{UNSIGNED}, {ENDS}",
        (5, 125),
    ),
    "clip of codes behind": (
        pair("h = Relu (x)", "c"),
        f"{SIGNED}, int8 l = {{-8}}, int8 u = {{7}}",
        (0, 7),
    ),
    "ends in the wrong order": (pair("h = Clip (x, b, a)"), f"{UNSIGNED}, {ENDS}", (3, 3)),
    "redundant": (pair("h = Relu (x)"), "float s = {0.05}, uint8 z = {0}", None),
    "redundant codes": (pair("", "c"), f"{SIGNED}, int8 l = {{-128}}, int8 u = {{127}}", None),
    "channels": (
        pair("h = Relu (x)", axis="<axis = 0>"),
        "float[2] s = {0.05, 0.3}, int8[2] z = {-3, -3}",
        (-3, 127),
    ),
}


@pytest.mark.cases(fast=3)
@pytest.mark.runtime
@pytest.mark.parametrize("name", CASES)
def test_limits_are_the_codes_of_the_ends(check_pass, name):
    runtime = pytest.importorskip("onnxruntime")
    nodes, stored, ends = CASES[name]
    text = graph(nodes, stored)
    ops = ["QuantizeLinear", *["Clip"] * (ends is not None), "DequantizeLinear"]
    model, report = check_pass(MergeActivation(), text, ops=ops)
    assert report.count(SiteStatus.CHANGED) == 1
    if ends is not None:
        (clip,) = model.nodes("Clip")
        assert tuple(int(constant(value)) for value in clip.inputs[1:]) == ends
    x = np.linspace(-10, 10, 2000, dtype=F).reshape(2, 1000)
    results = []
    for each in (load(ir.from_onnx_text(text)), model):
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = runtime.InferenceSession(
            each.to_proto().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results.append(session.run(["y"], {"x": x})[0])
    np.testing.assert_array_equal(*results)


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("name", CASES)
def test_data_are_limited_between_two_quantizers(check_pass, name):
    nodes, stored, ends = CASES[name]
    pairs = ["QuantizeLinear", "DequantizeLinear"]
    ops = [*([*pairs, "Clip"] if ends else []), *pairs]
    step = MergeActivation(form=ActivationForm.UNITS)
    model, _ = check_pass(step, graph(nodes, stored), ops=ops)
    for node in model.nodes(*pairs):
        assert [value.name for value in node.inputs[1:]] == ["s", "z"]


@pytest.mark.parametrize("name", ["clip", "clip of codes behind", "redundant"])
def test_limits_of_data_instead(check_pass, name):
    nodes, stored, ends = CASES[name]
    step = MergeActivation(form=ActivationForm.FLOATS)
    clips = ["Clip"] * (ends is not None)
    model, _ = check_pass(
        step, graph(nodes, stored), ops=[*clips, "QuantizeLinear", "DequantizeLinear"]
    )
    if name == "clip of codes behind":
        (clip,) = model.nodes("Clip")
        assert [float(constant(value)) for value in clip.inputs[1:]] == [0, F(7) * F(0.05)]


@pytest.mark.runtime
def test_an_activation_between_two_pairs_stays():
    """Without it, ONNX Runtime merges both pairs into one with the larger scale."""
    first = "b = QuantizeLinear (x, t, z) d = DequantizeLinear (b, t, z)"
    nodes = f"{first} {pair('h = Relu (d)')}"
    stored = "float t = {0.0261}, float s = {0.0132}, uint8 z = {0}"
    original = load(parse_model(graph(nodes, stored)))
    model = original.clone()
    assert model.apply(MergeActivation()).count(SiteStatus.CHANGED) == 0
    merged = load(parse_model(graph(nodes.replace("h = Relu (d)", "h = Identity (d)"), stored)))
    x = {"x": np.random.default_rng(0).normal(size=(2, 1000)).astype(F)}
    expected = original.run(x, backend="numpy")["y"]
    assert np.array_equal(merged.run(x, backend="numpy")["y"], expected)
    runtime = pytest.importorskip("onnxruntime")
    plain, joined = (
        runtime.InferenceSession(each.to_proto().SerializeToString()).run(None, x)[0]
        for each in (model, merged)
    )
    assert np.array_equal(plain, expected)
    assert not np.array_equal(joined, expected)
    equal = load(parse_model(graph(nodes, stored.replace("0.0132", "0.0261"))))
    assert equal.apply(MergeActivation()).count(SiteStatus.CHANGED) == 1


REFUSED = {
    "also used by Neg": (
        pair("h = Relu (x)").replace("y =", "n = Neg (h) d =") + " y = Add (d, n)",
        SIGNED,
        "QG008",
    ),
    "other codes in each channel": (
        pair("h = Clip (x, a, b)", axis="<axis = 0>"),
        f"float[2] s = {{0.05, 0.3}}, {ENDS}, uint8[2] z = {{0, 0}}",
        "QG010",
    ),
    "is not above 0": (pair("h = Relu (x)"), SIGNED.replace("0.05", "-0.05"), "QG010"),
    "no Clip of codes of type UINT16": (
        pair("h = Clip (x, a, b)"),
        f"{ENDS}, float s = {{0.05}}, uint16 z = {{0}}",
        "QG006",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals_say_why(reason):
    nodes, stored, cause = REFUSED[reason]
    model = load(ir.from_onnx_text(graph(nodes, stored, 21)))
    (found,) = model.apply(MergeActivation()).sites
    assert (found.outcome, found.reason_id) == (SiteStatus.REFUSED, cause)
    assert reason in found.reason
