"""The pass ``split-leaky-relu``: LeakyRelu behind a layer of codes as the larger of two codes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.inference.walk import Facts
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.scopes import input_of
from qgraph.model import Model
from qgraph.numerics import Array, Float64
from qgraph.ops.known_values import KnownValues
from qgraph.quantizers.movement import is_linear
from qgraph.reasons import NO_OPERATOR
from qgraph.records import dataclass
from qgraph.reports import Report, SiteReport
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.drafts.choice import OfDraft, carry_out
from qgraph.transforms.drafts.rebuilding import carry_over
from qgraph.transforms.weights.output_scale import Stuck, title
from qgraph.transforms.weights.scaled_weights import NegativeFactor, WeightScaling, compact, present
from qgraph.transforms.weights.weighted_sums import WeightedSum, decoders, expect_opset, plans_of

_INTEGERS_SINCE = 12
"""The opset since which Max takes codes."""


@transform("split-leaky-relu")
class SplitLeakyRelu(Transform):
    """Leave no LeakyRelu between a layer of codes and the quantizer of its result.

    For Conv, ConvTranspose, Gemm and MatMul of decoded data and weights, ``f`` = LeakyRelu or PRelu
    with slopes ``a`` above 0, up to 1, and no other readers of what lies between,

    1. ``Q(f(op(x, w, b))) -> Max(Q(op(x, w, b)), Q(op(x, a * w, a * b)))``, where ``a`` multiplies
       the scales of ``w`` and ``b``: both layers have the same codes.

    Rounding is monotone, so the larger code is that of the larger number. Scales are rounded, so
    values change slightly.
    """

    nodes: str = option("*", help="names of operators, such as *conv*|!conv1")
    opset: int | None = opset_option()

    preserves: ClassVar[Exactness] = Exactness.DIFFERENT
    bounded: ClassVar[bool] = True

    def apply(self, model: Model, report: Report) -> None:
        """Split each such layer, and report it."""
        for plan in carry_out(model, functools.partial(self._plan, model), report):
            carry_over(plan.layer, plan.first)
            # a layer without a name is known by its result
            plan.first.outputs[0].name = plan.layer.outputs[0].name

    def _plan(self, model: Model, editor: Editor) -> Iterator[_Maximum | SiteReport]:
        plan = functools.partial(_Maximum.of, editor=editor, limit=ceiling(model.ir, self.opset))
        return plans_of(model, self.nodes, plan)


_Chain = tuple[ir.Node, ir.Node, ir.Node]
"""A layer, the function of its result, and the QuantizeLinear of that."""


def _chain(node: ir.Node) -> _Chain | None:
    bent = _only_reader(node) if decoders(node) is not None else None
    if bent is None or bent.domain or bent.op_type not in ("LeakyRelu", "PRelu"):
        return None
    encode = _only_reader(bent)
    is_encoded = encode is not None and is_linear(encode, "QuantizeLinear")
    return (node, bent, encode) if encode is not None and is_encoded else None


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
        if bias is not None:
            scaled = scaling.scaled(bias, compact(slopes))
        codes = [_coded(draft, chain, [draft.x, *node.inputs[1:]])]
        first = draft.nodes[-2]
        codes.append(_coded(draft, chain, [draft.x, weights, *([scaled] if bias else [])]))
        draft.giving(draft.node("Max", codes, dtype=encode.outputs[0].dtype))
        expect_opset(draft, limit, "Max of codes")
        yield cls(node, first, slopes, draft=draft)

    def report(self) -> SiteReport:
        """Return the entry of the report."""
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
