"""Sums of products of codes, spelled so that each of them is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import Refusal
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.foreign.operands import Operand, Parameter
from qgraph.foreign.products import Product, Result
from qgraph.foreign.rescaling import EXACT_IN_FLOAT32
from qgraph.foreign.sums import conv_attributes
from qgraph.graph.edit import Draft
from qgraph.graph.edit import Operand as Drafted
from qgraph.transforms.rebuilding import Found, Kept, Rebuild

Array = npt.NDArray[Any]

_WRAPS = 1 << 31
_OPSET = 10


def lower_exactly(product: Product) -> Found:
    """Return how to spell an operator in exact sums; refused where only the operator has them."""
    largest = product.largest
    wide = largest is None or largest >= EXACT_IN_FLOAT32
    kind = ir.DataType.FLOAT
    if wide and product.kind != "Conv" and largest is not None and largest < _WRAPS:
        kind, wide = ir.DataType.DOUBLE, False
    size = "are not known" if largest is None else f"may reach {largest}"
    if wide and product.result is Result.SUMS:
        reason = (
            f"its sums {size}, float32 is exact below 2**24 and there is no other form; it is a "
            "standard operator"
        )
        return Kept(product.node, reason)
    if wide and product.kind == "Gemm" and _is_transposed(product):
        return Refusal(
            product.node,
            f"its sums {size} and MatMulInteger does not transpose; transpose its weights first",
        )
    remark = (
        f"{_operator_of_sums(product)} keeps the sums"
        if wide
        else f"sums of at most {largest} are exact in {kind.name.lower()}"
    )

    def write(draft: Draft) -> Drafted:
        return _result(
            draft, product, _integer(draft, product) if wide else _sum(draft, product, kind)
        )

    verdict = Verdict(Exactness.BITS, Method.CONGRUENCE, reason=remark)
    return Rebuild(product.node, (product.node,), verdict, write, _OPSET)


def _sum(draft: Draft, product: Product, kind: ir.DataType) -> ir.Value:
    """Draft the sums as whole numbers of type ``kind``."""
    a, b = (_whole(draft, operand, kind) for operand in (product.a, product.b))
    bias = product.bias if product.result is not Result.REALS or product.kind == "Gemm" else None
    operands = [a, b]
    if product.kind == "Conv":
        if bias is not None:
            operands.append(cast(draft, bias, kind))
        return draft.node("Conv", operands, conv_attributes(product.node), dtype=kind)
    if product.kind == "Gemm" and _is_transposed(product):
        trans = {k: product.node.attributes.get_int(k, 0) for k in ("transA", "transB")}
        if bias is not None:
            operands.append(cast(draft, bias, kind))
        return draft.node("Gemm", operands, trans, dtype=kind)
    total = draft.node("MatMul", operands, dtype=kind)
    return total if bias is None else add(draft, total, cast(draft, bias, kind), kind)


def _integer(draft: Draft, product: Product) -> ir.Value:
    """Draft the sums as int32, by the standard operator that has them."""
    zeros = [_zero_point(product.a), _zero_point(product.b)]
    while zeros and zeros[-1] is None:
        zeros.pop()
    attributes = conv_attributes(product.node) if product.kind == "Conv" else {}
    operands = [product.a.codes, product.b.codes, *zeros]
    name = _operator_of_sums(product)
    total = draft.node(name, operands, attributes, dtype=ir.DataType.INT32)
    bias = product.bias
    if bias is None or (product.result is Result.REALS and product.kind != "Gemm"):
        return total
    if product.kind == "Conv":
        rank = 1 if product.b.codes.shape is None else len(product.b.codes.shape)
        shape = draft.constant(np.array([-1] + [1] * (rank - 2), np.int64))
        bias = draft.node("Reshape", [bias, shape], dtype=ir.DataType.INT32)
    return add(draft, total, bias, ir.DataType.INT32)


def _operator_of_sums(product: Product) -> str:
    return "ConvInteger" if product.kind == "Conv" else "MatMulInteger"


def _result(draft: Draft, product: Product, total: ir.Value) -> Drafted:
    """Draft what the operator makes of its sums."""
    if product.result is Result.SUMS:
        return cast(draft, total, ir.DataType.INT32)
    op = draft.op
    unit = op.Mul(given(product.a.scale), given(product.b.scale))
    if product.kind == "Gemm":
        unit = op.Mul(op.Mul(product.alpha, given(product.a.scale)), given(product.b.scale))
    real = cast(draft, total, ir.DataType.FLOAT)
    if product.result is Result.REALS:
        y = op.Mul(real, unit)
        added = product.bias if product.kind != "Gemm" else None
        return y if added is None else op.Add(y, added)
    multiplier = op.Div(unit, given(product.y_scale))
    return encode(draft, op.Mul(real, multiplier), product.y_zero_point)


def encode(draft: Draft, steps: Drafted, zero_point: Parameter | None) -> ir.Value:
    """Draft ``saturate(round_half_even(steps) + zero_point)``."""
    zero = np.zeros((), np.uint8) if zero_point is None else zero_point
    shape = () if isinstance(zero, np.ndarray) else tuple(zero.shape or ())
    one = draft.constant(np.ones(shape, np.float32), "one")
    return draft.node("QuantizeLinear", [steps, one, zero], dtype=_type_of(zero))


def cast(draft: Draft, value: ir.Value, kind: ir.DataType) -> ir.Value:
    """Draft a Cast where the type is another."""
    if value.dtype == kind:
        return value
    return draft.node("Cast", [value], {"to": kind.value}, dtype=kind)


def add(draft: Draft, a: ir.Value, b: ir.Value, kind: ir.DataType) -> ir.Value:
    """Draft ``a + b`` of type ``kind``."""
    return draft.node("Add", [a, b], dtype=kind)


def given(parameter: Parameter | None) -> Parameter:
    """Return a parameter that is there."""
    if parameter is None:
        raise ValueError("a scale is missing")
    return parameter


def _whole(draft: Draft, operand: Operand, kind: ir.DataType) -> ir.Value:
    """Draft codes less their zero point."""
    value = cast(draft, operand.codes, kind)
    zero = operand.zero_point
    if zero is None:
        return value
    if isinstance(zero, ir.Value):
        known = cast(draft, zero, kind)
    else:
        known = draft.constant(zero.astype(kind.numpy()), "zero_point")
    return draft.node("Sub", [value, known], dtype=kind)


def _zero_point(operand: Operand) -> Array | ir.Value | None:
    zero = operand.zero_point
    if isinstance(zero, np.ndarray) and zero.size > 1 and zero.ndim > 1:
        return zero.reshape(-1) if zero.size == max(zero.shape) else zero
    return zero


def _is_transposed(product: Product) -> bool:
    return any(product.node.attributes.get_int(name, 0) for name in ("transA", "transB"))


def _type_of(value: Array | ir.Value) -> ir.DataType | None:
    return value.dtype if isinstance(value, ir.Value) else ir.DataType.from_numpy(value.dtype)
