"""The pass ``widen-codes``: codes of few bits as multiples of a power of two."""

from __future__ import annotations

import math
from typing import ClassVar

from qgraph.errors import OptionError
from qgraph.exactness import Exactness
from qgraph.model import Model
from qgraph.numerics.formats import FORMATS
from qgraph.quantizers.weights.job import NumberRange
from qgraph.reasons import FAULTY_SCALE
from qgraph.reports import Report
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.weights.recoded import is_taken, recode
from qgraph.transforms.weights.stored_codes import Recoding, Stored, laid

_KIND = "INT8"
_PRODUCTS = "Conv*|Gemm|MatMul"
_MOST = int(FORMATS[_KIND].hi)


@transform("widen-codes")
class WidenCodes(Transform):
    """Multiply weight codes of few bits by a power of two, and divide their scales by it.

    1. ``DequantizeLinear(q, s, z) -> DequantizeLinear((q - z) * 2 ** k, s / 2 ** k)`` in INT8, with
       the largest ``k`` for which ``abs(q - z) * 2 ** k <= limit``.

    Only codes that a product takes, moved or not, are widened. The weights stay the same numbers.
    A bias in the unit of the products, as ``quantize-bias`` writes it, is ``2 ** k`` times as fine.
    Codes up to 64 cannot saturate the 16-bit sums of pairs of products on processors without VNNI.
    Scales that would be subnormal are left.
    """

    limit: int = option(64, help="largest absolute code, 1 to 127")
    nodes: str = option("*", help="patterns of names of operators whose weights are widened")
    opset: int | None = opset_option()

    preserves: ClassVar[Exactness] = Exactness.BITS

    def check_options(self) -> None:
        """Raise an OptionError if no code of 8 bits has the size of the limit."""
        if not 1 <= self.limit <= _MOST:
            raise OptionError(f"limit is {self.limit}, expected 1 to {_MOST}.")

    def apply(self, model: Model, report: Report) -> None:
        """Choose a power of two for each weight, and write its codes anew."""
        recode(model, self.opset, report, self._choose)

    def _choose(self, stored: Stored, span: NumberRange) -> Recoding | str | None:
        if not is_taken(stored.decode, _PRODUCTS, self.nodes):
            return None
        if stored.block_size:
            return (
                "its scales belong to blocks, for which no operator has a quantized bias; leave it"
            )
        largest = max(abs(span.low_centred), abs(span.high_centred))
        power = math.floor(math.log2(self.limit / largest)) if largest else 0
        if power < 1:
            return None
        recoding = laid(stored, _KIND, stored.source.shift, 2.0**power)
        return recoding or FAULTY_SCALE(
            f"its scale divided by {2**power} is no normal float32, or is not constant; state a "
            "lower limit"
        )
