"""The lint rule MC001."""

from __future__ import annotations

from collections.abc import Iterator

from qgraph.plugin import Found, LintFix, LintLevel, ModelFacts, rule


@rule("MC001", "identity", LintLevel.INFO, fix=LintFix("drop-identities", "bits"))
def identity(facts: ModelFacts) -> Iterator[Found]:
    """An Identity node copies its data.

    **What to do.** Remove it: qgraph transform -p drop-identities.
    """
    for node in facts.of("Identity"):
        if not node.outputs[0].is_graph_output():
            yield Found((node,), "it copies its data")
