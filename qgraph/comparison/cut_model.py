"""A model that is cut at its roundings, so that codes can be fed to its parts.

If one model moves elements before rounding, and the other after, codes are compared and fed after
the movement in both models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.comparison.divergence import excerpt, frontier, values_of
from qgraph.comparison.ideal import Definitions, Kind, in_halves
from qgraph.execution.executor import Executor
from qgraph.execution.prepare import prepare
from qgraph.graph.scopes import unused
from qgraph.graph.slices import ancestors, sources
from qgraph.model import Model
from qgraph.numerics import Array, Float64
from qgraph.ops.dispatch import kernel_for
from qgraph.proof.bounds.combination import Atom, Combination
from qgraph.proof.bounds.evaluate import Evaluation
from qgraph.proof.bounds.quantity import Pending, Quantity
from qgraph.proof.bounds.roundings import SHIFTS, RoundedData, unlimited
from qgraph.proof.bounds.rule import rule_of
from qgraph.proof.rules import movements
from qgraph.reasons import NOT_COMPUTED, Undecidable
from qgraph.records import dataclass, fields

_STRAIGHT = 1e-9
"""Largest relative error of three points on a line."""


_INSIDE = {"Down": 0.5, "Up": -0.5}
"""Offset of a number near zero from its code, if thresholds are whole numbers."""


@dataclass(eq=False)
class QuantizedPoint:
    """A rounding of data in one model.

    Attributes:
        node: the node that rounds.
        before: the value before it, or its result if it is coded.
        cut: the value at which codes are fed.
        is_coded: whether only its codes are visible, as for integer kernels.
        limits: limits of the numbers before rounding, in steps.
        rounding: its bounds.
        offset: returned codes minus the whole numbers of the rounding.
        line: the rounded number is ``line[0] * x + line[1]``.
    """

    node: ir.Node
    before: ir.Value
    cut: ir.Value
    is_coded: bool
    limits: tuple[Float64, Float64]
    rounding: RoundedData
    offset: Float64
    line: tuple[Float64, Float64]
    definitions: Definitions

    @property
    def shows_codes(self) -> bool:
        """Whether data before the rounding or its codes are values of the model.

        They are not for the first of two roundings inside one operator.
        """
        values = self.definitions.evaluation.values
        return not self.is_coded or isinstance(values.get(self.before), Pending)

    def meant(self, x: Float64) -> Float64:
        """Return the ideal numbers before rounding, shifted so that the rounding is to nearest.

        If only codes are visible, ``x`` are the ideal numbers that are rounded to them, else ideal
        data.
        """
        return x if self.is_coded else self._shifted(self._before(x, np.float64))

    def executed(self, x: Array) -> tuple[Array, Float64 | None]:
        """Return the executed codes and numbers before rounding, shifted as by :meth:`meant`.

        If only codes are visible, ``x`` is the result of the node, else executed data.
        """
        if self.is_coded:
            return self._limited(np.asarray(x, np.float64) - self.offset), None
        before, event = self._before(x, np.float32), self.rounding.event
        codes = np.where(before >= 0, 1.0, -1.0) if event.kind == "Sign" else event.rounded(before)
        return self._limited(codes), self._shifted(before)

    def _before(self, x: Array, dtype: Kind) -> Float64:
        if self.rounding.event.kind == "Sign":
            return np.asarray(x, np.float64)
        return _before(self.node, x, self.definitions, dtype)

    def _shifted(self, before: Float64) -> Float64:
        shift = SHIFTS.get(self.rounding.event.kind, 0.0)
        return before + shift if shift else before

    def _limited(self, codes: Float64) -> Array:
        limited = np.clip(codes, *self.rounding.executed)
        far = np.max(np.abs(self.rounding.executed))
        if np.isnan(limited).any() or not np.isfinite(far):
            limited = np.nan_to_num(limited, copy=False)
            far = np.abs(limited).max(initial=0)
        return limited.astype(np.int32 if far < 2**31 else np.float64)

    def feed(self, codes: Array) -> Array:
        """Return the value to feed at the cut for given codes."""
        dtype = None if self.cut.dtype is None else self.cut.dtype.numpy()
        wanted = np.clip(np.asarray(codes, np.float64), *self.rounding.executed)
        if self.is_coded:
            return (wanted + self.offset).astype(dtype)
        name = self.rounding.event.kind
        factor, offset = self.line
        wanted = wanted - (SHIFTS.get(name, 0.0) + offset)
        if name in _INSIDE:
            wanted += _INSIDE[name] * np.sign(codes)
        wanted /= factor
        return wanted.astype(dtype)

    def tie_distance(self, before: Float64) -> Float64:
        """Return the distance of numbers from the nearest threshold; 0 if it is not known."""
        dtype = self.rounding.event.kind
        if dtype == "Sign":
            return np.abs(before)
        if dtype not in ("Round", *SHIFTS):
            return np.zeros_like(before)
        return np.abs(before - (np.floor(before) + 0.5))


@dataclass(eq=False)
class ModelPart:
    """The nodes to a wanted value from inputs and roundings, by the values that are fed."""

    model: CutModel
    wanted: ir.Value
    starts: dict[ir.Value, ir.Node]
    inputs: list[ir.Value]

    def __post_init__(self) -> None:
        self._executor: Executor | None = None
        self._nodes: list[ir.Node] | None = None

    def run(self, feeds: Mapping[str, Any], fed: Mapping[ir.Node, Array]) -> Array:
        """Return the executed value, from inputs by name and :meth:`QuantizedPoint.feed`."""
        values = self._known(feeds, fed)
        if self.wanted in values:
            return values[self.wanted]
        if self._executor is None:
            pairs = [(str(v.name), str(v.name)) for v in (*self.starts, *self.inputs)]
            name = str(self.wanted.name)
            part = excerpt(self.model.whole, pairs, (name, name), [])
            self._executor = prepare(part, self.model.backend, shares_memory=True)
        named = {str(value.name): x for value, x in values.items()}
        return np.asarray(self._executor.run(named)[str(self.wanted.name)])

    def ideal(
        self, feeds: Mapping[str, Any], fed: Mapping[ir.Node, Array], means: Callable[..., Array]
    ) -> Array:
        """Return the value in real arithmetic, as :func:`qgraph.comparison.ideal.ideal` does."""
        values = {value: np.asarray(x, np.float64) for value, x in self._known(feeds, fed).items()}
        if self.wanted in values:
            return values[self.wanted]
        return means(self.nodes, values, self.wanted, self.model.definitions)

    @property
    def nodes(self) -> list[ir.Node]:
        """The nodes in topological order."""
        if self._nodes is None:
            ends = {*self.starts, *self.inputs}
            reached = set(ancestors([self.wanted], lambda v: () if v in ends else sources(v)))
            nodes = [n for n in self.model.whole.ir.graph if not reached.isdisjoint(n.outputs)]
            self._nodes = [n for n in nodes if ends.isdisjoint(n.outputs)]
        return self._nodes

    def _known(
        self, feeds: Mapping[str, Any], fed: Mapping[ir.Node, Array]
    ) -> dict[ir.Value, Array]:
        values = {value: fed[node] for value, node in self.starts.items()}
        return values | {value: np.asarray(feeds[str(value.name)]) for value in self.inputs}


class CutModel:
    """A model whose roundings can be fed with codes; cuts are inserted into it."""

    def __init__(self, model: ir.Model, evaluation: Evaluation, backend: str) -> None:
        self.whole = Model(model)
        self.evaluation = evaluation
        self.definitions = Definitions(evaluation)
        self.backend = backend
        self.points: dict[ir.Node, QuantizedPoint] = {}
        self._places: dict[ir.Value, int] = {}
        self._names = {str(value.name) for value in values_of(self.whole.ir.graph)}

    def point(self, rounding: RoundedData) -> QuantizedPoint:
        """Return a rounding, and cut the model at it."""
        node = rounding.event.node
        if node not in self.points:
            self.points[node] = self.uncut_point(rounding)
        return self.points[node]

    def uncut_point(self, rounding: RoundedData) -> QuantizedPoint:
        """Return a rounding whose codes are not fed."""
        node, output = rounding.event.node, rounding.event.node.outputs[0]
        limits = limits_of(rounding)
        value = self.evaluation.values.get(output)
        offset = value.offset if isinstance(value, Pending) else np.zeros(())
        line, before = self._line(rounding), node.inputs[0]
        if line is None or before is None:
            ends, is_coded = (output, output), True
        else:
            ends, is_coded = (before, self._inserted(node, before)), False
        line = line or (np.ones(()), np.zeros(()))
        return QuantizedPoint(
            node, *ends, is_coded, limits, rounding, offset, line, self.definitions
        )

    def _inserted(self, node: ir.Node, before: ir.Value) -> ir.Value:
        name = unused(f"{node.outputs[0].name}_cut", self._names)
        self._names.add(name)
        cut = ir.Value(name=name, type=before.type, shape=before.shape)
        self.whole.ir.graph.insert_before(node, ir.Node("", "Identity", [before], outputs=[cut]))
        node.replace_input_with(0, cut)
        self._places = {}
        return cut

    def _line(self, rounding: RoundedData) -> tuple[Float64, Float64] | None:
        """Return factor and offset of the rounded function of data; None if it is not linear.

        Also None in 16-bit floats, whose divisions runtimes round differently: only codes show.
        """
        node = rounding.event.node
        x = node.inputs[0]
        others = [v for v in node.inputs[1:] if v is not None]
        if x is None or in_halves(node):
            return None
        if any(self.evaluation.executed(value) is None for value in others):
            return None
        if rounding.event.kind == "Sign":
            return np.ones(()), np.zeros(())
        rank = 0 if x.shape is None else len(x.shape)
        try:
            points = [
                _before(
                    node,
                    np.full((1,) * rank, number),
                    self.definitions,
                    np.float64,
                    limits=False,
                )
                for number in (0.0, 1.0, 2.0)
            ]
        except Undecidable:
            return None
        factor = points[1] - points[0]
        ends = np.abs(points[2] - points[1] - factor), _STRAIGHT * np.abs(points[2])
        return (factor, points[0]) if (ends[0] <= ends[1]).all() and factor.all() else None

    def part(self, wanted: ir.Value, *, is_end: bool = False) -> ModelPart:
        """Return the part that computes a value, or is fed it if it is a cut and ``is_end``."""
        cuts = {point.cut: node for node, point in self.points.items()}
        is_known = wanted.is_graph_input() or (is_end and wanted in cuts)
        graph = self.whole.ir.graph
        self._places = self._places or {value: i for i, value in enumerate(values_of(graph))}
        inputs = [wanted] if is_known else frontier(graph, wanted, cuts, self._places)
        starts = {value: cuts[value] for value in inputs if value in cuts}
        return ModelPart(self, wanted, starts, [value for value in inputs if value not in cuts])


def limits_of(rounding: RoundedData) -> tuple[Float64, Float64]:
    """Return the limits of the numbers before rounding."""
    _, low, high = unlimited(rounding.event.before.meant)
    if rounding.event.kind == "Sign":
        return low, high
    shift = SHIFTS.get(rounding.event.kind, 0.0)
    return np.maximum(low + shift, rounding.low), np.minimum(high + shift, rounding.high)


def _before(
    node: ir.Node, x: Array, definitions: Definitions, dtype: Kind, *, limits: bool = True
) -> Float64:
    """Return the numbers that a node rounds, from its data."""
    value = node.inputs[0]
    if value is None:
        raise AssertionError("a quantizer has data")
    if node.domain == "" and node.op_type in ("Round", "Floor", "Ceil"):
        return np.asarray(x, np.float64)
    return np.asarray(definitions.before(node, value, x, dtype, limits=limits), np.float64)


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
    kept = {field.name: getattr(point, field.name) for field in fields(QuantizedPoint)}
    kept |= {"node": node, "cut": end, "limits": limits_of(rounding), "rounding": rounding}
    kept |= {"line": line, "own": point, "moves": moves, "evaluation": side.evaluation}
    side.points[node] = MovedPoint(**kept)
    return side.points[node]


def _ends(side: Evaluation, atom: Atom) -> list[tuple[ir.Value, Float64, Float64]]:
    """Return the first values that contain codes, with their factors and offsets."""

    def held(value: ir.Value | None) -> tuple[Float64, Float64] | None:
        quantity = None if value is None else side.values.get(value)
        if not isinstance(quantity, Quantity) or [a for _, a in quantity.meant.terms] != [atom]:
            return None
        return quantity.meant.terms[0][0], quantity.meant.offset

    ends: dict[ir.Value, tuple[Float64, Float64]] = {}
    after: set[ir.Value | None] = set()
    for value in side.values:
        line, node = held(value), value.producer()
        if node is None:
            continue
        if node.inputs and node.inputs[0] in after:  # such as equal codes, decoded again
            after.add(value)
        elif line is not None and not any(map(held, node.inputs)):
            ends[value] = line
            after.add(value)
    return [(value, *line) for value, line in ends.items()]


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
