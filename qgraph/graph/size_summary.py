"""Sizes and counts of one weight that is stored as codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qgraph.numerics import Mask
from qgraph.numerics.formats import FORMATS, Minifloat


@dataclass
class Tally:
    """Counts over elements of a weight.

    Attributes:
        elements: number of compared elements.
        unchanged: number of elements with the value that the quantizer computed, -0 equal to +0.
        clipped: number of elements outside the range of the codes.
        used: for each code of the type, by its bits, whether it occurs; empty for 32 bits.
    """

    elements: int = 0
    unchanged: int = 0
    clipped: int = 0
    used: Mask = field(default_factory=lambda: np.zeros(0, bool))

    def add(self, other: Tally) -> None:
        """Add the counts of another part."""
        self.elements += other.elements
        self.unchanged += other.unchanged
        self.clipped += other.clipped
        self.used = other.used | self.used if self.used.size else other.used


@dataclass
class SizeSummary:
    """One weight stored as codes.

    Attributes:
        tensor: name of the weight.
        type: ONNX type of the codes.
        scale_type: ONNX type of the scales as stored.
        bytes_before: bytes of the stored float values.
        bytes_after: bytes of codes, scales and zero points.
        scale_low, scale_high: the smallest and the largest scale.
        count: computes the tally when it is first needed; None if saving the model sets it.
    """

    tensor: str
    type: str
    scale_type: str
    bytes_before: int
    bytes_after: int
    scale_low: float
    scale_high: float
    count: Callable[[], Tally] | None = field(default=None, repr=False, compare=False)
    _tally: Tally | None = field(default=None, repr=False, compare=False)

    @property
    def codes_available(self) -> int:
        """Number of codes that ``type`` has, without NaN and infinities."""
        form = FORMATS[self.type]
        return form.count if isinstance(form, Minifloat) else 1 << form.bits

    @property
    def tally(self) -> Tally | None:
        """The counts; None until the weight has been read."""
        if self._tally is None and self.count is not None:
            self._tally, self.count = self.count(), None
        return self._tally

    def close(self, tally: Tally) -> None:
        """Set the counts that were made while the weight was written."""
        self._tally = tally

    def to_json(self) -> dict[str, Any]:
        """Return the row for a report; counts are None for a weight that was not written yet."""
        tally = self.tally
        counted: dict[str, Any] = dict.fromkeys(("elements", "unchanged", "clipped", "codes_used"))
        if tally is not None:
            counted = {
                "elements": tally.elements,
                "unchanged": tally.unchanged,
                "clipped": tally.clipped,
                "codes_used": int(np.count_nonzero(tally.used)) if tally.used.size else None,
            }
        return {
            "tensor": self.tensor,
            "type": self.type,
            "scale_type": self.scale_type,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "codes_available": self.codes_available,
            "scale_low": self.scale_low,
            "scale_high": self.scale_high,
            **counted,
        }
