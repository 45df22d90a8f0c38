"""Parts of the graphs that operators are defined by: sizes, packed codes, powers of two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Operand
from qgraph.graph.interface import fixed_sizes
from qgraph.graph.schema import element_type
from qgraph.graph.scopes import input_of
from qgraph.numerics.minifloat import Minifloat

FLOAT = ir.DataType.FLOAT
LAST = np.asarray([-1], np.int64)
"""The last axis, as an operand."""

OPSET_OF_AXES = 18
"""Opset since which all reductions take their axes as an input."""


def sizes_of(node: ir.Node, index: int) -> tuple[int | None, ...]:
    """Return the shape of an input, None for each size that is not known.

    Raises:
        ValueError: not even the rank is known.
    """
    value = node.inputs[index]
    if value is not None and value.shape is None and value.const_value is not None:
        return tuple(int(size) for size in value.const_value.shape.numpy())
    if value is None or (sizes := fixed_sizes(value)) is None:
        raise ValueError(
            f"the rank of its input {index} is not known, expected a shape. Infer shapes first"
        )
    return sizes


def dtype_of(node: ir.Node, index: int) -> ir.DataType:
    """Return the element type of an input.

    Raises:
        ValueError: it is not known.
    """
    dtype = element_type(node.inputs[index]) if index < len(node.inputs) else None
    if dtype is None:
        raise ValueError(f"the type of its input {index} is not known. Infer shapes first")
    return dtype


def operand(node: ir.Node, index: int) -> ir.Value:
    """Return an input.

    Raises:
        ValueError: it is absent.
    """
    value = input_of(node, index)
    if value is None:
        raise ValueError(f"its input {index} is missing, expected a value. Export it again")
    return value


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front.

    Raises:
        ValueError: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"its axis {axis} is not one of {rank} dimensions. Export it again")
    return axis % rank


def reshape(draft: Draft, x: Operand, sizes: Sequence[int | None]) -> ir.Value:
    """Return ``x`` in another shape, in which at most one size is not known."""
    wanted = [-1 if size is None else size for size in sizes]
    if wanted.count(-1) > 1:
        raise ValueError(
            f"its shape {list(sizes)} has more than one size that is not known. Infer shapes"
        )
    return draft.node("Reshape", [x, np.asarray(wanted, np.int64)], dtype=type_of(x))


def cast(draft: Draft, x: ir.Value, to: ir.DataType) -> ir.Value:
    """Return ``x`` in another type, and ``x`` itself if it has that."""
    if x.dtype is to:
        return x
    return draft.node("Cast", [x], {"to": to.value}, dtype=to)


def moved(draft: Draft, x: ir.Value, order: Sequence[int]) -> ir.Value:
    """Return ``x`` with its axes in another order."""
    if list(order) == sorted(order):
        return x
    return draft.node("Transpose", [x], {"perm": list(order)}, dtype=x.dtype)


def unpacked(
    draft: Draft,
    data: ir.Value,
    rank: int,
    bits: int,
    *,
    high: bool = False,
    length: int | None = None,
) -> ir.Value:
    """Return the codes of 1, 2, 4 or 8 bits that bytes ``[..., n]`` hold, ``[..., n * 8 / bits]``.

    The first code is in the high bits of a byte if ``high``. ``length`` is the number of codes
    along the last axis, if known; without it the data, of some ``rank``, must have elements.
    """
    if bits == 8:
        return data
    parts = []
    for index in range(0, 8, bits):
        part = data
        for by, direction in ((8 - bits - index, "LEFT"), (8 - bits, "RIGHT")):
            if by:
                attributes = {"direction": direction}
                part = draft.node(
                    "BitShift", [part, np.asarray([by], np.uint8)], attributes, dtype=data.dtype
                )
        parts.append(draft.node("Unsqueeze", [part, LAST], dtype=data.dtype))
    joined = draft.node("Concat", parts[::-1] if high else parts, {"axis": -1}, dtype=data.dtype)
    return reshape(draft, joined, [*[0] * (rank - 1), length])


def binade(draft: Draft, v: Operand) -> Operand:
    """Return ``2 ** floor(log2(v))`` for finite ``v``, at least 2**-127; exact in any opset.

    With ``q = v * (2**23 + 1)``, rounded, ``q - q * (1 - 2**-24)`` is the power of two below ``v``.
    Large ``v`` are scaled, so that ``q`` does not overflow. OpenVINO would compute the product and
    the difference with one rounding; a Max without effect is between them.
    """
    op = draft.op
    is_large = op.GreaterOrEqual(v, 2.0**100)
    q = op.Mul(op.Where(is_large, op.Mul(v, 2.0**-28), v), 2.0**23 + 1)
    power = op.Sub(q, op.Max(op.Mul(q, 1 - 2.0**-24), 0.0))
    return op.Max(op.Where(is_large, op.Mul(power, 2.0**28), power), 2.0**-127)


def largest(draft: Draft, x: Operand) -> ir.Value:
    """Return the largest number along the last axis, which stays with one element."""
    draft.needs(OPSET_OF_AXES)
    return draft.node("ReduceMax", [x, LAST], {"keepdims": 1}, dtype=FLOAT)


def element(draft: Draft, v: Operand, grid: Minifloat) -> Operand:
    """Return the number of a minifloat nearest to ``v``, ties to even, saturated."""
    op = draft.op
    power = op.Max(binade(draft, op.Abs(v)), 2.0 ** (1 - grid.bias))
    step = op.Mul(power, 2.0**-grid.mantissa_bits)
    y = op.Mul(op.Round(op.Div(v, step)), step)
    return op.Max(op.Min(y, grid.max_value), -grid.max_value)


def blocks_of(
    draft: Draft, x: ir.Value, sizes: Sequence[int | None], axis: int, size: int
) -> ir.Value:
    """Return ``x`` as ``[..., blocks, size]`` with ``axis`` last, padded with zeros.

    Raises:
        ValueError: the size of the axis, or more than one other size, is not known.
    """
    rank, length = len(sizes), sizes[axis]
    if length is None or size < 1:
        raise ValueError(
            f"axis {axis} has no known size, or its block size is {size}. Infer shapes"
        )
    order = [other for other in range(rank) if other != axis] + [axis]
    y, pad = moved(draft, x, order), -length % size
    if pad:
        pads = np.zeros(2 * rank, np.int64)
        pads[-1] = pad
        y = draft.node("Pad", [y, pads], dtype=x.dtype)
    others = [sizes[other] for other in order[:-1]]
    return reshape(draft, y, [*others, (length + pad) // size, size])


def joined_blocks(draft: Draft, y: Operand, sizes: Sequence[int | None], axis: int) -> ir.Value:
    """Return the inverse of :func:`blocks_of`: what was blocks, in the shape ``sizes`` again."""
    rank, length = len(sizes), sizes[axis]
    flat = reshape(draft, y, [*[0] * (rank - 1), -1])
    if length is not None:
        bounds = [np.asarray([n], np.int64) for n in (0, length, rank - 1)]
        flat = draft.node("Slice", [flat, *bounds], dtype=flat.dtype)
    back = list(range(rank - 1))
    back.insert(axis, rank - 1)
    return moved(draft, flat, back)


def type_of(x: Operand) -> ir.DataType | None:
    """Return the element type of an operand, None if the graph does not tell."""
    return x.dtype if isinstance(x, ir.Value) else ir.DataType.from_numpy(x.dtype)
