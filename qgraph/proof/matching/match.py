"""Match two models: collect the claims whose proof makes their outputs equal.

All values start in classes by the operators that compute them
(:mod:`qgraph.proof.matching.classes`). Beginning at the outputs, two values that should be equal
but are in different classes are reduced to a claim that can be proved alone: about two constants,
or about a region that computes both values from a pair of equal values. Each is an
:class:`EqualityClaim`. Its values are then assumed equal, so that later differences are found too.
Each claim depends on earlier claims only.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterator
from enum import StrEnum
from itertools import islice

import onnx_ir as ir

from qgraph.exactness import Exactness, Witness
from qgraph.graph.interface import Pair, are_equal_defaults, conflict
from qgraph.graph.scopes import graphs_of
from qgraph.graph.slices import Dominators, ValueChain, ancestors, nearest_cut, sources
from qgraph.numerics.values import Comparison
from qgraph.ops.known_values import KnownValues
from qgraph.proof.matching.classes import MatchedModel, ValueClasses
from qgraph.proof.matching.constant_rows import compare_constants
from qgraph.proof.matching.normalise import NormalisedModel
from qgraph.proof.matching.operators import is_moving, is_reshape
from qgraph.proof.matching.zero_signs import distinguishes_signed_zeros
from qgraph.records import dataclass

_MOST = 64
"""Maximum number of values to search for the two inputs of a region."""

_NEAR = 64
"""Number of the nearest values of a chain that are searched first for entries of a region."""


class Kind(StrEnum):
    """Method by which a claim is proved."""

    CONSTANT = "constant"
    REGION = "region"
    JOINT = "joint"
    OPEN = "open"


@dataclass(frozen=True, eq=False)
class EqualityClaim:
    """Two values whose equality is needed to prove the models equal.

    Attributes:
        kind: constants are compared by value, regions over all inputs, joint regions over all pairs
            of codes of their two inputs. An open claim cannot be proved.
        reference, candidate: the values.
        entries: for a region, pairs of equal values from which both values can be computed, the
            nearest first, and the farthest. For a joint region, the two pairs from which both are
            computed.
        reason: why the claim is open.
    """

    kind: Kind
    reference: ir.Value
    candidate: ir.Value
    entries: tuple[Pair, ...] = ()
    reason: str = ""

    @property
    def values(self) -> Pair:
        """Both values."""
        return self.reference, self.candidate


class Matching(ValueClasses):
    """Two models, the classes of their values, and the claims that the classes depend on.

    ``by_name``, equality is first tried for values of the same name, which gives smaller regions.
    If it ``splits``, operands of equal operators that join several values are compared, and not
    their results.

    Attributes:
        is_hinted: whether names were used.
        has_joins: whether ``splits`` makes a difference.
        claims: the claims to prove.
        notes: remarks, such as inputs that were matched by position.
        runs_graphs: pairs of results of nodes with subgraphs, each with the pairs of operands and
            of subgraph results whose equality it depends on.

    Raises:
        ModelError: the models have different inputs or outputs.
    """

    def __init__(
        self,
        reference: NormalisedModel,
        candidate: NormalisedModel,
        *,
        by_name: bool = True,
        splits: bool = False,
    ) -> None:
        super().__init__(*(MatchedModel(p, KnownValues(p.imports)) for p in (reference, candidate)))
        self._by_name, self._splits = by_name, splits
        self.is_hinted = self.has_joins = False
        self.claims: list[EqualityClaim] = []
        self.runs_graphs: list[tuple[Pair, tuple[Pair, ...]]] = []
        self._chains = [Dominators(side.operands) for side in (self.reference, self.candidate)]
        self._named: dict[ValueChain, ValueChain] = {}
        self._compared: dict[Pair, tuple[Comparison, Witness | None] | None] = {}
        self.notes = self.interface.notes
        pairs = self.interface.defaults
        self.claims += [
            EqualityClaim(Kind.OPEN, a, b, reason=f"the defaults of input {a.name!r} differ")
            for a, b in pairs
            if not are_equal_defaults(a, b)
        ]
        self.claims += [
            EqualityClaim(Kind.OPEN, a, b, reason=text)
            for a, b in self.interface.inputs + pairs
            if (text := conflict(a, b)) is not None
        ]
        for pair in self.interface.outputs:
            self._resolve_all(pair)

    def others(self) -> Iterator[Matching]:
        """Yield matchings of the same models with larger or smaller regions."""
        sides = self.reference.normalised, self.candidate.normalised
        if self.is_hinted:
            yield Matching(*sides, by_name=False)
        if self.has_joins:
            yield Matching(*sides, by_name=False, splits=True)

    def named(self) -> Matching | None:
        """Return the matching of the same models that uses names, if this one does not."""
        sides = self.reference.normalised, self.candidate.normalised
        return None if self._by_name else Matching(*sides)

    def _resolve_all(self, pair: Pair) -> None:
        stack = [iter([pair])]
        while stack:
            needed = next(stack[-1], None)
            if needed is None:
                stack.pop()
            elif not self.equal(needed):
                stack.append(self._resolve(needed))

    def _resolve(self, pair: Pair) -> Iterator[Pair]:
        """Add the claim that two values are equal, after yielding the pairs that it depends on."""
        a, b = pair
        if self.reference.known.has(a) and self.candidate.known.has(b):
            node = a.producer()
            if node is not None and is_moving(node) and self.mismatch(pair) is None:
                yield from self._rest_on_operands(pair)
            else:
                self._settle(Kind.CONSTANT, pair)
            return
        if self._needs_no_region(pair):
            yield from self._rest_on_operands(pair)
            return
        ours, theirs = (chains.of(value) for chains, value in zip(self._chains, pair, strict=True))
        first = ours.last, theirs.last
        if first != pair:
            types = {value.dtype for value in first}
            if len(types) > 1 and None not in types:
                # One side joins codes where the other joins real numbers.
                is_settled = yield from self._resolve_codes(pair, ours, theirs)
                if is_settled:
                    return
            yield first
            yield from self._namesakes(ours, theirs)
            if self.equal(pair):
                return
            if self._joins(pair):
                yield from self._rest_on_operands(pair)
                return
            if entries := self._common(ours, theirs):
                self._settle(Kind.REGION, pair, entries)
                return
        yield from self._rest_on_operands(pair)

    def _namesakes(self, ours: ValueChain, theirs: ValueChain) -> Iterator[Pair]:
        """Yield pairs of values of two chains with equal names and types, the farthest first.

        All pairs after a yielded pair were yielded before it.
        """
        if not self._by_name or self._named.get(ours) is theirs:
            return
        near = list(_links(ours.rest, self._named))
        end = self._named.get(near[-1]) if near else None
        named = {c.value.name: c for c in _links(theirs.rest, () if end is None else (end,))}
        pairs = [(c, named[c.value.name]) for c in near if c.value.name in named]
        for mine, other in reversed(pairs):
            a, b = mine.value, other.value
            if None in (a.dtype, b.dtype) or a.dtype == b.dtype:
                self.is_hinted = True
                self._named[mine] = other
                yield a, b

    def _joins(self, pair: Pair) -> bool:
        """Return whether to compare the operands of two results instead of the results.

        This is so if equal operators join several values, and either the values have equal names or
        ``splits`` is true.
        """
        first, second = (value.producer() for value in pair)
        if first is None or second is None or self.mismatch(pair) is not None:
            return False
        constant = self.reference.known.has, self.candidate.known.has
        joined = {
            (a, b)
            for a, b in self._operand_pairs(first, second)
            if not (constant[0](a) or constant[1](b))
        }
        if len(joined) < 2:
            return False
        is_named = self._by_name and all(
            (a.name == b.name and a.dtype is b.dtype) or self.equal((a, b)) for a, b in joined
        )
        self.is_hinted |= is_named
        self.has_joins |= not is_named
        return is_named or self._splits

    def _resolve_codes(
        self, pair: Pair, ours: ValueChain, theirs: ValueChain
    ) -> Generator[Pair, None, bool]:
        """Claim two values by the codes that they are computed from; return whether possible."""
        entries, codes = self._joint_entries(pair), _farthest_codes(ours, theirs)
        if entries is None and codes is not None and codes != pair:
            yield codes
            if common := self._common(ours, theirs):
                if not self.equal(pair):
                    self._settle(Kind.REGION, pair, common)
                return True
        if entries is None:
            yield from self._code_pairs(pair)
            entries = self._joint_entries(pair)
        if entries is not None:
            self._settle(Kind.JOINT, pair, entries)
        return entries is not None

    def _needs_no_region(self, pair: Pair) -> bool:
        """Return whether equal operators compute both values from constants of equal values.

        The constants may be reshaped, or have zeros of different signs if the operator does not
        distinguish them.
        """
        first, second = (value.producer() for value in pair)
        if first is None or second is None or self.mismatch(pair) is not None:
            return False
        one, other = self._common_operands(first, second)
        pairs = zip(one.operands, other.operands, strict=True)
        differing = [p for p in pairs if self.reference.known.has(p[0]) and not self.equal(p)]
        if distinguishes_signed_zeros(first, [ours for ours, _ in differing]):
            return False
        return all(map(self.have_equal_values, differing)) and bool(differing or is_reshape(first))

    def have_equal_values(self, pair: Pair) -> bool:
        """Return whether two constants are equal, except for signs of zeros."""
        compared = self.compare_constants(pair)
        return compared is not None and Exactness.of(compared[0]) >= Exactness.VALUES

    def compare_constants(self, pair: Pair) -> tuple[Comparison, Witness | None] | None:
        """Return the comparison of two constants, and a differing element, computed once."""
        if pair not in self._compared:
            sides = (self.reference.known, pair[0]), (self.candidate.known, pair[1])
            self._compared[pair] = compare_constants(*sides)
        return self._compared[pair]

    def _common(self, ours: ValueChain, theirs: ValueChain) -> tuple[Pair, ...]:
        """Return the equal pairs among the dominators of two values, the nearest first.

        Of long chains, only the nearest pairs and the farthest values are examined.
        """
        near, pairs = _NEAR, dict[Pair, None]()
        while True:
            sides = [list(islice(chain, near)) for chain in (ours, theirs)]
            candidates = {
                self.class_of(self.candidate, value): value for value in reversed(sides[1])
            }
            for value in sides[0]:
                other = candidates.get(self.class_of(self.reference, value))
                if other is not None and (value, other) != (ours.value, theirs.value):
                    pairs[value, other] = None
            if pairs or max(map(len, sides)) < near:
                break
            near *= 2
        farthest = ours.last, theirs.last
        if farthest != (ours.value, theirs.value) and self.equal(farthest):
            pairs[farthest] = None
        return tuple(pairs)

    def _rest_on_operands(self, pair: Pair) -> Iterator[Pair]:
        """Claim that two results of one operator are equal because their operands are."""
        first, second = (value.producer() for value in pair)
        reason = self.mismatch(pair)
        operands: tuple[Pair, ...] = ()
        names = {node.op_type for node in (first, second) if node is not None}
        if first is not None and second is not None and (reason is None or len(names) == 1):
            # differences before two nodes are reported even if the operators differ
            operands = tuple(self._operand_pairs(first, second))
        elif self._by_name and reason is not None:
            operands = tuple(self._named_before(pair))
            self.is_hinted |= bool(operands)
        yield from operands
        if reason is not None or first is None or second is None:
            entries = self._joint_entries(pair)
            if entries is not None:
                self._settle(Kind.JOINT, pair, entries)
            else:
                self._settle(Kind.OPEN, pair, reason=reason or "")
            return
        if graphs_of(first):
            results = self._enter_bodies(first, second)
            yield from results
            self.runs_graphs.append((pair, (*operands, *results)))
        self.merge(pair)

    def _named_before(self, pair: Pair) -> Iterator[Pair]:
        """Yield the nearest values with equal names and types that two values are computed from."""
        a, b = pair
        named = {value.name: value for value in ancestors([b], most=_MOST) if value is not b}

        def namesake(value: ir.Value) -> ir.Value | None:
            other = named.get(value.name)
            is_like = other is not None and value is not a and _may_be_equal(value, other)
            return other if is_like and not self.reference.known.has(value) else None

        for value in ancestors([a], lambda v: () if namesake(v) else sources(v), most=_MOST):
            other = namesake(value)
            if other is not None and not self.candidate.known.has(other):
                yield value, other

    def _code_pairs(self, pair: Pair) -> Iterator[Pair]:
        """Yield the nearest codes from which two values are computed, if both have two."""
        ours, theirs = (
            nearest_cut(value, _are_codes, side.joined, most=_MOST) or []
            for value, side in zip(pair, (self.reference, self.candidate), strict=True)
        )
        if not len(ours) == len(theirs) == 2:
            return
        crossed = list(zip(ours, theirs[::-1], strict=True))
        is_crossed = self._by_name and any(x.name == y.name for x, y in crossed)
        pairs = crossed if is_crossed else zip(ours, theirs, strict=True)
        yield from ((x, y) for x, y in pairs if x.dtype is y.dtype)

    def _joint_entries(self, pair: Pair) -> tuple[Pair, ...] | None:
        """Return the two pairs of equal values from which both are computed, if there are two."""
        sides = list(zip(pair, (self.reference, self.candidate), strict=True))
        nearest = [
            {self.class_of(side, v): v for v in reversed(ancestors([end], side.joined, most=_MOST))}
            for end, side in sides
        ]
        shared = nearest[0].keys() & nearest[1].keys()
        cuts = []
        for end, side in sides:

            def is_shared(value: ir.Value, side: MatchedModel = side) -> bool:
                return self.class_of(side, value) in shared

            cut = nearest_cut(end, is_shared, side.joined, most=_MOST)
            cuts.append(None if cut is None else {self.class_of(side, value) for value in cut})
        if cuts[0] is None or cuts[0] != cuts[1] or len(cuts[0]) != 2:
            return None
        return tuple((nearest[0][key], nearest[1][key]) for key in sorted(cuts[0]))

    def _settle(
        self, kind: Kind, pair: Pair, entries: tuple[Pair, ...] = (), reason: str = ""
    ) -> None:
        self.claims.append(EqualityClaim(kind, *pair, entries, reason))
        self.merge(pair)


def _links(chain: ValueChain | None, ends: Container[ValueChain] = ()) -> Iterator[ValueChain]:
    """Yield a chain and the chains before it, up to the first one of ``ends``."""
    while chain is not None:
        yield chain
        chain = None if chain in ends else chain.rest


def _may_be_equal(a: ir.Value, b: ir.Value) -> bool:
    """Return whether one operator computes two values of one type, or a quantizer computes one."""
    nodes = [node for node in (a.producer(), b.producer()) if node is not None]
    is_quantized = any(node.domain or node.op_type == "DequantizeLinear" for node in nodes)
    return a.dtype is b.dtype and (is_quantized or len({node.op_type for node in nodes}) == 1)


def _farthest_codes(ours: ValueChain, theirs: ValueChain) -> Pair | None:
    """Return the farthest integer values of two chains, if they have the same type."""
    last = [code for chain in (ours, theirs) for code in list(filter(_are_codes, chain))[-1:]]
    return None if len(last) < 2 or last[0].dtype is not last[1].dtype else (last[0], last[1])


def _are_codes(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()
