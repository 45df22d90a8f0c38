"""Decoding of stored codes, as chains of steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.quantizer import Affine, Ranged, Recipe
from qgraph.recognition.ranged import summand
from qgraph.recognition.sides import Outward, float32, is_bounded, number
from qgraph.recognition.steps import End, Step


def stored(plain: Sequence[Step], codes: str) -> Affine | Ranged | None:
    """Read ``(code - zero_point) * scale``, or ``code / top * span + low``."""
    kind = FORMATS.get(codes)
    ends = [step for step in plain if isinstance(step, End)]
    after = Outward.of([step for step in plain if not isinstance(step, End)])
    if after is None or after.scale is None or not isinstance(kind, IntFormat):
        return None
    if is_bounded(after.real):
        return None
    if after.top is not None:
        levels = number(after.top)
        if levels is None or levels < 1:
            return None
        high = ends[0].value if ends else summand(after.low, after.scale)
        low, high = float32(after.low), float32(high)
        # What is put in the place of codes above the range lies above it.
        last = np.nextafter(high, low) if ends else high
        return Ranged(low, last, low, high, int(levels) + 1)
    if ends or after.added.any():
        return None
    lo, hi = np.maximum(after.codes[0], kind.lo), np.minimum(after.codes[1], kind.hi)
    return Affine(
        float32(after.scale),
        float32(after.taken),
        float32(lo),
        float32(hi),
        recipe=Recipe.ROUND_FIRST,
    )
