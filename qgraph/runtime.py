"""Runs a model with ONNX Runtime, and quantizers of other domains with our kernels.

ONNX Runtime is optional: it is imported when a :class:`RuntimeExecutor` is made.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from qgraph.control import captured, subgraphs
from qgraph.errors import UnsupportedError, where
from qgraph.executor import Executor, Imports, is_constant
from qgraph.plan import Environment, Plan, Step, initial

logger = logging.getLogger(__name__)

_DOMAINS = frozenset({"ai.onnx.ml", "com.microsoft"})
_INLINE_BYTES = 1024
"""Constants up to this size are written into the session's model, others are shared with it."""
_LEAST_IR_VERSION = 8
"""Below 4 initializers would have to be inputs, below 8 there are no functions."""

# ONNX Runtime hands no NumPy arrays of these types in or out; the casts are exact both ways.
_CARRIERS = {
    ir.DataType.INT2: ir.DataType.INT8,
    ir.DataType.UINT2: ir.DataType.UINT8,
    ir.DataType.INT4: ir.DataType.INT8,
    ir.DataType.UINT4: ir.DataType.UINT8,
    ir.DataType.FLOAT8E4M3FN: ir.DataType.FLOAT,
    ir.DataType.FLOAT8E4M3FNUZ: ir.DataType.FLOAT,
    ir.DataType.FLOAT8E5M2: ir.DataType.FLOAT,
    ir.DataType.FLOAT8E5M2FNUZ: ir.DataType.FLOAT,
    ir.DataType.FLOAT8E8M0: ir.DataType.FLOAT,
    ir.DataType.BFLOAT16: ir.DataType.FLOAT,
}


class RuntimeExecutor(Executor):
    """An :class:`Executor` that gives standard nodes to ONNX Runtime, as many at once as it can.

    Graph optimizations are off, since they change results. What ONNX Runtime refuses is computed
    in NumPy and logged.

    Raises:
        UnsupportedError: ONNX Runtime is not installed.
    """

    def __init__(self, model: ir.Model) -> None:
        self.runtime = _import_runtime()
        self.ir_version = max(model.ir_version, _LEAST_IR_VERSION)
        super().__init__(model)

    def plan(self, graph: ir.Graph, imports: Imports) -> Plan:
        """Return a plan in which nodes for ONNX Runtime are gathered into segments."""
        steps: list[Step] = []
        waiting = [node for node in graph if not is_constant(node)]
        while waiting:
            ours, waiting = _ready(waiting, lambda node: not self._takes(node, imports))
            steps += [self.step(node, imports) for node in ours]
            theirs, waiting = _ready(waiting, lambda node: self._takes(node, imports))
            if theirs:
                steps.append(Segment(theirs, self, imports))
        return Plan(graph, steps)

    def _takes(self, node: ir.Node, imports: Imports) -> bool:
        if node.domain == "":
            version = imports.get("", 0)
            known = version > 0 and onnx.defs.has(node.op_type, version, "")
        else:
            known = node.domain in _DOMAINS
        inner = (each for graph in subgraphs(node) for each in graph)
        return known and not self.is_call(node) and all(self._takes(n, imports) for n in inner)


