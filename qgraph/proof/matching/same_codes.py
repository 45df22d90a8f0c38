"""Compare the packed weights of a MatMulNBits with codes of a DequantizeLinear, without decoding.

Both compute ``(code - zero_point) * scale``, rounded once. The differences are small integers. So
equal differences and scales of equal bits give weights of equal bits. The packed codes are not
transposed by the code of the passes that store weights, so that its mistakes are found.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_elements
from qgraph.graph.streaming import Stream
from qgraph.numerics import Array
from qgraph.numerics.packed_matrix import transpose
from qgraph.proof.matching.packed_rows import PackedRows

_ELEMENTS = 1 << 19
"""Approximate number of codes that are compared at a time."""

_WIDTH = 128
"""Bytes of each row that are transposed at a time."""


def has_same_codes(packed: PackedRows, decode: ir.Node) -> bool:
    """Return whether a DequantizeLinear is known to give all bits of the packed weights.

    False says nothing.

    Args:
        packed: the weights ``[K, N]``.
        decode: the operator; its operands are stored.

    Raises:
        ModelError: the data of a constant cannot be read.
    """
    form = packed.form
    get = decode.attributes.get_int
    if (decode.domain, decode.op_type) != ("", "DequantizeLinear"):
        return False
    if (get("axis", 1), get("block_size", 0)) not in ((0, form.size), (-2, form.size)):
        return False
    codes, scales, points = (constant_elements(value) for value in [*decode.inputs, None][:3])
    kinds = f"UINT{form.bits}", f"INT{form.bits}"
    if codes is None or scales is None or codes.kind not in kinds:
        return False
    if codes.shape != (form.k, form.n) or scales.shape != (form.blocks, form.n):
        return False
    is_float = get("output_dtype", 0) in (0, ir.DataType.FLOAT.value)
    has_points = len(decode.inputs) > 2 and decode.inputs[2] is not None
    if scales.kind != "FLOAT" or not is_float or has_points != (points is not None):
        return False
    middle = 1 << (form.bits - 1) if codes.kind == kinds[1] else 0
    return (
        _has_same_points(packed, points, middle)
        and _has_same_scales(packed, scales)
        and _is_transposed(packed, codes, middle)
    )


def _has_same_points(packed: PackedRows, points: Stream | None, middle: int) -> bool:
    ours: Array = np.asarray(1 << (packed.form.bits - 1), np.float32)
    if packed.zero_points is not None:
        ours = packed.form.zero_points(packed.zero_points).T
    theirs = np.zeros((), np.int8) if points is None else points.array()
    return bool((ours - np.float32(middle) == theirs.astype(np.float32)).all())


def _has_same_scales(packed: PackedRows, scales: Stream) -> bool:
    ours, theirs = packed.form.scales(packed.scales.array()), scales.array()
    turned = np.empty_like(theirs)
    transpose(ours, turned)
    return np.array_equal(turned.view(np.uint32), theirs.view(np.uint32))


def _is_transposed(packed: PackedRows, codes: Stream, middle: int) -> bool:
    """Return whether the packed codes, less ``middle``, are those of the other layout."""
    form = packed.form
    n, bits, each = form.n, form.bits, 8 // form.bits
    turned = np.empty((_WIDTH, n), np.uint8)
    step = max(_ELEMENTS // (n * each), 1)
    for first, strip in packed.strips():
        for left in range(0, strip.shape[1], _WIDTH):
            part = strip[:, left : left + _WIDTH]
            transpose(part, turned[: part.shape[1]])
            start = first + left * each
            stop = min(start + part.shape[1] * each, form.k)
            for row in range(start, stop, step * each):
                count = min(step * each, stop - row)
                ours = turned[(row - start) // each :][: -(-count // each)]
                # What follows the last row has no meaning.
                ours[-1] &= np.uint8((1 << bits * (count % each or each)) - 1)
                theirs = codes.read(row * n, (row + count) * n).view(np.uint8)
                if not np.array_equal(ours, _joined(theirs, n, bits, middle)):
                    return False
    return True


def _joined(codes: Array, n: int, bits: int, middle: int) -> Array:
    """Return rows of ``n`` codes, plus ``middle``, of which a byte has several: first row lowest.

    Args:
        codes: one in each byte, whole rows; is overwritten.
        n: length of a row.
        bits: of a code.
        middle: is added to each.
    """
    word = np.dtype(np.uint64 if n % 8 == 0 else np.uint8)
    ones = ((1 << 8 * word.itemsize) - 1) // 255
    rows = codes.reshape(-1, n).view(word)
    rows ^= word.type(middle * ones)
    rows &= word.type(((1 << bits) - 1) * ones)
    joined = rows[:: 8 // bits]
    for i in range(1, 8 // bits):
        part = rows[i :: 8 // bits]
        part <<= word.type(bits * i)
        joined[: len(part)] |= part
    return joined.view(np.uint8)
