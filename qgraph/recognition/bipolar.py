"""Quantizers to two values, as chains of steps."""

from __future__ import annotations

from collections.abc import Sequence

from qgraph.quantizer import Affine, Bipolar
from qgraph.recognition.sides import (
    ONE,
    SAME_SCALE,
    Inward,
    Outward,
    close,
    float32,
    is_bounded,
    same,
)
from qgraph.recognition.steps import Signed, Step


def bipolar(plain: Sequence[Step]) -> Bipolar | Affine | None:
    """Read one of two values by the sign of ``x`` or of ``x / scale + zero_point``."""
    (place, *others) = [i for i, step in enumerate(plain) if isinstance(step, Signed)]
    before, after = Inward.of(plain[:place]), Outward.of(plain[place + 1 :])
    signs = plain[place]
    if others or before is None or after is None or not isinstance(signs, Signed):
        return None
    if is_bounded(after.real):
        return None
    bounds = [*before.real, *before.codes]
    if before.ends or is_bounded(bounds) or after.top is not None or after.added.any():
        return None
    out_scale = ONE if after.scale is None else after.scale
    positive, negative = ((side - after.taken) * out_scale for side in vars(signs).values())
    if before.scale is None:
        return Bipolar(float32(positive)) if same(positive, -negative) else None
    scale, offset = before.scale, before.offset
    for value, sign in ((positive, ONE), (negative, -ONE)):
        if not close(value, (sign - offset) * scale, SAME_SCALE):
            return None
    if not offset.any():
        return Bipolar(float32(scale))
    return Affine(float32(scale), float32(offset), -ONE, ONE)
