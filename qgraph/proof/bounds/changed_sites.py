"""Bounds of sites that passes changed, from the segments that contain them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qgraph.bound import Bounding
from qgraph.errors import QGraphError
from qgraph.graph.scopes import node_name
from qgraph.graph.slices import ancestors, sources
from qgraph.proof.bounds.paired_models import paired
from qgraph.proof.bounds.regions import bound_conditions, bound_of
from qgraph.proof.bounds.segment import Segment
from qgraph.reasons import Undecidable
from qgraph.reports import Report, SiteReport, SiteStatus

logger = logging.getLogger(__name__)

_MOST_BYTES = 1 << 28
"""Bytes of weights up to which passes compute bounds by default."""


def bound_sites(before: ir.Model, after: ir.Model, report: Report, passes: Collection[str]) -> None:
    """Add bounds to the changed sites of some passes.

    A site gets the bound of the segment that contains its node, after all passes; if several
    segments contain it, the largest bound.
    """
    changed = [
        index
        for index, site in enumerate(report.sites)
        if site.outcome is SiteStatus.CHANGED and site.pass_name in passes
    ]
    if not changed:
        return
    request = Bounding()
    segments: dict[str, list[Segment]] = {}
    conditions: tuple[str, ...] = ()
    reason = "the model has large weights"
    if report.weight_bytes_before <= _MOST_BYTES:
        try:
            pairing = paired((before, after), request)
        except (Undecidable, QGraphError, ValueError, IndexError) as error:
            logger.info("no bounds: %s", error)
            reason = str(error)
        else:
            reason = "no quantizer and no output follows it"
            conditions = tuple(bound_conditions(request, pairing.conditions))
            pairs = [s.roundings for s in pairing.segments if s.roundings is not None]
            codes = {value for pair in pairs for value in pair[0].event.node.outputs}
            for segment in pairing.segments:
                for name in _nodes(segment, codes):
                    segments.setdefault(name, []).append(segment)
    for index in changed:
        site = report.sites[index]
        report.sites[index] = _bounded(site, segments.get(site.node, []), conditions, reason)


def _bounded(
    site: SiteReport, segments: list[Segment], conditions: tuple[str, ...], reason: str
) -> SiteReport:
    open_ = [s for s in segments if s.reason or not np.isfinite(s.deviation).all()]
    if open_ or not segments:
        why = reason if not open_ else str(open_[0].reason or "the range of an input is not known")
        return replace(site, reason=f"{site.reason}; not bounded: {why}")
    bounds = [bound_of(segment, Bounding()) for segment in segments]
    bound = max(bounds, key=lambda each: each.deviation_steps)
    return replace(site, bound=replace(bound, conditions=conditions))


def _nodes(segment: Segment, codes: Collection[ir.Value]) -> Iterator[str]:
    """Yield the names of the nodes of the reference from ``codes`` to the end of a segment."""
    end = segment.values[0]
    if end is None:
        return
    for value in ancestors([end], lambda v: () if v in codes and v is not end else sources(v)):
        node = value.producer()
        if node is not None and (value is end or value not in codes):
            yield node_name(node)
