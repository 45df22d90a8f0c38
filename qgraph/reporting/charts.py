"""The charts of a page: a number for each layer, the steps of quantizers, histograms of codes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qgraph.reporting import staircase_chart, theme
from qgraph.reporting.theme import inline_svg, themed
from qgraph.reporting.view import Chart, Section
from qgraph.text import counted, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 32

_WIDE_RANGE = 50.0
"""Ratio of numbers above which a logarithmic scale is used."""

_BARS = 0.44
"""Fraction of a row that its bars take."""

_BINS = 64


def layer_figure(
    names: Sequence[str],
    series: Mapping[str, Sequence[float]],
    axis: str,
    is_error: bool = False,
) -> Figure:
    """Return horizontal bars, one group for each name, from the top down.

    Args:
        names: of layers.
        series: label of each bar of a group, and the numbers for all names, not negative.
        axis: label of the numbers, with their unit.
        is_error: whether the numbers are errors, which may differ by orders of magnitude.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    rows = len(names)
    # A row has its name above its bars, so that names have the whole width.
    thick = _BARS / len(series)
    height = 0.75 + 0.36 * rows + (0.0 if len(series) == 1 else 0.1 * rows + 0.3)
    figure = Figure(figsize=(theme.WIDTH, height), layout="constrained")
    axes = figure.subplots()
    rows_from = np.arange(rows, dtype=np.float64)
    colours = (theme.BAD, theme.MUTED) if is_error else (theme.REFERENCE, theme.CANDIDATE)
    for number, (label, values) in enumerate(series.items()):
        shift = 1 - _BARS + (number + 0.5) * thick
        axes.barh(rows_from + shift, values, thick * 0.9, color=colours[number], label=label)
    for index, name in enumerate(names):
        text = theme.escaped(theme.shortened(name, 52))
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
    """Return a histogram of the codes of a quantizer, in bins if there are many codes.

    Args:
        quantizer: its entry in ``qgraph run --stats --json``.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(theme.WIDTH, 1.9), layout="constrained")
    axes = figure.subplots()
    codes, counts = np.array(quantizer["codes"], np.float64).T
    whole = bool(np.all(codes == np.rint(codes)))
    if not whole or np.ptp(codes) < _BINS:
        gaps = np.diff(codes)
        width = 0.9 * (1.0 if whole or not gaps.size else float(gaps.min()))
        axes.bar(codes, counts, width, color=theme.REFERENCE)
    else:
        per_bin = int(np.ceil((np.ptp(codes) + 1) / _BINS))
        edges = np.arange(codes.min(), codes.max() + 1 + per_bin, per_bin) - 0.5
        heights, _ = np.histogram(codes, edges, weights=counts)
        axes.stairs(heights, edges, fill=True, color=theme.REFERENCE)
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
            with themed():
                return inline_svg(draw(), number, title)

        return Chart(title, drawn, caption)


def steps_section(
    charts: Charts, staircases: Sequence[Mapping[str, Any]], differing: int
) -> Iterator[Section]:
    """Yield a section with the steps of both quantizers around each difference, if there are any.

    Args:
        charts: of the page.
        staircases: what :func:`qgraph.proof.curves.staircase` returns of each.
        differing: how many differences there are.
    """
    drawn = []
    for data in staircases:
        node, number = str(data["node"]), data.get("differing")
        caption = "" if number is None else f"{staircase_chart.differing_inputs(data)}."
        figure = functools.partial(staircase_chart.whole_figure, data)
        drawn.append(charts.chart(f"{node}: both quantizers", figure, caption))
        if data.get("near") is not None:
            floats = counted(int(data["near"]["count"]), "float32 number")
            caption = f"The values differ here on {floats} in a row."
            figure = functools.partial(staircase_chart.near_figure, data)
            drawn.append(charts.chart(f"{node}: one difference, enlarged", figure, caption))
    if drawn:
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
