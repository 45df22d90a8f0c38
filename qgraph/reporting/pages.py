"""Reports as pages: HTML that needs no network, script or font, and Markdown for CI summaries."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from qgraph.errors import OptionError
from qgraph.reporting.view import Cell, Column, Page, Section, Table, Tone
from qgraph.text import as_read, markdown, markdown_code, one_line

_PAGES = {
    "bench": "runtimes_view.bench_page",
    "check": "check_view.check_page",
    "convert": "rewrite_view.rewrite_page",
    "deploy": "deploy_view.deploy_page",
    "fold": "rewrite_view.rewrite_page",
    "info": "model_view.info_page",
    "lint": "lint_view.lint_page",
    "prove": "prove_view.prove_page",
    "run": "model_view.run_page",
    "transform": "rewrite_view.rewrite_page",
    "why": "lint_view.why_page",
}
"""The function that makes the page, by command; its module is imported when it is needed."""


def page_of(document: Mapping[str, Any]) -> Page:
    """Return the page of a JSON report; its charts are drawn on demand.

    Data that :func:`qgraph.inventory.pictures.illustrated` added are drawn.

    Raises:
        OptionError: it is no report of a command that has a page.
    """
    plain = as_read(dict(document))
    home = _PAGES.get(str(plain.get("command")))
    if home is None:
        raise OptionError(
            f"The report is of {plain.get('command')!r}, expected one of {', '.join(_PAGES)}. "
            f"Write it with one of these commands."
        )
    module, name = home.split(".")
    make = getattr(importlib.import_module(f"qgraph.reporting.{module}"), name)
    page: Page = make(plain)
    return page


_SIGNS = {Tone.GOOD: "✓", Tone.BAD: "✗", Tone.OPEN: "≈", Tone.PLAIN: "•"}
_UNDECIDED = "?"


def html_page(document: Mapping[str, Any]) -> str:
    """Return a report, see :func:`page_of`, as an HTML page.

    Raises:
        OptionError: it is no such report, or the libraries that draw are not installed.
    """
    from qgraph.reporting.drawing import require_drawing

    require_drawing("an HTML page")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_shown)
    template = environment.from_string(_resource("page.html.jinja"))
    style = _resource("page.css").replace("\n", " ")
    # The style sheet is part of the package; escaping would break its quotes.
    from markupsafe import Markup

    page = page_of(document)
    sign = _UNDECIDED if page.verdict == "undecided" else _SIGNS[page.tone]
    return template.render(page=page, style=Markup(style), sign=sign) + "\n"


def _shown(value: object) -> object:
    """Return a value without control characters, which HTML does not allow."""
    from markupsafe import Markup

    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _resource(name: str) -> str:
    return files("qgraph.reporting").joinpath(name).read_text("utf-8")


_ROWS = 100
"""Maximum number of rows of a table: job summaries have a limit of bytes."""


def markdown_report(document: Mapping[str, Any]) -> str:
    """Return a report, see :func:`page_of`, in GitHub's Markdown.

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
        yield f"- {file.role}: {markdown_code(file.name)}{remark}"
    if page.facts:
        yield "- " + ", ".join(f"{fact.name}: {markdown(fact.value)}" for fact in page.facts)
    for section in page.sections:
        if not section.is_drawn_only:
            yield from _section(section)
    if page.closing:
        yield ""
        yield from (f"- {markdown(line)}" for line in page.closing)


def _section(section: Section) -> Iterator[str]:
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
    columns = [table.columns[index] for index in table.shown]
    yield _row([column.name for column in columns])
    yield _row(["---:" if column.number else "---" for column in columns])
    for row in table.rows[:_ROWS]:
        yield _row([_cell(table.columns[index], row[index]) for index in table.shown])
    if len(table.rows) > _ROWS:
        yield ""
        yield f"{len(table.rows) - _ROWS} more are in the JSON report."


def _cell(column: Column, cell: Cell) -> str:
    return markdown_code(cell.text) if column.code else markdown(cell.text)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
