"""Conversions that need a higher opset than the model has: everything else stays."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.graph.opset.versions import lower_opset
from qgraph.model import Model, load
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

RICH = """<ir_version: 10, opset_import: ["": VERSION, "qonnx.custom_op.general": 1, "local": 1,
                          "com.example": 3], producer_name: "somebody", metadata_props: ["k": "v"]>
    g (float[2, 3] x, bool c) => (float[2, 3] y)
    <float s = {0.25}, float z = {0}, float b = {16}, float[2, 3] w = {1, 2, 3, 4, 5, 6.1}> {
        [theirs] f = com.example.Own <alpha = 1.5, mode = "free"> (x)
        [act] q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (f, s, z, b)
        [weight] v = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (w, s, z, b)
        [product] t = Mul (q, v)
        [call] h = local.halved (t)
        [choice] y = If (c) <
            then_branch = yes () => (float[2, 3] u) {
                u = qonnx.custom_op.general.Quant <signed = 0, narrow = 0> (h, s, z, b) },
            else_branch = no () => (float[2, 3] n) { n = Neg (h) }>
    }
    <domain: "local", opset_import: ["": VERSION]> halved (i) => (o) {
        k = Constant <value = float {0.5}> ()
        o = Mul (i, k)
    }
    <domain: "com.example", opset_import: ["": VERSION]> Own <alpha, mode> (i) => (o) {
        o = Neg (i)
    }"""
"""A model with everything that a careless converter loses; Own has a body so that it runs."""

SOURCES = (9, 11, 13, 16, 18, 20, 21, 23, 25, 28)


def rich(version: int) -> Model:
    model = ir.from_onnx_text(RICH.replace("VERSION", str(version)))
    model.graph.metadata_props["graph"] = "kept"
    model.graph.doc_string = "what the graph is for"
    for node in model.graph:
        node.doc_string = f"why {node.name}"
        node.metadata_props["made by"] = "somebody"
        node.outputs[0].metadata_props["tensor"] = node.name or ""
    model.graph.node("product").outputs[0].meta["quant_parameter_tensor_names"] = {
        "SCALE_TENSOR": "s"
    }
    return load(model)


def outputs(model: Model) -> list[np.ndarray]:
    x = np.float32([[0.1, -0.375, 7], [0.125, 9e4, -9]])
    runs = ({"x": x, "c": np.array(choice)} for choice in (True, False))
    return [model.run(data, backend="numpy")["y"] for data in runs]


@pytest.mark.cases(fast=5, slow=10)
@pytest.mark.parametrize("to", ["qdq", "onnx", "openvino"])
@pytest.mark.parametrize("source", SOURCES)
def test_nothing_is_lost(source, to):
    original = rich(source)
    model = original.clone()
    report = model.apply(ConvertDialect(to=to, opset=28))
    assert report.count(SiteStatus.CHANGED) == 3
    assert model.ir.opset_imports[""] >= source
    for found, expected in zip(outputs(model), outputs(original), strict=True):
        np.testing.assert_array_equal(found, expected)
    proto = ir.to_proto(model.ir)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.producer_name == "somebody"
    assert {p.key: p.value for p in proto.metadata_props} == {"k": "v"}
    assert {p.key: p.value for p in proto.graph.metadata_props} == {"graph": "kept"}
    assert proto.graph.doc_string == "what the graph is for"
    kept = {node.name: node for node in proto.graph.node}
    old = {node.name: node for node in ir.to_proto(original.ir).graph.node}
    for name in ("theirs", "product", "call"):
        assert kept[name] == old[name]
    assert kept["choice"].doc_string == "why choice"
    assert {(f.domain, f.name) for f in proto.functions} == {
        ("local", "halved"),
        ("com.example", "Own"),
    }
    assert next(o.version for o in proto.opset_import if o.domain == "com.example") == 3
    assert proto.graph.quantization_annotation[0].tensor_name == "t"
    infos = {info.name: info for info in proto.graph.value_info}
    assert {p.key: p.value for p in infos["q"].metadata_props} == {"tensor": "act"}


@pytest.mark.parametrize("source", [9, 13, 20])
def test_the_opset_rises_as_far_as_needed_and_is_reported(source):
    model = rich(source)
    report = model.apply(ConvertDialect(to="qdq"))
    assert model.ir.opset_imports[""] == 21  # codes of 16 bits
    assert all(function.opset_imports[""] == 21 for function in model.ir.functions.values())
    assert report.notes == [f"opset raised from {source} to 21"]


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("source", [21, 23, 28])
def test_the_opset_is_never_lowered(source):
    model = rich(source)
    report = model.apply(ConvertDialect(to="qdq"))
    assert model.ir.opset_imports[""] == source
    assert report.notes == []


def single(version: int, body: str, parameters: str) -> str:
    return f"""<ir_version: 10, opset_import: ["": {version}, "qonnx.custom_op.general": 1,
                    "org.openvinotoolkit": 1]>
        g (float[40] x) => (float[40] y) <{parameters}> {{ {body} }}"""


QUANT = "y = qonnx.custom_op.general.Quant <{attributes}> (x, s, z, b)"
FLOATS = (
    "float s = {0.5}, float e = {4}, float m = {3}, float c = {7}, float h = {448}",
    "y = qonnx.custom_op.general.FloatQuant <has_nan = 1> (x, s, e, m, c, h)",
)

TOO_LOW = {
    "Quant to pairs": ("qdq", 9, QUANT.format(attributes="signed = 1"), 8),
    "Quant to floats": ("onnx", 9, QUANT.format(attributes="signed = 1"), 8),
    "bipolar to floats": (
        "onnx",
        9,
        "y = qonnx.custom_op.general.BipolarQuant (x, s)",
        1,
    ),
    "FloatQuant to pairs": ("qdq", 9, FLOATS[1], None),
    "FloatQuant to floats": ("onnx", 9, FLOATS[1], None),
    "FakeQuantize to floats": (
        "onnx",
        9,
        "y = org.openvinotoolkit.FakeQuantize <levels = 16> (x, l, h, l, h)",
        None,
    ),
}


@pytest.mark.cases(fast=3)
@pytest.mark.parametrize("case", TOO_LOW)
def test_too_low_an_opset_is_refused_naming_the_lowest_that_works(case):
    to, source, body, bits = TOO_LOW[case]
    if bits is not None:
        parameters = f"float s = {{0.1}}, float z = {{0}}, float b = {{{bits}}}"
    elif "FakeQuantize" in body:
        parameters = "float l = {-0.7}, float h = {1.3}"
    else:
        parameters = FLOATS[0]
    text = single(source, body, parameters)
    original = load(ir.from_onnx_text(text))
    model = original.clone()
    (entry,) = model.apply(ConvertDialect(to=to, opset=source))
    assert entry.outcome is SiteStatus.REFUSED
    lowest = re.search(r"allow opset (\d+)(?=$|;)", entry.reason)
    assert lowest is not None, entry.reason
    assert ir.to_onnx_text(model.ir) == ir.to_onnx_text(original.ir)
    named = int(lowest[1])
    (entry,) = model.apply(ConvertDialect(to=to, opset=named - 1))
    assert entry.outcome is SiteStatus.REFUSED
    (entry,) = model.apply(ConvertDialect(to=to, opset=named))
    assert entry.outcome is SiteStatus.CHANGED
    assert model.ir.opset_imports[""] == named
    x = np.linspace(-3, 3, 40, dtype=np.float32)
    expected = original.run({"x": x}, backend="numpy")["y"]
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


OLD = {"TFC_1W2A": 9, "kwsmlp_w3a3": 11, "qkeras_jettagging": 9, "nncf_mlp_int8_mixed": 17}


@pytest.mark.cases(fast=3, slow=6)
@pytest.mark.parametrize("to", ["qdq", "onnx", "openvino"])
@pytest.mark.parametrize("highest", [21, 28])
@pytest.mark.parametrize("name", OLD)
def test_old_models_are_raised_and_compute_the_same(models, tmp_path, name, highest, to):
    path = models / f"{name}.onnx"
    original, model = load(path), load(path)
    assert original.ir.opset_imports[""] == OLD[name]
    model.apply(ConvertDialect(to=to, opset=highest))
    assert OLD[name] <= model.ir.opset_imports[""] <= highest
    model.save(tmp_path / "out.onnx")
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)
    (value,) = original.inputs
    shape = [size if isinstance(size, int) else 2 for size in value.shape]
    data = {value.name: np.random.default_rng(5).normal(size=shape).astype(np.float32)}
    expected = original.run(data, backend="numpy")
    for key, found in model.run(data, backend="numpy").items():
        np.testing.assert_array_equal(found, expected[key])


@pytest.mark.parametrize(("ceil_mode", "opset"), [(0, 18), (1, 21)])
def test_an_opset_is_lowered_over_changes_that_do_not_concern_its_nodes(ceil_mode, opset):
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[1,1,7] x) => (float[1,1,N] y) <float s = {{0.5}}, uint8 z = {{3}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            y = AveragePool <kernel_shape = [2], strides = [2], ceil_mode = {ceil_mode}> (d)
        }}""")
    notes = lower_opset(model, 18)
    assert model.opset_imports[""] == opset
    assert len(notes) == 1
