"""Functions of one number that two models write with different operators."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import qgraph
from qgraph import Inputs, Tolerances
from qgraph.certificate import Certificate
from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.proof.bounds.distances import distance

STEP, ZERO = 0.02, 60
CODES = """<ir_version: 10, opset_import: ["": 20]>
    net (uint8[256,2] c) => (uint8[256,2] y)
    <float s = {0.03}, uint8 z = {100}, float t = {0.02}, uint8 u = {60}, float[2] f = {0.5, 1.5},
     float one = {1.0}, float two = {2.0}, float half = {0.5}, float zero = {0.0},
     float three = {3.0}, float six = {6.0}, float root = {1.4142135}> {
        d = DequantizeLinear (c, s, z)
        x = Mul (d, f)
        BODY
        y = QuantizeLinear (w, t, u)
    }"""
SUMS = CODES.replace("uint8[256,2] c", "uint8[256,8] c").replace(
    "x = Mul (d, f)",
    """k = Constant <value = float[8,2] {0.5, -0.2, 0.3, 0.1, -0.4, 0.2, 0.7, 0.6, 0.1, -0.9, 0.8,
        0.2, -0.3, 0.4, 0.2, 0.5}> () x = Gemm (d, k, f)""",
)
Function = Callable[[float], float]


def gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def gelu_by_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMS: dict[str, tuple[str, str, Function, Function]] = {
    "silu": (
        "g = Sigmoid (x) w = Mul (x, g)",
        "n = Neg (x) e = Exp (n) a = Add (one, e) w = Div (x, a)",
        lambda x: x / (1 + math.exp(-x)),
        lambda x: x / (1 + math.exp(-x)),
    ),
    "gelu": (
        "w = Gelu (x)",
        "q = Div (x, root) e = Erf (q) a = Add (e, one) m = Mul (x, a) w = Mul (m, half)",
        gelu,
        gelu,
    ),
    "two gelus": (
        "w = Gelu (x)",
        'w = Gelu <approximate = "tanh"> (x)',
        gelu,
        gelu_by_tanh,
    ),
    "hard swish": (
        "w = HardSwish (x)",
        "a = Add (x, three) b = Clip (a, zero, six) m = Mul (b, x) w = Div (m, six)",
        lambda x: x * min(max(x + 3, 0), 6) / 6,
        lambda x: x * min(max(x + 3, 0), 6) / 6,
    ),
    "mish": (
        "w = Mish (x)",
        "e = Exp (x) a = Add (e, one) l = Log (a) g = Tanh (l) w = Mul (g, x)",
        lambda x: x * math.tanh(math.log1p(math.exp(x))),
        lambda x: x * math.tanh(math.log1p(math.exp(x))),
    ),
    "tanh": (
        "w = Tanh (x)",
        "a = Mul (x, two) g = Sigmoid (a) b = Mul (g, two) w = Sub (b, one)",
        math.tanh,
        math.tanh,
    ),
    "maximum of data": (
        "g = Sigmoid (x) a = Abs (g) w = Max (a, x)",
        "n = Neg (x) e = Exp (n) a = Add (one, e) g = Reciprocal (a) w = Max (x, g)",
        lambda x: max(1 / (1 + math.exp(-x)), x),
        lambda x: max(1 / (1 + math.exp(-x)), x),
    ),
}


def proved(text: str, *bodies: str) -> tuple[Certificate, list[onnx.ModelProto]]:
    models = [onnx.parser.parse_model(text.replace("BODY", body)) for body in bodies]
    return qgraph.prove(*models, within="1step"), models


def codes_apart(models: list[onnx.ModelProto], data: np.ndarray) -> int:
    """Return how far the codes that ONNX Runtime computes lie apart."""
    sessions = [ort.InferenceSession(m.SerializeToString()) for m in models]
    ours, theirs = (s.run(None, {"c": data})[0].astype(np.int64) for s in sessions)
    return int(np.abs(ours - theirs).max())


@pytest.mark.cases(fast=2, slow=4)
@pytest.mark.runtime
@pytest.mark.parametrize("name", [name for name in FORMS if name != "hard swish"])
def test_functions_of_codes_lie_no_further_apart_than_the_bound(name: str) -> None:
    one, other, f, g = FORMS[name]
    certificate, models = proved(CODES, one, other)
    (bound,) = (region.bound for region in certificate.regions if region.bound is not None)
    assert certificate.verdict == "bounded"
    data = [factor * 0.03 * (code - 100) for code in range(256) for factor in (0.5, 1.5)]
    ends = [(-1 - ZERO) * STEP, (256 - ZERO) * STEP]  # beyond these, codes are clipped alike
    ours, theirs = (np.clip([function(x) for x in data], *ends) / STEP for function in (f, g))
    assert np.abs(ours - theirs).max() <= bound.deviation_steps
    assert bound.ideal_shift < 0.05
    every = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 2, axis=1)
    assert codes_apart(models, every) <= bound.max_steps == 1


@pytest.mark.slow
def test_arithmetic_on_codes_is_proved() -> None:
    certificate, _ = proved(CODES, *FORMS["hard swish"][:2])
    assert certificate.verdict == "proved"


@pytest.mark.cases(fast=1)
@pytest.mark.runtime
@pytest.mark.parametrize("name", ["silu", "gelu", "hard swish", "tanh"])
def test_functions_of_sums_lie_no_further_apart_than_the_bound(name: str) -> None:
    one, other, *_ = FORMS[name]
    certificate, models = proved(SUMS, one, other)
    (bound,) = (region.bound for region in certificate.regions if region.bound is not None)
    assert certificate.verdict == "bounded"
    data = np.random.default_rng(0).integers(0, 256, (256, 8), np.uint8)
    assert codes_apart(models, data) <= bound.max_steps == 1


def test_sums_of_such_functions_are_compared_too() -> None:
    weights = " k = Constant <value = float[2,2] {0.3, -0.7, 0.2, 0.5}> () w = MatMul (v, k)"
    bodies = [body.replace("w =", "v =") + weights for body in FORMS["hard swish"][:2]]
    certificate, _ = proved(CODES, *bodies)
    assert certificate.verdict == "bounded"


def test_functions_that_lie_a_step_apart_are_not_paired() -> None:
    # x * sigmoid(x) and the error function's Gelu are up to 0.2 apart, which is ten steps
    certificate, _ = proved(CODES, "w = Gelu (x)", "g = Sigmoid (x) w = Mul (x, g)")
    assert certificate.verdict == "undecided"


def test_elements_of_other_places_are_other_numbers() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
        net (uint8[4] c) => (uint8[4,4] y)
        <float s = {0.03}, uint8 z = {100}, float t = {0.02}, uint8 u = {60}, float one = {1.0},
         int64[1] axis = {1}, int64[2] sizes = {4, 4}> {
            x = DequantizeLinear (c, s, z)
            BODY
            y = QuantizeLinear (w, t, u)
        }"""
    column = "k = Unsqueeze (x, axis) g = Sigmoid (k) w = Mul (x, g)"
    same = "n = Neg (x) e = Exp (n) a = Add (one, e) q = Div (x, a) w = Expand (q, sizes)"
    assert proved(text, column, same)[0].verdict == "undecided"


