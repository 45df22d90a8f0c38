"""Which kernels a runtime executes for the layers of a model, read from the graph it executes."""

from __future__ import annotations

import importlib
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qgraph.errors import ExecutionError, UnsupportedError, word
from qgraph.inventory.layers import quantized_layers
from qgraph.storage.files import save

_INTEGERS = {
    "onnxruntime": ("QLinear", "QGemm", "MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul"),
    "openvino": ("u8", "i8"),
}
_PRODUCTS = {
    "onnxruntime": frozenset(
        {
            *("Conv", "FusedConv", "NhwcFusedConv", "ConvTranspose", "Gemm", "FusedGemm", "MatMul"),
            *("FusedMatMul", "QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat"),
            *("ConvInteger", "MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits"),
        }
    ),
    "openvino": frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"}),
}


@dataclass(frozen=True)
class ExecutedKernel:
    """What computes a layer.

    Attributes:
        node: name of the layer in the model.
        op: its operator in the model.
        kernel: operator, or type of layer, in the executed graph; None if it was not found there.
        is_integer: whether it computes on codes.
    """

    node: str
    op: str
    kernel: str | None
    is_integer: bool


@dataclass(frozen=True)
class ExecutedGraph:
    """The products that a runtime executes.

    Attributes:
        runtime: name and version.
        layers: of the quantized layers of the model, in order.
        kernels: number of each kind of product in the executed graph.
        integer_nodes, float_nodes: how many of them compute on codes, and how many do not.
    """

    runtime: str
    layers: tuple[ExecutedKernel, ...]
    kernels: dict[str, int] = field(default_factory=dict)
    integer_nodes: int = 0
    float_nodes: int = 0


@dataclass(frozen=True)
class _Product:
    """A product in an executed graph: its kind, its names, and whether it computes on codes."""

    kind: str
    names: str
    is_integer: bool


def executed(model: ir.Model, runtime: str = "onnxruntime") -> ExecutedGraph:
    """Return which kernels a runtime executes at its default options for the layers of a model.

    Nothing is computed: the graph is loaded and optimized. The model is not changed.

    Args:
        model: the model.
        runtime: ``onnxruntime`` or ``openvino``.

    Raises:
        ExecutionError: the runtime refuses the model.
        UnsupportedError: the runtime is not installed.
    """
    name = word(_READERS, runtime, "runtime")
    module = _module(name)
    copy = model.clone()
    layers = list(quantized_layers(copy))
    known = [each.description for each in layers]
    for number, layer in enumerate(layers):
        for node in (layer.node, *layer.follows):
            node.name = f"{_tag(number)}{node.op_type}_{node.name or ''}"
            for value in node.outputs:
                value.name = f"{_tag(number)}{value.name or ''}"
    with tempfile.TemporaryDirectory(prefix="qgraph-") as folder:
        path = Path(folder) / "model.onnx"
        save(copy, path)
        try:
            products = _READERS[name](module, path)
        except Exception as error:  # the runtimes' exceptions have no common base
            first = (str(error).splitlines() or [""])[0]
            raise ExecutionError(f"{name} refuses the model: {first}") from error
    kernels = tuple(
        _kernel(layer.node, layer.op, _of(number, products)) for number, layer in enumerate(known)
    )
    integers = sum(each.is_integer for each in products)
    version = getattr(module, "__version__", "").split("-")[0]
    counts = dict(sorted(Counter(each.kind for each in products).items()))
    return ExecutedGraph(f"{name} {version}", kernels, counts, integers, len(products) - integers)


def _tag(number: int) -> str:
    return f"qgraph{number}layer_"


def _of(number: int, products: Sequence[_Product]) -> _Product | None:
    """Return the product of a layer: the first that has its name, on codes if there is one."""
    found = [each for each in products if _tag(number) in each.names]
    return next((each for each in found if each.is_integer), found[0] if found else None)


def _kernel(node: str, op: str, product: _Product | None) -> ExecutedKernel:
    if product is None:
        return ExecutedKernel(node, op, None, is_integer=False)
    return ExecutedKernel(node, op, product.kind, product.is_integer)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"{name} is not installed, so the graph that it executes is not known. Install it with "
            f"pip install {name}."
        ) from error


def _of_onnxruntime(module: Any, path: Path) -> list[_Product]:
    options = module.SessionOptions()
    options.log_severity_level = 4
    optimized = path.with_name("optimized.onnx")
    options.optimized_model_filepath = str(optimized)
    module.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    graph = ir.load(optimized).graph
    return [
        _Product(node.op_type, str(node.name), node.op_type.startswith(_INTEGERS["onnxruntime"]))
        for node in ir.traversal.RecursiveGraphIterator(graph)
        if node.op_type in _PRODUCTS["onnxruntime"]
    ]


def _of_openvino(module: Any, path: Path) -> list[_Product]:
    compiled = module.Core().compile_model(str(path), "CPU")
    products = []
    for node in compiled.get_runtime_model().get_ops():
        about = node.get_rt_info()
        kind, precision = (about[key].astype(str) for key in ("layerType", "runtimePrecision"))
        if kind in _PRODUCTS["openvino"]:
            names = about["originalLayersNames"].astype(str)
            # Of weights that are codes alone, the precision is that of the weights.
            data = node.input(0).get_element_type().get_type_name()
            is_integer = {precision, data} <= {*_INTEGERS["openvino"]}
            products.append(_Product(f"{kind} {precision}", names, is_integer))
    return products


_READERS: dict[str, Callable[[Any, Path], list[_Product]]] = {
    "onnxruntime": _of_onnxruntime,
    "openvino": _of_openvino,
}
