"""The pass ``fold-weights``: store constant quantizers as packed codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from qgraph.exactness import Exactness
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.opset.versions import ceiling
from qgraph.model import Model
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.dialects.layout import through_reshape
from qgraph.quantizers.dialects.parts import Scales
from qgraph.quantizers.dialects.qdq_codes import packed
from qgraph.quantizers.on_codes import coded_tensors
from qgraph.quantizers.site import Refusal, Site, weight_of
from qgraph.quantizers.sites import sites
from qgraph.reports import Outcome, Report, SiteReport
from qgraph.transforms.base import Transform, exact_option, opset_option, option, transform
from qgraph.transforms.drafts.choice import Decision, choose, entry, raise_and_settle, readable

_BLOCKS_SINCE = 21
"""Opset since which DequantizeLinear has blocks."""


@transform("fold-weights")
class FoldWeights(Transform):
    """Store weights as packed codes in front of a DequantizeLinear.

    For a constant ``w``, ``quantizer(w) -> DequantizeLinear(codes, scale, zero_point)`` with
    ``(codes - zero_point) * scale = quantizer(w)`` for each element. The float values are removed.
    """

    exact: Exactness = exact_option()
    opset: int | None = opset_option()
    scale_type: Scales = option(
        Scales.FLOAT,
        help="float32, or smallest: E8M0, FLOAT8E4M3FN, float16 or bfloat16 if no scale changes",
    )

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def apply(self, model: Model, report: Report) -> None:
        """Fold every quantizer whose input is constant; the float values are removed."""
        editor, comparer = Editor(model.ir), Comparer(model.ir)
        raise_and_settle(model, lambda: self._choose(model, editor, comparer), editor, report)

    def _choose(
        self, model: Model, editor: Editor, comparer: Comparer
    ) -> tuple[list[Decision], list[SiteReport]]:
        """Decide on each constant quantizer, and report the unreadable ones."""
        limit = ceiling(model.ir, self.opset)
        offers: list[tuple[Site, Iterator[Draft]]] = []
        others = [
            entry(node, Outcome.KEPT, "its weights are stored as codes")
            for node in model.nodes()
            if any(tensor.is_weight for tensor in coded_tensors(node))
        ]
        for site in readable(filter(_is_constant, sites(model.ir)), others):
            whole = through_reshape(site) if limit >= _BLOCKS_SINCE else site
            offers.append((whole, packed(whole, editor, self.scale_type)))
        return choose(offers, self.exact, limit, comparer), others


def _is_constant(site: Site | Refusal) -> bool:
    """Return whether the input is constant and not yet stored as codes."""
    if isinstance(site, Refusal):
        x = site.root.inputs[0]
        return x is not None and weight_of(x) is not None
    is_stored = site.dialect == "qdq" and site.nodes[0].op_type != "QuantizeLinear"
    return site.weight is not None and not is_stored
