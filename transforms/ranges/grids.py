"""FakeQuantize nodes, the grids of their ranges, and the largest change of outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.errors import OperatorError
from qgraph.graph.schema import OpKey
from qgraph.model import Model
from qgraph.numerics import Float32, Float64
from qgraph.numerics.float32 import from_keys
from qgraph.ops.definitions import fake_quantize
from qgraph.ops.steps import TO_FLOAT32
from qgraph.proof.functions.divisions import plateaus
from qgraph.proof.functions.expression import Builder, Expr, evaluate
from qgraph.proof.functions.search import MAX_BOXES
from qgraph.quantizers.dialects.dialect import DIALECTS, Refusal, Site
from qgraph.quantizers.quantizer import Ranged
from qgraph.reasons import UNSUITED_RANGE, UNSUPPORTED_TYPE, ExplainedReason, explained
from qgraph.records import dataclass, replace

_FAR_LESS = 2.0**-6


@dataclass(frozen=True, eq=False)
class FakeQuantize:
    """A FakeQuantize node whose input range runs from a lower to a higher number.

    Attributes:
        site: the node alone, as a site.
    """

    site: Site
    ranged: Ranged

    @property
    def node(self) -> ir.Node:
        """The node itself."""
        return self.site.root

    @property
    def ends(self) -> tuple[Float32, Float32, Float32, Float32]:
        """Input low and high, output low and high."""
        return ends_of(self.ranged)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the node."""
        return {name: attribute.value for name, attribute in self.node.attributes.items()}

    @property
    def signed_offset(self) -> int:
        """Difference of unsigned and signed codes: half of the levels, rounded down."""
        return self.ranged.levels // 2


def ends_of(ranged: Ranged) -> tuple[Float32, Float32, Float32, Float32]:
    """Return input low and high, output low and high."""
    return ranged.input_low, ranged.input_high, ranged.output_low, ranged.output_high


def fake_quantizes(model: Model) -> Iterator[FakeQuantize | Refusal]:
    """Yield every FakeQuantize of a model, in subgraphs and functions too, in topological order.

    A refusal is yielded for a node that cannot be read, is not float32, or whose input range is
    reversed, a point or not finite.
    """
    dialect = DIALECTS.find("openvino")
    for node in model.nodes("FakeQuantize"):
        if OpKey.of(node) not in dialect.roots:
            continue
        try:
            site = dialect.read(node)
        except OperatorError as error:
            yield Refusal(node, str(error))
            continue
        if not isinstance(site, Site) or not isinstance(site.quantizer, Ranged):
            if isinstance(site, Refusal):
                yield site
            continue
        reason = _other_type(node) or _ill(site.quantizer)
        if reason is None:
            yield FakeQuantize(site, site.quantizer)
        else:
            yield Refusal(node, explained(reason, UNSUITED_RANGE))


def _other_type(node: ir.Node) -> ExplainedReason | None:
    """Return why a node does not compute in float32, or None."""
    for value in node.inputs:
        if value is not None and value.dtype not in (None, ir.DataType.FLOAT):
            text = f"{value.name!r} is {value.dtype.name}; only float32 is supported; "
            text += f"{TO_FLOAT32}, or use the pass convert"
            return UNSUPPORTED_TYPE(text)
    return None


def _ill(ranged: Ranged) -> str | None:
    """Return why a range cannot be divided into equal steps, or None."""
    low, high = ranged.input_low, ranged.input_high
    if (low == high).any():
        return (
            f"its input range is a point, {_first(low, low == high)}, so it has no scale; use the "
            f"pass convert, which keeps its single step"
        )
    if (low > high).any():
        return (
            f"its input range is reversed, from {_first(low, low > high)} down to "
            f"{_first(high, low > high)}, which is not a uniform quantizer; swap its ends if that "
            f"is intended"
        )
    if not all(np.isfinite(end).all() for end in ends_of(ranged)):
        return "an end of its ranges is not a finite number; correct the model's exporter"
    with np.errstate(over="ignore"):
        widths = high - low, ranged.output_high - ranged.output_low
    if not all(np.isfinite(width).all() for width in widths):
        return "the width of a range exceeds float32, so its outputs are NaN; narrow it"
    return None


def _first(array: Float32, chosen: npt.NDArray[np.bool_]) -> str:
    return f"{np.broadcast_to(array, chosen.shape)[chosen][0]:.7g}"


