"""Operators that sum products of codes, read into one form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.foreign.kernels import MICROSOFT
from qgraph.foreign.operands import (
    Operand,
    Parameter,
    Place,
    read_operand,
    read_parameter,
    refuse_references,
)
from qgraph.graph.folding import constant_expression
from qgraph.graph.schema import OpKey

Array = npt.NDArray[Any]


ONE = np.float32(1)


class Result(StrEnum):
    """What an operator makes of its sums."""

    SUMS = "sums"
    REALS = "reals"
    CODES = "codes"


@dataclass(frozen=True, eq=False)
class Product:
    """One operator that sums products.

    Attributes:
        node: the operator.
        kind: Conv, MatMul or Gemm.
        result: what comes out.
        a, b: the factors, data and weights.
        bias: int32, added to the sums; or real numbers, added to reals.
        alpha: factor of Gemm.
        y_scale, y_zero_point: of the result, where it is codes.
        bias_codes: int32, added to the sums, where no value of the graph holds them.
    """

    node: ir.Node
    kind: str
    result: Result
    a: Operand
    b: Operand
    bias: ir.Value | None = None
    alpha: np.float32 = ONE
    y_scale: Parameter | None = None
    y_zero_point: Parameter | None = None
    bias_codes: Array | None = None

    @property
    def bound(self) -> int | None:
        """The largest sum, bias aside, that codes can give; None if the depth is not known.

        Partial sums do not exceed it either, in whatever order they are made.
        """
        weights, zero = self.b.known, self.b.zero_point
        if weights is not None and not isinstance(zero, ir.Value):
            far = np.abs(weights.astype(np.int64) - (0 if zero is None else zero.astype(np.int64)))
            axes = tuple(range(1, far.ndim)) if self.kind == "Conv" else self._depth_axis(far.ndim)
            largest = far.sum(axis=axes).max(initial=0)
            return int(largest) * self.a.reach
        depth = self.depth
        return None if depth is None else depth * self.a.reach * self.b.reach

    @property
    def largest(self) -> int | None:
        """The largest sum, bias included."""
        bound = self.bound
        if bound is None or self.result is Result.REALS:
            return bound
        known = self.bias_codes
        if self.bias is not None:
            known = constant_expression(self.bias)
        elif known is None:
            return bound
        if known is None:
            return None
        return bound + int(np.abs(known.astype(np.int64)).max(initial=0))

    @property
    def depth(self) -> int | None:
        """How many products are summed."""
        if self.kind == "Conv":
            return _volume(self.b.codes.shape, 1)
        rows = self.a.codes.shape
        trans = bool(self.node.attributes.get_int("transA", 0))
        sizes = [rows[0] if trans else rows[-1]] if rows is not None and len(rows) else []
        columns = self.b.codes.shape
        if columns is not None and len(columns):
            sizes.append(columns[self._depth_axis(len(columns))])
        return next((size for size in sizes if isinstance(size, int)), None)

    def _depth_axis(self, rank: int) -> int:
        if rank == 1:
            return 0
        return -1 if self.node.attributes.get_int("transB", 0) else -2


def read_product(node: ir.Node) -> Product | None:
    """Return what a node sums; None if it is no such operator.

    Raises:
        OperatorError: what it does is not known before it runs, or nothing else can say it.
    """
    read = _READERS.get(OpKey.of(node))
    if read is None:
        return None
    refuse_references(node)
    return read(node)


def _mat_mul_integer(node: ir.Node) -> Product:
    a, b, z_a, z_b = _inputs(node, 4)
    left = read_operand(node, a, z_a, None, Place(_rank(a) - 2, 1))
    right = read_operand(node, b, z_b, None, Place(_rank(b) - 1, 0))
    return Product(node, "MatMul", Result.SUMS, left, right)


def _conv_integer(node: ir.Node) -> Product:
    x, w, z_x, z_w = _inputs(node, 4)
    place = Place(0, max(_rank(w) - 1, 0))
    left, right = read_operand(node, x, z_x, None), read_operand(node, w, z_w, None, place)
    return Product(node, "Conv", Result.SUMS, left, right)


def _q_linear_mat_mul(node: ir.Node) -> Product:
    a, s_a, z_a, b, s_b, z_b, s_y, z_y = _inputs(node, 8)
    left = read_operand(node, a, z_a, s_a, Place(_rank(a) - 2, 1))
    right = read_operand(node, b, z_b, s_b, Place(_rank(b) - 1, 0))
    rows = Place(_rank(a) - 2, 1)
    scale, zero = read_parameter(node, s_y, "y_scale", rows), _result_zero(node, z_y)
    return Product(node, "MatMul", Result.CODES, left, right, y_scale=scale, y_zero_point=zero)


def _q_linear_conv(node: ir.Node) -> Product:
    x, s_x, z_x, w, s_w, z_w, s_y, z_y, bias = _inputs(node, 9)
    rank = _rank(w)
    left = read_operand(node, x, z_x, s_x)
    right = read_operand(node, w, z_w, s_w, Place(0, max(rank - 1, 0), max(rank - 2, 0)))
    scale, zero = read_parameter(node, s_y, "y_scale", None), _result_zero(node, z_y)
    return Product(node, "Conv", Result.CODES, left, right, bias, y_scale=scale, y_zero_point=zero)


def _q_gemm(node: ir.Node) -> Product:
    a, s_a, z_a, b, s_b, z_b, c, s_y, z_y = _inputs(node, 9)
    trans = node.attributes.get_int("transB", 0)
    left = read_operand(node, a, z_a, s_a)
    right = read_operand(node, b, z_b, s_b, Place(0, 1, 0) if trans else Place(1, 0))
    alpha = np.float32(node.attributes.get_float("alpha", 1.0))
    if s_y is None or z_y is None:
        return Product(node, "Gemm", Result.REALS, left, right, c, alpha)
    scale, zero = read_parameter(node, s_y, "y_scale", None), _result_zero(node, z_y)
    return Product(node, "Gemm", Result.CODES, left, right, c, alpha, scale, zero)


def _mat_mul_integer_to_float(node: ir.Node) -> Product:
    a, b, s_a, s_b, z_a, z_b, bias = _inputs(node, 7)
    left = read_operand(node, a, z_a, s_a, Place(_rank(a) - 2, 1))
    right = read_operand(node, b, z_b, s_b, Place(_rank(b) - 1, 0))
    return Product(node, "MatMul", Result.REALS, left, right, bias)


_READERS: dict[OpKey, Callable[[ir.Node], Product]] = {
    OpKey("", "ConvInteger"): _conv_integer,
    OpKey("", "MatMulInteger"): _mat_mul_integer,
    OpKey("", "QLinearConv"): _q_linear_conv,
    OpKey("", "QLinearMatMul"): _q_linear_mat_mul,
    OpKey(MICROSOFT, "MatMulIntegerToFloat"): _mat_mul_integer_to_float,
    OpKey(MICROSOFT, "QGemm"): _q_gemm,
}


def _inputs(node: ir.Node, count: int) -> list[ir.Value | None]:
    values: list[ir.Value | None] = list(node.inputs)
    return values + [None] * (count - len(values))


def _rank(value: ir.Value | None) -> int:
    return 0 if value is None or value.shape is None else len(value.shape)


def _result_zero(node: ir.Node, value: ir.Value | None) -> Parameter:
    """Return the zero point of the result, whose type is that of its codes."""
    zero = read_parameter(node, value, "y_zero_point", None)
    kind = zero.dtype if isinstance(zero, ir.Value) else ir.DataType.from_numpy(zero.dtype)
    if kind not in (ir.DataType.INT8, ir.DataType.UINT8):
        raise OperatorError(
            f"{where(node)}: its result has codes of type {kind.name if kind else 'unknown'}, "
            "expected int8 or uint8. Run shape inference first."
        )
    return zero


def _volume(shape: ir.Shape | None, start: int) -> int | None:
    if shape is None:
        return None
    sizes = [size for size in list(shape)[start:] if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(shape) - start else None
