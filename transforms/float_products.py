"""The pass ``float-products``: make a runtime multiply data as floats."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Editor, Region
from qgraph.inventory.layers import quantized_layers
from qgraph.model import Model
from qgraph.reports import Report
from qgraph.transforms.base import Transform, option, selects, transform
from qgraph.transforms.drafts.choice import label
from qgraph.transforms.drafts.rebuilding import replace_node

_SAME = Verdict(Exactness.BITS, Method.CONSTANT)


@transform("float-products")
class FloatProducts(Transform):
    """Prevent a runtime from multiplying two operands of data as codes.

    1. ``MatMul(x, y) -> MatMul(x, Max(y, lowest))``, where quantizers compute ``x`` and ``y`` from
       data, and ``lowest`` is the lowest finite number of the type; likewise Gemm.

    The Max changes no number. Without it, OpenVINO multiplies the codes, and processors without
    VNNI cut off large sums of such products.
    """

    nodes: str = option("*", help="names of operators, such as *attention*|!*MatMul_1")

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Insert a Max before the second operand of each product, and report it."""
        editor = Editor(model.ir)
        for layer in list(quantized_layers(model.ir)):
            node, y = layer.node, layer.node.inputs[1]
            is_data = not (layer.description.x.is_constant or layer.description.w.is_constant)
            if y is None or not is_data or not selects(self.nodes, label(node)):
                continue
            dtype = y.dtype or ir.DataType.FLOAT
            lowest = np.asarray(ir.DataType(dtype).min, dtype.numpy())
            draft = editor.draft(Region(y, node.outputs[0], (node,)))
            limited = draft.node("Max", [draft.x, draft.constant(lowest, "lowest")], dtype=dtype)
            draft.giving(draft.copy(node, [node.inputs[0], limited, *node.inputs[2:]]))
            replace_node(node, draft, _SAME, report, heirs=(node.op_type,))
