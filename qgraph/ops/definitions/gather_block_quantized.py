"""GatherBlockQuantized of com.microsoft: rows of a table that is stored as blocks of codes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT
from qgraph.ops import pieces
from qgraph.ops.composite import composite

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
    dtype, result = pieces.dtype_of(node, 0), pieces.dtype_of(node, 2)
    sizes = pieces.sizes_of(node, 0)
    get, rank = node.attributes.get_int, len(sizes)
    gather, axis = (
        pieces.axis_of(get(name, default), rank)
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
    indices = pieces.operand(node, 1)
    rank += len(pieces.sizes_of(node, 1)) - 1
    length = sizes[-1] * 8 // bits

    def taken(table: ir.Value) -> ir.Value:
        return draft.node("Gather", [table, indices], {"axis": 0}, dtype=table.dtype)

    def numbers(index: int) -> ir.Value:
        table, last = pieces.operand(node, index), pieces.sizes_of(node, index)[-1]
        count = None if last is None else last * 8 // bits
        codes = pieces.unpacked(draft, taken(table), rank, bits, length=count)
        return pieces.cast(draft, codes, pieces.FLOAT)

    scale = pieces.cast(draft, taken(pieces.operand(node, 2)), pieces.FLOAT)
    zero: Operand = np.asarray(1 << (bits - 1), np.float32)
    if pieces.given(node, 3) is not None:
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
    inputs = [pieces.operand(node, 0), pieces.cast(draft, pieces.operand(node, 2), pieces.FLOAT)]
    points = pieces.given(node, 3)
    attributes = {"axis": axis, "block_size": size}
    operands = [*inputs, points] if points is not None else inputs
    table = draft.node("DequantizeLinear", operands, attributes, dtype=pieces.FLOAT)
    indices = pieces.operand(node, 1)
    y = draft.node("Gather", [table, indices], {"axis": gather}, dtype=pieces.FLOAT)
    return pieces.cast(draft, y, result)
