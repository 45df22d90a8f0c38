"""Reports in Markdown, made for the summary of a CI job: the page without its pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qgraph.markup import markdown, markdown_code
from qgraph.reporting.pages import page_of
from qgraph.reporting.view import Cell, Column, Page, Section, Table

_ROWS = 100
"""Of longer tables so many rows are shown: job summaries have an upper limit of bytes."""


def markdown_report(document: Mapping[str, Any]) -> str:
    """Return a report in GitHub's Markdown.

    Args:
        document: a JSON report of check, prove, convert, fold or transform.

    Raises:
        OptionError: it is no such report.
    """
    return "\n".join(_page(page_of(document))) + "\n"


def _page(page: Page) -> Iterator[str]:
    yield f"## {page.command.capitalize()}: {page.verdict}"
    yield ""
    yield markdown(page.sentence)
    yield ""
    for file in page.files:
        remark = f", {file.remark}" if file.remark else ""
        yield f"- {file.role}: {markdown_code(file.path)}{remark}"
    if page.facts:
        yield "- " + ", ".join(f"{fact.name}: {markdown(fact.value)}" for fact in page.facts)
    for section in page.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    # A section that has nothing but pictures says nothing here.
    if not (section.tables or section.points) and section.charts:
        return
    yield ""
    yield f"### {section.title}"
    for text in section.text:
        yield ""
        yield markdown(text)
    if section.points:
        yield ""
        yield from (f"- {markdown(point)}" for point in section.points)
    for table in section.tables:
        yield ""
        if table.folded:
            label = f"{len(table.rows)} {table.label}"
            yield from (f"<details><summary>{label}</summary>", "")
        yield from _table(table)
        if table.folded:
            yield from ("", "</details>")


def _table(table: Table) -> Iterator[str]:
    columns = [table.columns[place] for place in table.shown]
    yield _row([column.name for column in columns])
    yield _row(["---:" if column.number else "---" for column in columns])
    for row in table.rows[:_ROWS]:
        yield _row([_cell(table.columns[place], row[place]) for place in table.shown])
    if len(table.rows) > _ROWS:
        yield ""
        yield f"{len(table.rows) - _ROWS} more are in the JSON report."


def _cell(column: Column, cell: Cell) -> str:
    return markdown_code(cell.text) if column.code else markdown(cell.text)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
