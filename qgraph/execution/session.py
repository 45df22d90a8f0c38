"""A session of ONNX Runtime for some nodes, and for which it follows the definitions of ONNX."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from qgraph.execution.inputs import numpy_type
from qgraph.execution.plan import initial
from qgraph.graph.edit import HALF_TYPES
from qgraph.graph.scopes import inputs_of, nodes_of, operands
from qgraph.graph.sizes import fits, fixed_sizes
from qgraph.ops.dispatch import Environment

logger = logging.getLogger(__name__)

_INLINE_BYTES = 1024
"""Constants up to this size are written into the session's model, others are shared with it."""

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


class Session:
    """An ONNX Runtime session over some nodes.

    Args:
        runtime: the module of ONNX Runtime.
        ir_version: of the format, at least what the nodes need.
        nodes: in order; what they read is fed, constant or produced among them.
        imports: opset versions for them.
        feeds: what is fed, with the types of the arrays; the session serves these types only.
        constants: what else they read from outside.
        outputs: what it computes.
        arena: keep the memory of a run for the next one.

    Attributes:
        raw: the session of ONNX Runtime.
        outputs: what it computes, in order.
    """

    def __init__(
        self,
        runtime: ModuleType,
        ir_version: int,
        nodes: Sequence[ir.Node],
        imports: Mapping[str, int],
        feeds: dict[ir.Value, np.dtype[Any]],
        constants: Iterable[ir.Value],
        outputs: Sequence[ir.Value],
        *,
        arena: bool = True,
    ) -> None:
        self._runtime, self._arena = runtime, arena
        self._feeds: list[tuple[ir.Value, str, ir.DataType | None]] = []
        self.outputs = outputs
        self._decode: list[ir.DataType | None] = [None] * len(outputs)
        self._shared: dict[str, Any] = {}
        graph = onnx.GraphProto(name="segment")
        for value, dtype in feeds.items():
            self._declare(graph, value, ir.DataType.from_numpy(dtype))
        for value in constants:
            self._store(graph, value)
        graph.node.extend(map(ir.serde.serialize_node, nodes))
        domains = {"", *(node.domain for node in nodes_of(nodes))}
        model = onnx.ModelProto(ir_version=ir_version, graph=graph)
        for domain in sorted(domains):
            model.opset_import.add(domain=domain, version=imports.get(domain, 1))
        for value in outputs:
            model.graph.output.add(name=str(value.name))
        self.raw = self._load(model)
        if self._carry(model):
            self.raw = self._load(model)

    def run(self, environment: Environment) -> dict[ir.Value, Any]:
        """Return the outputs for the values to feed."""
        arrays = {
            name: environment[value]
            if carrier is None
            else environment[value].astype(carrier.numpy())
            for value, name, carrier in self._feeds
        }
        results = self.raw.run(None, arrays)
        return {
            value: result if narrow is None else result.astype(narrow.numpy())
            for value, result, narrow in zip(self.outputs, results, self._decode, strict=True)
        }

    @property
    def feeds(self) -> list[str]:
        """Names of what is fed."""
        return [name for _, name, _ in self._feeds]

    @property
    def carries(self) -> bool:
        """Whether an input or output is passed in another type than its own."""
        return any(self._decode) or any(carrier is not None for _, _, carrier in self._feeds)

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
        if array.nbytes <= _INLINE_BYTES or array.dtype.isbuiltin != 1 or array.dtype == object:
            graph.initializer.append(onnx.numpy_helper.from_array(array, name))
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
        options.enable_cpu_mem_arena = self._arena
        if not self._arena and _has_common_arena(self._runtime):
            options.add_session_config_entry("session.use_env_allocators", "1")
        # Threads wait busily from one operator to the next, but not for the next call.
        options.add_session_config_entry("session.intra_op.allow_spinning", "1")
        options.add_session_config_entry("session.intra_op.spin_duration_us", "100")
        if self._shared:
            options.add_external_initializers(list(self._shared), list(self._shared.values()))
        data = model.SerializeToString()
        return self._runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def _carry(self, model: onnx.ModelProto) -> bool:
        """Pass outputs of types that NumPy lacks in another type; return whether there are any."""
        narrow = {f"tensor({dtype.name.lower()})": dtype for dtype in _CARRIERS}
        for index, output in enumerate(self.raw.get_outputs()):
            dtype = narrow.get(output.type)
            if dtype is not None:
                self._decode[index] = dtype
                carried = f"{output.name}:carried"
                model.graph.node.append(_cast(output.name, carried, _CARRIERS[dtype]))
                model.graph.output[index].name = carried
        return any(self._decode)


