"""The charts of a page: numbers and kernels of layers, steps of quantizers, histograms of codes."""

from __future__ import annotations

import functools
import html
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qgraph.reporting import drawing
from qgraph.reporting.view import Chart, Section
from qgraph.text import counted, one_line, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_BARS = 32

_WIDE_RANGE = 50.0
"""Ratio of numbers above which a logarithmic scale is used."""

_BARS = 0.44
"""Fraction of a row that its bars take."""

_BINS = 64


def layer_figure(
    names: Sequence[str], series: Mapping[str, Sequence[float]], axis: str, is_error: bool = False
) -> Figure:
    """Return horizontal bars, one group for each name, from the top down.

    ``series`` has the label of each bar of a group, and the numbers of all names, not negative.
    ``axis`` is the label of the numbers, with their unit. Errors may differ by orders of magnitude.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    rows = len(names)
    # A row has its name above its bars, so that names have the whole width.
    thick = _BARS / len(series)
    height = 0.75 + 0.36 * rows + (0.0 if len(series) == 1 else 0.1 * rows + 0.3)
    figure = Figure(figsize=(drawing.WIDTH, height), layout="constrained")
    axes = figure.subplots()
    rows_from = np.arange(rows, dtype=np.float64)
    colours = (drawing.BAD, drawing.MUTED) if is_error else (drawing.REFERENCE, drawing.CANDIDATE)
    for number, (label, values) in enumerate(series.items()):
        shift = 1 - _BARS + (number + 0.5) * thick
        axes.barh(rows_from + shift, values, thick * 0.9, color=colours[number], label=label)
    for index, name in enumerate(names):
        text = drawing.escaped(drawing.shortened(name, 52))
        axes.text(
            0.01, index + 1 - _BARS - 0.13, text, size=9, transform=axes.get_yaxis_transform()
        )
    axes.set_yticks([])
    axes.set_ylim(rows + 0.15, 0)
    positive = [value for values in series.values() for value in values if value > 0]
    if is_error and positive and max(positive) > _WIDE_RANGE * min(positive):
        axes.set_xscale("log")
        axes.set_xlim(left=min(positive) / 3)
        axis = f"{axis}, logarithmic"
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _count_text(value)))
    axes.set_xlabel(axis)
    if len(series) > 1:
        figure.legend(loc="outside upper right", ncols=len(series))
    return figure


def histogram_figure(quantizer: Mapping[str, Any]) -> Figure:
    """Return a histogram of the codes of an entry of ``qgraph run --stats --json``.

    Many codes are collected in bins.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(drawing.WIDTH, 1.9), layout="constrained")
    axes = figure.subplots()
    codes, counts = np.array(quantizer["codes"], np.float64).T
    whole = bool(np.all(codes == np.rint(codes)))
    if not whole or np.ptp(codes) < _BINS:
        gaps = np.diff(codes)
        width = 0.9 * (1.0 if whole or not gaps.size else float(gaps.min()))
        axes.bar(codes, counts, width, color=drawing.REFERENCE)
    else:
        per_bin = int(np.ceil((np.ptp(codes) + 1) / _BINS))
        edges = np.arange(codes.min(), codes.max() + 1 + per_bin, per_bin) - 0.5
        heights, _ = np.histogram(codes, edges, weights=counts)
        axes.stairs(heights, edges, fill=True, color=drawing.REFERENCE)
    axes.grid(visible=False, axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=whole))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _count_text(value)))
    axes.set_xlabel("code" if whole else "code, by its value")
    axes.set_ylabel("weights" if quantizer["weight"] else "values")
    return figure


