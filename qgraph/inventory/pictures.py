"""Compute the data of the pictures of a report, steps and codes, from the models."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

import onnx_ir as ir

from qgraph.errors import OptionError, QGraphError, UnsupportedError, require
from qgraph.execution import demonstration
from qgraph.execution.executor import Backend
from qgraph.execution.prepare import prepare
from qgraph.graph.scopes import node_name
from qgraph.graph.sizes import fixed_sizes
from qgraph.graph.slices import between
from qgraph.inventory.statistics import Statistics
from qgraph.ops.known_values import KnownValues
from qgraph.ops.static_parameters import settled
from qgraph.proof.certify import certify
from qgraph.proof.curves import channels, staircase
from qgraph.proof.functions.expression import Builder, Expr
from qgraph.proof.functions.lowering import lower
from qgraph.proof.matching.normalise import NormalisedModel, normalised_models
from qgraph.proof.matching.operators import joined
from qgraph.quantizers.dialects.dialect import Refusal, Site
from qgraph.quantizers.sites import sites
from qgraph.quantizers.standardize import standardize
from qgraph.reasons import Undecidable
from qgraph.text import counted

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_BYTES = 1 << 30
"""Maximum bytes of weights that are counted for a picture."""

_STAIRCASES = 8
"""Maximum number of differences to draw."""


class Named:
    """The values of a normalised copy of a model by name, and its constants."""

    def __init__(self, model: NormalisedModel) -> None:
        self.known = KnownValues(model.imports)
        self.known.enter(model.graph)
        results = (value for node in model.graph for value in node.outputs)
        self.values = {str(value.name): value for value in (*model.graph.inputs, *results)}

    def function(self, entry: str, exit_: str, builder: Builder) -> Expr | None:
        """Return the value called ``exit_`` as a function of the one called ``entry``.

        None if the nodes between them are not elementwise.
        """
        start, end = self.values.get(entry), self.values.get(exit_)
        if start is None or end is None:
            return None
        nodes = between(end, [start], lambda value: joined(value, self.known.has))
        if not nodes:
            return None
        shape = fixed_sizes(start) or ()
        try:
            return lower(nodes, start, end, shape, builder, constants=self.known.array)
        except Undecidable:
            return None


def region_functions(
    region: Mapping[str, Any], reference: Named, candidate: Named
) -> tuple[Expr, Expr] | None:
    """Return both sides of a region of a certificate; None if it is not a function of one value."""
    if len(region["entries"]) != 1:
        return None
    builder = Builder()
    ((ours, theirs),) = region["entries"]
    pair = (
        reference.function(ours, region["reference_value"], builder),
        candidate.function(theirs, region["candidate_value"], builder),
    )
    return None if pair[0] is None or pair[1] is None else (pair[0], pair[1])


def named(reference: ir.Model, candidate: ir.Model, *, keep_inputs: bool) -> tuple[Named, Named]:
    """Return the values of two models by the names that a certificate of them uses."""
    sides = normalised_models(reference, candidate, keep_inputs=keep_inputs)
    return Named(sides[0]), Named(sides[1])


def staircases(
    certificate: Mapping[str, Any], reference: ir.Model, candidate: ir.Model
) -> list[dict[str, Any]]:
    """Return the steps around each difference of a certificate of two models: :func:`staircase`."""
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


def histograms(model: ir.Model, batches: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return the histograms of codes of the quantizers of a model that is run on some batches.

    Without batches, only weights are counted. Each histogram is an entry of ``qgraph run --stats
    --json``; there is none for a model that takes too long.
    """
    initializers = (value.const_value for value in model.graph.initializers.values())
    if sum(tensor.nbytes for tensor in initializers if tensor is not None) > _MOST_BYTES:
        return []
    statistics = Statistics(model)
    if batches and statistics.taps:
        executor = prepare(model, Backend.AUTO, standardize=standardize)
        for batch in batches:
            executor.run(batch, taps=statistics.taps, observe=statistics.add)
    measured = [quantizer.to_json() for quantizer in statistics.quantizers]
    return [each for each in measured if each["codes"]]


