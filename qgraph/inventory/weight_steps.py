"""Scale, zero point and range of the codes of a quantizer; weights are read piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qgraph.graph.schema import element_type
from qgraph.graph.streaming import Stream, box_at
from qgraph.numerics import Array, blocks
from qgraph.numerics.formats import FORMATS, IntFormat, container
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine, Bipolar, Ranged
from qgraph.quantizers.weights.level_table import numbers_of
from qgraph.quantizers.weights.piecewise import ElementProgram, Parameter, pieces
from qgraph.records import dataclass

_PIECE = 1 << 17
"""Number of elements at a time; smaller weights are quantized at once."""

_KINDS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", *FORMATS)

_MOST_BITS = 16
"""Maximum bits of codes that can be recovered from decoded values, for any scale."""


@dataclass
class StepRange:
    """Smallest and largest of steps of a scale, each rounded to an integer; NaN if there is one.

    ``has_signs_only`` says whether all are -1 or 1.
    """

    low: float = np.inf
    high: float = -np.inf
    has_signs_only: bool = True

    def add(self, values: Array, scale: Array, offset: Array) -> None:
        """Add the steps ``values / scale + offset``."""
        steps = np.asarray(values.astype(np.float32, copy=False) / scale)
        if offset.any():
            steps += offset
        np.rint(steps, out=steps)
        self.add_whole(steps)

    def add_whole(self, steps: Array) -> None:
        """Add whole numbers."""
        low, high = steps.min(), steps.max()
        self.low, self.high = float(np.minimum(self.low, low)), float(np.maximum(self.high, high))
        if self.has_signs_only:
            self.has_signs_only = bool(low >= -1 and high <= 1) and bool(steps.all())


def step_range(site: Site, scale: Array, offset: Array) -> StepRange | None:
    """Return the range of the quantized values of a weight, in steps: values / scale + offset.

    None is returned for a quantizer without a weight, or an empty one. The scale, in real units per
    step, and the offset are parameters of the quantizer, or broadcast to the weight.
    """
    steps, weight = StepRange(), site.weight
    if weight is None or not weight.size:
        return None
    point = _zero_point_of_codes(site, weight, scale, offset)
    if point is not None:
        _add_codes(site, weight, point.astype(np.int32), steps)
        return steps
    shape, program, repeats = weight.shape, None, site.repeats
    fits = repeats or all(blocks.fits(array.shape, shape) for array in (scale, offset))
    if weight.size > _PIECE and fits and weight.kind in _KINDS:
        program = ElementProgram.of(site.nodes, site.x, site.y, shape)
    with np.errstate(all="ignore"):
        if program is None:
            values = site.values
            if values is None or not values.size:
                return None
            spread = [
                array if repeats is None else repeats.spread(array) for array in (scale, offset)
            ]
            steps.add(values, *spread)
            return steps
        scales, offsets = _parameter(scale, site, weight), _parameter(offset, site, weight)
        for start, values in _values(weight, program):
            box = box_at(shape, start, values.size)
            steps.add(values.reshape(box[1]), scales.at(*box), offsets.at(*box))
    return steps


def _parameter(array: Array, site: Site, weight: Stream) -> Parameter:
    repeats = None if array.size == 1 else site.repeats
    along = () if repeats is None else (repeats.axis, repeats.block_size)
    return Parameter(array, weight.shape, *along)


def _zero_point_of_codes(site: Site, weight: Stream, scale: Array, offset: Array) -> Array | None:
    """Return the zero point if the steps of stored codes are the codes minus it; None if not.

    ``(code - zero_point) * scale``, divided by the scale, is off by less than 2**-22 of itself if
    nothing overflows, and a product of an integer that is subnormal is exact.
    """
    meaning, (node, *others) = site.meaning, site.nodes
    form = FORMATS.get(weight.kind)
    if others or node.op_type != "DequantizeLinear" or not isinstance(form, IntFormat):
        return None
    if form.bits > _MOST_BITS or not isinstance(meaning, Affine) or meaning.scale is not scale:
        return None
    stated = element_type(node.inputs[1]) or ir.DataType.FLOAT
    result = ir.DataType(node.attributes.get_int("output_dtype", 0)) or stated
    largest = np.float32(1 << form.bits) * np.abs(scale)
    if result != ir.DataType.FLOAT or offset.any() or not (scale != 0).all():
        return None
    return meaning.zero_point if np.isfinite(largest).all() else None


def _add_codes(site: Site, weight: Stream, point: Array, collected: StepRange) -> None:
    """Add codes minus their zero points, until no further code can change the range."""
    form = FORMATS[weight.kind]
    ends = form.lo - int(point.max()), form.hi - int(point.min())
    points = _parameter(point, site, weight)
    buffer = np.empty(min(_PIECE, weight.size), weight.dtype)
    for start, stop in pieces([weight.shape], 0, weight.size, _PIECE):
        data = weight.read(start, stop, buffer[: stop - start])
        steps = numbers_of(data.view(container(weight.kind)), weight.kind)
        if point.any():
            box = box_at(weight.shape, start, steps.size)
            steps = steps.reshape(box[1]).astype(np.int32) - points.at(*box)
        collected.add_whole(steps)
        if (collected.low, collected.high) == ends and not collected.has_signs_only:
            return


def _values(weight: Stream, program: ElementProgram) -> Iterator[tuple[int, Array]]:
    """Yield the results of a program for boxes of a weight, each with its first index."""
    buffer = np.empty(_PIECE, weight.dtype)
    for start, stop in pieces([weight.shape, *program.shapes], 0, weight.size, _PIECE):
        data = weight.read(start, stop, buffer[: stop - start])
        if weight.kind in FORMATS:
            data = numbers_of(data.view(container(weight.kind)), weight.kind)
        yield start, program(data, start)


def narrowest_format(steps: StepRange) -> tuple[str, int | None]:
    """Return the narrowest format that can represent the integers, and its bits."""
    least, most = steps.low, steps.high
    if steps.has_signs_only and (least, most) == (-1, 1):
        return "bipolar", 1
    if not (math.isfinite(least) and math.isfinite(most)):
        return "not finite", None
    for bits in range(1, 33):
        form = IntFormat(bits, least < 0)
        if form.lo <= least and most <= form.hi:
            return form.name.lower(), bits
    return f"{least:.0f} .. {most:.0f}", None


NOISE = 2.0**-21  # error of a zero point given by two rounded limits of FakeQuantize, in ranges


def used_steps(site: Site) -> StepRange | None:
    """Return the range of the codes of a constant, from that of real zero; None without steps."""
    scale = scale_of(site)
    return None if scale is None else step_range(site, scale, fraction(zero_point_of(site)))


@np.errstate(all="ignore")
def fraction(zero_point: Array) -> Array:
    """Return by how much a zero point lies above a whole number."""
    return zero_point - np.floor(zero_point)


def scale_of(site: Site) -> Array | None:
    """Return the scale of a quantizer's output, None if it has no steps."""
    match site.meaning:
        case Affine(scale=scale, decoding=decoding):
            return scale if decoding is None else decoding.scale
        case Ranged(output_low=low, output_high=high, levels=levels):
            return of_range(low, high, levels)[0]
        case Bipolar(scale=scale):
            return scale
    return None


