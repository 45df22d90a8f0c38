from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from qgraph.numerics.minifloat import (
    DTYPES,
    MINIFLOATS,
    Minifloat,
    cast,
    decode,
    encode,
    floor_power_of_two,
    snap,
)
from qgraph.numerics.rounding import Rounding

NAMES = list(MINIFLOATS)
FP8 = [n for n in NAMES if n.startswith("FLOAT8")]
SCALAR_ROUNDINGS = {
    Rounding.CEIL: math.ceil,
    Rounding.FLOOR: math.floor,
    Rounding.UP: lambda y: math.copysign(math.ceil(abs(y)), y),
    Rounding.DOWN: math.trunc,
    Rounding.ROUND: round,
    Rounding.HALF_UP: lambda y: math.copysign(math.floor(abs(y) + 0.5), y),
    Rounding.HALF_DOWN: lambda y: math.copysign(math.ceil(abs(y) - 0.5), y),
}


def assert_same_bits(actual, expected):
    """Equal, with the sign of zero; any NaN equals any NaN."""
    np.testing.assert_array_equal(actual, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual)[number], np.signbit(expected)[number])


def value_of(f: Minifloat, code: int) -> float:
    """The textbook value of a bit pattern, without special values."""
    fraction = code & ((1 << f.mantissa_bits) - 1)
    exponent = (code >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1)
    if exponent:
        magnitude = math.ldexp(fraction + (1 << f.mantissa_bits), exponent - f.bias)
    else:
        magnitude = math.ldexp(fraction, 1 - f.bias)
    return math.copysign(math.ldexp(magnitude, -f.mantissa_bits), -(code >> (f.bits - 1)))


def finite_codes(f: Minifloat) -> list[int]:
    negative_zero = 1 << (f.bits - 1)
    return [
        code
        for code in range(1 << f.bits)
        if abs(value_of(f, code)) <= f.max_value and (f.has_negative_zero or code != negative_zero)
    ]


def ties_and_neighbours(f: Minifloat):
    """Grid points, the middles between them and one beyond the top, each with both neighbours."""
    grid = sorted({abs(value_of(f, code)) for code in finite_codes(f)})
    beyond = 2 * grid[-1] - grid[-2]
    grid += [beyond, 2 * beyond]
    middles = [(a + b) / 2 for a, b in pairwise(grid)]
    points = np.float32(grid + middles)
    points = np.concatenate(
        [points, np.nextafter(points, np.float32(0)), np.nextafter(points, 1e9)]
    )
    return np.concatenate([points, -points]).astype(np.float32)


def test_golden_casts(golden_cases):
    cases = list(golden_cases("cast_minifloat.npz"))
    for params, x, y in cases:
        assert_same_bits(cast(x, params["type"], bool(params["saturate"])), y)
    assert len(cases) == 6


@pytest.mark.parametrize("name", NAMES)
def test_saturating_cast_is_clip_and_ml_dtypes(name, finite):
    f = MINIFLOATS[name]
    x = np.concatenate([finite, ties_and_neighbours(f)])
    clipped = np.clip(x, np.float32(f.lo), np.float32(f.hi))
    assert_same_bits(cast(x, name), clipped.astype(DTYPES[name]).astype(np.float32))


@pytest.mark.parametrize("name", FP8)
def test_unsaturated_cast_is_ml_dtypes(name, finite, specials):
    x = np.concatenate([finite, ties_and_neighbours(MINIFLOATS[name]), specials])
    with np.errstate(invalid="ignore"):
        expected = x.astype(DTYPES[name]).astype(np.float32)
    assert_same_bits(cast(x, name, saturate=False), expected)


@pytest.mark.parametrize("name", NAMES)
def test_infinities_saturate(name):
    f = MINIFLOATS[name]
    expected = np.float32([f.hi, f.lo])
    np.testing.assert_array_equal(cast([np.inf, -np.inf], name), expected)
    np.testing.assert_array_equal(f.snap([np.inf, -np.inf]), expected)


def test_nan_of_each_format(specials):
    nan = specials[np.isnan(specials)]
    for name in FP8:
        assert np.isnan(cast(nan, name)).all()
        assert np.isnan(decode(encode(nan, name))).all()
    np.testing.assert_array_equal(cast(nan, "FLOAT4E2M1"), np.float32([6, 6, 6, 6]))
    for name in ("FLOAT6E2M3", "FLOAT6E3M2"):
        assert_same_bits(cast(nan, name), np.float32([-0.0, 0.0, -0.0, 0.0]))


@pytest.mark.parametrize("name", NAMES)
def test_snap_keeps_nan(name, specials):
    nan = specials[np.isnan(specials)]
    assert np.isnan(MINIFLOATS[name].snap(nan)).all()


