"""Nodes that sum products of data and constant weights, as quantities.

Source: ONNX Conv, ConvTranspose, Gemm, MatMul; the integer operators as in
:mod:`qgraph.ops.integer.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.schema import OpKey
from qgraph.numerics import Float64
from qgraph.ops.integer.products import SIGNATURES, Result
from qgraph.proof.bounds.quantity import (
    Quantity,
    constant,
    multiple_of,
    of_constant,
    rounded,
)
from qgraph.proof.bounds.sums import Taps, sum_of_products
from qgraph.proof.bounds.tracer import Operand, QuantityTracer
from qgraph.proof.functions.expression import Undecidable
from qgraph.reasons import AT_RUN_TIME, NO_BOUND

Of = Callable[[ir.Value], Operand]

_MATMUL = Taps(("MatMul",), 1, 0, 0, False)


def product(node: ir.Node, tracer: QuantityTracer, of: Of) -> Operand:
    """Return the result of a Conv, ConvTranspose, Gemm, MatMul or integer product."""
    if OpKey.of(node) in SIGNATURES:
        return _of_codes(node, tracer, of)
    operands = [None if value is None else tracer.quantity(of(value)) for value in node.inputs]
    data, weights, bias = [*operands, None][:3]
    if data is None or weights is None or weights.value is None:
        raise Undecidable(NO_BOUND(f"{node.op_type} of two tensors has no bound"))
    weights, layout = _rows(node, weights, _rank(node))
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    if bias is not None:
        bias = _of_rows(bias, layout)
    if node.op_type == "Gemm" and (alpha, beta) != (1.0, 1.0):
        return _gemm(tracer, data, weights, bias, (alpha, beta))
    return sum_of_products(tracer.atoms, data, weights, layout, tracer.arithmetic, bias=bias)


def _gemm(
    tracer: QuantityTracer,
    data: Quantity,
    weights: Quantity,
    bias: Quantity | None,
    factors: tuple[float, float],
) -> Operand:
    total = sum_of_products(tracer.atoms, data, weights, _MATMUL, tracer.arithmetic)
    alpha, beta = (np.asarray(float(np.float32(factor))) for factor in factors)
    result: Operand = rounded(multiple_of(total, alpha, alpha), tracer.arithmetic)
    return result if bias is None else tracer.Add(result, tracer.Mul(bias, constant(beta)))


def _rank(node: ir.Node) -> int:
    value = node.outputs[0]
    if value.shape is None:
        raise Undecidable(AT_RUN_TIME(f"the rank of {value.name!r} is not known"))
    return len(value.shape)


def _rows(node: ir.Node, weights: Quantity, rank: int) -> tuple[Quantity, Taps]:
    """Return weights as ``[rows, taps, *places]``, and the layout of the sums."""
    axes = weights.numbers.ndim
    if node.op_type.endswith(("MatMul", "MatMulInteger", "Gemm", "MatMulIntegerToFloat")):
        if axes != 2 or node.attributes.get_int("transA", 0) == 1:
            raise Undecidable(NO_BOUND(f"{node.op_type} with weights of {axes} axes has no bound"))
        is_turned = node.attributes.get_int("transB", 0) == 1
        return (weights if is_turned else _map(weights, np.transpose)), _MATMUL
    groups = node.attributes.get_int("group", 1)
    geometry = _geometry(node, weights.numbers.shape[2:])
    padded = any(geometry[3]) or geometry[4] not in ("NOTSET", "VALID")
    if node.op_type == "ConvTranspose":
        weights = _map(weights, lambda array: _turned(array, groups))
        padded = True
    return weights, Taps(geometry, groups, rank - 2, rank - 2, padded)


def _geometry(node: ir.Node, places: tuple[int, ...]) -> tuple[Any, ...]:
    count = len(places)
    attributes = node.attributes
    extra = tuple(attributes.get_ints(name, ()) for name in ("output_padding", "output_shape"))
    kind = "ConvTranspose" if node.op_type == "ConvTranspose" else "Conv"
    return (
        kind,
        tuple(attributes.get_ints("strides", (1,) * count)),
        tuple(attributes.get_ints("dilations", (1,) * count)),
        tuple(attributes.get_ints("pads", (0,) * 2 * count)),
        attributes.get_string("auto_pad", "NOTSET"),
        attributes.get_int("group", 1),
        places,
        tuple(map(tuple, extra)),
    )


def _turned(array: Float64, groups: int) -> Float64:
    channels, rows, *places = array.shape
    parts = array.reshape(groups, channels // groups, rows, *places)
    return np.ascontiguousarray(np.swapaxes(parts, 1, 2)).reshape(
        groups * rows, channels // groups, *places
    )


def _map(weights: Quantity, change: Callable[[Float64], Float64]) -> Quantity:
    """Return constant weights with their axes changed."""
    shape = weights.numbers.shape

    def changed(array: Float64) -> Float64:
        return change(np.broadcast_to(array, shape))

    if weights.value is None:
        raise AssertionError("weights are constant")
    factors = None
    if weights.factors is not None:
        factors = changed(weights.factors[0]), changed(weights.factors[1])
    return of_constant(changed(weights.value), changed(weights.meant.offset), factors)


def _of_rows(bias: Quantity, layout: Taps) -> Quantity:
    """Return a bias ``[rows]`` so that it broadcasts to the result."""
    if bias.value is None:
        if not layout.trailing:
            return bias
        raise Undecidable(NO_BOUND("a computed bias has no bound"))
    value = bias.value
    if value.ndim > 1 and layout.trailing == 0:
        if value.size != value.shape[-1]:
            raise Undecidable(NO_BOUND("a bias that differs between samples has no bound"))
        value = value.reshape(-1)
    meant = np.broadcast_to(bias.meant.offset, bias.value.shape).reshape(value.shape)
    if value.ndim == 1 and value.size > 1:
        value, meant = layout.by_row(value), layout.by_row(meant)
    return of_constant(value, meant)


def _of_codes(node: ir.Node, tracer: QuantityTracer, of: Of) -> Operand:
    """Return the result of a product of codes, by the definition of the integer operators."""
    signature = SIGNATURES[OpKey.of(node)]
    names = dict(zip(signature.inputs, node.inputs, strict=False))
    found = {name: tracer.quantity(of(value)) for name, value in names.items() if value is not None}
    data, weights = found["a"], found["b"]
    if weights.value is None:
        raise Undecidable(NO_BOUND(f"{node.op_type} of two tensors has no bound"))
    rank = weights.numbers.ndim

    def aligned(name: str) -> Quantity:
        array = np.asarray(found[name].value, np.float64)
        return constant(signature.align(node, name, array, rank))

    if "z_a" in found:
        data = tracer.quantity(tracer.Sub(data, aligned("z_a")))
    if "z_b" in found:
        weights = tracer.quantity(tracer.Sub(weights, aligned("z_b")))
    weights, layout = _rows(node, weights, _rank(node))
    bias = _of_rows(found["bias"], layout) if "bias" in found else None
    total = sum_of_products(
        tracer.atoms, data, weights, layout, tracer.arithmetic, bias=bias, is_integer=True
    )
    if (total.reach >= 2.0**31).any():
        raise Undecidable(NO_BOUND("an int32 sum may wrap around"))
    kind = signature.result(found)
    if kind is Result.SUMS:
        return total
    return _scaled(node, tracer, rounded(total), kind, found, aligned)


def _scaled(
    node: ir.Node,
    tracer: QuantityTracer,
    total: Quantity,
    kind: Result,
    found: Mapping[str, Quantity],
    aligned: Callable[[str], Quantity],
) -> Operand:
    alpha = np.float32(node.attributes.get_float("alpha", 1.0))
    unit = aligned("s_a") if alpha == 1 else tracer.Mul(constant(alpha), aligned("s_a"))
    unit = tracer.Mul(unit, aligned("s_b"))
    if kind is Result.REALS:
        y: Operand = tracer.Mul(total, unit)
        return y if "added" not in found else tracer.Add(y, found["added"])
    steps = tracer.Mul(total, tracer.Div(unit, aligned("s_y")))
    zero = aligned("z_y")
    return codes_of(tracer, steps, zero, node.outputs[0].dtype)


def codes_of(
    tracer: QuantityTracer,
    steps: Any,
    zero: Quantity,
    dtype: ir.DataType | None,
    *,
    first: bool = False,
) -> Operand:
    """Return ``saturate(round_half_even(steps) + zero)``; the zero point may come first."""
    if dtype is None or zero.value is None:
        raise Undecidable(AT_RUN_TIME("the type of codes is not known"))
    limits = np.iinfo(dtype.numpy())
    codes = tracer.Round(tracer.Add(steps, zero) if first else steps)
    codes = codes if first else tracer.Add(codes, zero)
    result: Operand = tracer.Min(tracer.Max(codes, float(limits.min)), float(limits.max))
    return result


PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def is_product(node: ir.Node) -> bool:
    """Return whether :func:`product` is for a node."""
    return OpKey.of(node) in SIGNATURES or (not node.domain and node.op_type in PRODUCTS)
