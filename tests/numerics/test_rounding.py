from __future__ import annotations

import decimal

import numpy as np
import pytest

from qgraph.numerics.rounding import Rounding, round_to_integer

DECIMAL_MODES = {
    Rounding.ROUND: decimal.ROUND_HALF_EVEN,
    Rounding.CEIL: decimal.ROUND_CEILING,
    Rounding.FLOOR: decimal.ROUND_FLOOR,
    Rounding.UP: decimal.ROUND_UP,
    Rounding.DOWN: decimal.ROUND_DOWN,
    Rounding.HALF_UP: decimal.ROUND_HALF_UP,
    Rounding.HALF_DOWN: decimal.ROUND_HALF_DOWN,
}


def test_the_published_rounding_table(golden_cases):
    seen = []
    for params, x, y in golden_cases("rounding_table.npz"):
        mode = Rounding.parse(params["mode"])
        np.testing.assert_array_equal(round_to_integer(x, mode), y, err_msg=mode)
        seen.append(mode)
    assert len(seen) == 4


@pytest.mark.parametrize("mode", Rounding)
def test_every_mode_agrees_with_decimal_arithmetic(mode):
    halves = np.arange(-40, 41, dtype=np.float32) / 2
    around = [halves, np.nextafter(halves, np.float32(99)), np.nextafter(halves, np.float32(-99))]
    y = np.concatenate([*around, np.float32([8388607.5, -8388607.5, 8388606.5, 16777216, 3e38])])
    y = y[np.abs(y) != np.float32(0.49999997)]  # see the test of the addition's own rounding
    expected = [float(decimal.Decimal(float(v)).to_integral_value(DECIMAL_MODES[mode])) for v in y]
    np.testing.assert_array_equal(round_to_integer(y, mode), np.float32(expected))


@pytest.mark.parametrize("mode", Rounding)
def test_infinities_and_nan_pass(mode):
    y = round_to_integer(np.float32([np.inf, -np.inf, np.nan]), mode)
    np.testing.assert_array_equal(y, np.float32([np.inf, -np.inf, np.nan]))


@pytest.mark.parametrize("mode", Rounding)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtype_is_kept_and_the_output_may_be_the_input(mode, dtype):
    y = np.array([-2.5, -0.3, 0.5, 1.5, 2.7], dtype)
    fresh = round_to_integer(y, mode)
    assert fresh.dtype == dtype
    assert round_to_integer(y, mode, out=y) is y
    np.testing.assert_array_equal(y, fresh)


def test_half_modes_inherit_the_rounding_of_their_addition():
    y = np.float32([0.49999997, -0.49999997, 8388609, -8388609])
    up = round_to_integer(y, Rounding.HALF_UP)
    down = round_to_integer(y, Rounding.HALF_DOWN)
    np.testing.assert_array_equal(up, np.float32([1, -1, 8388610, -8388610]))
    np.testing.assert_array_equal(down, np.float32([0, 0, 8388608, -8388608]))


@pytest.mark.parametrize(
    ("mode", "negative"),
    [("ROUND", True), ("CEIL", True), ("DOWN", True), ("UP", False), ("HALF_UP", False)],
)
def test_sign_of_a_negative_zero(mode, negative):
    y = round_to_integer(np.float32([-0.0]), Rounding.parse(mode))
    assert y[0] == 0
    assert np.signbit(y[0]) == negative


def test_a_scalar_array_stays_an_array():
    y = round_to_integer(np.asarray(np.float32(2.5)), Rounding.HALF_UP)
    assert isinstance(y, np.ndarray)
    assert y.shape == ()
    assert y == 3


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("round", "ROUND"),
        ("Floor", "FLOOR"),
        ("half_even", "ROUND"),
        ("ROUND_TO_ZERO", "DOWN"),
        ("half_down", "HALF_DOWN"),
    ],
)
def test_parse(text, mode):
    assert Rounding.parse(text) is Rounding(mode)


@pytest.mark.parametrize("text", ["", "STOCHASTIC_ROUND", "DPU", "nearest"])
def test_parse_lists_the_known_modes(text):
    with pytest.raises(ValueError, match="HALF_DOWN, HALF_EVEN, ROUND_TO_ZERO"):
        Rounding.parse(text)
