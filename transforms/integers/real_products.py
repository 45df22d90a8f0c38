"""Products of decoded codes between DequantizeLinear and QuantizeLinear, read as integer ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.foreign.operands import Operand
from qgraph.foreign.products import Product, Result
from qgraph.foreign.rescaling import EXACT_IN_FLOAT32, unproved
from qgraph.graph.folding import constant_expression
from qgraph.transforms.integers.coded_parts import bias_codes, check_saturation
from qgraph.transforms.integers.real_sums import equality

Array = npt.NDArray[Any]
Raised = tuple[Product, tuple[ir.Node, ...], Verdict]
"""What the nodes compute, the nodes, and how equal the integer operator is."""

KINDS = ("Conv", "Gemm", "MatMul")
_CODES = (ir.DataType.INT8, ir.DataType.UINT8)
_EXACT = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_WRAPS = 1 << 31


def read_coded(encode: ir.Node) -> Raised | None:
    """Return the product that ends in a QuantizeLinear; None if there is none before it.

    It is read as a product of decoded codes, or, if its scale is 1, of whole numbers.

    Raises:
        OperatorError: the product has no integer form.
    """
    total = only(encode.inputs[0], encode)
    nodes = [encode]
    if total is not None and total.op_type in ("Clip", "Relu"):
        nodes.insert(0, total)
        total = only(total.inputs[0], total)
    if total is None:
        return None
    if total.op_type in KINDS and decoder(total.inputs[0]) and decoder(total.inputs[1]):
        y_scale, y_zero = result(encode)
        if len(nodes) > 1:
            check_saturation(nodes[0], y_scale, y_zero)
        product, verdict = _decoded(total, y_scale, y_zero)
        return product, (total, *nodes), verdict
    if len(nodes) > 1:
        return None
    return _whole_coded(total, encode) if total.op_type == "Mul" else None


def read_sums(cast: ir.Node) -> Raised | None:
    """Return the product of whole numbers that ends in a Cast to int32; None if there is none."""
    if cast.attributes.get_int("to", 0) != ir.DataType.INT32.value:
        return None
    total = only(cast.inputs[0], cast)
    factors = None if total is None else _wholes(total)
    if total is None or factors is None or _bias(total) is not None or total.op_type == "Gemm":
        return None
    product = Product(total, total.op_type, Result.SUMS, *factors)
    return product, (total, cast), _exact(product, factors[0].codes, total)


def _whole_coded(scaled: ir.Node, encode: ir.Node) -> Raised | None:
    real, multiplier = scaled.inputs[0], constant_expression(scaled.inputs[1])
    nodes = [scaled, encode]
    total = only(real, scaled)
    if total is not None and total.op_type == "Cast":
        nodes.insert(0, total)
        total = only(total.inputs[0], total)
    factors = None if total is None else _wholes(total)
    if total is None or factors is None or multiplier is None:
        return None
    y_scale, y_zero = result(encode)
    if y_scale != 1:
        return None
    scale = _of_columns(scaled, multiplier, total, factors[1].codes)
    b = Operand(factors[1].codes, factors[1].dtype, factors[1].zero_point, scale, _axis(total))
    a = Operand(factors[0].codes, factors[0].dtype, factors[0].zero_point, np.ones((), np.float32))
    product = Product(
        total, total.op_type, Result.CODES, a, b, _bias(total), np.float32(1), y_scale, y_zero
    )
    return product, (total, *nodes), _exact(product, a.codes, total)


def _exact(product: Product, codes: ir.Value, total: ir.Node) -> Verdict:
    """Return the verdict on sums of whole numbers: exact as long as the type holds them."""
    wide = total.outputs[0].dtype is ir.DataType.DOUBLE
    limit, largest = _WRAPS if wide else EXACT_IN_FLOAT32, product.largest
    if largest is not None and largest < limit:
        reason = f"sums of at most {largest} are exact in both"
        return Verdict(Exactness.BITS, Method.CONGRUENCE, reason=reason)
    size = "are not known" if largest is None else f"may reach {largest}"
    return unproved(f"the sums {size}")


def _decoded(total: ir.Node, y_scale: Array, y_zero: Array) -> tuple[Product, Verdict]:
    """Read a product whose factors come out of DequantizeLinear, and how equal it is."""
    factors = []
    for place, value in enumerate(total.inputs[:2]):
        decode = decoder(value)
        if decode is None or decode.inputs[0] is None:
            raise OperatorError(f"{where(total)}: a factor is not decoded from codes")
        codes = decode.inputs[0]
        scale, zero = parameters(decode)
        dtype = _dtype(codes, zero)
        axis = None
        if scale.size > 1:
            axis = _check_axis(decode, total, place)
            after = max(len(codes.shape or ()) - axis - 1, 0)
            after_sums = max(after - 1, 0) if total.op_type == "Conv" else 0
            zero, scale = zero.reshape(-1, *(1,) * after), scale.reshape(-1, *(1,) * after_sums)
        known = zero if zero.any() else None
        factors.append(Operand(codes, dtype, known, scale, axis))
    a, b = factors
    alpha = _alpha(total)
    given = total.inputs[2] if len(total.inputs) > 2 else None
    real = constant_expression(given)
    whole: Array | None = None
    same = True
    if real is not None:
        whole, same = bias_codes(total, real, np.asarray(a.scale) * np.asarray(b.scale))
    bias = None if given is None or whole is not None else _bias(total, a, b)
    kind = total.op_type
    product = Product(
        total, kind, Result.CODES, a, b, bias, alpha, y_scale, y_zero, bias_codes=whole
    )
    verdict = equality(product)
    if same:
        return product, verdict
    return product, unproved("the bias is rounded to units of both scales")


def _alpha(total: ir.Node) -> np.float32:
    if total.op_type != "Gemm":
        return np.float32(1)
    alpha, beta = (total.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    if len(total.inputs) > 2 and alpha != beta:
        raise OperatorError(f"{where(total)}: alpha and beta differ, which QGemm has not")
    return np.float32(alpha)


def _check_axis(decode: ir.Node, total: ir.Node, place: int) -> int:
    shape = decode.inputs[0].shape if decode.inputs[0] is not None else None
    if shape is None:
        raise OperatorError(f"{where(decode)}: the rank of its codes is not known; infer shapes")
    axis = decode.attributes.get_int("axis", 1) % len(shape)
    wanted = _axis(total) % len(shape)
    block = decode.attributes.get_int("block_size", 0)
    if place == 0 or axis != wanted or block:
        raise OperatorError(
            f"{where(decode)}: its scales differ along axis {axis}; integer operators have one "
            "scale for the data and one for each column or channel of the weights"
        )
    return axis


def _axis(total: ir.Node) -> int:
    """Return the axis of the weights along which their scales may differ."""
    if total.op_type == "Conv":
        return 0
    transposed = total.attributes.get_int("transB", 0)
    return 0 if transposed else -1


def _of_columns(node: ir.Node, multiplier: Array, total: ir.Node, weights: ir.Value) -> Array:
    """Return a multiplier as the scales of the columns or channels of the weights."""
    if multiplier.size == 1:
        return multiplier.reshape(())
    shape = weights.shape
    place = -1 if total.op_type != "Conv" or shape is None else 1 - len(shape)
    if multiplier.shape[place:][:1] != (multiplier.size,):
        raise OperatorError(
            f"{where(node)}: its multiplier has shape {list(multiplier.shape)}, expected one for "
            "each column or channel"
        )
    return multiplier.reshape(-1, *(1,) * (-place - 1))


def _wholes(total: ir.Node) -> tuple[Operand, Operand] | None:
    """Return both factors of a product of codes less their zero points, without other factors."""
    if total.domain or total.op_type not in KINDS:
        return None
    plain = (total.attributes.get_float(name, 1.0) == 1 for name in ("alpha", "beta"))
    if total.op_type == "Gemm" and not all(plain):
        return None
    found = []
    for value in total.inputs[:2]:
        node = None if value is None else value.producer()
        zero = None
        if node is not None and node.op_type == "Sub":
            zero = constant_expression(node.inputs[1])
            if zero is None or node.inputs[0] is None:
                return None
            node = node.inputs[0].producer()
        if node is None or node.domain or node.op_type != "Cast":
            return None
        codes, to = node.inputs[0], ir.DataType(node.attributes.get_int("to", 0))
        if codes is None or codes.dtype not in _CODES or to not in _EXACT:
            return None
        dtype = codes.dtype.numpy()
        if zero is not None:
            limits = np.iinfo(dtype)
            if (zero != np.rint(zero)).any() or zero.min() < limits.min or zero.max() > limits.max:
                return None
            zero = zero.astype(dtype)
        found.append(Operand(codes, dtype, zero))
    return found[0], found[1]


def _bias(total: ir.Node, a: Operand | None = None, b: Operand | None = None) -> ir.Value | None:
    """Return the int32 values that a product adds."""
    value = total.inputs[2] if len(total.inputs) > 2 else None
    if value is None:
        return None
    node = value.producer()
    if node is None or node.inputs[0] is None or node.inputs[0].dtype is not ir.DataType.INT32:
        raise OperatorError(f"{where(total)}: its bias is not decoded from int32 codes")
    if node.op_type == "Cast" and a is None:
        return node.inputs[0]
    if node.op_type == "DequantizeLinear" and a is not None and b is not None:
        scale, zero = parameters(node)
        unit = np.asarray(a.scale) * np.asarray(b.scale)
        shape = node.inputs[0].shape
        placed = scale.size == 1 or (shape is not None and len(shape) == 1)
        if placed and not zero.any() and np.array_equal(scale.reshape(-1), unit.reshape(-1)):
            return node.inputs[0]
    raise OperatorError(
        f"{where(total)}: the units of its bias are not the product of both scales, expected int32 "
        "codes in these units"
    )


def result(encode: ir.Node) -> tuple[Array, Array]:
    """Return the parameters of a QuantizeLinear that integer operators can end in."""
    scale, zero = parameters(encode)
    if scale.size > 1:
        raise OperatorError(f"{where(encode)}: it has several scales; integer operators have one")
    _dtype(encode.outputs[0], zero)
    return scale, zero


def parameters(node: ir.Node) -> tuple[Array, Array]:
    """Return scale and zero point of a QuantizeLinear or DequantizeLinear.

    Raises:
        OperatorError: they are known at run time only, or not of the types of integer operators.
    """
    values = [*node.inputs, None][:3]
    scale = constant_expression(values[1])
    zero = None if values[2] is None else constant_expression(values[2])
    if scale is None or (zero is None and values[2] is not None):
        raise OperatorError(f"{where(node)}: its scale or zero point is known at run time only")
    if scale.dtype != np.float32:
        raise OperatorError(f"{where(node)}: its scale is {scale.dtype}, expected float32")
    if zero is None:
        codes = node.inputs[0] if node.op_type == "DequantizeLinear" else node.outputs[0]
        kind = None if codes is None else codes.dtype
        zero = np.zeros(scale.shape, np.uint8 if kind is None else kind.numpy())
    return (scale.reshape(()), zero.reshape(())) if scale.size == 1 else (scale, zero)


def _dtype(codes: ir.Value, zero: Array) -> np.dtype[Any]:
    dtype = zero.dtype if codes.dtype is None else codes.dtype.numpy()
    if dtype not in (np.dtype(np.int8), np.dtype(np.uint8)):
        raise OperatorError(
            f"the codes {codes.name!r} are {dtype}; integer operators have int8 and uint8"
        )
    return dtype


def decoder(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear that computes a value."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def only(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """Return the standard node that computes ``value`` for ``reader`` alone."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain or value.is_graph_output():
        return None
    return node if set(value.consumers()) == {reader} and node.graph is reader.graph else None
