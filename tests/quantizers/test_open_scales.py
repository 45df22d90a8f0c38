"""Drafts with an open scale: what they cannot depend on, and which quantizers share them."""

from __future__ import annotations

import operator as op
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.graph.edit import Editor
from qgraph.numerics.values import OpenScale, ScaleReadError
from qgraph.proof.functions.lowering import Forms
from qgraph.quantizers.compare import opened, spelled_once
from qgraph.quantizers.dialects.dialect import DIALECTS, Site
from qgraph.quantizers.sites import site_of, sites

ONE = np.float32(1)


@pytest.mark.parametrize(
    "read",
    [
        np.asarray,
        np.array,
        np.isfinite,
        np.zeros_like,
        np.sign,
        float,
        int,
        bool,
        list,
        lambda s: s == 1,
        lambda s: s != ONE,
        lambda s: s != 2,
        lambda s: np.maximum(s * ONE, ONE) != 1,
        partial(op.ne, ONE),
        lambda s: s > 0,
        lambda s: s * 2,
        lambda s: 2 * s,
        lambda s: np.float64(2) * s,
        lambda s: np.ones(2, np.float32) * s,
        lambda s: np.add(s, ONE),
        lambda s: np.multiply.reduce(s),
        lambda s: np.float32(1) / s,
        lambda s: s / ONE,
        lambda s: -s,
        lambda s: abs(s),
        lambda s: s.any(),
        lambda s: s.tobytes(),
        lambda s: s.item(),
        lambda s: s.min(),
        lambda s: s.reshape(1, 1),
        lambda s: s.reshape(-1),
        lambda s: s.astype(np.float16),
        lambda s: np.where(True, s, ONE),
        lambda s: np.broadcast_to(s, (2,)),
        lambda s: np.stack([s, s]),
    ],
)
def test_an_open_scale_has_no_value(read: Callable[[Any], object]) -> None:
    with pytest.raises(ScaleReadError):
        read(OpenScale())


def test_an_open_scale_has_a_type_and_a_shape() -> None:
    scale = OpenScale()
    assert (scale.dtype, scale.shape, scale.ndim, scale.size) == (np.float32, (), 0, 1)
    assert scale.reshape(()) is scale
    assert scale.astype(np.float32, copy=False) is scale
    assert (scale != 1).any()


@pytest.mark.parametrize("scale", [0.1, 3e38, -0.25, 2.0**-149, 0.0, -np.inf])
def test_products_and_extremes_are_computed_for_each_scale(scale: float) -> None:
    known, low, high = np.asarray(scale, np.float32), np.float32(-8), np.float32(7)
    with np.errstate(all="ignore"):
        number = np.maximum(low * OpenScale(), OpenScale() * high).at(known)
        expected = np.maximum(low * known, high * known)
    assert number.dtype == np.float32
    assert number.tobytes() == expected.tobytes()


QUANT = "qonnx.custom_op.general.Quant"
PAIR = "c{0} = QuantizeLinear (x, {1}, k) y{0} = DequantizeLinear (c{0}, {2}, k)"


def found(*quantizers: str) -> list[Site]:
    text = f"""<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>
    net (float[N, 4] x, float[N, 4, 1] w) => (float[N, 4] y)
    <float s = {{0.25}}, float t = {{0.1}}, float one = {{1}}, float[1] l = {{0.3}}, int8 k = {{1}},
     float z = {{0}}, float o = {{1}}, float b = {{4}}, float e = {{8}}, float u = {{0}},
     float v = {{-0.3}}>
    {{ {" ".join(each.format(i) for i, each in enumerate(quantizers))} y = Relu (x) }}"""
    listed = list(sites(ir.from_onnx_text(text)))
    assert len(listed) == len(quantizers)
    return [site for site in listed if isinstance(site, Site)]


def pair(quantize: str, dequantize: str) -> str:
    return PAIR.format("{0}", quantize, dequantize)


def forms_of(*quantizers: str) -> list[object]:
    forms = Forms()
    return [opened(site, forms) for site in found(*quantizers)]


