"""Conditions and evidence of proofs, as certificates contain them.

A condition is a text that has a kind, and values such as names and counts. A certificate contains
it as ``kind: text`` or ``kind["a name", 3]: text``. Certificates are compared by kinds and values,
so a text may be reworded. The evidence is how the inputs of a region were divided, and inputs that
were run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Self

from qgraph.records import dataclass
from qgraph.text import fields_json, read_fields, read_json

_Values = tuple[int | str, ...]


class Condition(str):
    """The text of a condition: the stable name of its kind, and the names and numbers in it."""

    __slots__ = ("kind", "values")
    kind: str
    values: _Values

    def __new__(cls, kind: str, values: _Values = ()) -> Self:
        """Return the condition of a kind.

        Raises:
            ValueError: there is no such kind, or it has another number of values.
        """
        if kind not in _KINDS or _KINDS[kind].text.count("{}") != len(values):
            raise ValueError(f"condition {kind!r:.60} with {len(values)} values")
        condition = super().__new__(cls, _KINDS[kind].text.format(*values))
        condition.kind, condition.values = kind, values
        return condition

    def __getnewargs__(self) -> tuple[str, _Values]:  # type: ignore[override]
        return self.kind, self.values

    def to_json(self) -> str:
        """Return the condition as a certificate contains it: kind, values, and the text."""
        values = json.dumps(list(self.values)) if self.values else ""
        return f"{self.kind}{values}: {self}"

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Return the condition that :meth:`to_json` wrote; its text may have changed.

        Raises:
            TypeError: it is no text, or its values are neither numbers nor texts.
            ValueError: it does not start with a known kind and as many values as the kind has.
        """
        kind, values, _ = _parts(read_json(str, document))
        return cls(kind, read_json(_Values, values))


@dataclass(frozen=True)
class ConditionKind:
    """A kind of condition; called with values, it gives the condition.

    Its text has ``{}`` for each value.
    """

    name: str
    text: str

    def __call__(self, *values: int | str) -> Condition:
        """Return the condition with these values."""
        return Condition(self.name, values)

    def is_of(self, condition: Condition) -> bool:
        """Return whether a condition is of this kind."""
        return condition.kind == self.name


_KINDS: dict[str, ConditionKind] = {}


def _kind(name: str, text: str) -> ConditionKind:
    return _KINDS.setdefault(name, ConditionKind(name, text))


def _condition(name: str, text: str) -> Condition:
    return _kind(name, text)()


def _parts(document: str) -> tuple[str, list[Any], str]:
    """Return kind, values and text of a condition of a certificate."""
    start = next((i for i, letter in enumerate(document) if letter in "[:"), len(document))
    values, end = list[Any](), start
    if document[start : start + 1] == "[":
        values, end = json.JSONDecoder().raw_decode(document, start)
    if document[end : end + 2] != ": ":
        raise ValueError(f"no condition: {document!r:.60}")
    return document[:start], values, document[end + 2 :]


def texts_of(conditions: Iterable[str]) -> list[str]:
    """Return the texts of the conditions of a JSON report, in which they may lack a kind."""
    return [_text_of(condition) for condition in conditions]


def _text_of(condition: str) -> str:
    try:
        kind, _, text = _parts(condition)
    except (ValueError, RecursionError):
        return condition
    return text if kind in _KINDS else condition


