"""Quantizers that differ only in their scale: drafts are written once, with an open scale."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Any

import numpy as np
import onnx_ir as ir

from qgraph.graph.constants import array_of, constant_tensor
from qgraph.graph.edit import Draft, Region
from qgraph.numerics import Array, Float32
from qgraph.numerics.values import OpenScale, ScaleReadError
from qgraph.proof.functions.lowering import Forms
from qgraph.proof.functions.pair import scale_of
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine
from qgraph.records import replace

Spell = Callable[[Site], Iterable[Draft]]
"""Writes the drafts of a site."""


def scales_of(region: Region) -> dict[ir.Value, Array | None]:
    """Return the scales of the quantizers in a region, with their arrays if they are constant."""
    found = (scale_of(node) for node in region.nodes)
    return {value: array for value, array in found if value is not None}


def open_scale(nodes: Iterable[ir.Node]) -> tuple[Float32 | None, dict[ir.Value, object]]:
    """Return the single float32 number that all scales of nodes are, and keys that leave it open.

    There is none if nodes have other scales, or 1, with which operations are left out.
    """
    scale: Any = None
    marks: dict[ir.Value, object] = {}
    for value, array in map(scale_of, nodes):
        if value is None:
            continue
        if array is None or array.dtype != np.float32 or array.shape or array == 1:
            return None, {}
        if scale is not None and scale.tobytes() != array.tobytes():
            return None, {}
        scale, marks[value] = array, ("scale", constant_tensor(value) is not None)
    return scale, marks


def opened(site: Site, forms: Forms) -> Hashable:
    """Return the form of a site, equal for all scales; None if it has no single float32 scale."""
    meaning = site.meaning
    if not isinstance(meaning, Affine) or meaning.decoding is not None or site.weight is not None:
        return None
    nodes = site.form
    if nodes is None:
        scale, marks = open_scale(site.nodes)
        if scale is None or meaning.scale.shape or scale.tobytes() != meaning.scale.tobytes():
            return None
        nodes = forms.of_region(site.nodes, site.x, site.y, marks)
    if nodes is None:
        return None
    arrays = (meaning.zero_point, meaning.lo, meaning.hi)
    others = [(array.shape, array.tobytes()) for array in arrays]
    types = site.x.dtype, site.y.dtype, str(site.x.shape)
    kind = site.dialect, meaning.rounding, meaning.recipe
    return nodes, site.shape, types, kind, *others


def spelled_once(
    sites: Sequence[tuple[Site, Iterator[Draft]]], forms: Forms, spell: Spell
) -> list[Iterator[Draft]]:
    """Return the drafts of sites; those that do not depend on the scale are written once."""
    alike: dict[Hashable, list[tuple[int, Float32]]] = {}
    for index, (site, _) in enumerate(sites):
        form, meaning = opened(site, forms), site.meaning
        if form is not None and isinstance(meaning, Affine):
            alike.setdefault(form, []).append((index, meaning.scale))
    drafts = [each for _, each in sites]
    for group in alike.values():
        if len(group) > 1:
            first = with_open_scale(sites[group[0][0]][0])
            shared = OpenDrafts(map(returning, spell(first)))
            for index, scale in group:
                drafts[index] = _filled(shared, sites[index][0], scale, drafts[index])
    return drafts


def with_open_scale(site: Site) -> Site:
    """Return a site that has a form, with an open scale in place of its own."""
    scale: Any = OpenScale()
    meaning: Any = site.meaning
    scales = scales_of(site)
    return replace(
        site,
        meaning=replace(meaning, scale=scale),
        constants=lambda value: scale if value in scales else array_of(value),
    )


Make = Callable[[], Draft]
"""Writes a draft."""


def returning(draft: Draft) -> Make:
    """Return what gives a draft that is written already."""
    return lambda: draft


class OpenDrafts:
    """The drafts of a site with an open scale, and none for those that depend on its value.

    Args:
        makers: write the drafts, one after the other.
    """

    def __init__(self, makers: Iterator[Make]) -> None:
        self._makers = makers
        self._drafts: list[Draft | None] = []

    def at(self, index: int, region: Region, scale: Float32) -> Draft | None:
        """Return a draft for a region that is equal up to its scale; None if that matters."""
        while len(self._drafts) <= index:
            draft = None
            with suppress(ScaleReadError, StopIteration):
                draft = next(self._makers)()
            self._drafts.append(draft)
        template = self._drafts[index]
        return None if template is None else template.with_scale(region, scale)


def _filled(
    shared: OpenDrafts, site: Site, scale: Float32, own: Iterator[Draft]
) -> Iterator[Draft]:
    """Yield shared drafts of a site up to the first that depends on the scale, then its own."""
    for index in count():
        draft = shared.at(index, site, scale)
        if draft is None:
            yield from islice(own, index, None)
            return
        yield draft
