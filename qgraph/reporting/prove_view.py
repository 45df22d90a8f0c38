"""View of a proof: the page of the JSON document of ``qgraph prove``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qgraph.conditions import BIAS_LAST, texts_of
from qgraph.exactness import apart, difference, is_constant, is_counted, region_name
from qgraph.reporting.bounds_view import (
    beyond,
    bound_text,
    bounded_sections,
    bounded_sentence,
    bounded_verdict,
)
from qgraph.reporting.charts import Charts, codes_section, steps_section
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
    with_id,
)
from qgraph.text import NONE, amount, counted, whole

Region = Mapping[str, Any]

TONES = {"proved": Tone.GOOD, "bounded": Tone.GOOD, "different": Tone.BAD, "undecided": Tone.OPEN}

_COMPARED = {
    "constant": "its constant",
    "congruence": "equal operators",
    "intervals": "every input",
    "thresholds": "every threshold",
    "exhaustive": "every input, one by one",
    "none": "not decided",
}

_NAMES = [Column("reference", code=True), Column("candidate", code=True, spare=True)]
_SIDES = ("reference", "candidate")
_PROPERTIES = ("exactness", "method", "counted", "differing_inputs", "largest_steps", "witness")


def prove_page(document: Mapping[str, Any]) -> Page:
    """Return the page of a certificate, which may have ``staircases`` and ``quantizers`` too."""
    regions: Sequence[Region] = document["regions"]
    verdict = str(document["verdict"])
    differing = {
        name: sum(r["differing_inputs"] for r in regions if is_constant(r) == of_constants)
        for name, of_constants in (("inputs", False), ("constants", True))
    }
    number = {name: sum(r["verdict"] == name for r in regions) for name in TONES}
    facts = [KeyFigure("regions compared", whole(len(regions)))]
    facts += [
        KeyFigure(name, whole(count), TONES[name] if count else Tone.PLAIN)
        for name, count in number.items()
        if count or name == verdict
    ]
    bounds = any(not is_counted(r) and r["verdict"] == "different" for r in regions)
    facts += [
        KeyFigure(
            f"{name} that differ",
            f"{'at least ' if bounds and name == 'inputs' else ''}{whole(count)}",
            Tone.BAD,
        )
        for name, count in differing.items()
        if count
    ]
    if document["exactness"] is not None:
        facts.append(KeyFigure("equality", str(document["exactness"])))
    shown, tone = bounded_verdict(document) if verdict == "bounded" else (verdict, TONES[verdict])
    return Page(
        "prove",
        str(document["qgraph"]),
        shown,
        tone,
        _sentence(document, number),
        files_of(document, *_SIDES),
        facts,
        list(_sections(document, regions)),
        list(_findings(document, regions)),
    )


def _sentence(document: Mapping[str, Any], number: Mapping[str, int]) -> str:
    regions = counted(len(document["regions"]), "region")
    match document["verdict"]:
        case "proved":
            equality = "bit for bit" if document["exactness"] == "bits" else "in value"
            how = f"{regions} compared" if document["regions"] else "they have the same form"
            only_if = f", if {BIAS_LAST}" if BIAS_LAST in texts_of(document["conditions"]) else ""
            return f"The outputs are equal {equality} for every input{only_if}: {how}."
        case "different":
            return f"The models differ in {number['different']} of {regions}."
        case "bounded":
            return bounded_sentence(document)
    return f"{number['undecided']} of {regions} could not be decided."


def _sections(document: Mapping[str, Any], regions: Sequence[Region]) -> Iterator[Section]:
    charts = Charts()
    others = [region for region in regions if region["verdict"] != "proved"]
    proved = [region for region in regions if region["verdict"] == "proved"]
    known = [r for r in others if is_counted(r) and not is_constant(r) and r["differing_inputs"]]
    others = [region for region in others if region["verdict"] != "bounded"]
    yield from bounded_sections(document, charts)
    if others:
        bars = []
        if len(known) > 1:
            names = [region_name(region, "reference") for region in known]
            numbers_of = [apart(region) for region in known]
            counts = {"another code": [float(codes) for codes, _ in numbers_of]}
            if any(noise for _, noise in numbers_of):
                counts["rounding only"] = [float(noise) for _, noise in numbers_of]
            label = "number of float32 inputs"
            bars = [charts.layers("Inputs that differ, by region", names, counts, label, True)]
        yield Section("Not proved equal", tables=[_open_table(others)], charts=bars)
    yield from steps_section(charts, document.get("staircases", ()), len(known))
    if proved:
        columns: Columns = [*_NAMES, "equality", Column("compared on", spare=True)]
        columns.append(Column("remark", spare=True))
        rows: list[Row] = [
            [
                *_cells(region),
                Cell(str(region["exactness"]), Tone.GOOD),
                _COMPARED.get(region["method"], str(region["method"])),
                _remark(region),
            ]
            for region in proved
        ]
        yield Section("Proved equal", tables=[Table("regions proved equal", columns, rows, MANY)])
    yield from codes_section(charts, document.get("quantizers", ()))
    if points := [*texts_of(document["conditions"]), *document["notes"]]:
        yield Section("Conditions of the verdict", points=points)


def _open_table(regions: Sequence[Region]) -> Table:
    steps = Column("largest, in steps", number=True, spare=True)
    columns: Columns = [*_NAMES, "verdict", *numbers("inputs that differ", "another code"), steps]
    columns += [*numbers("such as x", "reference y", "candidate y"), "remark"]
    rows: list[Row] = [
        [
            *_cells(region),
            Cell(str(region["verdict"]), TONES[region["verdict"]]),
            _differing(region),
            _codes(region),
            amount(region["largest_steps"] or None, 3),
            *_example(region),
            _remark(region),
        ]
        for region in regions
    ]
    return Table("regions that are not proved equal", columns, rows)


def _findings(document: Mapping[str, Any], regions: Sequence[Region]) -> Iterator[Issue]:
    over = [id(region) for region in beyond(document)]
    for region in regions:
        name, value = (region_name(region, side) for side in _SIDES)
        nodes = {f"{side}_nodes": region[f"{side}_nodes"] for side in _SIDES}
        properties = {key: region[key] for key in _PROPERTIES} | nodes
        rule, text, more = None, "", _remark(region)
        if region["verdict"] == "different":
            rule, text = "region-differs", difference(region)
        elif id(region) in over:
            rule = "bound-exceeded" if document["limits"] else "bound-unlimited"
            text, properties["bound"] = bound_text(region), region["bound"]
        elif region["verdict"] == "undecided":
            rule, more = "region-undecided", ""
            text = f"Whether this is equal to {name!r} is not decided: {_remark(region)}"
        yield Issue(rule, text, value, properties=properties, test=name, more=more)
    if not regions:
        rules = {"different": "region-differs", "undecided": "region-undecided"}
        verdict, whole_graph = document["verdict"], "the whole graph"
        yield Issue(rules.get(verdict), f"It is {verdict}.", whole_graph, test=whole_graph)


def _differing(region: Region) -> str:
    number = int(region["differing_inputs"])
    if is_counted(region):
        return whole(number)
    if region["verdict"] != "different":
        return NONE
    return f"at least {whole(number)}" if number else "some"


def _codes(region: Region) -> str:
    """Return the number of inputs that give another code, if it is less than those that differ."""
    codes, others = apart(region)
    return whole(codes) if others and not is_constant(region) else NONE


def _example(region: Region) -> list[str]:
    witness = region["witness"]
    if witness is None:
        return [NONE] * 3
    x, *values = (amount(witness[name], 9) for name in ("input", *_SIDES))
    x = f"element {x}" if is_constant(region) else x
    return [x if int(region["channels"]) < 2 else f"{x} (channel {witness['channel']})", *values]


def _remark(region: Region) -> str:
    signs = "the sign of zero is not kept" if region["zero_sign_inputs"] else ""
    return "; ".join(filter(None, (with_id(region), signs)))


def _cells(region: Region) -> list[Cell]:
    cells = []
    for side in _SIDES:
        nodes = region[f"{side}_nodes"]
        more = f" +{len(nodes) - 1}" if len(nodes) > 1 else ""
        cells.append(Cell(region_name(region, side) + more, full=", ".join(nodes)))
    return cells
