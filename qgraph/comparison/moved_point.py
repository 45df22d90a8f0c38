"""A rounding with moved codes, treated as a rounding of moved data.

One model moves elements before rounding, and the other after. Codes are compared and fed after the
movement in both models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qgraph.comparison.cut_model import CutModel, QuantizedPoint, limits_of
from qgraph.numerics import Array, Float64
from qgraph.ops.dispatch import kernel_for
from qgraph.proof.bounds.combination import Atom, Combination
from qgraph.proof.bounds.evaluate import Evaluation
from qgraph.proof.bounds.quantity import Quantity
from qgraph.proof.bounds.roundings import RoundedData
from qgraph.proof.bounds.rule import rule_of
from qgraph.proof.rules import movements
from qgraph.reasons import NOT_COMPUTED, Undecidable

_MOVING = frozenset(
    {movements.reshape, movements.transpose, movements.selection, movements.resize}
    | {movements.split, movements.pad}
)


@dataclass(eq=False)
class MovedPoint(QuantizedPoint):
    """A rounding in one model, and the values with moved codes, in order."""

    own: QuantizedPoint
    moves: list[ir.Value]
    evaluation: Evaluation

    def meant(self, x: Float64) -> Float64:
        """Return the moved ideal numbers before rounding."""
        return self._moved(self.own.meant(x))

    def executed(self, x: Array) -> tuple[Array, Float64 | None]:
        """Return the moved executed codes, and the moved numbers before rounding."""
        codes, before = self.own.executed(x)
        moved = self._moved(codes.astype(np.float64)).astype(codes.dtype)
        return moved, None if before is None else self._moved(before.astype(np.float64))

    def feed(self, codes: Array) -> Array:
        """Return the value to feed for moved codes."""
        factor, offset = self.line
        dtype = None if self.cut.dtype is None else self.cut.dtype.numpy()
        return np.asarray(np.asarray(codes, np.float64) * factor + offset).astype(dtype)

    def _moved(self, array: Float64) -> Float64:
        for value in self.moves:
            node = value.producer()
            if node is None:
                raise AssertionError("moved elements are results")
            constants = [self.evaluation.executed(operand) for operand in node.inputs[1:]]
            results = kernel_for(node, self.evaluation.imports)(array, *constants)
            array = np.asarray(results[value.index() or 0], np.float64)
        return array


def moved_point(
    side: CutModel, rounding: RoundedData, codes: Combination, delta: Float64
) -> QuantizedPoint:
    """Return a rounding of moved data, and cut the model at its moved codes.

    ``codes`` are the moved codes of the reference, ``delta`` is the difference of the codes of the
    model. Raises Undecidable if several values contain the codes.
    """
    own = rounding.origin
    ((_, atom),) = codes.terms
    ends = _ends(side.evaluation, atom)
    if own is None or len(ends) != 1:
        reason = "its codes are moved in several places, or are a part of others in one model"
        raise Undecidable(NOT_COMPUTED(reason))
    ((end, factor, offset),) = ends
    moves = _moves(end, own.event.node)
    node = end.producer()
    if node is None or not moves:
        raise Undecidable(NOT_COMPUTED("its codes are moved by more than one operand"))
    point = side.points.get(own.event.node) or side.uncut_point(own)
    line = factor, np.asarray(offset - factor * delta)
    side.points[node] = moved = MovedPoint(
        node,
        point.before,
        end,
        point.is_coded,
        limits_of(rounding),
        rounding,
        point.offset,
        line,
        point.definitions,
        point,
        moves,
        side.evaluation,
    )
    return moved


def _ends(side: Evaluation, atom: Atom) -> list[tuple[ir.Value, Float64, Float64]]:
    """Return the first values that contain codes, with their factors and offsets."""

    def held(value: ir.Value | None) -> tuple[Float64, Float64] | None:
        quantity = None if value is None else side.values.get(value)
        if not isinstance(quantity, Quantity) or [a for _, a in quantity.meant.terms] != [atom]:
            return None
        return quantity.meant.terms[0][0], quantity.meant.offset

    ends = []
    for value in side.values:
        line, node = held(value), value.producer()
        if line is not None and node is not None and not any(map(held, node.inputs)):
            ends.append((value, *line))
    return ends


def _moves(end: ir.Value, rounds: ir.Node) -> list[ir.Value]:
    """Return the chain of moved values from a rounding to a value; empty if there is none."""
    moves: list[ir.Value] = []
    value: ir.Value | None = end
    while value is not None and (node := value.producer()) is not rounds:
        if node is None:
            return []
        if rule_of(node) in _MOVING:
            moves.insert(0, value)
        value = node.inputs[0] if node.inputs else None
    return [] if value is None else moves
