"""Move a factor from the output of operators into their constants.

``f(x) * c`` becomes the same operators with other constants: ``Conv(x, w, b) * c`` is
``Conv(x, w*c, b*c)``, ``Relu(v) * c`` is ``Relu(v*c)``, and so on up to an operator that
absorbs the factor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import Facts
from qgraph.graph.scopes import input_of
from qgraph.graph.slices import nearest_cut
from qgraph.numerics import Float32, Float64
from qgraph.ops.steps import TO_FLOAT32
from qgraph.records import dataclass, field
from qgraph.transforms.drafts.rebuilding import replace_nodes


class Stuck(Exception):  # noqa: N818 - a finding, not a fault
    """A factor cannot be moved further; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class Scaling:
    """Constants to replace so that a value is multiplied by a factor.

    Attributes:
        constants: for each node and index of an input, the new constant.
        absorbers: the nodes that absorb the factor.
        exact: whether each constant is the product without rounding, by powers of two.
    """

    constants: dict[ir.Node, dict[int, Float32]] = field(default_factory=dict)
    absorbers: list[ir.Node] = field(default_factory=list)
    exact: bool = True
    facts: Facts = field(default_factory=dict)

    def rank(self, node: ir.Node, value: ir.Value | None) -> int:
        """Return the rank of a value that ``node`` depends on; Stuck if it is not known."""
        fact = UNKNOWN if value is None else self.facts.get(value, UNKNOWN)
        shape = fact.shape if value is None or value.shape is None else value.shape.dims
        if shape is None:
            name = "" if value is None else value.name
            raise Stuck(
                f"the shape of {name!r} at {title(node)} is unknown; run shape inference first"
            )
        return len(shape)

    def scale(self, node: ir.Node, index: int, factor: Float64, *, grows: bool = False) -> None:
        """Multiply a constant input of a node; it ``grows`` if it may be broadcast to the factor.

        Raises:
            Stuck: it is not constant, is no float32, leaves the range of float32, or would grow.
        """
        before = constant_expression(node.inputs[index])
        if before is None:
            what = f"input {index} of {title(node)} is not constant"
            raise Stuck(f"{what}; run -p fold-constants first, if it follows from constants")
        if before.dtype != np.float32:
            dtype = before.dtype
            raise Stuck(f"input {index} of {title(node)} is {dtype}, not float32; {TO_FLOAT32}")
        product = before.astype(np.float64) * factor
        if product.shape != before.shape and not grows:
            raise Stuck(f"the shape of the scales does not fit input {index} of {title(node)}")
        with np.errstate(over="ignore", under="ignore"):
            scaled = product.astype(np.float32)
        if (np.isfinite(product) & ~np.isfinite(scaled)).any():
            raise Stuck(f"a constant of {title(node)} would exceed the range of float32")
        self.exact &= bool(np.array_equal(scaled, product, equal_nan=True)) and is_power(factor)
        self.constants.setdefault(node, {})[index] = scaled

    def absorb(self, node: ir.Node, index: int, factor: Float64) -> None:
        """Multiply a constant input, so that the node absorbs the factor."""
        self.scale(node, index, factor, grows=True)
        self.absorbers.append(node)

    def settle(self, editor: Editor) -> None:
        """Insert the new constants into the graph; nodes keep their names."""
        replace_nodes(self.drafts(editor), editor)

    def drafts(self, editor: Editor) -> dict[ir.Node, Draft]:
        """Return the replacement of each node with new constants, for :func:`replace_nodes`."""
        drafts = {}
        for node, constants in self.constants.items():
            inputs = list(enumerate(node.inputs))
            data = next(v for i, v in inputs if v is not None and i not in constants)
            draft = editor.draft(Region(data, node.outputs[0], (node,)))
            operands: list[Operand | None] = [draft.x if v is data else v for _, v in inputs]
            for index, array in constants.items():
                operands[index] = draft.constant(array, "scaled")
            drafts[node] = draft.giving(draft.copy(node, operands))
        return drafts


