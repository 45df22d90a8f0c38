"""Raise opset and IR version of a model for a pass, and restore them."""

from __future__ import annotations

import json
from collections.abc import Iterable

import onnx_ir as ir
from onnx import defs

from qgraph.errors import where
from qgraph.graph.opset import versions as opset
from qgraph.graph.opset.versions import changes_of
from qgraph.graph.schema import element_type
from qgraph.graph.scopes import owners


def raise_opset(model: ir.Model, needed: Iterable[int]) -> list[str]:
    """Raise the standard opset to the highest of ``needed`` if it is lower; return remarks.

    Functions have their own opset imports, which are raised too.

    Raises:
        UnsupportedError: a node cannot be rewritten for the opset.
    """
    lowest = max(needed, default=0)
    versions = [owner.opset_imports[""] for owner in owners(model) if "" in owner.opset_imports]
    if not lowest or not opset.require(model, lowest):
        return []
    return [f"opset raised from {min(versions, default=0)} to {lowest}"]


def raise_versions(model: ir.Model, lowest_opset: int, lowest_ir: int, key: str) -> list[str]:
    """Raise the opset and the IR version if they are lower; return remarks.

    The metadata of the model under ``key`` store the old IR version, and the old opset if no node
    had to be rewritten.

    Raises:
        UnsupportedError: a node cannot be rewritten for the opset.
    """
    before, ir_before = model.opset_imports.get("", 0), model.ir_version or 0
    as_they_are = _mean_the_same(model, before, lowest_opset)
    was: dict[str, int] = {}
    notes = raise_opset(model, [lowest_opset])
    if notes and as_they_are:
        was["opset"], was["raised_opset"] = before, lowest_opset
    model.ir_version = max(ir_before, lowest_ir, opset.minimum_ir_version(model))
    if model.ir_version > ir_before:
        notes.append(f"IR version raised from {ir_before} to {model.ir_version}")
        was["ir_version"] = ir_before
    if was:
        entered = json.loads(model.metadata_props.get(key, "{}"))
        model.metadata_props[key] = json.dumps(was | entered, sort_keys=True)
    return notes


def restore_versions(model: ir.Model, key: str) -> list[str]:
    """Undo :func:`raise_versions` as far as the nodes allow; return remarks."""
    text = model.metadata_props.pop(key, None)
    if text is None:
        return []
    was: dict[str, int] = json.loads(text)
    notes = []
    before, raised = was.get("opset", 0), was.get("raised_opset", 0)
    if before and model.opset_imports.get("") == raised and _mean_the_same(model, before, raised):
        for owner in owners(model):
            if "" in owner.opset_imports:
                owner.opset_imports[""] = before
        notes.append(f"opset lowered from {raised} to {before}, its original value")
    now = model.ir_version or 0
    model.ir_version = max(was.get("ir_version", now), opset.minimum_ir_version(model))
    if model.ir_version < now:
        notes.append(f"IR version lowered from {now} to {model.ir_version}, its original value")
    return notes


def lower_opset(model: ir.Model, target: int) -> list[str]:
    """Lower the standard opset to ``target`` if all nodes allow it; return remarks.

    All nodes must exist there with the same meaning, attributes and, if known, element types.
    """
    higher = [owner for owner in owners(model) if owner.opset_imports.get("", 0) > target]
    if not higher:
        return []
    now = max(owner.opset_imports[""] for owner in higher)
    for owner in higher:
        for node in ir.traversal.RecursiveGraphIterator(owner):
            reason = None if node.domain else _misfit(node, target, owner.opset_imports[""])
            if reason:
                return [f"opset {now} stays, above {target}: {where(node)}: {reason}"]
    for owner in higher:
        owner.opset_imports[""] = target
    return [f"opset lowered from {now} to {target}"]


def _misfit(node: ir.Node, target: int, now: int) -> str | None:
    """Return why a node of opset ``now`` is invalid in opset ``target``; None if it is valid."""
    if not defs.has(node.op_type, target, ""):
        return f"{node.op_type} does not exist in that opset"
    if changes_of(node, target, now):
        return f"{node.op_type} has another meaning in that opset"
    schema = defs.get_schema(node.op_type, target, "")
    for name in node.attributes:
        if name not in schema.attributes:
            return f"its attribute {name!r} does not exist in that opset"
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        return f"it has {len(node.inputs)} inputs, that opset allows {schema.max_input} at most"
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for index, value in enumerate(values):
            formal = formals[min(index, len(formals) - 1)]
            dtype = element_type(value)
            if dtype is not None and f"tensor({dtype.name.lower()})" not in formal.types:
                return f"{formal.name!r} is {dtype.name}, which is not allowed in that opset"
    return None


def _mean_the_same(model: ir.Model, lower: int, higher: int) -> bool:
    """Return whether all nodes, in all bodies, exist with one meaning in both opsets."""
    if len({owner.opset_imports.get("", 0) for owner in owners(model)} - {0}) > 1:
        return False
    nodes = (node for owner in owners(model) for node in ir.traversal.RecursiveGraphIterator(owner))
    return all(
        node.domain or (defs.has(node.op_type, lower, "") and not changes_of(node, lower, higher))
        for node in nodes
    )
