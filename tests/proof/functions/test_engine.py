from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from qgraph.errors import UnsupportedError
from qgraph.numerics import float32 as environment
from qgraph.numerics.float32 import HIGHEST, NEGATIVE_INFINITY, from_keys, to_keys
from qgraph.proof.functions import search
from qgraph.proof.functions.decide import PairFinding, decide
from qgraph.proof.functions.expression import Builder, evaluate

S = np.float32(0.1)


def _equal(finding: PairFinding) -> bool:
    return finding.undecided is None and not (finding.differing or finding.infinity_differs)


def test_the_same_expression_is_not_evaluated() -> None:
    b = Builder()
    finding = decide(b.Round(b.input), b.Round(b.input))
    assert (finding.boxes, finding.differing, finding.undecided) == (0, 0, None)


def test_a_number_minus_itself_is_zero_unless_it_is_infinite() -> None:
    b = Builder()
    x, clamped = b.input, b.Min(b.Max(b.input, -8.0), 7.0)
    assert evaluate(b.Sub(x, x), np.array([-2, -0.0, 3e38], np.float32)).tobytes() == bytes(12)
    assert np.isnan(evaluate(b.Sub(x, x), np.array([np.inf, np.nan], np.float32))).all()
    finding = decide(b.Add(b.Floor(clamped), b.Sub(clamped, clamped)), b.Floor(clamped))
    assert _equal(finding)
    assert decide(b.Add(b.Floor(x), b.Sub(x, x)), b.Floor(x)).infinity_differs


def test_signed_pair_differs_in_the_sign_of_zero_only(cones: SimpleNamespace) -> None:
    """The count is that of an enumeration of all 2**32 inputs."""
    b = Builder()
    finding = decide(
        cones.quant(b, b.input, S, np.float32(0), -128, 127),
        cones.qdq(b, b.input, S, np.float32(0), -128, 127, "INT8"),
    )
    assert _equal(finding)
    assert finding.zero_sign == 1_028_443_341
    assert not finding.infinity_sign_differs
    assert finding.nan_differs
    witness = finding.witness
    assert witness is not None
    assert np.signbit(witness.reference) != np.signbit(witness.candidate)


def test_unsigned_pair_is_equal_bit_for_bit(cones: SimpleNamespace) -> None:
    b = Builder()
    finding = decide(
        cones.quant(b, b.input, S, np.float32(0), 0, 255),
        cones.qdq(b, b.input, S, np.float32(0), 0, 255, "UINT8"),
    )
    assert _equal(finding)
    assert finding.zero_sign == 0


def test_runs_are_exactly_the_differing_inputs(cones: SimpleNamespace) -> None:
    """Each run differs, its neighbours do not, and the counts add up to an enumerated count."""
    b = Builder()
    z, s = np.float32(127), np.float32(0.25)
    reference = cones.quant(b, b.input, s, z, 0, 255)
    candidate = cones.qdq(b, b.input, s, z, 0, 255, "UINT8")
    finding = decide(reference, candidate)
    runs = finding.runs
    assert finding.differing == (runs.hi - runs.lo + 1).sum() == 1150
    for keys in (runs.lo, runs.hi):
        x = from_keys(keys)
        assert (evaluate(reference, x) == runs.reference).all()
        assert (evaluate(candidate, x) == runs.candidate).all()
    for keys in (runs.lo - 1, runs.hi + 1):
        x = from_keys(keys)
        assert (evaluate(reference, x) == evaluate(candidate, x)).all()
    witness = finding.witness
    assert witness is not None
    x = np.float32(witness.input)
    assert evaluate(reference, x) == np.float32(witness.reference) != witness.candidate


def test_channels_are_counted_and_equal_ones_decided_once(cones: SimpleNamespace) -> None:
    b = Builder()
    scales = np.float32([0.1, 0.25, 0.1, 0.1])[:, None]
    z = np.float32(128)
    pair = [f(b, b.input, scales, z, 0, 255) for f in (cones.quant_codes, cones.linear_codes)]
    finding = decide(*pair)
    assert finding.channels == 4
    assert finding.differing == 3 * 912 + 831
    assert set(finding.runs.channel.tolist()) == {0, 1}
    assert (finding.runs.hi - finding.runs.lo + 1)[finding.runs.channel == 0].sum() == 912


def test_one_different_channel_is_named() -> None:
    b = Builder()
    limits = np.float32([1, 2, 3, 4])
    others = np.where(limits == 3, np.float32(3.5), limits)
    pair = [b.Round(b.Min(b.Max(b.input, -9.0), limit)) for limit in (limits, others)]
    finding = decide(*pair)
    assert finding.witness_channel == 2
    assert finding.infinity_differs
    assert finding.at_infinity.channel.tolist() == [2]


