"""Which segments end in equal values, by what is proved and by equal codes at their starts.

Proved claims and equal starts are facts, and nothing else is: a matching assumes claims that failed
to be equal, to find later differences, and what follows from these assumptions is no proof.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import onnx_ir as ir

from qgraph.graph.interface import Pair
from qgraph.proof.bounds.segment import Segment
from qgraph.proof.bounds.segments import Pairing
from qgraph.proof.matching.match import Closure, Implication, Matching

_FORWARD = 4
"""How many values codes may go through until they are decoded."""

_DECODING = frozenset({"Cast", "DequantizeLinear", "Identity"})


class EqualEnds:
    """Shows segments equal, in the order in which the candidate computes them.

    Args:
        matching: the matching of the two models.
        facts: the proved claims.
        pairing: the segments.
    """

    def __init__(self, matching: Matching, facts: Iterable[Implication], pairing: Pairing) -> None:
        self._closure = Closure(matching, facts)
        self._pairing = pairing
        self._named = [
            {value.name: value for node in side.nodes for value in node.outputs}
            for side in (matching.reference, matching.candidate)
        ]

    def show(self, segment: Segment) -> bool:
        """Return whether a segment has equal ends; from now on they are a start of others."""
        ends = [
            None if value is None else named.get(value.name)
            for value, named in zip(segment.values, self._named, strict=True)
        ]
        if ends[0] is None or ends[1] is None:
            return False
        if segment.is_output:
            return self._closure.equal((ends[0], ends[1]))
        ours, theirs = (_forward(end) for end in (ends[0], ends[1]))
        codes = product(_behind_clips(ours), _behind_clips(theirs))
        is_shown = any(map(self._closure.equal, codes))
        for pair in product(ours, theirs):
            if self._follows(pair):
                self._closure.assume(pair)
        return is_shown

    def _follows(self, pair: Pair) -> bool:
        """Return whether two values are equal if the codes are."""
        a, b = pair
        return a.dtype is b.dtype and self._pairing.are_equal(str(a.name), str(b.name))


def _forward(end: ir.Value) -> list[ir.Value]:
    """Return a value and those that only it is decoded to."""
    found = [end]
    while len(found) < _FORWARD:
        users = list(found[-1].consumers())
        kind = found[-1].dtype
        limits_codes = bool(users) and _is_clip(users[0]) and kind is not None and kind.is_integer()
        if len(users) != 1 or not (users[0].op_type in _DECODING or limits_codes):
            break
        found.append(users[0].outputs[0])
    return found


def _behind_clips(values: list[ir.Value]) -> list[ir.Value]:
    """Return the values from the last Clip on: codes before it may differ from those used."""
    clips = [i for i, value in enumerate(values) if _is_clip(value.producer())]
    return values[max(clips, default=0) :]


def _is_clip(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Clip"
