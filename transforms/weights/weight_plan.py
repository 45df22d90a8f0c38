"""Storing one float weight as codes behind a DequantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import ModelError
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.edit import Editor
from qgraph.graph.tensors import stored_bytes
from qgraph.numerics.formats import numpy_dtype
from qgraph.numerics.packing import unpack
from qgraph.opsets.versions import QDQ_SINCE
from qgraph.report import Outcome, SiteReport, operator_name
from qgraph.tensors.deferred import DeferredTensor
from qgraph.tensors.streaming import stream_of
from qgraph.transforms.weights.float_weights import FloatWeight, Places, label
from qgraph.weights.weight_groups import Groups
from qgraph.weights.weight_job import WeightJob
from qgraph.weights.weight_quantization import E4M3, E8M0, Losses, Scheme

LAZY_BYTES = 1 << 20
"""Weights of more bytes are quantized when the model is saved."""


@dataclass(eq=False)
class WeightPlan:
    """How one weight is stored.

    Attributes:
        weight, scheme, groups: what is quantized, and how.
        sizes: shape of the scales.
        axis, block_size: as DequantizeLinear has them; no axis per tensor.
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
        self.figures: dict[str, float | int | str] = {}
        self._now: list[ir.TensorProtocol] = []
        name = self.weight.value.name or ""
        stream = stream_of(self.weight.tensor)
        self._job = WeightJob(name, stream, self.groups, self.scheme, self._tell)

    @property
    def opset(self) -> int:
        """The opset since which DequantizeLinear has all that is needed."""
        needed = [QDQ_SINCE[self.scheme.codes]]
        needed.append(21 if self.block_size else 13 if self.axis is not None else 10)
        if self.scheme.scales == E8M0:
            needed.append(24)
        if self.scheme.result != "FLOAT":
            needed.append(19)
        return max(needed)

    def prepare(self) -> str | None:
        """Quantize a small weight now; return why it cannot be."""
        if stored_bytes(self.weight.tensor) > LAZY_BYTES:
            return None
        try:
            data = self._job.run()
        except ModelError as error:
            return str(error)
        self._now = [
            _tensor(bytes_, kind, shape)
            for bytes_, (kind, shape) in zip(data, self._outputs(), strict=True)
        ]
        return None

    def carry_out(self, editor: Editor, places: Places) -> SiteReport:
        """Put a DequantizeLinear in the place of the weight; return the entry of the report."""
        value = self.weight.value
        anchor = places.first_user(value)
        stem = value.name or "weight"
        tensors = self._now or [
            DeferredTensor(self._job, place, ir.DataType[kind], shape)
            for place, (kind, shape) in enumerate(self._outputs())
        ]
        names = ["codes", "scale", *self._more()]
        operands = [
            editor.place(_constant(tensor, name), anchor, anchor.graph, stem)
            for name, tensor in zip(names, tensors, strict=True)
        ]
        nodes = []
        if self.scheme.scales == E4M3:
            codes, scale, unit = operands
            decoded = _dequantize([scale, unit], {})
            decoded.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
            nodes.append(decoded)
            operands = [codes, decoded.outputs[0]]
        attributes = {} if self.axis is None else {"axis": self.axis}
        attributes |= {"block_size": self.block_size} if self.block_size else {}
        result = self.weight.tensor.dtype
        if operands[1].dtype is not result:
            attributes["output_dtype"] = result.value
        nodes.append(_dequantize(operands, attributes))
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
        entry = untouched(self.weight, Outcome.CHANGED, None)
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
        return SiteReport(
            entry.node,
            entry.op,
            "",
            Outcome.CHANGED,
            spelling="+".join(node.op_type for node in nodes),
            verdict=Verdict(Exactness.DIFFERENT, Method.CONSTANT),
            figures=self.figures,
        )

    def _tell(self, losses: Losses) -> None:
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
        """Yield type and shape of each tensor that the job gives."""
        yield self.scheme.codes, self.weight.shape
        yield self.scheme.scales, self.sizes
        for name in self._more():
            is_point = name == "zero_point"
            yield (self.scheme.codes, self.sizes) if is_point else ("FLOAT", ())


def _dequantize(operands: list[ir.Value], attributes: dict[str, int]) -> ir.Node:
    return ir.node("DequantizeLinear", operands, attributes)


def _constant(tensor: ir.TensorProtocol, name: str) -> ir.Value:
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)


def _tensor(data: npt.NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> ir.TensorProtocol:
    bits = ir.DataType[kind].bitwidth
    elements = unpack(data, bits, int(np.prod(shape))) if bits < 8 else data
    return ir.Tensor(elements.view(numpy_dtype(kind)).reshape(shape))


def _forget(value: ir.Value) -> None:
    """Drop a weight that nothing uses any more."""
    producer, graph = value.producer(), value.graph
    if producer is not None and producer.graph is not None:
        producer.graph.remove(producer, safe=True)
    elif isinstance(graph, ir.Graph):
        del graph.initializers[value.name or ""]


def untouched(weight: FloatWeight, outcome: Outcome, reason: str | None) -> SiteReport:
    """Return the entry of the report for a weight that stays as it is."""
    node = weight.uses[0].node if weight.uses else next(iter(weight.value.uses())).node
    return SiteReport(label(node), operator_name(node), "", outcome, reason=reason)