def illustrated(
    document: Mapping[str, Any],
    reference: ir.Model,
    candidate: ir.Model,
    batches: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a report with the data of its pictures: ``staircases`` and ``quantizers``.

    Args:
        document: the JSON report of check, prove, convert, fold or transform.
        reference: one model; the input of a rewriting.
        candidate: the other one; its output.
        batches: inputs of the reference, on which the codes of activations are counted.
    """
    models = reference, candidate
    certificate = document
    if "sites" in document:
        moved = any(site["differing_inputs"] for site in document["sites"])
        certificate = _attempt(lambda: _certificate(*models), {}) if moved else {}
    drawn: list[dict[str, Any]] = []
    if "regions" in certificate:
        drawn = _attempt(lambda: staircases(certificate, *models), drawn)
    # All pages count codes of the reference's quantizers. A stored type may have more codes.
    counted: list[dict[str, Any]] = []
    counted = _attempt(lambda: histograms(reference, batches) or histograms(candidate), counted)
    return dict(document) | {"staircases": drawn, "quantizers": counted}


def _certificate(reference: ir.Model, candidate: ir.Model) -> dict[str, Any]:
    return certify(reference, candidate, runs=demonstration).certificate.to_json()


def _attempt(make: Callable[[], T], otherwise: T) -> T:
    """Return the result of ``make``; None if it fails, so that pictures cannot fail a report."""
    try:
        return make()
    except QGraphError as error:
        logger.info("a picture is missing: %s", error)
        return otherwise


def plot_data(
    model: ir.Model, node: str, *, compare: ir.Model | None = None, channel: int | None = None
) -> dict[str, Any]:
    """Return the data of a picture of a quantizer; see :func:`staircase`.

    Args:
        model: the model of the quantizer.
        node: name of one of its nodes, or of its output.
        compare: a second model, whose quantizer at the same position is drawn too.
        channel: index of the drawn element of the parameters; None for the one with the largest
            difference, or the first.

    Raises:
        OptionError: there is no such quantizer or channel.
        UnsupportedError: the quantizer has no definition over single values.
    """
    require(channel, Integral | None, "channel", "a whole number, or None")
    site = _site(model, node)
    if compare is None:
        functions = [_function(site, Builder())]
        near = None
    else:
        functions, near = _pair(model, compare, site, node)
        if channel is not None and near is not None and near[1] != channel:
            near = None
    number = channels(*functions)
    chosen = channel if channel is not None else near[1] if near is not None else 0
    if not 0 <= chosen < number:
        raise OptionError(
            f"channel {chosen} of {node!r}: it has {counted(number, 'channel')}, expected 0 to "
            f"{number - 1}. Choose one of these."
        )
    labels = [node] if compare is None else [node, node]
    spot = None if near is None else near[0]
    return staircase(functions, labels, chosen, spot) | {"op": site.root.op_type, "node": node}


def _site(model: ir.Model, name: str) -> Site:
    """Return the quantizer of the node with this name."""
    by_label: dict[str, Site | Refusal] = {}
    for site in sites(settled(model)):
        for label in _labels(site):
            by_label.setdefault(label, site)
    found_site = by_label.get(name)
    if found_site is None:
        near = difflib.get_close_matches(name, by_label, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "'qgraph info' lists the quantizers."
        raise OptionError(f"{name!r} is not the name of a quantizer of the model. {hint}")
    if isinstance(found_site, Refusal):
        raise OptionError(
            f"{name!r} cannot be drawn: {found_site.reason.rstrip('.')}. Choose another quantizer."
        )
    return found_site


def _labels(site: Site | Refusal) -> list[str]:
    nodes = [site.root, *(site.nodes if isinstance(site, Site) else ())]
    labels = [node.name or "" for node in nodes]
    labels += [str(value.name) for value in nodes[-1].outputs]
    return [label for label in labels if label]


def _function(site: Site, builder: Builder) -> Expr:
    """Return a quantizer as a function of its input."""
    name = node_name(site.root)
    if site.x.dtype not in (None, ir.DataType.FLOAT):
        is_real = site.x.dtype in (ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
        does = f"quantizes {site.x.dtype} values" if is_real else f"decodes {site.x.dtype} codes"
        raise UnsupportedError(
            f"{name!r}: {does}, expected a quantizer of float32 values. "
            "Choose one of the data; 'qgraph run --stats' shows the codes of a weight."
        )
    try:
        return lower(site.nodes, site.x, site.y, site.shape, builder)
    except Undecidable as undecidable:
        raise UnsupportedError(
            f"{name!r}: {undecidable.reason}, expected operators over single values. Choose "
            "another quantizer, or make its shapes known."
        ) from undecidable


def _pair(
    reference: ir.Model, candidate: ir.Model, site: Site, name: str
) -> tuple[list[Expr], tuple[float, int] | None]:
    """Return a quantizer, its counterpart in another model, and their largest difference."""
    certificate = _certificate(reference, candidate)
    own = {*_labels(site), str(site.y.name)}
    for region in certificate["regions"]:
        if not own & {*region["reference_nodes"], region["reference_value"]}:
            continue
        pair = region_functions(region, *named(reference, candidate, keep_inputs=False))
        if pair is None:
            raise OptionError(
                f"{name!r}: its counterpart is not a function of one float32 value. Choose a "
                f"quantizer of the data."
            )
        witness = region["witness"]
        differs = witness is not None and region["verdict"] == "different"
        spot = float(witness["input"]) if differs else float("nan")
        channel = min(region["witness"].get("channel") or 0, channels(*pair) - 1) if differs else 0
        return list(pair), (spot, channel) if abs(spot) < float("inf") else None
    # No region holds it: both models have the same nodes there.
    function = _function(site, Builder())
    return [function, function], None
