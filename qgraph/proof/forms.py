"""Which nodes are lowered to the same expressions, so that one of them is lowered for all.

Models hold many nodes of few forms: the same operator with the same attributes and parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from qgraph.graph.constants import constant_tensor
from qgraph.graph.folding import array_of
from qgraph.proof.expression import Builder, Expr

Form: TypeAlias = tuple[object, ...]
"""Equal for nodes that compute the same from the same operands."""

_LARGEST = 1 << 12
"""Bytes up to which constants are compared by what they hold; others by which value they are."""

_PLAIN = frozenset(
    {
        ir.AttributeType.INT,
        ir.AttributeType.INTS,
        ir.AttributeType.FLOAT,
        ir.AttributeType.FLOATS,
        ir.AttributeType.STRING,
        ir.AttributeType.STRINGS,
    }
)


class Forms:
    """Tells the forms of nodes; while it is in use, no constant may change."""

    def __init__(self) -> None:
        self._constants: dict[ir.Value, object] = {}

    def of(self, node: ir.Node, operands: Mapping[ir.Value, object]) -> Form | None:
        """Return the form of a node of one output; None for one that is like no other.

        Args:
            node: the node.
            operands: for each input that is not a constant what it is, in a way that can be
                compared.
        """
        attributes = []
        for name, attribute in node.attributes.items():
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
        kind = node.domain, node.op_type, node.overload
        return (*kind, tuple(attributes), tuple(inputs), node.outputs[0].dtype)

    def of_region(
        self, nodes: Iterable[ir.Node], x: ir.Value, y: ir.Value
    ) -> tuple[object, ...] | None:
        """Return what regions share that compute the same; None for one that is like no other."""
        operands: dict[ir.Value, object] = {x: -1}
        forms: list[Form] = []
        for place, node in enumerate(nodes):
            form = self.of(node, operands)
            if form is None:
                return None
            forms.append(form)
            operands[node.outputs[0]] = place
        return (*forms, operands.get(y))

    def _constant(self, value: ir.Value) -> object:
        found = self._constants.get(value)
        if found is None:
            array = array_of(value)
            found = value
            if array is not None and array.nbytes <= _LARGEST:
                # Some operators ask whether a parameter is a constant itself or made of one.
                direct = constant_tensor(value) is not None
                found = str(array.dtype), array.shape, array.tobytes(), direct
            self._constants[value] = found
        return found


@dataclass(frozen=True)
class Template:
    """An expression over others, to be made again over other ones of the same types and shapes."""

    steps: tuple[tuple[Expr, tuple[int | Expr, ...]], ...]
    result: int | Expr

    @classmethod
    def of(cls, result: Expr, operands: Iterable[Expr]) -> Template:
        """Return ``result`` with ``operands``, in this order, left open."""
        place: dict[int, int | Expr] = {id(operand): i for i, operand in enumerate(operands)}
        count = len(place)
        steps: list[tuple[Expr, tuple[int | Expr, ...]]] = []
        stack = [result]
        while stack:
            e = stack[-1]
            if id(e) not in place:
                pending = [o for o in e.inputs if id(o) not in place]
                if pending:
                    stack += reversed(pending)
                    continue
                inputs = tuple(place[id(o)] for o in e.inputs)
                if any(isinstance(i, int) for i in inputs):
                    place[id(e)] = count + len(steps)
                    steps.append((e, inputs))
                else:
                    place[id(e)] = e
            stack.pop()
        return cls(tuple(steps), place[id(result)])

    def over(self, builder: Builder, operands: Iterable[Expr]) -> Expr:
        """Return the expression over ``operands``."""
        made = list(operands)
        for e, inputs in self.steps:
            made.append(
                builder.like(e, tuple([made[i] if isinstance(i, int) else i for i in inputs]))
            )
        return made[self.result] if isinstance(self.result, int) else self.result
