"""Products of two DequantizeLinear, read as sums of codes times both scales.

That is exact where scales are powers of two: neither factors nor products nor sums are rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.foreign.parameters import single
from qgraph.foreign.rescaling import EXACT_IN_FLOAT32, are_powers_of_two
from qgraph.graph.folding import constant_expression
from qgraph.graph.schema import OpKey
from qgraph.matching.whole_sums import CODES, Factor, Sum, has_factors_alone

Array = npt.NDArray[Any]


def is_of_decoded(node: ir.Node) -> bool:
    """Return whether both factors of a node come out of DequantizeLinear."""
    return all(map(_decoder, node.inputs[:2]))


def read_decoded(node: ir.Node) -> tuple[Sum, Array] | None:
    """Return the sum of codes in a Conv, Gemm or MatMul, and what it is multiplied by.

    Returns:
        None where something is rounded, or is not known.

    Raises:
        ValueError: a parameter has another form than DequantizeLinear takes.
    """
    decoders = [_decoder(value) for value in node.inputs[:2]]
    read = [_decoded(decode) for decode in decoders if decode is not None]
    if len(read) < 2 or None in read or not has_factors_alone(node):
        return None
    (a, s_a, _), (b, s_b, axis) = (each for each in read if each is not None)
    if s_a.size != 1 or not (are_powers_of_two(s_a) and are_powers_of_two(s_b)):
        return None
    unit = s_a.reshape(()) * s_b
    if s_b.size > 1:
        rank = len(b.codes.shape or ())
        transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
        if axis != (0 if node.op_type == "Conv" or transposed else rank - 1):
            return None
        unit = unit.reshape(-1, *(1,) * (rank - 2 if node.op_type == "Conv" else 0))
    bias: Array | None = None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = _whole_bias(node.inputs[2], unit, node)
        if bias is None:
            return None
    total = Sum(node, node.op_type, a, b, bias)
    largest = total.largest
    return None if largest is None or largest >= EXACT_IN_FLOAT32 else (total, unit)


def _whole_bias(value: ir.Value, unit: Array, node: ir.Node) -> Array | None:
    """Return a constant bias in units of both scales as int32; None if it is not whole."""
    known = constant_expression(value)
    decode = _decoder(value)
    if known is None and decode is not None:
        codes, scale = constant_expression(decode.inputs[0]), constant_expression(decode.inputs[1])
        zero = None if len(decode.inputs) < 3 else constant_expression(decode.inputs[2])
        shifted = len(decode.inputs) > 2 and (zero is None or zero.any())
        if codes is None or scale is None or shifted or not are_powers_of_two(scale):
            return None
        if scale.size > 1 and scale.shape != codes.shape:
            return None
        known = codes.astype(np.float64) * scale
    if known is None:
        return None
    units = unit.reshape(-1) if node.op_type == "Conv" else unit
    if units.size > 1 and known.shape[-1:] != units.shape:
        return None
    with np.errstate(all="ignore"):
        whole = known.astype(np.float64) / units
    if not (np.abs(whole) < EXACT_IN_FLOAT32).all() or (whole != np.rint(whole)).any():
        return None
    return whole.astype(np.int32)


def _decoder(value: ir.Value | None) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and OpKey.of(node) == OpKey("", "DequantizeLinear") else None


def _decoded(node: ir.Node) -> tuple[Factor, Array, int] | None:
    """Return what a DequantizeLinear subtracts and multiplies by, and along which axis."""
    codes, scale, zero = [*node.inputs, None][:3]
    blocks = bool(node.attributes.get_int("block_size", 0))
    if codes is None or codes.dtype not in CODES or blocks:
        return None
    ratios, taken = constant_expression(scale), constant_expression(zero)
    if ratios is None or ratios.dtype != np.float32 or (taken is None and zero is not None):
        return None
    rank = len(codes.shape or ())
    if ratios.size == 1:
        taken = np.zeros((), codes.dtype.numpy()) if taken is None else single(taken)
        return Factor(codes, taken), ratios.reshape(()), 0
    axis = node.attributes.get_int("axis", 1)
    if codes.shape is None or ratios.ndim != 1 or not -rank <= axis < rank:
        return None
    after = (1,) * (rank - axis % rank - 1)
    points = np.zeros(ratios.shape, codes.dtype.numpy()) if taken is None else taken
    if points.shape != ratios.shape:
        return None
    return Factor(codes, points.reshape(-1, *after)), ratios, axis % rank
