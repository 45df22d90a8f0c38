"""Transpose matrices of codes of 2, 4 and 8 bits that stay packed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array
from qgraph.numerics.formats import Bytes

_WIDTH, _HEIGHT = 128, 512
"""Bytes of a row, and groups of rows, at a time: all of them stay in the second-level cache."""

_TURNED = 256, 128
"""Rows, and bytes of each, that are transposed at a time: they stay in the first-level cache."""

Words = npt.NDArray[np.uint64]


def transpose_packed(data: Bytes, bits: int, out: Bytes) -> bool:
    """Transpose a matrix of packed codes; return whether unpacking the result gives its codes.

    Code ``c`` of a row has the bits from ``bits * c`` on, the lowest bits of a byte first.

    Args:
        data: ``[rows, width]`` bytes; ``rows * bits`` is a multiple of 8.
        bits: 2, 4 or 8.
        out: ``[width * 8 / bits, rows * bits / 8]`` bytes in the same form, to be written.
    """
    (rows, width), each = data.shape, 8 // bits
    lines = np.zeros((each, _HEIGHT, _WIDTH), np.uint8)
    words, spare = lines.view(np.uint64), np.empty((2, _HEIGHT, _WIDTH // 8), np.uint64)
    given, is_equal = np.empty_like(words), True
    for left in range(0, width, _WIDTH):
        for top in range(0, rows, _HEIGHT * each):
            tile = data[top : top + _HEIGHT * each, left : left + _WIDTH]
            count, size = len(tile) // each, tile.shape[1]
            for i in range(each):
                lines[i, :count, :size] = tile[i::each]
            if each > 1:
                used, kept, rest = words[:, :count], given[:, :count], spare[:, :count]
                np.copyto(kept, used)
                _exchange(used, bits, rest[0])
                rows_again = (_row(used, bits, i, *rest) for i in range(each))
                is_equal &= all(map(np.array_equal, rows_again, kept))
            for i in range(each):
                columns = slice(left * each + i, (left + size) * each, each)
                transpose(lines[i, :count, :size], out[columns, top // each : top // each + count])
    return is_equal


def transpose(data: Array, out: Array) -> None:
    """Copy the transposed matrix ``data`` to ``out``."""
    height, width = _TURNED[0], _TURNED[1] // data.itemsize
    for left in range(0, data.shape[1], width):
        for top in range(0, len(data), height):
            # Rows far apart would take each other's place in the cache.
            tile = np.ascontiguousarray(data[top : top + height, left : left + width])
            out[left : left + width, top : top + height] = tile.T


def _exchange(words: Words, bits: int, spare: Words) -> None:
    """Let code ``i`` in each byte of line ``j`` change places with code ``j`` of line ``i``."""
    shift = bits
    while shift < 8:
        step, amount = shift // bits, np.uint64(shift)
        mask = _repeated(sum(1 << bit for bit in range(8) if not bit & shift))
        for i in range(len(words)):
            if i & step:
                continue
            low, high = words[i], words[i + step]
            np.right_shift(low, amount, out=spare)
            np.bitwise_xor(spare, high, out=spare)
            np.bitwise_and(spare, mask, out=spare)
            np.bitwise_xor(high, spare, out=high)
            np.left_shift(spare, amount, out=spare)
            np.bitwise_xor(low, spare, out=low)
        shift *= 2


def _row(words: Words, bits: int, place: int, out: Words, spare: Words) -> Words:
    """Return the row that has code ``place`` of each line, in their order."""
    for i, line in enumerate(words):
        target = out if i == 0 else spare
        amount = np.uint64(bits * abs(i - place))
        move = np.left_shift if i > place else np.right_shift
        mask = _repeated(((1 << bits) - 1) << bits * i)
        np.bitwise_and(line if i == place else move(line, amount, out=target), mask, out=target)
        if i:
            np.bitwise_or(out, spare, out=out)
    return out


def _repeated(byte: int) -> np.uint64:
    return np.uint64(byte * 0x0101010101010101)
