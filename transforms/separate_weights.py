"""The pass ``separate-weights``: give products that read a matrix turned a matrix of their own."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Editor, Operand, Region
from qgraph.inventory.weight_chains import turned_products, weight_chain
from qgraph.model import Model
from qgraph.reasons import NO_EQUAL_FORM
from qgraph.reports import Report
from qgraph.transforms.base import Transform, transform
from qgraph.transforms.drafts.choice import refused
from qgraph.transforms.drafts.rebuilding import replace_node
from qgraph.transforms.weights.turned_weights import turned_weights

_SAME = Verdict(Exactness.BITS, Method.CONSTANT)
_UNKNOWN = NO_EQUAL_FORM(
    "its weights are shared with a product that reads them transposed, and a parameter of their "
    "quantizer has no transposed form"
)


@transform("separate-weights")
class SeparateWeights(Transform):
    """Store square weights twice if products share them in both orientations.

    1. ``MatMul(x, w), Gemm(y, w, transB=1) -> MatMul(x, Transpose(v)), Gemm(y, w, transB=1)``,
       where ``v`` is a new constant with the transposed numbers of ``w``; likewise for weights that
       quantizers compute from ``w``, and for Einsum.

    No number changes. Without it, OpenVINO computes both products with the same orientation.
    """

    preserves: ClassVar[Exactness] = Exactness.BITS

    def apply(self, model: Model, report: Report) -> None:
        """Give each product that reads such weights as they are new ones, and report it."""
        editor = Editor(model.ir)
        for node in [each for plain, _ in turned_products(model.nodes()) for each in plain]:
            weights, y = node.inputs[1], node.outputs[0]
            chain = weight_chain(weights)
            draft = editor.draft(Region(ir.Value(name=""), y, (node,)))
            turned = None if chain is None else turned_weights(draft, chain)
            if turned is None or chain is None:
                draft.discard()
                report.sites.append(refused(node, _UNKNOWN))
                continue
            dtype = None if weights is None else weights.dtype
            operands: list[Operand | None] = list(node.inputs)
            operands[1] = turned
            if not chain.is_turned:
                operands[1] = draft.node("Transpose", [turned], {"perm": chain.swap}, dtype=dtype)
            draft.giving(draft.copy(node, operands))
            replace_node(node, draft, _SAME, report, heirs=(node.op_type,))
