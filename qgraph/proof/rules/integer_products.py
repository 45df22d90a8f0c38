"""Sums of products of codes, by the definitions in :mod:`qgraph.ops.integer.kernels`.

The sum is exact. The following operations round: the multiplier, the sum as a float, their product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.conditions import WRAPPED_SUM
from qgraph.graph.schema import OpKey
from qgraph.ops.integer.products import SIGNATURES, Result
from qgraph.proof.bounds.combination import Combination
from qgraph.proof.bounds.events import Operand
from qgraph.proof.bounds.quantity import Quantity, constant
from qgraph.proof.bounds.rule import NodeCall, bound_rule, shape_of
from qgraph.proof.bounds.sums import sum_of_products
from qgraph.proof.bounds.tracer import QuantityTracer
from qgraph.proof.rules.movements import transposed
from qgraph.proof.rules.products import convolved, multiplied, of_rows, product_of_data
from qgraph.reasons import AT_RUN_TIME, OVERFLOW, Undecidable


@bound_rule(*SIGNATURES)
def product_of_codes(call: NodeCall) -> Operand:
    """ConvInteger, QLinearConv and similar: the sum as an integer, a real number, or codes."""
    signature = SIGNATURES[OpKey.of(call.node)]
    index_of = {
        name: index for index, name in enumerate(signature.inputs) if call.value(index) is not None
    }
    operands = {name: call.quantity(index) for name, index in index_of.items()}
    rank = len(shape_of(call.value(index_of["b"])))

    def aligned(name: str) -> Quantity:
        number = call.constant(index_of[name])
        if number is None:
            raise call.refusal(f"{name} is missing")
        return constant(signature.align(call.node, name, number.numbers, rank))

    factors = []
    for side in "ab":
        codes, is_turned = operands[side], bool(call.whole(f"trans{side.upper()}"))
        if f"z_{side}" in operands:
            codes = call.tracer.quantity(call.tracer.Sub(codes, aligned(f"z_{side}")))
        call.decoded.append(codes)
        factors.append(transposed(call, index_of[side], (1, 0), codes) if is_turned else codes)
    total = _total(call, factors[0], factors[1], operands.get("bias"), signature.kind)
    if (total.low < -_HALF).any() or (total.high >= _HALF).any():
        total = _wrapped(call, total, factors[0])
    result = signature.result(operands)
    if result is Result.SUMS:
        return total
    return _scaled(call, call.tracer.Cast(total, to="FLOAT"), result, operands, aligned)


_HALF = 2.0**31


def _wrapped(call: NodeCall, total: Quantity, data: Quantity) -> Quantity:
    """Return integers modulo 2**32; they are equal in both models if the sums are.

    Raises Undecidable if they are not exact.
    """
    atoms = call.tracer.atoms
    if not total.is_exact:
        raise Undecidable(OVERFLOW("an int32 sum may wrap around"))
    row = int(np.argmax(np.maximum(-total.low, total.high + 1)))
    ends = total.low.reshape(-1)[row], total.high.reshape(-1)[row]
    is_low = -ends[0] > ends[1] + 1
    first, last = (float(pick(end)) for pick, end in ((np.min, data.low), (np.max, data.high)))
    where = (first, last) if is_low else (last, first)
    wrapped = WRAPPED_SUM(row, int(ends[not is_low]), *(f"{code:g}" for code in where))
    atoms.conditions.add(wrapped)
    ends = -np.full((), _HALF), np.full((), _HALF - 1)
    atom = atoms.make("wrapped", str(wrapped), (total.meant,), ends, slope=np.inf)
    return Quantity(Combination.of(atom), *ends, unit=np.ones(()))


def _total(
    call: NodeCall, data: Quantity, weights: Quantity, bias: Quantity | None, operator: str
) -> Quantity:
    if weights.value is None:
        if operator == "Conv" or bias is not None:
            raise call.refusal("weights that are not constant")
        return product_of_data(call, data, weights, is_integer=True)
    if operator != "Conv" and weights.numbers.ndim != len(("rows", "columns")):
        return product_of_data(call, data, weights, is_integer=True)
    rows, layout = convolved(call, weights) if operator == "Conv" else multiplied(weights)
    if bias is not None:
        if bias.value is None:
            raise call.refusal("a bias that is not constant")
        bias = of_rows(bias, layout)
    return sum_of_products(
        call.tracer.atoms, data, rows, layout, call.sums, bias=bias, is_integer=True
    )


def _scaled(
    call: NodeCall,
    total: Quantity,
    result: Result,
    operands: dict[str, Quantity],
    aligned: Callable[[str], Quantity],
) -> Operand:
    tracer, alpha = call.tracer, np.float32(call.number("alpha", 1.0))
    unit = aligned("s_a") if alpha == 1 else tracer.Mul(constant(alpha), aligned("s_a"))
    unit = tracer.Mul(unit, aligned("s_b"))
    if result is Result.REALS:
        y: Operand = tracer.Mul(total, unit)
        return y if "added" not in operands else tracer.Add(y, operands["added"])
    steps = tracer.Mul(total, tracer.Div(unit, aligned("s_y")))
    return codes_of(tracer, steps, aligned("z_y"), call.node.outputs[0].dtype)


def codes_of(
    tracer: QuantityTracer,
    steps: Any,
    zero: Quantity,
    dtype: ir.DataType | None,
    *,
    first: bool = False,
) -> Operand:
    """Return ``saturate(round_half_even(steps) + zero)``; the zero point may come first."""
    if dtype is None or zero.value is None:
        raise Undecidable(AT_RUN_TIME("the type of codes is not known"))
    limits = np.iinfo(dtype.numpy())
    codes = tracer.Round(tracer.Add(steps, zero) if first else steps)
    codes = codes if first else tracer.Add(codes, zero)
    result: Operand = tracer.Min(tracer.Max(codes, float(limits.min)), float(limits.max))
    return result
