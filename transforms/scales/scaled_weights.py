"""How the weights of an operator take in a factor of its output."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from qgraph.graph.folding import constant_expression
from qgraph.transforms.scales.scaled_constants import Float64, Scaling, Stuck, title

Push = Callable[[ir.Value, ir.Node, Float64, Scaling], None]
"""Multiplies a value, which a node reads, by a factor: see ``output_scale``."""


OUTPUT_SCALES = {"FakeQuantize": (3, 4), "DequantizeLinear": (1,)}
"""Inputs of quantizers to which their output is proportional."""

TWICE = ("Quant", "IntQuant", "BipolarQuant", "FloatQuant", "Trunc")
"""Quantizers that use their scale twice."""

_SAME_RANK = (
    *("Relu", "LeakyRelu", "Clip", "Neg", "Abs", "Identity", "Dropout", "BatchNormalization"),
    *("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"),
    *("FakeQuantize", "QuantizeLinear", "DequantizeLinear"),
)
"""Operators whose output has the rank of their first input."""

_BROADCAST = ("Add", "Sub", "Mul", "Div", "PRelu", "Where", "Sum", "Max", "Min")
"""Operators whose output has the highest rank of their inputs."""

_MATRIX = 2


def conv(node: ir.Node, factor: Float64, found: Scaling, push: Push) -> None:
    """Multiply the weights ``[M, C, ...]`` and the bias ``[M]`` of a Conv."""
    if factor.size == 1:
        _weights(node, factor.reshape(()), factor.reshape(()), found, push)
        return
    rank = _rank(node, node.inputs[1])
    channels = along(node, factor, 1, rank)
    _weights(node, channels.reshape(-1, *[1] * (rank - 1)), channels, found, push)


def conv_transpose(node: ir.Node, factor: Float64, found: Scaling, push: Push) -> None:
    """Multiply the weights ``[C, M, ...]`` and the bias ``[M]`` of a ConvTranspose."""
    if factor.size == 1:
        _weights(node, factor.reshape(()), factor.reshape(()), found, push)
        return
    rank = _rank(node, node.inputs[1])
    channels = along(node, factor, 1, rank)
    if (node.attributes.get_int("group", 1) or 1) > 1:
        raise Stuck(f"{title(node)} has groups, and each of its channels a scale of its own")
    _weights(node, channels.reshape(1, -1, *[1] * (rank - 2)), channels, found, push)


def _weights(node: ir.Node, weight: Float64, bias: Float64, found: Scaling, push: Push) -> None:
    """Multiply the weight, input 1, and the bias, input 2, if there is one."""
    _operand(node, 1, weight, found, push)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        _operand(node, 2, bias, found, push, grows=node.op_type == "Gemm")
    found.absorbers.append(node)


def mat_mul(node: ir.Node, factor: Float64, found: Scaling, push: Push) -> None:
    """Multiply the constant operand of a MatMul, by columns if it is the second one."""
    reasons = []
    for place in (1, 0):
        if place == 0 and factor.size > 1:
            continue
        attempt = Scaling()
        try:
            _operand(node, place, _columns(node, factor), attempt, push)
        except Stuck as stuck:
            reasons.append(stuck.reason)
        else:
            found.join(attempt)
            found.absorbers.append(node)
            return
    raise Stuck(reasons[0])


def gemm(node: ir.Node, factor: Float64, found: Scaling, push: Push) -> None:
    """Multiply the second operand and the summand of a Gemm by columns."""
    columns = _columns(node, factor)
    transposed = columns.ndim > 0 and bool(node.attributes.get_int("transB", 0))
    _weights(node, columns.reshape(-1, 1) if transposed else columns, columns, found, push)


def _columns(node: ir.Node, factor: Float64) -> Float64:
    """Return one factor, or a list of those that vary along the last axis."""
    if factor.size == 1:
        return factor.reshape(())
    if factor.shape[-1] != factor.size or _rank(node, node.inputs[1]) < _MATRIX:
        raise Stuck(f"the scales of {title(node)} do not lie along its last axis")
    return factor.reshape(-1)


def along(node: ir.Node, factor: Float64, axis: int, rank: int | None = None) -> Float64:
    """Return one factor, or a list of those that vary along ``axis`` of the output of a node.

    Args:
        node: the operator.
        factor: broadcasts to its output.
        axis: where they may vary.
        rank: of the output; as the graph tells if None.

    Raises:
        Stuck: the factors vary otherwise, or the rank is not known.
    """
    if factor.size == 1:
        return factor.reshape(())
    rank = _rank(node, node.outputs[0]) if rank is None else rank
    sizes = (1,) * (rank - factor.ndim) + factor.shape
    if len(sizes) != rank or sizes[axis] != factor.size:
        raise Stuck(f"the scales of {title(node)} do not lie along its channels")
    return factor.reshape(-1)


def _rank(node: ir.Node, value: ir.Value | None) -> int:
    """Return the rank of a value that matters to ``node``."""
    found = _rank_of(value)
    if found is None:
        name = "" if value is None else value.name
        raise Stuck(f"the shape of {name!r} at {title(node)} is not known; infer shapes first")
    return found


def _rank_of(value: ir.Value | None) -> int | None:
    """Return the rank of a value, by its shape or by what it is computed from."""
    known = constant_expression(value)
    if known is not None or value is None:
        return None if known is None else known.ndim
    if value.shape is not None:
        return len(value.shape)
    node = value.producer()
    if node is None:
        return None
    if node.op_type in ("Conv", "ConvTranspose"):
        return _rank_of(node.inputs[1])
    if node.op_type in _SAME_RANK:
        return _rank_of(node.inputs[0])
    if node.op_type not in _BROADCAST:
        return None
    ranks = [_rank_of(operand) for operand in node.inputs]
    known_ranks = [rank for rank in ranks if rank is not None]
    return max(known_ranks) if len(known_ranks) == len(ranks) else None


def _operand(
    node: ir.Node,
    place: int,
    factor: Float64,
    found: Scaling,
    push: Push,
    *,
    grows: bool = False,
) -> None:
    """Multiply a constant, or what is computed from constants by quantizers and decoders."""
    value = node.inputs[place]
    if value is None or not is_known(value):
        raise Stuck(f"input {place} of {title(node)} is no constant, nor one that is quantized")
    if constant_expression(value) is not None and not _is_quantizer(value.producer()):
        found.scale(node, place, factor, grows=grows)
    else:
        push(value, node, factor, found)


def _is_quantizer(node: ir.Node | None) -> bool:
    return node is not None and node.op_type in OUTPUT_SCALES


def quantized(quantizer: ir.Node, factor: Float64, found: Scaling) -> None:
    """Multiply the output scale of a quantizer of constants."""
    for limit in OUTPUT_SCALES[quantizer.op_type]:
        grows = quantizer.op_type == "FakeQuantize"
        found.scale(quantizer, limit, _fitted(quantizer, limit, factor), grows=grows)


def is_known(value: ir.Value) -> bool:
    """Return whether a value is computed from constants alone."""
    pending, seen = [value], {value}
    while pending:
        some = pending.pop()
        if constant_expression(some) is not None:
            continue
        node = some.producer()
        if node is None or not node.inputs:
            return False
        pending += [v for v in node.inputs if v is not None and v not in seen]
        seen.update(pending)
    return True


def _fitted(quantizer: ir.Node, place: int, factor: Float64) -> Float64:
    """Return the factor in the shape of the scale of a DequantizeLinear, if it has one."""
    known = constant_expression(quantizer.inputs[place])
    if quantizer.op_type == "FakeQuantize" or factor.size == 1 or known is None:
        return factor
    axis = quantizer.attributes.get_int("axis", 1) or 0
    places = [place for place, size in enumerate(factor.shape) if size > 1]
    blocked = bool(quantizer.attributes.get_int("block_size", 0))
    if known.shape != (factor.size,) or places != [axis % factor.ndim] or blocked:
        raise Stuck(f"the scales of {title(quantizer)} do not lie along the output channels")
    return factor.reshape(-1)
