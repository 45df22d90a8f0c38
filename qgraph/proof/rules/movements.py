"""Operators that move elements of a tensor, or choose the largest of some.

Coefficients, ranges and errors move with the elements; what is the same for all elements stays. A
function of moved data has moved atoms. Where coefficients differ, and cannot be moved, the moved
function is one atom, with one range and one error for all its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float64
from qgraph.ops.approximation import granules
from qgraph.ops.sums_of_products import Taps
from qgraph.ops.taps import RIGHT, pointwise_taps
from qgraph.proof.bounds.combination import Atom, Atoms, Combination
from qgraph.proof.bounds.events import Operand
from qgraph.proof.bounds.quantity import Quantity, of_constant
from qgraph.proof.bounds.rule import (
    OPEN_SIZE,
    NodeCall,
    bound_rule,
    expect_data_in_windows,
    shape_of,
)
from qgraph.reasons import AT_RUN_TIME, NO_BOUND, Undecidable

Change = Callable[[Float64], Float64]

_RESHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@bound_rule(*_RESHAPING)
def reshape(call: NodeCall) -> Operand:
    """The same elements in another shape."""
    before, after = (shape_of(value) for value in (call.value(0), call.node.outputs[0]))
    x = call.quantity(0)
    if after.count(OPEN_SIZE) > 1:  # the number of elements tells one size
        raise Undecidable(AT_RUN_TIME(f"the shape of {call.node.outputs[0].name!r} is not known"))
    if before == after:
        return x
    key = "Reshape", before, after
    return changed(call.tracer.atoms, x, key, lambda array: _reshaped(array, before, after))


@bound_rule("Transpose")
def transpose(call: NodeCall) -> Operand:
    """The same elements with axes in another order."""
    axes = call.node.attributes.get_ints("perm", tuple(range(call.rank()))[::-1])
    return transposed(call, 0, axes)


def transposed(
    call: NodeCall, index: int, axes: Sequence[int], x: Quantity | None = None
) -> Quantity:
    """Return an operand, or what was made of it, with its axes in another order."""
    x = call.quantity(index) if x is None else x
    order = tuple(axis % len(axes) for axis in axes)
    if order == tuple(range(len(order))):
        return x
    return changed(
        call.tracer.atoms,
        x,
        ("Transpose", order),
        lambda array: np.transpose(_wide(array, len(order)), order),
    )


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
    """Elements of the data, or for pools the largest of some."""
    if call.node.op_type == "Gather" and call.quantity(0).value is not None:
        return _rows(call)
    x = data_of(call)
    if call.node.op_type == "MaxPool":
        expect_data_in_windows(call)
    if call.node.op_type in ("MaxPool", "GlobalMaxPool"):
        return largest_of(call, x)
    return changed(call.tracer.atoms, x, _key(call), _along(call))


def _rows(call: NodeCall) -> Quantity:
    """Return elements of a constant table, chosen by data."""
    table, indices = call.quantity(0), call.quantity(1)
    if indices.value is not None:
        raise call.refusal("constants")
    numbers, scale = np.broadcast_to(table.meant.offset, table.numbers.shape), np.ones(())
    if table.factors is not None and table.factors[0].size == 1:
        scale, numbers = table.factors[0].reshape(()), table.factors[1]
    ends = np.asarray(numbers.min()), np.asarray(numbers.max())
    key = call.whole("axis"), numbers.shape, shape_of(call.value(1)), indices.meant.key
    atom = call.tracer.atoms.make("rows", key, (indices.meant,), ends, (numbers,))
    meant = Combination.of(atom).times(scale)
    unit = None if table.granule is None else np.asarray(table.granule.min())
    return Quantity(meant, *meant.range, np.asarray(np.max(table.error)), unit=unit)


def data_of(call: NodeCall) -> Quantity:
    """Return the first operand, which is data.

    Raises:
        Undecidable: it is constant; the kernel computes it.
    """
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
    return changed(call.tracer.atoms, data_of(call), _key(call), _along(call))


@bound_rule("Split")
def split(call: NodeCall) -> Sequence[Operand]:
    """Parts of the data."""
    x, (_, sizes) = data_of(call), _key(call)
    # Not the label, which tells versions apart.
    old = call.node.attributes.get_ints("split", ())
    key = "Split", call.whole("axis"), sizes, tuple(old), len(call.node.outputs)
    parts = []
    for index, value in enumerate(call.node.outputs):
        part = _along(call, value)
        parts.append(changed(call.tracer.atoms, x, ("part", index, key), part))
    return parts


@bound_rule("Pad")
def pad(call: NodeCall) -> Operand:
    """Elements of the data, and a constant at the edges."""
    return _padded(call, data_of(call))


def _padded(call: NodeCall, x: Quantity) -> Quantity:
    atoms = call.tracer.atoms
    if call.node.attributes.get_string("mode", "constant") != "constant":
        return changed(atoms, x, _key(call), _along(call))
    filled = call.constant(2)
    fill = np.asarray(call.number("value", 0.0)) if filled is None else filled.numbers
    if not fill.any() and not x.meant.offset.any():
        again = partial(_padded, call)
        return changed(atoms, x, _key(call), _along(call), has_zeros=True, again=again)
    fill = fill.reshape(())
    unit = granules(fill)
    whole = _as_one(atoms, x, _key(call))
    low, high = np.minimum(whole.low, fill), np.maximum(whole.high, fill)
    kind = "padded" if fill.any() else "padded with zeros"
    atom = atoms.make(kind, _key(call), (x.meant,), (low, high))
    granule = None if whole.unit is None else np.minimum(whole.unit, unit)
    return replace(whole, meant=Combination.of(atom), low=low, high=high, unit=granule)


def largest_of(call: NodeCall, x: Quantity) -> Quantity:
    """Return the largest, or smallest, of some elements: its error is that of an element."""
    change, key = _along(call), _key(call)
    coefficients = [coefficient for coefficient, _ in x.meant.terms]
    if len(coefficients) == 1 and (coefficients[0] > 0).all():
        x = Quantity(x.meant, x.low, x.high, x.error, unit=x.unit)
        again = partial(largest_of, call)
        return changed(call.tracer.atoms, x, key, change, again=again)
    return _as_one(call.tracer.atoms, x, key)


def changed(
    atoms: Atoms,
    x: Quantity,
    attributes: Hashable,
    change: Change,
    *,
    has_zeros: bool = False,
    again: Callable[[Quantity], Quantity] | None = None,
) -> Quantity:
    """Return a quantity with all arrays moved by ``change``; zeros may be inserted.

    Args:
        atoms: makes the atoms.
        x: the quantity.
        attributes: how its elements are moved.
        change: moves an array that broadcasts to it; raises :class:`Undecidable` where it cannot.
        has_zeros: whether zeros are inserted.
        again: moves another quantity in the same way; None for this function.
    """
    if again is None:
        again = partial(_changed, atoms, attributes, change, has_zeros)
    if x.value is not None:
        shape = x.value.shape
        parts = [np.broadcast_to(part, shape) for part in (x.value, x.meant.offset)]
        return of_constant(change(parts[0]), change(parts[1]), _factors(x, shape, change))
    try:
        meant = Combination((), change(x.meant.offset), change(x.meant.size))
        for c, atom in x.meant.terms:
            moved = _moved(atoms, atom, attributes, change, has_zeros, again)
            meant = meant.plus(atoms.carried(atom, moved, change, again).times(change(c)))
    except Undecidable:
        return _as_one(atoms, x, attributes, has_zeros=has_zeros)
    absolute, relative = (_widest(np.max, change, each) for each in (x.absolute, x.relative))
    low, high = _widest(np.min, change, x.low), _widest(np.max, change, x.high)
    unit = None if x.unit is None else _widest(np.min, change, x.unit)
    low, high = _ends(low, high, has_zeros)
    return Quantity(meant, low, high, absolute, relative, unit)


def _widest(extreme: Callable[[Float64], Any], change: Change, array: Float64) -> Float64:
    """Return an array after a change, or the extreme of all its numbers where there is none."""
    try:
        return change(array)
    except Undecidable:
        return np.asarray(extreme(array))


def _factors(x: Quantity, shape: tuple[int, ...], change: Change) -> tuple[Float64, Float64] | None:
    if x.factors is None:
        return None
    scales, codes = (change(np.broadcast_to(part, shape)) for part in x.factors)
    return scales, codes


def _changed(
    atoms: Atoms, attributes: Hashable, change: Change, has_zeros: bool, x: Quantity
) -> Quantity:
    return changed(atoms, x, attributes, change, has_zeros=has_zeros)


def _moved(
    atoms: Atoms,
    atom: Atom,
    attributes: Hashable,
    change: Change,
    has_zeros: bool,
    again: Callable[[Quantity], Quantity],
) -> Atom:
    """Return an atom of moved elements; two movements of one kind are one.

    Limits are behind movements, so that a Relu is found in both orders.
    """
    limits = _widest(np.min, change, atom.low), _widest(np.max, change, atom.high)
    if atom.kind == "clip" and not has_zeros and all(end.size == 1 for end in atom.numbers):
        limited = atom.arguments[0]
        moved = again(Quantity(limited, *limited.range)).meant
        return atoms.make("clip", None, (moved,), limits, [n.reshape(()) for n in atom.numbers])
    if atom.kind == "moved" and isinstance(attributes, tuple):
        first = atom.attributes if isinstance(atom.attributes, tuple) else ("",)
        ((_, inner),) = atom.arguments[0].terms
        names = attributes[0], first[0]
        # Between two movements, elements may be broadcast to a larger shape.
        if names == ("Reshape", "Reshape") and first[2] == attributes[1]:
            if first[1] == attributes[2]:
                return inner
            merged = "Reshape", first[1], attributes[2]
            return _moved_once(atoms, inner, merged, limits, has_zeros)
        if names == ("Transpose", "Transpose") and len(first[1]) == len(attributes[1]):
            axes = tuple(first[1][axis] for axis in attributes[1])
            if axes == tuple(range(len(axes))):
                return inner
            return _moved_once(atoms, inner, ("Transpose", axes), limits, has_zeros)
    if atom.kind == "sum" and isinstance(attributes, tuple) and attributes[0] == "Transpose":
        layout = pointwise_taps(attributes[1])
        if layout is not None and atom.attributes == (RIGHT.geometry, RIGHT.trailing):
            return _pointwise(atoms, atom, layout, limits, again)
    return _moved_once(atoms, atom, attributes, limits, has_zeros)


def _pointwise(
    atoms: Atoms,
    atom: Atom,
    layout: Taps,
    limits: tuple[Float64, Float64],
    again: Callable[[Quantity], Quantity],
) -> Atom:
    """Return rows of a matrix product, moved before the places, as a Conv of one place."""
    data, places = atom.arguments[0], (1,) * layout.trailing
    moved = again(Quantity(data, *data.range)).meant
    numbers = [each.reshape(*each.shape, *places) for each in atom.numbers]
    return atoms.make("sum", (layout.geometry, layout.trailing), (moved,), limits, numbers)


def _moved_once(
    atoms: Atoms, atom: Atom, attributes: Hashable, limits: tuple[Float64, Float64], has_zeros: bool
) -> Atom:
    ends = _ends(*limits, has_zeros)
    return atoms.make("moved", attributes, (Combination.of(atom),), ends)


def _as_one(
    atoms: Atoms, x: Quantity, attributes: Hashable, *, has_zeros: bool = False
) -> Quantity:
    """Return moved data as one atom, with one range and one error."""
    ends = _ends(np.asarray(x.low.min()), np.asarray(x.high.max()), has_zeros)
    atom = atoms.make("moved as one", attributes, (x.meant,), ends)
    unit = None if x.unit is None else np.asarray(x.unit.min())
    return Quantity(Combination.of(atom), *ends, np.asarray(np.max(x.error)), unit=unit)


def _ends(low: Float64, high: Float64, has_zeros: bool) -> tuple[Float64, Float64]:
    return (np.minimum(low, 0.0), np.maximum(high, 0.0)) if has_zeros else (low, high)


def _key(call: NodeCall) -> tuple[Hashable, tuple[Hashable, ...]]:
    """Return what is equal for equal movements: of data of one shape, after broadcasting."""
    parameters = []
    for value in call.node.inputs[1:]:
        array = call.array(value)
        if value is not None and array is None:
            raise Undecidable(AT_RUN_TIME(f"parameter {value.name!r} is not constant"))
        parameters.append(None if array is None else (array.shape, array.tobytes()))
    return (call.label, shape_of(call.value(0))), tuple(parameters)


def _wide(array: Float64, rank: int) -> Float64:
    return array.reshape(*(1,) * (rank - array.ndim), *array.shape)


def _along(call: NodeCall, result: ir.Value | None = None) -> Change:
    """Return a change of arrays that do not vary along the axes in which elements are moved."""
    before = shape_of(call.value(0))
    after = shape_of(result or call.node.outputs[0])
    kept = _kept_axes(call, before, after)

    def change(array: Float64) -> Float64:
        if array.size == 1:
            return array.reshape(())
        wide = _wide(array, len(before))
        if all(axis in kept for axis, size in enumerate(wide.shape) if size > 1):
            return wide
        raise Undecidable(NO_BOUND(f"{call.node.op_type} of data with several scales"))

    return change


def _kept_axes(call: NodeCall, before: tuple[Any, ...], after: tuple[Any, ...]) -> set[int]:
    """Return the axes along which no element moves."""
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


def _reshaped(array: Float64, before: tuple[Any, ...], after: tuple[Any, ...]) -> Float64:
    """Return an array in the new shape of the data; the samples of a batch are alike."""
    if array.size == 1:
        return array.reshape(())
    wide = _wide(array, len(before))
    kept = 0
    while kept < min(len(before), len(after)) and before[kept] == after[kept]:
        kept += 1
    kept = min(kept, next(axis for axis, size in enumerate(wide.shape) if size > 1))
    ends = before[kept:], after[kept:]
    if not all(isinstance(size, int) for end in ends for size in end):
        raise Undecidable(AT_RUN_TIME("a shape is not known"))
    spread = np.broadcast_to(wide[(0,) * kept], ends[0])
    return spread.reshape(ends[1])
