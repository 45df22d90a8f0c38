"""The forms in which a product of codes is written, and how equal the last two are.

exact     acc = sum of (a - z_a) * (b - z_b) in whole numbers,
          y = QuantizeLinear (acc * (s_a * s_b / s_y), 1, z_y)
reals     y = QuantizeLinear (MatMul (DequantizeLinear (a), DequantizeLinear (b)), s_y, z_y)
operator  y = QLinearMatMul (a, s_a, z_a, b, s_b, z_b, s_y, z_y)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict, Witness
from qgraph.graph.edit import Draft, Operand
from qgraph.graph.schema import MICROSOFT, OpKey
from qgraph.numerics import Array, Float32
from qgraph.ops.composite import cast, type_of
from qgraph.ops.integer.codes import requantize
from qgraph.ops.integer.products import SIGNATURES, Product, Result
from qgraph.ops.integer.sums import (
    EXACT_IN_FLOAT32,
    Parameter,
    dequantize,
    draft_value,
    of_one_shape,
    ones_of,
    without_trailing_none,
)

_ONE = np.ones((), np.float32)


def draft_exact(draft: Draft, product: Product) -> Operand:
    """Draft sums that are exact, and what is made of them; the same bits as the operator's."""
    exact_type = product.exact_type
    total = (
        product.draft_int32(draft) if exact_type is None else product.draft_sums(draft, exact_type)
    )
    if product.result is Result.SUMS:
        return cast(draft, total, ir.DataType.INT32)
    op = draft.op
    real, unit = cast(draft, total, ir.DataType.FLOAT), product.unit(op.Mul)
    if product.result is Result.REALS:
        y = op.Mul(real, unit)
        return y if product.added is None else op.Add(y, product.added)
    scale, zero = product.encoding
    return draft_codes(draft, op.Mul(real, op.Div(unit, scale)), zero)


def draft_codes(draft: Draft, steps: Operand, zero: Parameter) -> ir.Value:
    """Draft ``saturate(round_half_even(steps) + zero)``."""
    one = draft.constant(np.ones(ones_of(zero), np.float32), "one")
    return draft.node("QuantizeLinear", [steps, one, zero], dtype=type_of(zero))


def draft_offset_codes(draft: Draft, steps: Operand, zero: Array) -> ir.Value:
    """Draft codes from steps, with the zero point added before rounding."""
    shifted = draft.op.Add(steps, zero.astype(np.float32)) if zero else steps
    return draft_codes(draft, shifted, np.zeros((), zero.dtype))


def draft_reals(draft: Draft, product: Product, *, subtracts: bool = False) -> Operand:
    """Draft the product of real numbers, between DequantizeLinear and QuantizeLinear.

    Args:
        draft: gets the nodes.
        product: what to write.
        subtracts: write the zero point of the first factor as a Sub; see
            :func:`qgraph.graph.opset.rewrites.refused_decoders`.
    """
    real = ir.DataType.FLOAT
    a = _draft_difference(draft, product) if subtracts else product.a.draft_reals(draft)
    operands = [a, product.b.draft_reals(draft)]
    if product.bias is not None:
        operands.append(_draft_bias(draft, product, product.bias))
    attributes = product.attributes
    if product.kind == "Gemm":
        attributes |= {name: float(product.alpha) for name in ("alpha", "beta")}
    y: Operand = draft.node(product.kind, operands, attributes, dtype=real)
    if product.added is not None:
        y = draft.node("Add", [y, product.added], dtype=real)
    if product.result is Result.SUMS:
        return cast(draft, draft_value(draft, y), ir.DataType.INT32)
    if product.result is Result.REALS:
        return y
    scale, zero = of_one_shape(*product.encoding)
    return draft.node("QuantizeLinear", [y, scale, zero], dtype=type_of(zero))


