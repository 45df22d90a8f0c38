"""Lowering the opset of a model where all nodes exist, and mean the same, in the lower one."""

from __future__ import annotations

import onnx_ir as ir
from onnx import defs

from qgraph.errors import where
from qgraph.opset_adapt import changes
from qgraph.scopes import bodies, owners


def lower_opset(model: ir.Model, version: int) -> list[str]:
    """Lower the standard opset to ``version`` if every node allows it; return a remark."""
    before = model.opset_imports.get("", 0)
    for body in bodies(model):
        for node in body:
            obstacle = None if node.domain else _obstacle(node, version, before)
            if obstacle:
                return [f"opset {before} stays, above {version}: {where(node)}: {obstacle}"]
    for owner in owners(model):
        if owner.opset_imports.get("", 0) > version:
            owner.opset_imports[""] = version
    return [f"opset lowered from {before} to {version}"]


def _obstacle(node: ir.Node, version: int, before: int) -> str | None:
    """Return why a node is no node of an older opset, or None."""
    try:
        schema = defs.get_schema(node.op_type, version, "")
    except defs.SchemaError:
        return f"{node.op_type} does not exist there"
    if changes(node.op_type, version, before):
        return f"{node.op_type} means something else there"
    foreign = set(node.attributes) - set(schema.attributes)
    if foreign:
        return f"its attribute {min(foreign)!r} does not exist there"
    if len(node.inputs) > schema.max_input:
        return f"it has {len(node.inputs)} inputs, more than there"
    for place, value in enumerate(node.inputs):
        if value is None or value.dtype is None:
            continue
        formal = schema.inputs[min(place, len(schema.inputs) - 1)]
        if f"tensor({value.dtype.name.lower()})" not in formal.types:
            return f"its input {formal.name!r} is {value.dtype.name}, which it does not take there"
    return None
