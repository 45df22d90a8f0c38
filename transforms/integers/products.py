"""Lowering and raising of operators that sum products of codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError, where
from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT
from qgraph.graph.scopes import producer_of
from qgraph.numerics import Array
from qgraph.ops.integer.decoded import (
    decoder,
    is_of_decoded,
    parameters,
    read_decoded,
    read_wholes,
    result_parameters,
    scale_axis,
)
from qgraph.ops.integer.forms import (
    compare_forms,
    compare_tables,
    draft_exact,
    draft_operator,
    draft_reals,
    unproved,
)
from qgraph.ops.integer.kernels import OPERATIONS, Pair, read_pair
from qgraph.ops.integer.products import Product, Result
from qgraph.ops.integer.sums import EXACT_IN_FLOAT32, Factor
from qgraph.quantizers.dialects.dialect import Refusal
from qgraph.reasons import NO_OPERATOR
from qgraph.reports import SiteStatus
from qgraph.transforms.drafts.choice import entry
from qgraph.transforms.drafts.rebuilding import Found, Rebuild

_OPSET, _OPSET_OF_AXES = 10, 13
_WRAPS = 1 << 31
_ONE = np.ones((), np.float32)


def lower_exactly(product: Product) -> Found:
    """Return the lowering of an operator to exact sums; refuse if there is none."""
    node, exact_type = product.node, product.exact_type
    if exact_type is None and product.result is Result.SUMS:
        reason = (
            f"its sums {product.size}, float32 is exact below 2**24 and there is no other form; "
            f"the operator is standard and can stay"
        )
        return entry(node, SiteStatus.KEPT, reason)
    if exact_type is None and product.transposed:
        reason = (
            f"its sums {product.size} and MatMulInteger does not transpose; transpose its weights "
            "first"
        )
        return Refusal(node, NO_OPERATOR(reason))
    reason = f"{product.integer_operator} keeps the sums"
    if exact_type is not None:
        reason = f"sums of at most {product.largest} are exact in {exact_type.name.lower()}"
    verdict = Verdict(Exactness.BITS, Method.CONGRUENCE, reason=reason)
    return Rebuild(node, (node,), verdict, lambda draft: draft_exact(draft, product), _OPSET)


def lower_to_reals(product: Product, *, subtracts: bool = False) -> Rebuild:
    """Return the lowering of an operator to real numbers, and its verdict.

    ``subtracts``: write the zero point of the first factor as a Sub; see
    :func:`qgraph.graph.opset.rewrites.refused_decoders`.

    Raises:
        ValueError: QuantizeLinear or DequantizeLinear cannot have its parameters.
    """
    for factor in (product.a, product.b):
        factor.check_one_axis()
    if isinstance(product.y_scale, np.ndarray) and product.y_scale.size > 1:
        raise ValueError("the scale of the result differs by rows; QuantizeLinear has one")
    has_axes = {product.a.axis, product.b.axis} != {None} or product.kind == "Conv"
    return Rebuild(
        product.node,
        (product.node,),
        compare_forms(product),
        lambda draft: draft_reals(draft, product, subtracts=subtracts),
        _OPSET_OF_AXES if has_axes else _OPSET,
    )


_NO_KERNEL = (
    "ONNX Runtime has no kernel of such an operator for INT8 data and UINT8 weights; store the "
    "weights as INT8, as -p repack{to=int8} does, first"
)


def raise_product(end: ir.Node, *, microsoft: bool) -> Rebuild | Refusal | None:
    """Return the raising of a product before a QuantizeLinear or Cast to int32; None without one.

    Raises:
        OperatorError: the product has no integer form.
    """
    read = _read_coded(end) if end.op_type == "QuantizeLinear" else _read_sums(end)
    if read is None:
        return None
    product, nodes, verdict = read
    if product.kind == "Gemm" and not microsoft:
        reason = "only com.microsoft has an operator for Gemm; allow it with microsoft=true"
        return Refusal(nodes[0], NO_OPERATOR(reason))
    is_mixed = product.a.dtype == np.int8 and product.b.dtype == np.uint8
    if end.op_type == "QuantizeLinear" and is_mixed:
        return Refusal(nodes[0], NO_OPERATOR(_NO_KERNEL))
    dtype = end.outputs[0].dtype
    write = lambda draft: draft_operator(draft, product, dtype)  # noqa: E731
    return Rebuild(nodes[0], nodes, verdict, write, _OPSET)


_Raised = tuple[Product, tuple[ir.Node, ...], Verdict]
"""The product that nodes compute, the nodes, and the verdict on the integer operator."""


def _read_coded(encode: ir.Node) -> _Raised | None:
    """Read the product before a QuantizeLinear: of decoded codes, or of integers."""
    total = only_source(encode.inputs[0], encode)
    clamp = total if total is not None and total.op_type in ("Clip", "Relu") else None
    if clamp is not None:
        total = only_source(clamp.inputs[0], clamp)
    if total is None:
        return None
    if is_of_decoded(total):
        encoding = result_parameters(encode)
        if clamp is not None:
            _check_saturation(clamp, *encoding)
        product = read_decoded(total)
        if product is None:
            return None
        bias = product.bias
        if isinstance(bias, np.ndarray) and bias.shape[-1:] not in ((), (bias.size,)):
            raise OperatorError(
                f"{where(total)}: its bias has shape {list(bias.shape)}, expected one number for "
                "each channel"
            )
        product = _encoded(product, encoding)
        nodes = (total, encode) if clamp is None else (total, clamp, encode)
        return product, nodes, compare_forms(product)
    return None if clamp is not None else _read_scaled(total, encode)


def _read_scaled(scaled: ir.Node, encode: ir.Node) -> _Raised | None:
    """Read integer sums that a Mul scales to steps and a QuantizeLinear with scale 1 quantizes."""
    if scaled.op_type != "Mul":
        return None
    multiplier = constant_expression(scaled.inputs[1])
    total = only_source(scaled.inputs[0], scaled)
    nodes: tuple[ir.Node, ...] = (scaled, encode)
    if total is not None and total.op_type == "Cast":
        nodes = (total, *nodes)
        total = only_source(total.inputs[0], total)
    if total is None or multiplier is None:
        return None
    product = _read_constant_wholes(total)
    if product is None:
        return None
    encoding = result_parameters(encode)
    if encoding[0] != 1:
        return None
    shape = product.b.codes.shape
    rank = 2 if shape is None else len(shape)
    scale = _of_channels(scaled, multiplier, rank - 2 if product.kind == "Conv" else 0)
    axis = scale_axis(total, rank)
    a, b = replace(product.a, scale=_ONE), replace(product.b, scale=scale, axis=axis)
    product = _encoded(replace(product, a=a, b=b), encoding)
    return product, (total, *nodes), _exact_sums(product)


def _read_sums(cast: ir.Node) -> _Raised | None:
    """Read integer sums that a Cast converts to int32."""
    if cast.attributes.get_int("to", 0) != ir.DataType.INT32.value:
        return None
    total = only_source(cast.inputs[0], cast)
    product = None if total is None else _read_constant_wholes(total)
    if total is None or product is None or product.bias is not None or product.kind == "Gemm":
        return None
    return product, (total, cast), _exact_sums(product)


def _read_constant_wholes(total: ir.Node) -> Product | None:
    """Read a product of integers whose zero points are constant."""
    product = read_wholes(total)
    if product is None:
        return None
    is_open = any(isinstance(each.zero_point, ir.Value) for each in (product.a, product.b))
    return None if is_open else product


def _encoded(product: Product, encoding: tuple[Array, Array]) -> Product:
    scale, zero = encoding
    return replace(product, result=Result.CODES, y_scale=scale, y_zero_point=zero)


def _exact_sums(product: Product) -> Verdict:
    """Return the verdict on sums of integers; they are exact if their type holds them."""
    is_wide = product.node.outputs[0].dtype is ir.DataType.DOUBLE
    limit, largest = _WRAPS if is_wide else EXACT_IN_FLOAT32, product.largest
    if largest is None or largest >= limit:
        return unproved(f"the sums {product.size}")
    reason = f"sums of at most {largest} are exact in both"
    return Verdict(Exactness.BITS, Method.CONGRUENCE, reason=reason)


def _of_channels(scaled: ir.Node, multiplier: Array, after: int) -> Array:
    """Return a multiplier of the sums; ``after`` axes follow the channels."""
    if multiplier.size == 1:
        return multiplier.reshape(())
    if multiplier.shape[-1 - after :][:1] != (multiplier.size,):
        raise OperatorError(
            f"{where(scaled)}: its multiplier has shape {list(multiplier.shape)}, expected one for "
            "each column or channel"
        )
    return multiplier.reshape(-1, *(1,) * after)


def _check_saturation(clamp: ir.Node, scale: Array, zero_point: Array) -> None:
    """Refuse a Relu or Clip that saturation of the QuantizeLinear after it does not replace.

    Rounding is monotone: if the lower bound has the lowest code, all smaller numbers have it too,
    as long as the scale is positive.

    Raises:
        OperatorError: a bound lies inside the range of the codes, or is not constant, or the scale
            is not positive.
    """
    if not (scale > 0).all():
        raise OperatorError(f"{where(clamp)}: the scale of the codes after it is not above 0")
    limits = np.iinfo(zero_point.dtype)
    low, high = _bounds(clamp) if clamp.op_type == "Clip" else (np.float32(0), None)
    zero = int(zero_point)
    with np.errstate(all="ignore"):
        if low is not None and not np.rint(low / scale) + zero <= limits.min:
            raise OperatorError(f"{where(clamp)}: its lower bound {low:g} has no lowest code")
        if high is not None and not np.rint(high / scale) + zero >= limits.max:
            raise OperatorError(f"{where(clamp)}: its upper bound {high:g} has no highest code")


def _bounds(clamp: ir.Node) -> tuple[Any, Any]:
    bounds = []
    for index, name in ((1, "min"), (2, "max")):
        value = clamp.inputs[index] if index < len(clamp.inputs) else None
        array = constant_expression(value)
        if value is not None and (array is None or array.size != 1):
            raise OperatorError(f"{where(clamp)}: its bound {name} is not constant")
        attribute = clamp.attributes.get_float(name)
        bounds.append(attribute if array is None else array.reshape(())[()])
    return bounds[0], bounds[1]


def only_source(value: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """Return the standard node that computes ``value`` for ``reader`` alone."""
    node = producer_of(value)
    if value is None or node is None or node.domain or value.is_graph_output():
        return None
    return node if set(value.consumers()) == {reader} and node.graph is reader.graph else None


def lower_pair(node: ir.Node, *, reals: bool) -> Rebuild | None:
    """Return the lowering of a node, exact or with real numbers; None for other operators.

    Raises:
        OperatorError: a parameter is not constant.
    """
    pair = read_pair(node)
    if pair is None:
        return None
    if reals:
        verdict = compare_tables(pair.table_of_reals(), pair.table(), "pairs of codes")
        return Rebuild(node, (node,), verdict, pair.draft_reals, _OPSET)
    if pair.operation == "Add":
        verdict = compare_tables(pair.table_of_exact(), pair.table(), "pairs of codes")
    else:
        verdict = Verdict(Exactness.BITS, Method.CONGRUENCE)
    return Rebuild(node, (node,), verdict, pair.draft_exact, _OPSET)


def raise_pair(encode: ir.Node) -> Rebuild | None:
    """Return the raising of an Add or Mul before a QuantizeLinear; None if there is none.

    All pairs of codes are tried.

    Raises:
        OperatorError: its codes or scales are not those of the operators of com.microsoft.
    """
    total = only_source(encode.inputs[0], encode)
    if total is None or total.op_type not in OPERATIONS.values():
        return None
    nodes = [decoder(value) for value in total.inputs]
    decoders = [node for node in nodes if node is not None and node.inputs[0] is not None]
    if len(decoders) < 2:
        return None
    encodings = [*map(parameters, decoders), result_parameters(encode)]
    if any(scale.size > 1 for scale, _ in encodings) or len({z.dtype for _, z in encodings}) > 1:
        raise OperatorError(
            f"{where(total)}: its scales differ along an axis or its codes are of several types, "
            f"expected one of each for QLinear{total.op_type}"
        )
    factors = [
        Factor(node.inputs[0], zero.dtype, zero, scale)
        for node, (scale, zero) in zip(decoders, encodings[:2], strict=True)
        if node.inputs[0] is not None
    ]
    pair = Pair(total.op_type, factors[0], factors[1], *encodings[2])
    verdict = compare_tables(pair.table(), pair.table_of_reals(), "pairs of codes")

    def write(draft: Draft) -> Operand:
        operands = [x for each in factors for x in (each.codes, each.scale, each.zero_point)]
        dtype = encode.outputs[0].dtype
        return draft.node(pair.name, [*operands, *encodings[2]], domain=MICROSOFT, dtype=dtype)

    return Rebuild(total, (total, encode), verdict, write, _OPSET)
