"""The pass ``lower-vendor-operators``: operators of vendors as graphs of standard ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.opset.versions import ceiling
from qgraph.model import Model
from qgraph.ops.composite import composite_of, region_of
from qgraph.reports import Report
from qgraph.transforms.base import Transform, opset_option, transform
from qgraph.transforms.drafts.rebuilding import Rebuild, inferred_operands, read_all, rebuild


@transform("lower-vendor-operators")
class LowerVendorOperators(Transform):
    """Write operators of ONNX Runtime, QONNX, Quark and TensorRT in standard operators.

    Each node is replaced by the graph that defines its operator: one standard operator for each
    rounding, in the order of the definition. These are MatMulBnb4 and GatherBlockQuantized of
    com.microsoft, MultiThreshold of QONNX, and others that the documentation lists. Packed weights
    stay as they are; the graph unpacks them.
    """

    opset: int | None = opset_option()

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Raise the opset once as far as needed, and replace every operator that has a graph."""
        lower_composites(model, report, ceiling(model.ir, self.opset))


def lower_composites(
    model: Model, report: Report, limit: int, wanted: Callable[[ir.Node], bool] = lambda node: True
) -> None:
    """Replace wanted operators by the graphs that define them, in place, and report each."""
    editor = Editor(model.ir)

    def read(node: ir.Node) -> Rebuild | None:
        entry = composite_of(node)
        if entry is None:
            return None

        def write(draft: Draft) -> ir.Value:
            return draft.giving(entry.write(draft, node)).y

        trial = editor.draft(region_of(node))
        try:
            write(trial)
            opset = trial.opset
        finally:
            trial.discard()
        verdict = Verdict(Exactness.BITS, Method.CONGRUENCE, reason=entry.remark)
        return Rebuild(node, (node,), verdict, write, opset)

    nodes = [node for node in model.nodes() if composite_of(node) is not None and wanted(node)]
    if not nodes:
        return
    chosen = frozenset(nodes)
    with inferred_operands(model, chosen.__contains__):
        rebuild(model, read_all(model, nodes, read), Exactness.BITS, report, limit=limit)
