"""Float weights of a model: the roles of their axes, and their storage as codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from qgraph.errors import Choice, ModelError
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_tensor
from qgraph.graph.deferred import DeferredTensor, tensor_of
from qgraph.graph.edit import Editor
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.scopes import Body, bodies, subgraphs
from qgraph.graph.streaming import stream_of
from qgraph.graph.tensors import stored_bytes
from qgraph.model import Model
from qgraph.quantizers.weights.job import Groups
from qgraph.quantizers.weights.scheme import E4M3, E8M0, Losses, Scheme
from qgraph.quantizers.weights.weight_job import WeightJob
from qgraph.reasons import UNSUITED_WEIGHT, ExplainedReason
from qgraph.records import dataclass
from qgraph.reports import SiteReport, SiteStatus
from qgraph.transforms.drafts.choice import Figure, entry, label

LAZY_BYTES = 1 << 20
"""Size in bytes above which weights are quantized when the model is saved."""

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""Types of weights to quantize: those that DequantizeLinear outputs."""


class UseKind(Choice):
    """Operators that have weights."""

    MATMUL = "MatMul"
    GEMM = "Gemm"
    CONV = "Conv"
    CONV_TRANSPOSE = "ConvTranspose"
    GATHER = "Gather"


@dataclass(frozen=True, eq=False)
class WeightUse:
    """A node that uses a weight, and the role of the axes of the stored weight.

    Attributes:
        reduced: the axis over which products are summed, or whose elements are read together;
            blocks lie along it. None if ``channel`` is the only axis.
        channel: the axis of independent entries, such as output channels; None if there is none.
    """

    node: ir.Node
    reduced: int | None
    channel: int | None


@dataclass(frozen=True, eq=False)
class FloatWeight:
    """A constant of real numbers and the nodes that use it as their weight.

    Attributes:
        value: an initializer, or the output of a Constant node.
        others: names of other nodes that use it.
    """

    value: ir.Value
    tensor: ir.TensorProtocol
    uses: tuple[WeightUse, ...]
    others: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(int(size) for size in self.tensor.shape.numpy())

    @property
    def first_node(self) -> ir.Node:
        """The node that the report names."""
        return self.uses[0].node if self.uses else next(iter(self.value.uses())).node


def float_weights(model: Model, wanted: Callable[[ir.Node], bool]) -> Iterator[FloatWeight]:
    """Yield the weights of all selected nodes, each once, in the order of their first use."""
    seen: set[ir.Value] = set()
    for node in model.nodes():
        if not wanted(node):
            continue
        for operand in _weight_operands(node):
            value = _root(operand)
            tensor = constant_tensor(value)
            if value in seen or tensor is None or tensor.dtype not in FLOATS:
                continue
            seen.add(value)
            yield _weight(value, tensor, wanted)


def _weight(
    value: ir.Value, tensor: ir.TensorProtocol, wanted: Callable[[ir.Node], bool]
) -> FloatWeight:
    rank = len(tensor.shape)
    uses, others = [], []
    for node, index, order in _users(value, tuple(range(rank))):
        use = _use(node, index, order) if wanted(node) else None
        if use is None:
            others.append(label(node))
        else:
            uses.append(use)
    if value.is_graph_output():
        others.append("the outputs of the graph")
    return FloatWeight(value, tensor, tuple(uses), tuple(others))


def _weight_operands(node: ir.Node) -> list[ir.Value]:
    indices = {UseKind.MATMUL: (1, 0), UseKind.GATHER: (0,)}.get(UseKind(node.op_type), (1,))
    operands = [node.inputs[index] for index in indices if index < len(node.inputs)]
    return [value for value in operands if value is not None]


def _root(value: ir.Value) -> ir.Value:
    """Follow Transpose and Identity back to the stored value."""
    while (node := value.producer()) is not None and _is_view(node):
        source = node.inputs[0]
        if source is None:
            break
        value = source
    return value


def _is_view(node: ir.Node) -> bool:
    return not node.domain and node.op_type in ("Transpose", "Identity")


