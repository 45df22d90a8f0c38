"""Find the range of the codes of a weight, which is read piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qgraph.graph.streaming import Stream, box_at
from qgraph.numerics import Array, blocks
from qgraph.numerics.formats import FORMATS, IntFormat, container
from qgraph.ops.steps import element_type
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.quantizer import Affine
from qgraph.quantizers.weights.level_table import numbers_of
from qgraph.quantizers.weights.piecewise import ElementProgram, Parameter, pieces

_PIECE = 1 << 17
"""Number of elements at a time; smaller weights are quantized at once."""

_KINDS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", *FORMATS)

_MOST_BITS = 16
"""Maximum bits of codes that can be recovered from decoded values, for any scale."""


@dataclass
class StepRange:
    """Steps of a scale, each rounded to an integer.

    Attributes:
        low, high: the smallest and the largest one; NaN if there is one.
        has_signs_only: whether all are -1 or 1.
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
    """Return the range of the quantized values of a weight, in steps.

    None is returned for a quantizer without a weight, or an empty one.

    Args:
        site: the quantizer.
        scale: real units per step; one of its parameters, or broadcasts to the weight.
        offset: added to the steps; likewise.
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
