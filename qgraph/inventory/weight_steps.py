"""The range of the codes of a weight, which is read piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qgraph.graph.streaming import Stream, box_at
from qgraph.numerics import Array, blocks
from qgraph.numerics.formats import FORMATS, container
from qgraph.quantizers.dialects.dialect import Site
from qgraph.quantizers.weights.level_table import numbers_of
from qgraph.quantizers.weights.piecewise import ElementProgram, Parameter, pieces

_PIECE = 1 << 17
"""Elements at a time; smaller weights are quantized at once."""

_KINDS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", *FORMATS)


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
        """Count in ``values / scale + offset``."""
        steps = np.asarray(values.astype(np.float32, copy=False) / scale)
        if offset.any():
            steps += offset
        np.rint(steps, out=steps)
        low, high = steps.min(), steps.max()
        self.low, self.high = float(np.minimum(self.low, low)), float(np.maximum(self.high, high))
        if self.has_signs_only:
            within = bool(low >= -1 and high <= 1)
            self.has_signs_only = within and bool(np.abs(steps, out=steps).all())


def step_range(site: Site, scale: Array, offset: Array) -> StepRange | None:
    """Return the range of the quantized values of a weight, in steps.

    None is returned for a quantizer without a weight, or an empty one.

    Args:
        site: the quantizer.
        scale: real units per step; broadcasts to the weight.
        offset: is added to the steps; broadcasts to the weight.
    """
    found, weight = StepRange(), site.weight
    if weight is None or not weight.size:
        return None
    shape, program = weight.shape, None
    fits = all(blocks.fits(array.shape, shape) for array in (scale, offset))
    if weight.size > _PIECE and fits and weight.kind in _KINDS:
        program = ElementProgram.of(site.nodes, site.x, site.y, shape)
    with np.errstate(all="ignore"):
        if program is None:
            values = site.values
            if values is None or not values.size:
                return None
            found.add(values, scale, offset)
            return found
        scales, offsets = Parameter(scale, shape), Parameter(offset, shape)
        for start, values in _values(weight, program):
            box = box_at(shape, start, values.size)
            found.add(values.reshape(box[1]), scales.at(*box), offsets.at(*box))
    return found


def _values(weight: Stream, program: ElementProgram) -> Iterator[tuple[int, Array]]:
    """Yield the results of a program for boxes of a weight, each with its first place."""
    buffer = np.empty(_PIECE, weight.dtype)
    for start, stop in pieces([weight.shape, *program.shapes], 0, weight.size, _PIECE):
        data = weight.read(start, stop, buffer[: stop - start])
        if weight.kind in FORMATS:
            data = numbers_of(data.view(container(weight.kind)), weight.kind)
        yield start, program(data, start)
