"""Lower nodes to expressions, by the definitions of their operators.

Models have many nodes of few forms: the same operator with the same attributes and parameters.
``Forms`` recognises such nodes, so that each form is lowered only once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.constants import array_of, constant_tensor
from qgraph.numerics import Array, blocks
from qgraph.numerics.primitives import NUMPY
from qgraph.ops.operator import Operator, operator_of
from qgraph.proof.functions.expression import Builder, Expr, in_order, whole_numbers
from qgraph.reasons import (
    AT_RUN_TIME,
    DO_NOT_FIT,
    NO_RULE,
    NOT_COMPUTED,
    NOT_KNOWN,
    NOT_MATCHED,
    TYPE_NOT_PROVED,
    Undecidable,
)
from qgraph.records import dataclass

Shape = tuple[int | None, ...]


Constants = Callable[[ir.Value], Array | None]
"""Returns the array of a constant value, None for other values."""

LowerOne = Callable[[ir.Node, Mapping[ir.Value, Expr], Shape], Expr]
"""Lowers one node, from the expressions of its operands, on data of a shape."""

Arguments = Callable[[Operator, ir.Node], dict[str, Any]]


def lower(
    nodes: Sequence[ir.Node],
    x: ir.Value,
    y: ir.Value,
    shape: Shape,
    builder: Builder,
    *,
    constants: Constants = array_of,
    one: LowerOne | None = None,
    given: Mapping[ir.Value, Expr] = MappingProxyType({}),
) -> Expr:
    """Return ``y`` as an expression of one float32 variable, ``x``.

    Every node is a primitive, or is replaced by the definition of its operator. Constants keep
    their shapes and broadcast to the data as in NumPy. The scale and zero point of QuantizeLinear
    and DequantizeLinear are first expanded along their axis or blocks. Between a Reshape and the
    Reshape that reverses it, constants apply to the reshaped data.

    Args:
        nodes: the nodes in topological order.
        x: the value that is the variable.
        y: the value to express.
        shape: shape of the data, None for unknown dimensions.
        builder: builds the expressions; use one for several regions to share common parts.
        constants: returns the array of an operand that does not depend on ``x``.
        one: lowers a node on data that is not reshaped; None for :func:`lower_node`.
        given: expressions of scalar operands that take the place of constants.

    Raises:
        Undecidable: an operator has no definition, or an operand is neither constant nor computed
            by the nodes.
    """
    expressions: dict[ir.Value, Expr] = {**given, x: builder.input}
    seen: dict[ir.Value, Shape] = {x: shape}
    for node in nodes:
        if not any(value in seen for value in node.inputs):
            continue
        view = _view(node, seen)
        if node.op_type == "Reshape" and node.domain == "" and node.inputs[0] in seen:
            expressions[node.outputs[0]] = expressions[node.inputs[0]]
            seen[node.outputs[0]] = _reshaped(node, shape, constants)
            continue
        if view != shape:
            _check_rank(node, view, constants)
            viewing = _Viewing(builder, view, shape)
            result = lower_node(node, expressions, view, viewing, constants)
        elif one is not None:
            result = one(node, expressions, shape)
        else:
            result = lower_node(node, expressions, shape, builder, constants)
        expressions[node.outputs[0]] = result
        seen[node.outputs[0]] = view
    if y not in seen:
        raise Undecidable(NOT_MATCHED(f"{y.name!r} does not depend on the data"))
    if seen[y] != shape:
        raise Undecidable(
            DO_NOT_FIT(f"the result has shape {list(seen[y])}, the data {list(shape)}")
        )
    return expressions[y]


def _view(node: ir.Node, seen: Mapping[ir.Value, Shape]) -> Shape:
    """Return the shape of the data that a node reads; raise Undecidable if there are several."""
    first, *others = {seen[value] for value in node.inputs if value is not None and value in seen}
    if others:
        raise Undecidable(DO_NOT_FIT(f"the operands of {node.op_type} have different shapes"))
    return first


def _check_rank(node: ir.Node, view: Shape, constants: Constants) -> None:
    """Raise Undecidable if a constant has more axes than the data, which would shift them."""
    for value in node.inputs:
        array = None if value is None else constants(value)
        if array is not None and array.ndim > max(len(view), 1):
            raise Undecidable(DO_NOT_FIT("a parameter has more dimensions than the data"))


def _reshaped(node: ir.Node, shape: Shape, constants: Constants) -> Shape:
    """Return the shape of a Reshape of data of ``shape``, which must be known and fit."""
    sizes = None if node.inputs[1] is None else constants(node.inputs[1])
    if sizes is None or None in shape:
        raise Undecidable(AT_RUN_TIME("the shape of a Reshape is not constant"))
    target = tuple(int(size) for size in sizes)
    if min(target, default=1) < 1 or math.prod(target) != math.prod(size or 0 for size in shape):
        raise Undecidable(DO_NOT_FIT(f"Reshape of {list(shape)} to {list(target)}"))
    return target


class _Viewing(Builder):
    """Builder that reshapes constants of reshaped data to the shape of the data itself."""

    def __init__(self, builder: Builder, view: Shape, shape: Shape) -> None:
        self.input = builder.input
        self._builder = builder
        self._view = tuple(size or 0 for size in view)
        self._shape = tuple(size or 0 for size in shape)

    def constant(self, array: npt.ArrayLike) -> Expr:
        numbers = np.asarray(array)
        if numbers.size == 1:
            numbers = numbers.reshape(())
        else:
            try:
                numbers = np.broadcast_to(numbers, self._view).reshape(self._shape)
            except ValueError as error:
                raise Undecidable(
                    DO_NOT_FIT(f"a constant of shape {list(numbers.shape)} does not fit the data")
                ) from error
        return self._builder.constant(numbers)

    def _call(self, name: str, operands: list[Expr], attributes: dict[str, Any]) -> Expr:
        return self._builder._call(name, operands, attributes)


def parameter_array(
    node: ir.Node, value: ir.Value, shape: Shape, constants: Constants = array_of
) -> Array:
    """Return a constant operand as float32 or bool, in a shape that broadcasts to the data.

    Raises Undecidable if it is not constant, has integers that float32 does not represent, or its
    axis is unknown.
    """
    array = laid_out(node, value, shape, constants)
    if array.dtype.kind in "cOSU":
        raise Undecidable(
            TYPE_NOT_PROVED(f"operand {value.name!r} of {node.op_type} does not hold real numbers")
        )
    if array.dtype.kind in "iu":
        return whole_numbers(array)
    return array if array.dtype == bool else array.astype(np.float32)


def laid_out(
    node: ir.Node, value: ir.Value, shape: Shape, constants: Constants = array_of
) -> Array:
    """Return a constant operand in its own type, in a shape that broadcasts to the data.

    Raises Undecidable if it is not constant, or its axis is unknown.
    """
    array = constants(value)
    if array is None:
        raise Undecidable(AT_RUN_TIME(f"operand {value.name!r} of {node.op_type} is not constant"))
    return _aligned(node, array, shape) if node.op_type in _ALONG_AXIS else array


_ALONG_AXIS = ("QuantizeLinear", "DequantizeLinear")


def lower_node(
    node: ir.Node,
    known: Mapping[ir.Value, Expr],
    shape: Shape,
    builder: Builder,
    constants: Constants = array_of,
    arguments: Arguments = Operator.arguments,
) -> Expr:
    """Return the output of one node as an expression of its operands; see :func:`lower`.

    ``arguments`` returns those of the definition of a node.
    """

    def operand(value: ir.Value | None) -> Expr | None:
        if value is None:
            return None
        if value in known:
            return known[value]
        return builder.constant(parameter_array(node, value, shape, constants))

    try:
        operator = operator_of(node)
        if operator is not None:
            operands = [operand(value) for value in operator.schema.values(node)]
            if node.op_type in _ALONG_AXIS:
                _expect_one_shape(node, constants)
            result: Expr = operator.define(builder, *operands, **arguments(operator, node))
            return result
    except (OperatorError, ValueError) as error:
        raise Undecidable(NOT_COMPUTED(str(error))) from error
    if node.domain != "" or node.op_type not in NUMPY:
        raise Undecidable(NO_RULE(f"{node.op_type} has no definition over single values"))
    for value in node.inputs:
        array = None if value is None or value in known else constants(value)
        if array is not None and array.dtype.kind == "f" and array.dtype != np.float32:
            raise Undecidable(
                TYPE_NOT_PROVED(f"{node.op_type} with a constant of type {array.dtype}")
            )
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    primitive: Expr = getattr(builder, node.op_type)(*map(operand, node.inputs), **attributes)
    return primitive


def _expect_one_shape(node: ir.Node, constants: Constants) -> None:
    values = node.inputs[1:3]
    scale, zero_point = (None if v is None else constants(v) for v in (*values, None, None)[:2])
    if scale is not None and zero_point is not None:
        blocks.expect_one_shape(scale, zero_point)


def _aligned(node: ir.Node, parameter: Array, shape: Shape) -> Array:
    if parameter.size == 1:
        return parameter.reshape(())
    if not shape:
        raise Undecidable(NOT_KNOWN(f"the rank of the data of {node.op_type} is not known"))
    axis = node.attributes.get_int("axis", 1)
    size = node.attributes.get_int("block_size", 0)
    index = axis % len(shape)
    if not -len(shape) <= axis < len(shape) or (size and parameter.ndim != len(shape)):
        sizes = [each or 1 for each in shape]  # blocks cannot be aligned to an unknown size
    elif size:
        sizes = list(parameter.shape)
        sizes[index] = shape[index] or sizes[index] * size
    else:
        sizes = [1] * len(shape)
        sizes[index] = parameter.size
    try:
        return blocks.align(parameter, sizes, axis, size)
    except ValueError as error:
        raise Undecidable(NOT_COMPUTED(str(error))) from error


Form: TypeAlias = tuple[object, ...]
"""A key that is equal for nodes that compute equal results from equal operands."""

_LARGEST = 1 << 12
"""Maximum size of constants that are compared by content; larger ones by identity."""

_PLAIN = frozenset(
    ir.AttributeType[name] for name in ("INT", "INTS", "FLOAT", "FLOATS", "STRING", "STRINGS")
)


class Forms:
    """Computes the forms of nodes. Constants must not change while it is in use."""

    def __init__(self) -> None:
        self._constants: dict[ir.Value, object] = {}

    def of(self, node: ir.Node, operands: Mapping[ir.Value, object]) -> Form | None:
        """Return the form of a node with one output; None if no other node can share the form.

        ``operands`` has a key for each input that is not constant.
        """
        attributes = []
        for name, attribute in node.attributes.data.items():
            if attribute.is_ref() or attribute.type not in _PLAIN:
                return None
            attributes.append((name, attribute.type, repr(attribute.value)))
        inputs: list[object] = []
        for value in node.inputs:
            if value is None:
                inputs.append(None)
            elif value in operands:
                inputs.append((value.dtype, operands[value]))
            else:
                inputs.append((value.dtype, self._constant(value)))
        operator = node.domain, node.op_type, node.overload
        return (*operator, tuple(attributes), tuple(inputs), node.outputs[0].dtype)

    def of_region(
        self,
        nodes: Iterable[ir.Node],
        x: ir.Value,
        y: ir.Value,
        given: Mapping[ir.Value, object] = MappingProxyType({}),
    ) -> tuple[object, ...] | None:
        """Return a key that is equal for regions that compute the same; None if there is none.

        The nodes are in topological order. ``given`` are keys of constants that are compared by
        these, not by their content.
        """
        operands: dict[ir.Value, object] = {**given, x: -1}
        forms: list[Form] = []
        for index, node in enumerate(nodes):
            form = self.of(node, operands)
            if form is None:
                return None
            forms.append(form)
            operands[node.outputs[0]] = index
        return (*forms, operands.get(y))

    def _constant(self, value: ir.Value) -> object:
        constant = self._constants.get(value)
        if constant is None:
            array = array_of(value)
            constant = value
            if array is not None and array.nbytes <= _LARGEST:
                # Some operators distinguish stored constants from computed ones.
                direct = constant_tensor(value) is not None
                constant = array.dtype, array.shape, array.tobytes(), direct
            self._constants[value] = constant
        return constant


@dataclass(frozen=True)
class Template:
    """An expression with open operands, for operands of the same types and shapes."""

    steps: tuple[tuple[Expr, tuple[int | Expr, ...]], ...]
    result: int | Expr

    @classmethod
    def of(cls, result: Expr, operands: Iterable[Expr]) -> Template:
        """Return ``result`` as a template whose open operands are ``operands``, in this order."""
        leaves = list(operands)
        index_of: dict[int, int | Expr] = {id(operand): i for i, operand in enumerate(leaves)}
        count = len(index_of)
        steps: list[tuple[Expr, tuple[int | Expr, ...]]] = []
        for e in in_order([result], leaves)[count:]:
            inputs = tuple(index_of[id(o)] for o in e.inputs)
            if any(isinstance(i, int) for i in inputs):
                index_of[id(e)] = count + len(steps)
                steps.append((e, inputs))
            else:
                index_of[id(e)] = e
        return cls(tuple(steps), index_of[id(result)])

    def over(self, builder: Builder, operands: Iterable[Expr]) -> Expr:
        """Return the expression with ``operands`` filled in."""
        laid = list(operands)
        for e, inputs in self.steps:
            laid.append(
                builder.like(e, tuple([laid[i] if isinstance(i, int) else i for i in inputs]))
            )
        return laid[self.result] if isinstance(self.result, int) else self.result
