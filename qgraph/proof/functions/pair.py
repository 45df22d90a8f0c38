"""Pairs of functions of one variable that are to be compared; quantizers with an open scale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.constants import array_of, constant_tensor
from qgraph.graph.edit import Region
from qgraph.numerics import Array, Float32
from qgraph.numerics.values import OpenScale
from qgraph.ops.operator import operator_of
from qgraph.proof.functions.expression import (
    CONSTANT,
    TABLE,
    Builder,
    Expr,
    in_order,
    known,
    text,
)
from qgraph.proof.functions.lowering import (
    Constants,
    Form,
    Forms,
    Shape,
    Template,
    lower_node,
    parameter_array,
)
from qgraph.reasons import Undecidable
from qgraph.records import dataclass

Key: TypeAlias = tuple[object, ...]

SCALE = "scale"
"""Operator of an expression that stands for a scalar constant which is not known yet."""

CONSTANTS = frozenset({CONSTANT, SCALE})


def open_scale() -> Expr:
    """Return an expression for a float32 number that is filled in later."""
    return Expr(SCALE)


@dataclass(frozen=True, eq=False)
class FunctionPair:
    """Two functions of one variable to compare, by one builder, so that common parts are
    recognised.

    ``shape`` is that of the variable, None for unknown dimensions; None if the rank is unknown.
    """

    reference: Expr
    candidate: Expr
    shape: Shape | None = None

    @property
    def functions(self) -> tuple[Expr, Expr]:
        """Both functions."""
        return self.reference, self.candidate

    @cached_property
    def is_same(self) -> bool:
        """Whether both functions are one expression."""
        return self.reference is self.candidate

    @cached_property
    def outline(self) -> tuple[Expr, Expr]:
        """Both functions, or functions of this form."""
        return self.functions

    @cached_property
    def order(self) -> list[Expr]:
        """All expressions in the outline, operands first."""
        return in_order(self.outline)

    @cached_property
    def form(self) -> Key | None:
        """A key shared by pairs that can be decided together; None for a pair decided alone.

        Pairs of the same form have the same operators in the same places, and differ only in the
        values of scalar constants.
        """
        return form(self.functions, self.order)

    @property
    def constants(self) -> list[Array]:
        """The constants of both functions, in the order of those in the outline."""
        return [known(e) for e in self.order if e.op == CONSTANT]

    @cached_property
    def key(self) -> Key:
        """A key that is equal for equal pairs only."""
        if self.form is None:
            return text(self.functions), self.shape
        return self.form, b"".join([each.tobytes() for each in self.constants]), self.shape


def form(pair: Sequence[Expr], order: Sequence[Expr]) -> Key | None:
    """Return the form of two expressions; see :attr:`FunctionPair.form`."""
    position = {id(e): i for i, e in enumerate(order)}
    lines: list[Any] = []
    for e in order:
        if e.op == TABLE or e.shape != ():
            return None
        op = CONSTANT if e.op == SCALE else e.op
        lines.append((op, e.dtype, e.attributes, tuple([position[id(o)] for o in e.inputs])))
    return (*lines, *(position[id(root)] for root in pair))


class OpenPair(FunctionPair):
    """Two functions that contain scalar constants which are not known yet: a scale, and products.

    One builder builds both, and the functions of a known scale. ``numbers`` are the open numbers,
    by the expressions that stand for them.
    """

    _builder: Builder
    _numbers: Sequence[tuple[Expr, OpenScale]]
    _templates: list[Template]

    def __init__(
        self,
        functions: tuple[Expr, Expr],
        numbers: Sequence[tuple[Expr, OpenScale]],
        shape: Shape | None,
        builder: Builder,
    ) -> None:
        super().__init__(*functions, shape)
        operands = [builder.input, *(symbol for symbol, _ in numbers)]
        templates = [Template.of(each, operands) for each in functions]
        vars(self).update(_builder=builder, _numbers=numbers, _templates=templates)

    @property
    def stays_open(self) -> bool:
        """Whether each operation depends on the variable; none is undefined at a scale then."""
        fixed = (SCALE, CONSTANT, TABLE)
        return all(any(o.op not in fixed for o in e.inputs) for e in self.order if e.inputs)

    def at(self, scale: Float32) -> FunctionPair:
        """Return the pair of functions with a scale."""
        return _ScaledPair(self, scale)

    def numbers(self, scale: Float32) -> dict[int, Array]:
        """Return the numbers for a scale, by the identities of the expressions for them."""
        return {id(symbol): number.at(scale) for symbol, number in self._numbers}

    def filled(self, scale: Float32) -> tuple[Expr, Expr]:
        """Return both functions with a scale."""
        known = map(self._builder.constant, self.numbers(scale).values())
        operands = [self._builder.input, *known]
        reference, candidate = (each.over(self._builder, operands) for each in self._templates)
        return reference, candidate


class _ScaledPair(FunctionPair):
    """A pair of functions with a known scale, which are built only if they are needed."""

    _open: OpenPair
    _scale: Float32

    def __init__(self, pair: OpenPair, scale: Float32) -> None:
        vars(self).update(_open=pair, _scale=scale, shape=pair.shape, form=pair.form)
        vars(self).update(order=pair.order, outline=pair.functions, is_same=pair.is_same)

    @cached_property
    def functions(self) -> tuple[Expr, Expr]:
        return self._open.filled(self._scale)

    @property
    def reference(self) -> Expr:
        return self.functions[0]

    @property
    def candidate(self) -> Expr:
        return self.functions[1]

    @property
    def constants(self) -> list[Array]:
        numbers = self._open.numbers(self._scale)
        leaves = (e for e in self.order if e.op in CONSTANTS)
        return [numbers[id(e)] if e.op == SCALE else known(e) for e in leaves]


class AnyScale:
    """Lowers nodes to expressions; nodes that differ only in their scale share one template."""

    def __init__(self, builder: Builder, forms: Forms) -> None:
        self._builder = builder
        self._forms = forms
        self._templates: dict[Form | None, Template | None] = {}

    def lower(
        self,
        node: ir.Node,
        expressions: Mapping[ir.Value, Expr],
        shape: Shape,
        constants: Constants = array_of,
    ) -> Expr:
        """Return the output of a node over operands that are data, as :func:`lower_node` does."""
        inputs = (value for value in node.inputs if value is not None)
        data = {value: expressions[value] for value in inputs if value in expressions}
        shared = self.shared(node, data, shape)
        if shared is None:
            return lower_node(node, data, shape, self._builder, constants)
        template, operands = shared
        return template.over(self._builder, operands)

    def shared(
        self, node: ir.Node, data: Mapping[ir.Value, Expr], shape: Shape
    ) -> tuple[Template, list[Expr]] | None:
        """Return the template of a node, and its operands: the data, and the scale.

        The definition is traced with a symbol instead of the scale, so the template cannot depend
        on its value. There is no template if the definition computes with parameters alone.
        """
        operands = list(dict.fromkeys(data.values()))
        scale, array = scale_of(node)
        if scale is None or array is None or scale in data or len(operands) != 1:
            return None
        number = self._builder.constant(parameter_array(node, scale, shape))
        (operand,) = operands
        place = operand.dtype, operand.shape, operand.op == CONSTANT
        mark = "scale", array.dtype.str, array.shape, number.shape
        form = self._forms.of(node, {**dict.fromkeys(data, place), scale: mark})
        key = None if form is None else (*form, shape)
        if key not in self._templates:
            symbol = Expr("scale", dtype=number.dtype, shape=number.shape)
            template = None
            if key is not None and operand.op != CONSTANT:
                with suppress(Undecidable, OperatorError, ValueError):
                    traced = lower_node(node, {**data, scale: symbol}, shape, self._builder)
                    template = Template.of(traced, [operand, symbol])
            is_open = template is not None and all(
                any(e is not symbol and e.op != CONSTANT for e in step.inputs)
                for step, _ in template.steps
            )
            self._templates[key] = template if is_open else None
        template = self._templates[key]
        return None if template is None else (template, [operand, number])


def scale_of(node: ir.Node) -> tuple[ir.Value | None, Array | None]:
    """Return the scale of a quantizer and its array, if the scale is a constant operand."""
    operator = operator_of(node)
    if operator is None or "scale" not in operator.schema.inputs:
        return None, None
    scale = operator.schema.values(node)[operator.schema.inputs.index("scale")]
    is_again = node.inputs.count(scale) > 1
    return (None, None) if scale is None or is_again else (scale, array_of(scale))


def scales_of(region: Region) -> dict[ir.Value, Array | None]:
    """Return the scales of the quantizers in a region, with their arrays if they are constant."""
    found = (scale_of(node) for node in region.nodes)
    return {value: array for value, array in found if value is not None}


def single_scale(nodes: Iterable[ir.Node]) -> tuple[Float32 | None, dict[ir.Value, object]]:
    """Return the one float32 number that all scales of nodes are, and keys that leave it open.

    There is none if nodes have other scales, or 1, with which operations are left out.
    """
    scale: Any = None
    marks: dict[ir.Value, object] = {}
    for value, array in map(scale_of, nodes):
        if value is None:
            continue
        if array is None or array.dtype != np.float32 or array.shape or array == 1:
            return None, {}
        if scale is not None and scale.tobytes() != array.tobytes():
            return None, {}
        scale, marks[value] = array, ("scale", constant_tensor(value) is not None)
    return scale, marks
