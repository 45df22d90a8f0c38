"""Quantizers with data movement between QuantizeLinear and DequantizeLinear, as pairs.

    DequantizeLinear(move(QuantizeLinear(x)))  ->  move(DequantizeLinear(QuantizeLinear(x)))

Equal bit for bit: every element is decoded once, with the same scale and zero point. Movements are
Transpose, Reshape, Slice, Gather, Concat and similar operators. MaxPool counts as one if the scale
is positive, because decoding keeps the order of codes then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Region
from qgraph.graph.schema import MICROSOFT
from qgraph.graph.scopes import nodes_of, owners
from qgraph.ops.static_parameters import settled
from qgraph.quantizers.decompressed import decompressed

_DOMAINS = ("", MICROSOFT)

_KEEP_AXES = frozenset({"Expand", "Identity", "Slice"})
_RESHAPE = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_MOVE = _KEEP_AXES | _RESHAPE | {"Concat", "DepthToSpace", "Gather", "MaxPool", "Tile", "Transpose"}

_Axis: TypeAlias = int | None
_Write: TypeAlias = Callable[[Draft], ir.Value]


def join_pairs(model: ir.Model) -> int:
    """Move data behind each DequantizeLinear instead of before it, in place; return how many."""
    found = _separated(model)
    editor = Editor(model)
    drafts = []
    for decode, write in found:
        draft = editor.draft(Region(ir.Value(name=""), decode.outputs[0], (decode,)))
        drafts.append(draft.giving(write(draft)))
    editor.replace_all(drafts)
    return len(found)


def prepared(model: ir.Model) -> ir.Model:
    """Return the model as the readers of quantizers need it: itself, or else a copy.

    Parameters that follow from static dimensions are constants in it, data moves behind pairs, and
    DequantizeLinear decodes the constants that Cast, Sub and Mul decode.
    """
    known = settled(model)
    if not _separated(known) and next(decompressed(known), None) is None:
        return known
    copy = known.clone() if known is model else known
    editor = Editor(copy)
    editor.replace_all([found.draft(editor) for found in decompressed(copy)])
    join_pairs(copy)
    return copy


def _separated(model: ir.Model) -> list[tuple[ir.Node, _Write]]:
    """Return each DequantizeLinear of moved codes, and what writes it before the movement."""
    found = []
    for owner in owners(model):
        for node in nodes_of(owner):
            if node.op_type != "DequantizeLinear" or node.domain not in _DOMAINS:
                continue
            codes = node.inputs[0]
            maker = None if codes is None else codes.producer()
            if codes is None or maker is None or maker.op_type not in _MOVE:
                continue
            write = _decoded(node, codes, _axis(node))
            if write is not None:
                found.append((node, write))
    return found


def encoder_of(codes: ir.Value | None) -> ir.Node | None:
    """Return the QuantizeLinear of one scale whose codes ``codes`` are, moved or not."""
    node = None if codes is None else codes.producer()
    while node is not None and node.op_type in _MOVE - {"Concat"} and not node.domain:
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    is_encoder = node is not None and node.op_type == "QuantizeLinear" and node.domain in _DOMAINS
    return node if is_encoder else None


def _axis(decode: ir.Node) -> _Axis:
    """Return the axis of the parameters; None if there is one for the whole tensor."""
    scale = decode.inputs[1]
    known = None if scale is None or scale.shape is None else scale.shape
    array = constant_expression(scale) if known is None or len(known) else None
    is_single = (known is not None and not len(known)) or (array is not None and array.size == 1)
    return None if is_single else decode.attributes.get_int("axis", 1)


def _decoded(decode: ir.Node, codes: ir.Value, axis: _Axis) -> _Write | None:
    """Return what writes the decoded form of moved codes; None if a step cannot be exchanged."""
    node = codes.producer()
    if node is None or decode.attributes.get_int("block_size", 0) > 0:
        return None
    if node.op_type == "QuantizeLinear" and node.domain in _DOMAINS:
        return lambda draft: _decode(draft, decode, codes, axis)
    if node.op_type not in _MOVE or node.domain or len(node.outputs) != 1:
        return None
    parts = list(node.inputs) if node.op_type == "Concat" else list(node.inputs[:1])
    before = None if axis is None else _axis_before(node, axis)
    if (before is None) != (axis is None) or not _keeps_order(node, decode):
        return None
    writers = [None if part is None else _decoded(decode, part, before) for part in parts]
    if any(write is None for write in writers):
        return None

    def write(draft: Draft) -> ir.Value:
        data = [each(draft) for each in writers if each is not None]
        operands = [*data, *node.inputs[len(parts) :]]
        return _copy(draft, node, operands, decode.outputs[0].dtype)

    return write


def _keeps_order(node: ir.Node, decode: ir.Node) -> bool:
    """Return whether decoding may be exchanged with a node that may take maxima."""
    scale = constant_expression(decode.inputs[1]) if node.op_type == "MaxPool" else None
    return node.op_type != "MaxPool" or (scale is not None and bool((scale > 0).all()))


def _axis_before(node: ir.Node, axis: int) -> int | None:
    """Return the axis of a node's data that becomes ``axis`` of its result."""
    result, data = node.outputs[0].shape, node.inputs[0].shape if node.inputs[0] else None
    rank = None if result is None else len(result)
    if axis < 0 and rank is None:
        return None
    axis += rank if axis < 0 and rank is not None else 0
    if node.op_type == "Transpose":
        order = node.attributes.get_ints("perm", [])
        return order[axis] if order else (None if rank is None else rank - 1 - axis)
    if node.op_type in ("Concat", "Slice", "Identity") and result is not None and data is not None:
        return axis if len(result) == len(data) and result[axis] == data[axis] else None
    if node.op_type not in _RESHAPE or result is None or data is None:
        return None
    sizes, others = list(result), list(data)
    if not all(isinstance(size, int) for size in (*sizes, *others)):
        return None
    for place, size in enumerate(others):
        if size == sizes[axis] and _product(others[:place]) == _product(sizes[:axis]):
            return place
    return None


def _product(sizes: list[int | ir.SymbolicDim]) -> int:
    product = 1
    for size in sizes:
        product *= size if isinstance(size, int) else 1
    return product


def _decode(draft: Draft, decode: ir.Node, codes: ir.Value, axis: _Axis) -> ir.Value:
    y = _copy(draft, decode, [codes, *decode.inputs[1:]], decode.outputs[0].dtype)
    maker = y.producer()
    if maker is not None and axis is not None:
        maker.attributes["axis"] = ir.AttrInt64("axis", axis)
    elif maker is not None:
        maker.attributes.pop("axis", None)
    return y


def _copy(
    draft: Draft, node: ir.Node, operands: list[ir.Value | None], dtype: ir.DataType | None
) -> ir.Value:
    y = draft.node(node.op_type, operands, domain=node.domain, dtype=dtype or ir.DataType.FLOAT)
    maker = y.producer()
    if maker is not None:
        maker.attributes.update(node.attributes)
    return y
