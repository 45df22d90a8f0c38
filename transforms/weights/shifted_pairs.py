"""Pairs of QuantizeLinear and DequantizeLinear with shifted codes."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.scopes import input_of
from qgraph.model import Model
from qgraph.numerics.formats import FORMATS, IntFormat, numpy_dtype
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import DIALECTS, Site
from qgraph.reports import Report
from qgraph.transforms.drafts.choice import choose, settle

WHY_UNSIGNED = (
    "at opset 21 or later, ONNX Runtime refuses signed codes if an operator that moves values "
    "follows"
)


def keep_unsigned(model: Model, decoders: Collection[ir.Node], report: Report) -> None:
    """Change pairs with signed codes to unsigned codes with the same values.

    Args:
        model: its pairs are changed.
        decoders: the DequantizeLinear nodes in which they end.
        report: gets a note of how many were changed.
    """
    if not decoders:
        return
    editor = Editor(model.ir)
    qdq = DIALECTS.find("qdq")
    offers = [
        (site, [draft])
        for site in map(qdq.read, decoders)
        if isinstance(site, Site) and (draft := shifted(site, editor, "UINT8"))
    ]
    limit = model.ir.opset_imports.get("", 0)
    choices = choose(offers, Exactness.BITS, limit, Comparer(model.ir))
    changed = [choice for choice in choices if choice.draft is not None]
    settle(model, changed, editor, Report())
    if changed:
        report.notes.append(
            f"signed codes with a zero point became unsigned in {len(changed)} "
            f"{'place' if len(changed) == 1 else 'places'}, with the same values: {WHY_UNSIGNED}"
        )


def shifted(site: Site, editor: Editor, type_name: str) -> Draft | None:
    """Return the pair of ``site`` with codes of type ``type_name`` of the same width.

    The zero point is added after rounding, so that codes, zero points and bounds move alike. None
    for anything but a pair of the other signedness whose codes nothing else uses.
    """
    first, last = site.nodes[0], site.nodes[-1]
    others = {node.op_type for node in site.nodes[1:-1]}
    if first.op_type != "QuantizeLinear" or last.op_type != "DequantizeLinear" or others - {"Clip"}:
        return None
    values = [node.outputs[0] for node in site.nodes[:-1]]
    if any(len(value.uses()) != 1 or value.is_graph_output() for value in values):
        return None
    now, form = _kind(first), FORMATS[type_name]
    if not isinstance(now, IntFormat) or not isinstance(form, IntFormat):
        return None
    if now.bits != form.bits or now.signed == form.signed:
        return None
    step = int(form.lo - now.lo)
    draft = editor.draft(site)
    value: ir.Value = draft.x
    for node in site.nodes:
        if node.op_type == "Clip":
            bounds = [_moved(draft, bound, step, type_name, "bound") for bound in node.inputs[1:]]
            value = draft.node("Clip", [value, *bounds], dtype=ir.DataType[type_name])
            continue
        scale = node.inputs[1]
        point = input_of(node, 2)
        if scale is None or (point is None and scale.shape is None):
            return None
        moved = _moved(draft, point, step, type_name, "zero_point")
        if moved is None:
            shape = [int(size) for size in scale.shape or () if isinstance(size, int)]
            moved = draft.constant(np.full(shape, step, numpy_dtype(type_name)), "zero_point")
        attributes = {
            name: attribute.value
            for name, attribute in node.attributes.items()
            if name != "output_dtype" or node is last
        }
        value = draft.node(
            node.op_type,
            [value, scale, moved],
            attributes,
            domain=node.domain,
            dtype=ir.DataType[type_name] if node is first else node.outputs[0].dtype,
        )
    draft.needs(QDQ_SINCE[type_name])
    return draft.giving(value)


def _kind(node: ir.Node) -> object:
    """Return the format of the codes of a QuantizeLinear, or None."""
    point = input_of(node, 2)
    if point is not None:
        return FORMATS.get(point.dtype.name) if point.dtype is not None else None
    dtype = node.attributes.get_int("output_dtype", 0)
    return FORMATS.get(ir.DataType(dtype).name if dtype else "UINT8")


def _moved(
    draft: Draft, value: ir.Value | None, step: int, type_name: str, name: str
) -> ir.Value | None:
    array = constant_expression(value)
    if array is None:
        return None
    whole = array.astype(np.int32) + np.int32(step)
    return draft.constant(whole.astype(numpy_dtype(type_name)), name)
