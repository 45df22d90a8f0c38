"""Writes ``bound.svg``: what a bound says about one code.

python docs/img/bound.py
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from qgraph.reporting import drawing

OUT = Path(__file__).resolve().parent / "bound.svg"

THRESHOLD, IDEAL = 1.5, 1.38
REFERENCE, CANDIDATE, SHIFT = 0.06, 0.07, 0.03
"""Errors of both models, and the shift of their ideals, in steps; larger than usual."""


def figure() -> Figure:
    """Return the code over the number before rounding, and the tie zone."""
    drawn = Figure(figsize=(6.4, 2.9), layout="constrained")
    axes = drawn.subplots()
    x = np.array([1.0, THRESHOLD, THRESHOLD, 2.0])
    axes.plot(x, [1, 1, 2, 2], color=drawing.INK, lw=1.4)
    zone = max(REFERENCE, CANDIDATE + SHIFT)
    axes.axvspan(THRESHOLD - zone, THRESHOLD + zone, color=drawing.BAD, alpha=0.14, lw=0)
    axes.text(THRESHOLD, 2.22, "tie zone: only here\ncodes may differ", ha="center", size=9)
    axes.axvline(THRESHOLD, color=drawing.MUTED, lw=0.8, ls=":")
    axes.text(THRESHOLD + 0.01, 0.62, "threshold", size=9, color=drawing.MUTED)
    bars = (
        (1.62, IDEAL, REFERENCE, drawing.REFERENCE, "reference, as executed"),
        (1.42, IDEAL + SHIFT, CANDIDATE, drawing.CANDIDATE, "candidate, as executed"),
    )
    for height, middle, error, colour, label in bars:
        axes.errorbar(middle, height, xerr=error, color=colour, marker="o", ms=4, capsize=3)
        axes.text(middle - error - 0.015, height, label, ha="right", va="center", size=9)
    axes.plot([IDEAL, IDEAL], [0.85, 1.62], color=drawing.MUTED, lw=0.8, ls="--")
    axes.text(IDEAL, 0.72, "what the reference means", ha="right", size=9)
    axes.annotate(
        "", (IDEAL, 1.2), (IDEAL + SHIFT, 1.2), arrowprops={"arrowstyle": "<->", "lw": 0.8}
    )
    axes.text(IDEAL + SHIFT + 0.01, 1.17, "shift", size=9)
    axes.set_xlim(0.95, 2.05)
    axes.set_ylim(0.55, 2.65)
    axes.set_yticks([1, 2])
    axes.set_ylabel("code")
    axes.set_xlabel("number before rounding (steps)")
    axes.grid(visible=False)
    return drawn


if __name__ == "__main__":
    with drawing.themed(opaque=True):
        file = io.StringIO()
        figure().savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    drawn = re.sub(r"\s*<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    OUT.write_text(re.sub(r"<!DOCTYPE.*?>\n", "", drawn, flags=re.DOTALL))
