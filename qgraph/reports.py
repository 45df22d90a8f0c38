"""Report of passes on a model, site by site: for convert, fold and transform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from qgraph.errors import Choice, member
from qgraph.exactness import Exactness, Method, ProofVerdict, Verdict
from qgraph.graph.draft_parts import SizeSummary
from qgraph.reasons import OTHER, explained
from qgraph.records import field, guarded, replace
from qgraph.text import Displayed, Fields, as_json
from qgraph.version import renamed

if TYPE_CHECKING:
    from qgraph.bound import Bound
else:
    __getattr__ = renamed(__name__)


class SiteStatus(Choice):
    """Outcome for a site."""

    CHANGED = "changed"
    KEPT = "kept"
    REFUSED = "refused"


@guarded(frozen=True, repr=False)
class SiteReport(Fields):
    """Report on one quantizer or tensor that a pass visited.

    Attributes:
        node: name of the old node of the site.
        op: its operator, ``domain::Name``.
        pass_name: the pass that reports.
        outcome: changed, kept (nothing to do) or refused (with ``reason``).
        spelling: operators of the new form joined by ``+``; None if nothing was written.
        verdict: verdict on old and new form; for a refusal, on the best tried form.
        reason: why it was refused, or a remark.
        figures: numbers about the site, by name; they depend on the pass.
        size_summary: sizes before and after of a constant that is stored as codes.
        bound: bound of the difference, given equal codes before the segment, if the new form is not
            equal.
        is_part: whether the pass itself wrote the node, as part of an operator with its own entry;
            only refusals of parts are counted.
    """

    node: str
    op: str
    pass_name: str
    outcome: SiteStatus
    spelling: str | None = None
    verdict: Verdict | None = None
    reason: str | None = None
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    size_summary: SizeSummary | None = None
    bound: Bound | None = None
    is_part: bool = False

    def __repr__(self) -> str:
        level = None if self.verdict is None else self.verdict.exactness
        more = [str(each) for each in (self.spelling, level, self.why) if each is not None]
        return f"<{self.outcome} by {self.pass_name}, {self.node!r}: {', '.join(more) or self.op}>"

    @property
    def why(self) -> str | None:
        """The reason of the site, or else that of its verdict."""
        return self.reason or (self.verdict.reason if self.verdict else None)

    @property
    def reason_id(self) -> str | None:
        """The id of the cause of a refusal, see :mod:`qgraph.reasons`; None if not refused."""
        return explained(self.why or "", OTHER).id if self.outcome is SiteStatus.REFUSED else None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that the JSON report has for each site."""
        verdict = self.verdict
        level = str(verdict.exactness) if verdict and verdict.exactness else None
        method = verdict.method if verdict else Method.NONE
        if self.bound is not None:
            level, method = str(ProofVerdict.BOUNDED), Method.BOUND
        return {
            "node": self.node,
            "op": self.op,
            "pass": self.pass_name,
            "outcome": str(self.outcome),
            "spelling": self.spelling,
            "exactness": level,
            "method": str(method),
            "differing_inputs": verdict.differing_inputs if verdict else 0,
            "differing_codes": verdict.differing_codes if verdict else None,
            "noise_ulps": verdict.noise_ulps if verdict else None,
            "noise_steps": verdict.noise_steps if verdict else None,
            "witness": as_json(verdict and verdict.witness),
            "bound": as_json(self.bound),
            "reason": None if self.why is None else str(self.why),
            "reason_id": self.reason_id,
            "figures": dict(self.figures),
            "stored": as_json(self.size_summary),
            "is_part": self.is_part,
        }


def operator_name(node: ir.Node) -> str:
    """Return ``domain::Name``, or the bare name for a standard operator."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


@guarded(repr=False)
class Report(Displayed):
    """Report of a sequence of passes, in order.

    Attributes:
        sites: an entry for each site that a pass visited.
        notes: remarks on the model as a whole, such as the raising of its opset.
        frozen_inputs: number of initializers that were removed from the graph inputs.
        weight_bytes_before, weight_bytes_after: bytes of all initializers and constants as stored.
        command: the command that made it, such as ``convert``.
    """

    sites: list[SiteReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    frozen_inputs: int = 0
    weight_bytes_before: int = 0
    weight_bytes_after: int = 0
    command: str = "transform"

    @property
    def summary(self) -> str:
        """Numbers of changed, kept and refused sites."""
        return ", ".join(f"{self.count(status)} {status}" for status in SiteStatus)

    def __iter__(self) -> Iterator[SiteReport]:
        return iter(self.sites)

    def count(self, outcome: str) -> int:
        """Return the number of sites with a status; an operator and its parts are one site."""
        wanted = member(SiteStatus, outcome, "outcome")
        whole = [s for s in self.sites if wanted is SiteStatus.REFUSED or not s.is_part]
        return sum(site.outcome is wanted for site in whole)

    def settle(self) -> None:
        """Compute the counts of stored weights that do not depend on saving the model."""
        for site in self.sites:
            if site.size_summary is not None:
                _ = site.size_summary.tally

    @property
    def modified(self) -> bool:
        """Whether any site was changed or the opset was raised."""
        return bool(self.notes) or self.count(SiteStatus.CHANGED) > 0

    @property
    def exactness(self) -> Exactness:
        """The lowest level among the changed sites; ``bits`` when nothing changed.

        A site for which no level is claimed may be different.
        """
        levels = [
            site.verdict.exactness or Exactness.DIFFERENT
            for site in self.sites
            if site.outcome is SiteStatus.CHANGED and site.verdict
        ]
        return min(levels, default=Exactness.BITS)

    def stored(self) -> dict[str, int]:
        """Return the totals over the size summaries of all weights that were stored as codes."""
        rows = [site.size_summary for site in self.sites if site.size_summary is not None]
        tallies = [row.tally for row in rows]
        return {
            "weights": len(rows),
            "bytes_before": sum(row.bytes_before for row in rows),
            "bytes_after": sum(row.bytes_after for row in rows),
            "elements": sum(tally.elements for tally in tallies if tally is not None),
            "unchanged": sum(tally.unchanged for tally in tallies if tally is not None),
            "clipped": sum(tally.clipped for tally in tallies if tally is not None),
        }

    def under(self, pass_name: str) -> Report:
        """Return a copy whose entries all carry ``pass_name``."""
        sites = [replace(site, pass_name=pass_name) for site in self.sites]
        return replace(self, sites=sites)

    def extend(self, other: Report) -> None:
        """Append the report of a later pass."""
        self.sites += other.sites
        self.notes += other.notes
        self.weight_bytes_after = other.weight_bytes_after

    def to_json(self) -> dict[str, Any]:
        """Return ``sites`` and ``summary`` of the JSON report."""
        return {
            "sites": [site.to_json() for site in self.sites],
            "notes": list(self.notes),
            "summary": {
                "changed": self.count(SiteStatus.CHANGED),
                "kept": self.count(SiteStatus.KEPT),
                "refused": self.count(SiteStatus.REFUSED),
                "frozen_inputs": self.frozen_inputs,
                "weight_bytes_before": self.weight_bytes_before,
                "weight_bytes_after": self.weight_bytes_after,
                "stored": self.stored(),
            },
        }
