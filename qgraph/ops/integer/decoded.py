"""Products of codes that a Conv, Gemm or MatMul of floating-point numbers computes.

    MatMul (DequantizeLinear (a, s_a, z_a), DequantizeLinear (b, s_b, z_b))     real numbers
    MatMul (Cast (a) - z_a, Cast (b) - z_b)                                     whole numbers

Both are sums of products of codes; the first is exact only if no addition rounds.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.graph.constants import constant_expression
from qgraph.graph.scopes import input_of, inputs_of, producer_of
from qgraph.numerics import Array
from qgraph.ops.integer.codes import single
from qgraph.ops.integer.products import Product, Result, code_type
from qgraph.ops.integer.sums import CODES, KINDS, Factor, Parameter
from qgraph.ops.steps import TO_FLOAT32

_INT32_LIMIT = 2**31 - 1
_EXACT = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_ONE = np.ones((), np.float32)


def read_decoded(total: ir.Node) -> Product | None:
    """Return the product of a node whose factors come out of DequantizeLinear; None for others.

    A bias becomes int32 codes in units of both scales; see ``Product.rounds_bias``.

    Raises:
        OperatorError: the product has no integer form, or a parameter is not constant.
    """
    if not is_of_decoded(total):
        return None
    a, b = (_decoded(total, side) for side in range(2))
    unit = np.asarray(a.scale) * np.asarray(b.scale)
    bias, is_same = _bias(total, unit)
    alpha = np.float32(1)
    if total.op_type == "Gemm":
        alpha, beta = (np.float32(total.attributes.get_float(n, 1.0)) for n in ("alpha", "beta"))
        if bias is not None and alpha != beta:
            raise OperatorError(f"{where(total)}: alpha and beta differ, which QGemm has not")
    return Product(total, total.op_type, a, b, bias, Result.REALS, alpha, rounds_bias=not is_same)


def is_of_decoded(node: ir.Node) -> bool:
    """Return whether a node multiplies two factors that come out of DequantizeLinear."""
    return is_product(node) and all(map(decoder, node.inputs[:2]))


def is_product(node: ir.Node) -> bool:
    """Return whether a node is a Conv, Gemm or MatMul."""
    return not node.domain and node.op_type in KINDS


def read_wholes(total: ir.Node) -> Product | None:
    """Return the product of a node on codes minus their zero points; None for other nodes.

    Raises:
        OperatorError: its bias is not known to be whole numbers.
    """
    names = ("alpha", "beta") if total.op_type == "Gemm" else ()
    if not is_product(total) or any(total.attributes.get_float(n, 1.0) != 1 for n in names):
        return None
    factors = [_whole(value) for value in total.inputs[:2]]
    if len(factors) < 2 or factors[0] is None or factors[1] is None:
        return None
    bias, is_same = _bias(total, _ONE)
    if not is_same:
        raise OperatorError(f"{where(total)}: its bias is no whole numbers")
    return Product(total, total.op_type, factors[0], factors[1], bias)


def parameters(node: ir.Node) -> tuple[Array, Array]:
    """Return scale and zero point of a QuantizeLinear or DequantizeLinear.

    Raises:
        OperatorError: they are not constant, or not of the types of integer operators.
    """
    values = inputs_of(node, 3)
    scale, zero = (constant_expression(value) for value in values[1:])
    if scale is None or (zero is None and values[2] is not None):
        raise OperatorError(f"{where(node)}: its scale or zero point is not constant")
    if scale.dtype != np.float32:
        raise OperatorError(f"{where(node)}: its scale is {scale.dtype}; {TO_FLOAT32}")
    codes = node.inputs[0] if node.op_type == "DequantizeLinear" else node.outputs[0]
    if zero is None:
        dtype = None if codes is None else codes.dtype
        zero = np.zeros(scale.shape, np.uint8 if dtype is None else dtype.numpy())
    return (scale.reshape(()), single(zero)) if scale.size == 1 else (scale, zero)


def result_parameters(encode: ir.Node) -> tuple[Array, Array]:
    """Return scale and zero point of a QuantizeLinear that integer operators can end in.

    Raises:
        OperatorError: they cannot.
    """
    scale, zero = parameters(encode)
    if scale.size > 1:
        raise OperatorError(f"{where(encode)}: it has several scales; integer operators have one")
    code_type(encode, encode.outputs[0], zero)
    return scale, zero


def decoder(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear that computes a value."""
    return producer_of(value, "DequantizeLinear")


def scale_axis(total: ir.Node, rank: int) -> int:
    """Return the axis of the weights, which have ``rank`` axes, along which scales may differ."""
    is_first = total.op_type == "Conv" or total.attributes.get_int("transB", 0) != 0
    return 0 if is_first else rank - 1


