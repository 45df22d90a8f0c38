"""Sums of products of data and constant weights, in any order of additions; windows of operators.

Windows of pools, convolutions and products: whether each contains data, and which elements are
added up.

Each rounding multiplies a term by a factor from 1 - u to 1 + u. In a float sum of n products x * w
a term is rounded at most n times, whatever the order, and fewer times by fused operations. So the
sum is off by at most ((1 + u)**n - 1) * sum |x * w|, for any n (Higham 2002, section 3.1). Sums of
whole numbers of units that stay below 2**24 units are exact.

The prover and the checker of bounds both use this arithmetic, each with its own functions meant.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float64
from qgraph.ops.approximation import (
    SLACK,
    ZERO,
    A,
    F,
    FloatType,
    granules,
    largest_of,
    product,
    sum_of,
)
from qgraph.reasons import NO_BOUND, OUT_OF_RANGE, Undecidable
from qgraph.records import dataclass, replace

_WHOLE = 2.0**53


@dataclass(frozen=True)
class Taps:
    """Which elements of the data a sum reads, for weights ``[rows, taps, *places]``.

    Attributes:
        geometry: operator, strides, paddings and the like; equal for equal sums.
        groups: into which rows and channels are divided.
        channel: axis of the data from the last (0), along which the taps run.
        trailing: axes after the rows in the result.
        is_padded: whether zeros may stand for data.
    """

    geometry: Hashable
    groups: int
    channel: int
    trailing: int
    is_padded: bool

    def by_tap(
        self, array: Float64, weights: Float64, worst: Callable[..., Float64] | None = None
    ) -> Float64:
        """Return an array that broadcasts to the data as one that broadcasts to the weights.

        If numbers differ between the places of a channel, the ``worst`` of them is taken.

        Raises:
            Undecidable: they differ, and none is the worst.
        """
        if array.size > 1:
            axis = array.ndim - 1 - self.channel
            places = tuple(index for index in range(array.ndim) if index != axis)
            of_channels = (worst or np.min)(array, axis=places, keepdims=True)
            if worst is None and (of_channels != array).any():
                raise Undecidable(NO_BOUND("numbers of the data differ within a channel of a sum"))
            array = of_channels
        if array.size == 1:
            return array.reshape((1,) * weights.ndim)
        rows, taps = weights.shape[:2]
        parts = array.reshape(self.groups, 1, taps)
        if self.groups > 1:
            parts = np.broadcast_to(parts, (self.groups, rows // self.groups, taps))
        return parts.reshape(-1, taps, *(1,) * (weights.ndim - 2))

    def ends_by_tap(self, low: Float64, high: Float64, weights: Float64) -> tuple[Float64, Float64]:
        """Return ends of the data by tap; zeros of the padding lie between them."""
        low, high = self.by_tap(low, weights, np.min), self.by_tap(high, weights, np.max)
        return (np.minimum(low, 0.0), np.maximum(high, 0.0)) if self.is_padded else (low, high)

    def by_row(self, array: Float64) -> Float64:
        """Return an array ``[rows]`` as one that broadcasts to the result."""
        return array.reshape(-1, *(1,) * self.trailing)


def products(
    meant: Callable[[F, A, Taps], F],
    data: A,
    weights: A,
    layout: Taps,
    arithmetic: FloatType | None,
    *,
    biases: Sequence[A] = (),
    more: int = 0,
) -> A:
    """Return the sums of products of data and weights.

    Args:
        meant: returns the function of the sums from that of the data, the weights and the layout.
        data: what is summed.
        weights: constant, ``[rows, taps, *places]``.
        layout: which elements of the data take part.
        arithmetic: in which products and sums are rounded; None for integers.
        biases: further terms, which broadcast to the result.
        more: roundings of each term besides those of its product and of additions.

    Raises:
        Undecidable: the data is unbounded, or scales differ within a channel.
    """
    value = weights.numbers
    ideal = np.broadcast_to(weights.meant.offset, value.shape)
    low, high = layout.ends_by_tap(data.low, data.high, value)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        text = "the range of the data of a sum is not known"
        raise Undecidable(OUT_OF_RANGE(f"{text}; give --range NAME=LOW:HIGH of real inputs"))
    function = meant(data.meant, weights, layout)
    ends = ends_of_sums(ideal, low, high, layout)
    error, largest = layout.by_tap(data.error, value, np.max), largest_of(low, high)

    def lost(value: Float64, ideal: Float64, largest: Float64, error: Float64) -> Float64:
        return _total(np.abs(value) * error + largest * np.abs(value - ideal))

    off = layout.by_row(_in_blocks(lost, value, ideal, largest, error))
    unit = None
    if data.granule is not None:
        granule = layout.by_tap(data.granule, value)
        unit = layout.by_row(_in_blocks(_least_granule, value, granule))
    result = type(data)(function, *ends, off, ZERO, unit)
    for bias in biases:
        result = sum_of(result, bias)
    if arithmetic is None:
        return result
    counts = np.count_nonzero(value.reshape(len(value), -1), axis=1).astype(np.float64)
    terms = _in_blocks(lambda value, far: _total(np.abs(value) * far), value, largest + error)
    reach = layout.by_row(terms)
    for bias in biases:
        counts, reach = counts + 1, reach + bias.reach
    return added_up(result, layout.by_row(counts), reach, arithmetic, more=more)


def added_up(
    exact: A, counts: Float64, reach: Float64, arithmetic: FloatType, *, more: int = 0
) -> A:
    """Return an exact sum of ``counts`` terms as it is executed in any order.

    ``reach`` is the sum of the magnitudes of the executed terms. Each term has ``more`` roundings
    besides those of its product and of additions.

    Raises:
        Undecidable: the sum may overflow.
    """
    if arithmetic.represents(exact.unit, reach):
        return exact
    if not np.isfinite(reach).all():
        raise Undecidable(NO_BOUND("a sum of data of unknown range"))
    grown = np.expm1((arithmetic.roundings(counts) + more) * np.log1p(arithmetic.unit))
    if not (reach * (1 + grown) * (1 + SLACK) < arithmetic.largest).all():
        text = f"a sum of {counts.max():g} terms may exceed the range of {arithmetic.name}"
        hint = "give --accumulate float32 or --order chunk:N if a runtime adds so"
        raise Undecidable(NO_BOUND(f"{text}; {hint}"))
    lost = counts * arithmetic.tiny
    noise = grown * (reach + lost) + lost
    total = (exact.absolute + noise) * (1 + SLACK)
    return type(exact)(exact.meant, exact.low, exact.high, total, exact.relative)


def ends_of_sums(
    weights: Float64, low: Float64, high: Float64, layout: Taps
) -> tuple[Float64, Float64]:
    """Return bounds of sums of products of weights and data between two ends, by tap."""
    least, most = _in_blocks(_ends, weights, low, high)
    return layout.by_row(least), layout.by_row(most)


def _ends(weights: Float64, low: Float64, high: Float64) -> Float64:
    """Return the bounds for each row of weights, ``[2, rows]``."""
    above, below = np.maximum(weights, 0.0), np.minimum(weights, 0.0)
    parts = weights[0].size
    ends = []
    for first, second, sign in ((low, high, -1.0), (high, low, 1.0)):
        # one of both products is 0
        terms = (product(above, first) + product(below, second)).reshape(len(weights), -1)
        with np.errstate(invalid="ignore"):
            size, end = np.abs(terms).sum(axis=1), terms.sum(axis=1)
        whole = (size < _WHOLE) & (terms == np.rint(terms)).all(axis=1)
        slack = np.where(whole, 0.0, size * parts * 2.0**-52)
        ends.append(end + sign * slack)
    return np.stack(ends)


def _total(parts: Float64) -> Float64:
    """Return the sum of magnitudes of each row, rounded up."""
    sums = parts.reshape(len(parts), -1).sum(axis=1)
    return np.asarray(sums * (1 + parts[0].size * 2.0**-52))


def _least_granule(value: Float64, granule: Float64) -> Float64:
    """Return the smallest lowest bit of the products of each row."""
    parts = granules(value) * granule
    return np.asarray(parts.reshape(len(parts), -1).min(axis=1))


def _in_blocks(function: Callable[..., Float64], weights: Float64, *others: Float64) -> Float64:
    """Return a function of rows of weights, of so few at once that they stay in the cache.

    The last axis of its result are the rows. ``others`` are arrays by tap, for each row or for all.
    """
    rows = len(weights)
    step = max(1, _BLOCK // max(1, weights[0].size))
    blocks = [slice(start, start + step) for start in range(0, rows, step)]
    parts = [
        function(weights[block], *(each[block] if len(each) == rows else each for each in others))
        for block in blocks
    ]
    return np.concatenate(parts, axis=-1)


_BLOCK = 1 << 15
"""Number of weights that are looked at at once."""


_MOST_WINDOWS = 1 << 16


def is_never_empty(node: ir.Node, sizes: Sequence[object], *, trusts_ceil: bool = False) -> bool:
    """Return whether no window of a pool of data of some ``sizes`` lies in the padding alone.

    A window of neighbouring elements contains data if the padding at either end is smaller than the
    window. Windows with gaps are examined one by one. Versions and runtimes disagree on which
    windows ``ceil_mode`` adds: with ``trusts_ceil`` only those that begin before the padding at the
    end, as ONNX defines it; otherwise the result is False if it is set.
    """
    ints = node.attributes.get_ints
    kernel = ints("kernel_shape", ())
    rank = len(kernel)
    if not rank or len(sizes) != rank + 2 or 0 in sizes:
        return False
    strides, dilations = ints("strides", (1,) * rank), ints("dilations", (1,) * rank)
    pads = tuple(ints("pads", (0,) * 2 * rank))
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    is_ceil = node.attributes.get_int("ceil_mode", 0) != 0
    if is_ceil and not (trusts_ceil and set(dilations) == {1}):
        return False
    if (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank) or min(pads) < 0:
        return False
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return set(dilations) == {1}
    if auto == "VALID":
        return True
    if is_ceil:
        pads = pads[:rank] + (0,) * rank
    return auto == "NOTSET" and all(
        _reaches_data(size, *window)
        for size, window in zip(
            sizes[2:],
            zip(kernel, strides, dilations, pads[:rank], pads[rank:], strict=True),
            strict=True,
        )
    )


def _reaches_data(
    size: object, kernel: int, stride: int, dilation: int, before: int, after: int
) -> bool:
    if not before and not after:
        return True
    if not isinstance(size, int):  # it may be 0; then no window fits into so little padding
        return dilation == 1 and before + after < kernel
    if dilation == 1:
        return before < kernel and after < kernel
    count = (size + before + after - (kernel - 1) * dilation - 1) // stride + 1
    return count <= _MOST_WINDOWS and all(
        any(0 <= window * stride - before + index * dilation < size for index in range(kernel))
        for window in range(count)
    )


RIGHT = Taps(("MatMul",), 1, 0, 0, False)
"""How weights ``[rows, taps]`` are multiplied whose transpose stands right of the data."""


def pointwise_taps(axes: object) -> Taps | None:
    """Return the layout of sums of a matrix whose last axis a Transpose moves after the first.

    These are the sums of a Conv of one place. None for other orders of axes.
    """
    count = len(axes) - len(("batch", "channel")) if isinstance(axes, tuple) else 0
    if count < 1 or axes != (0, count + 1, *range(1, count + 1)):
        return None
    return convolution_taps(ir.Node("", "Conv", [], num_outputs=1), (1,) * count)


def convolution_taps(
    node: ir.Node, kernel: tuple[int, ...], sizes: Sequence[Hashable] = ()
) -> Taps:
    """Return the layout of the sums of a node of the family of Conv or ConvTranspose.

    ``kernel`` has the sizes of its windows, ``sizes`` those of the data that windows move over, to
    which smaller data may broadcast.
    """
    count, attributes = len(kernel), node.attributes
    is_turned = node.op_type == "ConvTranspose"
    groups, pads = attributes.get_int("group", 1), attributes.get_ints("pads", (0,) * 2 * count)
    automatic = attributes.get_string("auto_pad", "NOTSET")
    is_padded = is_turned or any(pads) or automatic not in ("NOTSET", "VALID")
    geometry = (
        "ConvTranspose" if is_turned else "Conv",
        tuple(attributes.get_ints("strides", (1,) * count)),
        tuple(attributes.get_ints("dilations", (1,) * count)),
        tuple(pads),
        automatic,
        groups,
        kernel,
        tuple(attributes.get_ints("output_padding", ())),
        tuple(attributes.get_ints("output_shape", ())),
        tuple(sizes) if is_padded or max(kernel, default=1) > 1 else (),
    )
    return Taps(geometry, groups, count, count, is_padded)


def padded_taps(layout: Taps, padding: object) -> Taps | None:
    """Return the layout of the sums of a Conv of data to which a Pad has added zeros.

    ``layout`` is that of the padded data. ``padding`` is "Pad", the sizes of the data before it,
    and the numbers of zeros, as in ONNX. None for other sums and movements.
    """
    match layout.geometry, padding:
        case (
            ("Conv", strides, dilations, own, ("NOTSET" | "VALID") as mode, *rest, _),
            ("Pad", (_, _, *sizes), tuple() as pads),
        ):
            zeros = np.reshape(pads, (2, -1))
            if (zeros < 0).any() or zeros[:, :2].any():
                return None
            total = zeros[:, 2:].reshape(-1) + (own if mode == "NOTSET" else 0)
            geometry = "Conv", strides, dilations, tuple(total.tolist()), "NOTSET", *rest
            return replace(layout, geometry=(*geometry, tuple(sizes)), is_padded=True)
    return None


def rows_of_transposed(weights: Float64, groups: int) -> Float64:
    """Return the weights of a ConvTranspose, ``[channels, rows of a group, *places]``, by row."""
    channels, rows, *kernel = weights.shape
    parts = weights.reshape(groups, channels // groups, rows, *kernel).swapaxes(1, 2)
    return np.ascontiguousarray(parts).reshape(groups * rows, channels // groups, *kernel)
