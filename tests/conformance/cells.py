"""What becomes of a quantizer in each dialect: converted, run, compared with what it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qgraph.errors import QGraphError
from qgraph.model import Model
from qgraph.reports import SiteReport, SiteStatus
from qgraph.transforms.convert import ConvertDialect
from tests.conformance.quantizers import OPSET, Array, Quantizer, Row, build

DIALECTS = ("qonnx", "openvino", "qdq", "onnx")

ABBREVIATIONS = {"QuantizeLinear": "Q", "DequantizeLinear": "DQ"}

_TOGETHER = 64
"""Quantizers converted in one model: their proofs share work."""


@dataclass(frozen=True)
class Cell:
    """What became of one quantizer in one dialect.

    Attributes:
        outcome: kept, the spelling that was written, refused, or what is wrong.
        level: how equal it is; empty where nothing was written.
        reason: of a refusal or a fault.
    """

    outcome: str
    level: str = ""
    reason: str = ""

    @property
    def converted(self) -> bool:
        """Whether the quantizer is in the dialect now."""
        return self.outcome not in ("refused", "fails", "wrong", "not read")


def cells(quantizers: Iterable[Quantizer], to: str) -> Iterator[tuple[Row, Cell]]:
    """Yield for each quantizer its cell in the column ``to``."""
    given = list(quantizers)
    for start in range(0, len(given), _TOGETHER):
        group = given[start : start + _TOGETHER]
        yield from zip((quantizer.row for quantizer in group), _cells(group, to), strict=True)


def _cells(group: Sequence[Quantizer], to: str) -> list[Cell]:
    model = build(group)
    converted = model.clone()
    try:
        report = converted.apply(ConvertDialect(to=to, opset=OPSET))
    except QGraphError as error:
        if len(group) > 1:  # one of them must not hide what becomes of the others
            return [cell for quantizer in group for cell in _cells([quantizer], to)]
        return [Cell("fails", reason=f"{type(error).__name__}: {error}")]
    entries: dict[int, list[SiteReport]] = defaultdict(list)
    for entry in report:
        entries[int(entry.node[1:].partition("_")[0])].append(entry)
    found = [_cell(entries[number]) for number in range(len(group))]
    wrong = differences(model, converted, group)
    return [
        Cell("wrong", reason=wrong[number]) if number in wrong else cell
        for number, cell in enumerate(found)
    ]


def _cell(entries: Sequence[SiteReport]) -> Cell:
    if not entries:
        return Cell("not read")
    for entry in entries:
        if entry.outcome is SiteStatus.REFUSED:
            return Cell("refused", reason=entry.to_json()["reason"] or "no reason is given")
    if all(entry.outcome is SiteStatus.KEPT for entry in entries):
        return Cell("kept")
    spelling = " and ".join(short(entry.spelling or "kept") for entry in entries)
    levels = [
        entry.verdict.exactness for entry in entries if entry.verdict and entry.verdict.exactness
    ]
    return Cell(spelling, str(min(levels)))


def short(spelling: str) -> str:
    """Return a spelling with QuantizeLinear and DequantizeLinear as Q and DQ."""
    return "+".join(ABBREVIATIONS.get(name, name) for name in spelling.split("+")) or "values"


def differences(
    original: Model, converted: Model, quantizers: Sequence[Quantizer]
) -> dict[int, str]:
    """Return, by number, the quantizers whose outputs differ in the NumPy executor, and where."""
    feeds = {f"x{n}": q.x for n, q in enumerate(quantizers) if q.row.data == "input"}
    with np.errstate(all="ignore"):
        expected = original.run(feeds, backend="numpy")
        found = converted.run(feeds, backend="numpy")
    wrong = {}
    for number, quantizer in enumerate(quantizers):
        want, have = expected[f"y{number}"], found[f"y{number}"]
        if not np.array_equal(want, have, equal_nan=True):
            wrong[number] = _first_difference(quantizer.x, want, have)
    return wrong


def _first_difference(x: Array, want: Array, have: Array) -> str:
    if want.shape != have.shape:
        return f"shape {list(want.shape)} became {list(have.shape)}"
    different = ~((want == have) | (np.isnan(want) & np.isnan(have)))
    place = tuple(np.argwhere(different)[0])
    return (
        f"{int(different.sum())} inputs, such as {float(x[place])!r}: "
        f"{float(want[place])!r} became {float(have[place])!r}"
    )
