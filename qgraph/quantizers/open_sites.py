"""Quantizers that differ only in their scale: drafts are written once, with an open scale."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Opened:
    """A site whose scale is left open.

    Attributes:
        form: equal for sites that are equal up to the scale.
        scale: the scale that is left open.
    """

    form: Hashable
    scale: Float32


def opened(site: Site, forms: Forms) -> Opened | None:
    """Return the form of a site with an open scale; None if it has no single float32 scale."""
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
    return Opened((nodes, site.shape, types, kind, *others), meaning.scale)


def spelled_once(
    sites: Sequence[tuple[Site, Iterator[Draft]]], forms: Forms, spell: Spell
) -> list[Iterator[Draft]]:
    """Return the drafts of sites; those that do not depend on the scale are written once."""
    alike: dict[Hashable, list[tuple[int, Float32]]] = {}
    for index, (site, _) in enumerate(sites):
        known = opened(site, forms)
        if known is not None:
            alike.setdefault(known.form, []).append((index, known.scale))
    drafts = [each for _, each in sites]
    for group in alike.values():
        if len(group) > 1:
            shared = _OpenDrafts(sites[group[0][0]][0], spell)
            for index, scale in group:
                drafts[index] = shared.filled(sites[index][0], scale, drafts[index])
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


class _OpenDrafts:
    """The drafts of a site with an open scale, up to the first that depends on its value."""

    def __init__(self, site: Site, spell: Spell) -> None:
        self._source = iter(spell(with_open_scale(site)))
        self._drafts: list[Draft] = []
        self._ended = False

    def _at(self, index: int) -> Draft | None:
        while not self._ended and len(self._drafts) <= index:
            try:
                self._drafts.append(next(self._source))
            except (StopIteration, ScaleReadError):
                self._ended = True
        return self._drafts[index] if index < len(self._drafts) else None

    def filled(self, site: Site, scale: Float32, own: Iterator[Draft]) -> Iterator[Draft]:
        """Yield the drafts for a site that is equal up to its scale, then the rest of its own."""
        for index in count():
            template = self._at(index)
            draft = None if template is None else template.with_scale(site, scale)
            if draft is None:
                yield from islice(own, index, None)
                return
            yield draft
