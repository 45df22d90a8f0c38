"""Definitions written out as a list of steps, for a checker that works on its own.

This is not the form in which regions are decided, on purpose: a fault of one of the two does not
become a fault of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, UnsupportedError
from qgraph.ops.operator import operator_of
from qgraph.primitives import NUMPY

Array = npt.NDArray[Any]

_TRUTHS = frozenset(
    {"And", "Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Not", "Or"}
)
_SELECTIONS = frozenset({"Max", "Min", "Relu", "Where"})

_ALONG_AXIS = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True)
class Line:
    """One primitive: the numbers of the lines of its operands; or a constant, or the variable."""

    op: str
    operands: tuple[int, ...]
    attributes: tuple[tuple[str, Any], ...]
    value: Array | None = None


class Trace:
    """Takes down what definitions compute from one variable, equal lines once.

    ``trace.Div(a, b)`` is the number of a line; operands are numbers of lines, wrapped by
    :class:`Ref`, arrays and Python numbers.

    Attributes:
        lines: the steps, operands first; line 0 is the variable.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = [Line("x", (), ())]
        self._known: dict[Hashable, Ref] = {}

    def __getattr__(self, name: str) -> Callable[..., Ref]:
        if name not in NUMPY:
            raise AttributeError(name)
        return lambda *operands, **attributes: self._call(name, operands, attributes)

    def constant(self, array: Any) -> Ref:
        """Return the line of a constant; its type is float32 or bool."""
        given = np.asarray(array)
        value = given if given.dtype == np.bool_ else given.astype(np.float32)
        if value.dtype != np.bool_ and not np.array_equal(
            value.astype(np.float64), given.astype(np.float64), equal_nan=True
        ):
            raise UnsupportedError("A constant is no float32 number, expected one.")
        key = value.dtype.str, value.shape, value.tobytes()
        return self._add(key, Line("constant", (), (), value))

    def shape_of(self, number: int) -> tuple[int, ...]:
        """Return the shape that the constants under a line broadcast to, tables apart."""
        line = self.lines[number]
        if line.value is not None:
            return line.value.shape
        under = line.operands[1:] if line.op == "Gather" else line.operands
        return np.broadcast_shapes(*(self.shape_of(operand) for operand in under))

    def type_of(self, number: int) -> str:
        """Return the type of the values of a line, as far as a Cast or a comparison tells."""
        line = self.lines[number]
        if line.value is not None:
            return "BOOL" if line.value.dtype == np.bool_ else "FLOAT"
        if line.op == "Cast":
            to = dict(line.attributes)["to"]
            return to if isinstance(to, str) else ir.DataType(to).name
        if line.op in _TRUTHS:
            return "BOOL"
        if line.op in _SELECTIONS:
            under = {
                self.type_of(o)
                for o in line.operands[line.op == "Where" :]
                if self.lines[o].value is None
            }
            return under.pop() if len(under) == 1 else "FLOAT"
        return "FLOAT"

    def _call(self, name: str, operands: Sequence[Any], attributes: dict[str, Any]) -> Ref:
        given = [o if isinstance(o, Ref) else self.constant(o) for o in operands]
        if name == "Identity":
            return given[0]
        if name in ("Min", "Max") and len(given) > 2:
            first = self._call(name, given[:2], attributes)
            return self._call(name, [first, *given[2:]], attributes)
        pairs = tuple(sorted((key, _plain(value)) for key, value in attributes.items()))
        lines = [self.lines[ref.number] for ref in given]
        if all(line.op == "constant" for line in lines):
            with np.errstate(all="ignore"):
                found = NUMPY[name](*(line.value for line in lines), **dict(pairs))
            return self.constant(found)
        numbers = tuple(ref.number for ref in given)
        return self._add((name, numbers, pairs), Line(name, numbers, pairs))

    def _add(self, key: Hashable, line: Line) -> Ref:
        if key not in self._known:
            self.lines.append(line)
            self._known[key] = Ref(len(self.lines) - 1)
        return self._known[key]


@dataclass(frozen=True)
class Ref:
    """The number of a line."""

    number: int


def write_out(
    trace: Trace,
    nodes: Sequence[ir.Node],
    x: ir.Value,
    y: ir.Value,
    shape: Sequence[int | None] | None,
    constants: Callable[[ir.Value], Array | None],
) -> Ref:
    """Return the line of ``y``, computed by ``nodes`` from ``x``.

    Args:
        trace: takes the lines.
        nodes: operands first.
        x: the variable.
        y: what is wanted.
        shape: of ``x``; None where not even the rank is known.
        constants: arrays of the constants.

    Raises:
        UnsupportedError: a node has no definition over single values.
    """
    known = {x: Ref(0)}
    views: dict[ir.Value, Sequence[int | None] | None] = {x: shape}
    for node in nodes:
        view = next(views[value] for value in node.inputs if value in views)
        if node.op_type == "Reshape" and node.domain == "" and node.inputs[0] in known:
            sizes = None if node.inputs[1] is None else constants(node.inputs[1])
            known[node.outputs[0]] = known[node.inputs[0]]
            views[node.outputs[0]] = None if sizes is None else [int(size) for size in sizes]
            continue
        known[node.outputs[0]] = _write_node(trace, node, known, view, shape, constants)
        views[node.outputs[0]] = view
    return known[y]


def _write_node(
    trace: Trace,
    node: ir.Node,
    known: dict[ir.Value, Ref],
    view: Sequence[int | None] | None,
    shape: Sequence[int | None] | None,
    constants: Callable[[ir.Value], Array | None],
) -> Ref:
    def operand(value: ir.Value | None) -> Any:
        if value is None or value in known:
            return None if value is None else known[value]
        array = constants(value)
        if array is None:
            raise UnsupportedError(f"Value {value.name!r} is not constant, expected a constant.")
        if array.size > 1 and node.op_type in _ALONG_AXIS:
            array = _laid_out(node, array, view)
        if array.size > 1 and view is not shape:
            array = np.broadcast_to(array, _sizes(view)).reshape(_sizes(shape))
        if array.size == 1 and node.op_type in _ALONG_AXIS:
            array = array.reshape(())
        return trace.constant(array)

    try:
        operator = operator_of(node)
        if operator is not None:
            operands = [operand(value) for value in operator.schema.values(node)]
            found: Ref = operator.define(trace, *operands, **operator.arguments(node))
            return found
    except OperatorError as error:
        raise UnsupportedError(str(error)) from error
    if node.domain != "" or node.op_type not in NUMPY:
        raise UnsupportedError(f"{node.op_type} has no definition over single values.")
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return trace._call(node.op_type, [operand(value) for value in node.inputs], attributes)


def _laid_out(node: ir.Node, array: Array, view: Sequence[int | None] | None) -> Array:
    """Return scales or zero points so that they broadcast to the data."""
    if view is None:
        raise UnsupportedError("The rank of the data of a quantizer is not known.")
    axis = node.attributes.get_int("axis", 1) % len(view)
    block = node.attributes.get_int("block_size", 0)
    if not block:
        return array.reshape([array.size if i == axis else 1 for i in range(len(view))])
    whole = np.repeat(array, block, axis)
    size = view[axis]
    return whole if size is None else np.take(whole, range(size), axis)


def _sizes(view: Sequence[int | None] | None) -> list[int]:
    sizes = [size for size in view or () if size is not None]
    if view is None or len(sizes) < len(view):
        raise UnsupportedError("The shape of reshaped data is not known.")
    return sizes


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return int(value)
