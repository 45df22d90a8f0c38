"""What convert, fold and transform have in common: they rewrite a file and show what was done."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from qgraph.cli.losses import show_losses
from qgraph.cli.options import Rewrite
from qgraph.cli.output import (
    Cell,
    Column,
    Rows,
    Talk,
    bytes_text,
    count,
    number_text,
    show,
    show_paragraph,
    show_table,
)
from qgraph.cli.progress import ProgressBar
from qgraph.cli.targets import planned
from qgraph.cli.views import Views
from qgraph.exactness import Exactness, Method

if TYPE_CHECKING:
    from qgraph.report import Report, SiteReport
    from qgraph.tensors.ledger import Ledger
    from qgraph.transforms.base import Transform

# Passes multiply no matrices; the threads that NumPy starts for that cost a tenth of the time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_ROWS = 24
"""Up to so many sites each have a row; more are gathered, unless ``-v`` is given."""

_NAMES = 3
"""So many nodes are named where several were refused for one reason."""

_PARTS = 5
"""Spellings of more operators are cut short."""

_ABBREVIATIONS = {"QuantizeLinear": "Q", "DequantizeLinear": "DQ"}

_EQUAL = {
    Exactness.BITS: "all equal bit for bit",
    Exactness.VALUES: "all equal in value",
    Exactness.CODES: "all at least equal in codes, values by a few ulps apart",
    Exactness.NEAR: "all at least near, thresholds moved by ulps",
    Exactness.DIFFERENT: "not all equal",
}


def run(talk: Talk, command: str, files: Rewrite, steps: Sequence[Transform], views: Views) -> None:
    """Apply passes to a model file and show what they did."""
    from qgraph.transforms import rewrite

    views.check()
    with _report_file(files, views) as written, planned(views.paths) as outputs:
        with ProgressBar(talk) as bar:
            report = rewrite(
                files.model,
                files.out,
                *steps,
                report=written,
                command=command,
                keep_inputs=files.keep_inputs,
                in_place=files.in_place,
                prove=files.prove,
                external_data=True if files.size_threshold is not None else None,
                shard_bytes=files.shard_bytes,
                safetensors=files.safetensors,
                size_threshold=files.size_threshold,
                progress=bar.tell_bytes,
                outputs=outputs,
            )
            if views.are_wanted and written is not None:
                bar.tell("drawing", 0, 0)
                document = json.loads(outputs.written(written).read_text("utf-8"))
                views.write(document, (files.model, outputs.written(files.out)), outputs)
        _show(talk, command, files, report)


def _show(talk: Talk, command: str, files: Rewrite, report: Report) -> None:
    if report.frozen_inputs:
        frozen = count(report.frozen_inputs, "initializer")
        talk.note(f"froze {frozen} that could be fed as inputs too; --keep-inputs leaves them")
    for note in report.notes:
        talk.note(note)
    done = [site for site in report if site.outcome != "refused"]
    refused = [site for site in report if site.outcome == "refused"]
    if talk.quiet:
        if refused:
            talk.warn(f"{count(len(refused), 'quantizer')} left as they were; the report says why")
        return
    if done and (talk.verbosity or len(report.sites) <= _ROWS):
        _show_each(done)
    elif done:
        _show_gathered(done)
    _show_refused(refused, every=talk.verbosity > 0)
    if command == "fold" or talk.verbosity:
        _show_stored(done, report, every=talk.verbosity > 0)
    show_losses(done, every=talk.verbosity > 0)
    _show_summary(report, files)
    if files.prove:
        show_paragraph("proved equal for every input", "green")


@contextmanager
def _report_file(files: Rewrite, views: Views) -> Iterator[Path | None]:
    """Give the file of the JSON report: that of the user, or one for the views alone."""
    if files.report is not None or not views.are_wanted:
        yield files.report
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "report.json")


def _show_each(sites: Sequence[SiteReport]) -> None:
    rows: Rows = [[site.node, *_row(site)] for site in sites]
    show_table([Column("node", cut=True), *_columns(sites)], rows)


def _show_gathered(sites: Sequence[SiteReport]) -> None:
    kinds = Counter(tuple(_row(site)) for site in sites)
    rows: Rows = [[str(number), *kind] for kind, number in kinds.most_common()]
    show_table([Column("sites", right=True), *_columns(sites)], rows)


def _columns(sites: Sequence[SiteReport]) -> list[Column]:
    # What is to be said of equal values is less important than how far others are apart.
    equal = all(s.verdict is None or s.verdict.reaches(Exactness.VALUES) for s in sites)
    return [
        Column("operator"),
        Column("became"),
        Column("equality"),
        Column("compared on", spare=True),
        Column("remark", spare=equal),
    ]


def _show_refused(sites: Sequence[SiteReport], *, every: bool) -> None:
    if not sites:
        return
    show("\nleft as they were:")
    reasons: dict[str, list[str]] = defaultdict(list)
    for site in sites:
        reason = site.reason or "no reason is known"
        title = f"{_short(site.op)} {site.node!r}"
        head = reason.partition(":")[0]
        # A message that names the node already needs no heading.
        own = head.startswith(_short(site.op)) and repr(site.node) in head
        reasons["" if own else reason].append(reason if own else title)
    for reason, titles in reasons.items():
        if not reason:
            for title in titles if every else titles[:_ROWS]:
                show_paragraph(title, indent=2)
            _show_more(0 if every else len(titles) - _ROWS)
            continue
        named = titles if every or len(titles) <= _NAMES + 1 else titles[:_NAMES]
        more = f" and {len(titles) - len(named)} more" if len(named) < len(titles) else ""
        show_paragraph(f"{', '.join(named)}{more}: {reason}", indent=2)


def _show_more(number: int) -> None:
    if number > 0:
        show(f"  and {number} more; -v shows all")


def _show_stored(sites: Sequence[SiteReport], report: Report, *, every: bool) -> None:
    """Show what became of the bytes of weights that are stored as codes."""
    rows = [site.ledger for site in sites if site.ledger is not None]
    if not rows:
        return
    if every or len(rows) <= _ROWS:
        columns = [Column("weight", cut=True), Column("stored as", spare=True)]
        columns += [Column(name, right=True) for name in ("before", "after")]
        columns += [Column(name, right=True, spare=True) for name in ("codes used", "clipped")]
        columns += [Column("scale", spare=True), Column("values")]
        show()
        show_table(columns, [_stored_row(row) for row in rows])
    totals = report.stored()
    changed = totals["elements"] - totals["unchanged"]
    state = f"{changed} changed" if changed else "all unchanged"
    share = totals["clipped"] / totals["elements"] if totals["elements"] else 0.0
    before, after = bytes_text(totals["bytes_before"]), bytes_text(totals["bytes_after"])
    show()
    show_paragraph(
        f"{count(len(rows), 'weight')} as codes, {before} -> {after}; of {totals['elements']} "
        f"values, each checked, {state}; {share:.2%} were beyond the range of the codes"
    )


def _stored_row(row: Ledger) -> list[Cell | str]:
    tally = row.tally
    low, high = number_text(row.scale_low), number_text(row.scale_high)
    used, clipped, values = "", "", Cell("")
    if tally is not None:
        if tally.used.size:
            used = f"{int(tally.used.sum())} of {row.codes_available}"
        clipped = f"{tally.clipped / max(tally.elements, 1):.2%}"
        changed = tally.elements - tally.unchanged
        values = Cell(f"{changed} changed", "yellow") if changed else Cell("unchanged", "green")
    return [
        row.tensor,
        row.type,
        bytes_text(row.bytes_before),
        bytes_text(row.bytes_after),
        used,
        clipped,
        low if low == high else f"{low} .. {high}",
        values,
    ]


def _show_summary(report: Report, files: Rewrite) -> None:
    sites = Counter(str(site.outcome) for site in report)
    if not sites:
        verdict = Cell("no site was changed: there is nothing that this pass treats", "yellow")
    elif not sites["changed"]:
        verdict = Cell("nothing was changed", "yellow")
    else:
        style = "green" if report.exactness >= Exactness.VALUES else "yellow"
        verdict = Cell(f"{sites['changed']} changed, {_EQUAL[report.exactness]}", style)
    if report.sites:
        show()
    others = [f"{sites[name]} {name}" for name in ("kept", "refused") if sites[name]]
    show_paragraph("; ".join([verdict.text, *others]), verdict.style)
    before, after = report.weight_bytes_before, report.weight_bytes_after
    factor = f", {before / after:.1f} times smaller" if after and before > 1.05 * after else ""
    weights = f"weights {bytes_text(before)} -> {bytes_text(after)}{factor}"
    show_paragraph(f"{weights}; wrote {files.out}")


def _short(op: str) -> str:
    return op.rpartition("::")[2]


def _row(site: SiteReport) -> list[Cell]:
    verdict = site.verdict
    if verdict is None or verdict.rung is None:
        remark = Cell(site.reason or "", "dim")
        return [Cell(_short(site.op)), Cell(_became(site)), Cell(""), Cell(""), remark]
    over = "its constant" if verdict.method is Method.CONSTANT else "every input"
    remarks = list(dict.fromkeys(filter(None, (site.reason, verdict.reason))))
    if verdict.differing_inputs:
        remarks.insert(0, f"{count(verdict.differing_inputs, 'input')} not equal")
        if witness := verdict.witness:
            x, y, z = (
                number_text(n, 9) for n in (witness.input, witness.reference, witness.candidate)
            )
            remarks[0] += f", such as {x}: {z}, not {y}"
    return [
        Cell(_short(site.op)),
        Cell(_became(site)),
        Cell(str(verdict.rung), "green" if verdict.rung >= Exactness.VALUES else "yellow"),
        Cell(over),
        Cell("; ".join(remarks), "" if verdict.differing_inputs else "dim"),
    ]


def _became(site: SiteReport) -> str:
    if site.spelling is None:
        return "as it was" if site.outcome == "kept" else "changed"
    parts = [_ABBREVIATIONS.get(part, part) for part in site.spelling.split("+")]
    if len(parts) > _PARTS:
        parts[_PARTS - 1 :] = [f"{len(parts) - _PARTS + 1} more"]
    return " + ".join(parts)
