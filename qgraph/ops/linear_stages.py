"""The stages of QuantizeLinear: where data lies, and which code that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from qgraph.numerics import Array
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.minifloat import cast
from qgraph.ops import steps
from qgraph.ops.steps import Stages


@dataclass(frozen=True, eq=False)
class _Whole:
    """Codes of an integer type; parameters are scale, zero point, and the ends less that."""

    arrays: tuple[Array, ...]
    ends: tuple[int, int]

    by_upper_half: ClassVar[bool] = False

    @property
    def shift(self) -> int | None:
        """The zero point, which is added after rounding."""
        return 1 if self.arrays[1].any() else None

    def place(self, y: Array, x: Array, *arrays: Array) -> None:
        """Divide by the scale."""
        np.divide(x, arrays[0], out=y)

    def level(self, y: Array, *arrays: Array) -> None:
        """Round, clamp and add the zero point."""
        _, z, lo, hi = arrays
        np.rint(y, out=y)
        np.fmax(y, lo, out=y)  # fmax takes the bound where y is NaN
        np.minimum(y, hi, out=y)
        np.add(y, z, out=y)

    def value(self, y: Array, *arrays: Array) -> None:
        """Do nothing: the result is the code."""

    def levels(self) -> Array:
        """Return all codes."""
        return np.arange(self.ends[0], self.ends[1] + 1, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class _Rounded:
    """Numbers of a minifloat; the only parameter is the scale."""

    arrays: tuple[Array, ...]
    kind: str
    saturate: bool

    by_upper_half: ClassVar[bool] = True
    shift: ClassVar[int | None] = None

    def place(self, y: Array, x: Array, *arrays: Array) -> None:
        """Divide by the scale."""
        np.divide(x, arrays[0], out=y)

    def level(self, y: Array, *arrays: Array) -> None:
        """Round to the format."""
        y[...] = cast(y, self.kind, self.saturate)

    def value(self, y: Array, *arrays: Array) -> None:
        """Do nothing: the result is the number of the code."""

    def levels(self) -> Array | None:
        """Return all numbers of the format."""
        return steps.grid_levels(self.level)


def linear_stages(
    dtype: np.dtype[Any],
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int,
    saturate: bool,
    block_size: int,
    output_dtype: ir.DataType,
    precision: ir.DataType,
    to: ir.DataType,
) -> Stages | None:
    """Return the stages of a QuantizeLinear whose parameters are aligned to the data.

    The attributes are those of the operator; ``to`` is the type of the codes. A minifloat of no
    more than 3 stored bits has a coarse grid. None if there are no stages.
    """
    form = FORMATS.get(to.name)
    s = np.asarray(scale).astype(dtype, copy=False)
    if isinstance(form, IntFormat):
        z = np.zeros((), dtype) if zero_point is None else zero_point.astype(dtype, copy=False)
        lo, hi = np.float32(form.lo) - z, np.float32(form.hi) - z
        return _Whole((s, z, np.asarray(lo), np.asarray(hi)), (form.lo, form.hi))
    return None if form is None else _Rounded((s,), to.name, saturate)
