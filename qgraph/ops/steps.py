"""What definitions and kernels of operators share: checks of parameters, and steps.

Checks read the inputs of a kernel: dtypes, shapes and values that its definition requires. Steps
are parts of definitions, written over primitives. ``Stages`` are the kernel of a quantizer, here of
QuantizeLinear, in three parts: where data lies among the levels, which level, its value. Many
elements share one level, so what becomes of each level can be found without visiting each element.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qgraph.numerics import Array, chunks
from qgraph.numerics.float32 import representatives
from qgraph.numerics.formats import FORMATS, IntFormat
from qgraph.numerics.minifloat import cast
from qgraph.numerics.rounding import Rounding
from qgraph.ops import steps
from qgraph.records import dataclass

MOST_LEVELS = 1 << 16
"""More levels than these are not listed."""

FLOATS = (np.float32, np.float16, np.float64, ml_dtypes.bfloat16)


def real_data(x: npt.ArrayLike) -> Array:
    """Return ``x`` as an array of a floating-point type.

    Raises: ValueError for another type.
    """
    data = np.asarray(x)
    if data.dtype not in FLOATS:
        raise ValueError(
            f"its data is {data.dtype}, expected float32, float16, bfloat16 or float64; "
            "put a Cast in front of it"
        )
    return data


def broadcast(x: Array, **parameters: Array) -> tuple[int, ...]:
    """Return the common shape of the data and its parameters.

    Raises: ValueError naming the parameter that does not fit.
    """
    try:
        return np.broadcast(x, *parameters.values()).shape
    except ValueError:
        return _broadcast_each(x, parameters)


def _broadcast_each(x: Array, parameters: dict[str, Array]) -> tuple[int, ...]:
    shape = x.shape
    for name, value in parameters.items():
        try:
            shape = np.broadcast_shapes(shape, value.shape)
        except ValueError as error:
            raise ValueError(
                f"{name} has shape {list(value.shape)}, which does not broadcast to data of shape "
                f"{list(x.shape)}; expected sizes that are 1 or equal to those of the data, "
                "counted from the last axis. Reshape it"
            ) from error
    return shape


def whole(name: str, value: npt.ArrayLike, lo: int, hi: int | None = None) -> Array:
    """Return ``value`` in float32 after checking that it holds whole numbers in ``lo`` .. ``hi``.

    Raises: ValueError naming the first one that is not.
    """
    numbers = np.asarray(value).astype(np.float32)
    top = np.inf if hi is None else hi
    if numbers.size == 1 and (number := float(numbers.item())).is_integer() and lo <= number <= top:
        return numbers
    wrong = ~((numbers >= lo) & (numbers <= top) & (numbers == np.rint(numbers)))
    wrong |= np.isinf(numbers)
    if wrong.any():
        limits = f"from {lo} to {hi}" if hi is not None else f"of at least {lo}"
        raise ValueError(
            f"{name} is {numbers[wrong].flat[0]:g}, expected a whole number {limits}. "
            "Correct the model's exporter"
        )
    return numbers


TO_FLOAT32 = "convert the model to float32 first (-p widen-floats, from 16 bits)"
"""What to do about other types."""


def require_float32(name: str, dtype: ir.DataType | None) -> None:
    """Raise a ValueError for a type in which a definition, written in float32, would not be true.

    An unknown type passes: it comes from a graph without types.
    """
    if dtype not in (None, ir.DataType.UNDEFINED, ir.DataType.FLOAT):
        raise ValueError(
            f"its {name} is {dtype.name}, but definitions are written in FLOAT; {TO_FLOAT32}, or "
            "leave this node out"
        )


def round_to_integer(op: Any, y: Any, mode: Rounding) -> Any:
    """Round to whole numbers; the zero signs are those of the operations written."""
    match Rounding.parse(mode):
        case Rounding.ROUND:
            return op.Round(y)
        case Rounding.CEIL:
            return op.Ceil(y)
        case Rounding.FLOOR:
            return op.Floor(y)
        case Rounding.UP:
            return op.Mul(op.Sign(y), op.Ceil(op.Abs(y)))
        case Rounding.DOWN:
            # In this order: ONNX Runtime's Where makes +0 of a -0 in its first branch.
            return op.Where(op.Greater(y, 0.0), op.Floor(y), op.Ceil(y))
        case Rounding.HALF_UP:
            return op.Mul(op.Sign(y), op.Floor(op.Add(op.Abs(y), 0.5)))
        case Rounding.HALF_DOWN:
            return op.Mul(op.Sign(y), op.Ceil(op.Sub(op.Abs(y), 0.5)))


def clamp(op: Any, y: Any, lo: Any, hi: Any) -> Any:
    """Return ``min(max(y, lo), hi)``; NaN passes."""
    return op.Min(op.Max(y, lo), hi)


def clamp_by_comparison(op: Any, y: Any, lo: Any, hi: Any) -> Any:
    """Clamp so that a zero keeps its sign, of which Min and Max say nothing at a bound of zero."""
    y = op.Where(op.Greater(y, hi), hi, y)
    return op.Where(op.Less(y, lo), lo, y)


def code_range(op: Any, bits: Any, *, signed: bool, narrow: bool) -> tuple[Any, Any]:
    """Return the smallest and largest code of ``bits`` bits, each rounded once to float32."""
    if signed:
        half = op.Pow(2.0, op.Sub(bits, 1.0))
        return op.Sub(float(narrow), half), op.Sub(half, 1.0)
    return 0.0, op.Sub(op.Pow(2.0, bits), 2.0 if narrow else 1.0)


def floor_power_of_two(op: Any, v: Any) -> Any:
    """Return ``2 ** floor(log2(v))`` of a positive ``v``, exactly, within 2**-127 .. 2**127.

    A float32 logarithm is one too large just below powers of two; a cast to E8M0 is not.
    """
    power = op.Cast(v, to=ir.DataType.FLOAT8E8M0, round_mode="down")
    return op.Cast(power, to=ir.DataType.FLOAT)


@dataclass(frozen=True, eq=False)
class Stages:
    """The float operations of a quantizer, in place; one after the other they are its kernel.

    Attributes:
        arrays: parameters of all stages, which broadcast to the data; the first one is the scale,
            unless :meth:`place` says otherwise.
    """

    arrays: tuple[Array, ...]

    @property
    def by_upper_half(self) -> bool:
        """Whether a level follows from the upper half of the bits of its place, rounded to odd.

        See :mod:`qgraph.numerics.float32`; no parameter that varies plays a part. Otherwise levels
        are whole numbers.
        """
        return False

    @property
    def shift(self) -> int | None:
        """Which of the parameters, added to places, gives places in codes; None for none."""
        return None

    def place(self, y: Array, x: Array, *arrays: Array) -> None:
        """Write where ``x`` lies, in units of the levels, neither rounded nor clipped."""
        np.divide(x, arrays[0], out=y)

    def level(self, y: Array, *arrays: Array) -> None:
        """Replace places by levels."""
        raise NotImplementedError

    def value(self, y: Array, *arrays: Array) -> None:
        """Replace levels by real values."""

    def levels(self) -> Array | None:
        """Return all levels that a place which is a number may become, ``[n]``.

        None if they cannot be listed.
        """
        raise NotImplementedError


def grid_levels(level: Callable[[Array], None]) -> Array | None:
    """Return the points of a coarse grid, zeros of both signs and infinities included.

    None if a number becomes NaN. ``level`` rounds numbers in place.
    """
    y = representatives()
    y = y[~np.isnan(y)]
    level(y)
    grid = np.unique(y.view(np.uint32)).view(np.float32)
    return None if np.isnan(grid).any() else grid


def run(stages: Stages, y: Array, x: Array, *arrays: Array) -> None:
    """Write the values of ``x`` to ``y``."""
    stages.place(y, x, *arrays)
    stages.level(y, *arrays)
    stages.value(y, *arrays)


def fill(stages: Stages, shape: tuple[int, ...], x: Array) -> Array:
    """Return the values of ``x``, ``[*shape]`` in its dtype."""
    return chunks.fill(partial(run, stages), np.empty(shape, x.dtype), x, *stages.arrays)


@dataclass(frozen=True, eq=False)
class _Whole(Stages):
    """Codes of an integer type; parameters are scale, zero point, and the ends less that."""

    ends: tuple[int, int]

    @property
    def shift(self) -> int | None:
        """The zero point, which is added after rounding."""
        return 1 if self.arrays[1].any() else None

    def level(self, y: Array, *arrays: Array) -> None:
        """Round, clamp and add the zero point."""
        _, z, lo, hi = arrays
        np.rint(y, out=y)
        np.fmax(y, lo, out=y)  # fmax takes the bound where y is NaN
        np.minimum(y, hi, out=y)
        np.add(y, z, out=y)

    def levels(self) -> Array:
        """Return all codes."""
        return np.arange(self.ends[0], self.ends[1] + 1, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class _Rounded(Stages):
    """Numbers of a minifloat; the only parameter is the scale."""

    kind: str
    saturate: bool

    by_upper_half: ClassVar[bool] = True

    def level(self, y: Array, *arrays: Array) -> None:
        """Round to the format."""
        y[...] = cast(y, self.kind, self.saturate)

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
