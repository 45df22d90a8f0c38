"""The pass ``whole-zero-points``: move the fractions of zero points of data into biases."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Editor, Region
from qgraph.graph.inference.walk import Facts, infer
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.scopes import nodes_of, owners, producer_of
from qgraph.model import Model
from qgraph.numerics import Array, Float64
from qgraph.numerics.rounding import Rounding
from qgraph.ops.known_values import KnownValues
from qgraph.ops.steps import TO_FLOAT32
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.dialects.parts import clip_codes
from qgraph.quantizers.quantizer import Affine, Quantizer, Ranged
from qgraph.quantizers.sites import readable_sites
from qgraph.reasons import NOT_ABSORBED, UNSUPPORTED_TYPE, explained
from qgraph.records import dataclass
from qgraph.reports import Report, SiteReport
from qgraph.transforms.base import Transform, opset_option, option, selects, transform
from qgraph.transforms.drafts.choice import OfDraft, carry_out, label, refused
from qgraph.transforms.drafts.rebuilding import carry_over
from qgraph.transforms.weights.output_scale import Stuck, scaling, title
from qgraph.transforms.weights.scaled_weights import AXIS_SINCE, compact, present, rounded
from qgraph.transforms.weights.weighted_sums import WeightedSum, expect_opset

_KIND, _MOST = "UINT8", 255
_LEAST = 2.0**-14
"""Fractions of zero points up to it are rounding errors of ranges."""


@transform("whole-zero-points", bounded=True)
class WholeZeroPoints(Transform):
    """Replace fractional zero points of data by a whole one, and move the rest into biases.

    For a quantizer of data with scales ``s``, zero points ``z`` that are no whole numbers, and one
    whole number ``Z`` near all of them, whose result only layers with constant weights read,

    1. ``DQ(Q(x, s, z), s, z) -> DQ(Q(x + (z - Z) * s, s, Z), s, Z)``: the codes stay. Each layer
       subtracts ``(z - Z) * s`` times its weights in its bias. A Relu before the quantizer that
       changes no code is removed.

    Where a convolution pads its data, the results at the border move, by ``(z - Z) * s`` for each
    position that is padded. A quantizer with several scales is left unchanged if the operators
    before and after it cannot absorb them, as ``move-channel-scales`` needs.
    """

    nodes: str = option("*", help="names of the layers that read the data, such as *conv*|!conv1")
    operators: str = option("*", help="operators, such as Conv*, of which one must read the data")
    opset: int | None = opset_option()

    def apply(self, model: Model, report: Report) -> None:
        """Replace the zero points of each such quantizer, and report it."""
        for plan in carry_out(model, functools.partial(self._plan, model), report):
            if isinstance(plan, _Layer):
                carry_over(plan.node, plan.draft.nodes[0])

    def _plan(self, model: Model, editor: Editor) -> Iterator[_Pair | _Layer | SiteReport]:
        limit, facts = ceiling(model.ir, self.opset), infer(model.ir)
        found = {site.root: site for site in readable_sites(model.ir)}
        for owner in owners(model.ir):
            known = KnownValues.of(owner)
            for site in [found[node] for node in nodes_of(owner) if node in found]:
                numbers = None if site.weight is not None else _Numbers.of(site.quantizer)
                readers = [use.node for use in site.y.uses()]
                if numbers is None or not all(selects(self.nodes, label(n)) for n in readers):
                    continue
                if not any(selects(self.operators, n.op_type) for n in readers):
                    continue
                try:
                    pair = _Pair.of(site, numbers, known, facts, editor)
                    expect_opset(pair.draft, limit)
                except Stuck as stuck:
                    yield refused(site.root, explained(stuck.reason, NOT_ABSORBED))
                    continue
                yield pair
                yield from (_Layer.of(*each, editor) for each in pair.layers)


@dataclass(frozen=True, eq=False)
class _Numbers:
    """Scale and zero point of a quantizer with codes from 0 to ``highest``."""

    scale: Array
    zero_point: Float64
    highest: int

    @classmethod
    def of(cls, quantizer: Quantizer) -> _Numbers | None:
        """Return them for a quantizer with fractional zero points that fits in UINT8."""
        if isinstance(quantizer, Ranged):
            ends = (quantizer.input_low, quantizer.output_low), (
                quantizer.input_high, quantizer.output_high)  # fmt: skip
            if quantizer.decoding is not None or not all(np.array_equal(*each) for each in ends):
                return None
            low, high = (end.astype(np.float64) for end, _ in ends)
            highest, scale = quantizer.levels - 1, (high - low) / (quantizer.levels - 1)
            with np.errstate(all="ignore"):
                point = -low / scale
        elif isinstance(quantizer, Affine):
            lo, hi = (np.unique(end) for end in (quantizer.lo, quantizer.hi))
            is_even = quantizer.rounding is Rounding.ROUND and lo.size == hi.size == 1
            if quantizer.decoding is not None or not is_even or not np.isfinite(hi - lo).all():
                return None
            scale = quantizer.scale.astype(np.float64)
            highest, point = int(hi[0] - lo[0]), quantizer.zero_point.astype(np.float64) - lo[0]
        else:
            return None
        is_known = np.isfinite(point).all() and (scale > 0).all() and 0 < highest <= _MOST
        has_fraction = is_known and (np.abs(point - np.rint(point)) > _LEAST).any()
        return cls(scale, point, highest) if has_fraction else None


@dataclass(frozen=True, eq=False)
class _Pair(OfDraft):
    """A quantizer with its whole zero point.

    Attributes:
        layers: those behind, and their biases.
        rest: what is added to the data, in steps of each channel.
    """

    site: Site
    layers: list[tuple[WeightedSum, Array]]
    rest: Float64

    @classmethod
    def of(
        cls, site: Site, numbers: _Numbers, known: KnownValues, facts: Facts, editor: Editor
    ) -> _Pair:
        """Draft a quantizer; Stuck if something else than layers with constant weights reads it."""
        layers = _layers_behind(site, known, facts)
        channels = layers[0].inputs
        if any(layer.inputs != channels for layer in layers):
            raise Stuck("the layers after it have their channels on different axes")
        wide, points = (
            channels.spread(array, site.root) for array in (numbers.scale, numbers.zero_point)
        )
        float32 = np.dtype(np.float32)
        scale = rounded(compact(wide), float32, "the scale", normal=True)
        whole = np.clip(np.rint((points.min() + points.max()) / 2), 0, numbers.highest)
        rest = points - whole
        offset = rounded(rest * wide, float32, "the offset")
        biases = [rounded(_bias(layer, -rest * wide, known), float32, "a bias") for layer in layers]
        x, nodes = _without_relu(site, points)
        if scale.size > 1:
            if channels.axis != 1:
                raise Stuck("its scales lie along the last axis, and not along axis 1")
            for layer in layers:
                factor = compact(layer.input_factor(wide))
                if layer.is_along_sums(factor) and constant_expression(layer.weights_value) is None:
                    raise Stuck(f"{title(layer.node)} after it adds channels of several scales up")
            scaling(x, nodes[0], (1 / wide).reshape(-1, *[1] * (channels.rank - 2)), facts)
        draft = editor.draft(Region(x, site.y, nodes))
        draft.needs(AXIS_SINCE if scale.size > 1 else QDQ_SINCE[_KIND])
        shape = [-1, *[1] * (channels.rank - 1 - channels.axis)]
        summand = draft.constant(offset.reshape(shape), "offset")
        data: ir.Value = draft.node("Add", [draft.x, summand])
        scale = scale if scale.size > 1 else scale.reshape(())
        point = np.full(scale.shape, whole, np.uint8)
        operands = [draft.constant(scale, "scale"), draft.constant(point, "zero_point")]
        attributes = {"axis": channels.axis} if scale.ndim else {}
        data = draft.node("QuantizeLinear", [data, *operands], attributes)
        if numbers.highest < _MOST:
            data = clip_codes(draft, data, 0, numbers.highest, _KIND)
        draft.giving(draft.node("DequantizeLinear", [data, *operands], attributes))
        return cls(site, list(zip(layers, biases, strict=True)), rest, draft=draft)

    def report(self) -> SiteReport:
        return self.changed(
            self.site.root,
            f"up to {np.abs(self.rest).max():.3g} of a step is in biases now; results at padded "
            "borders move, which 'qgraph prove --within' bounds",
            largest_rest_steps=float(np.abs(self.rest).max()),
            layers=", ".join(label(layer.node) for layer, _ in self.layers),
        )


@dataclass(frozen=True, eq=False)
class _Layer(OfDraft):
    """A layer that adds what offsets of its data give."""

    node: ir.Node

    @classmethod
    def of(cls, layer: WeightedSum, bias: Array, editor: Editor) -> _Layer:
        """Draft the layer with another bias."""
        node = layer.node
        draft = editor.draft(Region(present(node, 0), node.outputs[0], (node,)))
        summand = draft.constant(bias, "bias")
        if node.op_type == "MatMul":
            draft.giving(draft.node("Add", [draft.copy(node, [draft.x, node.inputs[1]]), summand]))
        else:
            more = {"beta": 1.0} if node.op_type == "Gemm" else {}
            draft.giving(draft.copy(node, [draft.x, node.inputs[1], summand], more))
        return cls(node, draft=draft)

    def report(self) -> SiteReport:
        return self.changed(self.node, "its bias has the fractions of the zero points of its data")


def _bias(layer: WeightedSum, offset: Float64, known: KnownValues) -> Float64:
    """Return the bias of a layer to whose data an offset of each channel was added."""
    weights = known.array(layer.weights_value)
    if weights is None:
        raise Stuck(f"the weights of {title(layer.node)} cannot be computed here")
    return layer.bias_values(known) + layer.sums(offset, weights, padded=True)


def _layers_behind(site: Site, known: KnownValues, facts: Facts) -> list[WeightedSum]:
    """Return the layers that read a quantizer; Stuck if there are none, or other readers."""
    layers = []
    for use in site.y.uses():
        layer = WeightedSum.of(use.node, known, facts)
        if layer is None or layer.data != use.idx or not layer.weights:
            raise Stuck(f"{title(use.node)} after it has no bias to take in an offset")
        if layer.dtype is not ir.DataType.FLOAT:
            raise Stuck(UNSUPPORTED_TYPE(f"its result is {layer.dtype.name}; {TO_FLOAT32}"))
        layers.append(layer)
    if site.y.is_graph_output() or not layers:
        raise Stuck("its result is an output of the graph, which an offset would move")
    return layers


def _without_relu(site: Site, points: Float64) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """Return data and nodes of a quantizer, with a Relu before it if its codes keep that limit."""
    relu = producer_of(site.x)
    is_only = len(site.x.uses()) == 1 and not site.x.is_graph_output()
    if relu is None or relu.op_type != "Relu" or relu.domain or not is_only or points.max() >= 0.5:
        return site.x, site.nodes
    return present(relu, 0), (relu, *site.nodes)
