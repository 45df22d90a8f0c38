"""Compile definitions of operators to steps on data; computations on constants are done once.

A definition is recorded when it is first needed for data of a shape, and replayed for later
batches: in float32, as executed, or in float64 for ideal values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.operator import operator_of
from qgraph.proof.bounds.evaluate import Evaluation
from qgraph.proof.functions.lowering import lower_node
from qgraph.reasons import NO_BOUND, Undecidable

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
    """Primitives that are applied to data one after the other.

    Attributes:
        count: number of operands.
        end: the returned slot or constant.
        steps: functions and their operands.
    """

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
    """Evaluates primitives on constants, and records those on data.

    Args:
        kind: type of the arithmetic. count: number of operands that are data.
        stops: raise :class:`_Rounds` at the first rounding of data.
        limits: limit data where the definition does.
    """

    def __init__(self, dtype: Kind, count: int, *, stops: bool, limits: bool) -> None:
        self._kind, self._count = dtype, count
        self._stops, self._limits = stops, limits
        self.steps: list[tuple[Callable[..., Any], Sequence[Any]]] = []

    def constant(self, array: Any) -> Array:
        """Return a constant of a definition."""
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
    if dtype.is_floating_point() and dtype.bitwidth >= ir.DataType.FLOAT.bitwidth:
        return x
    if not dtype.is_integer():
        raise Undecidable(NO_BOUND(f"there is no bound for a Cast to {dtype.name}"))
    return np.asarray(np.trunc(x))


class Definitions:
    """The definitions of a model's nodes as programs.

    Args:
        evaluation: provides the constants.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self._programs: dict[Hashable, Program] = {}

    def result(self, node: ir.Node, data: dict[ir.Value, Array]) -> Array:
        """Return the ideal result of a node that is a primitive or has a definition.

        Args:
            node: the node.
            data: its operands that are not constant.

        Raises:
            Undecidable: the node has no definition on single values.
        """
        return self._run(node, data, np.float64)

    def before(
        self, node: ir.Node, value: ir.Value, x: Array, dtype: Kind, *, limits: bool = True
    ) -> Array:
        """Return the numbers before the first rounding of a node.

        Args:
            node: the node.
            value: its data.
            x: the elements of the data.
            dtype: type of the arithmetic.
            limits: limit data where the definition does.

        Raises:
            Undecidable: the node rounds nothing, or has no definition.
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
                    node, slots, shape, recorder, constants=self.evaluation.executed
                )
        except _Rounds as rounds:
            end = rounds.before
        else:
            if stops:
                raise Undecidable(NO_BOUND(f"{node.op_type} rounds nothing"))
        return Program(len(data), end, recorder.steps)
