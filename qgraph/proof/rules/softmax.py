"""Softmax, LogSoftmax and ReduceLogSumExp.

An error e of the elements changes a Softmax by at most ``e / 2``, its logarithm by ``2 e``, and the
logarithm of the sum by e. The largest of n elements is subtracted first, so the sum of their powers
lies between 1 and n. The absolute and the relative error of each power is at most
:data:`FUNCTION_ERROR`, f, and the relative error of the sum is at most s::

    s = f + n f + n u          Softmax: (2 f + s) / (1 - s) + 2 u
"""

from __future__ import annotations

import math

import numpy as np

from qgraph.conditions import CURVES_WITHIN, FUNCTION_ERROR, LARGEST_FIRST
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.events import Operand
from qgraph.proof.bounds.quantity import Quantity
from qgraph.proof.bounds.rule import NodeCall, bound_rule, shape_of
from qgraph.proof.rules.means import reduced_axes, without_axes
from qgraph.reasons import NO_BOUND, OUT_OF_RANGE, Undecidable

OF_ONE_AXIS = 13
"""First opset in which Softmax runs along one axis; before, it runs along all axes from one on."""


@bound_rule("Softmax", "LogSoftmax")
def softmax(call: NodeCall) -> Operand:
    """Powers of e divided by their sum, or the logarithm of that."""
    is_new = call.imports.get("", 0) >= OF_ONE_AXIS
    axis = call.whole("axis", -1 if is_new else 1)
    return softmax_of(call, call.node.op_type, call.quantity(0), axis, is_new=is_new)


def softmax_of(call: NodeCall, name: str, x: Quantity, axis: int, *, is_new: bool) -> Quantity:
    """Return the Softmax or LogSoftmax of numbers of the shape of the first operand.

    Args:
        call: the node.
        name: Softmax or LogSoftmax.
        x: the numbers.
        axis: the axis of the sums, or the first of them.
        is_new: whether the sums run along one axis, and not along all that follow it.
    """
    axis = call.place(axis, call.rank())
    axes = [axis] if is_new else list(range(axis, call.rank()))
    count = call.most(axes)
    width, share = _width(x), _share(call, count)
    key = name, shape_of(call.value(0)), axis, is_new or axis == call.rank() - 1
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
    result = Quantity(Combination.of(atom), low, high, np.asarray(off))
    return result if call.whole("keepdims", 1) == 1 else without_axes(call, result, axes)


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
    """Return the error of the logarithm of the sum, rounded."""
    return share / (1 - share) + FUNCTION_ERROR * (1 + math.log(count))
