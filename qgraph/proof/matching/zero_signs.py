"""Find nodes that distinguish -0 from +0, and values whose zeros have one sign.

Two sides of a region may be equal except for the sign of zero. Nodes after the region then still
compute equal values, unless they distinguish the two zeros: division by zero, some powers,
operators that read bits, and operators that are not listed here. ``zero_sign_nodes`` finds such
nodes; ``distinguishes_signed_zeros`` and ``forgets`` describe how one operator treats zeros of both
signs. By the operators that compute a value, ``is_positive`` excludes zeros, and
``has_positive_zeros`` excludes -0:

    positive        c > 0; a + b with a positive and b not negative; sqrt(a), max(a, x) with a
                    positive; Clip with positive bounds; a positive value that is moved
    not negative    c >= 0; |x|; x * x; x ** 2, 4, ...; sqrt(x), exp(x), Relu(x), Sigmoid(x),
                    Softmax(x); norms; sums, means, products and maxima of values not negative
    no sign         c, each with a clear sign bit; |x|; x * x; x ** 2, 4, ...; exp(x), Sigmoid(x),
                    Softmax(x); roots, sums, means and products of values without sign; what Quant
                    and a DequantizeLinear of a QuantizeLinear make of them
    no -0           values without sign; DequantizeLinear of integers, which have one zero; Quant
                    with a zero point that is not 0; roots of values without -0

Rounding cannot make a sum smaller than its larger operand, nor the root of a positive number zero.
A product of positive numbers may become zero, so it only counts as not negative. NaN is not
considered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.schema import MICROSOFT, QONNX_DOMAINS, OpKey
from qgraph.graph.scopes import captured, graphs_of, input_of, producer_of
from qgraph.graph.slices import sources
from qgraph.numerics import Array
from qgraph.ops.kernels.mat_mul_n_bits import is_mat_mul_n_bits
from qgraph.ops.operator import operator_of
from qgraph.proof.matching.normalise import live_nodes
from qgraph.proof.matching.operators import is_moving
from qgraph.records import dataclass

_DEPTH = 24

_WITHOUT_SIGN = frozenset(
    {"Abs", "Exp", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sigmoid", "Softmax", "Softplus"}
)
_NEVER_NEGATIVE = _WITHOUT_SIGN | {"HardSigmoid", "Relu", "Sqrt"}
_OF_NOT_NEGATIVE = frozenset(
    {"Add", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Mean", "Min", "Mul"}
    | {"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Sum"}
)


def is_positive(value: ir.Value | None) -> bool:
    """Return whether all elements of a value are above zero, NaN excepted."""
    return _is_above(value, _DEPTH, strictly=True)


def _is_above(value: ir.Value | None, depth: int, *, strictly: bool) -> bool:
    """Return whether no element of a value is below zero, and, if ``strictly``, none is zero."""
    array, node = _read(value)
    if array is not None:
        return bool(((array > 0) if strictly else (array >= 0)).all())
    if node is None or depth == 0 or node.domain:
        return False
    above = partial(_is_above, depth=depth - 1, strictly=strictly)
    name, operands = node.op_type, node.inputs
    if name == "Identity" or is_moving(node):
        return above(operands[0])
    match name:
        case "Max":
            return any(map(above, operands))
        case "Clip":
            low, *_ = bounds = [*operands[1:], None]
            constant = all(_read(bound)[0] is not None for bound in bounds if bound is not None)
            is_bounded = low is not None and constant and not node.attributes
            return is_bounded and all(above(bound) for bound in bounds if bound is not None)
        case "Add" if strictly:
            not_negative = partial(_is_above, depth=depth - 1, strictly=False)
            return any(above(x) and not_negative(y) for x, y in (operands, operands[::-1]))
        case "Sqrt" if strictly:
            return above(operands[0])
        case "Mul" if not strictly and operands[0] is operands[1]:
            return True
        case "Pow" if not strictly:
            return has_even_exponent(node) or above(operands[0])
    if not strictly and name in _OF_NOT_NEGATIVE:
        return all(map(above, operands[:1] if name.startswith("Reduce") else operands))
    return not strictly and name in _NEVER_NEGATIVE


def has_even_exponent(node: ir.Node) -> bool:
    """Return whether a Pow has constant exponents that are even and not negative."""
    exponents, _ = _read(node.inputs[1])
    return exponents is not None and bool(((exponents >= 0) & (exponents % 2 == 0)).all())


def _read(value: ir.Value | None) -> tuple[Array | None, ir.Node | None]:
    """Return the float64 elements of a constant, and the node that computes a value."""
    if value is None:
        return None, None
    array = constant_expression(value)
    if array is not None and array.dtype.kind in "fiu" and array.size:
        return array.astype(np.float64), None
    return None, value.producer()


_DISTINGUISHING = frozenset({"Atan2", "BitCast", "Pow", "Reciprocal", "Unique"})
"""Standard operators that distinguish zeros; Div only in its second operand."""

_FORGETTING = _WITHOUT_SIGN | {"Cos", "Cosh"}
"""Standard operators with the same results for -0 and +0."""

_DIVIDING_OF_ML = frozenset({"Normalizer"})
"""Operators of ai.onnx.ml that distinguish zeros: they divide by the largest element."""

_DOMAINS = frozenset({"", "ai.onnx.ml"})

_KNOWN = frozenset(
    OpKey("com.microsoft", name)
    for name in (
        *("Attention", "BiasGelu", "DequantizeLinear", "DynamicQuantizeLSTM"),
        *("DynamicQuantizeMatMul", "FastGelu"),
        *("FusedConv", "FusedGemm", "FusedMatMul", "Gelu", "GroupQueryAttention"),
        *("MatMulInteger16", "MatMulIntegerToFloat", "MultiHeadAttention", "QLinearAdd"),
        *("QLinearMul", "QuantizeLinear", "QuickGelu", "RotaryEmbedding"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    )
) | {OpKey("qonnx.custom_op.general", n) for n in ("Im2Col", "MultiThreshold", "QuantAvgPool2d")}
"""Operators of other domains that do not distinguish zeros."""

_SCALES_OF_CACHES = 12
"""Index of the first operand of GroupQueryAttention that may divide."""


def distinguishes_signed_zeros(node: ir.Node, touched: Sequence[ir.Value]) -> bool:
    """Return whether a node distinguishes -0 from +0 in some of its operands."""
    match node.domain, node.op_type:
        case "", "Div" | "Reciprocal":
            divisor = node.inputs[1 if node.op_type == "Div" else 0]
            return divisor in touched and not is_positive(divisor)
        case "", "Pow" if has_even_exponent(node):
            return node.inputs[1] in touched  # (-0) ** 2 = (+0) ** 2 = +0
        case "", "BatchNormalization":
            return node.inputs[4] in touched  # the root of -0 is -0, and divides if epsilon is -0
        case "", "Cast":
            return node.attributes.get_int("to", 1) == ir.DataType.STRING
        case "", "CastLike":
            like = node.inputs[1]
            return like is None or like.dtype in (None, ir.DataType.STRING)
        case "" | "com.microsoft", "QLinearAdd" | "QLinearConv" | "QLinearMatMul" | "QLinearMul":
            # their only floating operands are scales, one of which divides
            codes = input_of(node, 0), input_of(node, 3)
            return any(value in touched for value in node.inputs if value not in codes)
    operator = operator_of(node)
    divides = operator is not None and not operator.schema.standard
    if divides or node.op_type == "QuantizeLinear":
        return any(value in touched for value in node.inputs[1:])
    if node.domain == MICROSOFT and node.op_type == "GroupQueryAttention":
        return any(value in touched for value in node.inputs[_SCALES_OF_CACHES:])
    if node.domain in _DOMAINS:
        return node.op_type in (_DIVIDING_OF_ML if node.domain else _DISTINGUISHING)
    is_modelled = operator is not None or is_mat_mul_n_bits(node)
    return not is_modelled and OpKey.of(node) not in _KNOWN


ArrayOf = Callable[[ir.Value], Array | None]
"""Returns the array of a constant; None for other values."""


def forgets(node: ir.Node, array_of: ArrayOf = constant_expression) -> bool:
    """Return whether a node has the same results for -0 and +0.

    Examples are powers with even exponents, squares, and sums with constants that are not zero.
    """
    if node.domain:
        return False
    match node.op_type:
        case "Pow":
            return has_even_exponent(node)
        case "Mul":
            return node.inputs[0] is node.inputs[1]
        case "Add" | "Sub":
            arrays = [array_of(value) for value in node.inputs if value is not None]
            return any(array is not None and bool((array != 0).all()) for array in arrays)
    return node.op_type in _FORGETTING


def is_whole(value: ir.Value) -> bool:
    """Return whether a value contains integers, which have one zero."""
    return value.dtype is not None and value.dtype.is_integer()


def distinguished(graph: ir.Graph) -> frozenset[ir.Value]:
    """Return the values in which a later operator may distinguish -0 from +0.

    Nodes are visited in reverse order. A value is included if a node distinguishes its zeros, if a
    subgraph of a node uses it, or if an included floating result depends on it, unless the node has
    the same results for both zeros. Outputs of the model are not included, nor are integers, which
    have one zero.
    """
    counted: set[ir.Value] = set()
    for node in reversed(list(graph)):
        used = [value for value in node.inputs if value is not None and not is_whole(value)]
        if graphs_of(node):
            counted.update(used, captured(node))
            continue
        passes_on = not counted.isdisjoint(node.outputs) and not forgets(node)
        counted.update(v for v in used if passes_on or distinguishes_signed_zeros(node, [v]))
    return frozenset(counted)


@dataclass(frozen=True, eq=False)
class ZeroRegion:
    """One side of a region, as one operator from entry to exit, and if it tells -0 from +0."""

    entry: ir.Value
    exit: ir.Value
    nodes: frozenset[ir.Node]
    tells_apart: bool


def zero_sign_nodes(
    nodes: Sequence[ir.Node],
    outputs: Iterable[ir.Value],
    starts: Collection[ir.Value],
    steps: Sequence[ZeroRegion],
    array_of: ArrayOf,
) -> list[tuple[ir.Node, str]]:
    """Return nodes that distinguish zeros whose sign may differ between models, with a reason.

    ``nodes`` are all of the model, with those of subgraphs, each graph in order. ``starts`` may be
    zeros of the other sign in the other model. Each of ``steps`` is treated as one operator.
    """
    if not starts:
        return []
    live = live_nodes(outputs)
    inside = {node for step in steps for node in step.nodes if _serves_only(node, step)}
    spread = set(starts)
    reasons: dict[ir.Node, str] = {}
    before = 0
    while len(spread) > before:
        before = len(spread)
        for node in nodes:
            touched = [
                value
                for value in sources(node.outputs[0])
                if value in spread and not is_whole(value)
            ]
            if node not in live or not touched:
                continue
            if node not in inside and distinguishes_signed_zeros(node, touched):
                reasons[node] = (
                    f"{node.op_type} distinguishes -0 from +0, and the models may compute "
                    "different zeros"
                )
            if not forgets(node, array_of):
                spread.update(_beyond(node))
        for step in steps:
            node_after = step.exit.producer()
            if step.tells_apart and step.entry in spread and node_after is not None:
                reasons[node_after] = (
                    "the region distinguishes -0 from +0, and the models may compute different "
                    "zeros"
                )
    return list(reasons.items())


def _serves_only(node: ir.Node, step: ZeroRegion) -> bool:
    """Return whether nothing outside of a region uses the results of a node in it."""
    values = [value for value in node.outputs if value is not step.exit]
    return not any(
        value.is_graph_output() or not step.nodes.issuperset(value.consumers()) for value in values
    )


def _beyond(node: ir.Node) -> list[ir.Value]:
    """Return the results that may differ in the sign of zero because an operand of ``node`` may."""
    values = [v for v in node.outputs if v.dtype is None or v.dtype.is_floating_point()]
    return values + [value for graph in graphs_of(node) for value in graph.inputs]


_KEEPING = frozenset(
    {"Add", "AveragePool", "GlobalAveragePool", "Mean", "Mul", "ReduceMean", "ReduceSum", "Sqrt"}
    | {"Sum"}
)
"""Operators whose results have no sign if no operand has one."""

_REDUCING = frozenset({"ReduceMean", "ReduceSum"})
"""Operators whose second operand is a list of axes, not data."""

Test = Callable[[ir.Value | None], bool]


def has_positive_zeros(value: ir.Value | None) -> bool:
    """Return whether no element of a value is -0."""
    return _never_minus_zero(value, _DEPTH)


def _never_minus_zero(value: ir.Value | None, depth: int) -> bool:
    if _has_no_sign(value, depth):
        return True
    node = None if value is None else value.producer()
    if node is None or depth == 0:
        return False
    operand = node.inputs[0] if node.inputs else None
    if node.domain in QONNX_DOMAINS and node.op_type == "Quant":
        points = constant_expression(node.inputs[2])
        return _is_above_zero(node.inputs[1]) and points is not None and bool((points != 0).all())
    if node.domain:
        return False
    if node.op_type == "DequantizeLinear":
        return operand is not None and is_whole(operand) and _is_above_zero(node.inputs[1])
    is_root = node.op_type in ("Identity", "Sqrt") or is_moving(node)
    return is_root and _never_minus_zero(operand, depth - 1)


def _has_no_sign(value: ir.Value | None, depth: int) -> bool:
    """Return whether the sign bit of no element is set."""
    array = constant_expression(value)
    if array is not None:
        return array.dtype.kind == "f" and not np.signbit(array).any()
    node = None if value is None else value.producer()
    if node is None or depth == 0:
        return False
    has_no_sign = partial(_has_no_sign, depth=depth - 1)
    name, operands = node.op_type, node.inputs
    if node.domain in QONNX_DOMAINS and name == "Quant":
        points = constant_expression(operands[2])
        is_centred = points is not None and not points.any()
        return is_centred and _is_above_zero(operands[1]) and has_no_sign(operands[0])
    if node.domain:
        return False
    match name:
        case "DequantizeLinear":
            return _decodes(node, has_no_sign)
        case "Mul" if operands[0] is operands[1]:
            return True
        case "Pow":
            return has_even_exponent(node) or has_no_sign(operands[0])
    if name in _KEEPING or name == "Identity" or is_moving(node):
        data = operands[:1] if name in _REDUCING or name not in _KEEPING else operands
        return all(map(has_no_sign, data))
    return name in _WITHOUT_SIGN


def _decodes(decode: ir.Node, has_no_sign: Test) -> bool:
    """Return whether codes of data without sign are decoded with their quantizer's zero point."""
    code = producer_of(decode.inputs[0], "QuantizeLinear")
    if code is None:
        return False
    ours, theirs = (constant_expression(input_of(node, 2)) for node in (code, decode))
    are_absent = input_of(code, 2) is None and input_of(decode, 2) is None
    are_equal = ours is not None and theirs is not None and np.array_equal(ours, theirs)
    are_above = _is_above_zero(code.inputs[1]) and _is_above_zero(decode.inputs[1])
    return (are_absent or are_equal) and are_above and has_no_sign(code.inputs[0])


def _is_above_zero(value: ir.Value | None) -> bool:
    array: Array | None = constant_expression(value)
    return array is not None and bool((array > 0).all())
