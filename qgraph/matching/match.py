"""Matching two graphs from their inputs, and what remains to be shown where they differ.

Values are in one class where equal operators make them from equal values. Beginning at the outputs,
values that should be equal and are in two classes are followed back until something is found that
can be shown alone: two constants, or two regions that compute both values from one pair of equal
values. Each finding is a :class:`Claim`; further on its values are taken for equal. Claims come in
an order in which each rests on earlier ones only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.exactness import Exactness, Witness
from qgraph.execution.executor import Imports
from qgraph.graph.scopes import subgraphs
from qgraph.graph.topology import gates
from qgraph.matching.canonical import (
    Form,
    common_form,
    forms,
    is_commutative,
    is_identity,
    label,
)
from qgraph.matching.congruence import Class, Congruence
from qgraph.matching.constant_rows import compare_constants
from qgraph.matching.elementwise import is_moving, is_reshape, joined, operands
from qgraph.matching.interface import conflict
from qgraph.matching.known_values import KnownValues
from qgraph.matching.plain import Plain
from qgraph.matching.randomness import is_random
from qgraph.matching.sum_rewrites import rewritten_sum
from qgraph.matching.zero_sight import sees
from qgraph.numerics.values import Comparison, fingerprint

_HASHED_BYTES = 1 << 24
"""Constants of more bytes are compared only where two of them meet."""

_CONE = 64
"""Two inputs of a region are sought among so many values."""

Pair = tuple[ir.Value, ir.Value]
Array = npt.NDArray[Any]


class Kind(StrEnum):
    """How a claim is to be shown."""

    CONSTANT = "constant"
    REGION = "region"
    JOINT = "joint"
    OPEN = "open"


@dataclass(frozen=True, eq=False)
class Claim:
    """Two values that have to be equal if the models are.

    Attributes:
        kind: constants by value, regions over all inputs, those with two inputs over all pairs of
            codes, and nothing for an open one.
        reference, candidate: the values.
        entries: of a region, pairs of equal values from which both can be computed, the nearest
            first; of a joint one, the two pairs from which they are.
        reason: why it is open.
    """

    kind: Kind
    reference: ir.Value
    candidate: ir.Value
    entries: tuple[Pair, ...] = ()
    reason: str = ""


class Side:
    """One of the two models while it is matched.

    Attributes:
        plain: the model.
        known: its constants.
        classes: the class of each value that was met.
        nodes: all nodes, those in graphs of attributes included.
    """

    def __init__(self, plain: Plain, known: KnownValues | None = None) -> None:
        self.plain = plain
        self.known = KnownValues(plain.imports) if known is None else known
        self.classes: dict[ir.Value, Class] = {}
        self.nodes: list[ir.Node] = []
        self._operands: dict[ir.Value, list[ir.Value]] = {}

    def operands(self, value: ir.Value) -> list[ir.Value]:
        """Return what an elementwise operator makes ``value`` of; nothing for other values."""
        found = self._operands.get(value)
        if found is None:
            found = self._operands[value] = operands(value, self.known.has)
        return found


class Matching:
    """Two models and the classes of their values.

    Args:
        reference: one model.
        candidate: the other one.
        by_name: look first whether values of one name, on the way to values that should be equal,
            are equal; regions are smaller then.

    Attributes:
        reference, candidate: the two sides.
        is_hinted: whether names were looked at.
        claims: what has to be shown.
        notes: remarks, such as inputs that were matched by position.
        runs_graphs: results of pairs of nodes that run graphs, and the pairs of operands and of
            results of these graphs on whose equality theirs rests.

    Raises:
        ModelError: the models have different inputs or outputs.
    """

    def __init__(self, reference: Plain, candidate: Plain, *, by_name: bool = True) -> None:
        self._begin(Side(reference), Side(candidate), by_name=by_name)
        for pair in self.outputs:
            self._resolve_all(pair)

    def _begin(self, reference: Side, candidate: Side, *, by_name: bool) -> None:
        """Give each value of the main graphs its class, by form alone."""
        self._by_name = by_name
        self.is_hinted = False
        self._congruence = Congruence(is_commutative)
        self._constants: dict[Hashable, Class] = {}
        self._entered: dict[tuple[ir.Node, ir.Node], None] = {}
        self.reference, self.candidate = reference, candidate
        self.claims: list[Claim] = []
        self.runs_graphs: list[tuple[Pair, tuple[Pair, ...]]] = []
        self._compared: dict[Pair, tuple[Comparison, Witness | None] | None] = {}
        self.notes: list[str] = []
        self._pair_inputs()
        for side in (self.reference, self.candidate):
            self._enter(side, side.plain.graph)
        outputs = [side.plain.graph.outputs for side in (self.reference, self.candidate)]
        self.outputs = self.paired("output", *outputs)

    def without_claims(self) -> Matching:
        """Return the same models, matched by form alone: no claim is taken for granted."""
        bare = object.__new__(Matching)
        sides = (Side(side.plain, side.known) for side in (self.reference, self.candidate))
        bare._begin(*sides, by_name=False)
        for first, second in self._entered:
            bare._enter_bodies(first, second)
        return bare

    def merge(self, pair: Pair) -> None:
        """Take two values for equal."""
        self._merge(*pair)

    def equal(self, reference: ir.Value, candidate: ir.Value) -> bool:
        """Return whether two values are in one class."""
        a, b = self.class_of(self.reference, reference), self.class_of(self.candidate, candidate)
        return a == b

    def class_of(self, side: Side, value: ir.Value) -> Class:
        """Return the class of a value of one side."""
        if value not in side.classes:
            side.classes[value] = self._initial(side, value)
        return self._congruence.find(side.classes[value])

    def _initial(self, side: Side, value: ir.Value) -> Class:
        """Return a class for a value that no node makes: a constant, or an unknown."""
        tensor = value.const_value if side.known.has(value) else None
        if tensor is None or value.producer() is not None:
            return self._congruence.new()
        if tensor.nbytes > _HASHED_BYTES:
            return self._constants.setdefault(id(tensor), self._congruence.new())
        return self._class_of_constant(side, value)

    def _class_of_constant(self, side: Side, value: ir.Value) -> Class:
        """Return the class of what is spelled out; the bits are the key."""
        array = side.known.array(value)
        if array is None:
            return self._congruence.new()
        return self._constants.setdefault(fingerprint(array), self._congruence.new())

    def _pair_inputs(self) -> None:
        free = [
            [value for value in side.plain.graph.inputs if not value.is_initializer()]
            for side in (self.reference, self.candidate)
        ]
        pairs = self.paired("input", *free)
        defaults = {
            str(value.name): value
            for value in self.candidate.plain.graph.inputs
            if value.is_initializer()
        }
        for value in self.reference.plain.graph.inputs:
            other = defaults.get(str(value.name))
            if value.is_initializer() and other is not None:
                self._claim_defaults(value, other)
                pairs.append((value, other))
        for a, b in pairs:
            shared = self._congruence.new()
            self.reference.classes[a] = self.candidate.classes[b] = shared
            if (reason := conflict(a, b)) is not None:
                self.claims.append(Claim(Kind.OPEN, a, b, reason=reason))

    def _claim_defaults(self, reference: ir.Value, candidate: ir.Value) -> None:
        tensors = reference.const_value, candidate.const_value
        arrays = [None if tensor is None else tensor.numpy() for tensor in tensors]
        same = (
            arrays[0] is not None
            and arrays[1] is not None
            and arrays[0].dtype == arrays[1].dtype
            and arrays[0].shape == arrays[1].shape
            and arrays[0].tobytes() == arrays[1].tobytes()
        )
        if not same:
            reason = f"the defaults of input {reference.name!r} differ"
            self.claims.append(Claim(Kind.OPEN, reference, candidate, reason=reason))

    def paired(self, kind: str, ours: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> list[Pair]:
        """Return pairs of inputs, or of outputs, by name or else by position.

        Raises:
            ModelError: their numbers differ.
        """
        names, others = ([str(value.name) for value in values] for values in (ours, theirs))
        if len(names) != len(others):
            raise ModelError(
                f"The reference has the {kind}s {', '.join(names)}, the candidate "
                f"{', '.join(others)}; expected as many. Compare models of one interface."
            )
        if len(set(names)) == len(names) and set(names) == set(others):
            by_name = dict(zip(others, theirs, strict=True))
            return [(value, by_name[name]) for name, value in zip(names, ours, strict=True)]
        pairs = list(zip(ours, theirs, strict=True))
        told = ", ".join(f"{a.name!r} with {b.name!r}" for a, b in pairs if a.name != b.name)
        if told:
            self.notes.append(f"{kind}s are matched by position: {told}")
        return pairs

    def _enter(self, side: Side, graph: ir.Graph) -> None:
        """Give each value of a graph its class."""
        nodes = list(graph)
        side.nodes += nodes
        side.known.enter(nodes)
        for node in nodes:
            if is_identity(node, side.plain.imports) and (source := node.inputs[0]) is not None:
                side.classes[node.outputs[0]] = self.class_of(side, source)
                continue
            if node.op_type == "Constant" and side.known.has(node.outputs[0]):
                side.classes[node.outputs[0]] = self._class_of_constant(side, node.outputs[0])
                continue
            known = [] if _is_apart(node, side.plain.imports) else forms(node, side.plain.imports)
            for place, value in enumerate(node.outputs):
                result = side.classes[value] = self._congruence.new()
                for form in known:
                    used = [self.class_of(side, operand) for operand in form.operands]
                    same = self._congruence.apply((*form.label, place), used)
                    self._congruence.merge(result, same)

    def ways(self, pair: Pair) -> list[list[Pair]]:
        """Return what two values owe their equality to if one operator makes them.

        Each way is a list of pairs that all have to be equal. There is none where the operators
        differ, and two where the operands may be swapped.
        """
        first, second = (value.producer() for value in pair)
        if first is None or second is None or self._mismatch(*pair) is not None:
            return []
        ours, theirs = self._operands_in_common(first, second)
        results = self._enter_bodies(first, second)
        found = [[*zip(ours, theirs, strict=False), *results]]
        if self._may_swap(first, second):
            found.append([*zip(ours, theirs[::-1], strict=True), *results])
        return found

    def _resolve_all(self, pair: Pair) -> None:
        """Resolve a pair, and the pairs that it turns out to rest on before it."""
        if self.equal(*pair):
            return
        stack = [self._resolve(*pair)]
        while stack:
            needed = next(stack[-1], None)
            if needed is None:
                stack.pop()
            elif not self.equal(*needed):
                stack.append(self._resolve(*needed))

    def _resolve(self, a: ir.Value, b: ir.Value) -> Iterator[Pair]:
        """Claim what makes two values equal, after yielding the pairs that this rests on."""
        if self.reference.known.has(a) and self.candidate.known.has(b):
            node = a.producer()
            if node is not None and is_moving(node) and self._mismatch(a, b) is None:
                yield from self._peel(a, b)
                return
            self._settle(Claim(Kind.CONSTANT, a, b))
            return
        if self._needs_no_region(a, b):
            yield from self._peel(a, b)
            return
        ours, theirs = gates(a, self.reference.operands), gates(b, self.candidate.operands)
        if (ours[-1], theirs[-1]) != (a, b):
            kinds = ours[-1].dtype, theirs[-1].dtype
            if None not in kinds and kinds[0] is not kinds[1]:
                # they do not begin with one value; codes are joined here, and real numbers there
                entries = self._joint_entries(a, b)
                codes = _farthest_codes(ours, theirs)
                if entries is None and codes is not None and codes != (a, b):
                    yield codes
                    if common := self._common(ours, theirs):
                        if not self.equal(a, b):
                            self._settle(Claim(Kind.REGION, a, b, common))
                        return
                if entries is None:
                    yield from self._code_pairs(a, b)
                    entries = self._joint_entries(a, b)
                if entries is not None:
                    self._settle(Claim(Kind.JOINT, a, b, entries))
                    return
            yield ours[-1], theirs[-1]
            for pair in _namesakes(ours[1:], theirs[1:]) if self._by_name else ():
                self.is_hinted = True
                if not self.equal(*pair):
                    yield pair
            if self.equal(a, b):
                return
            if common := self._common(ours, theirs):
                self._settle(Claim(Kind.REGION, a, b, common))
                return
        yield from self._peel(a, b)

    def _needs_no_region(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether one operator makes both values, of constants that are equal in value.

        They are bit for bit equal behind a Reshape, which can be done after all else; otherwise
        zeros differ in sign, and the operator must not see it.
        """
        first, second = a.producer(), b.producer()
        if first is None or second is None or self._mismatch(a, b) is not None:
            return False
        found = self._common_form(first, second)
        pairs = zip(found[0].operands, found[1].operands, strict=True) if found else ()
        known = (pair for pair in pairs if self.reference.known.has(pair[0]))
        differing = [pair for pair in known if not self.equal(*pair)]
        if sees(first, [ours for ours, _ in differing]):
            return False
        return all(map(self._have_equal_values, differing)) and bool(differing or is_reshape(first))

    def _have_equal_values(self, pair: Pair) -> bool:
        found = self.compare_constants(pair)
        return found is not None and found[0].rung >= Exactness.VALUES

    def compare_constants(self, pair: Pair) -> tuple[Comparison, Witness | None] | None:
        """Return how two constants of one type and shape compare, and an element that shows it.

        Each pair is computed and compared once. None is returned where they cannot be compared.
        """
        if pair not in self._compared:
            sides = (self.reference.known, pair[0]), (self.candidate.known, pair[1])
            self._compared[pair] = compare_constants(*sides)
        return self._compared[pair]

    def _common(self, ours: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> tuple[Pair, ...]:
        """Return the equal pairs among the gates, the nearest first; not that of the ends."""
        places: dict[Class, ir.Value] = {}
        for value in reversed(theirs):
            places[self.class_of(self.candidate, value)] = value
        found = []
        for value in ours:
            other = places.get(self.class_of(self.reference, value))
            if other is not None and (value, other) != (ours[0], theirs[0]):
                found.append((value, other))
        return tuple(found)

    def _peel(self, a: ir.Value, b: ir.Value) -> Iterator[Pair]:
        """Rest the equality of two results of one operator on that of its operands."""
        first, second = a.producer(), b.producer()
        reason = self._mismatch(a, b)
        if reason is not None or first is None or second is None:
            if first is not None and second is not None and first.op_type == second.op_type:
                # what is found before them is told all the same
                operand_pairs = tuple(self._operand_pairs(first, second))
                yield from (pair for pair in operand_pairs if not self.equal(*pair))
            entries = self._joint_entries(a, b)
            if entries is not None:
                self._settle(Claim(Kind.JOINT, a, b, entries))
            else:
                self._settle(Claim(Kind.OPEN, a, b, reason=reason or ""))
            return
        operand_pairs = tuple(self._operand_pairs(first, second))
        yield from (pair for pair in operand_pairs if not self.equal(*pair))
        if any(subgraphs(attribute) for attribute in first.attributes.values()):
            results = self._enter_bodies(first, second)
            yield from (pair for pair in results if not self.equal(*pair))
            self.runs_graphs.append(((a, b), (*operand_pairs, *results)))
        self._merge(a, b)

    def _code_pairs(self, a: ir.Value, b: ir.Value) -> Iterator[Pair]:
        """Yield the nearest codes that two values are made of, where both are made of two."""
        ours, theirs = (
            _nearest_codes(value, side)
            for value, side in ((a, self.reference), (b, self.candidate))
        )
        if not len(ours) == len(theirs) == 2:
            return
        straight, crossed = zip(ours, theirs, strict=True), zip(ours, theirs[::-1], strict=True)
        named = sum(x.name == y.name for x, y in zip(ours, theirs[::-1], strict=True))
        for x, y in crossed if self._by_name and named else straight:
            if x.dtype is y.dtype and not self.equal(x, y):
                yield x, y

    def _joint_entries(self, a: ir.Value, b: ir.Value) -> tuple[Pair, ...] | None:
        """Return the two pairs of equal values that both values are made of, if there are two."""
        cones = [
            _cone(value, lambda v, side=side: joined(v, side.known.has))  # type: ignore[misc]
            for value, side in ((a, self.reference), (b, self.candidate))
        ]
        ours = {self.class_of(self.reference, value): value for value in reversed(cones[0])}
        theirs = {self.class_of(self.candidate, value): value for value in reversed(cones[1])}
        shared = ours.keys() & theirs.keys()
        fronts = []
        for value, side in ((a, self.reference), (b, self.candidate)):
            front = _front(value, side, lambda v, side=side: self.class_of(side, v) in shared)  # type: ignore[misc]
            fronts.append(None if front is None else {self.class_of(side, v) for v in front})
        if fronts[0] is None or fronts[0] != fronts[1] or len(fronts[0]) != 2:
            return None
        return tuple((ours[key], theirs[key]) for key in sorted(fronts[0]))

    def _mismatch(self, a: ir.Value, b: ir.Value) -> str | None:
        """Return why the nodes that make two values are not the same operator."""
        first, second = a.producer(), b.producer()
        if first is None or second is None:
            return f"{_told(a)} and {_told(b)} have no common source"
        if is_random(first, self.reference.plain.imports):
            return f"{_told(a)} and {_told(b)} are random"
        if self._common_form(first, second) is None:
            sides = (first, self.reference), (second, self.candidate)
            labels = [label(node, side.plain.imports) for node, side in sides]
            if labels[0][:2] != labels[1][:2]:
                return rewritten_sum(first, second) or (
                    f"{_told(a)} and {_told(b)} are different operators, for which there is no rule"
                )
            return f"{_told(a)} and {_told(b)} differ in {_difference(*labels)}"
        if list(first.outputs).index(a) != list(second.outputs).index(b):
            return f"{_told(a)} and {_told(b)} are different outputs"
        if _graphs(first) != _graphs(second):
            return f"the graphs that {_told(a)} and {_told(b)} run have different forms"
        return None

    def _operand_pairs(self, first: ir.Node, second: ir.Node) -> Iterator[Pair]:
        ours, theirs = self._operands_in_common(first, second)
        if self._may_swap(first, second):
            crossed = self.equal(ours[0], theirs[1]) or self.equal(ours[1], theirs[0])
            straight = self.equal(ours[0], theirs[0]) or self.equal(ours[1], theirs[1])
            ours = ours[::-1] if crossed and not straight else ours
        yield from zip(ours, theirs, strict=False)

    def _may_swap(self, first: ir.Node, second: ir.Node) -> bool:
        found = self._common_form(first, second)
        return found is not None and len(found[0].operands) == 2 and is_commutative(found[0].label)

    def _operands_in_common(
        self, first: ir.Node, second: ir.Node
    ) -> tuple[tuple[ir.Value, ...], tuple[ir.Value, ...]]:
        found = self._common_form(first, second)
        ours, theirs = (
            form.operands if form else tuple(value for value in node.inputs if value is not None)
            for form, node in zip(found or (None, None), (first, second), strict=True)
        )
        return ours, theirs

    def _common_form(self, first: ir.Node, second: ir.Node) -> tuple[Form, Form] | None:
        imports = self.reference.plain.imports, self.candidate.plain.imports
        return common_form(first, imports[0], second, imports[1])

    def _enter_bodies(self, first: ir.Node, second: ir.Node) -> list[Pair]:
        """Return the pairs of results of the graphs that two nodes run, on equal inputs."""
        is_new = (first, second) not in self._entered
        self._entered[first, second] = None
        results: list[Pair] = []
        for name, attribute in first.attributes.items():
            if not subgraphs(attribute):
                continue
            graphs = subgraphs(attribute), subgraphs(second.attributes[name])
            for ours, theirs in zip(*graphs, strict=True):
                if is_new:
                    for a, b in zip(ours.inputs, theirs.inputs, strict=True):
                        shared = self._congruence.new()
                        self.reference.classes[a] = self.candidate.classes[b] = shared
                    self._enter(self.reference, ours)
                    self._enter(self.candidate, theirs)
                results += zip(ours.outputs, theirs.outputs, strict=True)
        return results

    def _settle(self, claim: Claim) -> None:
        self.claims.append(claim)
        self._merge(claim.reference, claim.candidate)

    def _merge(self, a: ir.Value, b: ir.Value) -> None:
        self._congruence.merge(self.class_of(self.reference, a), self.class_of(self.candidate, b))


def _namesakes(ours: Iterable[ir.Value], theirs: Iterable[ir.Value]) -> list[Pair]:
    """Return the values of two chains that have one name and may have one type, far ones first."""
    named = {value.name: value for value in theirs}
    pairs = [(value, named[value.name]) for value in ours if value.name in named]
    return [(a, b) for a, b in reversed(pairs) if None in (a.dtype, b.dtype) or a.dtype == b.dtype]


def _cone(value: ir.Value, sources: Callable[[ir.Value], list[ir.Value]]) -> list[ir.Value]:
    """Return what a value is made of, it included, as far as there are not too many."""
    found = dict.fromkeys([value])
    pending = [value]
    while pending and len(found) < _CONE:
        for source in sources(pending.pop(0)):
            if source not in found:
                found[source] = None
                pending.append(source)
    return list(found)


def _front(
    value: ir.Value, side: Side, is_shared: Callable[[ir.Value], bool]
) -> list[ir.Value] | None:
    """Return the nearest shared values that a value is made of; None if others are needed."""
    found: dict[ir.Value, None] = {}
    pending, seen = [value], {value}
    while pending:
        step = pending.pop()
        if step is not value and is_shared(step):
            found[step] = None
            continue
        sources = joined(step, side.known.has)
        if not sources or len(seen) > _CONE:
            return None
        fresh = [source for source in sources if source not in seen]
        seen.update(fresh)
        pending += fresh
    return list(found)


def _farthest_codes(ours: Sequence[ir.Value], theirs: Sequence[ir.Value]) -> Pair | None:
    """Return the last integers among the values of two chains, if they are of one type."""
    found = []
    for chain in (ours, theirs):
        codes = [v for v in chain if v.dtype is not None and v.dtype.is_integer()]
        found += codes[-1:]
    if len(found) < 2 or found[0].dtype is not found[1].dtype:
        return None
    return found[0], found[1]


def _nearest_codes(value: ir.Value, side: Side) -> list[ir.Value]:
    """Return the nearest integers that a value is made of; nothing if it is made of others too."""
    found: dict[ir.Value, None] = {}
    pending, seen = [value], {value}
    while pending:
        step = pending.pop(0)
        if step is not value and step.dtype is not None and step.dtype.is_integer():
            found[step] = None
            continue
        sources = joined(step, side.known.has)
        if not sources or len(seen) > _CONE:
            return []
        fresh = [source for source in sources if source not in seen]
        seen.update(fresh)
        pending += fresh
    return list(found)


def _graphs(node: ir.Node) -> list[tuple[str, int, int]]:
    """Return the numbers of inputs and outputs of the graphs that a node runs."""
    return [
        (name, len(graph.inputs), len(graph.outputs))
        for name, attribute in sorted(node.attributes.items())
        for graph in subgraphs(attribute)
    ]


def _is_apart(node: ir.Node, imports: Imports) -> bool:
    """Return whether no other node can be the same by form.

    Random ones never are; those that run graphs are matched when they meet, graph by graph.
    """
    if is_random(node, imports):
        return True
    return any(subgraphs(attribute) for attribute in node.attributes.values())


def _told(value: ir.Value) -> str:
    node = value.producer()
    if node is None:
        return f"value {value.name!r}"
    return f"{node.op_type} {node.name or value.name!r}"


def _difference(ours: tuple[Hashable, ...], theirs: tuple[Hashable, ...]) -> str:
    """Return what differs in two labels of one operator."""
    pairs = []
    for found in (ours, theirs):
        attributes = found[-1]
        pairs.append(dict(attributes) if isinstance(attributes, tuple) else {})
    names = sorted(
        name for name in {*pairs[0], *pairs[1]} if pairs[0].get(name) != pairs[1].get(name)
    )
    return f"attribute {', '.join(names)}" if names else "version or form"
