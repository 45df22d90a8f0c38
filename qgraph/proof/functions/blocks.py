"""Evaluate a pair of expressions on blocks of inputs, in preallocated arrays.

The buffer of a result is reused as soon as no later operation reads the result. If each operation
allocated new arrays of the size of a block, allocation would take half of the time.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array, Float32, Mask
from qgraph.numerics.primitives import NUMPY
from qgraph.proof.functions.expression import BOOL, FLOAT, INPUT, Expr, undefined
from qgraph.proof.functions.program import TAKE_ONE_ZERO, PairProgram

NUMPY_SIZE = 1 << 15
"""Number of inputs of a block; a few results of this size fit in the second-level cache."""


class Same(enum.Enum):
    """Outcome of a block whose results need no further comparison."""

    EQUAL = enum.auto()
    """The results are equal, bit for bit."""
    OPEN = enum.auto()
    """ONNX does not define one of the results, or the sign of an intermediate zero."""


Results: TypeAlias = tuple[Float32, Float32] | Same


class PairBlocks(Protocol):
    """Compares two functions on blocks of inputs; ``x`` is the block that was compared last."""

    x: Float32

    def compare(self, start: int) -> Results:
        """Compare the results at the inputs whose bit patterns begin with ``start``.

        Returns: an outcome, or the results of both, which are valid until the next call.
        """


Check: TypeAlias = Callable[[], bool]
"""Returns whether ONNX leaves a result open for the current operands."""


class _BlockStep(NamedTuple):
    """One operation, whose function may put the result into ``out``.

    ``is_open`` tells whether ONNX leaves one of the results open; None if it never does.
    """

    run: Callable[..., Array]
    operands: list[Array]
    out: Array
    is_open: Check | None


class NumpyBlocks:
    """A pair of expressions in one kind of channels, evaluated by NumPy; see :class:`PairBlocks`.

    ``size`` is the number of inputs of each block, an even one.
    """

    def __init__(self, program: PairProgram, kind: int, size: int) -> None:
        self._size = size
        self._count = np.arange(size, dtype=np.uint32)
        self._bits = np.empty(size, np.uint32)
        self.x: Float32 = self._bits.view(np.float32)
        self._free: dict[np.dtype[Any], list[Array]] = {}
        self._constants: dict[bytes, Array] = {}
        self._places: dict[int, Array] = {}
        self._steps: list[_BlockStep] = []
        self._lay_out(program, kind)
        a, b = (self._spread(self._places[id(_source(root))]) for root in program.roots)
        self._sides = a, b
        self._pairs = a.view(np.uint64), b.view(np.uint64)
        self._mask: Mask = np.empty(size // 2, np.bool_)

    def compare(self, start: int) -> Results:
        """See :class:`PairBlocks`."""
        np.add(self._count, np.uint32(start), self._bits)
        for run, operands, out, is_open in self._steps:
            if is_open is not None and is_open():
                return Same.OPEN
            result = run(*operands)
            if result is not out:
                np.copyto(out, result)
        # NaN and zeros are told apart later: most blocks are equal bit for bit
        is_equal = np.logical_and.reduce(np.equal(*self._pairs, self._mask))
        return Same.EQUAL if is_equal else self._sides

    def _lay_out(self, program: PairProgram, kind: int) -> None:
        """Create the steps, and assign each result a buffer from its step to its last use."""
        order = [e for e in program.order if _source(e) is e]
        last = {id(_source(o)): i for i, e in enumerate(order) for o in e.inputs}
        last.update((id(_source(root)), len(order)) for root in program.roots)
        done: set[int] = set()
        for i, e in enumerate(order):
            if not e.inputs:
                self._places[id(e)] = self.x if e.op == INPUT else program.constant(e, kind)
                continue
            self._places[id(e)] = self._add(e)
            done.add(id(e))
            for key in {id(_source(o)) for o in e.inputs} & done:
                if last[key] == i:
                    self._free[self._places[key].dtype].append(self._places[key])

    def _add(self, e: Expr) -> Array:
        """Add the step of an operation, and return the buffer of its result."""
        name, operands = e.op, [self._places[id(_source(o))] for o in e.inputs]
        if name == "Relu":
            name, operands = "Max", [*operands, np.zeros((), np.float32)]
        is_open = _check(e, operands)
        if name in ("Max", "Min"):
            # NumPy takes several times longer with a single number than with an array
            operands = [self._spread(operand) for operand in operands]
        dtype = np.dtype(np.bool_ if e.dtype == BOOL else np.float32)
        free = self._free.setdefault(dtype, [])
        out = free.pop() if free else np.empty(self._size, dtype)
        run = partial(NUMPY[name], out=out, **dict(e.attributes))
        self._steps.append(_BlockStep(run, operands, out, is_open))
        return out

    def _spread(self, numbers: Array) -> Array:
        """Return a single number as an array."""
        if numbers.ndim:
            return numbers
        return self._constants.setdefault(numbers.tobytes(), np.full(self._size, numbers))


def _source(e: Expr) -> Expr:
    """Return ``e`` without casts to FLOAT, which do not change values."""
    while e.op == "Cast" and e.dtype == FLOAT and e.inputs[0].dtype != BOOL:
        (e,) = e.inputs
    return e


def _check(e: Expr, operands: list[Array]) -> Check | None:
    """Return the check of an operation for results that ONNX does not define."""
    if e.op in ("Cast", "Gather"):
        return None if e.op == "Cast" and e.dtype in (FLOAT, BOOL) else _Range(e, operands)
    if e.op not in TAKE_ONE_ZERO:
        return None
    numbers = [operand for operand in operands if not operand.ndim]
    if not numbers:
        return partial(_has_both_zeros, *operands)
    if numbers[0] != 0:
        return None
    (data,) = (operand.view(np.uint32) for operand in operands if operand.ndim)
    return _Occurrence(data, (-numbers[0]).view(np.uint32))


class _Occurrence:
    """Checks whether a bit pattern occurs in an operand."""

    def __init__(self, data: npt.NDArray[np.uint32], pattern: Array) -> None:
        self._data, self._pattern = data, pattern
        self._mask: Mask = np.empty(data.shape, np.bool_)

    def __call__(self) -> bool:
        return bool(np.logical_or.reduce(np.equal(self._data, self._pattern, self._mask)))


class _Range:
    """Checks whether an operand leaves the range for which ONNX defines a Cast or a Gather."""

    def __init__(self, e: Expr, operands: list[Array]) -> None:
        self._name, self._attributes = e.op, dict(e.attributes)
        *self._table, self._data = operands
        self._ends: tuple[Array, Array] | None = None
        self._is_open = False

    def __call__(self) -> bool:
        # defined operands lie between two numbers; minimum and maximum pass on NaN
        ends = np.minimum.reduce(self._data), np.maximum.reduce(self._data)
        if ends != self._ends:
            values = [*self._table, np.array(ends)]
            self._is_open = bool(undefined(self._name, values, self._attributes).any())
            self._ends = ends
        return self._is_open


def _has_both_zeros(a: Array, b: Array) -> bool:
    """Return whether two operands are zeros of different signs somewhere."""
    both = (a == 0) & (b == 0)
    return bool(both.any() and (both & (np.signbit(a) != np.signbit(b))).any())
