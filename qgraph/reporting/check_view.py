"""View of a comparison on data: the page of the JSON document of ``qgraph check``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qgraph.reporting.bounds_view import (
    bounds_sentence,
    bounds_verdict,
    measured_findings,
    measured_sections,
)
from qgraph.reporting.charts import Charts, codes_section
from qgraph.reporting.runtimes_view import runtimes_section
from qgraph.reporting.view import (
    MANY,
    Cell,
    Column,
    Columns,
    Issue,
    KeyFigure,
    Page,
    Row,
    Section,
    Table,
    Tone,
    files_of,
    numbers,
    operator,
)
from qgraph.text import amount, counted, percent, whole

Output = Mapping[str, Any]

_RANKED = 5
"""Maximum number of tensors in a list."""


def check_page(document: Mapping[str, Any]) -> Page:
    """Return the page of a comparison, whose document may have ``quantizers`` too."""
    outputs: Sequence[Output] = document["outputs"]
    is_equal = document["verdict"] == "equal"
    differing = sum(int(output["mismatches"]) for output in outputs)
    verdict = str(document["verdict"])
    tone = Tone.GOOD if is_equal else Tone.BAD
    if is_equal and differing:
        verdict, tone = "within tolerance", Tone.OPEN
    if (bounds := _deciding_bounds(document)) is not None:
        verdict, tone = bounds_verdict(bounds)
    # A difference that is not finite is null in the document.
    largest = [output["max_abs"] for output in outputs]
    difference = None if None in largest else max(largest, default=0.0)
    facts = [
        KeyFigure("values compared", whole(sum(int(output["elements"]) for output in outputs))),
        KeyFigure("values that differ", whole(differing), tone if differing else Tone.PLAIN),
        KeyFigure("largest difference", amount(difference, 4)),
    ]
    if differing:
        facts.append(KeyFigure("largest, in ulps", whole(max(int(o["max_ulp"]) for o in outputs))))
    return Page(
        "check",
        str(document["qgraph"]),
        verdict,
        tone,
        _sentence(document, is_equal=is_equal, differing=differing),
        files_of(document, "reference", "candidate"),
        facts,
        list(_sections(document, outputs)),
        list(_findings(document, outputs)),
    )


def _deciding_bounds(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the bounds if the verdict is about them; None if it is about the outputs."""
    bounds: Mapping[str, Any] | None = document.get("bounds")
    if not bounds:
        return None
    segments = bounds["segments"]
    if any(each["violated"] or each["beyond"] for each in segments):
        return bounds
    has_failed = any(output.get("failed") for output in document["outputs"])
    is_compared = any(each["reason"] is None for each in segments)
    return bounds if is_compared and not has_failed else None


def origin(document: Mapping[str, Any]) -> str:
    """Return a sentence about the first tensor that differs; empty if there is none."""
    first = document.get("first_divergence")
    if first is None:
        return ""
    by = "" if first["max_abs"] is None else f" by up to {amount(first['max_abs'], 4)}"
    other = f"; the candidate's is {first['candidate']!r}"
    if first["candidate"] == first["reference"]:
        other = ""
    return (
        f"The first tensor that differs{_batch(document)} is {first['reference']!r}{by}, which "
        f"{operator(first['op'])} {first['node']!r} produces in the reference{other}."
    )


def _sentence(document: Mapping[str, Any], *, is_equal: bool, differing: int) -> str:
    outputs: Sequence[Output] = document["outputs"]
    if (bounds := _deciding_bounds(document)) is not None:
        return bounds_sentence(bounds)
    if document.get("bounds"):
        text = _sentence({**document, "bounds": None}, is_equal=is_equal, differing=differing)
        left = sum(each["reason"] is not None for each in document["bounds"]["segments"])
        return f"{text} {counted(left, 'segment')} could not be compared with bounds."
    over = counted(len(outputs), "output")
    if is_equal and not differing:
        return f"Every value of {over} is the same in both models on the tested inputs."
    if is_equal:
        total = sum(int(output["elements"]) for output in outputs)
        largest = [output["max_abs"] for output in outputs]
        by = "" if None in largest else f" by up to {amount(max(largest), 4)}"
        return (
            f"{whole(differing)} of {whole(total)} values of {over} differ{by}, which the "
            "tolerance allows."
        )
    failed = [str(output["name"]) for output in outputs if output.get("failed")]
    if not failed:
        return "The candidate scores worse than allowed, by the metric below."
    what = f"{failed[0]!r} differs" if len(failed) == 1 else f"{len(failed)} outputs differ"
    return f"Of {over}, {what} by more than the tolerance allows."


