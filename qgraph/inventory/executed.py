"""Read the kernels of the layers of a model from the graph that a runtime executes.

Also whether a runtime, on this processor, adds products of 8 bits with saturation: x86-64
processors without VNNI add two neighbouring products of data and weights in 16 bits. Where both
weights are near 127, the sum exceeds 32767 and is cut off.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from qgraph.effort import LOADING_SECONDS, seconds_left
from qgraph.errors import (
    ExecutionError,
    QGraphError,
    UnsupportedError,
    runtime_message,
    where,
    word,
)
from qgraph.graph.scopes import graphs_of
from qgraph.inventory.kernels import RunKernel, of_onnxruntime
from qgraph.inventory.layers import FoundLayer, quantized_layers
from qgraph.numerics import Float32
from qgraph.records import dataclass, field
from qgraph.storage.files import save, to_proto, weight_bytes
from qgraph.targets.layer import LAYERS

_SMALL = 1 << 20
"""Weights of fewer bytes are not written to a file of their own."""


@dataclass(frozen=True)
class ExecutedKernel:
    """The executed kernel of a layer, which is given by name and operator in the model.

    The kernel is an operator, or type of layer, of the executed graph; None if it was not found. It
    computes on codes if it ``is_integer``.
    """

    node: str
    op: str
    kernel: str | None
    is_integer: bool


@dataclass(frozen=True)
class ExecutedGraph:
    """The products that a runtime, given by name and version, executes.

    Attributes:
        layers: kernels of the quantized layers of the model, in order.
        kernels: number of each kind of product in the executed graph.
        integer_nodes, float_nodes: numbers of products on codes, and of others.
    """

    runtime: str
    layers: tuple[ExecutedKernel, ...]
    kernels: dict[str, int] = field(default_factory=dict)
    integer_nodes: int = 0
    float_nodes: int = 0


def executed(model: ir.Model, runtime: str = "onnxruntime") -> ExecutedGraph:
    """Return the kernels that a runtime executes at its default options for a model's layers.

    The graph is loaded and optimized in ``onnxruntime`` or ``openvino``, but not run. The model is
    not changed.

    Raises:
        ExecutionError: the runtime refuses the model.
        QGraphError: the runtime does not return.
        UnsupportedError: the runtime is not installed.
    """
    name = word(_READERS, runtime, "runtime")
    if importlib.util.find_spec(name) is None:
        raise UnsupportedError(
            f"{name} is not installed, so the graph that it executes is not known. Install it with "
            f"pip install {name}."
        )
    copy = model.clone()
    layers = list(quantized_layers(copy))
    descriptions = [each.description for each in layers]
    _mark(copy, layers)
    with tempfile.TemporaryDirectory(prefix="qgraph-") as folder:
        path = Path(folder) / "model.onnx"
        if weight_bytes(copy) < _SMALL:
            path.write_bytes(to_proto(copy).SerializeToString())
        else:
            save(copy, path, external_data=True)  # the runtime maps them
        try:
            version, nodes = _READERS[name](path)
        except subprocess.TimeoutExpired as error:
            raise QGraphError(
                f"{_deepest(model.graph)}: {name} has not loaded it within {error.timeout:.3g} s, "
                "expected the graph that it executes. Write it with fewer If, Loop and Scan inside "
                "one another, or choose another target."
            ) from error
        except Exception as error:  # the runtimes' exceptions have no common base
            raise ExecutionError(
                f"{name} refuses the model: {runtime_message(error, path.parent)}"
            ) from error
    # OpenVINO computes some products in a subgraph of its own.
    products = [
        each
        for each in nodes
        if each.is_product or (each.kind.startswith("Subgraph") and _OWN_NAME.search(each.names))
    ]
    kernels = tuple(
        ExecutedKernel(
            layer.node, layer.op, *((each.kind, each.on_codes) if each else (None, False))
        )
        for layer, each in zip(descriptions, _assigned(len(descriptions), products), strict=True)
    )
    integers = sum(each.on_codes for each in products)
    counts = dict(sorted(Counter(each.kind for each in products).items()))
    return ExecutedGraph(f"{name} {version}", kernels, counts, integers, len(products) - integers)


_LAYER, _BEHIND = "qgraph{}layer_", "qgraph{}behind_"
_OWN_NAME, _BEHIND_NAME = re.compile(r"qgraph(\d+)layer_"), re.compile(r"qgraph(\d+)behind_")
_ANY_NAME = re.compile(r"qgraph(\d+layer|other)_")


def _mark(model: ir.Model, layers: Sequence[FoundLayer]) -> None:
    """Name layers, their following nodes, and other products, so that runtimes keep the names."""
    for node in model.graph.all_nodes():
        if node.op_type in LAYERS:
            for each in _chain(node):
                _rename(each, "qgraphother_")
    for number, layer in enumerate(layers):
        for node in (*_chain(layer.node), *layer.follows):
            _rename(node, _BEHIND.format(number))
    for number, layer in enumerate(layers):
        _rename(layer.node, _LAYER.format(number))


def _chain(node: ir.Node) -> Iterator[ir.Node]:
    """Yield a product, and the operators after it up to a branch or the next product."""
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
    """Return the executed product of each layer; None if it is not found.

    A product has the name of its layer, or of a following operator that it also computes. Remaining
    products are assigned to remaining layers if all of these layers are alike.
    """
    named = _by_number(_OWN_NAME, products)
    behind = _by_number(
        _BEHIND_NAME, [each for each in products if not _ANY_NAME.search(each.names)]
    )
    kernels: list[RunKernel | None] = []
    for number in range(count):
        own = named.get(number) or behind.get(number, [])
        kernels.append(next((each for each in own if each.on_codes), own[0] if own else None))
    taken = set(kernels)
    rest = [each for each in products if each not in taken and not _ANY_NAME.search(each.names)]
    if len(rest) == kernels.count(None) and len({each.on_codes for each in rest}) == 1:
        left = iter(rest)
        kernels = [next(left) if each is None else each for each in kernels]
    return kernels


def _by_number(name: re.Pattern[str], products: Iterable[RunKernel]) -> dict[int, list[RunKernel]]:
    """Return products by the numbers of layers in their names."""
    found: dict[int, list[RunKernel]] = {}
    for each in products:
        for number in dict.fromkeys(name.findall(each.names)):
            found.setdefault(int(number), []).append(each)
    return found


def _deepest(graph: ir.Graph) -> str:
    """Return the name of the node with the deepest nesting of graphs, for a message."""
    depth, node = max(((_depth(each), each) for each in graph), key=lambda pair: pair[0])
    return f"{where(node)}, graphs {depth} deep" if depth else f"graph {graph.name!r}"


def _depth(node: ir.Node) -> int:
    return max((1 + max(map(_depth, graph), default=0) for graph in graphs_of(node)), default=0)


_DATA_FILE = "session.optimized_model_external_initializers_file_name"


def _of_onnxruntime(path: Path) -> tuple[str, list[RunKernel]]:
    module = importlib.import_module("onnxruntime")
    options = module.SessionOptions()
    options.log_severity_level = 4
    # The graph is the same, and no copy of the weights is made for kernels that never run.
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry(_DATA_FILE, "optimized.data")
    optimized = path.with_name("optimized.onnx")
    options.optimized_model_filepath = str(optimized)
    module.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return module.__version__, of_onnxruntime(optimized)


def _of_openvino(path: Path) -> tuple[str, list[RunKernel]]:
    answer = path.with_name("kernels.json")
    # A file in the current folder must not shadow a module.
    command = [sys.executable, "-P", "-m", "qgraph.inventory.kernels"]
    limit = seconds_left(LOADING_SECONDS)
    paths = [str(path), str(answer)]
    done = subprocess.run([*command, *paths], capture_output=True, timeout=limit, check=False)
    if not answer.exists():
        raise ExecutionError(f"its process ended with status {done.returncode}")
    content = json.loads(answer.read_text())
    if content["failure"] is not None:
        raise ExecutionError(content["failure"])
    kernels = [RunKernel(**each) for each in content["kernels"]]
    return content["version"].split("-")[0], kernels


_READERS: dict[str, Callable[[Path], tuple[str, list[RunKernel]]]] = {
    "onnxruntime": _of_onnxruntime,
    "openvino": _of_openvino,
}


_COUNT = 64
_PROBE = f"""<ir_version: 8, opset_import: ["": 13]>
probe (float[1,{_COUNT}] x) => (float[1,1] y)
<float s = {{1}}, uint8 z = {{0}}, int8 o = {{0}},
 int8[{_COUNT},1] w = {{{", ".join(["127"] * _COUNT)}}}> {{
    c = QuantizeLinear (x, s, z)
    a = DequantizeLinear (c, s, z)
    b = DequantizeLinear (w, s, o)
    y = MatMul (a, b)
}}"""


@functools.cache
def saturates(runtime: str) -> bool | None:
    """Return whether a runtime cuts off sums of products of codes to 16 bits on this processor.

    A product of known codes is computed by ``onnxruntime`` or ``openvino`` at the default options.
    None if the runtime is not installed, or does not compute the product.
    """
    if runtime not in _RUN or importlib.util.find_spec(runtime) is None:
        return None
    model = ir.to_proto(ir.from_onnx_text(_PROBE)).SerializeToString()
    try:
        result = _RUN[runtime](model, {"x": np.full((1, _COUNT), 255, np.float32)})
    except Exception:  # the runtimes' exceptions have no common base class
        return None
    return bool(result.item() < _COUNT * 255 * 127)


def _in_onnxruntime(model: bytes, feeds: Mapping[str, Float32]) -> Float32:
    module = importlib.import_module("onnxruntime")
    options = module.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = module.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(feeds))[0], np.float32)


def _in_openvino(model: bytes, feeds: Mapping[str, Float32]) -> Float32:
    core = importlib.import_module("openvino").Core()
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(model, b""), "CPU", options)
    return np.asarray(compiled(dict(feeds))[0], np.float32)


_RUN: dict[str, Callable[[bytes, Mapping[str, Float32]], Float32]] = {
    "onnxruntime": _in_onnxruntime,
    "openvino": _in_openvino,
}
