"""What convert, fold and transform have in common: they rewrite a file and show what was done."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from qgraph.exactness import Exactness, Method

if TYPE_CHECKING:
    from qgraph.report import Report, SiteReport
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


def run(talk: Talk, command: str, files: Rewrite, steps: Sequence[Transform]) -> None:
    """Apply passes to a model file and show what they did."""
    from qgraph.transforms import rewrite

    with ProgressBar(talk) as bar:
        report = rewrite(
            files.model,
            files.out,
            *steps,
            report=files.report,
            command=command,
            keep_inputs=files.keep_inputs,
            in_place=files.in_place,
            progress=bar.tell,
        )
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
    _show_summary(report, files)


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
        return [Cell(_short(site.op)), Cell(_became(site)), Cell(""), Cell(""), Cell("")]
    over = "its constant" if verdict.method is Method.CONSTANT else "every input"
    remarks = [verdict.reason or ""]
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
        Cell("; ".join(filter(None, remarks)), "" if verdict.differing_inputs else "dim"),
    ]


def _became(site: SiteReport) -> str:
    if site.spelling is None:
        return "as it was" if site.outcome == "kept" else "changed"
    parts = [_ABBREVIATIONS.get(part, part) for part in site.spelling.split("+")]
    if len(parts) > _PARTS:
        parts[_PARTS - 1 :] = [f"{len(parts) - _PARTS + 1} more"]
    return " + ".join(parts)
