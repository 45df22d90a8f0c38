"""A quantizer found in a graph, or why a node that looks like one cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from qgraph.graph.constants import constant_stream
from qgraph.graph.edit import Region
from qgraph.graph.streaming import Stream
from qgraph.numerics import Array
from qgraph.ops.dispatch import evaluate
from qgraph.quantizers.quantizer import Quantizer


@dataclass(frozen=True, eq=False)
class Site(Region):
    """A quantizer in the graph.

    Attributes:
        root: the node that the reader started from; reports name it.
        dialect: name of the dialect that it is written in.
        quantizer: what it means.
        shape: of the data, None for a dimension that is not known; parameters broadcast to it.
        weight: the values of ``x`` where they are known, else None; those in a file are not read.
    """

    root: ir.Node
    dialect: str
    quantizer: Quantizer
    shape: tuple[int | None, ...]
    weight: Stream | None = None

    @cached_property
    def values(self) -> Array | None:
        """The quantized values of ``weight``, computed by the kernels of its operators."""
        if self.weight is None:
            return None
        return evaluate(self.nodes, self.x, self.y, self.weight.array())


@dataclass(frozen=True, eq=False)
class Refusal:
    """A node of a dialect that cannot be read as a quantizer, and why.

    Attributes:
        root: the node.
        reason: why not.
        is_dynamic: whether its parameters are computed from the data, so that it has no constants.
    """

    root: ir.Node
    reason: str
    is_dynamic: bool = False


def weight_of(x: ir.Value) -> Stream | None:
    """Return the values of a quantizer's input if they are constant, else None."""
    return constant_stream(x)


def shape_of(x: ir.Value, *parameters: Array) -> tuple[int | None, ...]:
    """Return the shape of the data; where its rank is unknown, that of the widest parameter."""
    if x.shape is not None:
        return tuple(size if isinstance(size, int) else None for size in x.shape)
    return (None,) * max((parameter.ndim for parameter in parameters), default=0)
