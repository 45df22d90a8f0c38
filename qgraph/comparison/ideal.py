"""Compute ideal values on data: the operators in real arithmetic, computed in float64.

Constants are the same as for bounds: executed codes, and everything else in real arithmetic. So
results equal the ideal values of the bounds, up to float64 rounding.

Definitions of operators are compiled to steps on data: recorded when first needed for data of a
shape, and replayed for later batches, in float32 as executed, or in float64 for ideal values.
Computations on constants are done once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import QGraphError
from qgraph.graph.edit import HALF_TYPES
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import graphs_of
from qgraph.numerics import Array, Float64
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.dispatch import kernel_for
from qgraph.ops.integer.kernels import read_pair
from qgraph.ops.integer.products import SIGNATURES, Result, read_product
from qgraph.ops.integer.sums import Factor, Parameter
from qgraph.ops.operator import Operator, operator_of
from qgraph.proof.bounds.evaluate import Evaluation
from qgraph.proof.functions.lowering import lower_node
from qgraph.reasons import NO_BOUND, NOT_COMPUTED, Undecidable
from qgraph.records import dataclass, field

Kind = type[np.floating[Any]]
"""float32, as definitions are executed, or float64."""

_LIMITS = frozenset({"Min", "Max"})
_ROUNDINGS = frozenset({"Round", "Floor", "Ceil"})


@dataclass(frozen=True)
class _Slot:
    """Data: an operand, or the result of a step."""

    number: int


class _Rounds(Exception):  # noqa: N818 - an end, not a fault
    """Raised at the first rounding of data, at which recording stops."""

    def __init__(self, before: _Slot) -> None:
        self.before = before


@dataclass
class Program:
    """Primitives that are applied to data one after the other: functions and their operands."""

    count: int
    end: _Slot | Array
    steps: list[tuple[Callable[..., Any], Sequence[Any]]]
    _dropped: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        used = {self.end.number} if isinstance(self.end, _Slot) else set[int]()
        for number, (_, operands) in reversed([*enumerate(self.steps, self.count)]):
            needed = {o.number for o in operands if isinstance(o, _Slot)}
            self._dropped.append(sorted(needed - used) if number in used else [number])
            used |= needed if number in used else set()
        self._dropped.reverse()

    def run(self, data: Sequence[Array]) -> Array:
        """Return the result for some data."""
        values: dict[int, Any] = dict(enumerate(data))
        with np.errstate(all="ignore"):
            steps = zip(self.steps, self._dropped, strict=True)
            for number, ((function, operands), dropped) in enumerate(steps, self.count):
                if dropped == [number]:
                    continue  # nothing needs its result
                values[number] = function(
                    *(values[o.number] if isinstance(o, _Slot) else o for o in operands)
                )
                for each in dropped:
                    del values[each]
        return np.asarray(values[self.end.number] if isinstance(self.end, _Slot) else self.end)


class _Recorder:
    """Evaluates primitives on constants in one type, and records those on data.

    If it ``stops``, the first rounding of data raises :class:`_Rounds`. Without ``limits``, data
    are not limited where the definition does.
    """

    def __init__(self, dtype: Kind, count: int, *, stops: bool, limits: bool) -> None:
        self._kind, self._count = dtype, count
        self._stops, self._limits = stops, limits
        self.steps: list[tuple[Callable[..., Any], Sequence[Any]]] = []

    def constant(self, array: Any) -> Array:
        stored = np.asarray(array)
        return stored if stored.dtype.kind == "b" else stored.astype(self._kind)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in NUMPY:
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def _call(self, name: str, *operands: Any, **attributes: Any) -> Any:
        data = [operand for operand in operands if isinstance(operand, _Slot)]
        if self._stops and data and name in _ROUNDINGS:
            raise _Rounds(data[0])
        if data and name in _LIMITS and not self._limits:
            return data[0]
        if name == "Where" and not isinstance(operands[0], _Slot):
            chosen = np.asarray(operands[0])
            if chosen.all() or not chosen.any():
                return operands[1 if chosen.all() else 2]
        function: Callable[..., Any] = NUMPY[name]
        if name == "Cast" and self._kind is np.float64:
            function = _cast
        if attributes:
            function = functools.partial(function, **attributes)
        if not data:
            return np.asarray(function(*operands))
        self.steps.append((function, operands))
        return _Slot(self._count + len(self.steps) - 1)


def _cast(x: Array, *, to: Any, **_: Any) -> Array:
    dtype = ir.DataType[to] if isinstance(to, str) else ir.DataType(to)
    if dtype.is_floating_point() and dtype.bitwidth >= HALF_TYPES[0].bitwidth:
        return x
    if not dtype.is_integer():
        raise Undecidable(NO_BOUND(f"there is no bound for a Cast to {dtype.name}"))
    return np.asarray(np.trunc(x))


def in_halves(node: ir.Node) -> bool:
    """Return whether a node computes in 16-bit floats."""
    values = (*node.inputs, *node.outputs)
    return any(value is not None and value.dtype in HALF_TYPES for value in values)


def _arguments(operator: Operator, node: ir.Node) -> dict[str, Any]:
    """Return the arguments of a definition, which means the same real numbers in 16 bits."""
    return operator.half_arguments(node) if in_halves(node) else operator.arguments(node)


class Definitions:
    """The definitions of a model's nodes as programs, with the constants of an evaluation."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self._programs: dict[Hashable, Program] = {}

    def result(self, node: ir.Node, data: dict[ir.Value, Array]) -> Array:
        """Return the ideal result of a node that is a primitive or has a definition.

        ``data`` are its operands that are not constant. Raises Undecidable if the node has no
        definition on single values.
        """
        return self._run(node, data, np.float64)

    def before(
        self, node: ir.Node, value: ir.Value, x: Array, dtype: Kind, *, limits: bool = True
    ) -> Array:
        """Return the numbers before the first rounding of a node, from the elements of its data.

        Without ``limits``, data are not limited where the definition does. Raises Undecidable if
        the node rounds nothing, or has no definition.
        """
        return self._run(node, {value: x}, dtype, stops=True, limits=limits)

    def _run(
        self,
        node: ir.Node,
        data: dict[ir.Value, Array],
        dtype: Kind,
        *,
        stops: bool = False,
        limits: bool = True,
    ) -> Array:
        shape = np.shape(next(iter(data.values()), ()))
        key = node, dtype, stops, limits, shape, tuple(data)
        if key not in self._programs:
            recorder = _Recorder(dtype, len(data), stops=stops, limits=limits)
            self._programs[key] = self._recorded(node, list(data), shape, recorder, stops=stops)
        return self._programs[key].run([np.asarray(array, dtype) for array in data.values()])

    def _recorded(
        self,
        node: ir.Node,
        data: Sequence[ir.Value],
        shape: tuple[int, ...],
        recorder: Any,
        *,
        stops: bool,
    ) -> Program:
        slots: dict[ir.Value, Any] = {value: _Slot(number) for number, value in enumerate(data)}
        for value in filter(None, node.inputs):
            is_first = value is node.inputs[0] or operator_of(node) is None
            if value not in slots and is_first and not stops:
                slots[value] = self.evaluation.meant(value)
        try:
            with np.errstate(all="ignore"):
                end: Any = lower_node(
                    node, slots, shape, recorder, self.evaluation.executed, _arguments
                )
        except _Rounds as rounds:
            end = rounds.before
        else:
            if stops:
                raise Undecidable(NO_BOUND(f"{node.op_type} rounds nothing"))
        return Program(len(data), end, recorder.steps)