@pytest.mark.slow
def test_differing_stretches_need_no_plateaus() -> None:
    """A quantizer against its input: nearly all inputs differ, which boxes show as they are."""
    b = Builder()
    clipped = b.Min(b.Max(b.input, -8.0), 7.0)
    finding = decide(b.Round(clipped), clipped)
    whole = 13 + 2  # -7 to 6, zero with both signs
    beyond = sum(HIGHEST - int(to_keys(np.float32(end))) + 1 for end in (8, 7))
    assert finding.undecided is None
    assert finding.differing == 2 * (HIGHEST + 1) - whole - beyond


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: (b.Add(x, x), b.Mul(x, 2.0)),
        lambda b, x: (b.Mul(x, 3.0), b.Mul(3.0, x)),
    ],
)
def test_what_is_no_step_function_is_given_up_early(make) -> None:
    b = Builder()
    finding = decide(*make(b, b.input))
    assert finding.undecided is not None
    assert "no step function" in finding.undecided
    assert finding.boxes < 1 << 20


@pytest.mark.parametrize("factor", [1, -1, 3])
@pytest.mark.parametrize("levels", [1, 3, 15, 255, 700, 5000])
def test_boxes_are_split_at_all_thresholds_first(levels: int, factor: int, monkeypatch) -> None:
    """With few boxes, and without this, a comparison finds the same; samples show 1,024 inputs."""
    b = Builder()
    scale, other = np.float32([0.1, 0.3, 7]), np.float32([0.1, 0.3, 7.0000005])
    code = b.Mul(b.Div(b.input, scale), np.float32(factor))
    codes = b.Min(b.Max(b.Round(code), np.float32(0)), np.float32(levels))
    late = b.Round(b.Min(b.Max(code, np.float32(0)), np.float32(levels)))
    pair = b.Mul(codes, scale), b.Mul(late, other)
    found = decide(*pair)
    monkeypatch.setattr(search, "_FEW", 0)
    step_by_step = decide(*pair)
    assert found.differing > 0
    for runs in zip(vars(found.runs).values(), vars(step_by_step.runs).values(), strict=True):
        np.testing.assert_array_equal(*runs)
    assert replace(found, boxes=0, runs=None) == replace(step_by_step, boxes=0, runs=None)
    if levels in (15, 255) and factor == 1:
        assert found.boxes < step_by_step.boxes


def test_a_limit_on_boxes_is_kept(cones: SimpleNamespace) -> None:
    b = Builder()
    pair = [
        f(b, b.input, S, np.float32(1), 0, 255) for f in (cones.quant_codes, cones.linear_codes)
    ]
    finding = decide(*pair, max_boxes=100)
    assert finding.undecided is not None
    assert "boxes" in finding.undecided


def test_an_infinity_whose_result_is_left_open_is_no_difference() -> None:
    b = Builder()
    x = b.Mul(b.input, 0.0)  # NaN at the infinities, which no integer type has
    one, other = (b.Cast(b.Cast(x, to=kind), to="FLOAT") for kind in ("INT8", "INT32"))
    finding = decide(one, other)
    assert finding.undecided is not None
    assert "leaves open" in finding.undecided
    assert not finding.infinity_differs


def test_a_cast_out_of_range_is_undecided_and_a_shielded_one_is_not() -> None:
    b = Builder()
    rounded = b.Round(b.input)
    finding = decide(b.Cast(rounded, to="INT8"), b.Min(b.Max(rounded, -128.0), 127.0))
    assert finding.undecided is not None
    assert "leaves open" in finding.undecided
    codes = b.Cast(
        b.Cast(b.Where(b.Less(b.Abs(rounded), 100.0), rounded, 0.0), to="INT8"), to="FLOAT"
    )
    taken = b.Where(
        b.Less(b.Abs(rounded), 100.0), b.Cast(b.Cast(rounded, to="INT8"), to="FLOAT"), 0.0
    )
    assert _equal(decide(codes, taken))


def test_relu_leaves_the_sign_of_zero_open(cones: SimpleNamespace) -> None:
    """Quant returns -0, its pair +0; ONNX does not say what Relu makes of -0."""
    b = Builder()
    finding = decide(
        b.Relu(cones.quant(b, b.input, S, np.float32(0), -128, 127)),
        b.Relu(cones.qdq(b, b.input, S, np.float32(0), -128, 127, "INT8")),
    )
    assert _equal(finding)
    assert finding.zero_sign == 1_028_443_341


