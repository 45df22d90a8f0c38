"""Constant weights that Cast, Sub and Mul decode, as DequantizeLinear.

    Mul(Sub(Cast(codes), zero_point), scale)  ->  DequantizeLinear(codes, scale, zero_point)

Sub and Mul may be absent, and a Cast may decode the zero point. The pattern matcher reads the
others, which have constants of float32. Equal bit for bit: codes less their zero point are whole
numbers that float32, float16 and bfloat16 have if they are small enough, and both sides round one
product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression, constant_stream, constant_tensor
from qgraph.graph.edit import Draft, Editor, Region
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.scopes import nodes_of, owners
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.minifloat import Minifloat
from qgraph.quantizers.dialects.layout import Layout, layout_of

_LARGEST = {ir.DataType.FLOAT: 1 << 24, ir.DataType.FLOAT16: 1 << 11, ir.DataType.BFLOAT16: 1 << 8}
"""Types of real numbers, and up to which they have all whole numbers."""

_OPSET_OF_HALVES = 19
_FEW_BITS = 8
_MOST_BITS = 16


@dataclass(frozen=True, eq=False)
class Decompressed(Region):
    """Nodes that decode a constant.

    Attributes:
        scale, zero_point: as DequantizeLinear takes them; no zero point is 0.
        layout: their granularity.
        opset: the lowest one in which DequantizeLinear takes these.
    """

    scale: Array
    zero_point: Array | None
    layout: Layout
    opset: int

    def draft(self, editor: Editor) -> Draft:
        """Return a DequantizeLinear of the same codes."""
        draft = editor.draft(self)
        draft.needs(self.opset)
        operands = [draft.x, draft.constant(self.scale, "scale")]
        if self.zero_point is not None:
            operands.append(draft.constant(self.zero_point, "zero_point"))
        dtype = self.y.dtype or self.nodes[-1].outputs[0].dtype
        return draft.giving(
            draft.node("DequantizeLinear", operands, self.layout.attributes, dtype=dtype)
        )


def decompressed(model: ir.Model) -> Iterator[Decompressed]:
    """Yield the weights of a model that Cast, Sub and Mul decode."""
    for owner in owners(model):
        for node in nodes_of(owner):
            found = _read(node) if node.op_type == "Cast" and not node.domain else None
            if found is not None:
                yield found


def _read(cast: ir.Node) -> Decompressed | None:
    codes = cast.inputs[0]
    tensor = constant_stream(codes)
    kind = ir.DataType(cast.attributes.get_int("to", 0))
    if codes is None or tensor is None or kind not in _LARGEST:
        return None
    form, shape = FORMATS.get(tensor.kind), tensor.shape
    if not isinstance(form, IntFormat | Minifloat) or form.bits > _MOST_BITS or len(shape) < 2:
        return None
    nodes, zero = [cast], None
    taken = _only_user(cast, "Sub", shape)
    if taken is not None:
        zero = _parameter(taken.inputs[1])
        nodes.append(taken)
    scaled = _only_user(nodes[-1], "Mul", shape)
    is_plain = taken is None or constant_expression(taken.inputs[1]) is not None
    scale: Array | None = np.ones((), kind.numpy())
    if scaled is not None:
        scale = _other(scaled, nodes[-1].outputs[0])
        nodes.append(scaled)
        is_read = kind is ir.DataType.FLOAT and is_plain and constant_tensor(codes) is not None
        if is_read and isinstance(form, IntFormat):
            return None
    elif form.bits > _FEW_BITS or (taken is None and _is_parameter(cast.outputs[0])):
        return None
    if scale is None or (taken is not None and zero is None):
        return None
    point = np.zeros((), np.int32) if zero is None else zero
    if not _has_differences(form, point, kind):
        return None
    layout = layout_of(shape, scale, point)
    if layout is None:
        return None
    points = layout.lay(point.astype(ir.DataType[tensor.kind].numpy())) if point.any() else None
    since = _OPSET_OF_HALVES if kind is not ir.DataType.FLOAT else 0
    opset = max(layout.opset, since, QDQ_SINCE[tensor.kind])
    scale = layout.lay(scale)
    return Decompressed(codes, nodes[-1].outputs[0], tuple(nodes), scale, points, layout, opset)


def _has_differences(form: IntFormat | Minifloat, zero: Array, kind: ir.DataType) -> bool:
    """Return whether a type has all codes less a zero point, which is a code itself."""
    if isinstance(form, Minifloat):
        return not zero.any() and kind is ir.DataType.FLOAT
    is_code = (zero == np.rint(zero)) & (zero >= form.lo) & (zero <= form.hi)
    return bool(is_code.all()) and form.hi - form.lo <= _LARGEST[kind]


def _only_user(node: ir.Node, name: str, shape: tuple[int, ...]) -> ir.Node | None:
    """Return the one node ``name`` that uses the result of ``node``, and keeps its shape."""
    value = node.outputs[0]
    users = value.consumers()
    if len(users) != 1 or value.is_graph_output():
        return None
    (user,) = users
    if user.op_type != name or user.domain or user.graph is not node.graph:
        return None
    if name == "Sub" and user.inputs[0] is not value:
        return None
    other = _other(user, value)
    if other is None or np.broadcast_shapes(shape, other.shape) != shape:
        return None
    return user


def _is_parameter(value: ir.Value) -> bool:
    """Return whether a value is subtracted or multiplies another decoded constant."""
    uses = value.uses()
    return bool(uses) and all(node.op_type in ("Mul", "Sub") and index for node, index in uses)


def _other(node: ir.Node, value: ir.Value) -> Array | None:
    others = [operand for operand in node.inputs if operand is not value]
    return _parameter(others[0]) if len(others) == 1 else None


def _parameter(value: ir.Value | None) -> Array | None:
    """Return a constant, or what a Cast makes of constant codes."""
    known = constant_expression(value)
    cast = None if value is None else value.producer()
    if known is not None or cast is None or cast.op_type != "Cast" or cast.domain:
        return known
    codes, kind = constant_expression(cast.inputs[0]), cast.attributes.get_int("to", 0)
    is_exact = codes is not None and codes.dtype.itemsize == 1 and ir.DataType(kind) in _LARGEST
    return codes.astype(ir.DataType(kind).numpy()) if codes is not None and is_exact else None