def _users(
    value: ir.Value, order: tuple[int, ...]
) -> Iterator[tuple[ir.Node, int, tuple[int, ...]]]:
    """Yield each node that uses ``value``, also transposed: index of the input, order of axes."""
    for use in value.uses():
        node = use.node
        if not _is_view(node):
            yield node, use.idx, order
            continue
        inner = order
        if node.op_type == "Transpose":
            perm = node.attributes.get_ints("perm", range(len(order))[::-1])
            inner = tuple(order[axis] for axis in perm or ())
        output = node.outputs[0]
        if output.is_graph_output():
            yield node, use.idx, order
        yield from _users(output, inner)


def _use(node: ir.Node, index: int, order: tuple[int, ...]) -> WeightUse | None:
    """Return the roles of the axes of the stored weight; None if this use is not as a weight."""
    rank = len(order)
    reduced: int | None
    channel: int | None
    match node.op_type:
        case UseKind.MATMUL:
            left = index == 0
            reduced = rank - 1 if left or rank == 1 else rank - 2
            channel = None if rank == 1 else rank - 2 if left else rank - 1
        case UseKind.GEMM if index == 1 and rank == 2:
            transposed = node.attributes.get_int("transB", 0) != 0
            reduced, channel = (1, 0) if transposed else (0, 1)
        case UseKind.CONV if index == 1 and rank > 2:
            reduced, channel = 1, 0
        case UseKind.CONV_TRANSPOSE if index == 1 and rank > 2:
            reduced, channel = 0, 1
        case UseKind.GATHER if index == 0 and rank > 0:
            channel = node.attributes.get_int("axis", 0) % rank
            reduced = rank - 1 if channel != rank - 1 else None
        case _:
            return None
    axes = (None if axis is None else order[axis] for axis in (reduced, channel))
    return WeightUse(node, *axes)


class Places:
    """Positions in the bodies of a model where a value can be decoded: before its first user.

    Args:
        model: its nodes may be added to meanwhile, but not moved.
    """

    def __init__(self, model: Model) -> None:
        self._holder: dict[Body, ir.Node] = {}
        self._order: dict[ir.Node, int] = {}
        for body in bodies(model.ir):
            for node in body:
                self._order[node] = len(self._order)
                for attribute in node.attributes.values():
                    self._holder.update(dict.fromkeys(subgraphs(attribute), node))

    def first_user(self, value: ir.Value) -> ir.Node:
        """Return the first user of ``value`` in its body; users in subgraphs count."""
        producer = value.producer()
        body = value.graph if producer is None else producer.graph
        users = []
        for use in value.uses():
            node = use.node
            while node.graph is not body and node.graph in self._holder:
                node = self._holder[node.graph]
            users.append(node)
        return min(users, key=self._order.__getitem__)


