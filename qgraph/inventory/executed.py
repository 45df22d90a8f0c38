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
from qgraph.inventory.kernels import RunKernel, of_onnxruntime, of_openvino
from qgraph.inventory.layers import FoundLayer, quantized_layers
from qgraph.storage.files import save
from qgraph.targets.layer import LAYERS


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
            nodes = _READERS[name](module, path)
        except Exception as error:  # the runtimes' exceptions have no common base
            first = (str(error).splitlines() or [""])[0]
            raise ExecutionError(f"{name} refuses the model: {first}") from error
    # OpenVINO computes some products in a subgraph of its own.
    products = [
        each
        for each in nodes
        if each.is_product or (each.kind.startswith("Subgraph") and _ANY_LAYER.search(each.names))
    ]
    kernels = tuple(
        _kernel(layer.node, layer.op, product)
        for layer, product in zip(known, _assigned(len(known), products), strict=True)
    )
    integers = sum(each.on_codes for each in products)
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


def _assigned(count: int, products: Sequence[RunKernel]) -> list[RunKernel | None]:
    """Return the product of each layer; None for those that are not found.

    A product has the name of its layer, or that of an operator behind which it computes, too. The
    products that are left belong to the layers that are left, if all of these are alike.
    """
    kernels: list[RunKernel | None] = []
    for number in range(count):
        own = [each for each in products if _LAYER.format(number) in each.names]
        own = own or [
            each
            for each in products
            if _BEHIND.format(number) in each.names and not _ANY_NAME.search(each.names)
        ]
        kernels.append(next((each for each in own if each.on_codes), own[0] if own else None))
    rest = [each for each in products if each not in kernels and not _ANY_NAME.search(each.names)]
    if len(rest) == kernels.count(None) and len({each.on_codes for each in rest}) == 1:
        left = iter(rest)
        kernels = [next(left) if each is None else each for each in kernels]
    return kernels


def _kernel(node: str, op: str, product: RunKernel | None) -> ExecutedKernel:
    if product is None:
        return ExecutedKernel(node, op, None, is_integer=False)
    return ExecutedKernel(node, op, product.kind, product.on_codes)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"{name} is not installed, so the graph that it executes is not known. Install it with "
            f"pip install {name}."
        ) from error


def _of_onnxruntime(module: Any, path: Path) -> list[RunKernel]:
    options = module.SessionOptions()
    options.log_severity_level = 4
    # The graph is the same, and no copy of the weights is made for kernels that never run.
    options.add_session_config_entry("session.disable_prepacking", "1")
    optimized = path.with_name("optimized.onnx")
    options.optimized_model_filepath = str(optimized)
    module.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return of_onnxruntime(optimized)


def _of_openvino(module: Any, path: Path) -> list[RunKernel]:
    return of_openvino(module.Core().compile_model(str(path), "CPU"))


_READERS: dict[str, Callable[[Any, Path], list[RunKernel]]] = {
    "onnxruntime": _of_onnxruntime,
    "openvino": _of_openvino,
}
