"""The dialect ``onnx``: float operators, as in the definitions of the operators.

Every quantizer has this form, and it is always exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.exactness import Method, Verdict
from qgraph.graph.constants import constant_expression
from qgraph.graph.draft_parts import Tracer
from qgraph.graph.edit import HALF_TYPES, Draft, Editor, Operand
from qgraph.graph.schema import OpKey
from qgraph.graph.scopes import producer_of
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.ops.operator import operator_of
from qgraph.proof.functions.lowering import laid_out, parameter_array
from qgraph.quantizers.dialects.dialect import Refusal, Site, SiteWriter, dialect, shape_of
from qgraph.quantizers.dialects.parts import decoded
from qgraph.quantizers.quantizer import Affine, Floating
from qgraph.reasons import Undecidable

if TYPE_CHECKING:
    from qgraph.quantizers.weights.decoded import DecodedCodes


@dialect
class PlainOnnx:
    """Quantizers written as Div, Add, Max, Min, Round, Sub, Mul, and the rest of the primitives."""

    name: ClassVar[str] = "onnx"
    roots: ClassVar[frozenset[OpKey]] = frozenset()

    def read(self, node: ir.Node) -> Site | Refusal | None:
        """Return None: no single operator is a quantizer; the pattern matcher finds them."""
        return None

    def spellings(self, site: Site, editor: Editor) -> Iterator[Draft]:
        """Yield the operators' definitions."""
        yield from by_definition(site, editor)

    def reason(self, site: Site) -> str:
        """Return why a definition was not accepted."""
        try:
            for node in site.nodes:
                operator = operator_of(node)
                if operator is not None and not {*HALF_TYPES} & {site.x.dtype, site.y.dtype}:
                    operator.arguments(node)
        except OperatorError as error:
            return str(error)
        return "the shapes of its parameters do not broadcast to the data"


def by_definition(site: Site, editor: Editor) -> Iterator[Draft]:
    """Yield the quantizer in float operators: by definition, then for opsets without E8M0."""
    from qgraph.quantizers.weights.decoded import DecodedCodes

    codes = DecodedCodes.of(site, site.weight)
    if codes is not None:
        yield from _in_blocks(site, editor, codes)
    draft = editor.draft(site)
    try:
        _trace(site, draft, _Values(draft))
    except (OperatorError, Undecidable):
        # Definitions are written for float32, which the data, or a difference of codes, is not,
        # and which does not hold every zero point.
        yield from _difference_of_codes(site, editor)
        return
    if codes is not None:
        _promise(draft, codes)
    yield draft
    if isinstance(site.quantizer, Floating):
        low = editor.draft(site)
        _trace(site, low, _Binades(low, site.quantizer))
        yield low


def _in_blocks(site: Site, editor: Editor, codes: DecodedCodes) -> Iterator[Draft]:
    """Yield ``(codes - zero_point) * scale`` of large codes, with a parameter for each block.

    The codes are seen with an axis for the blocks, so that parameters broadcast to them and need
    not be repeated for each element.
    """
    draft, write = editor.draft(site), SiteWriter(site, editor)
    meaning = write.see_blocks()
    if not isinstance(meaning, Affine) or not write.is_split or draft.half is not None:
        return
    numbers = write.enter(draft, draft.op.Cast(draft.x, to=ir.DataType.FLOAT))
    write.end(draft, decoded(draft, numbers, meaning))
    _promise(draft, codes)
    if draft.promise is not None:
        yield draft


def _promise(draft: Draft, codes: DecodedCodes) -> None:
    """State how equal a draft is for all codes, if that is known, so that none is read."""
    level = codes.exactness(draft.nodes, draft.x, draft.y)
    if level is not None:
        draft.promise = Verdict(level, Method.CONGRUENCE)


def decoded_in_float(site: Site, editor: Editor) -> Iterator[Draft]:
    """Yield the definition of a decoder of stored codes; few dialects have one for 32 bits."""
    if site.dialect == "qdq" and site.weight is not None and isinstance(site.quantizer, Affine):
        yield from by_definition(site, editor)


def _trace(site: Site, draft: Draft, op: Tracer) -> None:
    data: Operand = draft.x
    if site.x.dtype not in (None, ir.DataType.FLOAT, *HALF_TYPES):
        # Definitions are written for the float values of stored codes.
        data = draft.op.Cast(draft.x, to=draft.half or ir.DataType.FLOAT)
    results: dict[ir.Value | None, Operand | None] = {site.x: data, None: None}
    for node in site.nodes:
        operator = operator_of(node)
        values = node.inputs if operator is None else operator.schema.values(node)
        operands: list[Any] = [
            parameter_array(node, value, site.shape, site.constants)
            if value is not None and value not in results
            else results[value]
            for value in values
        ]
        if operator is None:
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            results[node.outputs[0]] = getattr(op, node.op_type)(*operands, **attributes)
        else:
            arguments = (operator.half_arguments if draft.half else operator.arguments)(node)
            results[node.outputs[0]] = operator.define(op, *operands, **arguments)
    y = results[site.y]
    if y is not None:
        draft.giving(y)


