"""Evaluate a pair of expressions on blocks of inputs: by NumPy, or compiled if numba is installed.

NumPy computes in preallocated arrays. The buffer of a result is reused as soon as no later
operation reads the result. If each operation allocated new arrays of the size of a block,
allocation would take half of the time.

numba compiles a Python function to a loop of vector instructions. It does not reorder operations,
contract them to fused multiply-adds, or approximate them: only the option ``fastmath`` allows this,
and it is off. Subnormal numbers are kept, and a division by zero gives an infinity or NaN. Square
roots and powers are left to NumPy, since numba may use another library for them, and so are blocks
with a result that ONNX leaves open. A compiled pair is first compared with NumPy at special inputs.
"""

from __future__ import annotations

import enum
import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Array, Float32, Mask
from qgraph.numerics.chunks import find_numba
from qgraph.numerics.primitives import NUMPY
from qgraph.proof.functions.expression import (
    BOOL,
    CONSTANT,
    FLOAT,
    INPUT,
    TABLE,
    Expr,
    integer_range,
    undefined,
)
from qgraph.proof.functions.finding import special_inputs
from qgraph.proof.functions.program import TAKE_ONE_ZERO, PairProgram

_SIZE = 1 << 15
"""Number of inputs of a block; a few results of this size fit in the second-level cache."""

logger = logging.getLogger(__name__)


class Same(enum.Enum):
    """Outcome of a block whose results need no further comparison."""

    EQUAL = enum.auto()
    """The results are equal, bit for bit."""
    OPEN = enum.auto()
    """ONNX does not define one of the results, or the sign of an intermediate zero."""


Results: TypeAlias = tuple[Float32, Float32] | Same


class PairBlocks(ABC):
    """Compares two functions on blocks of ``size`` inputs, an even number.

    ``x`` is the block that was compared last.
    """

    def __init__(self, size: int) -> None:
        self._count = np.arange(size, dtype=np.uint32)
        self._bits = np.empty(size, np.uint32)
        self.x: Float32 = self._bits.view(np.float32)

    def compare(self, start: int) -> Results:
        """Compare the results at the inputs whose bit patterns begin with ``start``.

        Returns: an outcome, or the results of both, which are valid until the next call.
        """
        np.add(self._count, np.uint32(start), self._bits)
        return self._results()

    @abstractmethod
    def _results(self) -> Results:
        """Return the outcome at ``x``."""


Check: TypeAlias = Callable[[], bool]
"""Returns whether ONNX leaves a result open for the current operands."""


class _BlockStep(NamedTuple):
    """One operation, whose function may put the result into ``out``."""

    run: Callable[..., Array]
    operands: list[Array]
    out: Array
    is_open: Check | None


