"""Both models of a proof in normal form, and the rules in the order in which they are tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from qgraph.exactness import Exactness
from qgraph.graph.inference.walk import with_facts
from qgraph.proof.matching.normalise import Plain
from qgraph.proof.normal import algebra, axes, definitions, hoisting, maxima
from qgraph.proof.normal.rewriter import Rewriter, Rule, TooLargeError

RULES: tuple[tuple[str, Rule], ...] = (
    ("remove Identity", algebra.hand_on),
    ("write movements in one way", hoisting.write_movements),
    ("join movements", hoisting.join_movements),
    ("write constants with few dimensions", algebra.trim_constants),
    ("count axes from the front", axes.count_axis),
    ("write reductions with all axes", axes.write_reduction),
    ("write Softmax over rows", axes.write_rows),
    ("write GlobalMaxPool as ReduceMax", axes.write_global_maximum),
    ("write QLinearMul by its definition", definitions.write_code_product),
    ("write QLinearGlobalAveragePool by its definition", definitions.write_code_average),
    ("write activation functions by their definitions", definitions.write_activation),
    ("write Greater as Less", definitions.write_comparison),
    ("write Relu as Max", algebra.write_relu),
    ("write Clip as Min and Max", algebra.write_clip),
    ("join bounds", algebra.join_bounds),
    ("write Sub as Add", algebra.write_difference),
    ("write factors in one way", algebra.write_factor),
    ("join negations", algebra.join_negations),
    ("write Sum as Add", algebra.write_sum),
    ("pad after functions of single elements", hoisting.sink_pad),
    ("move elements before functions of single elements", hoisting.hoist),
    ("concatenate before functions of single elements", hoisting.hoist_concat),
    ("take maxima before functions that never decrease", maxima.hoist_maximum),
    ("take the maximum of two data of one function", maxima.join_maximum),
)
"""Each rule by what it does, as notes of certificates name it."""


NORMAL_FORM = "the models were compared in normal form"
NO_NAN_AT_MAXIMA = "no NaN reaches the {} maxima that were exchanged with functions"
ZEROS_REWRITTEN = (
    "zeros count as equal whatever their sign; the normal form does not keep it, and nothing after "
    "the operators that it rewrote distinguishes it"
)


@dataclass(frozen=True)
class NormalForm:
    """Two models in normal form.

    Attributes:
        sides: the models.
        exactness: what the rules kept: bits, or values only.
        note: which rules were applied.
        conditions: what the rules rest on.
    """

    sides: tuple[Plain, Plain]
    exactness: Exactness
    note: str
    conditions: tuple[str, ...]


def normalise(sides: tuple[Plain, Plain], level: Exactness) -> NormalForm | None:
    """Return both models in normal form.

    Args:
        sides: copies of the models, as :func:`qgraph.proof.matching.normalise.plain` returns them.
        level: what rules have to keep.

    Returns: None where no rule applies, or where the models would grow too large.
    """
    used: Counter[str] = Counter()
    others: set[str] = set()
    exchanged, exactness, made = 0, Exactness.BITS, []
    for side in sides:
        model = side.model.clone()
        rewriter = Rewriter(model, side.imports, level)
        try:
            rewriter.apply(RULES)
        except TooLargeError:
            return None
        used += rewriter.used
        others |= rewriter.conditions
        exchanged += rewriter.exchanged
        if rewriter.loses_zero_signs or rewriter.exchanged:
            exactness = Exactness.VALUES
        made.append(replace(side, model=with_facts(model, side.domain.interfaces[side.place])))
    if not used:
        return None
    conditions = sorted(others)
    if exchanged:
        conditions.append(NO_NAN_AT_MAXIMA.format(exchanged))
    if exactness is Exactness.VALUES:
        conditions.append(ZEROS_REWRITTEN)
    note = f"{NORMAL_FORM}, by rules that keep {level}: {', '.join(sorted(used))}"
    return NormalForm((made[0], made[1]), exactness, note, tuple(conditions))
