"""Views of bounds, and of differences on data compared with bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qgraph.bound import Bound, Limit, is_within
from qgraph.exactness import region_name
from qgraph.reporting.charts import Charts
from qgraph.reporting.view import Cell, Column, Columns, Issue, Row, Section, Table, Tone, numbers
from qgraph.text import NONE, amount, counted, whole

Entry = Mapping[str, Any]

_NAMES = [Column("segment ends at", code=True), Column("candidate", code=True, spare=True)]
_TERMS = (
    ("reference_error", "reference"),
    ("candidate_error", "candidate"),
    ("ideal_shift", "parameters"),
)
"""The parts of a bound, with their labels."""

_CHANNELS = 8
"""Maximum number of listed channels of a segment."""

_RAISE = 1.05
"""Factor by which proposed limits exceed the computed bounds, for rounding to two digits."""

_LONG_SUMS = 0.5
"""Parts of a step from which a bound is large."""

REPORT_IT = (
    "Either qgraph computed a wrong bound, or the backend does not compute as the conditions of "
    "the bound say. Write the inputs with --witness FILE, and report them with both models and "
    "the command as an error of qgraph."
)


def beyond(document: Entry) -> list[Entry]:
    """Return the bounded regions of a certificate that are not within its limits."""
    limits = [Limit.parse(text) for text in document.get("limits", ())]
    return [
        region
        for region in document["regions"]
        if region["verdict"] == "bounded"
        and not is_within(limits, Bound.from_json(region["bound"]), region["reference_value"])
    ]


def bounded_verdict(document: Entry) -> tuple[str, Tone]:
    """Return the verdict on bounded models in a few words, and its tone."""
    if not beyond(document):
        return "bounded within the limits", Tone.GOOD
    if document["limits"]:
        return "bounded, beyond the limits", Tone.BAD
    return "bounded, no limit given", Tone.OPEN


def bounded_sentence(document: Entry) -> str:
    """Return a sentence about bounded models, and advice."""
    regions = document["regions"]
    bounds = [r["bound"] for r in regions if r["verdict"] == "bounded"]
    codes = [bound for bound in bounds if bound["absolute"] is None]
    equal = sum(r["verdict"] == "proved" for r in regions)
    verb = "is" if equal == 1 else "are"
    parts = [f"{equal} of {counted(len(regions), 'segment')} {verb} proved equal"]
    if codes:
        steps = max(bound["max_steps"] for bound in codes)
        ties = max(bound["tie_distance_steps"] for bound in codes)
        parts.append(
            f"in {len(codes)}, given equal codes before them, codes differ by at most "
            f"{counted(steps, 'step')}, and only within {amount(ties, 2)} steps of a tie"
        )
    real = [bound["absolute"] for bound in bounds if bound["absolute"] is not None]
    if real:
        parts.append(
            f"given equal codes, outputs that are not quantized differ by at most "
            f"{amount(max(real), 2)}"
        )
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}. {_next_step(document)}"


def site_bound(bound: Entry) -> str:
    """Return a bound as part of a sentence."""
    if bound["absolute"] is not None:
        return f"the output moves by at most {amount(bound['absolute'], 2)}"
    if not bound["max_steps"]:
        return "codes stay equal"
    return (
        f"codes move by at most {counted(bound['max_steps'], 'step')}, and only within "
        f"{amount(bound['tie_distance_steps'], 2)} steps of a tie"
    )


def bound_text(region: Entry) -> str:
    """Return the bound of a region in a sentence."""
    bound, name = region["bound"], repr(region_name(region, "reference"))
    if bound["absolute"] is not None:
        return (
            f"Given equal codes, it differs from {name} by at most {amount(bound['absolute'], 3)}."
        )
    return (
        f"Given equal codes, its codes differ from those of {name} by at most "
        f"{counted(bound['max_steps'], 'step')}; before rounding, by at most "
        f"{amount(bound['deviation_steps'], 3)} steps."
    )


def _next_step(document: Entry) -> str:
    """Return advice about regions beyond the limits."""
    over = beyond(document)
    if not over:
        return (
            "This says nothing of the model as a whole: 'qgraph check --within' shows on data how "
            "differences grow."
        )
    needed = " ".join(f"--within {text}" for text in _needed(over, document["limits"]))
    if not document["limits"]:
        return f"No limit was given, so this counts as not equal; {needed} accepts it."
    worst = max(over, key=lambda region: float(region["bound"]["deviation_steps"]))
    which = (
        f"{counted(len(over), 'segment')} {'is' if len(over) == 1 else 'are'} beyond the limit, "
        f"most of all {region_name(worst, 'reference')!r}"
    )
    return f"{which}. Change the model there, or accept it with {needed}."


def _needed(regions: Sequence[Entry], limits: Sequence[str]) -> list[str]:
    """Return limits that the regions do not exceed, in the units of the given limits."""
    codes = [r["bound"] for r in regions if r["bound"]["absolute"] is None]
    needed = []
    if codes and any(not Limit.parse(text).is_whole for text in limits):
        needed = [f"{max(bound['deviation_steps'] for bound in codes) * _RAISE:.2g}step"]
    elif codes:
        needed = [f"{max(bound['max_steps'] for bound in codes)}step"]
    for region in regions:
        if (real := region["bound"]["absolute"]) is not None:
            needed.append(f"{region['reference_value']}:{real * _RAISE:.2g}")
    return needed


def bounded_sections(document: Entry, charts: Charts) -> Iterator[Section]:
    """Yield the bounds of a certificate: a table, bars, and on demand the largest channels."""
    over = [id(region) for region in beyond(document)]
    regions = [region for region in document["regions"] if region["verdict"] == "bounded"]
    if not regions:
        return
    # What to look at first: segments beyond the limit, then large bounds.
    regions.sort(key=lambda r: (id(r) not in over, -r["bound"]["deviation_steps"]))
    names = [region_name(region, "reference") for region in regions]
    parts = {
        "reference": [float(r["bound"]["reference_error"]) for r in regions],
        "candidate, with its parameters": [
            float(r["bound"]["candidate_error"] + r["bound"]["ideal_shift"]) for r in regions
        ],
    }
    label = "largest distance before rounding (steps)"
    bars = charts.layers("Bound of each segment", names, parts, label)
    rows: list[Row] = []
    for region in regions:
        bound = region["bound"]
        verdict = Cell("beyond the limit", Tone.BAD) if id(region) in over else ""
        rows.append(
            [
                region_name(region, "reference"),
                _other(*(region_name(region, side) for side in ("reference", "candidate"))),
                amount(bound["deviation_steps"], 3),
                str(bound["max_steps"]),
                amount((bound.get("seen") or {}).get("difference"), 3),
                amount(bound["tie_distance_steps"], 3),
                _terms(bound),
                amount(bound["absolute"], 3),
                verdict if document["limits"] else "",
            ]
        )
    columns: Columns = [*_NAMES, *numbers("apart at most", "codes apart", "seen", "from a tie")]
    columns += ["because of, largest first", *numbers("real units", spare=True), "limit"]
    table = Table("bounds in steps, before rounding", columns, rows)
    yield Section("Bounded", _hints(document, regions), tables=[table], charts=[bars])
    yield from _channels(regions)


def _other(reference: str, candidate: str) -> str:
    """Return the name of the candidate's node if it differs."""
    return "" if candidate == reference else candidate


