"""Whether other elements of a value show in outputs of a model, as far as its operators tell.

Two values that differ may become equal further on: a Relu or a quantizer makes one number of many.
So what differs has to reach an output, or a sum, through operators that keep different elements
different. From the sum on, operators may round and clip, but not forget the size of numbers as
comparisons and normalizations do.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from qgraph.matching.attained import KEEP_ALL, is_move
from qgraph.matching.elementwise import is_elementwise
from qgraph.matching.known_values import KnownValues
from qgraph.ops.operator import operator_of

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
    pending, seen = ([] if _is_empty(value) else [value]), {value}
    while pending:
        step = pending.pop()
        if step in outputs:
            return True
        for node, place in step.uses():
            if known.has(node.outputs[0]) and not known.has(value):
                continue
            adds = through_sums and _is_sum(node, known)
            if adds and _reads(node, place, known, everywhere=everywhere):
                if _reaches([made for made in node.outputs if not _is_empty(made)], outputs):
                    return True
                continue
            moves = place == 0 and is_move(node) and (everywhere or node.op_type in KEEP_ALL)
            moves |= (node.domain, node.op_type) == ("", "Concat")
            fresh = [made for made in node.outputs if made not in seen] if moves else []
            seen.update(fresh)
            pending += [made for made in fresh if _has_elements(made, node)]
    return False


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


def _reads(node: ir.Node, place: int, known: KnownValues, *, everywhere: bool) -> bool:
    """Return whether no weight hides a difference in the operand of a place."""
    if place != 0 or node.op_type not in ("Conv", "Gemm", "MatMul"):
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


def _reaches(values: Collection[ir.Value], outputs: Collection[ir.Value]) -> bool:
    pending, seen = list(values), set(values)
    while pending:
        step = pending.pop()
        if step in outputs:
            return True
        for node in step.consumers():
            fresh = [made for made in node.outputs if made not in seen] if _shows(node) else []
            fresh = [made for made in fresh if not _is_empty(made)]
            seen.update(fresh)
            pending += fresh
    return False


def _shows(node: ir.Node) -> bool:
    """Return whether a node tells sums of different sizes apart, wherever they differ enough."""
    if node.op_type in _FORGET_SIZES:
        return False
    if node.op_type == "Cast" and node.attributes.get_int("to", 0) == ir.DataType.BOOL:
        return False
    if node.domain == "":
        named = node.op_type in _SUMS or node.op_type in _KEEP_SIZES
        return named or is_move(node) or is_elementwise(node)
    operator = operator_of(node)
    return operator is not None or node.op_type.startswith("QLinear")
