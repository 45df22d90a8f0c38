"""Where documents and implementations of an operator disagree, and which side is followed."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.numerics.rounding import Rounding
from qgraph.ops.operator import OPERATORS, operator_of


def f32(*values):
    array = np.asarray(values, np.float32)
    return array.reshape(()) if array.size == 1 else array


def run(name, *arrays, domain=None, **attributes):
    """Run a node of the operator ``name``, given as it would stand in a file."""
    known = next(entry for entry in OPERATORS if entry.schema.name == name)
    domain = known.schema.domains[0] if domain is None else domain
    inputs = [
        None if a is None else ir.Value(name=f"i{i}", type=ir.TensorType(type_of(a)))
        for i, a in enumerate(arrays)
    ]
    node = ir.node(name, inputs, attributes, domain=domain)
    return operator_of(node).run(node, arrays)


def type_of(array):
    return ir.DataType.from_numpy(array.dtype)


def value(name, x, *parameters, **attributes):
    return float(run(name, f32(x), *parameters, **attributes))


def test_quant_of_one_signed_bit_is_bipolar():
    """The page's formula would give -0."""
    assert value("Quant", -0.3, *f32(1, 0, 1)) == -1
    assert value("Quant", 0.0, *f32(1, 0, 1)) == 1
    assert value("Quant", math.nan, *f32(1, 0, 1)) == -1


def test_quant_of_one_signed_bit_is_not_bipolar_quant():
    """x / s underflows to -0, which counts as not negative."""
    assert value("Quant", -1e-45, *f32(2, 0, 1)) == 2
    assert value("BipolarQuant", -1e-45, f32(2)) == -2


def test_quant_of_one_unsigned_bit():
    assert value("Quant", 3.0, *f32(1, 0, 1), signed=0) == 1
    assert value("Quant", 3.0, *f32(1, 0, 1), signed=0, narrow=1) == 0


def test_narrow_applies_to_unsigned_codes():
    """A converter that omits the clamp gives 255."""
    assert value("Quant", 300.0, *f32(1, 0, 8), signed=0, narrow=1) == 254


def test_quant_has_the_documented_defaults():
    assert value("Quant", -300.5, *f32(1, 0, 8)) == -128
    assert value("Quant", 2.5, *f32(1, 0, 8)) == 2


def test_any_number_but_zero_is_true():
    assert value("Quant", -300.0, *f32(1, 0, 8), signed=-7, narrow=2) == -127


@pytest.mark.parametrize(("text", "expected"), [("FLOOR", 0), ("floor", 0), ("Round_To_Zero", 0)])
def test_floor_stays_floor(text, expected):
    """A converter that ignores the mode rounds to 1."""
    assert value("Quant", 0.6, *f32(1, 0, 4), rounding_mode=text) == expected


def test_half_up_keeps_the_rounding_of_its_addition():
    assert value("Quant", 0.49999997, *f32(1, 0, 4), rounding_mode="HALF_UP") == 1


def test_quant_adds_an_integer_zero_point_in_float32():
    """With a zero point in int64, NumPy would add in float64 and stay below the tie."""
    x, s, b = f32(np.nextafter(np.float32(2.5), np.float32(0))), f32(1), f32(8)
    z = np.asarray(128, np.int64)
    assert run("Quant", x, s, z, b, signed=0) == run("Quant", x, s, f32(128), b, signed=0) == 2
    assert 2.4999998 + 128 < 130.5


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_bit_widths_of_an_integer_type_do_not_wrap(dtype):
    width = np.asarray(8, dtype)
    assert run("Quant", f32(5), f32(1), f32(0), width, signed=0) == 5
    assert run("Quant", f32(-300), f32(1), f32(0), width) == -128
    if dtype == np.int32:
        wide = np.asarray(32, dtype)
        assert run("Quant", f32(3e9), f32(1), f32(0), wide, signed=0) == np.float32(3e9)


def test_wide_codes_reach_two_to_the_bits():
    """2**31 - 1 is no float32; clamping to it in integers would be another function."""
    assert value("Quant", 1e12, *f32(1, 0, 32)) == 2147483648


def test_a_fractional_zero_point_is_legal():
    got = run("Quant", f32(0.1, 0.6), f32(1), f32(0.3), f32(4))
    assert got.tolist() == f32(-0.3, 0.7).tolist()


def test_quant_adds_the_zero_point_before_rounding_and_quantize_linear_after():
    assert value("Quant", 0.5, *f32(1, 1, 8), signed=0) == 1
    codes = run("QuantizeLinear", f32(0.5), f32(1), np.asarray(1, np.uint8))
    assert int(codes) - 1 == 0


def test_quant_keeps_minus_zero():
    assert math.copysign(1, value("Quant", -0.03, *f32(0.1, 0, 8))) == -1


