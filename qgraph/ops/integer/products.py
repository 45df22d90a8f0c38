"""Operators that sum products of codes: the meaning of their inputs and results.

    sums    y = acc
            ConvInteger, MatMulInteger
    reals   y = float32(acc) * (alpha * s_a * s_b) + added
            MatMulIntegerToFloat, QGemm
    codes   y = saturate(round_half_even(float32(acc) * m) + z_y)
            with m = alpha * s_a * s_b / s_y, from left to right
            QLinearConv, QLinearMatMul, QGemm

``acc`` is the :class:`~qgraph.ops.integer.sums.Sum`. ``SIGNATURES`` is what kernels, readers and
writers of these operators share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.constants import constant_expression
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.numerics import Array
from qgraph.ops.composite import type_of
from qgraph.ops.integer.codes import float32
from qgraph.ops.integer.sums import CODES, Factor, Parameter, Sum
from qgraph.records import dataclass

_ONE = np.float32(1)


class Result(StrEnum):
    """Result of an operator, computed from its sums."""

    SUMS = "sums"
    REALS = "reals"
    CODES = "codes"


@dataclass(frozen=True, eq=False)
class Product(Sum):
    """Sums of products of codes, and the result computed from them.

    Attributes:
        result: what comes out.
        alpha: factor of the sums besides both scales.
        y_scale, y_zero_point: of the result, if it is codes.
        added: real numbers, added to the result.
        rounds_bias: whether ``bias`` is the rounded quotient of real numbers and both scales.
    """

    result: Result = Result.SUMS
    alpha: np.float32 = _ONE
    y_scale: Parameter | None = None
    y_zero_point: Parameter | None = None
    added: ir.Value | None = None
    rounds_bias: bool = False

    @property
    def scales(self) -> tuple[Parameter, Parameter]:
        """The scales of both factors.

        Raises:
            ValueError: they have none.
        """
        if self.a.scale is None or self.b.scale is None:
            raise ValueError("a scale is missing")
        return self.a.scale, self.b.scale

    @property
    def encoding(self) -> tuple[Parameter, Parameter]:
        """Scale and zero point of the result.

        Raises:
            ValueError: the result is no codes.
        """
        if self.y_scale is None or self.y_zero_point is None:
            raise ValueError("a scale or zero point of the result is missing")
        return self.y_scale, self.y_zero_point

    def unit(self, multiply: Callable[[Any, Any], Any]) -> Any:
        """Return ``alpha * s_a * s_b``, computed or written by ``multiply``."""
        s_a, s_b = self.scales
        return multiply(s_a if self.alpha == 1 else multiply(np.asarray(self.alpha), s_a), s_b)

    @property
    def multiplier(self) -> Array | None:
        """``alpha * s_a * s_b / s_y``; None if a scale is not constant."""
        if any(isinstance(scale, ir.Value) for scale in (*self.scales, self.y_scale)):
            return None
        with np.errstate(all="ignore"):
            return np.asarray(self.unit(np.multiply) / self.encoding[0])


@dataclass(frozen=True)
class Signature:
    """The inputs of an operator.

    Attributes:
        kind: how it sums: Conv, MatMul or Gemm.
        inputs: names of its inputs. ``a`` and ``b`` are codes, data and weights; ``s_`` and ``z_``
            are scales and zero points of these and of the result ``y``; ``bias`` is added to the
            sums, ``added`` to the result.
    """

    kind: str
    inputs: tuple[str, ...]

    def result(self, present: Mapping[str, object]) -> Result:
        """Return what the operator makes of its sums, if it has the inputs ``present``."""
        if "s_a" not in self.inputs:
            return Result.SUMS
        is_real = present.get("s_y") is None or present.get("z_y") is None
        if "s_y" not in self.inputs or (self.kind == "Gemm" and is_real):
            return Result.REALS
        return Result.CODES

    def align(self, node: ir.Node, name: str, parameter: Array, rank: int) -> Array:
        """Return a scale or zero point, shaped so that it broadcasts to what it applies to.

        That is a factor for its zero point, else the sums. ``rank`` is that of the weights.

        Raises:
            ValueError: it has several elements, and the operator allows one.
        """
        if parameter.size == 1:
            return parameter.reshape(())
        if self.kind == "MatMul":
            is_row = name[-1] != "b" and parameter.ndim == 1
            return parameter.reshape(-1, 1) if is_row else parameter
        if name[-1] != "b":
            raise ValueError(f"{name} has shape {list(parameter.shape)}, expected one element")
        is_zero = name == "z_b"
        after = rank - 2 + is_zero if self.kind == "Conv" else is_zero and _is_turned(node)
        return parameter.reshape(-1, *(1,) * after)

    def axis(self, node: ir.Node, side: str, rank: int) -> int:
        """Return the axis of a factor of ``rank`` axes along which its parameters may differ."""
        if self.kind == "MatMul":
            return rank - 2 if side == "a" else rank - 1
        return 0 if self.kind == "Conv" or _is_turned(node) else 1


def _is_turned(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("transB", 0))


def _signature(operator: str, inputs: str) -> Signature:
    return Signature(operator, tuple(inputs.split()))


SIGNATURES = {
    OpKey("", "ConvInteger"): _signature("Conv", "a b z_a z_b"),
    OpKey("", "MatMulInteger"): _signature("MatMul", "a b z_a z_b"),
    OpKey("", "QLinearConv"): _signature("Conv", "a s_a z_a b s_b z_b s_y z_y bias"),
    OpKey("", "QLinearMatMul"): _signature("MatMul", "a s_a z_a b s_b z_b s_y z_y"),
    OpKey(MICROSOFT, "MatMulIntegerToFloat"): _signature("MatMul", "a b s_a s_b z_a z_b added"),
    OpKey(MICROSOFT, "QGemm"): _signature("Gemm", "a s_a z_a b s_b z_b bias s_y z_y"),
}
"""All operators that sum products of codes."""


def read_product(node: ir.Node) -> Product | None:
    """Return the product that a node sums; None for other operators.

    Raises:
        OperatorError: a type or a shape that matters is not known, or an input has another form
            than the operator takes.
    """
    signature = SIGNATURES.get(OpKey.of(node))
    if signature is None:
        return None
    refuse_references(node)
    inputs = dict(zip(signature.inputs, node.inputs, strict=False))
    read = _Reader(node, signature, inputs)
    result = signature.result(inputs)
    y_scale = read.parameter("s_y") if result is Result.CODES else None
    y_zero = read.result_zero() if result is Result.CODES else None
    bias = inputs.get("bias")
    if bias is not None and bias.dtype not in (None, ir.DataType.INT32):
        raise OperatorError(f"{where(node)}: its bias is {bias.dtype}, expected INT32.")
    return Product(
        node,
        signature.kind,
        read.factor("a"),
        read.factor("b"),
        bias,
        result,
        np.float32(node.attributes.get_float("alpha", 1.0)),
        y_scale,
        y_zero,
        inputs.get("added"),
    )


def refuse_references(node: ir.Node) -> None:
    """Refuse attributes that the caller of a function sets.

    Raises:
        OperatorError: there is one.
    """
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        raise OperatorError(
            f"{where(node)}: an attribute is left to the caller of the function, expected a "
            "value. Inline the function first."
        )


_WORDS = {"s_y": "y_scale", "z_y": "y_zero_point"}


@dataclass(frozen=True)
class _Reader:
    """Reads the inputs of one operator, by their names in its signature."""

    node: ir.Node
    signature: Signature
    inputs: Mapping[str, ir.Value | None]

    def factor(self, side: str) -> Factor:
        codes, label = self.inputs.get(side), where(self.node)
        if codes is None:
            raise OperatorError(f"{label}: an input is missing. Correct the model's exporter.")
        zero_point = self.inputs.get(f"z_{side}")
        dtype = code_type(self.node, codes, zero_point)
        zero = None if zero_point is None else self.parameter(f"z_{side}")
        zero_type = None if zero is None else type_of(zero)
        if zero_type not in (None, ir.DataType.from_numpy(dtype)):
            raise OperatorError(
                f"{label}: its zero point is {zero_type.name} and its codes {dtype}, expected one "
                "type. Correct the model's exporter."
            )
        if isinstance(zero, np.ndarray) and not zero.any():
            zero = None
        scale = self.parameter(f"s_{side}") if f"s_{side}" in self.signature.inputs else None
        if all(not isinstance(p, np.ndarray) or p.size == 1 for p in (zero, scale)):
            return Factor(codes, dtype, zero, scale)
        if codes.shape is None:
            raise OperatorError(
                f"{label}: the rank of {codes.name!r} is not known, so that its parameters cannot "
                "be aligned with it. Run shape inference first."
            )
        axis = self.signature.axis(self.node, side, len(codes.shape))
        return Factor(codes, dtype, zero, scale, axis)

    def parameter(self, name: str) -> Parameter:
        value = self.inputs.get(name)
        word = _WORDS.get(name, "scale" if name[0] == "s" else "zero point")
        array = read_parameter(self.node, value, word)
        if isinstance(array, ir.Value):
            return array
        weights = self.inputs.get("b")
        rank = 2 if weights is None or weights.shape is None else len(weights.shape)
        array = float32(array) if name[0] == "s" else array
        return self.signature.align(self.node, name, array, rank)

    def result_zero(self) -> Parameter:
        zero = self.parameter("z_y")
        if isinstance(zero, np.ndarray) and zero.size > 1:
            raise OperatorError(
                f"{where(self.node)}: y_zero_point has shape {list(zero.shape)}, expected one "
                "element."
            )
        code_type(self.node, zero)
        return zero


def code_type(node: ir.Node, *parameters: Parameter | None) -> np.dtype[Any]:
    """Return the type of codes: that of the first of ``parameters`` whose type is known.

    Raises:
        OperatorError: it is not known, or is not int8 or uint8.
    """
    kinds = [type_of(each) for each in parameters if each is not None]
    dtype = next((dtype for dtype in kinds if dtype is not None), None)
    if dtype not in CODES:
        names = (each.name for each in parameters if isinstance(each, ir.Value))
        raise OperatorError(
            f"{where(node)}: the codes {next(names, node.outputs[0].name)!r} are of type "
            f"{dtype.name if dtype else 'unknown'}, expected int8 or uint8. Run shape inference "
            "first."
        )
    return dtype.numpy()


def read_parameter(node: ir.Node, value: ir.Value | None, name: str) -> Parameter:
    """Return what an input holds if it is constant, else the input.

    Raises:
        OperatorError: it is absent, or not constant and may have several elements.
    """
    if value is None:
        raise OperatorError(f"{where(node)}: {name} is missing. Correct the model's exporter.")
    array = constant_expression(value)
    if array is not None:
        return array
    if value.shape is None or any(size != 1 for size in value.shape):
        raise OperatorError(
            f"{where(node)}: {name} {value.name!r} is not constant and not known to be "
            "one element. Run shape inference first, or fold constants."
        )
    return value


def read_single(
    node: ir.Node,
    codes: ir.Value | None = None,
    scale: ir.Value | None = None,
    zero: ir.Value | None = None,
    *others: ir.Value | None,
) -> Factor:
    """Return codes with a constant scale and zero point for the whole tensor; none is 0.

    ``others`` are inputs of the same type as the codes, whose type may be unknown.

    Raises:
        OperatorError: a parameter or the type is not known, or has another form.
    """
    if codes is None:
        raise OperatorError(f"{where(node)}: an input is missing. Correct the model's exporter.")
    dtype = code_type(node, codes, zero, *others)
    factor_scale, point = read_encoding(node, scale, zero, dtype)
    return Factor(codes, dtype, point if point.any() else None, factor_scale)


def read_encoding(
    node: ir.Node, scale: ir.Value | None, zero: ir.Value | None, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Return a constant scale and zero point, each without axes; no zero point is 0.

    Raises:
        OperatorError: one is not constant, or has several elements or another type.
    """
    point = np.zeros((), dtype) if zero is None else _constant(node, zero)
    if point.dtype != dtype:
        raise OperatorError(
            f"{where(node)}: a zero point is {point.dtype} and the codes are {dtype}, expected one "
            "type. Correct the model's exporter."
        )
    return float32(_constant(node, scale)), point


def _constant(node: ir.Node, value: ir.Value | None) -> Array:
    array = constant_expression(value)
    if array is None or array.size != 1:
        state = "not constant" if array is None else f"of shape {list(array.shape)}"
        label = "" if value is None else value.name
        raise OperatorError(
            f"{where(node)}: its parameter {label!r} is {state}, expected one constant. "
            "Fold constants first."
        )
    return array.reshape(())
