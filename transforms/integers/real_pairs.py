"""Sums and products of two decoded tensors, read as QLinearAdd and QLinearMul."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.foreign.kernels import MICROSOFT
from qgraph.foreign.rescaling import compare_pairs
from qgraph.graph.edit import Draft
from qgraph.graph.edit import Operand as Drafted
from qgraph.transforms.integers.code_pairs import Pair
from qgraph.transforms.integers.real_products import decoder, only, parameters, result
from qgraph.transforms.rebuilding import Rebuild


def raise_pair(encode: ir.Node) -> Rebuild | None:
    """Return how to write an Add or Mul before a QuantizeLinear; None if there is none.

    Every pair of codes is tried out.

    Raises:
        OperatorError: its codes or scales are not those of the operators of com.microsoft.
    """
    total = only(encode.inputs[0], encode)
    if total is None or total.op_type not in ("Add", "Mul"):
        return None
    left, right = (decoder(value) for value in total.inputs)
    if left is None or right is None:
        return None
    a, b = left.inputs[0], right.inputs[0]
    if a is None or b is None:
        return None
    (s_a, z_a), (s_b, z_b), (s_y, z_y) = parameters(left), parameters(right), result(encode)
    if s_a.size > 1 or s_b.size > 1 or len({z.dtype for z in (z_a, z_b, z_y)}) > 1:
        raise OperatorError(
            f"{where(total)}: its scales differ along an axis or its codes are of several types, "
            f"expected one of each for QLinear{total.op_type}"
        )
    name = f"QLinear{total.op_type}"
    pair = Pair(ir.node(name, [], domain=MICROSOFT), a, b, (s_a, s_b, s_y), (z_a, z_b, z_y))
    verdict = compare_pairs(pair.table(), pair.table_of_reals())

    def write(draft: Draft) -> ir.Value:
        operands: list[Drafted] = [a, s_a, z_a, b, s_b, z_b, s_y, z_y]
        return draft.node(name, operands, domain=MICROSOFT, dtype=encode.outputs[0].dtype)

    return Rebuild(total, (total, encode), verdict, write, 10)
