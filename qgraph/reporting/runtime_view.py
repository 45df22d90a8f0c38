"""The part of a page that tells what a rewrite changes, and what runtimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qgraph.reporting.view import Cell, Column, Section, Table, Tone, counted


def runtimes_section(document: Mapping[str, Any]) -> Section | None:
    """Return who changes how much, of a report of ``qgraph check``; None if it was not asked."""
    found = document.get("runtimes")
    if not found:
        return None
    columns = [
        Column("computed by"),
        Column("level"),
        Column("given"),
        Column("error", number=True),
        Column("because of"),
        Column("stopped by"),
    ]
    rewrite = found["rewrite"]["error"]
    rows = [
        [
            Cell("definition: candidate against reference"),
            Cell(""),
            Cell(""),
            _share(rewrite),
            Cell(""),
            Cell(""),
        ]
    ]
    for result in found["results"]:
        culprits = result["culprits"]
        failed = result["failure"] is not None
        rows.append(
            [
                Cell(str(result["runtime"])),
                Cell(str(result["level"])),
                Cell(str(result.get("form") or "")),
                Cell("does not run", Tone.OPEN) if failed else _share(result["error"]),
                Cell(str(result["failure"]) if failed else _joined(culprits, "what")),
                Cell(_joined(culprits, "option")),
            ]
        )
    points = [f"{name} is not installed, and was not tried." for name in found["missing"]]
    refused = {str(r["runtime"]): r["refused"] for r in found["results"] if r.get("refused")}
    points += [
        f"{runtime} does not run the candidate as written: {reason}"
        for runtime, reason in refused.items()
    ]
    points += _standard_form(found.get("standard_form"))
    sentence = str(found["sentence"])
    return Section(
        "The rewrite, or the runtime",
        [sentence[:1].upper() + sentence[1:]],
        points,
        tables=[Table(columns, rows, "runtimes")],
    )


def _standard_form(form: Mapping[str, Any] | None) -> list[str]:
    """Return what is known of the form that runtimes get which refuse the candidate as written."""
    if form is None:
        return []
    told = f"In standard operators: {counted(form['respelled'], 'quantizer')}"
    if form["left"]:
        names = ", ".join(dict.fromkeys(map(str, form["left"])))
        return [f"{told}; there is no such form of {names}, so that it was not run."]
    error = _share(form["error"]).text
    outputs = "equal" if form["error"] == 0 else f"apart by {error}"
    told += ", each proved equal in every bit"
    return [f"{told}; by definition the outputs on these inputs are {outputs}."]


def _joined(culprits: Sequence[Mapping[str, Any]], name: str) -> str:
    return "; ".join(str(culprit[name]) for culprit in culprits if culprit[name] is not None)


def _share(error: float | None) -> Cell:
    if error is None:
        return Cell("not finite", Tone.BAD)
    return Cell("exact", Tone.GOOD) if error == 0 else Cell(f"{100 * error:.3g} %", Tone.OPEN)