def compare_forms(product: Product) -> Verdict:
    """Return how equal the operator and its form with real numbers are."""
    if product.rounds_bias:
        return unproved("the bias is rounded to units of both scales")
    if product.alpha != 1:
        return unproved("alpha is not 1")
    scales = [_ONE if each.scale is None else each.scale for each in (product.a, product.b)]
    parameters = (*scales, product.y_scale, product.y_zero_point)
    if any(isinstance(parameter, ir.Value) for parameter in parameters):
        return unproved("a scale is not constant")
    s_a, s_b, *encoding = (None if p is None else np.asarray(p) for p in parameters)
    return compare_sums(product.largest, np.asarray(s_a), np.asarray(s_b), *encoding)


def operator_key(product: Product) -> OpKey:
    """Return the operator that makes of its sums what ``product`` does."""
    if product.result is Result.SUMS:
        return OpKey("", product.integer_operator)
    if product.kind == "Gemm":
        return OpKey(MICROSOFT, "QGemm")
    return OpKey("", f"QLinear{product.kind}")


def draft_operator(draft: Draft, product: Product, dtype: ir.DataType | None) -> ir.Value:
    """Draft the one operator that computes ``product``, whose result has type ``dtype``.

    Raises:
        ValueError: a parameter is not constant.
    """
    if product.result is Result.SUMS:
        return product.draft_int32(draft)
    key = operator_key(product)
    values: dict[str, Operand | None] = {"bias": product.bias}
    values["s_y"], values["z_y"] = product.encoding
    for side, factor in (("a", product.a), ("b", product.b)):
        values[side] = factor.codes
        values[f"s_{side}"], values[f"z_{side}"] = factor.stored_parameters
    operands = without_trailing_none([values[name] for name in SIGNATURES[key].inputs])
    attributes = product.attributes
    if product.kind == "Gemm":
        attributes |= {"alpha": float(product.alpha)}
    return draft.node(key.name, operands, attributes, domain=key.domain, dtype=dtype)


def _draft_difference(draft: Draft, product: Product) -> Operand:
    """Draft ``(a - z_a) * s_a`` by the operations of DequantizeLinear."""
    a = product.a
    steps = dequantize(draft, a.codes, _ONE, None, None)
    zero = np.asarray(a.zero_point).reshape(()).astype(np.float32)
    return draft.op.Mul(draft.op.Sub(steps, zero), product.scales[0])


def _draft_bias(draft: Draft, product: Product, bias: Parameter) -> ir.Value:
    """Draft int32 codes in units of both scales as real numbers."""
    s_a, s_b = product.scales
    unit = draft.op.Mul(s_a, s_b)
    codes, axis = draft_value(draft, bias), None
    if isinstance(unit, np.ndarray) and unit.size > 1:
        unit = unit.reshape(-1)
        axis = 0 if codes.shape is None else len(codes.shape) - 1
    return dequantize(draft, codes, unit, None, axis)


_MOST = 1 << 26
"""Sums that are tried out, at most."""

_LOWEST, _HIGHEST = -50, 50
"""Exponents of scales between which no product of codes and scales leaves the normal range."""


def compare_sums(
    bound: int | None, s_a: Float32, s_b: Float32, s_y: Float32 | None, z_y: Array | None
) -> Verdict:
    """Return how equal the integer operator and its form with real numbers between are.

    operator    code = saturate(round_half_even(float32(acc) * (s_a * s_b / s_y)) + z_y)
    reals       code = saturate(round_half_even(r / s_y) + z_y), r the sum of products of
                (a - z_a) * s_a and (b - z_b) * s_b in float32

    With powers of two for ``s_a`` and ``s_b``, and sums below 2**24, ``r`` is ``acc * s_a * s_b``
    without any rounding, and all sums can be tried out. Otherwise ``r`` depends on the order of the
    additions, and nothing is proved.

    Args:
        bound: the largest sum; None if it is not known.
        s_a: scale of the data.
        s_b: scale, or scales of the channels, of the weights.
        s_y: scale of the result; None if the real numbers are the result.
        z_y: its zero point.
    """
    if bound is None or bound >= EXACT_IN_FLOAT32:
        size = "are not known" if bound is None else f"may reach {bound}"
        return unproved(f"the sums {size}, and float32 is exact below 2**24 only")
    if not (are_powers_of_two(s_a) and are_powers_of_two(s_b)):
        return unproved(
            "scales that are no powers of two are rounded in each product there, and once here; "
            "codes may differ by a step near ties"
        )
    if s_y is None or z_y is None:
        return Verdict(Exactness.BITS, Method.CONGRUENCE, reason=f"sums of at most {bound}")
    return _try_out(bound, s_a, s_b, s_y, z_y)