def _count_text(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


MOST_HISTOGRAMS = 24


class Charts:
    """Charts of one page, numbered so that the ids of their parts are unique."""

    def __init__(self) -> None:
        self._number = 0

    def layers(
        self,
        title: str,
        names: Sequence[str],
        series: Mapping[str, Sequence[float]],
        axis: str,
        is_error: bool = False,
    ) -> Chart:
        """Return bars for layers; of many layers, those with the largest numbers, in order.

        Errors with large ratios are drawn on a logarithmic scale; amounts are not.
        """
        kept = list(range(len(names)))
        caption = ""
        if len(names) > MOST_BARS:
            largest = [max(values) for values in zip(*series.values(), strict=True)]
            kept = sorted(sorted(kept, key=lambda index: -largest[index])[:MOST_BARS])
            caption = f"The {MOST_BARS} largest of {len(names)}."
        chosen = {label: [values[index] for index in kept] for label, values in series.items()}
        labels = [names[index] for index in kept]
        return self.chart(title, lambda: layer_figure(labels, chosen, axis, is_error), caption)

    def chart(self, title: str, draw: Callable[[], Figure], caption: str = "") -> Chart:
        """Return a chart of a figure that is drawn on demand."""
        self._number += 1
        number = self._number

        def drawn() -> str:
            with drawing.themed():
                return drawing.inline_svg(draw(), number, title)

        return Chart(title, drawn, caption)


def steps_section(
    charts: Charts, staircases: Sequence[Mapping[str, Any]], differing: int
) -> Iterator[Section]:
    """Yield a section with the steps of both quantizers around each of ``differing`` differences.

    ``staircases`` are results of :func:`qgraph.proof.curves.staircase`; none, no section.
    """
    if not staircases:
        return
    drawn = []
    for data in staircases:
        node, number = str(data["node"]), data.get("differing")
        caption = "" if number is None else f"{drawing.differing_inputs(data)}."
        figure = functools.partial(drawing.single_figure, drawing.draw_steps, data)
        drawn.append(charts.chart(f"{node}: both quantizers", figure, caption))
        if data.get("near") is not None:
            floats = counted(int(data["near"]["count"]), "float32 number")
            caption = f"The values differ here on {floats} in a row."
            figure = functools.partial(drawing.single_figure, drawing.draw_near, data)
            drawn.append(charts.chart(f"{node}: one difference, enlarged", figure, caption))
    more = differing - len(staircases)
    text = "Each quantizer of the first model next to its replacement, drawn exactly"
    text += f"; {more} more are not drawn." if more > 0 else "."
    yield Section("The steps around a difference", [text], charts=drawn)


def codes_section(charts: Charts, quantizers: Sequence[Mapping[str, Any]]) -> Iterator[Section]:
    """Yield a section with the histograms of codes of the first quantizers."""
    drawn = []
    for each in quantizers[:MOST_HISTOGRAMS]:
        caption = f"{each['format']}, {len(each['codes'])} of {each['levels']} codes used"
        if each["clipped_share"] is not None:
            caption += f"; {percent(each['clipped_share'])} clipped"
        figure = functools.partial(histogram_figure, each)
        drawn.append(charts.chart(str(each["node"]), figure, f"{caption}."))
    if drawn:
        text = ["Occurrences of each code. Codes outside the range of the format were clipped."]
        if (more := len(quantizers) - len(drawn)) > 0:
            text.append(f"The first {len(drawn)} quantizers; {more} more are not drawn.")
        yield Section("Codes", text, charts=drawn)


FLOAT = "float"

_WIDTH, _HEIGHT, _LABEL = 620.0, 22.0, 60.0
_INTEGERS = ("--good", "--reference", "--muted")
_OTHER = "--candidate"


def kernel_chart(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Chart:
    """Return a chart with a row for each model and a field for each layer, coloured by its kernel.

    ``rows`` has the kernel of each layer, possibly ``float``, by label of the row.
    """
    return Chart(
        "Layers by kernel",
        lambda: _strip(names, rows),
        "from the input to the output; a field tells its layer",
    )


def _strip(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    counts = Counter(kernel for kernels in rows.values() for kernel in kernels if kernel != FLOAT)
    colours = {FLOAT: _OTHER}
    for index, (kernel, _) in enumerate(counts.most_common()):
        colours[kernel] = _INTEGERS[min(index, len(_INTEGERS) - 1)]
    width = (_WIDTH - _LABEL) / max(1, len(names))
    parts = []
    for line, (title, kernels) in enumerate(rows.items()):
        top = line * (_HEIGHT + 6)
        parts.append(_text(0, top + 15, title))
        for index, (name, kernel) in enumerate(zip(names, kernels, strict=True)):
            title = html.escape(one_line(f"{name}: {kernel}"))
            parts.append(
                f'<rect x="{_LABEL + index * width:.2f}" y="{top:.0f}" '
                f'width="{max(width - 1, 0.5):.2f}" height="{_HEIGHT:.0f}" '
                f'fill="var({colours[kernel]})"><title>{title}</title></rect>'
            )
    top = len(rows) * (_HEIGHT + 6) + 4
    left = _LABEL
    for kernel, colour in colours.items():
        parts.append(
            f'<rect x="{left:.0f}" y="{top}" width="10" height="10" fill="var({colour})"/>'
        )
        parts.append(_text(left + 14, top + 9, kernel))
        left += 30 + 7 * len(kernel)
    size = f"0 0 {_WIDTH:.0f} {top + 16:.0f}"
    label = html.escape(f"layers by kernel: {', '.join(colours)}")
    return f'<svg role="img" aria-label="{label}" viewBox="{size}">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="11" fill="var(--ink)">{html.escape(text)}</text>'
    )
