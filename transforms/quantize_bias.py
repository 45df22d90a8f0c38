"""The pass ``quantize-bias``: store float biases of quantized layers as int32 codes."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Editor, Operand, Region
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import Facts
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.scopes import input_of
from qgraph.model import Model
from qgraph.numerics import Array, Float64
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.values import compare_values
from qgraph.ops.known_values import KnownValues
from qgraph.ops.steps import TO_FLOAT32
from qgraph.reasons import NO_OPERATOR, UNSUPPORTED_TYPE
from qgraph.records import dataclass
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.drafts.choice import OfDraft, carry_out, entry
from qgraph.transforms.drafts.rebuilding import carry_over
from qgraph.transforms.weights.output_scale import Stuck, title
from qgraph.transforms.weights.scaled_weights import AXIS_SINCE, present, real_constant, rounded
from qgraph.transforms.weights.weighted_sums import (
    OPERATORS,
    WeightedSum,
    decoders,
    expect_opset,
    plans_of,
)

_MOST = 2**31 - 1
_ROUNDINGS = 2.0**-22
"""Relative difference of the scale of a bias and the product of scales, which exporters round."""


@transform("quantize-bias", bounded=True)
class QuantizeBias(Transform):
    """Store biases of quantized layers as int32 codes.

    This includes biases that are int32 codes of another scale, which integer kernels do not accept.

    For Conv, ConvTranspose, Gemm and MatMul whose data and weights come from DequantizeLinear with
    scales ``s_x`` and ``s_w``, the unit of their products is ``s = s_x * s_w`` for each channel
    (for Gemm times ``alpha / beta``). Then

    1. ``op(x, w, b) -> op(x, w, DequantizeLinear(codes, s))`` with ``codes = round(b / s)``. The
       error of a bias is at most ``s / 2``, and a rounding. The bias of a MatMul is the operand of
       a following Add.

    ``s`` is computed in float64 and rounded once. A layer is left unchanged if a code, or a sum of
    products and its code, could exceed int32.
    """

    nodes: str = option("*", help="names of operators, such as *conv*|!conv1")
    opset: int | None = opset_option()

    def apply(self, model: Model, report: Report) -> None:
        """Replace every bias whose codes fit, and report each layer with a bias."""
        for plan in carry_out(model, functools.partial(self._plan, model), report):
            carry_over(plan.node, plan.draft.nodes[-1])

    def _plan(self, model: Model, editor: Editor) -> Iterator[_Bias | SiteReport]:
        plan = functools.partial(_planned, editor=editor, limit=ceiling(model.ir, self.opset))
        return plans_of(model, self.nodes, plan)


@dataclass(frozen=True, eq=False)
class _Bias(OfDraft):
    """A bias as codes.

    Attributes:
        node: the node that adds the bias.
        bias: before, ``[channels]``.
        codes, scale: after, the scale also of one element.
    """

    layer: WeightedSum
    node: ir.Node
    bias: Array
    codes: Array
    scale: Array

    @classmethod
    def of(
        cls,
        layer: WeightedSum,
        bias_input: tuple[ir.Node, int],
        sources: tuple[ir.Node, ir.Node],
        known: KnownValues,
        facts: Facts,
        editor: Editor,
    ) -> _Bias:
        """Return the codes of a layer's bias; Stuck if it has none."""
        (node, index), size = bias_input, layer.outputs.size
        if layer.dtype is not ir.DataType.FLOAT:
            raise Stuck(UNSUPPORTED_TYPE(f"its bias is {layer.dtype.name}; {TO_FLOAT32}"))
        stored = known.array(present(node, index))
        if stored is None:
            raise Stuck(
                "its bias is computed at run time, expected a constant; run -p fold-constants "
                "first, if it follows from constants"
            )
        if stored.size not in (1, size) or stored.shape[-1:] not in ((1,), (size,), ()):
            raise Stuck(f"its bias has shape {list(stored.shape)}, expected [{size}]")
        bias = np.broadcast_to(stored.reshape(-1), size)
        scale = rounded(_unit(layer, *sources), bias.dtype, "the scale of its bias", normal=True)
        wide = np.broadcast_to(scale.astype(np.float64), size)
        exact = np.rint(bias.astype(np.float64) / wide)
        largest = np.abs(exact) + _largest_sums(layer, *sources, facts)
        if not (largest <= _MOST).all():
            channel = int(np.argmax(~(largest <= _MOST)))
            raise Stuck(
                f"the bias of channel {channel} would be {exact[channel]:g} steps of "
                f"{wide[channel]:g}, and with the products up to {largest[channel]:g}, expected "
                f"{_MOST} at most"
            )
        codes = exact.astype(np.int32)
        data = layer.node.outputs[0] if index < 2 else present(node, 0)
        draft = editor.draft(Region(data, node.outputs[0], (node,)))
        with draft.in_float32():
            numbers = [draft.constant(codes, "codes"), draft.constant(scale, "scale")]
        attributes = {"axis": 0} if scale.ndim else {}
        draft.needs(AXIS_SINCE if scale.ndim else 1)
        decoded = draft.node("DequantizeLinear", numbers, attributes, dtype=layer.dtype)
        operands: list[Operand | None] = [draft.x if v is data else v for v in node.inputs]
        operands[index] = decoded
        draft.giving(draft.copy(node, operands, dtype=layer.dtype))
        return cls(layer, node, bias, codes, scale, draft=draft)

    def report(self) -> SiteReport:
        wide = self.scale.astype(np.float64)
        error = np.abs(self.codes * wide - self.bias.astype(np.float64))
        decoded = (self.codes.astype(self.scale.dtype) * self.scale).astype(self.bias.dtype)
        verdict = Verdict(
            Exactness.of(compare_values(np.ascontiguousarray(self.bias), decoded)),
            Method.CONSTANT,
            differing_inputs=int(np.count_nonzero(decoded != self.bias)),
        )
        steps = error / np.abs(wide)
        return self.changed(
            self.layer.node,
            f"each bias moves by at most {steps.max():.3g} of its steps, {error.max():.3g}",
            verdict,
            largest_error=float(error.max()),
            largest_error_steps=float(steps.max()),
            largest_code=int(np.abs(self.codes.astype(np.int64)).max()),
            scale_lowest=float(wide.min()),
            scale_highest=float(wide.max()),
        )


