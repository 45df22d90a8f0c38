"""Floating-point grids of 4 to 8 bits: snapping float32 values to them, and their bit patterns.

A minifloat with ``m`` mantissa bits and exponent bias ``b`` has a step of 2**(floor(log2|v|) - m)
at ``v``, never finer than 2**(1 - b - m). All arithmetic is float32; exponents come from the bits
of the number, because a float32 logarithm is off by one just below powers of two.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qgraph.numerics import ArrayOf, Float32, Int32
from qgraph.numerics.float32 import look_up, look_up_bytes, representatives
from qgraph.numerics.rounding import Rounding, round_to_integer
from qgraph.records import dataclass

Codes = ArrayOf[np.uint8]

_ZERO = np.float32(0)
_SIX = np.float32(6)
_EXPONENT_FIELD = np.uint32(0x7F800000)
_BITS_OF_2_TO_MINUS_127 = np.uint32(0x00400000)
_BITS_OF_2_TO_127 = np.uint32(0x7F000000)


@dataclass(frozen=True)
class Minifloat:
    """A signed minifloat grid, saturating at ``max_value``.

    Attributes:
        exponent_bits, mantissa_bits: field widths in bits.
        bias: what is subtracted from the exponent field; the smallest normal is 2**(1 - bias).
        max_value: largest finite value, in real units.
        has_inf, has_nan, has_negative_zero: special values that have an encoding.
        name: the ONNX DataType name, or a free label.
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    max_value: float
    has_inf: bool = False
    has_nan: bool = False
    has_negative_zero: bool = True
    name: str = "minifloat"

    @property
    def bits(self) -> int:
        """Width of a code in bits."""
        return 1 + self.exponent_bits + self.mantissa_bits

    def step_below(self, top: float) -> float:
        """Distance of neighbours just below ``top``, a normal number."""
        return float(2.0 ** (math.floor(math.log2(top)) - self.mantissa_bits))

    @property
    def lo(self) -> float:
        """Smallest finite value."""
        return -self.max_value

    @property
    def hi(self) -> float:
        """Largest finite value."""
        return self.max_value

    @property
    def count(self) -> int:
        """Number of different finite values; two zeros if -0 has an encoding."""
        top = math.floor(math.log2(self.max_value))
        steps = int((self.max_value - 2.0**top) / 2.0 ** (top - self.mantissa_bits))
        positive = ((top + self.bias) << self.mantissa_bits) + steps
        return 2 * positive + (2 if self.has_negative_zero else 1)

    def snap(self, x: npt.ArrayLike, rounding: Rounding = Rounding.ROUND) -> Float32:
        """Grid points near ``x``, ``[*shape]``; infinities saturate, NaN stays NaN."""
        values = np.asarray(x, np.float32)
        q = snap(values, self.mantissa_bits, 1 - self.bias, self.max_value, rounding)
        if not self.has_negative_zero:
            q += _ZERO  # -0 + 0 is +0
        return q


MINIFLOATS: dict[str, Minifloat] = {
    f.name: f
    for f in (
        Minifloat(4, 3, 7, 448.0, has_nan=True, name="FLOAT8E4M3FN"),
        Minifloat(4, 3, 8, 240.0, has_nan=True, has_negative_zero=False, name="FLOAT8E4M3FNUZ"),
        Minifloat(5, 2, 15, 57344.0, has_inf=True, has_nan=True, name="FLOAT8E5M2"),
        Minifloat(5, 2, 16, 57344.0, has_nan=True, has_negative_zero=False, name="FLOAT8E5M2FNUZ"),
        Minifloat(2, 3, 1, 7.5, name="FLOAT6E2M3"),
        Minifloat(3, 2, 3, 28.0, name="FLOAT6E3M2"),
        Minifloat(2, 1, 1, 6.0, name="FLOAT4E2M1"),
    )
}

