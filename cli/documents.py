"""Print results of commands as tables, JSON or CSV."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from qgraph.cli.output import Talk, flush_results, show, show_paragraph
from qgraph.cli.tables import csv_text, show_table
from qgraph.reporting.next_step import next_step
from qgraph.reporting.view import Page, Section, Table
from qgraph.text import json_text

View = Callable[[Mapping[str, Any]], Page | Iterable[Section]]


def show_document(
    talk: Talk,
    document: Mapping[str, Any],
    view: View,
    models: Sequence[object] = (),
    inputs: Sequence[str] = (),
) -> None:
    """Print the result of a command.

    Args:
        talk: output options, among them the format.
        document: the result in JSON.
        view: turns the document into a page or its sections.
        models: files that the command was given, for the advice on what to do next.
        inputs: options with which the command got its inputs, for the advice too.
    """
    if talk.form == "json":
        show(json_text(dict(document)).rstrip())
        return
    shown = view(document)
    sections = list(shown.sections if isinstance(shown, Page) else shown)
    page = shown if isinstance(shown, Page) else None
    if talk.form == "csv":
        _show_csv(talk, sections, page)
    elif page is not None:
        show_page(talk, page)
    else:
        show_sections(talk, sections)
    if page is None or not page.closing:
        advise(talk, document, models, inputs)


def advise(
    talk: Talk,
    document: Mapping[str, Any],
    models: Sequence[object] = (),
    inputs: Sequence[str] = (),
) -> None:
    """Print what to do after a result; for the arguments see :func:`show_document`."""
    command = {"command": click.get_current_context().info_name}
    advice = next_step(command | dict(document), models, inputs)
    flush_results()
    is_read = not getattr(sys.stdout, "is_gone", False)
    if advice is not None and is_read:
        talk.note(f"next: {advice}")


def show_page(talk: Talk, page: Page) -> None:
    """Print a report; with ``-q`` only its verdict.

    Remarks go to stderr. Without ``-v``, rows of long tables are grouped, and optional tables are
    omitted.
    """
    if not talk.quiet:
        if show_sections(talk, page.sections):
            show()
        show_paragraph("; ".join(f"{fact.name} {fact.value}" for fact in page.facts))
    show_paragraph(f"{page.verdict.upper()}: {page.sentence}", page.tone, is_bold=True)
    for line in () if talk.quiet else page.closing:
        show_paragraph(line)


def show_sections(talk: Talk, sections: Iterable[Section]) -> bool:
    """Print sections, a blank line between them; return whether there was anything to print."""
    is_first = True
    for section in sections:
        tables = section.tables if talk.verbosity or not section.detail else ()
        if (section.text or tables) and not section.is_drawn_only:
            if not is_first:
                show()
            is_first = False
            for text in section.text:
                show_paragraph(text)
            for table in tables:
                show_table(table, talk)
        if not section.is_drawn_only:
            tell = show_paragraph if section.text else talk.note  # a list stays with its sentence
            for point in section.points:
                tell(point)
    return not is_first


def _show_csv(talk: Talk, sections: Sequence[Section], page: Page | None) -> None:
    """Print all tables to stdout, and the other texts to stderr."""
    tables = [table for section in sections for table in section.tables]
    if page is not None:
        facts = [["verdict", page.verdict], *([fact.name, fact.value] for fact in page.facts)]
        tables.insert(0, Table("summary", ["name", "value"], facts))
        talk.note(page.sentence)
    for section in sections:
        for text in (*section.text, *section.points):
            talk.note(text)
    sys.stdout.write(csv_text(tables, talk.subject))
