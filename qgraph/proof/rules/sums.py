"""Sums of products of data and constant weights, sums and means of elements, as functions of atoms.

Weights are whole multiples of a scale. The atom is the sum of the products of codes and these whole
numbers. Scales, signs and common divisors of a channel are its coefficient. So a model with a
BatchNormalization folded into the scales of the weights has the same atom.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from qgraph.numerics import Array, Float64
from qgraph.ops.approximation import ZERO, FloatType, largest_of, multiple_of, rounded
from qgraph.ops.sums_of_products import Taps, added_up, ends_of_sums, padded_taps, products
from qgraph.proof.bounds.combination import BORDER, ONE, Atom, Atoms, Combination
from qgraph.proof.bounds.moved_elements import ElementMove, Shape, mapped, widened
from qgraph.proof.bounds.quantity import Operand, Quantity, constant, narrow
from qgraph.proof.bounds.rule import (
    NodeCall,
    bound_rule,
    expect_data_in_windows,
    shape_of,
    sizes_of,
)
from qgraph.proof.bounds.tracer import QuantityTracer
from qgraph.proof.rules.movements import data_of, largest_element

_WHOLE = 2.0**53


def sum_of_products(
    atoms: Atoms,
    data: Quantity,
    weights: Quantity,
    layout: Taps,
    arithmetic: FloatType,
    *,
    biases: Sequence[Quantity] = (),
    more: int = 0,
    is_integer: bool = False,
) -> Quantity:
    """Return the sums of products of data and weights.

    Weights are constant, ``[rows, taps, *places]``; ``layout`` tells which elements of the data
    each sum reads. The biases are further terms, which broadcast to the result. ``more`` counts
    other roundings of each term, besides its product and additions. Integers are added without
    rounding.

    Raises:
        Undecidable: the data is unbounded, or scales differ within a channel.
    """
    meant = partial(_meant, atoms)
    rounding = None if is_integer else arithmetic
    return products(meant, data, weights, layout, rounding, biases=biases, more=more)


def _meant(atoms: Atoms, data: Combination, weights: Quantity, layout: Taps) -> Combination:
    """Return ideal sums as multiples of atoms, one atom for each term of the data."""
    result = Combination()
    for coefficient, atom in data.terms:
        padding = atom.attributes if atom.kind.startswith("moved") else None
        own, factor, padding = _without_added_channels(weights, coefficient, padding)
        padded = padded_taps(layout, padding)
        if padded is None:
            result = result.plus(_of_atom(atoms, coefficient, atom, weights, layout))
        else:
            inner = atom.arguments[0].times(factor)
            result = result.plus(_meant(atoms, inner, own, padded))
    if not data.offset.any():
        return result
    array = np.broadcast_to(weights.meant.offset, weights.numbers.shape)
    if layout.is_padded:
        one = atoms.make(ONE, None, (), (np.ones(()), np.ones(())))
        return result.plus(_of_atom(atoms, data.offset, one, weights, layout))
    offsets = layout.by_tap(data.offset, array)
    terms = (array * offsets).reshape(len(array), -1)
    added = Combination(
        (), layout.by_row(terms.sum(axis=1)), layout.by_row(np.abs(terms).sum(axis=1))
    )
    return result.plus(added)


def _without_added_channels(
    weights: Quantity, coefficient: Float64, padding: Hashable
) -> tuple[Quantity, Float64, Hashable]:
    """Return weights, factors and a padding without last channels whose weights are all 0."""
    match padding:
        case ("Pad", (_, int() as count, *_) as sizes, tuple() as pads):
            place = len(sizes) + 1
            parts = (weights.numbers, np.broadcast_to(weights.meant.offset, weights.numbers.shape))
            is_added = weights.numbers.shape[1] == count + pads[place] > count
            if is_added and not any(part[:, count:].any() for part in parts):
                pads = (*pads[:place], 0, *pads[place + 1 :])
                own = mapped(weights, lambda array: array[:, :count])
                axis = 1 - len(sizes)
                if coefficient.ndim >= -axis:
                    coefficient = coefficient.take(range(min(coefficient.shape[axis], count)), axis)
                return own, coefficient, ("Pad", sizes, pads)
    return weights, coefficient, padding


def _of_atom(
    atoms: Atoms, coefficient: Float64, atom: Atom, weights: Quantity, layout: Taps
) -> Combination:
    shape = weights.numbers.shape
    numbers: Array = np.broadcast_to(weights.meant.offset, shape)
    scale = np.ones(shape[0])
    if weights.factors is not None:
        scales, codes = weights.factors
        wide = scales.reshape(*(1,) * (len(shape) - scales.ndim), *scales.shape)
        rows = np.broadcast_to(wide, (shape[0], *wide.shape[1:])).reshape(shape[0], -1)
        if (rows == rows[:, :1]).all():
            numbers, scale = np.broadcast_to(codes, shape), rows[:, 0]
    if coefficient.size == 1:
        scale = scale * coefficient.reshape(())
    else:
        numbers = numbers * layout.by_tap(coefficient, numbers)
    numbers, divisor = _reduced(numbers)
    scale = scale * divisor
    low, high = layout.ends_by_tap(atom.low, atom.high, numbers)
    total = atoms.make(
        BORDER if atom.kind == ONE else "sum",
        (layout.geometry, layout.trailing),
        (Combination.of(atom),),
        ends_of_sums(numbers, low, high, layout),
        (numbers, largest_of(low, high)),
    )
    return Combination(((layout.by_row(scale), total),))


def _reduced(numbers: Array) -> tuple[Array, Float64]:
    """Return weights divided by the sign and the common divisor of each row, and the divisors.

    Weights that are not whole numbers are returned unchanged.
    """
    numbers = narrow(numbers)
    rows = numbers.reshape(len(numbers), -1)
    is_narrow = rows.dtype.kind == "i"
    if not is_narrow and (
        not (rows == np.rint(rows)).all() or np.abs(rows).max(initial=0) >= _WHOLE
    ):
        return numbers, np.ones(len(numbers))
    divisor = np.gcd.reduce(rows[:, :_FIRST].astype(np.int64), axis=1)
    more = divisor != 1
    divisor[more] = np.gcd.reduce(rows[more].astype(np.int64), axis=1)
    first = rows[np.arange(len(rows)), (rows != 0).argmax(axis=1)]
    signed = np.where(divisor == 0, 1, divisor) * np.where(first < 0, -1.0, 1.0)
    if is_narrow:
        quotients = np.floor_divide(rows, signed[:, None].astype(np.int32), dtype=np.int32)
    else:
        quotients = rows / signed[:, None] + 0.0  # no zero has a sign
    return narrow(quotients.reshape(numbers.shape)), signed


_FIRST = 16
"""Number of weights of a row that are tested first: most rows have no common divisor."""


class WholeAxes(NamedTuple):
    """Attributes of means over whole axes, counted from the last."""

    axes: tuple[int, ...]


def averaged(
    call: NodeCall,
    data: Quantity,
    attributes: Hashable,
    count: int,
    axes: Sequence[int],
    *,
    has_zeros: bool = False,
) -> Quantity:
    """Return means of elements of the data.

    ``attributes`` are equal for equal means of up to ``count`` elements along ``axes``, counted
    from the last. If ``has_zeros``, padding counts as zeros.
    """
    atoms = call.tracer.atoms

    def along(low: Float64, high: Float64) -> tuple[Float64, Float64]:
        low, high = _over(np.minimum, low, axes), _over(np.maximum, high, axes)
        return (np.minimum(low, 0.0), np.maximum(high, 0.0)) if has_zeros else (low, high)

    meant, attributes, axes = _of_means(data.meant, attributes, axes)
    low, high = along(data.low, data.high)
    meant = _in_padding(atoms, meant) if has_zeros else meant
    numbers = [*(coefficient for coefficient, _ in meant.terms), meant.offset]
    if any(array.shape != _over(np.minimum, array, axes).shape for array in numbers):
        function = Combination.of(atoms.make("mean", attributes, (meant,), (low, high)))
    else:
        terms = []
        for coefficient, atom in meant.terms:
            ends = along(atom.low, atom.high)
            mean = atoms.make("mean", attributes, (Combination.of(atom),), ends)
            terms.append((coefficient, mean))
        function = Combination(tuple(terms), meant.offset, meant.size)
    error, reach = (_over(np.maximum, part, axes) for part in (data.error, data.reach))
    unit = None if data.unit is None else _over(np.minimum, data.unit, axes)
    exact = Quantity(function, low, high, count * error, unit=unit)
    total = added_up(exact, np.asarray(float(count)), count * reach, call.sums)
    # Runtimes divide, or multiply by a rounded reciprocal.
    whole = Quantity(function, low, high, total.absolute / count)
    return call.stored(rounded(whole, call.sums, times=2))


def _of_means(
    function: Combination, attributes: Hashable, axes: Sequence[int]
) -> tuple[Combination, Hashable, Sequence[int]]:
    """Return a mean of means over whole axes as one mean, over the axes of both."""
    match attributes, [*{(atom.kind, atom.attributes) for _, atom in function.terms}]:
        case WholeAxes(), [("mean", WholeAxes(others))]:
            inner = Combination((), function.offset, function.size)
            for coefficient, atom in function.terms:
                inner = inner.plus(atom.arguments[0].times(coefficient))
            axes = sorted({*axes, *others})
            return inner, WholeAxes(tuple(axes)), axes
    return function, attributes, axes


def _in_padding(atoms: Atoms, function: Combination) -> Combination:
    """Return a function whose offset is a multiple of a 1 that padding replaces by 0."""
    if not function.offset.any():
        return function
    one = atoms.make(ONE, None, (), (np.ones(()), np.ones(())))
    return Combination((*function.terms, (function.offset, one)))


def _over(pick: np.ufunc, array: Float64, last_axes: Sequence[int]) -> Float64:
    axes = tuple(axis for axis in last_axes if -axis <= array.ndim)
    return np.asarray(pick.reduce(array, axis=axes, keepdims=True)) if axes else array


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
    return without_axes(call, result, axes)


def reduced_axes(call: NodeCall, stated: Quantity | None) -> list[int]:
    """Return the reduced axes, sorted, counted from the first; an input may state them."""
    rank = call.rank()
    if call.node.op_type.endswith("GlobalAveragePool"):
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


def without_axes(call: NodeCall, x: Quantity, axes: Sequence[int]) -> Quantity:
    """Return the result of a reduction without the reduced axes, unless they are kept."""
    if call.whole("keepdims", 1) == 1:
        return x
    before = tuple(1 if axis in axes else n for axis, n in enumerate(shape_of(call.value(0))))
    return _without(call.tracer.atoms, x, axes, before, shape_of(call.node.outputs[0]))


def _without(
    atoms: Atoms, x: Quantity, axes: Sequence[int], before: Shape, after: Shape
) -> Quantity:
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
    return largest_element(call, data_of(call))


@bound_rule("Sum", "Mean")
def sum_of_tensors(call: NodeCall) -> Operand:
    """Sum or mean of tensors, element by element."""
    parts = [call.of(value) for value in call.node.inputs if value is not None]
    total = summed(call.tracer, parts)
    if call.node.op_type == "Sum" or len(parts) == 1:
        return total
    return call.tracer.Div(total, constant(np.float32(len(parts))))


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
