"""Sums of products of data and constant weights, and means, as functions of atoms.

Weights are whole multiples of a scale. The atom is the sum of the products of codes and these whole
numbers. Scales, signs and common divisors of a channel are its coefficient. So a model with a
BatchNormalization folded into the scales of the weights has the same atom.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from qgraph.numerics import Array, Float64
from qgraph.ops.approximation import FloatType, largest_of, rounded
from qgraph.ops.sums_of_products import Taps, added_up, ends_of_sums, padded_taps, products
from qgraph.proof.bounds.combination import BORDER, ONE, Atom, Atoms, Combination
from qgraph.proof.bounds.quantity import Quantity, narrow

_WHOLE = 2.0**53


def sum_of_products(
    atoms: Atoms,
    data: Quantity,
    weights: Quantity,
    layout: Taps,
    arithmetic: FloatType,
    *,
    bias: Quantity | None = None,
    more: int = 0,
    is_integer: bool = False,
) -> Quantity:
    """Return the sums of products of data and weights.

    Weights are constant, ``[rows, taps, *places]``; ``layout`` tells which elements of the data
    each sum reads. The bias is one more term, which broadcasts to the result. ``more`` counts other
    roundings of each term, besides its product and additions. Integers are added without rounding.

    Raises:
        Undecidable: the data is unbounded, or scales differ within a channel.
    """
    meant = partial(_meant, atoms)
    rounding = None if is_integer else arithmetic
    return products(meant, data, weights, layout, rounding, bias=bias, more=more)


def _meant(atoms: Atoms, data: Combination, weights: Quantity, layout: Taps) -> Combination:
    """Return ideal sums as multiples of atoms, one atom for each term of the data."""
    result = Combination()
    for coefficient, atom in data.terms:
        padded = padded_taps(layout, atom.attributes) if atom.kind.startswith("moved") else None
        if padded is None:
            result = result.plus(_of_atom(atoms, coefficient, atom, weights, layout))
        else:
            inner = atom.arguments[0].times(coefficient)
            result = result.plus(_meant(atoms, inner, weights, padded))
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


def mean_of(
    atoms: Atoms,
    data: Quantity,
    attributes: Hashable,
    count: int,
    arithmetic: FloatType,
    *,
    axes: Sequence[int] = (),
    has_zeros: bool = False,
) -> Quantity:
    """Return means of elements of the data.

    ``attributes`` are equal for equal means of up to ``count`` elements along ``axes``, counted
    from the last. If ``has_zeros``, padding counts as zeros.
    """

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
    total = added_up(exact, np.asarray(float(count)), count * reach, arithmetic)
    # Runtimes divide, or multiply by a rounded reciprocal.
    return rounded(Quantity(function, low, high, total.absolute / count), arithmetic, times=2)


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
    """Return the minimum or maximum along axes; the axes keep size 1."""
    axes = tuple(axis for axis in last_axes if -axis <= array.ndim)
    return np.asarray(pick.reduce(array, axis=axes, keepdims=True)) if axes else array
