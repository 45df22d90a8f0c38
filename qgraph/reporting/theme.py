"""Style of charts, and their embedding in pages with light and dark colours.

The libraries for drawing are an optional extra, and are imported when needed.
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qgraph.errors import OptionError
from qgraph.text import one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1f2328", "#59636e", "#d1d9e0"
REFERENCE, CANDIDATE, BAD = "#0969da", "#bc4c00", "#cf222e"

_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    REFERENCE: "--reference",
    CANDIDATE: "--candidate",
    BAD: "--bad",
}
"""Each colour, and the CSS variable of the page that replaces it."""

WIDTH = 4.9
"""Width of a chart in inches; at 72 to the inch it fits a narrow screen."""

_SETTINGS: Any = {
    "svg.hashsalt": "qgraph",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@contextmanager
def themed(*, opaque: bool = False) -> Iterator[None]:
    """Draw in the project's style within the block, independent of the user's settings.

    An ``opaque`` picture, for a separate file, is on white; others are transparent.
    """
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        if opaque:
            mpl.rcParams["figure.facecolor"] = mpl.rcParams["savefig.facecolor"] = "white"
        yield


def inline_svg(figure: Figure, number: int, label: str) -> str:
    """Return a figure, drawn in the style of :func:`themed`, as an element of a page.

    ``number`` makes the names of its parts unique in the page; ``label`` says what it shows, for
    readers that do not see it.
    """
    from html import escape

    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'(?<=\bid=")', f"c{number}-", text)
    text = re.sub(r"(?<=url\(#)|(?<=href=\"#)", f"c{number}-", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    box = re.search(r'viewBox="[^"]*"', text)
    end = text.index(">") + 1
    frame = "" if box is None else f" {box[0]}"
    head = f'<svg role="img" aria-label="{escape(one_line(label))}"{frame}>'
    # A figure without hyperlinks still mentions their name space in each reference.
    return head + text[end:].replace("xlink:href", "href").strip()


def shortened(name: str, length: int = 30) -> str:
    """Return a name, shortened in the middle if it is long."""
    if len(name) <= length:
        return name
    front = length // 3
    return f"{name[:front]}…{name[front + 1 - length :]}"


def escaped(name: str) -> str:
    """Return text that matplotlib shows literally, dollar signs included."""
    return one_line(name).replace("$", r"\$")


_NEEDED = ("matplotlib", "jinja2")


def require_drawing(what: str) -> None:
    """Raise if the libraries for pictures and pages are missing, before any work is done.

    Raises:
        OptionError: a library is not installed; the message begins with ``what`` needs it.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"{what}: needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed; expected the drawing "
            f"libraries. Install them with: pip install 'qgraph[report]'."
        )
