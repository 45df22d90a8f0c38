"""Compile a pair of expressions to one loop over the inputs, if numba is installed.

numba compiles a Python function to a loop of vector instructions. It does not reorder operations,
contract them to fused multiply-adds, or approximate them: only the option ``fastmath`` allows this,
and it is off. Subnormal numbers are kept, and a division by zero gives an infinity or NaN
(``error_model="numpy"``). Square roots and powers are computed by NumPy, since numba may use
another library for them.

In addition, a compiled pair is compared with NumPy at special inputs before it is used. Blocks with
a result that ONNX leaves open are evaluated by NumPy.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from qgraph.numerics import Float32, Mask
from qgraph.numerics.chunks import find_numba
from qgraph.proof.functions.blocks import NUMPY_SIZE, NumpyBlocks, PairBlocks, Results, Same
from qgraph.proof.functions.expression import BOOL, FLOAT, INPUT, TABLE, Expr, integer_range
from qgraph.proof.functions.finding import special_inputs
from qgraph.proof.functions.program import TAKE_ONE_ZERO, PairProgram

_Function = Callable[..., tuple[bool, bool]]

SIZE = 1 << 15
"""Number of inputs of a block; inputs and results stay in the second-level cache."""

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

logger = logging.getLogger(__name__)


class _UnknownError(Exception):
    """A primitive cannot be compiled."""


def evaluations_of(
    program: PairProgram, kind: int, size: int, count: int, *, inputs: int
) -> list[PairBlocks]:
    """Return evaluations of a pair of expressions in one kind of channels, one for each thread.

    Blocks have at most ``size`` inputs, a power of two. For few ``inputs`` that will be compared,
    compilation is too slow.
    """
    is_worth = inputs >= _LEAST and len(program.order) <= _MOST
    if is_worth and (numba := find_numba()) is not None:
        try:
            source, constants = _written(program, kind)
        except _UnknownError:
            pass
        else:
            function = _function(numba, source)
            compiled = [CompiledBlocks(function, constants, min(size, SIZE)) for _ in range(count)]
            if compiled[0].agrees(program, kind):
                return [*compiled]
            logger.warning("results of numba differ from those of NumPy; only NumPy is used")
    return [NumpyBlocks(program, kind, min(size, NUMPY_SIZE)) for _ in range(count)]


@functools.lru_cache(maxsize=64)
def _function(numba: Any, source: str) -> _Function:
    """Return the compiled function of a source text."""
    names: dict[str, Any] = {
        "np": np,
        "one": np.float32(1),
        "zero": np.float32(0),
    }
    exec(source, names)
    compiled: _Function = numba.njit(error_model="numpy", nogil=True, fastmath=False)(
        names["compare"]
    )
    return compiled


def _written(program: PairProgram, kind: int) -> tuple[str, list[Any]]:
    """Return the source text of a pair of expressions, and its constants.

    The text depends on the zeros among the constants, but on no other value. Raises _UnknownError
    if a primitive cannot be compiled.
    """
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
        if is_open := _open_form(e, [_zero(program, o, kind) for o in e.inputs]):
            operands = [*operands, "zero"][:2]  # Relu compares with zero
            bits = map(_BITS.format, operands)
            lines.append(f"is_open |= {is_open.format(*operands, *bits)}")
    a, b = (names[id(root)] for root in program.roots)
    lines += [f"a[i] = {a}", f"b[i] = {b}"]
    lines.append(f"differ |= {_BITS.format(a)} ^ {_BITS.format(b)}")
    parameters = "".join(f", c{i}" for i in range(len(constants)))
    return _TEMPLATE.format(names=parameters, body="\n        ".join(lines)), constants


def _zero(program: PairProgram, e: Expr, kind: int) -> bool | None:
    """Return whether a constant is zero; None for other expressions."""
    return None if e.inputs or e.op in (INPUT, TABLE) else bool(program.constant(e, kind) == 0)


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


def _open_form(e: Expr, zeros: list[bool | None]) -> str | None:
    """Return the condition under which ONNX leaves a result open; None if it never does.

    ``zeros`` tells for each operand whether it is a constant zero; None if it is not constant.
    """
    if e.op == "Gather":
        return "not (({1} >= zero) & ({1} < {0}.size))"
    ends = integer_range(e.dtype) if e.op == "Cast" and e.inputs[0].dtype != BOOL else None
    if ends is not None:
        low, beyond = ends
        return f"not ((np.trunc({{0}}) >= np.float32({low})) & ({{0}} < np.float32({beyond})))"
    if e.op in TAKE_ONE_ZERO and False not in zeros:
        return _BOTH_ZEROS
    return None


class CompiledBlocks:
    """A compiled pair of expressions, as :class:`qgraph.proof.functions.blocks.PairBlocks`."""

    def __init__(self, function: _Function, constants: list[Any], size: int) -> None:
        self._function, self._constants = function, constants
        self._count = np.arange(size, dtype=np.uint32)
        self._bits = np.empty(size, np.uint32)
        self.x: Float32 = self._bits.view(np.float32)
        self._a, self._b = np.empty(size, np.float32), np.empty(size, np.float32)

    def compare(self, start: int) -> Results:
        """See :class:`qgraph.proof.functions.blocks.PairBlocks`."""
        np.add(self._count, np.uint32(start), self._bits)
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
