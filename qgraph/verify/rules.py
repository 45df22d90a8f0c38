"""Rules of the checker of bounds for single operators: executed and ideal results."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from qgraph.graph.inference.walk import RESHAPING
from qgraph.numerics import Float64
from qgraph.ops.approximation import FLOAT32, multiple_of, rounded, sum_of
from qgraph.ops.moved_elements import MovedElements, Shape
from qgraph.ops.sums_of_products import (
    RIGHT,
    Taps,
    added_up,
    convolution_taps,
    products,
)
from qgraph.verify.ideals import (
    ENDLESS,
    NOTHING,
    WHOLE,
    Basis,
    Executed,
    Ideal,
    changed,
    fixed,
    limited,
    sums,
)
from qgraph.verify.reading import QUANTIZERS, need
from qgraph.verify.traces import ON_CODES, Rule, Trace, precision_of, range_of_codes

ROUNDINGS = QUANTIZERS | ON_CODES | frozenset(WHOLE)


def _product(trace: Trace, node: ir.Node) -> Executed:
    """Return the result of a Conv, MatMul or Gemm."""
    data, weights = map(trace.of, node.inputs[:2])
    biases = [trace.of(node.inputs[2])] if len(node.inputs) > 2 and node.inputs[2] else []
    factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    is_plain = factors == [1.0, 1.0] and node.attributes.get_int("transA", 0) == 0
    need(is_plain, "the checker has no bound for a Gemm with factors")
    weights, layout = _arranged(trace, node, weights)
    for bias in biases:
        is_row = bias.numbers.size == bias.numbers.shape[-1]
        need(is_row, "a bias differs between samples")
    biases = [changed(bias, lambda a: layout.by_row(a.reshape(-1))) for bias in biases]
    return products(sums, data, weights, layout, trace.adding(node), biases=biases)


def _integer_product(trace: Trace, node: ir.Node) -> Executed:
    """Return the codes of a QLinearConv or QLinearMatMul."""
    data, s_a, z_a, weights, s_b, z_b, s_y, z_y = map(trace.of, node.inputs[:8])
    are_single = all(parameter.numbers.size == 1 for parameter in (s_a, z_a, s_y, z_y))
    need(are_single, f"a {node.op_type} with parameters for each row of the data")
    after = weights.numbers.ndim - 1 if node.op_type == "QLinearConv" else 0
    zero = z_b.numbers.reshape((-1, *(1,) * after) if z_b.numbers.size > 1 else ())
    weights, layout = _arranged(trace, node, fixed(weights.numbers - zero))
    biases = []
    if len(node.inputs) > 8:
        biases = [changed(trace.of(node.inputs[8]), lambda a: layout.by_row(a.reshape(-1)))]
    total = products(sums, sum_of(data, z_a, -1.0), weights, layout, None, biases=biases)
    need((total.reach < 2.0**31).all(), "an int32 sum may wrap around")
    s_b = changed(s_b, layout.by_row if s_b.numbers.size > 1 else np.squeeze)
    s_a, s_y = (changed(scale, np.squeeze) for scale in (s_a, s_y))
    steps = trace.over(node, trace.times(node, s_a, s_b), s_y)
    before = trace.times(node, rounded(total, FLOAT32), steps)
    limits = *range_of_codes(node.outputs[0]), z_y.numbers.reshape(())
    return trace.quantized(node, before, "Round", limits)


def _arranged(trace: Trace, node: ir.Node, weights: Executed) -> tuple[Executed, Taps]:
    """Return weights as ``[rows, taps, *places]``, and the layout of the sums."""
    if node.op_type.endswith("Conv"):
        sizes = trace.shape(node.inputs[0])[2:]
        return weights, convolution_taps(node, weights.numbers.shape[2:], sizes)
    is_matrix = weights.numbers.ndim == 2
    need(is_matrix, "the checker has no bound for weights of other than two axes")
    is_turned = node.attributes.get_int("transB", 0)
    return weights if is_turned else changed(weights, np.transpose), RIGHT


def _add(trace: Trace, node: ir.Node) -> Executed:
    a, b = map(trace.of, node.inputs)
    return trace.sum(node, a, b, -1.0 if node.op_type == "Sub" else 1.0)


def _multiply(trace: Trace, node: ir.Node) -> Executed:
    a, b = map(trace.of, node.inputs)
    return trace.times(node, *((b, a) if b.value is None else (a, b)))


def _normalize(trace: Trace, node: ir.Node) -> Executed:
    """Return a BatchNormalization, computed in any order of its operations."""
    x, *parameters = map(trace.of, node.inputs)
    is_plain = not node.attributes.get_int("training_mode", 0) and len(node.outputs) == 1
    need(is_plain, "a BatchNormalization in training")
    after = len(trace.shape(node.inputs[0])) - 2
    constants = [p.meant.offset for p in parameters if p.value is not None]
    g, b, m, v = (array.reshape(-1, *(1,) * after) for array in constants)
    v = v + float(np.float32(node.attributes.get_float("epsilon", 1e-5)))
    need((v > 0).all(), "a variance is not positive")
    factor, unit = g / np.sqrt(v), precision_of(node)
    exact = sum_of(multiple_of(x, factor, factor), fixed(b - m * factor))
    size, share = np.abs(m * factor) + np.abs(b), 8 * unit.unit
    meant = replace(exact.meant, size=exact.meant.size + size, depth=exact.meant.depth + 8)
    absolute = exact.absolute * (1 + share) + 3 * share * size + 8 * unit.tiny
    relative = exact.relative + share
    return rounded(
        replace(exact, meant=meant, absolute=absolute, relative=relative, unit=None), unit
    )


def _hard_sigmoid(trace: Trace, node: ir.Node) -> Executed:
    read = node.attributes.get_float
    numbers = np.array([read("alpha", 0.2), read("beta", 0.5)], np.float32).astype(np.float64)
    factor, shift = map(fixed, numbers.reshape(2, 1))
    line = trace.sum(node, trace.times(node, trace.of(node.inputs[0]), factor), shift)
    return limited(line, NOTHING, np.ones(()))


def _quant(trace: Trace, node: ir.Node) -> Executed:
    """Return the result of a Quant, or of a BipolarQuant of constants."""
    x, scale, *others = map(trace.of, node.inputs)
    if node.op_type == "BipolarQuant":
        return trace.times(node, fixed(np.where(x.numbers >= 0, 1.0, -1.0)), scale)
    zero, bits = others
    mode = str(node.attributes.get_string("rounding_mode", "ROUND")).capitalize()
    signed, narrow = (node.attributes.get_int(n, d) for n, d in (("signed", 1), ("narrow", 0)))
    is_known = mode in WHOLE and (bits.numbers >= 2).all()
    need(is_known, f"the checker has no bound for {node.op_type} of this rounding")
    half = 2.0 ** (bits.numbers - 1)
    low, high = (narrow - half, half - 1) if signed else (0 * half, 2 * half - 1 - narrow)
    before = limited(trace.sum(node, trace.over(node, x, scale), zero), low, high)
    codes = trace.quantized(node, before, mode, (low, high, NOTHING))
    return trace.times(node, trace.sum(node, codes, zero, -1.0), scale)


def _linear(trace: Trace, node: ir.Node) -> Executed:
    """Return the codes of a QuantizeLinear, or the numbers of a DequantizeLinear."""
    rank, ints = len(trace.shape(node.inputs[0])), node.attributes.get_int
    is_plain = not (ints("precision", 0) or ints("block_size", 0))
    parameters = []
    for value in (*node.inputs[1:], None)[:2]:
        array = NOTHING if value is None else trace.of(value).numbers
        need(is_plain and array.ndim <= min(rank, 1), f"a {node.op_type} of blocks")
        after = rank - 1 - ints("axis", 1) % max(rank, 1)
        parameters.append(fixed(array.reshape((-1, *(1,) * after) if array.size > 1 else ())))
    x, (scale, zero) = trace.of(node.inputs[0]), parameters
    if node.op_type == "DequantizeLinear":
        return trace.times(node, trace.sum(node, x, zero, -1.0), scale)
    limits = *range_of_codes(node.outputs[0]), zero.numbers
    return trace.quantized(node, trace.over(node, x, scale), "Round", limits)


def _fake_quantize(trace: Trace, node: ir.Node) -> Executed:
    x, low, high, bottom, top = map(trace.of, node.inputs)
    last = fixed(np.asarray(node.attributes.get_int("levels", 0) - 1.0))
    need((low.numbers < high.numbers).all(), "a FakeQuantize without an input range")
    span, step = (trace.sum(node, *ends, -1.0) for ends in ((high, low), (top, bottom)))
    share = trace.over(node, trace.sum(node, x, low, -1.0), span)
    limits = NOTHING, last.numbers, NOTHING
    codes = trace.quantized(node, trace.times(node, share, last), "Round", limits)
    return trace.sum(node, trace.times(node, trace.over(node, codes, last), step), bottom)


def _move(trace: Trace, node: ir.Node) -> Executed:
    """Return data with its elements in other places."""
    x = trace.of(node.inputs[0])
    if node.op_type == "Identity":
        return x
    sizes = trace.shape(node.outputs[0])
    before = Shape(trace.shape(node.inputs[0]), trace.primes)
    if node.op_type == "Transpose":
        axes = node.attributes.get_ints("perm", range(len(sizes))[::-1])
        movement = before.turned(before.sizes[-1], axes)
        return changed(x, lambda a: a.transpose(axes)) if x.is_constant else moved(movement, x)
    movement = before.reshaped(sizes)
    if x.is_constant:
        return changed(x, lambda array: array.reshape(movement.after.lengths))
    return moved(movement, x)


def moved(movement: MovedElements, x: Executed) -> Executed:
    """Return moved data."""
    meant = _rearranged(x.meant, movement.of, partial(_taken, movement))
    low, high, absolute, relative = map(movement.of, (x.low, x.high, x.absolute, x.relative))
    unit = None if x.unit is None else movement.of(x.unit)
    return Executed(meant, low, high, absolute, relative, unit, overflow=x.overflow)


def _rearranged(
    function: Ideal, change: Callable[[Float64], Float64], part: Callable[[Basis, Ideal], Basis]
) -> Ideal:
    """Return a function of other elements, by a change of arrays and a part of each basis."""
    terms = []
    for factor, basis in function.terms:
        inner = replace(Ideal.of(basis), depth=function.depth)
        terms.append((change(factor), part(basis, inner)))
    return Ideal(tuple(terms), change(function.offset), change(function.size), function.depth)


def _taken(movement: MovedElements, basis: Basis, inner: Ideal) -> Basis:
    """Return moved elements of a basis."""
    ends = movement.of(basis.low), movement.of(basis.high)
    if basis.inner is not None and basis.movement is not None:
        inner, movement = basis.inner, basis.movement.then(movement)
    if movement.is_nothing:
        return inner.terms[0][1]
    return Basis(movement.kind, *ends, inner, movement=movement)


def _mean(trace: Trace, node: ir.Node) -> Executed:
    """Return means over whole images, or windows without padding, of data with one scale."""
    x, shape = trace.of(node.inputs[0]), trace.shape(node.inputs[0])
    sizes, windows = list(shape[2:]), list(node.attributes.get_ints("kernel_shape", shape[2:]))
    identity: tuple[Hashable, ...] = "mean", len(shape)
    ints, text = node.attributes.get_ints, node.attributes.get_string
    is_padded = any(ints("pads", ())) or text("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    need(not is_padded and not node.attributes.get_int("ceil_mode", 0), "a padded AveragePool")
    if windows != sizes:
        identity = *identity, *((n, repr(a.value)) for n, a in sorted(node.attributes.items()))
    arrays = [*(factor for factor, _ in x.meant.terms), x.low, x.high, x.absolute, x.relative]
    is_even = all(set(a.shape[2 - len(shape) :]) <= {1} for a in (*arrays, x.meant.offset))
    numbers = [size for size in windows if isinstance(size, int)]
    is_known = len(numbers) == len(windows) and is_even
    need(is_known, "a mean of data with several scales, or of unknown size")
    meant = _rearranged(
        x.meant,
        lambda array: array.reshape(()) if array.size == 1 else array,
        lambda basis, inner: Basis(identity, basis.low, basis.high, inner),
    )
    exact, count = replace(x, meant=meant, relative=NOTHING), float(math.prod(numbers))
    total = replace(exact, absolute=count * x.error)
    total = added_up(total, np.asarray(count), count * x.reach, trace.adding(node))
    quotient = replace(exact, absolute=total.absolute / count, unit=None)
    return rounded(quotient, trace.adding(node), times=2)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Conv", "MatMul", "Gemm"), _product),
    **dict.fromkeys(ON_CODES, _integer_product),
    **dict.fromkeys(("Add", "Sub", "Sum"), _add),
    **dict.fromkeys(("Relu", "Clip"), lambda t, n: limited(t.of(n.inputs[0]), *t.limits(n))),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool"), _mean),
    **dict.fromkeys(RESHAPING | {"Identity", "Transpose"}, _move),
    **dict.fromkeys(
        WHOLE,
        lambda t, n: t.quantized(n, t.of(n.inputs[0]), n.op_type, (-ENDLESS, ENDLESS, NOTHING)),
    ),
    **dict.fromkeys(("Quant", "IntQuant", "BipolarQuant"), _quant),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _linear),
    "FakeQuantize": _fake_quantize,
    "Mul": _multiply,
    "Div": lambda t, n: t.over(n, *map(t.of, n.inputs)),
    "BatchNormalization": _normalize,
    "HardSigmoid": _hard_sigmoid,
}
