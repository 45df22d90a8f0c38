"""Multiply weights by factors per channel, in the constants that they are computed from.

Stored codes do not change, and the scale of their DequantizeLinear is multiplied:
``DequantizeLinear(codes, s) * f`` is ``DequantizeLinear(codes, s * f)``. New nodes and constants
are drafted, so that other users of the weights keep the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.graph.constants import constant_expression, constant_tensor
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import Facts
from qgraph.graph.scopes import input_of, inputs_of
from qgraph.numerics import Array, Float64, Mask
from qgraph.ops.known_values import KnownValues
from qgraph.ops.operator import is_defined, operator_of
from qgraph.ops.steps import FLOATS
from qgraph.reasons import FAULTY_SCALE, UNKNOWN_TYPE
from qgraph.records import dataclass, field
from qgraph.transforms.weights.output_scale import Stuck, title

AXIS_SINCE = 13
"""The opset since which DequantizeLinear has a scale for each index of an axis."""

_ROUNDINGS = 2.0**-20
"""Bound of the relative error of a few float32 roundings."""

_MOST_STEPS = 1 << 18
"""Largest code whose relative distance to the next code exceeds such errors."""


class NegativeFactor(Choice):
    """Treatment of negative factors."""

    SCALES = "scales"
    CODES = "codes"


@dataclass(frozen=True)
class WeightScaling:
    """Multiplies weights in a draft.

    Attributes:
        draft: gets the new nodes and constants.
        known: the constants of the model.
        negative: whether negative factors make scales negative, or negate the codes.
        copies: the old node of each new one.
        sources: the operators before and around the constants that were multiplied.
    """

    draft: Draft
    known: KnownValues
    facts: Facts
    negative: NegativeFactor
    copies: dict[ir.Node, ir.Node] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)

    def scaled(self, value: ir.Value, factor: Float64) -> ir.Value:
        """Return ``value * factor`` as an operand of drafted nodes.

        The value is computed from constants; the factor has its rank, and broadcasts to its shape.

        Raises:
            Stuck: no constant absorbs the factor.
        """
        if constant_tensor(value) is not None:
            before = real_constant(value, "its weight")
            self.sources.append("float weights")
            return self.constant(rounded(_wide(before) * factor, before.dtype, "a weight"))
        node = value.producer()
        is_known = node is not None and (not node.domain or is_defined(node))
        rule = _RULES.get(node.op_type) if node is not None and is_known else None
        if node is None or rule is None or value is not node.outputs[0]:
            source = f"{value.name!r}" if node is None else title(node)
            raise Stuck(
                f"its weights come from {source}, which has no constant scale; run "
                "-p convert{to=qdq} first"
            )
        return rule(self, node, factor)

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """Return the shape of a value; Stuck if it is not known."""
        shape = None if value is None else self.facts.get(value, UNKNOWN).shape
        numbers = [size for size in shape or () if isinstance(size, int)]
        if shape is None or len(numbers) < len(shape):
            name = None if value is None else value.name
            raise Stuck(UNKNOWN_TYPE(f"the shape of {name!r} is unknown; infer shapes first"))
        return tuple(numbers)

    def constant(self, array: Array, name: str = "scaled") -> ir.Value:
        """Return an operand of drafted nodes that keeps its type."""
        with self.draft.in_float32():
            return self.draft.constant(array, name)

    def _again(self, node: ir.Node, operands: Sequence[Operand | None], **more: int) -> ir.Value:
        """Append a node with other operands, and maybe attributes."""
        self.sources.append(node.op_type)
        again = self.draft.copy(node, operands, more)
        again.type, again.shape = node.outputs[0].type, node.outputs[0].shape
        self.copies[self.draft.nodes[-1]] = node
        return again

    def _parameter(
        self, node: ir.Node, index: int, factor: Float64, *, inverse: bool = False
    ) -> Array:
        """Return an operand of a node times a factor, or divided by it."""
        before = real_constant(node.inputs[index], f"input {index} of {title(node)}")
        by = factor if factor.size > 1 else factor.reshape(())
        product = _wide(before) / by if inverse else _wide(before) * by
        # An end of a range may be zero, but no scale.
        nonzero = node.op_type != "FakeQuantize" or (before != 0)
        return rounded(product, before.dtype, "the scale", normal=nonzero)

    def _move(self, node: ir.Node, factor: Float64) -> ir.Value:
        """``Transpose(w) * f = Transpose(w * g)`` with ``f = Transpose(g)``; also other moves."""
        source = present(node, 0)
        if node.op_type == "Transpose":
            order = node.attributes.get("perm")
            axes = range(factor.ndim)[::-1] if order is None else order.as_ints()
            moved = factor.transpose(np.argsort(list(axes)))
        else:
            whole = np.broadcast_to(factor, self.shape(node.outputs[0]))
            moved = compact(whole.reshape(self.shape(source)))
        return self._again(node, [self.scaled(source, moved), *node.inputs[1:]])

    def _dequantize(self, node: ir.Node, factor: Float64) -> ir.Value:
        """``(codes - z) * s * f``; one scale for a tensor becomes one for each channel."""
        codes, zero = present(node, 0), input_of(node, 2)
        before = real_constant(node.inputs[1], f"the scale of {title(node)}")
        axis = (node.attributes.get_int("axis", 1) or 0) % max(factor.ndim, 1)
        varying = [i for i, size in enumerate(factor.shape) if size > 1]
        more: dict[str, int] = {}
        if node.attributes.get_int("block_size", 0):
            if axis in varying:
                raise Stuck(
                    f"the blocks of {title(node)} lie along the axis of the factors; quantize the "
                    "weights per channel"
                )
            product = _wide(before) * factor
        elif not varying:
            product = _wide(before) * factor.reshape(())
        elif len(varying) > 1 or (before.size > 1 and varying != [axis]):
            along = f"axis {axis}" if before.size > 1 else "one axis at most"
            raise Stuck(
                f"its factors vary along axis {' and '.join(map(str, varying))} of the weights, "
                f"and the scales of {title(node)} along {along}"
            )
        else:
            product = _wide(before).reshape(-1) * factor.reshape(-1)
            if before.size == 1:
                self.draft.needs(AXIS_SINCE)
                axis = more["axis"] = varying[0]
                zero = self._spread(node, zero, product.size)
        if self.negative is NegativeFactor.CODES and (product < 0).any():
            codes, product = self._negated(node, np.sign(product), axis), np.abs(product)
        scales = rounded(product, before.dtype, "the scale", normal=True)
        dtype = codes.dtype
        if zero is None and dtype is not None and dtype.is_integer() and "block_size" not in more:
            # ONNX Runtime moves a pair without a zero point over Transpose with another type.
            zero = self.constant(np.zeros(scales.shape, dtype.numpy()), "zero_point")
        return self._again(node, [codes, self.constant(scales, "scale"), zero], **more)

    def _spread(self, node: ir.Node, zero: ir.Value | None, size: int) -> ir.Value | None:
        """Return a zero point for each channel instead of one for the tensor."""
        if zero is None:
            return None
        array = constant_expression(zero)
        if array is None:
            raise Stuck(
                f"the zero point of {title(node)} is computed at run time; run -p fold-constants "
                "first, if it follows from constants"
            )
        return self.constant(np.repeat(array.reshape(-1), size), "zero_point")

    def _negated(self, node: ir.Node, signs: Float64, axis: int) -> ir.Value:
        """Return the codes; in channels with a negative sign, ``2 * zero_point - codes``."""
        codes, zero = (constant_expression(v) for v in inputs_of(node, 3)[::2])
        has_zero = input_of(node, 2) is not None
        if codes is None or (has_zero and zero is None) or signs.ndim > 1:
            raise Stuck(f"the codes of {title(node)} cannot be negated; use negative=scales")
        sizes = [-1 if i == axis else 1 for i in range(codes.ndim)]
        points = np.zeros(1) if zero is None else zero.astype(np.float64)
        points, signs = (a.reshape(sizes if a.size > 1 else ()) for a in (points, signs))
        before = codes.astype(np.float64)
        wanted = np.where(signs < 0, 2 * points - before, before)
        with np.errstate(all="ignore"):
            negated = wanted.astype(codes.dtype)
        wrong = negated.astype(np.float64) != wanted
        if wrong.any():
            first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            raise Stuck(
                f"the factor of channel {first[axis]} is negative, and code {before[first]:g} of "
                f"{title(node)} would become {wanted[first]:g}, which is no {codes.dtype}; use "
                f"negative=scales"
            )
        return self.constant(negated, "codes")

    def _fake_quantize(self, node: ir.Node, factor: Float64) -> ir.Value:
        """Multiply both ends of the output range."""
        self._check_signs(node, factor)
        ends = [self.constant(self._parameter(node, i, factor), "range") for i in (3, 4)]
        return self._again(node, [*node.inputs[:3], *ends])

    def _requantize(self, node: ir.Node, factor: Float64) -> ir.Value:
        """``Quant(w, s) * f = Quant(Quant(w, s) * f, s * f)``: the data are multiples of the scale.

        BipolarQuant does not divide, so its data stay.
        """
        self._check_signs(node, factor)
        scale = self._parameter(node, 1, factor)
        operands = [*node.inputs[:1], self.constant(scale, "scale"), *node.inputs[2:]]
        if node.op_type != "BipolarQuant":
            decoded = self.known.array(node.outputs[0])
            if decoded is None:
                raise Stuck(
                    f"{title(node)} has operands that are computed at run time; run "
                    "-p fold-constants first, if they follow from constants"
                )
            data = rounded(_wide(decoded) * factor, decoded.dtype, "a weight")
            self._check_codes(node, decoded, [data, scale, *map(self._known, node.inputs[2:])])
            operands[0] = self.constant(data, "weight")
        return self._again(node, operands)

    def _check_codes(self, node: ir.Node, before: Array, operands: Sequence[Array | None]) -> None:
        """Raise Stuck unless a quantizer gives equal codes for its old and new operands."""
        operator, scale = operator_of(node), self._known(node.inputs[1])
        if operator is None or scale is None or operands[1] is None:
            raise Stuck(f"{title(node)} has no kernel; run -p convert{{to=qdq}} first")
        after = operator.run(node, operands)
        with np.errstate(all="ignore"):
            was, now = (
                _wide(decoded) / _wide(step)
                for decoded, step in ((before, scale), (after, operands[1]))
            )
            is_same = np.abs(now - was) <= _ROUNDINGS * np.maximum(np.abs(was), 1)
        if not is_same.all() or np.abs(was).max(initial=0) > _MOST_STEPS:
            raise Stuck(
                f"codes of {title(node)} would change with its scale; run -p fold-weights first, "
                f"which stores codes"
            )

    def _product(self, node: ir.Node, factor: Float64) -> ir.Value:
        """``(codes * s) * f = codes * (s * f)``; also a quotient by a constant."""
        inverse = node.op_type == "Div"
        for index in (1,) if inverse else (1, 0):
            if constant_expression(node.inputs[index]) is not None:
                operands: list[Operand | None] = list(node.inputs)
                scale = self._parameter(node, index, factor, inverse=inverse)
                operands[index] = self.constant(scale, "scale")
                return self._again(node, operands)
        raise Stuck(
            f"its weights come from {title(node)}, which has no constant scale; run "
            "-p convert{to=qdq} first"
        )

    def _known(self, value: ir.Value | None) -> Array | None:
        return None if value is None else self.known.array(value)

    def _check_signs(self, node: ir.Node, factor: Float64) -> None:
        if self.negative is NegativeFactor.CODES and (factor < 0).any():
            raise Stuck(
                f"some factors are negative, and {title(node)} has no stored codes to negate; run "
                f"-p fold-weights first, or use negative=scales"
            )


def compact(factor: Float64) -> Float64:
    """Return a factor of the same rank with length 1 on each axis on which it is constant."""
    for axis, size in enumerate(factor.shape):
        first = factor.take([0], axis) if size > 1 else factor
        factor = first if (factor == first).all() else factor
    return factor


def rounded(exact: Array, dtype: np.dtype[Any], what: str, *, normal: Mask | bool = False) -> Array:
    """Return float64 numbers in another floating type, each rounded once.

    Raises:
        Stuck: a number is not finite in the type, or zero or subnormal where it must be ``normal``.
    """
    wide = np.asarray(exact, np.float64)
    with np.errstate(all="ignore"):
        narrow = (_to_odd(wide) if dtype == ml_dtypes.bfloat16 else wide).astype(dtype)
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    tiny = np.abs(_wide(narrow)) < float(limits.smallest_normal)
    faulty = ~np.isfinite(narrow) | (tiny & normal)
    if faulty.any():
        first = [int(i) for i in np.unravel_index(int(np.argmax(faulty)), faulty.shape)]
        channel = f" at index {first}" if first else ""
        raise Stuck(
            FAULTY_SCALE(f"{what}{channel} would be {wide[tuple(first)]:g}, no normal {dtype}")
        )
    return narrow


def _to_odd(exact: Float64) -> Array:
    """Return float32 numbers that round to 16 bits as the exact ones do."""
    narrow = exact.astype(np.float32)
    beyond = np.abs(narrow) > np.abs(exact)
    narrow = np.where(beyond, np.nextafter(narrow, np.float32(0)), narrow)
    return np.asarray(narrow.view(np.uint32) | (narrow != exact), np.uint32).view(np.float32)


def real_constant(value: ir.Value | None, what: str) -> Array:
    """Return a constant of floats; Stuck if it is no constant, or has another type."""
    array = constant_expression(value)
    if array is None or array.dtype not in FLOATS:
        described = "computed at run time" if array is None else array.dtype
        raise Stuck(f"{what} is {described}, expected a float constant")
    return array


def _wide(array: Array) -> Float64:
    return array.astype(np.float64)


def present(node: ir.Node, index: int) -> ir.Value:
    """Return an input of a node; Stuck if it is absent."""
    value = node.inputs[index]
    if value is None:
        raise Stuck(f"{title(node)} has no input {index}")
    return value


_RULES: Mapping[str, Callable[[WeightScaling, ir.Node, Float64], ir.Value]] = {
    **dict.fromkeys(
        ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"), WeightScaling._move
    ),
    "DequantizeLinear": WeightScaling._dequantize,
    "FakeQuantize": WeightScaling._fake_quantize,
    "Div": WeightScaling._product,
    "Mul": WeightScaling._product,
    **dict.fromkeys(("Quant", "IntQuant", "BipolarQuant", "FloatQuant"), WeightScaling._requantize),
}
