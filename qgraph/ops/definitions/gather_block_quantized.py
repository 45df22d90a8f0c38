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
    kind, result = pieces.kind_of(node, 0), pieces.kind_of(node, 2)
    sizes = pieces.sizes_of(node, 0)
    get, rank = node.attributes.get_int, len(sizes)
    gather, axis = (
        pieces.axis_of(get(name, default), rank)
        for name, default in (("gather_axis", 0), ("quantize_axis", 1))
    )
    size = get("block_size", 128)
    if kind in _NARROW:
        return _decoded_first(draft, node, (gather, axis, size), result)
    if kind is not _PACKED:
        raise ValueError(f"its data is {kind.name}, expected codes of type UINT8, INT4 or UINT4")
    bits = get("bits", 4)
    if bits not in (2, 4, 8) or gather or not axis or size < 1:
        raise ValueError(
            f"bits = {bits}, gather_axis = {gather}, quantize_axis = {axis}, block_size = {size}; "
            "expected 2, 4 or 8 bits, and blocks along another axis than 0, which is gathered"
        )
    data, indices, scales = (pieces.operand(node, place) for place in range(3))
    points, before = pieces.given(node, 3), pieces.sizes_of(node, 1)
    rank = len(before) + rank - 1
    axis += len(before) - 1

    def taken(table: ir.Value) -> ir.Value:
        return draft.node("Gather", [table, indices], {"axis": 0}, dtype=table.dtype)

    # Scales say how many blocks there are: the last byte may hold more codes than the axis has.
    count = pieces.sizes_of(node, 2)[axis - len(before) + 1]
    length = None if axis == rank - 1 else sizes[axis - len(before) + 1]
    codes = pieces.cast(draft, pieces.unpacked(draft, taken(data), rank, bits), pieces.FLOAT)
    length = _length(sizes[-1], bits) if length is None else length
    if count is None or length is None:
        raise ValueError("the sizes of its table are not known, expected constants")
    scale = _spread(draft, pieces.cast(draft, taken(scales), pieces.FLOAT), axis, size, length)
    zero: Operand = np.asarray(1 << (bits - 1), np.float32)
    if points is not None:
        unpacked = pieces.unpacked(draft, taken(points), rank, bits)
        zero = pieces.cast(draft, unpacked, pieces.FLOAT)
        zero = _spread(draft, zero, axis, size, length)
        if axis == rank - 1:
            zero = _cut(draft, zero, axis, length)
    y = draft.node("Sub", [codes, zero], dtype=pieces.FLOAT)
    y = draft.node("Mul", [y, scale], dtype=pieces.FLOAT)
    return pieces.cast(draft, y, result)


def _length(data: int | None, bits: int) -> int | None:
    return None if data is None else data * 8 // bits


def _spread(draft: Draft, table: ir.Value, axis: int, size: int, length: int) -> ir.Value:
    """Return parameters of blocks, repeated for each element along ``axis``."""
    rows = np.arange(length, dtype=np.int64) // size
    return draft.node("Gather", [table, rows], {"axis": axis}, dtype=table.dtype)


def _cut(draft: Draft, table: ir.Value, axis: int, length: int) -> ir.Value:
    bounds = [np.asarray([n], np.int64) for n in (0, length, axis)]
    return draft.node("Slice", [table, *bounds], dtype=table.dtype)


def _decoded_first(
    draft: Draft, node: ir.Node, places: tuple[int, int, int], result: ir.DataType
) -> ir.Value:
    gather, axis, size = places
    draft.needs(_OPSET_OF_BLOCKS)
    inputs = [pieces.operand(node, 0), pieces.cast(draft, pieces.operand(node, 2), pieces.FLOAT)]
    points = pieces.given(node, 3)
    attributes = {"axis": axis, "block_size": size}
    operands = [*inputs, points] if points is not None else inputs
    table = draft.node("DequantizeLinear", operands, attributes, dtype=pieces.FLOAT)
    indices = pieces.operand(node, 1)
    y = draft.node("Gather", [table, indices], {"axis": gather}, dtype=pieces.FLOAT)
    return pieces.cast(draft, y, result)