def _terms(bound: Entry) -> str:
    """Return the parts of a bound, the largest first."""
    parts = sorted(((float(bound[field]), name) for field, name in _TERMS), reverse=True)
    return ", ".join(f"{name} {amount(size, 2)}" for size, name in parts if size) or NONE


def _hints(document: Entry, regions: Sequence[Entry]) -> list[str]:
    """Return why bounds are not smaller, if there is something to do about it."""
    largest = regions[0]["bound"]
    errors = largest["reference_error"] + largest["candidate_error"]
    text = (
        "Distances are in steps of the quantizer; at an output of floats, in 1/256 of its range. "
        "because of: the rounding of the executed reference, that of the executed candidate, and "
        "parameters that differ."
    )
    if errors < _LONG_SUMS or errors < largest["ideal_shift"]:
        return [text]
    if document["order"] == "any":
        text += (
            " Most of the largest bound is rounding of long sums, for any order of additions; "
            "--order chunk:N is tighter for runtimes that add in chunks."
        )
    if document["against"] == "execution" and largest["reference_error"] > errors / 2:
        text += " --against ideal leaves out the rounding of the reference."
    return [text]


def _channels(regions: Sequence[Entry]) -> Iterator[Section]:
    rows: list[Row] = []
    for region in regions:
        channels = enumerate(region["bound"]["channels"])
        largest = sorted(channels, key=lambda each: -sum(each[1]))[:_CHANNELS]
        for channel, parts in largest:
            sizes = [amount(part, 3) for part in (sum(parts), *parts)]
            rows.append([region_name(region, "reference"), str(channel), *sizes])
    if rows:
        columns: Columns = [_NAMES[0], *numbers("channel", "apart at most", "reference")]
        columns += numbers("candidate", "parameters")
        label = f"channels: the {_CHANNELS} largest of each segment, in steps"
        yield Section("Bounds by channel", tables=[Table(label, columns, rows)], detail=True)


