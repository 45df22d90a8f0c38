"""QAttention of com.microsoft: self-attention whose projections are products of codes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT
from qgraph.ops import pieces
from qgraph.ops.composite import composite

_LOWEST = np.finfo(np.float32).min
_MASKED = -10000.0
"""Default number that is added to the scores of masked keys."""

_OPSET_OF_TRIANGLES = 14
_WHOLE_NUMBERS = (ir.DataType.INT32, ir.DataType.INT64)


@composite(
    "QAttention",
    MICROSOFT,
    remark="ONNX leaves the order of the sums open",
)
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
    heads, dtype = get("num_heads", 0), pieces.FLOAT
    x, w, bias, x_scale, w_scale = (pieces.operand(node, index) for index in range(5))
    width = pieces.sizes_of(node, 1)[-1]
    if heads < 1 or width is None or width % (3 * heads):
        raise ValueError(
            f"num_heads is {heads} and its weights have {width} columns, expected three equal "
            "parts for each head. Infer shapes, or export it again"
        )
    if pieces.given(node, 8) is not None or len(node.outputs) > 1 or get("do_rotary", 0) != 0:
        raise ValueError(
            "it has a past, a present or rotary positions, which its definition here leaves out. "
            "Run it in ONNX Runtime, or export the model without"
        )
    size = width // (3 * heads)
    zeros = [pieces.given(node, index) for index in (6, 7)]
    operands = [x, w, *zeros] if zeros[1] is not None else [x, w, *zeros[:1]]
    sums = draft.node("MatMulInteger", operands, dtype=ir.DataType.INT32)
    scale = draft.node("Mul", [x_scale, w_scale], dtype=dtype)
    reals = draft.node("Mul", [pieces.cast(draft, sums, dtype), scale], dtype=dtype)
    reals = draft.node("Add", [reals, bias], dtype=dtype)
    parts = draft.node(
        "Reshape", [reals, np.asarray([0, 0, 3, heads, size], np.int64)], dtype=dtype
    )
    parts = pieces.moved(draft, parts, [2, 0, 3, 1, 4])
    q, k, v = (
        draft.node("Gather", [parts, np.asarray(index, np.int64)], {"axis": 0}, dtype=dtype)
        for index in range(3)
    )
    scores = draft.node("MatMul", [q, pieces.moved(draft, k, [0, 1, 3, 2])], dtype=dtype)
    factor = np.asarray(np.float32(1) / np.sqrt(np.float32(size)))
    scores = draft.node("Mul", [scores, factor], dtype=dtype)
    for mask in (_key_mask(draft, node), _future_mask(draft, node, scores)):
        if mask is not None:
            scores = draft.node("Add", [scores, mask], dtype=dtype)
    shares = draft.node("Softmax", [scores], {"axis": -1}, dtype=dtype)
    y = pieces.moved(draft, draft.node("MatMul", [shares, v], dtype=dtype), [0, 2, 1, 3])
    return draft.node("Reshape", [y, np.asarray([0, 0, heads * size], np.int64)], dtype=dtype)


def _key_mask(draft: Draft, node: ir.Node) -> Operand | None:
    """Return the addend of the scores of each key, ``[batch, 1, 1, S]``; None without a mask."""
    mask = pieces.given(node, 5)
    if mask is None:
        return None
    dtype, sizes = pieces.dtype_of(node, 5), pieces.sizes_of(node, 5)
    if dtype not in _WHOLE_NUMBERS or len(sizes) != 2:
        raise ValueError(
            f"its mask is {dtype.name} of shape {list(sizes)}, expected integers [batch, keys]. "
            "Export it with such a mask, or run it in ONNX Runtime"
        )
    filler = node.attributes.get_float("mask_filter_value", _MASKED)
    is_kept = draft.node("Greater", [mask, np.zeros((), dtype.numpy())], dtype=ir.DataType.BOOL)
    added = draft.op.Where(is_kept, 0.0, filler)
    return draft.node("Unsqueeze", [added, np.asarray([1, 2], np.int64)], dtype=pieces.FLOAT)


def _future_mask(draft: Draft, node: ir.Node, scores: ir.Value) -> Operand | None:
    """Return the addend of the scores of later keys, ``[S, S]``; None if they are not masked."""
    if node.attributes.get_int("unidirectional", 0) == 0:
        return None
    length = pieces.sizes_of(node, 0)[1]
    if length is not None:
        return draft.constant(np.triu(np.full((length, length), _LOWEST, np.float32), 1), "later")
    draft.needs(_OPSET_OF_TRIANGLES)
    shape = draft.node("Shape", [scores], dtype=ir.DataType.INT64)
    square = draft.node(
        "Slice", [shape, *(np.asarray([n], np.int64) for n in (2, 4))], dtype=ir.DataType.INT64
    )
    lowest = ir.Tensor(np.asarray([_LOWEST], np.float32))
    filled = draft.node("ConstantOfShape", [square], {"value": lowest}, dtype=pieces.FLOAT)
    one = np.asarray(1, np.int64)
    return draft.node("Trilu", [filled, one], {"upper": 1}, dtype=pieces.FLOAT)
