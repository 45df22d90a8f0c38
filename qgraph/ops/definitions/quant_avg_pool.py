"""QuantAvgPool2d of QONNX: sums of codes, of which the low bits are dropped."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.ops import pieces
from qgraph.ops.composite import composite


@composite("QuantAvgPool2d", "qonnx.custom_op.general", "finn.custom_op.general", "finn")
def quant_avg_pool(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = floor(round(average * k**2) / 2**shift)``, the average over windows of ``k * k``.

    The shift leaves ``obits`` of the bits that the largest sum of codes of ``ibits`` bits has.

    Source: QONNX 1.0, by reading and running it.
    """
    get = node.attributes.get_int
    side, stride, wide, thin = (get(name, 0) for name in ("kernel", "stride", "ibits", "obits"))
    layout = node.attributes.get_string("data_layout", "NCHW")
    if min(side, stride, wide, thin) < 1 or layout not in ("NCHW", "NHWC"):
        raise ValueError(
            f"its kernel, stride, ibits, obits and data_layout are {side}, {stride}, {wide}, "
            f"{thin}, {layout!r}; expected positive numbers, and NCHW or NHWC"
        )
    largest = ((1 << wide) - 1) * side * side
    shift = max(largest.bit_length() - thin, 0)
    op, x = draft.op, pieces.operand(node, 0)
    is_last = layout == "NHWC"
    x = pieces.moved(draft, x, [0, 3, 1, 2]) if is_last else x
    window = {"kernel_shape": [side, side], "strides": [stride, stride]}
    y = draft.node("AveragePool", [x], window, dtype=pieces.FLOAT)
    total = op.Round(op.Mul(y, float(side * side)))
    codes = op.Floor(op.Mul(total, 2.0**-shift))
    if is_last and isinstance(codes, ir.Value):
        return pieces.moved(draft, codes, [0, 2, 3, 1])
    return codes
