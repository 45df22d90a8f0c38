"""The pass drop-identities."""

from __future__ import annotations

from qgraph.plugin import (
    Exactness,
    Method,
    Model,
    Report,
    SiteStatus,
    Transform,
    Verdict,
    entry,
    option,
    transform,
)


@transform("drop-identities", preserves=Exactness.BITS)
class DropIdentities(Transform):
    """Remove Identity nodes within a graph."""

    keep: str = option("", help="name of a node to keep")

    def apply(self, model: Model, report: Report) -> None:
        """Replace the output of each Identity by its input."""
        same = Verdict(Exactness.BITS, Method.CONGRUENCE)
        for node in model.nodes("Identity"):
            source, result = node.inputs[0], node.outputs[0]
            if node.name == self.keep or result.is_graph_output() or source is None:
                report.sites.append(entry(node, SiteStatus.KEPT))
                continue
            report.sites.append(entry(node, SiteStatus.CHANGED, verdict=same))
            result.replace_all_uses_with(source)
            node.graph.remove(node, safe=True)