def test_a_scale_of_higher_rank_raises_the_rank():
    assert run("Quant", f32(1, 2, 3), np.ones((2, 1), np.float32), f32(0), f32(4)).shape == (2, 3)


@pytest.mark.parametrize(
    ("x", "s", "y"), [(1, 0, 0), (0, 0, math.nan), (1, math.inf, math.nan), (1, math.nan, math.nan)]
)
def test_degenerate_scales_are_computed_with(x, s, y):
    assert value("Quant", x, *f32(s, 0, 8)) == pytest.approx(y, nan_ok=True)


def test_trunc_goes_by_the_number_of_inputs():
    """Run as version 1, six inputs would take out_scale for out_bits."""
    five = run("Trunc", f32(100), *f32(1, 0, 8, 6))
    six = run("Trunc", f32(100), *f32(1, 0, 8, 4, 6))
    assert (five, six) == (25, 100)


def test_trunc_rounds_twice():
    assert value("Trunc", 2.5, *f32(1, 0, 8, 6), rounding_mode="ROUND") == 0


def test_trunc_floors_by_default():
    assert value("Trunc", 3.0, *f32(1, 0, 8, 6)) == 0


def test_trunc_divides_by_a_power_of_two_but_scales_by_what_is_given():
    assert value("Trunc", 100.0, *f32(1, 0, 8, 3, 8)) == 75


@pytest.mark.parametrize(("ratio", "t"), [(1.4142135, 1), (1.4142137, 2)])
@pytest.mark.parametrize("exponent", [-3, 0, 10])
def test_trunc_switches_at_the_square_root_of_two(ratio, t, exponent):
    """A float32 log2 rounds 10.5000001 to 10.5, which ties to 10; exact, it is above."""
    out = np.ldexp(np.float32(ratio), exponent)
    kept = 4096 // (t * 2.0**exponent)
    assert value("Trunc", 4096.0, *f32(1, 0, 20, out, 20)) == np.float32(kept) * out


@pytest.mark.parametrize("ratio", [0.0, -2.0])
def test_trunc_without_a_ratio_is_nan(ratio):
    assert math.isnan(value("Trunc", 5.0, *f32(1, 3, 8, ratio, 4)))


def test_trunc_of_one_signed_bit_is_not_bipolar():
    got = run("Trunc", f32(-3, 0.2, 5), *f32(1, 0, 8, 1, 1))
    assert got.tolist() == [-1, 0, 0]


E4M3 = f32(4, 3, 7, 448)


def test_float_quant_follows_the_exact_exponent():
    """The reference, by a float log2, gives 7 and is not monotone."""
    x = np.asarray(0x40FFFFFF, np.uint32).view(np.float32)
    assert value("FloatQuant", x, f32(1), *E4M3, rounding_mode="FLOOR") == 7.5


def test_float_quant_saturates_infinity():
    """Executors give NaN; ONNX casts to the same format give 448."""
    assert run("FloatQuant", f32(np.inf, -np.inf), f32(1), *E4M3).tolist() == [448, -448]


def test_float_quant_overflow_follows_its_attributes():
    """The page's prose calls them without effect, its code uses them."""
    overflow = {"saturation": 0}
    assert value("FloatQuant", 500.0, f32(1), *E4M3, **overflow, has_inf=1) == math.inf
    assert value("FloatQuant", -500.0, f32(1), *E4M3, **overflow, has_inf=1) == -math.inf
    assert math.isnan(value("FloatQuant", 500.0, f32(1), *E4M3, **overflow, has_nan=1))


def test_float_quant_reads_both_spellings_of_has_inf():
    overflow = {"saturation": 0, "has_nan": 1}
    assert value("FloatQuant", 500.0, f32(1), *E4M3, **overflow, has_infinity=1) == math.inf
    both = overflow | {"has_inf": 0, "has_infinity": 1}
    assert math.isnan(value("FloatQuant", 500.0, f32(1), *E4M3, **both))


def test_float_quant_clamps_to_a_limit_off_the_grid():
    got = run("FloatQuant", f32(429, 440), f32(1), *f32(4, 3, 7, 430))
    assert got.tolist() == [416, 430]
    assert value("FloatQuant", 1e9, f32(1), *f32(4, 3, 7, 1e6)) == 480


def test_fake_quantize_keeps_nan_and_steps_at_a_point():
    """A plugin gives the lowest level and NaN."""
    ranges = f32(0.5, 0.5, -1, 1)
    got = run("FakeQuantize", f32(np.nan, 0.5, 0.6), *ranges, levels=16)
    assert np.isnan(got[0])
    assert got[1:].tolist() == [-1, 1]


