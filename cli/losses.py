"""Showing how far codes are from the weights that they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    from qgraph.report import SiteReport

_ROWS = 24
"""Up to so many weights each have a row."""


def show_losses(sites: Sequence[SiteReport], *, every: bool) -> None:
    """Show the error of each quantized weight, or of many the best and the worst.

    Args:
        sites: entries of a report; those without such an error are passed over.
        every: show each weight, however many there are.
    """
    lossy = [site for site in sites if "sqnr_db" in site.figures]
    if not lossy:
        return
    show()
    if every or len(lossy) <= _ROWS:
        columns = [Column("weight", cut=True), Column("stored as", spare=True)]
        columns += [Column(name, right=True, spare=True) for name in ("before", "after")]
        columns += [Column("SQNR", right=True), Column("largest error", right=True)]
        columns += [Column("in steps", right=True, spare=True), Column("clipped", right=True)]
        show_table(columns, [_row(site) for site in lossy])
        return
    levels = sorted(float(site.figures["sqnr_db"]) for site in lossy)
    worst = min(lossy, key=lambda site: float(site.figures["sqnr_db"]))
    show_paragraph(
        f"{count(len(lossy), 'weight')} quantized, SQNR {levels[0]:.1f} .. {levels[-1]:.1f} dB, "
        f"the worst is {worst.figures['weight']!r} of {worst.node!r}; -v shows all"
    )


def _row(site: SiteReport) -> list[Cell | str]:
    figures = site.figures
    block = figures["block_size"]
    return [
        str(figures["weight"]),
        f"{figures['type']}{f', blocks of {block}' if block else ''}",
        bytes_text(int(figures["weight_bytes_before"])),
        bytes_text(int(figures["weight_bytes_after"])),
        f"{figures['sqnr_db']:.1f} dB",
        number_text(float(figures["max_abs_error"]), 3),
        f"{figures['max_error_steps']:.2f}",
        str(figures["clipped"]),
    ]
