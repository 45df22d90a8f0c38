"""Compute and compare large constants a few rows at a time.

The kernels are those for whole constants; only their operands are cut along the first axis. This
module shares no code with the passes that store weights, so it can find their mistakes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import ExecutionError, ModelError, OperatorError, UnsupportedError
from qgraph.exactness import Witness
from qgraph.graph.constants import constant_elements
from qgraph.graph.inference.rules import Unknown, given, require
from qgraph.graph.scopes import input_of
from qgraph.graph.streaming import Stream
from qgraph.numerics import Array
from qgraph.numerics.values import Comparison, compare_pieces, compare_values
from qgraph.ops.dispatch import NodeStep, kernel_for
from qgraph.ops.known_values import KnownValues
from qgraph.ops.operator import operator_of
from qgraph.proof.matching.products import PackedRows, has_same_codes
from qgraph.records import dataclass

_ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "Cast", "Ceil", "Div", "Floor", "Identity", "Max", "Min", "Mul", "Neg"),
        *("Relu", "Sub"),
    )
)
"""ONNX operators that are computed a few rows at a time, besides those defined in qgraph."""

_ALONG_AXIS = ("QuantizeLinear", "DequantizeLinear")

_WHOLE_ELEMENTS = 1 << 20
"""Size below which constants are compared as a whole."""

_PIECE = 1 << 18
"""Approximate number of elements to compute at a time; at least one row."""

_FAILURES = (Unknown, ExecutionError, ModelError, OperatorError, UnsupportedError)


@dataclass(frozen=True, eq=False)
class _Source:
    """A constant that is read in pieces; each row is used for ``per`` rows of the result."""

    value: ir.Value
    stream: Stream
    per: int

    def read(self, start: int, stop: int) -> Array:
        first, last = start // self.per, -(-stop // self.per)
        if isinstance(self.stream.stored, PackedRows):
            return self.stream.stored.rows(first, last)
        size = math.prod(self.stream.shape[1:])
        piece = self.stream.read(first * size, last * size)
        return piece.reshape(last - first, *self.stream.shape[1:])


@dataclass(frozen=True, eq=False)
class _Step:
    """A node, its operands that are not cut into rows, its shape, and its kernel unless Reshape."""

    node: ir.Node
    compute: NodeStep | None
    whole: dict[ir.Value, Array]
    shape: tuple[int, ...]
    per: int

    def __call__(self, held: dict[ir.Value, Any], start: int, stop: int) -> None:
        source, result = self.node.inputs[0], self.node.outputs[0]
        rows = -(-stop // self.per) - start // self.per
        if self.compute is None:
            held[result] = held[source].reshape(rows, *self.shape[1:])  # type: ignore[index]
            return
        arrays = {**held, **self.whole}
        self.compute.run(arrays)
        held[result] = arrays[result]
        if held[result].shape != (rows, *self.shape[1:]):
            raise ExecutionError(f"{self.node.name}: {held[result].shape} are not the rows.")


@dataclass(frozen=True, eq=False)
class ConstantRows:
    """A constant that its kernels compute a few rows at a time, from multiples of a number."""

    value: ir.Value
    shape: tuple[int, ...]
    multiple: int
    sources: tuple[_Source, ...]
    steps: tuple[_Step, ...]

    def read(self, start: int, stop: int) -> Array:
        """Return rows ``start`` to before ``stop``; raise QGraphError if a kernel refuses them."""
        held: dict[ir.Value, Any] = {
            source.value: source.read(start, stop) for source in self.sources
        }
        with np.errstate(all="ignore"):
            for step in self.steps:
                step(held, start, stop)
        rows: Array = held[self.value]
        return rows


def rows_of(known: KnownValues, value: ir.Value) -> ConstantRows | None:
    """Return a large constant that is computed by rows; None if that is not possible."""
    compiler = _Compiler(known)
    try:
        require(known.has(value))
        stream = given(_root(value))
        require(stream.size >= _WHOLE_ELEMENTS and stream.kind != "STRING")
        shape = compiler.visit(value, 1)
    except _FAILURES:
        return None
    return ConstantRows(
        value, shape, compiler.multiple, tuple(compiler.sources), tuple(compiler.steps)
    )


class _Compiler:
    """Finds the steps that compute rows of a constant from rows of other constants.

    Its methods raise Unknown if there are none.
    """

    def __init__(self, known: KnownValues) -> None:
        self.multiple = 1
        self.sources: list[_Source] = []
        self.steps: list[_Step] = []
        self._known = known
        self._seen: dict[ir.Value, tuple[int, tuple[int, ...]]] = {}

    def visit(self, value: ir.Value, per: int) -> tuple[int, ...]:
        """Return the shape of a value with one row for ``per`` rows."""
        if value in self._seen:
            require(self._seen[value][0] == per)
            return self._seen[value][1]
        stream = constant_elements(value)
        if stream is None:
            rows = self._computed(value, per)
        else:
            rows = stream.shape
            require(rows)
            # Elements that are all computed at once are computed once; their codes are small.
            is_packed = isinstance(stream.stored, PackedRows)
            self.sources.append(_Source(value, stream if is_packed else stream.in_memory(), per))
            self.multiple = math.lcm(self.multiple, per)
        self._seen[value] = per, rows
        return rows

    def _computed(self, value: ir.Value, per: int) -> tuple[int, ...]:
        node = given(value.producer())
        data = given(_data(node))
        if node.op_type == "Reshape":
            return self._reshaped(node, data, per)
        shape = self.visit(data, per)
        whole: dict[ir.Value, Array] = {}
        for operand in dict.fromkeys(node.inputs[1:]):
            if operand is None:
                continue
            rows = self._rows_of(node, operand, shape)
            if rows:
                self.visit(operand, per * rows)
            else:
                whole[operand] = given(self._known.array(operand))
                require(whole[operand].size <= _PIECE and operand is not data)
        step = NodeStep(node, kernel_for(node, self._known.imports))
        self.steps.append(_Step(node, step, whole, shape, per))
        return shape

    def _rows_of(self, node: ir.Node, operand: ir.Value, shape: tuple[int, ...]) -> int:
        """Return how many rows use one row of an operand; 0 if it is not cut."""
        stored = constant_elements(operand)
        sizes = given(self._known.array(operand)).shape if stored is None else stored.shape
        if math.prod(sizes) == 1:
            return 0
        if node.op_type in _ALONG_AXIS:
            get = node.attributes.get_int
            axis, size = get("axis", 1), get("block_size", 0)
            if size == 0:
                return int(len(sizes) == 1 and axis % len(shape) == 0)
            rows = size if axis % len(shape) == 0 else 1
            require(sizes[0] == -(-shape[0] // rows))
            return rows
        missing = len(shape) - len(sizes)
        require(missing >= 0)
        require(all(n in (1, m) for n, m in zip(sizes, shape[missing:], strict=True)))
        return int(missing == 0 and sizes[0] > 1)

    def _reshaped(self, node: ir.Node, data: ir.Value, per: int) -> tuple[int, ...]:
        """Return the shape that a Reshape gives to data whose rows it keeps, divides or joins."""
        sizes, length = self._sizes(node), self._length(data)
        require(sizes and length and per * sizes[0] % length == 0)
        self.multiple = math.lcm(self.multiple, per)
        shape = self.visit(data, per * sizes[0] // length)
        require(math.prod(shape) == math.prod(sizes))
        self.steps.append(_Step(node, None, {}, sizes, per))
        return sizes

    def _length(self, value: ir.Value) -> int:
        """Return the number of rows of a value that is computed row by row."""
        stream = constant_elements(value)
        if stream is not None:
            sizes = stream.shape
        else:
            node = given(value.producer())
            if node.op_type != "Reshape":
                return self._length(given(_data(node)))
            sizes = self._sizes(node)
        require(sizes)
        return sizes[0]

    def _sizes(self, node: ir.Node) -> tuple[int, ...]:
        """Return the sizes that a Reshape gives to a constant."""
        stream, wanted = given(_root(node.inputs[0])), self._known.array(given(input_of(node, 1)))
        sizes = [int(size) for size in given(wanted)]
        require(0 not in sizes)
        rest = stream.size // max(-math.prod(sizes), 1)
        return tuple(rest if size == -1 else size for size in sizes)


def _data(node: ir.Node) -> ir.Value | None:
    """Return the operand with the rows of the result, if the node is computed row by row."""
    if len(node.outputs) != 1 or not node.inputs:
        return None
    plain = node.domain == "" and node.op_type in _ELEMENTWISE
    plain = plain and (node.op_type == "Cast" or not node.attributes)
    moved = node.domain == "" and node.op_type == "Reshape"
    return node.inputs[0] if plain or moved or operator_of(node) is not None else None


def _root(value: ir.Value | None) -> Stream | None:
    """Return the stored constant whose rows become the rows of a value."""
    while value is not None:
        stream = constant_elements(value)
        if stream is not None:
            return stream
        node = value.producer()
        value = None if node is None else _data(node)
    return None


def compare_constants(
    reference: tuple[KnownValues, ir.Value], candidate: tuple[KnownValues, ir.Value]
) -> tuple[Comparison, Witness | None] | None:
    """Return the comparison of two constants of equal type and shape, and a differing element.

    Large constants are computed and compared a few rows at a time, if possible. None is returned if
    they cannot be compared. Raises ModelError if the data of a constant cannot be read.
    """
    rows = [rows_of(known, value) for known, value in (reference, candidate)]
    if rows[0] is not None and rows[1] is not None:
        try:
            if _has_same_codes(rows[0], rows[1]) or _has_same_codes(rows[1], rows[0]):
                return Comparison(0, 0, None), None
            return _compared_by_rows(rows[0], rows[1])
        except _FAILURES:
            pass  # reported, or tried again with the whole constant
    ours, theirs = (known.array(value) for known, value in (reference, candidate))
    if ours is None or theirs is None or ours.dtype.kind in "OSU":
        return None
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return None
    comparison = compare_values(ours, theirs)
    if comparison.index is None or ours.dtype.kind == "c":
        return comparison, None
    at = (array.reshape(-1)[comparison.index] for array in (ours, theirs))
    return comparison, Witness(float(comparison.index), *map(float, at))


def _has_same_codes(ours: ConstantRows, theirs: ConstantRows) -> bool:
    """Return whether packed weights are known to equal those that a DequantizeLinear decodes."""
    if ours.steps or len(theirs.steps) != 1:
        return False
    packed = ours.sources[0].stream.stored
    return isinstance(packed, PackedRows) and has_same_codes(packed, theirs.steps[0].node)


def _compared_by_rows(
    ours: ConstantRows, theirs: ConstantRows
) -> tuple[Comparison, Witness | None] | None:
    if ours.shape != theirs.shape:
        return None
    size = math.prod(ours.shape[1:])
    multiple = math.lcm(ours.multiple, theirs.multiple)
    step = max(_PIECE // (size * multiple), 1) * multiple
    ends = [(at, min(at + step, ours.shape[0])) for at in range(0, ours.shape[0], step)]

    def both(start: int, stop: int) -> tuple[Array, Array]:
        pair = ours.read(start, stop), theirs.read(start, stop)
        return pair[0].reshape(-1), pair[1].reshape(-1)

    kinds = [array.dtype for array in both(*ends[0])]
    if kinds[0] != kinds[1]:
        return None
    comparison = compare_pieces(lambda: (both(*part) for part in ends))
    if comparison.index is None or kinds[0].kind == "c":
        return comparison, None
    start, stop = ends[comparison.index // (step * size)]
    at = (array[comparison.index - start * size] for array in both(start, stop))
    return comparison, Witness(float(comparison.index), *map(float, at))
