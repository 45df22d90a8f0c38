"""What the pictures of a report are drawn from: steps and codes, taken from the models."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import onnx_ir as ir

from qgraph.certification.certify import prove
from qgraph.certification.joint import between
from qgraph.errors import QGraphError
from qgraph.execution.executor import Backend, prepare
from qgraph.inventory.quantizer_statistics import Statistics
from qgraph.matching.known_values import KnownValues
from qgraph.matching.plain import Plain, plain
from qgraph.model import Source, load
from qgraph.proof.cone import lower
from qgraph.proof.expression import Builder, Expr, Undecidable
from qgraph.reporting.staircase import channels, staircase

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_BYTES = 1 << 30
"""Weights of more bytes are not counted for a picture."""

_STAIRCASES = 8
"""So many places where models differ are drawn."""


class Named:
    """The values of a model by their names, and what constants they hold.

    Args:
        model: a copy that proofs are made of.
    """

    def __init__(self, model: Plain) -> None:
        self.known = KnownValues(model.imports)
        self.known.enter(model.graph)
        self.values = {str(value.name): value for value in model.graph.inputs}
        for node in model.graph:
            self.values |= {str(value.name): value for value in node.outputs}

    def function(self, entry: str, exit_: str, builder: Builder) -> Expr | None:
        """Return the value called ``exit_`` as a function of the one called ``entry``.

        None where the nodes between them do not work element by element.
        """
        start, end = self.values.get(entry), self.values.get(exit_)
        if start is None or end is None:
            return None
        nodes = between(end, [start], self.known.has)
        if not nodes:
            return None
        shape = () if start.shape is None else tuple(_size(size) for size in start.shape)
        try:
            return lower(nodes, start, end, shape, builder, constants=self.known.array)
        except Undecidable:
            return None


def _size(size: int | ir.SymbolicDim) -> int | None:
    return size if isinstance(size, int) else None


def region_functions(
    region: Mapping[str, Any], reference: Named, candidate: Named
) -> tuple[Expr, Expr] | None:
    """Return both sides of a region of a certificate; None where it is no function of one value."""
    if len(region["entries"]) != 1:
        return None
    builder = Builder()
    ((ours, theirs),) = region["entries"]
    pair = (
        reference.function(ours, region["reference_value"], builder),
        candidate.function(theirs, region["candidate_value"], builder),
    )
    return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])


def named(reference: Source, candidate: Source, *, keep_inputs: bool) -> tuple[Named, Named]:
    """Return the values of two models by the names that a certificate of them uses."""
    sides = plain(load(reference), load(candidate), keep_inputs=keep_inputs)
    return Named(sides[0]), Named(sides[1])


def staircases(
    certificate: Mapping[str, Any], reference: Source, candidate: Source
) -> list[dict[str, Any]]:
    """Return the steps around each difference of a certificate; see :func:`staircase`.

    Args:
        certificate: the JSON document of ``qgraph prove``.
        reference: the model, or its path.
        candidate: the other one.
    """
    wanted = [
        region
        for region in certificate["regions"]
        if region["verdict"] == "different" and region["entries"] and region["witness"] is not None
    ]
    if not wanted:
        return []
    sides = named(reference, candidate, keep_inputs=bool(certificate.get("keep_inputs")))
    drawn: list[dict[str, Any]] = []
    for region in wanted:
        pair = region_functions(region, *sides)
        if pair is None or len(drawn) == _STAIRCASES:
            continue
        witness = region["witness"]
        channel = min(witness.get("channel") or 0, channels(*pair) - 1)
        spot = float(witness["input"])
        labels = [_last(region, side) for side in ("reference", "candidate")]
        near = spot if math.isfinite(spot) else None
        drawn.append(staircase(pair, labels, channel, near) | {"node": labels[0]})
    return drawn


def _last(region: Mapping[str, Any], side: str) -> str:
    nodes: Sequence[str] = region[f"{side}_nodes"]
    return nodes[-1] if nodes else str(region[f"{side}_value"])


def histograms(
    model: Source, batches: Sequence[Mapping[str, Any]] = (), *, backend: str = Backend.AUTO
) -> list[dict[str, Any]]:
    """Return which codes the quantizers of a model use and how often.

    Args:
        model: the model, or its path.
        batches: inputs to run it on; without any, only weights are looked at.
        backend: what runs it.

    Returns:
        What ``qgraph run --stats --json`` lists of each quantizer whose codes are counted; nothing
        for a model that takes long to go through.
    """
    loaded = load(model)
    initializers = (value.const_value for value in loaded.ir.graph.initializers.values())
    if sum(tensor.nbytes for tensor in initializers if tensor is not None) > _MOST_BYTES:
        return []
    statistics = Statistics(loaded)
    if batches and statistics.taps:
        executor = prepare(loaded.ir, backend)
        for batch in batches:
            executor.run(batch, taps=statistics.taps, observe=statistics.add)
    found = [quantizer.to_json() for quantizer in statistics.quantizers]
    return [each for each in found if each["codes"]]


def illustrated(
    document: Mapping[str, Any],
    reference: Source,
    candidate: Source,
    batches: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a report with what its pictures are drawn from: ``staircases`` and ``quantizers``.

    Args:
        document: the JSON report of check, prove, convert, fold or transform.
        reference: the model, or its path; the input of a rewriting.
        candidate: the other one; its output.
        batches: inputs of the reference, on which the codes of activations are counted.
    """
    models = load(reference), load(candidate)
    certificate = document
    if "sites" in document:
        moved = any(site["differing_inputs"] for site in document["sites"])
        certificate = _attempt(lambda: prove(*models).to_json(), {}) if moved else {}
    drawn: list[dict[str, Any]] = []
    if "regions" in certificate:
        drawn = _attempt(lambda: staircases(certificate, *models), drawn)
    # The codes of a model whose quantizers are spelled in plain operators cannot be told.
    order = models if "sites" not in document else models[::-1]
    counted: list[dict[str, Any]] = []
    counted = _attempt(lambda: histograms(order[0], batches) or histograms(order[1]), counted)
    return dict(document) | {"staircases": drawn, "quantizers": counted}


def _attempt(make: Callable[[], T], otherwise: T) -> T:
    """Return what ``make`` does; a report must not fail for want of a picture."""
    try:
        return make()
    except QGraphError as error:
        logger.info("something is not drawn: %s", error)
        return otherwise
