"""Which kernels a runtime executes for the layers of a model, read from the graph it executes."""

from __future__ import annotations

import importlib
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qgraph.errors import ExecutionError, UnsupportedError, word
from qgraph.inventory.layers import FoundLayer, quantized_layers
from qgraph.storage.files import save
from qgraph.targets.layer import LAYERS

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
    _mark(copy, layers)
    with tempfile.TemporaryDirectory(prefix="qgraph-") as folder:
        path = Path(folder) / "model.onnx"
        save(copy, path)
        try:
            products = _READERS[name](module, path)
        except Exception as error:  # the runtimes' exceptions have no common base
            first = (str(error).splitlines() or [""])[0]
            raise ExecutionError(f"{name} refuses the model: {first}") from error
    kernels = tuple(
        _kernel(layer.node, layer.op, product)
        for layer, product in zip(known, _assigned(len(known), products), strict=True)
    )
    integers = sum(each.is_integer for each in products)
    version = getattr(module, "__version__", "").split("-")[0]
    counts = dict(sorted(Counter(each.kind for each in products).items()))
    return ExecutedGraph(f"{name} {version}", kernels, counts, integers, len(products) - integers)


_LAYER, _BEHIND = "qgraph{}layer_", "qgraph{}behind_"
_ANY_LAYER, _ANY_NAME = re.compile(r"qgraph\d+layer_"), re.compile(r"qgraph(\d+layer|other)_")


def _mark(model: ir.Model, layers: Sequence[FoundLayer]) -> None:
    """Give each layer, what follows it, and all other products names that runtimes hand on."""
    for node in model.graph.all_nodes():
        if node.op_type in LAYERS:
            for each in _chain(node):
                _rename(each, "qgraphother_")
    for number, layer in enumerate(layers):
        for node in layer.follows:
            _rename(node, _BEHIND.format(number))
    for number, layer in enumerate(layers):
        _rename(layer.node, _LAYER.format(number))


def _chain(node: ir.Node) -> Iterator[ir.Node]:
    """Yield a product, and the operators behind it up to a branch or the next product."""
    while True:
        yield node
        uses = list(node.outputs[0].uses())
        if len(uses) != 1 or uses[0].node.op_type in LAYERS or not uses[0].node.outputs:
            return
        node = uses[0].node


def _rename(node: ir.Node, mark: str) -> None:
    node.name = mark + _MARKS.sub("", node.name or f"{node.op_type}_{node.outputs[0].name}")
    for value in node.outputs:
        value.name = mark + _MARKS.sub("", value.name) if value.name else value.name


_MARKS = re.compile(r"qgraph(\d+layer|\d+behind|other)_")


def _assigned(count: int, products: Sequence[_Product]) -> list[_Product | None]:
    """Return the product of each layer; None for those that are not found.

    A product has the name of its layer, or that of an operator behind which it computes, too. The
    products that are left belong to the layers that are left, if all of these are alike.
    """
    found: list[_Product | None] = []
    for number in range(count):
        own = [each for each in products if _LAYER.format(number) in each.names]
        own = own or [
            each
            for each in products
            if _BEHIND.format(number) in each.names and not _ANY_NAME.search(each.names)
        ]
        found.append(next((each for each in own if each.is_integer), own[0] if own else None))
    rest = [each for each in products if each not in found and not _ANY_NAME.search(each.names)]
    if len(rest) == found.count(None) and len({each.is_integer for each in rest}) == 1:
        left = iter(rest)
        found = [next(left) if each is None else each for each in found]
    return found


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
        names = about["originalLayersNames"].astype(str)
        if kind in _PRODUCTS["openvino"] or (kind == "Subgraph" and _ANY_LAYER.search(names)):
            # Of weights that are codes alone, the precision is that of the weights.
            data = node.input(0).get_element_type().get_type_name()
            is_integer = {precision, data} <= {*_INTEGERS["openvino"]}
            products.append(_Product(f"{kind} {precision}", names, is_integer))
    return products


_READERS: dict[str, Callable[[Any, Path], list[_Product]]] = {
    "onnxruntime": _of_onnxruntime,
    "openvino": _of_openvino,
}