def is_power(factor: Float64) -> bool:
    """Return whether all factors are powers of two."""
    return bool((np.frexp(factor)[0] == 0.5).all())


def title(node: ir.Node) -> str:
    """Return operator and name for messages."""
    return f"{node.op_type} {node.name or node.outputs[0].name!r}"


Rule = Callable[[ir.Node, Float64, Scaling], None]
"""Multiplies the output of a node by a factor."""

_OUTPUT_SCALES = {"FakeQuantize": (3, 4), "DequantizeLinear": (1,)}
"""Inputs of quantizers to which their output is proportional."""

_TWICE = ("Quant", "IntQuant", "BipolarQuant", "FloatQuant", "Trunc")
"""Quantizers that use their scale twice."""


def scaling(value: ir.Value, user: ir.Node, factor: Float64, facts: Facts) -> Scaling:
    """Return the replacements of constants that multiply ``value``, which only ``user`` reads.

    The factor is positive, and broadcasts to the value.

    Raises:
        Stuck: no operator absorbs the factor, or one in between does not commute with it.
    """
    moved = Scaling(facts=facts)
    _push(value, user, factor, moved)
    return moved


def _push(value: ir.Value, user: ir.Node, factor: Float64, moved: Scaling) -> None:
    node = value.producer()
    if node is None:
        raise Stuck(f"{value.name!r} is not computed by an operator that can absorb the scale")
    if len(value.uses()) > 1 or value.is_graph_output():
        raise Stuck(f"{value.name!r}, the output of {title(node)}, is also used elsewhere")
    if node.graph is not user.graph:
        raise Stuck(f"{value.name!r} is computed outside of the graph of {title(user)}")
    if value.dtype not in (None, ir.DataType.FLOAT):
        dtype = value.dtype.name if value.dtype else "unknown"
        raise Stuck(f"{value.name!r} is {dtype}, not float32; {TO_FLOAT32}")
    if node.op_type in _OUTPUT_SCALES and _is_known(value):
        for index in _OUTPUT_SCALES[node.op_type]:
            grows = node.op_type == "FakeQuantize"
            moved.scale(node, index, _fitted(node, index, factor), grows=grows)
        return
    if node.op_type in _TWICE and _is_known(value):
        raise Stuck(
            f"the weights go through {title(node)}, which uses one scale for input and output; "
            f"run -p fold-weights, which stores codes with a scale of their own"
        )
    rule = None if node.domain else _RULES.get(node.op_type)
    if rule is None or value is not node.outputs[0]:
        raise Stuck(f"{title(node)} can neither absorb a scale nor pass it on")
    rule(node, factor, moved)


def _is_known(value: ir.Value) -> bool:
    """Return whether a value is computed from constants alone."""
    stored = nearest_cut(value, lambda v: constant_expression(v) is not None)
    return stored is not None or constant_expression(value) is not None


def _fitted(quantizer: ir.Node, index: int, factor: Float64) -> Float64:
    """Return the factor in the shape of a DequantizeLinear's scale, if possible."""
    scale = constant_expression(quantizer.inputs[index])
    if quantizer.op_type == "FakeQuantize" or factor.size == 1 or scale is None:
        return factor
    axis = quantizer.attributes.get_int("axis", 1) or 0
    axes = [i for i, size in enumerate(factor.shape) if size > 1]
    blocked = bool(quantizer.attributes.get_int("block_size", 0))
    if scale.shape != (factor.size,) or axes != [axis % factor.ndim] or blocked:
        raise Stuck(f"the scales of {title(quantizer)} do not lie along the output channels")
    return factor.reshape(-1)