class Segment:
    """Nodes that one session computes, or, where ONNX Runtime refuses, halves of them.

    Attributes:
        reads: values that come from outside and are not constant.
        outputs: all values that the nodes produce; those used elsewhere become known.
    """

    def __init__(
        self, nodes: Sequence[ir.Node], executor: RuntimeExecutor, imports: Imports
    ) -> None:
        self._nodes = nodes
        self._executor = executor
        self._imports = imports
        self._sessions: dict[tuple[Any, ...], Session | None] = {}
        self.outputs = [value for node in nodes for value in node.outputs if value.name != ""]
        self.reads = [value for value in _reads(nodes) if not _is_fixed(value)]
        inside = set(nodes)
        self._exports = frozenset(
            value
            for value in self.outputs
            if value.is_graph_output() or not inside.issuperset(value.consumers())
        )

    def run(self, known: Environment, keep: frozenset[ir.Value]) -> None:
        """Compute what is used elsewhere, and what ``keep`` asks for."""
        self._run(self._nodes, self._exports | keep, known)

    def _run(
        self, nodes: Sequence[ir.Node], wanted: frozenset[ir.Value], known: Environment
    ) -> None:
        outputs = [value for node in nodes for value in node.outputs if value in wanted]
        if not outputs or self._run_session(nodes, outputs, known):
            return
        if len(nodes) == 1:
            self._run_alone(nodes[0], known)
            return
        half = len(nodes) // 2
        self._run(nodes[:half], wanted.union(_reads(nodes[half:])), known)
        self._run(nodes[half:], wanted, known)

    def _run_session(
        self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], known: Environment
    ) -> bool:
        reads = [value for value in _reads(nodes) if not _is_fixed(value)]
        arrays = [known[value] for value in reads]
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return False  # a sequence, or an optional that is absent
        kinds = [array.dtype for array in arrays]
        key = (nodes[0], len(nodes), *kinds, *outputs)
        try:
            if key not in self._sessions:
                self._sessions[key] = None
                feeds = dict(zip(reads, kinds, strict=True))
                self._sessions[key] = Session(self._executor, nodes, self._imports, feeds, outputs)
            session = self._sessions[key]
            if session is not None:
                known.update(session.run(known))
        # ONNX Runtime's exceptions have no common base of their own.
        except Exception as error:  # a genuine fault comes back from NumPy, with the node's name
            self._sessions[key] = None
            if len(nodes) == 1:
                logger.warning(
                    "%s: ONNX Runtime refuses it, NumPy has it: %s", where(nodes[0]), error
                )
            return False
        return session is not None

    def _run_alone(self, node: ir.Node, known: Environment) -> None:
        step = self._executor.step(node, self._imports)
        loaded = [value for value in step.reads if value not in known]
        known.update((value, initial(value)) for value in loaded)
        step.run(known, frozenset())
        for value in loaded:
            del known[value]


