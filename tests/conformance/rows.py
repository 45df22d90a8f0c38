"""The rows of the conformance table: what a quantizer of each operator can be."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from qgraph.numerics.formats import IntFormat
from qgraph.numerics.minifloat import MINIFLOATS
from qgraph.numerics.rounding import Rounding
from tests.conformance.linear_rows import linear_rows
from tests.conformance.quantizers import (
    GRANULARITIES,
    OPENVINO,
    QONNX,
    SCALES,
    Array,
    Quantizer,
    Row,
    Step,
    binades,
    halves,
    inputs,
    parameter,
    zero_point,
)

SIGNS = ("signed", "signed narrow", "unsigned", "unsigned narrow")
ZEROS = ("0", "even", "odd", "fractional")
MODES = tuple(str(mode) for mode in Rounding)
SOME_MODES = ("ROUND", "FLOOR", "HALF_UP")
LEVELS = (2, 3, 15, 16, 17, 255, 256, 257)
FEW_LEVELS = (16, 255, 256)

FREE_FORMATS = {
    "E3M0": (3, 0, 2, 1e6),
    "E4M3FN up to 60": (4, 3, 7, 60),
    "E4M3FN up to 430": (4, 3, 7, 430),
    "E5M10": (5, 10, 15, 65504),
}
"""Grids of FloatQuant that ONNX has no type for: exponent, mantissa, bias, largest value."""


def rows() -> Iterator[Quantizer]:
    """Yield all rows, operator by operator."""
    yield from _quants()
    yield from _bipolars()
    yield from _truncs()
    yield from _float_quants()
    yield from _fake_quantizes()
    yield from linear_rows()


def _quants() -> Iterator[Quantizer]:
    widths = range(1, 17)
    grid = [
        *product(["input"], ["tensor"], SIGNS, widths, ZEROS, ["ROUND"]),
        *product(["input"], ["tensor"], SIGNS, [1, 4, 8, 16], ZEROS, MODES[1:]),
        *product(["input"], GRANULARITIES[1:], SIGNS, [1, 4, 8], ZEROS, SOME_MODES),
        *product(["weight"], ["tensor"], SIGNS, widths, ZEROS, ["ROUND"]),
        *product(["weight"], GRANULARITIES[1:], SIGNS, [1, 4, 8, 16], ZEROS, ["ROUND", "FLOOR"]),
    ]
    for data, granularity, kind, width, zero, rounding in grid:
        signed, narrow = kind.startswith("signed"), kind.endswith("narrow")
        z = zero_point(zero, width, signed=signed)
        if z is None:
            continue
        form = IntFormat(width, signed, narrow)
        scale = parameter(granularity, SCALES)
        x = inputs((halves(form.lo, form.hi) - z) * np.float64(scale), special=data == "input")
        attributes = {"signed": int(signed), "narrow": int(narrow), "rounding_mode": rounding}
        step = Step("Quant", (scale, np.float32(z), np.float32(width)), attributes, QONNX)
        yield Quantizer(Row("Quant", data, granularity, kind, width, zero, rounding), (step,), x)


def _bipolars() -> Iterator[Quantizer]:
    for data, granularity in product(["input", "weight"], GRANULARITIES):
        x = inputs(np.array([0.0, 1.0, -2.0]), special=data == "input")
        step = Step("BipolarQuant", (parameter(granularity, SCALES),), {}, QONNX)
        row = Row("BipolarQuant", data, granularity, "-", 1, "none", "-")
        yield Quantizer(row, (step,), x)


def _truncs() -> Iterator[Quantizer]:
    grid = [
        *product(["tensor"], ["signed", "unsigned narrow"], [1, 4, 8], ZEROS, MODES),
        *product(GRANULARITIES[1:], ["signed", "unsigned"], [4, 8], ZEROS, SOME_MODES),
    ]
    for granularity, kind, width, zero, rounding in grid:
        signed, narrow = kind.startswith("signed"), kind.endswith("narrow")
        z = zero_point(zero, width, signed=signed)
        if z is None:
            continue
        dropped = 6 if width == 4 else 3
        form = IntFormat(width, signed, narrow)
        scale = parameter(granularity, SCALES)
        grid_codes = np.unique(halves(form.lo, form.hi)[:, None] * 2.0**dropped + [-0.5, 0, 0.5])
        x = inputs((grid_codes.ravel() - z) * np.float64(scale))
        attributes = {"signed": int(signed), "narrow": int(narrow), "rounding_mode": rounding}
        wide, bits = np.float32(width + dropped), np.float32(width)
        first = (scale, np.float32(z), wide, bits)
        second = (scale, np.float32(z), wide, scale * np.float32(2.0**dropped), bits)
        if not narrow and granularity == "tensor":
            row = Row("Trunc, version 1", "input", granularity, "-", width, zero, rounding)
            yield Quantizer(row, (Step("Trunc", first, attributes, QONNX),), x)
        row = Row("Trunc, version 2", "input", granularity, kind, width, zero, rounding)
        yield Quantizer(row, (Step("Trunc", second, attributes, QONNX),), x)


def _float_quants() -> Iterator[Quantizer]:
    formats = {
        name: (f.exponent_bits, f.mantissa_bits, f.bias, f.max_value)
        for name, f in MINIFLOATS.items()
    }
    grid = [
        *product(["input"], GRANULARITIES, [*formats, *FREE_FORMATS], MODES, [True]),
        *product(["input"], ["tensor"], formats, ["ROUND"], [False]),
        *product(["weight"], GRANULARITIES, [*formats, *FREE_FORMATS], ["ROUND", "FLOOR"], [True]),
    ]
    for data, granularity, name, rounding, saturating in grid:
        widths = {**formats, **FREE_FORMATS}[name]
        scale = parameter(granularity, SCALES)
        x = inputs(binades(widths) * np.float64(scale), special=data == "input")
        attributes = {
            "has_inf": int("E5M2" in name and "UZ" not in name),
            "has_nan": int("8" in name),
            "has_subnormal": 1,
            "saturation": int(saturating),
            "rounding_mode": rounding,
        }
        if not saturating and not (attributes["has_inf"] or attributes["has_nan"]):
            continue
        constants = (scale, *map(np.float32, widths))
        kind = name if saturating else f"{name} not saturating"
        row = Row("FloatQuant", data, granularity, kind, 0, "none", rounding)
        yield Quantizer(row, (Step("FloatQuant", constants, attributes, QONNX),), x)


def _fake_quantizes() -> Iterator[Quantizer]:
    kinds = ("same range", "range of powers of two", "other output", "codes out")
    grid = [
        *product(["input"], ["tensor"], kinds, LEVELS, ZEROS),
        *product(["input"], ["tensor"], kinds[:1], [65535, 65536], ["0", "even"]),
        *product(["input"], GRANULARITIES[1:], kinds, FEW_LEVELS, ZEROS),
        *product(["input"], GRANULARITIES, ["reversed range", "one point"], FEW_LEVELS, ["0"]),
        *product(["weight"], GRANULARITIES, kinds[:2], FEW_LEVELS, ZEROS),
    ]
    for data, granularity, kind, levels, zero in grid:
        low, high = _range(granularity, kind, levels, zero)
        below, above = low, high
        if kind == "other output":
            below, above = np.float32(-0.7) + 0 * low, np.float32(2.9) + 0 * high
        elif kind == "codes out":
            below, above = np.zeros_like(low), np.full_like(high, levels - 1)
        steps = halves(0, levels - 1) / (levels - 1)
        ends = np.float64(low), np.float64(high)
        x = inputs(ends[0] + steps * (ends[1] - ends[0]), special=data == "input")
        step = Step("FakeQuantize", (low, high, below, above), {"levels": levels}, OPENVINO)
        row = Row("FakeQuantize", data, granularity, kind, levels, zero, "-")
        yield Quantizer(row, (step,), x)


def _range(granularity: str, kind: str, levels: int, zero: str) -> tuple[Array, Array]:
    """Return the ends of an input range whose zero lies on a level of the kind, or between two."""
    scale = parameter(granularity, SCALES)
    if kind == "range of powers of two":
        scale = np.exp2(np.rint(np.log2(scale)))
    place = {"0": 0.0, "even": levels // 4 * 2.0, "odd": levels // 4 * 2.0 + 1}
    low = -np.float32(place.get(zero, levels / 2 + 0.2)) * scale
    high = np.float32(low + np.float32(levels - 1) * scale)
    if kind == "one point":
        return low, low
    return (high, low) if kind == "reversed range" else (low, high)
