"""Multiples of which the numbers between two quantizers are, and their largest magnitudes.

If constants are multiplied by a power of two, so is the result of each operation, rounded or not,
as long as no number overflows or becomes subnormal. A sum, rounded or not, of multiples of a unit,
which is a power of two, is a multiple of it. So a number of a network is 0, or its magnitude is at
least the unit that follows from the constants and the codes. A bound that is not known is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import Facts
from qgraph.graph.schema import code_type
from qgraph.graph.scopes import input_of
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.ops.known_values import KnownValues, is_random
from qgraph.records import dataclass
from qgraph.transforms.weights.magnitudes import Magnitudes

_ROUNDED = 2.0**-25
"""Last bit of a rounded product or quotient of float32 numbers, relative to its magnitude.

It is less than 2**-23, because some bounds of magnitudes are themselves rounded.
"""

_DIGITS = 53
_ALPHA, _EPSILON = 0.01, 1e-5


@dataclass(frozen=True)
class Multiples:
    """Numbers that are multiples of a unit, up to a largest magnitude.

    Attributes:
        unit: a power of two of which all are multiples; infinite if all are 0.
        largest: at least the largest magnitude.
    """

    unit: float = np.inf
    largest: float = 0.0

    @classmethod
    def of(cls, array: Array) -> Multiples | None:
        """Return the bounds of constants; infinities remain what they are. None for NaN."""
        numbers = np.abs(array.astype(np.float64)).reshape(-1)
        if np.isnan(numbers).any():
            return None
        numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
        if not numbers.size:
            return cls()
        fractions, exponents = np.frexp(numbers)
        whole = np.ldexp(fractions, _DIGITS).astype(np.int64)
        units = np.ldexp((whole & -whole).astype(np.float64), exponents - _DIGITS)
        return cls(float(units.min()), float(numbers.max()))

    @property
    def is_zero(self) -> bool:
        """Whether all numbers are 0."""
        return self.unit == np.inf

    def joined(self, *others: Multiples) -> Multiples:
        """Return bounds of these and other numbers."""
        return Multiples(
            min(self.unit, *(each.unit for each in others)),
            max(self.largest, *(each.largest for each in others)),
        )

    def plus(self, *others: Multiples) -> Multiples:
        """Return bounds of sums with other numbers."""
        total = self.largest + sum(each.largest for each in others)
        return Multiples(self.joined(*others).unit, 2 * total)

    def times(self, other: Multiples, number: int = 1) -> Multiples:
        """Return bounds of sums of products with other numbers, whether rounded or not."""
        if self.is_zero or other.is_zero:
            return Multiples()
        growth = math.exp(min(number * 2.0**-23, 700.0))
        largest = self.largest * other.largest * number * growth * 2
        return Multiples(self.unit * other.unit, largest)

    def divided(self, number: float) -> Multiples:
        """Return bounds of rounded quotients by numbers between 1 and ``number``."""
        return Multiples(_power(self.unit / number * _ROUNDED), self.largest * 2)

    def may_overflow(self, factor: float) -> bool:
        """Return whether numbers, or their products with a factor, may become infinite."""
        return Magnitudes(self.unit, self.largest).may_overflow(factor)

    def may_underflow(self, factor: float) -> bool:
        """Return whether numbers, or their products with a factor, may become subnormal."""
        return Magnitudes(self.unit, self.largest).may_underflow(factor)


def _power(number: float) -> float:
    """Return the largest power of two up to a number, which may be infinite."""
    return math.ldexp(0.5, math.frexp(number)[1]) if 0 < number < math.inf else number


class MultiplesTracer:
    """Follows values back to constants and codes."""

    def __init__(self, model: ir.Model, facts: Facts) -> None:
        self._facts, self._imports = facts, model.opset_imports
        self._known = KnownValues.of(model.graph)
        self._bounds: dict[ir.Value, Multiples | None] = {}

    def numbers(self, value: ir.Value) -> Multiples | None:
        """Return bounds of a value, and of all numbers from which it was computed, or None.

        These are numbers up to codes, or up to the constants of the graph.
        """
        pending = [value]
        while pending:
            last = pending[-1]
            if last in self._bounds:
                pending.pop()
                continue
            node = last.producer()
            found = self._constant(last)
            if found is not None or node is None or node.op_type not in _RULES or node.domain:
                self._bounds[last] = _quantized(node) if found is None and node else found
                pending.pop()
                continue
            missing = [v for v in node.inputs if v is not None and v not in self._bounds]
            pending += missing
            if not missing:
                self._bounds[last] = self._computed(node)
                pending.pop()
        return self._bounds[value]

    def extent(self, value: ir.Value | None, axes: Iterable[int] | None) -> int | None:
        """Return the number of elements along some axes, or along all, if it is known."""
        shape = UNKNOWN.shape if value is None else self._facts.get(value, UNKNOWN).shape
        if shape is None:
            return None
        listed = range(len(shape)) if axes is None else list(axes)
        if not all(-len(shape) <= axis < len(shape) for axis in listed):
            return None
        chosen = [shape[axis] for axis in listed]
        sizes = [size for size in chosen if isinstance(size, int)]
        return math.prod(sizes) if len(sizes) == len(chosen) else None

    def count(self, value: ir.Value | None) -> int | None:
        """Return the number of elements of a value, if it is known."""
        array = constant_expression(value)
        return self.extent(value, None) if array is None else array.size

    def rank(self, value: ir.Value | None) -> int:
        """Return the number of axes of a value, 0 if it is not known."""
        return 0 if value is None else self._facts.get(value, UNKNOWN).rank or 0

    def _constant(self, value: ir.Value) -> Multiples | None:
        array = constant_expression(value)
        if array is None:
            array = self._known.array(value)
        is_number = array is not None and array.dtype.kind in "fiub"
        return Multiples.of(array) if array is not None and is_number else None

    def _computed(self, node: ir.Node) -> Multiples | None:
        """Return bounds of the result of an operator, joined with those of its operands."""
        if len(node.outputs) > 1 and node.outputs[1].uses():
            return None
        if is_random(node, self._imports):
            return None
        data = [None if value is None else self._bounds[value] for value in node.inputs]
        needed = [i for i in _NUMBERS.get(node.op_type, range(len(data))) if i < len(data)]
        present = [data[i] for i in needed if node.inputs[i] is not None]
        known = [each for each in present if each is not None]
        if len(known) < len(present) or not known:
            return None
        return _RULES[node.op_type](node, known, self)


def _quantized(node: ir.Node) -> Multiples | None:
    """Return bounds of decoded codes."""
    if node.op_type == "DequantizeLinear" and not node.domain:
        codes, scale = code_type(node), constant_expression(node.inputs[1])
        form = None if codes is None else FORMATS.get(codes.name)
        steps = None if scale is None else Multiples.of(scale)
        if not isinstance(form, IntFormat) or steps is None:
            return None
        return Multiples(steps.unit, steps.largest * (form.hi - form.lo))
    return _faked(node) if node.op_type == "FakeQuantize" else None


def _faked(node: ir.Node) -> Multiples | None:
    """Return bounds of what a FakeQuantize gives.

    It computes ``code / (levels - 1) * (high - low) + low``.
    """
    ends = [constant_expression(value) for value in node.inputs[3:5]]
    levels = node.attributes.get_int("levels", 0) or 0
    known = [end.astype(np.float64) for end in ends if end is not None]
    if len(known) < 2 or levels < 2:
        return None
    try:
        low, high = np.broadcast_arrays(*known)
    except ValueError:  # it cannot run either
        return None
    lows, widths = Multiples.of(low), np.abs(high - low)
    widths = widths[widths > 0]
    if lows is None or not np.isfinite(widths).all():
        return None
    if not widths.size:
        return lows
    unit = _power(float(widths.min()) / (levels - 1) * _ROUNDED)
    return Multiples(min(unit, lows.unit), 4 * max(lows.largest, float(np.abs(high).max())))


_Rule = Callable[[ir.Node, list[Multiples], MultiplesTracer], Multiples | None]
"""Computes the bounds of a result from those of the operands that are present."""


def _hull(node: ir.Node, data: list[Multiples], tracer: MultiplesTracer) -> Multiples:
    return data[0].joined(*data[1:]) if len(data) > 1 else data[0]


def _sum(node: ir.Node, data: list[Multiples], tracer: MultiplesTracer) -> Multiples:
    return data[0].plus(*data[1:])


def _layer(node: ir.Node, data: list[Multiples], tracer: MultiplesTracer) -> Multiples | None:
    """Return bounds of sums of products; each result has fewer than all factors."""
    number = min((n for v in node.inputs[:2] if (n := tracer.count(v)) is not None), default=None)
    if number is None:
        return None
    found = data[0].times(data[1], max(number, 1))
    get = node.attributes.get_float
    parts = [data[0], data[1], found]
    for name, part in zip(("alpha", "beta"), (found, *data[2:3]), strict=False):
        factor = Multiples.of(np.asarray(get(name, 1.0) if node.op_type == "Gemm" else 1.0))
        if factor is None:
            return None
        parts += [part, part.times(factor)]
    return parts[-1].plus(*parts)


def _product(node: ir.Node, data: list[Multiples], tracer: MultiplesTracer) -> Multiples:
    return data[0].times(data[1]).joined(*data)


def _quotient(node: ir.Node, data: list[Multiples], tracer: MultiplesTracer) -> Multiples | None:
    over, under = data
    if under.is_zero or over.is_zero:
        return None if under.is_zero else over.joined(under)
    unit = _power(over.unit / under.largest * _ROUNDED)
    found = Multiples(unit, over.largest / under.unit * 2)
    return found.joined(*data)


def _slope(node: ir.Node, data: list[Multiples], tracer: MultiplesTracer) -> Multiples | None:
    slopes = data[1] if len(data) > 1 else None
    if slopes is None:
        slopes = Multiples.of(np.asarray(node.attributes.get_float("alpha", _ALPHA), np.float32))
    return None if slopes is None else data[0].times(slopes).joined(data[0])


def _padded(node: ir.Node, data: list[Multiples], tracer: MultiplesTracer) -> Multiples | None:
    return None if "value" in node.attributes else _hull(node, data, tracer)


def _clip(node: ir.Node, data: list[Multiples], tracer: MultiplesTracer) -> Multiples | None:
    ends = [node.attributes.get_float(name, None) for name in ("min", "max")]
    bounds = [Multiples.of(np.asarray(end, np.float32)) for end in ends if end is not None]
    return _hull(node, [*data, *(each for each in bounds if each is not None)], tracer)


def _mean(node: ir.Node, data: list[Multiples], tracer: MultiplesTracer) -> Multiples | None:
    """Return bounds of sums and of means, of at most all elements of a sample or window."""
    if node.op_type == "AveragePool":
        number: int | None = math.prod(node.attributes.get_ints("kernel_shape", (0,)))
    elif node.op_type == "GlobalAveragePool":
        rank = tracer.rank(node.inputs[0])
        number = tracer.extent(node.inputs[0], range(2, rank))
    else:
        stated = constant_expression(input_of(node, 1))
        axes = node.attributes.get_ints("axes", None) if stated is None else stated.tolist()
        number = tracer.extent(node.inputs[0], axes or None)
    if not number:
        return None
    total = Multiples(data[0].unit, data[0].largest * number * 2)
    return total if node.op_type == "ReduceSum" else total.joined(total.divided(float(number)))


def _normalized(node: ir.Node, data: list[Multiples], tracer: MultiplesTracer) -> Multiples | None:
    """Return bounds of ``(x - mean) / sqrt(var + epsilon) * scale + bias``, in any form."""
    arrays = [constant_expression(input_of(node, index)) for index in (1, 4)]
    if any(array is None for array in arrays):
        return None
    scale, var = (a.astype(np.float64) for a in arrays if a is not None)
    epsilon = node.attributes.get_float("epsilon", _EPSILON) or 0.0
    roots = np.sqrt(np.maximum(var + epsilon, 0))
    if not (np.isfinite(roots) & (roots > 0)).all():
        return None
    factors = np.abs(scale) / roots
    shifted = data[0].plus(data[3])
    inverse = Magnitudes.of(1 / roots)
    steps = Magnitudes.of(factors)
    if steps.largest == 0:
        return _hull(node, data, tracer)
    # both the factor, or the normalized data, and the products with them are rounded
    unit = _power(shifted.unit * min(inverse.least, steps.least) * _ROUNDED**2)
    largest = shifted.largest * max(inverse.largest, steps.largest) * 2 + data[2].largest
    return Multiples(unit, 2 * largest).joined(*data, shifted)


_NUMBERS: dict[str, Iterable[int]] = {
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Expand", "Tile", "Slice"), (0,)),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), (0,)),
    **dict.fromkeys(("Gather", "Dropout"), (0,)),
    "Pad": (0, 2),
    "Where": (1, 2),
}
"""Operands that are numbers; all of them for other operators."""

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("Relu", "Neg", "Abs", "Identity", "Dropout", "Flatten", "Transpose"), _hull),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Expand", "Tile", "Slice"), _hull),
    **dict.fromkeys(("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Gather"), _hull),
    **dict.fromkeys(("Max", "Min", "Concat", "Where", "DepthToSpace", "SpaceToDepth"), _hull),
    **dict.fromkeys(("Add", "Sub", "Sum"), _sum),
    **dict.fromkeys(("Conv", "ConvTranspose", "MatMul", "Gemm"), _layer),
    **dict.fromkeys(("LeakyRelu", "PRelu"), _slope),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"), _mean),
    "Clip": _clip,
    "Pad": _padded,
    "Mul": _product,
    "Div": _quotient,
    "BatchNormalization": _normalized,
}
