"""Passes that write quantizers and products in the one form that kernels take.

``plain-pairs``      quantizers as QuantizeLinear and DequantizeLinear alone
``split-gemm``       Gemm as MatMul and Add
``lower-pointwise``  convolutions with windows of one element as MatMul
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.exactness import Exactness, Verdict
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor, Operand, Region
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.scopes import input_of, inputs_of, producer_of
from qgraph.inventory.layers import FoundLayer, quantized_layers
from qgraph.inventory.openvino_traps import weight_chain
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import DIALECTS, Site
from qgraph.quantizers.movement import moves_constant
from qgraph.quantizers.sites import PLAIN, sites
from qgraph.reasons import NO_EQUAL_FORM, NO_OPERATOR, UNSUITED_WEIGHT
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, opset_option, option, selects, transform
from qgraph.transforms.drafts.choice import (
    Decision,
    carry_out,
    choose,
    entry,
    label,
    readable,
    refused,
)
from qgraph.transforms.drafts.rebuilding import carry_over, replace_node, turned_weights

_FORMS = {
    "qdq": (
        ("QuantizeLinear", "DequantizeLinear"),
        ("QuantizeLinear", "Clip", "DequantizeLinear"),
        ("DequantizeLinear",),
    ),
    "qonnx": (("Quant",), ("BipolarQuant",), ("Trunc",)),
}
_LIMITED = ("Clip", "Quant")

_NONE = NO_EQUAL_FORM(
    "no plain form has such a rounding, granularity or fractional zero point; leave it, or train "
    "with one that it has"
)


class PairDialect(Choice):
    """Dialects with plain forms."""

    QDQ = "qdq"
    QONNX = "qonnx"


@transform("plain-pairs", preserves=Exactness.NEAR)
class PlainPairs(Transform):
    """Write quantizers in Q/DQ with float operators around as plain pairs.

    If a plain pair differs at a few thresholds, ``convert`` writes Div, Mul, Add or Round around
    QuantizeLinear and DequantizeLinear. But runtimes compute on codes only between plain pairs. For
    each such quantizer, and each weight decoded in this way,

    1. ``float(DQ(Q(float(x)))) -> DequantizeLinear([Clip](QuantizeLinear(x, s, z)), s, z)``, if
       that reaches the level ``exact``. The report has the number of inputs that give another
       value. Quantizers of data in other dialects, such as FakeQuantize, get this form at once.
    2. ``dialect=qonnx``: likewise one Quant alone, instead of operators around it.
    3. ``zero_points=false``: likewise ``Quant(x, s, z) -> Quant(Clip(x), s, 0)`` for data.
    """

    dialect: PairDialect = option(
        PairDialect.QDQ, help="qdq: QuantizeLinear and DequantizeLinear; qonnx: Quant"
    )
    zero_points: bool = option(
        True, help="whether a Quant of data may have a zero point; if not, data are clipped first"
    )
    values: str = option(
        "*", help="patterns of names of the results of quantizers to rewrite, separated by |"
    )
    exact: Exactness = option(
        Exactness.NEAR, help="minimum level: near accepts thresholds that move by ulps, counted"
    )
    opset: int | None = opset_option()

    def apply(self, model: Model, report: Report) -> None:
        """Compare the plain form of each quantizer with it, and replace it."""
        carry_out(model, lambda editor: self._plan(model, editor), report)

    def _plan(self, model: Model, editor: Editor) -> Iterator[Decision | SiteReport]:
        dialect = DIALECTS.find(str(self.dialect))
        offers: list[tuple[Site, Iterator[Draft]]] = []
        others: list[SiteReport] = []
        for site in readable(sites(model.ir), others):
            is_other = site.dialect == PLAIN or site.weight is not None
            if (site.dialect != dialect.name and is_other) or moves_constant(site.root):
                continue
            if not selects(self.values, str(site.y.name)):
                continue
            if self._is_plain(site, site.nodes, {}):
                others.append(entry(site.root, SiteStatus.KEPT))
            else:
                offers.append((site, self._plain_drafts(site, dialect.spellings(site, editor))))
        limit = ceiling(model.ir, self.opset)
        yield from (
            each if each.draft or each.verdict or each.reason else replace(each, reason=_NONE)
            for each in choose(offers, self.exact, limit, Comparer(model.ir))
        )
        yield from others

    def _plain_drafts(self, site: Site, drafts: Iterable[Draft]) -> Iterator[Draft]:
        yield from (each for each in drafts if self._is_plain(site, each.nodes, each.constants))

    def _is_plain(
        self, site: Site, nodes: Sequence[ir.Node], constants: Mapping[ir.Value, Array]
    ) -> bool:
        """Return whether nodes, with constants of a draft, are a plain form."""
        names, forms = tuple(node.op_type for node in nodes), _FORMS[str(self.dialect)]
        if self.zero_points or site.weight is not None:
            return names in forms
        return names in (*forms, _LIMITED) and not _has_zero_point(nodes[-1], constants)


def _has_zero_point(node: ir.Node, constants: Mapping[ir.Value, Array]) -> bool:
    """Return whether an operator of QONNX has a zero point other than 0."""
    point = input_of(node, 2)
    if point is None:
        return False
    zero_point = constants[point] if point in constants else constant_expression(point)
    return zero_point is None or bool(zero_point.any())


_ORDER = "sums may be rounded in another order; bound the difference with 'qgraph prove --within'"


@transform("split-gemm", bounded=True)
class SplitGemm(Transform):
    """Write Gemm as MatMul and Add, for compilers that have no Gemm.

    1. ``Gemm(x, w, b) -> Add(MatMul(x, w), b)`` for ``alpha`` and ``beta`` 1. With ``transB``, the
       weights are transposed: constants before their quantizer, others by a Transpose.

    The exact sums do not change; their rounding may. Other factors, and ``transA``, are refused.
    """

    def apply(self, model: Model, report: Report) -> None:
        """Split each Gemm, and report it."""
        editor = Editor(model.ir)
        for node in list(model.nodes("Gemm")):
            if node.domain or None in node.inputs[:2]:
                continue
            factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
            is_turned = bool(node.attributes.get_int("transA", 0))
            if factors != [1.0, 1.0] or is_turned:
                reason = f"alpha is {factors[0]:g}, beta {factors[1]:g}, or its data are transposed"
                report.sites.append(refused(node, NO_OPERATOR(f"{reason}; leave the Gemm")))
                continue
            replace_node(
                node, _split(node, editor), Verdict(), report, reason=_ORDER, heirs=("MatMul",)
            )


def _split(node: ir.Node, editor: Editor) -> Draft:
    x, w, bias = inputs_of(node, 3)
    y = node.outputs[0]
    draft = editor.draft(Region(x or y, y, (node,)))
    if node.attributes.get_int("transB", 0):
        w = _transposed(draft, w)
    product = draft.node("MatMul", [draft.x, w], dtype=y.dtype)
    return draft.giving(
        product if bias is None else draft.node("Add", [product, bias], dtype=y.dtype)
    )


def _transposed(draft: Draft, w: ir.Value | None) -> ir.Value:
    chain = weight_chain(w)
    is_quantized = chain is not None and chain.nodes and not chain.is_turned
    turned = turned_weights(draft, chain) if chain is not None and is_quantized else None
    dtype = None if w is None else w.dtype
    return turned or draft.node("Transpose", [w], {"perm": [1, 0]}, dtype=dtype)


_DECODER = "DequantizeLinear"
_LEAST_RANK = 3


@transform("lower-pointwise", bounded=True)
class LowerPointwise(Transform):
    """Write 1 x 1 convolutions as MatMul if their result is read in float.

    Runtimes compute float results from codes only in MatMul. For decoded data and stored weights,
    one group, strides of 1 and no padding,

    1. ``Conv(x, w, b) -> Add(Transpose(MatMul(Transpose(x), w)), b)`` with the channels last for
       the MatMul, if other operators than a quantizer, or several, read the result. ``w`` are the
       same codes with two axes.

    The sums stay; their rounding may differ.
    """

    nodes: str = option("*", help="patterns of names of the convolutions, separated by |")

    def apply(self, model: Model, report: Report) -> None:
        """Write each such convolution as a product, and report it."""
        editor = Editor(model.ir)
        for layer in list(quantized_layers(model.ir)):
            node, rank = layer.node, layer.description.rank
            if rank is None or not (_is_pointwise(layer) and selects(self.nodes, label(node))):
                continue
            if not _is_read_in_float(layer):
                continue
            draft = _product(node, rank, editor)
            if draft is None:
                report.sites.append(refused(node, UNSUITED_WEIGHT(
                    "its weights are not decoded from constant codes, or its bias is computed; "
                    "store both with -p fold-constants"
                )))  # fmt: skip
                continue
            replace_node(node, draft, Verdict(), report, reason=_ORDER, heirs=("MatMul",))


def _is_pointwise(layer: FoundLayer) -> bool:
    node, rank = layer.node, layer.description.rank
    if node.op_type != "Conv" or rank is None or rank < _LEAST_RANK:
        return False
    get, weights = node.attributes.get_ints, node.inputs[1]
    decode = producer_of(weights)
    codes = None if decode is None else decode.inputs[0]
    sizes = () if codes is None or codes.shape is None else codes.shape[2:]
    kernel = get("kernel_shape", sizes)
    is_single = len(kernel) == rank - 2 and set(kernel) == {1}
    is_whole = set(get("strides", (1,))) == {1} and not any(get("pads", ()))
    return is_single and is_whole and node.attributes.get_int("group", 1) == 1


def _is_read_in_float(layer: FoundLayer) -> bool:
    """Return whether anything except one quantizer, also after movement, reads the result."""
    description = layer.description
    operators = [each.op for each in description.behind if not each.is_redundant]
    is_coded = (
        description.y is not None and description.consumers == 1 and not description.is_graph_output
    )
    return not is_coded or bool(set(operators) - _MOVES)


_MOVES = frozenset({"Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose"})


def _product(node: ir.Node, rank: int, editor: Editor) -> Draft | None:
    x, weights, bias = inputs_of(node, 3)
    decode = producer_of(weights)
    if x is None or decode is None or decode.op_type != _DECODER:
        return None
    parameters = [constant_expression(v) for v in decode.inputs]
    summand = constant_expression(bias)
    missing = [v is not None and a is None for v, a in zip(decode.inputs, parameters, strict=True)]
    codes = parameters[0]
    is_along = decode.attributes.get_int("axis", 1) == 0 or all(
        array is None or array.size == 1 for array in parameters[1:]
    )
    if any(missing) or codes is None or not is_along or (bias is not None and summand is None):
        return None
    y = node.outputs[0]
    last, first = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    draft = editor.draft(Region(x, y, (node,)))
    matrix = np.ascontiguousarray(codes.reshape(codes.shape[:2]).T)
    operands: list[Operand | None] = [draft.constant(matrix, "codes"), *decode.inputs[1:]]
    attributes = {"axis": 1} if "axis" in decode.attributes else {}
    stored = draft.node(_DECODER, operands, attributes, domain=decode.domain, dtype=y.dtype)
    carry_over(decode, draft.nodes[-1])
    turned = draft.node("Transpose", [draft.x], {"perm": last}, dtype=x.dtype)
    product = draft.node("MatMul", [turned, stored], dtype=y.dtype)
    result = draft.node("Transpose", [product], {"perm": first}, dtype=y.dtype)
    if summand is not None:
        shaped = draft.constant(summand.reshape(-1, *(1,) * (rank - 2)), "bias")
        result = draft.node("Add", [result, shaped], dtype=y.dtype)
    return draft.giving(result)
