"""The forms of quantizers in standard operators, in the order in which ONNX Runtime is fast."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from qgraph.graph.edit import Draft, Editor, Operand
from qgraph.numerics import Float32
from qgraph.numerics.rounding import Rounding
from qgraph.numerics.values import ScaleReadError
from qgraph.ops.operator import operator_of
from qgraph.ops.steps import round_to_integer
from qgraph.proof.functions.lowering import Forms
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.dialects.layout import layout_of
from qgraph.quantizers.dialects.onnx import by_definition
from qgraph.quantizers.dialects.parts import (
    CLIPPABLE,
    CodeType,
    clip,
    dequantize,
    range_steps,
    range_values,
    real_values,
    split_top,
)
from qgraph.quantizers.dialects.qdq_pairs import pairs
from qgraph.quantizers.open_sites import opened, with_open_scale
from qgraph.quantizers.quantizer import Affine, Floating, Ranged

Make = Callable[[], Draft]
"""Writes a draft."""

Offer = tuple[Site, Make]


def runtime_forms(site: Site, editor: Editor, *, numbers: bool) -> Iterator[Make]:
    """Yield the forms of ``site``, the fastest first, its definition last.

    Other nodes may precede the quantizer in ``site``; its forms omit them. Equal quantizers have
    the same forms, in the same order. Forms that lose NaN are among them for data that are
    ``numbers``.
    """
    match site.quantizer:
        case Affine() as meaning:
            for keeps_nan in (False, True) if numbers else (True,):
                yield from _pair(site, editor, meaning, keeps_nan=keeps_nan)
            yield from _affine_chains(site, editor, meaning)
        case Ranged() as meaning:
            yield from _ranged_chains(site, editor, meaning)
        case Floating():
            yield from map(_returning, pairs(site, editor))
    if all(operator_of(node) is not None for node in site.nodes):
        yield from map(_returning, by_definition(site, editor))


def _returning(draft: Draft) -> Make:
    return lambda: draft


def _pair(site: Site, editor: Editor, meaning: Affine, *, keeps_nan: bool) -> Iterator[Make]:
    """Yield the pair, or ``min(max(x, top), pair)``, which is equal and keeps NaN."""
    scale, zero = meaning.scale, np.zeros(meaning.scale.shape, np.float32)
    codes = CodeType.of(meaning.lo, meaning.hi, CLIPPABLE)
    layout = layout_of(site.shape or None, scale)
    is_plain = meaning.rounding is Rounding.ROUND and not meaning.zero_point.any()
    if codes is None or layout is None or not codes.is_uniform or not is_plain:
        return

    def make() -> Draft:
        draft = editor.draft(site)
        q = codes.quantize(draft, draft.x, scale, zero, layout)
        pair: Operand = dequantize(draft, q, scale, zero, codes.kind, layout)
        if keeps_nan:
            with np.errstate(over="ignore"):
                top = np.maximum(np.float32(codes.lo) * scale, np.float32(codes.hi) * scale)
            pair = draft.op.Min(draft.op.Max(draft.x, top), pair)
        return draft.giving(pair)

    yield make


def _affine_chains(site: Site, editor: Editor, meaning: Affine) -> Iterator[Make]:
    """Yield ``(round(clip(x / s + z)) - z) * s``, for z = 0 also without the addition.

    Adding 0 changes -0 to +0.
    """
    zero_point = meaning.zero_point

    def make(*, adds: bool) -> Draft:
        draft = editor.draft(site)
        y = draft.op.Div(draft.x, meaning.scale)
        y = draft.op.Add(y, zero_point) if adds else y
        y = round_to_integer(draft.op, clip(draft, y, meaning.lo, meaning.hi), meaning.rounding)
        return draft.giving(real_values(draft, y, meaning.scale, zero_point))

    for adds in (True,) if zero_point.any() else (False, True):
        yield partial(make, adds=adds)


def _ranged_chains(site: Site, editor: Editor, meaning: Ranged) -> Iterator[Make]:
    """Yield FakeQuantize's formula on data clamped to the range, without its comparisons.

    Operations with 0 are omitted first. At the top of the range the formula may miss the upper
    limit by an ulp; then inputs above the range have a separate level.
    """
    low, high = meaning.output_low, meaning.output_high
    if not (meaning.input_low < meaning.input_high).all():
        return

    def make(*, adds: bool, splits: bool) -> Draft:
        draft = editor.draft(site)
        inside = clip(draft, draft.x, meaning.input_low, meaning.input_high)
        codes = draft.op.Round(range_steps(draft, inside, meaning))
        y = range_values(draft, codes, low, high, meaning.levels - 1)
        y = draft.op.Add(y, low) if adds else y
        return draft.giving(split_top(draft, y, draft.x, meaning.input_high, high) if splits else y)

    for splits in (False, True):
        for adds in [False] if low.any() else [False, True]:
            yield partial(make, adds=adds, splits=splits)


def offers(site: Site, numbers: Container[ir.Value], editor: Editor) -> Iterator[Offer]:
    """Yield the forms of a site, first those that replace a Relu before it, too."""
    for start in (*with_relu(site), site):
        for make in runtime_forms(start, editor, numbers=start.x in numbers):
            yield start, make


def offered(
    sites: Sequence[Site], numbers: Container[ir.Value], editor: Editor, forms: Forms
) -> list[Iterator[Offer]]:
    """Return the offers of sites; forms that do not depend on the scale are written once."""
    alike = dict[object, _Templates]()
    listed = []
    for site in sites:
        own = offers(site, numbers, editor)
        starts = (*with_relu(site), site)
        known = [opened(start, forms) for start in starts]
        key = tuple([None if each is None else each.form for each in known])
        if isinstance(site.meaning, Affine) and None not in key:
            places = tuple([start.x in numbers for start in starts])
            templates = alike.get((key, places))
            if templates is None:
                same = offers(with_open_scale(site), numbers, editor)
                templates = alike[key, places] = _Templates(same)
            own = templates.filled(own, site.meaning.scale)
        listed.append(own)
    return listed


class _Templates:
    """The drafts of a site with an open scale, and None for those that depend on its value."""

    def __init__(self, source: Iterator[Offer]) -> None:
        self._source = source
        self._drafts: list[Draft | None] = []

    def _at(self, index: int) -> Draft | None:
        while len(self._drafts) <= index:
            draft = None
            with suppress(ScaleReadError, StopIteration):
                draft = next(self._source)[1]()
            self._drafts.append(draft)
        return self._drafts[index]

    def filled(self, offered: Iterator[Offer], scale: Float32) -> Iterator[Offer]:
        """Yield what an equal site with a scale is offered, made from these drafts."""

        def make(index: int, start: Site, own: Make) -> Draft:
            template = self._at(index)
            draft = None if template is None else template.with_scale(start, scale)
            return own() if draft is None else draft

        for index, (start, own) in enumerate(offered):
            yield start, partial(make, index, start, own)


def with_relu(site: Site) -> Iterator[Site]:
    """Yield the site extended by a Relu before it, which an unsigned quantizer makes redundant."""
    relu = site.x.producer()
    if not isinstance(site.quantizer, Affine | Ranged) or relu is None or relu.op_type != "Relu":
        return
    x = relu.inputs[0]
    if x is not None and relu.domain == "" and relu.graph is site.root.graph:
        yield replace(site, x=x, nodes=(relu, *site.nodes), form=None)
