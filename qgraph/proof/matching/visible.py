"""Which differences between two models show: the sign of a zero, and other numbers.

``distinguishes_signed_zeros`` and ``forgets`` say what one operator does with zeros of both signs.
``is_positive`` and ``is_not_negative`` exclude zeros by the operators that compute a value:

    positive        c > 0; a + b with a positive and b not negative; sqrt(a), max(a, x) with a
                    positive; Clip with positive bounds; a positive value that is moved
    not negative    c >= 0; |x|; x * x; x ** 2, 4, ...; sqrt(x), exp(x), Relu(x), Sigmoid(x),
                    Softmax(x); norms; sums, means, products and maxima of values not negative

Rounding does not carry a sum below its larger operand, nor a root of a positive number to zero; a
product of positive numbers may become zero, and counts as not negative only. NaN is not considered.

``visible`` says whether a difference reaches an output. Values that differ may become equal further
on: a Relu or a quantizer maps many numbers to one. So the difference has to reach an output, or a
sum, through operators that keep different elements different. After the sum, operators may round
and clip, but not forget the size of numbers as comparisons and normalizations do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import captured, graphs_of
from qgraph.graph.slices import reached
from qgraph.ops.kernels.mat_mul_n_bits import is_mat_mul_n_bits
from qgraph.ops.operator import operator_of
from qgraph.proof.matching.known_values import KnownValues
from qgraph.proof.matching.operators import KEEP_ALL, is_elementwise, is_move, is_moving

Array = npt.NDArray[Any]

_DEPTH = 24

_NEVER_NEGATIVE = frozenset(
    {"Abs", "Exp", "HardSigmoid", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Relu", "Sigmoid"}
    | {"Softmax", "Softplus", "Sqrt"}
)
_OF_NOT_NEGATIVE = frozenset(
    {"Add", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Mean", "Min", "Mul"}
    | {"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Sum"}
)


def is_positive(value: ir.Value | None, depth: int = _DEPTH) -> bool:
    """Return whether every number among a value's elements is above zero."""
    known, node = _read(value)
    if known is not None:
        return bool((known > 0).all())
    if node is None or depth == 0 or node.domain:
        return False
    if node.op_type == "Identity" or is_moving(node) or node.op_type == "Sqrt":
        return is_positive(node.inputs[0], depth - 1)
    if node.op_type == "Add":
        a, b = node.inputs
        return any(
            is_positive(x, depth - 1) and is_not_negative(y, depth - 1) for x, y in ((a, b), (b, a))
        )
    if node.op_type == "Max":
        return any(is_positive(x, depth - 1) for x in node.inputs)
    return node.op_type == "Clip" and _has_bounds(node, above=0)


def is_not_negative(value: ir.Value | None, depth: int = _DEPTH) -> bool:
    """Return whether no element of a value is a number below zero."""
    known, node = _read(value)
    if known is not None:
        return bool((known >= 0).all())
    if node is None or depth == 0 or node.domain:
        return False
    if node.op_type in _NEVER_NEGATIVE:
        return True
    if node.op_type == "Identity" or is_moving(node):
        return is_not_negative(node.inputs[0], depth - 1)
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return True
    if node.op_type == "Pow":
        return has_even_exponent(node) or is_not_negative(node.inputs[0], depth - 1)
    if node.op_type == "Max":
        return any(is_not_negative(x, depth - 1) for x in node.inputs)
    if node.op_type in _OF_NOT_NEGATIVE:
        operands = node.inputs[:1] if node.op_type.startswith("Reduce") else node.inputs
        return all(is_not_negative(x, depth - 1) for x in operands)
    return node.op_type == "Clip" and _has_bounds(node, above=-1)


def has_even_exponent(node: ir.Node) -> bool:
    """Return whether a Pow has constant exponents that are even and not negative."""
    exponents, _ = _read(node.inputs[1])
    return exponents is not None and bool(((exponents >= 0) & (exponents % 2 == 0)).all())


def _has_bounds(node: ir.Node, *, above: int) -> bool:
    """Return whether a Clip has constant bounds that are above a number; 0 is above -1 here."""
    low, high = ([*node.inputs[1:], None, None])[:2]
    if low is None or node.attributes:
        return False
    bounds = [_read(value)[0] for value in (low, high) if value is not None]
    return all(
        bound is not None and bool(((bound > 0) if above == 0 else (bound >= 0)).all())
        for bound in bounds
    )