def test_quantizers_that_differ_in_their_scale_have_one_form() -> None:
    a, b, c = forms_of(*(f"y{{0}} = {QUANT} (x, {scale}, z, b)" for scale in ("s", "t", "u")))
    assert a is not None
    assert a == b == c
    a, b = forms_of(pair("s", "s"), pair("t", "t"))
    assert a is not None
    assert a == b


@pytest.mark.parametrize(
    "make", [lambda s: f"y{{0}} = {QUANT} (x, {s}, z, b)", lambda s: pair(s, s)]
)
def test_quantizers_that_differ_in_their_scale_keep_it(make: Callable[[str], str]) -> None:
    scales = [0.25, 0.1, 0, -0.3, 0.1, 1]
    listed = found(*map(make, ("s", "t", "u", "v", "t", "one")))
    for site, scale in zip(listed, scales, strict=True):
        alone: Any = site_of(site.root)
        assert site.meaning.scale == np.float32(scale)
        assert (site.x, site.y, site.nodes) == (alone.x, alone.y, alone.nodes)
        assert repr(site.meaning) == repr(alone.meaning)
    assert listed[1].meaning is listed[4].meaning


@pytest.mark.parametrize(
    "other",
    [
        f"y{{0}} = {QUANT} (x, t, o, b)",
        f"y{{0}} = {QUANT} (x, t, z, e)",
        f"y{{0}} = {QUANT} <signed = 0> (x, t, z, b)",
        f"y{{0}} = {QUANT} <narrow = 1> (x, t, z, b)",
        f'y{{0}} = {QUANT} <rounding_mode = "FLOOR"> (x, t, z, b)',
        f"y{{0}} = {QUANT} (w, t, z, b)",
        f"y{{0}} = {QUANT} (x, l, z, b)",
        f"y{{0}} = {QUANT} (x, one, z, b)",
        f"y{{0}} = {QUANT} (x, t, t, b)",
        f"y{{0}} = {QUANT} (x, u, u, b)",
        pair("t", "t"),
        pair("s", "t"),
    ],
)
def test_quantizers_that_differ_in_more_have_other_forms(other: str) -> None:
    first, second = forms_of(f"y{{0}} = {QUANT} (x, s, z, b)", other)
    assert first is not None
    assert first != second


@pytest.mark.parametrize("to", ["qdq", "qonnx", "onnx", "openvino"])
@pytest.mark.parametrize(
    "make",
    [
        lambda scale: f"y{{0}} = {QUANT} (x, {scale}, z, b)",
        lambda scale: f"y{{0}} = {QUANT} <signed = 0> (x, {scale}, o, e)",
        lambda scale: pair(scale, scale),
    ],
)
def test_filled_drafts_are_those_that_are_written_for_the_scale(
    make: Callable[[str], str], to: str
) -> None:
    listed = found(make("s"), make("t"), make("v"))
    graph = listed[0].root.graph
    assert graph is not None
    editor = Editor(ir.Model(graph, ir_version=10))
    target = DIALECTS.find(to)
    if target.name == listed[0].dialect:
        pytest.skip("they are in this dialect")

    def spell(site: Site):
        return target.spellings(site, editor)

    shared = spelled_once([(site, iter(spell(site))) for site in listed], Forms(), spell)
    for site, drafts in zip(listed, shared, strict=True):
        ours, theirs = [draft.apart() for draft in drafts], list(spell(site))
        assert (ours[0].template is None) == (to == "openvino")
        assert [each.spelling for each in ours] == [each.spelling for each in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.opset == other.opset
            assert one.region is site
            for a, b in zip(one.nodes, other.nodes, strict=True):
                assert a.attributes == b.attributes
                for x, y in zip(a.inputs, b.inputs, strict=True):
                    assert (x in one.constants) == (y in other.constants)
                    if x is not None and x in one.constants and y is not None:
                        assert (x.name, x.dtype, x.shape) == (y.name, y.dtype, y.shape)
                        left, right = one.constants[x], other.constants[y]
                        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
