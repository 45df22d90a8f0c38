"""Operators that move elements of a tensor, take maxima, or concatenate tensors.

Each atom of a concatenated part becomes an atom of the whole that is 0 outside of the part. So each
part keeps its own scale, even if the result is multiplied by weights.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array, Float64
from qgraph.ops.approximation import ZERO, granules
from qgraph.proof.bounds.combination import Combination, placed, places, spread
from qgraph.proof.bounds.moved_elements import Change, ElementMove, reshaped, widened
from qgraph.proof.bounds.quantity import Operand, Quantity
from qgraph.proof.bounds.rule import (
    OPEN_SIZE,
    NodeCall,
    bound_rule,
    expect_data_in_windows,
    shape_of,
    sizes_of,
)
from qgraph.reasons import AT_RUN_TIME, NO_BOUND, Undecidable

_RESHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@bound_rule(*_RESHAPING)
def reshape(call: NodeCall) -> Operand:
    """The same elements in another shape."""
    before, after = (shape_of(value) for value in (call.value(0), call.node.outputs[0]))
    x = call.quantity(0)
    if after.count(OPEN_SIZE) > 1:  # the number of elements tells one size
        raise Undecidable(AT_RUN_TIME(f"the shape of {call.node.outputs[0].name!r} is not known"))
    return reshaped(call.tracer.atoms, x, before, after)


@bound_rule("Transpose")
def transpose(call: NodeCall) -> Operand:
    """The same elements with axes in another order."""
    axes = call.node.attributes.get_ints("perm", tuple(range(call.rank()))[::-1])
    return transposed(call, 0, axes)


def transposed(
    call: NodeCall, index: int, axes: Sequence[int], x: Quantity | None = None
) -> Quantity:
    """Return a quantity with its axes in another order."""
    x = call.quantity(index) if x is None else x
    order = tuple(axis % len(axes) for axis in axes)
    if order == tuple(range(len(order))):
        return x

    def change(array: Float64) -> Float64:
        return np.transpose(widened(array, len(order)), order)

    return ElementMove(call.tracer.atoms, ("Transpose", order), change).of(x)


@bound_rule("Dropout", "Identity")
def identity(call: NodeCall) -> Operand:
    """The data, unless elements are dropped in training."""
    if call.value(2) is not None:
        state = call.array(call.value(2))
        if state is None or state.any():
            raise Undecidable(AT_RUN_TIME("a Dropout may be in training"))
    return call.operand(0)


@bound_rule("Slice", "Gather", "GatherElements", "GatherND", "Expand", "Tile", "DepthToSpace")
@bound_rule("SpaceToDepth", "MaxPool", "GlobalMaxPool", "Compress", "ReverseSequence")
def selection(call: NodeCall) -> Operand:
    """Gather, Slice, MaxPool and similar: elements of the data, or maxima of them."""
    if call.node.op_type == "Gather" and call.quantity(0).value is not None:
        return _rows(call)
    x = data_of(call)
    if call.node.op_type == "MaxPool":
        expect_data_in_windows(call)
    if call.node.op_type in ("MaxPool", "GlobalMaxPool"):
        return largest_element(call, x)
    return _move(call).of(x)


def _rows(call: NodeCall) -> Quantity:
    """Return elements of a constant table whose indices are data."""
    table, indices = call.quantity(0), call.quantity(1)
    if indices.value is not None:
        raise call.refusal("constants")
    numbers: Array = np.broadcast_to(table.meant.offset, table.numbers.shape)
    scale = np.ones(())
    if table.factors is not None and table.factors[0].size == 1:
        scale, numbers = table.factors[0].reshape(()), table.factors[1]
    ends = np.asarray(numbers.min(), np.float64), np.asarray(numbers.max(), np.float64)
    key = call.whole("axis"), numbers.shape, shape_of(call.value(1)), indices.meant.key
    atom = call.tracer.atoms.make("rows", key, (indices.meant,), ends, (numbers,))
    meant = Combination.of(atom).times(scale)
    unit = None if table.granule is None else np.asarray(table.granule.min())
    return Quantity(meant, *meant.range, np.asarray(np.max(table.error)), unit=unit)


def data_of(call: NodeCall) -> Quantity:
    """Return the first operand; raise Undecidable if it is constant, for the kernel."""
    x = call.quantity(0)
    if x.value is not None:
        raise call.refusal("constants")
    return x


@bound_rule("Resize", "Upsample")
def resize(call: NodeCall) -> Operand:
    """Elements of the data if it is not interpolated."""
    mode = call.node.attributes.get_string("mode", "nearest")
    if mode != "nearest":
        raise call.refusal(f"mode {mode}")
    crops = "tf_crop_and_resize"
    if call.node.attributes.get_string("coordinate_transformation_mode", "") == crops:
        raise call.refusal(crops)
    return _move(call).of(data_of(call))


@bound_rule("Split")
def split(call: NodeCall) -> Sequence[Operand]:
    """Parts of the data."""
    x, (_, sizes) = data_of(call), _key(call)
    # Not the label, which tells versions apart.
    old = call.node.attributes.get_ints("split", ())
    key = "Split", call.whole("axis"), sizes, tuple(old), len(call.node.outputs)
    parts = []
    for index, value in enumerate(call.node.outputs):
        move = ElementMove(call.tracer.atoms, ("part", index, key), _along(call, value))
        parts.append(move.of(x))
    return parts


@bound_rule("Pad")
def pad(call: NodeCall) -> Operand:
    """Elements of the data, and a constant at the edges."""
    return _padded(call, data_of(call))


def _padded(call: NodeCall, x: Quantity) -> Quantity:
    if call.node.attributes.get_string("mode", "constant") != "constant":
        return _move(call).of(x)
    filled = call.constant(2)
    fill = np.asarray(call.number("value", 0.0)) if filled is None else filled.numbers
    move = replace(_move(call), attributes=_key_of_padding(call))
    if not fill.any() and not x.meant.offset.any():
        return replace(move, has_zeros=True, again=partial(_padded, call)).of(x)
    fill = fill.reshape(())
    low, high = np.minimum(x.low.min(), fill), np.maximum(x.high.max(), fill)
    rest = x.meant.plus(Combination.constant(fill), -1.0)
    whole = move.as_one(replace(x, meant=rest, low=low - fill, high=high - fill))
    granule = None if whole.unit is None else np.minimum(whole.unit, granules(fill))
    meant = whole.meant.plus(Combination.constant(fill))
    return replace(whole, meant=meant, low=low, high=high, unit=granule)


def _key_of_padding(call: NodeCall) -> Hashable:
    """Return the sizes of the data, and the numbers of elements at the edges."""
    pads, axes = call.array(call.value(1)), call.array(call.value(3))
    stated = call.node.attributes.get_ints("pads", ()) if pads is None else pads.reshape(-1)
    rank = call.rank()
    places = range(rank) if axes is None else [int(axis) % rank for axis in axes.reshape(-1)]
    if len(stated) != 2 * len(places):
        return _key(call)
    ends = np.zeros((2, rank), int)
    ends[:, list(places)] = np.reshape(stated, (2, -1))
    return "Pad", shape_of(call.value(0)), tuple(map(int, ends.reshape(-1)))


def largest_element(call: NodeCall, x: Quantity) -> Quantity:
    """Return the maximum or minimum of some elements; its error is that of an element."""
    move = _move(call)
    coefficients = [coefficient for coefficient, _ in x.meant.terms]
    if len(coefficients) == 1 and (coefficients[0] > 0).all():
        x = replace(x, absolute=x.error, relative=ZERO, operation=None)
        return replace(move, again=partial(largest_element, call)).of(x)
    return move.as_one(x)


def _move(call: NodeCall) -> ElementMove:
    return ElementMove(call.tracer.atoms, _key(call), _along(call))


def _key(call: NodeCall) -> tuple[Hashable, tuple[Hashable, ...]]:
    """Return a key that is equal for equal movements of data of one shape, after broadcasting."""
    parameters = []
    for value in call.node.inputs[1:]:
        array = call.array(value)
        if value is not None and array is None:
            raise Undecidable(AT_RUN_TIME(f"parameter {value.name!r} is not constant"))
        parameters.append(None if array is None else (array.shape, array.tobytes()))
    return (call.label, shape_of(call.value(0))), tuple(parameters)


def _along(call: NodeCall, result: ir.Value | None = None) -> Change:
    """Return a function that moves arrays that do not vary along the moved axes."""
    before = shape_of(call.value(0))
    kept = _kept_axes(call, before, shape_of(result or call.node.outputs[0]))

    def change(array: Float64) -> Float64:
        if array.size == 1:
            return array.reshape(())
        wide = widened(array, len(before))
        if all(axis in kept for axis, size in enumerate(wide.shape) if size > 1):
            return wide
        raise Undecidable(NO_BOUND(f"{call.node.op_type} of data with several scales"))

    return change


def _kept_axes(call: NodeCall, before: tuple[Any, ...], after: tuple[Any, ...]) -> set[int]:
    if len(before) != len(after):
        return set()
    axes = set(range(len(before)))
    match call.node.op_type:
        case "MaxPool" | "GlobalMaxPool":
            return {axis for axis in axes if axis < len(("batch", "channel"))}
        case "Pad" | "Slice" | "Gather" | "GatherElements" | "GatherND":
            return set()
        case "Compress" | "ReverseSequence" | "DepthToSpace" | "SpaceToDepth":
            return set()
        case "Resize" | "Upsample":
            axes -= _scaled_axes(call)
    # Tile, Expand, Resize, Split: an axis that keeps its size keeps its order
    return {axis for axis in axes if before[axis] == after[axis]}


def _scaled_axes(call: NodeCall) -> set[int]:
    """Return the axes of a Resize with a scale other than 1, which may keep their size."""
    get, rank = call.node.attributes, call.rank()
    if get.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        return set(range(rank))
    axes = get.get_ints("axes", tuple(range(rank)))
    stated = call.array(call.value(1 if len(call.node.inputs) == len("xs") else 2))
    scales = get.get_floats("scales", ()) if stated is None else stated.reshape(-1)
    return {axis % rank for axis, scale in zip(axes, scales, strict=False) if scale != 1}


@bound_rule("Concat")
def concat(call: NodeCall) -> Operand:
    """Concat: the concatenated tensors."""
    values = [value for value in call.node.inputs if value is not None]
    rank = len(shape_of(values[0]))
    axis = call.place(call.whole("axis"), rank) - rank
    sizes = [sizes_of(value, [axis])[0] for value in values]
    return joined(call, [call.tracer.quantity(call.of(value)) for value in values], sizes, axis)


def joined(call: NodeCall, parts: Sequence[Quantity], sizes: Sequence[int], axis: int) -> Quantity:
    """Return the concatenation of tensors of some sizes along an axis, counted from the last."""
    functions = [x.meant for x in parts]
    meant = placed(call.tracer.atoms, list(zip(places(sizes, axis), functions, strict=True)))
    names = "low", "high", "absolute", "relative"
    low, high, absolute, relative = (
        side_by_side([getattr(x, name) for x in parts], sizes, axis) for name in names
    )
    units = [x.granule for x in parts]
    granules = [unit for unit in units if unit is not None]
    unit = side_by_side(granules, sizes, axis) if len(granules) == len(parts) else None
    overflow = min(x.overflow for x in parts)
    return Quantity(meant, low, high, absolute, relative, unit, overflow=overflow)


def side_by_side(arrays: Sequence[Float64], sizes: Sequence[int], axis: int) -> Float64:
    """Concatenate arrays that broadcast to the tensors of a concatenation."""
    first = arrays[0].reshape(-1)[0]
    if all(array.size == 1 and (array == first).all() for array in arrays):
        return arrays[0].reshape(())
    wide = [spread(array, size, axis) for array, size in zip(arrays, sizes, strict=True)]
    rank = max(array.ndim for array in wide)
    wide = [array.reshape(*(1,) * (rank - array.ndim), *array.shape) for array in wide]
    along = axis % rank
    shapes = [[size for at, size in enumerate(array.shape) if at != along] for array in wide]
    shape = np.broadcast_shapes(*map(tuple, shapes))
    full = [
        np.broadcast_to(array, (*shape[:along], array.shape[along], *shape[along:]))
        for array in wide
    ]
    return np.concatenate(full, axis=along)
