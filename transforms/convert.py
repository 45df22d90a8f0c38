"""The passes ``convert`` and ``fold-weights``: write quantizers in another dialect, or as codes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import onnx_ir as ir

from qgraph.exactness import Exactness
from qgraph.graph.constants import constant_stream
from qgraph.graph.edit import Draft, Editor
from qgraph.graph.opset.versions import ceiling
from qgraph.graph.schema import QONNX_DOMAINS
from qgraph.graph.scopes import input_of, producer_of
from qgraph.model import Model
from qgraph.ops.definitions.fake_quantize import Arithmetic
from qgraph.quantizers.compare import Comparer
from qgraph.quantizers.decompressed import decompressed
from qgraph.quantizers.dialects.dialect import DIALECTS, Dialect, Refusal, Site
from qgraph.quantizers.dialects.layout import through_reshape
from qgraph.quantizers.dialects.parts import Scales
from qgraph.quantizers.dialects.qdq_codes import packed
from qgraph.quantizers.movement import moves_constant
from qgraph.quantizers.on_codes import coded_tensors, has_codes
from qgraph.quantizers.quantizer import unhealthy
from qgraph.quantizers.sites import PLAIN, parts, sites
from qgraph.reasons import NO_EQUAL_FORM, UNSUITED_WEIGHT, ExplainedReason
from qgraph.reports import Report, SiteReport, SiteStatus
from qgraph.transforms.base import Transform, exact_option, opset_option, option, selects, transform
from qgraph.transforms.drafts.choice import Decision, carry_out, choose, entry, readable
from qgraph.transforms.drafts.lowering import (
    lower_decompressed,
    lower_operators,
    note_joined,
    parts_marked,
)
from qgraph.transforms.drafts.rebuilding import lower_composites

NO_OPERATORS = "already in standard operators, and no form in this dialect is equal"
IN_DIALECT = "already in the dialect {}"

_BLOCKS_SINCE = 21
"""Opset since which DequantizeLinear has blocks."""

Offers = list[tuple[Site, Iterator[Draft]]]


@transform("convert", preserves=Exactness.VALUES)
class ConvertDialect(Transform):
    """Convert all quantizers to another dialect.

    Operators on codes, such as QLinearConv and MatMulNBits, are written in standard operators
    first, as ``lower-integer-operators`` and ``lower-mat-mul-n-bits`` do. Then for each site:

    1. A site of the dialect ``to`` is kept.
    2. Otherwise the dialect writes drafts, the shortest first. The first draft ``d`` with
       ``level(site(x) = d(x) for all x) >= exact`` and an opset up to ``opset`` replaces the site.
    3. If no draft does, rule 2 is applied to the quantizers within the site, without the operators
       around them.
    4. A site that no rule converts is left unchanged and reported with the reason.
    5. A site whose result ``values`` does not name is left unchanged.

    Operators that are defined as a graph of standard operators are first replaced by this graph
    (``lower-vendor-operators``). If ``to`` is qonnx, operators of QONNX without codes are kept.
    """

    to: str = option(registry=DIALECTS, help="target dialect: qdq, qonnx, openvino or onnx")
    exact: Exactness = exact_option()
    opset: int | None = opset_option()

    fake_quantize: Arithmetic = option(
        Arithmetic.REFERENCE,
        help="what a FakeQuantize means: its definition, or what OpenVINO's CPU plugin computes",
    )

    values: str = option("*", help="patterns of names of results of quantizers to convert")

    def apply(self, model: Model, report: Report) -> None:
        """Choose a draft for each site, raise the opset once if needed, and replace the sites."""
        target = DIALECTS.find(self.to)
        own = QONNX_DOMAINS if target.name == "qonnx" else ()
        limit = ceiling(model.ir, self.opset)
        with parts_marked(model, report) as lowered:
            lower_composites(
                model, report, limit, lambda node: node.domain not in own or has_codes(node)
            )
            lower_operators(model, self.exact, self.opset, report)
            if self.to == PLAIN:
                weights = decompressed(model.ir)
                reason = IN_DIALECT.format(PLAIN)
                report.sites += (entry(w.nodes[-1], SiteStatus.KEPT, reason) for w in weights)
            else:
                lower_decompressed(model, self.opset, report)
            lowered()
            note_joined(model, report, constants=self.to != "qdq")
            comparer = self._comparer(model)
            carry_out(model, lambda editor: self._choose(model, target, editor, comparer), report)

    def _comparer(self, model: Model) -> Comparer:
        if self.fake_quantize is Arithmetic.REFERENCE:
            return Comparer(model.ir)
        from qgraph.transforms.ranges.plugin_arithmetic import PluginComparer

        return PluginComparer(model.ir)

    def _choose(
        self, model: Model, target: Dialect, editor: Editor, comparer: Comparer
    ) -> list[Decision | SiteReport]:
        limit = ceiling(model.ir, self.opset)
        to_convert: list[Site | Refusal] = []
        chosen: dict[ir.Node, Decision | None] = {}
        others: list[SiteReport] = []
        for site in sites(model.ir):
            if isinstance(site, Site) and not selects(self.values, str(site.y.name)):
                continue
            is_written = isinstance(site, Site) and site.dialect == target.name
            if is_written or (target.name == "qdq" and moves_constant(site.root)):
                others.append(entry(site.root, SiteStatus.KEPT, IN_DIALECT.format(target.name)))
                continue
            chosen[site.root] = None
            if isinstance(site, Site) and site.weight is not None and not site.weight.is_held:
                # Large scales of all weights would be in memory at the same time.
                offers = self._offers([site], target, editor, others)
                (chosen[site.root],) = choose(offers, self.exact, limit, comparer)
            else:
                to_convert.append(site)
        offers = self._offers(to_convert, target, editor, others)
        is_reference = self.fake_quantize is Arithmetic.REFERENCE
        spell = partial(target.spellings, editor=editor) if is_reference else None
        rest = choose(offers, self.exact, limit, comparer, spell=spell)
        chosen |= {each.site.root: each for each in rest}
        whole = [each for each in chosen.values() if each is not None]
        # A site with no equal form may have one without the operators around it.
        within = {each.site: parts(each.site) for each in whole if each.draft is None}
        offers = self._offers(chain.from_iterable(within.values()), target, editor, [])
        smaller = {each.site.root: each for each in choose(offers, self.exact, limit, comparer)}
        decisions = []
        for decision in whole:
            read = (part.root for part in within.get(decision.site, ()))
            inner = [smaller[root] for root in read if root in smaller]
            for one in inner if any(each.draft for each in inner) else [decision]:
                if one.draft is None and one.site.dialect == PLAIN:
                    others.append(entry(one.site.root, SiteStatus.KEPT, NO_OPERATORS))
                elif one.draft is None and one.reason is None:
                    decisions.append(replace(one, reason=NO_EQUAL_FORM(target.reason(one.site))))
                else:
                    decisions.append(one)
        return [*self._with_remedies(decisions, target, editor, comparer, limit), *others]

    def _with_remedies(
        self,
        decisions: list[Decision],
        target: Dialect,
        editor: Editor,
        comparer: Comparer,
        limit: int,
    ) -> list[Decision]:
        """Add to each refusal the dialect that has an equal form; equal reasons are tried once."""
        remedies: dict[str, str] = {}
        for index, each in enumerate(decisions):
            if each.draft is None and (text := each.reason) is not None:
                if text not in remedies:
                    remedies[text] = self._remedy(each.site, target, editor, comparer, limit)
                if remedies[text]:
                    decisions[index] = replace(each, reason=NO_EQUAL_FORM(text + remedies[text]))
        return decisions

    def _remedy(
        self, site: Site, target: Dialect, editor: Editor, comparer: Comparer, limit: int
    ) -> str:
        if unhealthy(site.meaning) is not None:
            return ""
        for name in ("qdq", PLAIN, "qonnx", "openvino"):
            if name not in (target.name, site.dialect):
                offer = site, DIALECTS.find(name).spellings(site, editor)
                (decision,) = choose([offer], self.exact, limit, comparer)
                if decision.draft is not None:
                    return f"; --to {name} has an equal form"
        return ""

    def _offers(
        self,
        read_sites: Iterable[Site | Refusal],
        target: Dialect,
        editor: Editor,
        others: list[SiteReport],
    ) -> Offers:
        """Return the sites to convert with their drafts; add refusals to ``others``."""
        understood = (self._understood(each, target, editor) for each in read_sites)
        return [
            (site, chain(first, target.spellings(site, editor)))
            for site, first in readable(understood, others)
        ]

    def _understood(
        self, site: Site | Refusal, target: Dialect, editor: Editor
    ) -> tuple[Site, Iterable[Draft]] | Refusal:
        """Return the site in the chosen arithmetic, and drafts to try before the dialect's."""
        if isinstance(site, Refusal):
            return site
        if self.fake_quantize is Arithmetic.REFERENCE:
            return site, ()
        # The arithmetic of the plugin is loaded only if an option asks for it.
        from qgraph.transforms.ranges.plugin_arithmetic import PluginSite, as_plugin, plugin_drafts

        plugin_site = as_plugin(site, editor)
        if isinstance(plugin_site, Refusal):
            return plugin_site
        is_computed = isinstance(plugin_site, PluginSite)
        return plugin_site, plugin_drafts(plugin_site, target.name, editor) if is_computed else ()


