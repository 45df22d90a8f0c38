"""DequantizeLinear nodes with which ONNX Runtime refuses a model of opset 21 or later.

ONNX Runtime copies a quantizer over operators that only move values: Reshape(DQ(q)) becomes
DQ(Q(Reshape(DQ(q)))), for a scalar scale and zero point. From opset 21 on the copy states the type
of its codes. On processors where INT8 codes are counted as UINT8 afterwards, zero points get the
new type and the stated type stays INT8: "output_dtype INT8 does not match y_zero_point type UINT8"
(versions 1.31 and 1.32). A DequantizeLinear without a zero point is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from qgraph.graph.constants import constant, constant_tensor
from qgraph.graph.scopes import bodies

SINCE = 21
"""Opset since which QuantizeLinear states the type of its codes."""

REASON = (
    "ONNX Runtime refuses signed codes with a zero point at opset 21 or later where an operator "
    "that moves values follows; store the model at a lower opset, or keep unsigned codes"
)

_MOVING = frozenset(
    {"Dropout", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)


def refused_decoders(model: ir.Model) -> list[ir.Node]:
    """Return the nodes with a zero point for which ONNX Runtime refuses opset 21."""
    return [
        node
        for body in bodies(model)
        for node in body
        if node.op_type == "DequantizeLinear"
        and not node.domain
        and _has_signed_point(node)
        and is_copied_over(node.outputs[0])
    ]


def is_copied_over(value: ir.Value) -> bool:
    """Return whether ONNX Runtime copies the quantizer of ``value`` over an operator.

    MatMul counts where an Add follows: both become a Gemm between two Reshapes.
    """
    return any(
        use.idx == 0
        and not use.node.domain
        and (use.node.op_type in _MOVING or _becomes_gemm(use.node))
        for use in value.uses()
    )


def is_symmetric(node: ir.Node) -> bool:
    """Return whether the zero point of a DequantizeLinear is zero, so that it can be left out."""
    point = constant(node.inputs[2])
    return point is not None and not point.any()


def leave_out_zero_points(nodes: Iterable[ir.Node]) -> None:
    """Remove the zero points of DequantizeLinear nodes where they are zero."""
    for node in nodes:
        if not is_symmetric(node):
            continue
        point, graph = node.inputs[2], node.graph
        node.resize_inputs(2)
        if (
            point is not None
            and isinstance(graph, ir.Graph)
            and not (point.uses() or point.is_graph_input() or point.is_graph_output())
            and graph.initializers.get(point.name or "") is point
        ):
            del graph.initializers[point.name or ""]


def _has_signed_point(node: ir.Node) -> bool:
    point = constant_tensor(node.inputs[2]) if len(node.inputs) > 2 else None
    return point is not None and point.dtype is ir.DataType.INT8 and point.size == 1


def _becomes_gemm(node: ir.Node) -> bool:
    return node.op_type == "MatMul" and any(
        use.node.op_type == "Add" and not use.node.domain for use in node.outputs[0].uses()
    )
