"""Compute QuantizeLinear of constants whose codes are used directly."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.errors import QGraphError
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_stream
from qgraph.graph.edit import Editor
from qgraph.graph.scopes import remove_constant, remove_unused
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.ops.dispatch import evaluate
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.quantizers.sites import site_of
from qgraph.reports import Report, SiteStatus
from qgraph.transforms.drafts.choice import entry

_STORED = Verdict(Exactness.BITS, Method.CONSTANT, reason="its codes are stored")


def fold_constant_codes(model: Model, report: Report) -> None:
    """Store the codes of a QuantizeLinear of a constant, if no DequantizeLinear decodes them.

    Args:
        model: is changed.
        report: gets an entry for each node that is replaced by its codes.
    """
    editor = Editor(model.ir)
    for node in list(model.nodes("QuantizeLinear")):
        x, y = node.inputs[0], node.outputs[0]
        weight = constant_stream(x)
        is_lone = weight is not None and isinstance(site_of(node), Refusal)
        if x is None or weight is None or not is_lone or y.is_graph_output():
            continue
        try:
            codes = evaluate((node,), x, y, weight.array())
        except QGraphError:
            continue
        report.sites.append(entry(node, SiteStatus.CHANGED, verdict=_STORED))
        store(editor, y, codes)


def store(editor: Editor, y: ir.Value, array: Array) -> None:
    """Replace the result of a node by a constant, and remove nodes without users."""
    node, constant = y.producer(), ir.val("codes", const_value=ir.Tensor(array))
    if node is None:
        return
    y.replace_all_uses_with(editor.place(constant, node, node.graph, y.name or "quantized"))
    for unused in remove_unused([node]):
        remove_constant(unused)
