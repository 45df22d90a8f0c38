"""Operators whose result has the type of some operands and the shape to which some broadcast.

Most are rows of a table: the source of the type, and the operands that broadcast. Broadcasting
is multidirectional; it, the type constraints and the outputs are those of the operators'
definitions. Elements are computed in :mod:`qgraph.graph.inference.arithmetic`. Quantizers of all
dialects, products along axes, attention and samples at the points of a grid are here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import onnx_ir as ir

from qgraph.graph.inference.arithmetic import calculated
from qgraph.graph.inference.dimensions import Dim, broadcast, exact_divide, limits_of, multiply
from qgraph.graph.inference.rules import (
    UNKNOWN,
    Call,
    Fact,
    Rule,
    Shape,
    common_type,
    require,
    rule,
)
from qgraph.graph.schema import MICROSOFT, QONNX_DOMAINS

TypeSource: TypeAlias = ir.DataType | tuple[int, ...]
"""An element type, or the operands that share it."""

_SAME_FORM = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Celu", "Clip",
    "Cos", "Cosh", "CumSum", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
    "Hardmax", "Identity", "InstanceNormalization", "LRN", "LeakyRelu", "Log", "LogSoftmax",
    "LpNormalization", "MeanVarianceNormalization", "Mish", "Neg", "Not", "RMSNormalization",
    "Reciprocal", "Relu", "ReverseSequence", "Round", "Scatter", "ScatterElements", "ScatterND",
    "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus", "Softsign", "Sqrt",
    "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu",
)  # fmt: skip
"""Operators whose result has the type and the shape of their first operand."""

_BINARY = (
    "Add", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Max", "Mean", "Min", "Mod", "Mul",
    "Sub", "Sum",
)  # fmt: skip
"""Operators whose operands have one type and broadcast, which is the form of the result."""

_COMPARING = ("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Xor")

_BROADCASTS_SINCE = {"Max": 8, "Mean": 8, "Min": 8, "Sum": 8}
"""First opset in which an operator broadcasts; opset 7 for all others."""


@rule(*_SAME_FORM)
def same_form(call: Call) -> list[Fact]:
    """The type and the shape of the first operand."""
    x = call[0]
    items = calculated(call.node.op_type, x.dtype, x.items) if len(call.operands) == 1 else None
    return [Fact(x.dtype, x.shape, items)]


@rule("Dropout")
def dropout(call: Call) -> list[Fact]:
    """The form of the data, and a mask, which is of truth values since opset 10."""
    x = call[0]
    mask = ir.DataType.BOOL if call.version >= 10 else x.dtype
    return [Fact(x.dtype, x.shape), Fact(mask, x.shape)]


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_normalization(call: Call) -> list[Fact]:
    """The form of the data, also of the fourth output, the sum that is normalised."""
    form = Fact(call[0].dtype, call[0].shape)
    return [form, UNKNOWN, UNKNOWN, form]


@rule("Attention", "GroupQueryAttention", "MultiHeadAttention", domain=MICROSOFT)
def contributed_attention(call: Call) -> list[Fact]:
    """The type of the query; its last axis may also hold keys and values."""
    return [Fact(call[0].dtype)]


_FORMS: list[tuple[str, str, TypeSource, tuple[int, ...]]] = [
    ("", "BatchNormalization GroupNormalization LayerNormalization PRelu", (0,), (0,)),
    ("", "RotaryEmbedding SimplifiedLayerNormalization", (0,), (0,)),
    ("", "GatherElements", (0,), (1,)),
    ("", "IsInf IsNaN", ir.DataType.BOOL, (0,)),
    (MICROSOFT, "BiasGelu FastGelu Gelu QuickGelu RotaryEmbedding", (0,), (0,)),
    (MICROSOFT, "QLinearLeakyRelu QLinearSigmoid QLinearSoftmax", (0,), (0,)),
    (MICROSOFT, "QLinearAdd QLinearMul", (0, 3), (0, 3)),
    (MICROSOFT, "QLinearWhere", (1, 4), (0, 1, 4)),
    ("com.amd.quark", "BFPQuantizeDequantize MXQuantizeDequantize", (0,), (0,)),
    ("com.amd.quark", "ExtendedQuantizeLinear", (2,), (0,)),
    ("com.amd.quark", "ExtendedDequantizeLinear", (1,), (0,)),
    ("com.vai.quantize", "BFPFixNeuron MXFixNeuron", (0,), (0,)),
    ("com.vai.quantize", "VitisQuantizeLinear", (2,), (0,)),
    ("com.vai.quantize", "VitisDequantizeLinear", (1,), (0,)),
    ("trt", "TRT_FP4QDQ", (0,), (0,)),
    ("trt", "TRT_FP8QuantizeLinear", ir.DataType.FLOAT8E4M3FN, (0,)),
    ("trt", "TRT_INT4QuantizeLinear", ir.DataType.INT4, (0,)),
    ("trt", "DequantizeLinear", (1,), (0,)),
    ("trt", "TRT_FP8DequantizeLinear TRT_INT4DequantizeLinear", (1,), (0,)),
    ("", "TRT_INT4DequantizeLinear", (1,), (0,)),
    ("", "FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel", (0,), (0,)),
    ("", "TRT_INT4QuantizeLinear", ir.DataType.INT4, (0,)),
    *(
        (domain, "MultiThreshold", ir.DataType.FLOAT, (0,))
        for domain in (QONNX_DOMAINS[0], *QONNX_DOMAINS[2:])
    ),
]
"""Domain, operators, the source of the type, and the operands that broadcast to the shape.

