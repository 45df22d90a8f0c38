"""Drafts that store constant codes in another type, and are compared while they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.draft_parts import SizeSummary
from qgraph.graph.edit import Editor
from qgraph.graph.opset.versions import ceiling
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat, numpy_dtype, packed_size
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.movement import MOVES
from qgraph.quantizers.quantizer import Unnamed
from qgraph.quantizers.weights.job import NumberRange, Recoder, RepackJob, Source
from qgraph.quantizers.weights.piecewise import Parameter
from qgraph.reasons import USED_ELSEWHERE, ExplainedReason
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import selects
from qgraph.transforms.drafts.choice import Decision, carry_out, entry, label, opset_reason, refused
from qgraph.transforms.weights.float_weights import LAZY_BYTES
from qgraph.transforms.weights.stored_codes import Recoding, Stored, needed_opset, stored_codes

_BIAS = 2
"""Index of the bias among the inputs of Conv, ConvTranspose and Gemm."""

Jobs = dict[object, tuple[RepackJob, ir.TensorProtocol]]
"""Jobs and their tensors, by properties that are equal for constants with shared codes."""

_BYTE = 8
"""Maximum number of bits of codes that kernels accept as weights."""


def shared(stored: Stored) -> ExplainedReason | None:
    """Return why codes cannot change: operators that use them directly; None if none does."""
    if not stored.others:
        return None
    names = ", ".join(stored.others)
    return USED_ELSEWHERE(
        f"its codes are also used by {names}, which would keep them; give this node codes of its "
        "own"
    )


def recode(
    model: Model,
    opset: int | None,
    report: Report,
    choice: Callable[[Stored, NumberRange], Recoding | str | None],
) -> None:
    """Store weights of up to 8 bits anew, raise the opset as far as needed, and report each.

    ``choice`` returns the new storage of codes, from the range of their numbers; an explained
    reason to refuse; or another text, or None, to keep them.
    """

    def planned(editor: Editor) -> Iterator[Decision | SiteReport]:
        limit, jobs = ceiling(model.ir, opset), Jobs()
        for stored in stored_codes(model):
            form = FORMATS[stored.stream.kind]
            if not isinstance(form, IntFormat) or form.bits > _BYTE:
                continue
            recoding = shared(stored) or choice(stored, stored.source.survey())
            needed = needed_opset(stored, recoding) if isinstance(recoding, Recoding) else 0
            if needed > limit:
                recoding = opset_reason("its new form", needed, limit)
            if isinstance(recoding, Recoding):
                yield Recoded(stored, recoding, editor, jobs).decision
            elif isinstance(recoding, ExplainedReason):
                yield refused(stored.decode, recoding)
            else:
                yield entry(stored.decode, SiteStatus.KEPT, recoding)

    carry_out(model, planned, report)


class Recoded:
    """The new storage of one constant: a draft, and the entry of the report."""

    def __init__(
        self, stored: Stored, chosen: Recoding, editor: Editor, jobs: Jobs, *, rows: bool = False
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
        self, codes: ir.Value, scale: Array | None, point: Array | None, attributes: dict[str, int]
    ) -> ir.Value:
        node, type_name = self._stored.decode, self._chosen.kind
        new_scale = node.inputs[1] if scale is None else self.draft.constant(scale, "scale")
        operands: list[ir.Value | Array | None] = [codes, new_scale]
        if point is not None:
            whole = point.astype(np.int32).astype(numpy_dtype(type_name))
            operands.append(self.draft.constant(whole, "zero_point"))
        output = node.attributes.get_int("output_dtype", 0)
        attributes = attributes | ({"output_dtype": output} if output else {})
        self.draft.needs(needed_opset(self._stored, self._chosen, rows=False))
        dtype = node.outputs[0].dtype
        return self.draft.node("DequantizeLinear", operands, attributes, dtype=dtype)

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


def is_taken(decode: ir.Node, operators: str = "*", nodes: str = "*") -> bool:
    """Return whether a selected operator uses codes, also after movement, but not as its bias.

    Operators and names are patterns, see :func:`qgraph.transforms.base.selects`.
    """
    if operators == nodes == "*":
        return True
    users: list[ir.Node] = []
    pending = [decode]
    while pending:
        consumers = [use.node for use in pending.pop().outputs[0].uses() if use.idx != _BIAS]
        pending += [node for node in consumers if node.op_type in MOVES]
        users += consumers
    return any(selects(operators, user.op_type) and selects(nodes, label(user)) for user in users)
