"""Moving a factor from the output of operators into their constants.

``f(x) * c`` becomes the same operators with other constants: ``Conv(x, w, b) * c`` is
``Conv(x, w*c, b*c)``, ``Relu(v) * c`` is ``Relu(v*c)``, and so on up to an operator that takes the
factor in for good.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from qgraph.graph.folding import constant_expression
from qgraph.transforms.scales import scaled_weights
from qgraph.transforms.scales.scaled_constants import Float64, Scaling, Stuck, title
from qgraph.transforms.scales.scaled_weights import OUTPUT_SCALES, TWICE, along, is_known, quantized


def scaling(value: ir.Value, user: ir.Node, factor: Float64) -> Scaling:
    """Return what multiplies ``value`` by a factor.

    Args:
        value: an input of ``user``, which must be the only one who reads it.
        user: a node.
        factor: positive; broadcasts to the value.

    Raises:
        Stuck: there is no operator that takes the factor in, or one on the way to it does not
            commute with it.
    """
    found = Scaling()
    _push(value, user, factor, found)
    return found


def _push(value: ir.Value, user: ir.Node, factor: Float64, found: Scaling) -> None:
    node = value.producer()
    if node is None:
        raise Stuck(f"{value.name!r} comes from no operator that could take the scale in")
    if len(value.uses()) > 1 or value.is_graph_output():
        raise Stuck(f"{value.name!r}, the output of {title(node)}, is used elsewhere too")
    if node.graph is not user.graph:
        raise Stuck(f"{value.name!r} is computed outside of the graph of {title(user)}")
    if value.dtype not in (None, ir.DataType.FLOAT):
        raise Stuck(f"{value.name!r} is {value.dtype.name if value.dtype else ''}, not float32")
    if node.op_type in OUTPUT_SCALES and is_known(value):
        quantized(node, factor, found)
        return
    if node.op_type in TWICE and is_known(value):
        raise Stuck(
            f"the weights go through {title(node)}, which has one scale for input and output; "
            "fold-weights makes codes of them, whose scale can change"
        )
    rule = None if node.domain else _RULES.get(node.op_type)
    if rule is None or value is not node.outputs[0]:
        raise Stuck(f"{title(node)} takes no scale in and lets none through")
    rule(node, factor, found)


def _through(node: ir.Node, factor: Float64, found: Scaling) -> None:
    """Let the factor pass to the first input: the operator is positively homogeneous."""
    _push(_data(node, 0), node, factor, found)


def _pool(node: ir.Node, factor: Float64, found: Scaling) -> None:
    """Do so where the operator treats each channel alone."""
    along(node, factor, 1)
    _through(node, factor, found)


def _through_scalar(node: ir.Node, factor: Float64, found: Scaling) -> None:
    """Do so where the operator moves elements about."""
    if factor.size > 1:
        raise Stuck(f"{title(node)} moves channels, of which each has a scale of its own")
    _through(node, factor.reshape(()), found)


def _terms(node: ir.Node, factor: Float64, found: Scaling) -> None:
    """Multiply each input: constants at once, others where they are computed."""
    constant = [constant_expression(value) is not None for value in node.inputs]
    if all(constant):
        raise Stuck(f"{title(node)} is constant")
    for place, known in enumerate(constant):
        if node.inputs[place] is None:
            continue
        if known:
            found.scale(node, place, factor, grows=True)
        else:
            _push(_data(node, place), node, factor, found)


def _parts(node: ir.Node, factor: Float64, found: Scaling) -> None:
    """Multiply all inputs of a Concat."""
    if factor.size > 1:
        raise Stuck(f"{title(node)} joins channels, of which each has a scale of its own")
    _terms(node, factor.reshape(()), found)


def _bounds(node: ir.Node, factor: Float64, found: Scaling) -> None:
    """Multiply the bounds of a Clip, and what it clamps."""
    if "min" in node.attributes or "max" in node.attributes:
        raise Stuck(f"{title(node)} has its bounds as attributes; raise the opset to 11")
    if factor.size > 1:
        raise Stuck(f"{title(node)} has one bound for all channels, of which each has its scale")
    _terms(node, factor.reshape(()), found)


def _product(node: ir.Node, factor: Float64, found: Scaling) -> None:
    """Multiply one of two inputs: the constant, else the first that it is possible for."""
    for place in (1, 0):
        if constant_expression(node.inputs[place]) is not None:
            found.scale(node, place, factor, grows=True)
            found.absorbers.append(node)
            return
    reasons = []
    for place in (0, 1):
        attempt = Scaling()
        try:
            _push(_data(node, place), node, factor, attempt)
        except Stuck as stuck:
            reasons.append(stuck.reason)
        else:
            found.join(attempt)
            return
    raise Stuck("; ".join(dict.fromkeys(reasons)))


def _quotient(node: ir.Node, factor: Float64, found: Scaling) -> None:
    """Divide a constant divisor, or multiply what is divided."""
    if constant_expression(node.inputs[1]) is not None:
        found.scale(node, 1, 1 / factor, grows=True)
        found.absorbers.append(node)
    elif constant_expression(node.inputs[0]) is not None:
        found.scale(node, 0, factor, grows=True)
        found.absorbers.append(node)
    else:
        _through(node, factor, found)


def _branches(node: ir.Node, factor: Float64, found: Scaling) -> None:
    """Multiply both values that a Where chooses from."""
    for place in (1, 2):
        value = _data(node, place)
        if constant_expression(value) is not None:
            found.scale(node, place, factor, grows=True)
        else:
            _push(value, node, factor, found)


def _batch_norm(node: ir.Node, factor: Float64, found: Scaling) -> None:
    if node.attributes.get_int("training_mode", 0):
        raise Stuck(f"{title(node)} is in training mode")
    channels = along(node, factor, 1)
    found.scale(node, 1, channels)
    found.scale(node, 2, channels)
    found.absorbers.append(node)


def _data(node: ir.Node, place: int) -> ir.Value:
    value = node.inputs[place]
    if value is None:
        raise Stuck(f"input {place} of {title(node)} is absent")
    return value


_RULES: dict[str, Callable[[ir.Node, Float64, Scaling], None]] = {
    **dict.fromkeys(("Relu", "LeakyRelu", "PRelu", "Neg", "Abs", "Identity", "Dropout"), _through),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), _pool),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"), _through_scalar),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _through_scalar),
    **dict.fromkeys(("Add", "Sub", "Sum", "Max", "Min"), _terms),
    "Clip": _bounds,
    "Concat": _parts,
    "Mul": _product,
    "Div": _quotient,
    "Where": _branches,
    "BatchNormalization": _batch_norm,
    "Conv": partial(scaled_weights.conv, push=_push),
    "ConvTranspose": partial(scaled_weights.conv_transpose, push=_push),
    "MatMul": partial(scaled_weights.mat_mul, push=_push),
    "Gemm": partial(scaled_weights.gemm, push=_push),
}
