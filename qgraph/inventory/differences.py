"""The quantizers of two models side by side, whatever dialects spell them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from qgraph.errors import ModelError
from qgraph.inventory.description import Described, Description, descriptions
from qgraph.inventory.pairing import Pair, pairs
from qgraph.markup import one_line
from qgraph.matching.match import Matching
from qgraph.matching.plain import plain
from qgraph.model import Source, load
from qgraph.report import SCHEMA

__all__ = ["Change", "ChangeKind", "Differences", "between", "diff"]


class ChangeKind(StrEnum):
    """What became of a quantizer."""

    SAME = "same"
    CHANGED = "changed"
    REMOVED = "removed"
    ADDED = "added"


@dataclass(frozen=True)
class Change:
    """A quantizer of the reference and its counterpart in the candidate; None where there is none.

    Names are no difference.
    """

    reference: Description | None
    candidate: Description | None

    @property
    def kind(self) -> ChangeKind:
        """What became of it."""
        if self.reference is None:
            return ChangeKind.ADDED
        if self.candidate is None:
            return ChangeKind.REMOVED
        return ChangeKind.CHANGED if self.fields else ChangeKind.SAME

    @property
    def name(self) -> str:
        """The name in the reference, or in the candidate where it was added."""
        told = self.reference or self.candidate
        return "" if told is None else told.name

    @property
    def fields(self) -> dict[str, tuple[str | None, str | None]]:
        """What differs, by the name of the field: in the reference, and in the candidate."""
        sides = [{} if side is None else side.fields() for side in (self.reference, self.candidate)]
        names = dict.fromkeys([*sides[0], *sides[1]])
        told = {name: (sides[0].get(name), sides[1].get(name)) for name in names}
        return {name: pair for name, pair in told.items() if pair[0] != pair[1]}

    def to_json(self) -> dict[str, Any]:
        """Return both sides and the names of the fields that differ."""
        sides = {"reference": self.reference, "candidate": self.candidate}
        return {
            "kind": str(self.kind),
            **{role: None if side is None else side.to_json() for role, side in sides.items()},
            "differing": [name.replace(" ", "_") for name in self.fields],
        }


@dataclass(frozen=True)
class Differences:
    """All quantizers of two models.

    Attributes:
        changes: in the order of the reference.
        notes: remarks, such as inputs that were matched by position.
    """

    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether each quantizer has a counterpart that does the same."""
        return all(change.kind is ChangeKind.SAME for change in self.changes)

    def of_kind(self, *kinds: ChangeKind) -> list[Change]:
        """Return the changes of some kinds."""
        return [change for change in self.changes if change.kind in kinds]

    def to_json(self) -> dict[str, Any]:
        """Return what ``qgraph diff --json`` prints."""
        from qgraph import __version__

        return {
            "qgraph": __version__,
            "schema": SCHEMA,
            "command": "diff",
            "verdict": "same" if self.is_same else "different",
            "quantizers": [change.to_json() for change in self.changes],
            "summary": {str(kind): len(self.of_kind(kind)) for kind in ChangeKind},
            "notes": list(self.notes),
        }

    def to_text(self, *, is_brief: bool = False) -> str:
        """Return a line for each quantizer and each field that differs, and a last one in sum.

        The text depends on the models alone, not on where it is shown.

        Args:
            is_brief: leave out the quantizers that are the same.
        """
        lines = []
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
        return "\n".join([*lines, self.summary()]) + "\n"

    def summary(self) -> str:
        """Return how many quantizers there are of each kind."""
        numbers = {kind: len(self.of_kind(kind)) for kind in ChangeKind}
        told = [f"{number} {kind}" for kind, number in numbers.items() if number]
        return ", ".join(told) or "no quantizers"


def diff(reference: Source, candidate: Source, *, keep_inputs: bool = False) -> Differences:
    """Compare the quantizers of two models by what they do.

    They are matched from the inputs of the models, by structure; names help where that ends.
    Initializers that are inputs too count as constants, functions as what they contain.

    Args:
        reference: a path or a model.
        candidate: a path or a model.
        keep_inputs: leave initializers that are inputs too; they are not constant then.

    Raises:
        ModelError: a model is not usable.
        UnsupportedError: a function cannot be inlined.
    """
    sides = plain(load(reference), load(candidate), keep_inputs=keep_inputs)
    notes: list[str] = []
    matching: Matching | None = None
    try:
        matching = Matching(*sides)
        notes += matching.notes
    except ModelError as error:
        notes.append(f"matched by names and order only: {error}")
    ours, theirs = (list(descriptions(side.model)) for side in sides)
    return Differences(_changes(pairs(matching, ours, theirs)), tuple(notes))


def between(reference: Iterable[Description], candidate: Sequence[Described]) -> Differences:
    """Compare the quantizers of a model with descriptions, such as those of a lock file."""
    ours = [Described(description, None, None, "") for description in reference]
    return Differences(_changes(pairs(None, ours, candidate)))


def _changes(found: Iterable[Pair]) -> tuple[Change, ...]:
    return tuple(
        Change(*(None if side is None else side.description for side in pair)) for pair in found
    )
