"""Which kernels a runtime executes, read from the graph that it made of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

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
"""Operators of ONNX and ONNX Runtime that multiply and add integer codes."""

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
"""Operators that multiply and add floats; the weights of some are codes."""

_OPENVINO_LAYERS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
_OPENVINO_OTHERS = frozenset({"Const", "Constant", "Input", "Output", "Parameter", "Result"})
_CODES = frozenset({"i8", "u8"})


@dataclass(frozen=True)
class RunKernel:
    """A node of an executed graph.

    Attributes:
        kind: its operator; for OpenVINO with the type that it computes in.
        names: of the nodes of the model that it computes, as far as the runtime keeps them.
        is_product: whether it multiplies and adds: a convolution, a matrix product.
        on_codes: whether it computes on codes of 8 bits.
    """

    kind: str
    names: str
    is_product: bool
    on_codes: bool


@dataclass(frozen=True)
class Kernels:
    """The nodes that a runtime executes, counted.

    Attributes:
        counts: number of nodes by kind.
        integer_nodes: how many are products of integer codes: convolutions, matrix products.
        float_nodes: how many are such products of floats.
    """

    counts: Mapping[str, int]
    integer_nodes: int
    float_nodes: int

    @classmethod
    def of(cls, nodes: Iterable[RunKernel]) -> Kernels:
        """Return the counts of some nodes."""
        executed = list(nodes)
        counts = Counter(node.kind for node in executed)
        products = [node.on_codes for node in executed if node.is_product]
        return cls(dict(counts.most_common()), sum(products), len(products) - sum(products))


def of_onnxruntime(path: Path) -> list[RunKernel]:
    """Return the nodes of the optimized graph that ONNX Runtime wrote to a file."""
    return of_graph(ir.load(path).graph)


def of_graph(graph: ir.Graph) -> list[RunKernel]:
    """Return the nodes of a graph as they are written, those of branches and loops included."""
    return [
        RunKernel(
            node.op_type,
            str(node.name),
            node.op_type in INTEGER_LAYERS | FLOAT_LAYERS,
            node.op_type in INTEGER_LAYERS,
        )
        for node in ir.traversal.RecursiveGraphIterator(graph)
    ]


def of_openvino(compiled: Any) -> list[RunKernel]:
    """Return the nodes of a model that OpenVINO compiled."""
    kernels = []
    for node in compiled.get_runtime_model().get_ops():
        facts = node.get_rt_info()
        kind, precision, names = (
            str(facts[key].astype(str)) if key in facts else ""
            for key in ("layerType", "runtimePrecision", "originalLayersNames")
        )
        if kind in _OPENVINO_OTHERS:
            continue
        # Where only the weights are codes, the precision is that of the weights.
        types = {
            precision,
            *(each.get_element_type().get_type_name() for each in node.inputs()[:1]),
        }
        on_codes = types <= _CODES
        kernels.append(RunKernel(f"{kind} {precision}", names, kind in _OPENVINO_LAYERS, on_codes))
    return kernels
