"""Find scales that no conversion may carry over."""

from __future__ import annotations

import numpy as np

from qgraph.quantizers.quantizer import Quantizer, Ranged, Unnamed
from qgraph.reasons import FAULTY_SCALE, ExplainedReason


def unhealthy(quantizer: Quantizer) -> ExplainedReason | None:
    """Return why the scale of a quantizer is invalid (zero, NaN, ...), or None."""
    if isinstance(quantizer, Ranged | Unnamed):
        return None
    if quantizer.scale.all() and np.isfinite(quantizer.scale).all():
        return None
    for value, word in ((0.0, "zero"), (np.nan, "NaN"), (np.inf, "infinite")):
        same = np.isnan(quantizer.scale) if np.isnan(value) else np.abs(quantizer.scale) == value
        if same.any():
            return FAULTY_SCALE(
                f"its scale is {word}, a fault that conversions do not carry over; "
                "correct it, or export the model again with calibrated ranges"
            )
    return None
