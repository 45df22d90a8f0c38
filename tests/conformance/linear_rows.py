"""Rows of ONNX's own operators: pairs, lone DequantizeLinear on weights, Cast to minifloats."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.numerics.formats import FORMATS, IntFormat, numpy_dtype
from qgraph.numerics.minifloat import MINIFLOATS
from tests.conformance.quantizers import (
    GRANULARITIES,
    LEADING,
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

INTEGERS = ("INT2", "UINT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16")
ZEROS = ("none", "0", "even", "odd")
PLACES: dict[str, dict[str, int]] = {"tensor": {}, "axis": {"axis": 1}, "block": {"axis": 3}}
"""Attributes of QuantizeLinear for a granularity; the size of blocks is that of the data."""


def linear_rows() -> Iterator[Quantizer]:
    """Yield the rows of QuantizeLinear, DequantizeLinear and Cast."""
    yield from _pairs()
    yield from _clipped_pairs()
    yield from _weights()
    yield from _casts()


def _pairs() -> Iterator[Quantizer]:
    for granularity, kind, zero in product(PLACES, INTEGERS, ZEROS):
        if kind == "UINT8" or zero != "none":
            yield _pair("Q+DQ", granularity, kind, zero, None)
    for granularity, kind in product(PLACES, MINIFLOATS):
        yield _minifloat_pair(granularity, kind, saturating=True)
        if "8" in kind:
            yield _minifloat_pair(granularity, kind, saturating=False)


def _clipped_pairs() -> Iterator[Quantizer]:
    for granularity, zero, width in product(["tensor", "axis"], ZEROS[1:], range(2, 9)):
        for signed, narrow in product([True, False], repeat=2):
            form = IntFormat(width, signed, narrow)
            if form.name not in FORMATS or width < 8:
                yield _pair("Q+Clip+DQ", granularity, form.name, zero, (form.lo, form.hi))
    for kind, zero in product(["INT8", "UINT8"], ZEROS[1:]):
        yield _pair("Q+Clip+DQ", "tensor", f"{kind} from 3 to 77", zero, (3, 77))


def _pair(
    operator: str, granularity: str, kind: str, zero: str, bounds: tuple[int, int] | None
) -> Quantizer:
    signed = not kind.startswith("U")
    storage = kind if bounds is None else "INT8" if signed else "UINT8"
    codes = numpy_dtype(storage)
    lo, hi = bounds or (FORMATS[storage].lo, FORMATS[storage].hi)
    z = zero_point(zero, int(hi - lo).bit_length(), signed=signed) or 0.0
    laid = np.float64(_scale(granularity))
    x = inputs((halves(lo, hi) - z) * (laid[..., :1] if granularity == "block" else laid))
    scale, place = _laid_out(granularity, x)
    constants = (scale, None if zero == "none" else np.full(scale.shape, z, codes))
    steps = [Step("QuantizeLinear", constants, place)]
    if bounds is not None:
        steps.append(Step("Clip", tuple(np.array(bound, codes) for bound in bounds)))
    steps.append(Step("DequantizeLinear", constants, place))
    width = 0 if bounds is None else int(hi - lo).bit_length()
    return Quantizer(Row(operator, "input", granularity, kind, width, zero, "-"), tuple(steps), x)


def _minifloat_pair(granularity: str, kind: str, *, saturating: bool) -> Quantizer:
    form = MINIFLOATS[kind]
    widths = form.exponent_bits, form.mantissa_bits, form.bias, form.max_value
    laid = np.float64(_scale(granularity))
    x = inputs(binades(widths) * (laid[..., :1] if granularity == "block" else laid))
    scale, place = _laid_out(granularity, x)
    constants = (scale, np.zeros(scale.shape, numpy_dtype(kind)))
    first = place if saturating else {**place, "saturate": 0}
    steps = Step("QuantizeLinear", constants, first), Step("DequantizeLinear", constants, place)
    name = kind if saturating else f"{kind} not saturating"
    return Quantizer(Row("Q+DQ", "input", granularity, name, 0, "0", "-"), steps, x)


def _weights() -> Iterator[Quantizer]:
    random = np.random.default_rng(7)
    for granularity, kind, zero in product(PLACES, [*INTEGERS, "INT32", *MINIFLOATS], ZEROS):
        form = FORMATS[kind]
        minifloat = kind in MINIFLOATS
        if minifloat and zero != "none":
            continue
        if minifloat:
            finite = np.arange(-20, 20, dtype=np.float32) * np.float32(form.hi / 20)
            codes = np.resize(finite, (*LEADING, 40)).astype(numpy_dtype(kind))
        else:
            top = min(int(form.hi), 1 << 30)
            drawn = random.integers(max(int(form.lo), -top), top, (*LEADING, 40), endpoint=True)
            codes = drawn.astype(numpy_dtype(kind))
        scale, place = _laid_out(granularity, codes)
        signed = not kind.startswith("U")
        z = zero_point(zero, min(form.bits, 16), signed=signed) or 0.0
        zeros = None if zero == "none" else np.full(scale.shape, z, codes.dtype)
        step = Step("DequantizeLinear", (scale, zeros), place)
        row = Row("DQ", "weight", granularity, kind, 0, zero, "-")
        yield Quantizer(row, (step,), codes)


def _casts() -> Iterator[Quantizer]:
    for kind, saturating in product(MINIFLOATS, [True, False]):
        form = MINIFLOATS[kind]
        widths = form.exponent_bits, form.mantissa_bits, form.bias, form.max_value
        if not saturating and "8" not in kind:
            continue
        attributes: dict[str, Any] = {"to": ir.DataType[kind]}
        if not saturating:
            attributes["saturate"] = 0
        casts = Step("Cast", (), attributes), Step("Cast", (), {"to": ir.DataType.FLOAT})
        name = kind if saturating else f"{kind} not saturating"
        row = Row("Cast+Cast", "input", "tensor", name, 0, "none", "-")
        yield Quantizer(row, casts, inputs(binades(widths)))
        for granularity in GRANULARITIES if saturating else ():
            scale = parameter(granularity, SCALES)
            steps = (Step("Div", (scale,)), *casts, Step("Mul", (scale,)))
            row = Row("Div+Cast+Cast+Mul", "input", granularity, name, 0, "none", "-")
            yield Quantizer(row, steps, inputs(binades(widths) * np.float64(scale)))


def _scale(granularity: str) -> Array:
    """Return the scale in a shape that broadcasts to the data, two blocks along its last axis."""
    if granularity != "block":
        return parameter(granularity, SCALES)
    return np.resize(np.float32(SCALES), (*LEADING, 2))


def _laid_out(granularity: str, data: Array) -> tuple[Array, dict[str, int]]:
    """Return the scale as QuantizeLinear takes it, and its attributes."""
    scale, place = _scale(granularity), dict(PLACES[granularity])
    if granularity == "block":
        place["block_size"] = data.shape[-1] // 2
    return scale.reshape(-1) if granularity == "axis" else scale, place
