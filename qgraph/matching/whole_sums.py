"""Sums of products of whole numbers: codes less their zero points, and a bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.foreign.rescaling import EXACT_IN_FLOAT32
from qgraph.foreign.sums import conv_attributes
from qgraph.graph.edit import Draft
from qgraph.graph.folding import constant_expression

Array = npt.NDArray[Any]

CODES = (ir.DataType.INT8, ir.DataType.UINT8)
_WRAPS = 1 << 31


@dataclass(frozen=True, eq=False)
class Factor:
    """Codes less their zero point.

    Attributes:
        codes: int8 or uint8.
        zero_point: of their type, so that it broadcasts to them; a value where it is computed.
    """

    codes: ir.Value
    zero_point: Array | ir.Value

    @property
    def reach(self) -> int:
        """How far codes can be from their zero point."""
        limits = np.iinfo(_type_of(self.codes).numpy())
        if isinstance(self.zero_point, ir.Value):
            return int(limits.max - limits.min)
        low, high = int(self.zero_point.min()), int(self.zero_point.max())
        return max(high - int(limits.min), int(limits.max) - low)

    @property
    def distances(self) -> Array | None:
        """How far codes that are known are from their zero point."""
        known = constant_expression(self.codes)
        if known is None or isinstance(self.zero_point, ir.Value):
            return None
        return np.abs(known.astype(np.int64) - self.zero_point.astype(np.int64))

    @property
    def stored_zero_point(self) -> Array | ir.Value | None:
        """The zero point as operators on codes take it; None where it is 0."""
        zero = self.zero_point
        if isinstance(zero, ir.Value):
            return zero
        return None if not zero.any() else zero if zero.size == 1 else zero.reshape(-1)

    def draft(self, draft: Draft, to: ir.DataType) -> ir.Value:
        """Write the whole numbers in type ``to``."""
        whole = cast(draft, self.codes, to)
        zero = self.zero_point
        if isinstance(zero, ir.Value):
            return draft.node("Sub", [whole, cast(draft, zero, to)], dtype=to)
        if not zero.any():
            return whole
        return draft.node("Sub", [whole, zero.astype(to.numpy())], dtype=to)


@dataclass(frozen=True, eq=False)
class Sum:
    """A sum of products of whole numbers.

    Attributes:
        node: a Conv, MatMul or Gemm, or the operator on codes that stands for one.
        kind: which of the three.
        a, b: its factors.
        bias: int32, added to the sums.
    """

    node: ir.Node
    kind: str
    a: Factor
    b: Factor
    bias: ir.Value | Array | None = None

    @property
    def bound(self) -> int | None:
        """The largest sum and partial sum, bias aside, in size; None where it is not known."""
        far = self.b.distances
        if far is not None:
            axes: Any = tuple(range(1, far.ndim)) if self.kind == "Conv" else self._depth_axis
            return int(far.sum(axis=axes).max(initial=0)) * self.a.reach
        shape = self.b.codes.shape
        if shape is None or not all(isinstance(size, int) for size in shape):
            return None
        sizes = [int(size) for size in shape]  # type: ignore[arg-type]
        depth = int(np.prod(sizes[1:])) if self.kind == "Conv" else sizes[self._depth_axis]
        return depth * self.a.reach * self.b.reach

    @property
    def largest(self) -> int | None:
        """The largest sum and partial sum in size; None where it is not known."""
        bound, bias = self.bound, self.bias
        if bound is None or bias is None:
            return bound
        known = bias if isinstance(bias, np.ndarray) else constant_expression(bias)
        return None if known is None else bound + int(np.abs(known.astype(np.int64)).max(initial=0))

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
        """The factors of a Gemm that are transposed."""
        names = ("transA", "transB")
        given = {name: self.node.attributes.get_int(name, 0) for name in names}
        return {name: 1 for name, value in given.items() if value}

    @property
    def _depth_axis(self) -> int:
        if self.kind == "Gemm" and self.transposed.get("transB"):
            return 1
        return -2 if len(self.b.codes.shape or ()) > 1 else 0

    def draft(self, draft: Draft, kind: ir.DataType) -> ir.Value:
        """Write the sum in a type that holds all of them."""
        factors = [self.a.draft(draft, kind), self.b.draft(draft, kind)]
        bias = draft.constant(self.bias) if isinstance(self.bias, np.ndarray) else self.bias
        added = None if bias is None else cast(draft, bias, kind)
        if self.kind == "Conv":
            operands = factors if added is None else [*factors, added]
            return draft.node("Conv", operands, conv_attributes(self.node), dtype=kind)
        if self.kind == "Gemm" and self.transposed:
            operands = factors if added is None else [*factors, added]
            return draft.node("Gemm", operands, self.transposed, dtype=kind)
        total = draft.node("MatMul", factors, dtype=kind)
        return total if added is None else draft.node("Add", [total, added], dtype=kind)

    def draft_integers(self, draft: Draft) -> ir.Value:
        """Write the sum as int32, by the standard operator that has it."""
        zeros = [self.a.stored_zero_point, self.b.stored_zero_point]
        while zeros and zeros[-1] is None:
            zeros.pop()
        name = "ConvInteger" if self.kind == "Conv" else "MatMulInteger"
        attributes = conv_attributes(self.node) if self.kind == "Conv" else {}
        operands = [self.a.codes, self.b.codes, *zeros]
        total = draft.node(name, operands, attributes, dtype=ir.DataType.INT32)
        known = self.bias if isinstance(self.bias, np.ndarray) else constant_expression(self.bias)
        if known is None:
            return total
        if self.kind == "Conv":
            known = known.reshape(-1, *(1,) * (len(self.b.codes.shape or ()) - 2))
        return draft.node("Add", [total, known], dtype=ir.DataType.INT32)


def has_factors_alone(node: ir.Node) -> bool:
    """Return whether a product has no factors besides its two: those of a Gemm are 1."""
    names = ("alpha", "beta") if node.op_type == "Gemm" else ()
    return all(node.attributes.get_float(name, 1.0) == 1 for name in names)


def cast(draft: Draft, value: ir.Value, to: ir.DataType) -> ir.Value:
    """Draft a Cast where the type is another."""
    if value.dtype == to:
        return value
    return draft.node("Cast", [value], {"to": to.value}, dtype=to)


def _type_of(value: ir.Value) -> ir.DataType:
    if value.dtype is None:
        raise ValueError("the type of codes is not known")
    return value.dtype
