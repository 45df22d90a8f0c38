"""Number formats by name: integers of any width, the ONNX minifloats, and E8M0 scales."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

import ml_dtypes
import numpy as np

from qgraph.numerics import Array, ArrayOf
from qgraph.numerics.minifloat import DTYPES, MINIFLOATS, Minifloat
from qgraph.records import dataclass

__all__ = [
    "E8M0",
    "FORMATS",
    "IntFormat",
    "Minifloat",
    "NumberFormat",
    "find_minifloat",
    "holding",
    "numpy_dtype",
]


class NumberFormat(Protocol):
    """A finite set of values with bit patterns."""

    @property
    def name(self) -> str:
        """Name to show; the ONNX DataType name where there is one."""

    @property
    def bits(self) -> int:
        """Width of a code in bits."""

    @property
    def lo(self) -> float:
        """Smallest finite value."""

    @property
    def hi(self) -> float:
        """Largest finite value."""


@dataclass(frozen=True)
class IntFormat:
    """Integers of ``bits`` bits; ``narrow`` drops the lowest if signed, the highest if unsigned."""

    bits: int
    signed: bool
    narrow: bool = False

    @property
    def lo(self) -> int:
        """Smallest value, exact."""
        return -(1 << (self.bits - 1)) + self.narrow if self.signed else 0

    @property
    def hi(self) -> int:
        """Largest value, exact."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1 - self.narrow

    @property
    def name(self) -> str:
        """``INT4``, ``UINT3``, ``INT8 narrow``."""
        return f"{'' if self.signed else 'U'}INT{self.bits}{' narrow' if self.narrow else ''}"


@dataclass(frozen=True)
class E8M0:
    """Powers of two from 2**-127 to 2**127 and NaN: the scales of microscaling blocks."""

    name = "FLOAT8E8M0"
    bits = 8
    lo = 2.0**-127
    hi = 2.0**127


_INTEGERS = [IntFormat(b, signed) for b in (2, 4, 8, 16) for signed in (False, True)]
_INTEGERS.append(IntFormat(32, True))

FORMATS: Mapping[str, NumberFormat] = MappingProxyType(
    {f.name: f for f in _INTEGERS} | MINIFLOATS | {E8M0.name: E8M0()}
)

_DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "FLOAT": np.dtype(np.float32),
    "FLOAT16": np.dtype(np.float16),
    "DOUBLE": np.dtype(np.float64),
    "BFLOAT16": np.dtype(ml_dtypes.bfloat16),
    "INT2": np.dtype(ml_dtypes.int2),
    "UINT2": np.dtype(ml_dtypes.uint2),
    "INT4": np.dtype(ml_dtypes.int4),
    "UINT4": np.dtype(ml_dtypes.uint4),
    **{f"{u}INT{b}": np.dtype(f"{u}int{b}".lower()) for u in ("", "U") for b in (8, 16, 32, 64)},
    **DTYPES,
}


def numpy_dtype(name: str) -> np.dtype:
    """NumPy or ml_dtypes dtype of an ONNX DataType name; one element per byte below 8 bits.

    Raises: ValueError for a name without a numeric dtype.
    """
    if name not in _DTYPES:
        msg = f"data type {name!r} has no NumPy dtype here; expected one of {', '.join(_DTYPES)}"
        raise ValueError(msg)
    return _DTYPES[name]


def all_values(name: str) -> Array:
    """Return all values of an ONNX type of up to 16 bits, with NaN and infinities."""
    dtype, form = numpy_dtype(name), FORMATS.get(name)
    if name == "BOOL":
        return np.array([False, True])
    if isinstance(form, IntFormat) and form.bits < 8:  # stored with its sign extended over the byte
        return np.arange(form.lo, form.hi + 1).astype(dtype)
    bits = dtype.itemsize * 8 if form is None else form.bits
    return np.arange(1 << bits, dtype=f"u{dtype.itemsize}").view(dtype)


def container(name: str) -> np.dtype:
    """Return the NumPy type that holds one code of a format: its integers, or bit patterns."""
    form = FORMATS[name]
    is_signed = isinstance(form, IntFormat) and form.signed
    return np.dtype(f"{'' if is_signed else 'u'}int{max(form.bits, 8)}")


def find_minifloat(
    exponent_bits: int, mantissa_bits: int, bias: int, max_value: float | None = None
) -> Minifloat | None:
    """The ONNX format with this grid and, if given, exactly this largest value; or None."""
    grid = exponent_bits, mantissa_bits, bias
    same = (f for f in MINIFLOATS.values() if (f.exponent_bits, f.mantissa_bits, f.bias) == grid)
    return next((f for f in same if max_value in (None, f.max_value)), None)


def holding(lo: float, hi: float, kinds: Iterable[str]) -> str | None:
    """Return the first of ``kinds`` that has all codes from ``lo`` to ``hi``."""
    return next((k for k in kinds if FORMATS[k].lo <= lo and hi <= FORMATS[k].hi), None)


Bytes = ArrayOf[np.uint8]

# elements per call of the kernels: the working set stays in the second-level cache
_CHUNK = 1 << 18


