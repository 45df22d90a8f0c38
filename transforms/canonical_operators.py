"""The pass ``canonical-operators``: write operators in the forms that integer kernels accept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.exactness import Verdict
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Region
from qgraph.graph.inference.dimensions import Dim
from qgraph.graph.inference.rules import UNKNOWN, Fact
from qgraph.graph.inference.walk import infer
from qgraph.graph.opset.rewrites import SIGNED_CODES_SINCE, is_copied_over
from qgraph.graph.schema import LINEAR_DOMAINS, code_type
from qgraph.graph.scopes import input_of, inputs_of, producer_of
from qgraph.model import Model
from qgraph.records import dataclass
from qgraph.reports import Report
from qgraph.targets.layer import LAYERS
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.drafts.choice import SAME
from qgraph.transforms.drafts.rebuilding import replace_node

_BOUND = "sums may be rounded in another order; bound the difference with 'qgraph prove --within'"
_DECODER = "DequantizeLinear"
_COLOURS = 3
"""Channels of data whose convolutions are slower than those of four."""

_CODES_ARE_PADDED_SINCE = 13
_AXES_SINCE = 18
"""Opset since which the axes of ReduceMean are an operand."""
_NORMAL = np.finfo(np.float32).tiny


class CanonicalForm(Choice):
    """Operators to rewrite."""

    ALL = "all"
    GEMM = "gemm"
    POOL = "pool"
    FLATTEN = "flatten"
    POINTS = "points"
    SCALARS = "scalars"
    FACTORS = "factors"
    CHANNELS = "channels"


@transform("canonical-operators")
class CanonicalOperators(Transform):
    """Write operators on decoded codes in the forms that integer kernels accept.

    1. ``gemm``: ``Add(MatMul(x, w), b) -> Gemm(x, w, b)`` for decoded matrices ``x`` and ``w``, and
       a constant or decoded ``b`` for each column; ``alpha`` and ``beta`` of a Gemm go into the
       scale of its stored codes and into its constant bias.
    2. ``pool``: ``ReduceMean`` of decoded data over all axes after the channels becomes
       ``GlobalAveragePool``, with a Reshape if the axes are dropped; likewise an AveragePool whose
       window covers all of them.
    3. ``flatten``: ``Flatten(x) -> Reshape(x, [0, n])`` for axis 1 of decoded data.
    4. ``points``: QuantizeLinear and DequantizeLinear without a zero point get one of 0.

    5. ``scalars``: scales and zero points of shape [1] become scalars in a graph with an
       AveragePool, which ONNX Runtime refuses otherwise.

    6. ``factors``: Mul and Div by one constant move before Reshape, Transpose and similar
       operators, next to the MatMul, Gemm or Conv that computes the data and can absorb them.

    7. ``channels``, which ``all`` does not include: Pad gives codes of three channels a fourth one
       before a Conv, whose weights for it are 0. ONNX Runtime gathers four channels faster.

    Rules 3 to 6 keep every bit, rule 3 of an empty batch only if the other sizes are known. The
    others keep the exact sums; their rounding may differ.
    """

    forms: CanonicalForm = option(
        CanonicalForm.ALL,
        help="gemm: Gemm for MatMul and Add; pool: GlobalAveragePool for ReduceMean; flatten: "
        "Reshape for Flatten; points: zero points of 0; scalars: instead of shape [1]; factors: "
        "before data movement; channels: a fourth one of zeros, which is not part of all",
    )

    def apply(self, model: Model, report: Report) -> None:
        """Apply each rule to each node that it matches."""
        opset = model.ir.opset_imports.get("", 0)
        pooled = frozenset(node.graph for node in model.nodes("AveragePool"))
        graph = _Graph(Editor(model.ir), dict(infer(model.ir)), opset, pooled)
        for node in list(model.nodes()):
            for form, draft_of, verdict in _RULES.get(node.op_type, ()):
                wanted = form if form is CanonicalForm.CHANNELS else CanonicalForm.ALL
                if self.forms not in (wanted, form) or node.domain not in LINEAR_DOMAINS:
                    continue
                draft = None if node.graph is None else draft_of(node, graph)
                if draft is None:
                    continue
                graph.facts[draft.y] = graph.fact(draft.region.y)
                reason = None if verdict.exactness else _BOUND
                replace_node(node, draft, verdict, report, reason=reason, heirs=_NAMED)
                break


@dataclass(frozen=True)
class _Graph:
    """What the rules know of the graph."""

    editor: Editor
    facts: dict[ir.Value, Fact]
    opset: int
    pooled: frozenset[ir.Graph | ir.Function | None]

    def fact(self, value: ir.Value | None) -> Fact:
        return UNKNOWN if value is None else self.facts.get(value, UNKNOWN)


def _gemm(node: ir.Node, graph: _Graph) -> Draft | None:
    x, w = node.inputs[:2]
    users = list(node.outputs[0].consumers())
    if x is None or w is None or len(users) != 1 or node.outputs[0].is_graph_output():
        return None
    (add,) = users
    others = [v for v in add.inputs if v is not None and v is not node.outputs[0]]
    if add.op_type != "Add" or add.domain or len(others) != 1 or not _decodes(w):
        return None
    ranks = [graph.fact(value).rank for value in (x, w)]
    summand, sizes = graph.fact(others[0]).shape, graph.fact(w).shape
    if ranks != [2, 2] or not summand or sizes is None or not _decodes(x):
        return None
    bias = constant_expression(others[0])
    rows = summand[:-1] if bias is not None and len(summand) == 2 else ()
    if (bias is None and not _decodes(others[0])) or summand[len(rows) :] != sizes[1:]:
        return None
    if set(rows) - {1}:
        return None
    draft = graph.editor.draft(Region(x, add.outputs[0], (node, add)))
    stored = others[0] if bias is None or not rows else draft.constant(bias.reshape(-1), "bias")
    return draft.giving(draft.node("Gemm", [draft.x, w, stored], dtype=add.outputs[0].dtype))


def _factors(node: ir.Node, graph: _Graph) -> Draft | None:
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    x, w, bias = inputs_of(node, 3)
    if alpha == beta == 1 or x is None or w is None or not _decodes(x):
        return None
    draft = graph.editor.draft(Region(x, node.outputs[0], (node,)))
    operands = [draft.x, _scaled(draft, w, alpha)]
    if bias is not None:
        operands.append(_scaled(draft, bias, beta))
    if None in operands or operands[1] is None or operands[1].producer() is None:
        draft.discard()
        return None
    attributes = {k: v for k, v in node.attributes.items() if k not in ("alpha", "beta")}
    return draft.giving(draft.node("Gemm", operands, attributes, dtype=node.outputs[0].dtype))


def _scaled(draft: Draft, value: ir.Value, factor: float) -> ir.Value | None:
    """Return a constant, or decoded constant codes, times a factor; None for other data."""
    decoder = value.producer()
    if factor == 1:
        return value
    is_decoded = decoder is not None and decoder.op_type == _DECODER
    source = decoder.inputs[1] if decoder is not None and is_decoded else value
    array = constant_expression(source)
    if array is None or array.dtype != np.float32:
        return None
    with np.errstate(all="ignore"):
        scaled = array * np.float32(factor)
    is_kept = np.isfinite(scaled) & ((np.abs(scaled) >= _NORMAL) | (array == 0))
    if not is_kept.all():
        return None
    constant = draft.constant(scaled, "scale" if is_decoded else "bias")
    if decoder is None or not is_decoded:
        return constant
    operands = [decoder.inputs[0], constant, *decoder.inputs[2:]]
    return draft.copy(decoder, operands)


def _pool(node: ir.Node, graph: _Graph) -> Draft | None:
    x, y = node.inputs[0], node.outputs[0]
    rank = graph.fact(x).rank
    if graph.opset >= _AXES_SINCE:
        axes = constant_expression(input_of(node, 1))
        reduced = None if axes is None else axes.tolist()
    else:
        reduced = node.attributes.get_ints("axes", None)
    if x is None or rank is None or rank < 3 or reduced is None or not _decodes(x):
        return None
    if sorted(axis % rank for axis in reduced) != list(range(2, rank)):
        return None
    draft = graph.editor.draft(Region(x, y, (node,)))
    pooled = draft.node("GlobalAveragePool", [draft.x], dtype=y.dtype or x.dtype)
    if not node.attributes.get_int("keepdims", 1):
        pooled = _reshaped(draft, pooled, (graph.fact(x).shape or ())[1:2])
    return draft.giving(pooled)


def _window(node: ir.Node, graph: _Graph) -> Draft | None:
    x, y = node.inputs[0], node.outputs[0]
    shape = graph.fact(x).shape
    get = node.attributes.get_ints
    kernel = tuple(get("kernel_shape", ()))
    is_plain = node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    is_plain = is_plain and not any(get("pads", ())) and set(get("dilations", (1,))) == {1}
    if x is None or shape is None or not is_plain or kernel != shape[2:] or not _decodes(x):
        return None
    draft = graph.editor.draft(Region(x, y, (node,)))
    return draft.giving(draft.node("GlobalAveragePool", [draft.x], dtype=y.dtype or x.dtype))


def _flatten(node: ir.Node, graph: _Graph) -> Draft | None:
    x, y = node.inputs[0], node.outputs[0]
    fact = graph.fact(x)
    if x is None or fact.rank is None or fact.rank < 2 or not _decodes(x):
        return None
    # Without elements, -1 stands for no certain size.
    if node.attributes.get_int("axis", 1) % fact.rank != 1 or 0 in (fact.shape or ()):
        return None
    draft = graph.editor.draft(Region(x, y, (node,)))
    return draft.giving(_reshaped(draft, draft.x, (fact.shape or ())[1:]))


def _reshaped(draft: Draft, value: ir.Value, sizes: Sequence[Dim]) -> ir.Value:
    """Keep the first axis, and join those of some sizes, which may be unknown.

    Runtimes find no size for -1 if the first axis has no elements.
    """
    known = [size for size in sizes if isinstance(size, int)]
    joined = math.prod(known) if known and len(known) == len(sizes) else -1
    shape = draft.constant(np.array([0, joined], np.int64), "shape")
    return draft.node("Reshape", [value, shape], dtype=value.dtype)


def _point(node: ir.Node, graph: _Graph) -> Draft | None:
    x, codes = node.inputs[0], code_type(node)
    scale = constant_expression(node.inputs[1])
    if any(value is not None for value in node.inputs[2:]) or x is None or scale is None:
        return None
    is_signed = codes in (ir.DataType.INT8, ir.DataType.INT4, ir.DataType.INT2)
    if codes is None or not (is_signed or codes in _UNSIGNED):
        return None
    # ONNX Runtime copies signed pairs with zero points over movement, and then refuses them.
    is_new = graph.opset >= SIGNED_CODES_SINCE
    ends = [node.outputs[0]] if node.op_type == _DECODER else []
    ends += [user.outputs[0] for user in node.outputs[0].consumers() if user.op_type == _DECODER]
    if is_signed and is_new and any(map(is_copied_over, ends)):
        return None
    draft = graph.editor.draft(Region(x, node.outputs[0], (node,)))
    zero = draft.constant(np.zeros(scale.shape, codes.numpy()), "zero_point")
    operands = [draft.x, node.inputs[1], zero]
    if node.op_type == _DECODER:
        return draft.giving(draft.copy(node, operands))
    return draft.giving(draft.copy(node, operands, {"output_dtype": None}, dtype=codes))


def _scalars(node: ir.Node, graph: _Graph) -> Draft | None:
    x, *parameters = inputs_of(node, 3)
    arrays = [None if value is None else constant_expression(value) for value in parameters]
    stated = [(value, array) for value, array in zip(parameters, arrays, strict=True) if value]
    blocks = node.attributes.get_int("block_size", 0)
    if x is None or node.graph not in graph.pooled or blocks:
        return None
    if any(array is None or array.shape not in ((), (1,)) for _, array in stated):
        return None
    if all(array is None or not array.shape for array in arrays):
        return None
    draft = graph.editor.draft(Region(x, node.outputs[0], (node,)))
    names = ("scale", "zero_point")
    constants = [
        draft.constant(array.reshape(()), name) if array is not None else None
        for array, name in zip(arrays, names, strict=True)
    ]
    operands = [draft.x, *(constants if constants[1] is not None else constants[:1])]
    return draft.giving(draft.copy(node, operands))


def _factor(node: ir.Node, graph: _Graph) -> Draft | None:
    constants = [constant_expression(v) for v in node.inputs]
    data = [index for index, factor in enumerate(constants) if factor is None]
    if len(data) != 1 or (node.op_type == "Div" and data != [0]):
        return None
    factor, dtype = constants[1 - data[0]], node.outputs[0].dtype
    moves: list[ir.Node] = []
    value = node.inputs[data[0]]
    while value is not None and len(value.uses()) == 1 and not value.is_graph_output():
        before = producer_of(value, *_MOVES)
        if before is None:
            break
        moves.insert(0, before)
        value = before.inputs[0]
    is_one = factor is not None and factor.size == 1 and factor.ndim <= 1
    if value is None or factor is None or not (moves and is_one and _is_sum(value)):
        return None
    if factor.ndim and not graph.fact(node.inputs[data[0]]).rank:
        return None  # a product of shape [1]
    draft = graph.editor.draft(Region(value, node.outputs[0], (*moves, node)))
    operands = [draft.x, draft.constant(factor.reshape(()), "factor")]
    scaled = draft.node(node.op_type, operands[:: 1 - 2 * data[0]], dtype=dtype)
    for move in moves:
        scaled = draft.copy(move, [scaled, *move.inputs[1:]], dtype=dtype)
    return draft.giving(scaled)


def _channels(node: ir.Node, graph: _Graph) -> Draft | None:
    data, decoder = (producer_of(value, _DECODER) for value in node.inputs[:2])
    if data is None or decoder is None or graph.opset < _CODES_ARE_PADDED_SINCE:
        return None
    (codes, _, point), (stored, _, zero) = inputs_of(data, 3), inputs_of(decoder, 3)
    weights, points = constant_expression(stored), constant_expression(point)
    is_pair = codes is not None and producer_of(codes, "QuantizeLinear") is not None
    if codes is None or not is_pair or weights is None or weights.dtype != np.int8:
        return None
    if weights.shape[1:2] != (_COLOURS,) or node.attributes.get_int("group", 1) != 1:
        return None
    zeros = None if zero is None else constant_expression(zero)
    if points is None or points.size != 1 or (zero is not None and (zeros is None or zeros.any())):
        return None
    if not (_has_one_scale(data) and (_has_one_scale(decoder) or _has_scales_of_rows(decoder))):
        return None
    draft = graph.editor.draft(Region(data.outputs[0], node.outputs[0], (node,)))
    sizes = np.eye(2 * weights.ndim, dtype=np.int64)[weights.ndim + 1]
    padded = draft.node("Pad", [codes, sizes, points.reshape(())], dtype=codes.dtype)
    widened = draft.constant(np.pad(weights, [(0, n) for n in sizes[weights.ndim :]]), "codes")
    operands = [
        draft.copy(each, [value, *each.inputs[1:]])
        for each, value in ((data, padded), (decoder, widened))
    ]
    return draft.giving(draft.copy(node, [*operands, *node.inputs[2:]]))


def _has_one_scale(decoder: ir.Node) -> bool:
    """Return whether a DequantizeLinear has one finite scale, which makes 0 of a zero point."""
    scale = constant_expression(decoder.inputs[1])
    is_one = scale is not None and scale.size == 1 and bool(np.isfinite(scale).all())
    return is_one and decoder.attributes.get_int("block_size", 0) == 0


def _has_scales_of_rows(decoder: ir.Node) -> bool:
    """Return whether weights have a finite scale for each row, so that columns can be added."""
    scales, get = constant_expression(decoder.inputs[1]), decoder.attributes.get_int
    is_finite = scales is not None and scales.ndim == 1 and bool(np.isfinite(scales).all())
    return is_finite and get("axis", 1) == get("block_size", 0) == 0


def _is_sum(value: ir.Value) -> bool:
    """Return whether a layer computes a value, possibly followed by an Add."""
    node = value.producer()
    if node is not None and node.op_type == "Add" and not node.domain:
        makers = [producer_of(v) for v in node.inputs]
        node = next((maker for maker in makers if maker is not None), None)
    is_layer = node is not None and node.op_type in LAYERS and not node.domain
    return is_layer and len(value.uses()) == 1 and not value.is_graph_output()


def _decodes(value: ir.Value) -> bool:
    """Return whether a value is a result of DequantizeLinear, or of an operator on such."""
    node = value.producer()
    while node is not None and node.op_type in _BETWEEN and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type == _DECODER


_NAMED = frozenset({"Conv", "Gemm", "GlobalAveragePool"})
"""Operators that get the name of the node that they replace."""

_UNSIGNED = (ir.DataType.UINT8, ir.DataType.UINT4, ir.DataType.UINT2)
_MOVES = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_BETWEEN = _MOVES | {"GlobalAveragePool", "AveragePool", "MaxPool", "Relu"}

_Rule = Callable[[ir.Node, _Graph], Draft | None]
_POINTS: tuple[tuple[CanonicalForm, _Rule, Verdict], ...] = (
    (CanonicalForm.SCALARS, _scalars, SAME),
    (CanonicalForm.POINTS, _point, SAME),
)
_RULES: dict[str, tuple[tuple[CanonicalForm, _Rule, Verdict], ...]] = {
    "Conv": ((CanonicalForm.CHANNELS, _channels, Verdict()),),
    "MatMul": ((CanonicalForm.GEMM, _gemm, Verdict()),),
    "Gemm": ((CanonicalForm.GEMM, _factors, Verdict()),),
    "ReduceMean": ((CanonicalForm.POOL, _pool, Verdict()),),
    "AveragePool": ((CanonicalForm.POOL, _window, Verdict()),),
    "Flatten": ((CanonicalForm.FLATTEN, _flatten, SAME),),
    "Mul": ((CanonicalForm.FACTORS, _factor, SAME),),
    "Div": ((CanonicalForm.FACTORS, _factor, SAME),),
    "QuantizeLinear": _POINTS,
    _DECODER: _POINTS,
}
