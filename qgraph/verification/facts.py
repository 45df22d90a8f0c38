"""Checking the types and shapes that a certificate lists."""

from __future__ import annotations

import json
from collections.abc import Mapping

from qgraph.matching.facts import listed_facts
from qgraph.verification.sides import Side
from qgraph.verification.statements import Document, fails


def check_facts(document: Document, sides: tuple[Side, Side]) -> None:
    """Raise unless a certificate lists exactly the facts that its regions and matches rest on.

    The facts are inferred from the models; so are the conditions under which they hold.

    Raises:
        EquivalenceError: a fact does not hold, is missing or is not needed, or a condition is
            missing.
    """
    names: tuple[set[str], set[str]] = (set(), set())
    for statement in document.statements:
        for pair in (statement.values, *statement.entries):
            names[0].add(pair[0])
            names[1].add(pair[1])
        for cases in statement.cases:
            if cases.side is not None and cases.start is not None:
                names[cases.side].add(cases.start)
    needed, conditions = listed_facts([side.plain for side in sides], names)
    inferred = {_text(fact.to_json()): fact for fact in needed}
    stated = {_text(fact): fact for fact in document.facts}
    if len(stated) < len(document.facts):
        raise fails("it lists a type and shape twice")
    for text, fact in stated.items():
        if text not in inferred:
            raise fails(
                f"the type and shape that it lists for {fact.get('tensor')!r} of the "
                f"{fact.get('model')} do not follow from the models, or nothing rests on them"
            )
    for text, missing in inferred.items():
        if text not in stated:
            raise fails(
                f"it does not list the type and shape of {missing.tensor!r} of the {missing.model}"
            )
    for condition in conditions:
        if condition not in document.conditions:
            raise fails(f"it leaves out the condition {condition!r}")


def _text(fact: Mapping[str, object]) -> str:
    return json.dumps(fact, sort_keys=True)
