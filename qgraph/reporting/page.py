"""Reports as one HTML page that needs nothing else: no network, no script, no font."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from qgraph.errors import OptionError
from qgraph.files import json_text
from qgraph.reporting.check_view import check_page
from qgraph.reporting.extras import require_drawing
from qgraph.reporting.prove_view import prove_page
from qgraph.reporting.rewrite_view import rewrite_page
from qgraph.reporting.view import Page, Tone

_PAGES: dict[str, Callable[[Mapping[str, Any]], Page]] = {
    "check": check_page,
    "convert": rewrite_page,
    "fold": rewrite_page,
    "prove": prove_page,
    "transform": rewrite_page,
}

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

    plain = json.loads(json_text(dict(document)))
    made = _PAGES.get(plain.get("command"))
    if made is None:
        raise OptionError(
            f"The report is of {plain.get('command')!r}, expected one of {', '.join(_PAGES)}. Make "
            "it with one of these commands."
        )
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string(_resource("page.html.jinja"))
    style = _resource("page.css").replace("\n", " ")
    # The style is ours; escaping would break its quotes.
    from markupsafe import Markup

    page = made(plain)
    sign = _UNDECIDED if page.verdict == "undecided" else _SIGNS[page.tone]
    return template.render(page=page, style=Markup(style), sign=sign) + "\n"


def _resource(name: str) -> str:
    return files("qgraph.reporting").joinpath(name).read_text("utf-8")
