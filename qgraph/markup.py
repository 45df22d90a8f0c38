"""Texts with names of models in them, for Markdown and XML: a name may have any character."""

from __future__ import annotations

import re
import unicodedata

_MARKDOWN = re.compile(
    r"[\\`*\[\]<|~$]|(?<!\w)_|_(?!\w)|&(?=[#\w])|^[#>+-](?=\s|#|>)|(?<=^\d)\.(?=\s)|(?<=^\d\d)\.(?=\s)"
)
"""What begins something in GitHub's Markdown; a backslash before it takes its meaning away."""

_NOT_CODE = re.compile(r"[`|\\]|^\s|\s$")
"""What a code span cannot hold in a cell of a table, or not at its ends."""


def printable(text: str) -> str:
    """Return text without control characters; what they were can be seen.

    None is left that XML forbids, or that steers a terminal; ends of lines stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else _code(c) for c in text)


def one_line(text: str) -> str:
    """Return text as :func:`printable` does, in which ends of lines are shown, too."""
    return printable(text).replace("\n", "\\n")


def markdown(text: str) -> str:
    """Return text that Markdown shows as it is, in one line, also in a cell of a table."""
    line = " ".join(printable(text).split("\n"))
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}", line)


def markdown_code(text: str) -> str:
    """Return a name as Markdown shows code; as plain text where that cannot hold it."""
    line = one_line(text)
    return markdown(line) if not line or _NOT_CODE.search(line) else f"`{line}`"


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
