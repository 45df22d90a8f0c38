"""Matrix products, on numbers and on codes."""

from __future__ import annotations

import onnx_ir as ir

from qgraph.graph.inference.elementwise import broadcast_shape
from qgraph.graph.inference.facts import Fact, Shape
from qgraph.graph.inference.rules import Call, Unknown, common_type, rule

_MICROSOFT = "com.microsoft"


@rule("MatMul")
def mat_mul(call: Call) -> list[Fact]:
    """Rows of the first matrix and columns of the second, in broadcast stacks."""
    return [Fact(common_type(call[0], call[1]), product_shape(call[0].shape, call[1].shape))]


@rule("MatMulInteger")
def mat_mul_integer(call: Call) -> list[Fact]:
    """As of MatMul, int32."""
    return [Fact(ir.DataType.INT32, product_shape(call[0].shape, call[1].shape))]


@rule("QLinearMatMul")
def q_linear_mat_mul(call: Call) -> list[Fact]:
    """As of MatMul, in the type of the zero point of the result."""
    return [Fact(call[7].dtype, product_shape(call[0].shape, call[3].shape))]


@rule("Gemm")
def gemm(call: Call) -> list[Fact]:
    """Two dimensions: rows of the first matrix, columns of the second, after transposition."""
    if call.version < 7:
        raise Unknown
    dtype = common_type(call[0], call[1], *([call[2]] if call.has(2) else []))
    return [Fact(dtype, _gemm_shape(call, call[0].shape, call[1].shape))]


@rule("MatMulIntegerToFloat", domain=_MICROSOFT)
def mat_mul_integer_to_float(call: Call) -> list[Fact]:
    """As of MatMul, in the type of the scales."""
    return [
        Fact(common_type(call[2], call[3]), product_shape(call[0].shape, call[1].shape)),
    ]


@rule("DynamicQuantizeMatMul", domain=_MICROSOFT)
def dynamic_quantize_mat_mul(call: Call) -> list[Fact]:
    """As of MatMul, in the type of the data."""
    return [Fact(call[0].dtype, product_shape(call[0].shape, call[1].shape))]


@rule("QGemm", domain=_MICROSOFT)
def q_gemm(call: Call) -> list[Fact]:
    """As of Gemm; codes if there is a scale of the result, else numbers of the type of a scale."""
    dtype = call.optional(8).dtype if call.has(7) else common_type(call[1], call[4])
    return [Fact(dtype, _gemm_shape(call, call[0].shape, call[3].shape))]


@rule("MatMulBnb4", "MatMulNBits", domain=_MICROSOFT)
def mat_mul_n_bits(call: Call) -> list[Fact]:
    """The data with ``N`` in place of the last dimension."""
    columns = call.integer("N", 0)
    if columns < 1 or not call.shape(0) or call.integer("transB", 1) != 1:
        raise Unknown
    return [Fact(call[0].dtype, [*call.shape(0)[:-1], columns])]


def product_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the shape of a matrix product as NumPy defines it, None where a rank is not known."""
    if a is None or b is None:
        return None
    if not a or not b:
        raise Unknown
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    stacks = broadcast_shape(a[:-2], b[:-2])
    return None if stacks is None else (*stacks, *rows, *columns)


def _gemm_shape(call: Call, a: Shape | None, b: Shape | None) -> Shape:
    rows = None if a is None else a[1 if call.integer("transA", 0) else 0]
    columns = None if b is None else b[0 if call.integer("transB", 0) else 1]
    return rows, columns
