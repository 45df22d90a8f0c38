"""Elementwise operations on big tensors, in pieces that fit in the cache, on all cores.

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
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from qgraph.numerics import Array, Mask


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
    arrays = _merge_axes(out, operands)
    pieces = _Pieces(arrays[0].shape)
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


def _merge_axes(out: Array, operands: Sequence[Array]) -> list[Array]:
    """Return the arrays in one rank; axes are merged if all arrays allow it.

    Single elements become arrays without axes, with which NumPy computes faster.
    """
    rank = out.ndim
    padded = [x.reshape((1,) * (rank - x.ndim) + x.shape) for x in operands]
    sizes: list[int] = []
    spread: list[tuple[bool, ...]] = []
    for axis, size in enumerate(out.shape):
        if size == 1:
            continue
        here = tuple(x.shape[axis] == 1 for x in padded)
        if spread and spread[-1] == here:
            sizes[-1] *= size
        else:
            sizes.append(size)
            spread.append(here)
    merged = [out.reshape(sizes)]
    for x, ones in zip(padded, zip(*spread, strict=True), strict=True):
        shape = [1 if one else n for n, one in zip(sizes, ones, strict=True)]
        merged.append(x.reshape(shape if x.size != 1 else ()))
    return merged


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(available_cores(), thread_name_prefix="qgraph")


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
