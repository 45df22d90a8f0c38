"""The numbers behind pictures of quantizers, against formulas and enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qgraph.proof.curves import channels, in_channel, staircase
from qgraph.proof.functions.expression import Builder


def quantizer(builder, scale, low=-8.0, high=7.0):
    scale = np.asarray(scale, np.float32)
    scaled = builder.Div(builder.input, scale)
    clipped = builder.Min(builder.Max(builder.Round(scaled), low), high)
    return builder.Mul(clipped, scale)


def test_steps_lie_at_half_scales() -> None:
    found = staircase([quantizer(Builder(), 0.5)], ["q"])
    (curve,) = found["curves"]
    assert curve["y"] == [0.5 * code for code in range(-8, 8)]
    # ties go to even codes: the step above an even code begins one float later
    expected = []
    for code in range(-7, 8):
        tie = np.float32((code - 0.5) * 0.5)
        expected.append(float(np.nextafter(tie, np.float32(np.inf)) if code % 2 else tie))
    assert curve["x"][1:-1] == expected
    assert curve["x"][0] < -4.0
    assert curve["x"][-1] > 3.5
    assert "differing" not in found


def test_one_step_is_shown_with_room_on_both_sides() -> None:
    builder = Builder()
    sign = builder.Where(builder.GreaterOrEqual(builder.input, 0.0), 0.25, -0.25)
    (curve,) = staircase([sign], ["sign"])["curves"]
    assert curve["y"] == [-0.25, 0.25]
    assert curve["x"][0] < -0.25
    assert curve["x"][-1] > 0.25


def test_what_has_no_steps_is_sampled() -> None:
    builder = Builder()
    (curve,) = staircase([builder.Mul(builder.input, 3.0)], ["line"])["curves"]
    x, y = np.array(curve["x"][:-1]), np.array(curve["y"])
    assert len(y) > 100
    np.testing.assert_array_equal(y, (x.astype(np.float32) * np.float32(3)).astype(np.float64))


def test_a_channel_has_its_own_parameters() -> None:
    scales = np.array([0.5, 0.25, 2.0], np.float32).reshape(3, 1)
    function = quantizer(Builder(), scales)
    assert channels(function) == 3
    for channel, scale in enumerate(scales.ravel().tolist()):
        (alone,) = in_channel([function], channel)
        assert alone.shape == ()
        found = staircase([function], ["q"], channel)
        assert found["curves"][0]["y"] == [scale * code for code in range(-8, 8)]
        assert (found["channel"], found["channels"]) == (channel, 3)


def test_parameters_of_two_functions_are_spread_together() -> None:
    builder = Builder()
    one = quantizer(builder, 0.5)
    three = quantizer(builder, [0.5, 0.25, 0.5])
    assert channels(one, three) == 3
    assert staircase([one, three], ["a", "b"], 2)["differing"] == 0
    assert staircase([one, three], ["a", "b"], 1)["differing"] > 0


def neighbours(x: float, count: int) -> np.ndarray:
    bits = np.array([x], np.float32).view(np.int32)[0]
    return np.arange(bits - count, bits + count + 1, dtype=np.int32).view(np.float32)


def test_differences_are_those_of_enumeration() -> None:
    builder = Builder()
    scale = np.float32(0.1)
    other = np.nextafter(scale, np.float32(1))
    first, second = (
        builder.Min(builder.Max(builder.Round(builder.Div(builder.input, s)), 0.0), 15.0)
        for s in (scale, other)
    )
    found = staircase([first, second], ["a", "b"])
    counted = 0
    for code in range(15):
        x = neighbours((code + 0.5) * 0.1, 64)
        codes = [np.clip(np.rint(x / s), 0, 15) for s in (scale, other)]
        counted += int(np.count_nonzero(codes[0] != codes[1]))
    assert found["differing"] == counted > 0
    near = found["near"]
    assert near["unit"] == "floats"
    x = neighbours(near["first"], 0)
    for low, high in found["places"]:
        assert np.rint(np.float32(low) / scale) != np.rint(np.float32(low) / other)
        assert np.rint(np.float32(high) / scale) != np.rint(np.float32(high) / other)
    differs = [a != b for a, b in zip(*near["values"], strict=True)]
    places = [place for place, apart in zip(near["places"], differs, strict=True) if apart]
    assert places == list(range(near["count"]))
    middle = near["places"].index(0)
    assert near["values"][0][middle] == float(np.rint(x[0] / scale))


def test_a_wide_difference_is_shown_over_real_inputs() -> None:
    builder = Builder()
    first = builder.Min(builder.Max(builder.Round(builder.input), 0.0), 4.0)
    second = builder.Min(builder.Max(builder.Floor(builder.input), 0.0), 4.0)
    near = staircase([first, second], ["a", "b"], near=1.75)["near"]
    assert near["unit"] == "input"
    assert (near["first"], near["last"]) == (1.5, float(np.nextafter(np.float32(2), np.float32(0))))
    assert math.isclose(near["places"][0], 1.0, abs_tol=1e-6)
    assert near["count"] == int(np.float32(2).view(np.int32) - np.float32(1.5).view(np.int32))


def test_equal_functions_have_no_place_to_enlarge() -> None:
    builder = Builder()
    found = staircase([quantizer(builder, 0.5), quantizer(builder, 0.5)], ["a", "b"])
    assert (found["differing"], found["places"], found["near"]) == (0, [], None)


@pytest.mark.parametrize("far", [3e38, -3e38])
def test_a_difference_far_away_does_not_hide_the_steps(far: float) -> None:
    builder = Builder()
    first = quantizer(builder, 0.5)
    second = builder.Where(builder.Greater(builder.Abs(builder.input), 1e30), 9.0, first)
    found = staircase([first, second], ["a", "b"], near=far)
    assert max(map(abs, found["curves"][0]["x"])) < 10
    assert found["near"] is None
