"""Rules that evaluate operators on quantities.

Each file of :mod:`qgraph.proof.rules` registers the rules of one family of operators. A rule
returns the ideal function of the result, its range, and its error. Operators without a rule are
traced by their definition in primitives, or have no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from qgraph.conditions import LIMITED_SIZE
from qgraph.graph.schema import OpKey
from qgraph.numerics import Array
from qgraph.ops.approximation import FloatType
from qgraph.ops.dispatch import Imports
from qgraph.ops.windows import is_never_empty
from qgraph.proof.bounds.events import Operand
from qgraph.proof.bounds.quantity import Quantity
from qgraph.proof.bounds.tracer import QuantityTracer
from qgraph.proof.matching.label import label
from qgraph.reasons import AT_RUN_TIME, NO_BOUND, Undecidable
from qgraph.registry import Registry


@dataclass(frozen=True)
class NodeCall:
    """A node and the quantities of its operands.

    Attributes:
        node: the node.
        tracer: evaluates primitives.
        of: returns the quantity or constant of a value; raises :class:`Undecidable` if there is
            none.
        array: returns the elements of a constant; None for other values.
        imports: domains and their versions.
        sums: arithmetic of its additions; ``tracer.arithmetic`` is that of its results.
        decoded: called with codes minus zero points that are not values of the graph.
        limits: upper bounds of open sizes, by their texts.
    """

    node: ir.Node
    tracer: QuantityTracer
    of: Callable[[ir.Value], Operand]
    array: Callable[[ir.Value | None], Array | None]
    imports: Imports
    sums: FloatType
    decoded: list[Quantity]
    limits: Mapping[str, int]

    @property
    def label(self) -> Hashable:
        """Key that is equal for nodes that compute equal results from equal operands."""
        return label(self.node, self.imports)

    def value(self, index: int) -> ir.Value | None:
        """Return an input; None if it is absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def operand(self, index: int) -> Operand:
        """Return the quantity or constant of an input.

        Raises:
            Undecidable: there is none, or the input is absent.
        """
        value = self.value(index)
        if value is None:
            raise self.refusal(f"input {index} is missing")
        return self.of(value)

    def quantity(self, index: int) -> Quantity:
        """Return an input as a quantity."""
        return self.tracer.quantity(self.operand(index))

    def constant(self, index: int) -> Quantity | None:
        """Return a constant input; None if it is absent.

        Raises:
            Undecidable: it is not constant.
        """
        value = self.value(index)
        if value is None:
            return None
        quantity = self.tracer.quantity(self.of(value))
        if quantity.value is None:
            raise Undecidable(
                AT_RUN_TIME(f"operand {value.name!r} of {self.node.op_type} is not constant")
            )
        return quantity

    def rank(self, index: int = 0) -> int:
        """Return the number of axes of an input."""
        return len(shape_of(self.value(index)))

    def most(self, axes: Sequence[int]) -> int:
        """Return the largest number of elements along some axes of the first input.

        Raises:
            Undecidable: an axis is open, and no operator limits it.
        """
        shape, count = shape_of(self.value(0)), 1
        for axis in axes:
            size = shape[axis]
            if not isinstance(size, int):
                limit = self.limits.get(size)
                if limit is None:
                    raise Undecidable(_OPEN)
                self.tracer.atoms.conditions.add(LIMITED_SIZE(size, limit))
                size = limit
            count *= size
        return count

    def place(self, axis: int, rank: int) -> int:
        """Return the index of one of ``rank`` axes; a negative axis counts from the end.

        Raises:
            Undecidable: there is no such axis.
        """
        if not -rank <= axis < rank:
            raise self.refusal(f"its axis {axis} is none of {rank}")
        return axis % rank

    def whole(self, name: str, default: int = 0) -> int:
        """Return an attribute that is a whole number."""
        try:
            return self.node.attributes.get_int(name, default)
        except TypeError as error:
            raise self.refusal(str(error)) from error

    def number(self, name: str, default: float) -> float:
        """Return an attribute that is a real number, as stored in float32."""
        try:
            return self.node.attributes.get_float(name, default)
        except TypeError as error:
            raise self.refusal(str(error)) from error

    def refusal(self, use: str = "") -> Undecidable:
        """Return the exception for a node without a bound.

        Args:
            use: the use of the operator that has no bound.
        """
        return Undecidable(NO_BOUND(f"{self.node.op_type} has no bound{use and ': '}{use}"))


Rule = Callable[[NodeCall], Operand | Sequence[Operand]]

_RULES: Registry[Rule] = Registry("rule", "qgraph.proof.rules")
_BY_KEY: dict[str, Rule] = {}


def bound_rule(*operators: str | OpKey) -> Callable[[Rule], Rule]:
    """Return a decorator that registers the rule of operators.

    Args:
        operators: names of standard operators, or domains and names.
    """

    def register(rule: Rule) -> Rule:
        for operator in operators:
            key = operator if isinstance(operator, OpKey) else OpKey("", operator)
            _RULES.add(_name(key))(rule)
        _BY_KEY.clear()
        return rule

    return register


def _name(key: OpKey) -> str:
    return f"{key.domain}.{key.name}" if key.domain else key.name


def rule_of(node: ir.Node) -> Rule | None:
    """Return the rule of a node; None if its operator has none."""
    if not _BY_KEY:
        _BY_KEY.update(zip(_RULES.names(), _RULES, strict=True))
    return _BY_KEY.get(_name(OpKey.of(node)))


_OPEN = AT_RUN_TIME("the number of elements of a mean or sum is not known; fix the sizes of inputs")

OPEN_SIZE = str(None)
"""Text of an open size without a name."""


def shape_of(value: ir.Value | None) -> tuple[Any, ...]:
    """Return the shape of a value, with texts for open sizes.

    Raises:
        Undecidable: its rank is not known.
    """
    if value is None or value.shape is None:
        name = "" if value is None else f" of {value.name!r}"
        raise Undecidable(AT_RUN_TIME(f"the shape{name} is not known"))
    return tuple(n if isinstance(n, int) else str(n.value) for n in value.shape.dims)


def expect_data_in_windows(call: NodeCall) -> None:
    """Check that no window of a pool lies entirely in the padding.

    Raises:
        Undecidable: one may; its result is then not an element, or undefined.
    """
    if not is_never_empty(call.node, shape_of(call.value(0)), trusts_ceil=True):
        raise call.refusal("a window may lie in the padding alone")


def sizes_of(value: ir.Value | None, axes: Sequence[int]) -> list[int]:
    """Return the sizes of some axes of a value.

    Raises:
        Undecidable: one is not known.
    """
    shape = shape_of(value)
    sizes = [shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        raise Undecidable(_OPEN)
    return sizes