def test_the_float4_cast_table():
    """Document of FLOAT4E2M1: values by code, ties to even, saturation, NaN to 6."""
    x = [0, 0.25, 0.5, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 5.0000005, 6, 7, np.inf, np.nan]
    y = np.float32([0, 0, 0.5, 1, 1, 2, 2, 4, 4, 6, 6, 6, 6, 6])
    codes = np.uint8([0, 0, 1, 2, 2, 4, 4, 6, 6, 7, 7, 7, 7, 7])
    negative = -np.float32(x)
    np.testing.assert_array_equal(cast(x, "FLOAT4E2M1"), y)
    np.testing.assert_array_equal(encode(x, "FLOAT4E2M1").view(np.uint8), codes)
    assert_same_bits(cast(negative, "FLOAT4E2M1")[:-1], -y[:-1])
    np.testing.assert_array_equal(
        encode(negative, "FLOAT4E2M1").view(np.uint8), np.append(codes[:-1] | 8, 7)
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_finite_code_decodes_by_the_textbook_and_encodes_back(name):
    f = MINIFLOATS[name]
    codes = np.uint8(finite_codes(f))
    values = decode(codes.view(DTYPES[name]))
    assert_same_bits(values, np.float32([value_of(f, int(c)) for c in codes]))
    np.testing.assert_array_equal(encode(values, name).view(np.uint8), codes)
    assert_same_bits(f.snap(values), values)


@pytest.mark.parametrize("name", NAMES)
def test_encode_is_the_cast_for_any_input(name, finite, specials):
    x = np.concatenate([finite, ties_and_neighbours(MINIFLOATS[name]), specials])
    x = np.tile(x, (5, 1)).T  # more than a chunk, and not contiguous
    codes = encode(x, name)
    assert codes.dtype == DTYPES[name]
    assert_same_bits(decode(codes), cast(x, name))


@pytest.mark.cases(fast=1, slow=5)
@pytest.mark.parametrize("mode", Rounding)
@pytest.mark.parametrize(
    ("exponent_bits", "m", "bias", "max_value"),
    [(4, 3, 7, 448), (4, 3, 7, 430), (2, 1, 1, 6), (3, 0, 3, 16), (5, 10, 15, 65504), (1, 2, 0, 3)],
)
def test_snap_is_the_formula_in_float64(mode, exponent_bits, m, bias, max_value, finite):
    f = Minifloat(exponent_bits, m, bias, max_value)
    x = np.concatenate([finite[np.abs(finite) > 1e-30], ties_and_neighbours(f)])
    expected = []
    for v in x.tolist():
        k = max(math.frexp(v)[1] - 1, 1 - bias) - m
        y = math.ldexp(v, -k)
        if mode is Rounding.HALF_UP and abs(y) == np.float32(0.49999997):
            y = math.copysign(0.5, y)  # the float32 addition of a half makes this 1
        whole = SCALAR_ROUNDINGS[mode](y)
        expected.append(min(max(math.ldexp(whole, k), -max_value), max_value))
    np.testing.assert_array_equal(f.snap(x, mode), np.float32(expected))


def test_snap_just_below_a_power_of_two_uses_the_finer_step():
    below_eight = np.float32([7.9999995])
    np.testing.assert_array_equal(snap(below_eight, 3, -6, 448, Rounding.FLOOR), [7.5])


def test_snap_with_one_format_per_channel(finite):
    """Broadcast parameters give what each channel gives alone."""
    m, low, top = np.array([[3], [1], [2]]), np.array([[-6], [0], [-14]]), [[448], [6], [57344]]
    together = snap(finite, m, low, top, Rounding.ROUND)
    for row, name in zip(together, ["FLOAT8E4M3FN", "FLOAT4E2M1", "FLOAT8E5M2"], strict=True):
        assert_same_bits(row, cast(finite, name))


def test_snap_to_float32_itself_changes_nothing(finite):
    assert_same_bits(snap(finite, 23, -126, np.inf, Rounding.FLOOR), finite)
    assert_same_bits(snap(finite, 40, -126, np.inf, Rounding.CEIL), finite)


def test_snap_without_a_limit_overflows_to_infinity():
    top = np.finfo(np.float32).max
    y = snap(np.float32([top, -top]), 3, -6, np.inf, Rounding.ROUND)
    np.testing.assert_array_equal(y, np.float32([np.inf, -np.inf]))


def test_floor_power_of_two_of_every_binade(finite):
    expected = [math.ldexp(1, max(math.frexp(v)[1] - 1, -127)) if v else 2.0**-127 for v in finite]
    np.testing.assert_array_equal(floor_power_of_two(finite), np.float32(expected))


def test_floor_power_of_two_of_specials(specials):
    expected = np.float32([2.0**127, 2.0**127] + 4 * [np.nan])
    np.testing.assert_array_equal(floor_power_of_two(specials), expected)


@pytest.mark.parametrize("call", [lambda n: cast(1.0, n), lambda n: encode(1.0, n)])
@pytest.mark.parametrize("name", ["FLOAT8E8M0", "FLOAT16", "e4m3"])
def test_unknown_formats_are_named(call, name):
    with pytest.raises(ValueError, match=rf"'{name}' is not .* FLOAT8E4M3FN, "):
        call(name)