class NumpyBlocks(PairBlocks):
    """A pair of expressions in one kind of channels, evaluated by NumPy."""

    def __init__(self, program: PairProgram, kind: int, size: int) -> None:
        super().__init__(size)
        self._size = size
        self._free: dict[np.dtype[Any], list[Array]] = {}
        self._constants: dict[bytes, Array] = {}
        self._places: dict[int, Array] = {}
        self._steps: list[_BlockStep] = []
        self._lay_out(program, kind)
        a, b = (self._spread(self._places[id(_source(root))]) for root in program.roots)
        self._sides = a, b
        self._pairs = a.view(np.uint64), b.view(np.uint64)
        self._mask: Mask = np.empty(size // 2, np.bool_)

    def _results(self) -> Results:
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
        name = e.op
        operands = [self._places[id(_source(o))] for o in e.inputs]
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
    return partial(_occurs, data, (-numbers[0]).view(np.uint32), np.empty(data.shape, np.bool_))


def _occurs(data: npt.NDArray[np.uint32], pattern: Array, mask: Mask) -> bool:
    return bool(np.logical_or.reduce(np.equal(data, pattern, mask)))


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
    both = (a == 0) & (b == 0)
    return bool(both.any() and (both & (np.signbit(a) != np.signbit(b))).any())


_Function = Callable[..., tuple[bool, bool]]

_MOST = 256
"""Maximum number of operations to compile; the time grows faster than their number."""

_LEAST = 1 << 28
"""Minimum number of inputs for which a loop is compiled; compilation takes about a second."""

_FORMS = {
    "Add": "{0} + {1}",
    "Sub": "{0} - {1}",
    "Mul": "{0} * {1}",
    "Div": "{0} / {1}",
    "Neg": "-{0}",
    "Abs": "abs({0})",
    "Reciprocal": "one / {0}",
    "Sign": "one if {0} > zero else (-one if {0} < zero else ({0} if {0} != {0} else zero))",
    "Round": "np.rint({0})",
    "Floor": "np.floor({0})",
    "Ceil": "np.ceil({0})",
    "Min": "{0} if ({0} < {1}) | ({0} != {0}) else {1}",
    "Max": "{0} if ({0} > {1}) | ({0} != {0}) else {1}",
    "Relu": "{0} if ({0} > zero) | ({0} != {0}) else zero",
    "Less": "{0} < {1}",
    "LessOrEqual": "{0} <= {1}",
    "Greater": "{0} > {1}",
    "GreaterOrEqual": "{0} >= {1}",
    "Equal": "{0} == {1}",
    "Not": "not {0}",
    "And": "{0} & {1}",
    "Or": "{0} | {1}",
    "IsNaN": "{0} != {0}",
    "Where": "{1} if {0} else {2}",
    "Gather": "{0}[np.int64({1}) if ({1} >= zero) & ({1} < {0}.size) else 0]",
}
"""The primitives on single numbers. Results that ONNX leaves open may be arbitrary."""

_BITS = "np.float32({}).view(np.int32)"
_BOTH_ZEROS = "({0} == zero) & ({1} == zero) & (({2} ^ {3}) < 0)"

_TEMPLATE = """
def compare(x, a, b{names}):
    is_open = False
    differ = np.int32(0)
    for i in range(x.size):
        v = np.uint32(x[i]).view(np.float32)
        {body}
    return is_open, differ != 0
"""
"""The loop over inputs, given by their bits; LLVM vectorizes it."""


class _UnknownError(Exception):
    """A primitive cannot be compiled."""


def evaluations_of(
    program: PairProgram, kind: int, size: int, count: int, *, inputs: int
) -> list[PairBlocks]:
    """Return evaluations of a pair of expressions in one kind of channels, one for each thread.

    Blocks have at most ``size`` inputs, a power of two. For few ``inputs`` that will be compared,
    compilation is too slow.
    """
    size = min(size, _SIZE)
    is_worth = inputs >= _LEAST and len(program.order) <= _MOST
    if is_worth and (numba := find_numba()) is not None:
        try:
            source, constants = _written(program, kind)
        except _UnknownError:
            pass
        else:
            function = _function(numba, source)
            compiled = [CompiledBlocks(function, constants, size) for _ in range(count)]
            if compiled[0].agrees(program, kind):
                return [*compiled]
            logger.warning("results of numba differ from those of NumPy; only NumPy is used")
    return [NumpyBlocks(program, kind, size) for _ in range(count)]


@functools.lru_cache(maxsize=64)
def _function(numba: Any, source: str) -> _Function:
    names: dict[str, Any] = {"np": np, "one": np.float32(1), "zero": np.float32(0)}
    exec(source, names)
    compile_ = numba.njit(error_model="numpy", nogil=True, fastmath=False)
    compiled: _Function = compile_(names["compare"])
    return compiled


def _written(program: PairProgram, kind: int) -> tuple[str, list[Any]]:
    """Return the source text of a pair of expressions, which has no number but 0, and constants."""
    names: dict[int, str] = {}
    constants: list[Any] = []
    lines: list[str] = []
    for e in program.order:
        if e.op == INPUT:
            names[id(e)] = "v"
            continue
        if not e.inputs:
            names[id(e)] = f"c{len(constants)}"
            value = program.constant(e, kind)
            constants.append(value if e.op == TABLE else value[()])
            continue
        operands = [names[id(o)] for o in e.inputs]
        names[id(e)] = f"v{len(lines)}"
        lines.append(f"v{len(lines)} = {_form(e).format(*operands)}")
        fixed = (program.constant(o, kind) for o in e.inputs if o.op == CONSTANT)
        if is_open := _open_form(e, has_zero=all(not number.any() for number in fixed)):
            operands = [*operands, "zero"][:2]  # Relu compares with zero
            bits = map(_BITS.format, operands)
            lines.append(f"is_open |= {is_open.format(*operands, *bits)}")
    a, b = (names[id(root)] for root in program.roots)
    lines += [f"a[i] = {a}", f"b[i] = {b}"]
    lines.append(f"differ |= {_BITS.format(a)} ^ {_BITS.format(b)}")
    parameters = "".join(f", c{i}" for i in range(len(constants)))
    return _TEMPLATE.format(names=parameters, body="\n        ".join(lines)), constants


def _form(e: Expr) -> str:
    if e.op == "Cast":
        is_flag = e.inputs[0].dtype == BOOL
        if e.dtype == BOOL:
            return "{0}" if is_flag else "{0} != zero"
        if e.dtype == FLOAT or integer_range(e.dtype):
            if is_flag:
                return "one if {0} else zero"
            return "{0}" if e.dtype == FLOAT else "np.trunc({0}) + zero"
    form = _FORMS.get(e.op)
    if form is None:
        raise _UnknownError
    return form


def _open_form(e: Expr, *, has_zero: bool) -> str | None:
    """Return when ONNX leaves a result open, None if never; ``has_zero``: all constants are 0."""
    if e.op == "Gather":
        return "not (({1} >= zero) & ({1} < {0}.size))"
    ends = integer_range(e.dtype) if e.op == "Cast" and e.inputs[0].dtype != BOOL else None
    if ends is not None:
        low, beyond = ends
        return f"not ((np.trunc({{0}}) >= np.float32({low})) & ({{0}} < np.float32({beyond})))"
    return _BOTH_ZEROS if e.op in TAKE_ONE_ZERO and has_zero else None


class CompiledBlocks(PairBlocks):
    """A compiled pair of expressions."""

    def __init__(self, function: _Function, constants: list[Any], size: int) -> None:
        super().__init__(size)
        self._function, self._constants = function, constants
        self._a, self._b = np.empty(size, np.float32), np.empty(size, np.float32)

    def _results(self) -> Results:
        is_open, differ = self.compute(self._bits, self._a, self._b)
        if is_open:
            return Same.OPEN
        return (self._a, self._b) if differ else Same.EQUAL

    def compute(self, bits: npt.NDArray[np.uint32], a: Float32, b: Float32) -> tuple[bool, bool]:
        """Write the results at inputs, given by their bits, to ``a`` and ``b``.

        Returns: whether ONNX leaves one of them open, and whether any bits of them differ.
        """
        return self._function(bits, a, b, *self._constants)

    def agrees(self, program: PairProgram, kind: int) -> bool:
        """Return whether the results at special inputs are those of NumPy, bit for bit.

        Results that ONNX leaves open, and the bits of NaN, may differ.
        """
        x = special_inputs(*program.roots)
        sides = np.empty((2, len(x)), np.float32)
        self.compute(x.view(np.uint32), *sides)
        kinds = np.full(len(x), kind, np.int64)
        with np.errstate(all="ignore"):
            choices = [program.points(x, kinds, zero=zero) for zero in (False, True)]
        for one, other, ours in zip(*choices, sides, strict=True):
            is_chosen = (one.values == ours) & ~_is_same(one.values, other.values)
            if not (one.undefined | is_chosen | _is_same(one.values, ours)).all():
                return False
        return True


def _is_same(a: Float32, b: Float32) -> Mask:
    return np.asarray((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b)))
