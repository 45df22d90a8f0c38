"""The view of one model: the documents of ``qgraph info`` and ``qgraph run`` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    refused: dict[tuple[str, str], list[str]] = {}
    for each in quantizers:
        if each["reason"]:
            what = "not converted" if each["format"] else "no quantizer"
            refused.setdefault((what, each["reason"]), []).append(each["node"])
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
    columns: Columns = [
        "change",
        *(Column(role, code=True) for role in ("reference", "candidate")),
        "differing",
    ]
    rows: list[Row] = [
        [
            change["kind"],
            *(NONE if change[role] is None else change[role]["name"] for role in _ROLES),
            ", ".join(change["differing"]),
        ]
        for change in document["quantizers"]
    ]
    text = [f"{number} {kind}" for kind, number in document["summary"].items()]
    yield Section("Quantizers", [", ".join(text)], tables=[Table("quantizers", columns, rows)])


_ROLES = ("reference", "candidate")


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