def test_fake_quantize_with_a_reversed_range():
    """As the page says: at most the smaller end gives output_low."""
    got = run("FakeQuantize", f32(-2, -1, 1.1), *f32(1, -1, 10, 20), levels=16)
    assert got.tolist() == [10, 10, 20]


def test_fake_quantize_with_an_odd_number_of_levels_keeps_zero():
    """Its reading as quantize and dequantize with a shift of levels / 2 gives 0.05."""
    got = run("FakeQuantize", f32(0, -0.1), *f32(-12.7, 12.7, -12.7, 12.7), levels=255)
    assert got == pytest.approx([0, -0.1], abs=1e-6)


def test_fake_quantize_follows_the_first_formula():
    """The second one multiplies by (oh - ol) / (levels - 1), and moves by ulps."""
    x = np.linspace(-1, 1, 999, dtype=np.float32)
    got = run("FakeQuantize", x, *f32(-1, 1.1, -1, 1.1), levels=256)
    second = np.rint((x + np.float32(1)) / np.float32(2.1) * np.float32(255))
    second = second * (np.float32(2.1) / np.float32(255)) - np.float32(1)
    assert (got != second).any()
    assert got == pytest.approx(second, abs=1e-6)


HUGE = f32(1e10, -1e10, 2147483648, 3e9, np.inf, -np.inf, 2147483648)


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16"])
def test_huge_values_saturate(name):
    """Implementations that convert to int32 first give the lowest code."""
    limits = np.iinfo(name)
    lo, hi = limits.min, limits.max
    codes = run("QuantizeLinear", HUGE, f32(1), np.asarray(0, name))
    assert codes.tolist() == [hi, lo, hi, hi, hi, lo, hi]


@pytest.mark.parametrize("name", ["int2", "uint2", "int4", "uint4"])
def test_huge_values_saturate_in_narrow_types(name):
    """Also at the last element of an odd number."""
    dtype = getattr(ml_dtypes, name)
    limits = ml_dtypes.iinfo(dtype)
    lo, hi = int(limits.min), int(limits.max)
    codes = run("QuantizeLinear", HUGE, f32(1), np.asarray(0, dtype))
    assert codes.dtype == dtype
    assert codes.astype(int).tolist() == [hi, lo, hi, hi, hi, lo, hi]


def test_huge_values_saturate_in_blocks_along_the_first_axis():
    x = np.full((4, 1), np.inf, np.float32)
    codes = run(
        "QuantizeLinear",
        x,
        f32(1, 2).reshape(2, 1),
        np.zeros((2, 1), np.int8),
        axis=0,
        block_size=2,
    )
    assert codes.ravel().tolist() == [127] * 4


@pytest.mark.parametrize("z", [-128, 0, 1, 127])
def test_nan_gives_the_lowest_code(z):
    assert run("QuantizeLinear", f32(np.nan), f32(1), np.asarray(z, np.int8)) == -128


@pytest.mark.parametrize(("x", "code"), [(5, 127), (-5, -128), (0, -128)])
def test_a_scale_of_zero_saturates(x, code):
    assert run("QuantizeLinear", f32(x), f32(0), np.asarray(0, np.int8)) == code


def test_quantize_linear_divides_in_the_type_of_the_scale():
    """The quotient of two float16 numbers, rounded to float16, is another one near ties."""
    x, s = np.arange(0, 50, 0.017).astype(np.float16), np.float16(0.1).reshape(())
    z = np.asarray(0, np.int16)
    half = run("QuantizeLinear", x, s, z)
    expected = np.rint((x / s).astype(np.float32))
    assert half.tolist() == expected.tolist()
    single = run("QuantizeLinear", x, s, z, precision=ir.DataType.FLOAT)
    expected = np.rint(x.astype(np.float32) / s.astype(np.float32))
    assert single.tolist() == expected.tolist()
    assert half.tolist() != single.tolist()


def test_quantize_linear_adds_a_zero_point_exactly():
    """61000 is no float16."""
    z = np.asarray(1000, np.uint16)
    assert (
        run("QuantizeLinear", np.float16(60000).reshape(()), np.float16(1).reshape(()), z) == 61000
    )


def test_one_element_is_a_scalar():
    assert run("QuantizeLinear", f32(3, 4), f32(2), np.asarray([5], np.int8)).tolist() == [7, 7]


def test_quantize_linear_takes_int32():
    assert run("QuantizeLinear", np.asarray(37, np.int32), f32(10), np.asarray(0, np.int8)) == 4


def test_quantize_linear_without_zero_point():
    assert run("QuantizeLinear", f32(300), f32(1)).dtype == np.uint8
    codes = run("QuantizeLinear", f32(300), f32(1), output_dtype=ir.DataType.INT16)
    assert (codes.dtype, int(codes)) == (np.int16, 300)


