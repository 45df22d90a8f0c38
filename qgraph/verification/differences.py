"""Whether a certificate that calls two models different shows that they are.

That a region differs is not enough: another difference may undo it. Either the certificate names
an input, and the outputs differ when both models are run on it. Or one region has entries that are
equal by what was proved, the models are one function of the two values that it compares, the inputs
on which it differs can occur, and the difference shows in an output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.certification.certificate import ProofVerdict
from qgraph.equivalence.demonstration import Runs
from qgraph.exactness import Exactness, Method
from qgraph.matching.attained import Attained
from qgraph.matching.visible import visible
from qgraph.verification.bounds import numbers
from qgraph.verification.box_check import HIGHEST
from qgraph.verification.conclusions import adds_bias
from qgraph.verification.outcome import Claim
from qgraph.verification.outputs import Outputs
from qgraph.verification.sides import Pair, Side
from qgraph.verification.statements import Document, Statement, fails


def check_difference(
    document: Document,
    sides: tuple[Side, Side],
    claims: Sequence[Claim],
    inputs: Sequence[Pair],
    outputs: Sequence[Pair],
) -> None:
    """See that the models differ if the certificate says so.

    Args:
        document: what is stated.
        sides: the models.
        claims: what regions say, each checked by itself.
        inputs: pairs of inputs.
        outputs: pairs of outputs.

    Raises:
        EquivalenceError: nothing shows that they do.
    """
    is_different = document.verdict is ProofVerdict.DIFFERENT
    if document.shown_by is not None:
        if not is_different:
            raise fails("it names an input on which outputs differ, and does not call them so")
        decided = all(s.verdict is not ProofVerdict.UNDECIDED for s in document.statements)
        same_sums = decided and not any(side.plain.bias_sums for side in sides)
        runs = Runs((sides[0].plain, sides[1].plain), inputs, outputs, same_sums=same_sums)
        if runs.first([document.shown_by]) is None:
            raise fails("the outputs do not differ on the input that it names")
    elif is_different and not _Forced(sides, claims, inputs).any(outputs):
        raise fails(
            "nothing forces the models to differ: no region that differs rests on what was proved, "
            "is all in which they differ, occurs, and shows in an output"
        )


class _Forced:
    """Looks for a region that makes two models different; see :func:`check_difference`."""

    def __init__(
        self, sides: tuple[Side, Side], claims: Sequence[Claim], inputs: Sequence[Pair]
    ) -> None:
        self._sides = sides
        self._inputs = inputs
        self._proved = [c for c in claims if c.statement.verdict is ProofVerdict.PROVED]
        self._differing = [c for c in claims if c.statement.verdict is ProofVerdict.DIFFERENT]
        self._equal = Outputs(sides, self._proved, inputs, is_proof=False)
        self._attained = Attained(sides[0].known, sides[0].plain.imports)

    def any(self, outputs: Sequence[Pair]) -> bool:
        """Return whether one region does."""
        return any(self._is_forced(claim, outputs) for claim in self._differing)

    def _is_forced(self, claim: Claim, outputs: Sequence[Pair]) -> bool:
        moved = [
            other.values
            for other in self._differing
            if other.number != claim.number and _only_moves_thresholds(other.statement)
        ]
        without = self._corresponding(moved)
        including = self._corresponding([*moved, claim.values])
        apart = [p for p in outputs if not without.holds(p) and including.holds(p)]
        return (
            bool(apart)
            and all(map(without.holds, claim.entries))
            and not adds_bias(self._sides, self._parts(claim))
            and self._occurs(claim)
            and visible(
                claim.values[0],
                self._sides[0].known,
                {a for a, _ in apart},
                everywhere=_is_of_floats(claim) and claim.statement.channels == 1,
                through_sums=_differs_in_value(claim.statement) or claim.statement.nan_differs,
            )
        )

    def _corresponding(self, differing: Sequence[Pair]) -> Outputs:
        return Outputs(
            self._sides,
            self._proved,
            self._inputs,
            is_proof=False,
            differing=differing,
            equal=self._equal,
        )

    def _parts(self, claim: Claim) -> list[list[ir.Node]]:
        if not claim.entries:
            return [[], []]
        return [
            side.between(end, [pair[place] for pair in claim.entries])
            for place, (side, end) in enumerate(zip(self._sides, claim.values, strict=True))
        ]

    def _occurs(self, claim: Claim) -> bool:
        """Return whether an entry can be one of the inputs on which a region differs."""
        if claim.statement.method is Method.CONSTANT:
            return True
        if len(claim.entries) != 1:
            return False
        source = claim.entries[0][0]
        if not _differs_in_value(claim.statement):
            return self._attained.is_fed(source)
        limits = self._attained.source(source)
        channels = claim.statement.channels if _is_of_floats(claim) else 0
        return limits is not None and any(
            limits.admit(channel, channels, first, last)
            for channel, first, last in _stretches(claim.statement)
        )


def _only_moves_thresholds(statement: Statement) -> bool:
    return statement.exactness is Exactness.NEAR and statement.counted


def _differs_in_value(statement: Statement) -> bool:
    return statement.exactness is not None and statement.exactness < Exactness.VALUES


def _is_of_floats(claim: Claim) -> bool:
    return bool(claim.entries) and claim.entries[0][0].dtype is ir.DataType.FLOAT


def _stretches(statement: Statement) -> Iterator[tuple[int, float, float]]:
    """Yield channels, and the first and last of some inputs on which a region differs."""
    if statement.witness is not None:
        x = statement.witness.input
        yield statement.witness.channel, x, x
    for tiles in statement.tiles:
        ends = np.append(tiles.starts[1:] - 1, HIGHEST)
        bounds = (numbers(keys[tiles.differing]) for keys in (tiles.starts, ends))
        for first, last in zip(*(side.tolist() for side in bounds), strict=True):
            yield tiles.channel, first, last
