"""A picture of the layers of a model in order, coloured by the kernel that computes each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from qgraph.reporting.view import Chart
from qgraph.text import one_line

FLOAT = "float"

_WIDTH, _HEIGHT, _LABEL = 620.0, 22.0, 60.0
_INTEGERS = ("--good", "--reference", "--muted")
_OTHER = "--candidate"


def kernel_chart(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Chart:
    """Return a chart with a row for each model and a field for each layer.

    Args:
        names: of the layers, in order.
        rows: the kernel of each layer, possibly ``float``, by label of the row.
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
            title = escape(one_line(f"{name}: {kernel}"))
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
    label = escape(f"layers by kernel: {', '.join(colours)}")
    return f'<svg role="img" aria-label="{label}" viewBox="{size}">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="11" fill="var(--ink)">{escape(text)}</text>'
