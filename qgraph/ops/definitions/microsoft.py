"""Operators of com.microsoft that are defined by graphs.

GatherBlockQuantized takes rows of a table that is stored as blocks of codes. MatMulBnb4 is a matrix
product with weights of 4 bits by table, NF4 or FP4. QAttention is self-attention whose projections
are products of codes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT
from qgraph.graph.scopes import input_of
from qgraph.numerics import Float32
from qgraph.ops.composite import (
    FLOAT,
    axis_of,
    cast,
    composite,
    dtype_of,
    moved,
    operand,
    reshape,
    sizes_of,
    unpacked,
)

_PACKED = ir.DataType.UINT8
_NARROW = (ir.DataType.INT4, ir.DataType.UINT4)
_OPSET_OF_BLOCKS = 21


@composite(
    "GatherBlockQuantized",
    MICROSOFT,
    remark="an index out of range gives zeros there, and is an error of Gather",
)
def gather_block_quantized(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = (code - zero_point) * scale`` of what Gather takes from codes and parameters.

    In float32, rounded once to the type of the scales. Codes in bytes, packed along the last axis
    from the low bits on, are gathered before they are unpacked, so that only rows in use are. Codes
    of type INT4 and UINT4, which Gather does not take, are decoded first.

    Source: ONNX Runtime's documentation of its operators, GatherBlockQuantized-1.
    """
    dtype, result = dtype_of(node, 0), dtype_of(node, 2)
    sizes = sizes_of(node, 0)
    get, rank = node.attributes.get_int, len(sizes)
    gather, axis = (
        axis_of(get(name, default), rank)
        for name, default in (("gather_axis", 0), ("quantize_axis", 1))
    )
    size = get("block_size", 128)
    if dtype in _NARROW:
        return _decoded_first(draft, node, (gather, axis, size), result)
    if dtype is not _PACKED:
        raise ValueError(f"its data is {dtype.name}, expected UINT8, INT4 or UINT4. Cast it")
    bits = get("bits", 4)
    is_last = not gather and 0 < axis == rank - 1
    if bits not in (2, 4, 8) or not is_last or size < 1 or sizes[-1] is None:
        raise ValueError(
            f"bits = {bits}, gather_axis = {gather}, quantize_axis = {axis}, block_size = {size}, "
            f"data of shape {list(sizes)}; expected 2, 4 or 8 bits, rows that are gathered along "
            "axis 0, and blocks along the last axis, whose size is known"
        )
    indices = operand(node, 1)
    rank += len(sizes_of(node, 1)) - 1
    length = sizes[-1] * 8 // bits

    def taken(table: ir.Value) -> ir.Value:
        return draft.node("Gather", [table, indices], {"axis": 0}, dtype=table.dtype)

    def numbers(index: int) -> ir.Value:
        table, last = operand(node, index), sizes_of(node, index)[-1]
        count = None if last is None else last * 8 // bits
        return cast(draft, unpacked(draft, taken(table), rank, bits, length=count), FLOAT)

    scale = cast(draft, taken(operand(node, 2)), FLOAT)
    zero: Operand = np.asarray(1 << (bits - 1), np.float32)
    if input_of(node, 3) is not None:
        # The last byte of a row may hold more zero points than there are blocks.
        zero = _spread(draft, numbers(3), size, length)
    codes = numbers(0)
    y = draft.op.Mul(draft.op.Sub(codes, zero), _spread(draft, scale, size, length))
    return draft.op.Cast(y, to=result)


def _spread(draft: Draft, table: ir.Value, size: int, length: int) -> ir.Value:
    """Return the parameters of blocks for each of ``length`` elements of the last axis."""
    blocks = np.arange(length, dtype=np.int64) // size
    return draft.node("Gather", [table, blocks], {"axis": -1}, dtype=table.dtype)


def _decoded_first(
    draft: Draft, node: ir.Node, axes: tuple[int, int, int], result: ir.DataType
) -> ir.Value:
    gather, axis, size = axes
    draft.needs(_OPSET_OF_BLOCKS)
    inputs = [operand(node, 0), cast(draft, operand(node, 2), FLOAT)]
    points = input_of(node, 3)
    attributes = {"axis": axis, "block_size": size}
    operands = [*inputs, points] if points is not None else inputs
    table = draft.node("DequantizeLinear", operands, attributes, dtype=FLOAT)
    y = draft.node("Gather", [table, operand(node, 1)], {"axis": gather}, dtype=FLOAT)
    return cast(draft, y, result)