class Session:
    """An ONNX Runtime session over some nodes.

    Args:
        executor: knows the runtime and the model's IR version.
        nodes: in order; what they read is fed, constant or produced among them.
        imports: opset versions for them.
        feeds: what is fed, with the types of the arrays; the session serves these types only.
        outputs: what it computes.
    """

    def __init__(
        self,
        executor: RuntimeExecutor,
        nodes: Sequence[ir.Node],
        imports: Imports,
        feeds: dict[ir.Value, np.dtype[Any]],
        outputs: Sequence[ir.Value],
    ) -> None:
        self._runtime = executor.runtime
        self._feeds: list[tuple[ir.Value, str, ir.DataType | None]] = []
        self._outputs = outputs
        self._decode: list[ir.DataType | None] = [None] * len(outputs)
        self._shared: dict[str, Any] = {}
        graph = onnx.GraphProto(name="segment")
        for value, dtype in feeds.items():
            self._declare(graph, value, ir.DataType.from_numpy(dtype))
        produced = {value for node in nodes for value in node.outputs}
        for value in _reads(nodes):
            if value not in feeds and value not in produced:
                self._store(graph, value)
        graph.node.extend(ir.to_proto(node) for node in nodes)
        domains = {"", *(node.domain for node in _nested(nodes))}
        model = onnx.ModelProto(ir_version=executor.ir_version, graph=graph)
        for domain in sorted(domains):
            model.opset_import.add(domain=domain, version=imports.get(domain, 1))
        for value in outputs:
            model.graph.output.add(name=str(value.name))
        self._session = self._load(model)
        if self._carry(model):
            self._session = self._load(model)

    def run(self, known: Environment) -> dict[ir.Value, Any]:
        """Return the outputs for what is known of the values to feed."""
        arrays = {
            name: known[value] if carrier is None else known[value].astype(carrier.numpy())
            for value, name, carrier in self._feeds
        }
        results = self._session.run(None, arrays)
        return {
            value: result if narrow is None else result.astype(narrow.numpy())
            for value, result, narrow in zip(self._outputs, results, self._decode, strict=True)
        }

    def _declare(self, graph: onnx.GraphProto, value: ir.Value, dtype: ir.DataType) -> None:
        name, carrier = str(value.name), _CARRIERS.get(dtype)
        if carrier is not None:
            carried = f"{name}:carried"
            graph.node.append(_cast(carried, name, dtype))
            name = carried
        graph.input.add(name=name).type.tensor_type.elem_type = (carrier or dtype).value
        self._feeds.append((value, name, carrier))

    def _store(self, graph: onnx.GraphProto, value: ir.Value) -> None:
        array, name = initial(value), str(value.name)
        if array.nbytes <= _INLINE_BYTES or not array.dtype.isbuiltin or array.dtype == object:
            graph.initializer.append(ir.to_proto(ir.tensor(array, name=name)))
            return
        self._shared[name] = self._runtime.OrtValue.ortvalue_from_numpy(array)
        tensor = graph.initializer.add(name=name, dims=array.shape)
        tensor.data_type = ir.DataType.from_numpy(array.dtype).value
        tensor.data_location = onnx.TensorProto.EXTERNAL
        fields = {"location": "shared", "offset": "0", "length": str(array.nbytes)}
        for field, text in fields.items():
            tensor.external_data.add(key=field, value=text)

    def _load(self, model: onnx.ModelProto) -> Any:
        options = self._runtime.SessionOptions()
        options.graph_optimization_level = self._runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        # There are many sessions; waiting threads of one must not take time from the others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self._shared:
            options.add_external_initializers(list(self._shared), list(self._shared.values()))
        data = model.SerializeToString()
        return self._runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def _carry(self, model: onnx.ModelProto) -> bool:
        """Let outputs of types that NumPy cannot take come out as another; return if there are."""
        narrow = {f"tensor({dtype.name.lower()})": dtype for dtype in _CARRIERS}
        for place, output in enumerate(self._session.get_outputs()):
            dtype = narrow.get(output.type)
            if dtype is not None:
                self._decode[place] = dtype
                carried = f"{output.name}:carried"
                model.graph.node.append(_cast(output.name, carried, _CARRIERS[dtype]))
                model.graph.output[place].name = carried
        return any(self._decode)


def _import_runtime() -> ModuleType:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise UnsupportedError(
            "Backend 'ort' is asked for, but ONNX Runtime is not installed. Install it with "
            "pip install qgraph[ort], or choose backend 'numpy'."
        ) from error


def _ready(
    nodes: Iterable[ir.Node], chosen: Callable[[ir.Node], bool]
) -> tuple[list[ir.Node], list[ir.Node]]:
    """Split off the chosen nodes that depend on no node left behind; both parts keep the order."""
    ready, rest = [], []
    pending: set[ir.Value] = set()
    for node in nodes:
        if chosen(node) and pending.isdisjoint(_reads([node])):
            ready.append(node)
        else:
            rest.append(node)
            pending.update(node.outputs)
    return ready, rest


def _reads(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Return the values that ``nodes`` and their subgraphs use and do not produce, each once."""
    produced = {value for node in nodes for value in node.outputs}
    used = [value for node in nodes for value in (*node.inputs, *captured(node))]
    return [v for v in dict.fromkeys(used) if v is not None and v not in produced]


def _nested(nodes: Iterable[ir.Node]) -> Iterable[ir.Node]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from graph


def _is_fixed(value: ir.Value) -> bool:
    """Return whether a session can hold ``value``: it is constant and cannot be fed."""
    producer = value.producer()
    if producer is not None:
        return is_constant(producer)
    return value.is_initializer() and not value.is_graph_input()


def _cast(source: str, target: str, to: ir.DataType) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type="Cast", input=[source], output=[target])
    node.attribute.add(name="to", type=onnx.AttributeProto.INT, i=to.value)
    if to.name.startswith("FLOAT8"):
        node.attribute.add(name="saturate", type=onnx.AttributeProto.INT, i=0)
    return node
