"""Nodes of the graphs that ONNX Runtime and OpenVINO execute, and their counts.

Run as a program, this module compiles the model in a file with OpenVINO, and writes version and
kernels, or the reason for a failure, to another file: OpenVINO may hang.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qgraph.errors import runtime_message
from qgraph.records import dataclass

if TYPE_CHECKING:
    import onnx_ir as ir

INTEGER_LAYERS = frozenset(
    {
        *("ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulInteger"),
        *("MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul"),
    }
)
"""Products of integer codes in ONNX and ONNX Runtime."""

FLOAT_LAYERS = frozenset(
    {
        *("Attention", "Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "GRU"),
        *("Gemm", "GroupQueryAttention", "LSTM", "MatMul", "MatMulBnb4", "MatMulNBits"),
        *("MultiHeadAttention", "NhwcFusedConv", "RNN"),
    }
)
"""Products of floats; the weights of some are codes."""

_OPENVINO_LAYERS = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
_OPENVINO_OTHERS = frozenset({"Const", "Constant", "Input", "Output", "Parameter", "Result"})
_CODES = frozenset({"i8", "u8"})


@dataclass(frozen=True)
class RunKernel:
    """A node of an executed graph.

    Attributes:
        kind: its operator; for OpenVINO with the type that it computes in.
        names: names of the nodes of the model that it computes, as far as the runtime keeps them.
        is_product: whether it is a convolution or a matrix product.
        on_codes: whether it computes on codes of 8 bits.
    """

    kind: str
    names: str
    is_product: bool
    on_codes: bool


@dataclass(frozen=True)
class Kernels:
    """Numbers of executed nodes: by kind, and of products on integer codes and on floats."""

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
    import onnx_ir as ir

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
        for node in graph.all_nodes()
    ]


def of_openvino(compiled: Any) -> list[RunKernel]:
    """Return the nodes of a model that OpenVINO compiled."""
    kernels = []
    for node in compiled.get_runtime_model().get_ops():
        facts = node.get_rt_info()
        layer_type, precision, names = (
            str(facts[key].astype(str)) if key in facts else ""
            for key in ("layerType", "runtimePrecision", "originalLayersNames")
        )
        if layer_type in _OPENVINO_OTHERS:
            continue
        # Where only the weights are codes, the precision is that of the weights.
        types = {
            precision,
            *(each.get_element_type().get_type_name() for each in node.inputs()[:1]),
        }
        kernels.append(
            RunKernel(
                f"{layer_type} {precision}", names, layer_type in _OPENVINO_LAYERS, types <= _CODES
            )
        )
    return kernels


def main(model: Path, answer: Path) -> None:
    """Compile the model in a file, and write its kernels, or why there are none, to ``answer``."""
    runtime = importlib.import_module("openvino")
    content: dict[str, Any] = {"version": runtime.__version__, "failure": None}
    try:
        kernels = of_openvino(runtime.Core().compile_model(str(model), "CPU"))
        content["kernels"] = [dataclasses.asdict(each) for each in kernels]
    except Exception as error:  # the runtimes' exceptions have no common base class
        content["failure"] = runtime_message(error, model.parent)
    answer.write_text(json.dumps(content))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
