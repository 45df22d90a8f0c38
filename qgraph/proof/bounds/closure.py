"""Deduce equal and corresponding values of two models from some facts alone.

``Closure`` decides which values are equal if only some claims hold. ``Context`` decides whether
both models are the same function of values that differ: the reference is C[u], the candidate is
C[v], and u and v are the only difference.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import product

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.graph.interface import Pair
from qgraph.graph.schema import OpKey
from qgraph.proof.bounds.distances import distance
from qgraph.proof.bounds.evaluate import Evaluation
from qgraph.proof.bounds.executed import Finished, compare, program_of
from qgraph.proof.bounds.quantity import Quantity
from qgraph.proof.bounds.roundings import source_of
from qgraph.proof.bounds.segment import Segment
from qgraph.proof.bounds.segments import Pairing
from qgraph.proof.matching.classes import Class
from qgraph.proof.matching.match import Matching
from qgraph.proof.matching.zero_signs import distinguishes_signed_zeros
from qgraph.records import dataclass

_MOST_CORRESPONDING = 200_000


@dataclass(frozen=True)
class Implication:
    """Two values that are equal if all pairs of entries are equal."""

    values: Pair
    entries: Sequence[Pair] = ()


class Closure:
    """The equality of values that follows by congruence from facts alone, and not from claims."""

    def __init__(self, matching: Matching, facts: Iterable[Implication]) -> None:
        self._classes = matching.without_claims()
        self._waiting: dict[Class, dict[int, Implication]] = {}
        self._seen = len(self._classes.absorbed())
        self._conclude([*facts, *(Implication(*pairs) for pairs in matching.runs_graphs)])

    def assume(self, pair: Pair) -> None:
        """Add that two values are equal to the facts."""
        self._classes.merge(pair)
        self._conclude([])

    def _conclude(self, facts: list[Implication]) -> None:
        """Merge facts until nothing more follows.

        A fact waits for the classes of two entries that differ; they are equal only after one of
        these classes became part of another.
        """
        absorbed = self._classes.absorbed()
        while True:
            while self._seen < len(absorbed):
                facts += self._waiting.pop(absorbed[self._seen], {}).values()
                self._seen += 1
            if not facts:
                return
            fact = facts.pop()
            differing = next((pair for pair in fact.entries if not self.equal(pair)), None)
            if differing is None:
                self._classes.merge(fact.values)
            else:
                for each in self._classes.classes(differing):
                    self._waiting.setdefault(each, {})[id(fact)] = fact

    def equal(self, pair: Pair) -> bool:
        """Return whether two values are equal if the facts hold."""
        return self._classes.equal(pair)


class Ways:
    """The ways in which two values of two models may correspond.

    Two values correspond if they are proved equal, or if equal operators compute them from
    corresponding values.
    """

    def __init__(self, matching: Matching, closure: Closure, proved: Sequence[Implication]) -> None:
        self._matching = matching
        self._closure = closure
        self._proved: dict[Pair, list[Implication]] = {}
        for fact in proved:
            self._proved.setdefault(fact.values, []).append(fact)
        self._known: dict[Pair, list[list[Pair]]] = {}

    def of(self, pair: Pair) -> list[list[Pair]]:
        """Return lists of pairs; two values correspond if all pairs of one list do."""
        if pair not in self._known:
            claimed = [list(fact.entries) for fact in self._proved.get(pair, ())]
            equal = self._closure.equal(pair)
            self._known[pair] = [[]] if equal else claimed + self._matching.ways(pair)
        return self._known[pair]


class Context:
    """The correspondence of values of two models that differ in some pairs of values only.

    Unlike equality, this is not transitive. ``differing`` pairs correspond although they differ.
    """

    def __init__(self, ways: Ways, differing: Iterable[Pair]) -> None:
        self._ways = ways
        self._corresponds: dict[Pair, bool] = dict.fromkeys(differing, True)

    def holds(self, pair: Pair) -> bool:
        """Return whether two values correspond."""
        stack = [pair]
        while stack:
            top = stack[-1]
            if top not in self._corresponds:
                if len(self._corresponds) > _MOST_CORRESPONDING:
                    return False
                ways = self._ways.of(top)
                undecided = [p for way in ways for p in way if p not in self._corresponds]
                if undecided:
                    stack += undecided
                    continue
                self._corresponds[top] = any(all(self._corresponds[p] for p in w) for w in ways)
            stack.pop()
        return self._corresponds[pair]


_FORWARD = 4
"""Maximum number of values from codes to their decoded value."""

_MOST_FORWARD = 12
"""Maximum number of values from codes to the result of float operations on their values."""

_OF_ELEMENTS = frozenset({"Add", "Div", "Mul", "Sub", "Where"})
"""Operators that compute a decoded value from the values of codes, element by element."""

_MOST_PAIRS = 256
"""Maximum number of pairs of values that are traced back from one."""

_DECODING = frozenset(
    {OpKey("", name) for name in ("Cast", "DequantizeLinear", "Identity")}
    | {OpKey("com.microsoft", "DequantizeLinear")}
)


_Trace = Generator[Pair, bool | None, bool]
"""Yields pairs, is sent whether they are equal, and returns whether its own pair is."""


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
        pair = zip((ends[0], ends[1]), self._evaluations(), strict=True)
        ours, theirs = (decoded_from(end, side) for end, side in pair)
        codes = product(_behind_clips(ours), _behind_clips(theirs))
        equal = filter(self._closure.equal, codes)
        is_shown = any(_need_equal_codes(*self._found(pair)) for pair in equal)
        for a, b in product(ours, theirs):
            # values follow from equal codes
            if a.dtype is b.dtype and _give_equal(*self._found((a, b))):
                self._closure.assume((a, b))
        return is_shown and not segment.extra.any()

    def _found(self, pair: Pair) -> list[Quantity | None]:
        ours, theirs = pair
        return self._pairing.found(str(ours.name), str(theirs.name))

    def _evaluations(self) -> tuple[Evaluation, Evaluation]:
        return self._pairing.reference, self._pairing.candidate

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
        stack, answer = [self._traced(pair, decided)], False
        given: bool | None = None
        while stack:  # chains of nodes are longer than those of calls may be
            try:
                needed = stack[-1].send(given)
            except StopIteration as end:
                stack.pop()
                given = answer = end.value
            else:
                stack.append(self._traced(needed, decided))
                given = None
        return answer

    def _traced(self, pair: Pair, decided: dict[Pair, bool]) -> _Trace:
        if pair not in decided:
            decided[pair] = self._closure.equal(pair)
            if not decided[pair] and len(decided) < _MOST_PAIRS:
                decided[pair] = yield from self._is_computed_alike(pair)
                if decided[pair]:
                    self._closure.assume(pair)
        return decided[pair]

    def _is_computed_alike(self, pair: Pair) -> _Trace:
        if self._are_constants(pair):
            compared = self._matching.compare_constants(pair)
            return compared is not None and Exactness.of(compared[0]) is Exactness.BITS
        for way in self._matching.ways(pair):
            for needed in way:
                if not (yield needed):
                    break
            else:
                return True
        return False

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


def decoded_from(end: ir.Value, side: Evaluation | None = None) -> list[ir.Value]:
    """Return a value, and values decoded from it alone that still distinguish all its codes.

    ``side`` evaluates its model, so that float operations can be followed, too.
    """
    values = _decoded(end)
    while side is not None and len(values) < _MOST_FORWARD:
        users = list(values[-1].consumers())
        if len(users) != 1 or users[0].domain or users[0].op_type not in _OF_ELEMENTS:
            break
        ((following, *_),) = (user.outputs for user in users)
        if not _tells_codes(side, following):
            break
        values.append(following)
    return values


def _tells_codes(side: Evaluation, value: ir.Value) -> bool:
    """Return whether the executed numbers of different codes differ."""
    own = side.named.get(value.name)
    data = None if own is None else side.known(own)
    if not isinstance(data, Quantity) or data.value is not None:
        return False
    terms = [(factor, atom) for factor, atom in data.meant.terms if factor.any()]
    if len(terms) != 1 or source_of(terms[0][1]).kind != "codes":
        return False
    return bool((2 * data.error < np.abs(terms[0][0])).all())


def _give_equal(ours: Quantity | None, theirs: Quantity | None) -> bool:
    """Return whether values of both models are equal, given equal codes."""
    programs = [None if data is None else program_of(data) for data in (ours, theirs)]
    if programs[0] is None or programs[1] is None:
        return False
    counted = compare(Finished(programs[0]), Finished(programs[1]), has_steps=False)
    return counted is not None and not counted.differing


def _need_equal_codes(ours: Quantity | None, theirs: Quantity | None) -> bool:
    """Return whether decoded values of both models are equal only if their codes are.

    So their distance, given equal codes, must be less than the step of a code.
    """
    if ours is None or theirs is None:
        return False
    terms = [(np.abs(c), atom.kind) for c, atom in ours.meant.terms if c.any()]
    if not terms or (len(terms) > 1 and any(kind != "placed" for _, kind in terms)):
        return False
    step = min(size[size > 0].min() for size, _ in terms)
    apart = distance(ours.meant, theirs.meant) + ours.error + theirs.error
    return bool((apart < step).all())


def _decoded(end: ir.Value) -> list[ir.Value]:
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
