"""float32 numbers by their bits: functions by table, an integer order, a check of the arithmetic.

Functions by a table of 65,536 entries: rounding to a grid of few bits needs of a number only the
upper half and whether anything is left below. The lower half, if not 0, is therefore kept as the
last bit of the upper one: the number is rounded to odd. It stays on its side of every number whose
upper half is even and whose lower half is 0. Those are all grid points and all middles between
them, as long as the grid has at most 5 stored bits of the fraction: the upper half has 7, of which
a middle takes one more, and the last one is the odd one. One look into a table then takes the place
of a dozen operations.

The order of float32 bit patterns has one integer key per number, so that boxes can be halved::

    key = bits             for a clear sign bit
    key = bits ^ 0x7fffffff (as a signed integer) otherwise

-Inf .. +Inf is contiguous; -0 is -1 and +0 is 0, so that keys order the zeros too. How many numbers
lie between two others is a difference of keys.

A proof holds only if the thread computes by IEEE 754, which :func:`check_float_environment` checks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from qgraph.errors import UnsupportedError
from qgraph.numerics import Array, ArrayOf, Float32

Table = Array
Bits = ArrayOf[np.unsignedinteger]
Places = ArrayOf[np.intp]
Find = Callable[[Places, Bits], None]
"""Writes for each element the place of its entry in a table."""

# elements at a time: numbers, indices and results stay in the second-level cache
_CHUNK = 1 << 15

_LOWER = np.uint32(0xFFFF)
_HALF = np.uint32(16)


def representatives() -> Float32:
    """One number for each entry of a table, ``[65536]``, NaN and infinities included."""
    return (np.arange(1 << 16, dtype=np.uint32) << _HALF).view(np.float32)


def look_up(x: Float32, table: Table, out: Table | None = None) -> Table:
    """``table[upper half of x, rounded to odd]`` for each number ``[*shape]``.

    The table ``[65536]`` has the function's value at each of :func:`representatives`. ``out`` may
    be ``x`` itself if the table is of float32.
    """
    return _in_pieces(x.view(np.uint32), table, out, _upper_halves)


def look_up_bytes(x: ArrayOf[np.uint8], table: Table, out: Table | None = None) -> Table:
    """``table[x]`` for each byte ``[*shape]``, in the dtype of the table ``[256]``."""
    return _in_pieces(x, table, out, np.copyto)


def _in_pieces(bits: Bits, table: Table, out: Table | None, find: Find) -> Table:
    if out is None:
        out = np.empty(bits.shape, table.dtype)
    if bits.size <= _CHUNK:
        entries = np.empty(bits.shape, np.intp)
        find(entries, bits)
        np.take(table, entries, out=out, mode="clip")
        return out
    whole = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
    flat, result = bits.reshape(-1), whole.reshape(-1)
    buffer: Places = np.empty(_CHUNK, np.intp)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        find(buffer[: part.size], part)
        piece = result[start : start + part.size]
        np.take(table, buffer[: part.size], out=piece, mode="clip")
    if whole is not out:
        out[...] = whole
    return out


def _upper_halves(entries: Places, bits: Bits) -> None:
    halves = np.bitwise_and(bits, _LOWER, out=np.empty(bits.shape, np.uint32))
    np.add(halves, _LOWER, out=halves)  # carries into the upper half unless 0
    np.bitwise_or(halves, bits, out=halves)
    np.right_shift(halves, _HALF, out=halves)
    np.copyto(entries, halves, casting="unsafe")


Keys = ArrayOf[np.int64]

NEGATIVE_INFINITY = -2139095041
LOWEST = -2139095040
"""Key of the most negative finite number."""
NEGATIVE_ZERO = -1
POSITIVE_ZERO = 0
HIGHEST = 2139095039
"""Key of the largest finite number."""
POSITIVE_INFINITY = 2139095040

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN = np.int32(31)


def to_keys(x: npt.ArrayLike) -> Keys:
    """Return the keys ``[*shape]`` of float32 numbers; NaN gives keys outside the infinities."""
    bits = np.atleast_1d(np.asarray(x, np.float32)).view(np.int32)
    return ((bits >> _SIGN & _MAGNITUDE) ^ bits).astype(np.int64).reshape(np.shape(x))


def from_keys(keys: npt.ArrayLike) -> Float32:
    """Return the float32 numbers ``[*shape]`` of keys."""
    bits = np.atleast_1d(np.asarray(keys)).astype(np.int32)
    return ((bits >> _SIGN & _MAGNITUDE) ^ bits).view(np.float32).reshape(np.shape(keys))


# 2**-100 * 2**-40, 2**-126 / 2, 2**-149 + 2**-149, 1 + 2**-24, (1 + 2**-23) + 2**-24, as bits:
# a conversion from decimal would already lose the subnormal ones where they are flushed
_FACTORS = np.array([0x0D800000, 0x2B800000], np.uint32)
_QUOTIENT = np.array([0x00800000, 0x40000000], np.uint32)
_SUMMANDS = np.array([[1, 0x3F800000, 0x3F800001], [1, 0x33800000, 0x33800000]], np.uint32)
_EXPECTED = np.array([0x00000200, 0x00400000, 2, 0x3F800000, 0x3F800002], np.uint32)


def check_float_environment() -> None:
    """Check that this thread rounds to nearest even and keeps subnormal numbers.

    A runtime that treats subnormal numbers as zero does so for the whole thread.

    Raises:
        UnsupportedError: it does not.
    """
    if not probe_float_environment():
        raise UnsupportedError(
            "The float arithmetic of this thread: subnormal numbers are flushed to zero, or "
            "results are not rounded to nearest even. IEEE 754 arithmetic was expected, without "
            "which nothing can be proved. Run runtimes whose sessions treat subnormal numbers as "
            "zero in another process."
        )


def probe_float_environment() -> bool:
    """Return whether a few products, quotients and sums come out as IEEE 754 says."""
    factors, quotient, summands = (a.view(np.float32) for a in (_FACTORS, _QUOTIENT, _SUMMANDS))
    with np.errstate(all="ignore"):
        computed = [
            factors[:1] * factors[1:],
            quotient[:1] / quotient[1:],
            summands[0] + summands[1],
        ]
    return bool((np.concatenate(computed).view(np.uint32) == _EXPECTED).all())


def multiply_add(a: Array, b: Array, c: Array) -> Float32:
    """Return ``a * b + c`` of float32 numbers, rounded once.

    The product is exact in float64, and the sum may not be. Where it is not, it gets an odd last
    bit on the side of what was lost, so that rounding it to float32 does what rounding the exact
    sum would.
    """
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    with np.errstate(all="ignore"):
        total = np.asarray(product + addend)
        part = total - product
        lost = (product - (total - part)) + (addend - part)
        is_even = total.view(np.int64) & 1 == 0
        inexact = is_even & ((lost > 0) | (lost < 0))
        toward = np.where(lost > 0, np.inf, -np.inf)
        return np.asarray(np.where(inexact, np.nextafter(total, toward), total), np.float32)
