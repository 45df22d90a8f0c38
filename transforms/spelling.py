"""Choosing how a site is spelled: the first draft that is equal enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qgraph import opset
from qgraph.dialects.dialect import Site
from qgraph.edit import Draft, Editor
from qgraph.equivalence.compare import Comparer
from qgraph.exactness import Exactness, Verdict
from qgraph.model import Model
from qgraph.quantizer import Quantizer, Ranged, Unnamed
from qgraph.report import Outcome, Report, SiteReport, operator_name

HIGHEST_OPSET = 21
"""Ceiling unless a higher one is asked for or the model has one: INT4 needs it, all runtimes that
read quantized models have it."""


@dataclass(frozen=True)
class Choice:
    """What became of one site: a draft with its verdict, or a reason."""

    site: Site
    draft: Draft | None
    verdict: Verdict | None
    reason: str | None = None

    def report(self) -> SiteReport:
        """Return the entry of the report."""
        return SiteReport(
            node=self.site.root.name or self.site.y.name or "",
            op=operator_name(self.site.root),
            pass_name="",
            outcome=Outcome.REFUSED if self.draft is None else Outcome.CHANGED,
            spelling=None if self.draft is None else self.draft.spelling,
            verdict=self.verdict,
            reason=self.reason,
        )


def choose(
    site: Site, drafts: Iterable[Draft], exact: Exactness, limit: int, comparer: Comparer
) -> Choice:
    """Return the first of ``drafts`` that reaches ``exact`` within opset ``limit``.

    A draft without verdict or below the level is passed over; the reason of a refusal names the
    best one that was tried.
    """
    reason = unhealthy(site.quantizer)
    if reason is not None:
        return Choice(site, None, None, reason)
    best: Verdict | None = None
    lowest: int | None = None
    for draft in drafts:
        if draft.opset > limit:
            lowest = min(lowest or draft.opset, draft.opset)
            continue
        verdict = comparer.compare(site, draft)
        if verdict.reaches(exact):
            return Choice(site, draft, verdict)
        if best is None or best.rung is None or (verdict.reaches(best.rung)):
            best = verdict
    return Choice(site, None, best, _refusal(best, exact, lowest, limit))


def _refusal(best: Verdict | None, exact: Exactness, lowest: int | None, limit: int) -> str | None:
    parts = []
    if best is not None and best.rung is None:
        parts.append(best.reason or "undecided")
    elif best is not None:
        count = f", {best.differing_inputs} inputs differ" if best.differing_inputs else ""
        parts.append(f"the nearest spelling is only {best.rung}{count}; {exact} was asked for")
    if lowest is not None:
        parts.append(f"a spelling needs opset {lowest}, above {limit}; allow opset {lowest}")
    return "; ".join(parts) or None


def unhealthy(quantizer: Quantizer) -> str | None:
    """Return why a quantizer computes no useful numbers, or None."""
    if isinstance(quantizer, Ranged | Unnamed):
        return None
    for value, label in ((0.0, "zero"), (np.nan, "NaN"), (np.inf, "infinite")):
        same = np.isnan(quantizer.scale) if np.isnan(value) else np.abs(quantizer.scale) == value
        if same.any():
            return f"its scale is {label}, a fault that conversions do not carry over"
    return None


def settle(model: Model, choices: Sequence[Choice], editor: Editor, report: Report) -> None:
    """Carry out all chosen drafts, in the order given, and report every choice."""
    report.sites += [choice.report() for choice in choices]
    editor.learn()
    for choice in choices:
        if choice.draft is not None:
            choice.draft.commit()
    opset.declare_domains(model.ir)
    _forget_domains(model, {node.domain for choice in choices for node in choice.site.nodes})


def _forget_domains(model: Model, domains: set[str]) -> None:
    """Drop the imports of those of ``domains`` that no node uses any more."""
    unused = domains - {node.domain for node in model.nodes()} - {""}
    for owner in (model.ir.graph, *model.ir.functions.values()):
        for domain in unused & set(owner.opset_imports):
            del owner.opset_imports[domain]


def raise_opset(model: Model, choices: Iterable[Choice], report: Report) -> None:
    """Raise the model's opset to what the chosen drafts need, and say so in the report."""
    needed = max((choice.draft.opset for choice in choices if choice.draft), default=0)
    before = model.ir.opset_imports.get("", 0)
    if needed > before and opset.require(model.ir, needed):
        report.notes.append(f"opset raised from {before} to {needed}")
