"""Transpose matrices of codes of 2, 4 and 8 bits that stay packed."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array
from qgraph.numerics.formats import Bytes, pack

_GROUPS, _WORDS = 128, 1024
"""Groups of rows, and words of a row of each group, at a time: they stay in the second-level cache.

A group has as many rows as a word has codes.
"""

_TURNED = 256, 128
"""Rows, and bytes of each, that are transposed at a time: they stay in the first-level cache."""

Words = npt.NDArray[np.uint64]

_WORD = np.dtype("<u8")


def transpose_packed(data: Bytes, bits: int, out: Bytes) -> bool:
    """Transpose a matrix of packed codes; return whether a column of each tile has its codes.

    Code ``c`` of a row has the bits from ``bits * c`` on, the lowest bits of a byte first. All
    codes move in one way, whatever they are, so that a mistake shows in each column.

    Args:
        data: ``[rows, width]`` bytes.
        bits: 2, 4 or 8.
        out: ``[width * 8 / bits, ...]`` bytes in the same form, to be written; a row of them ends
            with zeros up to a multiple of 8 bytes.
    """
    (rows, width), lines, each = data.shape, 64 // bits, 8 // bits
    words = np.empty((lines, _GROUPS, _WORDS // lines), _WORD)
    content, spare, target = words.view(np.uint8), np.empty_like(words[1::2]), out.view(_WORD)
    tiles = itertools.product(range(0, width, content.shape[2]), range(0, rows, _GROUPS * lines))
    is_right = True
    for number, (left, top) in enumerate(tiles):
        tile = data[top : top + _GROUPS * lines, left : left + content.shape[2]]
        size, groups = tile.shape[1], -(-len(tile) // lines)
        whole = tile[: len(tile) // lines * lines]
        grouped = whole.reshape(-1, lines, size).transpose(1, 0, 2)
        content[:, : grouped.shape[1], :size] = grouped
        if len(whole) < len(tile):
            content[:, groups - 1, :size] = 0
            content[: len(tile) - len(whole), groups - 1, :size] = tile[len(whole) :]
        _exchange(words, bits, spare)
        columns = target[left * each : (left + size) * each, top // lines :][:, :groups]
        count = len(columns) // lines
        turned = words[:, :groups].transpose(2, 0, 1)
        columns[: count * lines].reshape(count, lines, groups)[:] = turned[:count]
        if count * lines < len(columns):
            rest = columns[count * lines :]
            rest[:] = turned[count, : len(rest)]
        index = number % len(columns)
        codes = tile[:, index // each] >> np.uint8(index % each * bits)
        expected = pack(codes & np.uint8((1 << bits) - 1), bits) if bits < 8 else codes
        is_right &= np.array_equal(columns[index].view(np.uint8)[: len(expected)], expected)
    return is_right


def transpose(data: Array, out: Array) -> None:
    """Copy the transposed matrix ``data`` to ``out``."""
    height, width = _TURNED[0], _TURNED[1] // data.itemsize
    for left in range(0, data.shape[1], width):
        for top in range(0, len(data), height):
            # Rows far apart would take each other's place in the cache.
            tile = np.ascontiguousarray(data[top : top + height, left : left + width])
            out[left : left + width, top : top + height] = tile.T


def _exchange(words: Words, bits: int, spare: Words) -> None:
    """Let code ``i`` in each word of line ``j`` change places with code ``j`` of line ``i``."""
    step = 1
    while step < len(words):
        # Half of the codes of a word change places with those of a line ``step`` further on.
        amount = np.uint64(bits * step)
        mask = np.uint64(((1 << 64) - 1) // ((1 << bits * step) + 1))
        pairs = words.reshape(-1, 2, step, words[0].size)
        low, high = pairs[:, 0], pairs[:, 1]
        change = spare.reshape(low.shape)
        np.right_shift(low, amount, out=change)
        np.bitwise_xor(change, high, out=change)
        np.bitwise_and(change, mask, out=change)
        np.bitwise_xor(high, change, out=high)
        np.left_shift(change, amount, out=change)
        np.bitwise_xor(low, change, out=low)
        step *= 2
