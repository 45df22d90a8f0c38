"""Reports as one HTML page that needs nothing else: no network, no script, no font."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from qgraph.markup import one_line
from qgraph.reporting.extras import require_drawing
from qgraph.reporting.pages import page_of
from qgraph.reporting.view import Tone

_SIGNS = {Tone.GOOD: "✓", Tone.BAD: "✗", Tone.OPEN: "≈", Tone.PLAIN: "•"}
_UNDECIDED = "?"


def html_page(document: Mapping[str, Any]) -> str:
    """Return a report as an HTML page.

    Args:
        document: a JSON report of check, prove, convert, fold or transform. What
            :func:`qgraph.reporting.illustrations.staircases` and ``histograms`` return may be added
            to it as ``staircases`` and ``quantizers``.

    Raises:
        OptionError: it is no such report, or the libraries that draw are not installed.
    """
    require_drawing("an HTML page")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_shown)
    template = environment.from_string(_resource("page.html.jinja"))
    style = _resource("page.css").replace("\n", " ")
    # The style is ours; escaping would break its quotes.
    from markupsafe import Markup

    page = page_of(document)
    sign = _UNDECIDED if page.verdict == "undecided" else _SIGNS[page.tone]
    return template.render(page=page, style=Markup(style), sign=sign) + "\n"


def _shown(value: object) -> object:
    """Return what the page shows of a value: HTML has no control characters either."""
    from markupsafe import Markup

    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _resource(name: str) -> str:
    return files("qgraph.reporting").joinpath(name).read_text("utf-8")
