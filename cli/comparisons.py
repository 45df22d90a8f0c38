"""What is shown of a comparison of two models on inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qgraph.cli.output import (
    Cell,
    Column,
    Rows,
    Talk,
    number_text,
    percent_text,
    show,
    show_paragraph,
    show_table,
)

if TYPE_CHECKING:
    from qgraph.equivalence.report import CheckReport
    from qgraph.equivalence.runtime_report import RuntimeReport

_STANDARD = ", standard form"
_RANKED = 5
"""So many tensors are shown; all that differ with ``-v``."""


def show_check(talk: Talk, found: CheckReport) -> None:
    """Print the outputs, where they begin to differ, what else was measured, and the verdict."""
    _show_outputs(found)
    for name, reason in found.failed.items():
        show_paragraph(f"{name}: {reason}", "red")
    first = found.first_divergence
    if first is not None:
        by = "" if first.max_abs is None else f" by up to {number_text(first.max_abs)}"
        show_paragraph(
            f"the first tensor that differs{found.shown_batch} is {first.reference!r}{by}, which "
            f"{first.op} {first.node!r} produces in the reference{first.counterpart}"
        )
    if not talk.quiet:
        _show_ranking(found, None if talk.verbosity else _RANKED)
    if found.metric is not None:
        metric = found.metric
        show_paragraph(
            f"{metric.name} on {metric.samples} samples: {number_text(metric.reference)} in the "
            f"reference, {number_text(metric.candidate)} in the candidate"
        )
        if metric.failed is not None:
            show_paragraph(metric.failed, "red")
    if found.probes:
        show_paragraph(found.probe_summary())
        if talk.verbosity:
            _show_probes(found)
    if found.runtimes is not None:
        _show_runtimes(talk, found.runtimes)
    if found.verdict != "equal":
        show_paragraph("different", "bold red")
    elif all(output.equal for output in found.outputs):
        show_paragraph("equal: every value is the same", "bold green")
    else:
        show_paragraph("equal within the tolerance", "bold green")


def _show_outputs(found: CheckReport) -> None:
    columns = [
        Column("output", cut=True),
        Column("values", right=True),
        Column("differ", right=True),
        Column("max abs", right=True),
        Column("mean abs", right=True, spare=True),
        Column("max ulp", right=True, spare=True),
        Column("max steps", right=True),
        Column("SQNR dB", right=True),
        Column("cosine", right=True, spare=True),
        Column("top-1", right=True, spare=True),
    ]
    rows: list[list[Cell | str]] = []
    for output in found.outputs:
        style = "red" if output.name in found.failed else "green" if output.equal else "yellow"
        rows.append(
            [
                Cell(output.name, style),
                str(output.elements),
                str(output.mismatches),
                number_text(output.max_abs),
                number_text(output.mean_abs, 3),
                str(output.max_ulp),
                number_text(output.max_steps),
                number_text(output.sqnr_db),
                number_text(output.cosine),
                "" if output.top1 is None else percent_text(output.top1),
            ]
        )
    show_table(columns, rows)


def _show_ranking(found: CheckReport, most: int | None) -> None:
    ranked = found.ranked
    hidden = bool(ranked) and found.first_divergence is None
    if len(ranked) < 2 and not hidden:
        return
    columns = [
        Column("tensor", cut=True),
        Column("made by"),
        Column("differ", right=True),
        Column("max abs", right=True),
        Column("relative error", right=True),
    ]
    rows: Rows = [
        [
            tensor.reference,
            tensor.op,
            f"{tensor.compared.mismatches}/{tensor.compared.elements}",
            number_text(tensor.max_abs),
            number_text(tensor.error, 3),
        ]
        for tensor in ranked[:most]
    ]
    told = ", though no output does" if hidden else ""
    differ = f"{len(ranked)} of {len(found.tensors)} tensors differ{found.shown_batch}"
    show(f"\n{differ}{told}, by relative error:")
    show_table(columns, rows)
    show()


def _show_probes(found: CheckReport) -> None:
    columns = [
        Column("quantizer", cut=True),
        Column("aimed at", right=True),
        Column("crossed", right=True),
        Column("reached", right=True),
        Column("gap in steps", right=True),
        Column("remark"),
    ]
    rows: Rows = [
        [
            probe.node,
            str(probe.targets),
            str(probe.crossed),
            str(probe.reached),
            number_text(probe.largest_gap, 3),
            probe.reason or "",
        ]
        for probe in found.probes
    ]
    show_table(columns, rows)


def _show_runtimes(talk: Talk, found: RuntimeReport) -> None:
    show_paragraph(found.sentence, "bold")
    for name in found.missing:
        talk.note(f"{name} is not installed, it was left out")
    if not talk.verbosity:
        return
    columns = [
        Column("runtime"),
        Column("error", right=True),
        Column("because of"),
        Column("stopped by", cut=True),
    ]
    rows: Rows = [
        [
            f"{result.runtime} {result.told}{_STANDARD if result.refused else ''}",
            number_text(result.error, 3),
            result.failure or "; ".join(culprit.what for culprit in result.culprits),
            "; ".join(culprit.option or "-" for culprit in result.culprits),
        ]
        for result in found.results
    ]
    show_table(columns, rows)
