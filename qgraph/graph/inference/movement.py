"""Operators that move elements or change the shape of their data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.dimensions import (
    Dim,
    add,
    bounds,
    exact_divide,
    merged,
    multiply,
    product,
)
from qgraph.graph.inference.elementwise import broadcast_shape
from qgraph.graph.inference.rules import (
    MOST_ITEMS,
    Call,
    Fact,
    Items,
    Shape,
    Unknown,
    common_type,
    given,
    known_sizes,
    place_of,
    places_of,
    require,
    rule,
)


@rule("Transpose")
def transpose(call: Call) -> list[Fact]:
    """The dimensions in the order of ``perm``, reversed without it."""
    x, shape = call[0], call.shape(0)
    perm = call.integers("perm")
    order = list(reversed(range(len(shape)))) if perm is None else places_of(perm, len(shape))
    require(len(order) == len(shape))
    items = None if x.items is None else x.items.transpose(order)
    return [Fact(x.dtype, [shape[axis] for axis in order], items)]


@rule("Flatten")
def flatten(call: Call) -> list[Fact]:
    """Two dimensions: the product of those before ``axis``, and of the others."""
    x, shape = call[0], call.shape(0)
    axis = call.integer("axis", 1)
    require(-len(shape) <= axis <= len(shape))
    axis += len(shape) if axis < 0 else 0
    return [_laid(x, [product(shape[:axis]), product(shape[axis:])])]


@rule("Squeeze")
def squeeze(call: Call) -> list[Fact]:
    """The dimensions except ``axes``; without ``axes``, except those of size 1."""
    x, shape = call[0], call.shape(0)
    axes = call.listed(1, "axes", 13)
    if axes is None:
        require(*(isinstance(size, int) for size in shape))
        return [_laid(x, [size for size in shape if size != 1])]
    gone = places_of(axes, len(shape))
    require(*(shape[axis] == 1 or not isinstance(shape[axis], int) for axis in gone))
    return [_laid(x, [size for axis, size in enumerate(shape) if axis not in gone])]


@rule("Unsqueeze")
def unsqueeze(call: Call) -> list[Fact]:
    """A dimension of size 1 at each of ``axes``, which count in the result."""
    x, shape = call[0], call.shape(0)
    axes = given(call.listed(1, "axes", 13))
    rank = len(shape) + len(axes)
    places = places_of(axes, rank)
    require(axes == sorted(axes), places == sorted(places))  # runtimes disagree
    new, old = set(places), iter(shape)
    return [_laid(x, [1 if axis in new else next(old) for axis in range(rank)])]


@rule("Expand")
def expand(call: Call) -> list[Fact]:
    """The shape to which that of the data and the wanted one broadcast."""
    x, wanted = call[0], shape_in(call, 1)
    require(*(size is None or bounds(size)[0] >= 0 for size in wanted))
    shape = broadcast_shape(call.shape(0), wanted, call.limits)
    return [_like(x, shape, lambda items, sizes: np.broadcast_to(items, sizes))]


@rule("Tile")
def tile(call: Call) -> list[Fact]:
    """Each dimension times its number of repeats."""
    require(call.version > 5)
    x, shape, repeats = call[0], call.shape(0), shape_in(call, 1)
    sizes = [multiply(size, n) for size, n in zip(shape, repeats, strict=True)]
    return [_like(x, sizes, lambda items, _: np.tile(items, [int(n) for n in repeats]))]  # type: ignore[arg-type]


@rule("Concat")
def concat(call: Call) -> list[Fact]:
    """The sum of the sizes along ``axis``; the other sizes are equal."""
    operands = [call[index] for index in range(len(call.operands))]
    return [_concatenated(operands, call.integer("axis", 1 if call.version < 4 else 0))]


@rule("QLinearConcat", domain="com.microsoft")
def q_linear_concat(call: Call) -> list[Fact]:
    """As of Concat, of every third operand from the third on, which are codes."""
    operands = [call[index] for index in range(2, len(call.operands), 3)]
    return [Fact(call[1].dtype, _concatenated(operands, call.integer("axis", 0)).shape)]


def _concatenated(operands: Sequence[Fact], axis: int) -> Fact:
    shapes = [operand.shape for operand in operands if operand.shape is not None]
    dtype = common_type(*operands)
    if not shapes:
        return Fact(dtype)
    axis = place_of(axis, len(shapes[0]))
    sizes: list[Dim] = list(shapes[0])
    for shape in shapes[1:]:
        pairs = zip(sizes, shape, strict=True)
        sizes = [a if at == axis else merged(a, b) for at, (a, b) in enumerate(pairs)]
    sizes[axis] = 0
    for operand in operands:
        sizes[axis] = add(sizes[axis], None if operand.shape is None else operand.shape[axis])
    contents = [operand.items for operand in operands]
    parts = [
        items if items is not None else _blank(operand.shape)
        for items, operand in zip(contents, operands, strict=True)
    ]
    if all(items is None for items in contents) or any(part is None for part in parts):
        return Fact(dtype, sizes)
    whole = np.concatenate([part for part in parts if part is not None], axis)
    return Fact(dtype, sizes, whole if whole.size <= MOST_ITEMS else None)


def _blank(shape: Shape | None) -> Items | None:
    """Return unknown elements for a shape, None unless it is a known and small one."""
    sizes = known_sizes(shape)
    return None if sizes is None else np.full(sizes, None, object)


@rule("Split")
def split(call: Call) -> list[Fact]:
    """The data in parts along ``axis``: of the sizes listed, else of equal sizes.

    Since opset 18 the last of equal parts may be smaller.
    """
    x, shape = call[0], call.shape(0)
    axis, count = call.axis("axis", 0, len(shape)), len(call.node.outputs)
    size = shape[axis]
    sizes: Sequence[Dim] | None = call.listed(1, "split", 13)
    if sizes is None and call.version >= 18 and isinstance(size, int):
        usual = -(-size // call.integer("num_outputs", count))
        sizes = [usual] * (count - 1) + [size - usual * (count - 1)]
        # For fewer parts than outputs nothing is defined.
        require(not size or sizes[-1])
    elif sizes is None:
        sizes = [exact_divide(size, count)] * count
    require(len(sizes) == count, *(not isinstance(part, int) or part >= 0 for part in sizes))
    starts: list[Dim] = [0]
    for part in sizes:
        starts.append(add(starts[-1], part))
    merged(starts[-1], size)
    return [
        _like(
            x,
            [*shape[:axis], part, *shape[axis + 1 :]],
            lambda items, kept, first=first: items.take(  # type: ignore[misc]
                range(first, first + kept[axis]), axis
            ),
        )
        for first, part in zip(starts, sizes, strict=False)
    ]


def part_of_sequence(call: Call) -> list[Fact]:
    """An element of the sequence that a SplitToSequence makes, whose call is given."""
    require(call.node.op_type == "SplitToSequence", not call.node.domain)
    x, shape = call[0], call.shape(0)
    axis = call.axis("axis", 0, len(shape))
    if not call.has(1):
        sizes: Sequence[Dim] = [1] if call.integer("keepdims", 1) else []
    else:
        parts, size = call.numbers(1), shape[axis]
        has_rest = call[1].rank == 0 and not (isinstance(size, int) and size % parts[0] == 0)
        sizes = [parts[0] if len(set(parts)) == 1 and not has_rest else None]
    return [Fact(x.dtype, [*shape[:axis], *sizes, *shape[axis + 1 :]])]


@rule("Gather")
def gather(call: Call) -> list[Fact]:
    """The shape of the indices in place of the dimension ``axis`` of the data."""
    x, shape, indices = call[0], call.shape(0), call[1]
    axis = call.axis("axis", 0, len(shape))
    if indices.shape is None:
        return [Fact(x.dtype)]
    result = [*shape[:axis], *indices.shape, *shape[axis + 1 :]]
    items, picked = x.items, indices.array
    if items is None or picked is None or axis != 0:
        return [Fact(x.dtype, result)]
    require(((-len(items) <= picked) & (picked < len(items))).all())
    taken = items.take(picked.reshape(-1), 0).reshape([*picked.shape, *items.shape[1:]])
    return [Fact(x.dtype, result, taken)]


@rule("GatherBlockQuantized", domain="com.microsoft")
def gather_block_quantized(call: Call) -> list[Fact]:
    """As of Gather, of the type of the scales; bytes hold several elements of the last axis."""
    shape, indices = list(call.shape(0)), call[1].shape
    axis = place_of(call.integer("gather_axis", 0), len(shape))
    bits = call.integer("bits", 4)
    if indices is None or call[0].dtype is None:
        return [Fact(call[2].dtype)]
    if call[0].dtype is ir.DataType.UINT8:
        last = shape[-1]
        shape[-1] = last * 8 // bits if isinstance(last, int) else None
    return [Fact(call[2].dtype, [*shape[:axis], *indices, *shape[axis + 1 :]])]


@rule("GatherND")
def gather_nd(call: Call) -> list[Fact]:
    """The shape of the indices without its last size, then the remaining sizes of the data."""
    shape, indices = call.shape(0), call.shape(1)
    batch = call.integer("batch_dims", 0)
    last = indices[-1]
    last = last if isinstance(last, int) else 0
    require(0 < last <= len(shape) - batch)
    return [Fact(call[0].dtype, [*indices[:-1], *shape[batch + last :]])]


@rule("OneHot")
def one_hot(call: Call) -> list[Fact]:
    """The shape of the indices with a dimension of the depth at ``axis``."""
    indices, depth = call.shape(0), call[1].items
    axis = call.axis("axis", -1, len(indices) + 1)
    size = None if depth is None or depth.size != 1 else depth.reshape(-1)[0]
    is_whole = isinstance(size, int) and call[1].dtype is not None and call[1].dtype.is_integer()
    return [Fact(call[2].dtype, [*indices[:axis], size if is_whole else None, *indices[axis:]])]


@rule("Pad")
def pad(call: Call) -> list[Fact]:
    """Each dimension and what is added before and after it."""
    x, shape = call[0], call.shape(0)
    try:
        pads = call.listed(1, "pads", 11)
        axes = call.numbers(3) if call.has(3) else list(range(len(shape)))
    except Unknown:
        return [Fact(x.dtype, [None] * len(shape))]
    padded = places_of(axes, len(shape))
    pads = given(pads)
    require(call.version > 1, len(pads) == 2 * len(padded))
    sizes = list(shape)
    for at, axis in enumerate(padded):
        sizes[axis] = add(sizes[axis], pads[at] + pads[len(padded) + at])
    return [Fact(x.dtype, sizes)]


@rule("DepthToSpace", "SpaceToDepth")
def blocks_of_pixels(call: Call) -> list[Fact]:
    """Blocks of channels become pixels, or the reverse."""
    (batch, channels, height, width), block = call.shape(0), call.integer("blocksize", 0)
    changes: list[Callable[[Dim, Dim], Dim]] = [multiply, exact_divide]
    grow, shrink = changes if call.node.op_type == "DepthToSpace" else changes[::-1]
    spatial = [grow(size, block) for size in (height, width)]
    return [Fact(call[0].dtype, [batch, shrink(channels, block * block), *spatial])]


def shape_in(call: Call, index: int) -> Shape:
    """Return the elements of an operand that is a shape; unknown elements are None."""
    operand = call[index]
    require(operand.dtype is None or operand.dtype.is_integer())
    if operand.items is not None and operand.items.ndim == 1:
        return tuple(operand.items)
    sizes = operand.sizes
    if sizes is None or len(sizes) != 1 or sizes[0] is None or sizes[0] > MOST_ITEMS:
        raise Unknown
    return (None,) * sizes[0]


def _laid(x: Fact, sizes: Sequence[Dim]) -> Fact:
    """Return the fact of data whose elements stay in their order."""
    return _like(x, sizes, lambda items, shape: items.reshape(shape))


def _like(x: Fact, sizes: Sequence[Dim] | None, move: Callable[[Items, list[int]], Items]) -> Fact:
    """Return the fact of moved data, with its elements where all sizes are known."""
    numbers = None if x.items is None else known_sizes(sizes)
    if x.items is None or numbers is None:
        return Fact(x.dtype, sizes)
    return Fact(x.dtype, sizes, move(x.items, numbers))
