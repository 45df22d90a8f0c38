"""View of times: the page of the JSON document of ``qgraph bench``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qgraph.reporting.view import (
    Cell,
    Column,
    Columns,
    File,
    KeyFigure,
    Page,
    Row,
    Section,
    Table,
    Tone,
    numbers,
)
from qgraph.text import NONE, amount, counted

_KERNELS = 6
"""Maximum number of kernels that are named; the JSON report has all."""


def bench_page(document: Mapping[str, Any]) -> Page:
    """Return the page of the times of some models."""
    models = document["models"]
    first, last = models[0], models[-1]
    ratio = float(last["ratio"])
    faster = ratio < 1
    tone = Tone.PLAIN if len(models) == 1 else Tone.GOOD if faster else Tone.OPEN
    settings = ", ".join(f"{key}={value}" for key, value in document["options"].items())
    return Page(
        "bench",
        str(document["qgraph"]),
        _headline(len(models), ratio),
        tone,
        f"{document['runtime']}, {counted(document['threads'], 'thread')}, batch "
        f"{document['batch']}, {counted(document['rounds'], 'round')} in turns"
        + (f", with {settings}." if settings else "."),
        [File(f"model {n}", model["path"]) for n, model in enumerate(models, 1)],
        [KeyFigure("median of the first", f"{amount(first['median_ms'], 4)} ms")],
        list(_sections(models)),
        [],
    )


def _headline(count: int, ratio: float) -> str:
    if count == 1:
        return "timed"
    if ratio < 1:
        return f"the last model is {1 / ratio:.2f} times as fast as the first"
    return f"the last model takes {ratio:.2f} of the time of the first"


def _sections(models: list[Mapping[str, Any]]) -> Iterator[Section]:
    columns: Columns = [
        Column("model", code=True),
        *numbers("median ms", "quartiles ms", "ratio", "integer", "float"),
        *numbers("first ms", "load ms", "MB", spare=True),
    ]
    rows: list[Row] = [_row(n, model) for n, model in enumerate(models, 1)]
    text = (
        "ratio: median over the rounds of the time divided by that of the first model. integer, "
        "float: convolutions and matrix products that the runtime executes on integer codes and "
        "on floats. MB: largest memory of the process, runtime included."
    )
    yield Section("Times", [text], tables=[Table("models", columns, rows)])
    shown: list[Row] = [
        [_name(number, model), _kernels(model["kernels"])] for number, model in enumerate(models, 1)
    ]
    table = Table("models", [Column("model", code=True), "kernels"], shown)
    yield Section("Kernels", ["What the runtime executes."], tables=[table])


def _kernels(counts: Mapping[str, int]) -> str:
    listed = [f"{count} {name}" for name, count in list(counts.items())[:_KERNELS]]
    rest = len(counts) - _KERNELS
    return ", ".join([*listed, f"{rest} others"] if rest > 0 else listed)


def _row(number: int, model: Mapping[str, Any]) -> Row:
    ratio = float(model["ratio"])
    tone = Tone.PLAIN if number == 1 else Tone.GOOD if ratio < 1 else Tone.OPEN
    return [
        _name(number, model),
        amount(model["median_ms"], 4),
        f"{amount(model['low_ms'], 4)} .. {amount(model['high_ms'], 4)}",
        Cell(f"{ratio:.3f}", tone),
        str(model["integer_nodes"]),
        str(model["float_nodes"]),
        amount(model["first_run_ms"], 4),
        amount(model["load_ms"], 4),
        NONE if model["peak_mb"] is None else f"{model['peak_mb']:.0f}",
    ]


def _name(number: int, model: Mapping[str, Any]) -> str:
    return f"model {number}" if model["path"] is None else str(model["path"])
