"""Views without a verdict: ``qgraph info``, ``run``, ``diff`` and ``targets`` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qgraph.records import by_key
from qgraph.reporting.view import (
    Cell,
    Column,
    Columns,
    File,
    Page,
    Row,
    Section,
    Table,
    Tone,
    and_more,
    numbers,
    operator,
)
from qgraph.text import NONE, amount, counted, extent, percent, size

Part = Mapping[str, Any]

_MUCH_CLIPPED = 0.05
"""Clipping rates above it are highlighted."""

_MOST_REASONS = 4
"""Maximum number of lines of a verdict on a runtime; other remarks are listed separately."""

BARS = " ▁▂▃▄▅▆▇█"
"""Bars of growing height; the first is 0."""


def info_page(document: Part) -> Page:
    """Return the page of a model."""
    count = len(document["quantizers"])
    sections = list(info_sections(document))
    sentence = f"{counted(document['nodes'], 'node')}, {counted(count, 'quantizer')}."
    file = File("model", document["path"])
    return Page(
        "info", str(document["qgraph"]), "model", Tone.PLAIN, sentence, [file], [], sections, []
    )


def run_page(document: Part) -> Page:
    """Return the page of a run: its tensors, and the codes of quantizers."""
    count = len(document["quantizers"])
    sentence = (
        f"{counted(len(document['tensors']), 'tensor')} and {counted(count, 'quantizer')} on "
        f"{counted(document['batches'], 'batch')}."
    )
    file = File("model", document["model"])
    sections = list(run_sections(document))
    return Page(
        "run", str(document["qgraph"]), "statistics", Tone.PLAIN, sentence, [file], [], sections, []
    )


def info_sections(document: Part) -> Iterator[Section]:
    """Yield what a model file contains, and which runtimes can load it."""
    yield Section("Model", [document["path"], *_facts(document)])
    quantizers = document["quantizers"]
    refused = by_key(
        (("not converted" if each["format"] else "no quantizer", each["reason"]), each["node"])
        for each in quantizers
        if each["reason"]
    )
    text = [
        f"{what}: {nodes[0]}{and_more(nodes)}: {reason}"
        for (what, reason), nodes in refused.items()
    ]
    text += [] if quantizers else [f"no quantizers; {document['instead']}"]
    if missing := document["unsupported"]:
        kinds = ", ".join(f"{op} ({number})" for op, number in missing.items())
        text.append(f"operators that no installed backend can run: {kinds}")
    columns: Columns = [
        *(Column("quantizer", code=True), "operator", "of", "format"),
        *numbers("packed", spare=True),
        *numbers("scale"),
        *numbers("zero point", spare=True),
        *(Column("one scale", spare=True), Column("rounding", spare=True)),
    ]
    rows = [_quantizer(each) for each in quantizers if each["format"] or not each["reason"]]
    yield Section("Quantizers", text, tables=[Table("quantizers", columns, rows)] if rows else [])
    yield from _runtimes(document["runtimes"])


def run_sections(document: Part) -> Iterator[Section]:
    """Yield the ranges of the tensors of a run, and the codes that its quantizers use."""
    columns: Columns = [
        Column("output", code=True),
        "type",
        "shape",
        *numbers("min", "max", "mean"),
    ]
    rows: list[Row] = []
    for tensor in document["tensors"]:
        shape = "differs" if tensor["shape"] is None else _list(tensor["shape"])
        name = Cell(tensor["name"])
        if tensor["nan"]:
            name = Cell(f"{tensor['name']} ({tensor['nan']} NaN)", Tone.OPEN)
        rows.append([name, tensor["dtype"], shape, *_ends(tensor)])
    yield Section("Tensors", tables=[Table("tensors", columns, rows)])
    quantizers = document["quantizers"]
    text = [f"no statistics: {each['reason']}" for each in quantizers if each["reason"]]
    columns = [
        *(Column("quantizer", code=True), "of", "format"),
        *numbers("min", "max", "mean", spare=True),
        *numbers("clipped", "codes"),
        Column("histogram", spare=True),
    ]
    rows = [_use_of_codes(each) for each in quantizers if each["reason"] is None]
    if quantizers:
        tables = [Table("quantizers", columns, rows)] if rows else []
        yield Section("Quantizers", text, tables=tables)


def diff_sections(document: Part) -> Iterator[Section]:
    """Yield a row for each quantizer that two models have, or one of them."""
    sides = "reference", "candidate"
    columns: Columns = ["change", *(Column(side, code=True) for side in sides), "differing"]
    rows: list[Row] = [
        [
            change["kind"],
            *(NONE if change[side] is None else change[side]["name"] for side in sides),
            ", ".join(change["differing"]),
        ]
        for change in document["quantizers"]
    ]
    text = [f"{number} {kind}" for kind, number in document["summary"].items()]
    yield Section("Quantizers", [", ".join(text)], tables=[Table("quantizers", columns, rows)])


def _facts(document: Part) -> Iterator[str]:
    """Yield the facts of the file, one line each."""
    opsets = ", ".join(f"{name or 'ai.onnx'} {n}" for name, n in document["opsets"].items())
    stored, packed = (document[f"{name}_bytes"] for name in ("weight", "packed"))
    weights = f"{size(stored)} as stored, {size(packed)} with packed codes"
    constants = document["overridable"]
    facts = {
        "dialects": ", ".join(f"{name} ({n})" for name, n in document["dialects"].items())
        or "none",
        "opsets": f"{opsets}; IR version {document['ir_version']}",
        "producer": document["producer"],
        "inputs": ", ".join(map(_value, document["inputs"])),
        "outputs": ", ".join(map(_value, document["outputs"])),
        "nodes": str(document["nodes"]),
        "weights": weights if packed < stored else size(stored),
        "also inputs": f"{counted(constants, 'initializer')}, treated as constants",
    }
    if not constants:
        del facts["also inputs"]
    return (f"  {name:<12} {text}" for name, text in facts.items() if text)


def _value(value: Part) -> str:
    shape = "[?]" if value["shape"] is None else _list(value["shape"])
    return f"{value['name']} {(value['dtype'] or 'unknown').lower()}{shape}"


def _list(shape: Sequence[Any]) -> str:
    return f"[{','.join('?' if size is None else str(size) for size in shape)}]"


def _quantizer(quantizer: Part) -> Row:
    packed = quantizer["packed_bytes"]
    unknown = "of data" if quantizer["dialect"] == "dynamic" else NONE
    return [
        quantizer["node"],
        operator(quantizer["op"]),
        "weight" if quantizer["weight"] else "data",
        quantizer["format"] or NONE,
        NONE if packed is None else size(packed),
        unknown if quantizer["scale"] is None else extent(*quantizer["scale"]),
        unknown if quantizer["zero_point"] is None else _zero_points(*quantizer["zero_point"]),
        quantizer["granularity"] or NONE,
        quantizer["rounding"] or NONE,
    ]


def _zero_points(*ends: float | str) -> str:
    """Return the smallest and the largest zero point; whole ones with all digits."""
    texts = (f"{float(e):.0f}" if float(e).is_integer() else amount(e, 4) for e in ends)
    return " .. ".join(dict.fromkeys(texts))


def _runtimes(verdicts: Sequence[Part]) -> Iterator[Section]:
    """Yield a table of the verdicts with their reasons, and one of all other remarks."""
    tones = {"yes": Tone.GOOD, "no": Tone.BAD, "unknown": Tone.OPEN}
    decided: list[Row] = []
    remarks: list[Row] = []
    for verdict in verdicts:
        texts = {True: list[str](), False: list[str]()}
        for reason in verdict["reasons"]:
            nodes = f" ({counted(reason['nodes'], 'node')})" if reason["nodes"] else ""
            texts[reason["loads"] == verdict["loads"]].append(reason["text"] + nodes)
        loads = Cell(verdict["loads"], tones[verdict["loads"]])
        shown, more = texts[True], list[str]()
        if len(shown) > _MOST_REASONS:
            shown, more = shown[: _MOST_REASONS - 1], shown[_MOST_REASONS - 1 :]
            shown.append(f"and {len(more)} more reasons, among the remarks (-v)")
        first, *others = shown or [""]
        decided.append([verdict["runtime"], loads, first, verdict["knowledge"]])
        decided += [["", "", text, ""] for text in others]
        remarks += [[verdict["runtime"], text] for text in [*more, *texts[False]]]
    columns: Columns = ["runtime", "loads", "because", Column("known from", spare=True)]
    yield Section("Runtimes", tables=[Table("runtimes", columns, decided)])
    if remarks:
        table = Table("remarks", ["runtime", "remark"], remarks)
        yield Section("Remarks", tables=[table], detail=True)


def _use_of_codes(quantizer: Part) -> Row:
    """Return the clipping rate and the used codes of a quantizer."""
    codes, share = quantizer["codes"], quantizer["clipped_share"]
    is_much = share is not None and share > _MUCH_CLIPPED
    return [
        quantizer["node"],
        "weight" if quantizer["weight"] else "data",
        quantizer["format"] or NONE,
        *_ends(quantizer, 4),
        Cell(percent(share), Tone.OPEN if is_much else Tone.PLAIN),
        NONE if codes is None else f"{len(codes)}/{quantizer['levels']}",
        bars(codes or []),
    ]


def _ends(values: Part, digits: int = 6) -> list[str]:
    return [amount(values[name], digits) for name in ("min", "max", "mean")]


def bars(codes: Sequence[Sequence[float]], width: int = 16) -> str:
    """Return a histogram of codes as a line of bars, from the smallest code to the largest.

    Codes that occur rarely are still visible.
    """
    if not codes:
        return ""
    low, high = codes[0][0], codes[-1][0]
    whole = all(isinstance(code, int) for code, _ in codes)
    # Whole codes fill the places from low to high, others are spread between both ends.
    span = high - low + 1 if whole else (high - low) or 1
    heights = [0.0] * int(min(width, span if whole else len(codes)))
    for code, times in codes:
        index = int((code - low) * len(heights) / span)
        heights[min(index, len(heights) - 1)] += times
    top = max(heights)
    return "".join(BARS[-int(-height * (len(BARS) - 1) // top)] for height in heights)


_TABLES = {
    "kernel": "Kernels",
    "codes": "Operators on codes",
    "storage": "Stored weights",
    "trap": "Traps",
    "saturation": "Sums of products that saturate",
    "sums": "Order of float additions",
    "slower": "Forms that were measured to be slower",
    "option": "Session options",
    "load": "Nodes that it loads",
}
_NOT_SHOWN = frozenset({"id", "source", "operators", "names", "key", "text"})
_WITHOUT_LIMIT = frozenset(
    {
        "direct",
        "groups",
        "ranks",
        "blocks",
        "levels",
        "scale_types",
        "scale",
        "redundant",
        "first",
        "never",
    }
)
"""Fields that are omitted if they are not stated."""


def targets_section(profiles: Sequence[Part]) -> Section:
    """Return the table of all targets."""
    rows: list[Row] = [
        [
            profile["name"],
            profile["knowledge"],
            *(str(len(profile[name])) for name in ("kernel", "trap")),
            profile["executed"] or NONE,
        ]
        for profile in profiles
    ]
    columns: Columns = ["target", "known from", Column("kernels", number=True)]
    columns += [Column("traps", number=True), "executed graph of"]
    return Section("Targets", tables=[Table("targets", columns, rows)])


def target_sections(profile: Part) -> Iterator[Section]:
    """Yield the profile of one target, each fact with its sources and dates."""
    versions = profile["versions"]
    low, high = versions["opsets"] or ("unknown", "unknown")
    limits = f"opsets {low} to {high}; IR version up to {versions['ir_version'] or 'unknown'}"
    yield Section(
        profile["name"],
        [
            f"{profile['name']}: {profile['knowledge']}",
            *([" ".join(profile["note"].split())] if profile["note"] else []),
            f"{limits} ({_origin(versions, profile)})",
            *(f"on {name}: {text}" for name, text in profile["processors"].items()),
        ],
    )
    for table, title in _TABLES.items():
        rows = [row for cell in profile[table] for row in _rows(cell, profile)]
        if rows:
            columns: Columns = [title.lower(), "source", "field", "value"]
            yield Section(title, tables=[Table(title, columns, rows)])
    sources = profile["sources"].items()
    source_rows: list[Row] = [
        [name, each["kind"], each["what"], each["date"]] for name, each in sources
    ]
    columns = ["source", "kind", "what", "date"]
    yield Section("Sources", tables=[Table("sources", columns, source_rows)])


def _rows(cell: Part, profile: Part) -> Iterator[Row]:
    """Yield a row for each field of a fact; the first one names the fact and its sources."""
    facts = [("", cell["text"])] if cell.get("text") else []
    facts += [
        (key.replace("_", " "), text)
        for key, value in cell.items()
        if key not in _NOT_SHOWN and not _is_empty(value) and (text := _shown(value))
    ]
    if cell.get("exists") == "yes":
        facts.append(("unknown", ", ".join(_unknown(cell))))
    label, origin = _label(cell), _origin(cell, profile)
    for key, text in facts or [("", NONE)]:
        yield [label, origin, key, text]
        label = origin = ""


def _label(cell: Part) -> str:
    names = cell.get("operators") or cell.get("names") or ()
    operators = ", ".join(names)
    name = cell.get("key") or cell.get("id") or ""
    return f"{name}: {operators}" if name and operators else name or operators or "any"


def _unknown(cell: Part, prefix: str = "") -> Iterator[str]:
    """Yield the names of the unknown conditions."""
    for key, value in cell.items():
        if value is None and key not in _WITHOUT_LIMIT:
            yield prefix + key
        elif isinstance(value, dict):
            yield from _unknown(value, f"{prefix}{key}.")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{key.replace('_', ' ')} {_shown(each)}"
            for key, each in value.items()
            if not (_is_empty(each) and (each != [] or key in _WITHOUT_LIMIT))
            and (key, each) not in (("constant", "any"), ("within", 0.0), ("gap", 0.0))
        )
    if isinstance(value, list):
        separator = "; " if value and isinstance(value[0], dict) else " "
        return separator.join(_shown(each) or "''" for each in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _is_empty(value: Any) -> bool:
    """Return whether to omit a field: a condition that is unknown, or that does not exist."""
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value is None or value is False or value in ("", {}, [])


def _origin(cell: Part, profile: Part) -> str:
    sources = profile["sources"]
    return ", ".join(f"{name} {sources[name]['date']}" for name in cell["source"])
