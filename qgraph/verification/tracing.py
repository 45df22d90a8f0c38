"""Definitions written out as a list of steps, for a checker that works on its own.

This is not the form in which regions are decided, on purpose: a fault of one of the two does not
become a fault of the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.primitives import NUMPY

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_COMPARE = frozenset({"Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual"})
_LOGIC = frozenset({"And", "Not", "Or"})
_SELECT = frozenset({"Max", "Min", "Relu", "Where"})
_INTEGER = re.compile(r"(U?)INT(\d+)")


@dataclass(frozen=True)
class Line:
    """One primitive.

    Attributes:
        op: its name; "x" for the variable, "constant" for a constant.
        operands: numbers of the lines of its operands.
        attributes: sorted names and values.
        value: of a constant.
        type: name of the ONNX type of the result; values of all but BOOL are kept in float32. Empty
            for numbers without a type of their own, which take that of what they meet.
    """

    op: str
    operands: tuple[int, ...]
    attributes: tuple[tuple[str, int | str], ...]
    value: Array | None = None
    type: str = "FLOAT"


@dataclass(frozen=True)
class Ref:
    """The number of a line."""

    number: int


class Trace:
    """Takes down what definitions compute from one variable, equal lines once.

    ``trace.Div(a, b)`` is the number of a line; operands are numbers of lines, wrapped by
    :class:`Ref`, arrays and Python numbers.

    Attributes:
        lines: the steps, operands first; line 0 is the variable, of type FLOAT.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = [Line("x", (), ())]
        self._known: dict[Hashable, Ref] = {}

    def __getattr__(self, name: str) -> Callable[..., Ref]:
        if name not in NUMPY:
            raise AttributeError(name)
        return lambda *operands, **attributes: self.call(name, operands, attributes)

    def constant(self, array: npt.ArrayLike) -> Ref:
        """Return the line of a constant.

        Raises:
            UnsupportedError: float32 does not hold it.
        """
        given = np.asarray(array)
        value = given if given.dtype == np.bool_ else given.astype(np.float32)
        exact = given.dtype == np.bool_ or np.array_equal(
            value.astype(np.float64), given.astype(np.float64), equal_nan=True
        )
        huge = given.dtype.kind in "iu" and bool((np.abs(value) > 2.0**53).any())
        if not exact or huge:
            raise UnsupportedError(f"a constant of type {given.dtype} is no float32 number")
        kind = "BOOL" if value.dtype == np.bool_ else ""
        key = value.dtype.str, value.shape, value.tobytes()
        return self._add(key, Line("constant", (), (), value, kind))

    def shape_of(self, number: int) -> tuple[int, ...]:
        """Return the shape that the constants under a line broadcast to, tables apart."""
        shapes: dict[int, tuple[int, ...]] = {}
        for place, line in enumerate(self.lines[: number + 1]):
            under = line.operands[1:] if line.op == "Gather" else line.operands
            own = () if line.value is None else line.value.shape
            shapes[place] = np.broadcast_shapes(own, *(shapes[operand] for operand in under))
        return shapes[number]

    def call(self, name: str, operands: Sequence[object], attributes: dict[str, object]) -> Ref:
        """Return the line of a primitive.

        Raises:
            UnsupportedError: it has no meaning on float32 values.
        """
        given = [o if isinstance(o, Ref) else self.constant(o) for o in operands]  # type: ignore[arg-type]
        if name == "Identity":
            return given[0]
        if name in ("Min", "Max") and len(given) != 2:
            first, *others = given
            for other in others:
                first = self.call(name, [first, other], attributes)
            return first
        if (name == "Gather" and attributes.get("axis", 0) != 0) or (
            attributes and name not in ("Cast", "Gather")
        ):
            raise UnsupportedError(f"{name} with attributes {', '.join(sorted(attributes))}")
        pairs = tuple(sorted((key, _plain(key, value)) for key, value in attributes.items()))
        pairs = () if name == "Gather" else pairs
        numbers = tuple(ref.number for ref in given)
        lines = [self.lines[number] for number in numbers]
        line = Line(name, numbers, pairs, type=_result_type(name, lines, dict(pairs)))
        if name == "Where" and (branch := self._chosen(given)) is not None:
            return branch
        if any(under.value is None for under in lines):
            return self._add((name, numbers, pairs), line)
        values = [under.value for under in lines if under.value is not None]
        if leaves_range(line, values[-1], values[0].size).any():
            raise UnsupportedError(f"what {name} makes of a constant is left open")
        with np.errstate(all="ignore"):
            found = np.asarray(NUMPY[name](*values, **dict(pairs)))
        return self.constant(found)

    def _chosen(self, operands: Sequence[Ref]) -> Ref | None:
        """Return the branch that a condition always takes, if the result keeps its shape."""
        condition = self.lines[operands[0].number].value
        if condition is None or not (condition.all() or not condition.any()):
            return None
        branch = operands[1 if condition.all() else 2]
        shape = np.broadcast_shapes(*(self.shape_of(ref.number) for ref in operands))
        return branch if shape == self.shape_of(branch.number) else None

    def _add(self, key: Hashable, line: Line) -> Ref:
        if key not in self._known:
            self.lines.append(line)
            self._known[key] = Ref(len(self.lines) - 1)
        return self._known[key]


def leaves_range(line: Line, x: Array, table: int = 0) -> Mask:
    """Return where the result of a Cast, or of a Gather, is left open for its last operand.

    Args:
        line: any line.
        x: the operand.
        table: size of the table of a Gather.
    """
    never = np.zeros(np.shape(x), np.bool_)
    if line.op == "Gather" and table:
        return np.asarray(~((x >= 0) & (x < table)))
    if line.op != "Cast" or x.dtype == np.bool_:
        return never
    to = line.type
    if (integer := _INTEGER.fullmatch(to)) is not None:
        bits, unsigned = int(integer[2]), bool(integer[1])
        low = 0.0 if unsigned else -(2.0 ** (bits - 1))
        high = 2.0**bits if unsigned else 2.0 ** (bits - 1)
        whole = np.trunc(x)
        return np.asarray(~((whole >= np.float32(low)) & (whole < np.float32(high))))
    if to == "FLOAT8E8M0":
        return np.asarray(x < 0)
    return np.asarray(np.isnan(x)) if to.startswith("FLOAT6") else never


def _result_type(name: str, operands: list[Line], attributes: dict[str, int | str]) -> str:
    """Return the type of a result; arithmetic of integers wraps, and is refused."""
    types = [line.type for line in operands]
    if name == "Cast":
        return str(attributes["to"])
    if name == "Gather":
        if _INTEGER.fullmatch(types[1]) is None or operands[0].value is None:
            raise UnsupportedError("Gather from data, or without a typed index")
        return "FLOAT"
    if name in _LOGIC or name == "Where":
        truths = types if name in _LOGIC else types[:1]
        if set(truths) != {"BOOL"}:
            raise UnsupportedError(f"{name} of what is not BOOL")
        if name in _LOGIC:
            return "BOOL"
        types = types[1:]
    met = set(types) - {""}
    if len(met) > 1 or ("BOOL" in met and ("" in types or name != "Where")):
        raise UnsupportedError(f"{name} of {', '.join(sorted(met))}")
    if name in _COMPARE:
        return "BOOL"
    if name not in _SELECT and met - {"FLOAT"}:
        raise UnsupportedError(f"{name} in type {min(met)}")
    return met.pop() if met else ""


def _plain(key: str, value: object) -> int | str:
    if isinstance(value, str):
        return value
    number = int(value)  # type: ignore[call-overload]
    return ir.DataType(number).name if key == "to" else int(number)
