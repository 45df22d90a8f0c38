"""The conformance table: what it demands of every cell, and that its document is current.

``python -m tests.conformance`` writes the document.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.conformance.cells import DIALECTS, Cell
from tests.conformance.document import Table, document, general, lines, section, text_of
from tests.conformance.quantizers import Quantizer, Row
from tests.conformance.rows import rows
from tests.conformance.table import table, whole_table

DOCUMENT = Path(__file__).parents[1] / "docs" / "conformance.md"

SHORT = ("BipolarQuant", "Trunc, version 1", "Cast+Cast", "DQ", "FloatQuant")
"""Operators whose whole sections are written anew within seconds."""


class Allowance(NamedTuple):
    """A refusal that may be: in which rows of which dialect, what it says, and why it may be."""

    to: str
    operators: str
    kinds: str
    reason: str
    why: str


ALLOWED = (
    Allowance(
        "openvino",
        "FloatQuant|Q.DQ|DQ",
        "FLOAT|E",
        "evenly spaced levels|more than 65536 levels",
        "a minifloat grid is not even, and as part of an even one it takes too many levels",
    ),
    Allowance(
        "openvino",
        "Trunc, version 1",
        "-",
        "does not clamp its codes",
        "a FakeQuantize has a range, this Trunc has none",
    ),
)


def is_allowed(row: Row, to: str, cell: Cell) -> bool:
    return cell.outcome == "refused" and any(
        re.fullmatch(entry.to, to)
        and re.fullmatch(entry.operators, row.operator)
        and re.match(entry.kinds, row.kind)
        and re.search(entry.reason, cell.reason)
        for entry in ALLOWED
    )


def faults(found: Table) -> dict[tuple[str, str], list[Row]]:
    """Return the cells that are neither equal in value nor refused for an allowed reason."""
    wrong = defaultdict(list)
    for row, columns in found.items():
        for to, cell in columns.items():
            equal = cell.converted and cell.level in ("", "bits", "values")
            if not equal and not is_allowed(row, to, cell):
                wrong[to, f"{text_of(cell)}: {general(cell.reason)}"].append(row)
    return wrong


def of_operator(operator: str) -> list[Quantizer]:
    return [quantizer for quantizer in rows() if quantizer.row.operator == operator]


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_a_sample_of_all_rows_is_equal_or_refused_for_a_good_reason(count):
    every = list(rows())
    chosen = np.random.default_rng(0).permutation(len(every))[:count]
    found = table([every[place] for place in sorted(chosen)])
    assert len(found) == count
    assert not faults(found)


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize("operator", SHORT)
def test_the_document_says_what_is_so(operator):
    found = table(of_operator(operator))
    assert not faults(found)
    assert section(operator, found) in DOCUMENT.read_text()


@pytest.mark.exhaustive
def test_the_whole_document_is_current():
    found = whole_table()
    assert not faults(found)
    assert document(found) == DOCUMENT.read_text(), "run python -m tests.conformance"


@pytest.mark.slow
def test_every_operator_has_rows_of_every_granularity_it_has():
    seen: dict[str, set[str]] = defaultdict(set)
    for quantizer in rows():
        seen[quantizer.row.operator].add(quantizer.row.granularity)
    everywhere = {"tensor", "axis", "block", "free"}
    blocks = {"tensor", "axis", "block"}
    assert seen == {
        "Quant": everywhere,
        "BipolarQuant": everywhere,
        "Trunc, version 1": {"tensor"},
        "Trunc, version 2": everywhere,
        "FloatQuant": everywhere,
        "FakeQuantize": everywhere,
        "Q+DQ": blocks,
        "Q+Clip+DQ": {"tensor", "axis"},
        "DQ": blocks,
        "Cast+Cast": {"tensor"},
        "Div+Cast+Cast+Mul": everywhere,
    }


@pytest.mark.slow
def test_no_two_rows_are_the_same():
    every = [quantizer.row for quantizer in rows()]
    assert len(set(every)) == len(every)


def invented(cells: Mapping[tuple[str, int], str]) -> dict[Row, tuple[str, ...]]:
    return {
        Row("Quant", "input", "tensor", kind, width, "0", "ROUND"): (text,)
        for (kind, width), text in cells.items()
    }


def test_lines_hold_each_row_and_no_cell_of_another():
    cells = invented(
        {("signed", width): "a" if width != 3 else "b" for width in range(1, 6)}
        | {("unsigned", width): "a" for width in range(2, 6)}
    )
    found = lines(cells)
    assert {line.cells for line in found} == {("a",), ("b",)}
    for row, text in cells.items():
        covering = [
            line
            for line in found
            if row.kind in line.values["kind"] and row.width in line.values["width"]
        ]
        assert covering
        assert {line.cells for line in covering} == {text}
    assert len(found) == 3


def test_what_is_wrong_is_a_fault():
    row = Row("Quant", "input", "tensor", "signed", 8, "0", "ROUND")
    good = dict.fromkeys(DIALECTS, Cell("Q+DQ", "values"))
    assert not faults({row: good})
    for bad in (
        Cell("Q+DQ", "codes"),
        Cell("wrong", reason="1 inputs"),
        Cell("fails", reason="OperatorError: no"),
        Cell("not read"),
        Cell("refused", reason="it is too difficult"),
    ):
        assert list(faults({row: {**good, "qdq": bad}}).values()) == [[row]]
    refused = Cell("refused", reason="FakeQuantize has evenly spaced levels, which ...")
    assert faults({row: {**good, "openvino": refused}})
    minifloat = Row("FloatQuant", "input", "tensor", "FLOAT8E4M3FN", 0, "none", "ROUND")
    assert not faults({minifloat: {**good, "openvino": refused}})
    assert faults({minifloat: {**good, "qdq": refused}})
