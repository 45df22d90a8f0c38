"""Types and shapes that follow, and quantizers that can be read because of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.graph.inference.walk import inferred
from qgraph.model import load
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.sites import sites
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect

CONSTANTS = """float[3] s = {0.25, 0.5, 0.1}, int8[3] z = {1, 2, 3},
    float[2,3,2] t = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}"""
BY_AXIS = "q = QuantizeLinear <axis = 1> (r, s, z) y = DequantizeLinear <axis = 1> (q, s, z)"
BY_BLOCK = """q = QuantizeLinear <axis = 2, block_size = 4> (r, t)
    y = DequantizeLinear <axis = 2, block_size = 4> (q, t)"""


def model_of(body: str, shape: str = "[2, 3, 8]") -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float{shape} x) => (float{shape} y) <{CONSTANTS}> {{ r = Relu (x) {body} }}"""
    )


def test_only_what_is_asked_for_is_inferred_and_forgotten_again():
    model = model_of(BY_AXIS)
    before = ir.to_proto(model)
    relu, codes, _ = model.graph
    with inferred(model, relu.outputs):
        assert tuple(relu.outputs[0].shape) == (2, 3, 8)
        assert codes.outputs[0].shape is None
    assert relu.outputs[0].shape is None
    assert relu.outputs[0].dtype is ir.DataType.FLOAT
    relu.outputs[0].type = None
    assert ir.to_proto(model) == before


def test_what_a_file_states_gives_way_to_what_follows_and_comes_back():
    model = model_of(BY_AXIS, "[2, N, 8]")
    value = model.graph[0].outputs[0]
    value.type, value.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape(["A", "B", 9])
    with inferred(model, [value]):
        assert value.dtype is ir.DataType.FLOAT
        assert str(value.shape) == "[2,B,8]", "an open size keeps its name"
    assert str(value.shape) == "[A,B,9]"
    assert value.dtype is ir.DataType.DOUBLE


def test_a_shape_that_does_not_follow_is_no_shape():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["": 21, "my": 1]>
        g (float[4] x) => (float[2,2] y) { r = my.Op (x) y = Neg (r) }""")
    r, y = (node.outputs[0] for node in model.graph)
    r.type, r.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([2, 2])
    with inferred(model, [r, y]):
        assert r.shape is None
        assert r.dtype is ir.DataType.FLOAT, "a type that does not follow stays"
        assert str(y.shape) == "[2,2]", "the interface of the model"


@pytest.mark.parametrize("scale", ["[2, 3, 8]", "[3, 8]", "[6, 8]"])
def test_a_wrong_rank_in_a_file_does_not_lead_a_conversion_astray(scale):
    model = load(model_of(BY_AXIS))
    relu = model.ir.graph[0].outputs[0]
    relu.type, relu.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(eval(scale))
    x = np.random.default_rng(0).normal(0, 8, (2, 3, 8)).astype(np.float32)
    expected = model.run({"x": x}, backend="numpy")["y"]
    report = model.apply(ConvertDialect(to="qonnx"))
    assert [entry.outcome for entry in report] == [SiteStatus.CHANGED]
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


def test_reading_leaves_the_model_as_it_is():
    model = model_of(BY_AXIS)
    before = ir.to_proto(model)
    (site,) = sites(model)
    assert isinstance(site, Site)
    assert site.shape == (2, 3, 8)
    assert ir.to_proto(model) == before


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize("to", ["qonnx", "openvino", "onnx"])
@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (BY_AXIS, "[2, 3, 8]"),
        (BY_AXIS, "[N, C, L]"),
        (BY_BLOCK, "[2, 3, 8]"),
        (BY_BLOCK, "[N,C,8]"),
    ],
)
def test_axes_and_blocks_are_placed_where_the_rank_follows(body, shape, to):
    model = load(model_of(body, shape))
    x = np.random.default_rng(0).normal(0, 8, (2, 3, 8)).astype(np.float32)
    expected = model.run({"x": x}, backend="numpy")["y"]
    report = model.apply(ConvertDialect(to=to))
    assert [entry.outcome for entry in report] == [SiteStatus.CHANGED], report
    assert report.exactness >= Exactness.VALUES
    np.testing.assert_array_equal(model.run({"x": x}, backend="numpy")["y"], expected)


@pytest.mark.parametrize(
    ("body", "shape", "reason"),
    [
        (BY_AXIS, "[]", "rank of 'r' is unknown and cannot be inferred"),
        (BY_BLOCK, "[2, 3, L]", "the size of 'r' along axis 2 is unknown"),
    ],
)
def test_what_does_not_follow_is_refused(body, shape, reason):
    (found,) = sites(model_of(body, shape))
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_of_a_model_of_mixed_types_the_type_is_learnt():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[4] x, double[4] d) => (float[4] y, double[4] e)
            <float s = {0.5}, int8 z = {0}> {
            r = Relu (x) q = QuantizeLinear (r, s, z) y = DequantizeLinear (q, s, z)
            e = Neg (d) }"""
    )
    assert model.graph[0].outputs[0].dtype is None
    (site,) = sites(model)
    assert isinstance(site, Site)
    assert site.x.dtype is ir.DataType.FLOAT
