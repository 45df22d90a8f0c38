"""Normalizations, Softmax, LogSoftmax and ReduceLogSumExp.

Normalizations use constants (BatchNormalization), or mean and variance of the data. With n
elements, of magnitude at most X, let A be the largest error of their mean, and s the smallest
``sqrt(variance + epsilon)``, which is at least ``sqrt(epsilon)``. The normalized elements
``(x - mean) / s`` are at most ``sqrt(n)``. As functions of the elements their slope is at most
``sqrt(n) / s``: the derivative is a projection, divided by s. If a mean is off by a, the mean of
squared differences from it is larger by a**2. So, with u the unit of rounding::

    error <= sqrt(n) / s * error of x + A / s + sqrt(n) * ((n + 6) u + A**2 / epsilon + 6 u)

with a factor of 1.1 for products of small terms, all of which must be below 1/16.

An error e of the elements changes a Softmax by at most ``e / 2``, its logarithm by ``2 e``, and the
logarithm of the sum by e. The largest of n elements is subtracted first, so the sum of their powers
lies between 1 and n. The absolute and the relative error of each power is at most
:data:`FUNCTION_ERROR`, f, and the relative error of the sum is at most s::

    s = f + n f + n u          Softmax: (2 f + s) / (1 - s) + 2 u

Elements to which a mask adds minus infinity, or a number far below the others, count as left out:
their powers are 0.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import onnx_ir as ir

from qgraph.conditions import CURVES_WITHIN, FUNCTION_ERROR, LARGEST_FIRST, VARIANCE_OF_DIFFERENCES
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.graph.scopes import producer_of
from qgraph.numerics import Array
from qgraph.ops.approximation import FLOAT32, multiple_of, rounded, sum_of
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.evaluate import traced
from qgraph.proof.bounds.quantity import Operand, Quantity, of_constant
from qgraph.proof.bounds.rule import NodeCall, bound_rule, shape_of, sizes_of
from qgraph.proof.rules.sums import reduced_axes, summed, without_axes
from qgraph.reasons import AT_RUN_TIME, NO_BOUND, OUT_OF_RANGE, Undecidable

_IN_FLOAT32 = frozenset({"LayerNormalization", "RMSNormalization"})
"""Operators that compute mean and variance in float32, unless an attribute says otherwise."""

_SMALL = 1 / 16
_HIDDEN = 1000.0
"""How far below other elements the power of an element is 0, even in float64."""
_PRODUCTS = 1.1


@bound_rule("BatchNormalization")
def batch_normalization(call: NodeCall) -> Operand:
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta``, in any order of operations.

    Seven operations at most, on numbers no larger than ``|x f|``, ``|mean f|`` and ``|beta|``.
    """
    if call.whole("training_mode") or len(call.node.outputs) > 1:
        raise call.refusal("training")
    x = call.quantity(0)
    parts = [_of_channels(call, index) for index in range(1, 5)]
    g, b, m, v = (part.meant.offset for part in parts)
    epsilon = float(np.float32(call.number("epsilon", 1e-5)))
    if not ((v >= 0) & (v + epsilon > 0)).all():
        raise call.refusal("a variance that is not positive")
    factor = g / np.sqrt(v + epsilon)
    exact = sum_of(multiple_of(x, factor, factor), of_constant(b - m * factor, b - m * factor))
    unit, tiny = call.tracer.arithmetic.unit, call.tracer.arithmetic.tiny
    share = 8 * unit
    size = np.abs(m * factor) + np.abs(b)
    meant = Combination(exact.meant.terms, exact.meant.offset, exact.meant.size + size)
    return call.tracer.rounded(
        replace(
            exact,
            meant=meant,
            absolute=exact.absolute * (1 + share) + share * 3 * size + 8 * tiny,
            relative=exact.relative + share,
            unit=None,
        )
    )


def _of_channels(call: NodeCall, index: int) -> Quantity:
    """Return a constant with one number per channel, broadcast to the data ``[N, C, ...]``."""
    parameter = call.constant(index)
    if parameter is None:
        raise Undecidable(AT_RUN_TIME(f"a parameter of {call.node.op_type} is missing"))
    shape = (-1, *(1,) * (call.rank() - 2))
    parts = np.broadcast_to(parameter.meant.offset, parameter.numbers.shape)
    return of_constant(parameter.numbers.reshape(shape), parts.reshape(shape))


