"""The pass ``plain-pairs``: write quantizers as QuantizeLinear and DequantizeLinear alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import onnx_ir as ir

from qgraph.errors import Choice
from qgraph.exactness import Exactness
from qgraph.graph.constants import constant_expression
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.scopes import input_of
from qgraph.model import Model
from qgraph.numerics import Array
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import DIALECTS, Site
from qgraph.quantizers.movement import moves_constant
from qgraph.quantizers.sites import PLAIN, sites
from qgraph.reasons import NO_EQUAL_FORM
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, opset_option, option, selects, transform
from qgraph.transforms.drafts.choice import Decision, carry_out, choose, entry, readable

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


@transform("plain-pairs")
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
        True, help="whether a Quant of data may have a zero point; if not, data are limited before"
    )
    values: str = option(
        "*", help="patterns of names of the results of quantizers to rewrite, separated by |"
    )
    exact: Exactness = option(
        Exactness.NEAR, help="minimum level: near accepts thresholds that move by ulps, counted"
    )
    opset: int | None = opset_option()

    preserves: ClassVar[Exactness] = Exactness.NEAR

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
