"""Kernels of the operators on integer codes, of the standard domain and of com.microsoft.

All of them first make an exact sum of products of integers, ``acc``, in int32. What follows is
written in float32, each operation rounded once, in the order that ONNX Runtime has:

    m = s_a * s_b / s_y                              from left to right
    code = saturate(round_half_even(float32(acc) * m) + z_y)

The sum is rounded to float32 before it is scaled, where it exceeds 2**24. The text of ONNX leaves
order and precision open. Its reference evaluator scales in float64 and adds the zero point before
it rounds, so that with odd zero points every tie goes the other way.

Source: ONNX QLinearMatMul-21, QLinearConv-10, MatMulInteger-10, ConvInteger-10; ONNX Runtime's
documentation of its own operators; the order of operations was found by running ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.foreign.elementwise import q_linear_add, q_linear_mul
from qgraph.foreign.parameters import (
    channels,
    columns,
    float32,
    int32,
    ratio,
    requantize,
    result,
    rows,
    shifted,
    single,
)
from qgraph.foreign.pooling import q_linear_average_pool, q_linear_global_average_pool
from qgraph.foreign.softmax import q_linear_softmax
from qgraph.foreign.sums import conv_sum, matmul_sum
from qgraph.foreign.tables import (
    q_linear_concat,
    q_linear_leaky_relu,
    q_linear_sigmoid,
    q_linear_where,
)
from qgraph.graph.schema import OpKey
from qgraph.kernels.standard import Kernel

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

MICROSOFT = "com.microsoft"


def foreign_kernel(node: ir.Node) -> Kernel | None:
    """Return the kernel of an operator on integer codes; None for any other operator."""
    build = _BUILDERS.get(OpKey.of(node))
    return None if build is None else build(node)


def is_on_codes(node: ir.Node) -> bool:
    """Return whether there is a kernel for a node here."""
    return OpKey.of(node) in _BUILDERS


def is_unknown_on_codes(node: ir.Node) -> bool:
    """Return whether a node is an operator of ONNX Runtime on codes that has no kernel here."""
    return node.domain == MICROSOFT and node.op_type in _WITHOUT_KERNELS


def _q_linear_mat_mul(node: ir.Node) -> Kernel:
    def run(
        a: Array, s_a: Array, z_a: Array, b: Array, s_b: Array, z_b: Array, s_y: Array, z_y: Array
    ) -> Sequence[Array]:
        acc = matmul_sum(shifted(a, rows(z_a, a)), shifted(b, columns(z_b)))
        multiplier = ratio(rows(s_a, a), columns(s_b), rows(s_y, a))
        return [requantize(acc, multiplier, rows(result(z_y), a))]

    return run


def _q_linear_conv(node: ir.Node) -> Kernel:
    total = conv_sum(node)

    def run(
        x: Array,
        s_x: Array,
        z_x: Array,
        w: Array,
        s_w: Array,
        z_w: Array,
        s_y: Array,
        z_y: Array,
        bias: Array | None = None,
    ) -> Sequence[Array]:
        spatial = (1,) * (x.ndim - 2)
        acc = total(shifted(x, single(z_x)), shifted(w, channels(z_w, (1, *spatial))))
        if bias is not None:
            acc = acc + int32(bias).reshape(-1, *spatial)
        multiplier = ratio(single(s_x), channels(s_w, spatial), single(s_y))
        return [requantize(acc, multiplier, single(result(z_y)))]

    return run


def _mat_mul_integer(node: ir.Node) -> Kernel:
    def run(
        a: Array, b: Array, z_a: Array | None = None, z_b: Array | None = None
    ) -> Sequence[Array]:
        left = shifted(a, None if z_a is None else rows(z_a, a))
        return [matmul_sum(left, shifted(b, None if z_b is None else columns(z_b)))]

    return run


def _conv_integer(node: ir.Node) -> Kernel:
    total = conv_sum(node)

    def run(
        x: Array, w: Array, z_x: Array | None = None, z_w: Array | None = None
    ) -> Sequence[Array]:
        ones = (1,) * (x.ndim - 1)
        left = shifted(x, None if z_x is None else single(z_x))
        return [total(left, shifted(w, None if z_w is None else channels(z_w, ones)))]

    return run


def _q_gemm(node: ir.Node) -> Kernel:
    """``acc = a @ b + c``; scaled by alpha too; real numbers come out where there is no s_y."""
    trans_a, trans_b = (node.attributes.get_int(name, 0) for name in ("transA", "transB"))
    alpha = np.float32(node.attributes.get_float("alpha", 1.0))

    def run(
        a: Array,
        s_a: Array,
        z_a: Array,
        b: Array,
        s_b: Array,
        z_b: Array,
        c: Array | None = None,
        s_y: Array | None = None,
        z_y: Array | None = None,
    ) -> Sequence[Array]:
        left, right = (a.T if trans_a else a), (b.T if trans_b else b)
        acc = matmul_sum(shifted(left, single(z_a)), shifted(right, columns(z_b)))
        if c is not None:
            acc = acc + int32(c)
        unit = alpha * float32(single(s_a)) * float32(columns(s_b))
        if s_y is None or z_y is None:
            return [acc.astype(np.float32) * unit]
        return [requantize(acc, unit / float32(single(s_y)), single(result(z_y)))]

    return run


def _mat_mul_integer_to_float(node: ir.Node) -> Kernel:
    """``y = float32(acc) * (s_a * s_b) + bias``."""

    def run(
        a: Array,
        b: Array,
        s_a: Array,
        s_b: Array,
        z_a: Array | None = None,
        z_b: Array | None = None,
        bias: Array | None = None,
    ) -> Sequence[Array]:
        left = shifted(a, None if z_a is None else rows(z_a, a))
        acc = matmul_sum(left, shifted(b, None if z_b is None else columns(z_b)))
        unit = float32(rows(s_a, a)) * float32(columns(s_b))
        y = acc.astype(np.float32) * unit
        return [y if bias is None else y + float32(bias)]

    return run


_BUILDERS: dict[OpKey, Callable[[ir.Node], Kernel]] = {
    OpKey("", "ConvInteger"): _conv_integer,
    OpKey("", "MatMulInteger"): _mat_mul_integer,
    OpKey("", "QLinearConv"): _q_linear_conv,
    OpKey("", "QLinearMatMul"): _q_linear_mat_mul,
    OpKey(MICROSOFT, "MatMulIntegerToFloat"): _mat_mul_integer_to_float,
    OpKey(MICROSOFT, "QGemm"): _q_gemm,
    OpKey(MICROSOFT, "QLinearAdd"): q_linear_add,
    OpKey(MICROSOFT, "QLinearAveragePool"): q_linear_average_pool,
    OpKey(MICROSOFT, "QLinearConcat"): q_linear_concat,
    OpKey(MICROSOFT, "QLinearGlobalAveragePool"): q_linear_global_average_pool,
    OpKey(MICROSOFT, "QLinearLeakyRelu"): q_linear_leaky_relu,
    OpKey(MICROSOFT, "QLinearMul"): q_linear_mul,
    OpKey(MICROSOFT, "QLinearSigmoid"): q_linear_sigmoid,
    OpKey(MICROSOFT, "QLinearSoftmax"): q_linear_softmax,
    OpKey(MICROSOFT, "QLinearWhere"): q_linear_where,
}

_WITHOUT_KERNELS = frozenset(
    {
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "MatMulInteger16",
        "QAttention",
        "QEmbedLayerNormalization",
        "QLinearConv",
        "QLinearReduceMean",
    }
)
