"""Which kernels a runtime executes, read from the graph that it made of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
_OPENVINO_INTEGERS = frozenset({"i8", "u8"})
_OPENVINO_OTHERS = frozenset({"Const", "Constant", "Input", "Output", "Parameter", "Result"})


@dataclass(frozen=True)
class Kernels:
    """The nodes that a runtime executes.

    Attributes:
        counts: number of nodes by name of the kernel.
        integer_nodes: how many are products of integer codes: convolutions, matrix products.
        float_nodes: how many are such products of floats.
        layers: the name of the kernel by the name of the node of the model, for such products,
            where the runtime keeps names.
    """

    counts: Mapping[str, int]
    integer_nodes: int
    float_nodes: int
    layers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Executed:
    kernel: str
    is_integer: bool
    is_float: bool
    names: tuple[str, ...] = ()


def of_onnxruntime(path: Path) -> Kernels:
    """Return the kernels of the optimized graph that ONNX Runtime wrote to a file."""
    import onnx

    return _counted(_nodes_of(onnx.load(path, load_external_data=False).graph))


def _nodes_of(graph: Any) -> Iterator[_Executed]:
    for node in graph.node:
        name = node.op_type
        yield _Executed(name, name in INTEGER_LAYERS, name in FLOAT_LAYERS, (node.name,))
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _nodes_of(inner)


def of_openvino(compiled: Any) -> Kernels:
    """Return the kernels of a model that OpenVINO compiled; the names end with their type."""
    return _counted(_primitives(compiled.get_runtime_model()))


def _primitives(model: Any) -> Iterator[_Executed]:
    for node in model.get_ops():
        facts = node.get_rt_info()
        kind, dtype = (_fact(facts, name) for name in ("layerType", "runtimePrecision"))
        if kind in _OPENVINO_OTHERS:
            continue
        is_layer, is_integer = kind in _OPENVINO_LAYERS, dtype in _OPENVINO_INTEGERS
        names = tuple(_fact(facts, "originalLayersNames").split(","))
        kernel = f"{kind} {dtype}"
        yield _Executed(kernel, is_layer and is_integer, is_layer and not is_integer, names)


def _fact(facts: Any, name: str) -> str:
    return str(facts[name].astype(str)) if name in facts else ""


def _counted(nodes: Iterable[_Executed]) -> Kernels:
    executed = list(nodes)
    counts = Counter(node.kernel for node in executed)
    layers = {
        name: node.kernel
        for node in executed
        if node.is_integer or node.is_float
        for name in node.names
    }
    return Kernels(
        dict(counts.most_common()),
        sum(node.is_integer for node in executed),
        sum(node.is_float for node in executed),
        layers,
    )