def test_a_zero_of_open_sign_as_denominator_is_undecided() -> None:
    b = Builder()
    step = b.Max(b.Round(b.input), 0.0)
    finding = decide(b.Sign(b.Div(1.0, step)), b.Sign(b.Div(2.0, step)))
    assert finding.undecided is not None


@pytest.mark.parametrize(("rounding", "signs"), [("half away", False), ("down", True)])
def test_roundings_that_use_the_input_twice(rounding: str, signs: bool) -> None:
    b = Builder()
    y = b.Min(b.Max(b.Div(b.input, S), -8.0), 7.0)
    if rounding == "half away":
        one = b.Mul(b.Sign(y), b.Floor(b.Add(b.Abs(y), 0.5)))
        other = b.Where(b.Less(y, 0.0), b.Ceil(b.Sub(y, 0.5)), b.Floor(b.Add(y, 0.5)))
    else:
        one = b.Mul(b.Sign(y), b.Floor(b.Abs(y)))
        other = b.Where(b.Less(y, 0.0), b.Ceil(y), b.Floor(y))
    finding = decide(one, other)
    assert _equal(finding)
    assert bool(finding.zero_sign) == signs


def test_hardswish_before_a_quantizer(cones: SimpleNamespace) -> None:
    """The input enters twice; -Inf * 0 is NaN, which has no code, so -Inf differs."""
    b = Builder()
    gate = b.Min(b.Max(b.Add(b.input, 3.0), 0.0), 6.0)
    y = b.Div(b.Mul(b.input, gate), 6.0)
    s = np.float32(0.0371)
    finding = decide(
        cones.quant(b, y, s, np.float32(0), -128, 127),
        cones.qdq(b, y, s, np.float32(0), -128, 127, "INT8"),
    )
    assert finding.undecided is None
    assert finding.differing == 0
    assert finding.at_infinity.lo.tolist() == [NEGATIVE_INFINITY]


def test_minifloat_cast_against_arithmetic_on_its_grid() -> None:
    """E4M3FN by an exact power of two, as FloatQuant does it, and by Cast."""
    b = Builder()
    v = b.Div(b.input, np.float32(0.37))
    power = b.Cast(b.Cast(b.Abs(v), to="FLOAT8E8M0", round_mode="down"), to="FLOAT")
    step = b.Mul(b.Max(power, 2.0**-6), 2.0**-3)
    grid = b.Min(b.Max(b.Mul(b.Round(b.Div(v, step)), step), -448.0), 448.0)
    finding = decide(grid, b.Cast(b.Cast(v, to="FLOAT8E4M3FN"), to="FLOAT"))
    assert _equal(finding)
    assert finding.zero_sign == 0


def test_nan_against_the_largest_number_is_a_difference_throughout() -> None:
    b = Builder()
    nan, saturated = (
        b.Cast(b.Cast(b.input, to="FLOAT8E4M3FN", saturate=s), to="FLOAT") for s in (0, 1)
    )
    finding = decide(nan, saturated)
    assert finding.undecided is None
    last = np.float32(464)  # the tie that goes to 448
    beyond = 2 * int(to_keys(np.finfo(np.float32).max) - to_keys(last))
    assert finding.differing == beyond
    assert len(finding.runs) == 2
    assert np.isnan(finding.runs.reference).all()
    assert finding.runs.candidate.tolist() == [-448, 448]
    assert from_keys(finding.runs.lo[1:]) == np.nextafter(last, np.float32(np.inf))


@pytest.mark.parametrize("zero_point", [0, 128])
def test_until_a_difference_less_is_looked_at_and_the_same_is_said(cones, zero_point) -> None:
    b = Builder()
    reference = cones.quant(b, b.input, S, np.float32(zero_point), 0, 255)
    pair = cones.qdq(b, b.input, S, np.float32(zero_point), 0, 255, "UINT8")
    whole, short = (decide(reference, pair, until_difference=until) for until in (False, True))
    assert bool(short.differing) == bool(whole.differing) == bool(zero_point)
    if zero_point:
        assert short.boxes < whole.boxes
        assert short.witness is not None
        ends = [evaluate(e, np.float32(short.witness.input)) for e in (reference, pair)]
        assert ends[0] != ends[1]
    else:
        assert short.zero_sign == whole.zero_sign


