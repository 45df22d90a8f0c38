"""The pass ``separate-weights``: give products that read a matrix turned a matrix of their own."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.inventory.openvino_traps import WeightChain, turned_products, weight_chain
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.reasons import NO_EQUAL_FORM
from qgraph.reports import Report
from qgraph.transforms.base import Transform, transform
from qgraph.transforms.drafts.choice import refused
from qgraph.transforms.drafts.rebuilding import carry_over, replace_node

_SAME = Verdict(Exactness.BITS, Method.CONSTANT)
_UNKNOWN = NO_EQUAL_FORM(
    "its weights are shared with a product that reads them transposed, and a parameter of their "
    "quantizer has no transposed form; export weights of its own for one of the products"
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


_LINEAR = ("DequantizeLinear", "QuantizeLinear")
_ROWS = 2


def turned_weights(draft: Draft, chain: WeightChain) -> ir.Value | None:
    """Draft the weights of a chain with the last two axes exchanged, by a transposed constant.

    None if a parameter has no form with exchanged axes.
    """
    matrix = constant_expression(chain.root)
    if matrix is None or matrix.ndim < _ROWS:
        return None
    rank, value = matrix.ndim, draft.constant(_swapped(matrix), "turned")
    for node in chain.nodes:
        arrays = [constant_expression(v) for v in node.inputs[1:]]
        if any(a is not None and a.ndim > rank for a in arrays):
            return None
        is_linear = node.op_type in _LINEAR
        operands: list[Operand | None] = [value]
        for old, array in zip(node.inputs[1:], arrays, strict=True):
            is_one = array is None or array.size == 1 or (is_linear and array.ndim < _ROWS)
            if array is not None and not is_one:
                matrix = array.reshape(1, -1) if array.ndim == 1 else array
                old = draft.constant(_swapped(matrix), "turned")
            operands.append(old)
        axis = node.attributes.get_int("axis", 1) % rank
        exchanged = {rank - 1: rank - 2, rank - 2: rank - 1}.get(axis, axis)
        changes = {"axis": exchanged} if is_linear else None
        value = draft.copy(node, operands, changes)
        if len(node.outputs[0].uses()) == 1:
            carry_over(node, draft.nodes[-1])
    return value


def _swapped(array: Array) -> Array:
    return np.ascontiguousarray(np.swapaxes(array, -1, -2))
