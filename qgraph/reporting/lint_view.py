"""Views of lists of single nodes, worst first: of ``qgraph lint``, for GitHub too, and ``why``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qgraph.reporting.view import (
    MANY,
    Cell,
    Column,
    Columns,
    File,
    FindingKind,
    Issue,
    KeyFigure,
    Page,
    Row,
    Section,
    Severity,
    Table,
    Tone,
    files_of,
    numbers,
    pascal,
)
from qgraph.text import NONE, amount, counted, printable, whole

_TONES = {"error": Tone.BAD, "warning": Tone.OPEN, "info": Tone.PLAIN}
_LEVELS = {"error": Severity.ERROR, "warning": Severity.WARNING, "info": Severity.NOTE}
_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def lint_page(document: Mapping[str, Any]) -> Page:
    """Return the page of the findings in some models."""
    summary, models = document["summary"], document["models"]
    worst = next((name for name in _TONES if summary[name]), None)
    counts = ", ".join(
        counted(summary[name], name) for name in ("error", "warning") if summary[name]
    )
    if summary["info"]:
        counts = ", ".join(filter(None, [counts, f"{summary['info']} of information"]))
    subject = counted(len(models), "model")
    target = f" for {document['target']}" if document.get("target") else ""
    sentence = f"{counts or 'nothing found'} in {subject}{target}"
    if summary["known"]:
        sentence += f"; {counted(summary['known'], 'finding')} of the baseline not shown"
    return Page(
        "lint",
        str(document["qgraph"]),
        "clean" if worst in (None, "info") else f"{worst}s",
        Tone.GOOD if worst in (None, "info") else _TONES[str(worst)],
        f"{sentence}.",
        [File(_role(i, model), model["path"], model["sha256"]) for i, model in enumerate(models)],
        [KeyFigure(name, whole(summary[name]), _TONES[name]) for name in _TONES],
        [*_sections(models), *_failed(document)],
        [issue for i, model in enumerate(models) for issue in _issues(i, model)],
        kinds=[_kind(each) for each in document["rules"]],
    )


def _role(index: int, model: Mapping[str, Any]) -> str:
    return "model" if not index else f"model {index + 1}"


def _sections(models: Sequence[Mapping[str, Any]]) -> Iterator[Section]:
    for model in models:
        if model["findings"]:
            name = model["path"] or "a model in memory"
            text = [name] if len(models) > 1 else []
            yield Section(name, text, tables=[_table(model["findings"])])


def _table(findings: Sequence[Mapping[str, Any]]) -> Table:
    rows: list[Row] = []
    for finding in findings:
        nodes, fix = finding["nodes"], finding["fix"]
        node = nodes[0] if nodes else ""
        tone = _TONES[finding["severity"]]
        label = Cell(f"{finding['id']} {finding['rule']}", tone)
        cells = (Cell(finding["severity"], tone), label, node, finding["message"])
        rows.append([*cells, fix["pass"] if fix else ""])
    columns = [
        Column("severity"), Column("rule"), Column("node", code=True), Column("finding"),
        Column("fix", spare=True),
    ]  # fmt: skip
    return Table("findings", [*columns], rows, MANY)


def _failed(document: Mapping[str, Any]) -> Iterator[Section]:
    rows = [[each["path"], each["error"]] for each in document.get("failed", ())]
    if rows:
        columns = [Column("model", code=True), Column("error")]
        yield Section("Models that cannot be read", tables=[Table("models", [*columns], rows)])


def _issues(index: int, model: Mapping[str, Any]) -> Iterator[Issue]:
    role, path = _role(index, model), str(model["path"] or "model")
    if not model["findings"]:
        yield Issue(None, role=role, test=path)
    for finding in model["findings"]:
        nodes, fix = finding["nodes"], finding["fix"]
        where = nodes[0] if nodes else path
        yield Issue(
            finding["id"],
            finding["message"],
            where,
            "node" if nodes else "model",
            role,
            {"nodes": nodes, "figures": finding["figures"], "fix": fix},
            f"{path}: {finding['id']} {where}",
            level=_LEVELS[finding["severity"]],
            fix=None if fix is None else _command(path, finding["id"], fix),
        )


def _command(path: str, rule: str, fix: Mapping[str, Any]) -> str:
    """Return the command that fixes the findings of a rule in a model, with a comment."""
    limit = "" if fix["exactness"] in ("bits", "values") else " --within 1step"
    command = f"qgraph lint {shlex.quote(path)} --select {rule} --fix{limit} -o OUT"
    return f"{command} ({fix['pass']}, {fix['exactness']})"


def _kind(rule: Mapping[str, Any]) -> FindingKind:
    level, name = _LEVELS[rule["severity"]], pascal(rule["name"])
    return FindingKind(rule["id"], name, rule["summary"], rule["summary"], rule["help"], level)


def github_annotations(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a workflow command of GitHub for each finding, which it shows beside the file."""
    for model in document["models"]:
        for finding in model["findings"]:
            node = f"{finding['nodes'][0]}: " if finding["nodes"] else ""
            file = _escaped(str(model["path"] or ""), is_property=True)
            title = _escaped(f"{finding['id']} {finding['rule']}", is_property=True)
            command = _COMMANDS[finding["severity"]]
            yield f"::{command} file={file},title={title}::{_escaped(node + finding['message'])}"
    for each in document.get("failed", ()):
        file = _escaped(each["path"], is_property=True)
        yield f"::error file={file}::{_escaped(each['error'])}"


def _escaped(text: str, *, is_property: bool = False) -> str:
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A")]
    text = printable(text)
    for sign, code in pairs + ([(":", "%3A"), (",", "%2C")] if is_property else []):
        text = text.replace(sign, code)
    return text


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
    ranked = [cost for cost in document["quantizers"] if cost["reason"] is None]
    return Page(
        "why",
        str(document["qgraph"]),
        "equal outputs" if document["sqnr_db"] is None else "ranked",
        Tone.OPEN if ranked and document["sqnr_db"] is not None else Tone.GOOD,
        f"{_sentence(document, ranked)} {counted(len(ranked), 'quantizer')} exchanged one at a "
        f"time, on {counted(document['batches'], 'batch')}.",
        files_of(document["models"], "reference", "candidate"),
        list(_facts(document)),
        list(_why_sections(document, ranked)),
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


def _why_sections(
    document: Mapping[str, Any], ranked: list[Mapping[str, Any]]
) -> Iterator[Section]:
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
