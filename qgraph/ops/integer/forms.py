"""The forms in which a product of codes is written, and how equal the first two are.

exact     acc = sum of (a - z_a) * (b - z_b) in whole numbers,
          y = QuantizeLinear (acc * (s_a * s_b / s_y), 1, z_y)
reals     y = QuantizeLinear (MatMul (DequantizeLinear (a), DequantizeLinear (b)), s_y, z_y)
operator  y = QLinearMatMul (a, s_a, z_a, b, s_b, z_b, s_y, z_y)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.exactness import Verdict
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.ops.integer.products import SIGNATURES, Product, Result
from qgraph.ops.integer.rescaling import compare_sums, unproved
from qgraph.ops.integer.sums import (
    Parameter,
    cast,
    dequantize,
    of_one_shape,
    ones_of,
    without_trailing_none,
)

Array = npt.NDArray[Any]

_ONE = np.ones((), np.float32)


def draft_exact(draft: Draft, product: Product) -> Operand:
    """Draft sums that are exact, and what is made of them; the same bits as the operator's."""
    kind = product.exact_type
    total = product.draft_int32(draft) if kind is None else product.draft_sums(draft, kind)
    if product.result is Result.SUMS:
        return cast(draft, total, ir.DataType.INT32)
    op = draft.op
    real, unit = cast(draft, total, ir.DataType.FLOAT), product.unit(op.Mul)
    if product.result is Result.REALS:
        y = op.Mul(real, unit)
        return y if product.added is None else op.Add(y, product.added)
    scale, zero = product.encoding
    return draft_codes(draft, op.Mul(real, op.Div(unit, scale)), zero)


def draft_codes(draft: Draft, steps: Operand, zero: Parameter) -> ir.Value:
    """Draft ``saturate(round_half_even(steps) + zero)``."""
    one = draft.constant(np.ones(ones_of(zero), np.float32), "one")
    return draft.node("QuantizeLinear", [steps, one, zero], dtype=_type_of(zero))


def draft_reals(draft: Draft, product: Product, *, subtracts: bool = False) -> Operand:
    """Draft the product of real numbers, between DequantizeLinear and QuantizeLinear.

    Args:
        draft: gets the nodes.
        product: what to write.
        subtracts: write the zero point of the first factor as a Sub; see
            :func:`qgraph.graph.opset.versions.refused_decoders`.
    """
    real = ir.DataType.FLOAT
    a = _draft_difference(draft, product) if subtracts else product.a.draft_reals(draft)
    operands = [a, product.b.draft_reals(draft)]
    if product.bias is not None:
        operands.append(_draft_bias(draft, product, product.bias))
    attributes = product.attributes
    if product.kind == "Gemm":
        attributes |= {name: float(product.alpha) for name in ("alpha", "beta")}
    y: Operand = draft.node(product.kind, operands, attributes, dtype=real)
    if product.added is not None:
        y = draft.node("Add", [y, product.added], dtype=real)
    if product.result is Result.SUMS:
        return cast(draft, draft_value(draft, y), ir.DataType.INT32)
    if product.result is Result.REALS:
        return y
    scale, zero = of_one_shape(*product.encoding)
    return draft.node("QuantizeLinear", [y, scale, zero], dtype=_type_of(zero))


def compare_forms(product: Product) -> Verdict:
    """Return how equal the operator and its form with real numbers are."""
    if product.rounds_bias:
        return unproved("the bias is rounded to units of both scales")
    if product.alpha != 1:
        return unproved("alpha is not 1")
    scales = [_ONE if each.scale is None else each.scale for each in (product.a, product.b)]
    parameters = (*scales, product.y_scale, product.y_zero_point)
    if any(isinstance(parameter, ir.Value) for parameter in parameters):
        return unproved("a scale is not constant")
    s_a, s_b, *encoding = (None if p is None else np.asarray(p) for p in parameters)
    return compare_sums(product.largest, np.asarray(s_a), np.asarray(s_b), *encoding)


def operator_key(product: Product) -> OpKey:
    """Return the operator that makes of its sums what ``product`` does."""
    if product.result is Result.SUMS:
        return OpKey("", product.integer_operator)
    if product.kind == "Gemm":
        return OpKey(MICROSOFT, "QGemm")
    return OpKey("", f"QLinear{product.kind}")


def draft_operator(draft: Draft, product: Product, dtype: ir.DataType | None) -> ir.Value:
    """Draft the one operator that computes ``product``, whose result has type ``dtype``.

    Raises:
        ValueError: a parameter is not constant.
    """
    if product.result is Result.SUMS:
        return product.draft_int32(draft)
    key = operator_key(product)
    values: dict[str, Operand | None] = {"bias": product.bias}
    values["s_y"], values["z_y"] = product.encoding
    for side, factor in (("a", product.a), ("b", product.b)):
        values[side] = factor.codes
        values[f"s_{side}"], values[f"z_{side}"] = factor.stored_parameters
    operands = without_trailing_none([values[name] for name in SIGNATURES[key].inputs])
    attributes = product.attributes
    if product.kind == "Gemm":
        attributes |= {"alpha": float(product.alpha)}
    return draft.node(key.name, operands, attributes, domain=key.domain, dtype=dtype)


def _draft_difference(draft: Draft, product: Product) -> Operand:
    """Draft ``(a - z_a) * s_a`` by the operations of DequantizeLinear."""
    a = product.a
    steps = dequantize(draft, a.codes, _ONE, None, None)
    zero = np.asarray(a.zero_point).reshape(()).astype(np.float32)
    return draft.op.Mul(draft.op.Sub(steps, zero), product.scales[0])


def _draft_bias(draft: Draft, product: Product, bias: Parameter) -> ir.Value:
    """Draft int32 codes in units of both scales as real numbers."""
    s_a, s_b = product.scales
    unit = draft.op.Mul(s_a, s_b)
    codes, axis = draft_value(draft, bias), None
    if isinstance(unit, np.ndarray) and unit.size > 1:
        unit = unit.reshape(-1)
        axis = 0 if codes.shape is None else len(codes.shape) - 1
    return dequantize(draft, codes, unit, None, axis)


def draft_value(draft: Draft, operand: Operand) -> ir.Value:
    """Return an operand as a value of the draft."""
    return operand if isinstance(operand, ir.Value) else draft.constant(operand)


def _type_of(parameter: Parameter) -> ir.DataType | None:
    known = parameter.dtype
    return ir.DataType.from_numpy(known) if isinstance(known, np.dtype) else known
