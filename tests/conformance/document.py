"""The conformance table as a document: rows with equal cells gathered into lines."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from tests.conformance.cells import DIALECTS, Cell
from tests.conformance.quantizers import Row

Table = Mapping[Row, Mapping[str, Cell]]

DIMENSIONS = tuple(field.name for field in fields(Row))[1:]
"""What tells the rows of one operator apart."""

_GROWTH = ("width", "kind", "rounding", "zero", "granularity", "data")
"""The order in which a line takes in more rows."""

HEAD = """# Conformance

Conversions between dialects, and the level of equality of each. `python -m tests.conformance` writes
this page. For every row it converts a small model with `--opset 28`, and runs the model in the NumPy
executor before and after. The inputs are the thresholds, two floats on either side of each threshold,
both zeros, subnormals, huge values and infinities. The table has {rows} rows and {cells} cells. {equal}
cells reach {level} or better, {refused} are refused with a reason.

A cell names the new operators in order, and the level of equality:

* `bits`: the same bit patterns for every float32 input, NaN and the sign of zero included;
* `values`: equal for every input that is not NaN, where -0 equals +0;
* `kept`: the quantizer is already in this dialect.

`Q` is QuantizeLinear, `DQ` is DequantizeLinear. *Data* is `input`, compared for any float32 value, or
`weight`, compared for the values that occur. *Granularity* is `tensor` (one scale), `axis` (one scale
per index of an axis), `block` (one scale per block) or `free` (scales vary along several axes). *Kind*
and *width* are the sign and the bits of the codes, the number format, or the levels of a FakeQuantize.
Zero points are 0, even, odd or fractional. Those other than 0 are far from it, because a zero point
moves ties. A line with several values in a column stands for all their combinations that exist.
"""  # noqa: E501 - lines of the page

_REFUSALS = """## Refusals

Quantizers that a dialect cannot express. They stay unchanged, with this reason.
"""


@dataclass(frozen=True)
class Line:
    """Rows with equal cells: all that exist in a product of values.

    Attributes:
        values: for each dimension the values, in the order in which they first occur.
        cells: what is in their cells.
    """

    values: Mapping[str, tuple[object, ...]]
    cells: tuple[str, ...]


def lines(table: Mapping[Row, tuple[str, ...]]) -> list[Line]:
    """Gather the rows of one operator; each is in one line at least, and lines hold no others."""
    rows = list(table)
    known = {name: list(dict.fromkeys(getattr(row, name) for row in rows)) for name in DIMENSIONS}
    codes = {
        name: np.array([known[name].index(getattr(row, name)) for row in rows])
        for name in DIMENSIONS
    }
    kinds = list(dict.fromkeys(table.values()))
    kind = np.array([kinds.index(cells) for cells in table.values()])
    open_rows = np.ones(len(rows), bool)
    found = []
    while open_rows.any():
        first = int(np.argmax(open_rows))
        box = {name: {int(codes[name][first])} for name in DIMENSIONS}
        inside = {name: codes[name] == codes[name][first] for name in DIMENSIONS}
        _grow(box, inside, codes, kind == kind[first])
        open_rows &= ~np.logical_and.reduce(list(inside.values()))
        values = {name: tuple(known[name][code] for code in sorted(box[name])) for name in box}
        found.append(Line(values, kinds[kind[first]]))
    return found


def _grow(
    box: dict[str, set[int]],
    inside: dict[str, np.ndarray],
    codes: Mapping[str, np.ndarray],
    same: np.ndarray,
) -> None:
    """Take in value after value as long as all rows inside are the ``same``."""
    grown = True
    while grown:
        grown = False
        for name in _GROWTH:
            others = np.logical_and.reduce([inside[other] for other in inside if other != name])
            for code in np.unique(codes[name][others]).tolist():
                if code not in box[name] and same[others & (codes[name] == code)].all():
                    box[name].add(code)
                    inside[name] = inside[name] | (codes[name] == code)
                    grown = True


def text_of(cell: Cell) -> str:
    """Return what the table shows for a cell."""
    if cell.level:
        return f"{cell.outcome} `{cell.level}`"
    return cell.outcome


def document(table: Table) -> str:
    """Return the whole document in Markdown."""
    cells = [cell for row in table.values() for cell in row.values()]
    refused = sum(cell.outcome == "refused" for cell in cells)
    equal = sum(cell.converted for cell in cells)
    head = HEAD.format(
        rows=len(table), cells=len(cells), equal=equal, level="`values`", refused=refused
    )
    operators: dict[str, dict[Row, Mapping[str, Cell]]] = defaultdict(dict)
    for row, columns in table.items():
        operators[row.operator][row] = columns
    parts = [head, _overview(operators)]
    parts += [section(operator, rows) for operator, rows in operators.items()]
    parts.append(_refusals(table))
    return "\n".join(parts)


def _overview(operators: Mapping[str, Mapping[Row, Mapping[str, Cell]]]) -> str:
    body = []
    for operator, rows in operators.items():
        counts = [_counts([columns[to] for columns in rows.values()]) for to in DIALECTS]
        body.append([f"[{operator}](#{_anchor(operator)})", str(len(rows)), *counts])
    return "## Overview\n\n" + _markdown(["operator", "rows", *DIALECTS], body)


def _counts(cells: Sequence[Cell]) -> str:
    counts = Counter(cell.level or cell.outcome for cell in cells)
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))


def _anchor(operator: str) -> str:
    return "".join(c for c in operator.lower().replace(" ", "-") if c.isalnum() or c == "-")


def section(operator: str, rows: Table) -> str:
    """Return the section of one operator."""
    shown = {row: tuple(text_of(columns[to]) for to in DIALECTS) for row, columns in rows.items()}
    known = {name: {getattr(row, name) for row in rows} for name in DIMENSIONS}
    telling = [name for name in DIMENSIONS if len(known[name]) > 1]
    body = [
        [*(_values(line.values[name], len(known[name])) for name in telling), *line.cells]
        for line in lines(shown)
    ]
    titles = ["zero point" if name == "zero" else name for name in telling]
    return f"## {operator}\n\n" + _markdown([*titles, *DIALECTS], body)


def _values(values: Sequence[object], known: int) -> str:
    """Return values of one dimension, runs of widths as ranges."""
    if len(values) == known:
        return "any"
    if not all(isinstance(value, int) for value in values):
        return ", ".join(str(value) for value in values)
    numbers = [int(str(value)) for value in values]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)


def _refusals(table: Table) -> str:
    reasons: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row, columns in table.items():
        for to, cell in columns.items():
            if not cell.converted:
                reasons[to, general(cell.reason)][row.operator] += 1
    body = [
        [to, ", ".join(f"{number} {name}" for name, number in counts.items()), reason]
        for (to, reason), counts in sorted(reasons.items())
    ]
    return _REFUSALS + "\n" + _markdown(["dialect", "rows", "reason"], body)


def general(reason: str) -> str:
    """Return a reason without the names and numbers of one node."""
    reason = re.sub(r"\S+ '[^']*' in graph '[^']*': ", "", reason)
    return re.sub(r"\b\d+ inputs? gives? other", "some inputs give other", reason)


def _markdown(titles: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rows = [titles, ["---"] * len(titles), *body]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
