"""Apply the passes that lint names as fixes, if their results are equal or bounded."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import onnx_ir as ir

from qgraph.bound import Against, Bounding, Within
from qgraph.comparison.prove import prove
from qgraph.errors import QGraphError, require
from qgraph.exactness import Exactness, ProofVerdict
from qgraph.graph.scopes import bodies
from qgraph.lint.engine import Ids, LintBaseline, LintReport, lint
from qgraph.model import Model
from qgraph.records import by_key, guarded, replace
from qgraph.reports import SiteStatus, operator_name
from qgraph.text import counted
from qgraph.transforms.base import Transform, escaped, options_of, parse_spec

_ORDER = (
    "lower-microsoft",
    "fold-constants",
    "fold-weights",
    "plain-pairs",
    "symmetric-weights",
    "canonical-operators",
    "fold-batch-norm",
    "move-channel-scales",
    "merge-activation",
    "repack",
    "move-quantizers",
    "quantize-bias",
)
"""Passes in the order in which they are applied; each finds cases that earlier ones leave."""

_MOST_ROUNDS = 4
_ENOUGH = {ProofVerdict.PROVED, ProofVerdict.BOUNDED}


@guarded(frozen=True)
class AppliedFix:
    """A pass that was applied, or tried, to remove findings.

    Attributes:
        name: the pass with its options, as findings name it.
        ids: ids of the rules that named it.
        nodes: names of the nodes of their findings.
        applied: the pass, limited to these nodes if it can be.
        sites: number of sites that it changed.
        beyond: names of changed nodes that no finding names.
        exactness: level of equality of the result; None if nothing was changed.
        reason: why it was not applied, or not to all nodes; None if it was applied to all.
    """

    name: str
    ids: tuple[str, ...]
    nodes: frozenset[str]
    applied: Transform
    sites: int = 0
    beyond: tuple[str, ...] = ()
    exactness: str | None = None
    reason: str | None = None

    def __str__(self) -> str:
        subject = f"{self.name} ({', '.join(self.ids)})"
        done = f"{self.sites} changed, {self.exactness}" if self.sites else "not applied"
        if self.beyond:
            count = counted(len(self.beyond), "place")
            done += f", {count} of them without a finding, such as {self.beyond[0]!r}"
        return f"{subject}: {done}" + (f"; {self.reason}" if self.reason else "")


@guarded(frozen=True, repr=False)
class LintFixes:
    """Result of :func:`fix`.

    Attributes:
        steps: the passes that were tried, in order.
        listing: lines of a unified diff of both graphs.
    """

    steps: Sequence[AppliedFix]
    before: LintReport
    after: LintReport
    listing: Sequence[str]

    def __repr__(self) -> str:
        found = f"{counted(len(self.before), 'finding')} before, {len(self.after)} after"
        return f"<LintFixes: {found}>"

    @property
    def passes(self) -> list[Transform]:
        """The passes that changed something; they can be applied again."""
        return [step.applied for step in self.steps if step.sites]


def fix(
    model: Model,
    target: str | None = None,
    *,
    select: Ids = (),
    ignore: Ids = (),
    within: Within = (),
    known: LintBaseline | None = None,
) -> LintFixes:
    """Apply the passes that findings name as fixes, in place: all or none.

    A pass with an option ``nodes`` changes only the nodes that findings name. Any other pass
    changes all sites that it finds; its step lists the changed nodes that no finding names.

    A pass that keeps values is applied without a proof, because it compares every site. Any other
    pass is applied only if the prover shows that the result is equal, or within the limits.

    Args:
        model: is changed.
        target: name or path of a profile.
        select: only these rules, as for :func:`qgraph.lint`.
        ignore: not these rules.
        within: limits, see :meth:`qgraph.bound.Limit.parse`.
        known: findings that are not fixed.

    Raises:
        OptionError: there is no such target, rule or limit.
        ModelError: the model is not usable.
    """

    def found() -> LintReport:
        report = lint(draft, target, select=select, ignore=ignore)
        # A changed draft is no file; a baseline knows findings by the path of the file.
        return report if known is None else known.without(replace(report, model=identity))

    require(model, Model, "the model", "a qgraph.Model, which is changed. qgraph.load reads one")
    draft, identity = model.clone(), model.identity()
    before = found()
    original = _listing(draft.ir)
    steps: list[AppliedFix] = []
    after = before
    for _ in range(_MOST_ROUNDS):  # a pass may bring out what another one removes
        tried = []
        for wanted in sorted(_wanted(after, within), key=lambda each: _place(each.name)):
            draft, step = _applied(draft, wanted, within)
            tried.append(step)
        listed = {step.name for step in steps}
        steps += [step for step in tried if step.sites or step.name not in listed]
        if not any(step.sites for step in tried):
            break
        after = found()
    lines = list(difflib.unified_diff(original, _listing(draft.ir), "before", "after", lineterm=""))
    if any(step.sites for step in steps):
        model.replace(draft)
    return LintFixes(steps, before, after, lines)


def _wanted(findings: LintReport, within: Within) -> Iterator[AppliedFix]:
    """Yield the passes that findings name, with the ids of their rules and the nodes."""
    wanted = by_key(
        (finding.fix.name, finding)
        for finding in findings
        if finding.fix is not None and (finding.fix.is_proved or within)
    )
    for name, group in wanted.items():
        ids = tuple(dict.fromkeys(finding.rule.id for finding in group))
        nodes = frozenset(node for finding in group for node in finding.nodes)
        yield AppliedFix(name, ids, nodes, _limited(parse_spec(name), nodes))


def _limited(each: Transform, nodes: Iterable[str]) -> Transform:
    """Return a pass that changes only these nodes, or the pass itself if it cannot be limited."""
    if not any(option.name == "nodes" for option in options_of(type(each))):
        return each
    if any(name.startswith("!") for name in nodes):  # would select all others
        return each
    limited: Transform = replace(cast("Any", each), nodes="|".join(map(escaped, sorted(nodes))))
    return limited


def _place(name: str) -> tuple[int, str]:
    plain = name.partition("{")[0]
    return (_ORDER.index(plain) if plain in _ORDER else len(_ORDER), name)


def _applied(model: Model, step: AppliedFix, within: Within) -> tuple[Model, AppliedFix]:
    """Return the model after a pass, or unchanged, and the result of the pass."""
    each, draft = step.applied, model.clone()
    try:
        report = draft.apply(each)
        changed = [site.node for site in report if site.outcome is SiteStatus.CHANGED]
        refused = [str(site.why) for site in report if site.outcome is SiteStatus.REFUSED]
        left = f"{len(refused)} left: {refused[0]}" if refused else None
        if not changed:
            return model, replace(step, reason=left or "it finds nothing to do")
        beyond = tuple(node for node in changed if node not in step.nodes)
        done = replace(step, sites=len(changed), beyond=beyond, reason=left)
        if each.preserves >= Exactness.VALUES and not each.bounded:
            return draft, replace(done, exactness=str(report.exactness))
        asked = Bounding.of(within, model.inputs, model.outputs)
        request = replace(asked, against=Against.IDEAL) if asked.limits else asked
        proof = prove(model, draft, within=request, hashes=False)
    except QGraphError as error:
        return model, replace(step, reason=str(error))
    if proof.verdict in _ENOUGH and not proof.beyond:
        how = "values" if proof.verdict is ProofVerdict.PROVED else "bounded"
        return draft, replace(done, exactness=how)
    return model, replace(step, reason=f"the result is {proof.verdict}")


def _listing(model: ir.Model) -> list[str]:
    """Return a line for each node and each initializer of a model."""
    return [line for body in bodies(model) for line in _lines(body)]


def _lines(body: ir.Graph | ir.Function) -> Iterator[str]:
    if isinstance(body, ir.Graph):
        for value in body.initializers.values():
            shape = "" if value.shape is None else list(value.shape.dims)
            yield f"{value.dtype and value.dtype.name}{shape} {value.name}"
    for node in body:
        operands = ", ".join("" if value is None else str(value.name) for value in node.inputs)
        results = ", ".join(str(value.name) for value in node.outputs)
        yield f"{results} = {operator_name(node)} ({operands})"
