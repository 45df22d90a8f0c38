"""Decide regions: pairs of subgraphs that each compute one value from a pair of equal values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import ExecutionError, OperatorError, UnsupportedError
from qgraph.exactness import Exactness
from qgraph.graph.interface import Pair
from qgraph.graph.sizes import fixed_sizes
from qgraph.graph.slices import between
from qgraph.numerics import Array
from qgraph.numerics.values import is_nan
from qgraph.ops.dispatch import compute
from qgraph.ops.known_values import KnownValues, meets_both_zeros
from qgraph.proof.functions.decide import (
    PairOutcome,
    check_shapes,
    decide_pairs,
    judge,
    not_counted,
    undecided,
)
from qgraph.proof.functions.divisions import Plateaus, plateaus
from qgraph.proof.functions.enumeration import (
    NARROW_BITS,
    NodeSegment,
    enumerate_inputs,
    enumerate_values,
    free_axis,
)
from qgraph.proof.functions.expression import Builder, Expr, text, undefined
from qgraph.proof.functions.lowering import Forms, Shape, lower
from qgraph.proof.functions.pair import AnyScale, FunctionPair, Key
from qgraph.proof.functions.samples import refuted
from qgraph.proof.matching.match import Matching
from qgraph.proof.matching.operators import check_parameters
from qgraph.reasons import (
    DO_NOT_FIT,
    LEFT_OPEN,
    NOT_COMPUTED,
    NOT_KNOWN,
    TYPE_NOT_PROVED,
    Undecidable,
)
from qgraph.records import dataclass

_BOXES = 1 << 20
_PARAMETERS_ALONG_AXIS = frozenset({"QuantizeLinear", "DequantizeLinear"})


class Decided(dict[Key, PairOutcome]):
    """Cache of outcomes, and of steps of quantizers.

    Attributes:
        at_least: the level to reach, if inputs that differ are not counted.
        hides_proofs: whether a proof may have failed only because inputs were not counted.
        not_counted: outcomes that are reused only while inputs are not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.at_least: Exactness | None = None
        self.hides_proofs = False
        self.not_counted: dict[Key, PairOutcome] = {}
        self._steps: dict[str, Plateaus | Undecidable] = {}

    def steps(self, function: Expr) -> Plateaus:
        """Return the steps of a function; raise Undecidable if it has none, or too many."""
        key = text([function])
        if key not in self._steps:
            try:
                self._steps[key] = plateaus(function, max_boxes=_BOXES)
            except Undecidable as reason:
                self._steps[key] = reason
        found = self._steps[key]
        if isinstance(found, Undecidable):
            raise found
        return found


@dataclass(frozen=True, eq=False)
class Cut:
    """A region between an entry, a pair of equal values, and an exit, a pair to compare.

    The nodes are in topological order. ``shape`` is that of the variable, None if the rank is
    unknown.
    """

    entry: Pair
    exit: Pair
    reference_nodes: tuple[ir.Node, ...]
    candidate_nodes: tuple[ir.Node, ...]
    shape: Shape | None

    def segments(self, matching: Matching) -> tuple[NodeSegment, NodeSegment]:
        """Return the reference side and the candidate side."""
        (a, b), (x, y) = self.entry, self.exit
        return (
            NodeSegment(self.reference_nodes, a, x, matching.reference.known.array),
            NodeSegment(self.candidate_nodes, b, y, matching.candidate.known.array),
        )


def cut(matching: Matching, exit_: Pair, entry: Pair) -> Cut:
    """Return the region between two pairs."""
    sides = matching.reference, matching.candidate
    ours, theirs = (
        tuple(between(value, [start], side.operands) or ())
        for value, start, side in zip(exit_, entry, sides, strict=True)
    )
    return Cut(entry, exit_, ours, theirs, _shape(entry))


