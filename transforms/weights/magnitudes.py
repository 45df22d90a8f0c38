"""Magnitudes of the numbers that a convolution of codes computes, up to the quantizer after it.

If constants are multiplied by a power of two, so is the result of each float operation, in any
order of additions, fused or not, as long as no number overflows or becomes subnormal. A product of
two float32 numbers is a multiple of 2**-46 of its magnitude. So sums of products are 0, or at least
as large as 2**-46 of the smallest product.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import clip_limits, constant_expression, constant_tensor
from qgraph.graph.schema import code_type
from qgraph.graph.scopes import input_of, producer_of
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS
from qgraph.ops.known_values import KnownValues
from qgraph.quantizers.movement import copied_operands, moved_operands, unmoved
from qgraph.records import dataclass

_TINY = float(np.finfo(np.float32).tiny)
_MOST = 2.0**120
"""Largest magnitude of sums; kernels may add transformed data, which are somewhat larger."""

_LAST_BIT, _PRODUCT_BIT = 2.0**-23, 2.0**-46
"""The last bit of a float32 number, and of a product of two, relative to its magnitude."""

_ALPHA = 0.01


@dataclass(frozen=True)
class Magnitudes:
    """Bounds of the magnitudes of numbers.

    Attributes:
        least: at most the smallest magnitude of those that are not 0.
        largest: at least the largest magnitude.
    """

    least: float = np.inf
    largest: float = 0.0

    @classmethod
    def of(cls, array: Array) -> Magnitudes:
        """Return the magnitudes of constants; there are no bounds for NaN."""
        sizes = np.abs(array.astype(np.float64))
        if np.isnan(sizes).any():
            return cls(0.0, np.inf)
        least = sizes.min(initial=np.inf, where=sizes > 0)
        return cls(float(least), float(sizes.max(initial=0.0)))

    def joined(self, other: Magnitudes) -> Magnitudes:
        """Return the magnitudes of these and other numbers."""
        return Magnitudes(min(self.least, other.least), max(self.largest, other.largest))

    def times(self, other: Magnitudes) -> Magnitudes:
        """Return the magnitudes of rounded products with other numbers."""
        return Magnitudes(self.least * other.least / 2, self.largest * other.largest * 2)

    def may_overflow(self, factor: float) -> bool:
        """Return whether such numbers, or their products with a factor, may become infinite."""
        return not self.largest * max(factor, 1.0) <= _MOST

    def may_underflow(self, factor: float) -> bool:
        """Return whether such numbers, or their products with a factor, may become subnormal."""
        return not self.least * min(factor, 1.0) >= _TINY


def magnitudes_before(encode: ir.Node, layer: ir.Node, known: KnownValues) -> Magnitudes | None:
    """Return the magnitudes of weights and bias of a Conv, and of all results up to a quantizer.

    Between them are operators through which ``convolution_before`` finds the Conv. None if the
    magnitudes of data, weights, or operands of activation functions are not known.
    """
    data, weights = _of_data(layer.inputs[0]), _decoded(layer.inputs[1], known)
    added = np.zeros(1) if input_of(layer, 2) is None else _decoded(layer.inputs[2], known)
    if data is None or weights is None or not weights.size or added is None:
        return None
    between: list[ir.Node] = []
    node = producer_of(encode.inputs[0])
    while node is not None and node is not layer:
        between.append(node)
        node = producer_of(node.inputs[0])
    numbers: Magnitudes | None = _of_sums(data, weights, added)
    for node in reversed(between):
        numbers = None if numbers is None else _after(node, numbers)
    return None if numbers is None else numbers.joined(Magnitudes.of(weights))


def _of_sums(data: Magnitudes, weights: Array, bias: Array) -> Magnitudes:
    """Return the magnitudes of sums of products and a bias, and of each part of the sums."""
    rows = np.abs(weights.astype(np.float64)).reshape(len(weights), -1)
    factors, added = Magnitudes.of(weights), Magnitudes.of(bias)
    growth = math.exp(rows.shape[1] * _LAST_BIT)
    largest = (data.largest * float(rows.sum(axis=1).max()) + added.largest) * growth
    least = min(data.least * factors.least * _PRODUCT_BIT, added.least * _LAST_BIT)
    return Magnitudes(least, largest)


def _after(node: ir.Node, numbers: Magnitudes) -> Magnitudes | None:
    """Return the magnitudes of the results of an activation function, and of its data."""
    if node.op_type == "Clip":
        limits = clip_limits(node)
        if limits is None:
            return None
        low, high = limits
        results = Magnitudes.of(np.asarray([max(low, 0.0), min(high, 0.0)]))
        return numbers.joined(Magnitudes(Magnitudes.of(np.asarray(limits)).least, results.largest))
    if node.op_type == "LeakyRelu":
        slopes: Array | None = np.asarray(node.attributes.get_float("alpha", _ALPHA))
    elif node.op_type == "PRelu":
        slopes = constant_expression(node.inputs[1])
    else:
        return numbers
    return None if slopes is None else numbers.joined(numbers.times(Magnitudes.of(slopes)))


def _decoded(value: ir.Value | None, known: KnownValues) -> Array | None:
    """Return a stored constant, or decoded constant codes; None for other values.

    A factor in the constant, or in the scale of the codes, multiplies all of them.
    """
    source = unmoved(value)
    is_stored = constant_tensor(source) is not None
    if value is None or not (is_stored or producer_of(source, "DequantizeLinear")):
        return None
    return known.array(value)


def _of_data(value: ir.Value | None) -> Magnitudes | None:
    """Return the magnitudes of decoded codes, also behind operators that only move data."""
    found, seen, pending = Magnitudes(), set[ir.Value | None](), [value]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        node = producer_of(value)
        moved = [] if node is None else moved_operands(node) or copied_operands(node)
        part = None if node is None else _of_padding(node) if moved else _of_codes(node)
        if part is None:
            return None
        found = found.joined(part)
        pending += moved
    return found


def _of_padding(node: ir.Node) -> Magnitudes | None:
    """Return the magnitudes of what an operator that moves data adds to them."""
    stated = input_of(node, 2) if node.op_type == "Pad" else None
    number = np.zeros(1) if stated is None else constant_expression(stated)
    return None if number is None else Magnitudes.of(number)


def _of_codes(decode: ir.Node) -> Magnitudes | None:
    """Return the magnitudes of all codes that a DequantizeLinear may decode."""
    if decode.op_type != "DequantizeLinear" or decode.domain:
        return None
    codes, scale = code_type(decode), constant_expression(decode.inputs[1])
    if codes is None or not codes.is_integer() or scale is None:
        return None
    steps, form = Magnitudes.of(scale), FORMATS[codes.name]
    return Magnitudes(steps.least, steps.largest * (form.hi - form.lo))
