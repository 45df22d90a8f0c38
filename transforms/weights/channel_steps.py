"""Read chains of operators that compute ``factor * x + offset`` per channel.

BatchNormalization, and Mul, Add, Sub and Div by constants, are such operators. Factors and offsets
are computed in float64 from the constants of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array, Float64
from qgraph.ops.known_values import KnownValues
from qgraph.records import dataclass, field
from qgraph.transforms.weights.output_scale import Stuck, title


@dataclass(frozen=True)
class ChannelAxis:
    """The channel axis of a value.

    Attributes:
        rank: number of dimensions of the value.
        axis: index of the axis, from 0.
    """

    rank: int
    axis: int
    size: int

    def spread(self, array: Array, node: ir.Node) -> Float64:
        """Return an operand of an elementwise node as one number per channel, ``[size]``.

        Raises:
            Stuck: it varies along other axes.
        """
        sizes = (1,) * (self.rank - array.ndim) + array.shape
        others = [size for axis, size in enumerate(sizes) if axis != self.axis]
        if len(sizes) != self.rank or set(others) - {1} or sizes[self.axis] not in (1, self.size):
            raise Stuck(
                f"the constant of {title(node)} has shape {list(array.shape)}, expected one number "
                f"for each of {self.size} channels on axis {self.axis} of {self.rank}"
            )
        return np.broadcast_to(array.astype(np.float64).reshape(-1), self.size)


@dataclass(frozen=True, eq=False)
class ChannelAffine:
    """``y = factor * x + offset``, and the nodes that compute it, in order.

    Attributes:
        nodes: none if ``y`` is ``x``.
        factor, offset: ``[channels]``.
        source: ``x``, None without nodes.
    """

    nodes: tuple[ir.Node, ...]
    factor: Float64
    offset: Float64
    source: ir.Value | None = None

    @classmethod
    def none(cls, size: int) -> ChannelAffine:
        """Return the chain without nodes for a number of channels."""
        return cls((), np.ones(size), np.zeros(size))

    def then(self, other: ChannelAffine) -> ChannelAffine:
        """Return the composition of this chain and one that begins with its result."""
        with np.errstate(all="ignore"):
            factor = other.factor * self.factor
            offset = other.factor * self.offset + other.offset
        source = self.source or other.source
        return ChannelAffine(self.nodes + other.nodes, factor, offset, source)


_Pair = tuple[Float64 | float, Float64 | float]


@dataclass(frozen=True)
class ChannelReader:
    """Reads the operators of one graph or function.

    Attributes:
        closed: nodes that must not be part of a chain.
        reasons: why visited nodes are not part of a chain.
    """

    known: KnownValues
    version: int
    closed: set[ir.Node]
    reasons: dict[ir.Node, str] = field(default_factory=dict)

    def behind(self, value: ir.Value, channels: ChannelAxis) -> ChannelAffine:
        """Return the longest chain that begins with ``value`` and is its only user."""
        chain = ChannelAffine.none(channels.size)
        while step := self._step_behind(value, channels):
            chain, value = chain.then(step), step.nodes[0].outputs[0]
        return chain

    def before(self, value: ir.Value | None, user: ir.Node, channels: ChannelAxis) -> ChannelAffine:
        """Return the longest chain that ends with ``value``, which only ``user`` uses."""
        chain = ChannelAffine.none(channels.size)
        while value is not None and (node := value.producer()) is not None:
            index = self._data(node)
            if index is None or node.graph is not user.graph:
                break
            if self._is_shared(value, node):
                self.note(node, f"its result {value.name!r} is also used elsewhere")
                break
            step = self._read(node, index, channels)
            if step is None:
                break
            chain, value = step.then(chain), node.inputs[index]
        return chain

    def _step_behind(self, value: ir.Value, channels: ChannelAxis) -> ChannelAffine | None:
        for user, index in value.uses():
            if self._data(user) != index or user.graph is not value.graph:
                continue
            if self._is_shared(value, user):
                reason = f"{value.name!r}, from which it is computed, is also used elsewhere"
                self.note(user, reason)
                continue
            return self._read(user, index, channels)
        return None

    @staticmethod
    def _is_shared(value: ir.Value, user: ir.Node) -> bool:
        return len(value.uses()) > 1 or value.is_graph_output()

    def note(self, node: ir.Node, reason: str) -> None:
        """Record why a node is not part of a chain; the first reason is kept."""
        self.reasons.setdefault(node, reason)

    def _data(self, node: ir.Node) -> int | None:
        """Return the index of the only operand that is not constant; None without a rule."""
        if node.domain or node.op_type not in _RULES or node in self.closed:
            return None
        operands = [(i, v) for i, v in enumerate(node.inputs) if v is not None]
        if node.op_type == "BatchNormalization":
            return 0
        data = [index for index, operand in operands if not self.known.has(operand)]
        return data[0] if len(data) == 1 else None

    def _read(self, node: ir.Node, index: int, channels: ChannelAxis) -> ChannelAffine | None:
        rule = _RULES[node.op_type]
        try:
            with np.errstate(all="ignore"):
                if rule is None:
                    factor, offset = self._batch_normalization(node, channels)
                else:
                    factor, offset = rule(self._constant(node, index, channels), index)
        except Stuck as stuck:
            self.note(node, stuck.reason)
            return None
        one = np.ones(channels.size)
        return ChannelAffine((node,), factor * one, offset * one, node.inputs[index])

    def _constant(self, node: ir.Node, index: int, channels: ChannelAxis) -> Float64:
        """Return the other operand of a node, one number for each channel; 1 for Identity."""
        if node.op_type == "Identity":
            return np.ones(channels.size)
        if node.op_type == "Div" and index == 1:
            raise Stuck(f"{title(node)} divides by the data, which no weight can take in; leave it")
        other = node.inputs[1 - index]
        array = None if other is None else self.known.array(other)
        if array is None or node.attributes:
            raise Stuck(
                f"the operand of {title(node)} is no constant; run -p fold-constants first, if it "
                "follows from constants"
            )
        return channels.spread(array, node)

    def _batch_normalization(self, node: ir.Node, channels: ChannelAxis) -> _Pair:
        """``(x - mean) * f + beta`` with ``f = gamma / sqrt(var + epsilon)``."""
        if self._trains(node):
            raise Stuck(
                "it is in training mode, so that its mean and variance follow the data; export the "
                "model in inference mode"
            )
        if node.attributes.get_int("spatial", 1) == 0:
            raise Stuck(
                "spatial is 0, so that each position has parameters of its own; export spatial=1"
            )
        if channels.axis != 1:
            raise Stuck(
                "it normalizes axis 1, and the output channels before it lie on axis "
                f"{channels.axis}"
            )
        parameters = [value for value in node.inputs[1:5] if value is not None]
        arrays = map(self.known.array, parameters)
        wide = [array.astype(np.float64) for array in arrays if array is not None]
        if len(wide) != 4:
            raise Stuck(
                "its parameters are computed at run time, expected constants; run "
                "-p fold-constants first, if they follow from constants"
            )
        if any(array.shape != (channels.size,) for array in wide):
            shapes = ", ".join(str(list(array.shape)) for array in wide)
            raise Stuck(f"its parameters have shapes {shapes}, expected [{channels.size}] for each")
        gamma, beta, mean, variance = wide
        epsilon = np.float32(node.attributes.get_float("epsilon", 1e-5))
        factor = gamma / np.sqrt(variance + np.float64(epsilon))
        return factor, beta - mean * factor

    def _trains(self, node: ir.Node) -> bool:
        if self.version >= 14:
            return node.attributes.get_int("training_mode", 0) != 0
        if self.version >= 7:
            return sum(bool(output.name) for output in node.outputs) > 1
        return node.attributes.get_int("is_test", 0) == 0


_RULES: Mapping[str, Callable[[Float64, int], _Pair] | None] = {
    "Add": lambda constant, index: (1.0, constant),
    "BatchNormalization": None,
    "Div": lambda constant, index: (1 / constant, 0.0),
    "Identity": lambda constant, index: (constant, 0.0),
    "Mul": lambda constant, index: (constant, 0.0),
    "Sub": lambda constant, index: (-1.0, constant) if index else (1.0, -constant),
}
"""Factor and offset by the constant and the index of the data; BatchNormalization has several."""