@dataclass(eq=False)
class WeightPlan:
    """Storage of one weight as codes.

    Attributes:
        weight, scheme, groups: the weight, and its quantization.
        axis, block_size: of the DequantizeLinear; no axis per tensor.
    """

    weight: FloatWeight
    scheme: Scheme
    groups: Groups
    sizes: tuple[int, ...]
    axis: int | None
    block_size: int

    def __post_init__(self) -> None:
        if self.groups.scales == 1:
            self.sizes, self.axis, self.block_size = (), None, 0
        self.figures: dict[str, Figure] = {}
        self._now: list[ir.TensorProtocol] = []
        name = self.weight.value.name or ""
        stream = stream_of(self.weight.tensor)
        self._job = WeightJob(name, stream, self.groups, self.scheme, self._add_losses)

    @property
    def opset(self) -> int:
        """The minimum opset whose DequantizeLinear supports the codes."""
        needed = [QDQ_SINCE[self.scheme.codes]]
        needed.append(21 if self.block_size else 13 if self.axis is not None else 10)
        if self.scheme.scales == E8M0:
            needed.append(24)
        if self.scheme.result != "FLOAT":
            needed.append(19)
        return max(needed)

    @property
    def stands(self) -> bool:
        """Whether all nodes that use the weight are still in the graph."""
        return all(use.node.graph is not None for use in self.weight.uses)

    def prepare(self) -> ExplainedReason | None:
        """Quantize a small weight now; return why it cannot be."""
        if stored_bytes(self.weight.tensor) > LAZY_BYTES:
            return None
        try:
            data = self._job.run()
        except ModelError as error:
            return UNSUITED_WEIGHT(str(error))
        self._now = [
            tensor_of(packed, ir.DataType[type_name], shape)
            for packed, (type_name, shape) in zip(data, self._outputs(), strict=True)
        ]
        return None

    def carry_out(self, editor: Editor, places: Places) -> SiteReport:
        """Replace the weight by a DequantizeLinear; return the entry of the report."""
        value = self.weight.value
        anchor = places.first_user(value)
        stem = value.name or "weight"
        tensors = self._now or [
            DeferredTensor(self._job, index, ir.DataType[type_name], shape)
            for index, (type_name, shape) in enumerate(self._outputs())
        ]
        names = ["codes", "scale", *self._more()]
        operands = [
            editor.place(ir.val(name, const_value=tensor), anchor, anchor.graph, stem)
            for name, tensor in zip(names, tensors, strict=True)
        ]
        nodes = []
        if self.scheme.scales == E4M3:
            codes, scale, unit = operands
            decoded = ir.node("DequantizeLinear", [scale, unit])
            decoded.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
            nodes.append(decoded)
            operands = [codes, decoded.outputs[0]]
        attributes = {} if self.axis is None else {"axis": self.axis}
        attributes |= {"block_size": self.block_size} if self.block_size else {}
        result = self.weight.tensor.dtype
        if operands[1].dtype is not result:
            attributes["output_dtype"] = result.value
        nodes.append(ir.node("DequantizeLinear", operands, attributes))
        decoded = nodes[-1]
        decoded.outputs[0].type = ir.TensorType(result)
        decoded.outputs[0].shape = ir.Shape(self.weight.shape)
        for node in nodes:
            name = stem if node is nodes[-1] else f"{stem}_scale"
            node.name = editor.fresh(f"{name}_DequantizeLinear")
            node.outputs[0].name = editor.fresh(f"{name}_dequantized")
            if anchor.graph is not None:
                anchor.graph.insert_before(anchor, node)
        value.replace_all_uses_with(decoded.outputs[0])
        _forget(value)
        return self._entry(nodes)

    def _entry(self, nodes: list[ir.Node]) -> SiteReport:
        size = self.weight.tensor.size * self.weight.tensor.dtype.bitwidth // 8
        self.figures |= {
            "weight": self.weight.value.name or "",
            "type": self.scheme.codes,
            "scales": self.groups.scales,
            "scale_type": self.scheme.scales,
            "block_size": self.block_size,
            "weight_bytes_before": size,
            "weight_bytes_after": sum(self._job.sizes()),
        }
        return entry(
            self.weight.first_node,
            SiteStatus.CHANGED,
            spelling="+".join(node.op_type for node in nodes),
            verdict=Verdict(Exactness.DIFFERENT, Method.CONSTANT),
            figures=self.figures,
        )

    def _add_losses(self, losses: Losses) -> None:
        self.figures |= {
            "sqnr_db": losses.sqnr,
            "max_abs_error": losses.worst,
            "max_error_steps": losses.worst_steps,
            "clipped": losses.clipped,
            "scale_low": losses.lowest_scale,
            "scale_high": losses.highest_scale,
        }

    def _more(self) -> list[str]:
        points = ["zero_point"] if self.scheme.has_zero_point else []
        return points + (["scale_unit"] if self.scheme.scales == E4M3 else [])

    def _outputs(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield type and shape of each tensor that the job computes."""
        yield self.scheme.codes, self.weight.shape
        yield self.scheme.scales, self.sizes
        for name in self._more():
            is_point = name == "zero_point"
            yield (self.scheme.codes, self.sizes) if is_point else ("FLOAT", ())


def _forget(value: ir.Value) -> None:
    producer, graph = value.producer(), value.graph
    if producer is not None and producer.graph is not None:
        producer.graph.remove(producer, safe=True)
    elif isinstance(graph, ir.Graph):
        del graph.initializers[value.name or ""]
