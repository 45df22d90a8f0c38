"""Comparison of the quantizers of two models, independent of their dialects.

Quantizers are paired by the structure of the graphs; names are used where this is not enough.
"""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any

import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.graph.scopes import graphs_of
from qgraph.graph.sizes import stated_shape
from qgraph.inventory.description import Described, Description, coded_descriptions, descriptions
from qgraph.ops.static_parameters import settled
from qgraph.proof.matching.classes import MatchedModel
from qgraph.proof.matching.match import Matching
from qgraph.proof.matching.normalise import normalised_models
from qgraph.quantizers.on_codes import coded_tensors
from qgraph.quantizers.recognition.regions import Elementwise
from qgraph.records import by_key, guarded
from qgraph.text import Displayed, one_line
from qgraph.version import head

Pair = tuple[Described | None, Described | None]


def pairs(
    matching: Matching | None, ours: Sequence[Described], theirs: Sequence[Described]
) -> list[Pair]:
    """Pair the quantizers of a reference with those of a candidate, in the order of the reference.

    Both are in topological order. Quantizers are paired first by equal inputs or outputs in
    ``matching``, then by name, constants by the name of the operator that reads them, then by their
    neighbours. A quantizer without a partner is paired with None; one of the candidate follows its
    predecessor there.
    """
    partners: dict[int, int] = {}
    for key in _keys(matching):
        _pair_by(key, ours, theirs, partners)
    _pair_by_place(ours, theirs, partners)
    return list(_ordered(ours, theirs, partners))


Key = Callable[[Described, bool], Hashable]
"""Key by which two quantizers are paired; None if there is no key."""


def _keys(matching: Matching | None) -> Iterator[Key]:
    if matching is not None:
        sides = matching.candidate, matching.reference
        yield lambda described, is_ours: _class(matching, sides[is_ours], described.y)
        yield lambda described, is_ours: _class(matching, sides[is_ours], described.x)
    yield lambda described, _: described.description.name
    yield lambda described, _: described.node or None
    yield lambda described, _: None if described.x is None else described.x.name
    yield lambda described, _: None if described.description.of == "data" else _reader(described.y)


def _reader(value: ir.Value | None) -> Hashable:
    """Return the only reader of a value by its name, and which operand the value is."""
    uses = [] if value is None else list(value.uses())
    return (uses[0].node.name, uses[0].idx) if len(uses) == 1 and uses[0].node.name else None


def _class(matching: Matching, side: MatchedModel, value: ir.Value | None) -> Hashable:
    # values in graphs that did not meet, such as bodies of different loops, have no class
    return None if value not in side.classes else matching.class_of(side, value)


def _pair_by(
    key: Key, ours: Sequence[Described], theirs: Sequence[Described], matched: dict[int, int]
) -> None:
    """Pair the remaining quantizers that share a key.

    Equal numbers on both sides are paired in order. If numbers differ, each is paired with the one
    at the same relative position in its model, because unmatched values may share a key by chance.
    """
    done = matched.keys(), set(matched.values())
    left, right = (
        by_key(
            ((key(each, side == 0), each.description.of), index)
            for index, each in enumerate(quantizers)
            if index not in done[side]
        )
        for side, quantizers in enumerate((ours, theirs))
    )
    for shared, indices in left.items():
        partners = right.get(shared, [])
        if shared[0] is None:
            continue
        if len(indices) == len(partners):
            matched.update(zip(indices, partners, strict=True))
            continue
        for index in indices:
            if partners:
                sought = index * len(theirs) / len(ours)
                _, nearest = min((abs(i - sought), i) for i in partners)
                partners.remove(nearest)
                matched[index] = nearest