@bound_rule("LayerNormalization", OpKey("", "SimplifiedLayerNormalization"))
@bound_rule(OpKey(MICROSOFT, "SimplifiedLayerNormalization"), "RMSNormalization")
def layer_normalization(call: NodeCall) -> Operand:
    """Elements normalized over the last axes, times a scale, plus a bias."""
    rank = call.rank()
    axes = list(range(call.place(call.whole("axis", -1), rank), rank))
    is_centred = call.node.op_type == "LayerNormalization"
    y = normalized(call, call.quantity(0), axes, is_centred=is_centred)
    scaled = call.tracer.Mul(y, call.operand(1))
    return scaled if call.value(2) is None else call.tracer.Add(scaled, call.operand(2))


@bound_rule(OpKey(MICROSOFT, "SkipLayerNormalization"))
@bound_rule(OpKey(MICROSOFT, "SkipSimplifiedLayerNormalization"))
def skip_layer_normalization(call: NodeCall) -> Operand:
    """The normalized sum of two tensors and a bias."""
    is_centred = call.node.op_type == "SkipLayerNormalization"
    indices = [0, 1, 4 if is_centred else 3]
    present = [index for index in indices if call.value(index) is not None]
    total = summed(call.tracer, [call.operand(index) for index in present])
    x, axes = call.tracer.quantity(total), [call.rank() - 1]
    y = normalized(call, x, axes, is_centred=is_centred)
    scaled = call.tracer.Mul(y, call.operand(2))
    has_beta = is_centred and call.value(3) is not None
    return call.tracer.Add(scaled, call.operand(3)) if has_beta else scaled


@bound_rule("InstanceNormalization", "GroupNormalization")
def group_normalization(call: NodeCall) -> Operand:
    """Elements normalized over a channel or a group, times a scale, plus a bias."""
    rank = call.rank()
    axes, groups = list(range(2, rank)), 1
    if call.node.op_type == "GroupNormalization":
        axes, groups = list(range(1, rank)), call.whole("num_groups", 1)
    scale, bias = (_of_channels(call, index) for index in (1, 2))
    if scale.numbers.size not in (1, sizes_of(call.value(0), [1])[0]):
        raise call.refusal("a scale for each group")
    y = normalized(call, call.quantity(0), axes, is_centred=True, groups=groups)
    return call.tracer.Add(call.tracer.Mul(y, scale), bias)


@bound_rule("Div")
def division(call: NodeCall) -> Operand:
    """Div; a division of data by its own root mean square is a normalization."""
    statistics = _root_mean_square(call)
    if statistics is None:
        return traced(call)
    mean, epsilon = statistics
    axes = reduced_axes(mean, mean.constant(1))
    return normalized(call, call.quantity(0), axes, is_centred=False, epsilon=epsilon)


def _root_mean_square(call: NodeCall) -> tuple[NodeCall, float] | None:
    """Return the mean and the epsilon of a divisor ``sqrt(mean(x * x) + epsilon)`` of x."""
    root = producer_of(call.value(1), "Sqrt")
    total = None if root is None else producer_of(root.inputs[0], "Add")
    if total is None:
        return None
    for value, other in (total.inputs, total.inputs[::-1]):
        mean, number = producer_of(value, "ReduceMean"), call.array(other)
        square = None if mean is None else mean.inputs[0]
        power = producer_of(square, "Pow") or producer_of(square, "Mul")
        if mean is None or power is None or number is None or number.size != 1:
            continue
        base, factor = power.inputs
        exponent = call.array(factor) if power.op_type == "Pow" else None
        is_square = factor is base or (exponent is not None and bool((exponent == 2).all()))
        if is_square and base is call.value(0):
            return replace(call, node=mean), float(number.reshape(()))
    return None


