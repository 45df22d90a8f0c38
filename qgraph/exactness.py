"""Levels of equality of two functions, and the verdict of one comparison."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

from qgraph.errors import Choice, member
from qgraph.records import dataclass, guarded
from qgraph.text import Fields, amount, counted, example, fields_json

UNCHECKED_ID = "QG071"
"""Id of :data:`qgraph.reasons.NOT_CHECKED`, for reasons without one of their own."""


class Exactness(Choice):
    """Levels of equality between two float32 functions; a higher level implies the lower ones.

    * ``bits``: the same bit patterns for every input, NaN and the sign of zero included.
    * ``values``: equal for every input that is not NaN, where -0 equals +0.
    * ``codes``: the same integer codes, real values differ by ulps.
    * ``near``: thresholds move by ulps; these inputs are counted exactly.
    * ``different``: none of these.

    Levels compare by strength, with members and with strings: ``Exactness.CODES < "bits"``.
    Comparing with a string that is not a level raises an OptionError.
    """

    BITS = "bits"
    VALUES = "values"
    CODES = "codes"
    NEAR = "near"
    DIFFERENT = "different"

    @classmethod
    def of(cls, counts: DifferenceCounts) -> Exactness:
        """Return the level of two arrays that were compared value by value."""
        if counts.differing:
            return cls.CODES if counts.only_last_bits else cls.DIFFERENT
        return cls.VALUES if counts.zero_sign else cls.BITS

    @cached_property
    def _height(self) -> int:
        return -list(Exactness).index(self)

    def __lt__(self, other: object) -> bool:
        level = _level(other)
        return NotImplemented if level is None else self._height < level._height

    def __ge__(self, other: object) -> bool:
        level = _level(other)
        return NotImplemented if level is None else self._height >= level._height

    def __gt__(self, other: object) -> bool:
        level = _level(other)
        return NotImplemented if level is None else self._height > level._height

    def __le__(self, other: object) -> bool:
        level = _level(other)
        return NotImplemented if level is None else self._height <= level._height


def _level(other: object) -> Exactness | None:
    if isinstance(other, Exactness):
        return other
    return member(Exactness, other, "level") if isinstance(other, str) else None


class DifferenceCounts(Protocol):
    """Counts of differing elements, see :class:`qgraph.numerics.values.Comparison`."""

    @property
    def differing(self) -> int:
        """Number of elements that differ in value."""

    @property
    def zero_sign(self) -> int:
        """Number of zeros of different signs."""

    @property
    def only_last_bits(self) -> bool:
        """Whether all differences are in the last bits."""


class Method(StrEnum):
    """Method of a comparison."""

    CONSTANT = "constant"
    CONGRUENCE = "congruence"
    INTERVALS = "intervals"
    THRESHOLDS = "thresholds"
    EXHAUSTIVE = "exhaustive"
    BOUND = "bound"
    NONE = "none"


@dataclass(frozen=True)
class Witness:
    """One input on which two functions differ, and both outputs."""

    input: float
    reference: float
    candidate: float


@guarded(frozen=True)
class Verdict:
    """Verdict on the equality of two functions over all their inputs.

    Attributes:
        exactness: the highest level that holds; None when undecided.
        method: the method of comparison.
        differing_inputs: number of inputs (summed over channels; elements of a constant) whose
            values differ, -0 equal to +0. NaN does not count, nor do the infinities of float32.
        zero_sign_inputs: number of inputs that give zeros of different signs.
        witness: an input that shows why the next higher level does not hold.
        reason: why it is undecided, or a remark such as "all inputs were tried one by one".
        witness_channel: channel of the witness; None where there are no channels.
        largest_steps: the largest difference in steps of the reference; None if not known.
        nan_differs, infinity_differs: whether NaN and infinities have other results.
        differing_codes: number of the differing inputs that give another code; None if not known.
        noise_ulps: the largest difference at the other inputs, in units in the last place of
            float32; None if there are none, or if it is not known.
        noise_steps: the same in steps of the reference.
    """

    exactness: Exactness | None = None
    method: Method = Method.NONE
    differing_inputs: int = 0
    zero_sign_inputs: int = 0
    witness: Witness | None = None
    reason: str | None = None
    witness_channel: int | None = None
    largest_steps: float | None = None
    nan_differs: bool = False
    infinity_differs: bool = False
    differing_codes: int | None = None
    noise_ulps: int | None = None
    noise_steps: float | None = None

    def __post_init__(self) -> None:
        if self.exactness is not None and self.exactness >= Exactness.CODES:
            object.__setattr__(self, "differing_codes", 0)

    def reaches(self, level: Exactness) -> bool:
        """Return whether the verdict is at least ``level``."""
        return self.exactness is not None and self.exactness >= level


class ProofVerdict(StrEnum):
    """Result of a proof about two functions, over all inputs."""

    PROVED = "proved"
    BOUNDED = "bounded"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


class Status(StrEnum):
    """Result of the checker for a part of a certificate."""

    CHECKED = "checked"
    UNCHECKED = "unchecked"
    REFUTED = "refuted"


@dataclass(frozen=True)
class PartFinding:
    """Finding of the checker on a part of a certificate.

    Attributes:
        status: checked if it was decided again from definitions alone.
        reason: why it is unchecked or refuted.
        prover: whether the prover decided an unchecked part again, and agrees.
    """

    status: Status
    reason: str | None = None
    prover: bool = False

    @property
    def reason_id(self) -> str | None:
        """Stable id of the reason of an unchecked part; None for other parts."""
        if self.status is not Status.UNCHECKED:
            return None
        return str(getattr(self.reason, "id", UNCHECKED_ID))

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return fields_json(self, "status", "reason", "prover", "reason_id")


@guarded(frozen=True)
class Verification(Fields):
    """Result of the checker for a whole certificate.

    Attributes:
        verdict: verdict on the models from the decided parts, independent of the file.
        regions: a finding for each region, in the order of the certificate.
        outputs: whether the regions imply equal outputs, if the certificate states it.
        statements: whether verdict, level, conditions, notes and listed types claim nothing more.
        prover: whether the prover was run for the unchecked parts.
    """

    verdict: ProofVerdict
    regions: tuple[PartFinding, ...]
    outputs: PartFinding
    statements: PartFinding
    prover: bool = False

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {status}" for status, number in self.counts.items())
        return f"<Verification: {self.verdict}, regions {counts}>"

    @property
    def parts(self) -> tuple[PartFinding, ...]:
        """All findings."""
        return *self.regions, self.outputs, self.statements

    @property
    def is_refuted(self) -> bool:
        """Whether any part of the certificate is refuted."""
        return any(finding.status is Status.REFUTED for finding in self.parts)

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of checked, unchecked and refuted regions."""
        return {str(s): sum(f.status is s for f in self.regions) for s in Status}

    def to_json(self) -> dict[str, Any]:
        """Return the findings, those of regions in the order of the certificate."""
        return {
            "verdict": str(self.verdict),
            "summary": self.counts,
            **fields_json(self, "prover", "outputs", "statements", "regions"),
        }