BIAS_LAST = _condition("bias-last", "the bias is added last, with one rounding")
"""The condition of a proof that is printed with its verdict."""
AS_WRITTEN = _condition(
    "as-written",
    "every operator computes as written: one IEEE 754 operation at a time in the type of its "
    "operands, rounded to nearest even, subnormals kept; a runtime may do otherwise",
)
NOT_FED = _kind(
    "inputs-not-fed", "initializers that are also graph inputs keep the values of the file ({})"
)
NO_NAN = _kind("no-nan", "no NaN reaches regions that treat NaN differently in the two models ({})")
ZERO_SIGNS = _kind(
    "zero-signs",
    "-0 counts as equal to +0: regions may change the sign of a zero ({}), and no operator after "
    "them distinguishes -0 from +0",
)
WHOLE_SUMS = _condition(
    "whole-sums",
    "sums of products of codes that stay below 2**24 are computed without rounding, in any order "
    "of additions",
)
OPEN_BOUNDS = _condition(
    "open-clip",
    "no infinity reaches a Clip without an upper or a lower bound; ONNX does not define whether it "
    "stays infinite or becomes the largest finite number",
)
AFTER_DIFFERENCE = _condition(
    "after-difference", "after a difference, values were assumed equal to find later differences"
)
SUMS_REACH = _condition(
    "sums-reach",
    "sums take the numbers between their limits on which a region differs; no run of the models "
    "showed a difference",
)
"""The condition of a difference that was not seen in a run."""
EQUAL_OPERATORS = _condition(
    "equal-operators", "equal operators on equal operands have equal results"
)
SUMMED_ALIKE = _condition(
    "summed-alike",
    "MatMulNBits and Gemm add their products in the order of MatMul, which ONNX does not define, "
    "and add the bias to the finished sum",
)
DATA_NOT_ROUNDED = _condition(
    "data-not-rounded",
    "MatMulNBits multiplies its data as they are; accuracy_level 4 allows a runtime to round them "
    "to 8 bits first",
)
ROUNDED_ONCE = _kind(
    "constants-rounded-once",
    "constants computed by {} are the exact results, rounded once; ONNX does not define their last "
    "bits",
)
OPEN_SIZE = _kind(
    "open-size",
    "symbolic dimension {} of the inputs, and its products with the others, are below 2**40",
)
LIMITED_SIZE = _kind(
    "limited-size",
    "symbolic dimension {} is at most {}: with larger ones the operands of an operator of the "
    "reference do not broadcast",
)
ONE_SIZE = _kind("one-size", "dimensions of the same name are equal: {} is the size of {}")
NO_NAN_AT_MAXIMA = _kind(
    "no-nan-at-maxima", "no NaN reaches maxima that were exchanged with functions ({})"
)
ZEROS_REWRITTEN = _condition(
    "zeros-rewritten",
    "-0 counts as equal to +0: the normal form may change the sign of a zero, and no operator "
    "after the rewritten ones distinguishes -0 from +0",
)
SUMS_OF_CODES = _condition(
    "sums-of-codes",
    "sums of codes that stay below 2**24 are computed without rounding, in any order of additions",
)
FUNCTION_ERROR = 2.0**-20
"""Largest error of an approximated function, absolute and relative."""
CURVES_WITHIN = _condition(
    "curves-within",
    "Sigmoid, Tanh, Erf, Exp and similar functions are computed within 2**-20 of the function, "
    "absolute and relative",
)
VARIANCE_OF_DIFFERENCES = _condition(
    "variance-of-differences",
    "normalizations compute the variance as the mean of the squared differences from the mean",
)
LARGEST_FIRST = _condition(
    "largest-first", "Softmax and similar functions subtract the largest element first"
)
GIVEN_CODES = _condition(
    "given-codes",
    "bounds hold for each segment by itself: given equal codes at its start, the codes at its end "
    "differ by no more than stated; they do not say how differences grow from segment to segment",
)
ANY_ORDER = _condition(
    "any-order",
    "sums are added in any order, with or without fused operations, but one term at a time: "
    "no Winograd, FFT or Strassen convolutions, no TF32 or bfloat16 for float32, no 8-bit products "
    "that saturate",
)
IN_CHUNKS = _kind(
    "in-chunks",
    "sums are added in chunks of at most {} terms in sequence, and the chunks in sequence: no "
    "Winograd, FFT or Strassen convolutions, no TF32 or bfloat16 for float32, no 8-bit products "
    "that saturate",
)
ACCUMULATED = _condition("accumulated", "sums of 16-bit types are added in float32")
NO_SPECIALS = _condition(
    "no-specials", "no NaN and no infinity enters a segment, and inputs lie in the ranges given"
)
WRAPPED_SUM = _kind(
    "wrapped-sum",
    "an int32 sum wraps around: in channel {} it is {} where codes less their zero point are {} "
    "for positive weights and {} for others",
)


def of_bounds(
    chunk: int | None, accumulate: str, others: Iterable[Condition] = (), *, has_any: bool = True
) -> list[Condition]:
    """Return the conditions of all segments, and of bounds those of some operators.

    ``chunk`` and ``accumulate`` are the options of :class:`qgraph.bound.Bounding`. If there are no
    bounds (``has_any``), all segments are equal as their sums are exact.
    """
    order = ANY_ORDER if chunk is None else IN_CHUNKS(chunk)
    conditions = [GIVEN_CODES, order, *sorted(others)] if has_any else [order]
    return [*conditions, NO_SPECIALS, *([ACCUMULATED] if accumulate != "own" else [])]


def of_sizes(used: Collection[str], shared: Mapping[str, str]) -> list[Condition]:
    """Return the conditions if operators compute with open sizes, given by name.

    ``shared`` has the dimensions of the inputs that share one size, if there are several.
    """
    alike = [ONE_SIZE(name, shared[name]) for name in sorted(used) if name in shared]
    return [*map(OPEN_SIZE, sorted(used)), *alike]


def of_segments(conditions: Iterable[Condition]) -> list[Condition]:
    """Return the conditions of a proof without those that count its regions.

    Segments replace the regions. They compare numbers, so zeros of both signs are equal.
    """
    return [c for c in conditions if not (NO_NAN.is_of(c) or ZERO_SIGNS.is_of(c))]


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
