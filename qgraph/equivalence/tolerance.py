"""How far outputs may be apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qgraph.equivalence.metrics import OutputComparison, within
from qgraph.errors import OptionError

Limit = float | Mapping[str, float]
"""A number for all outputs, or numbers by output name."""


@dataclass(frozen=True)
class Tolerance:
    """What is allowed for one output; without any limit, values have to be equal.

    Attributes:
        atol, rtol: ``|reference - candidate| <= atol + rtol * |reference|`` for every value.
        max_steps: largest difference in steps of the quantizer that produces the output.
        min_sqnr: smallest ratio of signal to error, in decibels.
    """

    atol: float = 0.0
    rtol: float = 0.0
    max_steps: float | None = None
    min_sqnr: float | None = None

    def judge(
        self, compared: OutputComparison, reference: Sequence[Any], candidate: Sequence[Any]
    ) -> str | None:
        """Return why an output is beyond the tolerance, None if it is not.

        Raises:
            OptionError: steps are limited, but the output has no known step.
        """
        if compared.note is not None or compared.equal:
            return compared.note
        apart = (
            f"{compared.mismatches} of {compared.elements} values differ, by up to "
            f"{compared.max_abs:g}, {compared.max_ulp} ulp"
        )
        reasons = []
        free = self.max_steps is None and self.min_sqnr is None
        if (self.atol or self.rtol or free) and not within(
            reference, candidate, atol=self.atol, rtol=self.rtol
        ):
            reasons.append(apart)
        if self.max_steps is not None:
            if compared.max_steps is None:
                raise OptionError(
                    f"max_steps is given for output {compared.name!r}, which no quantizer with a "
                    "known uniform step produces. Give atol for it, or max_steps by output name."
                )
            if compared.max_steps > self.max_steps:
                reasons.append(f"{apart}, {compared.max_steps:g} steps")
        if self.min_sqnr is not None and (compared.sqnr_db or 0.0) < self.min_sqnr:
            reasons.append(f"SQNR {compared.sqnr_db:.1f} dB is below {self.min_sqnr:g}")
        return "; ".join(reasons) or None


def tolerances(outputs: Collection[str], **limits: Limit | None) -> dict[str, Tolerance]:
    """Return the tolerance of each output; ``limits`` are named as the fields of Tolerance.

    Raises:
        OptionError: a limit is negative, or names an output that there is not.
    """
    chosen: dict[str, dict[str, float]] = {name: {} for name in outputs}
    for field, limit in limits.items():
        entries = limit if isinstance(limit, Mapping) else dict.fromkeys(outputs, limit)
        for name, number in entries.items():
            if name not in chosen:
                raise OptionError(
                    f"{field} is given for output {name!r}; the outputs of the reference are "
                    f"{', '.join(chosen)}. Use one of these names."
                )
            if number is not None and field != "min_sqnr" and not number >= 0:
                raise OptionError(f"{field} is {number}, expected a number that is not negative.")
            if number is not None:
                chosen[name][field] = number
    return {name: Tolerance(**fields) for name, fields in chosen.items()}