def bounds_verdict(bounds: Entry) -> tuple[str, Tone]:
    """Return a short verdict on bounds and data, and its tone."""
    if any(segment["violated"] for segment in bounds["segments"]):
        return "bound violated", Tone.BAD
    if any(segment["beyond"] for segment in bounds["segments"]):
        return "beyond the limit", Tone.BAD
    compared = [segment["reason"] is None for segment in bounds["segments"]]
    if not all(compared):
        return "partly within bounds", Tone.OPEN
    return "within bounds", Tone.GOOD


def bounds_sentence(bounds: Entry) -> str:
    """Return a sentence about bounds and data."""
    segments = bounds["segments"]
    wrong = [segment for segment in segments if segment["violated"]]
    if wrong:
        first = wrong[0]
        return (
            f"The bound of {_place(first)} is violated: {first['violated']}. "
            f"Bounds that do not hold: {whole(len(wrong))} of {whole(len(segments))}. {REPORT_IT}"
        )
    over = [segment for segment in segments if segment["beyond"]]
    if over:
        return (
            f"{counted(len(over), 'segment')} {'exceeds' if len(over) == 1 else 'exceed'} the "
            "limit on the tested inputs, first "
            f"{_place(over[0])}: {_seen(over[0])}, more than {over[0]['beyond']}."
        )
    compared = [segment for segment in segments if segment["reason"] is None]
    codes = [segment for segment in compared if not segment["is_output"]]
    if not compared:
        return f"{counted(len(segments), 'segment')} could not be compared on the tested inputs."
    text = f"{_all(len(compared))} on the tested inputs"
    if codes:
        total, some, grown = (
            sum(int(segment[key]) for segment in codes)
            for key in ("elements", "differing_codes", "accumulated_codes")
        )
        most, last = (
            int(max(segment[key] for segment in codes))
            for key in ("largest_steps", "accumulated_steps")
        )
        text += (
            f": given equal codes before them, {whole(some)} of {whole(total)} codes differ"
            f"{_by(most)}; as the differences accumulate, {whole(grown)}{_by(last)}"
        )
    if left := len(segments) - len(compared):
        text += f". {counted(left, 'segment')} could not be compared"
    return f"{text}."


def _all(number: int) -> str:
    return "The bound holds" if number == 1 else f"All {whole(number)} bounds hold"


def _by(steps: int) -> str:
    return f", by at most {counted(steps, 'step')}" if steps else ""


