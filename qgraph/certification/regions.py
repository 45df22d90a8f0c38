"""Deciding a region: two sets of nodes that compute a value each from one pair of equal values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.certification.certificate import Cases
from qgraph.certification.samples import sample
from qgraph.certification.zero_ties import meets_both_zeros
from qgraph.errors import ExecutionError, OperatorError, UnsupportedError
from qgraph.exactness import Exactness, Method, Witness
from qgraph.execution.executor import kernel_for
from qgraph.execution.plan import NodeStep
from qgraph.matching.elementwise import check_parameters, is_reshape
from qgraph.matching.known_values import KnownValues
from qgraph.matching.match import Matching, Pair, Side
from qgraph.matching.plain import Plain
from qgraph.numerics.values import compare_values, is_nan
from qgraph.proof.batch import decide_all
from qgraph.proof.cone import Shape, lower
from qgraph.proof.engine import check_shapes
from qgraph.proof.enumeration import enumerate_inputs
from qgraph.proof.expression import Builder, Expr, Undecidable, evaluate, text, undefined
from qgraph.proof.finding import Finding
from qgraph.proof.ladder import grade, largest_gap

Array = npt.NDArray[Any]

_NARROW_BITS = 16
"""Types of up to so many bits have few enough values to try all."""

_PARAMETERS_ALONG_AXIS = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True, eq=False)
class Cut:
    """A region between an entry and an exit on both sides.

    Attributes:
        entry: the pair of equal values; the variable.
        exit: the pair of values to compare.
        reference_nodes, candidate_nodes: what lies between, in the order of computation.
        shape: of the variable; None where not even the rank is known.
    """

    entry: Pair
    exit: Pair
    reference_nodes: tuple[ir.Node, ...]
    candidate_nodes: tuple[ir.Node, ...]
    shape: Shape | None


@dataclass(frozen=True)
class Outcome:
    """What was found about a cut.

    Attributes:
        rung: the highest rung that holds; None when undecided.
        method: how it was decided.
        finding: counts and stretches of inputs, where the engine decided.
        expressions: both sides as expressions, likewise.
        differing, zero_sign: numbers of inputs.
        witness, channel: an input that shows it.
        largest_steps: the largest difference in steps of the reference.
        nan_differs: whether NaN has other results.
        tells_zeros_apart: whether -0 and +0 have other results than one another, on either side.
        reason: why it is undecided.
        at_most: where nothing higher can hold, the rung that is left; bits where nothing is known.
        cases: of a region with two inputs, what each of them may be.
    """

    rung: Exactness | None
    method: Method
    finding: Finding | None = None
    expressions: tuple[Expr, Expr] | None = None
    differing: int = 0
    zero_sign: int = 0
    witness: Witness | None = None
    channel: int | None = None
    largest_steps: float | None = None
    nan_differs: bool = False
    tells_zeros_apart: bool = False
    reason: str | None = None
    at_most: Exactness = Exactness.BITS
    cases: tuple[Cases, ...] = ()

    @property
    def is_counted(self) -> bool:
        """Whether all inputs were compared; numbers of inputs are lower bounds otherwise."""
        return self.method is not Method.NONE


Decided: TypeAlias = dict[tuple[str, Shape | None], Outcome]
"""Outcomes by the text of both expressions and the shape of their variable."""


def undecided(reason: str) -> Outcome:
    """Return the outcome of a cut that cannot be decided."""
    return Outcome(None, Method.NONE, reason=reason)


def cut(matching: Matching, exit_: Pair, entry: Pair) -> Cut:
    """Return the region between two pairs."""
    sides = matching.reference, matching.candidate
    ours, theirs = (
        tuple(_between(value, start, side))
        for value, start, side in zip(exit_, entry, sides, strict=True)
    )
    return Cut(entry, exit_, ours, theirs, _shape(entry))


def decide_cuts(
    matching: Matching, cuts: Sequence[Cut], known: Decided | None = None
) -> list[Outcome]:
    """Return the outcomes of regions, those of one form decided together.

    Args:
        matching: of the two models.
        cuts: the regions.
        known: outcomes that need not be found again, by what both sides compute; new ones are
            entered.

    Raises:
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    known = {} if known is None else known
    builder = Builder()
    lowered: list[tuple[str, Shape | None] | Outcome] = []
    wanted: dict[tuple[str, Shape | None], tuple[Expr, Expr, Shape | None]] = {}
    for region in cuts:
        try:
            kind = _element_type(region)
            if kind is ir.DataType.FLOAT:
                pair = _lower(matching, region, builder)
                key = text(pair[:2]), pair[2]
                lowered.append(key)
                if key not in known:
                    wanted[key] = pair
            else:
                lowered.append(enumerate_cut((matching.reference, matching.candidate), region))
        except Undecidable as reason:
            lowered.append(undecided(reason.reason))
    for (key, pair), finding in zip(wanted.items(), decide_all(list(wanted.values())), strict=True):
        known[key] = _judge(pair[:2], finding)
    return [found if isinstance(found, Outcome) else known[found] for found in lowered]


