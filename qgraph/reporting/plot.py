"""A picture of one quantizer of a model, or of two beside each other."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import onnx_ir as ir

from qgraph.certification.certify import prove
from qgraph.dialects.dialect import Refusal, Site, sites
from qgraph.errors import OptionError, UnsupportedError
from qgraph.model import Model, Source, load
from qgraph.proof.cone import lower
from qgraph.proof.expression import Builder, Expr, Undecidable
from qgraph.reporting.extras import require_drawing
from qgraph.reporting.illustrations import named, region_functions
from qgraph.reporting.staircase import channels, staircase
from qgraph.reporting.staircase_chart import plot_figure
from qgraph.reporting.theme import themed
from qgraph.reporting.view import counted

_DOTS_PER_INCH = 160


def plot(
    model: Source,
    node: str,
    *,
    compare: Source | None = None,
    channel: int | None = None,
    format: str = "svg",  # noqa: A002 - as matplotlib calls it
) -> bytes:
    """Return a picture of a quantizer: its output and its error over its input, drawn exactly.

    Args:
        model: where the quantizer is.
        node: name of one of its nodes, or of its output.
        compare: a second model, whose quantizer in the same place is drawn too; inputs on which
            they differ are marked.
        channel: number of the element of the parameters that is drawn; None for the one that shows
            the widest difference, or the first.
        format: of the picture: svg or png.

    Raises:
        OptionError: there is no such quantizer, channel or format, or the libraries that draw are
            not installed.
        UnsupportedError: the quantizer has no definition over single values.
    """
    require_drawing("a plot")
    if format not in ("svg", "png"):
        raise OptionError(f"format={format!r}: expected svg or png. Ask for one of these.")
    data = plot_data(model, node, compare=compare, channel=channel)
    title = f"{node}: {data['op']}"
    if data.get("differing") is not None:
        title = f"{node}: {counted(data['differing'], 'input')} with other values"
    file = BytesIO()
    with themed(opaque=True):
        figure = plot_figure(data, title)
        kind: dict[str, Any] = {"format": format, "dpi": _DOTS_PER_INCH}
        metadata = {"Date": None, "Creator": None} if format == "svg" else {"Software": None}
        figure.savefig(file, metadata=metadata, **kind)
    return file.getvalue()


def plot_data(
    model: Source, node: str, *, compare: Source | None = None, channel: int | None = None
) -> dict[str, Any]:
    """Return the numbers that :func:`plot` draws; see it for arguments and errors."""
    reference = load(model)
    site = _site(reference, node)
    if compare is None:
        functions = [_function(site, Builder())]
        near = None
    else:
        functions, near = _pair(reference, load(compare), site, node)
        if channel is not None and near is not None and near[1] != channel:
            near = None
    number = channels(*functions)
    chosen = channel if channel is not None else near[1] if near is not None else 0
    if not 0 <= chosen < number:
        raise OptionError(
            f"channel {chosen} of {node!r}: it has {number}, expected 0 to {number - 1}. Choose "
            "one of these."
        )
    labels = [node] if compare is None else [node, node]
    spot = None if near is None else near[0]
    return staircase(functions, labels, chosen, spot) | {"op": site.root.op_type, "node": node}


def _site(model: Model, name: str) -> Site:
    """Return the quantizer that a node of this name belongs to.

    Raises:
        OptionError: there is none.
    """
    known: dict[str, Site | Refusal] = {}
    for found in _sites(model):
        for label in _labels(found):
            known.setdefault(label, found)
    found_site = known.get(name)
    if found_site is None:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "'qgraph info' lists the quantizers."
        raise OptionError(f"{name!r} is no quantizer of the model, expected one. {hint}")
    if isinstance(found_site, Refusal):
        raise OptionError(
            f"{name!r} cannot be drawn: {found_site.reason.rstrip('.')}. Choose another quantizer."
        )
    return found_site


def _sites(model: Model) -> Iterator[Site | Refusal]:
    yield from sites(model.settled().ir)


def _labels(found: Site | Refusal) -> list[str]:
    nodes = [found.root, *(found.nodes if isinstance(found, Site) else ())]
    labels = [node.name or "" for node in nodes]
    labels += [str(value.name) for value in nodes[-1].outputs]
    return [label for label in labels if label]


def _function(site: Site, builder: Builder) -> Expr:
    """Return what a quantizer computes.

    Raises:
        UnsupportedError: it has no definition over single values.
    """
    name = site.root.name or site.root.outputs[0].name
    if site.x.dtype not in (None, ir.DataType.FLOAT):
        raise UnsupportedError(
            f"{name!r}: decodes {site.x.dtype} codes, expected a quantizer of float32 values. "
            "Choose one of the data; 'qgraph run --stats' tells which codes a weight has."
        )
    try:
        return lower(site.nodes, site.x, site.y, site.shape, builder)
    except Undecidable as undecidable:
        raise UnsupportedError(
            f"{name!r}: {undecidable.reason}, expected operators over single values. Choose "
            "another quantizer, or make its shapes known."
        ) from undecidable


def _pair(
    reference: Model, candidate: Model, site: Site, name: str
) -> tuple[list[Expr], tuple[float, int] | None]:
    """Return a quantizer and what is in its place in another model, and where they differ most.

    Raises:
        OptionError: the other model has the same nodes there, or nothing that can be drawn.
    """
    certificate = prove(reference, candidate).to_json()
    own = {*_labels(site), str(site.y.name)}
    for region in certificate["regions"]:
        if not own & {*region["reference_nodes"], region["reference_value"]}:
            continue
        pair = region_functions(region, *named(reference, candidate, keep_inputs=False))
        if pair is None:
            raise OptionError(
                f"{name!r}: what is in its place is no function of one float32 value, expected "
                "one. Choose a quantizer of the data."
            )
        witness = region["witness"]
        differs = witness is not None and region["verdict"] == "different"
        spot = float(witness["input"]) if differs else float("nan")
        place = min(region["witness"].get("channel") or 0, channels(*pair) - 1) if differs else 0
        return list(pair), (spot, place) if abs(spot) < float("inf") else None
    # No region holds it: both models have the same nodes there.
    function = _function(site, Builder())
    return [function, function], None
