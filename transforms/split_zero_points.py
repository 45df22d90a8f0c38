"""The pass ``split-zero-points``: replace zero points of weights by a sum of the data."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.inference.walk import Facts
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.opset.versions import ceiling
from qgraph.model import Model
from qgraph.numerics import Array, Float64, Int32
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.ops.known_values import KnownValues
from qgraph.ops.steps import TO_FLOAT32
from qgraph.reasons import UNSUPPORTED_TYPE
from qgraph.records import dataclass
from qgraph.reports import Report, SiteReport
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.drafts.choice import OfDraft, carry_out
from qgraph.transforms.drafts.rebuilding import carry_over
from qgraph.transforms.weights.output_scale import Stuck, title
from qgraph.transforms.weights.scaled_weights import AXIS_SINCE, present, real_constant, rounded
from qgraph.transforms.weights.stored_codes import Stored, stored_codes
from qgraph.transforms.weights.weighted_sums import WeightedSum, decoders, expect_opset, plans_of

_CODES = FORMATS["INT8"]


@transform("split-zero-points")
class SplitZeroPoints(Transform):
    """Remove zero points of weights, and add a second product that corrects the result.

    For Conv, ConvTranspose, Gemm and MatMul of decoded data, whose weights are
    ``DequantizeLinear(q, s, z)`` with zero points that ``symmetric-weights`` cannot subtract,

    1. ``op(x, w, b) -> op(x, DequantizeLinear(q - c, s), b) + op(x, ones) * ((c - z) * s)``. ``c``
       is the number nearest to ``z`` for which all codes of a channel fit in INT8. The second
       operator has one output channel: it adds up the data.
    2. With groups, the second operator has the weights ``DequantizeLinear(c - z, s)`` instead.

    The factors are computed in float64 and rounded once. Values change slightly, because sums are
    rounded at other points. Depthwise convolutions are left unchanged: two of them take longer than
    one in float.
    """

    nodes: str = option("*", help="names of operators, such as *conv*|!conv1")
    opset: int | None = opset_option()

    preserves: ClassVar[Exactness] = Exactness.DIFFERENT
    bounded: ClassVar[bool] = True

    def apply(self, model: Model, report: Report) -> None:
        """Split every layer whose weights would otherwise keep a zero point, and report it."""
        for plan in carry_out(model, functools.partial(self._plan, model), report):
            carry_over(plan.layer.node, plan.draft.nodes[plan.index])

    def _plan(self, model: Model, editor: Editor) -> Iterator[_Split | SiteReport]:
        weights = {s.decode: s for s in stored_codes(model) if s.zero_point is not None}
        limit = ceiling(model.ir, self.opset)
        plan = functools.partial(_Split.of, weights=weights, editor=editor, limit=limit)
        return plans_of(model, self.nodes, plan)


@dataclass(frozen=True, eq=False)
class _Split(OfDraft):
    """A layer and its replacement.

    Attributes:
        factor: factors of the sums of the data, one per output channel.
        index: index of the operator without zero points in the draft.
    """

    layer: WeightedSum
    factor: Float64
    index: int

    @classmethod
    def of(
        cls,
        node: ir.Node,
        known: KnownValues,
        facts: Facts,
        *,
        weights: dict[ir.Node, Stored],
        editor: Editor,
        limit: int,
    ) -> Iterator[_Split]:
        """Yield the form without zero points; nothing if subtracting them is enough.

        Raises:
            Stuck: there is none.
        """
        pair = decoders(node)
        stored = None if pair is None else weights.get(pair[1])
        layer = None if stored is None else WeightedSum.of(node, known, facts)
        if stored is None or layer is None or layer.weights != 1:
            return
        codes, points, nearest, aligned = _numbers(layer, stored)
        if (nearest == points).all():
            return
        if layer.dtype is not ir.DataType.FLOAT:
            raise Stuck(UNSUPPORTED_TYPE(f"its result is {layer.dtype.name}; {TO_FLOAT32}"))
        scale = real_constant(stored.decode.inputs[1], f"the scale of {title(stored.decode)}")
        offset = nearest - points
        factor = offset.astype(np.float64).reshape(-1) * aligned.astype(np.float64).reshape(-1)
        by_channel = rounded(factor, np.dtype(np.float32), "a factor")
        draft = editor.draft(Region(present(node, 0), node.outputs[0], (node,)))
        dtype = layer.dtype
        with draft.in_float32():
            centred = _decoded(draft, codes - nearest, scale, layer)
            operands: list[Operand | None] = [draft.x, centred, *node.inputs[2:]]
            first = draft.copy(node, operands, dtype=dtype)
            last = len(draft.nodes) - 1
            if layer.groups > 1:
                rest = _decoded(draft, np.broadcast_to(offset, layer.shape), scale, layer)
                missing = draft.copy(node, [draft.x, rest], dtype=dtype)
            else:
                shape = [1 if i == layer.output_axis else n for i, n in enumerate(layer.shape)]
                ones = _decoded(draft, np.ones(shape), np.ones((), scale.dtype), layer)
                sums = draft.copy(node, [draft.x, ones], dtype=dtype)
                trailing = layer.outputs.rank - 1 - layer.outputs.axis
                step = draft.constant(by_channel.reshape(-1, *[1] * trailing), "factor")
                missing = draft.node("Mul", [sums, step], dtype=dtype)
        draft.giving(draft.node("Add", [first, missing], dtype=dtype))
        expect_opset(draft, limit)
        yield cls(layer, factor, last, draft=draft)

    def report(self) -> SiteReport:
        """Return the entry of the report."""
        changed = int(np.count_nonzero(self.factor))
        return self.changed(
            self.layer.node,
            f"zero points of {changed} of {self.factor.size} channels are factors of a sum of the "
            "data now; sums are rounded elsewhere, which 'qgraph prove --within' bounds",
            channels=changed,
            largest_factor=float(np.abs(self.factor).max()),
        )


def _numbers(layer: WeightedSum, stored: Stored) -> tuple[Int32, Int32, Int32, Array]:
    """Return codes, zero points, the closest numbers that leave INT8 codes, and scales.

    Raises:
        Stuck: the zero points differ within an output channel, or the operator has groups.
    """
    axis, rank = layer.output_axis, len(layer.shape)
    others = tuple(i for i in range(rank) if i != axis)
    form, points = FORMATS[stored.stream.kind], stored.zero_point
    if not isinstance(form, IntFormat) or form.bits > _CODES.bits or points is None:
        raise Stuck("its codes are no integers of 8 bits")
    if len(stored.nodes) > 1:
        raise Stuck("its codes are limited by a Clip; run -p fold-constants first")
    scale = stored.scale
    if scale is None or any(points.shape[i] > 1 or scale.shape[i] > 1 for i in others):
        raise Stuck("its scales or zero points differ within an output channel")
    codes = stored.stream.array().astype(np.int32)
    low, high = (pick(axis=others, keepdims=True) for pick in (codes.min, codes.max))
    points = np.broadcast_to(points, low.shape)
    nearest = np.clip(points, high - int(_CODES.hi), low - int(_CODES.lo)).astype(np.int32)
    apart = nearest - points
    if layer.groups > 1 and apart.any():
        if layer.shape[1] == 1:
            raise Stuck("two depthwise convolutions were measured to take longer than one in float")
        if apart.min() < _CODES.lo or apart.max() > _CODES.hi:
            raise Stuck(f"zero points up to {np.abs(apart).max()} from codes do not fit in INT8")
    return codes, points, nearest, scale


def _decoded(draft: Draft, codes: Array, scale: Array, layer: WeightedSum) -> ir.Value:
    attributes = {"axis": layer.output_axis} if scale.size > 1 else {}
    draft.needs(AXIS_SINCE if scale.size > 1 else QDQ_SINCE["INT8"])
    operands = [draft.constant(codes.astype(np.int8), "codes"), draft.constant(scale, "scale")]
    return draft.node("DequantizeLinear", operands, attributes, dtype=layer.dtype)