def _place(segment: Entry) -> str:
    return repr(str(segment["reference"] or segment["candidate"]))


def _seen(segment: Entry) -> str:
    if segment["is_output"]:
        return f"values lie {amount(segment['distance'], 3)} from what the reference means"
    differ = f"{counted(int(segment['differing_codes']), 'code')} differ"
    differ += _by(int(segment["largest_steps"]))
    return f"{differ}, at {amount(segment['distance'], 3)} steps before rounding"


def measured_sections(bounds: Entry, charts: Charts) -> Iterator[Section]:
    """Yield sections with the differences of each segment on data, and its bound."""
    segments = sorted(bounds["segments"], key=_urgency)
    rows: list[Row] = []
    for segment in segments:
        verdict = Cell("holds", Tone.GOOD)
        if segment["violated"]:
            verdict = Cell(f"violated: {segment['violated']}", Tone.BAD)
        elif segment["beyond"]:
            verdict = Cell(f"beyond {segment['beyond']}", Tone.BAD)
        elif segment["reason"]:
            verdict = Cell(f"not compared: {segment['reason']}", Tone.OPEN)
        is_known = segment["reason"] is None or bool(segment["elements"])
        keys = ("elements", "differing_codes", "largest_steps", "distance", "distance_bound")
        texts = [amount(segment[key], 3) if is_known else NONE for key in keys[2:]]
        counts = [whole(segment[key]) if is_known else NONE for key in keys[:2]]
        grown = [whole(segment["accumulated_codes"]), amount(segment["accumulated_steps"], 3)]
        rows.append(
            [
                str(segment["reference"] or segment["candidate"]),
                _other(str(segment["reference"]), str(segment["candidate"])),
                *counts,
                *texts,
                *(grown if is_known else [NONE] * 2),
                verdict,
            ]
        )
    columns: Columns = [*_NAMES, *numbers("codes", "differ", "by", "distance", "its bound")]
    columns += [*numbers("accumulated", "accumulated by"), "verdict"]
    own = max((float(s["own_error"] or 0) for s in segments), default=0.0)
    text = (
        "Given equal codes before each segment: codes that differ, and the largest distance of the "
        "executed candidate from what the reference means, beside its bound. Accumulated: codes "
        "that differ if each model goes on with its own. Numbers are steps; at an output, values "
        f"and real units. The distances are computed within {amount(own, 2)}."
    )
    compared = [segment for segment in segments if segment["distance"] is not None]
    names = [str(segment["reference"]) for segment in compared]
    series = {
        label: [float(segment[key] or 0) for segment in compared]
        for label, key in (("on data", "distance"), ("bound", "distance_bound"))
    }
    label = "distance from what the reference means (steps)"
    bars = [charts.layers("Distances and bounds", names, series, label)] if compared else []
    table = Table("segments", columns, rows)
    yield Section("Bounds on data", [text], tables=[table], charts=bars)
    yield Section("Conditions of the bounds", points=bounds["conditions"])


def _urgency(segment: Entry) -> tuple[bool, bool, float]:
    """Return a sort key, the most important segments first."""
    share = float(segment["distance"] or 0) / (float(segment["distance_bound"] or 0) or 1)
    return not segment["violated"], not segment["beyond"], -share


def measured_findings(bounds: Entry) -> Iterator[Issue]:
    """Yield an issue for each segment whose bound is violated or that exceeds a limit."""
    for segment in bounds["segments"]:
        rule, text = None, ""
        if segment["violated"]:
            rule = "bound-violated"
            text = f"The bound of {_place(segment)} is violated: {segment['violated']}."
        elif segment["beyond"]:
            rule, text = "bound-exceeded", f"{_seen(segment)}, more than {segment['beyond']}"
        name = str(segment["candidate"] or segment["reference"])
        keys = ("differing_codes", "largest_steps", "distance", "distance_bound", "own_error")
        properties = {key: segment[key] for key in keys}
        yield Issue(rule, text, name, properties=properties, test=f"segment {name}")
