"""Show that segments end in equal values, from proved claims and equal codes at their starts.

Only proved claims and equal starts are facts. A matching also assumes failed claims, to find later
differences; conclusions from these assumptions are not proofs and are not used here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.graph.interface import Pair
from qgraph.graph.schema import OpKey
from qgraph.proof.bounds.segment import Segment
from qgraph.proof.bounds.segments import Pairing
from qgraph.proof.matching.closure import Closure, Implication
from qgraph.proof.matching.match import Matching
from qgraph.proof.matching.zero_signs import distinguishes_signed_zeros

_FORWARD = 4
"""Maximum number of values between codes and their decoded value."""

_MOST_PAIRS = 256
"""Maximum number of pairs of values that are traced back from one."""

_DECODING = frozenset(
    {OpKey("", name) for name in ("Cast", "DequantizeLinear", "Identity")}
    | {OpKey("com.microsoft", "DequantizeLinear")}
)


class EqualEnds:
    """Shows that segments are equal, in the order in which the candidate computes them."""

    def __init__(self, matching: Matching, facts: Iterable[Implication], pairing: Pairing) -> None:
        self._closure = Closure(matching, facts)
        self._matching, self._pairing = matching, pairing
        self._sides = matching.reference, matching.candidate
        self._named = [
            {value.name: value for node in side.nodes for value in node.outputs}
            for side in self._sides
        ]

    def show(self, segment: Segment) -> bool:
        """Return whether a segment has equal ends; if so, later segments may start from them."""
        ends = [
            None if value is None else named.get(value.name)
            for value, named in zip(segment.values, self._named, strict=True)
        ]
        if ends[0] is None or ends[1] is None:
            return False
        if segment.is_output:
            return self._closure.equal((ends[0], ends[1]))
        ours, theirs = (decoded_from(end) for end in (ends[0], ends[1]))
        codes = product(_behind_clips(ours), _behind_clips(theirs))
        is_shown = any(map(self._closure.equal, codes))
        for a, b in product(ours, theirs):
            # values follow from equal codes
            if a.dtype is b.dtype and self._pairing.are_equal(str(a.name), str(b.name)):
                self._closure.assume((a, b))
        return is_shown and not segment.extra.any()

    def equal(self, ours: str, theirs: str) -> bool:
        """Return whether two values, given by name, are equal; zeros may differ in sign."""
        a, b = (named.get(name) for named, name in zip(self._named, (ours, theirs), strict=True))
        if a is None or b is None:
            return False
        decided: dict[Pair, bool] = {}
        return self._are_equal((a, b), decided) or any(
            all(self._are_equal(p, decided) or self._is_of_values(a, p) for p in way)
            for way in self._matching.ways((a, b))
        )

    def _are_equal(self, pair: Pair, decided: dict[Pair, bool]) -> bool:
        """Return whether equal operators compute two values from equal values and constants."""
        if pair not in decided:
            decided[pair] = self._closure.equal(pair)
            if not decided[pair] and len(decided) < _MOST_PAIRS:
                decided[pair] = self._is_computed_alike(pair, decided)
                if decided[pair]:
                    self._closure.assume(pair)
        return decided[pair]

    def _is_computed_alike(self, pair: Pair, decided: dict[Pair, bool]) -> bool:
        if self._are_constants(pair):
            compared = self._matching.compare_constants(pair)
            return compared is not None and Exactness.of(compared[0]) is Exactness.BITS
        ways = self._matching.ways(pair)
        return any(all(self._are_equal(p, decided) for p in way) for way in ways)

    def _are_constants(self, pair: Pair) -> bool:
        sides = zip(self._sides, pair, strict=True)
        return all(side.known.has(value) for side, value in sides)

    def _is_of_values(self, result: ir.Value, operands: Pair) -> bool:
        """Return whether operands are constants that differ only in irrelevant signs of zeros."""
        node = result.producer()
        if node is None or not self._are_constants(operands):
            return False
        is_equal = self._matching.have_equal_values(operands)
        return is_equal and not distinguishes_signed_zeros(node, [operands[0]])


def decoded_from(end: ir.Value) -> list[ir.Value]:
    """Return a value, and values decoded from it alone that still distinguish all its codes."""
    values = [end]
    while len(values) < _FORWARD:
        users, dtype = list(values[-1].consumers()), values[-1].dtype
        if len(users) != 1 or dtype is None:
            break
        (user,) = users
        limits_codes = _is_clip(user) and dtype.is_integer()
        held = end.dtype if dtype.is_integer() else dtype
        if not (limits_codes or (OpKey.of(user) in _DECODING and not _loses(user, held))):
            break
        values.append(user.outputs[0])
    return values


def _behind_clips(values: list[ir.Value]) -> list[ir.Value]:
    """Return the values from the last Clip on: codes before a Clip may differ without effect."""
    clips = [i for i, value in enumerate(values) if _is_clip(value.producer())]
    return values[max(clips, default=0) :]


def _is_clip(node: ir.Node | None) -> bool:
    return node is not None and OpKey.of(node) == OpKey("", "Clip")


def _loses(node: ir.Node, held: ir.DataType | None) -> bool:
    """Return whether a node is a Cast that may map several numbers to one."""
    target = node.outputs[0].dtype
    if node.op_type != "Cast":
        return False
    return held is None or target is None or not np.can_cast(held.numpy(), target.numpy())
