"""Constants stored as codes: DequantizeLinear over a packed initializer.

Codes are computed from the results of the quantizer, so no rounding rule is repeated here. The
decoded values are compared with these results afterwards, element by element. Weights of
:data:`LEAST_BYTES` or more in files are not read: their codes are computed, and checked, when the
model is saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.draft_parts import SizeSummary, Tally
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.streaming import FileRange
from qgraph.graph.tensors import stored_bytes
from qgraph.numerics import Array, Float32
from qgraph.numerics.formats import FORMATS, IntFormat, container, find_minifloat, numpy_dtype
from qgraph.numerics.rounding import Rounding
from qgraph.ops.dispatch import evaluate
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.dialects.layout import CodeLayout, Placed, laid_out
from qgraph.quantizers.dialects.parts import (
    ONE,
    SCALAR,
    ZERO,
    Form,
    Scales,
    dequantize,
    dequantized,
    even_steps,
    holds,
    is_whole,
    range_values,
    split_top,
)
from qgraph.quantizers.quantizer import Affine, Bipolar, Decoding, Floating, Ranged
from qgraph.quantizers.weights import level_table
from qgraph.quantizers.weights.codes_job import LEAST_BYTES, CodesJob, CodesPlan, Coding, tally_of
from qgraph.quantizers.weights.piecewise import ElementProgram
from qgraph.records import dataclass, replace
from qgraph.reports import operator_name

SIGNED = ("INT2", "INT4", "INT8", "INT16", "INT32")
UNSIGNED = ("UINT2", "UINT4", "UINT8", "UINT16", "INT32")

_FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16")

_MOST_ODD = 127
"""Maximum code in half steps, which numbers without a zero point have if none of them is 0."""

_MOST_LEVELS = 1 << 22
"""Maximum number of levels, over all channels, that are computed before a draft is yielded."""


def packed(site: Site, editor: Editor, scales: Scales = Scales.FLOAT) -> Iterator[Draft]:
    """Yield drafts that store the constant of a quantizer as codes, smallest type first."""
    layout = laid_out(site) if site.weight is not None and site.weight.size else None
    if layout is None:
        return
    drafts = _Packer(site, editor, layout, scales, later=True).drafts() if is_big(site) else ()
    first = next(iter(drafts), None)
    if first is not None:
        yield first
        yield from drafts
    elif site.values is not None and np.isfinite(site.values).all():
        yield from _Packer(site, editor, layout, scales, later=False).drafts()


def is_big(site: Site) -> bool:
    """Return whether the constant stays in its file until the model is saved."""
    weight, meaning = site.weight, site.quantizer
    if isinstance(meaning, Ranged) and not (meaning.input_low < meaning.input_high).all():
        # Reversed and empty ranges have no order of levels to rely on.
        return False
    return (
        weight is not None
        and isinstance(weight.stored, FileRange)
        and weight.nbytes >= LEAST_BYTES
        and weight.kind in _FLOATS
    )


@dataclass
class _Packer:
    """Drafts the forms of one site.

    Attributes:
        layout: layout of its parameters along the codes.
        scales: types that scales may be stored in.
        later: whether codes are computed when the model is saved, in the smallest type for all
            codes of the quantizer; otherwise now, in the smallest type for the used codes.
    """

    site: Site
    editor: Editor
    layout: CodeLayout
    scales: Scales
    later: bool
    _known: tuple[Coding, Array] | None = None

    def drafts(self) -> Iterator[Draft]:
        """Yield all forms."""
        match self.site.quantizer:
            case Affine() as meaning:
                margin = 0.5 if meaning.rounding is Rounding.ROUND else 1.0
                ends = float(meaning.lo.min()), float(meaning.hi.max())
                decoding = meaning.decoding or Decoding(meaning.scale, meaning.zero_point)
                yield from self._affine(decoding.scale, decoding.zero_point, ends, margin)
            case Bipolar(scale):
                yield from self._affine(scale, ZERO, (-1.0, 1.0), 0.5)
            case Floating() as meaning:
                yield from self._floating(meaning)
            case Ranged(decoding=None) as meaning:
                yield from self._ranged(meaning)

    def _affine(
        self, scale: Float32, zero_point: Float32, ends: tuple[float, float], margin: float
    ) -> Iterator[Draft]:
        placed = self.layout.place(self._narrowed(scale), self._narrowed(zero_point))
        scale, zero_point = placed.arrays
        coding = Coding("INT32", placed.parameter(scale), *ends, margin=margin)
        if zero_point.any():
            shifted = replace(coding, zero_point=placed.parameter(zero_point))
            yield from self._stored(placed, shifted, scale, zero_point)
            parts = 1 if is_whole(zero_point) else 2
            # Counted from the zero point instead, so that none is left.
            lo, hi = ends[0] - float(zero_point.max()), ends[1] - float(zero_point.min())
            if not is_whole(zero_point * parts) or (parts > 1 and max(-lo, hi) * parts > _MOST_ODD):
                return
            scale = scale / np.float32(parts)
            coding = replace(
                coding,
                scale=placed.parameter(scale),
                lo=lo * parts,
                hi=hi * parts,
                margin=margin * parts,
            )
        yield from self._stored(placed, coding, scale, ZERO)

    def _floating(self, meaning: Floating) -> Iterator[Draft]:
        grid = meaning.format
        placed = self.layout.place(meaning.scale)
        (scale,) = placed.arrays
        stored = find_minifloat(grid.exponent_bits, grid.mantissa_bits, grid.bias)
        layout, top = placed.layout(), grid.max_value
        if stored is not None and layout is not None and top <= stored.max_value:
            margin = 0.5 * stored.step_below(top)
            coding = Coding(stored.name, placed.parameter(scale), -top, top, margin=margin)
            for form in dequantized(layout, scale, ZERO, stored.name, self._dtype, self.scales):
                yield from self._draft(coding, form, keeps_zeros=stored.has_negative_zero)
        # Every value is a multiple of the smallest subnormal, so narrow formats are integers too.
        unit = np.float32(2.0 ** (1 - grid.bias - grid.mantissa_bits))
        top = float(np.float32(grid.max_value) / unit)
        yield from self._affine(meaning.scale * unit, ZERO, (-top, top), 0.5)

    def _ranged(self, meaning: Ranged) -> Iterator[Draft]:
        ends = meaning.input_high, meaning.output_low, meaning.output_high
        placed, top = self.layout.place(*ends), float(meaning.levels - 1)
        high_in, low, high = placed.arrays
        scale, zero_point = even_steps(low, high, top)
        if not np.isfinite(zero_point).all():
            return
        coding = Coding("INT32", placed.parameter(scale), 0.0, top)
        from_low = replace(coding, low=placed.parameter(low))
        levels = _levels(self.site, meaning) if self.later else None
        if not self.later or (levels is not None and _decodes(levels, meaning, 1)):
            yield from self._stored(placed, from_low, scale, zero_point)
            lo, hi = -float(zero_point.max()), top - float(zero_point.min())
            yield from self._stored(placed, replace(coding, lo=lo, hi=hi), scale, ZERO)
        half, zero_point = even_steps(low, high, top * 2)
        lo, hi = -float(zero_point.max()), top * 2 - float(zero_point.min())
        is_odd = (zero_point % 2 != 0).any() and max(-lo, hi) <= _MOST_ODD
        if is_odd and (not self.later or (levels is not None and _decodes(levels, meaning, 2))):
            coding = Coding("INT32", placed.parameter(half), lo, hi, margin=1.0)
            yield from self._stored(placed, coding, half, ZERO)
        # In half of all ranges span + low is not high: weights above the range have a code more.
        above = replace(from_low, hi=top + 1, above=placed.parameter(high_in))
        splits = levels is None or bool((levels[-1] != levels[-2]).any())
        low, high = placed.spread(low), placed.spread(high)
        for chosen in (above,) if self.later and splits else (from_low, above):
            form = _range_form(low, high, top, splits=chosen is above)
            last = self._range(chosen)[1]
            type_name = next((name for name in UNSIGNED if last <= FORMATS[name].hi), None)
            if type_name is not None:
                yield from self._draft(replace(chosen, kind=type_name), form)

    def _stored(
        self, placed: Placed, coding: Coding, scale: Float32, zero_point: Float32
    ) -> Iterator[Draft]:
        """Yield ``(codes - zero_point) * scale``: one DequantizeLinear if the layout allows it."""
        layout = placed.layout(scale, zero_point) if is_whole(zero_point) else None
        lo, hi = self._range(coding)
        for name in SIGNED if min(lo, float(zero_point.min())) < 0 else UNSIGNED:
            if not FORMATS[name].lo <= lo <= hi <= FORMATS[name].hi:
                continue
            if layout is None:
                spread = placed.spread(scale), placed.spread(zero_point)
                yield from self._draft(replace(coding, kind=name), self._product(*spread, name))
            elif holds(name, zero_point):
                for form in dequantized(layout, scale, zero_point, name, self._dtype, self.scales):
                    yield from self._draft(replace(coding, kind=name), form)

    def _product(self, scale: Float32, zero_point: Float32, type_name: str) -> Form:
        """Return the decoding in three operators, for parameters without a layout."""
        dtype = numpy_dtype(self._dtype.name)
        factor, offset = scale.astype(dtype), zero_point.astype(dtype)

        def form(draft: Draft, codes: ir.Value) -> Operand:
            steps: Operand = dequantize(draft, codes, ONE, ZERO, type_name, SCALAR, self._dtype)
            steps = draft.op.Sub(steps, offset) if offset.any() else steps
            return draft.node("Mul", [steps, draft.constant(factor, "scale")])

        return form

    def _draft(self, coding: Coding, form: Form, *, keeps_zeros: bool = False) -> Iterator[Draft]:
        """Yield the draft in which ``form`` decodes the codes of ``coding``."""
        draft = self.editor.draft(self.site)
        if self.later:
            yield from self._later(draft, coding, form, keeps_zeros)
            return
        codes = self._now(coding)
        # Many drafts exist at the same time.
        self._known = None
        dtype = numpy_dtype(coding.kind)
        narrow = codes.astype(dtype) if codes.dtype.kind in "iu" and _is_integer(coding) else codes
        draft.giving(form(draft, draft.constant(narrow.view(dtype), "codes")))
        draft.size_summary = self._size_summary(draft, coding)
        draft.size_summary.count = partial(self._count, draft, coding, codes)
        yield draft

    def _later(
        self, draft: Draft, coding: Coding, form: Form, keeps_zeros: bool
    ) -> Iterator[Draft]:
        weight, shape = self.site.weight, self.layout.shape
        if weight is None:
            return
        job = CodesJob()
        tensor = DeferredTensor(job, 0, ir.DataType[coding.kind], shape)
        value = draft.stored(tensor, "codes")
        draft.giving(form(draft, value))
        quantize = ElementProgram.of(self.site.nodes, self.site.x, self.site.y, weight.shape)
        dequantize = ElementProgram.of(draft.nodes, value, draft.y, shape)
        if quantize is None or dequantize is None:
            return
        root = self.site.root
        label = f"{operator_name(root)} {root.name or self.site.y.name!r}"
        table = self._table(quantize, dequantize, coding)
        job.plan = CodesPlan(label, weight, quantize, coding, dequantize, shape, keeps_zeros, table)
        shared = self._first(job.plan, tensor)
        draft.tensors[value] = value.const_value = shared
        draft.promise = Verdict(
            Exactness.BITS if keeps_zeros else Exactness.VALUES, Method.CONGRUENCE
        )
        draft.size_summary = self._size_summary(draft, coding)
        if isinstance(shared.job, CodesJob):
            shared.job.size_summaries.append(draft.size_summary)
        yield draft

    def _first(self, plan: CodesPlan, tensor: DeferredTensor) -> DeferredTensor:
        """Return an existing tensor with the codes of ``plan``; ``tensor`` if there is none."""
        drafted = self.editor.deferred.setdefault(plan.weight.key, [])
        for other in drafted:
            if isinstance(other.job, CodesJob) and other.job.plan.digest == plan.digest:
                return other
        drafted.append(tensor)
        return tensor

    def _table(
        self, quantize: ElementProgram, dequantize: ElementProgram, coding: Coding
    ) -> level_table.LevelTable | None:
        """Return a table that proves all levels at once, for the codes of the quantizer."""
        weight, meaning = self.site.weight, self.site.quantizer
        if weight is None or weight.kind != "FLOAT":
            return None
        match meaning:
            case Affine(zero_point=zero_point) if coding.zero_point is None and zero_point.any():
                return None
            case Floating() if _is_integer(coding):
                return None
            case Ranged() if coding.low is None:
                # Codes are counted from the zero point, levels from the lowest one.
                return None
        return level_table.LevelTable.of(quantize, dequantize, coding.kind, coding.ends)

    def _range(self, coding: Coding) -> tuple[float, float]:
        """Return the smallest and the largest of the used codes, or of all possible codes."""
        if self.later:
            return coding.lo, coding.hi
        codes = self._now(coding)
        return float(codes.min()), float(codes.max())

    def _now(self, coding: Coding) -> Array:
        if self._known is not None and coding.fits(*self._known):
            return self._known[1].astype(container(coding.kind))
        values, data = self._values
        box = self.layout.box
        with np.errstate(all="ignore"):
            codes = coding.codes(values, data, coding.scale.at(*box), box)
        self._known = coding, codes
        return codes

    @cached_property
    def _values(self) -> tuple[Array, Array]:
        """The output of the quantizer and its data, in the shape of the codes."""
        values, data = np.asarray(self.site.values), np.asarray(self.site.weight)
        return values.reshape(self.layout.shape), data.reshape(self.layout.shape)

    def _count(self, draft: Draft, coding: Coding, codes: Array) -> Tally:
        values, data = self._values
        decoded = evaluate(draft.nodes, draft.x, draft.y, data)
        return tally_of(coding, codes, values, decoded, data, self.layout.box)

    def _size_summary(self, draft: Draft, coding: Coding) -> SizeSummary:
        weight = self.site.weight
        used = {value: None for node in draft.nodes for value in node.inputs if value is not None}
        scales = [value for value in used if (value.name or "") == "scale"]
        steps = coding.scale.array
        return SizeSummary(
            tensor=_name_of(self.site.x),
            type=coding.kind,
            scale_type=next((v.dtype.name for v in scales if v.dtype is not None), "FLOAT"),
            bytes_before=0 if weight is None else weight.nbytes,
            bytes_after=sum(
                stored_bytes(value.const_value) for value in used if value.const_value is not None
            ),
            scale_low=float(steps.min()),
            scale_high=float(steps.max()),
        )

    def _narrowed(self, parameter: Float32) -> Float32:
        """Return a parameter, converted to the type of the data, in which operators compute."""
        weight = self.site.weight
        type_name = "FLOAT" if weight is None or weight.kind not in _FLOATS else weight.kind
        narrow = parameter.astype(numpy_dtype(type_name), copy=False)
        return narrow.astype(np.float32, copy=False)

    @property
    def _dtype(self) -> ir.DataType:
        """Type of the decoded values."""
        dtype = self.site.y.dtype or self.site.x.dtype
        return dtype if dtype is not None and dtype.name in _FLOATS else ir.DataType.FLOAT


def _range_form(low: Float32, high: Float32, top: float, *, splits: bool) -> Form:
    """Return FakeQuantize's own float operations from code to value."""

    def form(draft: Draft, codes: ir.Value) -> Operand:
        dtype = ir.DataType.INT8 if codes.dtype is None else codes.dtype
        whole = dequantize(draft, codes, ONE, ZERO, dtype.name, SCALAR)
        y = range_values(draft, whole, low, high, top)
        return split_top(draft, y, whole, np.float32(top), high) if splits else y

    return form