@cache
def _has_common_arena(runtime: ModuleType) -> bool:
    """Let sessions that keep no memory share one arena; return whether there is one.

    Without it, glibc may not give a freed tensor to the next one of its size, since both are
    aligned, and memory grows with every session.
    """
    allocator, use = runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, runtime.OrtMemType.DEFAULT
    as_requested = runtime.OrtArenaCfg({"arena_extend_strategy": 1})
    try:
        runtime.create_and_register_allocator(
            runtime.OrtMemoryInfo("Cpu", allocator, 0, use), as_requested
        )
    except (
        Exception
    ) as error:  # other code has registered its own, or the errors of another version
        logger.debug("ONNX Runtime has no common arena: %s", error)
        return False
    return True


def free_values(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Return the values that ``nodes`` and their subgraphs use and do not produce, each once."""
    produced = {value for node in nodes for value in node.outputs}
    used = dict.fromkeys(value for node in nodes for value in operands(node))
    return [value for value in used if value not in produced]


def _cast(source: str, target: str, to: ir.DataType) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type="Cast", input=[source], output=[target])
    node.attribute.add(name="to", type=onnx.AttributeProto.INT, i=to.value)
    if to.name.startswith("FLOAT8"):
        node.attribute.add(name="saturate", type=onnx.AttributeProto.INT, i=0)
    return node


class Direct:
    """A graph that is one session, for calls that feed exactly its inputs, as arrays that fit.

    ``feeds`` are the inputs that the session reads, ``names`` its outputs.
    """

    def __init__(
        self, graph: ir.Graph, feeds: Sequence[str], session: Any, names: Sequence[str]
    ) -> None:
        self._forms = [
            (str(value.name), numpy_type(value), fixed_sizes(value))
            for value in graph.inputs
            if not value.is_initializer()
        ]
        self._unused = {name for name, _, _ in self._forms}.difference(feeds)
        self._session = session
        self._names = names

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outputs by name; None if the inputs do not have exactly the known form."""
        if len(inputs) != len(self._forms):
            return None
        for name, dtype, sizes in self._forms:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype:
                return None
            if array.shape != sizes and not fits(array.shape, sizes):
                return None
        if self._unused:
            inputs = {name: array for name, array in inputs.items() if name not in self._unused}
        try:
            results = self._session.run(None, inputs)
        except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
            logger.info("not run at once: %s", error)
            return None
        return dict(zip(self._names, results, strict=True))


MODERATE = 2.0**30
"""A magnitude far below the largest float, and far above usual inputs of networks."""

_NARROW = frozenset({ir.DataType.INT2, ir.DataType.UINT2, ir.DataType.INT4, ir.DataType.UINT4})


def is_moderate(array: Any) -> bool:
    """Return whether all numbers of an array have a magnitude of at most ``MODERATE``.

    NaN and infinities are not moderate. Arrays of other types than float32 are not checked.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        return isinstance(array, np.ndarray)
    # The sum of squares is NaN or infinite where an element is: one pass, and no copy.
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        return bool(np.dot(flat, flat) <= MODERATE**2)


def is_conformant(node: ir.Node) -> bool:
    """Return whether ONNX Runtime is known to compute a node by its definition.

    It does not (ONNX Runtime 1.31, CPU):

    * QuantizeLinear to 2 or 4 bits, where ``|x / scale|`` reaches 2**31;
    * QuantizeLinear in blocks along another axis than the last, there likewise;
    * QuantizeLinear of float16, which it divides in float32;
    * QuantizeLinear or Cast to an 8-bit float without saturation, close to the overflow.
    """
    if node.op_type == "Cast" and node.domain == "":
        return not _overflows(node, ir.DataType(node.attributes.get_int("to", 1)))
    if node.op_type != "QuantizeLinear":
        return True
    x, scale, zero_point = inputs_of(node, 3)
    dtype = ir.DataType(node.attributes.get_int("output_dtype", 0))
    if zero_point is not None and zero_point.dtype is not None:
        dtype = zero_point.dtype
    inputs = {value.dtype for value in (x, scale) if value is not None}
    blocked = node.attributes.get_int("block_size", 0) > 0
    last = -1 if x is None or x.shape is None else len(x.shape) - 1
    return not (
        dtype in _NARROW
        or (blocked and node.attributes.get_int("axis", 1) not in (-1, last))
        or inputs & {*HALF_TYPES}
        or _overflows(node, dtype)
    )


def _overflows(node: ir.Node, target: ir.DataType) -> bool:
    """Return whether ``node`` lets values beyond an 8-bit float become infinite or NaN."""
    is_float8 = target.name.startswith("FLOAT8") and target is not ir.DataType.FLOAT8E8M0
    return is_float8 and node.attributes.get_int("saturate", 1) == 0