def test_a_table_of_values_against_its_formula(cones: SimpleNamespace) -> None:
    b = Builder()
    codes = cones.fake_quantize_codes(b, b.input, np.float32(-0.73), np.float32(1.21), 16)
    values = b.Add(b.Mul(codes, np.float32(0.13)), np.float32(-0.73))
    table = np.arange(16, dtype=np.float32) * np.float32(0.13) + np.float32(-0.73)
    index = b.Cast(b.Where(b.IsNaN(codes), 0.0, codes), to="INT32")
    finding = decide(values, b.Gather(table, index))
    assert _equal(finding)
    assert finding.nan_differs
    table[5] = np.nextafter(table[5], np.float32(9))
    assert len(decide(values, b.Gather(table, index)).runs) == 1


def test_one_array_as_table_and_as_channels() -> None:
    b = Builder()
    array = np.float32([0.5, 2, 3])
    index = b.Cast(b.Min(b.Max(b.Round(b.input), 0.0), 2.0), to="INT64")
    looked_up = b.Gather(array, index)
    chosen = b.Where(b.Equal(index, 0.0), 0.5, b.Where(b.Equal(index, 1.0), 2.0, 3.0))
    finding = decide(b.Mul(looked_up, array), b.Mul(chosen, array))
    assert _equal(finding)
    assert finding.channels == 3


@pytest.mark.parametrize(
    ("input_shape", "shapes", "reason"),
    [
        ((1, 8, 4), [(8, 1), ()], None),
        ((None, 8), [(8,), (1, 8)], None),
        ((8,), [(1, 1), ()], "shapes"),
        ((1, 4), [(3, 1), ()], "shapes"),
        ((2, 4), [(3,), ()], "do not fit"),
    ],
)
def test_shapes_of_the_results_are_compared(input_shape, shapes, reason) -> None:
    b = Builder()
    pair = [b.Sign(b.Mul(b.input, np.full(s, n, np.float32))) for n, s in enumerate(shapes, 2)]
    finding = decide(*pair, input_shape=input_shape)
    if reason is None:
        assert finding.undecided is None
    else:
        assert finding.undecided is not None
        assert reason in finding.undecided


def test_constants_that_do_not_broadcast_are_undecided() -> None:
    b = Builder()
    pair = [b.Mul(b.input, np.ones(n, np.float32)) for n in (2, 3)]
    assert decide(*pair).undecided is not None


@pytest.mark.parametrize("scale", [0.0, np.inf, 1e-45, -0.1, 3e38])
def test_odd_scales_are_decided(cones: SimpleNamespace, scale: float) -> None:
    b = Builder()
    s = np.float32(scale)
    finding = decide(
        cones.quant(b, b.input, s, np.float32(0), -8, 7),
        cones.qdq(b, b.input, s, np.float32(0), -8, 7, "INT8"),
    )
    if np.isfinite(scale) and scale:
        assert _equal(finding)


def test_flushed_subnormals_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    monkeypatch.setattr(environment, "probe_float_environment", lambda: False)
    with pytest.raises(UnsupportedError, match="subnormal"):
        decide(b.Round(b.input), b.Floor(b.input))


def test_an_environment_that_changes_during_the_proof_is_refused(monkeypatch) -> None:
    b = Builder()
    answers = iter([True, False])
    monkeypatch.setattr(environment, "probe_float_environment", lambda: next(answers))
    with pytest.raises(UnsupportedError):
        decide(b.Sign(b.input), b.Sign(b.Mul(b.input, 2.0)))


def test_this_environment_is_fit() -> None:
    assert environment.probe_float_environment()


def test_nan_on_both_sides_is_no_difference() -> None:
    """x * 0 is a zero for finite numbers and NaN for infinities."""
    b = Builder()
    q = b.Round(b.Min(b.Max(b.input, -8.0), 7.0))
    finding = decide(b.Add(q, b.Mul(b.input, 0.0)), b.Sub(q, b.Mul(b.input, -0.0)))
    assert _equal(finding)
    assert (finding.zero_sign, finding.nan_differs) == (0, False)


def test_signs_of_zeros_are_counted_in_each_channel() -> None:
    """Rounding makes -0 of all x from -0.5 to -0, and adding 0 makes +0 of that."""
    b = Builder()
    q = b.Round(b.Min(b.Max(b.Mul(b.input, np.float32([1, 2, 1])), -8.0), 7.0))
    finding = decide(q, b.Add(q, 0.0))
    half, quarter = (int(np.float32(x).view(np.uint32)) + 1 for x in (0.5, 0.25))
    assert finding.zero_sign == 2 * half + quarter
