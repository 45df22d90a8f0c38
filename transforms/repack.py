"""The pass ``repack``: store codes in the smallest type, or in one that a runtime supports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from qgraph.errors import Choice
from qgraph.exactness import Exactness
from qgraph.graph.edit import Editor
from qgraph.graph.opset import versions as opset
from qgraph.model import Model
from qgraph.reasons import UNSUITED_WEIGHT, ExplainedReason
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.drafts.choice import Decision, carry_out, entry, opset_reason, refused
from qgraph.transforms.drafts.versions import lower_opset
from qgraph.transforms.integers.shifted_chains import shift_activations
from qgraph.transforms.quantize_weights import CODE_TYPES
from qgraph.transforms.weights.recoded import Jobs, Recoded, is_taken, shared
from qgraph.transforms.weights.stored_codes import (
    Recoding,
    Stored,
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


@transform("repack")
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

    preserves: ClassVar[Exactness] = Exactness.VALUES

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
