"""The page of a proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qgraph.certification.certificate import BIAS_LAST
from qgraph.reporting.charts import Charts
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
    example,
    whole,
)

Region = Mapping[str, Any]

TONES = {"proved": Tone.GOOD, "different": Tone.BAD, "undecided": Tone.OPEN}

_METHODS = {
    "constant": "its constant",
    "congruence": "equal operators",
    "intervals": "every input",
    "thresholds": "every input",
    "exhaustive": "every input, one by one",
    "none": "not decided",
}

_ROWS = 24


def prove_page(document: Mapping[str, Any]) -> Page:
    """Return the page of what ``qgraph prove`` found, its JSON document with ``staircases``."""
    regions: Sequence[Region] = document["regions"]
    verdict = str(document["verdict"])
    differing = sum(int(region["differing_inputs"]) for region in regions if _is_of_data(region))
    constants = [region for region in regions if not _is_of_data(region)]
    elements = sum(int(region["differing_inputs"]) for region in constants)
    number = {name: sum(r["verdict"] == name for r in regions) for name in TONES}
    facts = [Fact("regions compared", whole(len(regions)))]
    facts += [
        Fact(name, whole(count), TONES[name] if count else Tone.PLAIN)
        for name, count in number.items()
        if count or name == verdict
    ]
    if differing:
        more = any(not _is_counted(r) and r["verdict"] == "different" for r in regions)
        number_of = f"at least {whole(differing)}" if more else whole(differing)
        facts.append(Fact("inputs that differ", number_of, Tone.BAD))
    if elements:
        facts.append(Fact("constants that differ", whole(elements), Tone.BAD))
    if document["exactness"] is not None:
        facts.append(Fact("equality", str(document["exactness"])))
    return Page(
        "prove",
        str(document["qgraph"]),
        verdict,
        TONES[verdict],
        _sentence(document, number),
        [
            File(role, str(document[role]["path"] or "a model in memory"), document[role]["sha256"])
            for role in ("reference", "candidate")
        ],
        facts,
        list(_sections(document, regions)),
    )


def _sentence(document: Mapping[str, Any], number: Mapping[str, int]) -> str:
    regions = counted(len(document["regions"]), "region")
    match document["verdict"]:
        case "proved":
            how = "bit for bit" if document["exactness"] == "bits" else "in value"
            over = f"{regions} compared" if document["regions"] else "they have one form"
            only_if = f", if {BIAS_LAST}" if BIAS_LAST in document.get("conditions", ()) else ""
            equal = f"Both models compute outputs that are equal {how}, for every input"
            return f"{equal}{only_if}: {over}."
        case "different":
            return (
                f"The models differ in {number['different']} of {regions}; an input that shows it "
                "is given for each."
            )
    return f"{number['undecided']} of {regions} could not be decided; the table says why."


def _sections(document: Mapping[str, Any], regions: Sequence[Region]) -> list[Section]:
    charts = Charts()
    sections = []
    others = [region for region in regions if region["verdict"] != "proved"]
    proved = [region for region in regions if region["verdict"] == "proved"]
    if others:
        bars = [charts.layers(*_bars(others), is_error=True)] if len(_drawn(others)) > 1 else []
        sections.append(
            Section("Where they are not shown equal", tables=[_open_table(others)], charts=bars)
        )
    pictures = [chart for data in document.get("staircases", ()) for chart in charts.steps(data)]
    more = len(_drawn(others)) - len(document.get("staircases", ()))
    if pictures:
        sections.append(
            Section(
                "The steps around a difference",
                [
                    "Each quantizer of the reference beside what takes its place, drawn exactly"
                    + (f"; {more} more are not drawn." if more > 0 else ".")
                ],
                charts=pictures,
            )
        )
    if proved:
        sections.append(Section("Proved equal", tables=[_proved_table(proved)]))
    if document.get("quantizers"):
        sections.append(codes_section(charts, document["quantizers"]))
    points = [*document.get("conditions", ()), *document.get("notes", ())]
    if points:
        sections.append(Section("What the verdict rests on", points=points))
    return sections


def _is_of_data(region: Region) -> bool:
    return bool(region["method"] != "constant")


def _is_counted(region: Region) -> bool:
    """Return whether all inputs were compared; numbers of inputs are lower bounds otherwise."""
    return bool(region.get("counted", region["method"] != "none"))


def _differing(region: Region) -> str:
    number = int(region["differing_inputs"])
    if _is_counted(region):
        return whole(number)
    if region["verdict"] != "different":
        return NONE
    return f"at least {whole(number)}" if number else "some"


def _drawn(regions: Sequence[Region]) -> list[Region]:
    """Return the regions whose numbers of differing inputs are known."""
    known = (r for r in regions if _is_counted(r) and _is_of_data(r))
    return [r for r in known if int(r["differing_inputs"]) > 0]


def _bars(
    regions: Sequence[Region],
) -> tuple[str, list[str], dict[str, list[float]], str]:
    drawn = _drawn(regions)
    counts = [float(region["differing_inputs"]) for region in drawn]
    names = [place(region, "reference") for region in drawn]
    return "Inputs that differ, by region", names, {"inputs": counts}, "number of float32 inputs"


def place(region: Region, side: str) -> str:
    """Return the last node of a side of a region, or its value where there is no node."""
    nodes = region[f"{side}_nodes"]
    return str(nodes[-1] if nodes else region[f"{side}_value"])


def difference(region: Region) -> str:
    """Return a sentence about a region that differs."""
    number, constant = int(region["differing_inputs"]), region["method"] == "constant"
    verb = ("has" if number == 1 else "have") if constant else "gives" if number == 1 else "give"
    what = f"{counted(number, 'element' if constant else 'input')} {verb}"
    if not number:
        what = "Some inputs give"
    elif not _is_counted(region):
        what = f"At least {what}"
    return f"{what} another value than {place(region, 'reference')!r}{example(region)}."


def _open_table(regions: Sequence[Region]) -> Table:
    columns = [
        Column("reference", code=True),
        Column("candidate", code=True),
        Column("verdict"),
        Column("inputs that differ", number=True),
        Column("largest, in steps", number=True),
        Column("such as x", number=True),
        Column("reference y", number=True),
        Column("candidate y", number=True),
        Column("remark"),
    ]
    rows = [
        [
            _nodes(region, "reference"),
            _nodes(region, "candidate"),
            Cell(str(region["verdict"]), TONES[region["verdict"]]),
            Cell(_differing(region)),
            Cell(amount(region["largest_steps"], 3)),
            *(Cell(text) for text in _example(region)),
            Cell(remark(region)),
        ]
        for region in regions
    ]
    return Table(columns, rows, "regions that are not shown equal")


def _example(region: Region) -> list[str]:
    witness = region["witness"]
    if witness is None:
        return [NONE] * 3
    names = "input", "reference", "candidate"
    found = [amount(witness[name], 9) for name in names]
    if region["method"] == "constant":
        found[0] = f"element {found[0]}"
    if int(region["channels"]) > 1:
        found[0] += f" (channel {witness.get('channel')})"
    return found


def remark(region: Region) -> str:
    """Return what is to be said of a region beyond its verdict."""
    remarks = [region["reason"] or ""]
    if region["zero_sign_inputs"]:
        remarks.append("the sign of zero is not kept")
    return "; ".join(filter(None, remarks))


def _nodes(region: Region, side: str) -> Cell:
    nodes = region[f"{side}_nodes"]
    more = f" +{len(nodes) - 1}" if len(nodes) > 1 else ""
    return Cell(place(region, side) + more, full=", ".join(nodes))


def _proved_table(regions: Sequence[Region]) -> Table:
    columns = [
        Column("reference", code=True),
        Column("candidate", code=True),
        Column("equality"),
        Column("compared on"),
        Column("remark"),
    ]
    rows = [
        [
            _nodes(region, "reference"),
            _nodes(region, "candidate"),
            Cell(str(region["exactness"]), Tone.GOOD),
            Cell(_METHODS.get(region["method"], str(region["method"]))),
            Cell(remark(region)),
        ]
        for region in regions
    ]
    return Table(columns, rows, "regions proved equal", folded=len(rows) > _ROWS)


def codes_section(charts: Charts, quantizers: Sequence[Mapping[str, Any]]) -> Section:
    """Return how often the codes of quantizers occur."""
    drawn = charts.histograms(quantizers)
    more = len(quantizers) - len(drawn)
    text = ["How often each code occurs. Codes beyond the range of the format were clipped."]
    if more > 0:
        text.append(f"The first {len(drawn)} quantizers; {more} more are not drawn.")
    return Section("Codes", text, charts=drawn)
