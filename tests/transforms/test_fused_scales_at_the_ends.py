"""Whether fused scales that are powers of two keep all values, at the ends of float32."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest

from qgraph.exactness import Exactness
from qgraph.graph.inference.walk import infer
from qgraph.model import Model, load
from qgraph.reports import SiteReport, SiteStatus
from qgraph.transforms.fuse_output_scale import FuseOutputScale
from qgraph.transforms.weights.multiples import Multiples, MultiplesTracer

pytestmark = pytest.mark.sums


def test_axes_that_do_not_exist_leave_a_range_unknown() -> None:
    model = ir.from_onnx_text("""<ir_version: 9, opset_import: ["": 18, "org.openvinotoolkit": 1]>
    g (uint8[1, 2, 1, 1] x) => (float[1, 2] y)
    <float low = {0}, float high = {25.5}, float top = {255}, float s = {0.5}, int64[1] axes = {9},
     int8[2, 2] c = {1, 0, 0, 1}> {
        v = DequantizeLinear (x, s) q = ReduceMean (v, axes)
        d = DequantizeLinear (c, s) m = MatMul (q, d) r = Relu (m)
        y = org.openvinotoolkit.FakeQuantize <levels = 256> (r, low, high, low, top)
    }""")
    assert load(model).apply(FuseOutputScale()).sites[-1].outcome is SiteStatus.REFUSED


@pytest.mark.parametrize("ends", ["", ", low, high", ", lows, highs", ", none, none"])
def test_a_faulty_quantizer_before_the_sums_is_of_unknown_range(ends: str) -> None:
    model = ir.from_onnx_text(f"""<ir_version: 9, opset_import: ["": 19, "org.openvinotoolkit": 1]>
    g (float[1, 2] x) => (float[1, 2] y)
    <float low = {{0}}, float high = {{25.5}}, float[2] highs = {{1, 2}},
     float[3] lows = {{0, 0, 0}}, float top = {{255}}, float s = {{0.5}},
     int8[2, 2] c = {{1, 0, 0, 1}}> {{
        none = Neg (high)
        q = org.openvinotoolkit.FakeQuantize <levels = 256> (x, low, high{ends})
        d = DequantizeLinear (c, s) m = MatMul (q, d) r = Relu (m)
        y = org.openvinotoolkit.FakeQuantize <levels = 256> (r, low, high, low, top)
    }}""")
    last = load(model).apply(FuseOutputScale()).sites[-1]
    assert last.outcome is SiteStatus.REFUSED


TEXT = """<ir_version: 9, opset_import: ["": 19, "org.openvinotoolkit": 1]>
    g ($INPUT) => (float y)
    <float s = {$DATA}, float[2, 3] w = {$WEIGHTS}, float[3] b = {$BIAS}, float k = {$FACTOR},
     float[2, 3] a = {1, 0, 0.3, 0.7, -1, 2}, int64[1] axes = {1},
     float[3] mean = {0.3, -0.1, 0}, float[3] var = {1.2, 0.7, 3}, float fl = {$FLOW},
     float fh = {$FHIGH}, float il = {0}, float ih = {$HIGH}, float ol = {0}, float oh = {255}> {
        $SOURCE
        m = MatMul (x, w)
        $BETWEEN
        y = org.openvinotoolkit.FakeQuantize <levels = 256> (v, il, ih, ol, oh)
    }"""
CODES = "int8[64, 2] i", "x = DequantizeLinear (i, s)"
FAKED = (
    "int8[64, 2] i",
    (
        "d = DequantizeLinear (i, s) "
        "x = org.openvinotoolkit.FakeQuantize <levels = 256> (d, fl, fh, fl, fh)"
    ),
)
FLOATS = "float[64, 2] x", ""


def network(
    *,
    source: tuple[str, str] = CODES,
    data: float = 0.05,
    weight: float = 0.01,
    bias: float = 0.0,
    factor: float = 1.0,
    step: float = 2.0**-4,
    between: str = "v = Add (m, b)",
) -> Model:
    weights = np.float64([1, 1.7, -1, -1, 1.3, 1]) * weight
    parts = {
        "DATA": [data], "WEIGHTS": weights, "BIAS": np.float64([1, -0.7, 0.3]) * bias,
        "FACTOR": [factor], "FLOW": [-128 * data], "FHIGH": [127 * data], "HIGH": [255 * step],
    }  # fmt: skip
    text = TEXT.replace("$INPUT", source[0]).replace("$SOURCE", source[1])
    text = text.replace("$BETWEEN", between)
    for name, numbers in parts.items():
        listed = ", ".join(repr(float(np.float32(number))) for number in numbers)
        text = text.replace(f"${name}", listed)
    return load(ir.from_onnx_text(text))


def results(model: Model, data: float = 1.0) -> np.ndarray:
    """Return the codes for random data, some of which have equal columns."""
    codes = np.random.default_rng(7).integers(-128, 128, (64, 2))
    codes[::4, 1] = codes[::4, 0]
    (value,) = model.inputs
    is_float = value.dtype is ir.DataType.FLOAT
    feed = codes.astype(np.float32) * np.float32(data) if is_float else codes.astype(np.int8)
    with np.errstate(all="ignore"):
        return model.run({value.name: feed}, backend="numpy")["y"]


def fused(model: Model, **options: Exactness) -> SiteReport:
    sites = model.apply(FuseOutputScale(**options)).sites
    return next(site for site in sites if site.node == "y")


LEAKY = "h = Add (m, b) v = LeakyRelu <alpha = 0.1> (h)"
NORM = "h = Relu (m) v = BatchNormalization (h, b, b, mean, var)"
MEAN = "h = Mul (m, k) g = Unsqueeze (h, axes) v = ReduceMean (g, axes)"
CLIP = "h = Clip (m, fl, fh) v = Max (h, k)"
USUAL = [
    {},
    {"source": FAKED},
    {"bias": 0.3},
    {"between": LEAKY, "bias": 0.3, "source": FAKED},
    {"between": NORM, "bias": 0.3},
    {"between": NORM, "bias": 0.3, "source": FAKED},
    {"between": "h = Mul (m, k) v = Relu (h)", "factor": 3.3},
    {"between": "h = Div (m, k) v = Add (h, b)", "factor": 0.3, "bias": 1e-6},
    {
        "between": "v = Sub (m, x2)",
        "source": (CODES[0], f"{CODES[1]} x2 = MatMul (x, a)"),
        "step": 2.0**-9,
    },
    {"between": CLIP, "factor": -0.03, "step": 2.0**-10},
    {"between": MEAN, "factor": 3.3},
    {"step": 2.0**-20, "weight": 1e-6},
    {"step": 2.0**9, "weight": 1e3},
]


@pytest.mark.parametrize("numbers", USUAL)
def test_usual_networks_keep_all_values(numbers):
    model = network(**numbers)
    before = results(model)
    site = fused(model)
    assert site.outcome is SiteStatus.CHANGED, site
    assert site.verdict is not None
    assert site.verdict.exactness is Exactness.VALUES
    np.testing.assert_array_equal(before, results(model))
    assert len(np.unique(before)) > 3


def test_floats_may_be_as_large_as_they_like():
    numbers = {"source": FLOATS, "weight": 1.0}
    before, after = network(**numbers), network(**numbers)
    site = fused(network(**numbers))
    assert (site.outcome, "range of their data" in str(site.reason)) == (SiteStatus.REFUSED, True)
    assert str(site.reason).endswith("exact=near accepts that")
    site = fused(after, exact=Exactness.NEAR)
    assert site.verdict is not None
    assert (site.outcome, site.verdict.exactness) == (SiteStatus.CHANGED, None)
    np.testing.assert_array_equal(*(results(m, 0.05) for m in (before, after)))
    # 1.7 * x exceeds float32 if it is multiplied by 16, and 1.3 * y too: infinity - infinity
    large = [results(m, 2.0**118) for m in (before, after)]
    assert np.isfinite(large[0]).all()
    assert np.isnan(large[1]).any() or (large[0] != large[1]).any()


def test_sums_that_may_overflow_keep_their_scale():
    numbers = {"data": 2.0**60, "weight": 2.0**55, "step": 2.0**-4}
    for level in (Exactness.VALUES, Exactness.NEAR):
        model = network(**numbers)
        site = fused(model, exact=level)
        assert site.outcome is SiteStatus.REFUSED
        assert "might exceed the range of float32" in str(site.reason)


def test_sums_that_may_become_subnormal_are_not_called_equal():
    numbers = {"data": 1.3 * 2.0**-70, "weight": 1.7 * 2.0**-70, "factor": 2.0**100}
    numbers |= {"step": 2.0**-40, "between": "h = LeakyRelu <alpha = 1.3e30> (m) v = Neg (h)"}
    site = fused(network(**numbers))
    assert site.outcome is SiteStatus.REFUSED
    assert "may become subnormal" in str(site.reason)


def test_equal_wherever_it_is_claimed():
    """For scales of all magnitudes, the results of execution agree with the claim."""
    random = np.random.default_rng(11)
    counts = Counter[str]()
    bodies = ["h = Mul (m, k) v = Add (h, b)", "h = Mul (m, k) v = LeakyRelu <alpha = 1e20> (h)"]
    bodies += ["h = BatchNormalization (m, b, b, mean, var) v = Neg (h)", "v = Div (m, k)"]
    for number in range(160):
        data, weight, factor = 2.0 ** random.uniform((-70, -70, -60), (60, 60, 60))
        body = bodies[number % len(bodies)]
        reach = data * weight * (1 / factor if "Div" in body else factor)
        reach *= 1e20 if "Leaky" in body else 1
        near = np.clip(np.rint(np.log2(reach)) + random.integers(-4, 12), -110, 110)
        numbers = {"data": data, "weight": weight, "factor": factor, "step": 2.0**near}
        numbers |= {"between": body, "bias": factor if "Batch" in body else 0.0}
        model = network(**numbers)
        before = results(model)
        site = fused(model)
        counts[site.outcome] += 1
        np.testing.assert_array_equal(before, results(model), err_msg=str(numbers))
    assert min(counts.values()) > 20


def test_all_numbers_are_multiples():
    """Exact sums of codes and weights, and rounded results, are multiples of the unit."""
    for numbers in ({}, {"source": FAKED}, {"between": LEAKY, "bias": 0.3},
                    {"between": NORM, "bias": 0.3}):  # fmt: skip
        model = network(**numbers)
        v = next(model.nodes("FakeQuantize" if "source" not in numbers else "MatMul")).inputs[0]
        bounds = MultiplesTracer(model.ir, infer(model.ir)).numbers(v)
        assert bounds is not None
        exposed = model.ir.clone()
        found = next(n for n in exposed.graph.all_nodes() if v.name in [o.name for o in n.outputs])
        exposed.graph.outputs[:] = list(found.outputs)
        feed = np.random.default_rng(5).integers(-128, 128, (64, 2)).astype(np.int8)
        y = next(iter(load(exposed).run({"i": feed}, backend="numpy").values()))
        for number in y.reshape(-1):
            assert Fraction(float(number)) % Fraction(bounds.unit) == 0
            assert abs(number) <= bounds.largest


def test_units_of_constants():
    for numbers, unit in (([0.75, 3], 0.25), ([2.0**-149], 2.0**-149), ([0, -6], 2), ([0], np.inf)):
        bounds = Multiples.of(np.float32(numbers))
        assert bounds is not None
        assert bounds.unit == unit
    assert Multiples.of(np.float32([np.nan])) is None
    assert Multiples.of(np.float32([np.inf, 4])) == Multiples(4.0, 4.0)
