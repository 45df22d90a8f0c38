"""Rules that evaluate operators on quantities, and operators that are refused.

Each file of :mod:`qgraph.proof.rules` registers the rules of one family of operators. A rule
returns the ideal function of the result, its range, and its error. Operators without a rule are
traced by their definition in primitives, or have no bound.

The functions of bounds do not hold shapes. So operators whose constants repeat data are refused:
``x + c`` has the shape ``[1, 2]`` for ``x: [1, 2]`` and ``c: [1]``, and ``[2, 1, 2]`` for
``c: [2, 1, 1]``. As a function of elements it may be the same. A product of one channel may be
repeated for the channels of another product, to which it is added: the sum has the shape of that
product.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

import onnx_ir as ir

from qgraph.conditions import LIMITED_SIZE
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.numerics import Array
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.approximation import FloatType, rounded
from qgraph.ops.dispatch import Imports
from qgraph.ops.operator import operator_of
from qgraph.ops.sums_of_products import is_never_empty
from qgraph.proof.bounds.quantity import Operand, Quantity
from qgraph.proof.bounds.tracer import QuantityTracer
from qgraph.proof.matching.operators import label
from qgraph.reasons import AT_RUN_TIME, DO_NOT_FIT, NO_BOUND, Undecidable
from qgraph.records import dataclass
from qgraph.registry import Registry

T = TypeVar("T")


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
        """Return the quantity or constant of an input; raise Undecidable if there is none."""
        value = self.value(index)
        if value is None:
            raise self.refusal(f"input {index} is missing")
        return self.of(value)

    def quantity(self, index: int) -> Quantity:
        """Return an input as a quantity."""
        return self.tracer.quantity(self.operand(index))

    def constant(self, index: int) -> Quantity | None:
        """Return a constant input, None if it is absent; raise Undecidable for data."""
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
        """Return the largest number of elements along axes, or raise Undecidable."""
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
        """Return the index of one of ``rank`` axes, counted from the end if below 0."""
        if not -rank <= axis < rank:
            raise self.refusal(f"its axis {axis} is none of {rank}")
        return axis % rank

    def stored(self, total: Quantity) -> Quantity:
        """Return a sum, which may have been added in a wider type, in the type of results."""
        is_wider = self.sums.unit < self.tracer.arithmetic.unit
        return rounded(total, self.tracer.arithmetic) if is_wider else total

    def whole(self, name: str, default: int = 0) -> int:
        """Return an attribute that is a whole number."""
        return self._attribute(self.node.attributes.get_int, name, default)

    def number(self, name: str, default: float) -> float:
        """Return an attribute that is a real number, as stored in float32."""
        return self._attribute(self.node.attributes.get_float, name, default)

    def _attribute(self, get: Callable[[str, T], T], name: str, default: T) -> T:
        try:
            return get(name, default)
        except TypeError as error:
            raise self.refusal(str(error)) from error

    def refusal(self, use: str = "") -> Undecidable:
        """Return the exception for a node without a bound, or for a use of its operator."""
        return Undecidable(NO_BOUND(f"{self.node.op_type} has no bound{use and ': '}{use}"))


Rule = Callable[[NodeCall], Operand | Sequence[Operand]]

_RULES: Registry[Rule] = Registry("rule", "qgraph.proof.rules")
_BY_KEY: dict[str, Rule] = {}


def bound_rule(*operators: str | OpKey) -> Callable[[Rule], Rule]:
    """Return a decorator that registers the rule of operators, by names or keys."""

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
    """Return the shape of a value, with texts for open sizes; the rank must be known."""
    if value is None or value.shape is None:
        name = "" if value is None else f" of {value.name!r}"
        raise Undecidable(AT_RUN_TIME(f"the shape{name} is not known"))
    return tuple(n if isinstance(n, int) else str(n.value) for n in value.shape.dims)


def expect_data_in_windows(call: NodeCall) -> None:
    """Raise Undecidable if a window of a pool may lie entirely in the padding."""
    if not is_never_empty(call.node, shape_of(call.value(0)), trusts_ceil=True):
        raise call.refusal("a window may lie in the padding alone")


def sizes_of(value: ir.Value | None, axes: Sequence[int]) -> list[int]:
    """Return the sizes of some axes of a value; raise Undecidable if one is not known."""
    shape = shape_of(value)
    sizes = [shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        raise Undecidable(_OPEN)
    return sizes


_OF_TWO_CODES = frozenset({"QLinearAdd", "QLinearMul"})
_OF_ALL = frozenset(NUMPY) - {"Gather"} | {"Mean", "Sum"}

_CHANNEL_FIRST = frozenset({"Conv", "ConvInteger", "ConvTranspose"})
_CHANNEL_LAST = frozenset({"Gemm", "MatMul", "MatMulInteger"})

_Size = int | ir.SymbolicDim


def expect_no_repeats(node: ir.Node, array_of: Callable[[ir.Value], Array | None]) -> None:
    """Raise Undecidable if constants of an operator on elements may repeat elements of its data."""
    values = dict.fromkeys(value for value in _broadcast(node) if value is not None)
    arrays = {value: array_of(value) for value in values}
    constants = [array for array in arrays.values() if array is not None and array.ndim]
    shapes = [value.shape for value, array in arrays.items() if array is None]
    if not constants or not shapes:
        return
    known = [list(reversed(shape.dims)) for shape in shapes if shape is not None]
    columns = list(zip_longest(*known, fillvalue=1))
    channels = _channels_added(node, [v for v, array in arrays.items() if array is None])
    if len(known) < len(shapes) or any(_repeat(array, columns, channels) for array in constants):
        name = node.name or node.outputs[0].name
        raise Undecidable(DO_NOT_FIT(f"constants of {node.op_type} {name!r} may repeat its data"))


def _broadcast(node: ir.Node) -> Sequence[ir.Value | None]:
    """Return the operands of a node that broadcast to its result."""
    if node.domain == "com.microsoft" and node.op_type in _OF_TWO_CODES:
        return [node.inputs[0], node.inputs[3]]
    if node.domain == "" and node.op_type in _OF_ALL:
        return node.inputs
    operator = operator_of(node)
    return () if operator is None or operator.schema.standard else node.inputs


def _channels_added(node: ir.Node, data: Sequence[ir.Value]) -> int | None:
    """Return the axis, from the last one, along which a product of one channel may be repeated.

    None if the data is no such product, or if the result is not only added to products of the same
    operator that have its sizes.
    """
    maker, result = data[0].producer(), node.outputs[0]
    if len(data) > 1 or maker is None or maker.domain or data[0].shape is None:
        return None
    if result.shape is None or result.is_graph_output() or not result.uses():
        return None
    for reader, index in result.uses():
        other = reader.inputs[1 - index] if reader.op_type == "Add" and not reader.domain else None
        product = None if other is None else other.producer()
        if product is None or (product.domain, product.op_type) != ("", maker.op_type):
            return None
        if other is None or other.shape != result.shape:
            return None
    if maker.op_type in _CHANNEL_FIRST:
        return len(data[0].shape) - 2
    return 0 if maker.op_type in _CHANNEL_LAST else None


def _repeat(array: Array, columns: Sequence[Sequence[_Size]], channels: int | None) -> bool:
    """Return whether a constant may repeat data of some sizes, listed from the last axis on.

    Along the axis ``channels``, from the last one, data may be repeated.
    """
    if array.ndim > len(columns):
        return True
    for axis, (size, sizes) in enumerate(zip(reversed(array.shape), columns, strict=False)):
        if size == 1 or size in sizes:
            continue
        if set(sizes) == {1}:
            if axis == channels:
                continue
            return True
        # where an open size is 1, numbers that differ along the axis show in the function
        along = array.ndim - 1 - axis
        if (array == array.take([0], along)).all():
            return True
    return False


_CELLS = "errors of its steps add up along the sequence"
_DYNAMIC = "its scale is computed from the data"
_CONTROL = "which of its nodes run is decided by the data"
_CODES = "ONNX does not define how its result is computed from codes"

REFUSED: dict[str | OpKey, str] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _CELLS),
    **dict.fromkeys(("If", "Loop", "Scan"), _CONTROL),
    "DynamicQuantizeLinear": _DYNAMIC,
    OpKey(MICROSOFT, "DynamicQuantizeMatMul"): _DYNAMIC,
    OpKey(MICROSOFT, "DynamicQuantizeLSTM"): _DYNAMIC,
    OpKey(MICROSOFT, "QAttention"): _CODES,
}
"""Why an operator has no bound."""


def _refuse(call: NodeCall, *, reason: str) -> Operand:
    raise call.refusal(reason)


for _operator, _reason in REFUSED.items():
    bound_rule(_operator)(partial(_refuse, reason=_reason))
