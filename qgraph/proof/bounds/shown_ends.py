"""Which segments end in values that a proof shows equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from qgraph.exactness import Exactness
from qgraph.proof.bounds.closure import EqualEnds
from qgraph.proof.bounds.segments import Pairing
from qgraph.proof.certify import Proof
from qgraph.proof.discharge import Shown, discharge
from qgraph.proof.forced import adds_bias, fact_of
from qgraph.proof.matching.match import Matching
from qgraph.proof.regions import Decided


def shown_ends(
    proof: Proof, level: Exactness, decided: Decided | None = None
) -> Callable[[Pairing], EqualEnds]:
    """Return what decides which segments end in equal values; ``decided`` are known outcomes."""
    named = _named(proof.matching, level, Decided() if decided is None else decided)
    facts = [fact_of(s) for s in (*proof.shown, *named) if s.verdict.reaches(level)]
    return partial(EqualEnds, proof.matching, facts)


def _named(matching: Matching, level: Exactness, decided: Decided) -> Iterator[Shown]:
    """Yield claims about values of equal names, if the matching does not use names.

    A matching without names has fewer claims, of larger regions: a difference in one of them hides
    that most of its values are equal. Claims that depend on conditions are left out.
    """
    named = matching.named()
    for s in () if named is None else discharge(named, level, decided):
        if named is not None and not (s.loses_zero_sign or adds_bias(named, s)):
            yield s
