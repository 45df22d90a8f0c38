"""Decide which runtimes can load a model, by the rules of profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from qgraph.targets.profile import Profile
from qgraph.targets.rules import Loads, NodeForm, node_forms


@dataclass(frozen=True)
class Reason:
    """One reason, or remark, of a verdict.

    Attributes:
        loads: the verdict for this reason; ``yes`` for a remark.
        text: what it is.
        nodes: number of nodes with this reason; 0 for the model as a whole.
        example: the first of them.
    """

    loads: Loads
    text: str
    nodes: int = 0
    example: str | None = None


@dataclass(frozen=True)
class RuntimeVerdict:
    """Whether a runtime can load a model.

    Attributes:
        runtime, knowledge: as in :class:`qgraph.targets.profile.Profile`.
        loads: the worst of all reasons.
        reasons: the worst first.
    """

    runtime: str
    knowledge: str
    loads: Loads
    reasons: list[Reason] = field(default_factory=list)


def runtimes_of(model: ir.Model, targets: Sequence[Profile]) -> list[RuntimeVerdict]:
    """Return for each runtime whether it can load ``model``.

    Nothing is loaded or run: the verdicts follow from rules about operators, types and versions.
    Parameters that are graph inputs too count as unknown; freeze them first.
    """
    forms = Counter(node_forms(model))
    return [_judge(target, model, forms) for target in targets]


def refused_nodes(model: ir.Model, target: Profile) -> set[str]:
    """Return the labels of the nodes that a runtime does not load."""
    forms = node_forms(model)
    return {form.label for form in forms if worst_of_node(target, form)[0] is Loads.NO}


def _judge(target: Profile, model: ir.Model, forms: Mapping[NodeForm, int]) -> RuntimeVerdict:
    reasons = list(version_reasons(target, model.ir_version or 0, model.graph.opset_imports))
    nodes: dict[tuple[Loads, str], list[NodeForm]] = {}
    for form in forms:
        if form.inside and target.by_name:
            continue
        loads, text = worst_of_node(target, form)
        if text:
            nodes.setdefault((loads, text), []).append(form)
    reasons += [
        Reason(loads, text, sum(forms[form] for form in group), group[0].label)
        for (loads, text), group in nodes.items()
    ]
    order = [Loads.NO, Loads.UNKNOWN, Loads.YES]
    reasons.sort(key=lambda reason: order.index(reason.loads))
    return RuntimeVerdict(
        target.name, target.knowledge, reasons[0].loads if reasons else Loads.YES, reasons
    )


def version_reasons(target: Profile, version: int, imports: Mapping[str, int]) -> Iterable[Reason]:
    """Yield why a runtime may not read files of an IR version with some imports."""
    opset = imports.get("", imports.get("ai.onnx", 0))
    versions = target.versions
    low, high = versions.opsets or (opset, opset)
    if opset and not low <= opset <= high:
        yield Reason(versions.beyond, f"it takes opset {low} to {high}, the model has {opset}")
    if versions.ir_version is not None and version > versions.ir_version:
        yield Reason(
            versions.beyond,
            f"it reads files up to IR version {versions.ir_version}, the model has {version}",
        )


def worst_of_node(target: Profile, form: NodeForm) -> tuple[Loads, str]:
    """Return whether a runtime loads a node, and why not; an empty text without a reason."""
    if form.since > form.opset:
        what = f"codes of type {form.codes}" if not form.block else f"blocks of {form.codes}"
        return Loads.NO, f"{what} need opset {form.since}, the model has {form.opset}"
    for rule in target.load:
        if rule.fits(form):
            return rule.loads, rule.reason.format(**vars(form))
    return Loads.YES, ""
