"""Rules of the checker for operators that move elements."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.walk import RESHAPING
from qgraph.numerics import Float64
from qgraph.numerics.values import narrowed
from qgraph.ops.approximation import granules
from qgraph.ops.moved_elements import MovedElements, executed, movements
from qgraph.ops.sums_of_products import RIGHT, is_never_empty, pointwise_taps
from qgraph.verify import need
from qgraph.verify.ideals import NOTHING, ONE, Basis, Executed, Ideal, changed
from qgraph.verify.traces import Trace


@dataclass(frozen=True)
class PoolWindows:
    """Maxima or means of windows, of data that does not differ within a channel.

    Attributes:
        kind: equal for equal windows.
        are_maxima: whether these are maxima.
    """

    kind: tuple[Hashable, ...]
    are_maxima: bool

    def of(self, array: Float64, _: float = 0.0) -> Float64:
        """Move an array from the shape of the data to the shape of the result."""
        return array.reshape(()) if array.size == 1 else array

    def ends(self, low: Float64, high: Float64, _: float = 0.0) -> tuple[Float64, Float64]:
        """Return the ends of the results."""
        return self.of(low), self.of(high)


_Moved = MovedElements | PoolWindows


def move(trace: Trace, node: ir.Node) -> Sequence[Executed]:
    """Return moved elements of data."""
    x = trace.of(node.inputs[0])
    if node.op_type == "Identity" or (node.op_type == "Dropout" and len(node.inputs) < 3):
        return [x]
    if x.is_constant:
        rest = trace.arrays(node, node.inputs[1:])

        def result(index: int) -> Executed:
            return changed(x, lambda array: executed(node, [array, *rest], trace.imports)[index])

        return list(map(result, range(len(node.outputs))))
    return [moved(trace, movement, x) for (movement,) in _movements(trace, node, node.inputs[1:])]


def pad(trace: Trace, node: ir.Node) -> Executed:
    """Return data padded with a number or with its own elements."""
    fill = np.asarray(node.attributes.get_float("value", 0.0))
    pads, number, axes = (*node.inputs[1:], None, None, None)[:3]
    if number is not None:
        fill = trace.of(number).numbers.reshape(())
    ((movement,),) = _movements(trace, node, (pads, None, axes))
    if movement.fills:
        ((edges,),) = _movements(trace, node, (pads, None, axes), mode="edge")
        movement = replace(movement, likes=edges.places)
    return moved(trace, movement, trace.of(node.inputs[0]), float(fill))


def concat(trace: Trace, node: ir.Node) -> Executed:
    """Return the concatenation of tensors, as a sum of parts that are 0 elsewhere."""
    (movements,) = _movements(trace, node)
    first, *parts = (
        moved(trace, movement, trace.of(value))
        for movement, value in zip(movements, node.inputs, strict=True)
    )
    for part in parts:
        names = "low", "high", "absolute", "relative"
        low, high, absolute, relative = (
            _whole(getattr(first, name) + getattr(part, name)) for name in names
        )
        unit = None
        if first.unit is not None and part.unit is not None:
            unit = np.minimum(first.unit, part.unit)
        first = Executed(first.meant.plus(part.meant), low, high, absolute, relative, unit)
    return replace(first, meant=_side_by_side(first.meant))


def _whole(array: Float64) -> Float64:
    return narrowed(array, range(array.ndim))


def _side_by_side(function: Ideal) -> Ideal:
    """Return a function in which parts of one basis are moved together."""
    terms: dict[int, tuple[Float64, Basis]] = {}
    for factor, basis in function.terms:
        key = id(basis)
        if basis.movement is not None and basis.inner is not None:
            key = id(basis.inner.terms[0][1])
            before, part = terms.get(key, (NOTHING, basis))
            if part is not basis and part.movement is not None:
                both = part.movement.beside(basis.movement)
                basis = _taken(
                    both,
                    basis.inner,
                    (_whole(part.low + basis.low), _whole(part.high + basis.high)),
                )
                factor = _whole(before + factor)
        terms[key] = factor, basis
    return replace(function, terms=tuple(terms.values()))


def largest(trace: Trace, node: ir.Node) -> Executed:
    """Return maxima of windows."""
    x, shape = trace.of(node.inputs[0]), trace.shape(node.inputs[0])
    is_full = node.op_type != "MaxPool" or is_never_empty(node, shape, trusts_ceil=True)
    need(is_full, "a window of a MaxPool may lie in the padding alone")
    is_even = not varies(x, range(2, len(shape)), len(shape))
    need(is_even, f"a {node.op_type} of data with several scales")
    return moved(trace, PoolWindows(identity_of(node), True), x)


def _movements(
    trace: Trace,
    node: ir.Node,
    parameters: Sequence[ir.Value | None] | None = None,
    **attributes: str,
) -> list[list[MovedElements]]:
    """Return the movements of a node; without parameters, all operands are data."""
    data = node.inputs if parameters is None else node.inputs[:1]
    before, after = (
        [trace.shape_of(trace.shape(value)) for value in values] for values in (data, node.outputs)
    )
    # what reshapes is known by its inferred shape, whatever computes it
    computed = node.op_type not in RESHAPING
    arrays = trace.arrays(node, parameters or ()) if computed else ()
    return movements(node, before, after, arrays, trace.imports, **attributes)


def moved(trace: Trace, movement: _Moved, x: Executed, fill: float = 0.0) -> Executed:
    """Return moved data; elements that are not from the data are a number."""
    if isinstance(movement, PoolWindows):
        x = replace(x, absolute=x.error, relative=NOTHING)
    unit = None if x.granule is None else movement.of(x.granule, np.inf)
    unit = None if unit is None else np.minimum(unit, granules(np.asarray(fill)))
    low, high = movement.ends(x.low, x.high, fill)
    if fill:
        x = replace(x, meant=x.meant.plus(Ideal.fixed(np.asarray(-fill))))
    meant = rebased(x.meant, movement, trace)
    if fill:
        meant = meant.plus(Ideal.fixed(np.asarray(fill)))
    return Executed(meant, low, high, movement.of(x.absolute), movement.of(x.relative), unit)


def identity_of(node: ir.Node) -> tuple[Hashable, ...]:
    """Return a key that is equal for nodes with equal windows."""
    return node.op_type, *((n, repr(a.value)) for n, a in sorted(node.attributes.items()))


def varies(x: Executed, axes: Iterable[int], rank: int) -> bool:
    """Return whether numbers of a tensor differ along axes."""
    arrays = [factor for factor, _ in x.meant.terms]
    arrays += [x.low, x.high, x.absolute, x.relative, x.meant.offset]
    return any(((1,) * (rank - a.ndim) + a.shape)[axis - rank] > 1 for a in arrays for axis in axes)


def rebased(function: Ideal, movement: _Moved, trace: Trace | None = None) -> Ideal:
    """Return a function of moved elements as a function of moved bases.

    Limits are after movements. Moved codes are codes of the model, if it is known.
    """
    has_one = len(function.terms) == 1 and bool((function.terms[0][0] > 0).all())
    are_sums = isinstance(movement, PoolWindows) and movement.are_maxima and not has_one
    need(not are_sums, "a maximum of several terms")
    if isinstance(movement, MovedElements) and movement.is_padding and function.offset.any():
        one = Ideal(((function.offset, ONE),), depth=function.depth)
        function = one.plus(replace(function, offset=NOTHING))
    change, depth = movement.of, function.depth
    offset, size = change(function.offset), change(function.size)
    terms = []
    for factor, basis in function.terms:
        result = Ideal.of(_rebased(basis, function.depth, movement, trace))
        if trace is not None and not (isinstance(movement, MovedElements) and movement.is_part):
            again = partial(moved, trace, movement)
            result = trace.carried(basis, result.terms[0][1], change, again)
        moved_factor = change(factor)
        terms += [(moved_factor * own, each) for own, each in result.terms]
        if result.offset.any():
            offset = offset + moved_factor * result.offset
            size = size + np.abs(moved_factor) * result.size
            depth += 3
    return Ideal(tuple(terms), offset, size, depth)


def _rebased(basis: Basis, depth: int, movement: _Moved, trace: Trace | None) -> Basis:
    """Return a basis of moved elements; ``depth`` is that of the function it is part of."""
    low, high = movement.ends(basis.low, basis.high)
    if basis.inner is not None and _keeps_limits(basis, movement):
        return replace(basis, low=low, high=high, inner=rebased(basis.inner, movement, trace))
    inner = replace(Ideal.of(basis), depth=depth)
    if isinstance(movement, PoolWindows):
        return Basis(movement.kind, low, high, inner)
    if basis.inner is not None and basis.kind[1:] == (RIGHT.geometry, RIGHT.trailing):
        turned = _turned(basis, movement, trace)
        if turned is not None:
            return turned
    if basis.inner is not None and basis.movement is not None:
        return _taken(basis.movement.then(movement), basis.inner, (low, high))
    return _taken(movement, inner, (low, high))


def _taken(movement: MovedElements, inner: Ideal, ends: tuple[Float64, Float64]) -> Basis:
    """Return moved elements of a basis, or all of it."""
    ((_, source),) = inner.terms
    if movement.is_nothing:
        return source
    return Basis(movement.kind, *ends, inner, movement=movement)


def _keeps_limits(basis: Basis, movement: _Moved) -> bool:
    """Return whether limits of the data also hold for the moved data."""
    if basis.ends is None or basis.inner is None or any(end.size > 1 for end in basis.ends):
        return False
    if isinstance(movement, PoolWindows):
        return movement.are_maxima
    return not movement.fills or bool(basis.ends[0] <= 0 <= basis.ends[1])


def _turned(basis: Basis, movement: MovedElements, trace: Trace | None) -> Basis | None:
    """Return transposed rows of a matrix product as a 1 x 1 Conv; None for other movements."""
    rank = len(movement.before.lengths)
    axes = 0, rank - 1, *range(1, rank - 1)
    layout, numbers = pointwise_taps(axes), movement.before.places
    is_turned = layout is not None and np.array_equal(movement.places, numbers.transpose(axes))
    if layout is None or not is_turned or basis.weights is None or basis.inner is None:
        return None
    weights, reach = (
        a.reshape(*a.shape, *(1,) * layout.trailing) for a in (basis.weights, basis.reach)
    )
    turn = movement.before.turned(basis.weights.shape[1], axes)
    ends = movement.ends(basis.low, basis.high)
    kind = "sum", layout.geometry, layout.trailing
    return Basis(kind, *ends, rebased(basis.inner, turn, trace), weights, reach)
