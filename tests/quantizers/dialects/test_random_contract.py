"""Random quantizers of every operator: written in any dialect and read back, none is wrong.

Two witnesses: the engine's verdict on the nodes, and the executor at thresholds and their
neighbours. What is refused is left exactly as it was.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, event, given, settings, strategies as st

from qgraph.exactness import Exactness
from qgraph.numerics.formats import FORMATS, numpy_dtype
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.numerics.rounding import Rounding
from qgraph.quantizers.dialects.dialect import DIALECTS as REGISTERED
from qgraph.reports import SiteStatus
from qgraph.transforms.convert import ConvertDialect
from tests.conformance.cells import DIALECTS, differences
from tests.conformance.quantizers import (
    GRANULARITIES,
    OPENVINO,
    OPSET,
    QONNX,
    Array,
    Quantizer,
    Row,
    Step,
    binades,
    build,
    halves,
    inputs,
    parameter,
)

positive = st.one_of(
    st.integers(-12, 4).map(lambda power: 2.0**power),
    st.floats(2.0**-10, 3, width=32),
    st.floats(2.0**-60, 2.0**60, width=32),
)
granularities = st.sampled_from(("tensor", "tensor", *GRANULARITIES[1:3]))
modes = st.sampled_from([Rounding.ROUND, *Rounding]).map(str)


@st.composite
def scales(draw: st.DrawFn, granularity: str) -> Array:
    count = 1 if granularity == "tensor" else 3
    return parameter(granularity, draw(st.lists(positive, min_size=count, max_size=count)))


def made(operator: str, granularity: str, steps: tuple[Step, ...], thresholds: Array) -> Quantizer:
    row = Row(operator, "input", granularity, "", 0, "", "")
    return Quantizer(row, steps, inputs(thresholds))


@st.composite
def quants(draw: st.DrawFn) -> Quantizer:
    granularity, bits = draw(granularities), draw(st.integers(1, 17))
    signed, narrow = draw(st.booleans()), draw(st.booleans())
    scale = draw(scales(granularity))
    reach = min(2**bits, 300)
    zero_point = draw(
        st.one_of(
            st.just(0.0),
            st.integers(-signed * reach // 2, reach).map(float),
            st.floats(-3, 3, width=32),
        )
    )
    attributes = {"signed": int(signed), "narrow": int(narrow), "rounding_mode": draw(modes)}
    lo = -(2.0 ** (bits - 1)) if signed else 0.0
    thresholds = (halves(lo, lo + 2.0**bits) - zero_point) * np.float64(scale)
    constants = (scale, np.float32(zero_point), np.float32(bits))
    return made("Quant", granularity, (Step("Quant", constants, attributes, QONNX),), thresholds)


@st.composite
def truncs(draw: st.DrawFn) -> Quantizer:
    granularity, bits = draw(granularities), draw(st.integers(1, 8))
    dropped, signed = draw(st.integers(0, 6)), draw(st.booleans())
    scale = draw(scales(granularity))
    zero_point = draw(st.one_of(st.just(0.0), st.integers(-20, 20).map(float)))
    attributes = {"signed": int(signed), "narrow": 0, "rounding_mode": draw(modes)}
    codes = np.arange(-4, 2.0**bits + 4, 0.5)[:80, None] * 2.0**dropped + [-0.5, 0, 0.5]
    wide = np.float32(bits + dropped)
    out = scale * np.float32(2.0**dropped * draw(st.sampled_from([1.0, 1.0, 1.1])))
    constants = (scale, np.float32(zero_point), wide, out, np.float32(bits))
    thresholds = (codes.ravel() - zero_point) * np.float64(scale)
    return made("Trunc", granularity, (Step("Trunc", constants, attributes, QONNX),), thresholds)


@st.composite
def float_quants(draw: st.DrawFn) -> Quantizer:
    granularity = draw(granularities)
    known = [(f.exponent_bits, f.mantissa_bits, f.bias, f.max_value) for f in MINIFLOATS.values()]
    widths = draw(st.sampled_from([*known, (4, 3, 7, 60.0), (3, 0, 2, 1e6), (4, 3, 7, 430.0)]))
    scale = draw(scales(granularity))
    attributes = {"has_inf": 0, "has_nan": 1, "rounding_mode": draw(modes)}
    step = Step("FloatQuant", (scale, *map(np.float32, widths)), attributes, QONNX)
    return made("FloatQuant", granularity, (step,), binades(widths) * np.float64(scale))


@st.composite
def fake_quantizes(draw: st.DrawFn) -> Quantizer:
    granularity = draw(granularities)
    levels = draw(st.sampled_from([2, 3, 15, 16, 17, 255, 256, 257, 1000, 65536]))
    scale = draw(scales(granularity))
    place = draw(st.one_of(st.just(0.0), st.integers(0, levels).map(float), st.floats(0, 20)))
    low = -np.float32(place) * scale
    high = np.float32(low + np.float32(levels - 1) * scale)
    if draw(st.integers(0, 9)) == 0:
        low, high = high, low
    out = (low, high)
    if draw(st.integers(0, 3)) == 0:
        out = (np.float32(draw(st.floats(-3, 0, width=32))), np.float32(levels - 1))
    thresholds = low + halves(0, levels - 1) / (levels - 1) * (np.float64(high) - low)
    step = Step("FakeQuantize", (low, high, *map(np.asarray, out)), {"levels": levels}, OPENVINO)
    return made("FakeQuantize", granularity, (step,), thresholds)


@st.composite
def pairs(draw: st.DrawFn) -> Quantizer:
    kind = draw(st.sampled_from(["INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4", "INT2"]))
    axis = draw(st.booleans())
    scale = draw(scales("axis" if axis else "tensor"))
    lo, hi = int(FORMATS[kind].lo), int(FORMATS[kind].hi)
    zero_point = draw(st.one_of(st.just(0), st.integers(max(lo, -200), min(hi, 300))))
    laid = scale.reshape(-1) if axis else scale
    codes = np.full(laid.shape, zero_point, numpy_dtype(kind))
    place = {"axis": 1} if axis else {}
    steps = [Step("QuantizeLinear", (laid, codes), place)]
    if "8" in kind and draw(st.booleans()):
        lo = draw(st.integers(lo, hi - 1))
        hi = draw(st.integers(lo + 1, hi))
        steps.append(Step("Clip", tuple(np.array(end, codes.dtype) for end in (lo, hi))))
    steps.append(Step("DequantizeLinear", (laid, codes), place))
    thresholds = (halves(lo, hi) - zero_point) * np.float64(scale)
    return made("Q+DQ", "axis" if axis else "tensor", tuple(steps), thresholds)


@st.composite
def bipolars(draw: st.DrawFn) -> Quantizer:
    granularity = draw(granularities)
    step = Step("BipolarQuant", (draw(scales(granularity)),), {}, QONNX)
    return made("BipolarQuant", granularity, (step,), np.zeros(1))


any_quantizer = st.one_of(
    quants(), fake_quantizes(), pairs(), float_quants(), truncs(), bipolars(), quants()
)


def check(quantizer: Quantizer, there: str, back: str) -> None:
    original = build([quantizer])
    model = original.clone()
    for to in (there, back):
        before = ir.to_proto(model.ir)
        report = model.apply(ConvertDialect(to=to, opset=OPSET))
        if not report.count(SiteStatus.CHANGED):
            assert ir.to_proto(model.ir) == before
        event(f"{quantizer.row.operator} to {to}: {'+'.join(sorted({e.outcome for e in report}))}")
        assert report.sites
        assert report.exactness >= Exactness.VALUES
        assert not differences(original, model, [quantizer])


quick = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.exhaustive
@quick
@given(any_quantizer, st.sampled_from(DIALECTS), st.sampled_from(DIALECTS))
def test_no_random_quantizer_is_converted_wrongly(quantizer, there, back):
    check(quantizer, there, back)


@pytest.mark.exhaustive
@settings(quick, max_examples=2000)
@given(any_quantizer, st.sampled_from(DIALECTS), st.sampled_from(DIALECTS))
def test_no_quantizer_of_thousands_is_converted_wrongly(quantizer, there, back):
    check(quantizer, there, back)


def test_all_dialects_are_tried():
    assert sorted(DIALECTS) == sorted({*REGISTERED.names()} & {*DIALECTS})
    assert len(DIALECTS) >= 4
