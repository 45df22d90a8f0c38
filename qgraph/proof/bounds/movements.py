"""Operators that move elements of a tensor, as quantities.

Coefficients, ranges and errors move with the elements; what is the same for all elements stays. A
function of moved data has moved atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array, Float64
from qgraph.proof.bounds.combination import Atoms, Combination
from qgraph.proof.bounds.quantity import Quantity, of_constant
from qgraph.proof.functions.expression import Undecidable
from qgraph.reasons import AT_RUN_TIME, NO_BOUND

Known = Callable[[ir.Value | None], Array | None]
Change = Callable[[Float64], Float64]

MOVEMENTS = frozenset(
    {"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Slice", "MaxPool", "Pad"}
    | {"GlobalMaxPool", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Resize"}
    | {"Dropout", "Split", "Upsample"}
)


def move(node: ir.Node, x: Quantity, atoms: Atoms, known: Known) -> Quantity:
    """Return the first output of a node that moves data."""
    attributes = _attributes(node, known)
    if node.op_type == "Dropout":
        training = node.inputs[2] if len(node.inputs) > 2 else None
        state = np.zeros(()) if training is None else known(training)
        if state is None or state.any():
            raise Undecidable(AT_RUN_TIME("a Dropout may be in training"))
        return x
    mode = node.attributes.get_string("mode", "nearest")
    if node.op_type in ("Resize", "Upsample") and mode != "nearest":
        raise Undecidable(NO_BOUND(f"a {node.op_type} that interpolates has no bound"))
    if node.op_type == "Pad" and _pads_nonzero(node, known):
        raise Undecidable(NO_BOUND("a Pad with other numbers than 0 has no bound"))
    change = _change(node)
    if node.op_type in ("Pad", "MaxPool", "GlobalMaxPool"):
        x = _with_edges(node, x)
    return changed(atoms, x, attributes, change, has_zeros=node.op_type == "Pad")


def changed(
    atoms: Atoms, x: Quantity, attributes: Hashable, change: Change, *, has_zeros: bool = False
) -> Quantity:
    """Return a quantity with all arrays moved by ``change``; zeros may be inserted."""
    if x.value is not None:
        value = change(x.value)
        return of_constant(value, change(np.broadcast_to(x.meant.offset, x.value.shape)))
    terms = []
    for coefficient, atom in x.meant.terms:
        inner = atom
        if _is_reshaped(attributes) and atom.kind == "moved" and _is_reshaped(atom.attributes):
            ((_, inner),) = atom.arguments[0].terms
        limits = _ends(change(atom.low), change(atom.high), has_zeros)
        made = atoms.make("moved", attributes, (Combination.of(inner),), limits)
        terms.append((change(coefficient), made))
    meant = Combination(tuple(terms), change(x.meant.offset), change(x.meant.size))
    unit = None if x.unit is None else change(x.unit)
    low, high = _ends(change(x.low), change(x.high), has_zeros)
    return Quantity(meant, low, high, change(x.absolute), change(x.relative), unit)


def _is_reshaped(attributes: Hashable) -> bool:
    return isinstance(attributes, tuple) and attributes[0] == "Reshape"


def _ends(low: Float64, high: Float64, has_zeros: bool) -> tuple[Float64, Float64]:
    return (np.minimum(low, 0.0), np.maximum(high, 0.0)) if has_zeros else (low, high)


def _attributes(node: ir.Node, known: Known) -> Hashable:
    plain = tuple(sorted((name, repr(a.value)) for name, a in node.attributes.items()))
    parameters = []
    for value in node.inputs[1:]:
        array = known(value)
        if value is not None and array is None:
            raise Undecidable(AT_RUN_TIME(f"parameter {value.name!r} is not constant"))
        parameters.append(None if array is None else (array.shape, array.tobytes()))
    if node.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze"):
        return "Reshape", shape_of(node.outputs[0])
    return node.op_type, plain, tuple(parameters)


def shape_of(value: ir.Value | None) -> tuple[Any, ...]:
    """Return the shape of a value, with texts for open sizes.

    Raises:
        Undecidable: its rank is not known.
    """
    if value is None or value.shape is None:
        raise Undecidable(AT_RUN_TIME("a shape is not known"))
    return tuple(n if isinstance(n, int) else str(n.value) for n in value.shape.dims)


def _pads_nonzero(node: ir.Node, known: Known) -> bool:
    mode = node.attributes.get_string("mode", "constant")
    filled = known(node.inputs[2]) if len(node.inputs) > 2 else None
    return mode == "constant" and filled is not None and bool(filled.any())


def _with_edges(node: ir.Node, x: Quantity) -> Quantity:
    """Return data whose atoms can be moved together with what stands at the edges."""
    scales = [coefficient for coefficient, _ in x.meant.terms]
    if node.op_type == "Pad":
        if x.meant.offset.any():
            raise Undecidable(NO_BOUND("a Pad of shifted codes has no bound"))
        return x
    if len(scales) != 1 or not (scales[0] > 0).all():
        raise Undecidable(NO_BOUND(f"a {node.op_type} of several terms has no bound"))
    return Quantity(x.meant, x.low, x.high, x.error, unit=x.unit)


def _change(node: ir.Node) -> Change:
    """Return how arrays that broadcast to the data become arrays for the result."""
    source = node.inputs[0]
    before, after = shape_of(source), shape_of(node.outputs[0])
    rank = len(before)

    def full(array: Float64) -> Float64:
        return array.reshape(*(1,) * (rank - array.ndim), *array.shape)

    def change(array: Float64) -> Float64:
        if array.size == 1:
            return array.reshape(())
        wide = full(array)
        match node.op_type:
            case "Transpose":
                axes = node.attributes.get_ints("perm", tuple(range(rank))[::-1])
                return np.transpose(wide, axes)
            case "MaxPool" | "GlobalMaxPool" | "Split":
                varying = [axis for axis, size in enumerate(wide.shape) if size > 1]
                if all(before[axis] == after[axis] for axis in varying):
                    return wide
            case "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze":
                return _reshaped(wide, before, after)
        raise Undecidable(NO_BOUND(f"{node.op_type} of data with several scales has no bound"))

    return change


def _reshaped(wide: Float64, before: tuple[Any, ...], after: tuple[Any, ...]) -> Float64:
    """Return an array in the new shape of the data; the samples of a batch are alike."""
    kept = 0
    while kept < min(len(before), len(after)) and before[kept] == after[kept]:
        kept += 1
    kept = min(kept, next(axis for axis, size in enumerate(wide.shape) if size > 1))
    ends = before[kept:], after[kept:]
    if not all(isinstance(size, int) for end in ends for size in end):
        raise Undecidable(AT_RUN_TIME("a shape is not known"))
    spread = np.broadcast_to(wide[(0,) * kept], ends[0])
    return spread.reshape(ends[1])