def _sections(document: Mapping[str, Any], outputs: Sequence[Output]) -> Iterator[Section]:
    charts = Charts()
    yield Section("Outputs", tables=[_table(outputs, is_bounded=bool(document.get("bounds")))])
    if document.get("bounds"):
        yield from measured_sections(document["bounds"], charts)
    if document.get("first_divergence") is not None:
        yield Section("The first difference", [origin(document)])
    yield from runtimes_section(document.get("runtimes"))
    if metric := document.get("metric"):
        text = f"{metric['name']} on {counted(metric['samples'], 'sample')}: "
        text += f"{amount(metric['reference'])} in the reference, "
        text += f"{amount(metric['candidate'])} in the candidate."
        yield Section("Metric", [text, *([str(metric["failed"])] if metric["failed"] else [])])
    yield from _layers(document, charts)
    yield from _probes(document.get("probes", ()))
    yield from codes_section(charts, document.get("quantizers", ()))
    if document.get("notes"):
        yield Section("Remarks", points=document["notes"])


def _table(outputs: Sequence[Output], *, is_bounded: bool) -> Table:
    columns: Columns = [
        Column("output", code=True),
        *numbers("values", "differ", "max abs"),
        *numbers("mean abs", "max ulp", spare=True),
        *numbers("max steps", "SQNR dB"),
        *numbers("cosine", "top-1", spare=True),
        "verdict",
    ]
    rows: list[Row] = []
    for output in outputs:
        verdict = Cell("equal", Tone.GOOD)
        if output.get("failed"):
            verdict = Cell(str(output["failed"]), Tone.BAD)
        elif output["mismatches"]:
            verdict = Cell("differs" if is_bounded else "within the tolerance", Tone.OPEN)
        rows.append(
            [
                str(output["name"]),
                whole(output["elements"]),
                whole(output["mismatches"]),
                amount(output["max_abs"]),
                amount(output.get("mean_abs"), 4),
                whole(output["max_ulp"]),
                amount(output["max_steps"]),
                amount(output["sqnr_db"], 4),
                amount(output["cosine"], 9),
                percent(output.get("top1")),
                verdict,
            ]
        )
    return Table("outputs", columns, rows)


def _batch(document: Mapping[str, Any]) -> str:
    """Return a text on the compared batch if there are several."""
    if document.get("batches", 1) == 1:
        return ""
    differ = any(output["mismatches"] for output in document["outputs"])
    return f" on the first batch{' with a difference' if differ else ''}"


def _layers(document: Mapping[str, Any], charts: Charts) -> Iterator[Section]:
    tensors = document.get("tensors") or ()
    differing = [tensor for tensor in tensors if tensor["mismatches"]]
    if not differing:
        return
    finite = [tensor for tensor in differing if tensor["relative"] is not None]
    names = [str(tensor["reference"]) for tensor in finite]
    pictures = [
        charts.layers(title, names, {label: [float(t[key] or 0) for t in finite]}, axis, True)
        for title, label, key, axis in (
            (
                "Relative error of each tensor",
                "error",
                "relative",
                "norm of the error / norm of the values",
            ),
            (
                "Largest absolute difference of each tensor",
                "difference",
                "max_abs",
                "difference (real units)",
            ),
        )
        if finite
    ]
    columns: Columns = [
        Column("tensor", code=True),
        Column("candidate", code=True, spare=True),
        "made by",
        *numbers("differ", "values", "relative error", "max abs"),
        *numbers("mean abs", "SQNR dB", spare=True),
    ]
    rows: list[Row] = [
        [
            str(tensor["reference"]),
            "" if tensor["candidate"] == tensor["reference"] else str(tensor["candidate"]),
            Cell(operator(tensor["op"]), full=str(tensor["node"])),
            whole(tensor["mismatches"]),
            whole(tensor["elements"]),
            amount(tensor["relative"], 3),
            amount(tensor["max_abs"], 4),
            amount(tensor["mean_abs"], 4),
            amount(tensor["sqnr_db"], 4),
        ]
        for tensor in sorted(differing, key=_relative, reverse=True)
    ]
    count = f"{len(differing)} of {counted(len(tensors), 'tensor')} that both models have"
    hidden = "" if any(o["mismatches"] for o in document["outputs"]) else ", though no output does"
    yield Section(
        "Error by layer",
        [f"{count} differ{_batch(document)}{hidden}. The largest relative error comes first."],
        tables=[Table("tensors that differ", columns, rows, _RANKED)],
        charts=pictures,
    )


