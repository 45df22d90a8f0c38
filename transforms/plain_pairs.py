"""The pass ``plain-pairs``: quantizers as QuantizeLinear and DequantizeLinear alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.opset.versions import ceiling
from qgraph.model import Model
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.dialect import DIALECTS, Site
from qgraph.quantizers.movement import moves_constant
from qgraph.quantizers.sites import sites
from qgraph.reasons import NO_EQUAL_FORM
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, opset_option, option, transform
from qgraph.transforms.drafts.choice import (
    Decision,
    choose,
    entry,
    raise_and_settle,
    readable,
)

_DIALECT = "qdq"
_FORMS = (
    ("QuantizeLinear", "DequantizeLinear"),
    ("QuantizeLinear", "Clip", "DequantizeLinear"),
    ("DequantizeLinear",),
)

_NONE = NO_EQUAL_FORM(
    "a pair has no such rounding, granularity or fractional zero point; leave it, or train with "
    "one that QuantizeLinear has"
)


@transform("plain-pairs")
class PlainPairs(Transform):
    """Write quantizers in Q/DQ with float operators around as plain pairs.

    ``convert`` writes Div, Mul, Add or Round around QuantizeLinear and DequantizeLinear where a
    plain pair is equal up to a few thresholds only. Runtimes compute on codes between plain pairs
    alone. For each such quantizer, and each weight decoded so,

    1. ``float(DQ(Q(float(x)))) -> DequantizeLinear([Clip](QuantizeLinear(x, s, z)), s, z)``, if
       that reaches the level ``exact``. The report has the number of inputs that give another
       value.
    """

    exact: Exactness = option(
        Exactness.NEAR, help="minimum level: near accepts thresholds that move by ulps, counted"
    )
    opset: int | None = opset_option()

    preserves: ClassVar[Exactness] = Exactness.NEAR

    def apply(self, model: Model, report: Report) -> None:
        """Compare the plain form of each quantizer with it, and replace it."""
        editor = Editor(model.ir)
        raise_and_settle(model, lambda: self._plan(model, editor), editor, report)

    def _plan(self, model: Model, editor: Editor) -> tuple[list[Decision], list[SiteReport]]:
        dialect = DIALECTS.find(_DIALECT)
        offers: list[tuple[Site, Iterator[Draft]]] = []
        others: list[SiteReport] = []
        for site in readable(sites(model.ir), others):
            if site.dialect != _DIALECT or moves_constant(site.root):
                continue
            if _is_plain(site.nodes):
                others.append(entry(site.root, SiteStatus.KEPT))
                continue
            drafts = dialect.spellings(site, editor)
            offers.append((site, (draft for draft in drafts if _is_plain(draft.nodes))))
        limit = ceiling(model.ir, self.opset)
        return [
            each if each.draft or each.verdict or each.reason else replace(each, reason=_NONE)
            for each in choose(offers, self.exact, limit, Comparer(model.ir))
        ], others


def _is_plain(nodes: list[ir.Node] | tuple[ir.Node, ...]) -> bool:
    """Return whether nodes are a pair, or decode stored codes."""
    return tuple(node.op_type for node in nodes) in _FORMS