def test_limits_of_codes_may_have_more_axes_than_the_functions():
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[N,1,2,2] x) => (uint8[N,1,2,2] y)
        <float s = {0.05}, uint8 z = {90}, float one = {1}, float[1,1,1,1] w = {0.3}> {
            c = QuantizeLinear (x, s, z)
            a = DequantizeLinear (c, s, z)
            m = Conv (a, w)
            q = QuantizeLinear (m, s, z)
            d = DequantizeLinear (q, s, z)
            FORM
            y = QuantizeLinear (r, s, z)
        }"""
    forms = (
        "t = Sigmoid (d) r = Mul (d, t)",
        "n = Neg (d) e = Exp (n) t = Add (e, one) r = Div (d, t)",
    )
    models = [ir.from_onnx_text(text.replace("FORM", form)) for form in forms]
    x = np.linspace(-6, 6, 64, dtype=np.float32).reshape(-1, 1, 2, 2)
    result = qgraph.check(*models, Inputs({"x": x}), tolerances=Tolerances(within="1step"))
    assert result.bounds is not None
    assert all(each.violated is None for each in result.bounds.segments)


def test_a_distance_is_that_of_its_own_sums():
    """Sums of the same data are joined to a sum that is deleted, whose place the next one takes."""
    atoms, one = Atoms(), np.ones(())

    def codes(serial: int, largest: float) -> Combination:
        return Combination.of(atoms.make("codes", serial, (), (-largest * one, largest * one)))

    def unchanged(name: str) -> Combination:
        ends = -128 * one, 128 * one
        return Combination.of(
            atoms.make("function", name, (x,), ends, between=lambda low, high: (low, high))
        )

    def product(weight: float) -> Combination:
        numbers = np.full((1, 1), weight), np.ones((1, 1))
        return Combination.of(atoms.make("sum", None, (z,), (-weight * one, weight * one), numbers))

    x, z = codes(1, 128.0), codes(2, 1.0)
    ours = unchanged("one").plus(x)
    weights = [2.0**n for n in range(10)] * 20
    others = [unchanged("other").plus(x).plus(product(w)).plus(product(w / 2)) for w in weights]
    found = [float(distance(ours, other).max()) for other in others]
    # ours is 2 x, the others are 2 x + 1.5 w z, and z is between -1 and 1
    farthest = [max(abs(w * z + w / 2 * z) for z in (-1, 0, 1)) for w in weights]
    assert all(real <= bound for real, bound in zip(farthest, found, strict=True))
    assert found == pytest.approx(farthest)
