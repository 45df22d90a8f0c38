"""Move data after DequantizeLinear, so that QuantizeLinear and DequantizeLinear are pairs.

    DequantizeLinear(move(QuantizeLinear(x)))  ->  move(DequantizeLinear(QuantizeLinear(x)))

Constant codes, such as the rows that Gather takes from an embedding, are decoded before they move::

    DequantizeLinear(Gather(codes, indices))  ->  Gather(DequantizeLinear(codes), indices)

Equal bit for bit: every element is decoded with the same scale and zero point. Movements are
Transpose, Reshape, Slice, Gather, Concat, Split and similar operators, a Resize that takes the
nearest elements, and Pad, whose number is decoded too. MaxPool counts as a movement if the scale is
positive and no window lies entirely in the padding, because decoding then keeps the order of codes.
Shapes are inferred; shapes stated in the model are not used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import constant_expression, constant_stream
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.inference.dimensions import Dim
from qgraph.graph.inference.rules import UNKNOWN
from qgraph.graph.inference.walk import RESHAPING, Facts, infer
from qgraph.graph.schema import LINEAR_DOMAINS, code_type
from qgraph.graph.scopes import all_nodes, input_of, producer_of
from qgraph.graph.sizes import static_count
from qgraph.numerics import Array
from qgraph.numerics.formats import numpy_dtype
from qgraph.ops.composite import drafted
from qgraph.ops.operator import operator_of
from qgraph.quantizers.decompressed import decompressed
from qgraph.records import dataclass

MOVES = RESHAPING | {"Concat", "DepthToSpace", "Expand", "Gather", "Identity", "MaxPool", "Slice"}
MOVES |= {"SpaceToDepth", "Tile", "Transpose"}
"""Operators whose results are elements of their data; MaxPool returns the largest ones."""

COPIES = {("Resize", "nearest"), ("Pad", "constant"), ("Pad", "edge"), ("Pad", "reflect")}
"""Operators and their modes whose results are elements of their data, or a known number."""

_Axis: TypeAlias = int | None
_Write: TypeAlias = Callable[[Draft], ir.Value]
_Splits: TypeAlias = dict[tuple[object, ...], ir.Node]


def join_pairs(model: ir.Model, *, constants: bool = True) -> int:
    """Move data after each DequantizeLinear instead of before it, in place; return how many.

    Decoding ``constants`` before they move takes more memory.
    """
    pairs = [each for each in _separated(model) if constants or not moves_constant(each[0])]
    editor = Editor(model)
    editor.replace_all([drafted(editor, decode, write) for decode, write in pairs])
    return len(pairs)


def prepared(model: ir.Model) -> ir.Model:
    """Return the model in the form that readers of quantizers need: the model or a copy.

    Parameters that follow from static dimensions are constants in it, data moves after pairs, and
    DequantizeLinear decodes the constants that Cast, Sub and Mul decode.
    """
    from qgraph.ops.static_parameters import settled

    static = settled(model)
    if not _separated(static) and next(decompressed(static), None) is None:
        return static
    copy = static.clone() if static is model else static
    editor = Editor(copy)
    editor.replace_all([weight.draft(editor) for weight in decompressed(copy)])
    join_pairs(copy)
    return copy


def _separated(model: ir.Model) -> list[tuple[ir.Node, _Write]]:
    """Return each DequantizeLinear of moved codes, with a writer of it before the movement."""
    decodes = [
        (node, codes)
        for node in all_nodes(model)
        if is_linear(node, "DequantizeLinear")
        if (codes := node.inputs[0]) is not None
        if producer_of(codes, *MOVES, "Pad", "Resize", "Split") is not None
        if constant_stream(codes) is None
    ]
    facts = infer(model) if decodes else {}
    pairs = []
    splits: _Splits = {}
    for node, codes in decodes:
        dtype = facts.get(node.outputs[0], UNKNOWN).dtype or node.outputs[0].dtype
        decoder = _Decoder(node, dtype or ir.DataType.FLOAT, facts, splits)
        if (write := decoder.written(codes, axis_of(node, facts))) is not None:
            pairs.append((node, write))
    return pairs


def encoder_of(codes: ir.Value | None) -> ir.Node | None:
    """Return the QuantizeLinear of one scale that computes ``codes``, possibly moved."""
    return linear_producer(unmoved(codes), "QuantizeLinear")


def is_linear(node: ir.Node, *names: str) -> bool:
    """Return whether a node is a QuantizeLinear or DequantizeLinear."""
    return node.op_type in names and node.domain in LINEAR_DOMAINS


def linear_producer(value: ir.Value | None, name: str) -> ir.Node | None:
    """Return the QuantizeLinear or DequantizeLinear that computes a value, or None."""
    node = producer_of(value)
    return node if node is not None and is_linear(node, name) else None


def moves_constant(decode: ir.Node) -> bool:
    """Return whether a DequantizeLinear decodes moved constant codes."""
    if not is_linear(decode, "DequantizeLinear"):
        return False
    data = decode.inputs[0]
    start = unmoved(data)
    return start is not data and constant_stream(start) is not None


def unmoved(value: ir.Value | None) -> ir.Value | None:
    """Return the value before all data movement with one operand."""
    while (node := producer_of(value, *MOVES - {"Concat"})) is not None:
        value = node.inputs[0]
    return value


def moved_operands(node: ir.Node) -> list[ir.Value | None]:
    """Return the data that a node moves to its only result; none for other nodes."""
    if node.op_type not in MOVES or node.domain or len(node.outputs) != 1:
        return []
    return list(node.inputs) if node.op_type == "Concat" else list(node.inputs[:1])


def axis_of(decode: ir.Node, facts: Facts) -> _Axis:
    """Return the stated axis of the parameters; None if there is one for all elements."""
    scale = constant_expression(decode.inputs[1])
    is_single = _sizes(facts, decode.inputs[1]) == () or (scale is not None and scale.size == 1)
    return None if is_single else decode.attributes.get_int("axis", 1)


@dataclass(frozen=True)
class _Decoder:
    """Writes one DequantizeLinear before the movements that lead to it.

    Attributes:
        decode: the DequantizeLinear.
        dtype: the type of its result.
        facts: types and shapes of all values.
        splits: each Split of decoded values that was written, by the node that splits codes, and
            what decides how they are decoded.
    """

    decode: ir.Node
    dtype: ir.DataType
    facts: Facts
    splits: _Splits

    def written(self, codes: ir.Value, axis: _Axis) -> _Write | None:
        """Return a function that writes decoded values before the movements, or None."""
        node, decode = codes.producer(), self.decode
        if decode.attributes.get_int("block_size", 0) > 0:
            return None
        clip = producer_of(codes, "Clip")  # of narrow codes
        start = codes if clip is None else clip.inputs[0]
        is_encoded = linear_producer(start, "QuantizeLinear") is not None
        if is_encoded or constant_stream(start) is not None:
            operands, changes = [codes, *decode.inputs[1:]], {"axis": axis}
            return lambda draft: draft.copy(decode, operands, changes, dtype=self.dtype)
        if node is None:
            return None
        is_split = node.op_type == "Split" and not node.domain
        parts = list(node.inputs[:1]) if is_split else moved_operands(node) or copied_operands(node)
        rest: list[Operand | None] = list(node.inputs[len(parts) :])
        if node.op_type == "Pad" and node.attributes.get_string("mode", "constant") == "constant":
            fill = input_of(node, 2)
            number = self._number(
                np.zeros((), np.int8) if fill is None else constant_expression(fill)
            )
            if number is None:
                return None
            rest[1:2] = [number]
        before = None if axis is None else axis_before(node, axis, self.facts)
        if (before is None) != (axis is None) or not keeps_order(node, decode, self.facts):
            return None
        writers = [None if part is None else self.written(part, before) for part in parts]
        if not parts or any(write is None for write in writers):
            return None

        def write(draft: Draft) -> ir.Value:
            data = [each(draft) for each in writers if each is not None]
            return draft.copy(node, [*data, *rest], dtype=self.dtype)

        def split(draft: Draft) -> ir.Value:
            new = self.splits.get(
                key := (node, decode.graph, axis, decode.domain, self.dtype, *decode.inputs[1:])
            )
            if new is None:
                operands = [*(each(draft) for each in writers if each), *node.inputs[1:]]
                new = ir.node("Split", operands, node.attributes, num_outputs=len(node.outputs))
                for output in new.outputs:
                    output.type = ir.TensorType(self.dtype)
                draft.nodes.append(new)
                self.splits[key] = new
            return new.outputs[node.outputs.index(codes)]

        return split if is_split else write

    def _number(self, code: Array | None) -> Array | None:
        """Return the number for which a code stands."""
        dtype = code_type(self.decode)
        if code is None or code.size != 1 or dtype is None:
            return None
        return run_linear(self.decode, code.reshape(()).astype(numpy_dtype(dtype.name)))


def copied_operands(node: ir.Node) -> list[ir.Value | None]:
    """Return the data of a Resize or Pad whose results are elements of it, or one number."""
    mode = node.attributes.get_string("mode", "nearest" if node.op_type == "Resize" else "constant")
    coordinates = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    crops = coordinates == "tf_crop_and_resize"  # another number lies beyond the edges
    is_other = crops or "pads" in node.attributes or len(node.inputs) < 2  # as in old opsets
    if node.domain or is_other or (node.op_type, mode) not in COPIES:
        return []
    return list(node.inputs[:1])


def run_linear(node: ir.Node, data: Array | None) -> Array | None:
    """Return what a QuantizeLinear or DequantizeLinear of one constant scale makes of data."""
    operator = operator_of(node)
    arrays = [constant_expression(value) for value in node.inputs[1:]]
    if operator is None or data is None or any(array is None for array in arrays):
        return None
    single = [array.reshape(()) for array in arrays if array is not None and array.size == 1]
    return operator.run(node, [data, *single]) if len(single) == len(arrays) else None


def keeps_order(node: ir.Node, decode: ir.Node, facts: Facts) -> bool:
    """Return whether decoding can be exchanged with a node, which may take maxima."""
    if node.op_type != "MaxPool":
        return True
    from qgraph.ops.sums_of_products import is_never_empty

    scale, sizes = constant_expression(decode.inputs[1]), _sizes(facts, node.inputs[0])
    if scale is None or sizes is None or scale.dtype not in (np.float32, np.float16):
        return False
    fixed = tuple(size if isinstance(size, int) else None for size in sizes)
    return bool((np.isfinite(scale) & (scale > 0)).all()) and is_never_empty(node, fixed)


def axis_before(node: ir.Node, axis: int, facts: Facts) -> int | None:
    """Return the axis of a node's data that becomes ``axis`` of its result."""
    result, data = _sizes(facts, node.outputs[0]), _sizes(facts, node.inputs[0])
    if result is None or data is None or not -len(result) <= axis < len(result):
        return None
    axis %= len(result)
    if node.op_type == "Transpose":
        return node.attributes.get_ints("perm", range(len(result))[::-1])[axis]
    if node.op_type in ("Concat", "Split"):
        return axis if node.attributes.get_int("axis", 0) % len(result) != axis else None
    if node.op_type == "Slice":
        steps = constant_expression(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
        is_forward = steps is not None and bool((steps > 0).all())
        return axis if is_forward and result[axis] == data[axis] is not None else None
    if node.op_type == "Identity":
        return axis
    if node.op_type not in RESHAPING or not all(isinstance(size, int) for size in (*result, *data)):
        return None
    same = (index for index, size in enumerate(data) if size == result[axis])
    before = static_count(result[:axis])
    return next((index for index in same if static_count(data[:index]) == before), None)


def _sizes(facts: Facts, value: ir.Value | None) -> tuple[Dim, ...] | None:
    return None if value is None else facts.get(value, UNKNOWN).shape
