"""View of the costs of quantizers: the page of the JSON document of ``qgraph why``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qgraph.reporting.view import (
    MANY,
    Cell,
    Column,
    Columns,
    KeyFigure,
    Page,
    Row,
    Section,
    Table,
    Tone,
    files_of,
    numbers,
)
from qgraph.text import NONE, amount, counted

_EQUAL = "equal"
_LEGEND = (
    "The most harmful first. gained, dB without it: the candidate, after this quantizer alone is "
    "exchanged for what the reference has there. lost alone, dB alone: the reference with this "
    "quantizer of the candidate only. local dB: error of the layer on values of the reference; "
    "accumulated dB: on values of the candidate. codes differ: codes that are not nearest to the "
    "reference's values."
)


def why_page(document: Mapping[str, Any]) -> Page:
    """Return the page with the cost of each quantizer of a candidate."""
    costs = document["quantizers"]
    ranked = [cost for cost in costs if cost["reason"] is None]
    return Page(
        "why",
        str(document["qgraph"]),
        "equal outputs" if document["sqnr_db"] is None else "ranked",
        Tone.OPEN if ranked and document["sqnr_db"] is not None else Tone.GOOD,
        f"{_sentence(document, ranked)} {counted(len(ranked), 'quantizer')} exchanged one at a "
        f"time, on {counted(document['batches'], 'batch')}.",
        files_of(document["models"], "reference", "candidate"),
        list(_facts(document)),
        list(_sections(document, ranked)),
        [],
    )


def _sentence(document: Mapping[str, Any], ranked: list[Mapping[str, Any]]) -> str:
    if document["sqnr_db"] is None:
        return "Both models return equal values on these inputs."
    if not ranked:
        return "No quantizer has a counterpart in the reference."
    worst = ranked[0]
    gain, restored = worst["gain_if_restored"], worst["restored_sqnr_db"]
    if gain and gain > 0:
        return f"{worst['node']} costs most: {document['metric']} {gain:+.4f} without it."
    if restored is not None and restored <= document["sqnr_db"]:
        return (
            "No quantizer costs anything alone: without each of them, outputs are no better. "
            "If only one model has BatchNormalization, fold it (-p fold-batch-norm)."
        )
    return (
        f"{worst['node']} costs most: outputs at {_ratio(document['sqnr_db'])}, without it "
        f"{_ratio(worst['restored_sqnr_db'])}."
    )


def _facts(document: Mapping[str, Any]) -> Iterator[KeyFigure]:
    if document["metric"] != "sqnr":
        yield KeyFigure(f"{document['metric']} of the reference", _share(document["reference"]))
        yield KeyFigure(f"{document['metric']} of the candidate", _share(document["candidate"]))
    yield KeyFigure("SQNR of the outputs", _ratio(document["sqnr_db"]))


def _sections(document: Mapping[str, Any], ranked: list[Mapping[str, Any]]) -> Iterator[Section]:
    metric = document["metric"]
    has_scores = any(cost["gain_if_restored"] is not None for cost in ranked)
    columns: Columns = [
        Column("quantizer", code=True),
        "of",
        *(numbers(f"{metric} gained", f"{metric} lost alone") if has_scores else []),
        *numbers("dB without it", "dB alone", "local dB", "accumulated dB", "codes differ"),
        *numbers("clipped", "unused codes", "thresholds crossed", spare=True),
        *(numbers("steps seen", "bound") if any(cost["bound"] for cost in ranked) else []),
    ]
    with_bounds = any(cost["bound"] for cost in ranked)
    rows = [_row(cost, document, scores=has_scores, bounds=with_bounds) for cost in ranked]
    yield Section("Quantizers", [_LEGEND], tables=[Table("quantizers", columns, rows, MANY)])
    channels: list[Row] = [
        [
            str(cost["node"]),
            str(part["count"]),
            *_most_clipped(part["most_clipped"]),
            f"{part['fewest_codes']['channel'] if part['fewest_codes']['unused'] else NONE}",
            f"{part['fewest_codes']['unused']} of {cost['levels']}",
        ]
        for cost in ranked
        if (part := cost["channels"]) is not None
    ]
    if channels:
        heads: Columns = [
            Column("quantizer", code=True),
            *numbers("channels", "most clipped", "share", "fewest codes", "unused"),
        ]
        yield Section("Channels", tables=[Table("channels", heads, channels, MANY)])
    left = [
        f"{cost['node']}: {cost['reason']}" for cost in document["quantizers"] if cost["reason"]
    ]
    if left:
        yield Section("Quantizers that were not exchanged", points=left)
    if document["notes"]:
        yield Section("Notes", points=list(map(str, document["notes"])))


def _row(
    cost: Mapping[str, Any], document: Mapping[str, Any], *, scores: bool, bounds: bool
) -> Row:
    gain, drop = cost["gain_if_restored"], cost["drop_alone"]
    tone = Tone.OPEN if gain and gain > 0 else Tone.PLAIN
    bound = cost["bound"] or {}
    stated = bound.get("bound") or {}
    row: list[Cell | str] = [str(cost["node"]), "weights" if cost["is_weight"] else "data"]
    if scores:
        row += [Cell(_signed(gain), tone), _signed(drop)]
    row += [_decibels(cost["restored_sqnr_db"]), _decibels(cost["alone_sqnr_db"])]
    row += [_decibels(cost["local_sqnr_db"]), _decibels(cost["accumulated_sqnr_db"])]
    row += [_share(cost["codes_that_differ"]), _share(cost["clipped"])]
    row += [_number(cost[name]) for name in ("unused_codes", "thresholds_crossed")]
    if bounds:
        row += [amount(bound["largest_steps"], 3) if bound else NONE]
        row += [_number(stated.get("max_steps"))]
    return row


def _number(number: int | None) -> str:
    return NONE if number is None else str(number)


def _decibels(number: float | None) -> str:
    return _EQUAL if number is None else f"{number:.1f}"


def _ratio(number: float | None) -> str:
    return _EQUAL if number is None else f"{number:.1f} dB"


def _signed(number: float | None) -> str:
    return NONE if number is None else f"{number:+.4f}"


def _most_clipped(channel: Mapping[str, Any] | None) -> list[str]:
    if channel is None:
        return [NONE, NONE]
    if not channel["share"]:
        return [NONE, _share(channel["share"])]
    return [f"{channel['channel']}", _share(channel["share"])]


def _share(number: float | None) -> str:
    return NONE if number is None else f"{100 * number:.3g} %"
