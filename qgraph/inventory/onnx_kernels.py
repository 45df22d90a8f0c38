"""Read the kernels of ONNX Runtime from its optimized graph."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from qgraph.inventory.kernels import RunKernel

INTEGER_LAYERS = frozenset(
    {
        "ConvInteger",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QAttention",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
    }
)
"""Products of integer codes in ONNX and ONNX Runtime."""

FLOAT_LAYERS = frozenset(
    {
        "Attention",
        "Conv",
        "ConvTranspose",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "GRU",
        "Gemm",
        "GroupQueryAttention",
        "LSTM",
        "MatMul",
        "MatMulBnb4",
        "MatMulNBits",
        "MultiHeadAttention",
        "NhwcFusedConv",
        "RNN",
    }
)
"""Products of floats; the weights of some are codes."""


def of_onnxruntime(path: Path) -> list[RunKernel]:
    """Return the nodes of the optimized graph that ONNX Runtime wrote to a file."""
    return of_graph(ir.load(path).graph)


def of_graph(graph: ir.Graph) -> list[RunKernel]:
    """Return the nodes of a graph, including those of branches and loops."""
    return [
        RunKernel(
            node.op_type,
            str(node.name),
            node.op_type in INTEGER_LAYERS | FLOAT_LAYERS,
            node.op_type in INTEGER_LAYERS,
        )
        for node in ir.traversal.RecursiveGraphIterator(graph)
    ]