def _first_possible(
    rule: Callable[..., None],
    node: ir.Node,
    indices: Iterable[int],
    factor: Float64,
    moved: Scaling,
) -> None:
    """Apply a rule to the first of several inputs to which it applies."""
    reasons = []
    for index in indices:
        trial = Scaling(facts=moved.facts)
        try:
            rule(node=node, index=index, factor=factor, moved=trial)
        except Stuck as stuck:
            reasons.append(stuck.reason)
            continue
        moved.constants.update(trial.constants)
        moved.absorbers += trial.absorbers
        moved.exact &= trial.exact
        return
    raise Stuck("; ".join(dict.fromkeys(reasons)))


def _operand(
    node: ir.Node, index: int, factor: Float64, moved: Scaling, *, grows: bool = False
) -> None:
    """Multiply a constant, or a value that quantizers compute from a constant."""
    value = node.inputs[index]
    if value is None or not _is_known(value):
        raise Stuck(
            f"input {index} of {title(node)} is neither a constant nor a quantized constant"
        )
    producer = value.producer()
    is_quantized = producer is not None and producer.op_type in _OUTPUT_SCALES
    if constant_expression(value) is not None and not is_quantized:
        moved.scale(node, index, factor, grows=grows)
    else:
        _push(value, node, factor, moved)


def _weights(node: ir.Node, weight: Float64, bias: Float64, moved: Scaling) -> None:
    """Multiply the weight, input 1, and the bias, input 2, if there is one."""
    _operand(node, 1, weight, moved)
    if input_of(node, 2) is not None:
        _operand(node, 2, bias, moved, grows=node.op_type == "Gemm")
    moved.absorbers.append(node)


def _conv(node: ir.Node, factor: Float64, moved: Scaling) -> None:
    """Multiply the weights and the bias ``[M]``.

    The weights are ``[M, C, ...]`` for Conv, ``[C, M, ...]`` for ConvTranspose.
    """
    weight = bias = factor.reshape(()) if factor.size == 1 else factor
    if factor.size > 1:
        rank = moved.rank(node, node.inputs[1])
        bias = _along(factor, rank, node)
        sizes = (-1, *[1] * (rank - 1))
        if node.op_type == "ConvTranspose":
            sizes = (1, -1, *[1] * (rank - 2))
            if (node.attributes.get_int("group", 1) or 1) > 1:
                raise Stuck(f"{title(node)} has groups, and each channel has its own scale")
        weight = bias.reshape(sizes)
    _weights(node, weight, bias, moved)


def _mat_mul(node: ir.Node, factor: Float64, moved: Scaling) -> None:
    """Multiply the constant operand, by columns if it is the second one."""
    columns = _columns(node, factor, moved)
    _first_possible(_operand, node, (1,) if factor.size > 1 else (1, 0), columns, moved)
    moved.absorbers.append(node)


def _gemm(node: ir.Node, factor: Float64, moved: Scaling) -> None:
    """Multiply the second operand and the summand by columns."""
    columns = _columns(node, factor, moved)
    transposed = columns.ndim > 0 and bool(node.attributes.get_int("transB", 0))
    _weights(node, columns.reshape(-1, 1) if transposed else columns, columns, moved)


def _through(node: ir.Node, factor: Float64, moved: Scaling, index: int = 0) -> None:
    """Pass the factor to an input in which the operator is positively homogeneous."""
    _push(_data(node, index), node, factor, moved)


def _pool(node: ir.Node, factor: Float64, moved: Scaling) -> None:
    """Pass the factor through an operator that processes each channel separately."""
    _channels(node, factor, moved)
    _through(node, factor, moved)


def _terms(node: ir.Node, factor: Float64, moved: Scaling) -> None:
    """Multiply each input: constants directly, others where they are computed."""
    constant = [constant_expression(value) is not None for value in node.inputs]
    if all(constant):
        raise Stuck(f"{title(node)} is constant")
    _each([i for i, value in enumerate(node.inputs) if value is not None], node, factor, moved)


