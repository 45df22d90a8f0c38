"""The pass ``move-channel-scales``: use one scale for data instead of one per channel."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Verdict
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import Facts, infer
from qgraph.graph.schema import code_type
from qgraph.graph.scopes import input_of, inputs_of, nodes_of, owners
from qgraph.model import Model
from qgraph.numerics import Array, Float64
from qgraph.ops.known_values import KnownValues
from qgraph.quantizers.movement import is_linear
from qgraph.reasons import NOT_ABSORBED, explained
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, transform
from qgraph.transforms.drafts.choice import entry, refused
from qgraph.transforms.drafts.rebuilding import carry_over
from qgraph.transforms.weights.output_scale import Scaling, Stuck, scaling, title
from qgraph.transforms.weights.scaled_weights import NegativeFactor, WeightScaling, compact, present
from qgraph.transforms.weights.weighted_sums import WeightedSum

_NOT_EQUAL = "products are rounded elsewhere now; bound the difference with 'qgraph prove --within'"


@transform("move-channel-scales")
class MoveChannelScales(Transform):
    """Replace the scales per channel of quantizers of data by one scale.

    For a pair with scales ``s_c`` and one zero point, and with ``S`` the largest of them,

    1. ``DQ(Q(x, s_c), s_c) -> DQ(Q(x * S / s_c, S), S) * s_c / S``: the codes stay. The weights and
       the bias of the operators that compute ``x`` are multiplied by ``S / s_c``, through Relu and
       pooling. The weights of each following operator are multiplied by ``s_c / S``. Quantized
       weights can absorb these factors in their scales only in a depthwise convolution, which does
       not add channels.

    Values change by roundings. A pair is left unchanged if an operator before or after it cannot
    absorb the factors.
    """

    def apply(self, model: Model, report: Report) -> None:
        """Move the scales of each pair that has several, and report it."""
        editor = Editor(model.ir)
        for owner in owners(model.ir):
            for encode in list(nodes_of(owner)):
                pair = _pair(encode)
                if pair is None:
                    continue
                try:
                    report.sites.append(_Move(pair, owner, infer(model.ir), editor).made())
                except Stuck as stuck:
                    report.sites.append(refused(encode, explained(stuck.reason, NOT_ABSORBED)))
                editor.learn()


def _pair(encode: ir.Node) -> tuple[ir.Node, ...] | None:
    """Return the nodes of a pair of QuantizeLinear with several scales; None for other nodes."""
    if not is_linear(encode, "QuantizeLinear"):
        return None
    scale = constant_expression(encode.inputs[1])
    if scale is None or scale.ndim != 1 or scale.size < 2:
        return None
    nodes = [encode]
    while nodes[-1].op_type != "DequantizeLinear":
        users = list(nodes[-1].outputs[0].consumers())
        if len(users) != 1 or users[0].op_type not in ("Clip", "DequantizeLinear"):
            return None
        nodes.append(users[0])
    return tuple(nodes)


def _parameters(node: ir.Node) -> tuple[Array, Array]:
    """Return the scale and the zero point of a QuantizeLinear or DequantizeLinear.

    Raises:
        Stuck: they are computed at run time.
    """
    scale, stored = (constant_expression(value) for value in inputs_of(node, 3)[1:])
    dtype = code_type(node)
    has_point = input_of(node, 2) is not None
    if scale is None or dtype is None or (has_point and stored is None):
        raise Stuck(
            f"the scales of {title(node)} are computed at run time; export the model with "
            "constant scales"
        )
    return scale, np.zeros(scale.shape, dtype.numpy()) if stored is None else stored


class _Move:
    """The replacement of one pair, and of the constants before and after it."""

    def __init__(
        self, pair: tuple[ir.Node, ...], owner: ir.Graph | ir.Function, facts: Facts, editor: Editor
    ) -> None:
        self._pair, self._facts, self._editor = pair, facts, editor
        self._known = KnownValues.of(owner)
        first, last = pair[0], pair[-1]
        scale, point = _parameters(first)
        if not all(map(np.array_equal, (scale, point), _parameters(last))):
            raise Stuck(
                f"the scales of {title(last)} are not those of {title(first)}; write "
                "one pair first, with -p convert{to=qdq}"
            )
        if not point.size or (point != point.reshape(-1)[0]).any():
            raise Stuck(
                "its channels have several zero points, and one scale needs one of them; quantize "
                "them symmetrically"
            )
        self._point = point.reshape(-1)[0]
        wide = scale.astype(np.float64)
        if not (np.isfinite(wide) & (wide > 0)).all():
            raise Stuck(
                "a scale is not above 0, so that it does not pass through Relu; export positive "
                "scales"
            )
        self._single = scale.max()
        fact = facts.get(present(first, 0), UNKNOWN)
        axis = first.attributes.get_int("axis", 1)
        if fact.rank is None or axis % fact.rank != 1:
            raise Stuck(
                f"its scales lie along axis {axis}, and not along the channels, axis 1; quantize "
                "it per tensor or per channel"
            )
        self._shape = (1, -1, *[1] * (fact.rank - 2))
        self._factors: Float64 = float(self._single) / wide

    def made(self) -> SiteReport:
        """Move the scales and return the entry of the report.

        Raises:
            Stuck: an operator cannot absorb the factors; nothing is changed.
        """
        first, last = self._pair[0], self._pair[-1]
        data, y = present(first, 0), last.outputs[0]
        if y.is_graph_output() or not y.uses():
            raise Stuck(
                "its result is an output of the graph, which would be multiplied; quantize the "
                "output per tensor"
            )
        before = scaling(data, first, self._factors.reshape(self._shape), self._facts)
        layers: list[tuple[ir.Node, Draft]] = []
        try:
            for use in y.uses():
                self._add_layer(use.node, use.idx, layers)
        except Stuck:
            for _, draft in layers:
                draft.discard()
            raise
        self._commit(before, layers)
        figures: dict[str, float | int | str] = {
            "scale": float(self._single),
            "factor_highest": float(self._factors.max()),
            "before": ", ".join(map(title, before.absorbers)),
            "behind": ", ".join(title(layer) for layer, _ in layers),
        }
        return entry(
            first, SiteStatus.CHANGED, _NOT_EQUAL, verdict=Verdict(), figures=figures,
            spelling="+".join(node.op_type for node in self._pair),
        )  # fmt: skip

    def _add_layer(self, node: ir.Node, index: int, layers: list[tuple[ir.Node, Draft]]) -> None:
        """Draft an operator that reads the result, with multiplied weights."""
        layer = WeightedSum.of(node, self._known, self._facts)
        if layer is None or layer.data != index:
            raise Stuck(
                f"{title(node)} after it has no constant weights to multiply; quantize its data "
                "per tensor"
            )
        factor = compact(layer.input_factor(1 / self._factors))
        weights = layer.weights_value
        if layer.is_along_sums(factor) and constant_expression(weights) is None:
            raise Stuck(
                f"{title(node)} after it adds channels up, and its quantized weights have no "
                "scale for each of them"
            )
        draft = self._editor.draft(Region(self._pair[-1].outputs[0], node.outputs[0], (node,)))
        layers.append((node, draft))
        multiply = WeightScaling(draft, self._known, self._facts, NegativeFactor.SCALES)
        operands: list[Operand | None] = list(node.inputs)
        operands[layer.weights] = multiply.scaled(weights, factor)
        operands[index] = draft.x
        draft.giving(draft.copy(node, operands, dtype=layer.dtype))

    def _commit(self, before: Scaling, layers: list[tuple[ir.Node, Draft]]) -> None:
        for node, draft in layers:
            copied = draft.nodes[-1]
            draft.commit()
            carry_over(node, copied)
        before.settle(self._editor)
        first, last = self._pair[0], self._pair[-1]
        pair = self._editor.draft(Region(present(first, 0), last.outputs[0], self._pair))
        value: ir.Value = pair.x
        for node in self._pair:
            value = self._with_one_scale(pair, node, value)
        pair.giving(value).commit()

    def _with_one_scale(self, draft: Draft, node: ir.Node, value: ir.Value) -> ir.Value:
        operands: list[Operand | None] = [value, *node.inputs[1:]]
        if node.op_type != "Clip":
            operands[1] = draft.constant(np.asarray(self._single), "scale")
            operands[2:] = [draft.constant(np.asarray(self._point), "zero_point")]
        return draft.copy(node, operands, {"axis": None})
