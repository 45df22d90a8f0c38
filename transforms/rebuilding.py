"""Replacing operators by others that mean the same: what lowering and raising passes share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import onnx_ir as ir

from qgraph.dialects.dialect import Refusal
from qgraph.exactness import Exactness, Verdict
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.model import Model
from qgraph.opsets import versions as opset
from qgraph.report import Outcome, Report, SiteReport
from qgraph.transforms.spelling import entry, forget_domains


@dataclass(frozen=True, eq=False)
class Rebuild:
    """Nodes for which others can be written.

    Attributes:
        root: the node that the report names.
        nodes: what is replaced, in order; the last one has the only output.
        verdict: how equal the new nodes are.
        write: appends them to a draft and returns the output.
        opset: lowest version of the standard operators that has them.
    """

    root: ir.Node
    nodes: tuple[ir.Node, ...]
    verdict: Verdict
    write: Callable[[Draft], Operand]
    opset: int = 1


@dataclass(frozen=True, eq=False)
class Kept:
    """A node that is left as it is, and why that is no refusal."""

    root: ir.Node
    reason: str


Found = Rebuild | Refusal | Kept


def rebuild(
    model: Model, found: Iterable[Found], exact: Exactness, report: Report, *, limit: int
) -> None:
    """Carry out what reaches ``exact`` within opset ``limit``; report everything.

    The opset is raised once, as far as needed.

    Args:
        model: is changed in place.
        found: must stay valid when the opset is raised: its nodes are not rewritten for that.
        exact: lowest rung of equality that is accepted.
        report: gets an entry for everything found.
        limit: highest opset that may be used.
    """
    settled = [_settle(each, exact, limit) for each in found]
    chosen = [each for each in settled if isinstance(each, Rebuild)]
    needed = max((each.opset for each in chosen), default=0)
    before = model.ir.opset_imports.get("", 0)
    if needed > before and opset.require(model.ir, needed):
        report.notes.append(f"opset raised from {before} to {needed}")
    editor = Editor(model.ir)
    drafts = {each: _draft(each, editor) for each in chosen}
    for each in settled:
        if isinstance(each, Rebuild):
            changed = entry(Refusal(each.root, ""), Outcome.CHANGED, None)
            spelling = drafts[each].spelling
            report.sites.append(replace(changed, spelling=spelling, verdict=each.verdict))
        else:
            report.sites.append(each)
    editor.replace_all(drafts.values())
    if chosen:
        opset.declare_domains(model.ir)
        forget_domains(model, {node.domain for each in chosen for node in each.nodes})
        needed_format = opset.minimum_ir_version(model.ir)
        model.ir.ir_version = max(model.ir.ir_version or 0, needed_format)


def _settle(found: Found, exact: Exactness, limit: int) -> Rebuild | SiteReport:
    if isinstance(found, Kept):
        return entry(Refusal(found.root, ""), Outcome.KEPT, found.reason)
    if isinstance(found, Refusal):
        return entry(found, Outcome.REFUSED, found.reason)
    refused = entry(Refusal(found.root, ""), Outcome.REFUSED, None)
    if not found.verdict.reaches(exact):
        reason = (
            f"equal only to the level {found.verdict.rung}, {exact} was asked for: "
            f"{found.verdict.reason}; allow it with exact={found.verdict.rung}"
        )
        return replace(refused, verdict=found.verdict, reason=reason)
    if found.opset > limit:
        reason = f"it needs opset {found.opset}, above {limit}; allow opset {found.opset}"
        return replace(refused, reason=reason)
    return found


def _draft(found: Rebuild, editor: Editor) -> Draft:
    # Several inputs are no parameters, and new nodes read them themselves: none stands for data,
    # whose type would else be that of everything drafted.
    nowhere = ir.Value(name="")
    draft = editor.draft(Region(nowhere, found.nodes[-1].outputs[0], found.nodes))
    return draft.giving(found.write(draft))
