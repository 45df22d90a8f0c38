"""The pass ``move-quantizers``: move codes instead of real values."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness, Method, Verdict
from qgraph.graph.constants import constant_expression, constant_stream
from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.graph.inference.rules import UNKNOWN, Fact
from qgraph.graph.inference.walk import infer
from qgraph.graph.schema import LINEAR_DOMAINS, code_type, takes_data
from qgraph.graph.scopes import input_of, producer_of
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat, numpy_dtype
from qgraph.ops.composite import region_of
from qgraph.quantizers.movement import (
    axis_before,
    axis_of,
    copied_operands,
    keeps_order,
    linear_producer,
    moved_operands,
    run_linear,
)
from qgraph.reasons import USED_ELSEWHERE
from qgraph.reports import Report, SiteStatus
from qgraph.transforms.base import Transform, option, selects, transform
from qgraph.transforms.drafts.choice import SAME, entry, refused
from qgraph.transforms.drafts.rebuilding import replace_node
from qgraph.transforms.weights.output_scale import title

_Q, _DQ = "QuantizeLinear", "DequantizeLinear"
_MAXIMA = Verdict(Exactness.VALUES, Method.CONGRUENCE, reason="NaN may not be kept")
_TRIED = Verdict(Exactness.BITS, Method.EXHAUSTIVE)


@transform("move-quantizers", preserves=Exactness.VALUES)
class MoveQuantizers(Transform):
    """Apply data movement to codes instead of real values.

    ``move`` is Reshape, Flatten, Squeeze, Unsqueeze, Transpose, Slice, Gather, Concat, Expand,
    Tile, DepthToSpace, Identity or MaxPool, the last for scales above 0. Codes move if the operator
    accepts their type in the opset of the model.

    1. ``move(DequantizeLinear(codes)) -> DequantizeLinear(move(codes))``; the operands of Concat
       must have one scale and zero point. Likewise Split, with a DequantizeLinear for each part.
    2. ``QuantizeLinear(move(x)) -> move(QuantizeLinear(x))``, if nothing else uses ``move(x)``.
    3. ``QuantizeLinear(DequantizeLinear(codes)) -> codes``, if this maps every code to itself.
    4. ``dedicated``: each operator gets its own DequantizeLinear.
    5. ``units``: instead of rules 1 and 2, ``move(DequantizeLinear(codes))`` is quantized and
       dequantized again with the same parameters, for runtimes that accept only operators between
       quantizers. Likewise for Resize with mode nearest, and for Pad if a code stands for its
       number other than 0.
    6. ``operators`` limits the rules to some operators; rule 3 is that of QuantizeLinear.
    """

    units: bool = option(
        False, help="quantize and dequantize again after data movement, instead of moving it"
    )
    dedicated: bool = option(False, help="give each operator its own copy of a DequantizeLinear")
    operators: str = option("*", help="patterns of operators, such as Pad|Resize")

    def apply(self, model: Model, report: Report) -> None:
        """Dequantize later, quantize earlier, and drop quantizers that only repeat codes."""
        mover = _Mover(model, report)
        move = mover.encode_again if self.units else mover.decode_later
        for node in list(model.nodes()):
            if node.graph is not None and selects(self.operators, node.op_type):
                move(node)
        if selects(self.operators, _Q):
            for node in reversed(() if self.units else list(model.nodes(_Q))):
                mover.encode_earlier(node)
            for node in list(model.nodes(_Q)):
                mover.drop(node)
        if self.dedicated:
            for node in list(model.nodes(_DQ)):
                mover.copy(node)


class _Mover:
    """Rewrites one model; also knows the types and shapes of new values."""

    def __init__(self, model: Model, report: Report) -> None:
        self._report, self._editor = report, Editor(model.ir)
        self._facts: dict[ir.Value, Fact] = dict(infer(model.ir))
        self._opset = model.ir.opset_imports.get("", 0)

    def _decoders(self, node: ir.Node) -> tuple[list[ir.Node], int | None]:
        """Return the equal decoders of the data that a node moves, and the new axis."""
        parts = moved_operands(node) or _copied(node)
        decoders = [linear_producer(value, _DQ) for value in parts]
        present = [each for each in decoders if each is not None]
        if len(present) < len(parts) or not present or node.outputs[0].is_graph_output():
            return [], None
        first = present[0]
        if any(constant_stream(each.inputs[0]) is not None for each in present):
            return [], None
        axis = self._later_axis(node, first)
        if axis is False or not keeps_order(node, first, self._facts):
            return [], None
        equal = all(_parameters(each) == _parameters(first) for each in present[1:])
        return present if equal else [], axis

    def encode_again(self, node: ir.Node) -> None:
        """Insert a Q/DQ pair after a movement, with the parameters of the decoder before it."""
        decoders, axis = self._decoders(node)
        y = node.outputs[0]
        if not decoders or all(user.op_type == _Q for user in y.consumers()):
            return
        draft = self._editor.draft(region_of(node))
        moved = draft.copy(node, node.inputs, dtype=decoders[0].outputs[0].dtype)
        codes = _linear(draft, decoders[0], moved, axis, name=_Q)
        encode = codes.producer()
        if encode is None or _differ(decoders[0], encode):
            draft.discard()
            return
        self._facts[codes] = self._facts[moved] = self._facts.get(y, UNKNOWN)
        self._commit(draft, _linear(draft, decoders[0], codes, axis), node, _TRIED)

    def decode_later(self, node: ir.Node) -> None:
        """Exchange a movement and the DequantizeLinear before it."""
        if node.op_type == "Split" and not node.domain:
            self._decode_parts(node)
            return
        decoders, axis = self._decoders(node) if moved_operands(node) else ([], None)
        if not decoders or not self._takes(node, code_type(decoders[0])):
            return
        first, y = decoders[0], node.outputs[0]
        operands: list[Operand | None] = [each.inputs[0] for each in decoders]
        operands += node.inputs[len(decoders) :]
        draft = self._editor.draft(region_of(*decoders, node))
        moved = draft.copy(node, operands, dtype=code_type(first))
        self._facts[moved] = self._facts.get(y, UNKNOWN)
        self._commit(draft, _linear(draft, first, moved, axis), node, SAME)

    def _decode_parts(self, node: ir.Node) -> None:
        """Split codes instead of decoded values."""
        decode = linear_producer(node.inputs[0], _DQ)
        rank = self._facts.get(node.outputs[0], UNKNOWN).rank
        if decode is None or not rank or any(y.is_graph_output() for y in node.outputs):
            return
        axis = axis_of(decode, self._facts)
        is_stored = constant_stream(decode.inputs[0]) is not None
        cut = node.attributes.get_int("axis", 0) % rank
        is_cut = axis is not None and axis % rank == cut
        blocks = decode.attributes.get_int("block_size", 0)
        if is_stored or is_cut or blocks or not self._takes(node, code_type(decode)):
            return
        draft = self._editor.draft(region_of(decode, node))
        operands = [decode.inputs[0], *node.inputs[1:]]
        split = ir.node("Split", operands, node.attributes, num_outputs=len(node.outputs))
        draft.nodes.append(split)
        decoded = []
        for old, codes in zip(node.outputs, split.outputs, strict=True):
            codes.type = None if decode.inputs[0] is None else decode.inputs[0].type
            decoded.append(_linear(draft, decode, codes, axis))
            self._facts[codes] = self._facts[decoded[-1]] = self._facts.get(old, UNKNOWN)
        draft.others = dict(zip(node.outputs[1:], decoded[1:], strict=True))
        self._commit(draft, decoded[0], node, SAME)

    def _later_axis(self, node: ir.Node, decode: ir.Node) -> int | bool | None:
        """Return the axis of the parameters after a movement; False if there is no such axis."""
        axis = axis_of(decode, self._facts)
        if axis is None:
            return None
        blocks = decode.attributes.get_int("block_size", 0)
        if node.op_type == "Concat" or blocks:
            return False
        values = (v for v in (node.inputs[0], *node.outputs) if v is not None)
        ranks = [self._facts.get(value, UNKNOWN).rank or 0 for value in values]
        axis %= max(ranks[0], 1)
        axes = [i for i in range(ranks[-1]) if axis_before(node, i, self._facts) == axis]
        return axes[0] if len(axes) == 1 else False

    def encode_earlier(self, encode: ir.Node) -> None:
        """Exchange a QuantizeLinear and the movement before it."""
        value = encode.inputs[0]
        node = producer_of(value)
        parts = [] if node is None else moved_operands(node)
        operators = {maker.op_type if (maker := producer_of(v)) else _DQ for v in parts}
        if value is None or node is None or not parts or _DQ in operators:
            return
        axis = axis_of(encode, self._facts)
        blocks = encode.attributes.get_int("block_size", 0)
        before = None if axis is None else axis_before(node, axis, self._facts)
        if (before is None) != (axis is None) or blocks or not self._takes(node, code_type(encode)):
            return
        if encode.domain not in LINEAR_DOMAINS or not keeps_order(node, encode, self._facts):
            return
        if len(value.uses()) > 1 or value.is_graph_output():
            reason = f"what {title(node)} gives is also used as real values"
            self._report.sites.append(refused(encode, USED_ELSEWHERE(reason)))
            return
        draft = self._editor.draft(region_of(node, encode))
        codes = []
        for part in parts:
            if part is not None:
                codes.append(_linear(draft, encode, part, before))
                self._facts[codes[-1]] = self._facts.get(part, UNKNOWN)
        operands: list[Operand | None] = [*codes, *node.inputs[len(parts) :]]
        moved = draft.copy(node, operands, dtype=code_type(encode))
        self._commit(draft, moved, encode, _MAXIMA if node.op_type == "MaxPool" else SAME)
        for each in codes:
            if (maker := each.producer()) is not None:
                self.encode_earlier(maker)

    def drop(self, encode: ir.Node) -> None:
        """Replace a QuantizeLinear that only repeats codes by these codes."""
        decode = linear_producer(encode.inputs[0], _DQ)
        codes = None if decode is None else decode.inputs[0]
        y = encode.outputs[0]
        if decode is None or codes is None or y.is_graph_output() or _differ(decode, encode):
            return
        self._report.sites.append(entry(encode, SiteStatus.CHANGED, verdict=_TRIED))
        y.replace_all_uses_with(codes)
        if encode.graph is not None:
            encode.graph.remove(encode, safe=True)
        if not decode.outputs[0].uses() and not decode.outputs[0].is_graph_output():
            decode.graph.remove(decode, safe=True)  # type: ignore[union-attr]

    def copy(self, decode: ir.Node) -> None:
        """Copy a DequantizeLinear for each operator that reads it."""
        y = decode.outputs[0]
        for use in list(y.uses())[0 if y.is_graph_output() else 1 :]:
            draft = self._editor.draft(region_of(decode))
            twin = _linear(draft, decode, decode.inputs[0], decode.attributes.get_int("axis", None))
            node = twin.producer()
            if node is not None and decode.graph is not None:
                twin.name, node.name = (self._editor.fresh(f"{y.name}_{n}") for n in ("copy", "DQ"))
                twin.type, twin.shape = y.type, y.shape
                decode.graph.insert_after(decode, node)
                use.node.replace_input_with(use.idx, twin)
                self._report.sites.append(entry(decode, SiteStatus.CHANGED, verdict=SAME))

    def _takes(self, node: ir.Node, dtype: ir.DataType | None) -> bool:
        """Return whether an operator accepts codes of a type, or may if the type is unknown."""
        return dtype is None or takes_data(node.op_type, self._opset, dtype)

    def _commit(self, draft: Draft, moved: ir.Value, node: ir.Node, verdict: Verdict) -> None:
        self._facts[moved] = self._facts.get(draft.region.y, UNKNOWN)
        replace_node(node, draft.giving(moved), verdict, self._report)


def _parameters(node: ir.Node) -> tuple[object, ...]:
    """Return a key of scale and zero point that is equal for equal parameters."""
    arrays = [constant_expression(value) for value in node.inputs[1:]]
    return code_type(node), *(None if a is None else (a.shape, a.tobytes()) for a in arrays)


def _copied(node: ir.Node) -> list[ir.Value | None]:
    """Return the data of a Resize or Pad of codes; Pad is one if a code stands for its number.

    Runtimes move a Pad with zeros into the layer behind it, so it counts as none.
    """
    data = copied_operands(node)
    if (
        data
        and node.op_type == "Pad"
        and node.attributes.get_string("mode", "constant") == "constant"
    ):
        fill, decode = constant_expression(input_of(node, 2)), linear_producer(data[0], _DQ)
        numbers = None if decode is None else run_linear(decode, _every(decode))
        if fill is None or numbers is None or not (fill.any() and np.isin(fill, numbers).all()):
            return []
    return data


def _linear(
    draft: Draft, node: ir.Node, x: ir.Value | None, axis: int | None, *, name: str = ""
) -> ir.Value:
    """Append a QuantizeLinear or DequantizeLinear with the parameters of another."""
    kept = {key: each for key, each in node.attributes.items() if key != "axis" and not name}
    attributes = kept | ({} if axis is None else {"axis": ir.AttrInt64("axis", axis)})
    name = name or node.op_type
    dtype = code_type(node) if name == _Q else node.outputs[0].dtype
    operands = [x, *node.inputs[1:]]
    return draft.node(name, operands, attributes, domain=node.domain, dtype=dtype)


def _differ(decode: ir.Node, encode: ir.Node) -> bool:
    """Return whether dequantizing and quantizing changes a code."""
    arrays, every = [constant_expression(v) for v in decode.inputs[1:]], _every(decode)
    if every is None or code_type(encode) != code_type(decode):
        return True
    if any(array is None or array.size > 1 for array in arrays):
        return True
    results = run_linear(encode, run_linear(decode, every))
    return results is None or results.dtype != every.dtype or not np.array_equal(results, every)


def _every(node: ir.Node) -> Array | None:
    """Return all codes of a QuantizeLinear or DequantizeLinear; None if they are many."""
    dtype = code_type(node)
    form = None if dtype is None else FORMATS.get(dtype.name)
    if dtype is None or not isinstance(form, IntFormat) or form.bits > 8:
        return None
    return np.arange(form.lo, form.hi + 1).astype(np.int32).astype(numpy_dtype(dtype.name))