def _difference_of_codes(site: Site, editor: Editor) -> Iterator[Draft]:
    """Yield ``Cast(codes - zero_point) * scale`` with the difference in int32, for INT32 codes."""
    node = site.root
    if len(site.nodes) > 1 or node.op_type != "DequantizeLinear" or len(node.inputs) < 3:
        return
    scale, zero_point = node.inputs[1:3]
    if scale is None or zero_point is None or site.y.dtype not in (None, ir.DataType.FLOAT):
        return
    factor, offset = (laid_out(node, value, site.shape) for value in (scale, zero_point))
    if site.x.dtype is not ir.DataType.INT32 or factor.dtype != np.float32:
        return
    draft = editor.draft(site)
    steps = draft.node("Sub", [draft.x, offset], dtype=ir.DataType.INT32)
    yield draft.giving(draft.op.Mul(draft.op.Cast(steps, to=ir.DataType.FLOAT), factor))


class _Values(Tracer):
    """Writes integer codes as floats of the type in which the draft computes."""

    def Cast(self, v: Operand, **attributes: Any) -> Operand:  # noqa: N802 - an ONNX operator
        """Keep integers in float instead of casting to an integer type."""
        if attributes["to"] == ir.DataType.FLOAT and self._draft.half is not None:
            attributes["to"] = self._draft.half
        if isinstance(FORMATS.get(ir.DataType(attributes["to"]).name), IntFormat):
            return v
        return self._call("Cast", [v], attributes)


class _Binades(_Values):
    """Finds the power of two below |v| by comparing it with every binade of the format.

    E8M0 gives it in one cast, but exists only since opset 24.
    """

    def __init__(self, draft: Draft, quantizer: Floating) -> None:
        super().__init__(draft)
        grid = quantizer.format
        self._exponents = range(1 - grid.bias, math.frexp(grid.max_value)[1])
        self._power: Operand | None = None

    def Cast(self, v: Operand, **attributes: Any) -> Operand:  # noqa: N802 - an ONNX operator
        """Return the power of two instead of casting to E8M0."""
        if attributes["to"] == ir.DataType.FLOAT8E8M0:
            first, *others = self._exponents
            power: Operand = np.asarray(2.0**first, np.float32)
            for exponent in others:
                step = 2.0**exponent
                power = self.Where(self.GreaterOrEqual(v, step), step, power)
            self._power = power
            return power
        return v if v is self._power else super().Cast(v, **attributes)


_ROUNDING = ("Round", "Floor", "Ceil")
_BETWEEN = ("Add", "Cast", "Div", "Mul", "Identity")
_FURTHEST = 6
"""Maximum number of operators between the rounding and the offset."""


def wraps_around(node: ir.Node) -> bool:
    """Return whether a node is the Floor of a quantizer of HGQ2 whose codes wrap around.

        v = round(x * 2**f) / 2**f
        a = v + offset
        y = a - floor(a / m) * m - offset           m = 2**b, the number of codes by their step

    Source: fixed-point quantizers of ``quantizers`` 1.2, overflow mode WRAP, in Keras' export.
    """
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


def rounding_site(node: ir.Node) -> Site | None:
    """Return a Round and the Clip to whole numbers next to it as a quantizer of scale 1."""
    x, users = node.inputs[0], list(node.outputs[0].consumers())
    before = producer_of(x)
    for clip in (users[0] if len(users) == 1 else None, before):
        if x is None or clip is None or clip.op_type != "Clip" or clip.domain:
            continue
        ends = [constant_expression(value) for value in clip.inputs[1:]]
        if len(ends) != 2 or any(end is None or end.size != 1 for end in ends):
            continue
        lo, hi = (np.asarray(end, np.float32).reshape(()) for end in ends)
        if not (np.isfinite([lo, hi]).all() and lo == np.rint(lo) and hi == np.rint(hi)):
            continue
        nodes = (clip, node) if clip is before else (node, clip)
        start, y = nodes[0].inputs[0], nodes[1].outputs[0]
        inner = nodes[0].outputs[0]
        if start is None or inner.is_graph_output() or len(inner.uses()) > 1 or lo > hi:
            continue
        meaning = Affine(np.ones((), np.float32), np.zeros((), np.float32), lo, hi)
        return Site(start, y, nodes, node, PlainOnnx.name, meaning, shape_of(start))
    return None
