"""Scales, zero points and codes of float weights, and the quantization error.

Weights come as tiles ``[rows, groups, size, columns]``: each group of ``size`` elements has one
scale. Everything is float32 and computed in place, so that a tile stays in the cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qgraph.errors import Choice
from qgraph.numerics import ArrayOf, Float32
from qgraph.numerics.formats import FORMATS, IntFormat, numpy_dtype
from qgraph.numerics.minifloat import MINIFLOATS, cast, decode, encode, floor_power_of_two
from qgraph.records import dataclass

Codes = ArrayOf[np.uint8]

E8M0 = "FLOAT8E8M0"
E4M3 = "FLOAT8E4M3FN"

ONE = np.float32(1)
_SMALLEST_E8M0 = np.float32(2.0**-127)
_SMALLEST_E4M3 = np.float32(2.0**-9)
_LARGEST_E4M3 = np.float32(448)

_SHORT = 64
"""Group size below which transposing is faster."""


class ScaleSearch(Choice):
    """Method to choose the scale of a group."""

    MINMAX = "minmax"
    """The largest magnitude has the largest code, so nothing is clipped."""

    MSE = "mse"
    """The scale with the least squared error, among dozens of candidates 4% apart."""


@dataclass(frozen=True)
class Scheme:
    """Quantization scheme of a weight.

    Attributes:
        codes: ONNX type of the codes.
        symmetric: whether the code of real zero is the middle code: 0, or 2**(bits - 1) if
            unsigned.
        scales: ONNX type of stored scales. FLOAT8E8M0 is a power of two as the microscaling
            formats choose it, FLOAT8E4M3FN counts in units of one float32 number per tensor.
        result: ONNX type of the decoded values.
    """

    codes: str
    symmetric: bool = True
    search: ScaleSearch = ScaleSearch.MINMAX
    scales: str = "FLOAT"
    result: str = "FLOAT"

    @property
    def has_zero_point(self) -> bool:
        """Whether zero points are stored: they differ, or are not 0."""
        form = FORMATS[self.codes]
        return isinstance(form, IntFormat) and not (form.signed and self.symmetric)

    @property
    def may_clip(self) -> bool:
        """Whether weights may be clipped: not if the largest magnitude determines the scale."""
        return not self.symmetric or self.search is ScaleSearch.MSE or self.scales != "FLOAT"


@dataclass(frozen=True, eq=False)
class Parameters:
    """Scale and zero point of each group; they broadcast to the tile.

    Attributes:
        scale: real units per step, as stored for DequantizeLinear, in float32.
        zero_point: code of the real zero; None for 0.
    """

    scale: Float32
    zero_point: Float32 | None = None

    def cut(self, at: slice) -> Parameters:
        """Return the parameters of some groups."""
        point = self.zero_point
        return Parameters(self.scale[:, at], None if point is None else point[:, at])


@dataclass
class Losses:
    """Error of the codes of a weight, or of a part of it.

    Attributes:
        signal: sum of the squares of the weights.
        noise: sum of the squares of the errors.
        worst: largest magnitude of an error, in real units.
        worst_steps: the same in units of the scale.
        clipped: number of weights beyond the range of the codes.
        lowest_scale, highest_scale: range of the scales.
        finite: whether all weights are finite.
    """

    signal: float = 0.0
    noise: float = 0.0
    worst: float = 0.0
    worst_steps: float = 0.0
    clipped: int = 0
    lowest_scale: float = float("inf")
    highest_scale: float = 0.0
    finite: bool = True

    def add(self, other: Losses) -> None:
        """Add the losses of another part."""
        self.signal += other.signal
        self.noise += other.noise
        self.worst = max(self.worst, other.worst)
        self.worst_steps = max(self.worst_steps, other.worst_steps)
        self.clipped += other.clipped
        self.lowest_scale = min(self.lowest_scale, other.lowest_scale)
        self.highest_scale = max(self.highest_scale, other.highest_scale)
        self.finite = self.finite and other.finite

    @property
    def sqnr(self) -> float:
        """Signal to quantization noise ratio in dB; infinite if nothing has changed."""
        if self.noise == 0:
            return float("inf")
        return float(10 * np.log10(self.signal / self.noise)) if self.signal else float("-inf")


def extremes(w: Float32, axes: tuple[int, ...], y: Float32) -> tuple[Float32, Float32]:
    """Return the smallest and the largest weight of each group, 0 included.

    Both have length 1 along ``axes``. ``y``, in the shape of ``w``, is overwritten.
    """
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(w.shape))
    if axes == (2,) and w.shape[-1] == 1 and 1 < w.shape[2] <= _SHORT:
        # Loops over few elements are slow: groups become columns.
        columns = y.reshape(w.shape[2], -1)
        np.copyto(columns, w.reshape(-1, w.shape[2]).T)
        w, axes = columns, (0,)
    zero = np.float32(0)
    low = np.min(w, axis=axes, initial=zero).reshape(shape)
    return low, np.max(w, axis=axes, initial=zero).reshape(shape)


def spanned(low: Float32, high: Float32, scheme: Scheme) -> tuple[Float32, Float32]:
    """Return the range that codes must cover: minus to plus the larger magnitude if symmetric."""
    if not scheme.symmetric:
        return low, high
    largest = np.maximum(-low, high)
    return -largest, largest


def unit_of(high: float, scheme: Scheme) -> np.float32:
    """Return the unit of E4M3 scales, so that the largest magnitude has the largest scale.

    It is the largest weight divided by the largest code and the largest E4M3 number, or 1.
    """
    largest = np.float32(FORMATS[scheme.codes].hi) * _LARGEST_E4M3
    unit = np.float32(high) / largest
    return unit if unit > 0 else ONE


def parameters(
    low: Float32, high: Float32, scheme: Scheme, unit: np.float32 = ONE, factor: npt.ArrayLike = 1.0
) -> Parameters:
    """Return scale and zero point for weights from ``low`` to ``high``.

    symmetric   scale = high / largest code
    otherwise   scale = high / codes - low / codes, zero point = round(lowest code - low / scale)
    E8M0        scale = 2**(floor(log2(high)) - floor(log2(largest code)))
    E4M3        scale = E4M3(high / largest code / unit) * unit

    The ends are those of :func:`spanned`, and the unit that of :func:`unit_of`. The scale is
    multiplied by ``factor`` before it is stored.

    Source: scales of E8M0: OCP Microscaling Formats specification, version 1.0, section 6.3.
    """
    form = FORMATS[scheme.codes]
    scaled = np.asarray(factor, np.float32)
    if scheme.scales == E8M0:
        top = floor_power_of_two(np.float32(form.hi))
        power = floor_power_of_two(high) / top * scaled
        return Parameters(np.clip(power, _SMALLEST_E8M0, np.float32(2.0**127)))
    if not isinstance(form, IntFormat) or scheme.symmetric:
        # The most negative code of a signed type has no counterpart and stays unused.
        middle = 1 << (form.bits - 1) if isinstance(form, IntFormat) and not form.signed else 0
        steps = high / np.float32(form.hi - middle) * scaled
        scale = _stored(steps, scheme, unit)
        return Parameters(scale, np.full_like(scale, middle) if middle else None)
    count = np.float32(form.hi - form.lo)
    scale = _stored((high / count - low / count) * scaled, scheme, unit)
    zero_point = np.rint(np.float32(form.lo) - low * scaled / scale)
    return Parameters(scale, np.clip(zero_point, np.float32(form.lo), np.float32(form.hi)))


def _stored(scale: Float32, scheme: Scheme, unit: np.float32) -> Float32:
    """Return scales, rounded to their storage type; 1 for a group of zeros."""
    if scheme.scales == E4M3:
        with np.errstate(over="ignore"):
            counted = np.maximum(cast(scale / unit, E4M3), _SMALLEST_E4M3)
        return counted * unit
    if scheme.scales != "FLOAT":
        dtype = numpy_dtype(scheme.scales)
        with np.errstate(over="ignore"):
            scale = scale.astype(dtype).astype(np.float32)
        # Beyond the type: the largest scale there is, so that large weights are clipped.
        largest = np.float32(np.nextafter(dtype.type(np.inf), dtype.type(0)))
        np.copyto(scale, largest, where=np.isinf(scale))
    return np.where(scale > 0, scale, ONE)


def quantize(
    w: Float32, chosen: Parameters, scheme: Scheme, y: Float32, codes: Codes | None = None
) -> int:
    """Write codes, and their decoded values into ``y``; return the number of clipped weights.

    integers    code = clip(round_half_even(w / scale) + zero_point)
    minifloats  code = the nearest one to w / scale, saturating
    y = (code - zero_point) * scale                        rounded to the type of the result

    ``y`` and ``codes`` have the shape of ``w``, and the chosen parameters broadcast to it. Without
    ``codes``, ``y`` is in float32, and nothing is counted.
    """
    form, clipped = FORMATS[scheme.codes], 0
    counts = scheme.may_clip and codes is not None
    np.divide(w, chosen.scale, out=y)
    if isinstance(form, IntFormat):
        np.rint(y, out=y)
        # Adding and subtracting takes half the time of limits that vary.
        if chosen.zero_point is not None:
            np.add(y, chosen.zero_point, out=y)
        lo, hi = np.float32(form.lo), np.float32(form.hi)
        if counts:
            clipped = int(np.count_nonzero(y < lo)) + int(np.count_nonzero(y > hi))
        np.clip(y, lo, hi, out=y)
        if codes is not None:
            np.copyto(codes.view(np.int8) if form.signed else codes, y, casting="unsafe")
        if chosen.zero_point is not None:
            np.subtract(y, chosen.zero_point, out=y)
    else:
        if counts:
            # Up to half a step more is rounded to the largest number, not clipped.
            top = np.float32(form.hi + MINIFLOATS[scheme.codes].step_below(form.hi) / 2)
            clipped = int(np.count_nonzero(y > top)) + int(np.count_nonzero(y < -top))
        if codes is None:
            cast(y, scheme.codes, out=y)
        else:
            encoded = encode(y, scheme.codes)
            codes[...] = encoded.view(np.uint8)
            decode(encoded, y)
    np.multiply(y, chosen.scale, out=y)
    if codes is not None and scheme.result != "FLOAT":
        np.copyto(y, y.astype(numpy_dtype(scheme.result)), casting="unsafe")
    return clipped


def measure(w: Float32, y: Float32, chosen: Parameters, clipped: int) -> Losses:
    """Return the error of codes that decode to ``y``; ``y`` is overwritten."""
    np.subtract(y, w, out=y)
    flat = y.reshape(-1)
    lost = float(np.dot(flat, flat))
    np.abs(y, out=y)
    scale = chosen.scale
    if scale.ndim == y.ndim and y.shape[-1] > 1:
        spread = tuple(axis for axis in range(y.ndim) if scale.shape[axis] == 1)
        y = y.max(axis=spread, keepdims=True)
    worst = float(y.max(initial=0))
    steps = float(np.divide(y, scale, out=y).max(initial=0))
    ends = float(scale.min(initial=np.inf)), float(scale.max(initial=0))
    return Losses(0.0, lost, worst, steps, clipped, *ends)