def _read(value: ir.Value | None) -> tuple[Array | None, ir.Node | None]:
    """Return the float64 elements of a constant and the node that makes a value."""
    if value is None:
        return None, None
    array = constant_expression(value)
    if array is not None and array.dtype.kind in "fiu" and array.size:
        return array.astype(np.float64), None
    return None, value.producer()


_DISTINGUISHING = frozenset({"Atan2", "BitCast", "Pow", "Reciprocal", "Unique"})
"""Standard operators that distinguish zeros; Div does by its second operand."""

_FORGETTING = frozenset(
    {"Abs", "Cos", "Cosh", "Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sigmoid", "Softmax"}
    | {"Softplus"}
)
"""Standard operators with the same results for zeros of both signs."""

_DIVIDING_OF_ML = frozenset({"Normalizer"})
"""Operators of the domain of machine learning that do: they divide by the largest element."""

_QUANTIZES = frozenset({"QLinearAdd", "QLinearConv", "QLinearMatMul", "QLinearMul"})
"""Operators whose only floating operands are scales, one of which divides."""

_DOMAINS = frozenset({"", "ai.onnx.ml"})

_KNOWN = frozenset(
    OpKey("com.microsoft", name)
    for name in (
        "DequantizeLinear",
        "DynamicQuantizeMatMul",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "Gelu",
        "MatMulInteger16",
        "MatMulIntegerToFloat",
        "QLinearAdd",
        "QLinearMul",
        "QuantizeLinear",
    )
)
"""Operators of other domains that do not."""


def distinguishes_signed_zeros(node: ir.Node, touched: Sequence[ir.Value]) -> bool:
    """Return whether a node distinguishes zeros of different signs in some of its operands."""
    if node.domain == "" and node.op_type == "Div":
        return node.inputs[1] in touched and not is_positive(node.inputs[1])
    if node.domain == "" and node.op_type == "Reciprocal":
        return node.inputs[0] in touched and not is_positive(node.inputs[0])
    if node.domain == "" and node.op_type == "Pow" and has_even_exponent(node):
        return node.inputs[1] in touched  # (-0) ** 2 = (+0) ** 2 = +0
    if node.domain == "" and node.op_type == "BatchNormalization":
        return node.inputs[4] in touched  # the root of -0 is -0, and divides where epsilon is -0
    if node.domain == "" and node.op_type == "Cast":
        return node.attributes.get_int("to", 1) == ir.DataType.STRING
    if node.domain == "" and node.op_type == "CastLike":
        like = node.inputs[1]
        return like is None or like.dtype in (None, ir.DataType.STRING)
    if node.op_type in _QUANTIZES:
        codes = node.inputs[0], node.inputs[3]
        return any(value in touched for value in node.inputs if value not in codes)
    operator = operator_of(node)
    divides = operator is not None and not operator.schema.standard
    if divides or node.op_type == "QuantizeLinear":
        return any(value in touched for value in node.inputs[1:])
    if node.domain in _DOMAINS:
        return node.op_type in (_DIVIDING_OF_ML if node.domain else _DISTINGUISHING)
    known = operator is not None or is_mat_mul_n_bits(node)
    return not known and OpKey.of(node) not in _KNOWN


def forgets(node: ir.Node) -> bool:
    """Return whether a node has the same results for zeros of both signs.

    So have powers with even exponents, squares, and sums with constants that are not zero.
    """
    if node.domain:
        return False
    if node.op_type == "Pow":
        return has_even_exponent(node)
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    if node.op_type in ("Add", "Sub"):
        arrays = [constant_expression(value) for value in node.inputs]
        return any(array is not None and bool((array != 0).all()) for array in arrays)
    return node.op_type in _FORGETTING


def distinguished(graph: ir.Graph) -> frozenset[ir.Value]:
    """Return the values whose sign of zero some operator after them may distinguish.

    One walk against the order of the nodes: a value counts if a node distinguishes its zeros, if a
    node uses it inside a graph of its own, or if a floating result computed from it counts, unless
    the node has the same results for both zeros. Outputs of the model do not count.
    """
    counted: set[ir.Value] = set()
    for node in reversed(list(graph)):
        used = [value for value in node.inputs if value is not None]
        if graphs_of(node):
            counted.update(used, captured(node))
            continue
        passes_on = not counted.isdisjoint(node.outputs) and not forgets(node)
        counted.update(v for v in used if passes_on or distinguishes_signed_zeros(node, [v]))
    return frozenset(counted)


