"""Convolutions of 1 x 1 whose result is read in float become products of matrices."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph.model import load
from qgraph.reports import SiteStatus
from qgraph.text import json_text
from qgraph.transforms.plain_forms import LowerPointwise
from tests.verify.checking import checked

OPS = ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear"]


def graph(
    conv: str = "c = Conv (d, e, b)",
    behind: str = "y = Sigmoid (c)",
    *,
    sizes: str = "2, 2, 4, 4",
    shape: str = "3, 2, 1, 1",
    scale: str = "float[3] v = {0.5, 0.25, 1}",
) -> str:
    result = ", ".join("nchw"[: len(sizes.split(","))])
    return f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[{sizes}] x) => (float[{result}] y)
        <float s = {{0.125}}, uint8 z = {{7}}, {scale}, float[3] b = {{0.5, -1, 2}},
         int8[{shape}] w = {{1, -2, 3, 4, -5, 6}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            e = DequantizeLinear <axis = 0> (w, v)
            [conv] {conv}
            {behind}
        }}"""


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (graph(), ["Add", "Sigmoid"]),
        (graph("c = Conv (d, e)"), ["Sigmoid"]),
        (graph(sizes="2, 2, 6", shape="3, 2, 1"), ["Add", "Sigmoid"]),
        (graph(scale="float v = {0.5}").replace("<axis = 0> (w", "(w"), ["Add", "Sigmoid"]),
    ],
)
def test_the_sums_stay(text, more):
    model = load(ir.from_onnx_text(text))
    x = np.random.default_rng(0).normal(0, 9, list(model.inputs[0].shape))
    before = model.run({"x": x.astype(np.float32)}, backend="numpy")["y"]
    assert model.apply(LowerPointwise()).count(SiteStatus.CHANGED) == 1
    middle = ["Transpose", "MatMul", "Transpose"]
    assert sorted(node.op_type for node in model.nodes()) == sorted([*OPS, *middle, *more])
    (product,) = model.nodes("MatMul")
    assert product.name == "conv"
    after = model.run({"x": x.astype(np.float32)}, backend="numpy")["y"]
    np.testing.assert_array_equal(after, before)  # all sums are exact
    assert model.apply(LowerPointwise()).count(SiteStatus.CHANGED) == 0


CODED = "p = QuantizeLinear (c, s, z) y = DequantizeLinear (p, s, z)"
OTHER = {
    "quantized": graph(behind=CODED),
    "3 x 1": graph(shape="3, 1, 2, 1", sizes="2, 1, 4, 4"),
    "strides": graph("c = Conv <strides = [2, 1]> (d, e, b)"),
    "pads": graph("c = Conv <pads = [0, 1, 0, 0]> (d, e, b)"),
    "not selected": graph(),
}


@pytest.mark.parametrize("name", OTHER)
def test_others_stay(name):
    model = load(ir.from_onnx_text(OTHER[name]))
    step = LowerPointwise(nodes="!conv" if name == "not selected" else "*")
    assert model.apply(step).count(SiteStatus.CHANGED) == 0
    assert len(list(model.nodes("Conv"))) == 1


LEAKY = "l = LeakyRelu (c) p = QuantizeLinear (l, s, z) y = DequantizeLinear (p, s, z)"


def pair(behind: str = LEAKY) -> tuple[qgraph.Model, qgraph.Model]:
    reference = load(ir.from_onnx_text(graph(behind=behind)))
    model = reference.clone()
    model.apply(LowerPointwise())
    return reference, model


def test_products_are_bounded_and_the_checker_leaves_them_to_the_prover():
    reference, model = pair(LEAKY.replace("LeakyRelu", "Relu"))
    proof = qgraph.prove(reference, model, within="0.01step", evidence=True)
    assert proof.verdict == "bounded"
    assert any(region.bound is not None for region in proof.regions)
    document = json.loads(json_text(proof.to_json()))
    judged = checked(document, reference, model).regions
    (bounded,) = [n for n, part in enumerate(document["regions"]) if part["bound"]]
    reason = "the models compute it by different operators"
    assert (judged[bounded].status, str(judged[bounded].reason)) == ("unchecked", reason)


def other_code(model: qgraph.Model) -> None:
    (product,) = model.nodes("MatMul")
    codes = product.inputs[1].producer().inputs[0]
    codes.const_value = ir.tensor(model.constant(codes) + np.int8([[0, 0, 0], [0, 1, 0]]))


def other_order(model: qgraph.Model) -> None:
    _, last = model.nodes("Transpose")
    last.attributes["perm"] = ir.AttrInt64s("perm", (0, 3, 2, 1))


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("change", [other_code, other_order])
def test_other_products_are_not_bounded(change):
    reference, model = pair()
    change(model)
    proof = qgraph.prove(reference, model, within="1step")
    assert proof.beyond or proof.verdict == "undecided"


@pytest.mark.slow
@pytest.mark.runtime
def test_a_deployment_gives_such_a_layer_a_kernel():
    pytest.importorskip("onnxruntime")
    model = load(ir.from_onnx_text(graph(behind=LEAKY)))
    (layer,) = qgraph.deploy(model, "onnxruntime-cpu").layers
    assert (layer.op, layer.before, layer.kernel) == ("Conv", None, "MatMulIntegerToFloat")
    assert layer.exactness == "bounded"
    once = model.to_proto()
    qgraph.deploy(model, "onnxruntime-cpu")
    assert model.to_proto() == once