def zero_point_of(site: Site) -> Array:
    """Return the zero point of a quantizer's output in codes, 0 if it has none."""
    match site.meaning:
        case Affine(zero_point=zero_point, decoding=decoding):
            return zero_point if decoding is None else decoding.zero_point
        case Ranged(output_low=low, output_high=high, levels=levels):
            return of_range(low, high, levels)[1]
    return np.zeros((), np.float32)


def of_range(low: Array, high: Array, levels: int) -> tuple[Array, Array]:
    """Return the scale and zero point of a range.

    The quotient of rounded limits may miss the scale by an ulp; its neighbours are tried. Only the
    lower limit and the width in float32 are used, because some forms keep only these.
    """
    low, extent = np.broadcast_arrays(low, high - low)
    last = np.float32(levels - 1)
    quotient = extent.astype(np.float64) / last
    near = quotient.astype(np.float32)
    zero_point = (-low / quotient).astype(np.float32)
    whole = np.round(zero_point)
    is_whole = np.abs(zero_point - whole) <= np.float32(levels * NOISE)
    zero_point = np.where(is_whole, whole, zero_point).astype(np.float32)
    scale, is_found = near.copy(), np.zeros(near.shape, bool)
    for other in (near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))):
        least, most = -zero_point * other, (last - zero_point) * other
        fits = (least == low) & (most - least == extent)
        scale = np.where(fits & ~is_found, other, scale)
        is_found |= fits
    return scale, zero_point