_OF_FP4 = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
"""Magnitudes of FP4 by the low three bits of a code; the fourth bit is the sign."""

_OF_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""The levels of NF4, quantiles of the normal distribution: QLoRA, arXiv 2305.14314, appendix E."""


def levels(quant_type: int) -> Float32:
    """Return the values of the 16 codes.

    Raises:
        ValueError: the type is neither 0, FP4, nor 1, NF4.
    """
    if quant_type not in (0, 1):
        raise ValueError(
            f"its quant_type is {quant_type}, expected 0 (FP4) or 1 (NF4). Export it again"
        )
    fp4 = (*_OF_FP4, *(-level for level in _OF_FP4))
    return np.asarray((fp4, _OF_NF4)[quant_type], np.float32)


@composite("MatMulBnb4", MICROSOFT)
def mat_mul_bnb4(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = a @ w.T`` with ``w[n, k] = level[code] * absmax[(n * K + k) // block_size]``.

    One rounding per operation, sums in float32 also for data of 16 bits. Codes are packed two to a
    byte, the first one in the high bits. With ``transB = 0`` the product is ``a @ w``.

    Source: ONNX Runtime's documentation of its operators, MatMulBnb4-1; the order of the codes was
    found by running it.
    """
    get = node.attributes.get_int
    k, n, size = (get(name, 0) for name in ("K", "N", "block_size"))
    if min(k, n, size) < 1:
        raise ValueError(
            f"K = {k}, N = {n}, block_size = {size}, expected positive numbers. Export it again"
        )
    a, packed, absmax = (operand(node, index) for index in range(3))
    dtype, total = dtype_of(node, 0), n * k
    codes = unpacked(draft, packed, len(sizes_of(node, 1)), 4, high=True)
    codes = reshape(draft, codes, [-1])
    blocks = -(-total // size)
    table = draft.constant(levels(get("quant_type", 0)), "levels")
    index = cast(draft, codes, ir.DataType.INT32)
    w = draft.node("Gather", [table, index], dtype=FLOAT)
    w = _resized(draft, w, total + total % 2, blocks * size)
    scale = reshape(draft, cast(draft, absmax, FLOAT), [blocks, 1])
    w = draft.node("Mul", [reshape(draft, w, [blocks, size]), scale], dtype=FLOAT)
    w = _resized(draft, reshape(draft, w, [-1]), blocks * size, total)
    w = reshape(draft, w, [n, k])
    if get("transB", 1):
        w = moved(draft, w, [1, 0])
    return cast(draft, draft.node("MatMul", [cast(draft, a, FLOAT), w], dtype=FLOAT), dtype)


def _resized(draft: Draft, x: ir.Value, length: int, wanted: int) -> ir.Value:
    """Return a vector with zeros appended, or with elements dropped at its end."""
    if wanted > length:
        return draft.node("Pad", [x, np.asarray([0, wanted - length], np.int64)], dtype=x.dtype)
    if wanted < length:
        bounds = [np.asarray([end], np.int64) for end in (0, wanted)]
        return draft.node("Slice", [x, *bounds], dtype=x.dtype)
    return x


_LOWEST = np.finfo(np.float32).min
_MASKED = -10000.0
"""Default number that is added to the scores of masked keys."""

_OPSET_OF_TRIANGLES = 14
_WHOLE_NUMBERS = (ir.DataType.INT32, ir.DataType.INT64)


@composite("QAttention", MICROSOFT, remark="ONNX leaves the order of the sums open")
def q_attention(draft: Draft, node: ir.Node) -> Operand:
    """Write ``y = softmax(q @ k.T / sqrt(H) + mask) @ v`` for each of ``num_heads`` heads.

    ``q``, ``k`` and ``v`` ``[batch, heads, S, H]`` are the thirds of
    ``float(MatMulInteger(x, w, x_zero, w_zero)) * (x_scale * w_scale) + bias``, ``[batch, S, 3 *
    heads * H]``. A mask ``[batch, S]`` adds ``mask_filter_value`` to the scores of keys where it is
    not positive; with ``unidirectional`` a key after its query gets the lowest float32.

    Source: ONNX Runtime's documentation of its operators, QAttention-1; the steps that it leaves
    open were found by running it.
    """
    get = node.attributes.get_int
    heads, dtype = get("num_heads", 0), FLOAT
    x, w, bias, x_scale, w_scale = (operand(node, index) for index in range(5))
    width = sizes_of(node, 1)[-1]
    if heads < 1 or width is None or width % (3 * heads):
        raise ValueError(
            f"num_heads is {heads} and its weights have {width} columns, expected three equal "
            "parts for each head. Infer shapes, or export it again"
        )
    if input_of(node, 8) is not None or len(node.outputs) > 1 or get("do_rotary", 0) != 0:
        raise ValueError(
            "it has a past, a present or rotary positions, which qgraph does not define. Run it in "
            "ONNX Runtime, or export the model without them"
        )
    size = width // (3 * heads)
    zeros = [input_of(node, index) for index in (6, 7)]
    operands = [x, w, *zeros] if zeros[1] is not None else [x, w, *zeros[:1]]
    sums = draft.node("MatMulInteger", operands, dtype=ir.DataType.INT32)
    scale = draft.node("Mul", [x_scale, w_scale], dtype=dtype)
    reals = draft.node("Mul", [cast(draft, sums, dtype), scale], dtype=dtype)
    reals = draft.node("Add", [reals, bias], dtype=dtype)
    parts = draft.node(
        "Reshape", [reals, np.asarray([0, 0, 3, heads, size], np.int64)], dtype=dtype
    )
    parts = moved(draft, parts, [2, 0, 3, 1, 4])
    q, k, v = (
        draft.node("Gather", [parts, np.asarray(index, np.int64)], {"axis": 0}, dtype=dtype)
        for index in range(3)
    )
    scores = draft.node("MatMul", [q, moved(draft, k, [0, 1, 3, 2])], dtype=dtype)
    factor = np.asarray(np.float32(1) / np.sqrt(np.float32(size)))
    scores = draft.node("Mul", [scores, factor], dtype=dtype)
    for mask in (_key_mask(draft, node), _future_mask(draft, node, scores)):
        if mask is not None:
            scores = draft.node("Add", [scores, mask], dtype=dtype)
    shares = draft.node("Softmax", [scores], {"axis": -1}, dtype=dtype)
    y = moved(draft, draft.node("MatMul", [shares, v], dtype=dtype), [0, 2, 1, 3])
    return draft.node("Reshape", [y, np.asarray([0, 0, heads * size], np.int64)], dtype=dtype)


def _key_mask(draft: Draft, node: ir.Node) -> Operand | None:
    """Return the addend of the scores of each key, ``[batch, 1, 1, S]``; None without a mask."""
    mask = input_of(node, 5)
    if mask is None:
        return None
    dtype, sizes = dtype_of(node, 5), sizes_of(node, 5)
    if dtype not in _WHOLE_NUMBERS or len(sizes) != 2:
        raise ValueError(
            f"its mask is {dtype.name} of shape {list(sizes)}, expected integers [batch, keys]. "
            "Export it with such a mask, or run it in ONNX Runtime"
        )
    filler = node.attributes.get_float("mask_filter_value", _MASKED)
    is_kept = draft.node("Greater", [mask, np.zeros((), dtype.numpy())], dtype=ir.DataType.BOOL)
    added = draft.op.Where(is_kept, 0.0, filler)
    return draft.node("Unsqueeze", [added, np.asarray([1, 2], np.int64)], dtype=FLOAT)


def _future_mask(draft: Draft, node: ir.Node, scores: ir.Value) -> Operand | None:
    """Return the addend of the scores of later keys, ``[S, S]``; None if they are not masked."""
    if node.attributes.get_int("unidirectional", 0) == 0:
        return None
    length = sizes_of(node, 0)[1]
    if length is not None:
        return draft.constant(np.triu(np.full((length, length), _LOWEST, np.float32), 1), "later")
    draft.needs(_OPSET_OF_TRIANGLES)
    shape = draft.node("Shape", [scores], dtype=ir.DataType.INT64)
    square = draft.node(
        "Slice", [shape, *(np.asarray([n], np.int64) for n in (2, 4))], dtype=ir.DataType.INT64
    )
    lowest = ir.Tensor(np.asarray([_LOWEST], np.float32))
    filled = draft.node("ConstantOfShape", [square], {"value": lowest}, dtype=FLOAT)
    return draft.node("Trilu", [filled, np.asarray(1, np.int64)], {"upper": 1}, dtype=FLOAT)
