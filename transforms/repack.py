"""The pass ``repack``: store codes in the smallest type, or in one that a runtime supports."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.deferred import DeferredTensor, SizeSummary
from qgraph.graph.edit import Editor
from qgraph.graph.opset import versions as opset
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, numpy_dtype, packed_size
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Unnamed
from qgraph.quantizers.sites import sites
from qgraph.quantizers.weights.job import Recoder, RepackJob, Source
from qgraph.quantizers.weights.piecewise import Parameter
from qgraph.reasons import RUNTIME_FAILS, UNSUITED_WEIGHT, USED_ELSEWHERE, ExplainedReason
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.drafts.choice import (
    Decision,
    choose,
    entry,
    opset_reason,
    raise_and_settle,
    refused,
    settle,
)
from qgraph.transforms.drafts.versions import lower_opset, raise_opset
from qgraph.transforms.quantize_weights import CODE_TYPES
from qgraph.transforms.weights.float_weights import LAZY_BYTES
from qgraph.transforms.weights.shifted_pairs import shifted
from qgraph.transforms.weights.stored_codes import (
    Recoding,
    Stored,
    merged,
    needed_opset,
    recodings,
    stored_codes,
)

_Jobs = dict[object, tuple[RepackJob, ir.TensorProtocol]]
"""Jobs and their tensors, by properties that are equal for constants with shared codes."""


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
    """Store codes in the smallest type that holds them.

    1. ``DequantizeLinear(q, s, z) -> DequantizeLinear(q', s', z')`` with ``q' = (q - d) * f`` in
       the narrowest type that holds all used codes, ``s' = s / f``, ``z' = z - d`` and ``f``
       a power of two; or in the type ``to``. A Clip before it is applied to the codes.
    2. ``scales``: scales that agree are merged, of blocks into channels, of channels into one.
    3. ``blocks=rows``: blocks become rows, ``Reshape(Transpose(DequantizeLinear(rows, s, z)))``.
    4. ``activations``: with a signed or unsigned ``to`` of 8 or 16 bits, the codes of
       QuantizeLinear and DequantizeLinear pairs move too, ``q' = q + 2 ** (bits - 1)`` or back.

    Every element is compared when it is written.
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
    opset: int | None = opset_option()

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def apply(self, model: Model, report: Report) -> None:
        """Choose a type for each constant, raise the opset once, and replace the nodes."""
        self._move_activations(model, report)
        editor = Editor(model.ir)
        raise_and_settle(model, lambda: self._plan(model, editor), editor, report)
        if self.opset is not None:
            report.notes += lower_opset(model.ir, self.opset)

    def _move_activations(self, model: Model, report: Report) -> None:
        """Shift the codes of pairs to the middle of the requested type."""
        if not self.activations or self.to.upper() not in ("INT8", "UINT8", "INT16", "UINT16"):
            return
        editor = Editor(model.ir)
        limit = opset.ceiling(model.ir, self.opset)
        offers = [
            (site, [draft])
            for site in sites(model.ir)
            if isinstance(site, Site) and (draft := shifted(site, editor, self.to.upper()))
        ]
        if (
            self.to is CodeTarget.INT8
            and model.ir.opset_imports.get("", 0) >= opset.SIGNED_CODES_SINCE
        ):
            failing = [site for site, _ in offers if opset.is_copied_over(site.y)]
            report.sites += [
                refused(site.root, RUNTIME_FAILS(opset.SIGNED_CODES_REASON)) for site in failing
            ]
            offers = [offer for offer in offers if offer[0] not in failing]
        choices = choose(offers, Exactness.BITS, limit, Comparer(model.ir))
        report.notes += raise_opset(model.ir, (choice.opset for choice in choices))
        settle(model, [choice for choice in choices if choice.stands], editor, report)

    def _plan(self, model: Model, editor: Editor) -> tuple[list[Decision], list[SiteReport]]:
        limit = opset.ceiling(model.ir, self.opset)
        plans: list[Decision] = []
        others: list[SiteReport] = []
        jobs: _Jobs = {}
        for stored in stored_codes(model):
            chosen, reason = self._choose(stored, limit)
            if chosen is not None and self._changes(stored, chosen):
                rows = self._makes_rows(stored, chosen)
                plans.append(_Recoded(stored, chosen, rows, editor, jobs).decision)
                continue
            if chosen is None and reason is not None and self.to is not CodeTarget.SMALLEST:
                others.append(refused(stored.decode, reason))
            else:
                others.append(entry(stored.decode, SiteStatus.KEPT, reason))
        return plans, others

    def _choose(self, stored: Stored, limit: int) -> tuple[Recoding | None, ExplainedReason | None]:
        """Return the first recoding within the opset limit, or why there is none."""
        if stored.others:
            names = ", ".join(stored.others)
            reason = f"its codes are also used by {names}, which would keep them; "
            reason += "give this node codes of its own"
            return None, USED_ELSEWHERE(reason)
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


class _Recoded:
    """The new storage of one constant: a draft, and the entry of the report."""

    def __init__(
        self, stored: Stored, chosen: Recoding, rows: bool, editor: Editor, jobs: _Jobs
    ) -> None:
        self._stored, self._chosen, self._jobs = stored, chosen, jobs
        ends, shape = (stored.value, stored.decode.outputs[0]), stored.shape
        self._site = Site(*ends, stored.nodes, stored.decode, "qdq", Unnamed(), shape)
        self._size_summary = _size_summary(stored, chosen)
        self.draft = editor.draft(self._site)
        self.draft.size_summary = self._size_summary
        if rows:
            self._as_rows()
        else:
            codes = self._codes(replace(stored.source, shift=chosen.shift), stored.shape)
            attributes = {} if chosen.axis is None else {"axis": chosen.axis}
            attributes |= {"block_size": chosen.block_size} if chosen.block_size else {}
            self.draft.giving(self._decode(codes, chosen.scale, chosen.zero_point, attributes))

    @property
    def decision(self) -> Decision:
        """The draft; its size summary is completed when the codes are written."""
        signs = self._chosen.factor != 1 and self._stored.stream.kind.startswith("FLOAT")
        level = Exactness.VALUES if signs else Exactness.BITS
        return Decision(self._site, self.draft, Verdict(level, Method.CONSTANT))

    def _codes(self, source: Source, shape: tuple[int, ...]) -> ir.Value:
        chosen, shift = self._chosen, source.shift
        mark = None if shift is None else (shift.array.shape, shift.array.tobytes())
        key = (self._stored.value, source.bounds, shape, chosen.kind, mark, chosen.factor)
        if key not in self._jobs:
            name = self._stored.value.name or "codes"
            job = RepackJob(name, Recoder(source, chosen.kind, chosen.factor))
            deferred = DeferredTensor(job, 0, ir.DataType[chosen.kind], shape)
            is_large = source.stream.nbytes > LAZY_BYTES
            now = None if is_large else ir.Tensor(deferred.numpy(), deferred.dtype)
            self._jobs[key] = job, deferred if now is None else now
        job, tensor = self._jobs[key]
        job.report_to(self._size_summary.close)
        return self.draft.stored(tensor, "codes")

    def _decode(
        self,
        codes: ir.Value,
        scale: Array | None,
        zero_point: Array | None,
        attributes: dict[str, int],
    ) -> ir.Value:
        node, kind = self._stored.decode, self._chosen.kind
        new_scale = node.inputs[1] if scale is None else self.draft.constant(scale, "scale")
        operands: list[ir.Value | Array | None] = [codes, new_scale]
        if zero_point is not None:
            whole = zero_point.astype(np.int32).astype(numpy_dtype(kind))
            operands.append(self.draft.constant(whole, "zero_point"))
        output = node.attributes.get_int("output_dtype", 0)
        attributes = attributes | ({"output_dtype": output} if output else {})
        self.draft.needs(needed_opset(self._stored, self._chosen, rows=False))
        return self.draft.node(
            "DequantizeLinear", operands, attributes, dtype=node.outputs[0].dtype
        )

    def _as_rows(self) -> None:
        """Draft blocks as rows of a matrix, decoded per row and reshaped back."""
        stored, chosen = self._stored, self._chosen
        axis, size = chosen.axis or 0, chosen.block_size
        shape = stored.shape
        outer, inner = int(np.prod(shape[:axis])), int(np.prod(shape[axis + 1 :]))
        count = shape[axis] // size
        stream = stored.stream.reshaped((outer, count, size, inner))
        if stream is None:
            whole = stored.stream.array().reshape(outer, count, size, inner)
            stream = type(stored.stream)(stored.stream.kind, whole.shape, whole)
        box = (outer, count, inner, size)
        rows = outer * count * inner
        shift = chosen.shift
        if shift is not None:
            one = shift.array.size == 1
            sizes = (1, 1, 1, 1) if one else (outer, count, inner, 1)
            shift = Parameter(shift.array.reshape(sizes), box)
        source = Source(stream.transposed((0, 1, 3, 2)), stored.source.bounds, shift)
        codes = self._codes(source, (rows, size))
        scale = stored.scale if chosen.scale is None else chosen.scale
        scale = None if scale is None else scale.reshape(rows)
        points = None if chosen.zero_point is None else chosen.zero_point.reshape(rows)
        y = self._decode(codes, scale, points, {"axis": 0})
        if inner > 1:
            y = self._shaped(y, box)
            y = self.draft.node("Transpose", [y], {"perm": [0, 1, 3, 2]}, dtype=y.dtype)
        self.draft.giving(self._shaped(y, shape))

    def _shaped(self, y: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        sizes = self.draft.constant(np.array(shape, np.int64), "shape")
        return self.draft.node("Reshape", [y, sizes], dtype=y.dtype)


def _size_summary(stored: Stored, chosen: Recoding) -> SizeSummary:
    scale = chosen.scale if chosen.scale is not None else stored.scale
    bits = FORMATS[chosen.kind].bits
    points = 0 if chosen.zero_point is None else chosen.zero_point.size
    scales = np.zeros(1, np.float32) if scale is None else scale.astype(np.float32)
    size = packed_size(bits, stored.stream.size) + packed_size(bits, points)
    return SizeSummary(
        tensor=stored.value.name or "",
        type=chosen.kind,
        scale_type=stored.scale_type,
        bytes_before=stored.nbytes,
        bytes_after=size + (0 if scale is None else scale.nbytes),
        scale_low=float(scales.min()),
        scale_high=float(scales.max()),
    )