@transform("fold-weights", preserves=Exactness.VALUES)
class FoldWeights(Transform):
    """Store weights as packed codes, decoded by a DequantizeLinear.

    For a constant ``w``, ``quantizer(w) -> DequantizeLinear(codes, scale, zero_point)`` with
    ``(codes - zero_point) * scale = quantizer(w)`` for each element. The float values are removed.
    """

    exact: Exactness = exact_option()
    opset: int | None = opset_option()
    scale_type: Scales = option(
        Scales.FLOAT,
        help="float32, or smallest: E8M0, FLOAT8E4M3FN, float16 or bfloat16 if no scale changes",
    )

    def apply(self, model: Model, report: Report) -> None:
        """Fold every quantizer whose input is constant; the float values are removed."""
        # The other folding pass is loaded only if this one runs.
        from qgraph.transforms.fold_constants import (
            computed_codes,
            fold_blocks,
            fold_constant_codes,
        )

        fold_constant_codes(model, report)
        with parts_marked(model, report) as lowered:
            lower_composites(model, report, ceiling(model.ir, self.opset), _quantizes_weight)
            lower_decompressed(model, self.opset, report)
            lowered()
            note_joined(model, report)
            comparer = Comparer(model.ir)
            carry_out(model, lambda editor: self._choose(model, editor, comparer), report)
        fold_blocks(model, self.exact, ceiling(model.ir, self.opset), report)
        if types := computed_codes(model):
            report.notes.append(
                f"{', '.join(types)} of stored codes is computed in each run; -p fold-constants "
                "stores the result"
            )

    def _choose(
        self, model: Model, editor: Editor, comparer: Comparer
    ) -> Iterator[Decision | SiteReport]:
        """Decide how to store each constant quantizer, and report the unreadable ones."""
        limit = ceiling(model.ir, self.opset)
        offers: Offers = []
        read_sites = list(sites(model.ir, around_constants=True))
        stored = [each.root for each in read_sites if isinstance(each, Site) and _is_stored(each)]
        stored += (n for n in model.nodes() if any(each.is_weight for each in coded_tensors(n)))
        others = [entry(node, SiteStatus.KEPT, "already stored as codes") for node in stored]
        for site in readable(filter(_is_constant, read_sites), others):
            whole = through_reshape(site) if limit >= _BLOCKS_SINCE else site
            offers.append((whole, packed(whole, editor, self.scale_type)))
        for each in choose(offers, self.exact, limit, comparer):
            is_tried = each.draft or each.verdict or each.reason
            yield each if is_tried else replace(each, reason=_why_not_stored(each.site))
        yield from others


