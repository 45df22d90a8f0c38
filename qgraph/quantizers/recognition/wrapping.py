"""Recognise quantizers of HGQ2 whose codes wrap around, written in float operators.

    v = round(x * 2**f) / 2**f
    a = v + offset
    y = a - floor(a / m) * m - offset               m = 2**b, the number of codes by their step

Source: fixed-point quantizers of ``quantizers`` 1.2, with overflow mode WRAP, in Keras' export.
"""

from __future__ import annotations

import onnx_ir as ir

from qgraph.graph.scopes import producer_of

_ROUNDING = ("Round", "Floor", "Ceil")
_BETWEEN = ("Add", "Cast", "Div", "Mul", "Identity")
_FURTHEST = 6
"""Maximum number of operators between the rounding and the offset."""


def wraps_around(node: ir.Node) -> bool:
    """Return whether a node is the Floor that limits the codes of such a quantizer."""
    quotient = producer_of(node.inputs[0], "Div") if _is(node, "Floor") else None
    if quotient is None:
        return False
    a, m = quotient.inputs
    product = _user(node.outputs[0], "Mul")
    if product is None or not {node.outputs[0], m} <= set(product.inputs):
        return False
    rest = _user(product.outputs[0], "Sub")
    if rest is None or list(rest.inputs) != [a, product.outputs[0]]:
        return False
    moved, back = producer_of(a, "Add"), _user(rest.outputs[0], "Sub")
    if moved is None or back is None or back.inputs[1] not in moved.inputs:
        return False
    return any(_is_rounded(value) for value in moved.inputs if value is not back.inputs[1])


def _is_rounded(value: ir.Value | None) -> bool:
    """Return whether a value is rounded by Round, Floor or Ceil, followed by scaling and sums."""
    values = [value]
    for _ in range(_FURTHEST):
        makers = [maker for each in values if each is not None and (maker := each.producer())]
        if any(_is(maker, *_ROUNDING) for maker in makers):
            return True
        values = [each for maker in makers if _is(maker, *_BETWEEN) for each in maker.inputs]
    return False


def _is(node: ir.Node, *names: str) -> bool:
    return not node.domain and node.op_type in names


def _user(value: ir.Value, name: str) -> ir.Node | None:
    users = value.consumers()
    return users[0] if len(users) == 1 and _is(users[0], name) else None
