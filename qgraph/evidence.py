"""Evidence in certificates: how inputs of a region were divided, and inputs that were run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from qgraph.records import dataclass
from qgraph.text import fields_json, read_fields, read_json


@dataclass(frozen=True)
class Division:
    """A division of all finite float32 inputs into parts on which a region was decided.

    Attributes:
        channel: the first element of the broadcast constants to which it applies.
        count: number of elements with the same constants.
        starts: keys of the first input of each part, in ascending order; parts end before the next
            one, the last one at the largest float.
        differing: indices of the parts on which the values differ.
        signs: indices of the parts on which both are zeros whose signs differ, or may differ.
    """

    channel: int
    count: int
    starts: tuple[int, ...]
    differing: tuple[int, ...] = ()
    signs: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the boxes."""
        return {
            "channel": self.channel,
            "count": self.count,
            "starts": _distances(self.starts),
            "differing": " ".join(map(str, self.differing)),
            "signs": " ".join(map(str, self.signs)),
        }

    @classmethod
    def from_json(cls, boxes: Mapping[str, Any]) -> Division:
        """Return what :meth:`to_json` gave."""
        starts = tuple(accumulate(_numbers(boxes["starts"])))
        marks = _numbers(boxes["differing"]), _numbers(boxes["signs"])
        for numbers in marks:
            indices = set(range(len(starts)))
            if list(numbers) != sorted(set(numbers)) or not indices.issuperset(numbers):
                raise ValueError("numbers of boxes")
        return cls(read_json(int, boxes["channel"]), read_json(int, boxes["count"]), starts, *marks)


@dataclass(frozen=True)
class Cases:
    """The cases of an entry of a region with two inputs: see ``starts``.

    Attributes:
        side: "reference" or "candidate", the model of ``start``; None without one.
        start: name of a float32 value that the entry is computed from; None without one.
        starts: keys of the first input of each part of ``start``, on which the entry has one value;
            without a start, of the entry itself, on which each quantizer at it has one. Empty for
            codes of an integer type, all of which are cases.
    """

    side: str | None
    start: str | None
    starts: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the cases."""
        return {"side": self.side, "start": self.start, "starts": _distances(self.starts)}

    @classmethod
    def from_json(cls, cases: Mapping[str, Any]) -> Cases:
        """Return what :meth:`to_json` gave."""
        side, start = (read_json(str | None, cases[name]) for name in ("side", "start"))
        if side not in (None, "reference", "candidate"):
            raise ValueError(f"side of cases: {side!r}")
        return cls(side, start, tuple(accumulate(_numbers(cases["starts"]))))


def _numbers(text: object) -> tuple[int, ...]:
    return tuple(map(int, read_json(str, text).split()))


def _distances(starts: Sequence[int]) -> str:
    """Return numbers as one text, each except the first as the distance from the previous one.

    So they take one line of the file instead of thousands.
    """
    return " ".join(str(b - a) for a, b in zip((0, *starts), starts, strict=False))


@dataclass(frozen=True)
class Demonstration:
    """Inputs of a run: random arrays, of which one may be filled with a number.

    Attributes:
        batch: number of the random arrays.
        input: name of the input of the reference that is filled; None if there is none.
        value: the number.
        elements: indices of elements with other numbers.
        values: these numbers.
        scale: factor of all real inputs.
    """

    batch: int = 0
    input: str | None = None
    value: float | None = None
    elements: tuple[tuple[int, ...], ...] = ()
    values: tuple[float, ...] = ()
    scale: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Return the input in the form of certificates."""
        names = ["elements", "values"] if self.elements else []
        names += ["scale"] if self.scale != 1 else []
        return fields_json(self, "batch", "input", "value", *names)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Demonstration:
        """Return what :meth:`to_json` gave."""
        return read_fields(cls, {"elements": (), "values": (), "scale": 1.0, **document})


@dataclass(frozen=True)
class Reached:
    """A run that shows a difference: its input, None if numbers of the entry were replaced."""

    example: Demonstration | None