def _decoded(total: ir.Node, side: int) -> Factor:
    """Read one of the factors of a product: 0 for the data, 1 for the weights."""
    decode = decoder(total.inputs[side])
    codes = None if decode is None else decode.inputs[0]
    if decode is None or codes is None:
        raise OperatorError(f"{where(total)}: a factor is not decoded from codes")
    scale, zero = parameters(decode)
    dtype = code_type(decode, codes, zero)
    axis = None
    if scale.size > 1:
        if codes.shape is None:
            raise OperatorError(
                f"{where(decode)}: the rank of its codes is not known; infer shapes"
            )
        rank = len(codes.shape)
        axis = decode.attributes.get_int("axis", 1) % rank
        is_blocked = decode.attributes.get_int("block_size", 0)
        if side == 0 or axis != scale_axis(total, rank) or is_blocked:
            raise OperatorError(
                f"{where(decode)}: its scales differ along axis {axis}; integer operators have one "
                "scale for the data and one for each column or channel of the weights"
            )
        zero = zero.reshape(-1, *(1,) * (rank - axis - 1))
        scale = scale.reshape(-1, *(1,) * (rank - 2 if total.op_type == "Conv" else 0))
    return Factor(codes, dtype, zero if zero.any() else None, scale, axis)


def _whole(value: ir.Value | None) -> Factor | None:
    """Read codes minus their zero point: ``Cast (codes) - zero_point``, or ``Cast (codes)``."""
    node = producer_of(value, "Sub")
    zero: Parameter | None = None
    if node is not None:
        minuend, subtrahend = node.inputs
        zero = constant_expression(subtrahend)
        if zero is None:
            zero = _cast_from(subtrahend)
        if zero is None or minuend is None:
            return None
        value = minuend
    codes = _cast_from(value)
    if codes is None or codes.dtype not in CODES:
        return None
    dtype = codes.dtype.numpy()
    if isinstance(zero, ir.Value):
        return Factor(codes, dtype, zero) if zero.dtype == codes.dtype else None
    if zero is not None:
        limits = np.iinfo(dtype)
        if (zero != np.rint(zero)).any() or zero.min() < limits.min or zero.max() > limits.max:
            return None
        zero = zero.astype(dtype) if zero.any() else None
    return Factor(codes, dtype, zero)


def _cast_from(value: ir.Value | None) -> ir.Value | None:
    """Return what a Cast to float32 or float64 that computes ``value`` takes."""
    node = producer_of(value, "Cast")
    is_exact = node is not None and node.attributes.get_int("to", 0) in _EXACT
    return node.inputs[0] if node is not None and is_exact else None


def _bias(total: ir.Node, unit: Array) -> tuple[Parameter | None, bool]:
    """Return the bias of a product in units of both scales, and whether no unit was rounded.

    It is an int32 value, or constant int32 codes if the graph has none.
    """
    value = input_of(total, 2)
    if value is None:
        return None, True
    decode = decoder(value)
    codes = _cast_from(value) if decode is None else decode.inputs[0]
    real = constant_expression(value)
    if codes is None or codes.dtype is not ir.DataType.INT32:
        if real is None:
            raise OperatorError(f"{where(total)}: its bias is not decoded from int32 codes")
        return _bias_codes(total, real, unit)
    scale, zero = (_ONE, np.zeros((), np.int32)) if decode is None else parameters(decode)
    is_vector = codes.shape is not None and len(codes.shape) == 1
    is_aligned = (scale.size == 1 or is_vector) and not zero.any()
    if is_aligned and np.array_equal(scale.reshape(-1), unit.reshape(-1)):
        return codes, True
    array = constant_expression(codes)
    if array is not None and is_aligned:
        whole, is_same = _bias_codes(total, array.astype(np.float32) * scale, unit)
        if is_same:
            return whole, True
    raise OperatorError(
        f"{where(total)}: the units of its bias are not the product of both scales, expected int32 "
        "codes in these units"
    )


def _bias_codes(total: ir.Node, bias: Array, unit: Array) -> tuple[Array, bool]:
    """Return real numbers as int32 codes in units of both scales, and whether none was rounded."""
    units = unit.reshape(-1) if unit.size > 1 else unit.reshape(())
    if units.size > 1 and bias.shape[-1:] != units.shape:
        raise OperatorError(
            f"{where(total)}: its bias has shape {list(bias.shape)}, expected one number for each "
            "channel"
        )
    with np.errstate(all="ignore"):
        codes = np.rint(bias.astype(np.float64) / units)
        far = np.abs(codes)
        if not (far <= _INT32_LIMIT).all():
            raise OperatorError(
                f"{where(total)}: its bias is {bias.flat[far.argmax()]:g}, which is too large for "
                "int32 codes in units of the product of both scales"
            )
        whole = codes.astype(np.int32)
        again = whole.astype(np.float32) * units
    return whole, bool((again == bias).all())