def _planned(
    node: ir.Node, known: KnownValues, facts: Facts, *, editor: Editor, limit: int
) -> Iterator[_Bias | SiteReport]:
    """Yield the codes of a node's bias, or an entry of the report; nothing without such a bias."""
    bias_input = _bias_input(node, known, facts)
    pair = None if bias_input is None else decoders(node)
    layer = None if pair is None else WeightedSum.of(node, known, facts)
    if bias_input is None or pair is None or layer is None:
        return
    if _is_coded(present(*bias_input), layer, pair):
        yield entry(node, SiteStatus.KEPT, "its bias is int32 codes")
        return
    bias = _Bias.of(layer, bias_input, pair, known, facts, editor)
    expect_opset(bias.draft, limit)
    yield bias


def _bias_input(node: ir.Node, known: KnownValues, facts: Facts) -> tuple[ir.Node, int] | None:
    """Return the node that adds the bias of a layer, and the index of the bias; None without one.

    After a MatMul, this is an Add of constants for the columns.
    """
    if node.domain or node.op_type not in OPERATORS:
        return None
    if node.op_type != "MatMul":
        return None if node.inputs[2:] in ((), (None,)) else (node, 2)
    y = node.outputs[0]
    users = list(y.consumers())
    if len(users) != 1 or y.is_graph_output() or users[0].op_type != "Add" or users[0].domain:
        return None
    index = 1 - list(users[0].inputs).index(y)
    bias = users[0].inputs[index]
    ranks = [None if value is None else facts.get(value, UNKNOWN).rank for value in (y, bias)]
    fits = ranks[0] is not None and ranks[1] is not None and 0 < ranks[1] <= ranks[0]
    return (users[0], index) if bias is not None and known.has(bias) and fits else None