def count_all(region: Cut, outcome: Outcome) -> Outcome:
    """Return what is found of a region whose comparison was given up, from all inputs one by one.

    Raises:
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    pair = outcome.expressions
    if pair is None:
        return outcome
    try:
        finding = enumerate_inputs(*pair, input_shape=region.shape)
    except Undecidable as end:
        reason = f"{outcome.reason}; not all inputs could be tried: {end.reason}"
        return replace(outcome, reason=reason)
    return _judge(pair, finding)


def _judge(pair: tuple[Expr, Expr], finding: Finding) -> Outcome:
    tells = _tell_zeros_apart(pair)
    if finding.undecided is not None:
        return _left_open(pair, finding, tells)
    rung = grade(finding, pair[0])
    method = Method.CONGRUENCE if pair[0] is pair[1] else Method.INTERVALS
    return Outcome(
        rung,
        Method.EXHAUSTIVE if finding.enumerated else method,
        finding,
        pair,
        finding.differing,
        finding.zero_sign,
        finding.witness,
        finding.witness_channel,
        largest_gap(finding, pair[0]),
        finding.nan_differs,
        tells,
        _told(finding) if finding.enumerated else None,
    )


def _left_open(pair: tuple[Expr, Expr], finding: Finding, tells: bool) -> Outcome:
    """Return what is known of two functions that were not compared on all inputs."""
    found = sample(finding, *pair)
    reason, rung = finding.undecided, None
    if found is not None and found.at_most is Exactness.DIFFERENT:
        rung = found.at_most
        reason = f"the inputs that differ are not counted, there are more: {finding.undecided}"
    return Outcome(
        rung,
        Method.NONE,
        finding,
        pair,
        differing=finding.differing,
        zero_sign=finding.zero_sign,
        witness=None if found is None else found.witness,
        channel=None if found is None else found.channel,
        nan_differs=finding.nan_differs,
        tells_zeros_apart=tells,
        reason=reason,
        at_most=Exactness.BITS if found is None else found.at_most,
    )


def _told(finding: Finding) -> str:
    told = "all inputs were tried one by one"
    if finding.largest_ulps is None:
        return told
    return f"{told}; values are up to {finding.largest_ulps} floats apart"


def _tell_zeros_apart(pair: tuple[Expr, Expr]) -> bool:
    for expression in pair:
        shape = (1,) * len(expression.shape)
        a, b = (evaluate(expression, np.full(shape, zero, np.float32)) for zero in (0.0, -0.0))
        if not np.array_equal(a, b, equal_nan=True):
            return True
    return False


def _between(value: ir.Value, start: ir.Value, side: Side) -> list[ir.Node]:
    """Return the nodes that make ``value`` of ``start``, operands first."""
    found: dict[ir.Node, None] = {}
    stack: list[tuple[ir.Value, bool]] = [(value, False)]
    while stack:
        step, ready = stack.pop()
        node = step.producer()
        if step is start or node is None or node in found:
            continue
        if ready:
            found[node] = None
            continue
        stack.append((step, True))
        stack += [(operand, False) for operand in side.operands(step)]
    return list(found)


def _shape(entry: Pair) -> Shape | None:
    known = [value.shape for value in entry if value.shape is not None]
    if not known:
        return None
    sizes = [[d if isinstance(d, int) else None for d in shape.dims] for shape in known]
    if len(sizes) == 2 and len(sizes[0]) == len(sizes[1]):
        return tuple(a if a is not None else b for a, b in zip(*sizes, strict=True))
    return tuple(sizes[0])


def _element_type(region: Cut) -> ir.DataType:
    """Return the type of the variable, which is not guessed; its two values have one shape."""
    shapes = [value.shape.dims for value in region.entry if value.shape is not None]
    sizes = zip(*shapes, strict=False) if len(shapes) == 2 else ()
    apart = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
    if apart or len({len(dims) for dims in shapes}) > 1:
        names = " and ".join(repr(value.name) for value in region.entry)
        raise Undecidable(f"the shapes of {names} differ")
    stated = {value.dtype for value in region.entry} - {None}
    (kind,) = stated if len(stated) == 1 else (None,)
    if kind is None:
        raise Undecidable("the type of its data is not known")
    if not (kind is ir.DataType.FLOAT or _is_narrow(kind)):
        raise Undecidable(f"its data is {kind.name}; types of that size are not proved")
    return kind


def _is_narrow(kind: ir.DataType) -> bool:
    return kind not in (ir.DataType.STRING, ir.DataType.UNDEFINED) and (
        kind.bitwidth <= _NARROW_BITS
    )


def _lower(matching: Matching, region: Cut, builder: Builder) -> tuple[Expr, Expr, Shape | None]:
    shape = region.shape or ()
    if 0 in shape:
        raise Undecidable("its data has no elements")
    sides = (
        (matching.reference, region.reference_nodes),
        (matching.candidate, region.candidate_nodes),
    )
    pair = []
    for (side, nodes), x, y in zip(sides, region.entry, region.exit, strict=True):
        _check_ranks(side, nodes, region)
        try:
            for node in nodes:
                check_parameters(node, side.known.array)
        except OperatorError as error:
            raise Undecidable(str(error)) from error
        pair.append(lower(nodes, x, y, shape, builder, constants=side.known.array))
    if region.shape is None:
        _check_equal_shapes(pair[0].shape, pair[1].shape)
    kinds = [
        expression.dtype if value.dtype is None else value.dtype.name
        for expression, value in zip(pair, region.exit, strict=True)
    ]
    if kinds[0] != kinds[1]:
        raise Undecidable(f"the results are {kinds[0]} and {kinds[1]}")
    return pair[0], pair[1], region.shape


def _check_equal_shapes(reference: tuple[int, ...], candidate: tuple[int, ...]) -> None:
    """See that parameters give data of any shape the same shape, also that of a single number.

    Raises:
        Undecidable: they may not.
    """
    if reference != candidate:
        raise Undecidable(
            "the shape of its data is not known, and the parameters have the shapes "
            f"{list(reference)} and {list(candidate)}"
        )


def _check_result_shapes(models: tuple[Nodes, Nodes], region: Cut) -> None:
    """See that constants give the results of both sides the same shape.

    Raises:
        Undecidable: they may not.
    """
    found = []
    for model, nodes in zip(models, (region.reference_nodes, region.candidate_nodes), strict=True):
        shapes = []
        for node in nodes:
            if node.op_type in _PARAMETERS_ALONG_AXIS or node.op_type == "Gather":
                continue  # what they have besides their data does not broadcast
            arrays = (None if v is None else model.known.array(v) for v in node.inputs)
            shapes += [array.shape for array in arrays if array is not None]
        try:
            found.append(np.broadcast_shapes(*shapes))
        except ValueError as error:
            raise Undecidable("its parameters do not broadcast") from error
    if region.shape is None:
        _check_equal_shapes(*found)
    check_shapes(found[0], found[1], region.shape)


def _check_ranks(side: Side, nodes: Sequence[ir.Node], region: Cut) -> None:
    """See that axes count from the rank of the variable, whatever the nodes do to the data."""
    parameters = [
        value
        for node in nodes
        for value in node.inputs
        if value is not None and side.known.has(value) and value.shape is not None
    ]
    along = any(node.op_type in _PARAMETERS_ALONG_AXIS for node in nodes)
    rank = len(region.shape or ())
    if along and any(len(value.shape or ()) > max(rank, 1) for value in parameters):
        raise Undecidable("a parameter has more dimensions than the data")


class Nodes(Protocol):
    """A model as far as its nodes have to be computed."""

    @property
    def plain(self) -> Plain:
        """The model."""

    @property
    def known(self) -> KnownValues:
        """Its constants."""


def enumerate_cut(models: tuple[Nodes, Nodes], region: Cut) -> Outcome:
    """Try all values of a type of few bits, in every channel.

    Raises:
        Undecidable: there are too many, or they cannot be computed.
    """
    kind = _element_type(region)
    if not _is_narrow(kind):
        raise Undecidable(f"its data is {kind.name}, which has too many values to try here")
    nodes = (*region.reference_nodes, *region.candidate_nodes)
    if any(map(is_reshape, nodes)):
        raise Undecidable("its data is reshaped")
    _check_result_shapes(models, region)
    x = all_values(kind)
    spread = _free_axis(models, region)
    if spread is not None:
        sizes, axis = spread
        along = [1] * len(sizes)
        along[axis] = x.size
        sizes[axis] = x.size
        x = np.ascontiguousarray(np.broadcast_to(x.reshape(along), sizes))
    parts = region.reference_nodes, region.candidate_nodes
    ties: list[str] = []
    results = [
        run_nodes(model, nodes, {start: x}, end, ties)
        for model, nodes, start, end in zip(models, parts, region.entry, region.exit, strict=True)
    ]
    if results[0].dtype != results[1].dtype or results[0].shape != results[1].shape:
        raise Undecidable(
            f"the results are {results[0].dtype}{list(results[0].shape)} and "
            f"{results[1].dtype}{list(results[1].shape)}"
        )
    with np.errstate(invalid="ignore"):
        special = np.broadcast_to(is_nan(x), results[0].shape)
        wide = x.astype(np.float64)
        zeros = [
            np.broadcast_to((wide == 0) & (np.signbit(wide) == sign), results[0].shape)
            for sign in (False, True)
        ]
    reference, candidate = (result[~special] for result in results)
    found = compare_values(reference, candidate)
    if ties and found.rung is Exactness.BITS:
        raise Undecidable(f"ONNX leaves open which zero {ties[0]} takes of two")
    at_nan = compare_values(*(result[special] for result in results))
    nan_differs = at_nan.rung < Exactness.BITS
    witness = None
    if found.place is not None:
        given = np.broadcast_to(x, results[0].shape)[~special]
        at = (array[found.place] for array in (given, reference, candidate))
        witness = Witness(*map(float, at))
    return Outcome(
        min(found.rung, Exactness.VALUES) if nan_differs else found.rung,
        Method.EXHAUSTIVE,
        differing=found.differing,
        zero_sign=found.zero_sign,
        witness=witness,
        nan_differs=nan_differs,
        tells_zeros_apart=bool(zeros[1].any())
        and any(
            compare_values(*(result[zero] for zero in zeros)).differing > 0 for result in results
        ),
    )


def all_values(kind: ir.DataType) -> Array:
    """Return all values of a type of few bits, NaN and infinities included."""
    dtype = np.dtype(kind.numpy())
    if kind is ir.DataType.BOOL:
        return np.array([False, True])
    patterns = np.arange(1 << int(kind.bitwidth), dtype=f"u{dtype.itemsize}")
    if kind.bitwidth < 8 and kind.is_signed() and kind.is_integer():
        # sub-byte integers are stored with their sign extended over the byte
        half = 1 << (int(kind.bitwidth) - 1)
        return (patterns.astype(np.int64) - half).astype(dtype)
    return patterns.view(dtype)


def _free_axis(models: tuple[Nodes, Nodes], region: Cut) -> tuple[list[int], int] | None:
    """Return the sizes of data with all channels, and an axis that no parameter varies along.

    None is returned where all parameters are single numbers.
    """
    busy: set[int] = set()
    shape = region.shape
    parts = region.reference_nodes, region.candidate_nodes
    for side, nodes in zip(models, parts, strict=True):
        for node in nodes:
            for value in node.inputs:
                array = None if value is None else side.known.array(value)
                along = node.op_type in _PARAMETERS_ALONG_AXIS
                if array is None or (along and array.size == 1):
                    continue
                if shape is not None and array.ndim > len(shape):
                    # even a single number moves the axes of what comes after it
                    raise Undecidable("a parameter has more dimensions than the data")
                if array.size == 1:
                    continue
                if shape is None:
                    raise Undecidable("the rank of its data is not known")
                if along and array.ndim == 1:
                    busy.add(node.attributes.get_int("axis", 1) % len(shape))
                else:
                    offset = len(shape) - array.ndim
                    busy |= {offset + i for i, size in enumerate(array.shape) if size > 1}
    if not busy:
        return None
    free = [axis for axis in range(len(shape or ())) if axis not in busy]
    if not free or any((shape or ())[axis] is None for axis in busy):
        raise Undecidable("its parameters vary along all dimensions, or along unknown ones")
    sizes = [(shape or ())[axis] or 1 if axis in busy else 1 for axis in range(len(shape or ()))]
    if math.prod(sizes) > 1 << 10:
        raise Undecidable("there are too many channels to try all values in each")
    return sizes, free[0]


def run_nodes(
    side: Nodes,
    nodes: Sequence[ir.Node],
    given: Mapping[ir.Value, Array],
    y: ir.Value,
    ties: list[str] | None = None,
) -> Array:
    """Return ``y``, which ``nodes`` compute from what is given and constants, by the kernels.

    Args:
        side: the model of the nodes.
        nodes: operands first.
        given: values to begin with.
        y: the result.
        ties: gets the operators that meet zeros of both signs.

    Raises:
        Undecidable: it cannot be computed.
    """
    known: dict[ir.Value, Any] = dict(given)
    imports = side.plain.imports
    with np.errstate(invalid="ignore"):
        numbers = ~np.logical_or.reduce([is_nan(array) for array in given.values()])
    try:
        with np.errstate(all="ignore"):
            for node in nodes:
                for value in node.inputs:
                    if value is not None and value not in known:
                        known[value] = side.known.array(value)
                _check_cast(node, known, numbers)
                if ties is not None and meets_both_zeros(node, known):
                    ties.append(node.op_type)
                NodeStep(node, kernel_for(node, imports)).run(known, frozenset())
    except (ExecutionError, OperatorError, UnsupportedError) as error:
        raise Undecidable(f"it cannot be computed: {error}") from error
    return np.asarray(known[y])


def _check_cast(node: ir.Node, known: Mapping[ir.Value, Any], numbers: Array) -> None:
    """See that a Cast of floating-point data to integers stays within their range.

    Args:
        node: any node.
        known: its operands.
        numbers: where the data of the region is not NaN.

    Raises:
        Undecidable: it does not.
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
        raise Undecidable(f"ONNX leaves open what {at!r} is as {to.name}")