def ideal(
    nodes: Sequence[ir.Node],
    known: dict[ir.Value, Array],
    wanted: ir.Value,
    definitions: Definitions,
    *,
    of_codes: bool = False,
) -> Float64:
    """Return the results of nodes in real arithmetic.

    The nodes are in topological order and begin at ``known``, which is extended. If ``of_codes``,
    the numbers are returned that an operator on codes rounds to the wanted value. Raises
    Undecidable if a node has neither a definition nor a kernel for float64, or runs graphs.
    """
    for node in nodes:
        if graphs_of(node):  # which may use values that are not operands
            raise Undecidable(NOT_COMPUTED(f"{node.op_type} runs graphs"))
        if all(value not in known for value in node.inputs):
            continue
        try:
            if of_codes and wanted in node.outputs:
                return _steps(node, known, definitions)
            results = _results(node, known, definitions)
        except (QGraphError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            raise Undecidable(NOT_COMPUTED(f"{node.op_type}: {error}")) from error
        known |= zip(node.outputs, results, strict=False)
    if wanted not in known:
        raise Undecidable(NOT_COMPUTED(f"{wanted.name!r} does not depend on the inputs"))
    return np.asarray(known[wanted], np.float64)


def _results(
    node: ir.Node, known: Mapping[ir.Value, Array], definitions: Definitions
) -> Sequence[Array]:
    is_primitive = not node.domain and node.op_type in NUMPY and node.op_type != "Gather"
    if operator_of(node) is not None or is_primitive:
        data = {value: known[value] for value in filter(None, node.inputs) if value in known}
        return [definitions.result(node, data)]
    side = definitions.evaluation
    is_integer = OpKey.of(node) in SIGNATURES
    operands = [None if v is None else _operand(v, known, side, is_integer) for v in node.inputs]
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in kernel_for(node, side.imports)(*operands)]


