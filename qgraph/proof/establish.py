"""Decide whether differing regions make two models different, or are left undecided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from qgraph.evidence import Demonstration
from qgraph.exactness import Exactness
from qgraph.graph.interface import Pair
from qgraph.graph.scopes import graphs_of
from qgraph.ops.known_values import is_exact, is_random
from qgraph.proof.discharge import Shown, discharge
from qgraph.proof.forced import Runner, Search, demonstrations, forced
from qgraph.proof.functions.decide import undecided
from qgraph.proof.matching.match import Matching
from qgraph.proof.matching.normalise import live_nodes
from qgraph.proof.regions import Decided
from qgraph.reasons import NOT_FORCED

Established = tuple[Matching, list[Shown], Demonstration | None]

_REGIONS_RUN = 4
"""Maximum number of regions for which the models are run from an entry on."""


def establish(
    matching: Matching,
    shown: Sequence[Shown],
    level: Exactness,
    known: Decided,
    runs: Runner | None,
    *,
    same_sums: bool,
) -> Established:
    """Return the matching, its outcomes, and the input that shows a difference, if a run did.

    Differing regions become undecided unless the models are different. ``same_sums`` tells whether
    everything else is proved, so that the models add the same numbers.
    """
    differing = [s for s in shown if s.outcome.differs(level)]
    if not differing:
        return matching, list(shown), None
    search = Search(runs, _REGIONS_RUN, {})
    found = forced(matching, shown, level, known, search)
    for other in matching.others() if found is None else ():
        # regions may be too small or too large
        without = discharge(other, level, known)
        found = forced(other, without, level, known, search)
        if found is not None:
            matching, shown = other, without
            break
    if found is not None:
        forcing = [found.version if s is found.nearest else s for s in shown]
        return matching, forcing, found.example
    if runs is not None:
        pairs = matching.interface
        example = runs.demonstrate(
            (matching.reference.normalised.model, matching.candidate.normalised.model),
            pairs.inputs,
            comparable(pairs.outputs),
            demonstrations(matching, differing, known),
            same_sums=same_sums,
        )
        if example is not None:
            return matching, list(shown), example
    hiding = search.hiding
    return (
        matching,
        [
            _left_open(s, hiding.get(s.claim.values, ())) if s.outcome.differs(level) else s
            for s in shown
        ],
        None,
    )


def comparable(outputs: Iterable[Pair]) -> list[tuple[ir.Value, ir.Value, bool]]:
    """Return the pairs of defined outputs, and whether ONNX defines their last bits."""
    pairs = ((a, b, {_reliance(value) for value in (a, b)}) for a, b in outputs)
    return [(a, b, kinds == {"exact"}) for a, b, kinds in pairs if "undetermined" not in kinds]


def _reliance(value: ir.Value) -> str:
    """Return whether a value is exact, rounded or undefined, by the nodes that compute it."""
    reliance = "exact"
    for node in live_nodes([value]):
        if is_random(node, {"": 1}) or _is_open_cast(node):
            return "undetermined"
        if not graphs_of(node) and not (is_exact(node) and not _divides_by_data(node)):
            reliance = "rounded"
    return reliance


def _is_open_cast(node: ir.Node) -> bool:
    """Return whether a node casts numbers to integers whose range they may exceed."""
    if node.op_type not in ("Cast", "CastLike") or node.inputs[0] is None:
        return False
    before, after = node.inputs[0].dtype, node.outputs[0].dtype
    if before is None or after is None:
        return True
    return before.is_floating_point() and after.is_integer()


def _divides_by_data(node: ir.Node) -> bool:
    """Return whether a node divides by data, so that it may distinguish -0 from +0."""
    return node.op_type in ("Div", "Reciprocal", "Mod", "Atan2")


def _left_open(s: Shown, hiding: Sequence[str]) -> Shown:
    differing, witness = s.verdict.differing_inputs, s.verdict.witness
    count = f"{differing} of its inputs" if differing else "some of its inputs"
    if not s.outcome.is_counted and differing:
        count = f"at least {count}"
    such = "" if witness is None else f", such as {witness.input!r}"
    reason = (
        f"its sides differ on {count}{such}, but this does not show that the models differ: "
        "another difference may undo it, or these inputs may not occur"
    )
    if hiding:
        reason = (
            f"its sides differ on {count}{such}, but this does not show that the models differ: "
            f"later operators may hide it ({', '.join(hiding)}), or these inputs may not occur"
        )
    return replace(s, outcome=undecided(NOT_FORCED(reason)))
