"""Operators that make numbers of shapes and shapes of numbers, and constants."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_tensor
from qgraph.graph.inference.arithmetic import converted
from qgraph.graph.inference.dimensions import INT64, Dim, Size, bounds, product
from qgraph.graph.inference.facts import (
    MOST_ITEMS,
    Fact,
    as_items,
    of_items,
    of_tensor,
    wrapped,
)
from qgraph.graph.inference.movement import shape_in
from qgraph.graph.inference.rules import Call, Unknown, common_type, rule


@rule("Constant")
def constant(call: Call) -> list[Fact]:
    """The tensor or the numbers that the node holds."""
    tensor = constant_tensor(call.node.outputs[0])
    if tensor is None:
        raise Unknown
    return [of_tensor(tensor)]


@rule("Shape")
def shape(call: Call) -> list[Fact]:
    """The sizes of the dimensions from ``start`` to ``end``, both clamped; int64."""
    x = call[0].shape
    if x is None:
        start, end = call.integer("start", 0), call.integer("end", INT64[1])
        return [Fact(ir.DataType.INT64, [0 if start >= end >= 0 else None])]
    attribute = call.node.attributes.get("end")
    end = len(x) if attribute is None else call.integer("end", 0)
    if end < -len(x) or call.integer("start", 0) < -len(x):
        raise Unknown  # by the definition it is clamped, which the reference does not do
    first, last, _ = slice(call.integer("start", 0), end).indices(len(x))
    return [of_items(ir.DataType.INT64, as_items(x[first:last]))]


@rule("Size")
def size(call: Call) -> list[Fact]:
    """The number of elements; int64."""
    x = call[0].shape
    total: Dim = None if x is None else wrapped(product(x), ir.DataType.INT64)
    return [of_items(ir.DataType.INT64, as_items([total], ()))]


@rule("Cast")
def cast(call: Call) -> list[Fact]:
    """The type that ``to`` names, in the shape of the operand."""
    x, to = call[0], call.dtype("to")
    if to is None:
        raise Unknown
    return [Fact(to, x.shape, converted(x.items, x.dtype, to))]


@rule("CastLike")
def cast_like(call: Call) -> list[Fact]:
    """The type of the second operand in the shape of the first."""
    x, to = call[0], call[1].dtype
    return [Fact(to, x.shape, None if to is None else converted(x.items, x.dtype, to))]


@rule("ConstantOfShape")
def constant_of_shape(call: Call) -> list[Fact]:
    """A tensor of the wanted shape, filled with ``value``, float32 zeros without it."""
    wanted = shape_in(call, 0)
    if any(isinstance(size, int) and size < 0 for size in wanted):
        raise Unknown
    attribute = call.node.attributes.get("value")
    if attribute is not None and attribute.is_ref():
        raise Unknown
    filled = of_tensor(
        ir.tensor(np.zeros(1, np.float32)) if attribute is None else attribute.as_tensor()
    )
    sizes = [size for size in wanted if isinstance(size, int)]
    items = filled.items
    if items is None or len(sizes) < len(wanted) or np.prod(sizes, dtype=object) > MOST_ITEMS:
        return [Fact(filled.dtype, wanted)]
    number = items.reshape(-1)[0]
    count = int(np.prod(sizes, dtype=np.int64))
    return [of_items(filled.dtype, as_items([number] * count, sizes))]


@rule("Range")
def range_(call: Call) -> list[Fact]:
    """The numbers from the first operand to the second in steps of the third."""
    ends = [call[place].items for place in range(3)]
    dtype = common_type(call[0], call[1], call[2])
    if dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return [Fact(dtype, [None])]
    start, limit, delta = (
        None if end is None or end.size != 1 else end.reshape(-1)[0] for end in ends
    )
    if start == 0 and delta == 1 and isinstance(limit, Size):
        return [Fact(dtype, [limit if bounds(limit)[0] >= 0 else None])]
    if (
        not (isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int))
        or delta == 0
    ):
        return [Fact(dtype, [None])]
    numbers = range(start, limit, delta)
    return [
        of_items(dtype, as_items(list(numbers)))
        if len(numbers) <= MOST_ITEMS
        else Fact(dtype, [len(numbers)])
    ]


@rule("NonZero")
def non_zero(call: Call) -> list[Fact]:
    """A row of int64 for each dimension of the data; how long they are is not known."""
    return [Fact(ir.DataType.INT64, [call[0].rank, None])]


@rule("EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli")
def like(call: Call) -> list[Fact]:
    """The shape of the operand, in the type ``dtype`` if it is given, else in that of the operand.

    Runtimes disagree about a type that is not given and not float32, which is unknown here.
    """
    dtype = call.dtype("dtype")
    if dtype is None and call[0].dtype is ir.DataType.FLOAT:
        dtype = ir.DataType.FLOAT
    return [Fact(dtype, call[0].shape)]


@rule("RandomNormal", "RandomUniform")
def random(call: Call) -> list[Fact]:
    """The shape and the type that the attributes name, float32 without one."""
    return [Fact(call.dtype("dtype") or ir.DataType.FLOAT, call.integers("shape"))]
