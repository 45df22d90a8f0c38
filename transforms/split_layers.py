"""Passes that split a layer of codes into two.

``split-leaky-relu``   LeakyRelu behind a layer as the larger of two codes
``split-zero-points``  zero points of weights as a correction by a second product
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.inference.walk import Facts
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.schema import code_type
from qgraph.graph.scopes import input_of
from qgraph.model import Model
from qgraph.numerics import Array, Float64, Int32
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.ops.known_values import KnownValues
from qgraph.ops.steps import TO_FLOAT32
from qgraph.quantizers.movement import is_linear
from qgraph.reasons import NO_OPERATOR, UNSUPPORTED_TYPE
from qgraph.records import dataclass
from qgraph.reports import Report, SiteReport
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.drafts.choice import OfDraft, carry_out
from qgraph.transforms.drafts.rebuilding import carry_over
from qgraph.transforms.weights.output_scale import Stuck, title
from qgraph.transforms.weights.scaled_weights import (
    AXIS_SINCE,
    NegativeFactor,
    WeightScaling,
    compact,
    present,
    real_constant,
    rounded,
)
from qgraph.transforms.weights.stored_codes import Stored, stored_codes
from qgraph.transforms.weights.weighted_sums import WeightedSum, decoders, expect_opset, plans_of

_INTEGERS_SINCE = 12
"""The opset since which Max takes codes."""


@transform("split-leaky-relu", bounded=True)
class SplitLeakyRelu(Transform):
    """Replace LeakyRelu between a layer of codes and its quantizer by a Max of codes.

    For Conv, ConvTranspose, Gemm and MatMul of decoded data and weights, ``f`` = LeakyRelu or PRelu
    with slopes ``a`` above 0, up to 1, and no other readers of what lies between,

    1. ``Q(f(op(x, w, b))) -> Max(Q(op(x, w, b)), Q(op(x, a * w, a * b)))``, where ``a`` multiplies
       the scales of ``w`` and ``b``: both layers have the same codes.

    Rounding is monotone, so the larger code is that of the larger number. Scales are rounded, so
    values change slightly.
    """

    nodes: str = option("*", help="names of operators, such as *conv*|!conv1")
    opset: int | None = opset_option()

    def apply(self, model: Model, report: Report) -> None:
        """Split each such layer, and report it."""
        for plan in carry_out(model, functools.partial(self._plan, model), report):
            carry_over(plan.layer, plan.first)
            # a layer without a name is known by its result
            plan.first.outputs[0].name = plan.layer.outputs[0].name

    def _plan(self, model: Model, editor: Editor) -> Iterator[_Maximum | SiteReport]:
        plan = functools.partial(_Maximum.of, editor=editor, limit=ceiling(model.ir, self.opset))
        return plans_of(model, self.nodes, plan)


_BYTE = 8
_Chain = tuple[ir.Node, ir.Node, ir.Node]
"""A layer, the function of its result, and the QuantizeLinear of that."""


def _chain(node: ir.Node) -> _Chain | None:
    bent = _only_reader(node) if decoders(node) is not None else None
    if bent is None or bent.domain or bent.op_type not in ("LeakyRelu", "PRelu"):
        return None
    encode = _only_reader(bent)
    if encode is None or not is_linear(encode, "QuantizeLinear"):
        return None
    codes = code_type(encode)
    is_wide = codes is not None and codes.is_integer() and codes.bitwidth >= _BYTE  # Max takes it
    return (node, bent, encode) if is_wide else None


def _only_reader(node: ir.Node) -> ir.Node | None:
    """Return the node whose data a result is, if nothing else reads it."""
    value = node.outputs[0]
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].node.graph is not node.graph:
        return None
    return uses[0].node if uses[0].idx == 0 else None


@dataclass(frozen=True, eq=False)
class _Maximum(OfDraft):
    """A layer, and what takes its place.

    Attributes:
        first: the one that takes its place; another one has scales that are multiplied.
        slopes: of the function behind it.
    """

    layer: ir.Node
    first: ir.Node
    slopes: Float64

    @classmethod
    def of(
        cls, node: ir.Node, known: KnownValues, facts: Facts, *, editor: Editor, limit: int
    ) -> Iterator[_Maximum]:
        """Yield the form of a layer without the function behind it, if it has one.

        Raises:
            Stuck: there is no such form.
        """
        chain = _chain(node)
        layer = None if chain is None else WeightedSum.of(node, known, facts)
        if chain is None or layer is None or layer.weights != 1:
            return
        _, bent, encode = chain
        slopes = layer.outputs.spread(_slopes(bent), bent)
        if not ((slopes > 0) & (slopes <= 1)).all():
            text = f"slopes of {title(bent)} reach from {slopes.min():g} to {slopes.max():g}, and "
            text += "the larger code is that of slopes above 0, up to 1; leave the activation"
            raise Stuck(NO_OPERATOR(text))
        draft = editor.draft(Region(present(node, 0), encode.outputs[0], chain))
        draft.needs(_INTEGERS_SINCE)
        scaling = WeightScaling(draft, known, facts, NegativeFactor.SCALES)
        weights = scaling.scaled(layer.weights_value, compact(layer.output_factor(slopes)))
        bias = input_of(node, 2)
        biases = [] if bias is None else [scaling.scaled(bias, compact(slopes))]
        codes = [_coded(draft, chain, [draft.x, *node.inputs[1:]])]
        first = draft.nodes[-2]  # the last node is its QuantizeLinear
        codes.append(_coded(draft, chain, [draft.x, weights, *biases]))
        draft.giving(draft.node("Max", codes, dtype=encode.outputs[0].dtype))
        expect_opset(draft, limit, "Max of codes")
        yield cls(node, first, slopes, draft=draft)

    def report(self) -> SiteReport:
        return self.changed(
            self.layer,
            "the larger of two codes takes the place of a function behind the layer; its slopes "
            "are in scales now, which are rounded; 'qgraph prove --within' bounds the difference",
            slope=float(self.slopes.max()),
        )


def _slopes(bent: ir.Node) -> Array:
    """Return the slopes of a LeakyRelu or PRelu; Stuck if they are computed at run time."""
    if bent.op_type == "LeakyRelu":
        return np.asarray(bent.attributes.get_float("alpha", 0.01), np.float32)
    slopes = constant_expression(bent.inputs[1])
    if slopes is None:
        raise Stuck("the slopes of PRelu are computed at run time")
    return slopes


def _coded(draft: Draft, chain: _Chain, operands: list[Operand | None]) -> ir.Value:
    """Append a layer with other operands, and the QuantizeLinear of its result."""
    node, _, encode = chain
    result = draft.node(node.op_type, operands, dict(node.attributes), dtype=node.outputs[0].dtype)
    parameters = [result, *encode.inputs[1:]]
    attributes, dtype = dict(encode.attributes), encode.outputs[0].dtype
    return draft.node(encode.op_type, parameters, attributes, domain=encode.domain, dtype=dtype)


_CODES = FORMATS["INT8"]
"""The type of codes of weights without zero points."""


@transform("split-zero-points", bounded=True)
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