def normalized(
    call: NodeCall,
    x: Quantity,
    axes: Sequence[int],
    *,
    is_centred: bool,
    groups: int = 1,
    epsilon: float | None = None,
) -> Quantity:
    """Return elements, minus their mean if ``is_centred``, divided by their root mean square.

    The axes are counted from the first; their elements are divided into ``groups``. Raises
    Undecidable if rounding may change the variance by much of epsilon.
    """
    if epsilon is None:
        default = 1e-12 if call.node.op_type.startswith("Skip") else 1e-5
        epsilon = float(np.float32(call.number("epsilon", default)))
    sizes = sizes_of(call.value(0), axes)
    count = math.prod(sizes) // groups
    if epsilon <= 0 or not np.isfinite(x.reach).all():
        raise call.refusal("an epsilon that is not positive, or data of unknown range")
    arithmetic = call.tracer.arithmetic
    is_stashed = call.node.op_type in _IN_FLOAT32 and call.whole("stash_type", 1) == 1
    inner = FLOAT32 if is_stashed else arithmetic
    unit, reach = inner.unit, float(np.max(x.reach))
    share = count * unit / (1 - count * unit) + 2 * unit if count * unit < _SMALL else 1.0
    mean = share * reach + count * inner.tiny if is_centred else 0.0
    off = (count + 6) * unit + mean**2 / epsilon + inner.tiny / epsilon
    if max(share, off) >= _SMALL:
        raise Undecidable(
            NO_BOUND(f"{call.node.op_type}: rounding may change a variance by much of its epsilon")
        )
    if is_centred:
        call.tracer.atoms.conditions.add(VARIANCE_OF_DIFFERENCES)
    largest, least = math.sqrt(count), math.sqrt(epsilon)
    passed_on = largest / least * float(np.max(x.error))
    error = passed_on + _PRODUCTS * (mean / least + largest * (off + 6 * unit))
    places = tuple(axis - call.rank() for axis in axes)
    key = is_centred, places, tuple(sizes), groups, epsilon
    ends = np.asarray(-largest * _PRODUCTS), np.asarray(largest * _PRODUCTS)
    slope = largest / least
    atom = call.tracer.atoms.make("normalized", key, (x.meant,), ends, slope=slope)
    exact = Quantity(Combination.of(atom), *ends, np.asarray(error))
    return rounded(exact, arithmetic) if arithmetic.unit > unit else exact


OF_ONE_AXIS = 13
"""First opset in which Softmax runs along one axis; before, it runs along all axes from one on."""


@bound_rule("Softmax", "LogSoftmax")
def softmax(call: NodeCall) -> Operand:
    """Powers of e divided by their sum, or the logarithm of that."""
    is_new = call.imports.get("", 0) >= OF_ONE_AXIS
    axis = call.whole("axis", -1 if is_new else 1)
    if call.node.op_type == "Softmax" and (masked := _masked(call, axis, is_new=is_new)):
        x, mask = masked
        return softmax_of(call, "Softmax", x, axis, is_new=is_new, mask=mask)
    return softmax_of(call, call.node.op_type, call.quantity(0), axis, is_new=is_new)


def _masked(call: NodeCall, axis: int, *, is_new: bool) -> tuple[Quantity, Hashable] | None:
    """Return the data behind a constant mask, and a key of the mask; None for other data.

    A mask leaves some elements of each row as they are. It lowers the others, or replaces them, so
    that their powers are 0.
    """
    for value, is_hidden, low in _masks(call):
        if value is None or shape_of(value) != shape_of(call.value(0)):
            continue
        x = call.tracer.quantity(call.of(value))
        reach = float(np.max(np.maximum(np.abs(x.low), np.abs(x.high)) + x.error))
        hidden, lows = np.broadcast_arrays(is_hidden, low)
        rows = hidden.reshape((1,) * (call.rank() - hidden.ndim) + hidden.shape)
        axes = range(call.place(axis, call.rank()), call.rank())
        is_whole = rows.all(axis=tuple(axes[:1] if is_new else axes)).any()
        if (lows[hidden] < -_HIDDEN - 2 * reach).all() and not is_whole:
            return x, (hidden.shape, hidden.tobytes())
    return None


