"""What is shown of a proof: the verdict, then a table of the regions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qgraph.cli.output import (
    Cell,
    Column,
    Rows,
    Talk,
    count,
    number_text,
    show_paragraph,
    show_table,
)
from qgraph.exactness import Exactness, Method

if TYPE_CHECKING:
    from qgraph.certification.certificate import Certificate, Region
    from qgraph.outputs.outputs import Outputs

STATUS = {"proved": 0, "different": 1, "undecided": 4}
"""Exit status of each verdict."""

_STYLES = {"proved": "green", "different": "red", "undecided": "yellow"}

_ROWS = 24
"""Up to so many regions each have a row; of more, the proved ones are gathered, unless ``-v``."""

_NAMES = 3
"""So many regions are named where one thing is to be said of several."""

_COMPARED = {
    Method.CONSTANT: "its constant",
    Method.CONGRUENCE: "its form",
    Method.INTERVALS: "every input",
    Method.EXHAUSTIVE: "every input, one by one",
    Method.THRESHOLDS: "every threshold",
    Method.NONE: "",
}


def show_certificate(talk: Talk, found: Certificate) -> None:
    """Print the verdict and the regions."""
    for note in found.notes:
        talk.note(note)
    show_paragraph(_headline(found), f"bold {_STYLES[found.verdict]}")
    if talk.quiet:
        return
    others = [region for region in found.regions if region.verdict != "proved"]
    proved = [region for region in found.regions if region.verdict == "proved"]
    if others:
        _show_others(others)
    if proved and (talk.verbosity or len(found.regions) <= _ROWS):
        _show_each(proved)
    elif proved:
        _show_gathered(proved)
    for condition in found.conditions:
        talk.note(f"condition: {condition}")


def save_witness(talk: Talk, found: Certificate, path: Path, outputs: Outputs) -> None:
    """Write the input on which the outputs differ, if there is one."""
    import numpy as np

    from qgraph.files import replacing

    if not found.counterexample:
        if found.verdict == "different":
            talk.warn(
                "no input was found on which the outputs differ, and no witness was written; "
                "the regions above differ all the same"
            )
        return
    with replacing(path, outputs) as file:
        np.savez(file, **found.counterexample)
    show_paragraph(f"wrote {path}: an input on which the outputs differ")


def _headline(found: Certificate) -> str:
    from qgraph.certification.certificate import BIAS_LAST

    regions = count(len(found.regions), "region")
    if found.verdict == "proved":
        equality = "bit for bit" if found.exactness is Exactness.BITS else "in value"
        how = f"{regions} compared" if found.regions else "they have one form"
        only_if = f" if {BIAS_LAST}" if BIAS_LAST in found.conditions else ""
        return f"PROVED equal {equality} for every input{only_if}: {how}"
    number = sum(region.verdict == found.verdict for region in found.regions)
    if found.verdict == "different":
        return f"DIFFERENT in {number} of {regions}"
    return f"UNDECIDED in {number} of {regions}"


def _show_others(regions: Sequence[Region]) -> None:
    columns = [
        Column("reference", cut=True),
        Column("candidate", cut=True, spare=True),
        Column("verdict"),
        Column("inputs that differ", right=True),
        Column("steps", right=True, spare=True),
        Column("such as"),
    ]
    rows: Rows = [
        [
            _last(region.reference_nodes, region.reference_value),
            _last(region.candidate_nodes, region.candidate_value),
            Cell(str(region.verdict), _STYLES[region.verdict]),
            region.differing,
            number_text(region.largest_steps, 3) if region.largest_steps else "",
            _example(region),
        ]
        for region in regions
    ]
    show_table(columns, rows)
    reasons: dict[str, list[str]] = defaultdict(list)
    for region in regions:
        if region.reason:
            title = _last(region.reference_nodes, region.reference_value)
            reasons[region.reason].append(title)
    for reason, titles in reasons.items():
        named = titles if len(titles) <= _NAMES + 1 else titles[:_NAMES]
        more = f" and {len(titles) - len(named)} more" if len(named) < len(titles) else ""
        show_paragraph(f"{', '.join(named)}{more}: {reason}", indent=2)
    show_paragraph("")


def _example(region: Region) -> str:
    witness = region.witness
    if witness is None:
        return ""
    x, y, z = (number_text(n, 9) for n in (witness.input, witness.reference, witness.candidate))
    what = f"element {int(witness.input)}" if region.method is Method.CONSTANT else x
    place = f" in channel {region.witness_channel}" if region.channels > 1 else ""
    return f"{what}{place}: {y}, not {z}"


def _show_each(regions: Sequence[Region]) -> None:
    rows: Rows = [
        [
            _last(region.reference_nodes, region.reference_value),
            _last(region.candidate_nodes, region.candidate_value),
            *_row(region),
        ]
        for region in regions
    ]
    names = [Column("reference", cut=True), Column("candidate", cut=True)]
    show_table([*names, *_columns()], rows)


def _show_gathered(regions: Sequence[Region]) -> None:
    kinds = Counter(tuple(_row(region)) for region in regions)
    rows: Rows = [[str(number), *kind] for kind, number in kinds.most_common()]
    show_table([Column("regions", right=True), *_columns()], rows)


def _columns() -> list[Column]:
    return [Column("equality"), Column("compared on", spare=True), Column("remark", spare=True)]


def _row(region: Region) -> list[Cell]:
    remarks = [region.reason or ""]
    if region.zero_sign_inputs:
        remarks.append("the sign of zero is not kept")
    return [
        Cell(str(region.exactness), "green"),
        Cell(_COMPARED[region.method]),
        Cell("; ".join(filter(None, remarks)), "dim"),
    ]


def _last(nodes: Sequence[str], value: str) -> str:
    return nodes[-1] if nodes else value
