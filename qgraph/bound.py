"""Bounds on how far two models differ, and the limits that users set for them.

A bound is about one segment: from codes, which are assumed equal, to the next codes or to an
output. Codes are compared in steps of their quantizer, outputs in real units too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

from qgraph.errors import Choice, OptionError, meant, member, require, shown
from qgraph.records import field, guarded
from qgraph.text import fields_json, read_fields, read_json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

STEPS_OF_OUTPUT = 256
"""Steps into which the range of an output without a quantizer is divided."""


class Against(Choice):
    """Values with which the executed candidate is compared."""

    EXECUTION = "execution"
    IDEAL = "ideal"


@guarded(frozen=True)
class SeenCodes:
    """Codes or inputs of the reference at which a segment starts.

    Attributes:
        value: name of the value.
        fill: the code of all elements but those listed.
        elements: indices of the others.
        codes: their codes.
        levels: if it is not 0, element number ``i`` in row-major order has the code
            ``fill + (40503 * i % 65521) % levels`` instead of ``fill``.
    """

    value: str
    fill: float
    elements: tuple[tuple[int, ...], ...] = ()
    codes: tuple[float, ...] = ()
    levels: int = 0

    def array(self, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Return the codes as a tensor of a shape."""
        import numpy as np  # the command line states limits without it

        codes = np.full(shape, self.fill)
        if self.levels:
            numbers = np.arange(codes.size).reshape(shape)
            codes += 40503 * numbers % 65521 % self.levels
        for element, code in zip(self.elements, self.codes, strict=True):
            codes[element] = code
        return codes


@guarded(frozen=True)
class Seen:
    """The largest difference at the end of a segment in a few runs from equal codes.

    Attributes:
        difference: number of steps; at an output that is not quantized, in real units.
        element: index of the element at the end that differs.
        starts: codes and inputs of the run.
    """

    difference: float
    element: tuple[int, ...]
    starts: tuple[SeenCodes, ...] = ()


@guarded(frozen=True)
class Bound:
    """The bound of one segment, of its worst channel.

    Attributes:
        deviation_steps: largest distance before rounding, in steps of the quantizer.
        max_steps: largest number of steps between codes; for an output, between its values.
        tie_distance_steps: codes differ only if the ideal value of the reference is at most this
            far from a threshold of the quantizer, or beyond limits of codes that differ. Against
            the ideal, codes of the reference are those of its ideal values.
        reference_error, candidate_error: largest distance of executed and ideal values of a model,
            in steps.
        ideal_shift: largest distance of the ideal values of both models, in steps.
        against: whether the first three contain the error of the reference: execution or ideal.
        order: the order of additions for which it holds.
        conditions: further assumptions.
        levels: number of steps in the range of the codes.
        absolute: the deviation of an output in real units; None for codes.
        ulps: the same in units in the last place of its largest number.
        code_shift: code of the candidate minus corresponding code of the reference, both without
            the zero points that QuantizeLinear adds.
        channels: ``[reference_error, candidate_error, ideal_shift]`` of each channel.
        seen: a difference that occurred in a run; None if the models were not run.
    """

    deviation_steps: float
    max_steps: int
    tie_distance_steps: float
    reference_error: float
    candidate_error: float
    ideal_shift: float
    against: str
    order: str
    levels: float
    conditions: tuple[str, ...] = ()
    absolute: float | None = None
    ulps: float | None = None
    code_shift: int = 0
    channels: tuple[tuple[float, float, float], ...] = ()
    seen: Seen | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the bound in the form of certificates."""
        return fields_json(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Bound:
        """Return what :meth:`to_json` gave."""
        return read_fields(cls, {"code_shift": 0, "seen": None, **document})


@guarded(frozen=True)
class Limit:
    """A limit for the difference of two models.

    Attributes:
        number: number of units.
        unit: "step", "ulp", "%", or "" for real units.
        output: name of the output for which it overrides the general limit; None for all.
    """

    number: float
    unit: str
    output: str | None = None

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Parse ``1step``, ``0.05step``, ``0.1%``, or for one output ``NAME:0.01``, ``NAME:2ulp``.

        Raises:
            OptionError: the text is not a limit.
        """
        name, _, rest = str(text).strip().rpartition(":")
        number = r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
        match = re.fullmatch(number + r"\s*(step|ulp|%|)", rest.lower())
        unit = "" if match is None else match[2]
        is_finite = match is not None and math.isfinite(float(match[1]))
        if match is None or not is_finite or (not name and unit in ("", "ulp")):
            raise OptionError(
                f"{shown(text)} is no limit, expected one such as 1step, 0.05step, 0.1%, "
                "or for an output NAME:0.01, NAME:2ulp, NAME:1step."
            )
        return cls(float(match[1]), unit, name or None)

    def __str__(self) -> str:
        """Return the limit as text, which :meth:`parse` reads."""
        name = "" if self.output is None else f"{self.output}:"
        return f"{name}{str(self.number).removesuffix('.0')}{self.unit}"

    @property
    def is_whole(self) -> bool:
        """Whether it limits differences of codes; otherwise it limits numbers before rounding."""
        return self.unit == "step" and self.number.is_integer()

    def holds(self, bound: Bound) -> bool:
        """Return whether a bound is within the limit."""
        match self.unit:
            case "step":
                if self.is_whole:
                    return bound.max_steps <= self.number
                return bound.deviation_steps <= self.number
            case "%":
                return bound.deviation_steps <= self.number / 100 * bound.levels
            case "ulp":
                return bound.ulps is not None and bound.ulps <= self.number
        return bound.absolute is not None and bound.absolute <= self.number


