"""Passes that store the same real values as other codes.

``repack``             codes in the smallest type, or in one that a runtime supports
``shift-zero-points``  codes between unsigned and signed types
``symmetric-weights``  weights without zero points
``widen-codes``        codes of few bits as multiples of a power of two
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from qgraph.errors import Choice, OptionError
from qgraph.exactness import Exactness
from qgraph.graph.edit import Editor
from qgraph.graph.opset import versions as opset
from qgraph.graph.opset.versions import lower_opset
from qgraph.model import Model
from qgraph.numerics.formats import FORMATS
from qgraph.quantizers.weights.job import NumberRange
from qgraph.quantizers.weights.piecewise import Parameter
from qgraph.reasons import FAULTY_SCALE, UNSUITED_WEIGHT, ExplainedReason
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.drafts.choice import Decision, carry_out, entry, opset_reason, refused
from qgraph.transforms.integers.shifted_chains import is_same_width, shift_activations
from qgraph.transforms.quantize_weights import CODE_TYPES
from qgraph.transforms.weights.recoded import Jobs, Recoded, is_taken, recode, shared
from qgraph.transforms.weights.stored_codes import (
    Recoding,
    Stored,
    laid,
    merged,
    needed_opset,
    recodings,
    stored_codes,
)


class CodeTarget(Choice):
    """Type of the stored codes."""

    SMALLEST = "smallest"
    INT2 = "int2"
    UINT2 = "uint2"
    INT4 = "int4"
    UINT4 = "uint4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    FP4 = "fp4"
    FP6_E2M3 = "fp6-e2m3"
    FP6_E3M2 = "fp6-e3m2"
    FP8 = "fp8"
    FP8_E5M2 = "fp8-e5m2"


class Blocks(Choice):
    """Storage of codes with scales per block."""

    KEEP = "keep"
    ROWS = "rows"


@transform("repack", preserves=Exactness.VALUES)
class Repack(Transform):
    """Store codes in the smallest type that can represent them.

    1. ``DequantizeLinear(q, s, z) -> DequantizeLinear(q', s', z')`` with ``q' = (q - d) * f`` in
       the narrowest type that holds all used codes, ``s' = s / f``, ``z' = z - d`` and ``f``
       a power of two; or in the type ``to``. A Clip before it is applied to the codes.
    2. ``scales``: equal scales are merged, of blocks into channels, of channels into one.
    3. ``blocks=rows``: blocks become rows, ``Reshape(Transpose(DequantizeLinear(rows, s, z)))``.
    4. ``activations``: with a signed or unsigned ``to`` of 8 or 16 bits, the codes of
       QuantizeLinear and DequantizeLinear pairs move too, ``q' = q + 2 ** (bits - 1)`` or back.

    Every element is compared while it is written.
    """

    to: CodeTarget = option(
        CodeTarget.SMALLEST, help="type of the codes; smallest: by the used codes"
    )
    scales: bool = option(
        True, help="merge equal scales: of blocks to per channel, of channels to per tensor"
    )
    blocks: Blocks = option(
        Blocks.KEEP, help="rows: store blocks as rows, for runtimes without scales per block"
    )
    activations: bool = option(
        True, help="with to=int8, uint8, int16 or uint16: also convert codes of activations"
    )
    operators: str = option(
        "*", help="patterns of operators whose weights are stored anew, such as Conv*|Gemm"
    )
    nodes: str = option(
        "*", help="patterns of names of operators whose weights are stored anew, joined by |"
    )
    opset: int | None = opset_option()

    def apply(self, model: Model, report: Report) -> None:
        """Choose a type for each constant, raise the opset once, and replace the nodes."""
        if self.activations:
            shift_activations(model, self.to.upper(), report)
        carry_out(model, lambda editor: self._plan(model, editor), report)
        if self.opset is not None:
            report.notes += lower_opset(model.ir, self.opset)

    def _plan(self, model: Model, editor: Editor) -> Iterator[Decision | SiteReport]:
        limit = opset.ceiling(model.ir, self.opset)
        jobs: Jobs = {}
        for stored in stored_codes(model):
            if not is_taken(stored.decode, self.operators, self.nodes):
                continue
            chosen, reason = self._choose(stored, limit)
            if chosen is not None and self._changes(stored, chosen):
                rows = self._makes_rows(stored, chosen)
                yield Recoded(stored, chosen, editor, jobs, rows=rows).decision
            elif chosen is None and reason is not None and self.to is not CodeTarget.SMALLEST:
                yield refused(stored.decode, reason)
            else:
                yield entry(stored.decode, SiteStatus.KEPT, reason)

    def _choose(self, stored: Stored, limit: int) -> tuple[Recoding | None, ExplainedReason | None]:
        """Return the first recoding within the opset limit, or why there is none."""
        if stored.others:
            return None, shared(stored)
        span = stored.source.survey()
        kinds = None
        if self.to is not CodeTarget.SMALLEST:
            kinds = [CODE_TYPES.get(self.to, self.to.upper())]
        lowest: tuple[int, str] | None = None
        for recoding in recodings(stored, span, kinds):
            if self.scales:
                recoding = merged(stored, recoding)
            rows = self._makes_rows(stored, recoding)
            needed = needed_opset(stored, recoding, rows=rows)
            if needed <= limit and lowest is None:
                return recoding, None
            if needed <= limit and lowest is not None:
                return recoding, opset_reason(f"the smaller {lowest[1]}", lowest[0], limit)
            if lowest is None or needed < lowest[0]:
                lowest = needed, recoding.kind
        if lowest is not None:
            return None, opset_reason(lowest[1], lowest[0], limit)
        if kinds is None:
            return None, None
        numbers = f"numbers from {span.low_centred:g} to {span.high_centred:g} around zero"
        reason = f"its codes, {numbers}, do not fit {kinds[0]}; use a wider type"
        return None, UNSUITED_WEIGHT(reason)

    def _changes(self, stored: Stored, chosen: Recoding) -> bool:
        return (
            self._makes_rows(stored, chosen)
            or chosen.kind != stored.stream.kind
            or len(stored.nodes) > 1
            or chosen.shift is not None
            or chosen.factor != 1
            or chosen.is_merged
        )

    def _makes_rows(self, stored: Stored, chosen: Recoding) -> bool:
        """Return whether blocks become rows of a matrix, which needs blocks of one size."""
        if self.blocks is not Blocks.ROWS or chosen.axis is None or not chosen.block_size:
            return False
        return stored.shape[chosen.axis] % chosen.block_size == 0 and stored.scale is not None


class CodeSign(Choice):
    """Type of codes of 8 bits."""

    UINT8 = "uint8"
    INT8 = "int8"
    KEEP = "keep"


@transform("shift-zero-points", preserves=Exactness.BITS)
class ShiftZeroPoints(Transform):
    """Shift codes of 8 bits between signed and unsigned types, with equal values.

    1. ``activations``: all codes between QuantizeLinear and DequantizeLinear, also across Clip,
       Concat and data movement, ``q' = q + 128`` and ``z' = z + 128``, or minus 128. Without
       ``symmetric``, codes with zero point 0 are unchanged, except at a Concat, and before a
       Transpose of data of a Conv.
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
    products: bool = option(False, help="store first operands of products of activations as int8")
    centre: bool = option(False, help="make zero points of data 0 if the codes fit")

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


_KIND = "INT8"


@transform("symmetric-weights", preserves=Exactness.BITS)
class SymmetricWeights(Transform):
    """Store weights as signed codes without zero points.

    1. ``DequantizeLinear(q, s, z) -> DequantizeLinear(q - z, s)`` in INT8, where all ``q - z`` lie
       in -128 to 127; also for unsigned codes with zero point 0.

    Weights with wider codes are left unchanged, and the report has their range.
    """

    narrow: bool = option(False, help="leave weights with code -128, which some runtimes refuse")
    opset: int | None = opset_option()

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


_PRODUCTS = "Conv*|Gemm|MatMul"
_MOST = int(FORMATS[_KIND].hi)


@transform("widen-codes", preserves=Exactness.BITS)
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