def _why_not_stored(site: Site) -> ExplainedReason:
    """Return why no codes were tried for a constant."""
    values = site.values
    shape = () if site.weight is None else site.weight.shape
    if values is not None and values.shape != shape:
        return UNSUITED_WEIGHT(
            f"its parameters enlarge the weight from shape {list(shape)} to {list(values.shape)}, "
            "and codes have the shape of the weight; store the enlarged weight in the model, for "
            "example with an Expand that is folded, or use convert --to qdq"
        )
    if values is not None and not np.isfinite(values).all():
        return UNSUITED_WEIGHT(
            "its quantized values contain NaN or infinities, which codes do not have; correct the "
            "weight or the scale"
        )
    what = "has no elements" if 0 in shape else "has parameters that no DequantizeLinear takes"
    return UNSUITED_WEIGHT(f"the weight {what}; leave it, or use convert --to onnx")


def _quantizes_weight(node: ir.Node) -> bool:
    """Return whether a node quantizes a weight, or decodes the result of such a node."""
    x = input_of(node, 0)
    maker = producer_of(x)
    if node.op_type.endswith("DequantizeLinear"):
        return maker is not None and _quantizes_weight(maker)
    return node.op_type.endswith("QuantizeLinear") and constant_stream(x) is not None


def _is_constant(site: Site | Refusal) -> bool:
    """Return whether the input is constant and not yet stored as codes."""
    if isinstance(site, Refusal):
        return any(constant_stream(x) is not None for x in site.root.inputs[:1])
    return site.weight is not None and not _is_stored(site)


def _is_stored(site: Site) -> bool:
    is_decoder = site.dialect == "qdq" and site.nodes[0].op_type != "QuantizeLinear"
    return site.weight is not None and is_decoder
