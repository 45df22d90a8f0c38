"""Sums of products with constant weights: their channel axes and biases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import RESHAPING, Facts, infer
from qgraph.graph.scopes import input_of, inputs_of, nodes_of, owners, producer_of
from qgraph.model import Model
from qgraph.numerics import Array, Float64
from qgraph.ops.known_values import KnownValues
from qgraph.reasons import UNKNOWN_TYPE, UNSUITED_WEIGHT, explained
from qgraph.records import dataclass
from qgraph.reports import SiteReport
from qgraph.transforms.base import selects
from qgraph.transforms.drafts.choice import label, opset_reason, refused
from qgraph.transforms.weights.channel_steps import ChannelAxis
from qgraph.transforms.weights.output_scale import Stuck, title
from qgraph.transforms.weights.scaled_weights import present

Plan = TypeVar("Plan")

_CONVOLUTIONS = ("Conv", "ConvTranspose")
OPERATORS = frozenset({*_CONVOLUTIONS, "Gemm", "MatMul"})
"""Operators that sum products of data and weights."""

_MOVES = RESHAPING | {"Identity", "MaxPool", "Transpose"}


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """An operator that sums products of data and constant weights.

    Attributes:
        node: Conv, ConvTranspose, Gemm or MatMul.
        ranks: ranks of the data and of the output.
    """

    node: ir.Node
    data: int
    weights: int
    shape: tuple[int, ...]
    ranks: tuple[int, int]
    dtype: ir.DataType

    @classmethod
    def of(cls, node: ir.Node, known: KnownValues, facts: Facts) -> WeightedSum | None:
        """Return the sum that a node computes; None if not exactly one operand is constant.

        Raises:
            Stuck: its shapes or types are unknown.
        """
        if node.op_type not in OPERATORS or node.domain or None in node.inputs[:2]:
            return None
        first, second = (known.has(present(node, index)) for index in (0, 1))
        if first == second or (first and node.op_type != "MatMul"):
            return None
        weights = 0 if first else 1
        fact = facts.get(present(node, weights), UNKNOWN)
        shape = [size for size in fact.shape or () if isinstance(size, int)]
        ranks = [facts.get(v, UNKNOWN).rank for v in (present(node, 1 - weights), node.outputs[0])]
        if node.op_type != "MatMul":
            ranks = [fact.rank, fact.rank]
        dtype = facts.get(node.outputs[0], UNKNOWN).dtype or fact.dtype
        if dtype is None or fact.shape is None or len(shape) < len(fact.shape) or None in ranks:
            text = f"type or shape of {title(node)} is unknown; run shape inference first"
            raise Stuck(UNKNOWN_TYPE(text))
        if len(shape) < 2:
            return None
        data, output = (rank or 0 for rank in ranks)
        return cls(node, 1 - weights, weights, tuple(shape), (data, output), dtype)

    @property
    def outputs(self) -> ChannelAxis:
        """The channels of the output."""
        rank, size = self.ranks[1], self.shape[self.output_axis]
        if self.node.op_type in _CONVOLUTIONS:
            groups = self.groups if self.node.op_type == "ConvTranspose" else 1
            return ChannelAxis(rank, 1, size * groups)
        return ChannelAxis(rank, rank - 1 if self.weights else rank - 2, size)

    @property
    def inputs(self) -> ChannelAxis:
        """The channels of the data."""
        rank, size = self.ranks[0], self.shape[self.input_axis]
        if self.node.op_type in _CONVOLUTIONS:
            groups = self.groups if self.node.op_type == "Conv" else 1
            return ChannelAxis(rank, 1, size * groups)
        is_last = bool(self.weights) and not self._flag("transA")
        return ChannelAxis(rank, rank - 1 if is_last else rank - 2, size)

    @property
    def groups(self) -> int:
        """The number of groups of a convolution."""
        return self.node.attributes.get_int("group", 1) or 1

    @property
    def output_axis(self) -> int:
        """The axis of the weights with the output channels, or those of one group."""
        if self.node.op_type in _CONVOLUTIONS:
            return 0 if self.node.op_type == "Conv" else 1
        is_last = self.weights == 1 and not self._flag("transB")
        return len(self.shape) - (1 if is_last else 2)

    @property
    def input_axis(self) -> int:
        """The axis of the weights with the channels of the data."""
        both = 1 if self.node.op_type in _CONVOLUTIONS else 2 * len(self.shape) - 3
        return both - self.output_axis

    def output_factor(self, factor: Float64) -> Float64:
        """Return factors of output channels in the shape that multiplies the weights."""
        return self._laid(factor, self.output_axis)

    def input_factor(self, factor: Float64) -> Float64:
        """Return factors of channels of the data in the shape that multiplies the weights."""
        return self._laid(factor, self.input_axis)

    def is_along_sums(self, factor: Float64) -> bool:
        """Return whether a factor of the weights varies within an output channel."""
        return any(size > 1 and i != self.output_axis for i, size in enumerate(factor.shape))

    def _laid(self, factor: Float64, axis: int) -> Float64:
        """Return factors along an axis of the weights, and along axis 0 for those of groups.

        Channels that lie on axis 1 of the weights are numbered by group first, and axis 0 has the
        groups one after another.
        """
        sizes = [1] * len(self.shape)
        if self.node.op_type in _CONVOLUTIONS and axis == 1:
            rows = factor.reshape(self.groups, -1)
            rows = rows.repeat(self.shape[0] // self.groups, axis=0)
            return rows.reshape(*rows.shape, *sizes[2:])
        sizes[axis] = -1
        return factor.reshape(sizes)

    def sums(self, offset: Float64, weights: Array, *, padded: bool = False) -> Float64:
        """Return what an offset of each channel of the data adds to the output channels.

        Args:
            offset: one number for each channel.
            weights: their decoded numbers.
            padded: whether to ignore padding; the sum is then that of positions inside.

        Raises:
            Stuck: the sum differs between positions of the output.
        """
        if self.node.op_type == "ConvTranspose" or (self._is_padded and not padded):
            raise Stuck(f"the positions of {title(self.node)} at its borders take other offsets in")
        if self.node.op_type == "MatMul" and len(self.shape) > 2:
            raise Stuck(f"the weights of {title(self.node)} have more than two axes")
        products = weights.astype(np.float64) * self.input_factor(offset)
        others = tuple(i for i in range(len(self.shape)) if i != self.output_axis)
        alpha = self.node.attributes.get_float("alpha", 1.0) if self.node.op_type == "Gemm" else 1.0
        return np.asarray(products.sum(axis=others) * np.float64(np.float32(alpha)))

    @property
    def _is_padded(self) -> bool:
        if self.node.op_type != "Conv":
            return False
        mode = self.node.attributes.get_string("auto_pad", "NOTSET")
        pads = self.node.attributes.get_ints("pads", ()) or ()
        return mode not in ("NOTSET", "VALID") or (mode == "NOTSET" and any(pads))

    @property
    def weights_value(self) -> ir.Value:
        """The weights."""
        return present(self.node, self.weights)

    @property
    def has_bias(self) -> bool:
        """Whether the operator adds a bias."""
        return self.node.op_type != "MatMul" and self.node.inputs[2:3] not in ((), (None,))

    def bias_values(self, known: KnownValues) -> Float64:
        """Return the numbers that are added, as they broadcast to the last axes of the output.

        Raises:
            Stuck: they are not constant.
        """
        if not self.has_bias:
            return np.zeros(1)
        value = present(self.node, 2)
        exact = _decoded(value)
        computed = known.array(value) if exact is None else exact
        if computed is None:
            raise Stuck(f"the bias of {title(self.node)} is computed at run time")
        beta = self.node.attributes.get_float("beta", 1.0) if self.node.op_type == "Gemm" else 1.0
        return np.asarray(computed.astype(np.float64) * np.float64(np.float32(beta)))

    def _flag(self, name: str) -> bool:
        return self.node.op_type == "Gemm" and bool(self.node.attributes.get_int(name, 0))


def plans_of(
    model: Model,
    nodes: str,
    plan: Callable[[ir.Node, KnownValues, Facts], Iterable[Plan | SiteReport]],
) -> Iterator[Plan | SiteReport]:
    """Yield the plans for operators whose names patterns select; refuse where one is Stuck."""
    facts = infer(model.ir)
    for owner in owners(model.ir):
        known = KnownValues.of(owner)
        for node in list(nodes_of(owner)):
            try:
                yield from plan(node, known, facts) if selects(nodes, label(node)) else ()
            except Stuck as stuck:
                yield refused(node, explained(stuck.reason, UNSUITED_WEIGHT))


def expect_opset(draft: Draft, limit: int, what: str = "one scale for each channel") -> None:
    """Discard a draft that needs an opset above the limit; Stuck if it does."""
    if draft.opset > limit:
        needed = draft.opset
        draft.discard()
        raise Stuck(opset_reason(what, needed, limit))


def decoders(node: ir.Node) -> tuple[ir.Node, ir.Node] | None:
    """Return the DequantizeLinear of the data and of the weights of a sum; None without both.

    Operators that only move codes may lie between the data and their DequantizeLinear.
    """
    if node.domain or node.op_type not in OPERATORS:
        return None
    pair = []
    for index in (0, 1):
        decoder = producer_of(node.inputs[index])
        while index == 0 and decoder is not None and decoder.op_type in _MOVES:
            decoder = producer_of(decoder.inputs[0])
        if decoder is None or decoder.op_type != "DequantizeLinear":
            return None
        pair.append(decoder)
    return pair[0], pair[1]


def _decoded(value: ir.Value) -> Float64 | None:
    """Return the exact values of DequantizeLinear of constants with one axis, else None."""
    node = value.producer()
    if node is None or node.op_type != "DequantizeLinear":
        return None
    codes, scale, zero = (constant_expression(v) for v in inputs_of(node, 3))
    has_zero = input_of(node, 2) is not None
    if codes is None or scale is None or (has_zero and zero is None) or codes.ndim != 1:
        return None
    points = 0.0 if zero is None else zero.astype(np.float64)
    return np.asarray((codes.astype(np.float64) - points) * scale.astype(np.float64))
