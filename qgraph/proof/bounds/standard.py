"""Standard operators on real numbers that are neither primitives nor products, as quantities."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Float64
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.movements import changed, shape_of
from qgraph.proof.bounds.quantity import Quantity, constant, multiple_of, of_constant, sum_of
from qgraph.proof.bounds.sums import mean_of
from qgraph.proof.bounds.tracer import Operand, QuantityTracer
from qgraph.proof.functions.expression import Undecidable
from qgraph.reasons import AT_RUN_TIME, NO_BOUND

Of = Callable[[ir.Value], Operand]


def _clip(node: ir.Node, tracer: QuantityTracer, of: Of) -> Operand:
    x = of(_first(node))
    names = ("min", "max")
    result: Operand = x
    for name, operator, place in zip(names, ("Max", "Min"), (1, 2), strict=True):
        end = node.inputs[place] if len(node.inputs) > place else None
        if end is not None:
            number = tracer.quantity(of(end))
        elif name in node.attributes:
            number = constant(np.float32(node.attributes.get_float(name, 0.0)))
        else:
            continue
        if number.value is None:
            raise Undecidable(AT_RUN_TIME("an end of a Clip is not constant"))
        result = getattr(tracer, operator)(result, number)
    return result


def _first(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    if value is None:
        raise Undecidable(NO_BOUND(f"{node.op_type} without data has no bound"))
    return value


def _batch_normalization(node: ir.Node, tracer: QuantityTracer, of: Of) -> Operand:
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta``, in any order of operations.

    Seven operations at most, on numbers no larger than ``|x f|``, ``|mean f|`` and ``|beta|``.
    """
    x, gamma, beta, mean, variance = (
        tracer.quantity(of(value)) for value in node.inputs if value is not None
    )
    if node.attributes.get_int("training_mode", 0) or len(node.outputs) > 1:
        raise Undecidable(NO_BOUND("a BatchNormalization in training has no bound"))
    rank = _rank(_first(node))
    parts = [p.meant.offset for p in (gamma, beta, mean, variance) if p.value is not None]
    if len(parts) < len("gbmv"):
        raise Undecidable(AT_RUN_TIME("a parameter of BatchNormalization is not constant"))
    g, b, m, v = (part.reshape(-1, *(1,) * (rank - 2)) for part in parts)
    epsilon = float(np.float32(node.attributes.get_float("epsilon", 1e-5)))
    if not ((v >= 0) & (v + epsilon > 0)).all():
        raise Undecidable(NO_BOUND("the variance of a BatchNormalization is not positive"))
    factor = g / np.sqrt(v + epsilon)
    exact = sum_of(multiple_of(x, factor, factor), of_constant(b - m * factor, b - m * factor))
    unit, tiny = tracer.arithmetic.unit, tracer.arithmetic.tiny
    share = 8 * unit
    size = np.abs(m * factor) + np.abs(b)
    meant = Combination(exact.meant.terms, exact.meant.offset, exact.meant.size + size)
    return tracer.rounded(
        replace(
            exact,
            meant=meant,
            absolute=exact.absolute * (1 + share) + share * 3 * size + 8 * tiny,
            relative=exact.relative + share,
            unit=None,
        )
    )


def _rank(value: ir.Value) -> int:
    if value.shape is None:
        raise Undecidable(AT_RUN_TIME(f"the rank of {value.name!r} is not known"))
    return len(value.shape)


def _mean(node: ir.Node, tracer: QuantityTracer, of: Of) -> Operand:
    """Means over whole axes: GlobalAveragePool, ReduceMean."""
    value = _first(node)
    x, rank = tracer.quantity(of(value)), _rank(value)
    if node.op_type == "GlobalAveragePool":
        axes = list(range(2, rank))
    else:
        stated = of(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
        if isinstance(stated, Quantity) and stated.value is not None:
            axes = [int(a) for a in stated.value.reshape(-1)]
        else:
            axes = list(node.attributes.get_ints("axes", tuple(range(rank))))
    shape = shape_of(value)
    sizes = [shape[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        raise Undecidable(AT_RUN_TIME("the number of elements of a mean is not known"))
    places = sorted(axis % rank - rank for axis in axes)
    _expect_alike(x, places)
    count = math.prod(sizes)
    result = mean_of(tracer.atoms, x, ("mean", *places), count, tracer.arithmetic)
    if node.op_type == "GlobalAveragePool" or node.attributes.get_int("keepdims", 1) == 1:
        return result
    return changed(
        tracer.atoms,
        result,
        ("Reshape", shape_of(node.outputs[0])),
        lambda array: _without(array, places),
    )


def _without(array: Float64, places: list[int]) -> Float64:
    """Return an array without axes, counted from the last, in which it has one element."""
    return np.squeeze(array, tuple(place for place in places if -place <= array.ndim))


def _average_pool(node: ir.Node, tracer: QuantityTracer, of: Of) -> Operand:
    """Means of windows; padding counts as zeros, or not at all."""
    value = _first(node)
    x, rank = tracer.quantity(of(value)), _rank(value)
    sizes = node.attributes.get_ints("kernel_shape", ())
    has_zeros = bool(node.attributes.get_int("count_include_pad", 0))
    if has_zeros and x.meant.offset.any():
        raise Undecidable(NO_BOUND("an AveragePool of shifted codes and padding has no bound"))
    names = sorted(name for name in node.attributes if name != "ceil_mode")
    geometry = tuple((name, repr(node.attributes[name].value)) for name in names)
    ceil = node.attributes.get_int("ceil_mode", 0)
    _expect_alike(x, list(range(2 - rank, 0)))
    return mean_of(
        tracer.atoms,
        x,
        ("AveragePool", *geometry, ceil),
        math.prod(sizes),
        tracer.arithmetic,
        has_zeros=has_zeros,
    )


def _expect_alike(x: Quantity, places: list[int]) -> None:
    """Check that numbers do not differ along the axes of a mean."""
    arrays = [c for c, _ in x.meant.terms] + [x.low, x.high, x.absolute, x.meant.offset]
    if any(_varies(array, places) for array in arrays):
        raise Undecidable(NO_BOUND("a mean of data with several scales has no bound"))


def _varies(array: Float64, places: list[int]) -> bool:
    return any(-place <= array.ndim and array.shape[place] > 1 for place in places)


def _sum(node: ir.Node, tracer: QuantityTracer, of: Of) -> Operand:
    """Sum of tensors, element by element."""
    operands = [of(value) for value in node.inputs if value is not None]
    if len(operands) > len("ab"):
        raise Undecidable(NO_BOUND("a Sum of more than two tensors has no bound"))
    result: Operand = operands[0] if len(operands) == 1 else tracer.Add(*operands)
    return result


STANDARD: dict[str, Callable[[ir.Node, QuantityTracer, Of], Operand]] = {
    "Clip": _clip,
    "BatchNormalization": _batch_normalization,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _mean,
    "ReduceMean": _mean,
    "Sum": _sum,
}
