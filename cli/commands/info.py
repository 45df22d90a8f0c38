"""``qgraph info``: what a model contains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qgraph.cli import options
from qgraph.cli.output import Talk, show, show_paragraph, show_table
from qgraph.reporting.view import (
    NONE,
    Cell,
    Column,
    Columns,
    Row,
    Table,
    Tone,
    counted,
    extent,
    numbers,
    operator,
    size,
)

if TYPE_CHECKING:
    from qgraph.inventory.overview import Overview, QuantizerInfo, ValueInfo
    from qgraph.targets.rules import Reason


@click.command(name="info")
@options.model_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.talk_options
@click.pass_obj
def command(talk: Talk, model: Path, as_json: bool) -> None:
    """Show what MODEL contains, and which runtimes can load it.

    The last table follows from the known rules of each runtime; the model is not run. "yes" means
    that no known rule of the runtime rejects the model. -v prints all remarks.
    """
    from qgraph.inventory.overview import overview
    from qgraph.model import load
    from qgraph.text import json_text

    found = overview(load(model).ir)
    if as_json:
        show(json_text({"path": str(model), **found.to_json()}).rstrip())
        return
    _show_head(model, found)
    _show_quantizers(found)
    if found.unsupported:
        kinds = ", ".join(f"{op} ({number})" for op, number in found.unsupported.items())
        show_paragraph(f"operators that no installed backend can run: {kinds}", Tone.OPEN)
    _show_runtimes(talk, found)


def _show_head(model: Path, found: Overview) -> None:
    show_paragraph(str(model), is_bold=True)
    opsets = ", ".join(f"{domain or 'ai.onnx'} {n}" for domain, n in found.opsets.items())
    constants = counted(found.overridable, "initializer")
    facts = {
        "dialects": ", ".join(f"{name} ({n})" for name, n in found.dialects.items()) or "none",
        "opsets": f"{opsets}; IR version {found.ir_version}",
        "producer": found.producer,
        "inputs": ", ".join(map(_value_text, found.inputs)),
        "outputs": ", ".join(map(_value_text, found.outputs)),
        "nodes": str(found.nodes),
        "weights": _weights_text(found),
        "also inputs": f"{constants}, treated as constants" if found.overridable else "",
    }
    for name, text in facts.items():
        if text:
            show_paragraph(f"  {name:<12} {text}")


def _weights_text(found: Overview) -> str:
    stored, packed = size(found.weight_bytes), size(found.packed_bytes)
    if found.packed_bytes >= found.weight_bytes:
        return stored
    return f"{stored} as stored, {packed} with packed codes"


def _value_text(value: ValueInfo) -> str:
    dims = (
        "?" if value.shape is None else ",".join("?" if d is None else str(d) for d in value.shape)
    )
    return f"{value.name} {(value.dtype or 'unknown').lower()}[{dims}]"


def _show_quantizers(found: Overview) -> None:
    if not found.quantizers:
        show("no quantizers")
        return
    columns: Columns = [
        *(Column("quantizer", code=True), "operator", "of", "format"),
        *numbers("packed", spare=True),
        *numbers("scale"),
        *numbers("zero point", spare=True),
        *(Column("one scale", spare=True), Column("rounding", spare=True)),
    ]
    if rows := [_row(each) for each in found.quantizers if each.reason is None]:
        show()
        show_table(Table("quantizers", columns, rows))
    for quantizer in found.quantizers:
        if quantizer.reason is not None:
            show_paragraph(f"not readable: {quantizer.reason}", Tone.OPEN)


def _show_runtimes(talk: Talk, found: Overview) -> None:
    tones = {"yes": Tone.GOOD, "no": Tone.BAD, "unknown": Tone.OPEN}
    rows: list[Row] = []
    for verdict in found.runtimes:
        reasons = verdict.reasons
        if not talk.verbosity:
            reasons = [reason for reason in reasons if reason.loads is verdict.loads]
        texts = [_reason_text(reason) for reason in reasons] or [""]
        loads = Cell(verdict.loads, tones[verdict.loads])
        rows.append([verdict.runtime, loads, texts[0], verdict.knowledge])
        rows += [["", "", text, ""] for text in texts[1:]]
    show()
    columns: Columns = ["runtime", "loads", "because", Column("known of", spare=True)]
    show_table(Table("runtimes", columns, rows))


def _reason_text(reason: Reason) -> str:
    return reason.text + (f" ({counted(reason.nodes, 'node')})" if reason.nodes else "")


def _row(quantizer: QuantizerInfo) -> Row:
    parameters = quantizer.scale, quantizer.zero_point
    return [
        quantizer.node,
        operator(quantizer.op),
        "weight" if quantizer.weight else "data",
        quantizer.format or NONE,
        NONE if quantizer.packed_bytes is None else size(quantizer.packed_bytes),
        *(NONE if ends is None else extent(*ends) for ends in parameters),
        quantizer.granularity or NONE,
        quantizer.rounding or NONE,
    ]
