"""View of a rewrite: the page of the JSON report of convert, fold and transform."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qgraph.exactness import Exactness, Method, ProofVerdict, apart, codes_apart, noise as noise_of
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
    operator,
    with_id,
)
from qgraph.text import NONE, amount, counted, example, extent, percent, size, whole

Site = Mapping[str, Any]

_EQUALITY = {
    Exactness.BITS: "all equal bit for bit",
    Exactness.VALUES: "all equal in value, for every input",
    Exactness.CODES: "all with equal codes, values differ by some ulps",
    Exactness.NEAR: "thresholds moved by ulps, counted below",
    Exactness.DIFFERENT: "not all equal",
}

_SHORT = {"QuantizeLinear": "Q", "DequantizeLinear": "DQ"}
_PARTS = 5
"""Forms with more operators are shortened."""


def rewrite_page(document: Mapping[str, Any]) -> Page:
    """Return the page of a rewrite; ``staircases`` and ``quantizers`` are optional."""
    sites: Sequence[Site] = document["sites"]
    summary = document["summary"]
    verdict, tone, sentence = _verdict(sites, summary)
    before, after = summary["weight_bytes_before"], summary["weight_bytes_after"]
    facts = [
        KeyFigure("changed", whole(summary["changed"])),
        *(
            KeyFigure(name, whole(summary[key]), tone_of)
            for name, key, tone_of in (
                ("kept unchanged", "kept", Tone.PLAIN),
                ("refused", "refused", Tone.OPEN),
            )
            if summary[key]
        ),
        KeyFigure("weights before", size(before)),
        KeyFigure("weights after", size(after)),
    ]
    if after and before > 1.05 * after:
        facts.append(KeyFigure("smaller by", _factor(before, after), Tone.GOOD))
    methods = (Method.CONSTANT, Method.BOUND)
    moved = (s for s in sites if s["outcome"] == "changed" and s["method"] not in methods)
    codes, noise = (sum(numbers) for numbers in zip((0, 0), *map(apart, moved), strict=True))
    if codes:
        facts.append(KeyFigure("inputs with another code", whole(codes), Tone.OPEN))
    if noise:
        facts.append(KeyFigure("inputs that differ by rounding", whole(noise), Tone.OPEN))
    return Page(
        str(document["command"]),
        str(document["qgraph"]),
        verdict,
        tone,
        sentence,
        files_of(document, "input", "output"),
        facts,
        list(_sections(document, sites)),
        list(_findings(sites)),
    )


def _verdict(sites: Sequence[Site], summary: Mapping[str, Any]) -> tuple[str, Tone, str]:
    changed = [site for site in sites if site["outcome"] == "changed"]
    refused = f"; {summary['refused']} refused" if summary["refused"] else ""
    if not changed:
        what = "No quantizer was changed"
        what = what if sites else "There is nothing to change; 'qgraph info' shows what there is"
        return "unchanged", Tone.OPEN, f"{what}{_done_before(sites)}{refused}."
    bounds = [site["bound"] for site in changed if site.get("bound")]
    stated = [site["exactness"] for site in changed if not site.get("bound")]
    levels = {Exactness(level) for level in stated if level}
    lowest = min(levels, default=Exactness.BITS)
    number = counted(summary["changed"], "site")
    sentence = f"{number} changed, {_EQUALITY[lowest]}{refused}."
    if unclaimed := sum(not level for level in stated):
        text = f"{number} changed, {whole(unclaimed)} of them not compared"
        return "not compared", Tone.OPEN, f"{text}; their remarks say why{refused}."
    if bounds and lowest >= Exactness.NEAR:
        others = f"the others are {_EQUALITY[lowest].removeprefix('all ')}; " if levels else ""
        within = _within(max(bounds, key=lambda bound: float(bound["deviation_steps"])))
        text = f"{number} changed; {others}given equal codes before each segment, {within}{refused}"
        return str(ProofVerdict.BOUNDED), Tone.GOOD, f"{text}."
    if lowest is Exactness.NEAR:
        near = [s for s in changed if s["exactness"] == Exactness.NEAR]
        codes, noise = (sum(pair) for pair in zip(*map(apart, near), strict=True))
        what = f"{counted(codes, 'input')} pick{'s' if codes == 1 else ''} another code, by 1 step"
        if noise:
            steps = max(float(site.get("noise_steps") or 0) for site in near)
            what += f"; elsewhere values differ by at most {amount(steps, 2)} steps"
        return str(lowest), Tone.OPEN, f"{number} changed: {what}{refused}."
    if lowest >= Exactness.VALUES and levels:
        return "partly equal" if refused else "equal", Tone.GOOD, sentence
    return str(lowest), Tone.OPEN, sentence


def _within(bound: Mapping[str, Any]) -> str:
    """Return a bound as part of a sentence."""
    # Most reports have no bounds.
    from qgraph.reporting.bounds_view import site_bound

    return site_bound(bound)


def _done_before(sites: Sequence[Site]) -> str:
    """Return the number of sites that already had the requested form; empty if none had."""
    reasons = Counter(site["reason"] for site in sites if site["outcome"] == "kept")
    known = [(r, n) for r, n in reasons.most_common() if r and r.startswith("already ")]
    texts = (
        f"{whole(number)} {'is' if number == 1 else 'are'} {reason}" for reason, number in known
    )
    return f": {', '.join(texts)}" if known else ""


def _sections(document: Mapping[str, Any], sites: Sequence[Site]) -> Iterator[Section]:
    charts = Charts()
    done = [site for site in sites if site["outcome"] != "refused"]
    if done:
        changed = [site for site in done if site["outcome"] == "changed"]
        kinds = Counter((operator(s["op"]), s["spelling"] or _unspelled(s)) for s in changed)
        parts = [
            f"{op} -> {form.replace('+', ' + ')} ({whole(number)})"
            for (op, form), number in kinds.most_common(6)
        ]
        text = "; ".join(parts) + ("; and others." if len(kinds) > 6 else ".")
        yield Section("Sites", [text] if parts else [], tables=[_site_table(done)])
    if refused := [site for site in sites if site["outcome"] == "refused"]:
        rows: list[Row] = [
            [str(site["node"]), operator(site["op"]), _reason(site)] for site in refused
        ]
        columns: Columns = [Column("node", code=True), "operator", "reason"]
        table = Table("sites left unchanged", columns, rows, MANY)
        yield Section("Left unchanged", tables=[table])
    staircases = document.get("staircases", ())
    yield from steps_section(charts, staircases, len(staircases))
    if stored := [site["stored"] for site in done if site.get("stored")]:
        yield _size_summary(stored, document, charts)
    if losses := [site["figures"] for site in done if "sqnr_db" in (site.get("figures") or {})]:
        yield _losses(losses, charts)
    yield from codes_section(charts, document.get("quantizers", ()))
    points = list(document.get("notes", ()))
    if frozen := document["summary"].get("frozen_inputs"):
        what = counted(frozen, "initializer")
        points.append(f"{what} that were also graph inputs became constants, see --keep-inputs.")
    if points:
        yield Section("Remarks", points=points)


def _site_table(sites: Sequence[Site]) -> Table:
    columns: Columns = [
        Column("node", code=True),
        "operator",
        Column("pass", spare=True),
        "became",
        "equality",
        Column("compared on", spare=True),
        *numbers("inputs with another code", "that differ by rounding"),
        "remark",
    ]
    rows: list[Row] = []
    for site in sites:
        level, over = Cell(""), ""
        within = ""
        if site.get("bound"):
            level, over = Cell(str(site["exactness"]), Tone.GOOD), "every input"
            within = _within(site["bound"])
        elif site["exactness"] is not None:
            is_equal = Exactness(site["exactness"]) >= Exactness.VALUES
            level = Cell(str(site["exactness"]), Tone.GOOD if is_equal else Tone.OPEN)
            over = "its constant" if site["method"] == "constant" else "every input"
        differing = 0 if site.get("bound") else site["differing_inputs"]
        codes, noise = (0, 0) if site.get("bound") else apart(site)
        elsewhere = f"elsewhere {noise_of(site)}" if codes and noise else ""
        such_as = example(site["witness"])[2:] if differing else ""
        rows.append(
            [
                str(site["node"]),
                operator(site["op"]),
                str(site["pass"]),
                _form(site),
                level,
                over,
                whole(codes) if codes else NONE,
                whole(noise) if noise else NONE,
                "; ".join(filter(None, (within, such_as, elsewhere, site["reason"]))),
            ]
        )
    return Table("sites", columns, rows, MANY)


def _form(site: Site) -> Cell:
    """Return the new form of a site in short."""
    if site["spelling"] is None:
        return Cell(_unspelled(site))
    return _shortened(str(site["spelling"]))


@functools.lru_cache
def _shortened(whole_form: str) -> Cell:
    parts = [_SHORT.get(part, part) for part in whole_form.split("+")]
    if len(parts) > _PARTS:
        parts[_PARTS - 1 :] = [f"{len(parts) - _PARTS + 1} more"]
    return Cell(" + ".join(parts), full=whole_form)


def _unspelled(site: Site) -> str:
    return "as it was" if site["outcome"] == "kept" else "changed"


def _reason(site: Site) -> str:
    return with_id(site) or "no reason is given"


def _size_summary(
    stored: Sequence[Mapping[str, Any]], document: Mapping[str, Any], charts: Charts
) -> Section:
    totals = document["summary"]["stored"]
    changed = totals["elements"] - totals["unchanged"]
    share = totals["clipped"] / totals["elements"] if totals["elements"] else 0.0
    text = (
        f"{counted(len(stored), 'weight')} stored as codes, "
        f"{size(totals['bytes_before'])} -> {size(totals['bytes_after'])}. Of "
        f"{counted(totals['elements'], 'value')}, compared one by one, "
        f"{whole(changed) if changed else 'none'} changed; {percent(share)} were outside the "
        f"range of the codes."
    )
    columns: Columns = [
        *(Column("weight", code=True), "codes", Column("scales", spare=True)),
        *numbers("before", "after"),
        *numbers("factor", "values", spare=True),
        *numbers("changed", "clipped"),
        *numbers("scale", spare=True),
    ]
    rows: list[Row] = []
    for row in stored:
        elements = row["elements"]
        counts: list[Cell | str] = [NONE] * 3
        if elements is not None:
            lost = elements - row["unchanged"]
            counts = [
                whole(elements),
                Cell(whole(lost), Tone.OPEN if lost else Tone.GOOD),
                percent(row["clipped"] / max(elements, 1)),
            ]
        before, after = row["bytes_before"], row["bytes_after"]
        rows.append(
            [
                *(str(row["tensor"]), str(row["type"]), str(row["scale_type"])),
                *(size(before), size(after), _factor(before, after)),
                *counts,
                extent(row["scale_low"], row["scale_high"]),
            ]
        )
    series = {name: [float(row[f"bytes_{name}"]) for row in stored] for name in ("before", "after")}
    names = [str(row["tensor"]) for row in stored]
    chart = charts.layers("Bytes of each weight", names, series, "bytes")
    table = Table("weights", columns, rows, MANY)
    is_detail = document["command"] != "fold"
    return Section("Size summary", [text], tables=[table], charts=[chart], detail=is_detail)


def _losses(losses: Sequence[Mapping[str, Any]], charts: Charts) -> Section:
    columns: Columns = [
        *(Column("weight", code=True), "type"),
        *numbers("SQNR dB", "largest error"),
        *numbers("in steps", spare=True),
        *numbers("clipped"),
        *numbers("before", "after", spare=True),
    ]
    ranked = sorted(losses, key=lambda figures: float(figures["sqnr_db"]))
    rows: list[Row] = [
        [
            str(figures["weight"]),
            f"{figures['type']}{f', blocks of {block}' if block else ''}",
            f"{figures['sqnr_db']:.1f}",
            amount(figures["max_abs_error"], 3),
            f"{figures['max_error_steps']:.2f}",
            whole(int(figures["clipped"])),
            size(int(figures["weight_bytes_before"])),
            size(int(figures["weight_bytes_after"])),
        ]
        for figures in ranked
        for block in [figures["block_size"]]
    ]
    names = [str(figures["weight"]) for figures in losses]
    errors = {"error": [float(figures["max_abs_error"]) for figures in losses]}
    label = "largest difference (real units)"
    chart = charts.layers("Error of each weight", names, errors, label, True)
    low, high = (float(figures["sqnr_db"]) for figures in (ranked[0], ranked[-1]))
    text = (
        f"Error of the codes relative to the weights: SQNR {low:.1f} .. {high:.1f} dB, worst first."
    )
    table = Table("errors of weights", columns, rows, MANY)
    return Section("Quantization error", [text], tables=[table], charts=[chart])


def _factor(before: int, after: int) -> str:
    return f"{before / after:.1f} times" if after else NONE


def _findings(sites: Sequence[Site]) -> Iterator[Issue]:
    for site in sites:
        op = operator(site["op"])
        issues = []
        if site["outcome"] == "refused":
            text = f"{op} was left unchanged: {_reason(site)}"
            issues.append(("quantizer-refused", text))
        elif site["differing_inputs"] and not site.get("bound"):
            number = counted(int(site["differing_inputs"]), "input")
            such_as = example(site["witness"])
            if parts := codes_apart(site):
                such_as = f": {parts}{such_as}"
            text = f"{op} became {site['spelling']}, which differs for {number}{such_as}."
            issues.append(("values-moved", text))
        stored = site.get("stored")
        if stored and stored["elements"] is not None and stored["elements"] != stored["unchanged"]:
            lost, of = whole(stored["elements"] - stored["unchanged"]), whole(stored["elements"])
            text = f"{lost} of {of} values of {stored['tensor']!r} changed."
            issues.append(("weight-changed", text))
        for rule, text in issues:
            properties = {name: site[name] for name in ("op", "pass", "spelling", "exactness")}
            yield Issue(rule, text, str(site["node"]), "node", "input", properties)


def passes_section(passes: Sequence[Mapping[str, Any]]) -> Section:
    """Return the list of passes; of each its name, its summary and what it preserves."""
    rows: list[Row] = [
        [p["name"], NONE if _changes_values(p) else p["preserves"], p["summary"]] for p in passes
    ]
    return Section("Passes", tables=[Table("passes", ["pass", "keeps", "what it does"], rows)])


def pass_sections(info: Mapping[str, Any]) -> list[Section]:
    """Return the description of one pass and the table of its options."""
    kept = f"Keeps models equal in {info['preserves']}, unless an option says otherwise."
    if info["preserves"] == ProofVerdict.BOUNDED:
        kept = "Results change by roundings; the report of 'qgraph transform' has their bounds."
    elif _changes_values(info):
        kept = "Changes what a model computes; the report has the extent or the reason."
    rows: list[Row] = [
        [
            o["name"],
            o["kind"],
            "required" if o["default"] is None else o["default"] or "empty",
            o["help"],
        ]
        for o in info["options"]
    ]
    table = Table("options", ["option", "value", "default", "meaning"], rows)
    return [
        Section("Pass", [f"{info['name']}: {info['summary']}", kept]),
        Section("Options", tables=[table]) if rows else Section("", ["It has no options."]),
    ]


def _changes_values(info: Mapping[str, Any]) -> bool:
    return bool(info["preserves"] == Exactness.DIFFERENT)