def compare_tables(candidate: Array, reference: Array, inputs: str) -> Verdict:
    """Return how equal two tables of results for the same ``inputs``, a noun in the plural, are."""
    wrong = np.flatnonzero(candidate != reference)
    if not wrong.size:
        return Verdict(Exactness.BITS, Method.EXHAUSTIVE)
    first = int(wrong[0])
    far = np.abs(candidate.astype(np.int64) - reference.astype(np.int64)).max()
    return Verdict(
        Exactness.NEAR if far <= 1 else Exactness.DIFFERENT,
        Method.EXHAUSTIVE,
        differing_inputs=int(wrong.size),
        reason=f"{wrong.size} of {candidate.size} {inputs} differ by up to {far}, the first "
        f"gives {reference.flat[first]} and {candidate.flat[first]}",
    )


def _try_out(bound: int, s_a: Float32, s_b: Float32, s_y: Float32, z_y: Array) -> Verdict:
    units = np.broadcast_to(s_a * s_b, np.broadcast_shapes(s_b.shape, s_a.shape)).reshape(-1)
    steps = np.broadcast_to(s_y, units.shape) if s_y.size == 1 else None
    if steps is None:
        return unproved("the scale of the result differs by rows")
    limits = np.iinfo(z_y.dtype)
    widest = limits.max - limits.min + 3
    differing, witness, tried = 0, None, 0
    with np.errstate(all="ignore"):
        multipliers = units / steps
    rows = zip(units.tolist(), steps.tolist(), multipliers.tolist(), strict=True)
    for unit, step, multiplier in dict.fromkeys(rows):
        # Both forms are monotone in the sum, so that beyond the window both are saturated.
        window = min(bound, int(min(widest * step / unit, 2.0**40)) + 1) if step > 0 else _MOST
        tried += 2 * window + 1
        if tried > _MOST:
            return unproved("there are too many sums to try out")
        acc = np.arange(-window, window + 1, dtype=np.int32)
        by_operator = requantize(acc, np.array(multiplier, np.float32), z_y)
        with np.errstate(all="ignore"):
            real = acc.astype(np.float32) * np.float32(unit) / np.float32(step)
        by_reals = requantize(real, np.ones((), np.float32), z_y)
        wrong = np.flatnonzero(by_operator != by_reals)
        differing += int(wrong.size)
        if wrong.size and witness is None:
            sample = (acc[wrong[0]], by_operator[wrong[0]], by_reals[wrong[0]])
            witness = Witness(*map(float, sample))
    if differing:
        reason = f"{differing} of the sums that occur at most give codes one step apart"
        return Verdict(Exactness.NEAR, Method.EXHAUSTIVE, differing, witness=witness, reason=reason)
    return Verdict(Exactness.BITS, Method.EXHAUSTIVE, reason=f"sums of at most {bound}")


def are_powers_of_two(scale: Float32) -> bool:
    """Return whether products with scales are exact: powers of two, far from the limits."""
    mantissa, exponent = np.frexp(scale)
    inside = (exponent > _LOWEST) & (exponent < _HIGHEST)
    return bool(((mantissa == 0.5) & inside).all())


def unproved(reason: str) -> Verdict:
    """Return the verdict on what is near but not proved equal."""
    return Verdict(Exactness.NEAR, Method.NONE, reason=f"not proved equal: {reason}")
