"""The pass ``fold-weights``: constant quantizers become packed codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from qgraph.dialects.code_layout import through_reshape
from qgraph.dialects.dialect import Refusal, Site, sites, weight_of
from qgraph.dialects.qdq_codes import packed
from qgraph.dialects.scale_forms import Scales
from qgraph.equivalence.compare import Comparer
from qgraph.exactness import Exactness
from qgraph.graph.edit import Draft, Editor
from qgraph.model import Model
from qgraph.opsets.versions import ceiling
from qgraph.report import Outcome, Report
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.spelling import (
    Choice,
    check_level,
    choose,
    entry,
    raise_opset,
    settle,
)

_BLOCKS_SINCE = 21
"""Opset since which DequantizeLinear has blocks."""


@transform("fold-weights")
class FoldWeights(Transform):
    """Store the values of constant quantizers as packed codes behind a DequantizeLinear."""

    exact: Exactness = option(Exactness.VALUES, help="lowest rung of equality that is accepted")
    opset: int | None = option(
        None, help="highest opset that may be used; default: 21, or the model's own if higher"
    )
    scale_type: Scales = option(
        Scales.FLOAT,
        help="smallest: scales as E8M0, FLOAT8E4M3FN, float16 or bfloat16 where that is the same",
    )

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def check_options(self) -> None:
        """Raise an OptionError for options that do not go together."""
        check_level(self.exact)

    def apply(self, model: Model, report: Report) -> None:
        """Fold every quantizer whose input is constant; the float values leave the model."""
        editor, comparer = Editor(model.ir), Comparer(model.ir)
        choices, refusals = self._choose(model, editor, comparer)
        raise_opset(model, choices, report)
        if not all(choice.site.stands for choice in choices):
            choices, refusals = self._choose(model, editor, comparer)
        settle(model, choices, editor, report)
        report.sites += [entry(found, Outcome.REFUSED, found.reason) for found in refusals]

    def _choose(
        self, model: Model, editor: Editor, comparer: Comparer
    ) -> tuple[list[Choice], list[Refusal]]:
        """Return what becomes of each constant quantizer, and the ones that cannot be read."""
        limit = ceiling(model.ir, self.opset)
        offers: list[tuple[Site, Iterator[Draft]]] = []
        refusals: list[Refusal] = []
        for found in sites(model.ir):
            if isinstance(found, Refusal):
                refusals += [found] if _on_constant(found) else []
            elif found.weight is not None and not _is_stored(found):
                site = through_reshape(found) if limit >= _BLOCKS_SINCE else found
                offers.append((site, packed(site, editor, self.scale_type)))
        return choose(offers, self.exact, limit, comparer), refusals


def _on_constant(refusal: Refusal) -> bool:
    x = refusal.root.inputs[0]
    return x is not None and weight_of(x) is not None


def _is_stored(site: Site) -> bool:
    """Return whether the constant is codes already: a lone DequantizeLinear."""
    return site.dialect == "qdq" and site.nodes[0].op_type != "QuantizeLinear"
