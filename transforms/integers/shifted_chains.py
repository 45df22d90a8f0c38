"""Shift codes between QuantizeLinear and DequantizeLinear, also through data movement.

Codes, zero points and limits of codes are shifted by one number. A QuantizeLinear then saturates at
corresponding codes, because the zero point is added after rounding. MaxPool and data movement
select the same elements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import clip_limits, constant_expression, constant_stream
from qgraph.graph.edit import Editor
from qgraph.graph.opset.rewrites import SIGNED_CODES_REASON, SIGNED_CODES_SINCE, is_copied_over
from qgraph.graph.schema import code_type
from qgraph.graph.scopes import input_of, nodes_of, owners, producer_of, remove_constant
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat, numpy_dtype
from qgraph.numerics.values import fingerprint
from qgraph.quantizers.movement import MOVES, is_linear
from qgraph.reasons import (
    AT_RUN_TIME,
    RUNTIME_FAILS,
    UNSUITED_RANGE,
    USED_ELSEWHERE,
    ExplainedReason,
)
from qgraph.records import dataclass
from qgraph.reports import Report, SiteStatus
from qgraph.transforms.drafts.choice import SAME, entry, refused

_MIDDLE = 128
_UNSIGNED = "UINT8"
_WHY_UNSIGNED = (
    "at opset 21 or later, ONNX Runtime refuses signed codes if an operator that moves values "
    "follows"
)

_KEPT = (MOVES - {"Concat"}) | {"Clip", "Relu"}
"""Operators that keep dequantized values unchanged."""


@dataclass(frozen=True, eq=False)
class CodeChain:
    """Values of codes that are connected by operators that move them.

    Attributes:
        encoders, movers, decoders: the nodes that compute, move and decode them.
        kind: the type of the codes.
        obstacle: why they cannot be shifted; None if they can.
    """

    values: tuple[ir.Value, ...]
    encoders: tuple[ir.Node, ...]
    movers: tuple[ir.Node, ...]
    decoders: tuple[ir.Node, ...]
    kind: str
    obstacle: ExplainedReason | None

    def blocked(self, type_name: str, opset: int) -> ExplainedReason | None:
        """Return why the codes cannot be stored in another type of the same width, or None."""
        may_copy = FORMATS[type_name].lo and opset >= SIGNED_CODES_SINCE
        if self.obstacle is not None or not may_copy:
            return self.obstacle
        copied = any(is_copied_over(node.outputs[0]) for node in self.decoders)
        return RUNTIME_FAILS(SIGNED_CODES_REASON) if copied else None

    @property
    def meets_concat(self) -> bool:
        """Whether the dequantized values are an operand or the result of a Concat."""
        after = {user for node in self.decoders for user in _users(node.outputs[0])}
        before = {maker for node in self.encoders for maker in _makers(node.inputs[0])}
        return any(node.op_type == "Concat" for node in (*self.movers, *after, *before))

    @property
    def is_read_unsigned(self) -> bool:
        """Whether OpenVINO may read signed codes as unsigned: at a Concat, or turned for a Conv."""
        after = (user for node in self.decoders for user in _users(node.outputs[0]))
        turns = (node for node in after if node.op_type == "Transpose")
        is_turned = any(
            user.op_type == "Conv" for node in turns for user in _users(node.outputs[0])
        )
        return self.meets_concat or is_turned

    @property
    def is_first_factor(self) -> bool:
        """Whether it has zero point 128, and only products of data use it, as first operands."""
        middles = all((_points(n) == _MIDDLE).all() for n in (*self.encoders, *self.decoders))
        uses = [use for node in self.decoders for use in _moved_uses(node.outputs[0])]
        return middles and bool(uses) and all(
            node.op_type == "MatMul" and not index and not _is_stored(node.inputs[1])
            for node, index in uses
        )  # fmt: skip

    def centred(self, type_name: str) -> int | ExplainedReason:
        """Return the number to add to codes to make their zero point 0, or why they do not fit."""
        points = {tuple(np.unique(_points(n)).tolist()) for n in (*self.encoders, *self.decoders)}
        point = points.pop() if len(points) == 1 else ()
        if len(point) != 1:
            return UNSUITED_RANGE("its codes have several zero points; quantize them with one")
        step, form = -int(point[0]), FORMATS[type_name]
        for node in self.encoders:
            (low, high), is_limited = _limits(node, self.kind)
            wide = (low, high) if is_limited else (form.lo - step, form.hi - step)
            if (low, high) != wide or low + step < form.lo or high + step > form.hi:
                return UNSUITED_RANGE(
                    f"its codes from {low:g} to {high:g} with zero point {-step} have no equal "
                    f"ones of {type_name} with zero point 0; quantize the data to signed codes"
                )
        return step

    def shift(
        self, type_name: str, editor: Editor, step: int | None = None, *, shares: bool = False
    ) -> None:
        """Add a number to all codes and store them in another type.

        Without a step, it is half of the range, which converts between signed and unsigned. Equal
        constants become one if ``shares`` is set, for graphs without functions.
        """
        if step is None:
            step = int(FORMATS[type_name].lo - FORMATS[self.kind].lo)
        for node in (*self.encoders, *self.decoders):
            moved = _moved(_points(node), step, type_name)
            _put(node, 2, moved, "zero_point", editor, shares=shares)
            if node in self.encoders:
                node.attributes.pop("output_dtype", None)
        for node in self.movers or ():
            for index in (1, 2) if node.op_type == "Clip" else ():
                bound = constant_expression(input_of(node, index))
                if bound is not None:
                    moved = _moved(bound, step, type_name)
                    _put(node, index, moved, "bound", editor, shares=shares)
        for value in self.values:
            value.type = ir.TensorType(ir.DataType[type_name])


def _points(node: ir.Node) -> Array:
    """Return the zero points of QuantizeLinear or DequantizeLinear, which are constant."""
    scale, stored = constant_expression(node.inputs[1]), input_of(node, 2)
    array = constant_expression(stored)
    if array is None:
        array = np.zeros(() if scale is None else scale.shape)
    return array.astype(np.int32)


def _moved_uses(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Yield the uses of a value, also after data movement."""
    for use in value.uses():
        if use.node.op_type in MOVES and not use.idx:
            yield from _moved_uses(use.node.outputs[0])
        else:
            yield use.node, use.idx