Further results, such as the statistics of a normalisation, are not followed.
"""

_PRODUCTS: list[tuple[str, str, TypeSource, tuple[int, int]]] = [
    ("", "MatMul", (0, 1), (0, 1)),
    ("", "MatMulInteger", ir.DataType.INT32, (0, 1)),
    ("", "QLinearMatMul", (7,), (0, 3)),
    (MICROSOFT, "MatMulIntegerToFloat", (2, 3), (0, 1)),
    (MICROSOFT, "DynamicQuantizeMatMul", (0,), (0, 1)),
]
"""Domain, operator, the source of the type, and the two matrices."""


def type_of(call: Call, source: TypeSource) -> ir.DataType | None:
    """Return the element type that a source names."""
    return (
        source if isinstance(source, ir.DataType) else common_type(*map(call.__getitem__, source))
    )


def _broadcast(call: Call, operands: Sequence[int]) -> Shape | None:
    """Return the shape to which operands broadcast."""
    shape: Shape | None = ()
    for index in operands:
        shape = broadcast_shape(shape, call[index].shape, call.limits)
    return shape


def _form_rule(source: TypeSource, operands: Sequence[int]) -> Rule:
    return lambda call: [Fact(type_of(call, source), _broadcast(call, operands))]


def _product_rule(source: TypeSource, matrices: tuple[int, int]) -> Rule:
    def product(call: Call) -> list[Fact]:
        left, right = (call[index].shape for index in matrices)
        return [Fact(type_of(call, source), product_shape(left, right))]

    return product


for _domain, _names, _source, _operands in _FORMS:
    rule(*_names.split(), domain=_domain)(_form_rule(_source, _operands))
for _domain, _name, _source, _matrices in _PRODUCTS:
    rule(_name, domain=_domain)(_product_rule(_source, _matrices))


@rule("Pow", "BitShift")
def of_first_type(call: Call) -> list[Fact]:
    """The type of the first operand in the shape to which both broadcast."""
    _check_broadcast(call)
    return [Fact(call[0].dtype, _broadcast(call, (0, 1)))]


@rule(*_BINARY, *_COMPARING)
def binary(call: Call) -> list[Fact]:
    """The common type, or truth values, in the shape to which the operands broadcast."""
    _check_broadcast(call)
    name, operands = call.node.op_type, [call[index] for index in range(len(call.operands))]
    dtype, shape = common_type(*operands), _broadcast(call, range(len(operands)))
    if name == "Mod" and call.integer("fmod", 0):
        name = "Fmod"
    items = calculated(name, dtype, *(x.items for x in operands)) if len(operands) == 2 else None
    return [Fact(ir.DataType.BOOL if name in _COMPARING else dtype, shape, items)]


@rule("Where")
def where(call: Call) -> list[Fact]:
    """The common type of the branches in the shape to which all operands broadcast."""
    dtype = common_type(call[1], call[2])
    items = calculated("Where", dtype, *(call[index].items for index in range(3)))
    return [Fact(dtype, _broadcast(call, range(3)), items)]


def broadcast_shape(
    a: Shape | None, b: Shape | None, limits: dict[str, int] | None = None
) -> Shape | None:
    """Return the shape to which two shapes broadcast, None where a rank is not known.

    ``limits`` gets upper bounds of open sizes, without which the shapes do not broadcast.

    Raises:
        ValueError: they do not broadcast.
    """
    if a is None or b is None:
        return None
    if a == () or b == ():
        return a or b
    rank = max(len(a), len(b))
    ours, theirs = ((1,) * (rank - len(shape)) + shape for shape in (a, b))
    if limits is not None:
        for m, n in zip(ours, theirs, strict=True):
            for text, number in limits_of(m, n).items():
                limits[text] = min(number, limits.get(text, number))
    return tuple(broadcast(m, n) for m, n in zip(ours, theirs, strict=True))


def _check_broadcast(call: Call) -> None:
    """Refuse versions that broadcast along an attribute, or not at all."""
    since = _BROADCASTS_SINCE.get(call.node.op_type, 7)
    require(call.version >= since or sum(each is not None for each in call.operands) < 2)


def _quantize_linear(call: Call) -> list[Fact]:
    """The data's shape, in the type of the zero point, else of ``output_dtype``, else uint8."""
    named = call.dtype("output_dtype") or ir.DataType.UINT8
    return [Fact(call[2].dtype if call.has(2) else named, call[0].shape)]


