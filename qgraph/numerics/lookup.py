"""Functions of float32 numbers that a table of 65,536 entries decides.

Rounding to a grid of few bits needs no more of a number than its upper half and whether anything
is left below. The lower half, if not 0, is therefore kept as the last bit of the upper one: the
number is rounded to odd. It stays on its side of every number whose upper half is even and whose
lower half is 0. Those are all grid points and all middles between them, as long as the grid has at
most 5 stored bits of the fraction: the upper half has 7, of which a middle takes one more, and the
last one is the odd one. One look into a table then takes the place of a dozen operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Table = npt.NDArray[Any]
Bits = npt.NDArray[np.unsignedinteger]
Places = npt.NDArray[np.intp]
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
    """``table[upper half of x, rounded to odd]`` for each number.

    Args:
        x: ``[*shape]`` numbers.
        table: ``[65536]``, the function's value at each of :func:`representatives`.
        out: ``[*shape]``, where to put the result; may be ``x`` itself if the table is of float32.

    Returns: ``[*shape]`` in the dtype of the table.
    """
    return _in_pieces(x.view(np.uint32), table, out, _upper_halves)


def look_up_bytes(x: npt.NDArray[np.uint8], table: Table, out: Table | None = None) -> Table:
    """``table[x]`` for each byte.

    Args:
        x: ``[*shape]`` bytes.
        table: ``[256]``.
        out: ``[*shape]``, where to put the result.

    Returns: ``[*shape]`` in the dtype of the table.
    """
    return _in_pieces(x, table, out, np.copyto)


def _in_pieces(bits: Bits, table: Table, out: Table | None, find: Find) -> Table:
    if out is None:
        out = np.empty(bits.shape, table.dtype)
    if bits.size <= _CHUNK:
        places = np.empty(bits.shape, np.intp)
        find(places, bits)
        np.take(table, places, out=out, mode="clip")
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


def _upper_halves(places: Places, bits: Bits) -> None:
    halves = np.bitwise_and(bits, _LOWER, out=np.empty(bits.shape, np.uint32))
    np.add(halves, _LOWER, out=halves)  # carries into the upper half unless 0
    np.bitwise_or(halves, bits, out=halves)
    np.right_shift(halves, _HALF, out=halves)
    np.copyto(places, halves, casting="unsafe")
