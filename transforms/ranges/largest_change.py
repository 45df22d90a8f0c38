"""How far a FakeQuantize and something else are apart at most, over all inputs of a range."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qgraph.ops import fake_quantize
from qgraph.proof.engine import MAX_BOXES
from qgraph.proof.expression import Builder, Expr, evaluate
from qgraph.proof.keys import from_keys
from qgraph.proof.plateaus import plateaus

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Change:
    """The widest distance of two functions.

    Attributes:
        steps: the widest in steps of the output of the first function.
        size: the widest in its real units; where steps differ, it may lie in another channel.
        channel: in which channel ``steps`` occurs.
        input, before, after: for which input, and what the two functions give there.
    """

    steps: float
    size: float
    channel: int
    input: float
    before: float
    after: float

    def text(self) -> str:
        """Return the size and the place in words."""
        steps = f"{self.steps:.4g}"
        unit = "step" if steps == "1" else "steps"
        return (
            f"{steps} {unit} (input {self.input:.9g}: {self.before:.9g} becomes {self.after:.9g})"
        )


NO_CHANGE = Change(0.0, 0.0, 0, 0.0, 0.0, 0.0)


def largest_change(
    table: Float32,
    levels: int,
    after: Callable[[Float32, Float32], Float32],
    *,
    others: int = 0,
    inside: bool = False,
) -> Change:
    """Return where a FakeQuantize and another function of the same input are farthest apart.

    The search is complete over the finite float32 inputs: a FakeQuantize is constant on each of its
    plateaus, so that against a function that is monotone there, the widest distance lies at an end
    of a plateau.

    Args:
        table: ``[channels, 4 + others + n]``: input low and high, output low and high of the
            FakeQuantize, ``others`` points at which the other function may fail to be monotone, and
            parameters of that function.
        levels: of the FakeQuantize.
        after: ``after(x, row)`` gives the values of the other function at ``x`` ``[n]``, by a row
            of the table. It is monotone between the points in the row, the one after the point
            included.
        others: how many of these points there are.
        inside: look only at inputs within the input range.
    """
    rows, first = np.unique(table, axis=0, return_index=True)
    ranges, kind = np.unique(rows[:, :4], axis=0, return_inverse=True)
    ends = _plateau_ends(ranges, levels)
    widest = NO_CHANGE
    for row, channel, k in zip(rows, first, kind.reshape(-1), strict=True):
        breaks = row[4 : 4 + others]
        x = np.concatenate([ends[k], breaks, np.nextafter(breaks, np.float32(np.inf)), row[:2]])
        x = x[np.isfinite(x)]
        x = x[np.argsort(np.abs(x))]  # of equally wide distances, the one nearest to zero is shown
        x = np.clip(x, row[0], row[1]) if inside else x
        step = abs(float(row[3]) - float(row[2])) / (levels - 1)
        reference = evaluate(fake_quantize_expression(row[:4], levels), x)
        with np.errstate(all="ignore"):
            candidate = np.broadcast_to(after(x, row), x.shape)
            size = np.abs(reference.astype(np.float64) - candidate)
            steps = np.where(size == 0, 0.0, size / step)
        place = int(np.argmax(np.where(np.isnan(steps), np.inf, steps)))
        most = max(widest.size, float(size.max()))
        if not steps[place] <= widest.steps:
            values = (float(array[place]) for array in (x, reference, candidate))
            widest = Change(float(steps[place]), most, int(channel), *values)
        widest = replace(widest, size=most)
    return widest


def fake_quantize_expression(row: Float32, levels: int) -> Expr:
    """Return FakeQuantize with ranges ``[4]`` or ``[4, channels]`` as an expression."""
    builder = Builder()
    made: Expr = fake_quantize.define(
        builder, builder.input, *row, levels=levels, auto_broadcast="numpy"
    )
    return made


def _plateau_ends(ranges: Float32, levels: int) -> list[Float32]:
    """Return for each row of distinct ranges the first and last inputs of all its plateaus."""
    # One channel for each row: they are distinct, so that none stands for another.
    steps = plateaus(fake_quantize_expression(ranges.T, levels), max_boxes=MAX_BOXES)
    bounds = np.searchsorted(steps.channel, np.arange(len(ranges) + 1))
    return [
        np.concatenate([from_keys(steps.lo[a:b]), from_keys(steps.hi[a:b])])
        for a, b in itertools.pairwise(bounds)
    ]


def side_by_side(*parameters: Float32) -> Float32:
    """Return a table with a row for each channel and a column for each parameter."""
    shape = np.broadcast_shapes(*(parameter.shape for parameter in parameters))
    columns = [np.broadcast_to(parameter, shape).reshape(-1) for parameter in parameters]
    return np.stack(columns, axis=1)
