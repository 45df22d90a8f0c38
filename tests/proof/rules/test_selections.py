"""Where that replaces the last or the first level of a quantizer, against its execution."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import qgraph
from qgraph.bound import Bounding
from qgraph.proof.bounds.paired_models import paired
from qgraph.proof.bounds.segments import Segment

HEAD = '<ir_version: 10, opset_import: ["": 21, "org.openvinotoolkit": 1]>'
TEXT = """HEAD net (float[N,2] x, float[N,2] other) => (float[N,2] y)
<float low = {LOW}, float width = {WIDTH}, float high = {HIGH}, float last = {LAST},
 float limit = {LIMIT}, float end = {END}, float one = {1}, uint8 z = {0}> {
    a = Sub (x, low) b = Div (a, width) c = Mul (b, last)
    q = QuantizeLinear (c, one, z) d = DequantizeLinear (q, one, z)
    e = Div (d, last) f = Mul (e, width) inside = Add (f, low)
    SELECTION
}"""
ABOVE = "t = Greater (x, limit) y = Where (t, end, inside)"
BELOW = "t = LessOrEqual (x, limit) y = Where (t, end, inside)"
TURNED = "t = LessOrEqual (x, limit) y = Where (t, inside, end)"
SWAPPED = "t = Less (limit, x) y = Where (t, end, inside)"


def model(
    low: float, high: float, selection: str = ABOVE, *, limit: float | None = None, end: float = 0.0
) -> onnx.ModelProto:
    low, high = np.float32(low), np.float32(high)
    ends = high if limit is None else np.float32(limit), end or high
    numbers = {
        "LOW": low, "WIDTH": high - low, "HIGH": high, "LAST": 255, "LIMIT": ends[0], "END": ends[1]
    }  # fmt: skip
    text = TEXT.replace("HEAD", HEAD).replace("SELECTION", selection)
    for name, number in numbers.items():
        text = text.replace("{" + name + "}", "{" + repr(float(number)) + "}")
    return onnx.parser.parse_model(text)


def end_of(proto: onnx.ModelProto) -> Segment:
    """Return the bound of the output of a model against itself, given equal codes."""
    return paired((qgraph.load(proto).ir,) * 2, Bounding()).segments[-1]


def adverse(low: float, high: float, limit: float) -> np.ndarray:
    """Return data around all thresholds, limits and zeros, and random data."""
    levels = np.arange(-2, 258, 0.5)
    near = np.float32(low + levels * (float(high) - float(low)) / 255)
    ends = np.float32([low, high, limit, 0.0, -0.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38])
    around = np.concatenate([near, ends])
    steps = [around]
    for end in (np.float32(np.inf), np.float32(-np.inf)):
        moved = around
        for _ in range(3):
            moved = np.nextafter(moved, end)
            steps.append(moved)
    random = np.random.default_rng(0).uniform(1.5 * low - 0.5 * high, 1.5 * high - 0.5 * low, 500)
    values = np.concatenate([*steps, random]).astype(np.float32)
    return values[np.isfinite(values)][: values.size // 2 * 2]


def run(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options)
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict.fromkeys(names, x))


def largest_error(proto: onnx.ModelProto, low: float, high: float, limit: float) -> float:
    """Return how far results are from the real numbers that the formula gives for their codes."""
    x = adverse(low, high, limit).reshape(-1, 2)
    proto.graph.output.append(
        onnx.helper.make_tensor_value_info("q", onnx.TensorProto.UINT8, ["N", 2])
    )
    y, codes = run(proto, x)
    span = Fraction(float(np.float32(high) - np.float32(low)))
    bottom = Fraction(float(np.float32(low)))
    table = [float(code * span / 255 + bottom) for code in range(256)]
    return float(np.abs(y.astype(np.float64) - np.take(table, codes)).max())


RANGES = [(-2.92044, 3.18376), (-3.44664, 3.21164), (-3.66115, 3.1534), (0.5, 0.75), (-7.1, -0.3)]


def all_ranges(count: int) -> list[tuple[float, float]]:
    generator = np.random.default_rng(count)
    ends = np.float32(generator.uniform(-8, 8, (count, 2))) * np.float32(
        2.0 ** generator.integers(-60, 60, (count, 1))
    )
    return RANGES + [(float(min(a, b)), float(max(a, b))) for a, b in ends]


@pytest.mark.parametrize("selection", [ABOVE, TURNED, SWAPPED])
def test_results_stay_within_the_bound_of_the_last_level(selection):
    for low, high in all_ranges(12):
        proto = model(low, high, selection)
        segment = end_of(proto)
        assert segment.reason is None
        error = float(np.max(segment.reference_error))
        assert largest_error(proto, low, high, high) <= error
        assert error <= (abs(low) + abs(high)) * 2.0**-20  # a few ulps


@pytest.mark.exhaustive
def test_results_of_many_ranges_stay_within_the_bound():
    bounded = 0
    for low, high in all_ranges(400):
        proto = model(low, high)
        segment = end_of(proto)
        if segment.reason is None:
            bounded += 1
            assert largest_error(proto, low, high, high) <= float(np.max(segment.reference_error))
    assert bounded > 390  # all but ranges far from 0 whose steps are a few ulps


def test_a_first_level_of_any_value_is_in_the_bound():
    proto = model(-1.0, 3.0, BELOW, limit=-1.0, end=-1.25)
    error = float(np.max(end_of(proto).reference_error))
    assert largest_error(proto, -1.0, 3.0, -1.0) == 0.25
    assert 0.25 <= error <= 0.2501


def test_limits_below_the_last_threshold_have_no_bound():
    """The last threshold is at 254.5 steps: above it, all results are equal."""
    low, high = -2.92044, 3.18376
    step = (high - low) / 255
    found = {}
    for steps in (0, 127.3, 254.4, 254.499, 254.51, 254.9, 255.7):
        limit = low + steps * step
        proto = model(low, high, limit=limit)
        segment = end_of(proto)
        found[steps] = segment.reason is None
        if found[steps]:
            assert largest_error(proto, low, high, limit) <= float(np.max(segment.reference_error))
    assert found == {s: s > 254.5 for s in found}


@pytest.mark.parametrize(
    "selection",
    [
        "t = Greater (other, limit) y = Where (t, end, inside)",
        "t = Equal (x, limit) y = Where (t, end, inside)",
        "t = Less (x, limit) y = Where (t, end, inside)",
        "t = Greater (x, limit) y = Where (t, inside, end)",
        "m = Neg (inside) t = Greater (x, limit) y = Where (t, other, m)",
        "s = Add (inside, other) t = Greater (x, limit) y = Where (t, end, s)",
        "s = Add (inside, x) t = Greater (x, limit) y = Where (t, end, s)",
    ],
)
def test_other_selections_have_no_bound(selection):
    segment = end_of(model(-2.92044, 3.18376, selection))
    assert "no bound for" in str(segment.reason)


def test_falling_functions_are_constant_above_a_limit_too():
    proto = model(
        -2.0, 3.0, "m = Neg (inside) t = Greater (x, limit) y = Where (t, end, m)", end=-3
    )
    segment = end_of(proto)
    assert segment.reason is None
    x = adverse(-2.0, 3.0, 3.0).reshape(-1, 2)
    (y,) = run(proto, x)
    assert np.abs(y + np.clip(x, -2, 3)).max() <= 2.5 / 255 + float(np.max(segment.reference_error))


CLAMPED = """HEAD net (float[N,2] x) => (float[N,2] y)
<float zero = {0}, float six = {6}, float seven = {7}, float s = {0.0625}, uint8 z = {0}> {
    w = Add (x, seven)
    NODES
    q = QuantizeLinear (v, s, z) y = DequantizeLinear (q, s, z)
}"""
CLIP = "v = Clip (w, zero, six)"
HIGH = "t = Greater (w, six) a = Where (t, TOP, w)"
LOW = "u = Less (a, zero) v = Where (u, zero, a)"


def first_of(*nodes: str) -> Segment:
    models = [CLAMPED.replace("HEAD", HEAD).replace("NODES", each) for each in nodes]
    one, other = (qgraph.load(onnx.parser.parse_model(text)).ir for text in models)
    return paired((one, other), Bounding()).segments[0]


TURNED_CLAMP = "t = LessOrEqual (w, six) a = Where (t, w, TOP) u = Less (zero, a) "


@pytest.mark.parametrize("nodes", [f"{HIGH} {LOW}", f"{TURNED_CLAMP} v = Where (u, a, zero)"])
def test_a_clamp_by_comparison_is_a_limit(nodes):
    segment = first_of(CLIP, nodes.replace("TOP", "six"))
    assert segment.reason is None
    assert segment.steps() == first_of(CLIP, CLIP).steps()
    assert segment.shift.max() < 1e-9
    assert not segment.extra.any()


def test_a_selected_constant_beside_the_limit_is_none():
    """It may be 16 steps beyond, so the data have a jump."""
    segment = first_of(CLIP, f"{HIGH.replace('TOP', 'seven')} {LOW}")
    assert segment.reason is not None or segment.steps() >= 16
