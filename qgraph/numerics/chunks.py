"""Operations on big tensors in pieces that fit in the cache; elementwise ones on all cores.

numba compiles loops to vector instructions, if it is installed.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import logging
import math
import os
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from qgraph.numerics import Array, ArrayOf, Mask
from qgraph.numerics.formats import Bytes, pack


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Work = Callable[..., None]

_PIECE = 1 << 15
"""Elements at a time: data, result and a temporary of float32 stay in the second-level cache."""

_WHOLE = 1 << 17
"""Elements up to which cutting costs more than it saves."""

_THREADED = 1 << 19
"""Elements from which handing work to other threads costs less than it saves."""

_LITTLE = 1 << 10
"""Elements up to which the number of calls matters, not what they do."""

_RARE = 16
"""A masked copy is faster if it changes one element of so many at most."""

_SHORT = 64
"""Elements below which a parameter is spread out: loops over so few of them are slow."""

_TASKS_PER_CORE = 4
"""Cores may be busy with something else; the others then take over."""


def fill(work: Work, out: Array, *operands: Array) -> Array:
    """Call ``work(out, *operands)`` on corresponding pieces until all of ``out`` is written.

    Where the pieces end and which thread has them must not matter to ``work``: each element of
    the result depends on the elements at its place only. NumPy releases the lock meanwhile.

    Args:
        work: writes its first argument, computed from the others, which have its shape; or
            broadcast to it, where ``out`` is small.
        out: ``[*shape]``, C-contiguous.
        operands: arrays that broadcast to ``out``, any dtypes.

    Returns: ``out``.
    """
    if out.size <= _WHOLE:
        work(out, *operands)
        return out
    sizes, merged = merge_axes(out.shape, operands)
    arrays, pieces = [out.reshape(sizes), *merged], _Pieces(sizes)
    cores = available_cores() if out.size >= _THREADED else 1
    tasks = min(cores * _TASKS_PER_CORE, len(pieces)) if cores > 1 else 1
    if tasks == 1:
        _run(work, arrays, pieces, 0, len(pieces))
        return out
    ends = [len(pieces) * k // tasks for k in range(tasks + 1)]
    # Each thread computes under the error state of its caller, which is part of the context.
    futures = [
        _threads().submit(contextvars.copy_context().run, _run, work, arrays, pieces, start, end)
        for start, end in itertools.pairwise(ends)
    ]
    for future in futures:
        future.result()
    return out


def put(y: Array, value: Array, mask: Mask) -> None:
    """Set ``y`` to ``value`` where ``mask`` is true; both broadcast to it.

    On the bits, as a masked copy takes several times as long, unless there is little to copy.
    """
    if y.size <= _LITTLE or np.count_nonzero(mask) * _RARE <= y.size:
        np.copyto(y, value, where=mask)
        return
    integer = np.dtype(f"i{y.itemsize}")
    bits = y.view(integer)
    change = np.bitwise_xor(bits, value.view(integer))
    change &= np.negative(mask.view(np.int8))
    np.bitwise_xor(bits, change, out=bits)


class _Pieces:
    """Pieces of an array of ``shape``: cut along one axis, and at each index of the axes before."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        axis = len(shape) - 1
        inner = 1
        while axis > 0 and inner * shape[axis] <= _PIECE:
            inner *= shape[axis]
            axis -= 1
        self._outer = shape[:axis]
        self._step = max(1, _PIECE // inner)
        self._cuts = -(-shape[axis] // self._step)
        self._count = math.prod(self._outer) * self._cuts

    def __len__(self) -> int:
        return self._count

    def of(self, place: int, arrays: Sequence[Array]) -> list[Array]:
        """Return the pieces at ``place`` of arrays of the same rank that broadcast together."""
        number, cut = divmod(place, self._cuts)
        outer = np.unravel_index(number, self._outer) if self._outer else ()
        index: tuple[Any, ...] = (*outer, slice(cut * self._step, (cut + 1) * self._step))
        parts = []
        for array in arrays:
            if array.ndim == 0:
                parts.append(array)
                continue
            sizes = array.shape[: len(index)]
            if 1 in sizes:
                first: tuple[Any, ...] = (*(0 for _ in outer), slice(None))
                own = zip(sizes, first, index, strict=True)
                parts.append(array[tuple(i if n == 1 else j for n, i, j in own)])
            else:
                parts.append(array[index])
        return parts


def _run(work: Work, arrays: Sequence[Array], pieces: _Pieces, start: int, end: int) -> None:
    for index in range(start, end):
        out, *operands = pieces.of(index, arrays)
        if out.shape[-1] < _SHORT:
            operands = [
                x if x.size in (1, out.size) else np.broadcast_to(x, out.shape).copy()
                for x in operands
            ]
        work(out, *operands)


def merge_axes(
    shape: Sequence[int], operands: Sequence[Array]
) -> tuple[tuple[int, ...], list[Array]]:
    """Return a shape and arrays that broadcast to it, with axes merged where all of them allow it.

    ``operands`` broadcast to ``shape``. Single elements become arrays without axes, with which
    NumPy computes faster.
    """
    padded = [x.reshape((1,) * (len(shape) - x.ndim) + x.shape) for x in operands]
    sizes: list[int] = []
    spread: list[tuple[bool, ...]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        here = tuple(x.shape[axis] == 1 for x in padded)
        if spread and spread[-1] == here:
            sizes[-1] *= size
        else:
            sizes.append(size)
            spread.append(here)
    laid = [
        [1 if ones[index] else n for n, ones in zip(sizes, spread, strict=True)]
        for index in range(len(padded))
    ]
    merged = [x.reshape(() if x.size == 1 else y) for x, y in zip(padded, laid, strict=True)]
    return tuple(sizes), merged


@functools.cache
def _threads() -> futures.ThreadPoolExecutor:
    return futures.ThreadPoolExecutor(available_cores(), thread_name_prefix="qgraph")


if hasattr(os, "register_at_fork"):
    # A forked process has none of its parent's threads.
    os.register_at_fork(after_in_child=_threads.cache_clear)


logger = logging.getLogger(__name__)


@functools.cache
def find_numba() -> Any:
    """Return the module numba; None if it is not installed, or does not compile."""
    try:
        import numba
    except ImportError as error:
        logger.debug("NumPy is used alone: %s", error)
        return None
    return None if getattr(numba.config, "DISABLE_JIT", False) else numba


_GROUPS, _WORDS = 128, 1024
"""Groups of rows, and words of a row of each group, at a time: they stay in the second-level cache.

A group has as many rows as a word has codes.
"""

_TURNED = 256, 128
"""Rows, and bytes of each, that are transposed at a time: they stay in the first-level cache."""

Words = ArrayOf[np.uint64]

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
