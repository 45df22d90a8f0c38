"""``qgraph info``: what a model contains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qgraph.cli import options
from qgraph.cli.output import (
    Cell,
    Column,
    bytes_text,
    count,
    number_text,
    show,
    show_paragraph,
    show_table,
)

if TYPE_CHECKING:
    from qgraph.overview import Overview, QuantizerInfo, ValueInfo


@click.command(name="info")
@options.model_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.talk_options
def command(model: Path, as_json: bool) -> None:
    """Show the quantizers, versions and sizes of MODEL."""
    from qgraph.files import json_text
    from qgraph.overview import overview

    found = overview(model)
    if as_json:
        show(json_text({"path": str(model), **found.to_json()}).rstrip())
        return
    _show_head(model, found)
    _show_quantizers(found)
    if found.unsupported:
        kinds = ", ".join(f"{op} ({number})" for op, number in found.unsupported.items())
        show_paragraph(f"operators that nothing here can run: {kinds}", "yellow")


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
        "weights": bytes_text(found.weight_bytes),
        "also inputs": f"{constants}, taken for constant" if found.overridable else "",
    }
    for name, text in facts.items():
        if text:
            show_paragraph(f"{name:<12} {text}", indent=2)


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


def _row(quantizer: QuantizerInfo) -> list[Cell | str]:
    return [
        quantizer.node,
        quantizer.op.rpartition("::")[2],
        "weight" if quantizer.weight else "data",
        quantizer.format or "-",
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
