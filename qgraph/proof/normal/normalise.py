"""Rewrite both models of a proof to the normal form, by rules in a fixed order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from qgraph.conditions import NO_NAN_AT_MAXIMA, SUMS_OF_CODES, ZEROS_REWRITTEN, Condition
from qgraph.exactness import Exactness
from qgraph.graph.inference.walk import with_facts
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.graph.scopes import nodes_of
from qgraph.ops.composite import differing
from qgraph.ops.integer.definitions import ELEMENTWISE, write_elementwise
from qgraph.proof.matching.normalise import NormalisedModel
from qgraph.proof.normal import elementwise, forms, hoisting, maxima
from qgraph.proof.normal.rewriter import Rewriter, RewriteRule, TooLargeError
from qgraph.records import dataclass, replace


def shared_operators(models: Sequence[ir.Model]) -> frozenset[OpKey]:
    """Return the operators of com.microsoft that occur equally often in all models."""
    nodes = (node for model in models for node in nodes_of(model.graph))
    used = frozenset(OpKey.of(node) for node in nodes if node.domain == MICROSOFT)
    return used - differing(models, lambda node: node.domain == MICROSOFT)


def write_definition(graph: Rewriter, node: ir.Node) -> None:
    """Write an operator on codes by its definition."""
    if any(new.op_type == "ReduceSum" for new in graph.define(node, write_elementwise).nodes):
        graph.conditions.add(SUMS_OF_CODES)


_EXTREMES = frozenset({"Max", "Min"})

_OF_CODES = tuple(
    RewriteRule(
        f"write {name} by its definition",
        write_definition,
        {name},
        constants=True,
        domain=MICROSOFT,
    )
    for name in ELEMENTWISE
)

RULES = (
    RewriteRule(
        "remove operators that return their only operand",
        forms.hand_on,
        {"Concat", "Identity", "Max", "Mean", "Min", "Sum"},
        constants=True,
    ),
    RewriteRule("write movements in one way", hoisting.write_movements, constants=True),
    RewriteRule("join movements", hoisting.join_movements, constants=True),
    RewriteRule("write constants with few dimensions", elementwise.trim_constants),
    RewriteRule("count axes from the front", forms.count_axis, forms.ONE_AXIS, constants=True),
    RewriteRule("write reductions with all axes", forms.write_reduction),
    RewriteRule("write Softmax over rows", forms.write_rows, forms.ROWS, constants=True),
    RewriteRule(
        "write GlobalMaxPool as ReduceMax",
        forms.write_global_maximum,
        {"GlobalMaxPool"},
        constants=True,
    ),
    *_OF_CODES,
    RewriteRule(
        "write activation functions by their definitions",
        forms.write_activation,
        forms.ACTIVATIONS,
    ),
    RewriteRule("write Greater as Less", forms.write_comparison, forms.SWAPPED),
    RewriteRule("write Relu as Max", forms.write_relu, {"Relu"}),
    RewriteRule("write Clip as Min and Max", forms.write_clip, {"Clip"}),
    RewriteRule("leave out Abs of numbers that are not negative", forms.write_magnitude, {"Abs"}),
    RewriteRule("join bounds", forms.join_bounds, _EXTREMES, constants=True),
    RewriteRule("write Sub as Add", forms.write_difference, {"Sub"}),
    RewriteRule("write factors in one way", forms.write_factor, {"Mul", "Div"}),
    RewriteRule("join negations", forms.join_negations, {"Neg"}, constants=True),
    RewriteRule("write Sum as Add", forms.write_sum, {"Sum"}, constants=True),
    RewriteRule("pad after functions of single elements", hoisting.sink_pad),
    RewriteRule("take elements after functions of a constant", hoisting.look_up),
    RewriteRule(
        "move elements before functions of single elements", hoisting.hoist, constants=True
    ),
    RewriteRule(
        "reshape before functions of single elements", hoisting.hoist_open_reshape, {"Reshape"}
    ),
    RewriteRule(
        "concatenate before functions of single elements",
        hoisting.hoist_concat,
        {"Concat"},
        constants=True,
    ),
    RewriteRule(
        "take maxima before functions that never decrease", maxima.hoist_maximum, constants=True
    ),
    RewriteRule(
        "take the maximum of two data of one function",
        maxima.join_maximum,
        _EXTREMES,
        constants=True,
    ),
)
"""All rules, in the order in which they are tried."""


NORMAL_FORM = "the models were compared in normal form"


@dataclass(frozen=True)
class NormalForm:
    """Two models in normal form, the level that its rules kept, their names and conditions."""

    sides: tuple[NormalisedModel, NormalisedModel]
    exactness: Exactness
    note: str
    conditions: tuple[Condition, ...]


def normalise(
    sides: tuple[NormalisedModel, NormalisedModel], level: Exactness
) -> NormalForm | None:
    """Return both models in a normal form that keeps a level; None if no rule applies."""
    used: Counter[str] = Counter()
    others: set[Condition] = set()
    exchanged, exactness, models = 0, Exactness.BITS, []
    kept = shared_operators([side.model for side in sides])
    for side in sides:
        model = side.model.clone()
        rewriter = Rewriter(model, side.imports, level, kept)
        try:
            rewriter.apply(RULES)
        except TooLargeError:
            return None
        used += rewriter.used
        others |= rewriter.conditions
        exchanged += rewriter.exchanged
        if rewriter.loses_zero_signs or rewriter.exchanged:
            exactness = Exactness.VALUES
        models.append(model)
    if not used:
        return None
    reference, candidate = (
        replace(side, model=with_facts(model, side.domain.interfaces[side.index]))
        for side, model in zip(sides, models, strict=True)
    )
    conditions = sorted(others)
    if exchanged:
        conditions.append(NO_NAN_AT_MAXIMA(exchanged))
    if exactness is Exactness.VALUES:
        conditions.append(ZEROS_REWRITTEN)
    note = f"{NORMAL_FORM}, by rules that keep {level}: {', '.join(sorted(used))}"
    return NormalForm((reference, candidate), exactness, note, tuple(conditions))
