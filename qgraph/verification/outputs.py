"""Whether the outputs of two models are equal if the regions of a certificate are.

Two values are equal if a region says so and its entries are equal, if they are equal constants, or
if one operator makes them of equal values. Nothing rests on itself: a pair that is met again on the
way to its own proof counts as not shown.

Equal means equal in bits, or but for the sign of zeros. The latter passes through operators that do
not tell zeros apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from enum import IntEnum

import onnx_ir as ir

from qgraph.certification.certificate import ProofVerdict
from qgraph.graph.scopes import subgraphs
from qgraph.matching.canonical import forms, is_commutative
from qgraph.matching.interface import conflict
from qgraph.matching.randomness import is_random
from qgraph.numerics.values import fingerprint
from qgraph.verification.outcome import Claim
from qgraph.verification.sides import Pair, Side, node_name
from qgraph.verification.statements import fails
from qgraph.verification.zeros import makes_zeros_alike, tells_zeros_apart


class Equal(IntEnum):
    """How equal two values were shown to be."""

    NOT = 0
    VALUES = 1
    BITS = 2


Way = Generator[Pair, Equal, Equal]


class Outputs:
    """Follows outputs back to inputs.

    Args:
        sides: the models.
        claims: what regions say, each checked by itself.
        inputs: pairs of inputs.
        is_proof: whether the certificate says that the outputs are equal; in any other one, the
            sign of zeros is let pass.
        differing: pairs that are let pass though they differ.
        equal: what is equal if nothing is let pass; chains of equal values are followed there only,
            as what corresponds in this way is not transitive.

    Attributes:
        used: numbers of the statements on which something rests.
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        claims: Sequence[Claim],
        inputs: Sequence[Pair],
        *,
        is_proof: bool,
        differing: Sequence[Pair] = (),
        equal: Outputs | None = None,
    ) -> None:
        self._sides = sides
        self._is_proof = is_proof
        self._claims: dict[tuple[int, int], list[Claim]] = {}
        self._listed = claims
        for claim in claims:
            self._claims.setdefault(self._key(*claim.values), []).append(claim)
        self._inner = Equal.VALUES if any(claim.may_lose_signs for claim in claims) else Equal.BITS
        self._found: dict[tuple[int, int], Equal] = {
            self._key(a, b): Equal.BITS for a, b in inputs if conflict(a, b) is None
        }
        self._found.update((self._key(a, b), Equal.VALUES) for a, b in differing)
        self._equal = equal
        self._problem = ""
        self.used: set[int] = set()

    def check(self, pairs: Sequence[Pair]) -> None:
        """See that pairs are equal.

        Raises:
            EquivalenceError: it does not follow that they are.
        """
        for a, b in pairs:
            if self._follow(a, b) is Equal.NOT:
                raise fails(
                    self._problem
                    or f"nothing in it makes {a.name!r} equal to {b.name!r}, which is an output"
                )

    def holds(self, pair: Pair) -> bool:
        """Return whether it follows that two values are equal."""
        return self._follow(*pair) is not Equal.NOT

    def _follow(self, a: ir.Value, b: ir.Value) -> Equal:
        """Return how equal two values are; the ways wait on a stack of their own."""
        start = self._key(a, b)
        stack: list[tuple[tuple[int, int], Way]] = []
        answer: Equal | None = None
        if start not in self._found:
            self._found[start] = Equal.NOT  # until it is shown
            stack.append((start, self._way(a, b)))
        while stack:
            key, way = stack[-1]
            try:
                needed = next(way) if answer is None else way.send(answer)
            except StopIteration as end:
                self._found[key] = answer = end.value
                stack.pop()
                continue
            place = self._key(*needed)
            answer = self._found.get(place)
            if answer is None:
                self._found[place] = Equal.NOT
                stack.append((place, self._way(*needed)))
        return self._found[start]

    def _key(self, a: ir.Value, b: ir.Value) -> tuple[int, int]:
        return self._sides[0].form(a), self._sides[1].form(b)

    def _way(self, a: ir.Value, b: ir.Value) -> Way:
        """Yield the pairs that two values may owe their equality to; return how equal they are."""
        if self._equal is not None and self._equal.holds((a, b)):
            return Equal.VALUES
        best = Equal.NOT
        for claim in self._claims.get(self._key(a, b), ()):
            best = max(best, (yield from self._by_claim(claim)))
        if best is not Equal.NOT:
            return best
        written = a, b
        a, b = (side.origin(value) for side, value in zip(self._sides, written, strict=True))
        if self._are_equal_constants(a, b):
            return Equal.BITS
        best = yield from self._by_operator(a, b)
        if best is Equal.NOT and (a, b) != written:
            # an operator that hands its operand on may stand on both sides
            best = yield from self._by_operator(*written)
        if best is Equal.NOT and self._equal is None:
            best = yield from self._by_chain(a, b)
        if best is Equal.NOT and not self._problem:
            self._problem = (
                f"nothing in it makes {a.name!r} equal to {b.name!r}, which the outputs rest on"
            )
        return best

    def _by_claim(self, claim: Claim) -> Way:
        statement = claim.statement
        self.used.add(claim.number)
        if statement.verdict is ProofVerdict.UNDECIDED:
            # its operands were compared all the same
            first, second = (value.producer() for value in claim.values)
            if first is not None and second is not None and first.op_type == second.op_type:
                for a, b in zip(first.inputs, second.inputs, strict=False):
                    if a is not None and b is not None:
                        yield a, b
            return Equal.VALUES
        level = Equal.VALUES if claim.may_lose_signs else Equal.BITS
        for entry in claim.entries:
            before = yield entry
            if before is Equal.VALUES and claim.tells_zeros_apart and self._is_proof:
                self._problem = (
                    f"region {statement.values[0]!r} -> {statement.values[1]!r} tells zeros apart "
                    "whose signs the models do not share"
                )
                return Equal.NOT
            level = min(level, before)
        return level

    def _by_operator(self, a: ir.Value, b: ir.Value) -> Way:
        first, second = a.producer(), b.producer()
        if first is None or second is None or not self._are_one_operator(first, second):
            return Equal.NOT
        if list(first.outputs).index(a) != list(second.outputs).index(b):
            return Equal.NOT
        ours, theirs = (
            forms(node, side.plain.imports)
            for node, side in zip((first, second), self._sides, strict=True)
        )
        best = Equal.NOT
        for one, other in itertools.product(ours, theirs):
            if one.label != other.label or len(one.operands) != len(other.operands):
                continue
            orders = [other.operands]
            if len(other.operands) == 2 and is_commutative(one.label):
                orders.append(other.operands[::-1])
            for order in orders:
                if best is Equal.NOT:
                    best = yield from self._by_operands(first, one.operands, order)
        if best is not Equal.NOT:
            best = min(best, (yield from self._by_graphs(first, second)))
        if best is Equal.VALUES and a.dtype is not None and not a.dtype.is_floating_point():
            return Equal.BITS
        if best is Equal.VALUES and makes_zeros_alike(first):
            return Equal.BITS
        return best

    def _by_operands(
        self, node: ir.Node, ours: Sequence[ir.Value], theirs: Sequence[ir.Value]
    ) -> Way:
        level = Equal.BITS
        for mine, other in zip(ours, theirs, strict=True):
            before = yield mine, other
            if before is Equal.NOT:
                return Equal.NOT
            if before is Equal.VALUES and self._is_proof:
                places = [i for i, value in enumerate(node.inputs) if value is mine]
                if any(tells_zeros_apart(node, place) for place in places):
                    self._problem = (
                        f"node {node_name(node)!r}: {node.op_type} sees the sign of zeros, which "
                        "the models do not share"
                    )
                    return Equal.NOT
            level = min(level, before)
        return level

    def _by_graphs(self, first: ir.Node, second: ir.Node) -> Way:
        """Follow the results of the graphs that two nodes run, on inputs taken for equal."""
        level = Equal.BITS
        for name, attribute in first.attributes.items():
            if not subgraphs(attribute):
                continue  # an attribute with a default may be absent in the other node
            graphs = subgraphs(attribute), subgraphs(second.attributes[name])
            for mine, other in zip(*graphs, strict=True):
                for x, y in zip(mine.inputs, other.inputs, strict=True):
                    self._found[self._key(x, y)] = self._inner
                for pair in zip(mine.outputs, other.outputs, strict=True):
                    level = min(level, (yield pair))
        return level

    def _by_chain(self, a: ir.Value, b: ir.Value) -> Way:
        """Go over the values of a claim: a = d, c = d and c = b.

        In a proof the other two are claimed as well. Where values that differ were taken for equal,
        whatever follows from that is.
        """
        mine, other = self._key(a, b)
        for claim in self._listed:
            c, d = claim.values
            near, far = self._key(c, b), self._key(a, d)
            claimed = near in self._claims and far in self._claims
            if (near[0], far[1]) == (mine, other) or (self._is_proof and not claimed):
                continue
            level = Equal.BITS
            for pair in ((a, d), (c, d), (c, b)):
                if level is not Equal.NOT:
                    level = min(level, (yield pair))
            if level is not Equal.NOT:
                return level
        return Equal.NOT

    def _are_equal_constants(self, a: ir.Value, b: ir.Value) -> bool:
        if not (self._sides[0].known.has(a) and self._sides[1].known.has(b)):
            return False
        one, other = self._sides[0].known.array(a), self._sides[1].known.array(b)
        return one is not None and other is not None and fingerprint(one) == fingerprint(other)

    def _are_one_operator(self, first: ir.Node, second: ir.Node) -> bool:
        if any(
            is_random(node, side.plain.imports)
            for node, side in zip((first, second), self._sides, strict=True)
        ):
            return False
        one, other = (
            [
                (name, len(graph.inputs), len(graph.outputs))
                for name, attribute in sorted(node.attributes.items())
                for graph in subgraphs(attribute)
            ]
            for node in (first, second)
        )
        return one == other
