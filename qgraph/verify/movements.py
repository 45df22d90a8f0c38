"""What operators that move elements execute and mean, for the checker of bounds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.errors import UnsupportedError
from qgraph.numerics import Float64
from qgraph.ops.taps import RIGHT, pointwise_taps
from qgraph.ops.windows import is_never_empty
from qgraph.verify.ideals import NOTHING, Basis, Executed, Ideal
from qgraph.verify.reading import Sizes
from qgraph.verify.traces import Change, Trace

Carried = Callable[[Basis, Basis], Ideal]
"""Returns moved elements of a basis, given as a basis; see :meth:`Trace.carried`."""


def move(trace: Trace, node: ir.Node) -> Executed:
    """Return moved elements, or maxima of them."""
    x, name = trace.of(node.inputs[0]), node.op_type
    if name == "Identity" or (name == "Dropout" and len(node.inputs) < 3):
        return x
    before, after = map(trace.shape, (node.inputs[0], node.outputs[0]))
    if name == "MaxPool" and not is_never_empty(node, before, trusts_ceil=True):
        raise UnsupportedError("a window of a MaxPool may lie in the padding alone")
    rank = len(before)
    if name == "Transpose":
        perm = node.attributes.get_ints("perm", range(rank)[::-1])
        return moved(
            trace, node, x, lambda a: a.reshape((1,) * (rank - a.ndim) + a.shape).transpose(perm)
        )
    if name in _POOLS:
        return moved(trace, node, x, lambda array: array)
    return moved(trace, node, x, lambda array: _reshaped(array, before, after))


def moved(
    trace: Trace, node: ir.Node, x: Executed, change: Change, before: Sizes | None = None
) -> Executed:
    """Return moved elements of data of a shape, by default that of the node."""

    def wide(array: Float64) -> Float64:
        return array.reshape(()) if array.size == 1 else change(array)

    identity = identity_of(node)
    if node.op_type == "Transpose":
        rank = len(trace.shape(node.inputs[0]))
        identity = "Transpose", tuple(node.attributes.get_ints("perm", tuple(range(rank))[::-1]))
    elif node.op_type not in _POOLS:
        before = before or trace.shape(node.inputs[0])
        identity = "Reshape", before, trace.shape(node.outputs[0])
        if None in identity[2]:
            raise UnsupportedError(f"the shape of a {node.op_type} is not known")

    def shifted(x: Executed) -> Executed:
        if node.op_type in _POOLS:
            rank = len(trace.shape(node.inputs[0]))
            if varies(x, range(2, rank), rank):
                raise UnsupportedError(f"a {node.op_type} of data with several scales")
            x = replace(x, absolute=x.error, relative=NOTHING)
        unit = None if x.unit is None else wide(x.unit)
        ends = wide(x.low), wide(x.high), wide(x.absolute), wide(x.relative)
        return Executed(rebased(x.meant, identity, wide, carried), *ends, unit)

    def carried(basis: Basis, result: Basis) -> Ideal:
        return trace.carried(basis, result, wide, shifted)

    return shifted(x)


def _turned(
    basis: Basis, identity: tuple[Hashable, ...], change: Change, carried: Carried
) -> Basis | None:
    """Return a Transpose undone, or of rows of products as a Conv of one place; None otherwise."""
    if identity[0] != "Transpose" or basis.inner is None:
        return None
    before, after, inner = basis.kind[1:], identity[1], basis.inner
    if basis.kind[0] == "Transpose" and before == (_inverse(after),) and len(inner.terms) == 1:
        return inner.terms[0][1]
    layout = pointwise_taps(after)
    if layout is None or basis.weights is None or before != (RIGHT.geometry, RIGHT.trailing):
        return None
    weights, reach = (
        a.reshape(*a.shape, *(1,) * layout.trailing) for a in (basis.weights, basis.reach)
    )
    ends = change(basis.low), change(basis.high)
    data = rebased(inner, identity, change, carried)
    return Basis(("sum", layout.geometry, layout.trailing), *ends, data, weights, reach)


def _inverse(axes: Hashable) -> Hashable:
    return tuple(map(int, np.argsort(axes))) if isinstance(axes, tuple) else None


def identity_of(node: ir.Node) -> tuple[Hashable, ...]:
    """Return what is equal for nodes that move elements in one way."""
    return node.op_type, *((n, repr(a.value)) for n, a in sorted(node.attributes.items()))


def varies(x: Executed, axes: Iterable[int], rank: int) -> bool:
    """Return whether numbers of a tensor differ along axes."""
    arrays = [factor for factor, _ in x.meant.terms]
    arrays += [x.low, x.high, x.absolute, x.relative, x.meant.offset]
    return any(((1,) * (rank - a.ndim) + a.shape)[axis - rank] > 1 for a in arrays for axis in axes)


def rebased(
    function: Ideal,
    identity: tuple[Hashable, ...],
    change: Change,
    carried: Carried = lambda _, result: Ideal.of(result),
) -> Ideal:
    """Return a function of moved elements, as one of moved bases; limits are behind movements."""
    has_one = len(function.terms) == 1 and bool((function.terms[0][0] > 0).all())
    if "MaxPool" in str(identity[0]) and not has_one:
        raise UnsupportedError(f"a {identity[0]} of several terms")
    offset, size, depth = change(function.offset), change(function.size), function.depth
    terms = []
    for factor, basis in function.terms:
        result = carried(basis, _rebased(basis, function.depth, identity, change, carried))
        moved = change(factor)
        terms += [(moved * own, each) for own, each in result.terms]
        if result.offset.any():
            offset, size = offset + moved * result.offset, size + np.abs(moved) * result.size
            depth += 3
    return Ideal(tuple(terms), offset, size, depth)


def _rebased(
    basis: Basis, depth: int, identity: tuple[Hashable, ...], change: Change, carried: Carried
) -> Basis:
    """Return a basis of moved elements; ``depth`` is that of the function it is part of."""
    turned = _turned(basis, identity, change, carried)
    if turned is not None:
        return turned
    ends = change(basis.low), change(basis.high)
    is_plain = basis.ends is not None and all(end.size == 1 for end in basis.ends)
    if is_plain and basis.inner is not None and identity[0] in _MOVES:
        limited = rebased(basis.inner, identity, change, carried)
        return replace(basis, low=ends[0], high=ends[1], inner=limited)
    inner, own, (first, *shapes) = Ideal.of(basis), identity, basis.kind
    if basis.inner and first == identity[0] == "Reshape" and shapes[1] == identity[1]:
        inner, own = basis.inner, ("Reshape", shapes[0], identity[2])
    return Basis(own, *ends, replace(inner, depth=depth))


_POOLS = frozenset({"MaxPool", "GlobalMaxPool"})
_MOVES = _POOLS | {"Transpose", "Reshape"}
"""First parts of the kinds of bases that are moved elements."""


def _reshaped(array: Float64, before: Sizes, after: Sizes) -> Float64:
    """Return an array in the new shape of the data; the samples of a batch are alike."""
    wide = array.reshape((1,) * (len(before) - array.ndim) + array.shape)
    same = [m == n for m, n in zip(before, after, strict=False)]
    kept = min((*same, False).index(False), [size > 1 for size in wide.shape].index(True))
    old, new = (tuple(n for n in s[kept:] if isinstance(n, int)) for s in (before, after))
    if len(old) < len(before) - kept or len(new) < len(after) - kept:
        raise UnsupportedError("a shape is not known")
    return np.broadcast_to(wide[(0,) * kept], old).reshape(new)
