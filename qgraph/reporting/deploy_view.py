"""View of a deployment: the page of the JSON document of ``qgraph deploy``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qgraph.records import by_key
from qgraph.reporting.bounds_view import bounds_sentence, measured_sections
from qgraph.reporting.charts import FLOAT, Charts, kernel_chart
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
    and_more,
    files_of,
    numbers,
)
from qgraph.text import amount, counted, percent, size, whole

Layer = Mapping[str, Any]

NOT_LOADED = ("QG601", "QG602")
"""Rules about nodes and versions that a target does not load."""

_SILENT = "QG3"
"""Family of the rules about what a target changes silently."""

_NOT_IN_HEADLINE = ("QG305", "QG310")
"""Those of them that a stated session option prevents, or that concern codes near ties only."""


def deploy_page(document: Mapping[str, Any]) -> Page:
    """Return the page of a deployment."""
    layers, summary = document["layers"], document["summary"]
    done, all_layers = summary["integer_layers"], summary["quantized_layers"]
    facts = [
        KeyFigure("integer layers before", whole(summary["integer_layers_before"])),
        KeyFigure("integer layers after", f"{done} of {all_layers}"),
        KeyFigure("weights before", size(summary["weight_bytes_before"])),
        KeyFigure("weights after", size(summary["weight_bytes_after"])),
        *_scores(document["accuracy"]),
        *_times(document["measured"]),
    ]
    is_whole = done == all_layers and layers and not _but(document)
    tone = Tone.GOOD if is_whole else Tone.OPEN
    return Page(
        "deploy",
        str(document["qgraph"]),
        f"{done} of {all_layers} quantized layers in integer kernels",
        tone,
        _sentence(document),
        files_of(document, "input", "output"),
        facts,
        list(_sections(document, layers)),
        [],
        list(_closing(document)),
    )


def _closing(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the command that repeats the proof, and the next step."""
    for name, mark in (("prove", "prove it again"), ("next", "next")):
        if document.get(name):
            yield f"{mark}: {document[name]}"


def _scores(accuracy: Mapping[str, Any] | None) -> Iterator[KeyFigure]:
    if accuracy is None:
        return
    before, after = accuracy["before"], accuracy["after"]
    if before is not None and after is not None:
        tone = Tone.GOOD if after >= before else Tone.OPEN
        text = f"{percent(before)} -> {percent(after)}"
        yield KeyFigure(f"accuracy on {whole(accuracy['samples'])} samples", text, tone)
    yield KeyFigure("codes that differ", percent(accuracy["codes_that_differ"]))


def _times(measured: Mapping[str, Any] | None) -> Iterator[KeyFigure]:
    if measured is None:
        return
    ratio = float(measured["ratio_to_float"])
    tone = Tone.GOOD if ratio < 1 else Tone.OPEN
    text = f"{amount(measured['milliseconds'], 4)} ms, {ratio:.2f} times that of float"
    yield KeyFigure(f"time in {measured['runtime']}", text, tone)
    if measured["input_milliseconds"] is not None:
        what = "input, converted to qdq" if measured["input_is_converted"] else "input"
        text = f"{measured['ratio_to_input']:.2f} times its time"
        yield KeyFigure(f"beside the {what}", text, tone)


def _sentence(document: Mapping[str, Any]) -> str:
    source = "as executed" if document["executed"] else "as the profile predicts"
    if not document["layers"]:
        return (
            "No convolution or matrix product has data and weights of integers with 16 bits or "
            f"fewer; quantize both first.{_but(document)}"
        )
    summary = document["summary"]
    steps, distance = summary["max_steps"], summary["tie_distance_steps"]
    if document["verdict"] != "bounded":
        equal = f"every segment is {document['verdict']} equal"
    else:
        far, near = counted(int(steps), "step"), amount(distance, 2)
        equal = (
            f"given equal codes at its start, the codes at the end of each segment differ by at "
            f"most {far} from the input computed in real numbers, and only within {near} steps of "
            "a tie"
        )
        own = summary.get("reference_error", 0.0)
        if own >= 1:
            equal += f"; the input itself differs from them by up to {amount(own, 2)} steps"
    return f"{document['target']}, {source}; {equal}.{_but(document)}"


def _but(document: Mapping[str, Any]) -> str:
    """Return a sentence that says why the result does not load or is wrong; empty if neither.

    Proofs are about the model as it is written, so silent changes by the target are named too.
    """
    refusal = not_loaded(document)
    if refusal is not None:
        return f" But {document['target']} does not load the result: {refusal}."
    if document.get("refusal"):
        return f" But {str(document['refusal']).removesuffix('.')}."
    if count := document["summary"].get("saturating_layers"):
        cut = f"{document['processor']} cuts off sums beyond 16 bits"
        return f" But {cut}, which {counted(count, 'layer')} can reach: results are wrong then."
    silent = [each for each in document["findings"] if each["id"].startswith(_SILENT)]
    if silent and (changes := [each for each in silent if each["id"] not in _NOT_IN_HEADLINE]):
        first = changes[0]
        where = f"{first['nodes'][0]}{and_more(changes)}" if first["nodes"] else "the model"
        return (
            f" But {document['target']} can change {where} silently: {first['message']} "
            f"[{first['id']}]."
        )
    return ""


