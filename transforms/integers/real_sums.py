"""Sums of products of codes, spelled with real numbers: DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.exactness import Verdict
from qgraph.foreign.operands import Operand, Parameter
from qgraph.foreign.products import Product, Result
from qgraph.foreign.rescaling import compare_sums, unproved
from qgraph.foreign.sums import conv_attributes
from qgraph.graph.edit import Draft
from qgraph.graph.edit import Operand as Drafted
from qgraph.transforms.integers.integer_sums import cast, given
from qgraph.transforms.rebuilding import Rebuild

Array = npt.NDArray[Any]

ONE = np.ones((), np.float32)
_OPSET, _OPSET_OF_AXES = 10, 13


def lower_to_reals(product: Product) -> Rebuild:
    """Return how to spell an operator with real numbers, and how equal that is."""
    axes = {product.a.axis, product.b.axis} != {None} or product.kind == "Conv"
    opset = _OPSET_OF_AXES if axes else _OPSET
    verdict = equality(product)
    for operand in (product.a, product.b):
        _check(operand)
    if product.y_scale is not None and _is_several(product.y_scale):
        raise ValueError("the scale of the result differs by rows; QuantizeLinear has one")

    def write(draft: Draft) -> Drafted:
        return _write(draft, product)

    return Rebuild(product.node, (product.node,), verdict, write, opset)


def equality(product: Product) -> Verdict:
    """Return how equal the integer operator and its form with real numbers are."""
    scales = [ONE if s is None else s for s in (product.a.scale, product.b.scale)]
    if product.alpha != 1:
        return unproved("alpha is not 1")
    y_scale, y_zero = product.y_scale, product.y_zero_point
    known = [s for s in (*scales, y_scale, y_zero) if s is not None]
    if any(isinstance(parameter, ir.Value) for parameter in known):
        return unproved("a scale is only known at run time")
    a, b = (np.asarray(scale) for scale in scales)
    step = None if y_scale is None else np.asarray(y_scale)
    zero = None if y_zero is None else np.asarray(y_zero)
    return compare_sums(product.largest, a, b, step, zero)


def _write(draft: Draft, product: Product) -> Drafted:
    a, b = (decode(draft, operand) for operand in (product.a, product.b))
    y = _real(draft, product, a, b)
    if product.result is Result.SUMS:
        return cast(draft, y, ir.DataType.INT32)
    if product.result is Result.REALS:
        return y
    return quantize(draft, y, given(product.y_scale), given(product.y_zero_point))


def quantize(draft: Draft, y: Drafted, scale: Parameter, zero: Parameter) -> ir.Value:
    """Draft the codes of real numbers."""
    if isinstance(scale, ir.Value) != isinstance(zero, ir.Value):
        scale, one = _of_one_shape(scale, zero)
        zero = zero if one is None else one
    known = zero.dtype if isinstance(zero, ir.Value) else ir.DataType.from_numpy(zero.dtype)
    return draft.node("QuantizeLinear", [y, scale, zero], dtype=known)


def _real(draft: Draft, product: Product, a: ir.Value, b: ir.Value) -> ir.Value:
    real = ir.DataType.FLOAT
    if product.kind == "Conv":
        operands = [a, b]
        if product.bias is not None:
            operands.append(_bias(draft, product))
        return draft.node("Conv", operands, conv_attributes(product.node), dtype=real)
    if product.kind == "Gemm":
        get = product.node.attributes.get_int
        attributes: dict[str, Any] = {k: get(k, 0) for k in ("transA", "transB")}
        attributes |= {"alpha": float(product.alpha), "beta": float(product.alpha)}
        operands = [a, b]
        if product.bias is not None:
            operands.append(_bias(draft, product))
        return draft.node("Gemm", operands, attributes, dtype=real)
    y = draft.node("MatMul", [a, b], dtype=real)
    return y if product.bias is None else draft.node("Add", [y, product.bias], dtype=real)


def _bias(draft: Draft, product: Product) -> ir.Value:
    """Draft int32 codes in units of both scales as real numbers."""
    bias = product.bias
    if bias is None:
        raise ValueError("there is no bias")
    unit = draft.op.Mul(given(product.a.scale), given(product.b.scale))
    if isinstance(unit, np.ndarray) and unit.size > 1:
        unit = unit.reshape(-1)
        axis = 0 if bias.shape is None else len(bias.shape) - 1
        return _dequantize(draft, bias, unit, None, axis)
    return _dequantize(draft, bias, unit, None, None)


def decode(draft: Draft, operand: Operand) -> ir.Value:
    """Draft the real numbers that codes stand for."""
    scale: Parameter = ONE if operand.scale is None else operand.scale
    zero = operand.zero_point
    if operand.axis is not None and not isinstance(scale, ir.Value):
        flat = scale.reshape(-1)
        count = max(flat.size, 1 if zero is None or isinstance(zero, ir.Value) else zero.size)
        scale = np.broadcast_to(flat, (count,)).copy()
        if isinstance(zero, np.ndarray):
            zero = np.broadcast_to(zero.reshape(-1), (count,)).copy()
    elif isinstance(scale, ir.Value) != isinstance(zero, ir.Value):
        scale, zero = _of_one_shape(scale, zero)
    return _dequantize(draft, operand.codes, scale, zero, operand.axis)


def _dequantize(
    draft: Draft, codes: ir.Value, scale: Drafted, zero: Parameter | None, axis: int | None
) -> ir.Value:
    operands = [codes, scale] if zero is None else [codes, scale, zero]
    attributes = {} if axis is None else {"axis": axis}
    return draft.node("DequantizeLinear", operands, attributes, dtype=ir.DataType.FLOAT)


def _of_one_shape(scale: Parameter, zero: Parameter | None) -> tuple[Parameter, Parameter | None]:
    """Give the constant of the two the shape of the other."""
    if isinstance(scale, np.ndarray) and isinstance(zero, ir.Value):
        return scale.reshape(_ones(zero)), zero
    if isinstance(scale, ir.Value) and isinstance(zero, np.ndarray):
        return scale, zero.reshape(_ones(scale))
    return scale, zero


def _ones(value: ir.Value) -> list[int]:
    """Return the shape of a value of one element."""
    return [1] * len(value.shape or ())


def _check(operand: Operand) -> None:
    for parameter in (operand.zero_point, operand.scale):
        if not isinstance(parameter, np.ndarray) or parameter.size == 1:
            continue
        if parameter.size != max(parameter.shape):
            raise ValueError(
                f"a parameter has shape {list(parameter.shape)}; DequantizeLinear has one scale "
                "for each index of one axis"
            )
    mixed = {isinstance(p, ir.Value) for p in (operand.zero_point, operand.scale) if p is not None}
    if operand.axis is not None and len(mixed) > 1:
        raise ValueError("its scale and zero point are not both constant; fold constants first")


def _is_several(parameter: Parameter | None) -> bool:
    return isinstance(parameter, np.ndarray) and parameter.size > 1
