"""Descriptions of quantizers, independent of dialects.

Readers return these parameters, and writers choose forms by them. Two quantizers
with equal parameters may still be two different float functions: ``recipe`` is the order of the
float operations, and every draft is compared with the nodes it replaces.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from qgraph.numerics import Float32
from qgraph.numerics.formats import Minifloat
from qgraph.numerics.rounding import Rounding
from qgraph.reasons import FAULTY_SCALE, ExplainedReason
from qgraph.records import dataclass, replace


class Recipe(StrEnum):
    """Order of the float32 operations of a uniform quantizer."""

    OFFSET_FIRST = "offset-first"
    """``(round(clamp(x / scale + zero_point)) - zero_point) * scale``: Quant."""

    ROUND_FIRST = "round-first"
    """``(clamp(round(x / scale) + zero_point) - zero_point) * scale``: QuantizeLinear."""


@dataclass(frozen=True, eq=False)
class Decoding:
    """Decoding ``real = (code - zero_point) * scale``, if it differs from that of the codes."""

    scale: Float32
    zero_point: Float32


@dataclass(frozen=True, eq=False)
class Affine:
    """A uniform quantizer: ``real = (code - zero_point) * scale``.

    Attributes:
        scale: real units per step; broadcasts to the data.
        zero_point: code of the real zero, possibly fractional; broadcasts to the data.
        lo, hi: smallest and largest code, float32; broadcast to the data.
        rounding: how ``x / scale`` becomes a whole number.
        recipe: where the zero point is added.
        decoding: how codes become real values, if not by ``scale`` and ``zero_point``.
    """

    scale: Float32
    zero_point: Float32
    lo: Float32
    hi: Float32
    rounding: Rounding = Rounding.ROUND
    recipe: Recipe = Recipe.OFFSET_FIRST
    decoding: Decoding | None = None

    @property
    def to_real(self) -> Decoding:
        """Decoding of codes to real values."""
        return self.decoding or Decoding(self.scale, self.zero_point)


@dataclass(frozen=True, eq=False)
class Ranged:
    """A uniform quantizer given by its ranges: FakeQuantize.

    ``q = round((x - input_low) / (input_high - input_low) * (levels - 1))`` and
    ``y = q / (levels - 1) * (output_high - output_low) + output_low``, clamped outside the input
    range. The ranges are real values that broadcast to the data.

    Attributes:
        input_low, input_high: ends of the range that is divided.
        output_low, output_high: values of the lowest and the highest level.
        levels: number of levels.
        decoding: how ``q`` becomes a real value, if not by the output range; then only the limits
            of that range are exact.
    """

    input_low: Float32
    input_high: Float32
    output_low: Float32
    output_high: Float32
    levels: int
    decoding: Decoding | None = None


@dataclass(frozen=True, eq=False)
class Floating:
    """A quantizer to a minifloat grid: ``y = snap(x / scale) * scale``.

    Attributes:
        scale: real units per unit of the format; broadcasts to the data.
        format: grid and largest value.
        rounding: direction of rounding to the grid.
        saturating: whether values beyond the largest become the largest.
    """

    scale: Float32
    format: Minifloat
    rounding: Rounding = Rounding.ROUND
    saturating: bool = True


@dataclass(frozen=True, eq=False)
class Bipolar:
    """The sign of x, zero counting as positive, times ``scale``; no division."""

    scale: Float32


@dataclass(frozen=True, eq=False)
class Truncating:
    """Drops low bits of codes: Trunc.

    ``c = round_half_even(x / scale + zero_point)``, ``q = round(clamp(c / ratio))`` and
    ``y = (q - out_zero_point) * out_scale``.

    Attributes:
        scale, zero_point: grid of the data, up to rounding noise; broadcast to the data.
        ratio: number of steps of the input grid per code, a power of two.
        lo, hi: smallest and largest code; infinite if codes are not clamped.
        rounding: how ``c / ratio`` becomes a whole number.
        out_scale, out_zero_point: how codes become real values.
    """

    scale: Float32
    zero_point: Float32
    ratio: Float32
    lo: Float32
    hi: Float32
    rounding: Rounding
    out_scale: Float32
    out_zero_point: Float32


@dataclass(frozen=True)
class Unnamed:
    """A quantizer known only by its definition, such as a FloatQuant of several formats."""


Quantizer = Affine | Ranged | Floating | Bipolar | Truncating | Unnamed

Part = TypeVar("Part", Affine, Ranged, Floating, Bipolar, Truncating, Decoding)


def arrays_of(part: Quantizer | Decoding) -> list[Float32]:
    """Return the parameters that broadcast to the data, those of ``decoding`` last."""
    arrays: list[Float32] = []
    for value in vars(part).values():
        if isinstance(value, Decoding):
            arrays += arrays_of(value)
        elif isinstance(value, np.ndarray):
            arrays.append(value)
    return arrays


def with_arrays(part: Part, change: Callable[[Float32], Float32]) -> Part:
    """Return the same quantizer with ``change`` applied to each of :func:`arrays_of`."""
    changed: dict[str, Any] = {}
    for name, value in vars(part).items():
        if isinstance(value, Decoding):
            changed[name] = with_arrays(value, change)
        elif isinstance(value, np.ndarray):
            changed[name] = change(value)
    return replace(part, **changed)


def unhealthy(quantizer: Quantizer) -> ExplainedReason | None:
    """Return why the parameters of a quantizer are invalid (a scale of zero, ...), or None."""
    if not all(array.size for array in arrays_of(quantizer)):
        return FAULTY_SCALE("a parameter of it has no elements, as its axis has none; leave it")
    if isinstance(quantizer, Ranged | Unnamed):
        return None
    scale = quantizer.scale
    if scale.size == 1 and 0 < abs(scale.item()) < np.inf:
        return None  # in a tenth of the time
    if scale.all() and np.isfinite(scale).all():
        return None
    for value, word in ((0.0, "zero"), (np.nan, "NaN"), (np.inf, "infinite")):
        same = np.isnan(scale) if np.isnan(value) else np.abs(scale) == value
        if same.any():
            return FAULTY_SCALE(
                f"its scale is {word}, a fault that conversions do not carry over; "
                "correct it, or export the model again with calibrated ranges"
            )
    return None
