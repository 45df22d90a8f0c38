"""Both models of a proof in normal form."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from qgraph.exactness import Exactness
from qgraph.graph.inference.walk import with_facts
from qgraph.matching.normal.registry import RULES
from qgraph.matching.normal.rewriter import Rewriter, TooLargeError
from qgraph.matching.plain import Plain

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
        sides: copies of the models, as :func:`qgraph.matching.plain.plain` returns them.
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
