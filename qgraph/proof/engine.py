"""Deciding where two expressions differ, over all float32 inputs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from qgraph.exactness import Witness
from qgraph.proof.environment import check_float_environment
from qgraph.proof.expression import Expr, Undecidable, evaluate
from qgraph.proof.finding import Collector, Finding, Notes, Runs
from qgraph.proof.interval import Interval, Mask
from qgraph.proof.keys import from_keys
from qgraph.proof.outcome import Outcome, compare_special_inputs
from qgraph.proof.program import Program
from qgraph.proof.search import Boxes, Search

__all__ = ["MAX_BOXES", "Finding", "Runs", "decide"]

Shape: TypeAlias = tuple[int | None, ...]

MAX_BOXES = 1 << 27
"""Boxes after which a comparison is given up."""


def decide(
    reference: Expr,
    candidate: Expr,
    *,
    input_shape: Shape | None = None,
    max_boxes: int = MAX_BOXES,
    domain: tuple[float, float] | None = None,
    until_difference: bool = False,
) -> Finding:
    """Compare two expressions on every float32 input and in every channel.

    Args:
        reference: the function to keep to.
        candidate: the other one, of the same builder if common parts are to be recognised.
        input_shape: shape of the variable, None for unknown dimensions; used to see that the two
            results have one shape.
        max_boxes: after how many evaluated boxes to give up.
        domain: restricts the finite inputs to those from the first to the second number.
        until_difference: stop at the first inputs of different value; the finding then tells no
            more than that there are some.

    Raises:
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    one = np.zeros(1, np.int64)
    nothing = Collector(math.prod(reference.shape), one, one).finding(0)
    if reference is candidate:
        return nothing
    try:
        check_shapes(reference.shape, candidate.shape, input_shape)
        program = Program(reference, candidate)
    except Undecidable as undecidable:
        return replace(nothing, undecided=undecidable.reason)
    found = Collector(program.channels, program.first, program.count)
    boxes, end = explore(
        program, found, max_boxes=max_boxes, domain=domain, until_difference=until_difference
    )
    finding = found.finding(boxes, undecided=None if end is None else end.reason)
    return replace(
        replayed(finding, reference, candidate), given_up=end is not None and end.by_effort
    )


def replayed(finding: Finding, reference: Expr, candidate: Expr) -> Finding:
    """Return a finding whose witness tells what both expressions make of its input.

    Of inputs on which values differ but vary, only bounds are known before.
    """
    witness = finding.witness
    if witness is None or not finding.differing:
        return finding
    x = np.asarray(witness.input, np.float32)
    shape = np.broadcast_shapes(reference.shape, candidate.shape)
    values = [
        np.broadcast_to(evaluate(root, x), shape).reshape(-1)[finding.witness_channel or 0]
        for root in (reference, candidate)
    ]
    return replace(finding, witness=Witness(witness.input, *map(float, values)))


def explore(
    program: Program,
    found: Notes,
    *,
    max_boxes: int = MAX_BOXES,
    domain: tuple[float, float] | None = None,
    until_difference: bool = False,
) -> tuple[int, Undecidable | None]:
    """Note in ``found`` where the two expressions of a program differ.

    With ``until_difference``, channels that ``found`` has a difference of are not explored on.

    Returns:
        The number of boxes evaluated, and why it was given up, if it was.

    Raises:
        UnsupportedError: this thread does not compute as IEEE 754 says.
    """
    check_float_environment()
    comparison = _Comparison(program, found, until_difference=until_difference)
    search = Search(program, comparison, max_boxes, domain, refines=not until_difference)
    end = None
    with np.errstate(all="ignore"):
        compare_special_inputs(program, found)
        try:
            finished = comparison.finished()
            if finished is None or not finished.all():
                search.run()
        except Undecidable as undecidable:
            end = undecidable
    check_float_environment()
    return search.boxes, end


class _Comparison:
    """The judge of a search that counts differences."""

    def __init__(self, program: Program, found: Notes, *, until_difference: bool) -> None:
        self._program = program
        self._until_difference = until_difference
        self.found = found

    def finished(self) -> Mask | None:
        return self.found.differing(len(self._program.first)) if self._until_difference else None

    def settle(self, boxes: Boxes, a: Interval, b: Interval, apart: Mask, done: Mask) -> None:
        if apart.any():
            # of two intervals that do not meet, the ends that lie farthest apart
            up = (a.hi - b.lo > b.hi - a.lo)[apart]
            reference = np.where(up, a.hi[apart], a.lo[apart])
            candidate = np.where(up, b.lo[apart], b.hi[apart])
            some = boxes.at(apart)
            self.found.differ(some.kind, some.lo, some.hi, reference, candidate)
        signs = np.asarray(a.lo.view(np.int32) != b.lo.view(np.int32))
        for result in (a, b):
            if result.open is not None:
                signs |= result.open
        signs &= done
        if signs.any():
            some = boxes.at(signs)
            self.found.differ_in_zero_sign(some.kind, some.lo, some.hi, a.lo[signs], b.hi[signs])

    def enumerate(self, boxes: Boxes) -> None:
        x = from_keys(boxes.lo)
        outcome = Outcome.of(self._program, x, boxes.kind)
        if outcome.unknown.any():
            at = float(x[np.argmax(outcome.unknown)])
            raise Undecidable(f"ONNX leaves open what is computed for the input {at!r}")
        for note, mask in (
            (self.found.differ, outcome.differ),
            (self.found.differ_in_zero_sign, outcome.zero_sign),
        ):
            some = boxes.at(mask)
            note(some.kind, some.lo, some.hi, outcome.reference[mask], outcome.candidate[mask])


def check_shapes(
    reference: tuple[int, ...], candidate: tuple[int, ...], shape: Shape | None
) -> None:
    """See that the constants on both sides give the result the same shape.

    Args:
        reference: what the constants of the reference broadcast to.
        candidate: what those of the candidate do.
        shape: of the variable, None for unknown dimensions; nothing is looked at without it.

    Raises:
        Undecidable: they do not.
    """
    if shape is None:
        return
    found = [_result_shape(shape, constants) for constants in (reference, candidate)]
    if found[0] != found[1]:
        raise Undecidable(f"the results have shapes {list(found[0])} and {list(found[1])}")


def _result_shape(data: Shape, constants: tuple[int, ...]) -> Shape:
    rank = max(len(data), len(constants))
    sizes: Shape = (1,) * (rank - len(data)) + data
    others = (1,) * (rank - len(constants)) + constants
    for size, other in zip(sizes, others, strict=True):
        if size is not None and 1 not in (size, other) and size != other:
            raise Undecidable(
                f"constants of shape {list(constants)} do not fit data of shape {list(data)}"
            )
    # what is not known may be 1, and is enlarged then
    return tuple(b if a == 1 or b != 1 else a for a, b in zip(sizes, others, strict=True))
