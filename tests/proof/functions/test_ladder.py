from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qgraph.exactness import Exactness
from qgraph.numerics.float32 import HIGHEST, LOWEST, to_keys
from qgraph.proof.functions.decide import decide
from qgraph.proof.functions.divisions import plateaus
from qgraph.proof.functions.expression import Builder, Expr
from qgraph.proof.functions.level import grade
from qgraph.proof.functions.pair import FunctionPair
from qgraph.reasons import Undecidable

ZERO = np.float32(0)


def _grade(reference: Expr, candidate: Expr) -> Exactness | None:
    return grade(decide(reference, candidate), FunctionPair(reference, candidate)).level


def _fake_quantize(b: Builder, low: Any, high: Any, levels: int, cones: SimpleNamespace) -> Expr:
    low, high = np.float32(low), np.float32(high)
    q = cones.fake_quantize_codes(b, b.input, low, high, levels)
    y = b.Add(b.Mul(b.Div(q, np.float32(levels - 1)), b.Sub(high, low)), low)
    y = b.Where(b.LessOrEqual(b.input, low), low, y)
    return b.Where(b.Greater(b.input, high), high, y)


def test_nothing_differs() -> None:
    b = Builder()
    y = b.Round(b.Min(b.Max(b.input, -8.0), 7.0))
    assert _grade(y, b.Mul(y, 1.0)) is Exactness.BITS


def test_nan_only(cones: SimpleNamespace) -> None:
    """QuantizeLinear has no NaN, so even where all numbers agree bit for bit, NaN does not."""
    b = Builder()
    s = np.float32(0.1)
    reference = cones.quant(b, b.input, s, ZERO, 0, 255)
    assert _grade(reference, cones.qdq(b, b.input, s, ZERO, 0, 255, "UINT8")) is Exactness.VALUES


def test_zero_signs(cones: SimpleNamespace) -> None:
    b = Builder()
    q = b.Round(b.Min(b.Max(b.input, -8.0), 7.0))
    assert _grade(q, b.Add(q, 0.0)) is Exactness.VALUES


def test_infinity_is_no_number_to_forget() -> None:
    b = Builder()
    q = b.Min(b.Max(b.Round(b.input), -8.0), 7.0)
    other = b.Where(b.Less(b.Abs(b.input), np.float32(np.inf)), q, 0.0)
    assert decide(q, other).differing == 0
    assert _grade(q, other) is Exactness.DIFFERENT


def test_levels_that_differ_by_an_ulp_keep_the_codes() -> None:
    b = Builder()
    s = np.float32(0.1)
    codes = b.Round(b.Min(b.Max(b.Div(b.input, s), -128.0), 127.0))
    nudged = np.nextafter(s, np.float32(1))
    assert _grade(b.Mul(codes, s), b.Mul(codes, nudged)) is Exactness.CODES


@pytest.mark.parametrize(("s", "z", "bits"), [(0.1, 128, 8), (0.25, 127, 8), (0.1, 7, 4)])
def test_zero_points_move_thresholds_by_ulps(cones: SimpleNamespace, s, z, bits) -> None:
    b = Builder()
    s, z, top = np.float32(s), np.float32(z), 2**bits - 1
    reference = cones.quant(b, b.input, s, z, 0, top)
    candidate = cones.qdq(b, b.input, s, z, 0, top, "UINT8")
    assert _grade(reference, candidate) is Exactness.NEAR
    assert _grade(candidate, reference) is Exactness.NEAR


def test_sixteen_bits_with_a_zero_point_are_near(cones: SimpleNamespace) -> None:
    b = Builder()
    s, z = np.float32(0.1), np.float32(32768)
    reference = cones.quant(b, b.input, s, z, 0, 65535)
    candidate = cones.qdq(b, b.input, s, z, 0, 65535, "UINT16")
    assert _grade(reference, candidate) is Exactness.NEAR


@pytest.mark.parametrize(
    ("low", "high", "zero_point", "expected"),
    [
        (-12.8, 12.7, 128, Exactness.NEAR),
        (0.0, 6.0, 0, Exactness.NEAR),
        (-1.0, 1.0, 128, Exactness.DIFFERENT),  # the true zero point is 127.5
    ],
)
def test_fake_quantize_as_a_pair(cones, low, high, zero_point, expected) -> None:
    b = Builder()
    reference = _fake_quantize(b, low, high, 256, cones)
    s = (np.float32(high) - np.float32(low)) / np.float32(255)
    candidate = cones.qdq(b, b.input, s, np.float32(zero_point), 0, 255, "UINT8")
    assert _grade(reference, candidate) is expected


