"""What a certificate states, read strictly: whatever is missing or of another type is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from qgraph.certification.certificate import ProofVerdict
from qgraph.equivalence.demonstration import Demonstration
from qgraph.errors import EquivalenceError, ModelError
from qgraph.exactness import Exactness, Method

Keys = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
T = TypeVar("T")

_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


@dataclass(frozen=True)
class Tiles:
    """How the finite inputs of one kind of channel are divided.

    Attributes:
        channel: the first channel of the kind.
        count: how many channels are of it.
        starts: ``[n]`` keys of the first input of each part.
        differing: ``[n]`` parts on which the values are said to differ.
        signs: ``[n]`` parts on which both values are said to be zeros whose signs differ, or may.
    """

    channel: int
    count: int
    starts: Keys
    differing: Mask
    signs: Mask


@dataclass(frozen=True)
class Shown:
    """An input and what both sides are said to make of it, in one channel."""

    input: float
    reference: float
    candidate: float
    channel: int = 0


@dataclass(frozen=True)
class Cases:
    """What an entry of a region with two inputs may be.

    Attributes:
        side: 0 or 1, the model of ``start``; None without one.
        start: name of a value that the entry is computed from; None without one.
        starts: keys of the first input of each part of ``start``, or of the entry itself; empty
            for codes, all of which are tried.
    """

    side: int | None
    start: str | None
    starts: Keys


@dataclass(frozen=True)
class Statement:
    """A region as the certificate states it; see ``certification.certificate.Region``."""

    nodes: tuple[tuple[str, ...], tuple[str, ...]]
    values: tuple[str, str]
    entries: tuple[tuple[str, str], ...]
    verdict: ProofVerdict
    exactness: Exactness | None
    method: Method
    counted: bool
    differing_inputs: int
    zero_sign_inputs: int
    channels: int
    differing_channels: tuple[tuple[int, int], ...]
    largest_steps: float | None
    nan_differs: bool
    infinity_differs: bool
    witness: Shown | None
    conditions: tuple[str, ...]
    reason: str
    tiles: tuple[Tiles, ...]
    cases: tuple[Cases, ...]

    def fails(self, reason: str) -> EquivalenceError:
        """Return the error to raise."""
        return fails(f"region {self.values[0]!r} -> {self.values[1]!r}: {reason}")


@dataclass(frozen=True)
class Document:
    """A certificate; see ``certification.certificate.Certificate``."""

    verdict: ProofVerdict
    exactness: Exactness | None
    keep_inputs: bool
    conditions: tuple[str, ...]
    notes: tuple[str, ...]
    shown_by: Demonstration | None
    statements: tuple[Statement, ...]
    facts: tuple[Mapping[str, object], ...] = ()


def fails(reason: str) -> EquivalenceError:
    """Return the error to raise where a certificate states what is not so."""
    return EquivalenceError(f"The certificate does not hold: {reason}. Prove the models anew.")


def read(document: Mapping[str, object]) -> Document:
    """Return what a certificate states.

    Raises:
        ModelError: something is missing, or of another type.
    """
    try:
        return Document(
            ProofVerdict(_text(document["verdict"])),
            _rung(document["exactness"]),
            _is(bool, document["keep_inputs"]),
            _texts(document["conditions"]),
            _texts(document["notes"]),
            _demonstration(document["shown_by"]),
            tuple(_statement(_mapping(region)) for region in _list(document["regions"])),
            tuple(_mapping(fact) for fact in _list(document["facts"])),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        told = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ModelError(
            f"The certificate cannot be read ({told}), expected what 'qgraph prove' writes. Write "
            "it again."
        ) from error


def _statement(region: Mapping[str, object]) -> Statement:
    witness = region["witness"]
    steps = region["largest_steps"]
    reason = region["reason"]
    return Statement(
        (_texts(region["reference_nodes"]), _texts(region["candidate_nodes"])),
        (_text(region["reference_value"]), _text(region["candidate_value"])),
        tuple((_text(a), _text(b)) for a, b in map(_two, _list(region["entries"]))),
        ProofVerdict(_text(region["verdict"])),
        _rung(region["exactness"]),
        Method(_text(region["method"])),
        _is(bool, region["counted"]),
        _is(int, region["differing_inputs"]),
        _is(int, region["zero_sign_inputs"]),
        _is(int, region["channels"]),
        tuple(
            (_is(int, a), _is(int, b)) for a, b in map(_two, _list(region["differing_channels"]))
        ),
        None if steps is None else _number(steps),
        _is(bool, region["nan_differs"]),
        _is(bool, region["infinity_differs"]),
        None if witness is None else _shown(_mapping(witness)),
        _texts(region["conditions"]),
        "" if reason is None else _text(reason),
        tuple(_tiles(_mapping(boxes)) for boxes in _list(region["boxes"])),
        tuple(_cases(_mapping(cases)) for cases in _list(region["cases"])),
    )


def _shown(witness: Mapping[str, object]) -> Shown:
    channel = witness["channel"]
    return Shown(
        _number(witness["input"]),
        _number(witness["reference"]),
        _number(witness["candidate"]),
        0 if channel is None else _is(int, channel),
    )


def _demonstration(shown_by: object) -> Demonstration | None:
    if shown_by is None:
        return None
    stated = _mapping(shown_by)
    name, value = stated["input"], stated["value"]
    if (name is None) is not (value is None):
        raise ValueError("an input of shown_by without its value")
    return Demonstration(
        _is(int, stated["batch"]),
        None if name is None else _text(name),
        None if value is None else _number(value),
    )


def _tiles(boxes: Mapping[str, object]) -> Tiles:
    starts = np.cumsum(_integers(boxes["starts"]))
    masks = []
    for name in ("differing", "signs"):
        places = _integers(boxes[name])
        if (np.diff(places) <= 0).any() or (places.size and not 0 <= places[0] <= places[-1]):
            raise ValueError(f"{name} of boxes")
        # one more part than there are tells of places beyond
        size = starts.size + bool(places.size and places[-1] >= starts.size)
        masks.append(np.isin(np.arange(size), places))
    return Tiles(_is(int, boxes["channel"]), _is(int, boxes["count"]), starts, *masks)


def _cases(cases: Mapping[str, object]) -> Cases:
    side, start = cases["side"], cases["start"]
    places = {None: None, "reference": 0, "candidate": 1}
    return Cases(
        places[None if side is None else _text(side)],
        None if start is None else _text(start),
        np.cumsum(_integers(cases["starts"])),
    )


def _rung(value: object) -> Exactness | None:
    return None if value is None else Exactness(_text(value))


def _is(kind: type[T], value: object) -> T:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__}: {value!r}")
    return value


def _text(value: object) -> str:
    return _is(str, value)


def _number(value: object) -> float:
    if isinstance(value, str):
        return _SPECIAL[value]
    if type(value) not in (int, float):
        raise TypeError(f"number: {value!r}")
    return float(value)  # type: ignore[arg-type]


def _mapping(value: object) -> Mapping[str, object]:
    return _is(dict, value)


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"list: {value!r}")
    return value


def _two(value: object) -> tuple[object, object]:
    one, other = _list(value)
    return one, other


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(_text, _list(value)))


def _integers(value: object) -> Keys:
    return np.array([int(part) for part in _text(value).split()], np.int64)
