"""Which page belongs to which report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from qgraph.errors import OptionError
from qgraph.files import json_text
from qgraph.reporting.check_view import check_page
from qgraph.reporting.prove_view import prove_page
from qgraph.reporting.rewrite_view import rewrite_page
from qgraph.reporting.view import Page

_PAGES: dict[str, Callable[[Mapping[str, Any]], Page]] = {
    "check": check_page,
    "convert": rewrite_page,
    "fold": rewrite_page,
    "prove": prove_page,
    "transform": rewrite_page,
}


def page_of(document: Mapping[str, Any]) -> Page:
    """Return what people are told of a JSON report; nothing is drawn yet.

    Raises:
        OptionError: it is no report of a command that has a page.
    """
    plain = json.loads(json_text(dict(document)))
    made = _PAGES.get(plain.get("command"))
    if made is None:
        raise OptionError(
            f"The report is of {plain.get('command')!r}, expected one of {', '.join(_PAGES)}. Make "
            "it with one of these commands."
        )
    return made(plain)
