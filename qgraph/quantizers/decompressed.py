"""Replace Cast, Sub and Mul that decode constant weights by DequantizeLinear.

    Mul(Sub(Cast(codes), zero_point), scale)  ->  DequantizeLinear(codes, scale, zero_point)

Sub and Mul may be absent, and a Cast may decode the zero point. Decoders with float32 constants are
left to the pattern matcher. Equal bit for bit: codes minus their zero point are whole numbers that
float32, float16 and bfloat16 represent if they are small enough, and both sides round one product.

Codes and zero points may be unpacked from bytes. The unpacking nodes are computed and replaced by a
constant:

    Concat(BitwiseAnd(w, 15), BitShift(w, 4, direction=RIGHT))  ->  codes from 0 to 15
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant, constant_expression, constant_stream, constant_tensor
from qgraph.graph.edit import Draft, Editor, Region
from qgraph.graph.opset.history import QDQ_SINCE
from qgraph.graph.opset.versions import LATEST
from qgraph.graph.scopes import nodes_of, owners, producer_of
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat, holding
from qgraph.numerics.minifloat import Minifloat
from qgraph.ops.dispatch import Environment, compute
from qgraph.quantizers.dialects.layout import Layout, layout_of
from qgraph.records import dataclass

_LARGEST = {ir.DataType.FLOAT: 1 << 24, ir.DataType.FLOAT16: 1 << 11, ir.DataType.BFLOAT16: 1 << 8}
"""Types of real numbers, and the largest integer up to which each represents all integers."""

_NARROW = ("UINT2", "INT2", "UINT4", "INT4", "UINT8", "INT8")
"""Types of unpacked codes, the narrowest first."""

_OPSET_OF_HALVES = 19
_FEW_BITS = 8
_MOST_BITS = 16


@dataclass(frozen=True, eq=False)
class Decompressed(Region):
    """Nodes that decode a constant.

    Attributes:
        codes: unpacked codes; None to use the codes of ``x``.
        scale, zero_point: inputs of DequantizeLinear; no zero point is 0.
        opset: the lowest opset in which DequantizeLinear accepts them.
    """

    codes: Array | None
    scale: Array
    zero_point: Array | None
    layout: Layout
    opset: int

    def draft(self, editor: Editor) -> Draft:
        """Return a DequantizeLinear of the same codes."""
        draft = editor.draft(self)
        draft.needs(self.opset)
        codes = draft.x if self.codes is None else draft.constant(self.codes, "codes")
        operands = [codes, draft.constant(self.scale, "scale")]
        if self.zero_point is not None:
            operands.append(draft.constant(self.zero_point, "zero_point"))
        dtype = self.y.dtype or self.nodes[-1].outputs[0].dtype
        return draft.giving(
            draft.node("DequantizeLinear", operands, self.layout.attributes, dtype=dtype)
        )


def decompressed(model: ir.Model, limit: int = LATEST) -> Iterator[Decompressed]:
    """Yield the weights that Cast, Sub and Mul decode, in types that an opset has."""
    for owner in owners(model):
        read = _WeightReader(owner.opset_imports, limit).read
        casts = (node for node in nodes_of(owner) if node.op_type == "Cast" and not node.domain)
        yield from filter(None, map(read, casts))


@dataclass(frozen=True)
class _WeightReader:
    """Reads decoded weights in a graph with the operator versions ``imports``."""

    imports: Mapping[str, int]
    limit: int

    def read(self, cast: ir.Node) -> Decompressed | None:
        """Return the weight whose decoding begins with ``cast``; None if there is none."""
        codes, dtype = cast.inputs[0], ir.DataType(cast.attributes.get_int("to", 0))
        if codes is None or dtype not in _LARGEST:
            return None
        stored = constant_stream(codes)
        parts = None if stored is not None else unpacked(codes, self.imports)
        shape = () if parts is None else parts.shape
        shape = shape if stored is None else stored.shape
        nodes, zero = [cast], None
        taken = self._only_user(cast, "Sub", shape)
        if taken is not None:
            zero = self._parameter(taken.inputs[1])
            nodes.append(taken)
        name = self._narrowest(parts, zero) if stored is None else stored.kind
        form = None if name is None else FORMATS.get(name)
        if name is None or not isinstance(form, IntFormat | Minifloat):
            return None
        if form.bits > _MOST_BITS or len(shape) < 2:
            return None
        scaled = self._only_user(nodes[-1], "Mul", shape)
        is_plain = taken is None or constant_expression(taken.inputs[1]) is not None
        scale: Array | None = np.ones((), dtype.numpy())
        if scaled is not None:
            scale = self._other(scaled, nodes[-1].outputs[0])
            nodes.append(scaled)
            is_read = dtype is ir.DataType.FLOAT and is_plain and constant_tensor(codes) is not None
            if is_read and isinstance(form, IntFormat):
                return None
        elif form.bits > _FEW_BITS or (taken is None and _is_parameter(cast.outputs[0])):
            return None
        elif dtype is ir.DataType.BFLOAT16:
            # ONNX Runtime has a Cast to bfloat16, but no DequantizeLinear.
            return None
        if scale is None or (taken is not None and zero is None):
            return None
        point = np.zeros((), np.int32) if zero is None else zero
        if not _has_differences(form, point, dtype):
            return None
        layout = layout_of(shape, scale, point)
        if layout is None:
            return None
        points = layout.lay(point.astype(ir.DataType[name].numpy())) if point.any() else None
        since = _OPSET_OF_HALVES if dtype is not ir.DataType.FLOAT else 0
        opset = max(layout.opset, since, QDQ_SINCE[name])
        y, scale = nodes[-1].outputs[0], layout.lay(scale)
        packed = None if parts is None else parts.astype(ir.DataType[name].numpy())
        return Decompressed(codes, y, tuple(nodes), packed, scale, points, layout, opset)

    def _narrowest(self, codes: Array | None, zero: Array | None) -> str | None:
        """Return the narrowest type that can represent all codes and their zero points."""
        if codes is None or not codes.size:
            return None
        ends = [codes.min(), codes.max(), *(() if zero is None else (zero.min(), zero.max()))]
        kinds = (name for name in _NARROW if QDQ_SINCE[name] <= self.limit)
        return holding(min(ends), max(ends), kinds)

    def _only_user(self, node: ir.Node, name: str, shape: tuple[int, ...]) -> ir.Node | None:
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
        other = self._other(user, value)
        if other is None or np.broadcast_shapes(shape, other.shape) != shape:
            return None
        return user

    def _other(self, node: ir.Node, value: ir.Value) -> Array | None:
        others = [operand for operand in node.inputs if operand is not value]
        return self._parameter(others[0]) if len(others) == 1 else None

    def _parameter(self, value: ir.Value | None) -> Array | None:
        """Return a constant, or the result of a Cast of constant codes."""
        array = constant_expression(value)
        cast = producer_of(value, "Cast")
        if array is not None or cast is None:
            return array
        dtype = ir.DataType(cast.attributes.get_int("to", 0))
        codes = constant_expression(cast.inputs[0])
        codes = unpacked(cast.inputs[0], self.imports) if codes is None else codes
        if codes is None or codes.dtype.itemsize != 1 or dtype not in _LARGEST:
            return None
        return codes.astype(dtype.numpy())


def _has_differences(form: IntFormat | Minifloat, zero: Array, dtype: ir.DataType) -> bool:
    """Return whether a type has all codes minus a zero point, which is a code itself."""
    if isinstance(form, Minifloat):
        return not zero.any() and dtype is ir.DataType.FLOAT
    is_code = (zero == np.rint(zero)) & (zero >= form.lo) & (zero <= form.hi)
    return bool(is_code.all()) and form.hi - form.lo <= _LARGEST[dtype]


def _is_parameter(value: ir.Value) -> bool:
    """Return whether a value is subtracted from, or multiplied with, another decoded constant."""
    uses = value.uses()
    return bool(uses) and all(node.op_type in ("Mul", "Sub") and index for node, index in uses)


_CUTS = frozenset({"BitShift", "BitwiseAnd", "Div", "Mod"})
_MOVES = {"Concat", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
_OTHERS = {"Add", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Equal", "Greater"}
_OTHERS |= {"GreaterOrEqual", "Less", "LessOrEqual", "Mul", "Sub", "Where"}

_MOST_UNPACKING = 64


def unpacked(value: ir.Value | None, imports: Mapping[str, int]) -> Array | None:
    """Return the integers of a value if they are unpacked from constant integers, else None.

    ONNX has no arithmetic shift, so exporters write it with comparisons and Where.
    """
    nodes: list[ir.Node] = []
    environment: Environment = {}
    if value is None or not _collect(value, nodes, environment):
        return None
    if _CUTS.isdisjoint(node.op_type for node in nodes):
        return None
    for node in nodes:
        compute(node, imports, environment)
    return environment[value]  # type: ignore[no-any-return]


def _collect(value: ir.Value, nodes: list[ir.Node], environment: Environment) -> bool:
    """Collect the nodes that compute ``value`` from constants; False if there are others."""
    if value in environment:
        return True
    array = constant(value)
    if array is not None:
        environment[value] = array
        return array.dtype.kind in "iub"
    node = value.producer()
    if node is None or node.domain or node.op_type not in _CUTS | _MOVES | _OTHERS:
        return False
    if not all(each is None or _collect(each, nodes, environment) for each in node.inputs):
        return False
    if node not in nodes:
        nodes.append(node)
    return len(nodes) <= _MOST_UNPACKING
