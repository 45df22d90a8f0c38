"""The pass ``repack``: stored codes in the smallest type, or in one that a runtime has."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.choices import Choice
from qgraph.dialects.dialect import Site, sites
from qgraph.equivalence.compare import Comparer
from qgraph.errors import OperatorError
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Editor, Region
from qgraph.model import Model
from qgraph.numerics.formats import FORMATS, numpy_dtype
from qgraph.numerics.packing import packed_size, unpack
from qgraph.opsets import signed_codes
from qgraph.opsets import versions as opset
from qgraph.report import Outcome, Report, SiteReport, operator_name
from qgraph.tensors.deferred import DeferredTensor
from qgraph.tensors.ledger import Ledger
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.ranges.shifted_pairs import shifted
from qgraph.transforms.spelling import choose, entry, raise_opset, settle
from qgraph.transforms.versions import lower_opset
from qgraph.transforms.weights.code_types import Recoding, merged, needed_opset, recodings
from qgraph.transforms.weights.stored_codes import Stored, stored_codes
from qgraph.transforms.weights.weight_plan import LAZY_BYTES
from qgraph.weights.repack_job import RepackJob, Shift, Source

Array = npt.NDArray[Any]

_Made = dict[object, tuple[RepackJob, ir.TensorProtocol]]
"""The jobs so far and what they give, by what is the same for constants that share their codes."""


class CodeTarget(Choice):
    """The type that codes get."""

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
    """What becomes of scales per block."""

    KEEP = "keep"
    ROWS = "rows"


_KINDS = {
    CodeTarget.FP4: "FLOAT4E2M1",
    CodeTarget.FP6_E2M3: "FLOAT6E2M3",
    CodeTarget.FP6_E3M2: "FLOAT6E3M2",
    CodeTarget.FP8: "FLOAT8E4M3FN",
    CodeTarget.FP8_E5M2: "FLOAT8E5M2",
}


@transform("repack")
class Repack(Transform):
    """Store codes in the smallest type that holds those that occur, or in the type ``to``."""

    to: CodeTarget = option(
        CodeTarget.SMALLEST, help="type of the codes; smallest: by the codes that occur"
    )
    scales: bool = option(
        True, help="merge scales that agree: of blocks into channels, of channels into one"
    )
    blocks: Blocks = option(
        Blocks.KEEP, help="rows: store blocks as rows, for runtimes without scales per block"
    )
    activations: bool = option(
        True, help="with to=int8, uint8, int16 or uint16: move the codes of activations too"
    )
    opset: int | None = option(
        None, help="highest opset that may be used; default: 21, or the model's own if higher"
    )

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def apply(self, model: Model, report: Report) -> None:
        """Choose a type for each constant, raise the opset once, replace; lower it if asked to."""
        self._move_activations(model, report)
        editor = Editor(model.ir)
        plans, others = self._plan(model, editor)
        needed = max((plan.draft.opset for plan in plans), default=0)
        before = model.ir.opset_imports.get("", 0)
        if plans and opset.require(model.ir, needed):
            report.notes.append(f"opset raised from {before} to {needed}")
            editor = Editor(model.ir)
            plans, others = self._plan(model, editor)
        editor.replace_all(plan.draft for plan in plans)
        report.sites += [plan.entry for plan in plans] + others
        opset.declare_domains(model.ir)
        if self.opset is not None:
            report.notes += lower_opset(model.ir, self.opset)

    def _move_activations(self, model: Model, report: Report) -> None:
        """Count the codes of pairs from the middle of the type that is asked for."""
        if not self.activations or self.to.upper() not in ("INT8", "UINT8", "INT16", "UINT16"):
            return
        editor = Editor(model.ir)
        limit = opset.ceiling(model.ir, self.opset)
        offers = [
            (site, [draft])
            for site in sites(model.ir)
            if isinstance(site, Site) and (draft := shifted(site, editor, self.to.upper()))
        ]
        if self.to is CodeTarget.INT8 and model.ir.opset_imports.get("", 0) >= signed_codes.SINCE:
            refused = [site for site, _ in offers if signed_codes.is_copied_over(site.y)]
            report.sites += [entry(site, Outcome.REFUSED, signed_codes.REASON) for site in refused]
            offers = [offer for offer in offers if offer[0] not in refused]
        choices = choose(offers, Exactness.BITS, limit, Comparer(model.ir))
        raise_opset(model, choices, report)
        settle(model, [choice for choice in choices if choice.site.stands], editor, report)

    def _plan(self, model: Model, editor: Editor) -> tuple[list[_Plan], list[SiteReport]]:
        limit = opset.ceiling(model.ir, self.opset)
        plans: list[_Plan] = []
        others: list[SiteReport] = []
        made: _Made = {}
        for found in stored_codes(model):
            if isinstance(found, OperatorError):
                continue
            chosen, reason = self._choose(found, limit)
            if chosen is None:
                outcome = Outcome.KEPT if self.to is CodeTarget.SMALLEST else Outcome.REFUSED
                outcome = Outcome.KEPT if reason is None else outcome
                others.append(_entry(found, outcome, reason))
                continue
            if not self._changes(found, chosen):
                others.append(_entry(found, Outcome.KEPT, reason))
                continue
            plans.append(_Plan(found, chosen, self.blocks is Blocks.ROWS, editor, made))
        return plans, others

    def _choose(self, found: Stored, limit: int) -> tuple[Recoding | None, str | None]:
        """Return the first way that the opset limit allows, or why there is none."""
        if found.others:
            named = ", ".join(found.others)
            return None, f"its codes are also used by {named}, for which they would stay"
        span = found.source.survey(found.shift)
        kinds = None if self.to is CodeTarget.SMALLEST else [_KINDS.get(self.to, self.to.upper())]
        lowest: int | None = None
        wanted = ""
        for recoding in recodings(found, span, kinds):
            if self.scales:
                recoding = merged(found, recoding)
            needed = needed_opset(
                found, recoding, rows=self.blocks is Blocks.ROWS and _makes_rows(found, recoding)
            )
            if needed <= limit:
                remark = None
                if lowest is not None:
                    remark = f"{wanted} would do, with opset {lowest}, above {limit}"
                return recoding, remark
            if lowest is None or needed < lowest:
                lowest, wanted = needed, recoding.kind
        if lowest is not None:
            return None, f"{wanted} needs opset {lowest}, above {limit}; allow opset {lowest}"
        if kinds is None:
            return None, None
        span_text = f"numbers from {span.low_centred:g} to {span.high_centred:g} around zero"
        return None, f"its codes, {span_text}, do not fit {kinds[0]}; take a wider type"

    def _changes(self, found: Stored, chosen: Recoding) -> bool:
        rows = self.blocks is Blocks.ROWS and _makes_rows(found, chosen)
        return (
            rows
            or chosen.kind != found.stream.kind
            or len(found.nodes) > 1
            or chosen.shift is not None
            or chosen.factor != 1
            or chosen.is_merged
        )


class _Plan:
    """How one constant is stored anew: a draft, and the entry of the report."""

    def __init__(
        self,
        found: Stored,
        chosen: Recoding,
        rows: bool,
        editor: Editor,
        made: _Made,
    ) -> None:
        self._found, self._chosen = found, chosen
        self._ledger = _ledger(found, chosen)
        region = Region(found.value, found.decode.outputs[0], found.nodes)
        self.draft = editor.draft(region)
        if rows and _makes_rows(found, chosen):
            self._as_rows(made)
        else:
            codes = self._codes(found.source, found.shape, chosen.shift, made)
            attributes = {} if chosen.axis is None else {"axis": chosen.axis}
            attributes |= {"block_size": chosen.block_size} if chosen.block_size else {}
            self.draft.giving(self._decode(codes, chosen.scale, chosen.zero_point, attributes))

    @property
    def entry(self) -> SiteReport:
        """The entry of the report; element counts are filled in when the codes are written."""
        signs = self._chosen.factor != 1 and self._found.stream.kind.startswith("FLOAT")
        rung = Exactness.VALUES if signs else Exactness.BITS
        return SiteReport(
            self._found.decode.name or self._found.decode.outputs[0].name or "",
            operator_name(self._found.decode),
            "",
            Outcome.CHANGED,
            spelling=self.draft.spelling,
            verdict=Verdict(rung, Method.CONSTANT),
            ledger=self._ledger,
        )

    def _codes(
        self,
        source: Source,
        shape: tuple[int, ...],
        shift: Shift | None,
        made: _Made,
    ) -> ir.Value:
        chosen = self._chosen
        mark = None if shift is None else (shift.numbers.shape, shift.numbers.tobytes())
        key = (self._found.value, source.bounds, shape, chosen.kind, mark, chosen.factor)
        if key not in made:
            name = self._found.value.name or "codes"
            job = RepackJob(name, source, chosen.kind, shift, chosen.factor)
            made[key] = job, _tensor(job, shape)
        job, tensor = made[key]
        job.report_to(self._ledger.close)
        return self.draft.stored(tensor, "codes")

    def _decode(
        self,
        codes: ir.Value,
        scale: Array | None,
        zero_point: Array | None,
        attributes: dict[str, int],
    ) -> ir.Value:
        node, kind = self._found.decode, self._chosen.kind
        given = node.inputs[1]
        operand = given if scale is None else self.draft.constant(scale, "scale")
        operands: list[ir.Value | Array | None] = [codes, operand]
        if zero_point is not None:
            whole = zero_point.astype(np.int32).astype(numpy_dtype(kind))
            operands.append(self.draft.constant(whole, "zero_point"))
        output = node.attributes.get_int("output_dtype", 0)
        attributes = attributes | ({"output_dtype": output} if output else {})
        self.draft.needs(needed_opset(self._found, self._chosen, rows=False))
        return self.draft.node(
            "DequantizeLinear", operands, attributes, dtype=node.outputs[0].dtype
        )

    def _as_rows(self, made: _Made) -> None:
        """Draft blocks as rows of a matrix, decoded per row, and put back in place."""
        found, chosen = self._found, self._chosen
        axis, size = chosen.axis or 0, chosen.block_size
        shape = found.shape
        outer, inner = int(np.prod(shape[:axis])), int(np.prod(shape[axis + 1 :]))
        count = shape[axis] // size
        stream = found.stream.reshaped((outer, count, size, inner))
        if stream is None:
            whole = found.stream.array().reshape(outer, count, size, inner)
            stream = type(found.stream)(found.stream.kind, whole.shape, whole)
        box = (outer, count, inner, size)
        source = Source(stream.transposed((0, 1, 3, 2)), found.source.bounds)
        rows = outer * count * inner
        shift = chosen.shift
        if shift is not None:
            one = shift.numbers.size == 1
            sizes = (1, 1, 1, 1) if one else (outer, count, inner, 1)
            shift = Shift(shift.numbers.reshape(sizes))
        codes = self._codes(source, (rows, size), shift, made)
        given = found.scale if chosen.scale is None else chosen.scale
        scale = None if given is None else given.reshape(rows)
        points = None if chosen.zero_point is None else chosen.zero_point.reshape(rows)
        y = self._decode(codes, scale, points, {"axis": 0})
        if inner > 1:
            y = self._shaped(y, box)
            y = self.draft.node("Transpose", [y], {"perm": [0, 1, 3, 2]}, dtype=y.dtype)
        self.draft.giving(self._shaped(y, shape))

    def _shaped(self, y: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        sizes = self.draft.constant(np.array(shape, np.int64), "shape")
        return self.draft.node("Reshape", [y, sizes], dtype=y.dtype)


def _ledger(found: Stored, chosen: Recoding) -> Ledger:
    scale = found.decode.inputs[1]
    kind = scale.dtype.name if scale is not None and scale.dtype is not None else "FLOAT"
    stored = chosen.scale if chosen.scale is not None else found.scale
    size = [packed_size(FORMATS[chosen.kind].bits, found.stream.size)]
    known = np.zeros(1, np.float32) if stored is None else stored.astype(np.float32)
    if stored is not None:
        size.append(stored.nbytes)
    if chosen.zero_point is not None:
        size.append(packed_size(FORMATS[chosen.kind].bits, chosen.zero_point.size))
    return Ledger(
        tensor=found.value.name or "",
        type=chosen.kind,
        scale_type=kind,
        bytes_before=found.nbytes,
        bytes_after=sum(size),
        codes_available=1 << FORMATS[chosen.kind].bits,
        scale_low=float(known.min()),
        scale_high=float(known.max()),
    )


def _makes_rows(found: Stored, chosen: Recoding) -> bool:
    """Return whether blocks, all of one size, can be rows of a matrix."""
    whole = chosen.axis is not None and found.shape[chosen.axis] % max(chosen.block_size, 1) == 0
    return bool(chosen.block_size) and whole and found.scale is not None


def _tensor(job: RepackJob, shape: tuple[int, ...]) -> ir.TensorProtocol:
    """Return the codes: made now if they are few, else when the model is saved."""
    dtype = ir.DataType[job.kind]
    if job.source.stream.nbytes > LAZY_BYTES:
        return DeferredTensor(job, 0, dtype, shape)
    data = job.run()
    codes = unpack(data, dtype.bitwidth, int(np.prod(shape))) if dtype.bitwidth < 8 else data
    return ir.Tensor(codes.view(numpy_dtype(job.kind)).reshape(shape))


def _entry(found: Stored, outcome: Outcome, reason: str | None) -> SiteReport:
    node = found.decode
    name = node.name or node.outputs[0].name or ""
    return SiteReport(name, operator_name(node), "", outcome, reason=reason)