class RegionLowering:
    """Lowers the regions of one matching; nodes on equal operands are lowered once."""

    def __init__(self, matching: Matching) -> None:
        self.matching = matching
        self._builder = Builder()
        self._scales = AnyScale(self._builder, Forms())
        self._lowered: dict[tuple[object, ...], Expr] = {}
        self._checked: set[ir.Node] = set()

    def pair(self, region: Cut) -> FunctionPair:
        """Return both functions of a region of float32; raise Undecidable if it has none."""
        shape = region.shape or ()
        if 0 in shape:
            raise Undecidable(DO_NOT_FIT("its data has no elements"))
        reference, candidate = (self._side(s, region) for s in region.segments(self.matching))
        if region.shape is None:
            check_shapes(reference.shape, candidate.shape, None, exactly=True)
        kinds = [
            expression.dtype if value.dtype is None else value.dtype.name
            for expression, value in zip((reference, candidate), region.exit, strict=True)
        ]
        if kinds[0] != kinds[1]:
            raise Undecidable(
                DO_NOT_FIT(f"the reference gives {kinds[0]}, the candidate {kinds[1]}")
            )
        return FunctionPair(reference, candidate, region.shape)

    def _side(self, segment: NodeSegment, region: Cut) -> Expr:
        nodes, x, y, constants = segment
        _check_ranks(segment, region)
        try:
            for node in nodes:
                if node not in self._checked:
                    check_parameters(node, constants)
                    self._checked.add(node)
        except OperatorError as error:
            raise Undecidable(NOT_COMPUTED(str(error))) from error

        def one(node: ir.Node, expressions: Mapping[ir.Value, Expr], shape: Shape) -> Expr:
            operands = [None if v is None else expressions.get(v) for v in node.inputs]
            key = node, shape, *map(id, operands)  # the builder keeps the operands alive
            if key not in self._lowered:
                self._lowered[key] = self._scales.lower(node, expressions, shape, constants)
            return self._lowered[key]

        shape = region.shape or ()
        return lower(nodes, x, y, shape, self._builder, constants=constants, one=one)


def decide_cuts(
    matching: Matching,
    cuts: Sequence[Cut],
    decided: Decided | None = None,
    lowering: RegionLowering | None = None,
) -> list[PairOutcome]:
    """Return the outcome of each region. Regions of the same form are decided together.

    ``decided`` are outcomes of earlier calls; new ones are added. ``lowering`` is that of earlier
    calls for the same matching. Raises UnsupportedError if this thread does not follow IEEE 754.
    """
    lowering = lowering or RegionLowering(matching)
    pairs = [_lower_or_enumerate(matching, region, lowering) for region in cuts]
    decided = Decided() if decided is None else decided
    if decided.at_least is None:
        return decide_pairs(pairs, decided)
    pairs = _without_refuted(pairs, decided.not_counted)
    outcomes = decide_pairs(pairs, decided, at_least=decided.at_least)
    decided.not_counted.update(
        (pair.key, outcome)
        for pair, outcome in zip(pairs, outcomes, strict=True)
        if isinstance(pair, FunctionPair) and outcome.is_refuted
    )
    return outcomes


def _without_refuted(
    pairs: Sequence[FunctionPair | PairOutcome], known: Mapping[Key, PairOutcome]
) -> list[FunctionPair | PairOutcome]:
    """Return the pairs, with an outcome for functions that differ.

    A few inputs, or an earlier call, show that they do.
    """
    differs = iter(refuted([pair for pair in pairs if isinstance(pair, FunctionPair)]))
    left: list[FunctionPair | PairOutcome] = []
    for pair in pairs:
        if isinstance(pair, PairOutcome):
            left.append(pair)
        else:
            left.append(not_counted(pair) if next(differs) else known.get(pair.key, pair))
    return left


def _lower_or_enumerate(
    matching: Matching, region: Cut, lowering: RegionLowering
) -> FunctionPair | PairOutcome:
    try:
        dtype = element_type(region)
        if dtype is ir.DataType.FLOAT:
            return lowering.pair(region)
        return _enumerate(matching, region, dtype)
    except Undecidable as reason:
        return undecided(reason.reason)


def count_all(outcome: PairOutcome) -> PairOutcome:
    """Try all inputs of a region whose comparison was stopped, and return the outcome.

    Raises UnsupportedError if this thread does not follow IEEE 754.
    """
    pair = outcome.pair
    if pair is None:
        return outcome
    try:
        finding = enumerate_inputs(*pair.functions, input_shape=pair.shape)
    except Undecidable as end:
        reason = f"{outcome.verdict.reason}; not all inputs could be tried: {end.reason}"
        return outcome.restated(reason)
    return judge(pair, finding)


def _shape(entry: Pair) -> Shape | None:
    sizes = [known for value in entry if (known := fixed_sizes(value)) is not None]
    if not sizes:
        return None
    if len(sizes) == 2 and len(sizes[0]) == len(sizes[1]):
        return tuple(a if a is not None else b for a, b in zip(*sizes, strict=True))
    return sizes[0]


