"""A kernel computes the bits of its definition, for every kind of input and parameter."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.numerics import blocks
from qgraph.numerics.formats import FORMATS, numpy_dtype
from qgraph.numerics.rounding import Rounding
from qgraph.ops.definitions import (
    cast_clip,
    fake_quantize,
    float_quant,
    quant,
    quantize_linear,
    trunc,
)

SCALES = (1.0, 0.1, -0.25, 3e-45, 2.0**-130, 1e30, 0.0, np.inf, np.nan)
UNDEFINED = ir.DataType.UNDEFINED


def f32(*values):
    array = np.asarray(values, np.float32)
    return array.reshape(()) if array.size == 1 else array


@pytest.mark.cases(fast=2, slow=4)
@pytest.mark.parametrize("mode", Rounding)
def test_quant(mode, defined, same_bits, hostile_inputs):
    formats = itertools.product((True, False), (True, False), (1, 2, 3, 8, 24, 25, 32, 127))
    offsets = itertools.cycle((0.0, 3.0, -128.0, 0.3, -0.0, np.inf))
    for (signed, narrow, bits), scale, zero in itertools.product(formats, SCALES, range(2)):
        z = next(offsets) if zero else 0.0
        x = hostile_inputs(scale, z)
        arguments = {"signed": signed, "narrow": narrow, "rounding_mode": mode}
        inputs = x, f32(scale), f32(z), f32(bits)
        same_bits(quant.quant(*inputs, **arguments), defined(quant.define, *inputs, **arguments), x)


def test_quant_per_channel(defined, same_bits, hostile_inputs):
    """One scale, zero point and width for each row; a width of 1 among others."""
    x = np.tile(hostile_inputs(0.1), (4, 1))
    s, z = f32(0.1, 2.0, -0.3, 1e-40).reshape(4, 1), f32(0, 1, 2.5, -3).reshape(4, 1)
    bits = f32(1, 4, 1, 8).reshape(4, 1)
    arguments = {"signed": True, "narrow": False, "rounding_mode": Rounding.ROUND}
    kernel = quant.quant(x, s, z, bits, **arguments)
    same_bits(kernel, defined(quant.define, x, s, z, bits, **arguments), x)
    for row in range(4):
        alone = quant.quant(x[row], s[row], z[row], bits[row], **arguments)
        same_bits(alone, kernel[row], x[row])


def test_bipolar(defined, same_bits, hostile_inputs):
    x = hostile_inputs()
    for scale in SCALES:
        same_bits(
            quant.bipolar_quant(x, f32(scale)),
            defined(quant.define_bipolar, x, f32(scale)),
            x,
        )


@pytest.mark.parametrize("mode", Rounding)
def test_trunc(mode, defined, same_bits, hostile_inputs):
    arguments = {"rounding_mode": mode, "signed": True, "narrow": False}
    for scale, zero, drop in itertools.product(SCALES, (0.0, 3.0, -0.5), (0, 1, 6)):
        x = hostile_inputs(scale, zero)
        inputs = x, f32(scale), f32(zero), f32(10), f32(10 - drop)
        same_bits(trunc.trunc(*inputs, **arguments), defined(trunc.define, *inputs, **arguments), x)


@pytest.mark.cases(fast=1, slow=3)
@pytest.mark.parametrize("mode", Rounding)
def test_trunc_2(mode, defined, same_bits, hostile_inputs):
    ratios = (1.0, 1.4142135, 1.4142137, 64.0, 3.0, 0.7, 0.0, -2.0, 1e-42, 3e38, np.inf, np.nan)
    for signed, narrow in itertools.product((True, False), repeat=2):
        arguments = {"rounding_mode": mode, "signed": signed, "narrow": narrow}
        for scale, zero, ratio in itertools.product(SCALES[:6], (0.0, 3.0), ratios):
            x = hostile_inputs(scale, zero)
            with np.errstate(all="ignore"):
                out = f32(scale) * f32(ratio)
            inputs = x, f32(scale), f32(zero), f32(10), out, f32(4 if ratio != 3 else 1)
            same_bits(
                trunc.trunc_2(*inputs, **arguments),
                defined(trunc.define_2, *inputs, **arguments),
                x,
            )


FORMATS_AND_LIMITS = (
    (4, 3, 7, 448.0),
    (4, 3, 7, 430.0),
    (4, 3, 7, 1e6),
    (5, 2, 15, 57344.0),
    (2, 1, 1, 6.0),
    (3, 0, 3, 16.0),
    (8, 7, 127, 3e38),
    (8, 7, 127, np.inf),
    (8, 23, 127, 1e30),
    (8, 7, 150, np.inf),
    (5, 10, 15, np.nan),
    (1, 2, 1, 3.5),
    (6, 3, -40, np.inf),
)


@pytest.mark.cases(fast=1, slow=4)
@pytest.mark.parametrize("mode", Rounding)
def test_float_quant(mode, defined, same_bits, hostile_inputs):
    overflows = ((False, False, True), (True, True, False), (False, True, False))
    for numbers, scale in itertools.product(FORMATS_AND_LIMITS, SCALES):
        x = hostile_inputs(scale)
        for has_inf, has_nan, saturation in overflows:
            arguments = {
                "has_inf": has_inf,
                "has_nan": has_nan,
                "has_subnormal": True,
                "saturation": saturation,
                "rounding_mode": mode,
            }
            inputs = x, f32(scale), *(f32(number) for number in numbers)
            same_bits(
                float_quant.float_quant(*inputs, **arguments),
                defined(float_quant.define, *inputs, **arguments),
                x,
            )


def test_float_quant_per_channel(defined, same_bits, hostile_inputs):
    """A format for each row."""
    x = np.tile(hostile_inputs(), (3, 1))
    numbers = [f32(*n).reshape(3, 1) for n in ((4, 5, 2), (3, 2, 1), (7, 15, 1), (448, 57344, 6))]
    arguments = {
        "has_inf": False,
        "has_nan": False,
        "has_subnormal": True,
        "saturation": True,
        "rounding_mode": Rounding.ROUND,
    }
    kernel = float_quant.float_quant(x, f32(1), *numbers, **arguments)
    same_bits(kernel, defined(float_quant.define, x, f32(1), *numbers, **arguments), x)


def test_fake_quantize(defined, same_bits, hostile_inputs):
    random = np.random.default_rng(3)
    ranges = [(-1.0, 1.0), (0.0, 2.55), (1.0, -1.0), (0.5, 0.5), (0.0, 0.0), (-3e38, 3e38)]
    ranges += [(-np.inf, 1.0), (np.nan, 1.0), (1e-45, 4e-45)]
    ranges += [tuple(row) for row in random.normal(size=(20, 2))]
    outputs = random.permutation(np.array(ranges))
    for (il, ih), (ol, oh), levels in zip(
        ranges, outputs, itertools.cycle((2, 16, 255, 256, 65536, 1 << 24)), strict=False
    ):
        x = np.concatenate([hostile_inputs((ih - il) / (levels - 1), 0), hostile_inputs(il)])
        for last in ((il, ih), (ol, oh)):
            inputs = x, *(f32(end) for end in (il, ih, *last))
            arguments = {"levels": levels, "auto_broadcast": "numpy"}
            same_bits(
                fake_quantize.fake_quantize(*inputs, **arguments),
                defined(fake_quantize.define, *inputs, **arguments),
                x,
            )


CODE_TYPES = sorted(set(FORMATS) - {"INT32", "FLOAT8E8M0"})


@pytest.mark.parametrize("name", CODE_TYPES)
def test_quantize_and_dequantize_linear(name, defined, same_bits, hostile_inputs):
    dtype, to = numpy_dtype(name), ir.DataType[name]
    integer = "INT" in name
    for scale, zero in itertools.product(SCALES, (None, "lo", 1, "hi")):
        if zero is not None and not integer:
            continue
        bound = {"lo": FORMATS[name].lo, "hi": FORMATS[name].hi}.get(zero, zero)
        z = None if zero is None else np.asarray(bound, np.int32).astype(dtype)
        x = hostile_inputs(scale)
        attributes = {
            "axis": 1,
            "saturate": integer or scale != 0.1,
            "block_size": 0,
            "output_dtype": to if z is None else UNDEFINED,
            "precision": UNDEFINED,
        }
        codes = quantize_linear.quantize_linear(x, f32(scale), z, **attributes)
        assert codes.dtype == dtype
        if integer:  # a code of few bits leaves the other bits of its byte 0, as ml_dtypes does
            assert codes.tobytes() == codes.astype(np.float32).astype(dtype).tobytes()
        values = None if z is None else z.astype(np.float32)
        expected = defined(quantize_linear.define, x, f32(scale), values, **attributes, to=to)
        same_bits(codes.astype(np.float32), expected, x)
        more = {"axis": 1, "block_size": 0, "output_dtype": UNDEFINED}
        same_bits(
            quantize_linear.dequantize_linear(codes, f32(scale), z, **more),
            defined(
                quantize_linear.define_dequantize,
                codes.astype(np.float32),
                f32(scale),
                values,
                **more,
            ),
            x,
        )


@pytest.mark.parametrize(("axis", "size"), [(0, 0), (1, 0), (-1, 0), (0, 2), (1, 3), (-1, 5)])
def test_quantize_linear_along_an_axis(axis, size, defined, same_bits, hostile_inputs):
    """Per axis and blocked with a ragged last block, scale and zero point aligned for the proof."""
    x = hostile_inputs(0.1)[: 5 * 7 * 4].reshape(5, 7, 4)
    random = np.random.default_rng(7)
    shape = list(x.shape)
    shape[axis] = -(-shape[axis] // max(size, 1))
    s = random.uniform(0.01, 2, shape if size else [x.shape[axis]]).astype(np.float32)
    z = random.integers(-128, 128, s.shape).astype(np.int8)
    attributes = {
        "axis": axis,
        "saturate": True,
        "block_size": size,
        "output_dtype": UNDEFINED,
        "precision": UNDEFINED,
    }
    aligned = [blocks.align(p.astype(np.float32), x.shape, axis, size) for p in (s, z)]
    codes = quantize_linear.quantize_linear(x, s, z, **attributes)
    expected = defined(quantize_linear.define, x, *aligned, **attributes, to=ir.DataType.INT8)
    same_bits(codes.astype(np.float32), expected, x)
    more = {"axis": axis, "block_size": size, "output_dtype": UNDEFINED}
    same_bits(
        quantize_linear.dequantize_linear(codes, s, z, **more),
        defined(quantize_linear.define_dequantize, codes.astype(np.float32), *aligned, **more),
        x,
    )


def test_clip(defined, same_bits, hostile_inputs):
    x = hostile_inputs()
    inf = float("inf")
    for low, high in ((None, None), (f32(-1), None), (None, f32(2)), (f32(3), f32(-1))):
        inputs = x, low, high
        same_bits(
            cast_clip.clip(*inputs, min=-inf, max=inf),
            defined(cast_clip.define_clip, *inputs, min=-inf, max=inf),
            x,
        )
    for low, high in ((-1.0, inf), (-inf, 6.0), (-2.0, 2.0)):
        arguments = {"min": low, "max": high}
        same_bits(cast_clip.clip(x, **arguments), defined(cast_clip.define_clip, x, **arguments), x)


@pytest.mark.parametrize("name", [*CODE_TYPES, "FLOAT8E8M0", "INT32", "BOOL", "FLOAT"])
def test_cast(name, defined, same_bits, hostile_inputs):
    """Within the range of integers, where the result is defined."""
    x = hostile_inputs()
    if "INT" in name:
        x = x[(x > FORMATS[name].lo - 1) & (x < FORMATS[name].hi + 1)]
    for saturate, mode in itertools.product((True, False), ("up", "down", "nearest")):
        arguments = {"to": ir.DataType[name], "saturate": saturate, "round_mode": mode}
        result = cast_clip.cast(x, **arguments)
        assert result.dtype == (bool if name == "BOOL" else numpy_dtype(name))
        expected = defined(cast_clip.define, x, **arguments)
        same_bits(result.astype(np.float32), expected.astype(np.float32), x)


def test_cast_between_integers_keeps_the_low_bits():
    x = np.array([300, -3, 9, -9], np.int32)
    to = {"saturate": True, "round_mode": "up"}
    assert cast_clip.cast(x, to=ir.DataType.INT4, **to).astype(int).tolist() == [-4, -3, -7, 7]
    assert cast_clip.cast(x, to=ir.DataType.UINT8, **to).tolist() == [44, 253, 9, 247]
    assert cast_clip.cast(x, to=ir.DataType.BFLOAT16, **to).dtype == ml_dtypes.bfloat16
