"""Decide whether a difference in a value reaches an output.

Values that differ may become equal further on: a Relu or a quantizer maps many numbers to one. So
the difference must reach an output, or a sum, through operators that keep different elements
different. After the sum, operators may round and clip, but not discard the magnitude of numbers,
as comparisons and normalizations do. They may take some elements only where all show the
difference: behind a Conv of single channels, a Slice may leave the channel that differs out.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from qgraph.graph.slices import reached
from qgraph.numerics import Mask
from qgraph.ops.known_values import KnownValues
from qgraph.ops.operator import operator_of
from qgraph.proof.matching.attained import joins_data
from qgraph.proof.matching.operators import KEEP_ALL, is_elementwise, is_move

_WITHOUT_WEIGHTS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum"})
_SUMS = _WITHOUT_WEIGHTS | {
    *("BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMul"),
    *("MatMulInteger", "QLinearConv", "QLinearMatMul"),
}

_KEEP_SIZES = frozenset(
    {"Clip", "Concat", "Dropout", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish"}
    | {"LeakyRelu", "Log", "LogSoftmax", "Pad", "PRelu", "Resize", "Selu", "Sigmoid", "Softmax"}
    | {"Softplus", "Sum", "Tanh"}
)
"""Operators that keep a difference of a sum visible, besides the elementwise ones."""

_FORGET_SIZES = frozenset(
    {"And", "BipolarQuant", "Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual"}
    | {"Not", "Or", "Sign"}
)

_TAKES_SOME = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split"})
"""Operators that may take the elements of some channels only."""

_ADDS_OTHERS = frozenset({"Concat", "Pad"})


def visible(
    value: ir.Value,
    known: KnownValues,
    outputs: Collection[ir.Value],
    *,
    everywhere: bool,
    through_sums: bool,
) -> bool:
    """Return whether a difference in ``value`` reaches one of ``outputs``.

    Args:
        value: a value of a model, or a constant.
        known: the constants of the model.
        outputs: the outputs to examine.
        everywhere: whether all elements of the value differ in the same way. If not, no channel may
            have only weights of zero.
        through_sums: whether sums keep the difference visible; they lose the sign of zero.
    """
    if _is_empty(value):
        return False
    sums: dict[ir.Value, bool] = {}

    def following(step: ir.Value) -> list[ir.Value]:
        results = []
        for node, index in step.uses():
            if known.has(node.outputs[0]) and not known.has(value):
                continue
            reads = through_sums and _reads(node, index, known, everywhere=everywhere)
            if reads and _is_sum(node, known):
                sums.update(_filled(node, index, known, everywhere=everywhere))
                continue
            moves = index == 0 and is_move(node) and (everywhere or node.op_type in KEEP_ALL)
            if moves or (node.domain, node.op_type) == ("", "Concat"):
                results += [v for v in node.outputs if _has_elements(v, node)]
        return results

    moved = reached([value], following)
    summed = _summed(sums, known)
    return any(output in moved or output in summed for output in outputs)


def _summed(sums: dict[ir.Value, bool], known: KnownValues) -> dict[ir.Value, bool]:
    """Return the values in which a difference of sums is visible, and whether in all elements."""
    found, pending = dict(sums), list(sums)
    while pending:
        step = pending.pop()
        for node, index in step.uses():
            takes_some = node.domain == "" and node.op_type in _TAKES_SOME
            if not _shows_sizes(node, known) or (takes_some and not found[step]):
                continue
            if _is_sum(node, known) and not _reads(node, index, known, everywhere=found[step]):
                continue
            for result, is_filled in _filled(node, index, known, everywhere=found[step]).items():
                if result not in found or (is_filled and not found[result]):
                    found[result] = is_filled
                    pending.append(result)
    return found


def _is_sum(node: ir.Node, known: KnownValues) -> bool:
    return node.domain == "" and (node.op_type in _SUMS or joins_data(node, known))


def _filled(
    node: ir.Node, index: int, known: KnownValues, *, everywhere: bool
) -> dict[ir.Value, bool]:
    """Return the results of a node, and whether all elements of them show a difference.

    Args:
        node: the node.
        index: of the operand that differs.
        known: the constants of the model.
        everywhere: whether all elements of the operand show the difference.
    """
    is_filled = everywhere and node.op_type not in _ADDS_OTHERS
    if index == 0 and _has_weights(node, known):
        used = _used(node, known)
        is_filled = used is not None and bool((used.any(axis=1) if everywhere else used).all())
    return {result: is_filled for result in node.outputs if not _is_empty(result)}


def _has_elements(value: ir.Value, node: ir.Node) -> bool:
    """Return whether the result of a node has elements, if symbolic dimensions are above 0."""
    if value.shape is None:
        return node.op_type in KEEP_ALL
    is_known = all(isinstance(size, int) or size.value for size in value.shape.dims)
    return not _is_empty(value) and (node.op_type in KEEP_ALL or is_known)


def _is_empty(value: ir.Value) -> bool:
    return value.shape is not None and 0 in value.shape.dims


def _reads(node: ir.Node, index: int, known: KnownValues, *, everywhere: bool) -> bool:
    """Return whether no weight hides a difference in the operand at ``index``."""
    is_float = node.op_type in ("BatchNormalization", "Conv", "ConvTranspose", "Gemm", "MatMul")
    if index != 0 or not is_float or not _has_weights(node, known):
        return True
    used = _used(node, known)
    return used is not None and bool(used.any() if everywhere else used.any(axis=0).all())


def _has_weights(node: ir.Node, known: KnownValues) -> bool:
    """Return whether a node is a sum with constant weights."""
    is_weighted = node.domain == "" and node.op_type in _SUMS - _WITHOUT_WEIGHTS
    weights = node.inputs[1:4:2] if node.op_type.startswith("QLinear") else node.inputs[1:2]
    return is_weighted and any(value is not None and known.has(value) for value in weights)


def _used(node: ir.Node, known: KnownValues) -> Mask | None:
    """Return for each channel of results and of data whether a weight is not zero; or None."""
    value = node.inputs[1]
    weight = None if value is None else known.array(value)
    if weight is None or not weight.ndim:
        return None
    used = weight != 0
    match node.op_type:
        case "BatchNormalization":
            return np.asarray(np.diag(used))
        case "Conv" | "ConvTranspose":
            group = node.attributes.get_int("group", 1)
            used = used.any(axis=tuple(range(2, used.ndim)))
            parts = np.split(used, group)
            if node.op_type == "ConvTranspose":
                parts = [part.T for part in parts]
            rows, columns = parts[0].shape
            whole = np.zeros((group, rows, group, columns), np.bool_)
            for number, part in enumerate(parts):
                whole[number, :, number] = part
            return whole.reshape(group * rows, group * columns)
        case "Gemm" | "MatMul":
            used = used[:, None] if used.ndim == 1 else used
            used = used.all(axis=tuple(range(used.ndim - 2)))
            is_turned = node.attributes.get_int("transB", 0) != 0
            return np.asarray(used if is_turned else used.T)
    return None


def _shows_sizes(node: ir.Node, known: KnownValues) -> bool:
    """Return whether a node gives different results for two sums that differ enough."""
    if node.domain == "" and node.op_type in ("Mul", "Where"):
        constants = (known.array(value) for value in node.inputs if value and known.has(value))
        if any(array is None or not array.all() for array in constants):
            return False  # zeros, or a choice of other elements
    to_truth = node.op_type == "Cast" and node.attributes.get_int("to", 0) == ir.DataType.BOOL
    if to_truth or node.op_type in _FORGET_SIZES:
        return False
    if node.domain == "":
        named = node.op_type in _SUMS or node.op_type in _KEEP_SIZES
        return named or is_move(node) or is_elementwise(node)
    return operator_of(node) is not None or node.op_type.startswith("QLinear")
