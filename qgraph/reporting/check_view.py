"""The page of a comparison on data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qgraph.reporting.charts import Charts
from qgraph.reporting.prove_view import codes_section
from qgraph.reporting.runtime_view import runtimes_section
from qgraph.reporting.view import (
    NONE,
    Cell,
    Column,
    Fact,
    File,
    Page,
    Section,
    Table,
    Tone,
    amount,
    counted,
    operator,
    whole,
)

Output = Mapping[str, Any]

_ROWS = 24


def check_page(document: Mapping[str, Any]) -> Page:
    """Return the page of what ``qgraph check`` found, its JSON document with ``quantizers``."""
    outputs: Sequence[Output] = document["outputs"]
    equal = document["verdict"] == "equal"
    exact = all(output["mismatches"] == 0 for output in outputs)
    differing = sum(int(output["mismatches"]) for output in outputs)
    values = sum(int(output["elements"]) for output in outputs)
    tone = Tone.GOOD if equal else Tone.BAD
    facts = [
        Fact("values compared", whole(values)),
        Fact("values that differ", whole(differing), Tone.PLAIN if exact else tone),
        Fact("largest difference", amount(_largest(outputs, "max_abs"), 4)),
    ]
    if not exact:
        facts.append(Fact("largest, in ulps", whole(max(int(o["max_ulp"]) for o in outputs))))
    return Page(
        "check",
        str(document["qgraph"]),
        str(document["verdict"]),
        tone,
        _sentence(outputs, equal=equal, exact=exact),
        [
            File(
                role,
                str(document[role]["path"] or "a model in memory"),
                document[role].get("sha256"),
            )
            for role in ("reference", "candidate")
            if isinstance(document.get(role), Mapping)
        ],
        facts,
        _sections(document, outputs),
    )


def _largest(outputs: Sequence[Output], name: str) -> float | None:
    # A difference that is not finite is null in the document.
    found = [output[name] for output in outputs]
    return None if any(number is None for number in found) else max(found, default=0.0)


def _sentence(outputs: Sequence[Output], *, equal: bool, exact: bool) -> str:
    over = counted(len(outputs), "output")
    if exact and equal:
        return f"Every value of {over} is the same in both models, on the inputs that were tried."
    if equal:
        return f"The values of {over} are equal within the tolerance."
    failed = [str(output["name"]) for output in outputs if output.get("failed")]
    if not failed:
        return "The candidate scores worse than allowed, by the metric below."
    what = failed[0] if len(failed) == 1 else f"{len(failed)} outputs"
    verb = "differs" if len(failed) == 1 else "differ"
    return f"Of {over}, {what} {verb} by more than the tolerance allows."


def _sections(document: Mapping[str, Any], outputs: Sequence[Output]) -> list[Section]:
    charts = Charts()
    sections = [Section("Outputs", tables=[_table(outputs)])]
    first = document.get("first_divergence")
    if first is not None:
        sections.append(Section("Where they begin to differ", [origin(first)]))
    others = (
        runtimes_section(document),
        _metric(document),
        _layers(document, charts),
        _probes(document),
    )
    sections += [section for section in others if section is not None]
    if document.get("quantizers"):
        sections.append(codes_section(charts, document["quantizers"]))
    if document.get("notes"):
        sections.append(Section("Remarks", points=document["notes"]))
    return sections


def _table(outputs: Sequence[Output]) -> Table:
    columns = [
        Column("output", code=True),
        *(
            Column(name, number=True)
            for name in ("values", "differ", "max abs", "mean abs", "max ulp", "max steps")
        ),
        *(Column(name, number=True) for name in ("SQNR dB", "cosine", "top-1")),
        Column("verdict"),
    ]
    rows = []
    for output in outputs:
        failed, top1 = output.get("failed"), output.get("top1")
        verdict = Cell("equal", Tone.GOOD)
        if failed:
            verdict = Cell(str(failed), Tone.BAD)
        elif output["mismatches"]:
            verdict = Cell("within the tolerance", Tone.OPEN)
        rows.append(
            [
                Cell(str(output["name"])),
                Cell(whole(output["elements"])),
                Cell(whole(output["mismatches"])),
                Cell(amount(output["max_abs"])),
                Cell(amount(output.get("mean_abs"), 4)),
                Cell(whole(output["max_ulp"])),
                Cell(amount(output["max_steps"])),
                Cell(amount(output["sqnr_db"], 4)),
                Cell(amount(output["cosine"], 9)),
                Cell(NONE if top1 is None else f"{top1:.2%}"),
                verdict,
            ]
        )
    return Table(columns, rows, "outputs")


def origin(first: Mapping[str, Any]) -> str:
    """Return a sentence about the first tensor that differs, on the batch that is shown."""
    by = "" if first["max_abs"] is None else f" by up to {amount(first['max_abs'], 4)}"
    other = f"; the candidate's is {first['candidate']}"
    if first["candidate"] == first["reference"]:
        other = ""
    return (
        f"The first tensor that differs is {first['reference']}{by}, which {operator(first['op'])} "
        f"{first['node']} produces in the reference{other}."
    )


def _layers(document: Mapping[str, Any], charts: Charts) -> Section | None:
    tensors = document.get("tensors") or ()
    differing = [tensor for tensor in tensors if tensor["mismatches"]]
    if not differing:
        return None
    known = [tensor for tensor in differing if tensor["relative"] is not None]
    pictures = []
    if known:
        names = [str(tensor["reference"]) for tensor in known]
        relative = [float(tensor["relative"]) for tensor in known]
        absolute = [float(tensor["max_abs"] or 0.0) for tensor in known]
        pictures = [
            charts.layers(
                "Relative error of each tensor",
                names,
                {"error": relative},
                "norm of the error / norm of the values",
                is_error=True,
            ),
            charts.layers(
                "Largest absolute difference of each tensor",
                names,
                {"difference": absolute},
                "difference (real units)",
                is_error=True,
            ),
        ]
    ranked = sorted(differing, key=_relative, reverse=True)
    columns = [
        Column("reference", code=True),
        Column("candidate", code=True),
        Column("made by"),
        *(
            Column(name, number=True)
            for name in ("differ", "values", "relative error", "max abs", "mean abs", "SQNR dB")
        ),
    ]
    rows = [
        [
            Cell(str(tensor["reference"])),
            Cell(str(tensor["candidate"])),
            Cell(operator(tensor["op"]), full=str(tensor["node"])),
            Cell(whole(tensor["mismatches"])),
            Cell(whole(tensor["elements"])),
            Cell(amount(tensor["relative"], 3)),
            Cell(amount(tensor["max_abs"], 4)),
            Cell(amount(tensor["mean_abs"], 4)),
            Cell(amount(tensor["sqnr_db"], 4)),
        ]
        for tensor in ranked
    ]
    return Section(
        "Error by layer",
        [
            f"{len(differing)} of {counted(len(tensors), 'tensor')} that both models have differ.",
            _batch(document),
            "The charts show them in the order of the reference, the table the worst first.",
        ],
        tables=[Table(columns, rows, "tensors that differ", folded=len(rows) > _ROWS)],
        charts=pictures,
    )


def _batch(document: Mapping[str, Any]) -> str:
    differ = any(output["mismatches"] for output in document["outputs"])
    return f"They are compared on the first batch{' with a difference' if differ else ''}."


def _relative(tensor: Mapping[str, Any]) -> float:
    return math.inf if tensor["relative"] is None else float(tensor["relative"])


def _metric(document: Mapping[str, Any]) -> Section | None:
    metric = document.get("metric")
    if not metric:
        return None
    text = (
        f"{metric['name']} on {counted(metric['samples'], 'sample')}: "
        f"{amount(metric['reference'])} in the reference, {amount(metric['candidate'])} in the "
        "candidate."
    )
    return Section("Metric", [text] + ([str(metric["failed"])] if metric["failed"] else []))


def _probes(document: Mapping[str, Any]) -> Section | None:
    probes = document.get("probes")
    if not probes:
        return None
    columns = [
        Column("quantizer", code=True),
        Column("tensor", code=True),
        *(
            Column(name, number=True)
            for name in ("thresholds", "crossed", "met at both floats", "largest gap, in steps")
        ),
        Column("remark"),
    ]
    rows = [
        [
            Cell(str(probe["node"])),
            Cell(str(probe["tensor"])),
            Cell(whole(probe["targets"])),
            Cell(whole(probe["crossed"])),
            Cell(whole(probe["reached"])),
            Cell(amount(probe["largest_gap"], 3)),
            Cell(str(probe["reason"] or "")),
        ]
        for probe in probes
    ]
    return Section(
        "Probes",
        ["How near the inputs came to the thresholds of each quantizer of the reference."],
        tables=[Table(columns, rows, "probes", folded=len(rows) > _ROWS)],
    )