def _dequantize_linear(call: Call) -> list[Fact]:
    """The shape of the codes, in the type of ``output_dtype``, else of the scale."""
    return [Fact(call.dtype("output_dtype") or call[1].dtype, call[0].shape)]


for _domain in ("", MICROSOFT):
    rule("QuantizeLinear", domain=_domain)(_quantize_linear)
    rule("DequantizeLinear", domain=_domain)(_dequantize_linear)


@rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call) -> list[Fact]:
    """Codes of uint8 in the data's shape, and a single scale and zero point."""
    codes = ir.DataType.UINT8
    return [Fact(codes, call[0].shape), Fact(ir.DataType.FLOAT, ()), Fact(codes, ())]


def of_quantizer(call: Call) -> list[Fact]:
    """The shape to which the data and all parameters broadcast; float32 where the data is."""
    shape = _broadcast(call, [0, *filter(call.has, range(1, len(call.operands)))])
    return [Fact(call[0].dtype if call[0].dtype is ir.DataType.FLOAT else None, shape)]


for _domain in QONNX_DOMAINS:
    rule("BipolarQuant", "FloatQuant", "IntQuant", "Quant", "Trunc", domain=_domain)(of_quantizer)


def _fake_quantize(call: Call) -> list[Fact]:
    """The shape of the data, to which the ends of the ranges broadcast."""
    require(call.text("auto_broadcast", "numpy") == "numpy", len(call.operands) > 4)
    return of_quantizer(call)


rule("FakeQuantize", domain="org.openvinotoolkit")(_fake_quantize)
rule("FakeQuantize")(_fake_quantize)


@rule("FusedGemm", domain=MICROSOFT)
@rule("Gemm")
def gemm(call: Call) -> list[Fact]:
    """Two dimensions: rows of the first matrix, columns of the second, after transposition."""
    require(call.version >= 7 or call.node.domain)
    dtype = common_type(call[0], call[1], *([call[2]] if call.has(2) else []))
    return [Fact(dtype, _gemm_shape(call, call[0].shape, call[1].shape))]


