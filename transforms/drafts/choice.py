"""Choose the draft that replaces a site, commit the chosen drafts, and report every site."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import onnx_ir as ir

from qgraph.effort import require_time
from qgraph.errors import where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.opset import versions as opset
from qgraph.graph.opset.versions import raise_opset
from qgraph.model import Model
from qgraph.proof.functions.lowering import Forms
from qgraph.quantizers.compare import Comparer, Spell, spelled_once, type_key
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.quantizer import unhealthy
from qgraph.reasons import NEEDS_OPSET, NO_EQUAL_FORM, UNREADABLE, ExplainedReason, explained
from qgraph.records import dataclass, field
from qgraph.reports import Report, SiteReport, SiteStatus, operator_name

SAME = Verdict(Exactness.BITS, Method.CONGRUENCE)
STORED = Verdict(Exactness.BITS, Method.CONSTANT)
"""Verdicts on nodes that compute the same by their definitions, and on equal constants."""

DYNAMIC = "its scale is known only when the model runs; it stays as it is"

Figure = float | int | str
T = TypeVar("T")
P = TypeVar("P", bound="Planned")
R = TypeVar("R", bound="Drafted")


def entry(
    node: ir.Node, outcome: SiteStatus, reason: str | None = None, **fields: Any
) -> SiteReport:
    """Return the report entry of a site, named by one of its nodes, with a reason or a remark."""
    return SiteReport(label(node), operator_name(node), "", outcome, reason=reason, **fields)


def refused(node: ir.Node, reason: ExplainedReason, **fields: Any) -> SiteReport:
    """Return the report entry of a refused site; see :func:`entry`.

    The entry names the node, so the reason need not: equal reasons are shown once.
    """
    text = ExplainedReason(reason.removeprefix(f"{where(node)}: "), reason.id)
    return entry(node, SiteStatus.REFUSED, text, **fields)


def label(node: ir.Node) -> str:
    """Return the name of a node, or of its first output if it has none."""
    return node.name or (node.outputs[0].name if node.outputs else None) or node.op_type


def readable(sites: Iterable[T | Refusal], others: list[SiteReport]) -> Iterator[T]:
    """Yield the sites that can be read; add an entry to ``others`` for each refusal."""
    for site in sites:
        if isinstance(site, Refusal):
            reason = explained(site.reason, UNREADABLE)
            dynamic = entry(site.root, SiteStatus.KEPT, DYNAMIC)
            others.append(dynamic if site.is_dynamic else refused(site.root, reason))
        else:
            yield site


@dataclass(frozen=True)
class Decision:
    """The decision on one site: a draft with its verdict, or the reason of a refusal."""

    site: Site
    draft: Draft | None
    verdict: Verdict | None
    reason: str | None = None
    figures: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """The lowest opset in which the draft is valid; 0 without a draft."""
        return 0 if self.draft is None else self.draft.opset

    @property
    def stands(self) -> bool:
        """Whether all nodes of the decision are still in the graph."""
        return self.site.stands

    def prepare(self, editor: Editor) -> None:
        """Make the changes that must precede the commit of drafts; none by default."""

    def report(self) -> SiteReport:
        """Return the entry of the report."""
        if self.draft is None:
            figures = {"verdict": self.verdict, "figures": self.figures}
            reason = self.reason or (self.verdict and self.verdict.reason) or "nothing was tried"
            return refused(self.site.root, explained(reason, NO_EQUAL_FORM), **figures)
        return entry(
            self.site.root,
            SiteStatus.CHANGED,
            self.reason,
            spelling=self.draft.spelling,
            verdict=self.verdict,
            figures=self.figures,
            size_summary=self.draft.size_summary,
        )


def choose(
    offers: Iterable[tuple[Site, Iterable[Draft]]],
    exact: Exactness,
    limit: int,
    comparer: Comparer,
    *,
    spell: Spell | None = None,
) -> list[Decision]:
    """Return for each site the first of its drafts that reaches ``exact`` within opset ``limit``.

    A draft without verdict or below the level is skipped; the reason of a refusal names the best
    skipped draft. The drafts of a constant hold arrays, and are compared at once. The first drafts
    of all other sites are compared together, then the second drafts of the undecided sites, and so
    on. The exact level of a draft below ``exact`` is computed only if all drafts of its site are
    below it.

    With ``spell``, which writes the drafts of a site, equal sites have equal drafts, which are made
    and compared once; for sites that differ in their scale only, they are made once.
    """
    tried, stored = [], 0
    for site, drafts in offers:
        tried.append(_Offer(site, iter(drafts)))
        if site.weight is not None:
            _decide(tried[-1:], exact, limit, comparer, before=stored)
            stored += 1
    first: dict[object, _Offer] = {}
    same: list[tuple[_Offer, _Offer]] = []
    forms = Forms()
    for offer in tried if spell is not None else ():
        form = _form(offer.site, comparer, forms)
        earlier = offer if form is None else first.setdefault(form, offer)
        if earlier is not offer:
            same.append((offer, earlier))
    if spell is not None:
        _share_drafts([each for each in first.values() if each.decision is None], forms, spell)
    waiting = {id(offer) for offer, _ in same}
    once = [offer for offer in tried if id(offer) not in waiting]
    _decide(once, exact, limit, comparer)
    for offer, earlier in same:
        offer.repeat(earlier)
    _decide([offer for offer, _ in same], exact, limit, comparer, before=len(once))
    failed = [
        (offer, draft) for offer in tried if offer.decision is None for draft in offer.passed_over
    ]
    verdicts = comparer.compare_all([(offer.site, draft) for offer, draft in failed])
    for (offer, _), verdict in zip(failed, verdicts, strict=True):
        offer.best = nearer(offer.best, verdict)
    return [offer.decision or offer.refusal(exact, limit) for offer in tried]


def _share_drafts(offers: list[_Offer], forms: Forms, spell: Spell) -> None:
    """Let sites that differ in their scale only share drafts that do not depend on it."""
    sites = [(offer.site, offer.drafts) for offer in offers]
    for offer, drafts in zip(offers, spelled_once(sites, forms, spell), strict=True):
        offer.drafts = drafts


def _decide(
    offers: list[_Offer], exact: Exactness, limit: int, comparer: Comparer, *, before: int = 0
) -> None:
    """Try the drafts of sites that are not decided yet, after ``before`` other sites."""
    pending = [offer for offer in offers if offer.decision is None]
    while pending:
        done = before + len(offers) - len(pending)
        require_time(f"{done} quantizers were compared")
        drafted = [(offer, draft) for offer in pending if (draft := offer.next_draft(limit))]
        verdicts = comparer.compare_all([(o.site, draft) for o, draft in drafted], at_least=exact)
        for (offer, draft), verdict in zip(drafted, verdicts, strict=True):
            offer.take(draft, verdict, exact)
        pending = [offer for offer, _ in drafted if offer.decision is None]


def _form(site: Site, comparer: Comparer, forms: Forms) -> object | None:
    """Return a key that is equal for sites of data with equal quantizers and nodes, or None."""
    if type(site) is not Site or site.weight is not None:
        return None
    dtype = comparer.type_of(site.x)
    if dtype is None:
        return None
    nodes = forms.of_region(site.nodes, site.x, site.y) if site.form is None else site.form
    key = id(site.meaning), id(site.repeats), site.dialect, type_key(site), dtype, nodes
    return None if nodes is None else key


def nearer(one: Verdict | None, other: Verdict) -> Verdict:
    """Return the better of two verdicts; of equal ones the second."""
    if one is None or one.exactness is None or other.reaches(one.exactness):
        return other
    return one


@dataclass
class _Offer:
    """A site, the drafts not tried yet, and the results so far."""

    site: Site
    drafts: Iterator[Draft]
    decision: Decision | None = None
    best: Verdict | None = None
    lowest: int | None = None
    passed_over: list[Draft] = field(default_factory=list)

    def __post_init__(self) -> None:
        reason = unhealthy(self.site.meaning)
        if reason is not None:
            self.decision = Decision(self.site, None, None, reason)

    def next_draft(self, limit: int) -> Draft | None:
        for draft in self.drafts:
            if draft.opset <= limit:
                return draft
            self.lowest = min(self.lowest or draft.opset, draft.opset)
        return None

    def take(self, draft: Draft, verdict: Verdict, exact: Exactness) -> None:
        if verdict.reaches(exact):
            if self.site.weight is not None:
                # Its parameters would stay in memory; the draft may have tensors for them.
                draft.region = self.site = self.site.small
            self.decision = Decision(self.site, draft, verdict)
            self.drafts, self.passed_over = iter(()), []
        else:
            self.passed_over.append(draft)

    def repeat(self, earlier: _Offer) -> None:
        """Apply the decision on an equal site, if there is a draft for it."""
        decision = earlier.decision
        if self.decision is None and decision is not None and decision.draft is not None:
            draft = decision.draft.again(self.site)
            if draft is not None:
                verdict, reason, figures = decision.verdict, decision.reason, decision.figures
                self.decision = Decision(self.site, draft, verdict, reason, figures)

    def refusal(self, exact: Exactness, limit: int) -> Decision:
        """Return the refusal of a site for which no draft is left."""
        parts, best = [], self.best
        if best is not None and best.exactness is None:
            parts.append(best.reason or "undecided")
        elif best is not None:
            accepted = best.exactness not in (None, Exactness.DIFFERENT)
            remedy = f"; exact={best.exactness} accepts that" if accepted else ""
            parts.append(f"{_closest(best)}; expected {exact}{remedy}")
        if self.lowest is not None:
            what = "an equal form" if best is None else "another form"
            parts.append(opset_reason(what, self.lowest, limit))
        only_opset = best is None and self.lowest is not None
        cause = NEEDS_OPSET if only_opset else NO_EQUAL_FORM
        return Decision(self.site, None, best, cause("; ".join(parts)) if parts else None)


def opset_reason(what: str, needed: int, limit: int) -> ExplainedReason:
    """Return the reason of a refusal because of an opset above the limit."""
    return NEEDS_OPSET(f"{what} needs opset {needed}, above {limit}; allow opset {needed}")


def _closest(best: Verdict) -> str:
    number, level = best.differing_inputs, f"reaches only level {best.exactness}"
    level = "differs" if best.exactness is Exactness.DIFFERENT else level
    count = f" ({number} {'input gives' if number == 1 else 'inputs give'} other values)"
    return f"no form in this dialect is equal: the closest one {level}" + (count if number else "")


class Planned(Protocol):
    """A planned change of nodes of the graph."""

    @property
    def opset(self) -> int:
        """The lowest opset that has it."""

    @property
    def stands(self) -> bool:
        """Whether all its nodes are still in the graph."""


class Drafted(Planned, Protocol):
    """Nodes that a draft replaces, or that stay unchanged."""

    @property
    def draft(self) -> Draft | None:
        """The new nodes; None if the old ones stay."""

    def prepare(self, editor: Editor) -> None:
        """Make the changes that must precede the commit of drafts."""

    def report(self) -> SiteReport:
        """Return the entry for the report."""


@dataclass(frozen=True, eq=False)
class OfDraft:
    """The part of a plan that its draft determines."""

    draft: Draft = field(kw_only=True)

    @property
    def opset(self) -> int:
        """The lowest opset that has the new nodes."""
        return self.draft.opset

    @property
    def stands(self) -> bool:
        """Whether all old nodes are still in the graph."""
        return self.draft.region.stands

    def prepare(self, editor: Editor) -> None:
        """Do nothing: only the old nodes change."""

    def changed(
        self, node: ir.Node, reason: str, verdict: Verdict | None = None, **figures: Figure
    ) -> SiteReport:
        """Return the entry of the report, named by a node, with a remark and figures."""
        return entry(
            node,
            SiteStatus.CHANGED,
            reason,
            spelling=self.draft.spelling,
            verdict=verdict or Verdict(),
            figures=figures,
        )


def raised(
    model: Model, propose: Callable[[], Iterable[P | SiteReport]], report: Report
) -> tuple[list[P], list[SiteReport]]:
    """Raise the opset as needed by the plans; return the plans and the entries of other sites.

    The arguments are those of :func:`carry_out`.
    """
    plans, others = _apart(propose())
    report.notes += raise_opset(model.ir, (plan.opset for plan in plans))
    return (plans, others) if all(plan.stands for plan in plans) else _apart(propose())


def _apart(proposed: Iterable[P | SiteReport]) -> tuple[list[P], list[SiteReport]]:
    listed = list(proposed)
    others = [each for each in listed if isinstance(each, SiteReport)]
    return [each for each in listed if not isinstance(each, SiteReport)], others


def carry_out(
    model: Model, propose: Callable[[Editor], Iterable[R | SiteReport]], report: Report
) -> list[R]:
    """Raise the opset as needed by the plans, commit their drafts, and report every site.

    ``propose`` yields the plans, with drafts by an editor, and the entries of all other sites. It
    is called again if raising the opset rewrote a node of a plan.
    """
    editor = Editor(model.ir)
    plans, others = raised(model, lambda: propose(editor), report)
    settle(model, plans, editor, report)
    report.sites += others
    return plans


def settle(model: Model, plans: Sequence[Drafted], editor: Editor, report: Report) -> None:
    """Commit all drafts, in the order given, and report every plan."""
    report.sites += [plan.report() for plan in plans]
    editor.learn()
    for plan in plans:
        plan.prepare(editor)
    drafts = [plan.draft for plan in plans if plan.draft is not None]
    domains = {node.domain for draft in drafts for node in draft.region.nodes}
    editor.replace_all(drafts)
    opset.declare_domains(model.ir, removed=domains)
