"""The pass ``strip-functions``: takes back what ``make-portable`` wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.exactness import Exactness
from qgraph.model import Model
from qgraph.ops.operator import operator_of
from qgraph.report import Outcome, Report, SiteReport, operator_name
from qgraph.transforms.base import Transform, transform
from qgraph.transforms.bodies import MARK
from qgraph.transforms.make_portable import AS_DEFINED, take_back
from qgraph.transforms.versions import restore_versions


@transform("strip-functions")
class StripFunctions(Transform):
    """Remove the function bodies that make-portable gave to quantizers.

    The model is again what it was when ``make-portable`` ran: nodes name no overload any more, and
    the IR version is that of before, and the opset as well where raising it rewrote no node.
    Functions that ``make-portable`` did not write stay, known by the mark ``qgraph.make-portable``
    in their metadata, which other functions lack.

    What every pass does first is not undone: domains are imported that nodes use, and initializers
    are no inputs of the graph.
    """

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Remove the functions, free their nodes of overloads, restore the versions."""
        removed, calls = take_back(model)
        for node in model.nodes():
            name = node.name or node.outputs[0].name or ""
            entry = SiteReport(name, operator_name(node), "", Outcome.KEPT)
            if node in calls:
                report.sites.append(replace(entry, outcome=Outcome.CHANGED, verdict=AS_DEFINED))
            elif node.op_identifier() in model.ir.functions and _is_quantizer(node):
                reason = "its function is the model's own"
                report.sites.append(replace(entry, reason=reason))
        if removed and not calls:
            report.notes.append(f"functions without use removed: {len(removed)}")
        report.notes += restore_versions(model.ir, MARK)


def _is_quantizer(node: ir.Node) -> bool:
    try:
        return operator_of(node) is not None
    except OperatorError:
        return False