def _steps(node: ir.Node, known: Mapping[ir.Value, Array], definitions: Definitions) -> Float64:
    """Return the numbers that a node rounds to the codes that it returns, in steps."""
    side, x = definitions.evaluation, node.inputs[0]
    if operator_of(node) is not None and x in known and x is not None:
        return np.asarray(definitions.before(node, x, known[x], np.float64))

    def real(value: Parameter | None) -> Float64:
        operand = _operand(value, known, side, True) if isinstance(value, ir.Value) else value
        return np.asarray(0 if operand is None else operand, np.float64)

    def shifted(factor: Factor) -> Float64:
        return real(factor.codes) - real(factor.zero_point)

    product, pair = read_product(node), read_pair(node)
    if pair is not None:
        parts = [shifted(each) * real(each.scale) for each in (pair.a, pair.b)]
        return NUMPY[pair.operation](*parts) / real(pair.scale) + real(pair.zero)
    if product is None or product.result is not Result.CODES:
        raise Undecidable(NO_BOUND(f"{node.op_type} does not show what it rounds"))
    sums = ir.node(product.kind, [product.a.codes, product.b.codes], product.attributes)
    total = kernel_for(sums, side.imports)(shifted(product.a), shifted(product.b))[0]
    bias = real(product.bias)
    total = total + (bias.reshape(-1, *[1] * (total.ndim - 2)) if product.kind == "Conv" else bias)
    total = (total + _HALF) % (2 * _HALF) - _HALF  # int32 wraps around
    unit = product.unit(lambda a, b: real(a) * real(b))
    return np.asarray(total * unit / real(product.encoding[0]))


_HALF = 2.0**31


def _operand(
    value: ir.Value, known: Mapping[ir.Value, Array], side: Evaluation, is_integer: bool
) -> Array:
    if value not in known and (value.dtype is None or not value.dtype.is_floating_point()):
        stored = side.executed(value)
        if stored is not None and stored.dtype.kind != "f":
            return stored
    array = known[value] if value in known else side.meant(value)
    if is_integer and value.dtype is not None and value.dtype.is_integer():
        return array.astype(value.dtype.numpy())
    return array