def element_type(region: Cut) -> ir.DataType:
    """Return the type of the variable; raise Undecidable if it is unknown or unsupported."""
    shapes = [value.shape.dims for value in region.entry if value.shape is not None]
    sizes = zip(*shapes, strict=False) if len(shapes) == 2 else ()
    apart = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
    if apart or len({len(dims) for dims in shapes}) > 1:
        names = " and ".join(repr(value.name) for value in region.entry)
        raise Undecidable(DO_NOT_FIT(f"the shapes of {names} differ"))
    stated = {value.dtype for value in region.entry} - {None}
    (dtype,) = stated if len(stated) == 1 else (None,)
    if dtype is None:
        raise Undecidable(NOT_KNOWN("the type of its data is not known"))
    has_values = dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED)
    if dtype is not ir.DataType.FLOAT and not (has_values and dtype.bitwidth <= NARROW_BITS):
        raise Undecidable(
            TYPE_NOT_PROVED(f"its data is {dtype.name}; types of that size are not proved")
        )
    return dtype


def _check_ranks(segment: NodeSegment, region: Cut) -> None:
    """Check that no parameter has more dimensions than the variable, which would shift its axes."""
    nodes, *_, constants = segment
    if any(node.op_type in _PARAMETERS_ALONG_AXIS for node in nodes):
        values = (value for node in nodes for value in node.inputs if value is not None)
        arrays = [array for value in values if (array := constants(value)) is not None]
        if any(array.ndim > max(len(region.shape or ()), 1) for array in arrays):
            raise Undecidable(DO_NOT_FIT("a parameter has more dimensions than the data"))


def _enumerate(matching: Matching, region: Cut, dtype: ir.DataType) -> PairOutcome:
    """Compare both sides on all values of a type of up to 16 bits, in every channel."""
    segments = region.segments(matching)
    sizes, axis = free_axis(segments, region.shape)
    ties: list[str] = []
    runs = [
        lambda x, side=side, part=part: run_nodes(side.known, part.nodes, {part.x: x}, part.y, ties)
        for side, part in zip((matching.reference, matching.candidate), segments, strict=True)
    ]
    outcome = enumerate_values(dtype, runs, sizes, axis)
    if ties and not (outcome.verdict.differing_inputs or outcome.verdict.zero_sign_inputs):
        raise Undecidable(
            LEFT_OPEN(f"ONNX does not define whether {ties[0]} of -0 and +0 is -0 or +0")
        )
    return outcome


def run_nodes(
    known: KnownValues,
    nodes: Sequence[ir.Node],
    feeds: Mapping[ir.Value, Array],
    y: ir.Value,
    ties: list[str] | None = None,
) -> Array:
    """Return the array of ``y`` after running ``nodes`` with the kernels.

    ``feeds`` are the values from which the nodes start; constants are added. To ``ties``, operators
    are added that return one of -0 and +0. Raises Undecidable if a node cannot be computed.
    """
    values: dict[ir.Value, Any] = dict(feeds)
    with np.errstate(invalid="ignore"):
        numbers = ~np.logical_or.reduce([is_nan(array) for array in feeds.values()])
    try:
        with np.errstate(all="ignore"):
            for node in nodes:
                for value in node.inputs:
                    if value is not None and value not in values:
                        values[value] = known.array(value)
                _check_cast(node, values, numbers)
                if ties is not None and meets_both_zeros(node, values):
                    ties.append(node.op_type)
                compute(node, known.imports, values)
    except (ExecutionError, OperatorError, UnsupportedError) as error:
        raise Undecidable(NOT_COMPUTED(f"it cannot be computed: {error}")) from error
    return np.asarray(values[y])


def _check_cast(node: ir.Node, known: Mapping[ir.Value, Any], numbers: Array) -> None:
    """Raise Undecidable if a Cast of floating-point data to integers exceeds their range.

    ``numbers`` is the mask of the elements for which the data of the region is not NaN.
    """
    if node.domain != "" or node.op_type != "Cast" or node.inputs[0] is None:
        return
    x = np.asarray(known[node.inputs[0]])
    to = ir.DataType(node.attributes.get_int("to", 0))
    if not to.is_integer() or x.dtype.kind in "iub":
        return
    beyond = undefined("Cast", [x.astype(np.float32)], {"to": to.name})
    if x.size == numbers.size:
        beyond = beyond & numbers.reshape(x.shape)
    if beyond.any():
        at = float(x[beyond].reshape(-1)[0])
        raise Undecidable(LEFT_OPEN(f"ONNX does not define the cast of {at!r} to {to.name}"))
