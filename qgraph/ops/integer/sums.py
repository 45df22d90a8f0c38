"""Sums of products of codes: how large they get, and how to write them in standard operators.

    sum = (a - z_a) @ (b - z_b) + bias              MatMul, Gemm, or Conv in place of @

Codes minus their zero points are whole numbers. A floating-point type adds them without rounding,
in any order, as long as no partial sum leaves the range in which it holds every whole number:
2**24 for float32, 2**53 for float64. int32 holds all sums modulo 2**32, as the operators do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Operand
from qgraph.numerics import Array
from qgraph.ops.composite import cast
from qgraph.records import dataclass

Parameter = Array | ir.Value
"""A constant that broadcasts to what it applies to, or a value that will have one element."""

CODES = (ir.DataType.INT8, ir.DataType.UINT8)
KINDS = ("Conv", "Gemm", "MatMul")

EXACT_IN_FLOAT32 = 1 << 24
"""float32 holds all whole numbers up to here, so sums that stay below are exact."""

_WRAPS = 1 << 31
_ONE = np.ones((), np.float32)
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


@dataclass(frozen=True, eq=False)
class Factor:
    """Codes and the parameters that decode them.

    Attributes:
        codes: int8 or uint8.
        dtype: of the codes.
        zero_point: of the same type, aligned to the codes; None for 0.
        scale: float32, aligned to the sums; None if there is none.
        axis: of the codes, along which zero point or scale differ; None if they do not.
    """

    codes: ir.Value
    dtype: np.dtype[Any]
    zero_point: Parameter | None = None
    scale: Parameter | None = None
    axis: int | None = None

    @property
    def known(self) -> Array | None:
        """The codes if they are constant."""
        return constant_expression(self.codes)

    @property
    def reach(self) -> int:
        """The largest distance of a code from its zero point."""
        limits = np.iinfo(self.dtype)
        if isinstance(self.zero_point, ir.Value):
            return limits.max - limits.min
        zero = np.zeros(()) if self.zero_point is None else self.zero_point
        return max(int(zero.max()) - limits.min, limits.max - int(zero.min()))

    @property
    def stored_zero_point(self) -> Parameter | None:
        """The zero point as the standard operators take it: without axes, or one axis."""
        return _flat(self.zero_point)

    @property
    def stored_parameters(self) -> tuple[Array, Array]:
        """Scale and zero point, both constant, in one shape.

        Raises:
            ValueError: one of them is not constant.
        """
        scale, zero = _flat(self.scale), _flat(self.zero_point)
        if scale is None or isinstance(scale, ir.Value) or isinstance(zero, ir.Value):
            raise ValueError("a scale or zero point is not constant")
        point = np.zeros((), self.dtype) if zero is None else zero
        shape = np.broadcast_shapes(scale.shape, point.shape)
        return np.broadcast_to(scale, shape).copy(), np.broadcast_to(point, shape).copy()

    def draft_difference(self, draft: Draft, to: ir.DataType) -> ir.Value:
        """Draft the codes minus their zero point, as whole numbers of type ``to``."""
        whole, zero = cast(draft, self.codes, to), self.zero_point
        if zero is None:
            return whole
        if isinstance(zero, ir.Value):
            return draft.node("Sub", [whole, cast(draft, zero, to)], dtype=to)
        constant = draft.constant(zero.astype(to.numpy()), "zero_point")
        return draft.node("Sub", [whole, constant], dtype=to)

    def draft_reals(self, draft: Draft) -> ir.Value:
        """Draft the real numbers that the codes stand for, by DequantizeLinear."""
        scale: Parameter = _ONE if self.scale is None else self.scale
        zero = self.zero_point
        if self.axis is not None and isinstance(scale, np.ndarray):
            flat = scale.reshape(-1)
            count = max(flat.size, zero.size if isinstance(zero, np.ndarray) else 1)
            scale = np.broadcast_to(flat, (count,)).copy()
            if isinstance(zero, np.ndarray):
                zero = np.broadcast_to(zero.reshape(-1), (count,)).copy()
        elif zero is not None:
            scale, zero = of_one_shape(scale, zero)
        return dequantize(draft, self.codes, scale, zero, self.axis)

    def check_one_axis(self) -> None:
        """Raise a ValueError if DequantizeLinear cannot have these parameters."""
        parameters = [p for p in (self.zero_point, self.scale) if p is not None]
        for parameter in parameters:
            if not isinstance(parameter, np.ndarray) or parameter.size == 1:
                continue
            if parameter.size != max(parameter.shape):
                raise ValueError(
                    f"a parameter has shape {list(parameter.shape)}; DequantizeLinear has one "
                    "scale for each index of one axis"
                )
        if self.axis is not None and len({isinstance(p, ir.Value) for p in parameters}) > 1:
            raise ValueError("its scale and zero point are not both constant; fold constants first")


@dataclass(frozen=True, eq=False)
class Sum:
    """A sum of products of whole numbers.

    Attributes:
        node: a Conv, MatMul or Gemm, or an operator on codes that stands for one.
        kind: which of the three.
        bias: int32, added to the sums.
    """

    node: ir.Node
    kind: str
    a: Factor
    b: Factor
    bias: Parameter | None = None

    @property
    def bound(self) -> int | None:
        """The largest magnitude of a sum without bias; None if the depth is unknown.

        Partial sums do not exceed it either, in whatever order they are added.
        """
        weights, zero = self.b.known, self.b.zero_point
        if weights is not None and not isinstance(zero, ir.Value):
            far = np.abs(weights.astype(np.int64) - (0 if zero is None else zero.astype(np.int64)))
            axes = tuple(range(1, far.ndim)) if self.kind == "Conv" else self._depth_axis(far.ndim)
            return int(far.sum(axis=axes).max(initial=0)) * self.a.reach
        depth = self._depth
        return None if depth is None else depth * self.a.reach * self.b.reach

    @property
    def largest(self) -> int | None:
        """The largest magnitude of a sum with bias; None if it is unknown."""
        bound, bias = self.bound, self.bias
        array = constant_expression(bias) if isinstance(bias, ir.Value) else bias
        if bound is None or (array is None and bias is not None):
            return None
        return bound + (0 if array is None else int(np.abs(array.astype(np.int64)).max(initial=0)))

    @property
    def size(self) -> str:
        """What is known of the largest sum, in words that follow "the sums"."""
        largest = self.largest
        return "are not known" if largest is None else f"may reach {largest}"

    @property
    def exact_type(self) -> ir.DataType | None:
        """The type that holds all sums; None if only int32 does, in which they wrap around.

        No runtime has a Conv of float64.
        """
        largest = self.largest
        if largest is not None and largest < EXACT_IN_FLOAT32:
            return ir.DataType.FLOAT
        if largest is not None and largest < _WRAPS and self.kind != "Conv":
            return ir.DataType.DOUBLE
        return None

    @property
    def transposed(self) -> dict[str, int]:
        """The attributes of a Gemm that transpose its factors, if it does."""
        names = ("transA", "transB") if self.kind == "Gemm" else ()
        return {name: 1 for name in names if self.node.attributes.get_int(name, 0) != 0}

    @property
    def integer_operator(self) -> str:
        """The standard operator that has the sums as int32."""
        return "ConvInteger" if self.kind == "Conv" else "MatMulInteger"

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the Conv or Gemm that sums likewise."""
        return conv_attributes(self.node) if self.kind == "Conv" else self.transposed

    def draft_sums(self, draft: Draft, to: ir.DataType) -> ir.Value:
        """Draft the sums as whole numbers of type ``to``, which must hold them."""
        operands = [factor.draft_difference(draft, to) for factor in (self.a, self.b)]
        if self.bias is not None:
            operands.append(cast(draft, draft_value(draft, self.bias), to))
        if self.kind == "Conv" or self.transposed:
            return draft.node(self.kind, operands, self.attributes, dtype=to)
        total = draft.node("MatMul", operands[:2], dtype=to)
        return draft.node("Add", [total, operands[2]], dtype=to) if self.bias is not None else total

    def draft_int32(self, draft: Draft) -> ir.Value:
        """Draft the sums as int32, by the standard operator that has them."""
        dtype = ir.DataType.INT32
        zeros = [self.a.stored_zero_point, self.b.stored_zero_point]
        operands = without_trailing_none([self.a.codes, self.b.codes, *zeros])
        total = draft.node(self.integer_operator, operands, self.attributes, dtype=dtype)
        bias = self.bias
        if bias is None:
            return total
        if self.kind == "Conv":
            spatial = max(len(self.b.codes.shape or ()) - 2, 0)
            shape = draft.constant(np.array([-1] + [1] * spatial, np.int64))
            bias = draft.node("Reshape", [bias, shape], dtype=dtype)
        return draft.node("Add", [total, bias], dtype=dtype)

    @property
    def _depth(self) -> int | None:
        """How many products a sum has."""
        weights = list(self.b.codes.shape or ())
        if self.kind == "Conv":
            sizes = [size for size in weights[1:] if isinstance(size, int)]
            return math.prod(sizes) if weights and len(sizes) == len(weights) - 1 else None
        rows = list(self.a.codes.shape or ())
        lengths = [rows[0 if self.transposed.get("transA") else -1]] if rows else []
        lengths += [weights[self._depth_axis(len(weights))]] if weights else []
        return next((size for size in lengths if isinstance(size, int)), None)

    def _depth_axis(self, rank: int) -> int:
        return 0 if rank == 1 else -1 if self.transposed.get("transB") else -2


