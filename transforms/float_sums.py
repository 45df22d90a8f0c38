"""The pass ``float-sums``: make a runtime add rows of codes as floats."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Editor, Region
from qgraph.graph.scopes import input_of
from qgraph.inventory.openvino_traps import row_sums_of
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.ops.steps import code_type
from qgraph.reports import Report
from qgraph.transforms.base import Transform, transform
from qgraph.transforms.drafts.rebuilding import replace_node

_SAME = Verdict(Exactness.BITS, Method.CONSTANT)


@transform("float-sums")
class FloatSums(Transform):
    """Prevent a runtime from adding codes over the middle one of three axes.

    1. ``ReduceMean(x) -> ReduceMean(Max(x, lowest))``, where ``x`` are decoded codes, and
       ``lowest`` is the lowest number of their type; likewise ReduceSum and GlobalAveragePool.

    The Max changes no number. Without it, OpenVINO adds the codes, and all results except those of
    the first matrix are wrong.
    """

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Insert a Max before each sum over rows, and report it."""
        editor = Editor(model.ir)
        for each in row_sums_of(model.ir):
            node, x, lowest = each.node, each.node.inputs[0], _lowest(each.decoder)
            if x is None or lowest is None:
                continue
            draft = editor.draft(Region(x, node.outputs[0], (node,)))
            limited = draft.node("Max", [draft.x, draft.constant(lowest, "lowest")], dtype=x.dtype)
            operands = [limited, *node.inputs[1:]]
            draft.giving(draft.copy(node, operands))
            replace_node(node, draft, _SAME, report, heirs=(node.op_type,))


def _lowest(decoder: ir.Node) -> Array | None:
    """Return the lowest result of a DequantizeLinear; None if it has several scales."""
    codes = code_type(decoder)
    scale = constant_expression(decoder.inputs[1])
    if codes is None or scale is None or scale.size != 1 or not codes.is_integer():
        return None
    stated = input_of(decoder, 2)
    point = np.zeros(1, np.int64) if stated is None else constant_expression(stated)
    if point is None:
        return None
    ends = np.array([codes.min, codes.max], np.int64) - point.astype(np.int64).reshape(())
    return np.asarray((ends.astype(scale.dtype) * scale.reshape(())).min())
