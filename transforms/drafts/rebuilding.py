"""Replace nodes by equal ones; shared by the lowering and raising passes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, UnsupportedError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.inference.walk import inferred
from qgraph.graph.opset import versions as opset
from qgraph.graph.opset.versions import raise_opset
from qgraph.graph.scopes import nodes_of
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.ops.composite import composite_of, region_of
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.reasons import NO_EQUAL_FORM, NO_OPERATOR, UNREADABLE, explained
from qgraph.records import dataclass
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.drafts.choice import STORED, entry, opset_reason, refused

if TYPE_CHECKING:
    from qgraph.inventory.openvino_traps import WeightChain


@dataclass(frozen=True, eq=False)
class Rebuild:
    """Nodes to replace, and how to draft their replacement.

    Attributes:
        root: the node that the report names.
        nodes: the replaced nodes, in order; the last one has the only output.
        verdict: verdict on old and new nodes.
        write: appends the new nodes to a draft and returns the output.
        opset: lowest opset that contains the new operators.
    """

    root: ir.Node
    nodes: tuple[ir.Node, ...]
    verdict: Verdict
    write: Callable[[Draft], Operand]
    opset: int = 1


Found = Rebuild | Refusal | SiteReport
"""Result of a pass for a node; its report entry if it is left unchanged for another reason."""


def read_all(
    model: Model, nodes: Iterable[ir.Node], read: Callable[[ir.Node], Found | None]
) -> Iterator[Found]:
    """Yield the results of ``read`` for all nodes, except None; its errors become refusals.

    Calls of functions of the model are skipped.
    """
    for node in nodes:
        if node.op_identifier() in model.ir.functions:
            continue
        try:
            result = read(node)
        except (OperatorError, UnsupportedError) as error:
            result = Refusal(node, str(error))
        except ValueError as error:
            result = Refusal(node, f"{where(node)}: {error}")
        if result is not None:
            yield result


def rebuild(
    model: Model, results: Iterable[Found], exact: Exactness, report: Report, *, limit: int
) -> None:
    """Commit the drafts that reach ``exact`` within opset ``limit``; report every node.

    The opset is raised once, as far as needed; that must not rewrite the nodes to replace.
    """
    settled = [_settle(each, exact, limit) for each in results]
    chosen = [each for each in settled if isinstance(each, Rebuild)]
    report.notes += raise_opset(model.ir, (each.opset for each in chosen))
    editor = Editor(model.ir)
    drafts = {each: _draft(each, editor) for each in chosen}
    for each in settled:
        if not isinstance(each, Rebuild):
            report.sites.append(each)
            continue
        spelling = drafts[each].spelling
        changed = entry(each.root, SiteStatus.CHANGED, spelling=spelling, verdict=each.verdict)
        report.sites.append(changed)
    editor.replace_all(drafts.values())
    if chosen:
        removed = {node.domain for each in chosen for node in each.nodes}
        opset.declare_domains(model.ir, removed=removed)
        opset.raise_ir_version(model.ir)


def _settle(result: Found, exact: Exactness, limit: int) -> Rebuild | SiteReport:
    if isinstance(result, SiteReport):
        return result
    if isinstance(result, Refusal):
        return refused(result.root, explained(result.reason, UNREADABLE))
    if not result.verdict.reaches(exact):
        reason = (
            f"equal only in {result.verdict.exactness}, expected {exact}: {result.verdict.reason}; "
            f"accept it with exact={result.verdict.exactness}"
        )
        return refused(result.root, NO_EQUAL_FORM(reason), verdict=result.verdict)
    if result.opset > limit:
        return refused(result.root, opset_reason("it", result.opset, limit))
    return result


def _draft(rebuild: Rebuild, editor: Editor) -> Draft:
    # Several inputs are no parameters, and new nodes read them themselves: none stands for data,
    # whose type would else be that of everything drafted.
    nowhere = ir.Value(name="")
    draft = editor.draft(Region(nowhere, rebuild.nodes[-1].outputs[0], rebuild.nodes))
    return draft.giving(rebuild.write(draft))


def no_operator(node: ir.Node, reason: str) -> Refusal:
    """Return the refusal of a node that has no form in the wanted operators."""
    return Refusal(node, NO_OPERATOR(f"{where(node)}: {reason}"))


def carry_over(old: ir.Node, new: ir.Node) -> None:
    """Copy name and metadata of a node to its replacement."""
    new.name, new.doc_string = old.name, old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)


def replace_nodes(drafts: Mapping[ir.Node, Draft], editor: Editor) -> None:
    """Commit drafts in place of nodes, all at once; the last node of each gets name and metadata.

    One by one they take longer: constants that many nodes share are visited for each.
    """
    editor.replace_all(drafts.values())
    for node, draft in drafts.items():
        carry_over(node, draft.nodes[-1])


def wrap_operand(
    node: ir.Node,
    index: int,
    write: Callable[[Draft], ir.Value],
    editor: Editor,
    report: Report,
) -> None:
    """Replace an operand of a node by what ``write`` makes of it, with equal values."""
    draft = editor.draft(Region(node.inputs[index] or ir.Value(name=""), node.outputs[0], (node,)))
    operands: list[Operand | None] = list(node.inputs)
    operands[index] = write(draft)
    draft.giving(draft.copy(node, operands))
    replace_node(node, draft, STORED, report, heirs=(node.op_type,))


def replace_node(
    node: ir.Node,
    draft: Draft,
    verdict: Verdict,
    report: Report,
    *,
    reason: str | None = None,
    heirs: Collection[str] = (),
) -> None:
    """Commit a draft in place of a node, or of several of which it is the last, and report it.

    The first new node of an operator in ``heirs`` gets the name and metadata.
    """
    heir = next((each for each in draft.nodes if each.op_type in heirs), None)
    spelling = draft.spelling
    report.sites.append(entry(node, SiteStatus.CHANGED, reason, spelling=spelling, verdict=verdict))
    draft.commit()
    if heir is not None:
        carry_over(node, heir)


def inferred_operands(
    model: Model, wanted: Callable[[ir.Node], bool]
) -> AbstractContextManager[None]:
    """Set inferred types and shapes of inputs of wanted nodes within the block.

    Nodes in functions are not treated.
    """
    nodes = nodes_of(model.ir.graph)
    values = [value for node in nodes if wanted(node) for value in node.inputs if value]
    return inferred(model.ir, values)


def lower_composites(
    model: Model, report: Report, limit: int, wanted: Callable[[ir.Node], bool] = lambda node: True
) -> None:
    """Replace wanted operators by the graphs that define them, in place, and report each."""
    editor = Editor(model.ir)

    def read(node: ir.Node) -> Rebuild | None:
        composite = composite_of(node)
        if composite is None:
            return None

        def write(draft: Draft) -> ir.Value:
            return draft.giving(composite.write(draft, node)).y

        trial = editor.draft(region_of(node))
        try:
            write(trial)
            needed = trial.opset
        finally:
            trial.discard()
        verdict = Verdict(Exactness.BITS, Method.CONGRUENCE, reason=composite.remark)
        return Rebuild(node, (node,), verdict, write, needed)

    nodes = [node for node in model.nodes() if composite_of(node) is not None and wanted(node)]
    if not nodes:
        return
    chosen = frozenset(nodes)
    with inferred_operands(model, chosen.__contains__):
        rebuild(model, read_all(model, nodes, read), Exactness.BITS, report, limit=limit)


_LINEAR = ("DequantizeLinear", "QuantizeLinear")
_ROWS = 2


def turned_weights(draft: Draft, chain: WeightChain) -> ir.Value | None:
    """Draft the weights of a chain with the last two axes exchanged, by a transposed constant.

    None if a parameter has no form with exchanged axes.
    """
    matrix = constant_expression(chain.root)
    if matrix is None or matrix.ndim < _ROWS:
        return None
    rank, value = matrix.ndim, draft.constant(_swapped(matrix), "turned")
    for node in chain.nodes:
        arrays = [constant_expression(v) for v in node.inputs[1:]]
        if any(a is not None and a.ndim > rank for a in arrays):
            return None
        is_linear = node.op_type in _LINEAR
        operands: list[Operand | None] = [value]
        for old, array in zip(node.inputs[1:], arrays, strict=True):
            is_one = array is None or array.size == 1 or (is_linear and array.ndim < _ROWS)
            if array is not None and not is_one:
                matrix = array.reshape(1, -1) if array.ndim == 1 else array
                old = draft.constant(_swapped(matrix), "turned")
            operands.append(old)
        axis = node.attributes.get_int("axis", 1) % rank
        exchanged = {rank - 1: rank - 2, rank - 2: rank - 1}.get(axis, axis)
        changes = {"axis": exchanged} if is_linear else None
        value = draft.copy(node, operands, changes)
        if len(node.outputs[0].uses()) == 1:
            carry_over(node, draft.nodes[-1])
    return value


def _swapped(array: Array) -> Array:
    return np.ascontiguousarray(np.swapaxes(array, -1, -2))