def test_one_scale_needs_no_axis():
    """A rank-1 tensor has no axis 1; a single scale does not ask for it."""
    assert run("QuantizeLinear", f32(1, 2), f32(1).reshape(1), None).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("dtype", "x", "saturated", "otherwise"),
    [
        (ml_dtypes.float8_e4m3fn, 480, 448, math.nan),
        (ml_dtypes.float8_e5m2, 61440, 57344, math.inf),
        (ml_dtypes.float8_e4m3fnuz, 300, 240, math.nan),
    ],
)
def test_float8_overflow(dtype, x, saturated, otherwise):
    zero = np.asarray(0, dtype)
    assert run("QuantizeLinear", f32(x), f32(1), zero).astype(np.float32) == saturated
    over = run("QuantizeLinear", f32(x), f32(1), zero, saturate=0).astype(np.float32)
    assert over == otherwise or (math.isnan(over) and math.isnan(otherwise))


def test_float4_of_nan_is_six():
    """The standard's table; its evaluator gives a zero."""
    zero = np.asarray(0, ml_dtypes.float4_e2m1fn)
    assert run("QuantizeLinear", f32(np.nan), f32(1), zero).astype(np.float32) == 6
    cast = run("Cast", f32(-np.nan), domain="", to=ir.DataType.FLOAT4E2M1)
    assert cast.astype(np.float32) == 6


def test_float4_quantize_linear_keeps_minus_zero():
    zero = np.asarray(0, ml_dtypes.float4_e2m1fn)
    assert np.signbit(run("QuantizeLinear", f32(-0.1), f32(1), zero).astype(np.float32))


def test_e8m0_cast_saturates():
    """The evaluator gives NaN and 2**-126."""
    to = {"domain": "", "to": ir.DataType.FLOAT8E8M0}
    assert run("Cast", f32(np.inf), **to).astype(np.float32) == 2.0**127
    assert run("Cast", f32(1e-45), **to).astype(np.float32) == 2.0**-127


def test_dequantize_linear_subtracts_without_wrapping():
    """127 - (-128) is 255; in int8 it would be -1."""
    x, z = np.asarray(127, np.int8), np.asarray(-128, np.int8)
    assert run("DequantizeLinear", x, f32(1), z) == 255


def test_dequantize_linear_of_int32_subtracts_integers():
    x, z = np.asarray(16777217, np.int32), np.asarray(1, np.int32)
    assert run("DequantizeLinear", x, f32(1), z) == 16777216
    assert run("DequantizeLinear", x, f32(1)) == 16777216
    assert run("DequantizeLinear", x + np.int32(1), f32(1), z) == 16777216


def test_dequantize_linear_has_the_type_of_the_scale():
    x = np.asarray(3, np.int8)
    assert run("DequantizeLinear", x, np.float16(0.5).reshape(())).dtype == np.float16
    wide = run("DequantizeLinear", x, np.float16(0.5).reshape(()), output_dtype=ir.DataType.FLOAT)
    assert wide.dtype == np.float32


def test_scales_of_type_e8m0():
    s = np.asarray([0.5, 4.0], np.float32).astype(ml_dtypes.float8_e8m0fnu)
    x = f32(1, 2, 3, 24).reshape(2, 2)
    zero = np.zeros((2,), ml_dtypes.float4_e2m1fn)
    codes = run("QuantizeLinear", x, s, zero, axis=0)
    assert codes.astype(np.float32).tolist() == [[2, 4], [1, 6]]
    real = run("DequantizeLinear", codes, s, zero, axis=0, output_dtype=ir.DataType.FLOAT)
    assert real.tolist() == [[1, 2], [4, 24]]


def test_clip_in_the_form_of_version_6():
    """Where one bound is given as an attribute, the other one is finite by default."""
    assert run("Clip", f32(np.inf, -3), min=-1.0).tolist() == [np.finfo(np.float32).max, -1]
    assert run("Clip", f32(np.inf, -3)).tolist() == [np.inf, -3]


def test_clip_of_crossing_bounds_is_the_upper_one():
    assert run("Clip", f32(0, 9), f32(5), f32(2)).tolist() == [2, 2]


def test_clip_keeps_the_type_and_nan():
    codes = run("Clip", np.asarray([-9, 9], np.int8), np.asarray(-7, np.int8), None)
    assert (codes.dtype, codes.tolist()) == (np.int8, [-7, 9])
    assert np.isnan(run("Clip", f32(np.nan), f32(0), f32(1)))


def test_rounding_modes_are_those_of_the_table():
    """Synonyms that exporters write mean the same."""
    assert Rounding.parse("half_even") is Rounding.ROUND
    assert value("Quant", -2.5, *f32(1, 0, 8), rounding_mode="Half_Even") == -2