def _pair_by_place(
    ours: Sequence[Described], theirs: Sequence[Described], partners: dict[int, int]
) -> None:
    """Pair the remaining quantizers between the same two neighbours, if equally many."""
    for of in ("data", "weight", "bias"):
        # By place, the place of the reference that it is paired with.
        paired = (
            {here: here for here in partners},
            {there: here for here, there in partners.items()},
        )
        gaps: dict[int | None, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for side, quantizers in enumerate((ours, theirs)):
            before: int | None = None
            for index, each in enumerate(quantizers):
                if each.description.of == of and index in paired[side]:
                    before = paired[side][index]
                elif each.description.of == of:
                    gaps[before][side].append(index)
        for left, right in gaps.values():
            if len(left) == len(right):
                partners.update(zip(left, right, strict=True))


def _ordered(
    ours: Sequence[Described], theirs: Sequence[Described], partners: dict[int, int]
) -> Iterator[Pair]:
    """Yield the pairs; an added quantizer follows the pair that precedes it in the candidate."""
    taken = set(partners.values())
    after: dict[int, list[int]] = defaultdict(list)
    before = -1
    for index in range(len(theirs)):
        if index in taken:
            before = index
        else:
            after[before].append(index)
    yield from ((None, theirs[index]) for index in after[-1])
    for index, described in enumerate(ours):
        partner = partners.get(index)
        yield described, None if partner is None else theirs[partner]
        if partner is not None:
            yield from ((None, theirs[other]) for other in after[partner])


class ChangeKind(StrEnum):
    """Kind of a change of a quantizer."""

    SAME = "same"
    CHANGED = "changed"
    REMOVED = "removed"
    ADDED = "added"


@guarded(frozen=True)
class QuantizerChange:
    """A quantizer of the reference and its counterpart in the candidate; a missing one is None.

    Names are not compared.
    """

    reference: Description | None
    candidate: Description | None

    @cached_property
    def kind(self) -> ChangeKind:
        """Kind of the change."""
        if self.reference is None:
            return ChangeKind.ADDED
        if self.candidate is None:
            return ChangeKind.REMOVED
        return ChangeKind.CHANGED if self.fields else ChangeKind.SAME

    @property
    def name(self) -> str:
        """The name in the reference, or in the candidate where it was added."""
        quantizer = self.reference or self.candidate
        return "" if quantizer is None else quantizer.name

    @cached_property
    def fields(self) -> dict[str, tuple[str | None, str | None]]:
        """Differing fields by name: the values in the reference and in the candidate."""
        sides = [{} if side is None else side.fields() for side in (self.reference, self.candidate)]
        names = dict.fromkeys([*sides[0], *sides[1]])
        values = {name: (sides[0].get(name), sides[1].get(name)) for name in names}
        return {name: pair for name, pair in values.items() if pair[0] != pair[1]}

    def to_json(self) -> dict[str, Any]:
        """Return both sides and the names of the fields that differ."""
        sides = {"reference": self.reference, "candidate": self.candidate}
        return {
            "kind": str(self.kind),
            **{role: None if side is None else side.to_json() for role, side in sides.items()},
            "differing": [name.replace(" ", "_") for name in self.fields],
        }


@guarded(frozen=True, repr=False)
class ModelDifferences(Displayed):
    """All quantizers of two models in the order of the reference, and remarks."""

    changes: tuple[QuantizerChange, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether each quantizer has a counterpart with an equal description."""
        return all(change.kind is ChangeKind.SAME for change in self.changes)

    def of_kind(self, *kinds: ChangeKind) -> list[QuantizerChange]:
        """Return the changes of the given kinds."""
        return [change for change in self.changes if change.kind in kinds]

    def to_json(self) -> dict[str, Any]:
        """Return what ``qgraph diff --json`` prints."""
        return {
            **head("diff"),
            "verdict": "same" if self.is_same else "different",
            "quantizers": [change.to_json() for change in self.changes],
            "summary": {str(kind): len(self.of_kind(kind)) for kind in ChangeKind},
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        """Return the text for notebooks."""
        return f"<pre>{html.escape(self.to_text())}</pre>"

    def to_text(self, *, is_brief: bool = False) -> str:
        """Return a line for each quantizer and each differing field, and a summary line.

        Args:
            is_brief: omit equal quantizers and the legend.
        """
        lines = [] if is_brief or self.is_same else [_LEGEND]
        for change in self.changes:
            name = one_line(change.name)
            match change.kind:
                case ChangeKind.SAME:
                    if not is_brief:
                        lines.append(f"  {name}: {change.reference}")
                case ChangeKind.ADDED:
                    lines.append(f"+ {name}: {change.candidate}")
                case ChangeKind.REMOVED:
                    lines.append(f"- {name}: {change.reference}")
                case ChangeKind.CHANGED:
                    lines.append(f"! {name}:")
                    lines += [
                        f"!     {field}: {old or 'none'} -> {new or 'none'}"
                        for field, (old, new) in change.fields.items()
                    ]
        return "\n".join([*lines, self.summary]) + "\n"

    @property
    def summary(self) -> str:
        """The number of quantizers of each kind, as text."""
        numbers = {kind: len(self.of_kind(kind)) for kind in ChangeKind}
        texts = [f"{number} {kind}" for kind, number in numbers.items() if number]
        return ", ".join(texts) or "no quantizers"


_LEGEND = "(- reference, + candidate, ! reference -> candidate)"


def diff(
    reference: ir.Model, candidate: ir.Model, *, keep_inputs: bool = False
) -> ModelDifferences:
    """Compare the quantizers of two models by their descriptions.

    Quantizers are paired by structure, starting at the inputs of the models; names are used where
    this is not enough. Functions are inlined. Initializers that are also inputs count as constants,
    except with ``keep_inputs``.

    Raises:
        ModelError: a model is not usable.
        UnsupportedError: a function cannot be inlined.
    """
    alike = pairs_of_alike(reference, candidate)
    if alike is not None:
        return ModelDifferences(_changes(alike))
    sides = normalised_models(reference, candidate, keep_inputs=keep_inputs)
    notes: list[str] = []
    matching: Matching | None = None
    try:
        matching = Matching(*sides)
        notes += matching.notes
    except ModelError as error:
        notes.append(f"quantizers are matched by name and order only: {error}")
    ours, theirs = (
        [*descriptions(side.model), *coded_descriptions(model)]
        for side, model in zip(sides, (reference, candidate), strict=True)
    )
    return ModelDifferences(_changes(pairs(matching, ours, theirs)), tuple(notes))


def between(reference: Iterable[Description], candidate: Sequence[Described]) -> ModelDifferences:
    """Compare the quantizers of a model with descriptions, such as those of a lock file."""
    ours = [Described(description, None, None, "") for description in reference]
    return ModelDifferences(_changes(pairs(None, ours, candidate)))


def _changes(paired: Iterable[Pair]) -> tuple[QuantizerChange, ...]:
    return tuple(
        QuantizerChange(*(None if side is None else side.description for side in pair))
        for pair in paired
    )


def pairs_of_alike(
    reference: ir.Model, candidate: ir.Model
) -> list[tuple[Described, Described]] | None:
    """Return the quantizers of two models in pairs, in the order of the reference.

    None if the models have other differences, or if they must be normalised first.
    """
    others = _others(reference)
    if others is None or others != _others(candidate):
        return None
    ours, theirs = (list(descriptions(model)) for model in (reference, candidate))
    one, other = _Outline(reference.graph, ours), _Outline(candidate.graph, theirs)
    if one.operators != other.operators:
        return None
    if len(one.quantizers) < len(ours) or len(other.quantizers) < len(theirs):
        return None
    partners = dict(zip(one.quantizers, other.quantizers, strict=True))
    return [(each, partners[each]) for each in ours]


def _others(model: ir.Model) -> list[Hashable] | None:
    """Return inputs, outputs, and the operators that certainly belong to no quantizer.

    None if functions, subgraphs, operators on codes or of vendors, or inputs with a default must be
    normalised first.
    """
    if model.functions or settled(model) is not model:
        return None
    is_elementwise = Elementwise()
    inputs = [(each.name, each.dtype, stated_shape(each)) for each in model.graph.inputs]
    others: list[Hashable] = [*inputs, *(each.name for each in model.graph.outputs)]
    for node in model.graph:
        if graphs_of(node) or any(coded_tensors(node)):
            return None
        if not is_elementwise(node) and node.op_type != "Constant":
            if node.domain:
                return None
            others.append(node.op_type)
    return others


class _Outline:
    """The operators of a graph and the numbers of their operands; each quantizer is one operator.

    Constants have no number; quantizers of constants are in order at their first use.
    """

    def __init__(self, graph: ir.Graph, described: Sequence[Described]) -> None:
        self.operators: list[Hashable] = []
        self.quantizers: list[Described] = []
        self._numbers: dict[ir.Value, int] = {}
        self._weights = {each.y: each for each in described if each.description.of != "data"}
        within = {node: each for each in described for node in each.nodes}
        for value in graph.inputs:
            self._number(value)
        for node in graph:
            if node.op_type == "Constant":
                continue
            quantizer = within.get(node)
            if quantizer is None:
                self.operators.append((node.op_type, *map(self._operand, node.inputs)))
                for value in node.outputs:
                    self._number(value)
            elif quantizer.description.of == "data" and quantizer.y is node.outputs[0]:
                self.operators.append(("quantizer", self._operand(quantizer.x)))
                self.quantizers.append(quantizer)
                self._number(quantizer.y)
        self.operators.append(tuple(map(self._operand, graph.outputs)))

    def _number(self, value: ir.Value) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def _operand(self, value: ir.Value | None) -> int | None:
        """Return the number of an operand; None for constants."""
        if value is None:
            return None
        if value in self._weights and value not in self._numbers:
            self.quantizers.append(self._weights[value])
            return self._number(value)
        return self._numbers.get(value)