@dataclass(frozen=True, eq=False)
class CodeGrid:
    """The levels of a range, ``(code - zero_point) * scale``.

    Computed in float64, in which sums and products of float32 limits and codes are exact.

    Attributes:
        scale: real units per step; negative if the range is reversed, 0 if it is a point.
        zero_point: unsigned code of the real zero, possibly fractional.
    """

    scale: Float64
    zero_point: Float64

    @classmethod
    def of(cls, low: Float32, high: Float32, levels: int) -> CodeGrid:
        """Return the grid of a range, ``scale = (high - low) / (levels - 1)``."""
        wide = low.astype(np.float64), high.astype(np.float64)
        scale = (wide[1] - wide[0]) / (levels - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return cls(scale, (0.0 - wide[0]) / scale)  # 0, never -0


def whole_zero_point(low: Float32, high: Float32, levels: int) -> Float64 | None:
    """Return the zero points of a range if all of them are integers, else None.

    A zero point is whole if ``low`` is a whole number of steps below zero, within one unit in the
    last place of the wider limit. This unit must be far less than a step. Zero then lies on a
    level.
    """
    grid = CodeGrid.of(low, high, levels)
    if not np.isfinite(grid.zero_point).all():
        return None
    zero_point = np.rint(grid.zero_point)
    off = np.abs(low + zero_point * grid.scale)
    last_place = np.spacing(np.maximum(np.abs(low), np.abs(high)))
    if (off > last_place).any() or (last_place > _FAR_LESS * np.abs(grid.scale)).any():
        return None
    return zero_point if ((zero_point >= 0) & (zero_point < levels)).all() else None


def codes_of(fake: FakeQuantize) -> Float64 | None:
    """Return the zero points of the output codes of a quantize-only FakeQuantize.

    Its output range is that of its codes: ``output_low`` is whole, and the step between levels is
    1. The zero point is ``-output_low``. None for other quantizers.
    """
    low = fake.ranged.output_low.astype(np.float64)
    if (low != np.rint(low)).any() or (
        fake.ranged.output_high.astype(np.float64) - low != fake.ranged.levels - 1
    ).any():
        return None
    return -low


def span_text(values: npt.NDArray[Any]) -> str:
    """Return a short text of the values of all channels: ``128`` or ``3..5``."""
    low, high = (f"{value + 0.0:.7g}" for value in (values.min(), values.max()))
    return low if low == high else f"{low}..{high}"


def range_text(low: Float32, high: Float32) -> str:
    """Return a short text of a range; for several channels, their smallest and largest limit."""
    return f"[{low.min() + 0.0:.7g}, {high.max() + 0.0:.7g}]"


@dataclass(frozen=True)
class LargestChange:
    """The largest distance of two functions.

    Attributes:
        steps: the largest distance, in steps of the output of the first function.
        size: the largest distance in real units; if steps differ, possibly in another channel.
        input, before, after: that input, and the results of the two functions.
    """

    steps: float
    size: float
    channel: int
    input: float
    before: float
    after: float

    def text(self) -> str:
        """Return the size and the input as text."""
        steps = f"{self.steps:.4g}"
        unit = "step" if steps == "1" else "steps"
        return (
            f"{steps} {unit} (input {self.input:.9g}: {self.before:.9g} becomes {self.after:.9g})"
        )


NO_CHANGE = LargestChange(0.0, 0.0, 0, 0.0, 0.0, 0.0)


def largest_change(
    table: Float32,
    levels: int,
    after: Callable[[Float32, Float32], Float32],
    *,
    others: int = 0,
    inside: bool = False,
) -> LargestChange:
    """Return the largest difference of a FakeQuantize and another function, and its input.

    The result is exact for all finite float32 inputs: a FakeQuantize is constant on each plateau,
    and the other function is monotone there, so the largest distance is at an end of a plateau.

    Args:
        table: ``[channels, 4 + others + n]``: input low and high, output low and high of the
            FakeQuantize, ``others`` points at which the other function may fail to be monotone, and
            parameters of that function.
        levels: of the FakeQuantize.
        after: ``after(x, row)`` gives the values of the other function at ``x`` ``[n]``, by a row
            of the table. It is monotone between the points, the one after each point included.
        others: number of these points.
        inside: search only inputs within the input range.
    """
    rows, first = np.unique(table, axis=0, return_index=True)
    ranges, index = np.unique(rows[:, :4], axis=0, return_inverse=True)
    ends = _plateau_ends(ranges, levels)
    widest = NO_CHANGE
    for row, channel, k in zip(rows, first, index.reshape(-1), strict=True):
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
        most = max(widest.size, float(size.max()))
        at = int(np.argmax(np.where(np.isnan(steps), np.inf, steps)))
        if not steps[at] <= widest.steps:
            values = (float(array[at]) for array in (x, reference, candidate))
            widest = LargestChange(float(steps[at]), most, int(channel), *values)
        widest = replace(widest, size=most)
    return widest


def fake_quantize_expression(row: Float32, levels: int) -> Expr:
    """Return FakeQuantize with ranges ``[4]`` or ``[4, channels]`` as an expression."""
    builder = Builder()
    expression: Expr = fake_quantize.define(
        builder, builder.input, *row, levels=levels, auto_broadcast="numpy"
    )
    return expression


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
