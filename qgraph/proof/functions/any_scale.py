"""Lower all quantizers that differ only in their scale from one template."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.constants import array_of
from qgraph.numerics import Array
from qgraph.ops.operator import operator_of
from qgraph.proof.functions.expression import CONSTANT, Builder, Expr
from qgraph.proof.functions.lowering import (
    Form,
    Forms,
    Shape,
    Template,
    lower_node,
    parameter_array,
)
from qgraph.reasons import Undecidable


class AnyScale:
    """Lowers nodes to expressions; nodes that differ only in their scale share one template.

    Args:
        builder: builds the expressions.
        forms: of nodes.
    """

    def __init__(self, builder: Builder, forms: Forms) -> None:
        self._builder = builder
        self._forms = forms
        self._templates: dict[Form | None, Template | None] = {}

    def lower(self, node: ir.Node, expressions: Mapping[ir.Value, Expr], shape: Shape) -> Expr:
        """Return the output of a node as an expression of its operands.

        Args:
            node: the node.
            expressions: expressions of its operands that are data.
            shape: shape of the data.

        Raises:
            Undecidable: see :func:`qgraph.proof.functions.lowering.lower`.
        """
        inputs = (value for value in node.inputs if value is not None)
        data = {value: expressions[value] for value in inputs if value in expressions}
        shared = self.shared(node, data, shape)
        if shared is None:
            return lower_node(node, data, shape, self._builder)
        template, operands = shared
        return template.over(self._builder, operands)

    def shared(
        self, node: ir.Node, data: Mapping[ir.Value, Expr], shape: Shape
    ) -> tuple[Template, list[Expr]] | None:
        """Return the template of a node, and its operands: the data, and the scale.

        The definition is traced with a symbol instead of the scale, so the template cannot depend
        on its value. There is no template if the definition computes with parameters alone.

        Args:
            node: the node.
            data: expressions of its operands that are data.
            shape: shape of the data.
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
    is_again = sum(value is scale for value in node.inputs) > 1
    return (None, None) if scale is None or is_again else (scale, array_of(scale))
