"""Quantizers with parameters without elements, and with infinite ones, stay as they are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.reports import SiteStatus
from qgraph.transforms.base import parse_spec

EMPTY = """<ir_version: 9, opset_import: ["": 19]> g (float[2,0,3] x) => (float[2,0,3] y)
    <float k = {1.5}> {
        q = QuantizeLinear <axis = 1> (x, s, z)
        d = DequantizeLinear <axis = 1> (q, s, z)
        y = Max (d, k)
    }"""


@pytest.mark.parametrize("dialect", ["qonnx", "openvino", "onnx"])
def test_scales_along_an_empty_axis_stay(dialect):
    proto = onnx.parser.parse_model(EMPTY)
    for name, kind in (("s", np.float32), ("z", np.int8)):
        empty = onnx.numpy_helper.from_array(np.zeros(0, kind), name)
        proto.graph.initializer.append(empty)
    model = qgraph.load(proto)
    (site,) = model.apply(parse_spec(f"convert{{to={dialect}}}")).sites
    assert (site.outcome, "has no elements" in str(site.reason)) == (SiteStatus.REFUSED, True)
    y = model.run({"x": np.zeros((2, 0, 3), np.float32)}, backend="numpy")["y"]
    assert y.shape == (2, 0, 3)


INFINITE = """<ir_version: 8, opset_import: ["": 13]> g (float[4] x) => (float[4] y)
    <float s = {1}, uint8 z = {0}, float t = {0.25}, uint8 u = {128}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        v = Div (d, k)
        p = QuantizeLinear (v, t, u)
        y = DequantizeLinear (p, t, u)
    }"""


@pytest.mark.parametrize("spec", ["float-products", "keep-roundings", "plain-pairs"])
def test_an_infinite_divisor_is_no_number_of_levels(spec):
    proto = onnx.parser.parse_model(INFINITE)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(np.inf), "k"))
    model = qgraph.load(proto)
    model.apply(parse_spec(spec))
    y = model.run({"x": np.float32([0, 1, 300, -5])}, backend="numpy")["y"]
    np.testing.assert_array_equal(y, np.zeros(4))
