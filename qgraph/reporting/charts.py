"""The charts of a page, numbered so that their parts have names of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qgraph.reporting import bar_chart, staircase_chart
from qgraph.reporting.theme import inline_svg, themed
from qgraph.reporting.view import Chart, counted, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_HISTOGRAMS = 24


class Charts:
    """Draws charts for one page."""

    def __init__(self) -> None:
        self._number = 0

    def layers(
        self,
        title: str,
        names: Sequence[str],
        series: Mapping[str, Sequence[float]],
        axis: str,
        *,
        is_error: bool = False,
    ) -> Chart:
        """Return bars for layers; of very many, those with the largest numbers, in their order.

        Errors are compared by their ratios, on a logarithmic scale where they are far apart;
        amounts are not.
        """
        most = bar_chart.MOST_BARS
        caption = ""
        kept = list(range(len(names)))
        if len(names) > most:
            largest = [max(values) for values in zip(*series.values(), strict=True)]
            kept = sorted(sorted(kept, key=lambda place: -largest[place])[:most])
            caption = f"The {most} largest of {len(names)}."
        chosen = {label: [values[place] for place in kept] for label, values in series.items()}
        labels = [names[place] for place in kept]
        return self._chart(
            title,
            lambda: bar_chart.layer_figure(labels, chosen, axis, is_error=is_error),
            caption,
        )

    def steps(self, data: Mapping[str, Any]) -> list[Chart]:
        """Return the steps of two quantizers, and the neighbourhood of a difference."""
        node = str(data["node"])
        number = data.get("differing")
        caption = "" if number is None else f"The values differ for {counted(number, 'input')}."
        charts = [
            self._chart(
                f"{node}: both quantizers", lambda: staircase_chart.whole_figure(data), caption
            )
        ]
        if data.get("near") is not None:
            count = int(data["near"]["count"])
            told = "one float32 number" if count == 1 else f"{whole(count)} float32 numbers"
            charts.append(
                self._chart(
                    f"{node}: one difference, enlarged",
                    lambda: staircase_chart.near_figure(data),
                    f"The stretch on which the values differ here holds {told}.",
                )
            )
        return charts

    def histograms(self, quantizers: Sequence[Mapping[str, Any]]) -> list[Chart]:
        """Return how often codes occur, a chart for each of the first quantizers."""
        return [self._histogram(each) for each in quantizers[:MOST_HISTOGRAMS]]

    def _histogram(self, quantizer: Mapping[str, Any]) -> Chart:
        used, levels = len(quantizer["codes"]), quantizer["levels"]
        parts = [f"{quantizer['format']}, {used} of {levels} codes used"]
        if quantizer["clipped_share"] is not None:
            parts.append(f"{quantizer['clipped_share']:.2%} clipped")
        return self._chart(
            str(quantizer["node"]),
            lambda: bar_chart.histogram_figure(quantizer),
            "; ".join(parts) + ".",
        )

    def _chart(self, title: str, draw: Callable[[], Figure], caption: str = "") -> Chart:
        self._number += 1
        number = self._number

        def drawn() -> str:
            with themed():
                return inline_svg(draw(), number, title)

        return Chart(title, drawn, caption)
