"""The pass ``fold-batch-norm``: fold factors and offsets of channels into weights and biases."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Editor, Operand, Region
from qgraph.graph.inference.walk import Facts, infer
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.scopes import nodes_of, owners, producer_of
from qgraph.model import Model
from qgraph.ops.known_values import KnownValues
from qgraph.quantizers.quantizer import Quantizer, Ranged
from qgraph.quantizers.sites import PLAIN, parts, readable_sites
from qgraph.reasons import NOT_ABSORBED, explained
from qgraph.records import dataclass
from qgraph.reports import Report, SiteReport
from qgraph.transforms.base import Transform, opset_option, option, selects, transform
from qgraph.transforms.drafts.choice import OfDraft, carry_out, label, opset_reason, refused
from qgraph.transforms.drafts.rebuilding import carry_over
from qgraph.transforms.weights.channel_steps import ChannelAffine, ChannelReader
from qgraph.transforms.weights.output_scale import Stuck, title
from qgraph.transforms.weights.scaled_weights import NegativeFactor, WeightScaling, compact, rounded
from qgraph.transforms.weights.weighted_sums import OPERATORS, WeightedSum

_NORM = "BatchNormalization"
_NOT_EQUAL = "sums are rounded elsewhere, which 'qgraph prove --within' bounds"


@transform("fold-batch-norm", bounded=True)
class FoldBatchNorm(Transform):
    """Fold BatchNormalization into the weights and the bias before it.

    With ``f = gamma / sqrt(var + epsilon)`` for each channel, and for ``op`` one of Conv,
    ConvTranspose, Gemm and MatMul,

    1. ``BatchNormalization(op(x, w, b)) -> op(x, w * f, (b - mean) * f + beta)``. A chain of
       BatchNormalization, Mul, Add, Sub and Div by constants per channel is folded as one. MatMul
       gets an Add for the bias.
    2. ``w * f`` for ``w = DequantizeLinear(codes, s)`` is ``DequantizeLinear(codes, s * f)``: the
       codes stay, and one scale becomes one for each output channel. Likewise for the output range
       of FakeQuantize and the scale of Quant. Float weights are multiplied.
    3. BatchNormalization before ``op``, and such chains between a quantizer and ``op``, are folded
       if the weights can absorb the factors. Quantized weights of depthwise convolutions absorb any
       factors, other quantized weights only one for all channels. An offset is folded if ``op`` has
       no padding.

    New constants are computed in float64 and rounded once. Values change slightly, because sums
    are rounded at other points. Nothing is folded over a quantizer, or over a value that other
    nodes use.
    """

    negative: NegativeFactor = option(
        NegativeFactor.SCALES,
        help="scales: negative factors make scales negative; codes: they negate stored codes",
    )
    nodes: str = option("*", help="names of operators to fold into, such as *conv*|!conv1")
    opset: int | None = opset_option()

    def apply(self, model: Model, report: Report) -> None:
        """Fold every chain that can be folded; report each of them and each BatchNormalization."""
        folds = carry_out(model, functools.partial(self._plan, model), report)
        copied = {old: new for fold in reversed(folds) for new, old in fold.copies.items()}
        for old, new in copied.items():
            if old.graph is None:
                carry_over(old, new)

    def _plan(self, model: Model, editor: Editor) -> Iterator[_Fold | SiteReport]:
        limit, facts = ceiling(model.ir, self.opset), infer(model.ir)
        closed = set(_quantizer_nodes(model))
        for owner in owners(model.ir):
            nodes = list(nodes_of(owner))
            reader = ChannelReader(KnownValues.of(owner), owner.opset_imports.get("", 0), closed)
            planner = _Planner(reader, facts, editor, self.negative, limit)
            for node in nodes:
                if selects(self.nodes, label(node)):
                    planner.visit(node)
            yield from planner.folds
            yield from planner.refusals(nodes)


@dataclass(frozen=True, eq=False)
class _Fold(OfDraft):
    """An operator with the chains before and after it, and the draft that replaces them.

    Attributes:
        head, tail: the chains; at least one has nodes.
        scaling: the multiplication of the weights.
    """

    layer: WeightedSum
    head: ChannelAffine
    tail: ChannelAffine
    scaled: ir.Node
    scaling: WeightScaling

    @property
    def copies(self) -> dict[ir.Node, ir.Node]:
        """The old node of each new node that replaces it."""
        return {self.scaled: self.layer.node} | self.scaling.copies

    def report(self) -> SiteReport:
        """Return the entry of the report, named by the first BatchNormalization of the chains."""
        nodes = self.head.nodes + self.tail.nodes
        norms = [node for node in nodes if node.op_type == _NORM]
        factors = np.concatenate([chain.factor for chain in (self.head, self.tail) if chain.nodes])
        return self.changed(
            (norms or nodes)[0],
            f"folded into {title(self.layer.node)}; {_NOT_EQUAL}",
            into=label(self.layer.node),
            folded=", ".join(map(label, nodes)),
            scaled="+".join(dict.fromkeys(self.scaling.sources)) or "nothing",
            factor_lowest=float(factors.min()),
            factor_highest=float(factors.max()),
            negative_factors=int((factors < 0).sum()),
        )


class _Planner:
    """Finds and drafts the folds of one graph or function."""

    def __init__(
        self,
        reader: ChannelReader,
        facts: Facts,
        editor: Editor,
        negative: NegativeFactor,
        limit: int,
    ) -> None:
        self._reader, self._facts, self._editor = reader, facts, editor
        self._negative, self._limit = negative, limit
        self._stuck: dict[ir.Node, None] = {}
        self.folds: list[_Fold] = []

    def visit(self, node: ir.Node) -> None:
        """Draft the folds into an operator: of the chains on both sides, or on one."""
        try:
            layer = WeightedSum.of(node, self._reader.known, self._facts)
        except Stuck as stuck:
            for user in node.outputs[0].consumers():
                self._reader.note(user, stuck.reason)
            return
        if layer is None:
            return
        no_head, no_tail = map(ChannelAffine.none, (layer.inputs.size, layer.outputs.size))
        tail = self._reader.behind(node.outputs[0], layer.outputs)
        head = self._reader.before(node.inputs[layer.data], node, layer.inputs)
        head = head if _is_worth(head) and self._is_free(head) else no_head
        tail = tail if _is_worth(tail, may_be_bias=node.op_type == "MatMul") else no_tail
        for pair in dict.fromkeys([(head, tail), (no_head, tail), (head, no_tail)]):
            chain = pair[0].nodes + pair[1].nodes
            if not chain:
                continue
            try:
                self.folds.append(self._fold(layer, *pair))
            except Stuck as stuck:
                self._reader.reasons.update(dict.fromkeys(chain, stuck.reason))
                continue
            self._reader.closed.update(chain)
            return
        self._stuck.update(dict.fromkeys(tail.nodes[:1]))

    def _is_free(self, head: ChannelAffine) -> bool:
        """Return whether a chain before an operator is not part of a pattern such as Gelu.

        It has a BatchNormalization, or begins at a graph input or a quantizer.
        """
        before = producer_of(head.source)
        is_norm = any(node.op_type == _NORM for node in head.nodes)
        decodes = before is None or before.op_type == "DequantizeLinear"
        return is_norm or decodes or before in self._reader.closed

    def _fold(self, layer: WeightedSum, head: ChannelAffine, tail: ChannelAffine) -> _Fold:
        node = layer.node
        x = head.source or node.inputs[layer.data]
        y = (tail.nodes or (node,))[-1].outputs[0]
        if x is None:
            raise Stuck(f"{title(node)} has no data")
        draft = self._editor.draft(Region(x, y, (*head.nodes, node, *tail.nodes)))
        scaling = WeightScaling(draft, self._reader.known, self._facts, self._negative)
        try:
            folded = self._write(layer, head, tail, scaling)
        except Stuck:
            draft.discard()
            raise
        return _Fold(layer, head, tail, folded, scaling, draft=draft)

    def _write(
        self, layer: WeightedSum, head: ChannelAffine, tail: ChannelAffine, scaling: WeightScaling
    ) -> ir.Node:
        """Draft the operator with the chains folded into it; return its new node."""
        node, known, draft = layer.node, self._reader.known, scaling.draft
        operands: list[Operand | None] = list(node.inputs)
        operands[layer.data] = draft.x
        weights = layer.weights_value
        inner = compact(layer.input_factor(head.factor))
        if layer.is_along_sums(inner) and constant_expression(weights) is None:
            text = f"its factors vary over channels that {title(node)} adds up"
            raise Stuck(f"{text}, and runtimes take one scale for them")
        factor = layer.output_factor(tail.factor) * inner
        if (factor != 1).any():
            operands[layer.weights] = scaling.scaled(weights, compact(factor))
        attributes = dict(node.attributes)
        bias = layer.bias_values(known)
        if head.offset.any():
            decoded = known.array(weights)
            if decoded is None:
                raise Stuck(f"the weights of {title(node)} cannot be computed here")
            bias = bias + layer.sums(head.offset, decoded)
        new = rounded(bias * tail.factor + tail.offset, layer.dtype.numpy(), "the bias")
        is_sum = node.op_type == "MatMul"
        if not is_sum and (layer.has_bias or new.any()):
            operands[2:] = [scaling.constant(new, "bias")]
            attributes |= {"beta": ir.AttrFloat32("beta", 1.0)} if node.op_type == "Gemm" else {}
        y = draft.node(node.op_type, operands, attributes, dtype=layer.dtype)
        folded = draft.nodes[-1]
        if is_sum and new.any():
            summand = scaling.constant(new.reshape((-1,) if layer.weights else (-1, 1)), "bias")
            y = draft.node("Add", [y, summand], dtype=layer.dtype)
        if draft.giving(y).opset > self._limit:
            raise Stuck(opset_reason("one scale for each channel", draft.opset, self._limit))
        return folded

    def refusals(self, nodes: Iterable[ir.Node]) -> Iterator[SiteReport]:
        """Yield an entry for each BatchNormalization, and each chain, that is not folded."""
        for node in nodes:
            is_norm = node.op_type == _NORM and not node.domain
            if node not in self._reader.closed and (is_norm or node in self._stuck):
                reason = self._reader.reasons.get(node) or _position(node)
                yield refused(node, explained(reason, NOT_ABSORBED))


def _is_worth(chain: ChannelAffine, *, may_be_bias: bool = False) -> bool:
    """Return whether folding saves a node: one Add may be the bias of a MatMul."""
    counted = [node for node in chain.nodes if node.op_type != "Identity"]
    is_bias = may_be_bias and len(counted) == 1 and counted[0].op_type != _NORM
    return bool(counted) and not (is_bias and (chain.factor == 1).all())


def _position(node: ir.Node) -> str:
    """Return why a BatchNormalization is not part of a chain."""
    before = producer_of(node.inputs[0])
    if before is None:
        return "no operator comes before it"
    if before.op_type in OPERATORS:
        return f"{title(before)} before it has no constant weights, or is left out by nodes"
    return f"it follows {title(before)}, and not an operator with weights"


def _quantizer_nodes(model: Model) -> Iterator[ir.Node]:
    """Yield the nodes of all quantizers of data.

    A product or sum next to the operators of a quantizer belongs to it only if both together map
    real values to values of the same scale.
    """
    for site in readable_sites(model.ir):
        if site.weight is None:
            inner = () if site.dialect == PLAIN or _is_whole(site.quantizer) else parts(site)
            yield from (node for part in inner or (site,) for node in part.nodes)


def _is_whole(quantizer: Quantizer) -> bool:
    """Return whether codes are dequantized to the scale of the quantized values."""
    if isinstance(quantizer, Ranged):
        has_low = np.array_equal(quantizer.input_low, quantizer.output_low)
        return has_low and np.array_equal(quantizer.input_high, quantizer.output_high)
    return getattr(quantizer, "decoding", None) is None
