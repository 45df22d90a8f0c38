"""The pass ``convert``: every quantizer respelled in another dialect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import ClassVar

from qgraph.dialects.dialect import DIALECTS, Dialect, Refusal, Site, parts, sites
from qgraph.equivalence.compare import Comparer
from qgraph.exactness import Exactness
from qgraph.graph.edit import Draft, Editor
from qgraph.model import Model
from qgraph.ops.fake_quantize import Arithmetic
from qgraph.opsets.versions import ceiling
from qgraph.recognition.recogniser import PLAIN
from qgraph.report import Outcome, Report, SiteReport
from qgraph.transforms.base import Transform, option, transform
from qgraph.transforms.spelling import (
    Choice,
    check_level,
    choose,
    entry,
    raise_opset,
    settle,
)

PLAIN_ALREADY = "plain operators already, which no spelling of the dialect equals"


@transform("convert")
class ConvertDialect(Transform):
    """Respell every quantizer in the dialect ``to``; report those that have no equal spelling."""

    to: str = option(registry=DIALECTS, help="target dialect: qdq, qonnx, openvino or onnx")
    exact: Exactness = option(Exactness.VALUES, help="lowest rung of equality that is accepted")
    opset: int | None = option(
        None, help="highest opset that may be used; default: 21, or the model's own if higher"
    )

    fake_quantize: Arithmetic = option(
        Arithmetic.REFERENCE,
        help="what a FakeQuantize means: its definition, or what OpenVINO's CPU plugin computes",
    )

    preserves: ClassVar[Exactness] = Exactness.VALUES

    def check_options(self) -> None:
        """Raise an OptionError for options that do not go together."""
        check_level(self.exact)

    def apply(self, model: Model, report: Report) -> None:
        """Choose a spelling for each site, raise the opset once as far as needed, replace."""
        target = DIALECTS.find(self.to)
        editor = Editor(model.ir)
        comparer = self._comparer(model, editor)
        choices, others = self._choose(model, target, editor, comparer)
        raise_opset(model, choices, report)
        if not all(choice.site.stands for choice in choices):
            choices, others = self._choose(model, target, editor, comparer)
        settle(model, choices, editor, report)
        report.sites += others

    def _comparer(self, model: Model, editor: Editor) -> Comparer:
        if self.fake_quantize is Arithmetic.REFERENCE:
            return Comparer(model.ir)
        from qgraph.transforms.ranges.plugin_arithmetic import PluginComparer

        return PluginComparer(model.ir, editor)

    def _choose(
        self, model: Model, target: Dialect, editor: Editor, comparer: Comparer
    ) -> tuple[list[Choice], list[SiteReport]]:
        limit = ceiling(model.ir, self.opset)
        foreign: list[Site | Refusal] = []
        others: list[SiteReport] = []
        for found in sites(model.ir):
            if isinstance(found, Site) and found.dialect == target.name:
                others.append(entry(found, Outcome.KEPT, None))
            else:
                foreign.append(found)
        offers, unreadable = self._offers(foreign, target, editor)
        others += [entry(found, Outcome.REFUSED, found.reason) for found in unreadable]
        choices = []
        whole = choose(offers, self.exact, limit, comparer)
        # What is said in no other way with the operators around it may be without them.
        within = {choice.site: parts(choice.site) for choice in whole if choice.draft is None}
        offers, _ = self._offers(chain.from_iterable(within.values()), target, editor)
        smaller = {
            choice.site.root: choice for choice in choose(offers, self.exact, limit, comparer)
        }
        for choice in whole:
            inner = [
                smaller[site.root] for site in within.get(choice.site, ()) if site.root in smaller
            ]
            for one in inner if any(other.draft for other in inner) else [choice]:
                if one.draft is None and one.site.dialect == PLAIN:
                    others.append(entry(one.site, Outcome.KEPT, PLAIN_ALREADY))
                elif one.draft is None and one.reason is None:
                    choices.append(replace(one, reason=target.reason(one.site)))
                else:
                    choices.append(one)
        return choices, others

    def _offers(
        self, found: Iterable[Site | Refusal], target: Dialect, editor: Editor
    ) -> tuple[list[tuple[Site, Iterator[Draft]]], list[Refusal]]:
        """Return the sites to spell, each with its drafts, and what cannot be read."""
        offers: list[tuple[Site, Iterator[Draft]]] = []
        unreadable = []
        for given in found:
            site, first = self._understood(given, target, editor)
            if isinstance(site, Refusal):
                unreadable.append(site)
            else:
                offers.append((site, chain(first, target.spellings(site, editor))))
        return offers, unreadable

    def _understood(
        self, given: Site | Refusal, target: Dialect, editor: Editor
    ) -> tuple[Site | Refusal, Iterable[Draft]]:
        """Return what a site stands for, and spellings that come before those of the dialect."""
        if isinstance(given, Refusal) or self.fake_quantize is Arithmetic.REFERENCE:
            return given, ()
        # What the plugin computes is loaded only where it is asked for.
        from qgraph.transforms.ranges.plugin_arithmetic import (
            PluginSite,
            as_plugin,
            plugin_spellings,
        )

        site = as_plugin(given, editor)
        if isinstance(site, PluginSite):
            return site, plugin_spellings(site, target.name, editor)
        return site, ()
