"""Constants that a DequantizeLinear decodes: their codes, and what the scales reach over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.folding import constant_expression, constant_stream
from qgraph.model import Model
from qgraph.numerics import blocks
from qgraph.numerics.formats import FORMATS
from qgraph.numerics.packing import packed_size
from qgraph.ops.operator import operator_of
from qgraph.tensors.streaming import Stream
from qgraph.weights.repack_job import Shift, Source

Array = npt.NDArray[Any]

DOMAINS = ("", "com.microsoft")


@dataclass(frozen=True, eq=False)
class Stored:
    """A DequantizeLinear, with a Clip before it or not, on constant codes.

    Attributes:
        nodes: the nodes, in order.
        value: the codes.
        source: what they hold, after the Clip.
        scale: in the rank of the codes, as it is stored; None where it is computed.
        zero_point: likewise, as whole numbers; None for 0.
        others: operators that use the codes as such, for which they would stay.
    """

    nodes: tuple[ir.Node, ...]
    value: ir.Value
    source: Source
    scale: Array | None
    zero_point: npt.NDArray[np.int32] | None
    others: tuple[str, ...] = ()

    @property
    def decode(self) -> ir.Node:
        """The DequantizeLinear."""
        return self.nodes[-1]

    @property
    def stream(self) -> Stream:
        """The codes."""
        return self.source.stream

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points, of the latter two as far as they are known."""
        points = 0 if self.zero_point is None else self.zero_point.size
        size = self.stream.nbytes + packed_size(FORMATS[self.stream.kind].bits, points)
        return size + (0 if self.scale is None else self.scale.nbytes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the codes."""
        return self.stream.shape

    @property
    def axis(self) -> int:
        """As the DequantizeLinear has it, counted from the front."""
        return self.decode.attributes.get_int("axis", 1) % max(len(self.shape), 1)

    @property
    def block_size(self) -> int:
        """As the DequantizeLinear has it."""
        return self.decode.attributes.get_int("block_size", 0)

    @property
    def shift(self) -> Shift | None:
        """The zero points as something to subtract."""
        if self.zero_point is None:
            return None
        return Shift(self.zero_point, self.axis, self.block_size)


def stored_codes(model: Model) -> Iterator[Stored | OperatorError]:
    """Yield every DequantizeLinear on constant codes; an error for one that is not valid."""
    for node in model.nodes("DequantizeLinear"):
        if node.domain not in DOMAINS:
            continue
        try:
            found = _read(node)
        except (OperatorError, ValueError) as error:
            yield (
                error
                if isinstance(error, OperatorError)
                else OperatorError(f"{where(node)}: {error}.")
            )
            continue
        if found is not None:
            yield found


def _read(node: ir.Node) -> Stored | None:
    value = node.inputs[0]
    nodes: tuple[ir.Node, ...] = (node,)
    bounds = None
    clip = None if value is None else value.producer()
    if clip is not None and clip.op_type == "Clip" and not clip.domain:
        bounds = _bounds(clip)
        value = clip.inputs[0]
        nodes = (clip, node)
        if bounds is None:
            return None
    stream = constant_stream(value)
    if value is None or stream is None or stream.kind not in FORMATS or not stream.size:
        return None
    operator = operator_of(node)
    if operator is None:
        return None
    _, scale_value, point_value = operator.schema.values(node)
    point = None if point_value is None else constant_expression(point_value)
    if point_value is not None and point is None:
        return None
    axis = node.attributes.get_int("axis", 1)
    size = node.attributes.get_int("block_size", 0)
    scale = constant_expression(scale_value)
    if scale is not None:
        scale = _placed(scale, stream.shape, axis, size)
    whole = None
    if point is not None and point.astype(np.float32).any():
        whole = _placed(point.astype(np.int32), stream.shape, axis, size)
    others = [
        user for each in (value, *(n.outputs[0] for n in nodes[:-1])) for user in _others(each)
    ]
    return Stored(nodes, value, Source(stream, bounds), scale, whole, tuple(dict.fromkeys(others)))


def _others(value: ir.Value) -> list[str]:
    """Return who uses codes other than to clip and to decode them."""
    names = [use.node.op_type for use in value.uses() if use.idx or not _reads(use.node)]
    return names + (["the outputs of the graph"] if value.is_graph_output() else [])


def _reads(node: ir.Node) -> bool:
    return node.op_type in ("Clip", "DequantizeLinear") and node.domain in DOMAINS


def _bounds(clip: ir.Node) -> tuple[float, float] | None:
    """Return the bounds of a Clip on codes; None where they are computed."""
    found = [-np.inf, np.inf]
    for place, value in enumerate(clip.inputs[1:3]):
        if value is None:
            continue
        bound = constant_expression(value)
        if bound is None or bound.size != 1:
            return None
        found[place] = float(bound.astype(np.float64).reshape(()))
    limit = 2**31 - 1
    return max(found[0], -limit), min(found[1], limit)


def _placed(parameter: Array, shape: tuple[int, ...], axis: int, block_size: int) -> Array:
    """Return a parameter in the rank of the codes: 1, the axis' length, or blocks, along each."""
    if parameter.size == 1:
        return parameter.reshape((1,) * len(shape))
    if block_size:
        blocks.align(np.empty(parameter.shape, np.bool_), shape, axis, block_size)
        return parameter
    return blocks.align(parameter, shape, axis)
