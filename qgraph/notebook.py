"""Pages of models and reports for notebooks."""

from __future__ import annotations

import html
from typing import Any

from qgraph.errors import OptionError
from qgraph.inventory.overview import Overview, overview
from qgraph.model import Model
from qgraph.reporting.pages import html_page
from qgraph.reports import Report
from qgraph.text import Displayed
from qgraph.version import head

_HEIGHT = 480
"""Height of the frame, in pixels."""


def page_in_frame(thing: Displayed) -> str | None:
    """Return the page of a model or a report in a frame, which isolates its style.

    None is returned if the libraries that draw are not installed.
    """
    try:
        page = html_page(document_of(thing))
    except OptionError:
        return None
    return (
        f'<iframe srcdoc="{html.escape(page)}" style="width: 100%; height: {_HEIGHT}px; border: 0">'
        "</iframe>"
    )


def document_of(thing: Any) -> dict[str, Any]:
    """Return the JSON document of a model or a report."""
    if isinstance(thing, Model):
        return (
            head("info") | {"path": str(thing.path or "in memory")} | overview(thing.ir).to_json()
        )
    if isinstance(thing, Overview):
        return head("info") | {"path": "in memory"} | thing.to_json()
    if isinstance(thing, Report):
        return head(thing.command) | thing.to_json()
    document: dict[str, Any] = thing.to_json()
    return document
