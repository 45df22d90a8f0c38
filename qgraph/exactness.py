"""How equal two quantizers are: the ladder, and the verdict of one comparison."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qgraph.choices import Choice, member


class Exactness(Choice):
    """Levels of equality between two float32 functions; a higher level implies the lower ones.

    * ``bits``: the same bit patterns for every input, NaN and the sign of zero included.
    * ``values``: equal for every input that is not NaN, where -0 equals +0.
    * ``codes``: the same integer codes, real values differ by ulps.
    * ``near``: thresholds move by ulps; the inputs concerned are counted exactly.
    * ``different``: none of these.

    Levels compare by strength, with members and with strings: ``Exactness.CODES < "bits"``.
    Comparing with a string that is no level is an OptionError.
    """

    BITS = "bits"
    VALUES = "values"
    CODES = "codes"
    NEAR = "near"
    DIFFERENT = "different"

    @property
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


class Method(StrEnum):
    """How a verdict was reached."""

    CONSTANT = "constant"
    CONGRUENCE = "congruence"
    INTERVALS = "intervals"
    THRESHOLDS = "thresholds"
    EXHAUSTIVE = "exhaustive"
    NONE = "none"


@dataclass(frozen=True)
class Witness:
    """One input on which two functions differ, and what each makes of it."""

    input: float
    reference: float
    candidate: float


@dataclass(frozen=True)
class Verdict:
    """What is known about the equality of two small graphs.

    Attributes:
        rung: the highest rung that holds; None when undecided.
        method: how it was decided.
        differing_inputs: how many of the non-NaN float32 inputs (summed over channels; elements
            of a constant input) give different values, -0 equal to +0.
        zero_sign_inputs: how many give zeros of different sign.
        witness: an input that shows why the next higher rung does not hold.
        reason: why it is undecided, or a remark such as "NaN becomes -12.8".
    """

    rung: Exactness | None
    method: Method
    differing_inputs: int = 0
    zero_sign_inputs: int = 0
    witness: Witness | None = None
    reason: str | None = None

    def reaches(self, level: Exactness) -> bool:
        """Return whether the verdict is at least ``level``."""
        return self.rung is not None and self.rung >= level