def not_loaded(document: Mapping[str, Any]) -> str | None:
    """Return why the target does not load the result; None if no rule rejects it."""
    errors = (f for f in document["findings"] if f["severity"] == "error")
    first = next((each for each in errors if each["id"] in NOT_LOADED), None)
    if first is None:
        return None
    message = first["message"].removeprefix(f"{document['target']}: ")
    return f"{message} [{first['id']}]"


def _sections(document: Mapping[str, Any], layers: Sequence[Layer]) -> Iterator[Section]:
    if layers:
        columns: Columns = [
            Column("layer", code=True),
            "operator",
            "kernel",
            "before",
            Column("equality"),
            Column("steps", number=True),
            Column("tie distance", number=True),
            Column("rewrites", spare=True),
        ]
        table = Table("layers", columns, [_row(layer) for layer in layers], MANY)
        names = [str(layer["node"]) for layer in layers]
        kernels = {
            title: [str(layer[key] or FLOAT) for layer in layers]
            for title, key in (("before", "before"), ("now", "kernel"))
        }
        yield Section("Layers", tables=[table], charts=[kernel_chart(names, kernels)])
    if document["accuracy"]:
        bounds = document["accuracy"]["bounds"]
        measured, *_ = measured_sections(bounds, Charts())
        yield replace(measured, title="On your data", text=[bounds_sentence(bounds)], detail=True)
    if document["tuning"]:
        yield _tuned(document["tuning"])
    reasons = Counter(
        (layer["reason"], layer["reason_id"]) for layer in layers if layer["kernel"] is None
    )
    if reasons:
        points = []
        for (reason, reason_id), _ in reasons.most_common():
            names = [
                str(e["node"])
                for e in layers
                if (e["reason"], e["reason_id"]) == (reason, reason_id)
            ]
            points.append(f"{names[0]}{and_more(names)}: {reason} [{reason_id}]")
        text = "These stay in float. 'qgraph explain ID' tells more about a cause."
        yield Section("Layers that are left", [text], points)
    if document["findings"]:
        yield _findings(document)
    if document["session_options"]:
        needed = [f"{key}={value}" for key, value in document["session_options"].items()]
        yield Section("Session options", [f"The session needs {', '.join(needed)}."])
    if document["conditions"]:
        yield Section("Conditions", points=list(map(str, document["conditions"])))
    if document["notes"]:
        yield Section("Notes", points=list(map(str, document["notes"])))


def _findings(document: Mapping[str, Any]) -> Section:
    """Return the findings of lint, one line for each rule."""
    rules = by_key(((each["severity"], each["id"]), each) for each in document["findings"])
    points = []
    for (severity, rule_id), findings in rules.items():
        first = findings[0]
        where = "".join(f"{name}{and_more(findings)}: " for name in first["nodes"][:1])
        points.append(f"{severity} {rule_id}: {where}{first['message']}")
    command = document.get("lint") or f"qgraph lint OUT --target {document['target']}"
    count = counted(len(document["findings"]), "finding")
    return Section("Traps", [f"Lint has {count} in the result. '{command}' shows all."], points)


def _tuned(tuning: Mapping[str, Any]) -> Section:
    """Return the times of both forms of each distinct layer, and of the whole model."""
    columns: Columns = [Column("layer", code=True), "operator", "data"]
    columns += [*numbers("integer ms", "float ms", "ratio"), "chosen"]
    rows: list[Row] = [
        [
            str(form["layers"][0]) + and_more(form["layers"]),
            str(form["op"]),
            ", ".join("x".join(map(str, shape)) for shape in form["shapes"]),
            amount(form["integer_ms"], 3),
            amount(form["float_ms"], 3),
            f"{form['ratio']:.2f}",
            Cell(form["chosen"], Tone.GOOD if form["chosen"] == "integer" else Tone.OPEN),
        ]
        for form in tuning["forms"]
    ]
    whole_model = ", ".join(
        f"{name} {amount(time, 4)} ms ({tuning['ratios'][name]:.2f})"
        for name, time in tuning["milliseconds"].items()
    )
    text = (
        f"{tuning['runtime']}, {counted(tuning['threads'], 'thread')}, medians (ratios to float). "
        f"The whole model: {whole_model}; taken: {tuning['chosen']}."
    )
    table = Table("forms of layers", columns, rows, MANY)
    return Section("Measured forms", [text], tables=[table], detail=True)


def _row(layer: Layer) -> Row:
    bound = layer["bound"]
    tone = Tone.GOOD if layer["kernel"] else Tone.OPEN
    return [
        str(layer["node"]),
        str(layer["op"]),
        Cell(layer["kernel"] or FLOAT, tone),
        layer["before"] or FLOAT,
        str(layer["exactness"] or "undecided"),
        str(bound["max_steps"]) if bound else "0",
        amount(bound["tie_distance_steps"], 2) if bound else "0",
        ", ".join(layer["rewrites"]),
    ]
