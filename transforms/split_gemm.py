"""The pass ``split-gemm``: write Gemm as MatMul and Add."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from qgraph.exactness import Exactness, Verdict
from qgraph.graph.edit import Draft, Editor, Region
from qgraph.graph.scopes import inputs_of
from qgraph.inventory.openvino_traps import weight_chain
from qgraph.model import Model
from qgraph.reasons import NO_OPERATOR
from qgraph.reports import Report
from qgraph.transforms.base import Transform, transform
from qgraph.transforms.drafts.choice import refused
from qgraph.transforms.drafts.rebuilding import replace_node
from qgraph.transforms.separate_weights import turned_weights

_ORDER = "sums may be rounded in another order; bound the difference with 'qgraph prove --within'"


@transform("split-gemm")
class SplitGemm(Transform):
    """Write Gemm as MatMul and Add, for compilers that have no Gemm.

    1. ``Gemm(x, w, b) -> Add(MatMul(x, w), b)`` for ``alpha`` and ``beta`` 1. With ``transB``, the
       weights are transposed: constants before their quantizer, others by a Transpose.

    The exact sums do not change; their rounding may. Other factors, and ``transA``, are refused.
    """

    preserves: ClassVar[Exactness] = Exactness.DIFFERENT
    bounded: ClassVar[bool] = True

    def apply(self, model: Model, report: Report) -> None:
        """Split each Gemm, and report it."""
        editor = Editor(model.ir)
        for node in list(model.nodes("Gemm")):
            if node.domain or None in node.inputs[:2]:
                continue
            factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
            is_turned = bool(node.attributes.get_int("transA", 0))
            if factors != [1.0, 1.0] or is_turned:
                reason = f"alpha is {factors[0]:g}, beta {factors[1]:g}, or its data are transposed"
                report.sites.append(refused(node, NO_OPERATOR(f"{reason}; leave the Gemm")))
                continue
            replace_node(
                node, _split(node, editor), Verdict(), report, reason=_ORDER, heirs=("MatMul",)
            )


def _split(node: ir.Node, editor: Editor) -> Draft:
    x, w, bias = inputs_of(node, 3)
    y = node.outputs[0]
    draft = editor.draft(Region(x or y, y, (node,)))
    if node.attributes.get_int("transB", 0):
        w = _transposed(draft, w)
    product = draft.node("MatMul", [draft.x, w], dtype=y.dtype)
    return draft.giving(
        product if bias is None else draft.node("Add", [product, bias], dtype=y.dtype)
    )


def _transposed(draft: Draft, w: ir.Value | None) -> ir.Value:
    """Return weights with their axes exchanged."""
    chain = weight_chain(w)
    is_quantized = chain is not None and chain.nodes and not chain.is_turned
    turned = turned_weights(draft, chain) if chain is not None and is_quantized else None
    dtype = None if w is None else w.dtype
    return turned or draft.node("Transpose", [w], {"perm": [1, 0]}, dtype=dtype)
