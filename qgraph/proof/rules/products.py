"""Sums of products: Conv, ConvTranspose, Gemm, MatMul, MatMulNBits, Einsum.

The product of two tensors of data is an atom of both operands. Their factors are its coefficient,
so the atom does not change if scales are merged into other nodes.

Source: ONNX Conv, ConvTranspose, Einsum, Gemm, MatMul; FusedConv, FusedGemm and FusedMatMul as in
ONNX Runtime's documentation of its own operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qgraph.errors import UnsupportedError
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.numerics import Float64
from qgraph.ops.approximation import FLOAT32, SLACK, granules, multiple_of, product, sum_of
from qgraph.ops.kernels.mat_mul_n_bits import ROUNDS_DATA, Weights
from qgraph.ops.sums_of_products import RIGHT, Taps, added_up, convolution_taps, rows_of_transposed
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.moved_elements import mapped
from qgraph.proof.bounds.quantity import Operand, Quantity, of_constant, stored
from qgraph.proof.bounds.rule import NodeCall, bound_rule, shape_of, sizes_of
from qgraph.proof.rules.curves import applied
from qgraph.proof.rules.movements import transposed
from qgraph.proof.rules.sums import sum_of_products

LEFT = Taps(("MatMul", "left"), 1, 1, 1, False)
"""Layout of products in which the weights are the left factor."""

_ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid")

_DECODING = 2
"""Roundings of a term if blocks are scaled after they are added."""


@bound_rule("Conv", "ConvTranspose", OpKey(MICROSOFT, "FusedConv"))
def convolution(call: NodeCall) -> Operand:
    """Sums over windows, a bias, and for FusedConv a tensor to add and an activation."""
    weights = call.constant(1)
    if weights is None:
        raise call.refusal("weights are missing")
    rows, layout = convolved(call, weights)
    bias = call.constant(2)
    biases = [] if bias is None else [of_rows(bias, layout)]
    if call.node.domain == MICROSOFT and call.value(3) is not None:
        biases.append(call.quantity(3))
    total = sum_in(call, call.quantity(0), rows, layout, biases)
    return _activated(call, total, "activation_params") if call.node.domain else total


@bound_rule("Gemm", OpKey(MICROSOFT, "FusedGemm"))
def gemm(call: NodeCall) -> Operand:
    """``alpha * a @ b + beta * c`` in any order, and an activation for FusedGemm."""
    alpha, beta = (np.asarray(float(np.float32(call.number(n, 1.0)))) for n in ("alpha", "beta"))
    a, b = (
        transposed(call, index, (1, 0)) if call.whole(name) else call.quantity(index)
        for index, name in enumerate(("transA", "transB"))
    )
    c = None if call.value(2) is None else call.quantity(2)
    if c is not None:
        c = multiple_of(c, beta, beta) if c.value is None else _times(c, beta)
    total = matrix_product(call, a, b, alpha, c, more=0 if alpha == beta == 1 else _SCALING)
    return _activated(call, total, "") if call.node.domain else total


@bound_rule("MatMul", OpKey(MICROSOFT, "FusedMatMul"), OpKey(MICROSOFT, "TransposeMatMul"))
def matmul(call: NodeCall) -> Operand:
    """``alpha * a @ b``; operands of FusedMatMul may be transposed."""
    if call.whole("transBatchA") or call.whole("transBatchB"):
        raise call.refusal("transposed batches")
    factors = []
    for index, name in enumerate(("transA", "transB")):
        rank = call.rank(index)
        axes = (*range(rank - 2), rank - 1, rank - 2)
        is_turned = bool(call.whole(name)) and rank > 1
        factors.append(transposed(call, index, axes) if is_turned else call.quantity(index))
    alpha = np.asarray(float(np.float32(call.number("alpha", 1.0))))
    return matrix_product(call, factors[0], factors[1], alpha, more=0 if alpha == 1 else _SCALING)


_SCALING = 3
"""Roundings of products with alpha and beta, wherever they are made."""


def matrix_product(
    call: NodeCall,
    a: Quantity,
    b: Quantity,
    alpha: Float64,
    c: Quantity | None = None,
    *,
    more: int,
) -> Quantity:
    """Return ``alpha * a @ b + c``, where one of both factors may be constant.

    ``c`` is the term with its factor; ``more`` is the number of roundings of each term by both
    factors.
    """
    if a.value is not None and b.value is not None:
        raise call.refusal("two constants")
    if more:
        # A subnormal product, or factor of one, is off by ``tiny`` before it is multiplied.
        far = np.max([1.0, np.abs(alpha), np.max(a.largest), np.max(b.largest)])
        call = replace(call, sums=replace(call.sums, tiny=call.sums.tiny * float(far)))
    biases = [] if c is None else [c]
    if b.value is not None and b.value.ndim == len(("rows", "columns")):
        return sum_in(call, a, _times(mapped(b, np.transpose), alpha), RIGHT, biases, more)
    if a.value is not None and a.value.ndim == len(("rows", "columns")) and call.rank(1) > 1:
        return sum_in(call, b, _times(a, alpha), LEFT, biases, more)
    return product_of_data(call, a, b, factor=alpha, bias=c, more=more)


def _times(weights: Quantity, factor: Float64) -> Quantity:
    if factor == 1:
        return weights
    factors = weights.factors and (weights.factors[0] * factor, weights.factors[1])
    return of_constant(weights.numbers * factor, weights.meant.offset * factor, factors)


def sum_in(
    call: NodeCall,
    data: Quantity,
    weights: Quantity,
    layout: Taps,
    biases: Sequence[Quantity] = (),
    more: int = 0,
) -> Quantity:
    """Return sums, added in the arithmetic of sums, and rounded to the type of the result.

    Weights are ``[rows, taps, *places]``; the biases are further terms, which broadcast to the
    result; ``more`` counts further roundings of each term.
    """
    dtype = call.node.outputs[0].dtype
    if dtype is not None and dtype.is_integer():
        raise call.refusal("integers")
    atoms, sums = call.tracer.atoms, call.sums
    total = sum_of_products(atoms, data, weights, layout, sums, biases=biases, more=more)
    return call.stored(total)


def convolved(call: NodeCall, weights: Quantity) -> tuple[Quantity, Taps]:
    """Return weights of a convolution as ``[rows, taps, *places]``, and the layout of its sums."""
    layout = convolution_taps(call.node, weights.numbers.shape[2:], shape_of(call.value(0))[2:])
    if call.node.op_type == "ConvTranspose":
        weights = mapped(weights, lambda array: rows_of_transposed(array, layout.groups))
    return weights, layout


def of_rows(bias: Quantity, layout: Taps) -> Quantity:
    """Return a constant bias ``[rows]`` so that it broadcasts to the result."""
    value = bias.numbers
    if value.ndim != 1 or value.size == 1:
        return bias
    meant = np.broadcast_to(bias.meant.offset, value.shape)
    return of_constant(layout.by_row(value), layout.by_row(meant))


def _activated(call: NodeCall, total: Operand, parameters: str) -> Operand:
    name = call.node.attributes.get_string("activation", "")
    if not name:
        return total
    if name not in _ACTIVATIONS:
        raise call.refusal(f"activation {name}")
    numbers = list(call.node.attributes.get_floats(parameters, ())) if parameters else []
    if not parameters:
        named = (f"activation_{part}" for part in ("alpha", "beta", "gamma"))
        numbers = [call.number(each, 0.0) for each in named if each in call.node.attributes]
    if name == "Relu":
        return call.tracer.Relu(total)
    if name == "Clip":
        low, high = (np.float32(number) for number in numbers)
        return call.tracer.Min(call.tracer.Max(total, low), high)
    attributes = dict(zip(("alpha", "beta"), numbers, strict=False))
    return applied(call.tracer, name, call.tracer.quantity(total), attributes)


@bound_rule(OpKey(MICROSOFT, "MatMulNBits"))
def mat_mul_n_bits(call: NodeCall) -> Operand:
    """``a @ w.T + bias``, where w are decoded codes."""
    if call.whole("accuracy_level") == ROUNDS_DATA:
        raise call.refusal("accuracy level 4 rounds the data to 8 bits")
    weights, x = _weights(call), call.quantity(0)
    bias = call.constant(5)
    total = sum_in(call, x, weights, RIGHT, [] if bias is None else [bias], _DECODING)
    arithmetic = call.tracer.arithmetic
    if arithmetic.unit == FLOAT32.unit:
        return total
    # Runtimes decode to float32, or to the type of the data.
    narrow = stored(weights, arithmetic.name).numbers
    moved = np.abs(narrow - weights.numbers).sum(axis=1) * (1 + 2.0**-40)
    return replace(total, absolute=total.absolute + moved * float(np.max(x.reach)))


def _weights(call: NodeCall) -> Quantity:
    """Return the decoded weights ``[n, k]``: codes less zero points, times scales."""
    arrays = [call.array(call.value(index)) for index in range(1, 5)]
    for index, array in enumerate(arrays, 1):
        if call.value(index) is not None and array is None:
            raise call.refusal("weights that are not constant")
    codes, scales, points, groups = arrays
    if codes is None or scales is None:
        raise call.refusal("weights are missing")
    try:
        layout = Weights.of(call.node)
        ones = np.ones(scales.shape, np.float32)
        whole = layout.values(codes, ones, points, groups).astype(np.float64)
        value = layout.values(codes, scales, points, groups).astype(np.float64)
        steps = layout.scales(scales).astype(np.float64)
        blocks = np.arange(layout.k) // layout.size if groups is None else layout.groups(groups)
    except (UnsupportedError, ValueError) as error:
        raise call.refusal(str(error)) from error
    spread = steps[:, blocks]
    return of_constant(value, whole * spread, (spread, whole))


_ONE = np.ones(())


def product_of_data(
    call: NodeCall,
    a: Quantity,
    b: Quantity,
    *,
    factor: Float64 = _ONE,
    bias: Quantity | None = None,
    more: int = 0,
    is_integer: bool = False,
) -> Quantity:
    """Return ``factor * a @ b + bias``, with one bound for all elements of the product.

    ``more`` counts roundings of each term besides those of its product and of additions. Integers
    are added without rounding. Raises Undecidable if the number of terms is not known.
    """
    axis = -2 if call.whole("transA") else -1
    size, count = shape_of(call.value(0))[axis], call.most([axis])
    a, b = (_alike(each) for each in (a, b))
    (one, x), (other, y) = a.meant.factored, b.meant.factored
    key = size, call.rank(1) == 1  # a vector is a column, also where it broadcasts to rows
    ends = _ends(x, y, count)
    if count != size:
        ends = np.minimum(ends[0], 0.0), np.maximum(ends[1], 0.0)
    atom = call.tracer.atoms.make("matmul", key, (x, y), ends, slope=float(count))
    meant = Combination.of(atom).times(one * other * factor)
    low, high = meant.range
    error = product(a.largest, b.error) + product(b.largest, a.error) + product(a.error, b.error)
    unit = None if a.unit is None or b.unit is None else a.unit * b.unit
    if unit is not None:
        unit = unit * granules(factor)
    exact = Quantity(meant, low, high, count * error * np.abs(factor), unit=unit)
    if is_integer:
        return exact
    counts, reach = float(count), count * product(a.reach, b.reach) * np.abs(factor)
    if bias is not None:
        exact, counts, reach = sum_of(exact, bias), counts + 1, reach + bias.reach
    return call.stored(added_up(exact, np.asarray(counts), reach, call.sums, more=more))


def _alike(x: Quantity) -> Quantity:
    """Return data with one range and one error for all its elements."""
    unit = None if x.granule is None else np.asarray(x.granule.min())
    ends = np.asarray(x.low.min()), np.asarray(x.high.max())
    return Quantity(x.meant, *ends, np.asarray(np.max(x.error)), unit=unit)


def _ends(x: Combination, y: Combination, count: int) -> tuple[Float64, Float64]:
    """Return bounds of sums of products, rounded outwards."""
    (a, b), (c, d) = ((each.range[0].min(), each.range[1].max()) for each in (x, y))
    ends = [count * float(product(np.asarray(i), np.asarray(j))) for i in (a, b) for j in (c, d)]
    low, high = min(ends), max(ends)
    slack = SLACK * max(abs(low), abs(high))
    return np.asarray(low - slack), np.asarray(high + slack)


@bound_rule("Einsum")
def einsum(call: NodeCall) -> Operand:
    """``a @ b``, where the last two axes of b may be exchanged; no other equation has a bound."""
    equation = call.node.attributes.get_string("equation", "").replace(" ", "")
    factors, _, result = equation.partition("->")
    left, _, right = factors.partition(",")
    rows, taps, columns = left[:-1], left[-1:], result[-1:]
    is_turned = right.endswith(columns + taps)
    last = columns + taps if is_turned else taps + columns
    letters = rows + taps + columns
    if (
        not rows
        or len(set(letters)) < len(letters)
        or not letters.isalpha()
        or result != rows + columns
        or right not in (last, rows[:-1] + last)
    ):
        raise call.refusal(f"the equation {equation!r} is no matrix product")
    if sizes_of(call.value(0), [-1]) != sizes_of(call.value(1), [-1 if is_turned else -2]):
        raise call.refusal("a factor that is repeated")
    a, b = call.quantity(0), call.quantity(1)
    if is_turned and b.value is not None:
        b = mapped(b, lambda array: np.swapaxes(array, -1, -2))
    elif is_turned:
        rank = call.rank(1)
        b = transposed(call, 1, (*range(rank - 2), rank - 1, rank - 2))
    return matrix_product(call, a, b, np.ones(()), more=0)
