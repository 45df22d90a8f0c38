"""Sums and means of elements: pools, reductions, sums and means of tensors."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from qgraph.numerics import Float64
from qgraph.ops.approximation import ZERO, multiple_of, rounded
from qgraph.ops.sums_of_products import added_up
from qgraph.proof.bounds.combination import Atom, Atoms
from qgraph.proof.bounds.moved_elements import ElementMove, Shape, widened
from qgraph.proof.bounds.quantity import Operand, Quantity, constant
from qgraph.proof.bounds.rule import (
    NodeCall,
    bound_rule,
    expect_data_in_windows,
    shape_of,
    sizes_of,
)
from qgraph.proof.bounds.sums import WholeAxes, mean_of
from qgraph.proof.bounds.tracer import QuantityTracer
from qgraph.proof.rules.movements import data_of, largest_of


@bound_rule("GlobalAveragePool", "ReduceMean", "ReduceSum")
def mean(call: NodeCall) -> Operand:
    """Means or sums over whole axes."""
    x, axes = data_of(call), reduced_axes(call, call.constant(1))
    dtype = call.node.outputs[0].dtype
    if dtype is not None and dtype.is_integer():
        raise call.refusal("integers")
    if not axes:
        return x
    result = mean_over(call, x, axes)
    if call.node.op_type == "ReduceSum":
        # A sum is off by no more, and is not divided.
        count = np.asarray(float(math.prod(sizes_of(call.value(0), axes))))
        result = multiple_of(result, count, count)
    if call.node.op_type == "GlobalAveragePool" or call.whole("keepdims", 1) == 1:
        return result
    return without_axes(call, result, axes)


def reduced_axes(call: NodeCall, stated: Quantity | None) -> list[int]:
    """Return the reduced axes, sorted, counted from the first; an input may state them."""
    rank = call.rank()
    if call.node.op_type == "GlobalAveragePool":
        return list(range(2, rank))
    if stated is not None:
        axes = [int(axis) for axis in stated.numbers.reshape(-1)]
    else:
        axes = list(call.node.attributes.get_ints("axes", ()))
    if not axes and not call.whole("noop_with_empty_axes"):
        axes = list(range(rank))
    return sorted(call.place(axis, rank) for axis in axes)


def mean_over(call: NodeCall, x: Quantity, axes: Sequence[int]) -> Quantity:
    """Return means over axes; the axes keep size 1."""
    shape, count, atoms = shape_of(call.value(0)), call.most(axes), call.tracer.atoms
    squeezed = (_squeezed_means(atom, shape) for _, atom in x.meant.terms)
    before, gone = next(filter(None, squeezed), (shape, ()))
    kept = [axis for axis in range(len(before)) if axis not in gone]
    last_axes = [kept[axis] - len(before) for axis in axes]
    if gone:
        with_axes = partial(_with_axes, len(shape), gone)
        x = ElementMove(atoms, ("Reshape", shape, before), with_axes).of(x)
    result = averaged(call, x, WholeAxes(tuple(last_axes)), count, last_axes)
    wide = tuple(1 if axis - len(before) in last_axes else n for axis, n in enumerate(before))
    return _without(atoms, result, gone, wide, tuple(wide[axis] for axis in kept))


def _with_axes(rank: int, axes: tuple[int, ...], array: Float64) -> Float64:
    """Return an array with more axes, of size 1; ``rank`` is that of the data before."""
    return array.reshape(()) if array.size == 1 else np.expand_dims(widened(array, rank), axes)


def _squeezed_means(atom: Atom, shape: Shape) -> tuple[Shape, tuple[int, ...]] | None:
    """Return the shape of means with the axes they were taken over, and these axes, if removed."""
    match atom.kind, atom.attributes:
        case "moved", ("Reshape", tuple() as before, _):
            ((_, inner),) = atom.arguments[0].terms
            if isinstance(inner.attributes, WholeAxes):
                gone = tuple(axis % len(before) for axis in inner.attributes.axes)
                if tuple(n for axis, n in enumerate(before) if axis not in gone) == shape:
                    return before, gone
    return None


def averaged(
    call: NodeCall,
    x: Quantity,
    key: Hashable,
    count: int,
    axes: Sequence[int],
    *,
    has_zeros: bool = False,
) -> Quantity:
    """Return means of at most ``count`` real numbers each; see :func:`mean_of`."""
    atoms = call.tracer.atoms
    mean = mean_of(atoms, x, key, count, call.sums, axes=axes, has_zeros=has_zeros)
    is_wider = call.sums.unit < call.tracer.arithmetic.unit
    return rounded(mean, call.tracer.arithmetic) if is_wider else mean


def without_axes(call: NodeCall, x: Quantity, axes: Sequence[int]) -> Quantity:
    """Return the result of a reduction without the axes that were reduced."""
    before = tuple(1 if axis in axes else n for axis, n in enumerate(shape_of(call.value(0))))
    return _without(call.tracer.atoms, x, axes, before, shape_of(call.node.outputs[0]))


def _without(
    atoms: Atoms, x: Quantity, axes: Sequence[int], before: Shape, after: Shape
) -> Quantity:
    """Return a quantity without axes of size 1."""
    if not axes:
        return x
    last_axes = [axis - len(before) for axis in axes]

    def squeezed(array: Float64) -> Float64:
        return np.squeeze(array, tuple(axis for axis in last_axes if -axis <= array.ndim))

    return ElementMove(atoms, ("Reshape", before, after), squeezed).of(x)


@bound_rule("AveragePool")
def average_pool(call: NodeCall) -> Operand:
    """Means of windows; padding counts as zeros, or not at all."""
    return pooled(call, data_of(call))


def pooled(call: NodeCall, x: Quantity) -> Quantity:
    """Return means of windows of data ``[N, C, ...]``, by the attributes of AveragePool."""
    axes = list(range(2, call.rank()))
    ones, get = (1,) * len(axes), call.node.attributes.get_ints
    kernel = tuple(get("kernel_shape", ()))
    pads, dilations = tuple(get("pads", ones * 2)), tuple(get("dilations", ones))
    pads = pads if "pads" in call.node.attributes else tuple(0 for _ in pads)
    mode = call.node.attributes.get_string("auto_pad", "NOTSET")
    is_plain = not any(pads) and mode == "NOTSET" and set(dilations) <= {1}
    if is_plain and kernel == shape_of(call.value(0))[2:]:
        return mean_over(call, x, axes)
    has_zeros = bool(call.whole("count_include_pad"))
    if not has_zeros:
        expect_data_in_windows(call)
    strides, ceil = tuple(get("strides", ones)), call.whole("ceil_mode")
    sizes = shape_of(call.value(0))[2:]
    key = "AveragePool", kernel, strides, pads, dilations, mode, has_zeros, ceil, sizes
    last_axes = [axis - call.rank() for axis in axes]
    return averaged(call, x, key, math.prod(kernel), last_axes, has_zeros=has_zeros)


@bound_rule("ReduceMax", "ReduceMin")
def extreme(call: NodeCall) -> Operand:
    """The largest or smallest element along axes."""
    return largest_of(call, data_of(call))


@bound_rule("Sum", "Mean")
def sum_of_tensors(call: NodeCall) -> Operand:
    """Sum or mean of tensors, element by element."""
    parts = [call.of(value) for value in call.node.inputs if value is not None]
    total = summed(call.tracer, parts)
    if call.node.op_type == "Sum" or len(parts) == 1:
        return total
    mean: Operand = call.tracer.Div(total, constant(np.float32(len(parts))))
    return mean


def summed(tracer: QuantityTracer, parts: Sequence[Operand]) -> Operand:
    """Return the sum of tensors, added in any order."""
    total = parts[0]
    for part in parts[1:]:
        total = tracer.Add(total, part)
    if len(parts) <= len("ab"):
        return total
    terms = [tracer.quantity(part) for part in parts]
    quantity = tracer.quantity(total)
    exact = replace(
        quantity, absolute=sum((t.error for t in terms), ZERO), relative=ZERO, unit=None
    )
    reach = sum((term.reach for term in terms), ZERO)
    return added_up(exact, np.asarray(float(len(terms))), reach, tracer.arithmetic)
