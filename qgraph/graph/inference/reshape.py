"""Operators between shapes and numbers.

* Reshape and Slice, whose results depend on numbers that may be computed from sizes.
* Reductions and selections along axes.
* Shape, Size, Range, Constant and others, which convert between shapes and numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_tensor
from qgraph.graph.inference.arithmetic import calculated, converted
from qgraph.graph.inference.dimensions import (
    INT64,
    LIMIT,
    Dim,
    Size,
    add,
    bounds,
    exact_divide,
    least,
    merged,
    multiply,
    product,
)
from qgraph.graph.inference.movement import shape_in
from qgraph.graph.inference.rules import (
    MOST_ITEMS,
    Call,
    Fact,
    Items,
    Shape,
    Unknown,
    as_items,
    common_type,
    given,
    known_sizes,
    of_items,
    of_tensor,
    places_of,
    range_of,
    require,
    rule,
    wrapped,
)


@rule("Reshape")
def reshape(call: Call) -> list[Fact]:
    """The requested shape: 0 copies the size at its index, -1 is the remaining size.

    With ``allowzero``, a 0 is a size. A requested open size may be 0 too; it is the size of the
    result only if both cases agree.
    """
    x = call[0]
    if call.version < 5:
        wanted: Shape = tuple(given(call.integers("shape")))
    else:
        wanted = shape_in(call, 1)
    require(wanted.count(-1) < 2, *(not isinstance(size, int) or size > -2 for size in wanted))
    wanted = tuple(
        None if isinstance(size, Size) and bounds(size)[0] < 0 else size for size in wanted
    )
    shape = _reshaped(x.shape, wanted, allows_zero=bool(call.integer("allowzero", 0)))
    if x.shape is not None:
        merged(product(x.shape), product(shape))
    numbers = [size for size in shape if isinstance(size, int)]
    items = x.items
    if items is None or len(numbers) < len(shape):
        return [Fact(x.dtype, shape)]
    return [Fact(x.dtype, shape, items.reshape(numbers))]


def _reshaped(shape: Shape | None, wanted: Shape, *, allows_zero: bool) -> list[Dim]:
    require(not (allows_zero and 0 in wanted and -1 in wanted))
    sizes: list[Dim] = []
    kept: list[int] = []
    for index, size in enumerate(wanted):
        if size == 0 and not allows_zero:
            kept.append(index)
            require(shape is None or index < len(shape))
            sizes.append(None if shape is None else shape[index])
        elif isinstance(size, Size) and not allows_zero:
            sizes.append(size if _stands_for_itself(shape, wanted, index) else None)
        else:
            sizes.append(None if size == -1 else size)
    if -1 in wanted and shape is not None:
        # sizes that are kept cancel, also unknown ones
        total = product(size for index, size in enumerate(shape) if index not in kept)
        others = [
            size for index, size in enumerate(sizes) if index not in kept and wanted[index] != -1
        ]
        rest = product(others)
        require(rest != 0)
        sizes[wanted.index(-1)] = None if None in others else exact_divide(total, rest)
    return sizes


def _stands_for_itself(shape: Shape | None, wanted: Shape, index: int) -> bool:
    """Return whether an open size in a requested shape is that of the result, even if it is 0.

    A 0 keeps the size of the data at its place, and is refused where there is none. If that size
    is a multiple of the open one, it is 0 as well. Else the data has no elements, if its size is
    a multiple of the open one; so has the result only where the size that is kept is 0, if all the
    other sizes are numbers above 0.
    """
    size = wanted[index]
    if isinstance(size, Size) and bounds(size)[0] > 0:
        return True
    if shape is None:
        return False
    if index >= len(shape) or exact_divide(shape[index], size) is not None:
        return True
    others = (*wanted[:index], *wanted[index + 1 :])
    if any(not isinstance(other, int) or other < 1 for other in others):
        return False
    return exact_divide(product(shape), size) is not None


@rule("Slice")
def slice_(call: Call) -> list[Fact]:
    """Along each axis the number of steps from start to end, both clamped to the data."""
    x, shape = call[0], call.shape(0)
    if call.version < 10:
        starts, ends, axes = (_dims(call.integers(name)) for name in ("starts", "ends", "axes"))
        steps: list[Dim] | None = None
    else:
        starts, ends = list(shape_in(call, 1)), list(shape_in(call, 2))
        axes = _dims(call.numbers(3) if call.has(3) else None)
        steps = list(shape_in(call, 4)) if call.has(4) else None
    starts, ends = given(starts), given(ends)
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    places = places_of([axis for axis in axes if isinstance(axis, int)], len(shape))
    require(len(starts) == len(ends) == len(places) == len(steps))
    sizes = list(shape)
    cuts: list[slice | None] = [slice(None)] * len(shape)
    for axis, start, end, step in zip(places, starts, ends, steps, strict=True):
        require(step != 0)
        cut, size = _cut(shape[axis], start, end, step)
        cuts[axis], sizes[axis] = cut, size
    items = x.items
    if items is None or None in cuts:
        return [Fact(x.dtype, sizes)]
    part = items[tuple(cut for cut in cuts if cut is not None)]
    return [Fact(x.dtype, sizes, as_items(list(part.flat), part.shape))]


def _cut(size: Dim, start: Dim, end: Dim, step: Dim) -> tuple[slice | None, Dim]:
    """Return the Python slice of one dimension, if known, and the resulting size."""
    if not (isinstance(start, int) and isinstance(step, int)):
        return None, None
    if isinstance(size, int) and isinstance(end, int):
        if step < 0 and start < -size:
            return None, None  # clamped to 0 by the definition, and to -1 by NumPy
        first, last, step = slice(start, end, step).indices(size)
        stop = None if last < 0 else last
        return slice(first, stop, step), len(range(first, last, step))
    if isinstance(size, int) and size > 0 and (start, step) == (0, 1):
        return None, least(end, size)
    is_whole = start == 0 and step == 1 and end is not None
    is_whole = is_whole and (end == size or (isinstance(end, int) and end >= LIMIT))
    is_reversed = start == -1 and step == -1 and isinstance(end, int) and end <= -LIMIT
    return None, size if is_whole or is_reversed else None


def _dims(numbers: Sequence[int] | None) -> list[Dim] | None:
    return None if numbers is None else list(numbers)


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

_FOLDED: dict[str, tuple[int, Callable[[Any, Any], Dim]]] = {
    "ReduceProd": (1, multiply),
    "ReduceSum": (0, add),
}
"""Reductions of integers that are computed: neutral element, and function of two elements."""

_EXACT = 1 << 53


@rule(*(f"Reduce{name}" for name in _REDUCTIONS))
def reduction(call: Call) -> list[Fact]:
    """The data without the axes, or with 1 in their place if ``keepdims``; no axes are all."""
    x, shape = call[0], call.shape(0)
    keeps = bool(call.integer("keepdims", 1))
    try:
        axes = call.listed(1, "axes", 13 if call.node.op_type == "ReduceSum" else 18)
    except Unknown:
        return [Fact(x.dtype, [None] * len(shape) if keeps else None)]
    if not axes:
        require(axes is None or not call.integer("noop_with_empty_axes", 0))
        if axes is None and call.integer("noop_with_empty_axes", 0):
            return [Fact(x.dtype, shape)]
        axes = list(range(len(shape)))
    gone = places_of(axes, len(shape))
    sizes: list[Dim] = [1 if axis in gone else size for axis, size in enumerate(shape)]
    if not keeps:
        sizes = [size for axis, size in enumerate(sizes) if axis not in gone]
    return [Fact(x.dtype, sizes, _reduced(call, x, sizes) if len(shape) == 1 else None)]


def _reduced(call: Call, x: Fact, sizes: list[Dim]) -> Items | None:
    """Return the one element that a vector of integers is reduced to."""
    items, folding = x.items, _FOLDED.get(call.node.op_type)
    if items is None or range_of(x.dtype) is None:
        return None
    if folding is None:
        name = {"ReduceMax": "Max", "ReduceMin": "Min"}.get(call.node.op_type)
        if name is None or not len(items):
            return None
        total = as_items([items[0]])
        for item in items[1:]:
            step = calculated(name, x.dtype, total, as_items([item]))
            if step is None:
                return None
            total = step
        return total.reshape([1] * len(sizes))
    neutral, join = folding
    result: Dim = neutral
    for item in items:
        result = join(result, item)
        if result is None or not _is_exact(result, x.dtype):
            return None
    return as_items([result]).reshape([1] * len(sizes))


def _is_exact(number: int | Size, dtype: ir.DataType | None) -> bool:
    """Return whether every runtime computes this number, even one that reduces in float64."""
    low, high = bounds(number)
    return wrapped(number, dtype) == number and -_EXACT < low <= high < _EXACT


@rule("ArgMax", "ArgMin")
def arg_max(call: Call) -> list[Fact]:
    """Places along ``axis``, int64, which has size 1 then or is gone."""
    shape = call.shape(0)
    axis = call.axis("axis", 0, len(shape))
    middle: list[Dim] = [1] if call.integer("keepdims", 1) else []
    return [Fact(ir.DataType.INT64, [*shape[:axis], *middle, *shape[axis + 1 :]])]


@rule("TopK")
def top_k(call: Call) -> list[Fact]:
    """The ``k`` largest along ``axis``, and their places as int64."""
    x, shape = call[0], call.shape(0)
    axis = call.axis("axis", -1, len(shape))
    count: Dim = call.integer("k", -1) if call.version < 10 else shape_in(call, 1)[0]
    require(not isinstance(count, int) or count >= 0)
    sizes = [*shape[:axis], count, *shape[axis + 1 :]]
    return [Fact(x.dtype, sizes), Fact(ir.DataType.INT64, sizes)]


@rule("Constant")
def constant(call: Call) -> list[Fact]:
    """The tensor or the numbers of the node."""
    return [of_tensor(given(constant_tensor(call.node.outputs[0])))]


@rule("Shape")
def shape(call: Call) -> list[Fact]:
    """The sizes of the dimensions from ``start`` to ``end``, both clamped; int64."""
    x = call[0].shape
    if x is None:
        start, end = call.integer("start", 0), call.integer("end", INT64[1])
        return [Fact(ir.DataType.INT64, [0 if start >= end >= 0 else None])]
    attribute = call.node.attributes.get("end")
    end = len(x) if attribute is None else call.integer("end", 0)
    # By the definition they are clamped, which the reference does not do.
    require(-len(x) <= min(end, call.integer("start", 0)))
    first, last, _ = slice(call.integer("start", 0), end).indices(len(x))
    return [of_items(ir.DataType.INT64, as_items(x[first:last]))]


@rule("Size")
def size(call: Call) -> list[Fact]:
    """The number of elements; int64."""
    x = call[0].shape
    total: Dim = None if x is None else wrapped(product(x), ir.DataType.INT64)
    return [of_items(ir.DataType.INT64, as_items([total], ()))]


@rule("Cast", "CastLike")
def cast(call: Call) -> list[Fact]:
    """The type that ``to`` names, or that of the second operand, in the shape of the first."""
    is_named = call.node.op_type == "Cast"
    x, to = call[0], call.dtype("to") if is_named else call[1].dtype
    require(to is not None or not is_named)
    return [Fact(to, x.shape, None if to is None else converted(x.items, x.dtype, to))]


@rule("ConstantOfShape")
def constant_of_shape(call: Call) -> list[Fact]:
    """A tensor of the wanted shape, filled with ``value``, float32 zeros without it."""
    wanted = shape_in(call, 0)
    require(*(not isinstance(size, int) or size >= 0 for size in wanted))
    attribute = call.node.attributes.get("value")
    require(attribute is None or not attribute.is_ref())
    filled = of_tensor(
        ir.tensor(np.zeros(1, np.float32)) if attribute is None else attribute.as_tensor()
    )
    sizes, items = known_sizes(wanted), filled.items
    if items is None or sizes is None:
        return [Fact(filled.dtype, wanted)]
    return [of_items(filled.dtype, as_items([items.reshape(-1)[0]] * math.prod(sizes), sizes))]


@rule("Range")
def range_(call: Call) -> list[Fact]:
    """The numbers from the first operand to the second in steps of the third."""
    ends = [call[index].items for index in range(3)]
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
