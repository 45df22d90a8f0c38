"""FakeQuantize nodes and the grids that their ranges divide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.dialects.dialect import DIALECTS, Refusal, Site
from qgraph.errors import OperatorError
from qgraph.graph.schema import OpKey
from qgraph.model import Model
from qgraph.quantizer import Ranged

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

_FAR_LESS = 2.0**-6

NAMES = ("input_low", "input_high", "output_low", "output_high")


@dataclass(frozen=True, eq=False)
class FakeQuantize:
    """A FakeQuantize node whose input range is from a lower to a higher number.

    Attributes:
        site: the node alone, as a site.
        ranged: its ranges and levels.
    """

    site: Site
    ranged: Ranged

    @property
    def node(self) -> ir.Node:
        """The node itself."""
        return self.site.root

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the node."""
        return {name: attribute.value for name, attribute in self.node.attributes.items()}

    @property
    def signed_offset(self) -> int:
        """What lies between unsigned and signed codes: half of the levels, rounded down."""
        return self.ranged.levels // 2


def fake_quantizes(model: Model) -> Iterator[FakeQuantize | Refusal]:
    """Yield every FakeQuantize of a model, in subgraphs and functions too, in topological order.

    A node that cannot be read, that is not of float32, or whose input range is reversed, a point or
    not finite, is a refusal.
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
        found = FakeQuantize(site, site.quantizer)
        yield found if reason is None else Refusal(node, reason)


def _other_type(node: ir.Node) -> str | None:
    """Return why a node does not compute in float32, or None."""
    for value in node.inputs:
        if value is not None and value.dtype not in (None, ir.DataType.FLOAT):
            return f"{value.name!r} is {value.dtype.name}; only float32 is treated"
    return None


def _ill(ranged: Ranged) -> str | None:
    """Return why a range is not divided into equal steps, or None."""
    low, high = ranged.input_low, ranged.input_high
    if (low == high).any():
        return (
            f"its input range is a point, {_first(low, low == high)}, so that it has no scale; "
            "convert it, which keeps the step that it is"
        )
    if (low > high).any():
        return (
            f"its input range is reversed, from {_first(low, low > high)} down to "
            f"{_first(high, low > high)}, which is no uniform quantizer; exchange its ends if that "
            "is what was meant"
        )
    ends = (low, high, ranged.output_low, ranged.output_high)
    if not all(np.isfinite(end).all() for end in ends):
        return "an end of its ranges is not a finite number; correct the model's exporter"
    with np.errstate(over="ignore"):
        widths = high - low, ranged.output_high - ranged.output_low
    if not all(np.isfinite(width).all() for width in widths):
        return "a range is wider than float32 numbers are, so that its outputs are NaN; narrow it"
    return None


def _first(array: Float32, chosen: npt.NDArray[np.bool_]) -> str:
    return f"{np.broadcast_to(array, chosen.shape)[chosen][0]:.7g}"


@dataclass(frozen=True, eq=False)
class Grid:
    """The levels that a range is divided into, ``(code - zero_point) * scale``.

    In double precision, in which sums and products of float32 ends and codes are exact.

    Attributes:
        scale: real units per step; negative where the range is reversed, 0 where it is a point.
        zero_point: unsigned code of the real zero, possibly fractional.
    """

    scale: Float64
    zero_point: Float64

    @classmethod
    def of(cls, low: Float32, high: Float32, levels: int) -> Grid:
        """Return the grid of a range, ``scale = (high - low) / (levels - 1)``."""
        wide = low.astype(np.float64), high.astype(np.float64)
        scale = (wide[1] - wide[0]) / (levels - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return cls(scale, (0.0 - wide[0]) / scale)  # 0, never -0


def whole_zero_point(low: Float32, high: Float32, levels: int) -> Float64 | None:
    """Return the zero points of a range, or None unless all of them are whole.

    A zero point is whole if ``low`` is that many steps below zero as far as float32 can tell: to
    within one unit in the last place of the wider end, which must be far less than a step. Zero
    then lies on a level.
    """
    grid = Grid.of(low, high, levels)
    if not np.isfinite(grid.zero_point).all():
        return None
    zero_point = np.rint(grid.zero_point)
    off = np.abs(low + zero_point * grid.scale)
    last_place = np.spacing(np.maximum(np.abs(low), np.abs(high)))
    if (off > last_place).any() or (last_place > _FAR_LESS * np.abs(grid.scale)).any():
        return None
    return zero_point if ((zero_point >= 0) & (zero_point < levels)).all() else None


def codes_of(fake: FakeQuantize) -> Float64 | None:
    """Return the zero points of the codes that a quantize-only FakeQuantize has as output.

    That is one whose output range is that of its codes: ``output_low`` is whole, and there is a
    step of 1 between levels. The zero point is ``-output_low``. None for any other.
    """
    low = fake.ranged.output_low.astype(np.float64)
    if (low != np.rint(low)).any() or (
        fake.ranged.output_high.astype(np.float64) - low != fake.ranged.levels - 1
    ).any():
        return None
    return -low


def span_text(values: npt.NDArray[Any]) -> str:
    """Return the values of all channels in short: ``128`` or ``3..5``."""
    low, high = (f"{value + 0.0:.7g}" for value in (values.min(), values.max()))
    return low if low == high else f"{low}..{high}"


def range_text(low: Float32, high: Float32) -> str:
    """Return a range in short; for several channels, the ends of all together."""
    return f"[{low.min() + 0.0:.7g}, {high.max() + 0.0:.7g}]"


def carry_over(old: ir.Node, new: ir.Node) -> None:
    """Give a node the name and the notes of the one that it stands for."""
    new.name, new.doc_string = old.name, old.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)
