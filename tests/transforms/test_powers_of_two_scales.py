"""Whether scales that are powers of two move without another value, at the ends of float32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import onnx
import pytest

import qgraph
from qgraph.exactness import Exactness
from qgraph.graph.edit import Editor
from qgraph.model import Model
from qgraph.ops.known_values import KnownValues
from qgraph.reports import SiteReport, SiteStatus
from qgraph.transforms.unit_scales import SeparateLimits, UnitScales
from qgraph.transforms.weights.magnitudes import magnitudes_before

TEXT = """<ir_version: 10, opset_import: ["": 23]>
    net (float[1,2,6,6] x) => (float y)
    <float s = {$DATA}, int8 z = {0}, float one = {1}, float t = {$STEP}, int8 u = {0},
     int8[3,2,1,1] w = {127, -127, 1, 3, -100, 0}, float[3] sw = {$WEIGHTS},
     float[3] b = {$BIAS}, float[3,1,1] k = {0.1, -0.2, 4},
     float low = {$LOW}, float high = {$HIGH}, int64[8] pads = {0, 0, 1, 1, 0, 0, 0, 0}> {
        q = QuantizeLinear (x, s, z)
        d = DequantizeLinear (q, s, z)
        $BEFORE
        v = DequantizeLinear <axis = 0> (w, sw)
        [layer] c = Conv (e, v, b)
        $BETWEEN
        [last] p = QuantizeLinear $HOW (r, $STAYS, u)
        y = DequantizeLinear (p, t, u)
    }"""
PLAIN = "r = Identity (c)"
MORE = """
        n = DequantizeLinear (g, t)
        c2 = Conv (m, n)
        r2 = Clip (c2, low, high)
        p2 = QuantizeLinear (r2, t, u)
        y = DequantizeLinear (p2, t, u)
    }"""


def network(
    *,
    data: float = 0.05,
    weights: Sequence[float] = (0.01, 0.02, 0.005),
    step: float = 0.125,
    bias: Sequence[float] = (0.3, -0.2, 0.1),
    between: str = PLAIN,
    before: str = "e = Identity (d)",
    limits: tuple[float, float] = (-0.5, 0.9),
    how: str = "",
    moved: bool = False,
    text: str = TEXT,
) -> Model:
    """Return a network; if ``moved``, with the step moved as the pass should do it."""
    if moved:
        weights, bias = ([each / step for each in one] for one in (weights, bias))
        limits = limits[0] / step, limits[1] / step
    parts = {"DATA": [data], "STEP": [step], "WEIGHTS": weights, "BIAS": bias}
    texts = {"BETWEEN": between, "BEFORE": before, "HOW": how, "STAYS": "one" if moved else "t"}
    texts |= {
        name: ", ".join(repr(float(number)) for number in each) for name, each in parts.items()
    }
    texts |= {"LOW": str(limits[0]), "HIGH": str(limits[1])}
    for name, value in texts.items():
        text = text.replace(f"${name}", value)
    return qgraph.load(onnx.parser.parse_model(text))


def results(model: Model, data: float = 0.05) -> np.ndarray:
    random = np.random.default_rng(7)
    codes = random.integers(-128, 128, (1, 2, 6, 6))
    codes[0, :, 0] = codes[0, :1, 0]  # products of w = 127, -127 cancel
    return model.run({"x": (codes * np.float64(data)).astype(np.float32)}, backend="numpy")["y"]


def moved(model: Model, **options: Exactness) -> SiteReport:
    (site,) = model.apply(UnitScales(**options)).sites
    return site


OVERFLOWING = [
    {"data": 2.0**60, "weights": (2.0**-5,) * 3, "step": 2.0**-63},  # after the change
    {"data": 2.0**62, "weights": (2.0**60,) * 3, "step": 2.0**100},  # before it
]
NONE = (0.0, 0.0, 0.0)
SUBNORMAL = [
    {  # before the change
        "data": 1.3 * 2.0**-80,
        "weights": (1.7 * 2.0**-77,) * 3,
        "step": 2.0**-60,
        "bias": NONE,
        "between": f"r = LeakyRelu <alpha = {2.0**90}> (c)",
    },
    {  # after it
        "data": 1.3 * 2.0**-50,
        "weights": (1.7 * 2.0**-26,) * 3,
        "step": 2.0**100,
        "bias": NONE,
        "between": f"h = LeakyRelu <alpha = {2.0**80}> (c) r = LeakyRelu <alpha = {2.0**80}> (h)",
    },
]


@pytest.mark.parametrize("numbers", OVERFLOWING)
def test_sums_that_may_overflow_keep_their_scale(numbers):
    data = numbers.get("data", 0.05)
    before, after = network(**numbers), network(**numbers, moved=True)
    assert (results(before, data) != results(after, data)).any()
    for level in (Exactness.VALUES, Exactness.NEAR):
        model = network(**numbers)
        site = moved(model, exact=level)
        assert site.outcome is SiteStatus.REFUSED
        assert "might exceed the range of float32" in str(site.reason)
        assert model.to_proto() == before.to_proto()


@pytest.mark.parametrize("numbers", SUBNORMAL)
def test_sums_that_may_become_subnormal_are_not_called_equal(numbers):
    before, after = network(**numbers), network(**numbers, moved=True)
    assert (results(before, numbers["data"]) != results(after, numbers["data"])).any()
    site = moved(before)
    assert site.outcome is SiteStatus.REFUSED
    assert "sums of Conv 'layer' may become subnormal" in str(site.reason)
    site = moved(before, exact=Exactness.NEAR)
    assert site.outcome is SiteStatus.CHANGED
    assert site.verdict is not None
    assert site.verdict.exactness is None
    np.testing.assert_array_equal(*(results(m, numbers["data"]) for m in (before, after)))


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"step": 2.0},
        {"step": 2.0**-10},
        {"step": 2.0**-70, "data": 2.0**-40, "weights": (2.0**-30,) * 3, "bias": NONE},
        {"weights": (0.01, 1e-9, 3e-13), "bias": (0.3, 1e-12, -1e-20)},
        {"bias": NONE},
        {"between": "r = Relu (c)"},
        {"between": "r = Clip (c, low, high)"},
        {"between": "r = Clip (c, , high)"},
        {"between": "r = Clip (c, low, high)", "limits": (0.0, 3e38), "step": 4.0},
        {"between": "h = Abs (c) r = LeakyRelu (h)"},
        {"between": "r = LeakyRelu <alpha = 0.0> (c)"},
        {"between": "h = LeakyRelu <alpha = 0.1> (c) r = PRelu (h, k)"},
        {"before": "e = Pad (d, pads)"},
        {"before": "e = Pad (d, pads, t)"},
        {"before": "e = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d)"},
        {"before": "f = Transpose <perm = [0, 1, 3, 2]> (d) e = Concat <axis = 2> (f, d)"},
    ],
)
def test_usual_networks_keep_all_values(numbers):
    model = network(**numbers)
    before = results(model, numbers.get("data", 0.05))
    site = moved(model)
    assert site.outcome is SiteStatus.CHANGED
    assert site.verdict is not None
    assert site.verdict.exactness is Exactness.VALUES
    np.testing.assert_array_equal(before, results(model, numbers.get("data", 0.05)))
    assert len(np.unique(before)) > 3


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"before": "g = Add (s, s) e = Pad (d, pads, g)"}, "range of the data or weights"),
        ({"how": "<precision = 10>"}, "divides in another type"),
    ],
)
def test_nothing_is_claimed_of_other_networks(numbers, reason):
    assert reason in str(moved(network(**numbers)).reason)


def test_equal_wherever_it_is_claimed():
    """For scales of all magnitudes, the results of execution agree with the claim."""
    random = np.random.default_rng(11)
    counts = Counter[SiteStatus]()
    for _ in range(150):
        exponents = random.uniform((-90, -70, -60), (90, 70, 60))
        data, weight, slope = 2.0**exponents
        reach = exponents.sum() if random.random() < 0.5 else exponents[:2].sum()
        step = 2.0 ** int(np.clip(np.rint(reach) + random.integers(0, 16), -120, 120))
        between = f"r = LeakyRelu <alpha = {slope}> (c)"
        model = network(data=data, weights=(weight,) * 3, step=step, bias=NONE, between=between)
        before = results(model, data)
        site = moved(model)
        counts[site.outcome] += 1
        np.testing.assert_array_equal(before, results(model, data))
    assert min(counts[SiteStatus.CHANGED], counts[SiteStatus.REFUSED]) > 20


def test_magnitudes_contain_all_exact_sums():
    model = network(data=0.3, weights=(0.07, 3e-7, 5e4), bias=(0.1, 0.0, -1e-3))
    known = KnownValues.of(model.ir.graph)
    (layer,) = model.nodes("Conv")
    *_, encode = model.nodes("QuantizeLinear")
    bounds = magnitudes_before(encode, layer, known)
    assert bounds is not None
    step = Fraction(float(np.float32(0.3)))
    weights = [[Fraction(float(v)) for v in np.ravel(row)] for row in known.array(layer.inputs[1])]
    biases = [Fraction(float(v)) for v in known.array(layer.inputs[2])]
    sums = [
        abs(a * x * step + b * z * step + bias)
        for (a, b), bias in zip(weights, biases, strict=True)
        for x, z in product((*range(-128, 128, 5), -1, 1, 127), repeat=2)
    ]
    assert max(sums) <= bounds.largest < 3 * max(sums)
    assert bounds.least <= min(each for each in sums if each)


def test_all_layers_are_replaced_at_once(monkeypatch):
    """One by one, constants that all layers share would be visited again for each."""
    calls: list[int] = []
    replace_all = Editor.replace_all

    def counted(self, drafts):
        listed = list(drafts)
        calls.append(len(listed))
        replace_all(self, listed)

    monkeypatch.setattr(Editor, "replace_all", counted)
    text = TEXT.replace("y = Deq", "m = Deq").replace(
        "int8 u =", "int8[1,3,1,1] g = {9, -5, 7}, int8 u ="
    )
    text = text.replace("    }", MORE)
    model = network(text=text, between="r = Clip (c, low, high)")
    before = results(model)
    assert model.apply(UnitScales()).count(SiteStatus.CHANGED) == 2
    assert calls == [7]  # a Clip and two quantizers of each layer, and the Conv with a bias
    np.testing.assert_array_equal(before, results(model))
    model = network(text=text, between="r = Clip (c, low, high)", limits=(0.0, 0.9))
    del calls[:]
    assert model.apply(SeparateLimits()).count(SiteStatus.CHANGED) == 2
    assert calls == [2]