DTYPES: dict[str, np.dtype] = {
    "FLOAT8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "FLOAT8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "FLOAT8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "FLOAT8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "FLOAT6E2M3": np.dtype(ml_dtypes.float6_e2m3fn),
    "FLOAT6E3M2": np.dtype(ml_dtypes.float6_e3m2fn),
    "FLOAT4E2M1": np.dtype(ml_dtypes.float4_e2m1fn),
    "FLOAT8E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}


def floor_power_of_two(v: npt.ArrayLike) -> Float32:
    """2**floor(log2|v|), exactly, within 2**-127 .. 2**127.

    Zero and all numbers below 2**-126 give 2**-127, infinities give 2**127, NaN gives NaN: what a
    saturating cast of |v| to E8M0 with rounding down returns.
    """
    values = np.asarray(v, np.float32)
    bits = np.empty(values.shape, np.uint32)
    np.bitwise_and(values.view(np.uint32), _EXPONENT_FIELD, out=bits)
    np.clip(bits, _BITS_OF_2_TO_MINUS_127, _BITS_OF_2_TO_127, out=bits)
    p = bits.view(np.float32)
    np.copyto(p, values, where=np.isnan(values))
    return p


def binary_exponent(v: npt.ArrayLike) -> Float32:
    """Return ``floor(log2(v))`` of positive finite numbers, exactly."""
    return np.asarray(np.frexp(np.asarray(v))[1] - 1, np.float32)


def snap(
    v: npt.ArrayLike,
    mantissa_bits: npt.ArrayLike,
    min_exponent: npt.ArrayLike,
    max_value: npt.ArrayLike,
    rounding: Rounding,
    out: Float32 | None = None,
) -> Float32:
    """Round to a minifloat grid, then clamp.

    k = max(floor(log2|v|), min_exponent) - mantissa_bits      exact exponent
    q = clamp(2**k * round(v / 2**k), -max_value, max_value)

    The clamp is to ``max_value`` itself even where that is no grid point; infinity means no clamp.
    NaN stays NaN, -0 stays -0. Exponents below -127 count as -127.

    Args:
        v: ``[*shape]`` values; the parameters are scalars or broadcast against it.
        mantissa_bits: stored bits of the fraction.
        min_exponent: exponent of the smallest normal number, ``1 - bias``.
        max_value: largest magnitude, in units of ``v``.
        rounding: applied to multiples of the local step.
        out: where to put the result; may be ``v`` itself.

    Source: QONNX FloatQuant, with the exact exponent in place of a float32 log2.
    """
    values = np.asarray(v, np.float32)
    m = np.asarray(mantissa_bits, np.int32)
    lowest = np.asarray(min_exponent, np.int32)
    limit = np.asarray(max_value, np.float32)
    # the top binade may round to infinity, and a signalling NaN is no reason to warn
    with np.errstate(over="ignore", invalid="ignore"):
        step = _step(values, m, lowest)
        if out is None:
            shape = np.broadcast_shapes(values.shape, step.shape, limit.shape)
            out = np.empty(shape, np.float32)
        np.divide(values, step, out=out)
        round_to_integer(out, rounding, out=out)
        out *= step
    return np.clip(out, -limit, limit, out=out)


def _step(values: Float32, m: Int32, lowest: Int32) -> Float32:
    """2**(max(floor(log2|v|), lowest) - m), at least 2**-149."""
    if (
        m.min(initial=1) >= 1
        and lowest.max(initial=0) <= 127
        and (lowest - m).min(initial=0) >= -126
    ):
        # Normal numbers throughout: exponents are added in their field. Whatever infinity and NaN
        # get for a step, they stay what they are.
        field = ((lowest + np.int32(127)) << np.int32(23)).view(np.uint32)
        bits = np.maximum(np.bitwise_and(values.view(np.uint32), _EXPONENT_FIELD), field)
        return np.asarray(bits - (m << np.int32(23)).view(np.uint32), np.uint32).view(np.float32)
    one = np.float32(1)
    # no float32 lies between multiples of 2**-149, so a finer step would only underflow
    finest = np.ldexp(one, np.maximum(lowest - m, -149))
    return np.asarray(np.maximum(floor_power_of_two(values) * np.ldexp(one, -m), finest))


def cast(x: npt.ArrayLike, fmt: str, saturate: bool = True, out: Float32 | None = None) -> Float32:
    """Values of ONNX ``Cast(float32 -> fmt -> float32)``: nearest, ties to even.

    Beyond the largest value ``max``:

    ============  ===============  ==========================  =========
    format        saturating       ``saturate=False``          NaN
    ============  ===============  ==========================  =========
    E5M2          +-max            +-Inf                       NaN
    other FP8     +-max            NaN                         NaN
    FP4           +-max            +-max (no special values)   +max
    FP6           +-max            +-max (no special values)   zero
    ============  ===============  ==========================  =========

    The NaN rule of FP4 is the standard's. For FP6 the standard calls it unspecified and shows -0:
    NaN becomes a zero of opposite sign, as in its reference implementation. FNUZ formats turn -0
    into +0, the others keep it.

    Args:
        x: ``[*shape]`` real values.
        fmt: ONNX DataType name of an FP8, FP6 or FP4 format.
        saturate: whether FP8 overflow stays finite.
        out: ``[*shape]``, where to put the result; may be ``x`` itself.

    Raises: ValueError for an unknown format.
    Source: ONNX Cast and the ONNX float4, float6 and float8 pages.
    """
    values = np.asarray(x, np.float32)
    return look_up(values, _casts(_minifloat(fmt).name, saturate), out)


@functools.cache
def _casts(fmt: str, saturate: bool) -> Float32:
    """Return the result of :func:`cast` for each representative number."""
    f, x = MINIFLOATS[fmt], representatives()
    if not f.has_nan:
        q = f.snap(x)
        instead = _SIX if fmt == "FLOAT4E2M1" else np.copysign(_ZERO, -x)
        np.copyto(q, instead, where=np.isnan(q))
        return q
    if saturate:
        return f.snap(x)
    q = snap(x, f.mantissa_bits, 1 - f.bias, np.inf, Rounding.ROUND)
    special = np.float32(np.inf if f.has_inf else np.nan)
    np.copyto(q, np.copysign(special, q), where=np.abs(q) > np.float32(f.max_value))
    if not f.has_negative_zero:
        q += _ZERO
    return q


def cast_e8m0(
    x: npt.ArrayLike, round_mode: Literal["up", "down", "nearest"] = "up", saturate: bool = True
) -> Float32:
    """Values of ONNX ``Cast(float32 -> FLOAT8E8M0 -> float32)``: powers of two, 2**-127 .. 2**127.

    ``nearest`` sends ties (1.5 * 2**k) up. Saturating: what is below 2**-127, zero and negative
    numbers included, gives 2**-127, what is above 2**127 gives 2**127. Otherwise both give NaN.

    Args:
        x: ``[*shape]`` real values.
        round_mode: "up", "down" or "nearest".
        saturate: whether out-of-range inputs stay finite.

    Raises: ValueError for another round_mode.
    Source: ONNX Cast, version 24; negative inputs, unspecified there, as ONNX Runtime.
    """
    values = np.asarray(x, np.float32)
    positive = np.maximum(values, _ZERO)
    p = floor_power_of_two(positive)
    with np.errstate(over="ignore", invalid="ignore"):  # 2**127 raised; signalling NaN
        match round_mode:
            case "up":
                p += p * (positive > p)
            case "nearest":
                p += p * (positive >= np.float32(1.5) * p)
            case "down":
                pass
            case _:
                msg = f"round_mode {round_mode!r} is not known; expected up, down or nearest"
                raise ValueError(msg)
    top = np.float32(2.0**127)
    if saturate:
        return np.minimum(p, top, out=p)
    outside = (values < np.float32(2.0**-127)) | (values > top)
    np.copyto(p, np.float32(np.nan), where=outside)
    return p


def encode(values: npt.ArrayLike, fmt: str, saturate: bool = True) -> ArrayOf[np.generic]:
    """``values`` ``[*shape]`` cast to ``fmt``, in its ml_dtypes type; see :func:`cast`."""
    x = np.asarray(values, np.float32)
    return look_up(x, _codes(_minifloat(fmt).name, saturate)).view(DTYPES[fmt])


@functools.cache
def _codes(fmt: str, saturate: bool) -> Codes:
    """The code that :func:`encode` gives to each representative number."""
    return _casts(fmt, saturate).astype(DTYPES[fmt]).view(np.uint8)


def decode(codes: ArrayOf[np.generic], out: Float32 | None = None) -> Float32:
    """Float32 values ``[*shape]`` of an array of an FP8, FP6, FP4 or E8M0 type; exact."""
    return look_up_bytes(codes.view(np.uint8), _values(codes.dtype), out)


@functools.cache
def _values(dtype: np.dtype[np.generic]) -> Float32:
    """The value of each byte."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)


def _minifloat(name: str) -> Minifloat:
    if name not in MINIFLOATS:
        msg = f"{name!r} is not a minifloat format; expected one of {', '.join(MINIFLOATS)}"
        raise ValueError(msg)
    return MINIFLOATS[name]