def _levels(site: Site, meaning: Ranged) -> Float32 | None:
    """Return every value of a FakeQuantize, ``[levels + 2, *shape of the ranges]``.

    The first value is for inputs below the range, the last for inputs above. None if there are too
    many.
    """
    ends = meaning.input_low, meaning.input_high, meaning.output_low, meaning.output_high
    joint = np.broadcast_shapes(*(end.shape for end in ends))
    if meaning.levels * max(int(np.prod(joint)), 1) > _MOST_LEVELS:
        return None
    shares = np.arange(meaning.levels).reshape(-1, *(1,) * len(joint)) / (meaning.levels - 1)
    with np.errstate(all="ignore"):
        inside = meaning.input_low + shares * (meaning.input_high - meaning.input_low)
        inside = np.broadcast_to(inside, (meaning.levels, *joint))
        beyond = np.full((1, *joint), np.inf)
        data = np.concatenate([-beyond, inside, beyond]).astype(np.float32)
    values: Float32 = evaluate(site.nodes, site.x, site.y, data)
    return values


def _decodes(levels: Float32, meaning: Ranged, parts: int) -> bool:
    """Return whether ``(code - zero_point) * scale`` gives all ``levels``, in parts of steps."""
    low = meaning.output_low
    scale, zero_point = even_steps(low, meaning.output_high, (meaning.levels - 1) * parts)
    with np.errstate(all="ignore"):
        codes = np.rint((levels - low) / scale)
        return bool((((codes - zero_point) * scale) == levels).all())


def _name_of(value: ir.Value) -> str:
    """Return the name of the constant after operators that only move elements."""
    while (node := value.producer()) and node.inputs and node.inputs[0] is not None:
        value = node.inputs[0]
    return value.name or ""


def _is_integer(coding: Coding) -> bool:
    return isinstance(FORMATS[coding.kind], IntFormat)