def _each(indices: Iterable[int], node: ir.Node, factor: Float64, moved: Scaling) -> None:
    """Multiply some inputs: constants directly, others where they are computed."""
    for index in indices:
        if constant_expression(node.inputs[index]) is not None:
            moved.scale(node, index, factor, grows=True)
        else:
            _through(node, factor, moved, index)


def _single(rule: Rule, what: str) -> Rule:
    """Return a rule for operators that allow one factor only; ``what`` says why."""

    def apply(node: ir.Node, factor: Float64, moved: Scaling) -> None:
        if factor.size > 1:
            raise Stuck(f"{title(node)} {what}, of which each has its scale")
        if {"min", "max"} & set(node.attributes):
            raise Stuck(f"{title(node)} has its bounds as attributes; raise the opset to 11 first")
        rule(node, factor.reshape(()), moved)

    return apply


def _product(node: ir.Node, factor: Float64, moved: Scaling) -> None:
    """Multiply one of two inputs: the constant one, else the first possible one."""
    for index in (1, 0):
        if constant_expression(node.inputs[index]) is not None:
            moved.absorb(node, index, factor)
            return
    _first_possible(_through, node, (0, 1), factor, moved)


def _quotient(node: ir.Node, factor: Float64, moved: Scaling) -> None:
    """Divide a constant divisor, or multiply the dividend."""
    if constant_expression(node.inputs[1]) is not None:
        moved.absorb(node, 1, 1 / factor)
    elif constant_expression(node.inputs[0]) is not None:
        moved.absorb(node, 0, factor)
    else:
        _through(node, factor, moved)


def _batch_norm(node: ir.Node, factor: Float64, moved: Scaling) -> None:
    if node.attributes.get_int("training_mode", 0):
        raise Stuck(f"{title(node)} is in training mode")
    channels = _channels(node, factor, moved)
    moved.scale(node, 1, channels)
    moved.scale(node, 2, channels)
    moved.absorbers.append(node)


_moves = _single(_through, "moves channels")

_RULES: dict[str, Rule] = {
    **dict.fromkeys(("Relu", "LeakyRelu", "PRelu", "Neg", "Abs", "Identity", "Dropout"), _through),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), _pool),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"), _moves),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _moves),
    **dict.fromkeys(("Add", "Sub", "Sum", "Max", "Min"), _terms),
    **dict.fromkeys(("Conv", "ConvTranspose"), _conv),
    "Clip": _single(_terms, "has one bound for all channels"),
    "Concat": _single(_terms, "joins channels"),
    "Mul": _product,
    "Div": _quotient,
    "Where": functools.partial(_each, (1, 2)),
    "BatchNormalization": _batch_norm,
    "MatMul": _mat_mul,
    "Gemm": _gemm,
}


def _data(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise Stuck(f"input {index} of {title(node)} is absent")
    return value


def _columns(node: ir.Node, factor: Float64, moved: Scaling) -> Float64:
    """Return one factor, or a list of those that vary along the last axis."""
    if factor.size == 1:
        return factor.reshape(())
    if factor.shape[-1] != factor.size or moved.rank(node, node.inputs[1]) < 2:
        raise Stuck(f"the scales of {title(node)} do not lie along its last axis")
    return factor.reshape(-1)


def _channels(node: ir.Node, factor: Float64, moved: Scaling) -> Float64:
    """Return one factor, or a list of those that vary along axis 1 of the output."""
    if factor.size == 1:
        return factor.reshape(())
    return _along(factor, moved.rank(node, node.outputs[0]), node)


def _along(factor: Float64, rank: int, node: ir.Node) -> Float64:
    """Return several factors as a list if they vary along axis 1 of an output of ``rank``."""
    sizes = (1,) * (rank - factor.ndim) + factor.shape
    if len(sizes) != rank or sizes[1] != factor.size:
        raise Stuck(f"the scales of {title(node)} do not lie along its channels")
    return factor.reshape(-1)