def _is_coded(bias: ir.Value, layer: WeightedSum, sources: tuple[ir.Node, ir.Node]) -> bool:
    """Return whether a bias is int32 codes in the unit of the products, up to roundings of it."""
    decoder = bias.producer()
    if decoder is None or decoder.op_type != "DequantizeLinear":
        return False
    if present(decoder, 0).dtype is not ir.DataType.INT32:
        return False
    try:
        unit = _unit(layer, *sources).reshape(-1)
        scale = real_constant(decoder.inputs[1], "the scale of its bias").astype(np.float64)
    except Stuck:
        return True
    if 1 not in (scale.size, unit.size) and scale.size != unit.size:
        return True
    with np.errstate(all="ignore"):
        return bool((np.abs(scale.reshape(-1) - unit) <= _ROUNDINGS * np.abs(unit)).all())


def _unit(layer: WeightedSum, data: ir.Node, weights: ir.Node) -> Float64:
    """Return the unit of the products per channel, or a scalar for all channels."""
    scales = [
        real_constant(decoder.inputs[1], f"the scale of {title(decoder)}").astype(np.float64)
        for decoder in (data, weights)
    ]
    if scales[0].size != 1:
        raise Stuck(f"{title(data)} has a scale for each channel of the data, expected one")
    unit = scales[0].reshape(()) * _by_channel(layer, weights, scales[1])
    if layer.node.op_type != "Gemm":
        return np.asarray(unit)
    alpha, beta = (np.float32(layer.node.attributes.get_float(n, 1.0)) for n in ("alpha", "beta"))
    if not beta:
        raise Stuck("its beta is 0, so that the bias has no effect")
    return np.asarray(unit * (np.float64(alpha) / np.float64(beta)))


def _by_channel(layer: WeightedSum, decoder: ir.Node, numbers: Float64) -> Float64:
    """Return a parameter of the decoder of the weights for each output channel, or a scalar."""
    if numbers.size == 1:
        return numbers.reshape(())
    axis = (decoder.attributes.get_int("axis", 1) or 0) % len(layer.shape)
    if numbers.ndim != 1 or axis != layer.output_axis:
        raise Stuck(
            f"the scales of {title(decoder)} do not lie along the output channels, axis "
            f"{layer.output_axis} of the weights"
        )
    return np.tile(numbers, layer.outputs.size // numbers.size)


def _largest_sums(layer: WeightedSum, data: ir.Node, weights: ir.Node, facts: Facts) -> Float64:
    """Return the largest possible size of the sum of products of codes for each channel."""
    fact = facts.get(present(data, 0))
    form = None if fact is None or fact.dtype is None else FORMATS.get(fact.dtype.name)
    codes = constant_expression(weights.inputs[0])
    if not isinstance(form, IntFormat) or codes is None or codes.dtype.kind == "f":
        raise Stuck(
            NO_OPERATOR(
                f"the codes of {title(layer.node)} are no known integers; -p fold-constants stores "
                "those that are computed"
            )
        )
    points = []
    for decoder in (data, weights):
        value = input_of(decoder, 2)
        bias = np.zeros(1) if value is None else constant_expression(value)
        if bias is None:
            raise Stuck(
                f"the zero point of {title(decoder)} is computed at run time; run "
                "-p fold-constants first, if it follows from constants"
            )
        points.append(bias.astype(np.float64))
    largest = max(form.hi - float(points[0].min()), float(points[0].max()) - form.lo)
    sizes = np.abs(codes.astype(np.float64) - _laid(layer, weights, points[1]))
    others = tuple(i for i in range(codes.ndim) if i != layer.output_axis)
    sums = sizes.sum(axis=others)
    return np.asarray(largest * np.tile(sums, layer.outputs.size // sums.size))


def _laid(layer: WeightedSum, decoder: ir.Node, points: Float64) -> Float64:
    if points.size == 1:
        return points.reshape(())
    _by_channel(layer, decoder, points)
    return points.reshape([-1 if i == layer.output_axis else 1 for i in range(len(layer.shape))])
