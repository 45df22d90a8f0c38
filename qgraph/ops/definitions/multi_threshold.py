"""MultiThreshold of QONNX: the number of thresholds that a value reaches."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.ops import pieces
from qgraph.ops.composite import composite

_CHANNELS_OF_RANK = {2: 1, 3: 2, 4: 1}
"""Axis of the channels if the node names no layout: NC, NWC and NCHW."""


@composite("MultiThreshold", "qonnx.custom_op.general", "finn.custom_op.general", "finn")
def multi_threshold(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = out_scale * sum(x >= threshold) + out_bias``, one rounding per operation.

    Thresholds ``[C, T]`` hold for the channels of the data, or one row for all. NaN reaches none.

    Source: QONNX 1.0, by reading and running it.
    """
    x, thresholds = pieces.operand(node, 0), pieces.operand(node, 1)
    sizes, table = pieces.sizes_of(node, 0), pieces.sizes_of(node, 1)
    rank, dtype = len(sizes), pieces.dtype_of(node, 0)
    layout = node.attributes.get_string("data_layout", "")
    axis = layout.index("C") if "C" in layout else 1
    axis = axis if layout else _CHANNELS_OF_RANK.get(rank, 1)
    if len(table) != 2 or rank < 2 or (layout and len(layout) != rank):
        raise ValueError(
            f"its data has {rank} dimensions, layout {layout!r}, and its thresholds {len(table)}; "
            "expected thresholds [channels, steps] and data with an axis for each letter"
        )
    aligned = [1] * rank + [0]
    aligned[axis] = -1
    if table[1] is None:
        raise ValueError("the number of its thresholds is not known, expected a constant. Fold it")
    aligned[rank] = table[1]
    op = draft.op
    wide = draft.node("Unsqueeze", [x, pieces.LAST], dtype=dtype)
    reached = op.GreaterOrEqual(wide, pieces.reshape(draft, thresholds, aligned))
    ones = op.Cast(reached, to=pieces.FLOAT)
    count = draft.node("ReduceSum", [ones, pieces.LAST], {"keepdims": 0}, dtype=pieces.FLOAT)
    scale, bias = (
        node.attributes.get_float(name, default)
        for name, default in (("out_scale", 1.0), ("out_bias", 0.0))
    )
    return op.Add(op.Mul(count, scale), bias)
