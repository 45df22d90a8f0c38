"""Draw pictures of quantizers: their steps, their error, and the neighbourhood of a difference.

Charts have one style. In pages, their colours are variables of the page, for light and dark. The
libraries for drawing are an optional extra, and are imported when needed.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from qgraph.errors import OptionError
from qgraph.text import counted, one_line, whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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

    file = StringIO()
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


_COLOURS = (REFERENCE, CANDIDATE)
_NAMES = ("reference", "candidate")

_SEEN_STEPS = 40
"""Number of steps above which a staircase looks like a slope."""

_STEPS_ASIDE = 7
_DOTS_PER_INCH = 160


def single_figure(
    draw: Callable[[Axes, Mapping[str, Any]], None], data: Mapping[str, Any]
) -> Figure:
    """Return a figure of one chart of the data of :func:`qgraph.proof.curves.staircase`."""
    figure = _figure(3.1)
    draw(figure.subplots(), data)
    return figure


def plot_figure(data: Mapping[str, Any], title: str) -> Figure:
    """Return a figure with all charts of one quantizer, or of two, one below the other."""
    parts = [draw_steps, draw_error]
    if data.get("near") is not None:
        parts.append(draw_near)
    figure = _figure(2.6 * len(parts) + 0.5, width=7.0)
    figure.suptitle(escaped(title), x=0.02, ha="left", fontsize=11)
    for draw, axes in zip(parts, figure.subplots(len(parts)), strict=True):
        draw(axes, data)
    return figure


def plot(data: Mapping[str, Any], *, format: str = "svg") -> bytes:  # noqa: A002 - as matplotlib
    """Return a picture (svg or png) of one or two quantizers: output and error over the input.

    It is drawn exactly from what :func:`qgraph.inventory.pictures.plot_data` returns.

    Raises:
        OptionError: the format is another one, or the libraries that draw are not installed.
    """
    require_drawing("a plot")
    if format not in ("svg", "png"):
        raise OptionError(f"format={format!r}: expected svg or png. Use one of these.")
    title = f"{data['node']}: {data['op']}"
    if data.get("differing") is not None:
        title = f"{data['node']}: {differing_inputs(data)}"
    file = BytesIO()
    with themed(opaque=True):
        figure = plot_figure(data, title)
        options: dict[str, Any] = {"format": format, "dpi": _DOTS_PER_INCH}
        metadata = {"Date": None, "Creator": None} if format == "svg" else {"Software": None}
        figure.savefig(file, metadata=metadata, **options)
    return file.getvalue()


def draw_steps(axes: Axes, data: Mapping[str, Any]) -> None:
    """Draw output over input, and where two differ; of many steps, those around a difference."""
    curves, part = data["curves"], None
    near = data.get("near")
    if near is not None:
        part = _around(data["curves"], float(near["first"]))
    if part is not None:
        curves = [_cut(curve, *part) for curve in curves]
    extent = "the whole range" if part is None else "the steps around a difference"
    axes.set_title(f"Output over {extent}{_channel(data)}")
    x = _numbers(curves[0]["x"])
    axes.plot(x[[0, -1]], x[[0, -1]], color=MUTED, lw=0.7, ls=":")
    _draw_curves(axes, curves, [_numbers(curve["y"]) for curve in curves])
    _mark(axes, data)
    # The line y = x leaves the picture where the steps end.
    heights = np.concatenate([_numbers(curve["y"]) for curve in curves])
    heights = heights[np.isfinite(heights)]
    if heights.size:
        margin = 0.08 * float(np.ptp(heights)) or 1.0
        axes.set_ylim(float(heights.min()) - margin, float(heights.max()) + margin)
    axes.set_xlim(float(x[0]), float(x[-1]))
    axes.set_xlabel("input x (real units)")
    axes.set_ylabel("output y (real units)")
    if len(curves) > 1:
        axes.legend(loc="upper left")


def draw_error(axes: Axes, data: Mapping[str, Any]) -> None:
    """Draw the quantization error: output minus input."""
    axes.set_title("Error over the whole range" + _channel(data))
    for index, curve in enumerate(data["curves"]):
        x, y = _numbers(curve["x"]), _numbers(curve["y"])
        # Between two steps the error falls with the input: two points for each stretch.
        ends = np.stack([x[:-1], x[1:]], axis=1).reshape(-1)
        error = np.repeat(y, 2) - ends
        style: dict[str, Any] = {"lw": 1.6} if index == 0 else {"lw": 1.0, "ls": "--"}
        axes.plot(ends, error, color=_COLOURS[index], **style)
    axes.axhline(0.0, color=MUTED, lw=0.7)
    x = _numbers(data["curves"][0]["x"])
    axes.set_xlim(float(x[0]), float(x[-1]))
    axes.set_xlabel("input x (real units)")
    axes.set_ylabel("y \N{MINUS SIGN} x (real units)")


def draw_near(axes: Axes, data: Mapping[str, Any]) -> None:
    """Draw both quantizers around one difference."""
    near = data["near"]
    floats = near["unit"] == "floats"
    places = _numbers(near["places"])
    first, last, count = float(near["first"]), float(near["last"]), int(near["count"])
    axes.set_title(
        f"Around x = {first:.9g}" if count == 1 else f"Around x = {first:.9g} .. {last:.9g}"
    )
    left, right = (-0.5, count - 0.5) if floats else (first, last)
    axes.axvspan(left, right, color=BAD, alpha=0.16, lw=0, label="values differ")
    marks = "o" if floats and len(places) <= 65 else ""
    for index, values in enumerate(near["values"]):
        style: dict[str, Any] = (
            {"lw": 2.4, "ms": 5.5} if index == 0 else {"lw": 1.2, "ls": "--", "ms": 3}
        )
        axes.plot(
            places,
            _numbers(values),
            color=_COLOURS[index],
            marker=marks,
            drawstyle="steps-mid" if floats else "default",
            label=_NAMES[index],
            **style,
        )
    if floats:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
        axes.set_xlabel(f"input x, float32 numbers counted from {first:.9g}")
    else:
        axes.set_xlabel("input x (real units)")
    axes.set_ylabel("output y (real units)")
    axes.margins(y=0.25)
    axes.legend(loc="best")


def _draw_curves(axes: Axes, curves: Sequence[Mapping[str, Any]], heights: Sequence[Any]) -> None:
    for index, (curve, y) in enumerate(zip(curves, heights, strict=True)):
        style: dict[str, Any] = (
            {"lw": 3.4 if len(curves) > 1 else 2.0}
            if index == 0
            else {"lw": 1.3, "ls": (0, (4, 3))}
        )
        axes.stairs(
            y,
            _numbers(curve["x"]),
            baseline=None,
            color=_COLOURS[index],
            label=_NAMES[index],
            **style,
        )


def _around(curves: Sequence[Mapping[str, Any]], spot: float) -> tuple[float, float] | None:
    """Return the ends of some steps on each side of ``spot``; None if all steps are visible."""
    x = _numbers(curves[0]["x"])
    if len(x) - 1 <= _SEEN_STEPS:
        return None
    index = int(np.searchsorted(x, spot))
    first, last = max(index - _STEPS_ASIDE, 0), min(index + _STEPS_ASIDE, len(x) - 1)
    return float(x[first]), float(x[last])


def _cut(curve: Mapping[str, Any], low: float, high: float) -> dict[str, Any]:
    x, y = _numbers(curve["x"]), _numbers(curve["y"])
    seen = (x[1:] > low) & (x[:-1] < high)
    starts = np.maximum(x[:-1][seen], low)
    end = min(float(x[1:][seen][-1]), high)
    return {"x": [*starts.tolist(), end], "y": y[seen].tolist()}


def differing_inputs(data: Mapping[str, Any]) -> str:
    """Return the number of inputs with another code, and of those with another value."""
    number, codes = int(data["differing"]), data.get("differing_codes")
    if codes is None or codes == number:
        return f"{counted(number, 'input')} with other values"
    return f"{counted(codes, 'input')} with other codes, {whole(number - codes)} by rounding only"


def _mark(axes: Axes, data: Mapping[str, Any]) -> None:
    """Mark the inputs on which two quantizers differ, at the bottom of the picture."""
    places = data.get("places") or []
    if not places:
        return
    codes = data.get("place_codes") or [True] * len(places)
    for are_codes, colour, label in (
        (True, BAD, "another code"),
        (False, MUTED, "rounding"),
    ):
        marked = [
            pair for pair, is_code in zip(places, codes, strict=True) if bool(is_code) is are_codes
        ]
        for low, high in marked:
            axes.axvspan(float(low), float(high), color=colour, alpha=0.16, lw=0)
        if marked:
            axes.plot(
                [(float(low) + float(high)) / 2 for low, high in marked],
                [0.03 if are_codes else 0.08] * len(marked),
                transform=axes.get_xaxis_transform(),
                color=colour,
                marker="|",
                ms=7,
                lw=0,
                label="values differ" if all(codes) else label,
            )


def _numbers(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return numbers of a JSON document, in which NaN and infinities are strings."""
    numbers = np.array([math.nan if v is None else float(v) for v in values], np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _channel(data: Mapping[str, Any]) -> str:
    total = int(data["channels"])
    return f", channel {data['channel']} of {total}" if total > 1 else ""


def _figure(height: float, width: float = WIDTH) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