@rule("FusedMatMul", domain=MICROSOFT)
def fused_matmul(call: Call) -> list[Fact]:
    """As of MatMul, of matrices that may be transposed."""
    require(not call.integer("transBatchA", 0), not call.integer("transBatchB", 0))
    shapes = []
    for index, name in enumerate(("transA", "transB")):
        shape = call[index].shape
        is_turned = call.integer(name, 0) and shape is not None and len(shape) > 1
        shapes.append((*shape[:-2], shape[-1], shape[-2]) if is_turned and shape else shape)
    return [Fact(common_type(call[0], call[1]), product_shape(*shapes))]


@rule("QGemm", domain=MICROSOFT)
def q_gemm(call: Call) -> list[Fact]:
    """As of Gemm; codes if there is a scale of the result, else numbers of the type of a scale."""
    dtype = call.optional(8).dtype if call.has(7) else common_type(call[1], call[4])
    return [Fact(dtype, _gemm_shape(call, call[0].shape, call[3].shape))]


@rule("MatMulBnb4", "MatMulNBits", domain=MICROSOFT)
def mat_mul_n_bits(call: Call) -> list[Fact]:
    """The data with ``N`` in place of the last dimension."""
    columns = call.integer("N", 0)
    require(columns > 0, call.shape(0), call.integer("transB", 1) == 1)
    return [Fact(call[0].dtype, [*call.shape(0)[:-1], columns])]


def product_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the shape of a matrix product as NumPy defines it, None where a rank is not known."""
    if a is None or b is None:
        return None
    require(a, b)
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    stacks = broadcast_shape(a[:-2], b[:-2])
    return None if stacks is None else (*stacks, *rows, *columns)


def _gemm_shape(call: Call, a: Shape | None, b: Shape | None) -> Shape:
    rows = None if a is None else a[1 if call.integer("transA", 0) else 0]
    columns = None if b is None else b[0 if call.integer("transB", 0) else 1]
    return rows, columns


@rule("Attention")
def attention(call: Call) -> list[Fact]:
    """The form of the queries, with as many elements by head as the values have."""
    queries, keys, values = call[0], call[1], call[2]
    return [
        Fact(queries.dtype, _attended(call, queries.shape, values.shape)),
        Fact(keys.dtype),
        Fact(values.dtype),
    ]


def _attended(call: Call, queries: Shape | None, values: Shape | None) -> Shape | None:
    if queries is None or values is None:
        return None
    if len(queries) == 4:
        return (*queries[:3], values[3])
    heads, groups = call.integer("q_num_heads", 0), call.integer("kv_num_heads", 0)
    require(len(queries) == 3, heads > 0, groups > 0)
    return (*queries[:2], multiply(exact_divide(values[2], groups), heads))


@rule("Einsum")
def einsum(call: Call) -> list[Fact]:
    """The common type, with the sizes that the letters of the result have in the operands."""
    operands = [call[index] for index in range(len(call.operands))]
    dtype = common_type(*operands)
    left, arrow, right = call.text("equation", "").replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in left or any(each.shape is None for each in operands):
        return [Fact(dtype)]
    sizes: dict[str, Dim] = {}
    for term, operand in zip(terms, operands, strict=True):
        for letter, size in zip(term, operand.shape or (), strict=True):
            sizes[letter] = broadcast(sizes[letter], size) if letter in sizes else size
    if not arrow:
        right = "".join(sorted(letter for letter in sizes if left.count(letter) == 1))
    return [Fact(dtype, [sizes[letter] for letter in right])]


@rule("GridSample")
def grid_sample(call: Call) -> list[Fact]:
    """The type, samples and channels of the data, and the points of the grid."""
    return [Fact(call[0].dtype, (*call.shape(0)[:2], *call.shape(1)[1:-1]))]