def conv_attributes(node: ir.Node) -> dict[str, Any]:
    """Return the attributes of ``node`` that Conv has too."""
    return {k: v.value for k, v in node.attributes.items() if k in _CONV and not v.is_ref()}


def without_trailing_none(operands: list[Operand | None]) -> list[Operand | None]:
    """Return operands without the absent optional ones at the end."""
    while operands and operands[-1] is None:
        operands.pop()
    return operands


def dequantize(
    draft: Draft, codes: ir.Value, scale: Operand, zero: Parameter | None, axis: int | None
) -> ir.Value:
    """Draft a DequantizeLinear."""
    attributes = {} if axis is None else {"axis": axis}
    operands = without_trailing_none([codes, scale, zero])
    return draft.node("DequantizeLinear", operands, attributes, dtype=ir.DataType.FLOAT)


def of_one_shape(scale: Parameter, zero: Parameter) -> tuple[Parameter, Parameter]:
    """Return scale and zero point; a constant gets the shape of the other one, if that is none."""
    if isinstance(scale, np.ndarray) and isinstance(zero, ir.Value):
        return scale.reshape(ones_of(zero)), zero
    if isinstance(scale, ir.Value) and isinstance(zero, np.ndarray):
        return scale, zero.reshape(ones_of(scale))
    return scale, zero


def ones_of(value: Parameter) -> tuple[int, ...]:
    """Return the shape of a parameter of one element; a constant has none."""
    return (1,) * len(value.shape or ()) if isinstance(value, ir.Value) else ()


def _flat(parameter: Parameter | None) -> Parameter | None:
    """Return a parameter of one axis as a vector."""
    if isinstance(parameter, np.ndarray) and 1 < parameter.size == max(parameter.shape):
        return parameter.reshape(-1)
    return parameter


def draft_value(draft: Draft, operand: Operand) -> ir.Value:
    """Return an operand as a value of the draft."""
    return operand if isinstance(operand, ir.Value) else draft.constant(operand)