def packed_size(bits: int, count: int) -> int:
    """Bytes of ``count`` packed codes: ceil(bits * count / 8)."""
    return -(-bits * count // 8)


def pack(codes: ArrayOf[np.generic], bits: int) -> Bytes:
    """Codes side by side, in C order; the rest of the last byte is 0.

    2 bits  x0 | x1 << 2 | x2 << 4 | x3 << 6
    4 bits  x0 | x1 << 4
    6 bits  four codes as 24 bits, low byte first: x0 | x1 << 6 | x2 << 12 | x3 << 18

    Args:
        codes: ``[*shape]``, one code per byte, any one-byte dtype; bits above ``bits`` are ignored.
        bits: 2, 4 or 6.

    Returns: ``[ceil(bits * size / 8)]`` bytes.
    Raises: ValueError for other widths, or elements that are not one byte.
    Source: ONNX TensorProto.raw_data.
    """
    if codes.dtype.itemsize != 1:
        msg = f"codes of dtype {codes.dtype} cannot be packed; expected one code per byte"
        raise ValueError(msg)
    group = _group(bits)
    flat = np.ascontiguousarray(codes).view(np.uint8).reshape(-1)
    whole = flat.size - flat.size % group
    out = np.empty(packed_size(bits, flat.size), np.uint8)
    for start in range(0, whole, _CHUNK):
        stop = min(start + _CHUNK, whole)
        _pack_groups(flat[start:stop], bits, out[start * bits // 8 : stop * bits // 8])
    if whole < flat.size:
        tail = np.zeros(group, np.uint8)
        tail[: flat.size - whole] = flat[whole:]
        last = np.empty(group * bits // 8, np.uint8)
        _pack_groups(tail, bits, last)
        done = whole * bits // 8
        out[done:] = last[: out.size - done]
    return out


def unpack(data: Bytes, bits: int, count: int, out: Bytes | None = None) -> Bytes:
    """The first ``count`` codes of packed bytes, one per byte; inverse of :func:`pack`.

    Args:
        data: ``[n]`` bytes with ``n = ceil(bits * count / 8)``.
        bits: 2, 4 or 6.
        count: number of codes.
        out: ``[count]`` bytes, contiguous, to be filled and returned; None for new ones.

    Returns: ``[count]`` codes, upper bits 0 (no sign extension).
    Raises: ValueError for other widths, or a length that does not fit ``count``.
    """
    group = _group(bits)
    size = packed_size(bits, count)
    if data.size != size:
        msg = f"{count} codes of {bits} bits take {size} bytes, but the data has {data.size}"
        raise ValueError(msg)
    flat, unit = np.ascontiguousarray(data).reshape(-1), group * bits // 8
    if out is None:
        out = np.empty(count, np.uint8)
    whole = count // group
    step = _CHUNK // group
    for start in range(0, whole, step):
        stop = min(start + step, whole)
        _unpack_groups(flat[start * unit : stop * unit], bits, out[start * group : stop * group])
    if whole * group < count:
        rest, last = np.zeros(unit, np.uint8), np.empty(group, np.uint8)
        rest[: size - whole * unit] = flat[whole * unit :]
        _unpack_groups(rest, bits, last)
        out[whole * group :] = last[: count - whole * group]
    return out


def _group(bits: int) -> int:
    """Codes that together fill whole bytes."""
    if bits not in (2, 4, 6):
        msg = f"codes of {bits} bits have no packed form in ONNX; expected 2, 4 or 6 bits"
        raise ValueError(msg)
    return 2 if bits == 4 else 4


def _pack_groups(codes: Bytes, bits: int, out: Bytes) -> None:
    # Masks come before shifts: a sign-extended code would spill into its neighbour.
    if bits == 4:
        pair = codes.view("<u2") & np.uint16(0x0F0F)
        pair |= pair >> np.uint16(4)
        np.copyto(out, pair, casting="unsafe")
        return
    quad = codes.view("<u4") & np.uint32(0x3F3F3F3F if bits == 6 else 0x03030303)
    if bits == 2:
        quad |= quad >> np.uint32(6)
        quad |= quad >> np.uint32(12)
        np.copyto(out, quad, casting="unsafe")
        return
    quad = (quad & np.uint32(0x003F003F)) | (quad & np.uint32(0x3F003F00)) >> np.uint32(2)
    quad = (quad & np.uint32(0xFFF)) | (quad & np.uint32(0x0FFF0000)) >> np.uint32(4)
    out.reshape(-1, 3)[...] = quad.view(np.uint8).reshape(-1, 4)[:, :3]


def _unpack_groups(data: Bytes, bits: int, out: Bytes) -> None:
    if bits == 4:
        pair = out.view("<u2")
        np.copyto(pair, data)
        pair |= pair << np.uint16(4)
        pair &= np.uint16(0x0F0F)
        return
    quad = out.view("<u4")
    if bits == 2:
        np.copyto(quad, data)
        quad |= quad << np.uint32(12)
        quad |= quad << np.uint32(6)
        quad &= np.uint32(0x03030303)
        return
    out.reshape(-1, 4)[:, :3] = data.reshape(-1, 3)
    out[3::4] = 0
    quad[...] = (quad & np.uint32(0xFFF)) | (quad & np.uint32(0xFFF000)) << np.uint32(4)
    quad[...] = (quad & np.uint32(0x003F003F)) | (quad & np.uint32(0x0FC00FC0)) << np.uint32(2)
