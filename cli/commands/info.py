"""``qgraph info``: what a model contains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qgraph.cli import options
from qgraph.cli.output import (
    Cell,
    Column,
    Talk,
    bytes_text,
    count,
    number_text,
    show,
    show_paragraph,
    show_table,
)

if TYPE_CHECKING:
    from qgraph.inventory.overview import Overview, QuantizerInfo, ValueInfo
    from qgraph.runtimes.support import Reason


@click.command(name="info")
@options.model_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.talk_options
@click.pass_obj
def command(talk: Talk, model: Path, as_json: bool) -> None:
    """Show what MODEL contains, and which runtimes can load it.

    Nothing is run: the last table follows from what is known of each runtime. "yes" means that
    nothing is known against it. -v shows all remarks, also on runtimes that cannot load it.
    """
    from qgraph.files import json_text
    from qgraph.inventory.overview import overview

    found = overview(model)
    if as_json:
        show(json_text({"path": str(model), **found.to_json()}).rstrip())
        return
    _show_head(model, found)
    _show_quantizers(found)
    if found.unsupported:
        kinds = ", ".join(f"{op} ({number})" for op, number in found.unsupported.items())
        show_paragraph(f"operators that nothing here can run: {kinds}", "yellow")
    _show_runtimes(talk, found)


def _show_head(model: Path, found: Overview) -> None:
    show_paragraph(str(model), "bold")
    opsets = ", ".join(f"{domain or 'ai.onnx'} {n}" for domain, n in found.opsets.items())
    constants = count(found.overridable, "initializer")
    facts = {
        "dialects": ", ".join(f"{name} ({n})" for name, n in found.dialects.items()) or "none",
        "opsets": f"{opsets}; IR version {found.ir_version}",
        "producer": found.producer,
        "inputs": ", ".join(map(_value_text, found.inputs)),
        "outputs": ", ".join(map(_value_text, found.outputs)),
        "nodes": str(found.nodes),
        "weights": _weights_text(found),
        "also inputs": f"{constants}, taken for constant" if found.overridable else "",
    }
    for name, text in facts.items():
        if text:
            show_paragraph(f"{name:<12} {text}", indent=2)


def _weights_text(found: Overview) -> str:
    stored, packed = bytes_text(found.weight_bytes), bytes_text(found.packed_bytes)
    if found.packed_bytes >= found.weight_bytes:
        return stored
    return f"{stored} as stored, {packed} with packed codes"


def _value_text(value: ValueInfo) -> str:
    dims = (
        "?" if value.shape is None else ",".join("?" if d is None else str(d) for d in value.shape)
    )
    return f"{value.name} {(value.dtype or 'unknown').lower()}[{dims}]"


def _show_quantizers(found: Overview) -> None:
    readable = [quantizer for quantizer in found.quantizers if quantizer.reason is None]
    if not found.quantizers:
        show("no quantizers")
        return
    if readable:
        columns = [
            Column("quantizer", cut=True),
            Column("operator"),
            Column("of"),
            Column("format"),
            Column("packed", right=True, spare=True),
            Column("scale", right=True),
            Column("zero point", right=True, spare=True),
            Column("one scale", spare=True),
            Column("rounding", spare=True),
        ]
        show()
        show_table(columns, [_row(quantizer) for quantizer in readable])
    for quantizer in found.quantizers:
        if quantizer.reason is not None:
            show_paragraph(f"not readable: {quantizer.reason}", "yellow")


def _show_runtimes(talk: Talk, found: Overview) -> None:
    styles = {"yes": "green", "no": "red", "unknown": "yellow"}
    columns = [
        Column("runtime"),
        Column("loads"),
        Column("because"),
        Column("known of", spare=True),
    ]
    rows: list[list[Cell | str]] = []
    for verdict in found.runtimes:
        loads = Cell(verdict.loads, styles[verdict.loads])
        reasons = verdict.reasons
        if not talk.verbosity:
            reasons = [reason for reason in reasons if reason.loads is verdict.loads]
        texts = [_reason_text(reason) for reason in reasons] or [""]
        rows.append([verdict.runtime, loads, texts[0], verdict.knowledge])
        rows += [["", "", text, ""] for text in texts[1:]]
    show()
    show_table(columns, rows)


def _reason_text(reason: Reason) -> str:
    where = f" ({count(reason.nodes, 'node')})" if reason.nodes else ""
    return reason.text + where


def _row(quantizer: QuantizerInfo) -> list[Cell | str]:
    return [
        quantizer.node,
        quantizer.op.rpartition("::")[2],
        "weight" if quantizer.weight else "data",
        quantizer.format or "-",
        "" if quantizer.packed_bytes is None else bytes_text(quantizer.packed_bytes),
        _range_text(quantizer.scale),
        _range_text(quantizer.zero_point),
        quantizer.granularity or "-",
        quantizer.rounding or "-",
    ]


def _range_text(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return "-"
    low, high = (number_text(end, 4) for end in ends)
    return low if low == high else f"{low} .. {high}"