def _users(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the users of a value, also after limits and data movement."""
    for use in value.uses():
        yield use.node
        if use.node.op_type in _KEPT and not use.idx:
            yield from _users(use.node.outputs[0])


def _makers(value: ir.Value | None) -> Iterator[ir.Node]:
    """Yield the node that computes a value, also before limits and data movement."""
    node = producer_of(value)
    if node is not None:
        yield node
        if node.op_type in _KEPT:
            yield from _makers(node.inputs[0])


def _is_stored(value: ir.Value | None) -> bool:
    """Return whether a value is constant, or decoded from constant codes."""
    maker = producer_of(value)
    codes = maker.inputs[0] if maker is not None and maker.op_type == "DequantizeLinear" else value
    return constant_stream(codes) is not None


def _limits(encode: ir.Node, type_name: str) -> tuple[tuple[float, float], bool]:
    """Return the limits of the codes of a QuantizeLinear, and whether a Clip follows it."""
    form = FORMATS[type_name]
    users = list(encode.outputs[0].consumers())
    if len(users) != 1 or users[0].op_type != "Clip":
        return (form.lo, form.hi), False
    low, high = clip_limits(users[0]) or (form.lo, form.hi)
    return (max(low, form.lo), min(high, form.hi)), True


def code_chains(model: Model) -> Iterator[CodeChain]:
    """Yield the codes of each QuantizeLinear with all connected codes, each chain once."""
    for owner in owners(model.ir):
        seen: set[ir.Value] = set()
        for node in nodes_of(owner):
            if node.op_type == "QuantizeLinear" and node.outputs[0] not in seen:
                chain = _chain(node)
                seen.update(chain.values)
                yield chain


def _chain(encode: ir.Node) -> CodeChain:
    type_name = (code_type(encode) or ir.DataType.UINT8).name
    pending, values = [encode.outputs[0]], dict[ir.Value, None]()
    members: dict[str, dict[ir.Node, None]] = {"encoders": {}, "movers": {}, "decoders": {}}
    obstacle: ExplainedReason | None = None
    while pending:
        value = pending.pop()
        if value in values:
            continue
        values[value] = None
        maker = value.producer()
        role = None if maker is None else _role(maker, 0)
        if maker is None or role is None or value.is_graph_output():
            is_output = value.is_graph_output()
            what = "an output of the graph" if is_output else "no QuantizeLinear gives"
            obstacle = obstacle or USED_ELSEWHERE(f"its codes meet {value.name!r}, which {what}")
        elif role == "movers":
            members[role][maker] = None
            operands = maker.inputs if maker.op_type == "Concat" else maker.inputs[:1]
            pending += filter(None, operands)
        elif role == "encoders":
            members[role][maker] = None
        for use in value.uses():
            role = _role(use.node, use.idx)
            if role in ("movers", "decoders"):
                members[role][use.node] = None
                pending += use.node.outputs if role == "movers" else ()
            else:
                obstacle = obstacle or USED_ELSEWHERE(
                    f"its codes are also used by {use.node.op_type}, which needs them as they are; "
                    "apply -p lower-integer-operators first"
                )
    encoders, movers, decoders = (tuple(nodes) for nodes in members.values())
    clips = (node for node in movers if node.op_type == "Clip")
    if not _are_constant((*encoders, *decoders, *clips)):
        obstacle = obstacle or AT_RUN_TIME(
            "a scale, a zero point or a limit of its codes is computed at run time"
        )
    return CodeChain(tuple(values), encoders, movers, decoders, type_name, obstacle)


def _role(node: ir.Node, index: int) -> str | None:
    """Return the role of a node for codes that are its result, or its operand at ``index``."""
    if is_linear(node, "QuantizeLinear", "DequantizeLinear"):
        return None if index else "encoders" if node.op_type[0] == "Q" else "decoders"
    moves = node.op_type in MOVES or node.op_type == "Clip"
    if not moves or node.domain or len(node.outputs) != 1:
        return None
    return None if index and node.op_type != "Concat" else "movers"


def _are_constant(nodes: Iterable[ir.Node]) -> bool:
    operands = [input_of(node, index) for node in nodes for index in (1, 2)]
    return all(value is None or constant_expression(value) is not None for value in operands)


def _moved(array: Array, step: int, type_name: str) -> Array:
    return (array.astype(np.int32) + np.int32(step)).astype(numpy_dtype(type_name))


def _put(
    node: ir.Node, index: int, array: Array, name: str, editor: Editor, *, shares: bool
) -> None:
    """Replace an operand of a node by a constant."""
    value, old = ir.val(name, const_value=ir.Tensor(array)), input_of(node, index)
    stem = node.outputs[0].name or "codes"
    node.resize_inputs(max(len(node.inputs), index + 1))
    content = fingerprint(array) if shares else value
    node.replace_input_with(index, editor.share(value, content, node, node.graph, stem))
    if old is not None:
        remove_constant(old)


def is_same_width(one: str, other: str) -> bool:
    """Return whether one of two integer types of equal width is signed and the other is not."""
    first, second = FORMATS.get(one), FORMATS.get(other)
    if not (isinstance(first, IntFormat) and isinstance(second, IntFormat)):
        return False
    return first.bits == second.bits and first.signed != second.signed


def keep_unsigned(model: Model, decoders: Collection[ir.Node], report: Report) -> None:
    """Change signed codes to unsigned codes with the same values, if they can be.

    These are the codes of some DequantizeLinear. A note in the report has their number.
    """
    editor, changed = Editor(model.ir), 0
    for chain in list(code_chains(model)):
        wanted = {*chain.decoders}.intersection(decoders)
        if wanted and chain.obstacle is None and is_same_width(chain.kind, _UNSIGNED):
            chain.shift(_UNSIGNED, editor, shares=not model.ir.functions)
            changed += len(wanted)
    if changed:
        report.notes.append(
            f"signed codes with a zero point became unsigned in {changed} "
            f"{'place' if changed == 1 else 'places'}, with the same values: {_WHY_UNSIGNED}"
        )


def shift_activations(
    model: Model,
    type_name: str,
    report: Report,
    *,
    symmetric: bool = True,
    centre: bool = False,
    products: bool = False,
) -> None:
    """Shift all codes of data that have the width of ``type_name``; do nothing if it names no type.

    Without ``symmetric``, codes with zero point 0 are shifted only at a Concat, and before a
    Transpose of data of a Conv. With ``centre``, zero points become 0. With ``products``, only
    first factors of products of data are shifted.
    """
    editor, opset = Editor(model.ir), model.ir.opset_imports.get("", 0)
    for chain in list(code_chains(model)):
        step: int | ExplainedReason | None = None
        if products and not (chain.obstacle is None and chain.is_first_factor):
            continue
        is_plain = not any(_points(node).any() for node in chain.encoders)
        if not symmetric and is_plain and not chain.is_read_unsigned:
            continue
        if centre and type_name in FORMATS:
            form, step = FORMATS.get(chain.kind), chain.obstacle
            is_coded = isinstance(form, IntFormat) and form.bits == FORMATS[type_name].bits
            if step is None and is_coded:
                step = chain.centred(type_name)
            if step is None or (step == 0 and chain.kind == type_name):
                continue
        elif not is_same_width(chain.kind, type_name):
            continue
        reason = step if isinstance(step, ExplainedReason) else chain.blocked(type_name, opset)
        if reason is None and not isinstance(step, ExplainedReason):
            chain.shift(type_name, editor, step)
        report.sites += (
            entry(node, SiteStatus.CHANGED, verdict=SAME)
            if reason is None
            else refused(node, reason)
            for node in chain.encoders
        )
