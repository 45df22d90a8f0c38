"""Find quantized values whose codes are small, so that no sum of two products exceeds 16 bits."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from qgraph.inventory.description import descriptions
from qgraph.quantizers.dialects.dialect import Refusal, Site


def narrow_values(
    model: ir.Model, largest: int, found: Iterable[Site | Refusal] | None = None
) -> set[ir.Value]:
    """Return the results of quantizers whose used codes are in the safe range, from real zero.

    Args:
        model: the model.
        largest: the largest safe number, a power of two: 64 for codes from -64 to 63.
        found: what :func:`qgraph.quantizers.sites.sites` yields for the model; None to find it.
    """
    bits = largest.bit_length()
    safe = {f"{sign}int{n + (sign == '')}" for sign in ("", "u") for n in range(1, bits)}
    every = descriptions(model, found)
    return {each.y for each in every if each.y is not None and each.description.format in safe}
