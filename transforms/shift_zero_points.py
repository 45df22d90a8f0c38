"""The pass ``shift-zero-points``: convert codes between unsigned and signed types."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from qgraph.errors import Choice
from qgraph.exactness import Exactness
from qgraph.model import Model
from qgraph.numerics.formats import FORMATS
from qgraph.quantizers.weights.job import NumberRange
from qgraph.quantizers.weights.piecewise import Parameter
from qgraph.reasons import UNSUITED_WEIGHT
from qgraph.reports import Report
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.integers.shifted_chains import is_same_width, shift_activations
from qgraph.transforms.weights.recoded import recode
from qgraph.transforms.weights.stored_codes import Recoding, Stored, laid


class CodeSign(Choice):
    """Type of codes of 8 bits."""

    UINT8 = "uint8"
    INT8 = "int8"
    KEEP = "keep"


@transform("shift-zero-points")
class ShiftZeroPoints(Transform):
    """Shift codes of 8 bits between signed and unsigned types, with equal values.

    1. ``activations``: all codes between QuantizeLinear and DequantizeLinear, also across Clip,
       Concat and data movement, ``q' = q + 128`` and ``z' = z + 128``, or minus 128. Without
       ``symmetric``, codes with zero point 0 are unchanged, except at a Concat.
    2. ``weights``: stored codes likewise. As ``int8``, codes with zero point 128 need no zero
       point.
    3. ``centre``: instead of 128, the zero point is subtracted from codes of data and becomes 0, if
       the limits of the codes, such as 0 to 15, then fit the type.
    4. ``products``: the first factor of a MatMul of data with zero point 128 becomes ``int8``, if
       nothing else uses it.
    """

    activations: CodeSign = option(CodeSign.UINT8, help="type of the codes of data")
    weights: CodeSign = option(CodeSign.INT8, help="type of stored codes")
    symmetric: bool = option(True, help="shift codes of data with zero point 0 too")
    products: bool = option(False, help="make first factors of products of data int8")
    centre: bool = option(False, help="make zero points of data 0 where codes fit")

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Shift the codes of data, then those of weights."""
        type_name = self.activations.upper()
        shift_activations(model, type_name, report, symmetric=self.symmetric, centre=self.centre)
        if self.products:
            shift_activations(model, "INT8", report, products=True)
        if self.weights is not CodeSign.KEEP:
            recode(model, None, report, self._weights)

    def _weights(self, stored: Stored, span: NumberRange) -> Recoding | str | None:
        now, type_name = stored.stream.kind, self.weights.upper()
        if not is_same_width(now, type_name):
            return None
        step = np.full((1,) * len(stored.shape), FORMATS[now].lo - FORMATS[type_name].lo, np.int32)
        recoding = laid(stored, type_name, Parameter(step, stored.shape), 1.0)
        return recoding or UNSUITED_WEIGHT(
            "its scale is computed at run time, with its zero point; export constants"
        )
