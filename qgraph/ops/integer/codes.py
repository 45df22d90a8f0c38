"""Arrays of codes and of their parameters: the types and shapes allowed, and requantization."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from qgraph.numerics import Array, Float32, Int32

_CODES = (np.dtype(np.int8), np.dtype(np.uint8))


def requantize(acc: Array, multiplier: Float32, zero_point: Array) -> Array:
    """Return the codes of sums: ``saturate(round_half_even(float32(acc) * m) + z)``.

    The multiplier, units of ``acc`` per step of the result, and the zero point, whose type is that
    of the codes, broadcast to ``acc``.
    """
    limits = np.iinfo(zero_point.dtype)
    z = zero_point.astype(np.float32)
    with np.errstate(all="ignore"):
        y = np.rint(acc.astype(np.float32) * multiplier)
        # fmax takes the bound where y is NaN
        y = np.minimum(np.fmax(y, limits.min - z), limits.max - z) + z
        codes: Array = y.astype(zero_point.dtype)
    return codes


def saturated(y: Float32, zero_point: Array) -> Array:
    """Return codes, in the type of their zero point, which ``y`` contains already."""
    limits = np.iinfo(zero_point.dtype)
    with np.errstate(all="ignore"):
        codes: Array = np.fmax(np.minimum(np.rint(y), limits.max), limits.min).astype(
            zero_point.dtype
        )
    return codes


def fused_in_double(codes: Array, factor: Array, added: Array) -> Float32:
    """Return ``codes * factor + added``, rounded to float64 and then to float32."""
    total = codes.astype(np.float64) * np.float64(factor) + added.astype(np.float64)
    return np.asarray(total, np.float32)


def ratio(s_a: Array, s_b: Array, s_y: Array) -> Float32:
    """Return ``s_a * s_b / s_y``, from left to right."""
    with np.errstate(all="ignore"):
        return float32(s_a) * float32(s_b) / float32(s_y)


def float32(scale: Array) -> Float32:
    """Return a scale; one of 16 bits becomes float32, exactly, in which all is computed."""
    if scale.dtype not in (np.float32, np.float16, ml_dtypes.bfloat16):
        raise ValueError(f"a scale or bias is {scale.dtype}, expected float32. Store it in float32")
    return scale.astype(np.float32, copy=False)


def int32(bias: Array) -> Int32:
    """Return what is added to sums."""
    if bias.dtype != np.int32:
        raise ValueError(f"its bias is {bias.dtype}, expected int32")
    return bias


def result(zero_point: Array) -> Array:
    """Return the zero point of the result, whose type is that of the codes."""
    if zero_point.dtype not in _CODES:
        raise ValueError(f"its output zero point is {zero_point.dtype}, expected int8 or uint8")
    return zero_point


def shifted(codes: Array, zero_point: Array | None, dtype: type = np.float64) -> Array:
    """Return codes minus their zero point, exactly."""
    if codes.dtype not in _CODES:
        raise ValueError(f"its codes are {codes.dtype}, expected int8 or uint8")
    if zero_point is not None and zero_point.dtype != codes.dtype:
        raise ValueError(
            f"its zero point is {zero_point.dtype} and its codes {codes.dtype}, expected one type"
        )
    values: Array = codes.astype(dtype)
    return values if zero_point is None else values - fitted(zero_point, codes).astype(dtype)


def decoded(codes: Array, scale: Array, zero_point: Array | None) -> Float32:
    """Return the real numbers that codes stand for: ``(code - zero_point) * scale``."""
    zero = None if zero_point is None else single(zero_point)
    return np.asarray(shifted(codes, zero, np.float32) * float32(single(scale)))


def zero_of(zero_point: Array | None, codes: Array) -> Array:
    """Return the zero point of a result, 0 in the type of ``codes`` if there is none."""
    return np.zeros((), codes.dtype) if zero_point is None else single(result(zero_point))


def fitted(parameter: Array, data: Array) -> Array:
    """Return a parameter; raise a ValueError unless it broadcasts to the shape of ``data``."""
    if np.broadcast_shapes(parameter.shape, data.shape) != data.shape:
        raise ValueError(
            f"a parameter has shape {list(parameter.shape)}, expected one that broadcasts to "
            f"{list(data.shape)}"
        )
    return parameter


def single(parameter: Array) -> Array:
    """Return a parameter of the whole tensor without axes."""
    if parameter.size != 1:
        raise ValueError(f"a parameter has shape {list(parameter.shape)}, expected one element")
    return parameter.reshape(())
