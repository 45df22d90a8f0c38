"""ExtendedQuantizeLinear and ExtendedDequantizeLinear of AMD Quark: codes of up to 32 bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.schema import OpKey
from qgraph.ops import pieces
from qgraph.ops.composite import composite

_OLD = "com.vai.quantize"
_DOMAIN = "com.amd.quark"
_WIDE = {ir.DataType.INT32: (-(1 << 31), (1 << 31) - 1), ir.DataType.UINT32: (0, (1 << 32) - 1)}


@composite(
    "ExtendedQuantizeLinear",
    _DOMAIN,
    also=[OpKey(_OLD, "VitisQuantizeLinear")],
    remark="a quotient of at least 2**63, or NaN, has no defined code in Quark",
)
def extended_quantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``code = saturate(round_half_even(x / scale) + zero_point)``.

    The zero point names the type of the codes: 8, 16 or 32 bits, or BFLOAT16, whose numbers are
    ``x / scale + zero_point``. One scale, or one for each place along ``axis``, by default 0.

    Source: AMD Quark 0.13, by reading and running its CPU kernels.
    """
    x, scale, point = (pieces.operand(node, index) for index in range(3))
    dtype, axis = _code_type(node, pieces.dtype_of(node, 2))
    if dtype.name in QDQ_SINCE and dtype not in _WIDE:
        draft.needs(QDQ_SINCE[dtype.name])
        operands = [x, *_parameters(draft, node)]
        return draft.node("QuantizeLinear", operands, {"axis": axis}, dtype=dtype)
    op = draft.op
    steps = op.Div(x, _aligned(draft, node, scale, axis))
    if dtype is ir.DataType.BFLOAT16:
        zero = pieces.cast(draft, _aligned(draft, node, point, axis), pieces.FLOAT)
        return op.Cast(op.Add(steps, zero), to=dtype)
    wide = ir.DataType.INT64
    zero = pieces.cast(draft, _aligned(draft, node, point, axis), wide)
    total = draft.node("Add", [op.Cast(op.Round(steps), to=wide), zero], dtype=wide)
    bounds = [np.asarray(bound, np.int64) for bound in _WIDE[dtype]]
    return pieces.cast(draft, draft.node("Clip", [total, *bounds], dtype=wide), dtype)


@composite("ExtendedDequantizeLinear", _DOMAIN, also=[OpKey(_OLD, "VitisDequantizeLinear")])
def extended_dequantize_linear(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = (code - zero_point) * scale``; the difference is one of integers.

    Source: AMD Quark 0.13, by reading and running its CPU kernels.
    """
    x, scale, point = (pieces.operand(node, index) for index in range(3))
    dtype, axis = _code_type(node, pieces.dtype_of(node, 2))
    if dtype.name in QDQ_SINCE and dtype not in _WIDE:
        draft.needs(QDQ_SINCE[dtype.name])
        operands = [x, *_parameters(draft, node)]
        return draft.node("DequantizeLinear", operands, {"axis": axis}, dtype=pieces.FLOAT)
    to = pieces.FLOAT if dtype is ir.DataType.BFLOAT16 else ir.DataType.INT64
    zero = pieces.cast(draft, _aligned(draft, node, point, axis), to)
    steps = draft.node("Sub", [pieces.cast(draft, x, to), zero], dtype=to)
    numbers = pieces.cast(draft, steps, pieces.FLOAT)
    return draft.op.Mul(numbers, _aligned(draft, node, scale, axis))


def _code_type(node: ir.Node, dtype: ir.DataType) -> tuple[ir.DataType, int]:
    """Return the type of the codes, and the axis of the scales."""
    if dtype is ir.DataType.FLOAT16:
        raise ValueError(
            "its zero point is FLOAT16, for which Quark's kernel for processors ignores the scale "
            "and that for graphics cards does not; expected codes or BFLOAT16. Write a Cast"
        )
    if dtype not in (*_WIDE, ir.DataType.BFLOAT16) and dtype.name not in QDQ_SINCE:
        raise ValueError(f"its zero point is {dtype.name}, expected integers or BFLOAT16. Cast it")
    return dtype, pieces.axis_of(node.attributes.get_int("axis", 0), len(pieces.sizes_of(node, 0)))


def _parameters(draft: Draft, node: ir.Node) -> list[ir.Value]:
    """Return scale and zero point, as scalars if they have one element."""
    parameters = []
    for index in (1, 2):
        value, sizes = pieces.operand(node, index), pieces.sizes_of(node, index)
        parameters.append(pieces.reshape(draft, value, []) if sizes == (1,) else value)
    return parameters


def _aligned(draft: Draft, node: ir.Node, value: ir.Value, axis: int) -> ir.Value:
    """Return a parameter in a shape that broadcasts to the data."""
    sizes = pieces.sizes_of(node, list(node.inputs).index(value))
    if sizes in ((), (1,)):
        return pieces.reshape(draft, value, []) if sizes else value
    rank = len(pieces.sizes_of(node, 0))
    return pieces.reshape(draft, value, [-1 if index == axis else 1 for index in range(rank)])