def _masks(call: NodeCall) -> Iterator[tuple[ir.Value | None, Array, Array]]:
    """Yield data that may be masked, the elements that would be, and what becomes of them."""
    maker = producer_of(call.value(0), "Add", "Where")
    if maker is not None and maker.op_type == "Add":
        for value, other in permutations(maker.inputs):
            if (low := call.array(other)) is not None:
                yield value, low != 0, low
    elif maker is not None and (chosen := call.array(maker.inputs[0])) is not None:
        for value, other, hidden in zip(
            maker.inputs[1:], maker.inputs[:0:-1], (~chosen, chosen), strict=True
        ):
            if (low := call.array(other)) is not None:
                yield value, hidden, low


def softmax_of(
    call: NodeCall, name: str, x: Quantity, axis: int, *, is_new: bool, mask: Hashable = None
) -> Quantity:
    """Return the Softmax or LogSoftmax of numbers of the shape of the first operand.

    The sums run along one axis if ``is_new``, otherwise along all from ``axis`` on. A ``mask`` is a
    key of the elements that are left out.
    """
    axis = call.place(axis, call.rank())
    axes = [axis] if is_new else list(range(axis, call.rank()))
    count = call.most(axes)
    width, share = _width(x), _share(call, count)
    key = name, shape_of(call.value(0)), axis, is_new or axis == call.rank() - 1, mask
    unit = call.tracer.arithmetic.unit
    error = float(np.max(x.error)) + unit * width  # the difference from the largest is rounded
    if name == "Softmax":
        ends = np.zeros(()), np.ones(())
        off = error / 2 + (2 * FUNCTION_ERROR + share) / (1 - share) + 2 * unit
        slope = 0.5
    else:
        lowest = -(width + math.log(count)) * (1 + 2.0**-40)
        ends = np.asarray(lowest), np.zeros(())
        off = 2 * error + _of_logarithm(share, count) + 2 * unit * (1 - lowest)
        slope = 2.0
    atom = call.tracer.atoms.make("softmax", key, (x.meant,), ends, slope=slope)
    return Quantity(Combination.of(atom), *ends, np.asarray(off + call.tracer.arithmetic.tiny))


@bound_rule("ReduceLogSumExp")
def log_sum_exp(call: NodeCall) -> Operand:
    """The logarithm of the sum of powers of e."""
    axes = reduced_axes(call, call.constant(1))
    count = call.most(axes)
    x = call.quantity(0)
    width, share = _width(x), _share(call, count)
    slack = 2.0**-40 * (width + 1)
    low, high = np.asarray(x.low.min() - slack), np.asarray(x.high.max() + math.log(count) + slack)
    unit, reach = call.tracer.arithmetic.unit, float(np.max(x.reach))
    off = float(np.max(x.error)) + unit * width + _of_logarithm(share, count)
    off += 2 * unit * (reach + math.log(count) + 1)
    key = shape_of(call.value(0)), tuple(axes)
    atom = call.tracer.atoms.make("log of sum", key, (x.meant,), (low, high))
    return without_axes(call, Quantity(Combination.of(atom), low, high, np.asarray(off)), axes)


def _width(x: Quantity) -> float:
    """Return the largest difference of two executed elements."""
    width = float(np.max(x.high + x.error) - np.min(x.low - x.error))
    if not math.isfinite(width):
        raise Undecidable(OUT_OF_RANGE("the range of the data of a Softmax is not known"))
    return width


def _share(call: NodeCall, count: int) -> float:
    """Return the relative error of the sum of powers."""
    call.tracer.atoms.conditions |= {CURVES_WITHIN, LARGEST_FIRST}
    unit = call.tracer.arithmetic.unit
    off = FUNCTION_ERROR + unit
    share = off + count * off + count * unit * (1 + count * unit)
    if share >= 1 / 4:
        name = call.tracer.arithmetic.name
        raise Undecidable(NO_BOUND(f"{call.node.op_type} of {count} elements in {name}"))
    return share


def _of_logarithm(share: float, count: int) -> float:
    return share / (1 - share) + FUNCTION_ERROR * (1 + math.log(count))