def _relative(tensor: Mapping[str, Any]) -> float:
    return math.inf if tensor["relative"] is None else float(tensor["relative"])


def _probes(probes: Sequence[Mapping[str, Any]]) -> Iterator[Section]:
    if not probes:
        return
    aimed = [probe for probe in probes if probe["reason"] is None]
    targets, crossed, reached = (
        whole(sum(probe[key] for probe in aimed)) for key in ("targets", "crossed", "reached")
    )
    text = (
        f"Probes were made for {targets} thresholds of {counted(len(aimed), 'quantizer')}: "
        f"{crossed} lie between two neighbouring inputs, {reached} were reached at both "
        f"neighbouring floats."
    )
    if left := len(probes) - len(aimed):
        text += f" {counted(left, 'quantizer')} could not be probed."
    columns: Columns = [Column("quantizer", code=True), Column("tensor", code=True, spare=True)]
    columns += numbers("thresholds", "crossed", "both floats reached", "largest gap, in steps")
    rows: list[Row] = [
        [
            str(probe["node"]),
            str(probe["tensor"]),
            *(whole(probe[key]) for key in ("targets", "crossed", "reached")),
            amount(probe["largest_gap"], 3),
            str(probe["reason"] or ""),
        ]
        for probe in probes
    ]
    table = Table("probes", [*columns, Column("remark")], rows, MANY)
    yield Section("Probes", [text], tables=[table], detail=True)


def _findings(document: Mapping[str, Any], outputs: Sequence[Output]) -> Iterator[Issue]:
    more = origin(document)
    for output in outputs:
        failed, name = output.get("failed"), str(output["name"])
        rule, text = ("output-differs", str(failed)) if failed else (None, "")
        if output["mismatches"] and not failed:
            rule, text = "within-tolerance", _apart(output)
        properties = {key: value for key, value in output.items() if key != "name"}
        yield Issue(rule, text, name, "output", properties=properties, test=name, more=more)
    if first := document.get("first_divergence"):
        properties = {"candidate": first["candidate"], "op": first["op"]}
        yield Issue("first-divergence", more, str(first["node"]), "node", "reference", properties)
    if document.get("bounds"):
        yield from measured_findings(document["bounds"])
    if metric := document.get("metric"):
        name, failed = str(metric["name"]), metric["failed"]
        rule, text = ("metric-worse", f"{name}: {failed}") if failed else (None, "")
        test = f"metric {name}"
        yield Issue(rule, text, name, "metric", properties=metric, test=test, more=more)
    for result in (document.get("runtimes") or {}).get("results", ()):
        for cause in result["culprits"]:
            option, where = cause["option"], f"{result['runtime']} at {result['level']}"
            stops = "no known option disables it" if option is None else f"disabled by {option}"
            place = str(result["runtime"] if option is None else option)
            properties = {key: result[key] for key in ("runtime", "level", "error")}
            kind = "runtime" if option is None else "option"
            text = f"{where}: {cause['what']}; {stops}."
            yield Issue("runtime-differs", text, place, kind, properties=properties)


def _apart(output: Output) -> str:
    return (
        f"{whole(output['mismatches'])} of {whole(output['elements'])} values differ, by up to "
        f"{amount(output['max_abs'], 4)}, {whole(output['max_ulp'])} ulp"
    )
