"""View of lint: the page of the JSON document of ``qgraph lint``, and GitHub's annotations."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qgraph.reporting.view import (
    MANY,
    Cell,
    Column,
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
    pascal,
)
from qgraph.text import counted, printable, whole

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
