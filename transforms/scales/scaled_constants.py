"""Constants of operators, multiplied: what a factor that moves through a graph leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.folding import constant_expression
from qgraph.transforms.ranges.grids import carry_over

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


class Stuck(Exception):  # noqa: N818 - a finding, not a fault
    """A factor cannot be moved on; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class Scaling:
    """Constants to replace so that a value is multiplied by a factor.

    Attributes:
        constants: for each node and place among its inputs, what the constant becomes.
        absorbers: the nodes that take the factor in.
        exact: whether each constant is the product without rounding, by powers of two.
    """

    constants: dict[ir.Node, dict[int, Float32]] = field(default_factory=dict)
    absorbers: list[ir.Node] = field(default_factory=list)
    exact: bool = True

    def scale(self, node: ir.Node, place: int, factor: Float64, *, grows: bool = False) -> None:
        """Note that the constant input ``place`` of a node is to be multiplied.

        Args:
            node: whose constant it is.
            place: among its inputs.
            factor: to multiply with.
            grows: whether the constant may be broadcast to the shape of the factor.

        Raises:
            Stuck: it is not constant, is no float32, leaves the range of float32, or would grow.
        """
        value = node.inputs[place]
        known = constant_expression(value)
        if value is None or known is None:
            raise Stuck(f"input {place} of {title(node)} is only known at run time")
        if known.dtype != np.float32:
            raise Stuck(f"input {place} of {title(node)} is {known.dtype}, not float32")
        product = known.astype(np.float64) * factor
        if product.shape != known.shape and not grows:
            raise Stuck(f"the scales do not fit to input {place} of {title(node)}")
        with np.errstate(over="ignore", under="ignore"):
            scaled = product.astype(np.float32)
        if (np.isfinite(product) & ~np.isfinite(scaled)).any():
            raise Stuck(f"a constant of {title(node)} would leave the range of float32")
        self.exact &= bool(np.array_equal(scaled, product, equal_nan=True)) and is_power(factor)
        self.constants.setdefault(node, {})[place] = scaled

    def join(self, other: Scaling) -> None:
        """Take over what another one notes."""
        self.constants.update(other.constants)
        self.absorbers += other.absorbers
        self.exact &= other.exact

    def settle(self, editor: Editor) -> None:
        """Put the new constants into the graph; nodes keep their names."""
        for node, new in self.constants.items():
            draft = _with_constants(editor, node, new)
            draft.commit()
            carry_over(node, draft.nodes[-1])


def is_power(factor: Float64) -> bool:
    """Return whether all factors are powers of two."""
    return bool((np.frexp(factor)[0] == 0.5).all())


def title(node: ir.Node) -> str:
    """Return operator and name for messages."""
    return f"{node.op_type} {node.name or node.outputs[0].name!r}"


def _with_constants(editor: Editor, node: ir.Node, new: dict[int, Float32]) -> Draft:
    """Return a draft of a node with some constants replaced."""
    data = next(
        value for place, value in enumerate(node.inputs) if value is not None and place not in new
    )
    draft = editor.draft(Region(data, node.outputs[0], (node,)))
    operands: list[Operand | None] = [
        draft.constant(new[place], "scaled")
        if place in new
        else draft.x
        if value is data
        else value
        for place, value in enumerate(node.inputs)
    ]
    attributes = dict(node.attributes)
    return draft.giving(draft.node(node.op_type, operands, attributes, domain=node.domain))