def test_one_moved_threshold_of_a_minifloat_is_near() -> None:
    """Steps grow with the value, so each difference is measured by the steps around it."""
    b = Builder()
    cast = b.Cast(b.Cast(b.input, to="FLOAT8E4M3FN"), to="FLOAT")
    below = np.nextafter(np.float32(304), np.float32(0))
    between = b.And(b.GreaterOrEqual(b.input, below), b.Less(b.input, 304.0))
    assert _grade(cast, b.Where(between, 320.0, cast)) is Exactness.NEAR
    assert _grade(cast, b.Where(between, 352.0, cast)) is Exactness.DIFFERENT


def test_a_bipolar_threshold_may_move_by_ulps() -> None:
    b = Builder()
    signs = [b.Where(b.GreaterOrEqual(y, 0.0), 1.0, -1.0) for y in (b.input, b.Div(b.input, 2.0))]
    assert decide(*signs).differing == 1
    assert _grade(*signs) is Exactness.NEAR


@pytest.mark.cases(fast=3, slow=4)
@pytest.mark.parametrize(
    "change",
    [
        lambda b, q: b.Floor(b.Add(q, 0.5)),
        lambda b, q: b.Floor(q),
        lambda b, q: b.Min(b.Round(q), 6.0),
        lambda b, q: b.Round(b.Add(q, 0.25)),
        lambda b, q: b.Add(b.Round(q), 0.01),
        lambda b, q: q,
    ],
)
def test_other_functions_are_different_or_moved_only_at_ties(change) -> None:
    b = Builder()
    q = b.Min(b.Max(b.Div(b.input, np.float32(0.5)), -8.0), 7.0)
    candidate = change(b, q)
    tie_rule = candidate is b.Floor(b.Add(q, 0.5))
    expected = Exactness.NEAR if tie_rule else Exactness.DIFFERENT
    assert _grade(b.Round(q), candidate) is expected


def test_channels_are_measured_by_their_own_steps() -> None:
    b = Builder()
    s = np.float32([0.001, 1000.0])
    codes = b.Round(b.Min(b.Max(b.Div(b.input, s), -8.0), 7.0))
    fine = b.Mul(codes, s)
    assert _grade(fine, b.Add(fine, np.float32([0.0, 1.0]))) is Exactness.CODES
    assert _grade(fine, b.Add(fine, np.float32([0.001, 0.0]))) is Exactness.DIFFERENT


def test_an_undecided_finding_has_no_rung() -> None:
    b = Builder()
    assert _grade(b.Mul(b.input, 3.0), b.Mul(3.0, b.input)) is None


def test_plateaus_tile_the_line(cones: SimpleNamespace) -> None:
    """Rounding to even puts the first input of an odd step just above the midpoint."""
    b = Builder()
    found = plateaus(b.Round(b.Min(b.Max(b.input, -2.0), 2.0)), max_boxes=10_000)
    assert found.value.tolist() == [-2, -1, 0, 1, 2]
    assert found.lo[0] == LOWEST
    assert found.hi[-1] == HIGHEST
    assert (found.lo[1:] == found.hi[:-1] + 1).all()
    half = np.float32(0.5)
    assert found.lo[3] == to_keys(np.nextafter(half, np.float32(1)))
    assert found.hi[3] == to_keys(np.nextafter(np.float32(1.5), half))


def test_plateaus_of_a_line_are_refused() -> None:
    b = Builder()
    with pytest.raises(Undecidable):
        plateaus(b.Mul(b.input, 2.0), max_boxes=100_000)


def test_other_codes_are_counted_apart_from_rounding():
    b = Builder()
    step, nudged = np.float32(0.1), np.nextafter(np.float32(0.1), np.float32(1))
    reference = b.Mul(b.Min(b.Max(b.Round(b.input), 0.0), 1.0), step)
    threshold = np.float32(0.5) + 8 * np.spacing(np.float32(0.5))
    candidate = b.Mul(b.Where(b.GreaterOrEqual(b.input, threshold), 1.0, 0.0), nudged)
    finding = decide(reference, candidate)
    graded = grade(finding, FunctionPair(reference, candidate))
    # 0.5 is rounded to 0, so the seven floats behind it are another code; from the threshold to the
    # largest float, values are one float apart
    first, last = np.array([threshold, np.finfo(np.float32).max], np.float32).view(np.int32)
    assert finding.differing == 7 + int(last - first) + 1
    assert (graded.codes, graded.noise) == (7, 1)
    assert graded.noise_steps == pytest.approx(float(nudged - step) / float(step))
