"""The page of a rewriting: convert, fold and transform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from qgraph.exactness import Exactness
from qgraph.reporting.charts import Charts
from qgraph.reporting.prove_view import codes_section
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
    factor,
    operator,
    size,
    whole,
)

Site = Mapping[str, Any]

_ROWS = 40

_OUTCOMES = {"changed": Tone.PLAIN, "kept": Tone.PLAIN, "refused": Tone.OPEN}


def rewrite_page(document: Mapping[str, Any]) -> Page:
    """Return the page of a rewriting, its JSON document with ``staircases`` and ``quantizers``."""
    sites: Sequence[Site] = document["sites"]
    summary = document["summary"]
    verdict, tone, sentence = _verdict(sites, summary)
    before, after = summary["weight_bytes_before"], summary["weight_bytes_after"]
    differing = sum(
        int(site["differing_inputs"])
        for site in sites
        if _is_changed(site) and site["method"] != "constant"
    )
    facts = [
        Fact("changed", whole(summary["changed"])),
        *(
            Fact(name, whole(summary[key]), tone_of)
            for name, key, tone_of in (
                ("kept as they were", "kept", Tone.PLAIN),
                ("refused", "refused", Tone.OPEN),
            )
            if summary[key]
        ),
        Fact("weights before", size(before)),
        Fact("weights after", size(after)),
    ]
    if after and before > 1.05 * after:
        facts.append(Fact("smaller by", factor(before, after), Tone.GOOD))
    if differing:
        facts.append(Fact("inputs that differ", whole(differing), Tone.OPEN))
    output = document["output"]
    written = f"opset {output['opset']}, IR version {output['ir_version']}"
    return Page(
        str(document["command"]),
        str(document["qgraph"]),
        verdict,
        tone,
        sentence,
        [
            File("input", str(document["input"]["path"]), document["input"]["sha256"]),
            File("output", str(output["path"]), output["sha256"], written),
        ],
        facts,
        _sections(document, sites),
    )


def _is_changed(site: Site) -> bool:
    return bool(site["outcome"] == "changed")


def _verdict(sites: Sequence[Site], summary: Mapping[str, Any]) -> tuple[str, Tone, str]:
    changed = [site for site in sites if _is_changed(site)]
    rungs = [Exactness(site["exactness"]) for site in changed if site["exactness"]]
    if not changed:
        told = "No quantizer was changed."
        if summary["refused"]:
            told = f"No quantizer was changed; {summary['refused']} were refused."
        return "unchanged", Tone.OPEN, told
    lowest = min(rungs, default=Exactness.BITS)
    refused = f"; {summary['refused']} left as they were" if summary["refused"] else ""
    equality = {
        Exactness.BITS: "all equal bit for bit",
        Exactness.VALUES: "all equal in value, for every input",
        Exactness.CODES: "all with equal codes, values some ulps apart",
        Exactness.NEAR: "thresholds moved by ulps, counted below",
        Exactness.DIFFERENT: "not all equal",
    }[lowest]
    sentence = f"{counted(len(changed), 'site')} changed, {equality}{refused}."
    if lowest >= Exactness.VALUES and rungs:
        return "equal" if not refused else "equal, in part", Tone.GOOD, sentence
    return str(lowest), Tone.OPEN, sentence


def _sections(document: Mapping[str, Any], sites: Sequence[Site]) -> list[Section]:
    charts = Charts()
    sections = []
    refused = [site for site in sites if site["outcome"] == "refused"]
    if refused:
        sections.append(Section("Left as they were", tables=[_refused_table(refused)]))
    pictures = [chart for data in document.get("staircases", ()) for chart in charts.steps(data)]
    if pictures:
        sections.append(
            Section(
                "The steps around a difference",
                ["Each quantizer of the input beside what took its place, drawn exactly."],
                charts=pictures,
            )
        )
    stored = [site["stored"] for site in sites if site.get("stored")]
    if stored:
        sections.append(_ledger(stored, document["summary"]["stored"], charts))
    losses = [site["figures"] for site in sites if "sqnr_db" in (site.get("figures") or {})]
    if losses:
        sections.append(_losses(losses, charts))
    if document.get("quantizers"):
        sections.append(codes_section(charts, document["quantizers"]))
    done = [site for site in sites if site["outcome"] != "refused"]
    if done:
        sections.append(Section("Sites", [_kinds(done)], tables=[_site_table(done)]))
    if document.get("notes"):
        sections.append(Section("Remarks", points=document["notes"]))
    return sections


def _kinds(sites: Sequence[Site]) -> str:
    kinds = Counter((operator(site["op"]), site["spelling"] or "as it was") for site in sites)
    told = [
        f"{op} → {spelling.replace('+', ' + ')} ({whole(number)})"
        for (op, spelling), number in kinds.most_common(6)
    ]
    return "; ".join(told) + ("; and others." if len(kinds) > 6 else ".")


def _site_table(sites: Sequence[Site]) -> Table:
    columns = [
        Column("node", code=True),
        Column("operator"),
        Column("pass"),
        Column("outcome"),
        Column("became"),
        Column("equality"),
        Column("inputs that differ", number=True),
        Column("remark"),
    ]
    rows = [
        [
            Cell(str(site["node"])),
            Cell(operator(site["op"])),
            Cell(str(site["pass"])),
            Cell(str(site["outcome"]), _OUTCOMES[site["outcome"]]),
            Cell(str(site["spelling"] or "").replace("+", " + ")),
            _equality(site),
            Cell(whole(site["differing_inputs"])),
            Cell(str(site["reason"] or "") or _example(site)),
        ]
        for site in sites
    ]
    return Table(columns, rows, "sites", folded=len(rows) > _ROWS)


def _equality(site: Site) -> Cell:
    if site["exactness"] is None:
        return Cell("")
    good = Exactness(site["exactness"]) >= Exactness.VALUES
    return Cell(str(site["exactness"]), Tone.GOOD if good else Tone.OPEN)


def _example(site: Site) -> str:
    witness = site["witness"]
    if witness is None or not site["differing_inputs"]:
        return ""
    x, y, z = (amount(witness[name], 9) for name in ("input", "reference", "candidate"))
    return f"such as {x}: {z}, not {y}"


def _refused_table(sites: Sequence[Site]) -> Table:
    columns = [Column("node", code=True), Column("operator"), Column("reason")]
    rows = [
        [
            Cell(str(site["node"])),
            Cell(operator(site["op"])),
            Cell(str(site["reason"] or "no reason is known")),
        ]
        for site in sites
    ]
    return Table(columns, rows, "sites left as they were", folded=len(rows) > _ROWS)


def _ledger(
    stored: Sequence[Mapping[str, Any]], totals: Mapping[str, Any], charts: Charts
) -> Section:
    changed = totals["elements"] - totals["unchanged"]
    share = totals["clipped"] / totals["elements"] if totals["elements"] else 0.0
    text = (
        f"{counted(len(stored), 'weight')} stored as codes, "
        f"{size(totals['bytes_before'])} → {size(totals['bytes_after'])}. Of "
        f"{whole(totals['elements'])} values, compared one by one, "
        f"{whole(changed) + ' changed' if changed else 'none changed'}; {share:.2%} were beyond "
        "the range of the codes."
    )
    columns = [
        Column("weight", code=True),
        Column("codes"),
        Column("scales"),
        *(
            Column(name, number=True)
            for name in ("before", "after", "factor", "values", "changed", "clipped", "codes used")
        ),
        Column("scale", number=True),
    ]
    chart = charts.layers(
        "Bytes of each weight",
        [str(row["tensor"]) for row in stored],
        {
            "before": [float(row["bytes_before"]) for row in stored],
            "after": [float(row["bytes_after"]) for row in stored],
        },
        "bytes",
    )
    table = Table(columns, [_row(row) for row in stored], "byte ledger", len(stored) > _ROWS)
    return Section("Byte ledger", [text], tables=[table], charts=[chart])


def _row(row: Mapping[str, Any]) -> list[Cell]:
    before, after, elements = row["bytes_before"], row["bytes_after"], row["elements"]
    counts = [Cell(NONE)] * 4
    if elements is not None:
        lost = elements - row["unchanged"]
        used = row["codes_used"]
        counts = [
            Cell(whole(elements)),
            Cell(whole(lost), Tone.OPEN if lost else Tone.GOOD),
            Cell(f"{row['clipped'] / max(elements, 1):.2%}"),
            Cell(NONE if used is None else f"{used} of {row['codes_available']}"),
        ]
    low, high = amount(row["scale_low"], 4), amount(row["scale_high"], 4)
    return [
        Cell(str(row["tensor"])),
        Cell(str(row["type"])),
        Cell(str(row["scale_type"])),
        Cell(size(before)),
        Cell(size(after)),
        Cell(factor(before, after)),
        *counts,
        Cell(low if low == high else f"{low} .. {high}"),
    ]


def _losses(losses: Sequence[Mapping[str, Any]], charts: Charts) -> Section:
    columns = [
        Column("weight", code=True),
        Column("type"),
        *(
            Column(name, number=True)
            for name in ("SQNR dB", "largest error", "in steps", "clipped", "before", "after")
        ),
    ]
    rows = [
        [
            Cell(str(figures["weight"])),
            Cell(str(figures["type"])),
            Cell(amount(figures["sqnr_db"], 4)),
            Cell(amount(figures["max_abs_error"], 3)),
            Cell(amount(figures["max_error_steps"], 3)),
            Cell(whole(int(figures["clipped"]))),
            Cell(size(int(figures["weight_bytes_before"]))),
            Cell(size(int(figures["weight_bytes_after"]))),
        ]
        for figures in losses
    ]
    chart = charts.layers(
        "Error of each weight",
        [str(figures["weight"]) for figures in losses],
        {"error": [float(figures["max_abs_error"]) for figures in losses]},
        "largest difference (real units)",
        is_error=True,
    )
    text = "How far the codes are from the weights that they were made of."
    table = Table(columns, rows, "errors of weights", len(rows) > _ROWS)
    return Section("What quantizing cost", [text], tables=[table], charts=[chart])
