"""Operators that sum products of codes, read by their definitions.

They are those of :mod:`qgraph.foreign.kernels`; nothing is shared with the passes that rewrite such
operators, so that a mistake there cannot hide in a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.foreign.kernels import MICROSOFT
from qgraph.foreign.parameters import channels, columns, float32, int32, ratio, result, single
from qgraph.graph.folding import constant_expression
from qgraph.graph.schema import OpKey
from qgraph.matching.whole_sums import CODES, Factor, Sum

Array = npt.NDArray[Any]

Read = tuple[Sum, Array | None, Array | None]
"""What an operator sums, by what sums are multiplied, and the zero point of its codes."""

_Inputs = Sequence[ir.Value | None]


def is_on_codes(node: ir.Node) -> bool:
    """Return whether a node is such an operator."""
    return OpKey.of(node) in _READERS


def read_operator(node: ir.Node) -> Read | None:
    """Return what an operator computes; None if it is another one, or its parameters are not known.

    Raises:
        ValueError: a parameter has another form than the operator takes.
    """
    read = _READERS.get(OpKey.of(node))
    return None if read is None else read(node, [*node.inputs, *[None] * (9 - len(node.inputs))])


def _q_linear_mat_mul(node: ir.Node, inputs: _Inputs) -> Read | None:
    a, s_a, z_a, b, s_b, z_b, s_y, z_y, _ = inputs
    total = _sum(node, "MatMul", (a, z_a, single), (b, z_b, columns))
    scales = _constants(s_a, s_b, s_y, z_y)
    if total is None or scales is None:
        return None
    multiplier = ratio(single(scales[0]), columns(scales[1]), single(scales[2]))
    return total, multiplier, single(result(scales[3]))


def _q_linear_conv(node: ir.Node, inputs: _Inputs) -> Read | None:
    x, s_x, z_x, w, s_w, z_w, s_y, z_y, bias = inputs
    spatial = (1,) * (len(w.shape) - 2 if w is not None and w.shape is not None else 0)
    total = _sum(node, "Conv", (x, z_x, single), (w, z_w, _per_channel(spatial)), bias)
    scales = _constants(s_x, s_w, s_y, z_y)
    if total is None or scales is None or not spatial:
        return None
    multiplier = ratio(single(scales[0]), channels(scales[1], spatial), single(scales[2]))
    return total, multiplier, single(result(scales[3]))


def _mat_mul_integer(node: ir.Node, inputs: _Inputs) -> Read | None:
    a, b, z_a, z_b, *_ = inputs
    total = _sum(node, "MatMul", (a, z_a, single), (b, z_b, columns))
    return None if total is None else (total, None, None)


def _conv_integer(node: ir.Node, inputs: _Inputs) -> Read | None:
    x, w, z_x, z_w, *_ = inputs
    spatial = (1,) * (len(w.shape) - 2 if w is not None and w.shape is not None else 0)
    total = _sum(node, "Conv", (x, z_x, single), (w, z_w, _per_channel(spatial)))
    return None if total is None or not spatial else (total, None, None)


def _q_gemm(node: ir.Node, inputs: _Inputs) -> Read | None:
    a, s_a, z_a, b, s_b, z_b, c, s_y, z_y = inputs
    if s_y is None or z_y is None:
        return None  # real numbers, whose zeros have a sign
    transposed = bool(node.attributes.get_int("transB", 0))
    place = _per_channel(()) if transposed else columns
    total = _sum(node, "Gemm", (a, z_a, single), (b, z_b, place), c)
    scales = _constants(s_a, s_b, s_y, z_y)
    if total is None or scales is None:
        return None
    alpha = np.float32(node.attributes.get_float("alpha", 1.0))
    with np.errstate(all="ignore"):
        unit = alpha * float32(single(scales[0])) * float32(columns(scales[1]))
        multiplier = unit / float32(single(scales[2]))
    return total, multiplier, single(result(scales[3]))


_READERS: dict[OpKey, Callable[[ir.Node, _Inputs], Read | None]] = {
    OpKey("", "ConvInteger"): _conv_integer,
    OpKey("", "MatMulInteger"): _mat_mul_integer,
    OpKey("", "QLinearConv"): _q_linear_conv,
    OpKey("", "QLinearMatMul"): _q_linear_mat_mul,
    OpKey(MICROSOFT, "QGemm"): _q_gemm,
}

_Place = Callable[[Array], Array]
_Codes = tuple[ir.Value | None, ir.Value | None, _Place]
"""Codes, their zero point, and what gives it the shape in which it broadcasts to them."""


def _sum(
    node: ir.Node, kind: str, a: _Codes, b: _Codes, bias: ir.Value | None = None
) -> Sum | None:
    factors = [_factor(*a), _factor(*b)]
    if bias is not None:
        known = constant_expression(bias)
        if known is None:
            return None
        int32(known)
    if factors[0] is None or factors[1] is None:
        return None
    return Sum(node, kind, factors[0], factors[1], bias)


def _factor(codes: ir.Value | None, zero: ir.Value | None, place: _Place) -> Factor | None:
    if codes is None or codes.dtype not in CODES:
        return None
    kind = codes.dtype.numpy()
    known = np.zeros((), kind) if zero is None else constant_expression(zero)
    if known is not None:
        return Factor(codes, place(known)) if known.dtype == kind else None
    if zero is None or zero.dtype != codes.dtype or zero.shape is None:
        return None
    return Factor(codes, zero) if all(size == 1 for size in zero.shape) else None


def _per_channel(spatial: tuple[int, ...]) -> _Place:
    return lambda parameter: channels(parameter, (1, *spatial))


def _constants(*values: ir.Value | None) -> list[Array] | None:
    found = [constant_expression(value) for value in values]
    known = [array for array in found if array is not None]
    return known if len(known) == len(found) else None
