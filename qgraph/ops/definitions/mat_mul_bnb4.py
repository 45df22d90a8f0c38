"""MatMulBnb4 of com.microsoft: a matrix product with weights of 4 bits by table, NF4 or FP4."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT
from qgraph.numerics import Float32
from qgraph.ops import pieces
from qgraph.ops.composite import composite

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
    a, packed, absmax = (pieces.operand(node, index) for index in range(3))
    dtype, total = pieces.dtype_of(node, 0), n * k
    codes = pieces.unpacked(draft, packed, len(pieces.sizes_of(node, 1)), 4, high=True)
    codes = pieces.reshape(draft, codes, [-1])
    blocks = -(-total // size)
    table = draft.constant(levels(get("quant_type", 0)), "levels")
    index = pieces.cast(draft, codes, ir.DataType.INT32)
    w = draft.node("Gather", [table, index], dtype=pieces.FLOAT)
    w = _resized(draft, w, total + total % 2, blocks * size)
    scale = pieces.reshape(draft, pieces.cast(draft, absmax, pieces.FLOAT), [blocks, 1])
    w = draft.node("Mul", [pieces.reshape(draft, w, [blocks, size]), scale], dtype=pieces.FLOAT)
    w = _resized(draft, pieces.reshape(draft, w, [-1]), blocks * size, total)
    w = pieces.reshape(draft, w, [n, k])
    if get("transB", 1):
        w = pieces.moved(draft, w, [1, 0])
    y = draft.node("MatMul", [pieces.cast(draft, a, pieces.FLOAT), w], dtype=pieces.FLOAT)
    return pieces.cast(draft, y, dtype)


def _resized(draft: Draft, x: ir.Value, length: int, wanted: int) -> ir.Value:
    """Return a vector with zeros appended, or with elements dropped at its end."""
    if wanted > length:
        return draft.node("Pad", [x, np.asarray([0, wanted - length], np.int64)], dtype=x.dtype)
    if wanted < length:
        bounds = [np.asarray([end], np.int64) for end in (0, wanted)]
        return draft.node("Slice", [x, *bounds], dtype=x.dtype)
    return x
