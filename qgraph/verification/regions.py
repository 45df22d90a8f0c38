"""Checking a region of float32 data on the boxes that a certificate lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.exactness import Exactness, Method
from qgraph.verification.box_check import HIGHEST, LOWEST, Boxes, Functions, Points
from qgraph.verification.inputs import count
from qgraph.verification.layout import Shape, result_shape, write_out
from qgraph.verification.outcome import Outcome, check_witness
from qgraph.verification.sides import Pair, Side
from qgraph.verification.statements import Shown, Statement, Tiles
from qgraph.verification.steps import Measured, grade
from qgraph.verification.tracing import Trace

Keys = npt.NDArray[np.int64]

_INFINITE = np.array([np.inf, -np.inf], np.float32)
_NAN = np.array([np.nan, -np.nan], np.float32)
_ZEROS = np.array([0.0, -0.0], np.float32)


def check_boxes(
    statement: Statement,
    sides: tuple[Side, Side],
    entry: Pair,
    exit_: Pair,
    parts: Sequence[Sequence[ir.Node]],
    shape: Shape | None,
) -> Outcome:
    """Return what is so about a region, which its boxes have to show.

    Args:
        statement: what is stated.
        sides: the models.
        entry: the pair of equal values.
        exit_: the pair of values to compare.
        parts: the nodes between, of both sides.
        shape: of the data.

    Raises:
        EquivalenceError: the boxes do not show it.
        UnsupportedError: a node has no definition over single elements.
    """
    trace = Trace()
    one, other = (
        write_out(trace, side, nodes, x, y, shape).number
        for side, nodes, x, y in zip(sides, parts, entry, exit_, strict=True)
    )
    types = {trace.lines[root].type or "FLOAT" for root in (one, other)}
    stated = {value.dtype.name for value in exit_ if value.dtype is not None}
    if len(types | stated) > 1:
        raise statement.fails("the results have different types")
    if len({result_shape(trace.shape_of(root), shape) for root in (one, other)}) > 1:
        raise statement.fails("the results have different shapes")
    both = Functions(trace.lines, (one, other))
    tells = _tells_zeros_apart(trace, (one, other))
    if statement.method is Method.CONGRUENCE:
        if one != other or statement.tiles:
            raise statement.fails("both sides are not written as one function")
        check_witness(statement, None)
        return Outcome(Exactness.BITS, channels=both.channels, tells_zeros_apart=tells)
    if statement.method is Method.NONE:
        _check_sample(statement, both)
        nan = _special(both, _NAN)
        infinity = _special(both, _INFINITE)
        return Outcome(
            Exactness.DIFFERENT,
            channels=both.channels,
            nan_differs=bool((nan.differ | nan.signs | nan.left_open).any()),
            infinity_differs=bool((infinity.differ | infinity.left_open).any()),
            tells_zeros_apart=tells,
            may_lose_signs=True,
        )
    if statement.method is Method.EXHAUSTIVE and not statement.tiles:
        return _check_count(statement, both, tells_zeros_apart=tells)
    if statement.method is not Method.INTERVALS:
        raise statement.fails(f"float32 data is not shown by {statement.method}")
    return _check_tiles(statement, both, tells_zeros_apart=tells)


def _check_tiles(statement: Statement, both: Functions, *, tells_zeros_apart: bool) -> Outcome:
    kinds = both.kinds()
    if [(tiles.channel, tiles.count) for tiles in statement.tiles] != sorted(kinds.items()):
        raise statement.fails("its boxes leave channels out")
    ends = [_ends(statement, tiles) for tiles in statement.tiles]
    boxes = Boxes(
        np.concatenate([np.full(len(t.starts), t.channel) for t in statement.tiles]),
        np.concatenate([tiles.starts for tiles in statement.tiles]),
        np.concatenate(ends),
        np.concatenate([tiles.differing for tiles in statement.tiles]),
        np.concatenate([tiles.signs for tiles in statement.tiles]),
    )
    if (boxes.differing & boxes.signs).any() or not both.hold(boxes):
        raise statement.fails("its boxes do not have the results that it states")
    counts = np.concatenate([np.full(len(t.starts), t.count) for t in statement.tiles])
    sizes = boxes.hi - boxes.lo + 1
    differing = {
        int(channel): int(sizes[boxes.differing & (boxes.channel == channel)].sum())
        for channel in np.unique(boxes.channel[boxes.differing])
    }
    return _conclude(
        statement,
        both,
        (differing, int((sizes * counts)[boxes.differing].sum())),
        int((sizes * counts)[boxes.signs].sum()),
        boxes,
        tells_zeros_apart=tells_zeros_apart,
    )


def _check_count(statement: Statement, both: Functions, *, tells_zeros_apart: bool) -> Outcome:
    """Try all inputs one by one."""
    counted = count(both)
    if counted is None:
        raise statement.fails("its inputs are left open by ONNX, or too many to try")
    found = _conclude(
        statement,
        both,
        (counted.differing, counted.total),
        counted.zero_sign,
        None,
        tells_zeros_apart=tells_zeros_apart,
    )
    told = "all inputs were tried one by one"
    far = f"; values are up to {counted.apart} floats apart" if counted.apart else ""
    return replace(found, remark=told + far)


def _conclude(
    statement: Statement,
    both: Functions,
    differing: tuple[dict[int, int], int],
    zero_sign: int,
    boxes: Boxes | None,
    *,
    tells_zeros_apart: bool,
) -> Outcome:
    """Put together what finite inputs, infinities and NaN show.

    Args:
        statement: what is stated.
        both: the functions.
        differing: how many finite inputs differ, by channel, and in all channels.
        zero_sign: how many give zeros of different signs.
        boxes: that show how far values are apart; None where that is not told.
        tells_zeros_apart: whether a side does.
    """
    infinity, nan = _special(both, _INFINITE), _special(both, _NAN)
    nan_differs = bool((nan.differ | nan.signs | nan.left_open).any())
    infinity_differs = bool((infinity.differ | infinity.left_open).any())
    lost = zero_sign > 0 or bool((infinity.signs & ~infinity.left_open).any())
    apart = differing[1] > 0 or infinity_differs
    if apart:
        _check_measured(statement, None if boxes is None else grade(both, boxes))
    _check_shown(statement, both, infinity_differs=infinity_differs, lost=lost, nan=nan_differs)
    equal = Exactness.VALUES if lost or nan_differs else Exactness.BITS
    return Outcome(
        None if apart else equal,
        differing[1],
        zero_sign,
        both.channels,
        tuple(sorted(differing[0].items())),
        nan_differs,
        infinity_differs,
        tells_zeros_apart=tells_zeros_apart,
        may_lose_signs=lost or apart,
    )


def _check_measured(statement: Statement, measured: Measured | None) -> None:
    """See how far the values are said to be apart, where a step can be told."""
    rung = Exactness.DIFFERENT if measured is None else measured.rung
    if statement.exactness is not rung:
        raise statement.fails(f"it holds in {rung}, not in {statement.exactness}")
    largest = None if measured is None else measured.largest_steps
    stated = statement.largest_steps
    if largest is None or stated is None:
        same = largest is stated
    else:
        same = abs(largest - stated) <= 1e-6 * abs(largest)
    if not same:
        raise statement.fails(f"the largest difference is {largest} steps, not {stated}")


def _ends(statement: Statement, tiles: Tiles) -> Keys:
    """Return the last input of each part; the parts cover all finite inputs."""
    starts = tiles.starts
    tiled = starts.size and starts[0] == LOWEST and (np.diff(starts) > 0).all()
    if not tiled or starts[-1] > HIGHEST:
        raise statement.fails("its boxes do not tile all inputs")
    if not len(tiles.differing) == len(tiles.signs) == len(starts):
        raise statement.fails("it tells of boxes that are not there")
    return np.append(starts[1:] - 1, HIGHEST)


def _special(both: Functions, x: npt.NDArray[np.float32]) -> Points:
    """Return the results at a few inputs in all kinds of channels."""
    channels = np.array(list(both.kinds()), np.int64)
    return both.at(np.tile(channels, len(x)), np.repeat(x, len(channels)))


def _tells_zeros_apart(trace: Trace, roots: tuple[int, int]) -> bool:
    for root in roots:
        alone = Functions(trace.lines, (root, root))
        found = _special(alone, _ZEROS).reference.reshape(2, -1)
        if not np.array_equal(found[0], found[1], equal_nan=True):
            return True
    return False


def _check_sample(statement: Statement, both: Functions) -> None:
    """See that a region whose differences are not counted differs at its witness."""
    found = _at_witness(statement, both)
    if found is None or not found.differ.any() or found.left_open.any():
        raise statement.fails("its witness shows no difference")
    if not statement.reason.startswith("the inputs that differ are not counted"):
        raise statement.fails("it does not say that its differences are not counted")


def _check_shown(
    statement: Statement, both: Functions, *, infinity_differs: bool, lost: bool, nan: bool
) -> None:
    """See that the witness shows why the rung is no higher."""
    found = _at_witness(statement, both)
    needed = statement.differing_inputs > 0 or infinity_differs or lost or nan
    if found is None or statement.witness is None:
        if needed:
            raise statement.fails("it has no witness")
        return
    x = statement.witness.input
    if statement.differing_inputs:
        shows = np.isfinite(x) and found.differ.any()
    elif infinity_differs:
        shows = np.isinf(x) and (found.differ | found.left_open).any()
    elif lost:
        shows = not np.isnan(x) and found.signs.any()
    else:
        shows = np.isnan(x) and nan
    if not shows:
        raise statement.fails("its witness shows nothing")


def _at_witness(statement: Statement, both: Functions) -> Points | None:
    """Return what both sides make of the witness, which has to be what is stated."""
    witness = statement.witness
    if witness is None:
        return None
    x = np.array([witness.input], np.float32)
    if not 0 <= witness.channel < both.channels or (x[0] != witness.input and x[0] == x[0]):
        raise statement.fails("its witness is no input")
    found = both.at(np.array([witness.channel]), x)
    values = float(found.reference[0]), float(found.candidate[0])
    if statement.differing_inputs:  # either zero is meant then
        values = tuple(v or s for v, s in zip(values, _results(witness), strict=True))  # type: ignore[assignment]
    check_witness(statement, Shown(witness.input, *values, witness.channel))
    return found


def _results(witness: Shown) -> tuple[float, float]:
    return tuple(v if v == 0 else 0.0 for v in (witness.reference, witness.candidate))  # type: ignore[return-value]