_SUMS = frozenset(
    {"AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "Gemm"}
    | {"GlobalAveragePool", "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul"}
    | {"ReduceMean", "ReduceSum"}
)

_KEEP_SIZES = frozenset(
    {"Clip", "Concat", "Dropout", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish"}
    | {"LeakyRelu", "Log", "LogSoftmax", "Pad", "PRelu", "Resize", "Selu", "Sigmoid", "Softmax"}
    | {"Softplus", "Sum", "Tanh"}
)
"""Operators after a sum that let it show, besides those that are elementwise by definition."""

_FORGET_SIZES = frozenset(
    {"And", "BipolarQuant", "Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual"}
    | {"Not", "Or", "Sign"}
)


def visible(
    value: ir.Value,
    known: KnownValues,
    outputs: Collection[ir.Value],
    *,
    everywhere: bool,
    through_sums: bool,
) -> bool:
    """Return whether a difference in ``value`` shows in one of ``outputs``.

    Args:
        value: a value of a model, or a constant.
        known: the constants of the model.
        outputs: the outputs to look at.
        everywhere: whether all elements of the value differ alike. If not, weights may not be zero
            for any channel.
        through_sums: whether sums show it, as they do not show the sign of zero.
    """
    if _is_empty(value):
        return False
    sums: list[ir.Value] = []

    def following(step: ir.Value) -> list[ir.Value]:
        results = []
        for node, index in step.uses():
            if known.has(node.outputs[0]) and not known.has(value):
                continue
            adds = through_sums and _is_sum(node, known)
            if adds and _reads(node, index, known, everywhere=everywhere):
                sums.extend(node.outputs)
                continue
            moves = index == 0 and is_move(node) and (everywhere or node.op_type in KEEP_ALL)
            if moves or (node.domain, node.op_type) == ("", "Concat"):
                results += [v for v in node.outputs if _has_elements(v, node)]
        return results

    moved = reached([value], following)
    summed = reached([result for result in sums if not _is_empty(result)], _sizes_shown)
    return any(output in moved or output in summed for output in outputs)


def _sizes_shown(value: ir.Value) -> list[ir.Value]:
    """Return the results of the nodes that show sums of different sizes."""
    shown = (node for node in value.consumers() if _shows_sizes(node))
    return [result for node in shown for result in node.outputs if not _is_empty(result)]


def _has_elements(value: ir.Value, node: ir.Node) -> bool:
    """Return whether a node leaves elements of its data; open sizes of inputs may be above 0."""
    if value.shape is None:
        return node.op_type in KEEP_ALL
    is_known = all(isinstance(size, int) or size.value for size in value.shape.dims)
    return not _is_empty(value) and (node.op_type in KEEP_ALL or is_known)


def _is_empty(value: ir.Value) -> bool:
    return value.shape is not None and 0 in value.shape.dims


def _is_sum(node: ir.Node, known: KnownValues) -> bool:
    if node.domain != "":
        return False
    joins = node.op_type in ("Add", "Sub") and not any(
        operand is None or known.has(operand) for operand in node.inputs
    )
    return joins or node.op_type in _SUMS


def _reads(node: ir.Node, index: int, known: KnownValues, *, everywhere: bool) -> bool:
    """Return whether no weight hides a difference in the operand at ``index``."""
    if index != 0 or node.op_type not in ("Conv", "Gemm", "MatMul"):
        return True
    value = node.inputs[1]
    weight = None if value is None else known.array(value)
    if weight is None:
        return value is not None and not known.has(value)
    used = weight != 0
    if everywhere:
        return bool(used.any())
    if node.op_type == "Conv":
        group = node.attributes.get_int("group", 1)
        parts = used.reshape(group, -1, *used.shape[1:])
        return bool(parts.any(axis=(1, *range(3, parts.ndim))).all())
    if weight.ndim != 2:
        return False
    turned = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0
    return bool(used.any(axis=0 if turned else 1).all())


def _shows_sizes(node: ir.Node) -> bool:
    """Return whether a node distinguishes sums of different sizes, wherever they differ enough."""
    if node.op_type in _FORGET_SIZES:
        return False
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) == ir.DataType.BOOL:
        return False
    if node.domain == "":
        named = node.op_type in _SUMS or node.op_type in _KEEP_SIZES
        return named or is_move(node) or is_elementwise(node)
    operator = operator_of(node)
    return operator is not None or node.op_type.startswith("QLinear")
