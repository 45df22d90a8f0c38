"""What holds for every registered pass."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.model import Model, load
from qgraph.reports import SiteStatus
from qgraph.transforms.base import TRANSFORMS, Transform, describe, parse_spec

REQUIRED = {"convert": "{to=qdq}"}
"""Options without which a pass cannot run."""

FLOAT = """<ir_version: 8, opset_import: ["": 13]>
    g (float[2, 3] x) => (float[2, 3] y) <float[3] w = {1, 2, 3}> {
        t = Mul (x, w)
        y = Relu (t)
    }"""

QUANTIZED = """<ir_version: 9, opset_import: ["": 20, "qonnx.custom_op.general": 1, "local": 1]>
    g (float[2, 3] x, bool c) => (float[2, 3] y)
    <float[3] w = {1, 2, 3}, float s = {0.25}, float z = {0}, float b = {4}> {
        q = qonnx.custom_op.general.Quant <signed = 1, narrow = 0> (w, s, z, b)
        a = qonnx.custom_op.general.Quant <signed = 0, narrow = 0> (x, s, z, b)
        t = Mul (a, q)
        r = If (c) <
            then_branch = yes () => (float[2, 3] u) {
                u = qonnx.custom_op.general.Quant <signed = 1, narrow = 1> (t, s, z, b) },
            else_branch = no () => (float[2, 3] v) { v = Neg (t) }>
        y = local.halved (r)
    }
    <domain: "local", opset_import: ["": 20]>
    halved (i) => (o) {
        k = Constant <value = float {0.5}> ()
        o = Mul (i, k)
    }"""


def make(name: str) -> Transform:
    return parse_spec(name + REQUIRED.get(name, ""))


@pytest.mark.parametrize("name", TRANSFORMS.names())
def test_a_pass_is_a_frozen_dataclass_with_documented_options(name):
    cls = TRANSFORMS.find(name)
    assert cls.name == name
    assert isinstance(cls.preserves, Exactness)
    info = describe(cls)
    assert info.summary
    assert all(option.help for option in info.options)
    assert all(field.metadata.get("help") for field in dataclasses.fields(cls))
    with pytest.raises(dataclasses.FrozenInstanceError):
        make(name).surprise = 1


@pytest.mark.parametrize("name", TRANSFORMS.names())
def test_a_model_without_quantizers_stays_as_it_is(name):
    model = load(ir.from_onnx_text(FLOAT))
    before = ir.to_onnx_text(model.ir)
    report = model.apply(make(name))
    assert report.count(SiteStatus.CHANGED) == 0
    assert ir.to_onnx_text(model.ir) == before


def outputs(model: Model) -> list[np.ndarray]:
    x = np.float32([[0.1, -0.3, 7], [0.125, 0.375, -9]])
    return [
        model.run({"x": x, "c": np.array(choice)}, backend="numpy")["y"] for choice in (True, False)
    ]


@pytest.mark.cases(fast=9, slow=22)
@pytest.mark.parametrize("name", TRANSFORMS.names())
def test_a_pass_keeps_values_names_and_validity_and_is_done_after_one_run(name):
    model = load(ir.from_onnx_text(QUANTIZED))
    expected = outputs(model)
    model.apply(make(name))
    onnx.checker.check_model(ir.to_proto(model.ir), full_check=True)
    for found, value in zip(outputs(model), expected, strict=True):
        np.testing.assert_array_equal(found, value)
    assert [value.name for value in model.ir.graph.inputs] == ["x", "c"]
    assert [value.name for value in model.ir.graph.outputs] == ["y"]
    once = ir.to_onnx_text(model.ir)
    assert model.apply(make(name)).count(SiteStatus.CHANGED) == 0
    assert ir.to_onnx_text(model.ir) == once


@pytest.mark.parametrize("name", TRANSFORMS.names())
def test_a_pass_runs_among_those_of_onnx_ir(name):
    model = ir.from_onnx_text(QUANTIZED)
    result = ir.passes.Sequential(make(name), ir.passes.common.RemoveUnusedNodesPass())(model)
    assert result.model.graph.outputs[0].name == "y"