def limit_of(limits: Iterable[Limit], output: str | None) -> Limit | None:
    """Return the limit for an output, or for codes if there is no name; the last one applies."""
    smallest = None
    for limit in limits:
        if limit.output in (None, output) and (
            smallest is None or limit.output or not smallest.output
        ):
            smallest = limit
    return smallest


def is_within(limits: Iterable[Limit], bound: Bound, value: str) -> bool:
    """Return whether the bound of a value is within the limits; False if no limit applies to it."""
    limit = limit_of(limits, None if bound.absolute is None else value)
    return limit is not None and limit.holds(bound)


class NamedValue(Protocol):
    """An input or output of a model."""

    @property
    def name(self) -> str | None:
        """Its name."""


@guarded(frozen=True)
class Bounding:
    """Options of bounds.

    Attributes:
        within: limits; bounds beyond them are reported too.
        against: execution, to compare the executed codes of both models; or ideal, to compare the
            executed candidate with the ideal values of the reference.
        order: ``any``, which holds for every order of additions, or ``chunk:N``, for sums of
            sequential chunks of at most N terms that are added one after another.
        accumulate: type in which sums of 16-bit floats are added: own or float32.
        ranges: by name, ranges of inputs that are not quantized.

    Raises:
        OptionError: an option is none of these.
    """

    within: str | Limit | Sequence[str | Limit] = ()
    against: str = Against.EXECUTION
    order: str = "any"
    accumulate: str = "own"
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "within", self.limits)
        object.__setattr__(self, "against", member(Against, self.against, "against"))
        object.__setattr__(self, "order", str(self.order).strip().lower())
        object.__setattr__(self, "accumulate", str(self.accumulate).strip().lower())
        if self.order != "any" and not self.chunk:
            raise OptionError(f"order is {shown(self.order)}, expected any or chunk:N.")
        if self.accumulate not in ("own", "float32"):
            raise OptionError(f"accumulate is {shown(self.accumulate)}, expected own or float32.")
        wanted = "lowest and highest number by name of input, such as {'x': (-1, 1)}"
        require(self.ranges, Mapping, "ranges", wanted)
        for name, ends in self.ranges.items():
            require(ends, tuple | list, f"range of {shown(name)}", "two numbers")
            numbers: tuple[Any, ...] = tuple(ends)
            if len(numbers) != 2 or not all(isinstance(end, Real) for end in numbers):
                raise OptionError(f"range of {shown(name)} is {ends!r}, expected two numbers.")
            low, high = ends
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise OptionError(
                    f"range of {shown(name)}: {low:g} to {high:g}, expected two finite numbers, "
                    "the smaller first."
                )

    @classmethod
    def of(
        cls, within: Within, inputs: Iterable[NamedValue], outputs: Iterable[NamedValue]
    ) -> Bounding:
        """Return the options of bounds for a model, from limits or all options.

        Raises:
            OptionError: a range or a limit names no input or output of the reference.
        """
        bounding = within if isinstance(within, Bounding) else cls(within)
        named = [limit.output for limit in bounding.limits if limit.output is not None]
        kinds = (("range", "input", bounding.ranges, inputs), ("limit", "output", named, outputs))
        for option, role, names, values in kinds:
            value_names = [str(value.name) for value in values]
            for name in names:
                if name not in value_names:
                    raise OptionError(
                        f"The models have no {role} {shown(name)}, which a {option} names, "
                        f"expected one of {', '.join(value_names) or 'none'}."
                        f"{meant(name, value_names)}"
                    )
        return bounding

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a certificate."""
        return {
            "limits": list(map(str, self.limits)),
            **fields_json(self, "against", "order", "accumulate"),
            "ranges": {name: list(ends) for name, ends in self.ranges.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Bounding:
        """Parse the result of :meth:`to_json`; missing fields have defaults.

        Raises:
            ValueError: a field has another form.
        """
        known = {"accumulate": "own", "ranges": {}, **document}
        limits = read_json(tuple[str, ...], known["limits"])
        against, order, accumulate = (
            read_json(str, known[name]) for name in ("against", "order", "accumulate")
        )
        if not isinstance(known["ranges"], Mapping):
            raise TypeError(f"object: {known['ranges']!r}")
        pairs = known["ranges"].items()
        ranges = {str(name): read_json(tuple[float, float], ends) for name, ends in pairs}
        try:
            return cls(limits, against, order, accumulate, ranges)
        except OptionError as error:
            raise ValueError(str(error)) from error

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits."""
        entries = [self.within] if isinstance(self.within, str | Limit) else self.within
        require(entries, Sequence, "within", "limits such as '1step' or '0.1%'")
        return tuple(each if isinstance(each, Limit) else Limit.parse(each) for each in entries)

    @property
    def chunk(self) -> int | None:
        """The number of terms in a chunk; None for any order."""
        match = re.fullmatch(r"chunk:(\d+)", self.order)
        return int(match[1]) if match and int(match[1]) else None


Within = str | Limit | Sequence[str | Limit] | Bounding
"""Limits, or all options of bounds."""
