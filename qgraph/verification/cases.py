"""Checking regions all of whose inputs can be tried: of types of few bits, or of two quantizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.exactness import Exactness, Method
from qgraph.numerics.formats import numpy_dtype
from qgraph.numerics.values import compare_values, is_nan
from qgraph.verification.arrays import Arrays
from qgraph.verification.bounds import numbers
from qgraph.verification.box_check import HIGHEST, LOWEST, Boxes, Functions
from qgraph.verification.layout import Shape, result_shape, write_out
from qgraph.verification.outcome import Outcome, check_witness
from qgraph.verification.sides import Pair, Side, shape_of, type_of
from qgraph.verification.statements import Cases, Shown, Statement
from qgraph.verification.tracing import Trace
from qgraph.verification.zeros import tells_zeros_apart

Array = npt.NDArray[Any]
Sides = tuple[Side, Side]

_NARROW_BITS = 16
_MOST_CASES = 1 << 22
_SPECIAL = np.array([-np.inf, np.inf, np.nan], np.float32)


@np.errstate(all="ignore")
def check_all_values(
    statement: Statement,
    sides: Sides,
    entry: Pair,
    exit_: Pair,
    parts: Sequence[Sequence[ir.Node]],
    shape: Shape | None,
) -> Outcome:
    """Return what is so about a region of a type of at most 16 bits; all its values are tried.

    Raises:
        EquivalenceError: it cannot be stated in this way.
        UnsupportedError: a node has no definition over cases.
    """
    kind = type_of(entry)
    if statement.method is not Method.EXHAUSTIVE or statement.tiles or statement.cases:
        raise statement.fails(f"data of type {kind.name} is not shown by {statement.method}")
    x = all_values(kind)
    results, ties = _run(statement, sides, [{v: x} for v in entry], exit_, parts, shape)
    whole = np.broadcast_to(x.reshape(-1, *[1] * (results[0].ndim - 1)), results[0].shape)
    special = is_nan(whole)
    found = compare_values(*(result[~special] for result in results))
    nan_differs = compare_values(*(r[special] for r in results)).rung < Exactness.BITS
    if ties and found.rung is Exactness.BITS:
        raise statement.fails("ONNX leaves open which zero Min, Max and Relu take of two")
    shown = None
    if found.place is not None:
        at = [float(array[~special][found.place]) for array in (whole, *results)]
        shown = Shown(at[0], at[1], at[2])
    check_witness(statement, shown)
    return Outcome(
        min(found.rung, Exactness.VALUES) if nan_differs else found.rung,
        found.differing,
        found.zero_sign,
        nan_differs=nan_differs,
        tells_zeros_apart=_tell_zeros_apart(x, results),
        may_lose_signs=found.rung is not Exactness.BITS,
    )


def _tell_zeros_apart(x: Array, results: Sequence[Array]) -> bool:
    wide = x.astype(np.float64)
    plus, minus = (
        np.flatnonzero((wide == 0) & (np.signbit(wide) == sign)) for sign in (False, True)
    )
    if not minus.size:
        return False
    return any(compare_values(r[plus], r[minus]).differing > 0 for r in results)


def all_values(kind: ir.DataType) -> Array:
    """Return all values of a type of few bits, NaN and infinities included.

    Raises:
        UnsupportedError: it has too many.
    """
    if kind in (ir.DataType.STRING, ir.DataType.UNDEFINED) or kind.bitwidth > _NARROW_BITS:
        raise UnsupportedError(f"data of type {kind.name} has too many values")
    if kind is ir.DataType.BOOL:
        return np.array([False, True])
    dtype = numpy_dtype(kind.name)
    if kind.is_integer():
        low = -(1 << (int(kind.bitwidth) - 1)) if kind.is_signed() else 0
        return np.arange(low, low + (1 << int(kind.bitwidth))).astype(dtype)
    patterns = np.arange(1 << int(kind.bitwidth), dtype=f"u{dtype.itemsize}")
    return patterns.view(dtype)


@np.errstate(all="ignore")
def check_pairs(
    statement: Statement,
    sides: Sides,
    entries: Sequence[Pair],
    exit_: Pair,
    parts: Sequence[Sequence[ir.Node]],
) -> Outcome:
    """Return what is so about a region with two inputs; all pairs of their cases are tried.

    Raises:
        EquivalenceError: it cannot be stated in this way.
        UnsupportedError: the cases do not cover what can reach the region.
    """
    shown_so = statement.method is Method.EXHAUSTIVE and not statement.tiles
    if not shown_so or not len(entries) == len(statement.cases) == 2:
        raise statement.fails("a region with several inputs is not shown like this")
    for side, nodes in zip(sides, parts, strict=True):
        _check_scalars(side, nodes)
    first, second = (
        _values(statement, sides, parts, entry, cases)
        for entry, cases in zip(entries, statement.cases, strict=True)
    )
    if first.size * second.size > _MOST_CASES:
        raise statement.fails("it has too many cases")
    x, z = np.repeat(first, second.size), np.tile(second, first.size)
    given = [{entries[0][place]: x, entries[1][place]: z} for place in range(2)]
    shapes = [shape_of(entry) for entry in entries]
    known = [len(shape) for shape in shapes if shape is not None]
    rank = max(known) if len(known) == len(shapes) else None
    shape = None if rank is None else (None,) * rank
    results, _ = _run(statement, sides, given, exit_, parts, shape)
    special = is_nan(x) | is_nan(z)
    results = [result.reshape(-1) for result in results]
    found = compare_values(*(result[~special] for result in results))
    at_nan = compare_values(*(result[special] for result in results))
    shown = None
    if found.differing and found.place is not None:
        at = [float(array[~special][found.place]) for array in (x, *results)]
        shown = Shown(at[0], at[1], at[2])
    check_witness(statement, shown)
    return Outcome(
        # zeros of both signs are one case, so nothing is said about them
        min(found.rung, Exactness.VALUES),
        found.differing,
        max(1, found.zero_sign),
        nan_differs=at_nan.rung < Exactness.BITS,
        remark=f"{np.count_nonzero(~special)} pairs of values of two inputs were tried",
        may_lose_signs=True,
    )


def _run(
    statement: Statement,
    sides: Sides,
    given: Sequence[dict[ir.Value, Array]],
    exit_: Pair,
    parts: Sequence[Sequence[ir.Node]],
    shape: Shape | None,
) -> tuple[list[Array], bool]:
    """Return the results of both sides ``[cases, ...]``, and whether zeros of both signs met."""
    runs = [Arrays(side, known, shape) for side, known in zip(sides, given, strict=True)]
    results = [run.compute(nodes, end) for run, nodes, end in zip(runs, parts, exit_, strict=True)]
    shapes = {result_shape(run.constants, shape) for run in runs}
    if len(shapes) > 1 or results[0].dtype != results[1].dtype:
        raise statement.fails("the results are of different types or shapes")
    common = np.broadcast_shapes(*(result.shape for result in results))
    return [np.broadcast_to(r, common) for r in results], any(run.has_ties for run in runs)


def _check_scalars(side: Side, nodes: Sequence[ir.Node]) -> None:
    """See that no parameter varies by channel, and that nothing sees the sign of zeros."""
    for node in nodes:
        for place, value in enumerate(node.inputs):
            array = None if value is None else side.known.array(value)
            if array is not None and array.size > 1:
                raise UnsupportedError("it has two inputs, and parameters that vary by channel")
            is_data = value is not None and array is None and not side.is_join(node)
            if is_data and tells_zeros_apart(node, place):
                raise UnsupportedError(f"{node.op_type} sees the sign of zeros")


def _values(
    statement: Statement,
    sides: Sides,
    parts: Sequence[Sequence[ir.Node]],
    entry: Pair,
    cases: Cases,
) -> Array:
    """Return values of an entry; whatever it may be has the results of one of them."""
    kind = type_of(entry)
    if kind is not ir.DataType.FLOAT:
        if cases.starts.size or cases.start is not None or kind.bitwidth > 8:
            raise statement.fails(f"cases of {kind.name} are all values")
        return all_values(kind)
    starts = cases.starts
    tiled = starts.size and starts[0] == LOWEST and (np.diff(starts) > 0).all()
    if not tiled or starts[-1] > HIGHEST:
        raise statement.fails("its cases do not tile all inputs")
    if cases.side is not None and cases.start is not None:
        side, value = sides[cases.side], entry[cases.side]
        for start in side.named(cases.start):
            if start.dtype is not ir.DataType.FLOAT:
                raise statement.fails(f"{cases.start!r} is not known to be float32")
            found = _steps(statement, side, start, value, starts)
            return np.unique(np.concatenate([found, _SPECIAL[-1:]]))
        raise statement.fails(f"there is no value {cases.start!r}")
    for side, nodes, value in zip(sides, parts, entry, strict=True):
        for end in _fronts(side, nodes, value):
            _steps(statement, side, value, end, starts)
    return np.concatenate([numbers(starts), _SPECIAL])


def _steps(
    statement: Statement, side: Side, x: ir.Value, y: ir.Value, starts: npt.NDArray[np.int64]
) -> Array:
    """Return the values of ``y`` for all of ``x``; it has one on each part, which is shown."""
    nodes = side.between(y, [x])
    _check_scalars(side, nodes)
    trace = Trace()
    root = write_out(trace, side, nodes, x, y, shape_of((x, x))).number
    alone = Functions(trace.lines, (root, root))
    ends = np.append(starts[1:] - 1, HIGHEST)
    never = np.zeros(len(starts), np.bool_)
    channel = np.zeros(len(starts), np.int64)
    if alone.channels != 1 or not alone.hold_values(Boxes(channel, starts, ends, never, never)):
        raise statement.fails("its cases have several values each")
    inputs = np.concatenate([numbers(starts), _SPECIAL])
    found = alone.at(np.zeros(len(inputs), np.int64), inputs)
    if found.left_open[:-1].any():
        raise statement.fails("ONNX leaves a case open")
    return found.reference


def _fronts(side: Side, nodes: Sequence[ir.Node], entry: ir.Value) -> list[ir.Value]:
    """Return the values made of ``entry`` alone that nodes join with what else there is."""
    alone = {entry}
    for node in nodes:
        if alone.issuperset(side.sources(node)):
            alone.add(node.outputs[0])
    joined = [node for node in nodes if node.outputs[0] not in alone]
    return [value for value in alone if any(value in node.inputs for node in joined)]
