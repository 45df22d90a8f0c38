"""The pass ``symmetric-weights``: remove zero points of weights."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from qgraph.exactness import Exactness
from qgraph.model import Model
from qgraph.numerics.formats import FORMATS
from qgraph.quantizers.weights.job import NumberRange
from qgraph.reasons import UNSUITED_WEIGHT
from qgraph.reports import Report
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.weights.recoded import recode
from qgraph.transforms.weights.stored_codes import Recoding, Stored, laid

_KIND = "INT8"


@transform("symmetric-weights")
class SymmetricWeights(Transform):
    """Store weights as signed codes without zero points.

    1. ``DequantizeLinear(q, s, z) -> DequantizeLinear(q - z, s)`` in INT8, where all ``q - z`` lie
       in -128 to 127; also for unsigned codes with zero point 0.

    Weights with wider codes are left unchanged, and the report has their range.
    """

    narrow: bool = option(False, help="leave weights with code -128, which some runtimes refuse")
    opset: int | None = opset_option()

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Subtract the zero points of each weight whose codes then fit."""
        recode(model, self.opset, report, self._choose)

    def _choose(self, stored: Stored, span: NumberRange) -> Recoding | str | None:
        form, now = FORMATS[_KIND], FORMATS[stored.stream.kind]
        lowest = form.lo + self.narrow
        if stored.zero_point is None and now.lo < 0 and span.low >= lowest:
            return None
        low, high = span.low_centred, span.high_centred
        if low < lowest or high > form.hi:
            points = np.unique([0] if stored.zero_point is None else stored.zero_point)
            return UNSUITED_WEIGHT(
                f"its codes minus zero points from {points[0]} to {points[-1]} reach from {low:g} "
                f"to {high:g}, expected {lowest:g} to {form.hi:g}; quantize it without zero points"
            )
        recoding = laid(stored, _KIND, stored.source.shift, 1.0)
        return recoding or UNSUITED_WEIGHT(
            "its scale is computed at run time, with its zero point; export constants"
        )
