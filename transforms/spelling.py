"""Choosing how a site is spelled: the first draft that is equal enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from qgraph.dialects.dialect import Refusal, Site
from qgraph.equivalence.compare import Comparer
from qgraph.errors import OptionError
from qgraph.exactness import Exactness, Verdict
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.scopes import owners
from qgraph.model import Model
from qgraph.opsets import versions as opset
from qgraph.quantizer import Quantizer, Ranged, Unnamed
from qgraph.report import Outcome, Report, SiteReport, operator_name


def check_level(exact: Exactness) -> None:
    """See that a level means equality of some kind.

    Raises:
        OptionError: it is ``different``.
    """
    if exact is Exactness.DIFFERENT:
        levels = ", ".join(level for level in Exactness if level is not exact)
        raise OptionError(f"exact={exact} would accept anything; expected one of {levels}.")


@dataclass(frozen=True)
class Choice:
    """What became of one site: a draft with its verdict, or a reason."""

    site: Site
    draft: Draft | None
    verdict: Verdict | None
    reason: str | None = None
    figures: Mapping[str, float | int | str] = field(default_factory=dict)

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
            figures=self.figures,
            ledger=None if self.draft is None else self.draft.ledger,
        )


def choose(
    offers: Iterable[tuple[Site, Iterable[Draft]]], exact: Exactness, limit: int, comparer: Comparer
) -> list[Choice]:
    """Return for each site the first of its drafts that reaches ``exact`` within opset ``limit``.

    A draft without verdict or below the level is passed over; the reason of a refusal names the
    best one that was tried. The first drafts of all sites are compared together, then the second
    ones of those that are left, and so on. How far those below ``exact`` are from it is found out
    only where all are.
    """
    open_sites = [_Offer(site, iter(drafts)) for site, drafts in offers]
    pending = [offer for offer in open_sites if offer.settle_unhealthy() is None]
    while pending:
        drafted = [(offer, draft) for offer in pending if (draft := offer.next_draft(limit))]
        pairs = [(offer.site, draft) for offer, draft in drafted]
        verdicts = comparer.compare_all(pairs, at_least=exact)
        for (offer, draft), verdict in zip(drafted, verdicts, strict=True):
            offer.take(draft, verdict, exact)
        pending = [offer for offer, _ in drafted if offer.choice is None]
    failed = [
        (offer, draft)
        for offer in open_sites
        if offer.choice is None
        for draft in offer.passed_over
    ]
    verdicts = comparer.compare_all([(offer.site, draft) for offer, draft in failed])
    for (offer, _), verdict in zip(failed, verdicts, strict=True):
        offer.remember(verdict)
    return [offer.choice or offer.refusal(exact, limit) for offer in open_sites]


@dataclass
class _Offer:
    """A site, the drafts not tried yet, and what is known so far."""

    site: Site
    drafts: Iterator[Draft]
    choice: Choice | None = None
    best: Verdict | None = None
    lowest: int | None = None
    passed_over: list[Draft] = field(default_factory=list)

    def settle_unhealthy(self) -> Choice | None:
        """Refuse a site that computes no useful numbers."""
        reason = unhealthy(self.site.quantizer)
        if reason is not None:
            self.choice = Choice(self.site, None, None, reason)
        return self.choice

    def next_draft(self, limit: int) -> Draft | None:
        """Return the next draft within the opset limit."""
        for draft in self.drafts:
            if draft.opset <= limit:
                return draft
            self.lowest = min(self.lowest or draft.opset, draft.opset)
        return None

    def take(self, draft: Draft, verdict: Verdict, exact: Exactness) -> None:
        """Choose ``draft`` if it is equal enough."""
        if verdict.reaches(exact):
            self.choice = Choice(self.site, draft, verdict)
        else:
            self.passed_over.append(draft)

    def remember(self, verdict: Verdict) -> None:
        """Remember how near a draft came that was passed over."""
        if self.best is None or self.best.rung is None or verdict.reaches(self.best.rung):
            self.best = verdict

    def refusal(self, exact: Exactness, limit: int) -> Choice:
        """Return the choice of a site for which no draft is left."""
        reason = _refusal(self.best, exact, self.lowest, limit)
        return Choice(self.site, None, self.best, reason)


def _refusal(best: Verdict | None, exact: Exactness, lowest: int | None, limit: int) -> str | None:
    parts = []
    if best is not None and best.rung is None:
        parts.append(best.reason or "undecided")
    elif best is not None:
        parts.append(f"{_nearest(best)}; {exact} was asked for")
    if lowest is not None:
        parts.append(f"a spelling needs opset {lowest}, above {limit}; allow opset {lowest}")
    return "; ".join(parts) or None


def _nearest(best: Verdict) -> str:
    is_other = best.rung is Exactness.DIFFERENT
    nearest = "computes something else" if is_other else f"is {best.rung}"
    number = best.differing_inputs
    count = f" ({number} {'input gives' if number == 1 else 'inputs give'} other values)"
    found = f"no spelling in this dialect computes the same: the nearest {nearest}"
    return found + (count if number else "")


def unhealthy(quantizer: Quantizer) -> str | None:
    """Return why a quantizer computes no useful numbers, or None."""
    if isinstance(quantizer, Ranged | Unnamed):
        return None
    for value, label in ((0.0, "zero"), (np.nan, "NaN"), (np.inf, "infinite")):
        same = np.isnan(quantizer.scale) if np.isnan(value) else np.abs(quantizer.scale) == value
        if same.any():
            return f"its scale is {label}, a fault that conversions do not carry over"
    return None


def entry(found: Site | Refusal, outcome: Outcome, reason: str | None) -> SiteReport:
    """Return the entry of the report for something that is left as it is."""
    root = found.root
    name = root.name or root.outputs[0].name or ""
    return SiteReport(name, operator_name(root), "", outcome, reason=reason)


def settle(model: Model, choices: Sequence[Choice], editor: Editor, report: Report) -> None:
    """Carry out all chosen drafts, in the order given, and report every choice."""
    report.sites += [choice.report() for choice in choices]
    editor.learn()
    editor.replace_all(choice.draft for choice in choices if choice.draft is not None)
    opset.declare_domains(model.ir)
    forget_domains(model, {node.domain for choice in choices for node in choice.site.nodes})


def forget_domains(model: Model, domains: set[str]) -> None:
    """Drop the imports of those of ``domains`` that no node uses any more."""
    unused = domains - {node.domain for node in model.nodes()} - {""}
    for owner in owners(model.ir):
        for domain in unused & set(owner.opset_imports):
            del owner.opset_imports[domain]


def raise_opset(model: Model, choices: Iterable[Choice], report: Report) -> None:
    """Raise the model's opset to what the chosen drafts need, and say so in the report."""
    needed = max((choice.draft.opset for choice in choices if choice.draft), default=0)
    before = model.ir.opset_imports.get("", 0)
    if needed > before and opset.require(model.ir, needed):
        report.notes.append(f"opset raised from {before} to {needed}")