Region = Mapping[str, Any]
"""A region as it stands in a certificate."""


def is_constant(region: Region) -> bool:
    """Return whether a region compares constants; its inputs are elements then."""
    return bool(region["method"] == "constant")


def is_counted(region: Region) -> bool:
    """Return whether all inputs were compared; numbers of inputs are lower bounds otherwise."""
    return bool(region.get("counted", region["method"] != "none"))


def region_name(region: Region, side: str) -> str:
    """Return the last node of a side of a region, or its value if it has no node."""
    nodes = region[f"{side}_nodes"]
    return str(nodes[-1] if nodes else region[f"{side}_value"])


def difference(region: Region) -> str:
    """Return the sentence on a region that differs: how many inputs do, and an example."""
    number, constant = int(region["differing_inputs"]), is_constant(region)
    verb = ("has" if number == 1 else "have") if constant else "gives" if number == 1 else "give"
    what = f"{counted(number, 'element' if constant else 'input')} {verb}"
    if not number:
        what = "Some inputs give"
    elif not is_counted(region):
        what = f"At least {what}"
    such_as = example(region["witness"])
    if parts := codes_apart(region):
        return f"{what} another value than {region_name(region, 'reference')!r}: {parts}{such_as}."
    return f"{what} another value than {region_name(region, 'reference')!r}{such_as}."


_MANY_ULPS = 256
"""Number of ulps above which they are not shown, because the values are close to zero."""


def codes_apart(entry: Region) -> str:
    """Return the number of inputs of a site or region with another code, and how others differ.

    The text is empty if all differing inputs give another code, or if it is not known.
    """
    number, codes = int(entry["differing_inputs"]), entry.get("differing_codes")
    if codes is None or codes == number or is_constant(entry):
        return ""
    some = f"{counted(codes, 'input')} pick{'s' if codes == 1 else ''} another code"
    return f"{some if codes else 'all codes are equal'}, elsewhere {noise(entry)}"


def noise(entry: Region) -> str:
    """Return the difference of values with equal codes, as text."""
    ulps = int(entry.get("noise_ulps") or 0)
    if ulps < _MANY_ULPS:
        return f"at most {counted(ulps, 'ulp')}"
    return f"at most {amount(entry.get('noise_steps'), 2)} steps"


def apart(entry: Region) -> tuple[int, int]:
    """Return the number of inputs with another code, and of other differing inputs.

    If it is not known, all differing inputs count as inputs with another code.
    """
    differing, codes = int(entry["differing_inputs"]), entry.get("differing_codes")
    return (differing, 0) if codes is None else (codes, differing - codes)
